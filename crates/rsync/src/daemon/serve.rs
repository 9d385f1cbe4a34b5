//! Serves the client of a module: the commands around its transfer, its arguments, and the transfer itself.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Gid, Uid};
use rustix::thread::{CapabilitySet, CapabilitySets};

use super::config::{Id, names};
use super::connection::Chosen;
use super::exec::{self, Variables};
use super::log::{ClientMessages, Event, LogContext, SENT};
use super::peer::Peer;
use super::{Counted, Daemon, Link, Module, trusted};
use crate::client::Told;
use crate::error::{ExitCode, Result, RsyncError};
use crate::index::IndexError;
use crate::name_converter::NameConverter;
use crate::names::Names;
use crate::options::{Options, complete, read_args, unescape_options};
use crate::receiver::{Into, OnEvent, Terms};
use crate::scan::{Called, View, clean, error_text};
use crate::sender::{SentFile, Summary};
use crate::session::{self, FileList, Receiving, Surroundings};
use crate::source::{
    AttributesSource, ChmodSource, DirectorySource, FakeSuperSource, IndexedSource, ReadableSource, Source,
};
use crate::target::{DirectoryTarget, FakeSuperTarget};
use crate::token::LEAST;

/// The default user and group of rsync's daemon.
const NOBODY: u32 = 65534;

/// The request of a client.
struct Asked<'d> {
    module: &'d Module,
    user: &'d str,
    protocol: u8,
    peer: &'d Peer,
    options: Options,
    failure: Option<RsyncError>,
    source: Arc<dyn Source>,
    /// The names of owners that the client is told.
    names: Names,
}

impl Daemon {
    /// Serves the client from the choice of the module on. Errors are logged. The client was told where that was
    /// possible.
    pub(super) fn serve_module(
        &self,
        mut link: Link,
        peer: &Peer,
        chosen: &Chosen<'_>,
        counted: Counted<'_>,
    ) {
        let module = &*chosen.module;
        let mut counted = Some(counted);
        let mut variables = variables(module, peer, &chosen.user);
        let result = self.ask(&mut link, peer, chosen, &mut variables).and_then(|asked| match asked {
            None => Ok(None),
            // The transfer has a thread of its own. That thread may become another user to read the module, and this
            // one does not.
            Some(asked) => {
                let transfer = || self.transfer(&mut link, asked);
                let broken = |_| RsyncError::protocol("the server broke");
                std::thread::scope(|scope| scope.spawn(transfer).join().map_err(broken))?.map(Some)
            }
        });
        let code = match &result {
            Ok(Some(summary)) => {
                self.say_of(
                    module,
                    format!(
                        "sent {} bytes  received {} bytes  total size {}",
                        summary.written, summary.read, summary.size
                    ),
                );
                summary.shortcoming().map_or(0, |code| code as i32)
            }
            Ok(None) => -1,
            Err(error) => {
                self.say_of(module, format!("{peer}: module {}: {error}", module.name));
                // A refused client takes no place while the connection is drained.
                if module.post_exec.is_none() {
                    drop(counted.take());
                }
                link.drain();
                match error {
                    RsyncError::PeerExit { code } => i32::try_from(*code).unwrap_or(-1),
                    other => other.code() as i32,
                }
            }
        };
        // The client may connect again as soon as its connection ends. So its place is free before that, unless a
        // command runs afterwards.
        if module.post_exec.is_none() {
            drop(counted.take());
        }
        // The client does not wait for the command afterwards.
        drop(link);
        if let Some(command) = &module.post_exec {
            variables.retain(|(name, _)| name != "RSYNC_REQUEST" && !name.starts_with("RSYNC_ARG"));
            variables.push(("RSYNC_EXIT_STATUS".to_owned(), code.to_string().into()));
            let raw = if code < 0 { code } else { code << 8 };
            variables.push(("RSYNC_RAW_STATUS".to_owned(), raw.to_string().into()));
            // `run` logs its errors.
            let _ = self.run(module, ("post-xfer exec", command), &variables, (&[], None));
        }
    }

