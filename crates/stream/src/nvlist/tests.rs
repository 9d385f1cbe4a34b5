//! Tests of name-value lists.

use proptest::prelude::*;

use super::*;

fn text() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(1_u8..=255, 0..12)
}

fn value() -> impl Strategy<Value = NvValue> {
    let leaf = prop_oneof![
        Just(NvValue::Boolean),
        any::<u8>().prop_map(NvValue::Byte),
        any::<i16>().prop_map(NvValue::Int16),
        any::<u16>().prop_map(NvValue::Uint16),
        any::<i32>().prop_map(NvValue::Int32),
        any::<u32>().prop_map(NvValue::Uint32),
        any::<i64>().prop_map(NvValue::Int64),
        any::<u64>().prop_map(NvValue::Uint64),
        text().prop_map(NvValue::String),
        prop::collection::vec(any::<u8>(), 0..9).prop_map(NvValue::ByteArray),
        prop::collection::vec(any::<i16>(), 0..9).prop_map(NvValue::Int16Array),
        prop::collection::vec(any::<u16>(), 0..9).prop_map(NvValue::Uint16Array),
        prop::collection::vec(any::<i32>(), 0..9).prop_map(NvValue::Int32Array),
        prop::collection::vec(any::<u32>(), 0..9).prop_map(NvValue::Uint32Array),
        prop::collection::vec(any::<i64>(), 0..9).prop_map(NvValue::Int64Array),
        prop::collection::vec(any::<u64>(), 0..9).prop_map(NvValue::Uint64Array),
        prop::collection::vec(text(), 0..5).prop_map(NvValue::StringArray),
        any::<i64>().prop_map(NvValue::Hrtime),
        any::<bool>().prop_map(NvValue::BooleanValue),
        any::<i8>().prop_map(NvValue::Int8),
        any::<u8>().prop_map(NvValue::Uint8),
        prop::collection::vec(any::<bool>(), 0..9).prop_map(NvValue::BooleanArray),
        prop::collection::vec(any::<i8>(), 0..9).prop_map(NvValue::Int8Array),
        prop::collection::vec(any::<u8>(), 0..9).prop_map(NvValue::Uint8Array),
        (-1e9..1e9).prop_map(NvValue::Double),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            list_of(inner.clone()).prop_map(NvValue::List),
            prop::collection::vec(list_of(inner), 0..4).prop_map(NvValue::ListArray),
        ]
    })
}

fn list_of(values: impl Strategy<Value = NvValue>) -> impl Strategy<Value = NvList> {
    (0..3_u32, prop::collection::vec(("[a-z:.é]{0,9}", values), 0..6))
        .prop_map(|(flags, pairs)| NvList { flags, pairs })
}

proptest! {
    #[test]
    fn what_is_packed_unpacks_to_the_same(list in list_of(value())) {
        prop_assert_eq!(&NvList::unpack(&list.pack_xdr()).unwrap(), &list);
        for order in [ByteOrder::Little, ByteOrder::Big] {
            let packed = list.pack_native(order);
            prop_assert_eq!(&NvList::unpack(&packed).unwrap(), &list);
            prop_assert_eq!(list.pack_like(&packed), packed);
        }
    }

    #[test]
    fn every_truncation_is_an_error(list in list_of(value()), cut in any::<prop::sample::Index>()) {
        for packed in [list.pack_xdr(), list.pack_native(ByteOrder::Little)] {
            prop_assert!(NvList::unpack(&packed[..cut.index(packed.len())]).is_err());
        }
    }

    #[test]
    fn damage_never_panics(
        list in list_of(value()),
        hits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5),
    ) {
        for mut packed in [list.pack_xdr(), list.pack_native(ByteOrder::Big)] {
            for (at, to) in &hits {
                let at = at.index(packed.len());
                packed[at] = *to;
            }
            if let Ok(list) = NvList::unpack(&packed) {
                let _ = list.to_string();
            }
        }
    }
}

