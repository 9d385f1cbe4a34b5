//! `complete`: the candidates for the word that is being typed. The scripts of `completions` run it.

use std::ffi::{OsStr, OsString};
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use clap::Arg;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate, complete};
use snowmelt_dataset::text::visible_name;

use super::background;
use crate::app::App;
use crate::args::{CompleteArgs, command};
use crate::error::Result;
use crate::exit::Exit;

/// Time limit for reading names of pools and datasets, so that a hanging disk does not block the shell.
const WAIT_MAX: Duration = Duration::from_secs(3);
/// Longest list of names that is read.
const NAMES_BYTES_MAX: u64 = 16 << 20;

/// What an argument names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Named {
    Pool,
    Dataset,
    Snapshot,
    /// A dataset, snapshot or bookmark.
    Any,
    /// The same, or a directory or file.
    AnyOrPath,
}

/// Prints the candidates for a word, one in each line. If a description is known, it follows after a tab.
///
/// # Errors
/// When output fails.
pub fn run(app: &mut App<'_>, args: &CompleteArgs) -> Result<Exit> {
    // A completion must not ask for the key of a pool.
    background::leave_terminal();
    let (mut words, mut index) = (args.words.clone(), args.index);
    let current = words.get(index).cloned().unwrap_or_default();
    words.resize(index + 1, OsString::new());
    // The arguments of 'help' are verbs.
    if index > 1 && words.get(1).is_some_and(|word| word == "help") {
        words.remove(1);
        index -= 1;
    }
    let source = Source { pool_dirs: pool_dirs(&words) };
    let mut grammar = with_names(command(), &[], &source);
    let cwd = app.context.cwd().to_owned();
    let mut candidates = complete(&mut grammar, words, index, Some(&cwd)).unwrap_or_default();
    // Options are offered after a dash, or if nothing else fits.
    let is_option =
        |candidate: &CompletionCandidate| candidate.get_value().as_encoded_bytes().starts_with(b"-");
    if !current.as_encoded_bytes().starts_with(b"-") && !candidates.iter().all(is_option) {
        candidates.retain(|candidate| !is_option(candidate));
    }
    if args.index == 1 {
        let own = [("help", "Describe a command"), ("version", "Print the version")];
        let own = own.iter().filter(|(word, _)| word.as_bytes().starts_with(current.as_encoded_bytes()));
        candidates.extend(own.map(|(word, help)| CompletionCandidate::new(word).help(Some((*help).into()))));
    }
    for candidate in &candidates {
        // Not even a name of a stranger's pool ends a line.
        let value = visible_name(candidate.get_value().as_encoded_bytes());
        match candidate.get_help().map(|help| help.to_string()) {
            Some(help) => writeln!(app.context.out, "{value}\t{}", help.lines().next().unwrap_or_default())?,
            None => writeln!(app.context.out, "{value}")?,
        }
    }
    Ok(Exit::Ok)
}

/// The values of `--pool-dir PATH` in the command line.
fn pool_dirs(words: &[OsString]) -> Vec<PathBuf> {
    let pairs = words.windows(2).filter(|pair| pair[0] == "--pool-dir");
    pairs.map(|pair| PathBuf::from(&pair[1])).collect()
}

/// The grammar with completers for the arguments that name something in a pool. `path` has the verbs above.
fn with_names(grammar: clap::Command, path: &[String], source: &Source) -> clap::Command {
    let mut path = path.to_vec();
    path.push(grammar.get_name().to_owned());
    let verb = path.get(1..).unwrap_or_default().join(" ");
    let named = |arg: Arg| match named(&verb, arg.get_id().as_str()) {
        Some(kind) => {
            let source = source.clone();
            let complete = move |current: &OsStr| source.candidates(kind, current);
            arg.add(ArgValueCompleter::new(complete))
        }
        None => arg,
    };
    grammar.mut_args(named).mut_subcommands(|verb| with_names(verb, &path, source))
}