    /// Runs a command. The error is the reason why there is no transfer.
    fn run(
        &self,
        module: &Module,
        (kind, command): (&str, &str),
        variables: &Variables,
        (input, patience): (&[u8], Option<Duration>),
    ) -> std::result::Result<(), String> {
        // rsync's variable for an operator who wants to start the server without any commands.
        if std::env::var_os("RSYNC_NO_XFER_EXEC").is_some() {
            return Ok(());
        }
        let ended = match exec::run(command, variables, input, patience) {
            Ok(ended) => ended,
            Err(error) => {
                self.say_of(module, format!("module {}: {kind} cannot be run: {error}", module.name));
                return Err(format!("{kind} cannot be run"));
            }
        };
        for line in ended.err.lines() {
            self.say_of(module, format!("module {}: {kind}: {}", module.name, line.escape_debug()));
        }
        if ended.is_success() {
            return Ok(());
        }
        self.say_of(
            module,
            format!("module {}: {kind} returned failure ({})", module.name, ended.raw_status()),
        );
        let said = if ended.out.is_empty() { String::new() } else { format!(":{}", ended.out.trim_end()) };
        Err(format!("{kind} returned failure ({}){said}", ended.raw_status()))
    }

    /// Reads the request of the client. `None` if it was refused and the client was told so.
    fn ask<'d>(
        &self,
        link: &mut Link,
        peer: &'d Peer,
        chosen: &'d Chosen<'d>,
        variables: &mut Variables,
    ) -> Result<Option<Asked<'d>>> {
        let module = &*chosen.module;
        if let Some(command) = &module.early_exec {
            let input = (chosen.early_input.as_slice(), Some(exec::PATIENCE));
            if self.run(module, ("early exec", command), variables, input).is_err() {
                link.say("@ERROR: early exec failed")?;
                return Ok(None);
            }
        }
        let source: Arc<dyn Source> = match self.open(module) {
            Ok(source) => source,
            Err(error) => {
                self.say_of(module, format!("module {}: {}: {error}", module.name, module.path));
                link.say(&format!("@ERROR: chdir failed: {} cannot be opened", module.name))?;
                return Ok(None);
            }
        };
        link.say("@RSYNCD: OK")?;
        link.patience.begin(self.patience, None);
        // Before version 30 arguments ended with newlines.
        let end = if chosen.protocol < 30 { b'\n' } else { 0 };
        let mut args = read_args(&mut link.reader, end)?;
        unescape_options(&mut args);
        let args = complete(args, &mut link.reader)?;
        let (mut options, failure) = Options::parse(&args);
        let mut failure = failure.or_else(|| Self::refusal(module, chosen.access, &options));
        let shown = options.paths.join(&b' ');
        if let Some(command) = &module.pre_exec {
            variables.push(("RSYNC_REQUEST".to_owned(), OsString::from_vec(shown.clone())));
            variables.extend(numbered(&module.name, &args));
            let told = self.run(module, ("pre-xfer exec", command), variables, (&[], Some(exec::PATIENCE)));
            failure =
                told.map_or_else(|text| Some(RsyncError::refused(ExitCode::Unsupported, text)), |()| failure);
        }
        options.patterns = true;
        options.numeric_ids |= module.numeric_ids;
        options.ignore_errors |= module.ignore_errors;
        if module.dont_compress {
            options.compress_level = Some(LEAST);
        }
        if self.bandwidth > 0 && (options.bandwidth == 0 || options.bandwidth > self.bandwidth) {
            options.bandwidth = self.bandwidth;
        }
        let timeout = match (module.timeout_seconds, options.timeout_seconds) {
            (0, 0) => None,
            (0, seconds) | (seconds, 0) => Some(seconds),
            (ours, theirs) => Some(ours.min(theirs)),
        };
        let timeout = timeout.map(|seconds| Duration::from_secs(u64::from(seconds)));
        (link.set_timeout)(timeout)?;
        // The time limit for the rest of the start: algorithms and filter rules.
        link.patience.begin(self.patience, timeout);
        let user = if chosen.user.is_empty() { String::new() } else { format!("{}@", chosen.user) };
        let direction = if options.sender { "on" } else { "to" };
        self.say_of(
            module,
            format!(
                "rsync {direction} {} from {user}{}",
                String::from_utf8_lossy(&shown).escape_debug(),
                peer.both()
            ),
        );
        let (user, protocol) = (chosen.user.as_str(), chosen.protocol);
        // Before this thread becomes the module's user: the name converter runs as the user of the server.
        let names = match self.names_for(module, &options, peer, user) {
            Ok(names) => names,
            Err(error) => {
                failure.get_or_insert(error);
                Names::default()
            }
        };
        Ok(Some(Asked { module, user, protocol, peer, options, failure, source, names }))
    }

    fn transfer(&self, link: &mut Link, mut asked: Asked<'_>) -> Result<Summary> {
        let module = asked.module;
        // Opened as the user of the server: the module's user may have no access to the parent directories.
        let root = module.is_directory().then(|| open_root(module));
        self.become_user(module).map_err(|text| RsyncError::refused(ExitCode::FileIo, text))?;
        if module.ignore_nonreadable && module.is_directory() {
            asked.source = Arc::new(ReadableSource::of_this_thread(asked.source)?);
        }
        let fakes_super = module.fake_super && module.is_directory();
        if fakes_super {
            asked.source = Arc::new(FakeSuperSource::new(asked.source));
        }
        let context = LogContext {
            address: asked.peer.to_string(),
            host: match module.transfer_logging && module.log_format.tells_host() {
                true => asked.peer.name(module.reverse_lookup).to_owned(),
                false => String::new(),
            },
            module: module.name.clone(),
            path: module.path.clone(),
            user: asked.user.to_owned(),
        };
        let on_event = |event: &Event<'_>| {
            if module.transfer_logging {
                self.say_of(module, module.log_format.line(&context, event, &self.time));
            }
        };
        if !asked.options.sender && asked.failure.is_none() {
            let target = match root {
                Some(root) => root
                    .and_then(DirectoryTarget::at)
                    .and_then(|target| match module.follows_anywhere() {
                        true => target.following_anywhere(),
                        false => Ok(target),
                    })
                    .map(|target| match fakes_super {
                        true => Box::new(FakeSuperTarget::new(target)) as _,
                        false => Box::new(target) as _,
                    })
                    .map_err(|error| format!("{}: {}", module.name, error_text(&error))),
                None => self.datasets.receive(&module.path),
            };
            match self.owner(module).and_then(|owner| Ok((target?, owner))) {
                Ok((target, (uid, gid))) => {
                    let (chmod, munged) = (Some(&module.incoming_chmod), module.is_munged());
                    let on_event = Some(&on_event as &OnEvent<'_>);
                    let temp_dir = module.temp_dir.as_deref().map(str::as_bytes);
                    let keep = module.keep_snapshots;
                    let sanitized = module.is_sanitized();
                    let terms = Terms { keep, uid, gid, chmod, munged, sanitized, temp_dir, on_event };
                    let path = asked.options.paths.first();
                    let path = path.map_or_else(Vec::new, |path| in_module(&module.name, path));
                    let called = Called::Module(&module.name);
                    let into = Into { target, path, called, hidden: &module.hidden, terms };
                    let file_list = asked
                        .options
                        .files_from
                        .as_deref()
                        .map(|file| file_list(module, &*asked.source, file));
                    let receiving = Receiving {
                        file_list,
                        told: Some(Arc::new(Told::new(Box::new(ClientMessages {
                            log: self.log.clone(),
                            file: module.log_file.clone(),
                            peer: asked.peer.to_string(),
                        })))),
                        into,
                        names: std::mem::take(&mut asked.names),
                        timeout_seconds: module.timeout_seconds,
                        patience: link.patience.clone(),
                        seed: session::seed()?,
                    };
                    self.say_of(module, "receiving file list");
                    let ends = (&mut link.reader, &mut link.writer);
                    return session::receive(asked.protocol, ends, &asked.options, receiving);
                }
                Err(error) => {
                    let text = format!("rsync: [receiver] {error}");
                    asked.failure = Some(RsyncError::refused(ExitCode::FileIo, text));
                }
            }
        }
        let changed = ChmodSource { source: asked.source.as_ref(), chmod: &module.outgoing_chmod };
        let is_changed = module.outgoing_chmod != crate::chmod::Chmod::default();
        let options = &asked.options;
        let surroundings = Surroundings {
            view: View {
                source: if is_changed { &changed } else { asked.source.as_ref() },
                hidden: &module.hidden,
                called: Called::Module(&module.name),
                munged: module.is_munged(),
                keeps_outward_links: module.keeps_outward_links(),
            },
            names: std::mem::take(&mut asked.names),
            paths: options.paths.iter().map(|path| in_module(&module.name, path)).collect(),
            timeout_seconds: module.timeout_seconds,
            patience: link.patience.clone(),
            seed: session::seed()?,
            on_file: &mut |SentFile { entry, flags, bytes, sums, digest }| {
                let (path, name, metadata) = (&entry.path(), &entry.name, entry.metadata);
                on_event(&Event { operation: SENT, path, name, metadata, bytes, sums, digest, flags });
            },
        };
        let ends = (&mut link.reader, &mut link.writer);
        session::serve(asked.protocol, ends, (options, asked.failure), surroundings)
    }

    /// The names of owners for a transfer. With `--numeric-ids` there are none.
    fn names_for(&self, module: &Module, options: &Options, peer: &Peer, user: &str) -> Result<Names> {
        match &module.name_converter {
            _ if options.numeric_ids => Ok(Names::default()),
            None => Ok(self.names.clone()),
            Some(command) => {
                let variables = variables_of(module, peer, user);
                let started = NameConverter::start(command, &variables);
                started.map(Names::converted).map_err(|error| {
                    let text = format!("name converter cannot be run: {error}");
                    self.say_of(module, format!("module {}: {text}", module.name));
                    RsyncError::refused(ExitCode::Unsupported, text)
                })
            }
        }
    }

    /// The owner and group of what is received into a dataset, if the module sets them.
    fn owner(&self, module: &Module) -> std::result::Result<(Option<u32>, Option<u32>), String> {
        // In a directory, the owner is the user that writes.
        if module.is_directory() {
            return Ok((None, None));
        }
        let uid = match &module.uid {
            Id::Default => None,
            Id::Named(name) => Some(self.names.uid(name).ok_or_else(|| format!("Invalid uid {name}"))?),
        };
        // Root can set any owner, and so can servers of rsync that run as root.
        if uid == Some(0) {
            return Ok((None, None));
        }
        let gid = match &module.gid {
            Id::Default => None,
            Id::Named(_) => self.gids(module, uid.unwrap_or(NOBODY))?.first().copied(),
        };
        Ok((uid, gid))
    }

    /// Opens the tree that a module serves.
    fn open(&self, module: &Module) -> std::result::Result<Arc<dyn Source>, String> {
        if !module.is_directory() {
            return self.datasets.open(&module.path);
        }
        let path = Path::new(&module.path);
        Ok(match (&module.index, module.real_files()) {
            (Some(file), _) => {
                let told = |error: &IndexError| {
                    self.say_of(module, format!("module {}: {error}; the index before is used", module.name));
                };
                let index = self.indexes.get(file, told).map_err(|error| error.to_string())?;
                Arc::new(IndexedSource::new(index, module.real_path.as_deref().unwrap_or(path)))
            }
            (None, Some(files)) => {
                Arc::new(AttributesSource::open(path, files).map_err(|error| error.to_string())?)
            }
            (None, None) => {
                let root = trusted::directory(path).map_err(|error| error.to_string())?;
                let source = DirectorySource::at(root);
                Arc::new(if module.follows_anywhere() { source.following_anywhere() } else { source })
            }
        })
    }

    /// The groups of `gid`. New files get the first one. "*" stands for all groups of the user `uid`.
    fn gids(&self, module: &Module, uid: u32) -> std::result::Result<Vec<u32>, String> {
        let Id::Named(text) = &module.gid else {
            return Ok(vec![
                self.names.gid("nobody").or_else(|| self.names.gid("nogroup")).unwrap_or(NOBODY),
            ]);
        };
        let mut gids = Vec::new();
        for name in names(text) {
            match (name, gids.is_empty()) {
                ("*", true) => {
                    let user = self.names.user(uid).map(|user| String::from_utf8_lossy(&user).into_owned());
                    gids.extend(user.iter().flat_map(|user| self.names.gids_of(user)));
                    if gids.is_empty() {
                        return Err(format!("Invalid gid *: user {uid} has no groups"));
                    }
                }
                _ => gids.push(self.names.gid(name).ok_or_else(|| format!("Invalid gid {name}"))?),
            }
        }
        Ok(gids)
    }

    fn uid(&self, module: &Module) -> std::result::Result<u32, String> {
        match &module.uid {
            Id::Default => Ok(self.names.uid("nobody").unwrap_or(NOBODY)),
            Id::Named(name) => self.names.uid(name).ok_or_else(|| format!("Invalid uid {name}")),
        }
    }

    /// Makes this thread the user that the directory is read as. The thread serves one connection only.
    fn become_user(&self, module: &Module) -> std::result::Result<(), String> {
        if !module.is_directory() || !rustix::process::geteuid().is_root() {
            return Ok(());
        }
        let uid = self.uid(module)?;
        let gids = self.gids(module, uid)?;
        if uid == 0 && gids == [0] {
            return Ok(());
        }
        let gids: Vec<Gid> = gids.into_iter().map(Gid::from_raw).collect();
        let gid = gids.first().copied().ok_or("gid names no group")?;
        let uid = Uid::from_raw(uid);
        let switch = || -> rustix::io::Result<()> {
            rustix::thread::set_thread_groups(&gids)?;
            rustix::thread::set_thread_res_gid(gid, gid, gid)?;
            // Files are opened as the effective user. A process can send signals if its user is the real or saved user
            // of the target, so these stay root. A signal that ends one thread ends the whole server.
            rustix::thread::set_thread_res_uid(Uid::ROOT, uid, Uid::ROOT)?;
            // Root keeps its capabilities.
            if uid.is_root() {
                return Ok(());
            }
            let nothing = CapabilitySet::empty();
            let none = CapabilitySets { effective: nothing, permitted: nothing, inheritable: nothing };
            rustix::thread::set_capabilities(None, none)
        };
        switch().map_err(|error| format!("cannot become another user: {error}"))
    }
}

