//! Tests of help, completions and man pages.

mod common;

use common::Scratch;

#[test]
fn help_of_every_verb_fits_the_terminal() {
    let scratch = Scratch::new();
    let help = scratch.ok("--help");
    assert!(help.contains("Usage: snowmelt COMMAND [ARGUMENTS]"), "{help}");
    for line in help.lines().chain(scratch.ok("list --help").lines().filter(|line| !line.contains("Usage"))) {
        assert!(line.chars().count() <= 100, "{line}");
    }
    assert!(scratch.ok("--version").starts_with("snowmelt "));
    assert_eq!(scratch.fails(2, "frob").lines().next(), Some("unrecognized command 'frob'"));
    assert_eq!(scratch.fails(2, "").lines().next(), Some("missing command"));
}

#[test]
fn completions_and_man_pages() {
    let scratch = Scratch::new();
    for shell in ["bash", "zsh", "fish"] {
        let text = scratch.ok(&format!("completions {shell}"));
        assert!(text.contains("snowmelt") && text.contains("complete") && !text.contains("rows"), "{shell}");
    }
    scratch.ok("man man1");
    for page in ["snowmelt.1", "snowmelt-send.1", "snowmelt-pool-create.1", "snowmelt-stream-dump.1"] {
        let text = std::fs::read_to_string(scratch.path().join("man1").join(page)).unwrap();
        assert!(text.contains(".SH NAME"), "{page}");
    }
    assert!(!scratch.path().join("man1/snowmelt-rows.1").exists());
}
