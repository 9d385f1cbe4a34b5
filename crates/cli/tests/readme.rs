//! Runs the commands of the README unchanged.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::path::Path;
use std::process::Command;

use common::Scratch;

const README: &str = include_str!("../../../README.md");

/// The blocks of commands below a heading: those marked with `sh`.
fn blocks(heading: &str) -> String {
    let (_, rest) = README.split_once(&format!("\n## {heading}\n")).unwrap();
    let section = rest.split("\n## ").next().unwrap();
    let blocks = section.split("```sh\n").skip(1).map(|block| block.split("```").next().unwrap());
    blocks.collect::<Vec<_>>().join("\n")
}

/// Runs commands in an empty home directory, with the program in `PATH`.
fn run(home: &Path, commands: &str) -> String {
    let program = Path::new(env!("CARGO_BIN_EXE_snowmelt")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let mut shell = Command::new("sh");
    shell.args(["-euxc", commands]).current_dir(home).env_clear().env("HOME", home).env("PATH", path);
    // Root's list of pools is not below its home directory.
    shell.env("XDG_CONFIG_HOME", home.join("config")).env("TZ", "UTC");
    let done = shell.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{out}\n{err}");
    out.into_owned()
}

#[test]
fn the_first_steps_run_in_order_as_they_stand() {
    let scratch = Scratch::new();
    let commands = blocks("First steps");
    assert!(commands.lines().count() >= 10, "{commands}");
    let out = run(scratch.path(), &commands);
    for expected in
        ["tank/demo@mon", "M\t/tank/demo/projects/plan.md", "plant seeds", "errors: No known data errors"]
    {
        assert!(out.contains(expected), "{expected}: {out}");
    }
    let restored = std::fs::read_to_string(scratch.path().join("demo-restored/plan.md")).unwrap();
    assert_eq!(restored, "plant seeds\n");
    let replica = run(scratch.path(), "snowmelt list -Ho name -t snapshot -r second/demo");
    assert_eq!(replica, "second/demo@mon\nsecond/demo@tue\n");
    // The sentence after the block.
    for pool in ["tank", "second"] {
        let words = format!("snowmelt pool destroy {pool}");
        assert!(README.contains(&format!("`{words}`")), "{words}");
        run(scratch.path(), &words);
    }
}

/// The examples cannot all run here, because some need hosts, disks and keys. The test checks that their verbs and
/// options exist.
#[test]
fn the_verbs_and_options_of_the_examples_exist() {
    let scratch = Scratch::new();
    let mut seen = 0;
    for line in README.lines().filter(|line| line.starts_with("    ")) {
        // Without the comment after it.
        let line = line.split("  #").next().unwrap();
        let Some((_, words)) = line.split_once("snowmelt ") else { continue };
        let words: Vec<&str> = words.split([' ', '\'', '"']).collect();
        let verbs = match words.as_slice() {
            [group @ ("pool" | "policy" | "stream" | "serve"), verb, ..] if !verb.starts_with('-') => {
                format!("{group} {verb}")
            }
            [verb, ..] => (*verb).to_owned(),
            [] => continue,
        };
        let help = scratch.ok(&format!("help {verbs}"));
        for option in words.iter().filter(|word| word.starts_with("--")) {
            let name = option.split(['=', ',']).next().unwrap();
            assert!(help.contains(name), "{line}: {name}");
        }
        seen += 1;
    }
    assert!(seen >= 30, "{seen}");
}