#[test]
fn counts_are_not_believed() {
    for kind in 9..=27_u32 {
        let mut packed = vec![ENCODING_XDR, 1, 0, 0];
        for word in [0, 1, 100, 100, 1, u32::from_be_bytes(*b"a\0\0\0"), kind, u32::MAX, u32::MAX, 0, 0] {
            packed.extend_from_slice(&word.to_be_bytes());
        }
        assert!(NvList::unpack(&packed).is_err(), "type {kind}");
    }
}

#[test]
fn nesting_is_bounded() {
    let nest = |levels: usize| {
        let mut list = NvList::new();
        for _ in 1..levels {
            let mut outer = NvList::new();
            outer.insert("x", list);
            list = outer;
        }
        list
    };
    let allowed = nest(MAX_DEPTH);
    assert_eq!(NvList::unpack(&allowed.pack_xdr()).unwrap(), allowed);
    let deeper = nest(MAX_DEPTH + 1);
    for packed in [deeper.pack_xdr(), deeper.pack_native(ByteOrder::Little)] {
        assert_eq!(NvList::unpack(&packed), Err(NvError::TooMuch { what: "levels", max: MAX_DEPTH }));
    }
}

#[test]
fn unique_names_replace_one_another() {
    let mut list = NvList::new();
    list.insert("a", 1);
    list.insert("b", "two\0three");
    list.insert("a", 3);
    assert_eq!(list.iter().map(|(n, _)| n).collect::<Vec<_>>(), ["b", "a"]);
    assert_eq!((list.get_u64("a"), list.get_str("a")), (Some(3), None));
    assert_eq!(NvList::unpack(&list.pack_xdr()).unwrap().get_str("b"), Some("two"));
    list.flags = 0;
    list.insert("a", 4);
    assert_eq!((list.len(), list.get_u64("a")), (3, Some(3)));
    assert!(list.remove("a") && !list.remove("a"));
}

#[test]
fn small_integers_are_packed_without_their_sign_in_xdr() {
    // The kernel refuses a char above 0xff, and a short above 0xffff.
    for (value, words) in [
        (NvValue::Uint8Array(vec![0x80, 0xff]), &[2_u32, 0x80, 0xff][..]),
        (NvValue::Int8Array(vec![-1]), &[1, 0xff]),
        (NvValue::Int16Array(vec![-2]), &[1, 0xfffe]),
        (NvValue::Byte(0xff), &[0xff]),
        (NvValue::Int8(-128), &[0x80]),
        (NvValue::Int16(-1), &[0xffff]),
        (NvValue::Int32(-1), &[0xffff_ffff]),
    ] {
        let mut list = NvList::new();
        list.insert("n", value.clone());
        let packed = list.pack_xdr();
        let expected: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        // The value comes before the 8 zeros at the end.
        assert!(packed[..packed.len() - 8].ends_with(&expected), "{value:?}: {packed:x?}");
        assert_eq!(NvList::unpack(&packed).unwrap(), list);
        // `libzfs` on x86 sign-extends.
        let mut extended = packed.clone();
        let at = packed.len() - 12;
        if let NvValue::Int8Array(_) | NvValue::Byte(_) = value {
            extended[at..at + 3].fill(0xff);
            assert_eq!(NvList::unpack(&extended).unwrap(), list);
        }
    }
}

#[test]
fn lists_print_as_nvlist_print_does() {
    let mut inner = NvList::new();
    inner.insert("n", 255);
    inner.insert("flag", NvValue::Boolean);
    let mut list = NvList::new();
    list.insert("name", "tank");
    list.insert("bytes", NvValue::ByteArray(vec![1, 255]));
    list.insert("none", NvValue::Uint64Array(vec![]));
    list.insert("inner", inner.clone());
    list.insert("many", NvValue::ListArray(vec![inner]));
    let expected = "nvlist version: 0\n\tname = tank\n\tbytes = 0x01 0xff\n\n\tinner = (embedded nvlist)\n\
                    \tnvlist version: 0\n\t\tn = 0xff\n\t\tflag = 1\n\t(end inner)\n\n\
                    \tmany = (array of embedded nvlists)\n\t(start many[0])\n\tnvlist version: 0\n\t\tn = 0xff\n\
                    \t\tflag = 1\n\t(end many[0])\n\n";
    assert_eq!(list.to_string(), expected);
}
