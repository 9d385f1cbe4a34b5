#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use proptest::prelude::*;
use snowmelt_store::SegmentId;

use super::*;
use crate::error::KeyError;
use crate::ids::BlockId;

const ID: BlockId = BlockId { object: 3, blkid: 4 };
const SEAL: Seal = Seal { class: Class::Data, compression: 15, lsize: 512, birth: 9 };
/// A low cost that keeps tests fast.
const CHEAP: PassphraseCost = PassphraseCost { memory: 8, passes: 1, lanes: 1 };

fn wrap(format: KeyFormat, material: &[u8]) -> Wrap<'_> {
    Wrap { format, location: "file:///key", material, cost: CHEAP }
}

fn keys(suite: Suite) -> Keys {
    Keys::new(42, suite, &wrap(KeyFormat::Raw, &[1; 32])).unwrap()
}

fn sealed(sealer: &Sealer, seal: &Seal, id: BlockId, payload: &[u8]) -> Bytes {
    sealer.seal(seal, id, payload, blake3::hash(payload).as_bytes()).unwrap()
}

#[test]
fn blocks_come_back_and_nothing_else_does() {
    for suite in Suite::ALL {
        let keys = keys(suite);
        let sealer = Sealer::new(&keys);
        let stored = sealed(&sealer, &SEAL, ID, b"payload");
        assert_eq!(stored.len(), 7 + suite.overhead() as usize);
        assert_eq!(sealer.open(&SEAL, stored.clone()).unwrap(), b"payload"[..]);
        // Another reference to the same bytes is not changed.
        assert_eq!(stored, sealed(&sealer, &SEAL, ID, b"payload"));
        for at in 0..stored.len() {
            let mut bad = stored.to_vec();
            bad[at] ^= 4;
            assert!(sealer.open(&SEAL, bad.into()).is_none(), "byte {at}");
            assert!(sealer.open(&SEAL, stored.slice(..at)).is_none(), "the first {at} bytes");
        }
        for other in [
            Seal { class: Class::Node, ..SEAL },
            Seal { class: Class::MetaNode, ..SEAL },
            Seal { compression: 2, ..SEAL },
            Seal { lsize: 513, ..SEAL },
            Seal { birth: 10, ..SEAL },
        ] {
            assert!(sealer.open(&other, stored.clone()).is_none(), "{other:?}");
        }
        let of_another_pool = Keys::new(43, suite, &wrap(KeyFormat::Raw, &[1; 32])).unwrap();
        assert!(Sealer::new(&of_another_pool).open(&SEAL, stored).is_none());
    }
}

#[test]
fn nonces_follow_from_all_that_is_sealed() {
    for suite in Suite::ALL {
        let sealer = Sealer::new(&keys(suite));
        let nonce = |seal: &Seal, id, payload: &[u8]| sealed(&sealer, seal, id, payload)[..12].to_vec();
        let here = nonce(&SEAL, ID, b"payload");
        assert_eq!(here, nonce(&SEAL, ID, b"payload"), "so that what is offered anew can be believed");
        assert_ne!(here, nonce(&SEAL, ID, b"paylobd"));
        assert_ne!(here, nonce(&SEAL, BlockId { blkid: 5, ..ID }, b"payload"));
        assert_ne!(here, nonce(&SEAL, BlockId { object: 5, ..ID }, b"payload"));
        assert_ne!(here, nonce(&Seal { birth: 10, ..SEAL }, ID, b"payload"));
        assert_ne!(here, nonce(&Seal { class: Class::Node, ..SEAL }, ID, b"payload"));
    }
}

#[test]
fn every_form_of_key_opens_what_it_wrapped() {
    let hex = b"00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00FF\n";
    for (format, material, wrong) in [
        (KeyFormat::Raw, &[9; 32][..], &[8; 32][..]),
        (KeyFormat::Hex, &hex[..], &[b'0'; 64][..]),
        (KeyFormat::Passphrase, b"correct horse", b"correct hors\xc3\xa8"),
    ] {
        let keys = Keys::new(42, Suite::Aes256GcmSiv, &wrap(format, material)).unwrap();
        let record = KeyRecord::decode(42, &keys.record().encode()).unwrap();
        assert_eq!(&record, keys.record());
        let again = Keys::open(&record, material).unwrap();
        let stored = sealed(&Sealer::new(&keys), &SEAL, ID, b"x");
        assert!(Sealer::new(&again).open(&SEAL, stored).is_some());
        assert!(matches!(Keys::open(&record, wrong), Err(KeyError::Incorrect)), "{format:?}");
        assert!(matches!(Keys::open(&record, b"short"), Err(KeyError::Form(_))), "{format:?}");
        // After rewrapping, the pool's key is the same, and the old user's key no longer works.
        let anew = keys.rewrap(&wrap(KeyFormat::Raw, &[5; 32])).unwrap();
        let anew = Keys::open(anew.record(), &[5; 32]).unwrap();
        assert_eq!(anew.mac(&[0; 32]), keys.mac(&[0; 32]));
        assert!(Keys::open(anew.record(), &[6; 32]).is_err());
    }
    assert_eq!(KeyFormat::of_key(&[0; 32]), Some(KeyFormat::Raw));
    assert_eq!(KeyFormat::of_key(hex), Some(KeyFormat::Hex));
    assert_eq!(KeyFormat::of_key(b"correct horse"), None);
}

