//! Tests with generated keys, dnode blocks and streams of every suite. The corpus has only two suites and only small
//! dnodes.

mod wrapping;

use proptest::prelude::*;
use snowmelt_stream::reader::Positioned;
use snowmelt_stream::{
    Begin, BeginFlags, ByteOrder, Crypt, End, Features, Free, FreeObjects, HeaderType, NvList, NvValue,
    Object, ObjectRange, Record, Spill, ToName, Write,
};

use crate::dnode::split;
use crate::keydata::VERSION;
use crate::suite::tests::seal;
use crate::*;

const WRAPPING: [u8; 32] = [9; 32];

/// The key data of a dataset, and its decryptor.
fn dataset(suite: Suite) -> (Keydata, Decryptor) {
    let list = keydata_list(suite);
    let keydata = Keydata::parse(&list).unwrap();
    let keys = Keys::unwrap(&keydata, &WrappingKey::new(WRAPPING)).unwrap();
    (keydata, Decryptor::new(keys))
}

fn keydata_list(suite: Suite) -> NvList {
    let mut both: Vec<u8> = (0..suite.key_len() + 64).map(|i| i as u8).collect();
    let aad = [7, suite.id(), VERSION].map(u64::to_le_bytes).concat();
    let mac = seal(suite.wrapping(), &WRAPPING, &[3; 12], &aad, &mut both);
    let (master, hmac) = both.split_at(suite.key_len());
    let mut master = master.to_vec();
    master.resize(32, 0);
    let mut list = NvList::new();
    for (name, number) in [
        ("DSL_CRYPTO_SUITE", suite.id()),
        ("DSL_CRYPTO_GUID", 7),
        ("DSL_CRYPTO_VERSION", VERSION),
        ("keyformat", 1),
        ("pbkdf2iters", 0),
        ("pbkdf2salt", 0),
        ("mdn_checksum", 0),
        ("mdn_compress", 0),
        ("mdn_nlevels", 2),
        ("mdn_blksz", 16384),
        ("mdn_indblkshift", 17),
        ("mdn_nblkptr", 3),
        ("mdn_maxblkid", 1),
    ] {
        list.insert(name, number);
    }
    for (name, bytes) in [
        ("DSL_CRYPTO_MASTER_KEY_1", master),
        ("DSL_CRYPTO_HMAC_KEY_1", hmac.to_vec()),
        ("DSL_CRYPTO_IV", vec![3; 12]),
        ("DSL_CRYPTO_MAC", mac.to_vec()),
        ("portable_mac", vec![0; 32]),
    ] {
        list.insert(name, NvValue::Uint8Array(bytes));
    }
    list
}

/// Encrypts as the owner of the dataset does.
fn encrypt(suite: Suite, crypt: &mut Crypt, aad: &[u8], data: &mut [u8]) {
    let mut key = [0; 32];
    let master: Vec<u8> = (0..suite.key_len()).map(|i| i as u8).collect();
    hkdf::Hkdf::<sha2::Sha512>::new(None, &master).expand(&crypt.salt, &mut key[..suite.key_len()]).unwrap();
    crypt.mac = seal(suite, &key, &crypt.iv, aad, data);
}

fn crypt(seed: u8) -> Crypt {
    Crypt { salt: [seed; 8], iv: [seed; 12], mac: [0; 16] }
}

#[test]
fn blocks_of_every_suite_open() {
    for suite in Suite::ALL {
        let (_, decryptor) = dataset(suite);
        assert_eq!(decryptor.keys().suite(), suite);
        // More salts than the cache holds, each used more than once.
        for seed in (0..40).chain(0..40) {
            let mut of = crypt(seed);
            let mut data = vec![seed; 512];
            encrypt(suite, &mut of, &[], &mut data);
            assert_ne!(data, vec![seed; 512]);
            decryptor.block(19, &of, &mut data).unwrap();
            assert_eq!(data, vec![seed; 512]);
        }
        let mut data = vec![1; 512];
        assert_eq!(decryptor.block(19, &crypt(1), &mut data), Err(BlockError::Unauthentic));
        assert_eq!(data, vec![0; 512], "what is not authentic is not handed out");
        assert_eq!(decryptor.block(21, &crypt(1), &mut data), Err(BlockError::Unauthentic));
    }
}

