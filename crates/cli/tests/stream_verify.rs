//! `stream verify` with keys, on raw streams that real OpenZFS made.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::fs;
use std::process::Stdio;

use common::Scratch;

#[allow(unreachable_pub)]
#[path = "../../../testdata/unpack.rs"]
mod testdata;

/// A directory with the raw streams and keys of a case in it.
fn with_case(name: &str) -> Scratch {
    let scratch = Scratch::new();
    for (file, bytes) in testdata::case(name) {
        let is_raw = file.contains("-w") && file.ends_with(".zstream");
        if is_raw || file.ends_with(".key") {
            let path = scratch.path().join(file.rsplit('/').next().unwrap());
            fs::write(&path, bytes).unwrap();
            fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        }
    }
    scratch
}

fn key(scratch: &Scratch, file: &str) -> String {
    format!("--keylocation file://{}/{file}", scratch.path().display())
}

#[test]
fn without_a_key_it_says_what_was_not_checked() {
    let scratch = with_case("11-raw");
    let said = scratch.run("stream verify ccmraw-w-full.zstream");
    assert_eq!(said.code, 0);
    assert!(said.out.contains("ccmraw-w-full.zstream: good: "), "{said:?}");
    assert_eq!(
        said.err,
        "ccmraw-w-full.zstream: the content of 43 encrypted records was not authenticated; to do that, give the key \
         with --keylocation file:///path or --keylocation prompt\n"
    );
    assert_eq!(scratch.ok("stream verify -q ccmraw-w-full.zstream"), "");
    let said = scratch.run("stream verify -j ccmraw-w-full.zstream");
    let json: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!(json["encrypted_records"], 43);
    assert!(json.get("authenticated").is_none(), "{json}");
}

#[test]
fn with_the_key_everything_is_authenticated() {
    let scratch = with_case("11-raw");
    let key = key(&scratch, "ccmraw.key");
    let said = scratch.ok(&format!("stream verify {key} ccmraw-w-full.zstream"));
    assert!(
        said.ends_with("ccmraw-w-full.zstream: authentic: 41 blocks, 2 blocks of dnodes, 1 object set\n"),
        "{said}"
    );
    let json = scratch.ok(&format!("stream verify -j {key} ccmraw-w-full.zstream"));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["authenticated"]["blocks"], 41);
    assert_eq!(json["authenticated"]["object_sets"], 1);

    let said = scratch.run(&format!("stream verify {key} ccmraw-w-inc.zstream"));
    assert_eq!(said.code, 0);
    assert!(
        said.err.starts_with("ccmraw-w-inc.zstream: 3 blocks of dnodes and 1 object set were not"),
        "{said:?}"
    );
    let from = "--from ccmraw-w-full.zstream";
    let said = scratch.ok(&format!("stream verify {key} {from} ccmraw-w-inc.zstream"));
    assert!(said.ends_with("authentic: 17 blocks, 3 blocks of dnodes, 1 object set\n"), "{said}");
    assert!(!said.contains("full  "), "{said}");
}

#[test]
fn keys_come_from_standard_input_too() {
    let scratch = with_case("15-corrupt");
    let mut child = scratch
        .command("stream verify --keylocation prompt base-w.zstream")
        .stdin(fs::File::open(scratch.path().join("base-w.key")).unwrap())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    assert!(child.wait().unwrap().success());
    let said = scratch.run("stream verify --keylocation prompt base-w.zstream");
    assert_eq!(said.err, "Key load error: Incorrect key provided for 'tank/w@a'.\n");
    let input = scratch.path().join("base-w.zstream");
    let said = scratch.run_with_input("stream verify --keylocation prompt", &input);
    assert_eq!(said.code, 2, "{said:?}");
    assert!(said.err.contains("which has the stream"), "{said:?}");
    let said = scratch.run_with_input(&format!("stream verify {}", key(&scratch, "base-w.key")), &input);
    assert_eq!((said.code, said.err.as_str()), (0, ""), "{said:?}");
}

#[test]
fn damage_in_ciphertext_is_found_with_the_key() {
    let scratch = with_case("15-corrupt");
    let key = key(&scratch, "base-w.key");
    for (file, place) in [
        ("bad-w-ciphertext", "record 23 (WRITE) at offset 146828: object 7, block at 0"),
        ("bad-w-mac", "record 8 (WRITE) at offset 4356: object 2, block at 0"),
        ("bad-w-iv", "record 8 (WRITE) at offset 4356: object 2, block at 0"),
    ] {
        assert_eq!(scratch.run(&format!("stream verify {file}.zstream")).code, 0);
        let said = scratch.fails(1, &format!("stream verify {key} {file}.zstream"));
        assert_eq!(said, format!("{file}.zstream: {place}: authentication failed\n"));
    }
}

#[test]
fn wrong_keys_and_places_are_told() {
    let scratch = with_case("11-raw");
    let said =
        scratch.fails(1, &format!("stream verify {} ccmraw-w-full.zstream", key(&scratch, "gcmraw.key")));
    assert_eq!(said, "Key load error: Incorrect key provided for 'tank/ccmraw@a'.\n");
    let said =
        scratch.fails(1, &format!("stream verify {} ccmraw-w-full.zstream", key(&scratch, "ccmpass.key")));
    assert_eq!(said, "Key load error: Raw key too short (expected 32).\n");
    let both = format!("{} {}", key(&scratch, "gcmraw.key"), key(&scratch, "ccmraw.key"));
    scratch.ok(&format!("stream verify -q {both} ccmraw-w-full.zstream"));
    let said =
        scratch.fails(1, &format!("stream verify {} ccmraw-w-full.zstream", key(&scratch, "none.key")));
    assert!(said.starts_with("Key load error: Failed to open key material file: "), "{said}");
    for place in ["https://host/key", "file://key", "/key"] {
        let said = scratch.run(&format!("stream verify --keylocation {place} ccmraw-w-full.zstream"));
        assert_eq!(said.code, 2, "{said:?}");
        assert!(said.err.contains("invalid keylocation"), "{said:?}");
    }
    let full = common::demo("full.zstream");
    let said = scratch.run(&format!("stream verify {} {}", key(&scratch, "gcmraw.key"), full.display()));
    assert_eq!(said.code, 0);
    assert!(said.err.ends_with("nothing in it is encrypted: the key was not used\n"), "{said:?}");
}
