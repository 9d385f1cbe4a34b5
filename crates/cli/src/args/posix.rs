//! `POSIXLY_CORRECT`: if it is set, getopt(3), which `zfs` and `zpool` use, parses no options after the first operand.

use std::ffi::OsString;

use clap::{Arg, ArgAction};

use super::{Program, personality};

/// Inserts `--` before the first operand of `zfs` or `zpool`, if options follow it.
pub fn end_options(words: &mut Vec<OsString>) {
    let (program, rest) = Program::of(words);
    if program == Program::Snowmelt {
        return;
    }
    let grammar = personality::grammar(program);
    let skipped = words.len() - rest.len();
    let Some(verb) = rest.first().and_then(|verb| grammar.find_subcommand(verb)) else { return };
    if let Some(at) = first_operand(verb, &rest[1..])
        && rest[1 + at..].iter().any(is_option)
    {
        words.insert(skipped + 1 + at, "--".into());
    }
}

fn is_option(word: &OsString) -> bool {
    word.len() > 1 && word.as_encoded_bytes().starts_with(b"-")
}

/// The index of the first operand, which is neither an option nor its value. `None` if options end with `--`.
fn first_operand(verb: &clap::Command, words: &[OsString]) -> Option<usize> {
    let mut at = 0;
    while let Some(word) = words.get(at) {
        if word == "--" {
            return None;
        }
        if !is_option(word) {
            return Some(at);
        }
        at += if word.to_str().is_some_and(|word| wants_next(verb, word)) { 2 } else { 1 };
    }
    None
}

/// Whether the next word is the value of an option in this one.
fn wants_next(verb: &clap::Command, word: &str) -> bool {
    let takes_value = |arg: &Arg| matches!(arg.get_action(), ArgAction::Set | ArgAction::Append);
    if let Some(long) = word.strip_prefix("--") {
        return verb.get_arguments().any(|arg| arg.get_long() == Some(long) && takes_value(arg));
    }
    for (at, letter) in word.char_indices().skip(1) {
        let option = verb.get_arguments().find(|arg| arg.get_short() == Some(letter));
        if option.is_some_and(takes_value) {
            return at + letter.len_utf8() == word.len();
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_end_at_the_first_operand() {
        for (given, expected) in [
            ("zfs get all -r tank", "zfs get -- all -r tank"),
            ("zfs get -o name,value all tank -p", "zfs get -o name,value -- all tank -p"),
            ("zfs get -Hpo name all -r", "zfs get -Hpo name -- all -r"),
            ("zfs get -Honame all -r", "zfs get -Honame -- all -r"),
            ("zfs get -r all tank", "zfs get -r all tank"),
            ("zfs get -- all -r", "zfs get -- all -r"),
            ("zpool list tank -H", "zpool list -- tank -H"),
            ("get all -r tank", "get all -r tank"),
            ("zfs frob all -r", "zfs frob all -r"),
        ] {
            let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
            let mut said = words(given);
            end_options(&mut said);
            assert_eq!(said, words(expected), "{given}");
        }
    }
}
