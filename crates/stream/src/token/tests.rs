//! Tests of resume tokens.

use proptest::prelude::*;

use super::*;

/// Made by OpenZFS 2.1.11.
const REAL: &str = "1-ef6532710-f0-789c636064000310a500c4ec50360710e72765a52697303098409460caa7a515a796806458e0f26c\
48f2499525a9c540daa0991fabfe92fcf4d2cc140606abf31f3dda7e3c0cd24092e704cbe725e6a602e9c4bc6cfda2d4e2d2dc548744a0b80454\
3fccdda9b949a929f9d960f3b991c493f3730b80da8a81527000004bc31f96";

#[test]
fn a_real_token_says_what_zfs_said_it_does() {
    let token = ResumeToken::parse(REAL).unwrap();
    assert_eq!(token.required().unwrap(), (0x34, 0x40000, 0xf8330, 0x52e1_f886_48f1_cf3a, "tank/resume@a"));
    assert!(token.embed_ok() && token.compress_ok());
    assert!(!token.large_block_ok() && !token.raw_ok() && !token.saved_ok());
    assert_eq!((token.from_guid(), token.redact_snaps(), token.book_redact_snaps()), (None, None, None));
    assert_eq!(ResumeToken::parse(&token.to_string()).unwrap(), token);
    assert_eq!(format!("  {REAL}\n").parse::<ResumeToken>().unwrap(), token);
}

#[test]
fn errors_are_worded_as_zfs_words_them() {
    let data = REAL.rsplit('-').next().unwrap();
    for (token, error) in [
        ("", "resume token is corrupt (invalid format)".to_owned()),
        ("1-2", "resume token is corrupt (invalid format)".to_owned()),
        ("1-+2-f0-00", "resume token is corrupt (invalid format)".to_owned()),
        (&format!("2-ef6532710-f0-{data}"), "resume token is corrupt (invalid version 2)".to_owned()),
        (
            &format!("1-ef6532710-f0-{data}zz"),
            "resume token is corrupt (payload is not hex-encoded)".to_owned(),
        ),
        (&format!("1-ef6532711-f0-{data}"), "resume token is corrupt (incorrect checksum)".to_owned()),
        (&format!("1-ef6532710-f1-{data}"), "resume token is corrupt (decompression failed)".to_owned()),
        (
            &format!("1-ef6532710-ffffffffffff-{data}"),
            "resume token is corrupt (decompression failed)".to_owned(),
        ),
        ("1-0-0-", "resume token is corrupt (decompression failed)".to_owned()),
    ] {
        assert_eq!(ResumeToken::parse(token).unwrap_err().to_string(), error, "{token}");
    }
    assert_eq!(ResumeToken::default().required(), Err(TokenError::Missing("object")));
}

#[test]
fn a_token_whose_data_is_no_nvlist_is_refused() {
    let data = deflate(b"no nvlist").unwrap();
    let mut fletcher = Fletcher4::new();
    fletcher.update(&data);
    let hex: String = data.iter().map(|b| format!("{b:02x}")).collect();
    let token = format!("1-{:x}-9-{hex}", fletcher.state()[0]);
    assert_eq!(ResumeToken::parse(&token), Err(TokenError::Nvlist));
}

proptest! {
    #[test]
    fn what_is_printed_parses_to_the_same(
        guid in any::<u64>(),
        name in "[a-z/]{1,40}@[a-z]{1,20}",
        snaps in prop::collection::vec(any::<u64>(), 0..300),
    ) {
        let mut token = ResumeToken::new(guid, &name);
        token.set_flag("rawok");
        token.0.insert("redact_snaps", snaps);
        prop_assert_eq!(ResumeToken::parse(&token.to_string()).unwrap(), token);
    }

    #[test]
    fn nonsense_never_panics(token in "[0-9]?-?[0-9a-f]{0,20}-?[0-9a-f]{0,8}-?[0-9a-fé-]{0,60}") {
        prop_assert!(ResumeToken::parse(&token).is_err());
    }
}
