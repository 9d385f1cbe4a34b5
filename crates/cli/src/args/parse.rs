//! Parsing of the command line. Errors have the wording of `zfs`.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, FromArgMatches};

use super::{
    Cli, CompleteArgs, GlobalArgs, Program, RowsArgs, VersionArgs, command, personality, property_table,
    spelling,
};

/// The reason why there is no command.
#[derive(Debug)]
pub enum ParseFailure {
    /// Help or the version was asked for: the text belongs on standard output.
    Help(String),
    /// The arguments are not valid: the text belongs on standard error.
    Usage(String),
    /// A verb that ZFS has and snowmelt does not: the text belongs on standard error.
    Missing(String),
}

/// Parses the arguments after the program's name.
///
/// # Errors
/// The text to print instead.
pub fn parse(words: &[OsString], columns: Option<usize>) -> Result<Cli, ParseFailure> {
    if let Some(rows) = rows(words) {
        let global = GlobalArgs::default();
        return Ok(Cli { global, command: super::Command::Rows(rows) });
    }
    if let Some(complete) = complete(words) {
        let global = GlobalArgs::default();
        return Ok(Cli { global, command: super::Command::Complete(complete) });
    }
    if spelling::is_version_as_json(words) {
        let global = GlobalArgs::default();
        let version = super::Command::Version(Program::Snowmelt, VersionArgs { json: true });
        return Ok(Cli { global, command: version });
    }
    let (program, rest) = Program::of(words);
    let mut grammar = grammar(program);
    if let Some(columns) = columns {
        grammar = grammar.term_width(columns.clamp(40, 100));
    }
    let parsed = match program {
        Program::Snowmelt => {
            let spelled = spelling::own(words);
            let argv = std::iter::once(OsString::from("snowmelt")).chain(spelled);
            grammar.try_get_matches_from_mut(argv).and_then(|matches| Cli::from_arg_matches(&matches))
        }
        Program::Zfs | Program::Zpool | Program::Zstream => {
            if let Some(special) = special(program, rest) {
                return special;
            }
            personality::parse(program, &mut grammar, rest)
        }
    };
    parsed.map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ParseFailure::Help(error.render().to_string()),
        _ => {
            let hint = if program == Program::Snowmelt {
                spelling::hint(&error, &spelling::own(rest))
            } else {
                String::new()
            };
            ParseFailure::Usage(format!("{}{hint}\n{}", reason(&error, verb(rest)), usage(words)))
        }
    })
}

fn grammar(program: Program) -> Command {
    match program {
        Program::Snowmelt => command(),
        Program::Zfs | Program::Zpool | Program::Zstream => personality::grammar(program),
    }
}

/// Arguments that `zfs` and `zpool` handle before their verbs, and their verbs that snowmelt does not have (`main` in
/// `cmd/zfs/zfs_main.c`).
fn special(program: Program, words: &[OsString]) -> Option<Result<Cli, ParseFailure>> {
    let text = |at: usize| words.get(at).and_then(|word| word.to_str());
    let verb = text(0)?;
    match verb {
        "-V" | "--version" => {
            let global = GlobalArgs::default();
            return Some(Ok(Cli {
                global,
                command: super::Command::Version(program, VersionArgs { json: false }),
            }));
        }
        "-?" | "--help" => return Some(Err(ParseFailure::Help(shim_usage(program, &[])))),
        "help" => {
            return Some(Err(ParseFailure::Help(shim_usage(program, words.get(1..).unwrap_or_default()))));
        }
        _ => {}
    }
    let asks_for_usage = matches!(text(1), Some("-?" | "--help"));
    match personality::missing_verb(program, verb) {
        // Also without arguments: for tools, a usage text means that the verb works.
        Some(_) if !asks_for_usage => Some(Err(ParseFailure::Missing(unsupported(program, verb)))),
        _ if asks_for_usage => Some(Err(ParseFailure::Usage(shim_usage(program, words)))),
        _ => None,
    }
}

/// The error of an unsupported verb.
fn unsupported(program: Program, verb: &str) -> String {
    let what = match (program, verb) {
        (Program::Zfs, "load-key" | "unload-key" | "change-key") => "native encryption keys are",
        (Program::Zfs, "allow" | "unallow") => "delegated permissions are",
        (Program::Zfs, "userspace" | "groupspace" | "projectspace" | "project") => {
            "quotas and accounting of users, groups and projects are"
        }
        (Program::Zfs, "share" | "unshare") => "sharing over NFS and SMB is",
        (Program::Zpool, "add" | "remove" | "split") => "pools of several devices are",
        _ => return format!("cannot {verb}: '{} {verb}' is not supported by snowmelt", program.name()),
    };
    format!("cannot {verb}: {what} not supported by snowmelt")
}

