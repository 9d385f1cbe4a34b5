//! `--json` of the verbs that print something: always one document that programs can read.

mod common;

use common::Scratch;
use serde_json::Value;

/// The document that a command prints.
fn json(scratch: &Scratch, line: &str) -> Value {
    let text = scratch.ok(line);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{line}: {error}\n{text}"))
}

#[test]
fn every_verb_that_prints_prints_json() {
    let scratch = Scratch::with_home();
    std::fs::create_dir(scratch.path().join("tree")).unwrap();
    std::fs::write(scratch.path().join("tree/plan"), "plant seeds").unwrap();
    for line in [
        "import --json tree tank/tree@one",
        "create --json tank/new",
        "snapshot --json tank/new@a",
        "bookmark tank/new@a tank/new#b",
        "clone tank/new@a tank/clone",
        "hold keep tank/new@a",
        "holds --json tank/new@a",
        "release keep tank/new@a",
        "set atime=off tank/new",
        "inherit atime tank/new",
        "rename tank/clone tank/copy",
        "promote tank/copy",
        "rollback tank/copy@a",
        "list --json -t all -r tank",
        "get --json all tank/tree",
        "diff --json tank/tree@one",
        "ls --json tank/tree@one",
        "find --json tank/tree@one",
        "restore --json tank/tree@one restored",
        "send -n --json tank/tree@one",
        "destroy --json tank/new",
        "pool list --json",
        "pool status --json",
        "pool get --json all tank",
        "pool history --json tank",
        "pool segments --json tank",
        "pool scrub -w --json tank",
        "pool trim --json tank",
        "pool clear tank",
        "shadow list --json",
        "check --json tank",
        "version --json",
    ] {
        // The others print nothing.
        match line.contains("--json") {
            true => drop(json(&scratch, line)),
            false => assert_eq!(scratch.ok(line), ""),
        }
    }
}

#[test]
fn values_are_where_programs_look_for_them() {
    let scratch = Scratch::with_home();
    let text = json(&scratch, "snapshot --json tank/home@new").to_string();
    assert!(text.contains("tank/home@new"), "{text}");
    let text = json(&scratch, "send -n --json tank/home@monday").to_string();
    assert!(text.contains("tank/home@monday"), "{text}");
    let text = json(&scratch, "pool history --json tank").to_string();
    assert!(text.contains("snapshot --json tank/home@new"), "{text}");
    // A failure leaves standard output empty.
    assert!(scratch.fails(2, "snapshot --json tank/none/x@new").contains("tank/none"));
}