#[test]
fn a_fingerprint_is_of_the_pools_key_alone() {
    let keys = Keys::of_test(42, Suite::default(), [0x5a; 32]);
    let derived =
        blake3::derive_key("snowmelt 2026-11 pool encryption: fingerprint of the pool key", &[0x5a; 32]);
    assert_eq!(keys.fingerprint(), derived[..16]);
    assert_ne!(keys.fingerprint(), Keys::of_test(42, Suite::default(), [0x5b; 32]).fingerprint());
    let changed = keys.rewrap(&wrap(KeyFormat::Raw, &[5; 32])).unwrap();
    let opened = Keys::open(changed.record(), &[5; 32]).unwrap();
    assert_eq!(opened.fingerprint(), keys.fingerprint(), "the user's key does not count");
    let other = Keys::new(42, Suite::default(), &wrap(KeyFormat::Raw, &[5; 32])).unwrap();
    assert_ne!(other.fingerprint(), keys.fingerprint(), "another pool that the same user's key opens");
}

#[test]
fn a_record_is_tied_to_its_pool_and_every_byte_of_it_counts() {
    let keys = Keys::new(42, Suite::default(), &wrap(KeyFormat::Passphrase, b"correct horse")).unwrap();
    let bytes = keys.record().encode();
    let of_another = KeyRecord::decode(43, &bytes).unwrap();
    assert!(matches!(Keys::open(&of_another, b"correct horse"), Err(KeyError::Incorrect)));
    for at in 0..bytes.len() {
        for flip in [1, 0x80] {
            let mut bad = bytes.clone();
            bad[at] ^= flip;
            if let Ok(record) = KeyRecord::decode(42, &bad) {
                assert!(Keys::open(&record, b"correct horse").is_err(), "byte {at}");
            }
        }
    }
}

#[test]
fn a_hostile_record_costs_neither_memory_nor_time() {
    let keys = Keys::new(42, Suite::default(), &wrap(KeyFormat::Passphrase, b"correct horse")).unwrap();
    let began = std::time::Instant::now();
    for words in [[u32::MAX, 1, 1], [8, u32::MAX, 1], [8, 1, u32::MAX], [0, 0, 0]] {
        let mut bytes = keys.record().encode();
        for (word, value) in words.iter().enumerate() {
            bytes[4 + 4 * word..8 + 4 * word].copy_from_slice(&value.to_le_bytes());
        }
        let record = KeyRecord::decode(42, &bytes).unwrap();
        let refused = Keys::open(&record, b"correct horse");
        assert!(matches!(refused, Err(KeyError::Record(_))), "{words:?}: {refused:?}");
    }
    assert!(began.elapsed().as_secs() < 5);
}

#[test]
fn no_secret_shows_when_printed() {
    let keys = Keys::new(42, Suite::default(), &wrap(KeyFormat::Raw, &[0xab; 32])).unwrap();
    let printed = format!("{keys:?} {:?}", Sealer::new(&keys));
    let key = **keys.secret_of_test();
    assert!(!printed.contains(&format!("{key:?}")) && !printed.contains("171, 171"));
}

#[test]
fn records_and_key_frames_are_as_version_1_writes_them() {
    let record = KeyRecord::golden();
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let expected = "01020300".to_owned()
        + "000001000300000004000000"
        + &"01".repeat(16)
        + &"02".repeat(24)
        + &"03".repeat(32)
        + &"04".repeat(16)
        + "0600"
        + "70726f6d7074";
    assert_eq!(hex(&record.encode()), expected);
    let bytes = encode_key_frame(&record, SegmentId(5), 6);
    let head = "534d6b7901007000".to_owned() + "0700000000000000" + "0500000000000000" + "0600000000000000";
    assert_eq!(hex(&bytes[..32 + 112]), head + &expected);
    assert_eq!(bytes.len(), 32 + 112 + 32);
    assert_eq!(frame::decode(SegmentId(5), &bytes).unwrap(), (6, record));
    assert!(frame::decode(SegmentId(6), &bytes).is_err(), "left over from elsewhere");
    for at in 0..bytes.len() {
        let mut bad = bytes.clone();
        bad[at] ^= 1;
        assert!(frame::decode(SegmentId(5), &bad).is_err(), "byte {at}");
    }
}

#[test]
fn sealed_blocks_are_as_version_1_writes_them() {
    for (suite, expected) in
        [(Suite::XChaCha20Poly1305, GOLDEN_XCHACHA), (Suite::Aes256GcmSiv, GOLDEN_GCM_SIV)]
    {
        let sealer = Sealer::new(&Keys::of_test(42, suite, [0x5a; 32]));
        let seal = Seal { compression: 15 | suite.bits(), ..SEAL };
        let stored = sealed(&sealer, &seal, ID, b"golden");
        let hex = stored.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(hex, expected, "{suite:?}");
    }
}

// Results of another implementation of the format page, with its own BLAKE3 and HChaCha20, and the AEADs of OpenSSL.
const GOLDEN_XCHACHA: &str =
    "f3a8cd7399d2ad3d3eb63c2a343fa956e7c93423e28bedb469d2a2b0053e35773c3fa857c6e99fec7ffa12df051a";
const GOLDEN_GCM_SIV: &str = "209491ef621074149cebee05b627848a69f285827fe671f48c5191eb7d52f6fe9130";

proptest! {
    #[test]
    fn no_bytes_make_a_decoder_panic(data in prop::collection::vec(any::<u8>(), 0..600)) {
        let _ = KeyRecord::decode(1, &data);
        let _ = frame::decode(SegmentId(1), &data);
        let sealer = Sealer::new(&keys(Suite::default()));
        prop_assert!(sealer.open(&SEAL, data.into()).is_none());
    }
}