/// Opens the directory of a module, for access to names in it.
fn open_root(module: &Module) -> std::io::Result<OwnedFd> {
    trusted::directory(module.real_path.as_deref().unwrap_or(Path::new(&module.path)))
}

/// The list of `--files-from`, which is a file of the module.
fn file_list(module: &Module, source: &dyn Source, file: &[u8]) -> FileList {
    let (path, _) = clean(file);
    let opened = match module.hidden.hides(&path, false) {
        true => Err(rustix::io::Errno::NOENT.into()),
        false => source.open(&path, true),
    };
    opened.map_err(|error| (format!("\"{}\" (in {})", String::from_utf8_lossy(&path), module.name), error))
}

/// A number that no other connection has at this time.
pub(super) fn connection_number() -> String {
    rustix::thread::gettid().as_raw_nonzero().to_string()
}

/// The variables for all commands of a connection. Empty if there are no commands, so that the client's name is not
/// looked up.
fn variables(module: &Module, peer: &Peer, user: &str) -> Variables {
    let commands = [&module.early_exec, &module.pre_exec, &module.post_exec];
    if commands.iter().all(|command| command.is_none()) {
        return Vec::new();
    }
    variables_of(module, peer, user)
}

/// The variables that describe a connection.
fn variables_of(module: &Module, peer: &Peer, user: &str) -> Variables {
    [
        ("RSYNC_MODULE_NAME", module.name.clone()),
        ("RSYNC_MODULE_PATH", module.path.clone()),
        ("RSYNC_HOST_ADDR", peer.to_string()),
        ("RSYNC_HOST_NAME", peer.name(module.reverse_lookup).to_owned()),
        ("RSYNC_USER_NAME", user.to_owned()),
        ("RSYNC_PID", connection_number()),
    ]
    .map(|(name, value)| (name.to_owned(), value.into()))
    .into()
}

