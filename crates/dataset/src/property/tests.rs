use proptest::prelude::*;

use super::*;

const CREATE: Target = Target { types: Types::FILESYSTEM, creating: true, volume_block_size: None };
const SET: Target = Target { types: Types::FILESYSTEM, creating: false, volume_block_size: None };
const VOLUME: Target = Target { types: Types::VOLUME, creating: false, volume_block_size: Some(16_384) };

fn property(name: &str) -> &'static Property {
    find(name).unwrap_or_else(|| panic!("no property {name}"))
}

fn set(name: &str, text: &str) -> Result<Value, String> {
    set_on(SET, name, text)
}

fn set_on(target: Target, name: &str, text: &str) -> Result<Value, String> {
    match validate([(name, text)], target) {
        Ok(mut assignments) => Ok(assignments.remove(0).value),
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn table_has_no_name_twice() {
    let mut seen = std::collections::BTreeSet::new();
    for p in all() {
        assert!(seen.insert(p.name.to_owned()), "{} twice", p.name);
        let alias = p.column.to_ascii_lowercase();
        assert_eq!(find(&alias).unwrap().name, p.name, "alias {alias}");
        assert!(alias == p.name || seen.insert(alias.clone()), "alias {alias} twice");
    }
    assert_eq!(
        all().filter(|p| p.hidden).map(|p| p.name).collect::<Vec<_>>(),
        ["name", "numclones", "prevsnap", "ivsetguid", "redacted"]
    );
}

#[test]
fn aliases_are_column_headers_in_lower_case() {
    for (alias, name) in [
        ("avail", "available"),
        ("refer", "referenced"),
        ("compress", "compression"),
        ("rdonly", "readonly"),
        ("recsize", "recordsize"),
        ("volblock", "volblocksize"),
        ("reserv", "reservation"),
        ("refreserv", "refreservation"),
        ("lused", "logicalused"),
        ("lrefer", "logicalreferenced"),
        ("usedsnap", "usedbysnapshots"),
        ("ratio", "compressratio"),
        ("case", "casesensitivity"),
        ("dnsize", "dnodesize"),
        ("resumetok", "receive_resume_token"),
    ] {
        assert_eq!(property(alias).name, name);
    }
    assert!(find("AVAIL").is_none());
    assert!(find("").is_none());
    assert!(find("compressio").is_none());
}

#[test]
fn every_default_is_a_legal_value_with_a_text() {
    for p in all() {
        let value = match p.default {
            DefaultValue::None => continue,
            DefaultValue::Number(number) => Value::Number(number),
            DefaultValue::Text(text) => Value::from(text),
        };
        // 0 means "not set" for these two.
        if !matches!(p.name, "volsize" | "pbkdf2iters") {
            p.check(&value).unwrap_or_else(|e| panic!("{}: {e}", p.name));
        }
        assert!(!p.format(&value, &TextStyle::HUMAN_UTC).is_empty(), "{}", p.name);
    }
}

#[test]
fn every_index_word_parses_and_is_shown_again_as_a_word_of_the_same_number() {
    for p in all() {
        let Kind::Index(table) = p.kind else { continue };
        for word in table {
            let value = p.parse(word.name, Types::ANY).unwrap();
            assert_eq!(value, Value::Number(word.number));
            let shown = p.format(&value, &TextStyle::HUMAN_UTC);
            assert_eq!(p.parse(&shown, Types::ANY).unwrap(), value, "{} {}", p.name, word.name);
            assert_eq!(p.format(&value, &TextStyle::PARSABLE), shown);
        }
    }
}

#[test]
fn index_numbers_are_those_of_openzfs() {
    for (name, text, number) in [
        ("compression", "on", 1),
        ("compression", "off", 2),
        ("compression", "lzjb", 3),
        ("compression", "gzip", 10),
        ("compression", "gzip-1", 5),
        ("compression", "gzip-9", 13),
        ("compression", "zle", 14),
        ("compression", "lz4", 15),
        ("compression", "zstd", 16),
        ("compression", "zstd-3", 16 + 128 * 3),
        ("compression", "zstd-19", 16 + 128 * 19),
        ("compression", "zstd-fast", 16 + 128 * 103),
        ("compression", "zstd-fast-1", 16 + 128 * 103),
        ("compression", "zstd-fast-10", 16 + 128 * 112),
        ("compression", "zstd-fast-20", 16 + 128 * 113),
        ("compression", "zstd-fast-1000", 16 + 128 * 123),
        ("checksum", "sha256", 8),
        ("checksum", "blake3", 14),
        ("dedup", "sha256,verify", 264),
        ("atime", "off", 0),
        ("snapdir", "visible", 1),
        ("canmount", "noauto", 2),
        ("xattr", "sa", 2),
        ("xattr", "on", 2),
        ("xattr", "dir", 1),
        ("acltype", "posixacl", 1),
        ("dnodesize", "16k", 16_384),
        ("normalization", "formD", 0x10),
        ("sync", "disabled", 2),
        ("primarycache", "metadata", 1),
        ("redundant_metadata", "most", 1),
        ("encryption", "aes-256-gcm", 8),
    ] {
        assert_eq!(property(name).parse(text, Types::ANY).unwrap(), Value::Number(number), "{name}={text}");
    }
    let shown = |name: &str, number| property(name).format(&Value::Number(number), &TextStyle::HUMAN_UTC);
    assert_eq!(shown("compression", 10), "gzip");
    assert_eq!(shown("compression", 16 + 128 * 103), "zstd-fast");
    assert_eq!(shown("xattr", 2), "sa");
    assert_eq!(shown("acltype", 0), "off");
}

#[test]
fn sizes_as_people_type_them() {
    for (text, number) in [
        ("0", 0),
        ("512", 512),
        ("1B", 1),
        ("128k", 131_072),
        ("128K", 131_072),
        ("128KB", 131_072),
        ("128kib", 131_072),
        ("1.5G", 1_610_612_736),
        (".5M", 524_288),
        ("1.M", 1_048_576),
        ("0E", 0),
        ("0Z", 0),
        ("15E", 15 << 60),
        ("18446744073709551615", u64::MAX),
        ("15.99E", (15.99 * (1u64 << 60) as f64) as u64),
    ] {
        assert_eq!(parse_size(text), Ok(number), "{text}");
    }
    for (text, message) in [
        ("", "bad numeric value ''"),
        ("-1", "bad numeric value '-1'"),
        ("x", "bad numeric value 'x'"),
        (".", "bad numeric value '.'"),
        ("1X", "invalid numeric suffix 'X'"),
        ("1KK", "invalid numeric suffix 'KK'"),
        ("1BB", "invalid numeric suffix 'BB'"),
        ("1 K", "invalid numeric suffix ' K'"),
        ("1é", "invalid numeric suffix 'é'"),
        ("1.5X", "invalid numeric suffix 'X'"),
        ("16E", "numeric value is too large"),
        ("1Z", "numeric value is too large"),
        ("16.0E", "numeric value is too large"),
        ("18446744073709551616", "numeric value is too large"),
    ] {
        assert_eq!(parse_size(text).unwrap_err().to_string(), message, "{text}");
    }
}

#[test]
fn nice_numbers_as_zfs_prints_them() {
    for (number, text) in [
        (0, "0"),
        (1, "1"),
        (1023, "1023"),
        (1024, "1K"),
        (1025, "1.00K"),
        (1536, "1.50K"),
        (10_239, "10.0K"),
        (10_240, "10K"),
        (16_384, "16K"),
        (131_072, "128K"),
        (104_857, "102K"),
        (1_048_575, "1024K"),
        (1_048_576, "1M"),
        (1_572_864, "1.50M"),
        (13_107_200, "12.5M"),
        (229_888, "224K"),
        (2_816_208_896, "2.62G"),
        (u64::MAX, "16.0E"),
    ] {
        assert_eq!(format_number(number), text, "{number}");
    }
    for (number, text) in [(0, "0B"), (512, "512B"), (1023, "1023B"), (1024, "1K"), (1536, "1.50K")] {
        assert_eq!(format_bytes(number), text);
    }
}

#[test]
fn times_as_zfs_prints_them() {
    let utc = TextStyle::HUMAN_UTC;
    assert_eq!(format_time(0, &utc), "Thu Jan  1  0:00 1970");
    assert_eq!(format_time(1_795_224_600, &utc), "Sat Nov 21  1:30 2026");
    assert_eq!(format_time_seconds(1_795_224_609, &utc), "Sat Nov 21  1:30:09 2026");
    assert_eq!(format_time(1_709_210_096, &utc), "Thu Feb 29 12:34 2024");
    assert_eq!(format_time(4_107_542_399, &utc), "Sun Feb 28 23:59 2100");
    let berlin = TextStyle { parsable: false, utc_offset: &|_| 3600 };
    assert_eq!(format_time(1_795_224_600, &berlin), "Sat Nov 21  2:30 2026");
    let west = TextStyle { parsable: false, utc_offset: &|_| -7200 };
    assert_eq!(format_time(0, &west), "Wed Dec 31 22:00 1969");
    assert_eq!(format_time(1_795_224_600, &TextStyle::PARSABLE), "1795224600");
    assert_eq!(format_time(u64::MAX, &utc), u64::MAX.to_string());
}

#[test]
fn values_as_zfs_get_prints_them() {
    for (name, number, human, parsable) in [
        ("used", 0, "0B", "0"),
        ("used", 1_602_560, "1.53M", "1602560"),
        ("written", 0, "0", "0"),
        ("quota", 0, "none", "0"),
        ("quota", 10 << 30, "10G", "10737418240"),
        ("reservation", 0, "none", "0"),
        ("snapshot_limit", u64::MAX, "none", "18446744073709551615"),
        ("snapshot_limit", 5, "5", "5"),
        ("recordsize", 131_072, "128K", "131072"),
        ("recordsize", 512, "512", "512"),
        ("compressratio", 219, "2.19x", "2.19"),
        ("compressratio", 100, "1.00x", "1.00"),
        ("guid", 16_264_522_938_288_969_037, "16264522938288969037", "16264522938288969037"),
        ("mounted", 1, "yes", "yes"),
        ("defer_destroy", 0, "off", "off"),
        ("compression", 15, "lz4", "lz4"),
        ("compression", 99, "99", "99"),
    ] {
        let value = Value::Number(number);
        assert_eq!(property(name).format(&value, &TextStyle::HUMAN_UTC), human, "{name}");
        assert_eq!(property(name).format(&value, &TextStyle::PARSABLE), parsable, "{name}");
    }
}

#[test]
fn refusals_are_worded_as_zfs_words_them() {
    for (name, text, message) in [
        ("nosuch", "1", "invalid property 'nosuch'"),
        ("used", "1", "'used' is readonly"),
        ("volblocksize", "8K", "'volblocksize' does not apply to datasets of this type"),
        ("casesensitivity", "mixed", "'casesensitivity' is readonly"),
        ("written@x", "1", "'written@x' is readonly"),
        ("atime", "yes", "'atime' must be one of 'on | off'"),
        ("canmount", "true", "'canmount' must be one of 'on | off | noauto'"),
        ("copies", "4", "'copies' must be one of '1 | 2 | 3'"),
        ("recordsize", "100K", "'recordsize' must be power of 2 from 512B to 16M"),
        ("recordsize", "32M", "'recordsize' must be power of 2 from 512B to 16M"),
        ("recordsize", "256", "'recordsize' must be power of 2 from 512B to 16M"),
        ("recordsize", "none", "'recordsize' must be power of 2 from 512B to 16M"),
        ("quota", "0", "use 'none' to disable quota/refquota"),
        ("quota", "ten", "bad numeric value 'ten'"),
        ("quota", "auto", "'auto' is invalid value for 'quota'"),
        ("refreservation", "auto", "'refreservation=auto' only allowed on volumes"),
        ("mountpoint", "here", "'mountpoint' must be an absolute path, 'none', or 'legacy'"),
        ("mountpoint", "", "'mountpoint' must be an absolute path, 'none', or 'legacy'"),
        ("keylocation", "ftp://x", "invalid keylocation"),
        ("mlslabel", "secret", "mlslabels are unsupported"),
        (
            "userquota@joe",
            "1G",
            "'userquota@joe': quotas and accounting of single users, groups and projects are not supported",
        ),
    ] {
        assert_eq!(set(name, text).unwrap_err(), message, "{name}={text}");
    }
    assert_eq!(
        set("compression", "lz5").unwrap_err(),
        "'compression' must be one of 'on | off | lzjb | gzip | gzip-[1-9] | zle | lz4 | zstd | zstd-[1-19] | \
         zstd-fast | zstd-fast-[1-10,20,30,40,50,60,70,80,90,100,500,1000]'"
    );
    assert_eq!(set_on(VOLUME, "volsize", "0").unwrap_err(), "'volsize' cannot be zero");
    assert_eq!(
        set_on(VOLUME, "volsize", "100K").unwrap_err(),
        "'volsize' must be a multiple of volume block size (16K)"
    );
    assert_eq!(set_on(VOLUME, "atime", "on").unwrap_err(), "'atime' does not apply to datasets of this type");
    assert_eq!(
        set("mountpoint", &format!("/a/{}", "x".repeat(256))).unwrap_err(),
        "component of 'mountpoint' is too long"
    );
    for unclear in ["/a\nb", "/a/../etc", "/a/./b", "/a\u{1b}[31m"] {
        assert_eq!(
            set("mountpoint", unclear).unwrap_err(),
            "'mountpoint' has control characters, '.' or '..' in it"
        );
    }
    assert_eq!(set("sharenfs", "on\n/etc *(rw)").unwrap_err(), "'sharenfs' has control characters in it");
    let snapshot = Target { types: Types::SNAPSHOT, creating: false, volume_block_size: None };
    assert_eq!(
        set_on(snapshot, "atime", "on").unwrap_err(),
        "this property can not be modified for snapshots"
    );
    assert_eq!(set_on(snapshot, "a:b", "c").unwrap(), Value::from("c"));
    assert_eq!(set("a:b", &"x".repeat(8192)).unwrap_err(), "'a:b' is too long");
    let name = format!("a:{}", "b".repeat(254));
    assert_eq!(set(&name, "x").unwrap_err(), format!("property name '{name}' is too long"));
    let twice = validate([("compress", "on"), ("compression", "off")], SET).unwrap_err();
    assert_eq!(twice.to_string(), "property 'compression' specified multiple times");
}

#[test]
fn values_as_people_set_them() {
    for (name, text, value) in [
        ("compress", "lz4", Value::Number(15)),
        ("recordsize", "1M", Value::Number(1 << 20)),
        ("quota", "none", Value::Number(0)),
        ("quota", "1.5T", Value::Number(3 << 39)),
        ("reservation", "0", Value::Number(0)),
        ("snapshot_limit", "none", Value::Number(u64::MAX)),
        ("filesystem_limit", "3", Value::Number(3)),
        ("mountpoint", "/srv/data", Value::from("/srv/data")),
        ("mountpoint", "legacy", Value::from("legacy")),
        ("mountpoint", "none", Value::from("none")),
        ("sharenfs", "rw=@10.0.0.0/8", Value::from("rw=@10.0.0.0/8")),
        ("com.example:owner", "alice", Value::from("alice")),
        ("zrepl:placeholder", "", Value::from("")),
        ("special_small_blocks", "0", Value::Number(0)),
    ] {
        assert_eq!(set(name, text), Ok(value), "{name}={text}");
    }
    assert_eq!(set_on(VOLUME, "volsize", "1G"), Ok(Value::Number(1 << 30)));
    assert_eq!(set_on(VOLUME, "refreservation", "auto"), Ok(Value::Number(REFRESERVATION_AUTO)));
    assert_eq!(set_on(CREATE, "casesensitivity", "mixed"), Ok(Value::Number(2)));
}

#[test]
fn normalization_and_utf8only_hang_together() {
    let both = |pairs: &[(&str, &str)]| -> Result<Vec<(String, u64)>, String> {
        validate(pairs.iter().copied(), CREATE)
            .map(|list| list.into_iter().map(|a| (a.name, a.value.as_number().unwrap())).collect())
            .map_err(|e| e.to_string())
    };
    let pair = |name: &str, number| (name.to_owned(), number);
    assert_eq!(
        both(&[("normalization", "formC")]),
        Ok(vec![pair("normalization", 0x50), pair("utf8only", 1)])
    );
    assert_eq!(both(&[("utf8only", "off")]), Ok(vec![pair("utf8only", 0), pair("normalization", 0)]));
    assert_eq!(both(&[("utf8only", "on")]), Ok(vec![pair("utf8only", 1)]));
    assert_eq!(both(&[("normalization", "none")]), Ok(vec![pair("normalization", 0)]));
    assert_eq!(
        both(&[("normalization", "formD"), ("utf8only", "off")]).unwrap_err(),
        "'utf8only' must be set 'on' if normalization chosen"
    );
}

#[test]
fn values_of_streams_are_checked() {
    let accept = |name: &str, value: Value| Value::from_stream(name, value).unwrap();
    assert_eq!(accept("compression", Value::Number(15)).value, Value::Number(15));
    assert_eq!(accept("com.example:owner", "alice".into()).name, "com.example:owner");
    let refuse = |name: &str, value: Value| Value::from_stream(name, value).unwrap_err().to_string();
    assert_eq!(refuse("compression", Value::Number(4000)), "'compression' has unknown value 4000");
    assert_eq!(refuse("compression", "lz4".into()), "'compression' must be a number");
    assert_eq!(refuse("mountpoint", Value::Number(1)), "'mountpoint' must be a string");
    assert_eq!(
        refuse("mountpoint", "x".into()),
        "'mountpoint' must be an absolute path, 'none', or 'legacy'"
    );
    assert_eq!(
        refuse("mountpoint", "/x\ny".into()),
        "'mountpoint' has control characters, '.' or '..' in it"
    );
    assert_eq!(refuse("recordsize", Value::Number(3)), "'recordsize' must be power of 2 from 512B to 16M");
    assert_eq!(refuse("shiny", Value::Number(3)), "invalid property 'shiny'");
    assert_eq!(refuse("a:b", Value::Number(3)), "'a:b' must be a string");
    assert_eq!(
        refuse(&format!("a:{}", "b".repeat(254)), "".into()).len(),
        256 + "property name '' is too long".len()
    );
}

#[test]
fn kept_texts_are_read_back() {
    for (name, value, text) in [
        ("compression", Value::Number(15), "lz4"),
        ("compression", Value::Number(4000), "4000"),
        ("xattr", Value::Number(2), "sa"),
        ("quota", Value::Number(0), "0"),
        ("snapshot_limit", Value::Number(u64::MAX), "18446744073709551615"),
        ("refreservation", Value::Number(1 << 30), "1073741824"),
        ("mountpoint", Value::from("/a b"), "/a b"),
    ] {
        assert_eq!(property(name).to_stored(&value), text);
        assert_eq!(property(name).from_stored(text), Some(value));
    }
    assert_eq!(property("quota").from_stored("much"), None);
    let user = Assignment { name: "a:b".into(), value: "c".into() };
    assert_eq!(user.to_stored(), ("a:b".to_owned(), "c".to_owned()));
}

#[test]
fn names_are_told_apart() {
    assert!(is_user_property("com.sun:auto-snapshot"));
    assert!(is_user_property("syncoid:sync"));
    assert!(is_user_property(":"));
    for bad in ["nocolon", "Upper:case", "sp ace:x", "a:b@c", "a:ä", ""] {
        assert!(!is_user_property(bad), "{bad}");
    }
    let written = |name: &str| match PropertyName::parse(name) {
        Ok(PropertyName::Written { name: kept, since }) => {
            assert_eq!(kept, name);
            since
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(written("written@monday"), "@monday");
    assert_eq!(written("written@tank/fs@monday"), "tank/fs@monday");
    assert_eq!(written("written#mark"), "#mark");
    assert!(matches!(PropertyName::parse("written@"), Err(PropertyError::Unknown { .. })));
    assert!(
        matches!(PropertyName::parse("userused@joe"), Ok(PropertyName::Accounting(name)) if name == "userused@joe")
    );
    assert!(matches!(PropertyName::parse("userused@"), Err(PropertyError::Unknown { .. })));
    let target = Target { types: Types::FILESYSTEM, creating: false, volume_block_size: None };
    assert!(matches!(validate([("userquota@joe", "1G")], target), Err(PropertyError::UserQuota { .. })));
    assert!(matches!(
        validate_stored("userquota@joe", "1", Types::FILESYSTEM),
        Err(PropertyError::UserQuota { .. })
    ));
    assert!(matches!(PropertyName::parse("written"), Ok(PropertyName::Native(p)) if p.name == "written"));
}

#[test]
fn columns_are_as_wide_and_aligned_as_zfs_has_them() {
    for (name, column, width, right) in [
        ("name", "NAME", 4, false),
        ("used", "USED", 5, true),
        ("available", "AVAIL", 5, true),
        ("referenced", "REFER", 5, true),
        ("mountpoint", "MOUNTPOINT", 10, false),
        ("compression", "COMPRESS", 14, false),
        ("type", "TYPE", 4, false),
        ("creation", "CREATION", 8, false),
        ("guid", "GUID", 5, true),
        ("compressratio", "RATIO", 5, true),
        ("atime", "ATIME", 5, false),
    ] {
        let p = property(name);
        assert_eq!((p.column, p.width(), p.aligns_right()), (column, width, right), "{name}");
    }
}

#[test]
fn sources_are_worded_as_zfs_words_them() {
    let texts = [
        Source::Local,
        Source::Default,
        Source::Received,
        Source::Inherited("tank/home".into()),
        Source::Temporary,
        Source::None,
    ]
    .map(|source| source.to_string());
    assert_eq!(texts, ["local", "default", "received", "inherited from tank/home", "temporary", "-"]);
}

proptest! {
    #[test]
    fn nice_numbers_stay_within_five_characters_and_two_percent(number: u64) {
        let text = format_number(number);
        prop_assert!(text.len() <= 5, "{}", text);
        let back = parse_size(&text);
        // Only numbers that are rounded up to 16 EiB cannot be parsed again.
        if let Ok(back) = back {
            prop_assert!(back.abs_diff(number) as f64 <= number as f64 * 0.02, "{} {}", number, text);
        } else {
            prop_assert_eq!(text, "16.0E");
        }
    }

    #[test]
    fn sizes_never_panic(text in "\\PC{0,12}") {
        let _ = parse_size(&text);
        let _ = validate([("quota", text.as_str()), ("mountpoint", text.as_str())], SET);
        let _ = PropertyName::parse(&text);
    }

    #[test]
    fn whole_numbers_read_as_themselves(number: u64) {
        prop_assert_eq!(parse_size(&number.to_string()), Ok(number));
    }

    #[test]
    fn times_never_panic(seconds: u64, offset in -90_000i32..90_000) {
        let style = TextStyle { parsable: false, utc_offset: &|_| offset };
        prop_assert!(!format_time(seconds, &style).is_empty());
    }
}
