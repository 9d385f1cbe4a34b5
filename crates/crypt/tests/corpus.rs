//! The crate against raw streams that real OpenZFS made.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;

use common::{case, verify};
use snowmelt_crypt::KeyError;

/// Stream and the stream it starts from, with the keys of both. `None` for what comes out if all can be known.
fn streams() -> Vec<(&'static str, Option<&'static str>, Vec<&'static str>)> {
    let mut all = Vec::new();
    for (name, full, incremental) in [
        ("gcmraw", "gcmraw-w-full.zstream", "gcmraw-w-inc.zstream"),
        ("gcmpass", "gcmpass-w-full.zstream", "gcmpass-w-inc.zstream"),
        ("ccmraw", "ccmraw-w-full.zstream", "ccmraw-w-inc.zstream"),
        ("ccmpass", "ccmpass-w-full.zstream", "ccmpass-w-inc.zstream"),
    ] {
        all.push((full, None, vec![name]));
        all.push((incremental, Some(full), vec![name]));
    }
    all.push(("tree-w-R.zstream", None, vec!["gcmraw"]));
    all.push((
        "tree-w-R-after-change-key.zstream",
        Some("tree-w-R.zstream"),
        vec!["gcmraw", "gcmraw-changed"],
    ));
    all
}

fn key<'a>(files: &'a BTreeMap<String, Vec<u8>>, name: &str) -> &'a [u8] {
    &files[&format!("keys/{name}.key")]
}

#[test]
fn good_streams_are_authentic() {
    let files = case("11-raw");
    let mut tested = 0;
    for (name, base, keys) in streams() {
        let Some(stream) = files.get(name) else { continue };
        let keys: Vec<&[u8]> = keys.into_iter().map(|name| key(&files, name)).collect();
        let chain: Vec<&[u8]> = base.into_iter().map(|base| &files[base][..]).chain([&stream[..]]).collect();
        let done = verify(&chain, &keys).unwrap_or_else(|e| panic!("{name}: {e}"));
        println!("{name}: {done:?}");
        assert!(done.blocks > 10 && done.dnode_blocks > 1 && done.object_sets > 0, "{name}: {done:?}");
        assert_eq!((done.unknown_dnode_blocks, done.unknown_object_sets), (0, 0), "{name}");
        tested += 1;
    }
    assert!(tested >= 2, "{tested} streams");
    let base = case("15-corrupt");
    let done = verify(&[&base["base-w.zstream"]], &[&base["base-w.key"]]).unwrap();
    assert_eq!((done.unknown_dnode_blocks, done.object_sets), (0, 1));
}

#[test]
fn an_incremental_alone_is_authentic_as_far_as_can_be_known() {
    let files = case("11-raw");
    let done = verify(&[&files["ccmraw-w-inc.zstream"]], &[key(&files, "ccmraw")]).unwrap();
    assert!(done.blocks > 10 && done.unknown_dnode_blocks > 0, "{done:?}");
    assert_eq!((done.dnode_blocks, done.object_sets, done.unknown_object_sets), (0, 0, 1));
}

#[test]
fn other_keys_do_not_fit() {
    let files = case("11-raw");
    for (name, _, _) in streams() {
        let Some(stream) = files.get(name) else { continue };
        let said = verify(&[stream], &[&[7; 32]]).unwrap_err();
        assert_eq!(said.downcast_ref::<KeyError>(), Some(&KeyError::Incorrect), "{name}");
    }
    let stream = &files["ccmraw-w-full.zstream"];
    let said = verify(&[stream], &[&[7; 33]]).unwrap_err();
    assert_eq!(said.to_string(), "Raw key too long (expected 32)");
    let said = verify(&[stream], &[b"x"]).unwrap_err();
    assert_eq!(said.to_string(), "Raw key too short (expected 32)");
    assert_eq!(verify(&[stream], &[b"x", &[7; 32]]).unwrap_err().to_string(), "Incorrect key");
    assert!(verify(&[stream], &[b"x", key(&files, "ccmraw")]).is_ok());
}

#[test]
fn damaged_streams_are_refused() {
    let files = case("15-corrupt");
    let key: &[u8] = &files["base-w.key"];
    for name in ["bad-w-ciphertext", "bad-w-mac", "bad-w-iv"] {
        let said = verify(&[&files[&format!("{name}.zstream")]], &[key]).unwrap_err().to_string();
        println!("{name}: {said}");
        assert!(said.starts_with("record ") && said.contains("authentication failed"), "{name}: {said}");
    }
}