/// The kind of object that an argument of a verb names. `None` if it does not exist yet, or is not in a pool.
fn named(verb: &str, argument: &str) -> Option<Named> {
    Some(match (verb, argument) {
        ("pool create" | "pool import", _) => return None,
        ("check" | "salvage", "pools" | "pool") => Named::Pool,
        (verb, "pool" | "pools") if verb.starts_with("pool ") => Named::Pool,
        ("list" | "get" | "inherit", "datasets") | ("destroy", "target") => Named::Any,
        ("rename", "from") | ("mount", "dataset") => Named::Any,
        ("create" | "promote", "dataset") | ("receive" | "unmount" | "import", "target") => Named::Dataset,
        ("snapshot", "snapshots") | ("clone", "dataset") | ("rename", "to") | ("set", "words") => {
            Named::Dataset
        }
        ("hold" | "holds" | "release", "snapshots") | ("rollback" | "clone", "snapshot") => Named::Snapshot,
        ("send", "from" | "from_all") | ("bookmark", "source") | ("diff", "from") => Named::Snapshot,
        ("send" | "manifest", "snapshot") | ("diff", "to") => Named::Any,
        ("ls" | "cat" | "find", "paths") | ("restore", "source") => Named::Any,
        ("sync" | "heal", "source" | "target") => Named::AnyOrPath,
        ("serve nbd" | "serve zvol", "targets") => Named::Any,
        _ => return None,
    })
}

/// The source of names: this program as a separate command, so that an error of a pool cannot end this process.
#[derive(Debug, Clone)]
struct Source {
    pool_dirs: Vec<PathBuf>,
}

impl Source {
    fn candidates(&self, kind: Named, current: &OsStr) -> Vec<CompletionCandidate> {
        let Some(text) = current.to_str() else { return Vec::new() };
        let mut names = match kind {
            Named::Pool => self.lines(&["pool", "list", "-H", "-o", "name"]),
            Named::Dataset => self.datasets(),
            Named::Snapshot | Named::Any | Named::AnyOrPath => self.with_snapshots(kind, text),
        };
        names.retain(|name| name.starts_with(text));
        let mut candidates: Vec<_> = names.into_iter().map(CompletionCandidate::new).collect();
        if kind == Named::AnyOrPath {
            let path = Arg::new("path").value_hint(clap::ValueHint::AnyPath);
            let mut grammar = clap::Command::new("path").arg(path);
            let words = vec!["path".into(), current.to_owned()];
            candidates.extend(complete(&mut grammar, words, 1, None).unwrap_or_default());
            candidates.retain(|candidate| !candidate.get_value().as_encoded_bytes().starts_with(b"-"));
        }
        candidates
    }

    fn datasets(&self) -> Vec<String> {
        self.lines(&["list", "-H", "-o", "name", "-t", "filesystem,volume"])
    }

    /// Datasets; and the snapshots of the one that is meant, once there is only one.
    fn with_snapshots(&self, kind: Named, text: &str) -> Vec<String> {
        let below = |dataset: &str| {
            let types = if kind == Named::Snapshot { "snapshot" } else { "snapshot,bookmark" };
            self.lines(&["list", "-H", "-o", "name", "-t", types, "-d", "1", dataset])
        };
        if let Some((dataset, _)) = text.split_once(['@', '#']) {
            return below(dataset);
        }
        let mut names = self.datasets();
        names.retain(|name| name.starts_with(text));
        match names.as_slice() {
            [only] => {
                let snapshots = below(only);
                if kind == Named::Snapshot && !snapshots.is_empty() {
                    return snapshots;
                }
                names.extend(snapshots);
                names
            }
            _ if names.iter().any(|name| name == text) => {
                names.extend(below(text));
                names
            }
            _ => names,
        }
    }

    /// The output of this program with these arguments; nothing if it fails or takes too long.
    fn lines(&self, words: &[&str]) -> Vec<String> {
        let dirs = self.pool_dirs.iter().flat_map(|dir| [OsStr::new("--pool-dir"), dir.as_os_str()]);
        let child = Command::new("/proc/self/exe")
            .args(dirs)
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let Ok(mut child) = child else { return Vec::new() };
        let (sender, receiver) = mpsc::channel();
        if let Some(stdout) = child.stdout.take() {
            std::thread::spawn(move || {
                let mut text = String::new();
                let read = stdout.take(NAMES_BYTES_MAX).read_to_string(&mut text);
                sender.send(read.map(|_| text))
            });
        }
        let text = receiver.recv_timeout(WAIT_MAX);
        if text.is_err() {
            let _ = child.kill();
        }
        let _ = child.wait();
        let text = text.ok().and_then(std::result::Result::ok).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}
