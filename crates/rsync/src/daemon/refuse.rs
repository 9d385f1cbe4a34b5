//! Decides which requests of a module's client are refused.

use super::config::Access;
use super::{Daemon, Module};
use crate::error::{ExitCode, RsyncError};
use crate::filter::matches;
use crate::options::{ALIASES, Delete, Options};

impl Daemon {
    /// The reason to refuse a client, if there is one.
    pub(super) fn refusal(module: &Module, access: Option<Access>, options: &Options) -> Option<RsyncError> {
        refused_option(module, options).or_else(|| refused_direction(module, access, options))
    }
}

fn refused_direction(module: &Module, access: Option<Access>, options: &Options) -> Option<RsyncError> {
    let is_read_only = module.is_snapshot()
        || match access {
            Some(Access::ReadWrite) => false,
            Some(Access::Read | Access::Denied) => true,
            None => module.read_only,
        };
    let text = match (options.sender, options.remove_source_files) {
        (false, _) if is_read_only => "ERROR: module is read only",
        (false, _) => return options.not_received(),
        (true, _) if module.write_only => "ERROR: module is write only",
        (true, true) if is_read_only => "ERROR: --remove-source-files cannot be used with a read-only module",
        (true, true) => "ERROR: --remove-source-files: nothing is removed here",
        (true, false) => return None,
    };
    Some(RsyncError::refused(ExitCode::Syntax, text))
}

/// The error for the first option that `refuse options` refuses. The list has names, letters and wildcards. "!" before
/// one allows it again. An option that another one implies counts too.
fn refused_option(module: &Module, options: &Options) -> Option<RsyncError> {
    let is_refused = |name: &str| {
        let long = long_name(name);
        let names = || [name, long].into_iter().chain(other_names(long));
        module.refuse_options.iter().fold(false, |refused, rule| {
            let (pattern, refuses) =
                rule.strip_prefix('!').map_or((rule.as_str(), true), |rule| (rule, false));
            let is_like = names().any(|name| {
                matches(pattern.as_bytes(), name.as_bytes())
                    // The single letters that -a stands for.
                    || matches!(pattern, "a" | "archive") && name.len() == 1 && "rlptgoD".contains(name)
            });
            if is_like { refuses } else { refused }
        })
    };
    // Options that every server gets are not the client's choice.
    let is_free = |name: &str| matches!(name, "server" | "sender" | "e");
    let deletes = options.delete != Delete::No || options.sender && options.remove_source_files;
    let implied = deletes.then_some("delete");
    let mut given = options.given.iter().map(String::as_str).chain(implied);
    let name = given.find(|name| !is_free(name) && is_refused(name))?;
    let shown = shown(name);
    Some(RsyncError::refused(ExitCode::Unsupported, format!("The server is configured to refuse {shown}")))
}

/// The other names of an option.
fn other_names(name: &str) -> impl Iterator<Item = &str> {
    let pairs = ALIASES.iter().flat_map(|(a, b)| [(*a, *b), (*b, *a)]);
    pairs.filter(move |(one, _)| *one == name).map(|(_, other)| other)
}

/// An option with its long and short name, as far as it has both: `--compress (-z)`.
fn shown(name: &str) -> String {
    let mut letters = ('A'..='z').map(String::from);
    let letter = match name.len() {
        1 => Some(name.to_owned()),
        _ => letters.find(|letter| long_name(letter) == name),
    };
    match letter {
        Some(letter) if long_name(&letter).len() > 1 => format!("--{} (-{letter})", long_name(&letter)),
        Some(letter) => format!("-{letter}"),
        None => format!("--{name}"),
    }
}

