//! Other spellings of the program's arguments: those of `find`, `help` and `version`, and suggestions for mistyped
//! verbs.
//!
//! The programs `zfs` and `zpool` do not use this: their arguments and messages are those of ZFS.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::command;

/// Changes of a letter that lead from a mistyped word to the one that was meant.
const CHANGES_MAX: usize = 2;

/// Options of find(1) that begin with one dash.
const FIND_OPTIONS: [&str; 5] = ["-name", "-iname", "-type", "-maxdepth", "-print0"];

/// The words as the grammar knows them: `help VERB` is `VERB --help`, `version` is `--version`, and `find` takes its
/// options with one dash, as find(1) does.
pub fn own(words: &[OsString]) -> Vec<OsString> {
    let Some((verb, rest)) = words.split_first() else { return Vec::new() };
    match verb.to_str() {
        Some("help") => rest.iter().cloned().chain([OsString::from("--help")]).collect(),
        Some("version") if rest.is_empty() => vec![OsString::from("--version")],
        Some("find") => {
            let long = |word: &OsString| match word.to_str() {
                Some(option) if FIND_OPTIONS.contains(&option) => format!("-{option}").into(),
                _ => word.clone(),
            };
            std::iter::once(verb.clone()).chain(rest.iter().map(long)).collect()
        }
        _ => words.to_vec(),
    }
}

/// `version --json`.
pub fn is_version_as_json(words: &[OsString]) -> bool {
    matches!(words, [verb, option] if verb == "version" && (option == "-j" || option == "--json"))
}

/// What a verb or an option that does not exist may have meant, to stand behind the reason: `; did you mean 'list'?`,
/// or nothing.
pub fn hint(error: &clap::Error, words: &[OsString]) -> String {
    let meant = match error.kind() {
        ErrorKind::InvalidSubcommand => pool_verb(error, words).or_else(|| suggested(error)),
        ErrorKind::UnknownArgument => suggested(error),
        _ => None,
    };
    meant.map(|meant| format!("; did you mean '{meant}'?")).unwrap_or_default()
}

/// `scrub tank`: a verb of `pool`, said without it.
fn pool_verb(error: &clap::Error, words: &[OsString]) -> Option<String> {
    let Some(ContextValue::String(verb)) = error.get(ContextKind::InvalidSubcommand) else { return None };
    let is_first = words.first().is_some_and(|first| first == verb.as_str());
    let grammar = command();
    let pool = grammar.find_subcommand("pool").filter(|_| is_first)?;
    pool.find_subcommand(verb).map(|found| format!("pool {}", found.get_name()))
}

/// The most similar existing word, if it differs in at most two letters.
fn suggested(error: &clap::Error) -> Option<String> {
    let (said, near) = match error.kind() {
        ErrorKind::InvalidSubcommand => (ContextKind::InvalidSubcommand, ContextKind::SuggestedSubcommand),
        _ => (ContextKind::InvalidArg, ContextKind::SuggestedArg),
    };
    let Some(ContextValue::String(said)) = error.get(said) else { return None };
    let distance = |word: &str| strsim::osa_distance(said, word);
    let near = match error.get(near)? {
        ContextValue::String(word) => vec![word],
        ContextValue::Strings(words) => words.iter().collect(),
        _ => return None,
    };
    // If several have the same distance, the last one: clap sorts them by similarity.
    let nearest = near.into_iter().rev().min_by_key(|word| distance(word))?;
    (distance(nearest) <= CHANGES_MAX).then(|| nearest.clone())
}

#[cfg(test)]
mod tests {
    use crate::args::{ParseFailure, parse};

    fn words(line: &str) -> Vec<std::ffi::OsString> {
        line.split_whitespace().map(Into::into).collect()
    }

    fn refusal(line: &str) -> String {
        match parse(&words(line), None) {
            Err(ParseFailure::Usage(text)) => text.lines().next().unwrap_or_default().to_owned(),
            other => panic!("{line}: {other:?}"),
        }
    }

    fn help(line: &str) -> String {
        match parse(&words(line), None) {
            Err(ParseFailure::Help(text)) => text,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn a_mistyped_verb_is_answered_with_the_nearest_one() {
        assert_eq!(refusal("lst tank"), "unrecognized command 'lst'; did you mean 'list'?");
        assert_eq!(refusal("pool scrb tank"), "unrecognized command 'scrb'; did you mean 'scrub'?");
        assert_eq!(refusal("xyzzy"), "unrecognized command 'xyzzy'");
    }

    #[test]
    fn a_verb_of_pools_is_found_without_the_word_pool() {
        assert_eq!(refusal("scrub tank"), "unrecognized command 'scrub'; did you mean 'pool scrub'?");
        assert_eq!(refusal("status"), "unrecognized command 'status'; did you mean 'pool status'?");
    }

    #[test]
    fn a_mistyped_option_is_answered_with_the_nearest_one() {
        assert_eq!(refusal("sync --excude x a b"), "invalid option '--excude'; did you mean '--exclude'?");
    }

    #[test]
    fn the_words_of_zfs_get_no_hints() {
        assert_eq!(refusal("zfs lst"), "unrecognized command 'lst'");
    }

    #[test]
    fn help_takes_a_verb_and_version_is_a_verb() {
        assert!(help("help").contains("Usage: snowmelt COMMAND"));
        assert_eq!(help("help pool scrub"), help("pool scrub --help"));
        assert_eq!(help("version"), help("--version"));
        assert_eq!(refusal("help scrub"), "unrecognized command 'scrub'; did you mean 'pool scrub'?");
    }

    #[test]
    fn find_takes_its_options_with_one_dash_or_two() {
        for line in ["find -name *.rs -type f tank/a@b", "find --name *.rs --type f tank/a@b"] {
            let Ok(cli) = parse(&words(line), None) else { panic!("{line}") };
            assert!(format!("{cli:?}").contains(r#"name: Some("*.rs")"#), "{cli:?}");
        }
        assert!(parse(&words("find tank/a@b -maxdepth 2 -print0 -iname X"), None).is_ok());
    }
}
