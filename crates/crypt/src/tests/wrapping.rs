//! Tests with wrapped keys from another implementation: Python's `cryptography`, which uses OpenSSL.
//!
//! The wrapping key is always an AES-256 key, in the mode of the suite. The length of the master key depends on the
//! suite.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha512;
use snowmelt_stream::NvValue;

use super::keydata_list;
use crate::*;

/// Suite, format of the key, and ciphertext of master key and HMAC key followed by the MAC.
///
/// IV: a0 a1 .. ab. Additional data: guid 0x0102030405060708, suite, version 1, each in 8 bytes, little-endian.
const WRAPPED: [(Suite, KeyFormat, &str); 12] = [
    (
        Suite::Aes128Ccm,
        KeyFormat::Raw,
        "c737e3d3f7960e6f6f5e2b4e237f914ae3030a7d5c430bf5378f8fff0b6225da4f7d8421b66d3a7fa38aee729ecfe02c\
         c78deb45294dfeb5add648bf40831dbb0e5b3f6323b34ddd30aa6fe8b2acb7738a584b3a47893aace8e00e99dd679769",
    ),
    (
        Suite::Aes192Ccm,
        KeyFormat::Raw,
        "c737e3d3f7960e6f6f5e2b4e237f914a917378e9c6cbb1711fb7b7d7233a4db23715ec79ee4502478b52369a763708c4\
         1fa5c37d1165a6edc5ae30d728db3593367317bbfb5bb525d872b7c09a949f5b2d01995d0c32f5bf58b0723e286136b8\
         53d61d46ceb715a0",
    ),
    (
        Suite::Aes256Ccm,
        KeyFormat::Raw,
        "c737e3d3f7960e6f6f5e2b4e237f914a917378e9c6cbb171b50f0d7bf1eabf4e1f2dd451c61d6a2ff33a5ec22e1f30fc\
         377d1b95f99d4e051d8618ef10f36dcb5e0b6fd393039d0de05a9f18427c67a3c5d94175240add97129b172af6eddc55\
         21ac0acca38567c44565ec0aa6753d52",
    ),
    (
        Suite::Aes128Gcm,
        KeyFormat::Raw,
        "d6870929ffcfb71f402f06b0dce0539cec1ff8d5fb73a40bc9ecdba0d68637b609cf2f21a73c55d793da2d14d178be57\
         41e4aad45c45d3d611a0483fae3a3c7e7461471219faf08f2d1f0b44982b6ed5e78b539bc6ebb093d68924280389b4c6",
    ),
    (
        Suite::Aes192Gcm,
        KeyFormat::Raw,
        "d6870929ffcfb71f402f06b0dce0539c9e6f8a4161fb1e8fe1d4e388fede5fde71a74779ff146defbb02f5fc398056bf\
         99cc82ec646d8b8e79d83057c66214564c496fcac1120877c5c7d36cb01346fdba3a9c6e25697b056511ba01507648a3\
         2adc3de98a3a7c84",
    ),
    (
        Suite::Aes256Gcm,
        KeyFormat::Raw,
        "d6870929ffcfb71f402f06b0dce0539c9e6f8a4161fb1e8f4b6c59242c0ead22599f7f51d74c0587c36a9da461a86e87\
         b1145a048c956366a1f0186ffe4a4c0e243117a2a94a205ffdeffbb468fbbe0552e244460d51532debdea47b45adddbf\
         27447ce961a2cec21232b4b656d4c152",
    ),
    (
        Suite::Aes128Ccm,
        KeyFormat::Passphrase,
        "2f298fc2f4fdbb3852f690b278ed6a625cc08c39c9dcf0894e09d68089b341be88835102bac3c808f01df60893d25170\
         9fa1d796e6e983c39bd42b73c78b26a58e63424385d51164f53d988e5f09aceff9d3292ba6ec36b5f14be062fdd67d4c",
    ),
    (
        Suite::Aes192Ccm,
        KeyFormat::Passphrase,
        "2f298fc2f4fdbb3852f690b278ed6a622eb0fead53544a0d6631eea8a1eb29d6f0eb395ae2ebf030d8c52ee07b2ab998\
         4789ffaedec1db9bf3ac531bafd30e8db64b6a9b5d3de99c1de540a6773184c71aafa4b85a329aea5a760cb32f17f492\
         8370e2191a362da0",
    ),
    (
        Suite::Aes256Ccm,
        KeyFormat::Passphrase,
        "2f298fc2f4fdbb3852f690b278ed6a622eb0fead53544a0dcc895404733bdb2ad8d30172cab39858a0ad46b8230281a0\
         6f512746363933732b847b2397fb56d5de3312f33565c1b425cd687eafd97c3ff2777c90720ab2c204f910300dd24db2\
         5dcd94caddcab68d53d9d77872fc2eab",
    ),
    (
        Suite::Aes128Gcm,
        KeyFormat::Passphrase,
        "c260d4e51114639916824f6e25e0f0fba12f204d46bd7d99d8e5cdf6d830381d589d6fc2c9ca48e373fbc231400a595d\
         a19f8b3de097c0e70581c12afc6a2e43a77194de838d6289ead5a18fcf0531cfb9e23581378f87214d382de0757b1eca",
    ),
    (
        Suite::Aes192Gcm,
        KeyFormat::Passphrase,
        "c260d4e51114639916824f6e25e0f0fbd35f52d9dc35c71df0ddf5def068507520f5079a91e270db5b231ad9a8f2b1b5\
         79b7a305d8bf98bf6df9b9429432066b9f59bc065b659a71020d79a7e73d19e7f671d14784ec36c5163b4320ab2cf3fc\
         eb299fbf717252cf",
    ),
    (
        Suite::Aes256Gcm,
        KeyFormat::Passphrase,
        "c260d4e51114639916824f6e25e0f0fbd35f52d9dc35c71d5a654f7222b8a28908cd3fb2b9ba18b3234b7281f0da898d\
         516f7bed30477057b5d1917aac1a5e33f721c46e333db2593a25517f3fd5e11f1ea9096facd41eed79d287efc26044e2\
         94d44eb162db7bf2657aecde9eabd535",
    ),
];