/// The client's arguments as variables. Paths are without the module's name.
fn numbered(module: &str, args: &[Vec<u8>]) -> Variables {
    let mut are_paths = false;
    let mut numbered = vec![("RSYNC_ARG0".to_owned(), "rsyncd".into())];
    for (at, arg) in args.iter().enumerate() {
        let arg = if are_paths { in_module(module, arg) } else { arg.clone() };
        are_paths |= arg == b".";
        let shown = std::ffi::OsStr::from_bytes(&arg).to_owned();
        numbered.push((format!("RSYNC_ARG{}", at + 1), shown));
    }
    numbered
}

/// The path inside the module: arguments begin with the module's name.
fn in_module(module: &str, path: &[u8]) -> Vec<u8> {
    match path.strip_prefix(module.as_bytes()) {
        Some([]) => Vec::new(),
        Some([b'/', rest @ ..]) => rest.to_vec(),
        _ => path.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_begin_with_the_module() {
        assert_eq!(in_module("m", b"m/a/b"), b"a/b");
        assert_eq!(in_module("m", b"m"), b"");
        assert_eq!(in_module("m", b"mm/a"), b"mm/a");
    }

    #[test]
    fn commands_are_told_the_arguments() {
        let args = ["--server", "-r", ".", "m/a"].map(|arg| arg.as_bytes().to_vec());
        let told = numbered("m", &args);
        let text: Vec<_> = told.iter().map(|(name, value)| format!("{name}={}", value.display())).collect();
        assert_eq!(
            text,
            ["RSYNC_ARG0=rsyncd", "RSYNC_ARG1=--server", "RSYNC_ARG2=-r", "RSYNC_ARG3=.", "RSYNC_ARG4=a"]
        );
    }
}
