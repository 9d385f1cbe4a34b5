//! From words to a parsed command, or to a refusal worded as `zfs` words it.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, FromArgMatches};

use super::{Cli, GlobalArgs, RowsArgs, command};

/// Why no command came out.
#[derive(Debug)]
pub enum ParseFailure {
    /// Help or the version was asked for: the text belongs on standard output.
    Help(String),
    /// The words make no sense: the text belongs on standard error.
    Usage(String),
}

/// Parses the words after the program's name.
///
/// # Errors
/// The text to print instead.
pub fn parse(words: &[OsString], columns: Option<usize>) -> Result<Cli, ParseFailure> {
    if let Some(rows) = rows(words) {
        let global = GlobalArgs { pool_dirs: Vec::new(), help: None };
        return Ok(Cli { global, command: super::Command::Rows(rows) });
    }
    let mut grammar = command();
    if let Some(columns) = columns {
        grammar = grammar.term_width(columns.clamp(40, 100));
    }
    let argv = std::iter::once(OsString::from("snowmelt")).chain(words.iter().cloned());
    let parsed = grammar.try_get_matches_from_mut(argv).and_then(|matches| Cli::from_arg_matches(&matches));
    parsed.map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ParseFailure::Help(error.render().to_string()),
        _ => ParseFailure::Usage(refusal(&error, &grammar, words)),
    })
}

/// `rows POOL REQUEST`, which no usage text or completion tells of.
fn rows(words: &[OsString]) -> Option<RowsArgs> {
    match words {
        [verb, pool, request] if verb == "rows" => {
            Some(RowsArgs { pool: pool.to_str()?.to_owned(), request: request.to_str()?.to_owned() })
        }
        _ => None,
    }
}

/// One line that says what is wrong, then the usage of the command that was meant.
fn refusal(error: &clap::Error, grammar: &Command, words: &[OsString]) -> String {
    format!("{}\n{}", reason(error), usage_within(grammar, words))
}

/// How the command that these words mean is used.
pub fn usage(words: &[OsString]) -> String {
    usage_within(&command(), words)
}

fn usage_within(grammar: &Command, words: &[OsString]) -> String {
    let mut name = grammar.get_name().to_owned();
    let mut meant = grammar;
    for word in words.iter().filter_map(|word| word.to_str()) {
        if let Some(found) = meant.find_subcommand(word) {
            meant = found;
            name = format!("{name} {}", found.get_name());
        }
    }
    if meant.has_subcommands() {
        let verbs: Vec<_> =
            meant.get_subcommands().filter(|c| !c.is_hide_set()).map(Command::get_name).collect();
        let verbs = wrap(&verbs, 76);
        return format!("usage: {name} COMMAND [ARGUMENTS]\n\ncommands:\n{verbs}see '{name} --help'\n");
    }
    let usage = meant.clone().bin_name(name).render_usage().to_string();
    let usage = usage.strip_prefix("Usage: ").unwrap_or(&usage);
    format!("usage:\n       {}\n", usage.trim_end())
}

fn wrap(words: &[&str], width: usize) -> String {
    let mut lines = String::new();
    let mut column = 0;
    for word in words {
        if column > 0 && column + word.len() + 1 > width {
            lines.push('\n');
            column = 0;
        }
        lines.push_str(if column == 0 { "  " } else { " " });
        lines.push_str(word);
        column += word.len() + if column == 0 { 2 } else { 1 };
    }
    lines.push('\n');
    lines
}

fn reason(error: &clap::Error) -> String {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        Some(ContextValue::Strings(texts)) => texts.first().cloned(),
        _ => None,
    };
    match error.kind() {
        ErrorKind::UnknownArgument => match text(ContextKind::InvalidArg) {
            Some(option) if option.starts_with("--") => format!("invalid option '{option}'"),
            Some(option) if option.starts_with('-') => {
                format!("invalid option '{}'", option.trim_start_matches('-'))
            }
            _ => "too many arguments".to_owned(),
        },
        ErrorKind::InvalidSubcommand => {
            format!("unrecognized command '{}'", text(ContextKind::InvalidSubcommand).unwrap_or_default())
        }
        ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            "missing command".to_owned()
        }
        ErrorKind::MissingRequiredArgument => {
            let name = text(ContextKind::InvalidArg).unwrap_or_default();
            let name = name.trim_matches(|c| matches!(c, '<' | '>' | '.' | '[' | ']')).to_lowercase();
            format!("missing {name} argument")
        }
        ErrorKind::InvalidValue if text(ContextKind::InvalidValue).is_some_and(|value| value.is_empty()) => {
            let option = text(ContextKind::InvalidArg).unwrap_or_default();
            let option = option.split(' ').next().unwrap_or_default().trim_start_matches('-').to_owned();
            format!("missing argument for '{option}' option")
        }
        _ => {
            let rendered = error.render().to_string();
            let line = rendered.lines().next().unwrap_or_default();
            line.strip_prefix("error: ").unwrap_or(line).to_owned()
        }
    }
}