const PASSPHRASE: &[u8] = b"correct horse\n";
const PBKDF2_SALT: u64 = 0x1122_3344_5566_7788;

fn unhex(digits: &str) -> Vec<u8> {
    digits
        .as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

/// The key as a user gives it.
fn material(format: KeyFormat) -> Vec<u8> {
    match format {
        KeyFormat::Raw => (0x40..0x60).collect(),
        KeyFormat::Hex => (0x40..0x60).map(|byte: u8| format!("{byte:02X}")).collect::<String>().into_bytes(),
        KeyFormat::Passphrase => PASSPHRASE.to_vec(),
    }
}

fn keydata(suite: Suite, format: KeyFormat, wrapped: &[u8]) -> Keydata {
    let (master, rest) = wrapped.split_at(suite.key_len());
    let (hmac, mac) = rest.split_at(64);
    let mut list = keydata_list(suite);
    list.insert("DSL_CRYPTO_GUID", 0x0102_0304_0506_0708_u64);
    let (number, iterations, salt) = match format {
        KeyFormat::Raw => (1, 0, 0),
        KeyFormat::Hex => (2, 0, 0),
        KeyFormat::Passphrase => (3, 1000, PBKDF2_SALT),
    };
    for (name, value) in [("keyformat", number), ("pbkdf2iters", iterations), ("pbkdf2salt", salt)] {
        list.insert(name, value);
    }
    let mut padded = master.to_vec();
    padded.resize(32, 0);
    for (name, bytes) in [
        ("DSL_CRYPTO_MASTER_KEY_1", padded),
        ("DSL_CRYPTO_HMAC_KEY_1", hmac.to_vec()),
        ("DSL_CRYPTO_IV", (0xa0..0xac).collect()),
        ("DSL_CRYPTO_MAC", mac.to_vec()),
    ] {
        list.insert(name, NvValue::Uint8Array(bytes));
    }
    Keydata::parse(&list).unwrap()
}

#[test]
fn keys_wrapped_by_another_implementation_open_in_every_suite() {
    for (suite, made_with, wrapped) in WRAPPED {
        let formats: &[KeyFormat] = match made_with {
            KeyFormat::Raw | KeyFormat::Hex => &[KeyFormat::Raw, KeyFormat::Hex],
            KeyFormat::Passphrase => &[KeyFormat::Passphrase],
        };
        for &format in formats {
            let keydata = keydata(suite, format, &unhex(wrapped));
            let wrapping = WrappingKey::from_material(&keydata, &material(format)).unwrap();
            let keys = Keys::unwrap(&keydata, &wrapping);
            let keys = keys.unwrap_or_else(|error| panic!("{} with a {format:?} key: {error}", suite.name()));
            // The HMAC key is the second part of the message: 3, 8, 13 and so on.
            let key: Vec<u8> = (0..64_u8).map(|i| i.wrapping_mul(5).wrapping_add(3)).collect();
            let mut mac = Hmac::<Sha512>::new_from_slice(&key).unwrap();
            mac.update(b"data");
            assert_eq!(keys.hmac([&b"data"[..]])[..], mac.finalize().into_bytes()[..], "{}", suite.name());

            let other = WrappingKey::new([7; 32]);
            assert_eq!(Keys::unwrap(&keydata, &other).unwrap_err(), KeyError::Incorrect);
        }
    }
}