#[test]
fn passphrases_and_hexadecimal_keys_become_keys() {
    let (mut keydata, _) = dataset(Suite::Aes256Gcm);
    keydata.format = KeyFormat::Hex;
    for text in ["09".repeat(32), format!("{}\n", "09".repeat(32)), format!("{}\nmore", "09".repeat(32))] {
        let wrapping = WrappingKey::from_material(&keydata, text.as_bytes()).unwrap();
        assert!(Keys::unwrap(&keydata, &wrapping).is_ok());
    }
    let refused = |material: &[u8]| WrappingKey::from_material(&keydata, material).unwrap_err().to_string();
    assert_eq!(refused(&[b'0'; 63]), "Hex key too short (expected 64)");
    assert_eq!(refused(&[b'0'; 65]), "Hex key too long (expected 64)");
    assert_eq!(refused(&[b'x'; 64]), "Invalid hex character detected");
    assert_eq!(Keys::unwrap(&keydata, &WrappingKey::new([8; 32])).unwrap_err(), KeyError::Incorrect);

    // The key data is wrapped in the key that PBKDF2 derives from the first line of the passphrase, up to a NUL.
    let mut list = keydata_list(Suite::Aes128Ccm);
    for (name, number) in [("keyformat", 3), ("pbkdf2iters", 5), ("pbkdf2salt", 77)] {
        list.insert(name, number);
    }
    let mut key = [0; 32];
    pbkdf2::pbkdf2_hmac::<sha1::Sha1>(b"password", &77_u64.to_le_bytes(), 5, &mut key);
    let mut both = [4; 16 + 64];
    let aad = [7, Suite::Aes128Ccm.id(), VERSION].map(u64::to_le_bytes).concat();
    let mac = seal(Suite::Aes256Ccm, &key, &[3; 12], &aad, &mut both);
    let mut master = both[..16].to_vec();
    master.resize(32, 0);
    list.insert("DSL_CRYPTO_MASTER_KEY_1", NvValue::Uint8Array(master));
    list.insert("DSL_CRYPTO_HMAC_KEY_1", NvValue::Uint8Array(both[16..].to_vec()));
    list.insert("DSL_CRYPTO_MAC", NvValue::Uint8Array(mac.to_vec()));
    let keydata = Keydata::parse(&list).unwrap();
    let opens = |material: &[u8]| {
        let mut ring = Keyring::new();
        ring.add(zeroize::Zeroizing::new(material.to_vec()));
        ring.open(&keydata).map(drop)
    };
    assert_eq!(opens(b"password"), Ok(()));
    assert_eq!(opens(b"password\n"), Ok(()));
    assert_eq!(opens(b"password\0x\nmore"), Ok(()));
    assert_eq!(opens(b"password "), Err(KeyError::Incorrect));
}

#[test]
fn key_data_that_cannot_be_is_refused() {
    let refused = |name: &str, value: NvValue| {
        let mut list = keydata_list(Suite::Aes256Gcm);
        list.insert(name, value);
        Keydata::parse(&list).unwrap_err().to_string()
    };
    for (name, value) in [
        ("DSL_CRYPTO_SUITE", 2),
        ("DSL_CRYPTO_SUITE", 9),
        ("DSL_CRYPTO_VERSION", 0),
        ("keyformat", 0),
        ("keyformat", 4),
        ("pbkdf2iters", 1),
        ("pbkdf2salt", 1),
        ("mdn_nlevels", 13),
        ("mdn_nlevels", 0),
        ("mdn_blksz", 512),
        ("mdn_indblkshift", 18),
        ("mdn_nblkptr", 2),
    ] {
        assert!(refused(name, NvValue::Uint64(value)).starts_with("crypt_keydata: "), "{name}");
    }
    for (name, _) in keydata_list(Suite::Aes256Gcm).iter() {
        assert!(refused(name, NvValue::Boolean).contains(name), "{name}");
    }
    let short = refused("DSL_CRYPTO_IV", NvValue::Uint8Array(vec![0; 11]));
    assert_eq!(short, "crypt_keydata: DSL_CRYPTO_IV is missing or is not 12 bytes");
    let mut list = keydata_list(Suite::Aes256Gcm);
    list.insert("keyformat", 3);
    list.insert("pbkdf2salt", 1);
    list.insert("pbkdf2iters", u64::from(MAX_ITERATIONS) + 1);
    assert!(matches!(Keydata::parse(&list), Err(KeyError::Range { field: "pbkdf2iters", .. })));
}

/// A dnode with an encrypted bonus buffer that fills it.
fn object(object: u64, slots: u8, nblkptr: u8, spill: bool) -> (Object, Vec<u8>) {
    let room = usize::from(slots) * 512 - 64 - 128 * (usize::from(nblkptr) + usize::from(spill));
    let record = Object {
        object,
        object_type: 19,
        bonus_type: 44,
        block_size: 512,
        bonus_len: 100,
        dn_slots: slots,
        raw_bonus_len: u32::try_from(room).unwrap(),
        flags: if spill { Object::SPILL } else { 0 },
        indirect_block_shift: 17,
        nlevels: 1,
        nblkptr,
        max_blkid: 2,
        ..Object::default()
    };
    (record, vec![object as u8; room])
}