fn long_name(letter: &str) -> &str {
    match letter {
        "A" => "acls",
        "b" => "backup",
        "B" => "block-size",
        "c" => "checksum",
        "C" => "cvs-exclude",
        "d" => "dirs",
        "D" => "devices",
        "E" => "executability",
        "g" => "group",
        "H" => "hard-links",
        "I" => "ignore-times",
        "J" => "omit-link-times",
        "k" => "copy-dirlinks",
        "K" => "keep-dirlinks",
        "l" => "links",
        "L" => "copy-links",
        "m" => "prune-empty-dirs",
        "n" => "dry-run",
        "o" => "owner",
        "O" => "omit-dir-times",
        "p" => "perms",
        "r" => "recursive",
        "R" => "relative",
        "s" => "secluded-args",
        "S" => "sparse",
        "t" => "times",
        "u" => "update",
        "U" => "atimes",
        "W" => "whole-file",
        "x" => "one-file-system",
        "X" => "xattrs",
        "y" => "fuzzy",
        "z" => "compress",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::daemon::Config;

    fn refused(config: &str, access: Option<Access>, args: &str) -> Option<String> {
        let config = Config::parse(config, Path::new("rsyncd.conf")).unwrap();
        let words: Vec<_> = args.split(' ').map(|word| word.as_bytes().to_vec()).collect();
        let (options, failure) = Options::parse(&words);
        assert!(failure.is_none());
        Daemon::refusal(&config.modules[0], access, &options).map(|error| error.to_string())
    }

    #[test]
    fn modules_say_which_way_files_go() {
        let (push, pull) = ("--server -r . m", "--server --sender -r . m");
        let read_only = Some("ERROR: module is read only".to_owned());
        let open = "[m]\npath = tank/a\nread only = no\n";
        assert_eq!(refused("[m]\npath = tank/a\n", None, push), read_only);
        assert_eq!(refused("[m]\npath = tank/a\n", Some(Access::ReadWrite), push), None);
        assert_eq!(refused(open, None, push), None);
        assert_eq!(refused(open, Some(Access::Read), push), read_only);
        for snapshot in ["@", "@monday"] {
            let config = open.replace("/a", &format!("/a{snapshot}"));
            assert_eq!(refused(&config, Some(Access::ReadWrite), push), read_only);
        }
        assert_eq!(refused(open, None, pull), None);
        let write_only = refused(&format!("{open}write only = yes\n"), None, pull);
        assert_eq!(write_only.unwrap(), "ERROR: module is write only");
        assert!(refused(open, None, "--server --sender -r --remove-source-files . m").is_some());
    }

    #[test]
    fn options_are_refused_with_what_implies_them() {
        let config = |rules: &str| format!("[m]\npath = tank/a\nread only = no\nrefuse options = {rules}\n");
        let refuses = |rules: &str, args: &str| {
            refused(&config(rules), None, &format!("--server {args} . m")).is_some()
        };
        for delete in ["--delete", "--delete-after", "--delete-excluded", "--delete-delay"] {
            assert!(refuses("c delete", &format!("-r {delete}")), "{delete}");
        }
        assert!(!refuses("delete-* !delete-during", "-r --delete-during"));
        assert!(refuses("delete-* !delete-during", "-r --delete-after"));
        assert!(refuses("delete", "--sender -r --remove-source-files"));
        assert!(!refuses("* !a !v", "-vrlptgoDe.iLsfxCIvu") && refuses("* !a !v", "-vrlptgoDze.iLsfxCIvu"));
        assert!(refuses("a", "-r") && refuses("backup", "-b") && !refuses("delete", "-r"));
        assert!(refuses("del", "-r --delete-during") && refuses("delete-during", "-r --del"));
        let told = refused(&config("compress-threads"), None, "--server -r --zt=9 . m").unwrap();
        assert_eq!(told, "The server is configured to refuse --zt");
        let told = refused(&config("delete"), None, "--server -r --delete . m").unwrap();
        assert_eq!(told, "The server is configured to refuse --delete");
        let told = refused(&config("compress"), None, "--server -rze.iLsf . m").unwrap();
        assert_eq!(told, "The server is configured to refuse --compress (-z)");
    }
}