/// `rows POOL REQUEST`, which is in no usage text or completion.
fn rows(words: &[OsString]) -> Option<RowsArgs> {
    match words {
        [verb, pool, request] if verb == "rows" => {
            Some(RowsArgs { pool: pool.to_str()?.to_owned(), request: request.to_str()?.to_owned() })
        }
        _ => None,
    }
}

/// `complete INDEX WORDS…`, which is in no usage text either.
fn complete(words: &[OsString]) -> Option<CompleteArgs> {
    match words {
        [verb, index, words @ ..] if verb == "complete" => {
            let index = index.to_str()?.parse().ok().filter(|index| *index <= words.len())?;
            Some(CompleteArgs { index, words: words.to_vec() })
        }
        _ => None,
    }
}

/// The usage text of the command in these arguments.
pub fn usage(words: &[OsString]) -> String {
    match Program::of(words) {
        (Program::Snowmelt, _) => {
            let mut grammar = command();
            grammar.build();
            usage_within(&grammar, words)
        }
        (program, rest) => shim_usage(program, rest),
    }
}

/// The usage text of a verb of `zfs` or `zpool`, or of all verbs, in their format: one verb in each line, after a tab.
fn shim_usage(program: Program, words: &[OsString]) -> String {
    let mut grammar = grammar(program);
    grammar.build();
    let name = program.name();
    let verb = words.first().and_then(|word| word.to_str());
    let known = verb.and_then(|verb| grammar.find_subcommand(verb));
    let missing = verb.and_then(|verb| personality::missing_verb(program, verb));
    let mut text = String::new();
    match (known, missing) {
        (Some(known), _) => text.push_str(&format!("usage:\n{}", verb_usage(program, known))),
        (None, Some(missing)) => text.push_str(&format!("usage:\n\t{missing}\n")),
        (None, None) => {
            text.push_str(&format!(
                "usage: {name} command args ...\nwhere 'command' is one of the following:\n\n"
            ));
            for known in grammar.get_subcommands() {
                text.push_str(&verb_usage(program, known));
            }
        }
    }
    if let ([_], Program::Zfs, Some(verb)) = (words, program, verb) {
        text.push_str(&property_table::of(verb).unwrap_or_default());
    }
    text.push_str(&format!("\nFor further help on a command or topic, run: {name} help [<topic>]\n"));
    text
}

fn verb_usage(program: Program, verb: &Command) -> String {
    let usage = verb.clone().render_usage().to_string();
    let mut text = String::new();
    for line in usage.trim_start_matches("Usage: ").lines() {
        let line = line.trim();
        match line.strip_prefix("snowmelt ") {
            Some(begun) if program == Program::Zpool => {
                let begun = begun.strip_prefix("pool ").unwrap_or(begun);
                text.push_str(&format!("\t{begun}\n"));
            }
            Some(begun) if program == Program::Zstream => {
                let begun = begun.strip_prefix("stream ").unwrap_or(begun);
                text.push_str(&format!("\t{}\n", begun.replacen("drop-record", "drop_record", 1)));
            }
            Some(begun) => text.push_str(&format!("\t{begun}\n")),
            None => text.push_str(&format!("\t    {line}\n")),
        }
    }
    text
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

/// The first argument that is not an option.
fn verb(words: &[OsString]) -> &str {
    words.iter().filter_map(|word| word.to_str()).find(|word| !word.starts_with('-')).unwrap_or_default()
}

/// What `zfs` says is missing, where it does not name the argument as the grammar does (`cmd/zfs/zfs_main.c`).
fn missing(verb: &str, argument: &str) -> String {
    match (verb, argument) {
        ("set", _) => "missing arguments".to_owned(),
        ("receive" | "recv", _) => "missing snapshot argument".to_owned(),
        ("clone", "snapshot") | ("rename", "from") => "missing source dataset argument".to_owned(),
        ("clone", "dataset") | ("rename", "to") => "missing target dataset argument".to_owned(),
        ("create", "dataset") | ("unmount" | "umount", _) => "missing filesystem argument".to_owned(),
        ("promote", _) => "missing clone filesystem argument".to_owned(),
        ("rollback", _) => "missing dataset argument".to_owned(),
        ("diff", _) => "must provide at least one snapshot name".to_owned(),
        (_, argument) => format!("missing {argument} argument"),
    }
}

fn reason(error: &clap::Error, verb: &str) -> String {
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
            missing(verb, &name)
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