proptest! {
    #[test]
    fn dnode_blocks_of_any_shape_open(
        suite in prop::sample::select(Suite::ALL.to_vec()),
        shapes in prop::collection::vec((1_u8..9, 1_u8..3, any::<bool>(), 0_u64..4, any::<bool>()), 0..12),
        swapped: bool,
    ) {
        let (_, decryptor) = dataset(suite);
        let mut objects = Vec::new();
        let mut next = 64;
        for (slots, nblkptr, spill, gap, plain) in shapes {
            next += gap;
            // Two pointers, a spill block and a bonus buffer just fit into one slot.
            if next + u64::from(slots) <= 96 {
                let (mut record, bonus) = object(next, slots, nblkptr, spill);
                // The bonus buffer of a DSL directory, for example, is only authenticated.
                record.bonus_type = if plain { 12 } else { 44 };
                objects.push((record, bonus));
            }
            next += u64::from(slots);
        }
        let order = if swapped { ByteOrder::Big } else { ByteOrder::Little };
        let flags = if swapped { Write::RAW_BYTESWAP } else { 0 };
        let mut range = ObjectRange { first: 64, count: 32, crypt: crypt(5), flags, ..ObjectRange::default() };
        let roots = [BlockAuth::HOLE; 3];
        let before = objects.clone();
        let make = |objects: &mut Vec<(Object, Vec<u8>)>, open: &mut dyn FnMut(&mut [Dnode<'_>])| {
            let mut dnodes: Vec<_> = objects.iter_mut().map(|(record, bonus)| Dnode {
                blocks: &roots[..usize::from(record.nblkptr)],
                spill: (record.flags & Object::SPILL != 0).then_some(BlockAuth::HOLE),
                record, bonus,
            }).collect();
            open(&mut dnodes);
        };
        make(&mut objects, &mut |dnodes| {
            let mut parts = split(64, order, dnodes).unwrap();
            // The authenticated part of a block pointer has 32 bytes instead of 128. All other bytes occur once.
            let pointers: usize = dnodes.iter().map(|d| d.blocks.len() + usize::from(d.spill.is_some())).sum();
            assert_eq!(parts.authenticated.len() + parts.encrypted.len() + pointers * 96, 32 * 512);
            encrypt(suite, &mut range.crypt, &parts.authenticated, &mut parts.encrypted);
            crate::dnode::join(&parts.encrypted, dnodes);
        });
        let encrypted = objects.clone();
        make(&mut objects, &mut |dnodes| decryptor.dnodes(&range, ByteOrder::Little, dnodes).unwrap());
        prop_assert_eq!(&objects, &before);

        // With a changed flag, size or order the block does not open, and everything stays unchanged.
        objects = encrypted.clone();
        if let Some((record, _)) = objects.last_mut() {
            record.max_blkid ^= 1;
            make(&mut objects, &mut |dnodes| {
                let said = decryptor.dnodes(&range, ByteOrder::Little, dnodes);
                assert_eq!(said, Err(BlockError::Unauthentic));
            });
            prop_assert_eq!(&objects.last().unwrap().1, &encrypted.last().unwrap().1);
        }
    }
}

#[test]
fn dnodes_that_do_not_make_a_block_are_refused() {
    let (_, decryptor) = dataset(Suite::Aes256Gcm);
    let range = ObjectRange { first: 32, count: 32, ..ObjectRange::default() };
    let said = |objects: &mut [(Object, Vec<u8>)], blocks: &[BlockAuth]| {
        let mut dnodes: Vec<_> =
            objects.iter_mut().map(|(record, bonus)| Dnode { record, bonus, blocks, spill: None }).collect();
        decryptor.dnodes(&range, ByteOrder::Little, &mut dnodes).unwrap_err()
    };
    let one = [BlockAuth::HOLE];
    let misfit = |object| BlockError::DnodeSlots { object, first: 32, last: 63 };
    assert_eq!(said(&mut [object(31, 1, 1, false)], &one), misfit(31));
    assert_eq!(said(&mut [object(64, 1, 1, false)], &one), misfit(64));
    assert_eq!(said(&mut [object(63, 2, 1, false)], &one), misfit(63));
    assert_eq!(said(&mut [object(40, 2, 1, false), object(41, 1, 1, false)], &one), misfit(41));
    assert_eq!(said(&mut [object(41, 1, 1, false), object(40, 1, 1, false)], &one), misfit(40));
    let mut short = object(40, 1, 1, false);
    short.1.truncate(300);
    assert_eq!(said(&mut [short], &one), BlockError::BonusLength { object: 40, found: 300, expected: 320 });
    let pointers = |found, expected| BlockError::BlockPointers { object: 40, found, expected };
    assert_eq!(said(&mut [object(40, 1, 1, true)], &one), pointers(1, 2));
    assert_eq!(said(&mut [object(40, 1, 1, false)], &[]), pointers(0, 1));
    let mut many = object(40, 1, 1, false);
    many.0.nblkptr = 255;
    assert_eq!(said(&mut [many], &[BlockAuth::HOLE; 255]), pointers(255, 1));
}

/// Records of any kind with small numbers.
fn any_record() -> impl Strategy<Value = (Record, Vec<u8>)> {
    let object_number = 0_u64..100;
    prop_oneof![
        (0_u64..4).prop_map(|n| (
            Record::ObjectRange(ObjectRange { first: n * 32, count: 32, ..Default::default() }),
            vec![]
        )),
        (object_number.clone(), 0_u8..34, 0_u8..4, any::<bool>(), 0_u8..14, 0_u8..20, 0_u64..5).prop_map(
            |(number, slots, nblkptr, spill, nlevels, shift, max_blkid)| {
                let (mut record, bonus) = object(number, slots.max(2), nblkptr.min(2), spill);
                record.nlevels = nlevels;
                record.indirect_block_shift = shift;
                record.max_blkid = max_blkid;
                record.dn_slots = slots;
                (Record::Object(record), bonus)
            }
        ),
        (object_number.clone(), any::<u64>(), 0_u64..4000).prop_map(|(object, offset, sizes)| {
            let (offset, logical_size) = (offset >> (sizes % 64), sizes);
            let write = Write {
                object,
                object_type: 21,
                offset,
                logical_size,
                compressed_size: 512,
                ..Write::default()
            };
            (Record::Write(write), vec![0; 512])
        }),
        object_number.clone().prop_map(|object| {
            (
                Record::Spill(Spill { object, length: 512, compressed_size: 512, ..Spill::default() }),
                vec![0; 512],
            )
        }),
        (object_number.clone(), any::<u64>(), any::<u64>()).prop_map(|(object, offset, length)| (
            Record::Free(Free { object, offset, length, to_guid: 0 }),
            vec![]
        )),
        (any::<u64>(), any::<u64>()).prop_map(|(first, count)| (
            Record::FreeObjects(FreeObjects { first: first % 200, count, to_guid: 0 }),
            vec![]
        )),
        Just((Record::End(End::default()), vec![])),
    ]
}

fn begin(from_guid: u64) -> Begin {
    Begin {
        header_type: HeaderType::Substream,
        features: Features::RAW,
        creation_time: 0,
        objset_type: 2,
        flags: BeginFlags::default(),
        to_guid: from_guid + 1,
        from_guid,
        to_name: ToName::default(),
        payload_len: 0,
    }
}

proptest! {
    #[test]
    fn no_records_make_a_verifier_panic(
        records in prop::collection::vec(any_record(), 0..40),
        remembers: bool, from_guid in 0_u64..2, resumed in prop::option::of(0_u64..100),
    ) {
        let (keydata, decryptor) = dataset(Suite::Aes256Gcm);
        let mut verifier = Verifier::new();
        verifier.remember(remembers);
        let mut list = NvList::new();
        if let Some(object) = resumed {
            list.insert("resume_object", object);
        }
        let begin = begin(from_guid);
        let at = |record| Positioned { record, index: 0, offset: 0 };
        let first = at(Record::Begin(begin.clone()));
        let decryptor = std::sync::Arc::new(decryptor);
        let keys = (keydata, decryptor.clone(), ByteOrder::Little);
        verifier.begin(&first, &begin, &list, keys).unwrap();
        for (mut record, mut payload) in records {
            // The MAC is made valid, so that the trees are reached.
            match &mut record {
                Record::Write(write) => {
                    write.crypt.mac.copy_from_slice(&decryptor.keys().hmac([&payload[..]])[..16]);
                }
                Record::Spill(spill) => encrypt(Suite::Aes256Gcm, &mut spill.crypt, &[], &mut payload),
                _ => {}
            }
            let _ = verifier.record(&at(record), &mut payload);
        }
        let done = verifier.done();
        prop_assert_eq!((done.dnode_blocks, done.object_sets), (0, 0));
    }
}
