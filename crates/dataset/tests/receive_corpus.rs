//! Receives every valid stream of the corpus, and refuses every invalid one (`SNOWMELT_CORPUS`: the unpacked corpus;
//! otherwise the part of it in `testdata`).
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{check, corpus, listing, new_pool, receive};

#[test]
fn good_chains_are_received() {
    let mut streams = 0;
    let mut failed = Vec::new();
    for case in std::fs::read_dir(corpus()).unwrap() {
        let case = case.unwrap().path();
        let Ok(text) = std::fs::read_to_string(case.join("chains.tsv")) else { continue };
        // Interrupted receives have their own tests, and damaged streams are not in chains.
        if case.ends_with("10-resume") || case.ends_with("15-corrupt") {
            continue;
        }
        let datasets = new_pool();
        let redacted = case.join("redacted-Lec.zstream");
        if redacted.exists() {
            receive(&datasets, "tank/redacted", &redacted, false).unwrap();
        }
        // Clones come after their possible origins.
        let (clones, others): (Vec<_>, Vec<_>) = text.lines().partition(|line| line.starts_with("cl\t"));
        for line in others.into_iter().chain(clones) {
            let mut fields = line.split('\t');
            let (Some(chain), Some(stream), Some(expected)) = (fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            let file = case.join(stream);
            if !file.exists() || !stream.ends_with(".zstream") {
                continue;
            }
            streams += 1;
            let target = format!("tank/{chain}");
            if let Err(error) = receive(&datasets, &target, &file, true) {
                failed.push(format!("{}: {error}", file.display()));
                continue;
            }
            let have = listing(&datasets);
            for (snapshot, _) in expected.split(' ').filter_map(|word| word.split_once('=')) {
                let name = format!("{target}{snapshot} ");
                if !have.iter().any(|line| line.starts_with(&name)) {
                    failed.push(format!("{}: no {name}", file.display()));
                }
            }
        }
        check(&datasets, &case.display().to_string());
    }
    assert!(failed.is_empty(), "{} of {streams}:\n{}", failed.len(), failed.join("\n"));
    assert!(streams > 10, "only {streams} streams were found in {}", corpus().display());
}

#[test]
fn damaged_streams_are_refused() {
    let case = corpus().join("15-corrupt");
    let expected = std::fs::read_to_string(case.join("expected.jsonl")).unwrap();
    let mut failed = Vec::new();
    let mut tried = 0;
    for line in expected.lines() {
        let field = |key: &str| {
            let at = line.find(&format!("\"{key}\"")).unwrap();
            line[at + key.len() + 2..].split('"').nth(1).unwrap().to_owned()
        };
        let (file, expect) = (field("file"), field("expect"));
        // Without the key, these look valid.
        let needs_key = file.starts_with("bad-w-");
        if !case.join(&file).exists() {
            continue;
        }
        tried += 1;
        let datasets = new_pool();
        if file.starts_with("bad-i-") {
            receive(&datasets, "tank/x", &case.join("base-full.zstream"), false).unwrap();
        }
        let before = listing(&datasets);
        match receive(&datasets, "tank/x", &case.join(&file), false) {
            Ok(_) if expect == "refuse" && !needs_key => failed.push(format!("{file} was accepted")),
            Ok(_) => {}
            Err(_) if listing(&datasets) != before => failed.push(format!("{file} left something behind")),
            Err(_) => {}
        }
        check(&datasets, &file);
    }
    assert!(failed.is_empty(), "{} of {tried}:\n{}", failed.len(), failed.join("\n"));
    assert!(tried > 50, "only {tried} damaged streams were found");
}
