//! One connection, from its greeting to the choice of a module and the arguments (docs/format/rsync.md, "The daemon").

use std::io::{self, BufReader, Read, Write};
use std::net::{IpAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::process::{Gid, Uid};

use super::access::is_allowed;
use super::auth::{self, AuthDigest};
use super::config::Id;
use super::log::LogContext;
use super::{Daemon, Module};
use crate::error::{ExitCode, Result, RsyncError};
use crate::filter::matches;
use crate::index::IndexError;
use crate::options::{Options, complete, read_args};
use crate::scan::{Called, View};
use crate::session::{self, PROTOCOL_MAX, PROTOCOL_MIN, Surroundings};
use crate::source::{AttributesSource, DirectorySource, IndexedSource, Source};
use crate::wire::ReadWire;

/// Longest line of the greeting.
const LINE_MAX: usize = 1024;
/// Bytes of a message of the day.
const MOTD_MAX: u64 = 64 << 10;
/// What is taken of a client that was told that all is over.
const DRAIN_MAX: u64 = 16 << 20;
const DRAIN_PATIENCE: Duration = Duration::from_secs(5);
/// Who rsync is when nobody has said who to be.
const NOBODY: u32 = 65534;

/// Sets how long reads and writes may take.
type SetTimeout = dyn Fn(Option<Duration>) -> io::Result<()> + Send;

/// When the greeting is to be over: who sends a byte now and then is given no more time than who sends none.
type Deadline = Arc<Mutex<Option<Instant>>>;

/// A connection: both directions, and its timeout.
pub struct Link {
    reader: BufReader<Box<dyn Read + Send>>,
    writer: Box<dyn Write + Send>,
    set_timeout: Box<SetTimeout>,
    deadline: Deadline,
}

/// A socket that is read until a deadline.
struct Timed {
    stream: TcpStream,
    deadline: Deadline,
}

impl Read for Timed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Some(deadline) = *self.deadline.lock() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.stream.set_read_timeout(Some(left))?;
        }
        self.stream.read(buffer)
    }
}

impl Link {
    /// Over TCP.
    ///
    /// # Errors
    /// When the socket is broken.
    pub fn tcp(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        rustix::net::sockopt::set_socket_keepalive(&stream, true)?;
        let (writer, control) = (stream.try_clone()?, stream.try_clone()?);
        let set_timeout = Box::new(move |timeout| {
            control.set_read_timeout(timeout)?;
            control.set_write_timeout(timeout)
        });
        let deadline = Deadline::default();
        let reader: Box<dyn Read + Send> = Box::new(Timed { stream, deadline: deadline.clone() });
        Ok(Self { reader: BufReader::new(reader), writer: Box::new(writer), set_timeout, deadline })
    }

    /// Over anything, without a timeout.
    pub fn new(reader: impl Read + Send + 'static, writer: impl Write + Send + 'static) -> Self {
        let reader: Box<dyn Read + Send> = Box::new(reader);
        let set_timeout = Box::new(|_| Ok(()));
        Self {
            reader: BufReader::new(reader),
            writer: Box::new(writer),
            set_timeout,
            deadline: Deadline::default(),
        }
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        loop {
            match self.reader.read_u8()? {
                b'\n' => break,
                byte if line.len() < LINE_MAX => line.push(byte),
                _ => return Err(io::Error::new(io::ErrorKind::InvalidData, "a line too long")),
            }
        }
        let end = if line.ends_with(b"\r") { line.len() - 1 } else { line.len() };
        String::from_utf8(line[..end].to_vec())
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "a line that is no text"))
    }

    /// Takes what the client still sends: a connection closed before that may lose what the client was told last.
    fn drain(&mut self) {
        *self.deadline.lock() = Some(Instant::now() + DRAIN_PATIENCE);
        let is_patient = (self.set_timeout)(Some(DRAIN_PATIENCE)).is_ok();
        if is_patient && self.writer.flush().is_ok() {
            let _ = io::copy(&mut (&mut self.reader).take(DRAIN_MAX), &mut io::sink());
        }
    }

    fn say(&mut self, line: &str) -> io::Result<()> {
        self.writer.write_all(line.as_bytes())?;
        self.writer.write_all(b"\n")?;
        self.writer.flush()
    }
}

/// What the client said first.
struct Greeting {
    protocol: u8,
    digest: Option<AuthDigest>,
}

impl Greeting {
    /// From `@RSYNCD: 31.0 sha512 …`.
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.strip_prefix("@RSYNCD: ")?.split(' ').filter(|word| !word.is_empty());
        let version = words.next()?;
        let (major, minor) = version.split_once('.').unwrap_or((version, "0"));
        let major: u32 = major.parse().ok()?;
        // Version 31 of a test build is 30 to everybody else.
        let major =
            if minor == "0" || major > u32::from(PROTOCOL_MAX) { major } else { major.saturating_sub(1) };
        Some(Self {
            protocol: u8::try_from(major).unwrap_or(u8::MAX).min(PROTOCOL_MAX),
            digest: AuthDigest::choose(words),
        })
    }
}

impl Daemon {
    /// Serves one client.
    ///
    /// # Errors
    /// When the connection fails or the client breaks the rules; what can be told it was told.
    pub fn serve_link(&self, mut link: Link, peer: IpAddr) -> Result<()> {
        let result = self.greet(&mut link, peer);
        let Some(chosen) = result? else { return Ok(()) };
        let module = chosen.module;
        let Some(_counted) = self.enter(module) else {
            if module.is_disabled {
                link.say("@ERROR: module is disabled")?;
            } else {
                link.say(&format!(
                    "@ERROR: max connections ({}) reached -- try again later",
                    module.max_connections
                ))?;
            }
            return Ok(());
        };
        let served = self.serve_module(link, peer, &chosen);
        if let Err(error) = &served {
            self.say(format!("{peer}: module {}: {error}", module.name));
        }
        Ok(())
    }

    /// Up to a module that the client may read; `None` when there is nothing more to be done.
    fn greet<'d>(&'d self, link: &mut Link, peer: IpAddr) -> Result<Option<Chosen<'d>>> {
        (link.set_timeout)(Some(self.patience))?;
        *link.deadline.lock() = Some(Instant::now() + self.patience);
        link.say(&format!("@RSYNCD: {PROTOCOL_MAX}.0 {}", AuthDigest::names()))?;
        let Some(greeting) = Greeting::parse(&link.line()?) else {
            link.say("@ERROR: protocol startup error")?;
            return Ok(None);
        };
        if greeting.protocol < PROTOCOL_MIN {
            let message = format!(
                "@ERROR: protocol version mismatch -- {} is older than {PROTOCOL_MIN}, the oldest spoken here",
                greeting.protocol
            );
            link.say(&message)?;
            return Ok(None);
        }
        if let Some(motd) = self.config.motd_file.as_deref().and_then(read_motd) {
            link.writer.write_all(&motd)?;
        }
        let name = link.line()?;
        if name.is_empty() || name == "#list" {
            return self.list(link, peer).map(|()| None);
        }
        if name.starts_with('#') {
            link.say(&format!("@ERROR: Unknown command '{name}'"))?;
            return Ok(None);
        }
        let Some(module) = self.config.module(name.as_bytes()) else {
            self.say(format!("unknown module '{}' tried from {peer}", name.escape_default()));
            link.say(&format!("@ERROR: Unknown module '{name}'"))?;
            return Ok(None);
        };
        if !is_allowed(peer, module.hosts_allow.as_ref(), module.hosts_deny.as_ref()) {
            self.say(format!("rsync denied on module {name} from {peer}"));
            // Of what is not listed, nobody is told that it is there.
            let message = match module.list {
                true => format!("@ERROR: access denied to {name} from {peer} ({peer})"),
                false => format!("@ERROR: Unknown module '{name}'"),
            };
            link.say(&message)?;
            return Ok(None);
        }
        let mut user = String::new();
        if !module.auth_users.is_empty() {
            let challenge = auth::challenge()?;
            link.say(&format!("@RSYNCD: AUTHREQD {challenge}"))?;
            let answer = link.line()?;
            let digest = greeting.digest.ok_or("no digest in common".to_owned());
            match digest.and_then(|digest| auth::check(module, digest, &challenge, &answer)) {
                Ok(name) => user = name,
                Err(reason) => {
                    let who = answer.split(' ').next().unwrap_or_default().escape_default().to_string();
                    self.say(format!("auth failed on module {name} from {peer} for {who}: {reason}"));
                    link.say(&format!("@ERROR: auth failed on module {name}"))?;
                    return Ok(None);
                }
            }
        }
        Ok(Some(Chosen { module, user, protocol: greeting.protocol }))
    }

    fn list(&self, link: &mut Link, peer: IpAddr) -> Result<()> {
        self.say(format!("module-list request from {peer}"));
        for module in self.config.modules.iter().filter(|module| module.list) {
            if is_allowed(peer, module.hosts_allow.as_ref(), module.hosts_deny.as_ref()) {
                link.say(&format!("{:<15}\t{}", module.name, module.comment))?;
            }
        }
        Ok(link.say("@RSYNCD: EXIT")?)
    }

    fn serve_module(&self, mut link: Link, peer: IpAddr, chosen: &Chosen<'_>) -> Result<()> {
        let module = chosen.module;
        let source: Arc<dyn Source> = match self.open(module) {
            Ok(source) => source,
            Err(error) => {
                self.say(format!("module {}: {}: {error}", module.name, module.path));
                link.say(&format!("@ERROR: chdir failed: {} cannot be opened", module.name))?;
                return Ok(());
            }
        };
        link.say("@RSYNCD: OK")?;
        let args = read_args(&mut link.reader)?;
        let (mut options, failure) = Options::parse(&complete(args, &mut link.reader)?);
        let failure = failure.or_else(|| refusal(module, &options)).or_else(|| {
            let text = match (options.sender, options.remove_source_files) {
                (false, _) => "ERROR: module is read only",
                (true, true) => "ERROR: --remove-source-files cannot be used with a read-only module",
                (true, false) => return None,
            };
            Some(RsyncError::refused(ExitCode::Syntax, text))
        });
        *link.deadline.lock() = None;
        options.patterns = true;
        options.numeric_ids |= module.numeric_ids;
        options.ignore_errors |= module.ignore_errors;
        let timeout = match (module.timeout_seconds, options.timeout_seconds) {
            (0, 0) => None,
            (0, seconds) | (seconds, 0) => Some(seconds),
            (ours, theirs) => Some(ours.min(theirs)),
        };
        (link.set_timeout)(timeout.map(|seconds| Duration::from_secs(u64::from(seconds))))?;
        let paths: Vec<Vec<u8>> = options.paths.iter().map(|path| in_module(&module.name, path)).collect();
        let user = if chosen.user.is_empty() { String::new() } else { format!("{}@", chosen.user) };
        let shown = options.paths.iter().map(|path| String::from_utf8_lossy(path).into_owned());
        let shown = shown.collect::<Vec<_>>().join(" ");
        self.say(format!("rsync on {} from {user}{peer}", shown.escape_debug()));
        let context = LogContext {
            address: peer.to_string(),
            module: module.name.clone(),
            path: module.path.clone(),
            user: chosen.user.clone(),
        };
        let mut on_file = |entry: &crate::flist::Entry, sent: u64| {
            if module.transfer_logging {
                self.say(module.log_format.line(&context, entry, sent));
            }
        };
        let surroundings = Surroundings {
            view: View {
                source: source.as_ref(),
                hidden: &module.hidden,
                called: Called::Module(&module.name),
                munged: module.munge_symlinks,
            },
            names: if options.numeric_ids { crate::Names::default() } else { self.names.clone() },
            paths,
            timeout_seconds: module.timeout_seconds,
            seed: session::seed()?,
            on_file: &mut on_file,
        };
        let ends = (&mut link.reader, &mut link.writer);
        let summary = match session::serve(chosen.protocol, ends, (&options, failure), surroundings) {
            Ok(summary) => summary,
            Err(error) => {
                link.drain();
                return Err(error);
            }
        };
        self.say(format!(
            "sent {} bytes  received {} bytes  total size {}",
            summary.written, summary.read, summary.size
        ));
        Ok(())
    }

    /// Opens what a module serves, and becomes who it is to be read as: a thread serves one connection only.
    fn open(&self, module: &Module) -> std::result::Result<Arc<dyn Source>, String> {
        if !module.is_directory() {
            return self.datasets.open(&module.path);
        }
        let path = Path::new(&module.path);
        let source: Arc<dyn Source> = match (&module.index, module.real_files()) {
            (Some(file), _) => {
                let told = |error: &IndexError| {
                    self.say(format!("module {}: {error}; the index before is used", module.name));
                };
                let index = self.indexes.get(file, told).map_err(|error| error.to_string())?;
                Arc::new(IndexedSource::new(index, module.real_path.as_deref().unwrap_or(path)))
            }
            (None, Some(files)) => {
                Arc::new(AttributesSource::open(path, files).map_err(|error| error.to_string())?)
            }
            (None, None) => Arc::new(DirectorySource::open(path).map_err(|error| error.to_string())?),
        };
        self.become_user(module)?;
        Ok(source)
    }

    fn become_user(&self, module: &Module) -> std::result::Result<(), String> {
        if !rustix::process::geteuid().is_root() {
            return Ok(());
        }
        let uid = match &module.uid {
            Id::Default => self.names.uid("nobody").unwrap_or(NOBODY),
            Id::Named(name) => self.names.uid(name).ok_or_else(|| format!("Invalid uid {name}"))?,
        };
        let gids: Vec<u32> = match &module.gid {
            Id::Default => {
                vec![self.names.gid("nobody").or_else(|| self.names.gid("nogroup")).unwrap_or(NOBODY)]
            }
            Id::Named(names) => names
                .split([' ', ',', '\t'])
                .filter(|name| !name.is_empty())
                .map(|name| self.names.gid(name).ok_or_else(|| format!("Invalid gid {name}")))
                .collect::<std::result::Result<_, _>>()?,
        };
        if uid == 0 && gids == [0] {
            return Ok(());
        }
        let gids: Vec<Gid> = gids.into_iter().map(Gid::from_raw).collect();
        let gid = gids.first().copied().ok_or("gid names no group")?;
        let uid = Uid::from_raw(uid);
        let switch = || -> rustix::io::Result<()> {
            rustix::thread::set_thread_groups(&gids)?;
            rustix::thread::set_thread_res_gid(gid, gid, gid)?;
            rustix::thread::set_thread_res_uid(uid, uid, uid)
        };
        switch().map_err(|error| format!("cannot become another user: {error}"))
    }
}

/// A module that the client may read.
struct Chosen<'d> {
    module: &'d Module,
    /// Who logged in.
    user: String,
    protocol: u8,
}

fn read_motd(path: &Path) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    std::fs::File::open(path).ok()?.take(MOTD_MAX).read_to_end(&mut text).ok()?;
    Some(text)
}

/// The path in the module: names begin with the module's. Backslashes protect characters from a shell that there is none of.
fn in_module(module: &str, path: &[u8]) -> Vec<u8> {
    match path.strip_prefix(module.as_bytes()) {
        Some([]) => Vec::new(),
        Some([b'/', rest @ ..]) => rest.to_vec(),
        _ => path.to_vec(),
    }
}

/// `refuse options`: names, letters and wildcards; "!" before one takes it out again.
fn refusal(module: &Module, options: &Options) -> Option<RsyncError> {
    let is_refused = |name: &str| {
        let long = long_name(name);
        let is_like =
            |pattern: &str| [name, long].iter().any(|name| matches(pattern.as_bytes(), name.as_bytes()));
        module.refuse_options.iter().fold(false, |refused, pattern| match pattern.strip_prefix('!') {
            Some(pattern) => refused && !is_like(pattern),
            None => refused || is_like(pattern),
        })
    };
    // What a server is told in any case is no choice of the client's.
    let is_free = |name: &str| matches!(name, "server" | "sender" | "e");
    let name = options.given.iter().find(|name| !is_free(name) && is_refused(name))?;
    let shown = if name.len() == 1 { format!("-{name}") } else { format!("--{name}") };
    Some(RsyncError::refused(ExitCode::Unsupported, format!("The server is configured to refuse {shown}")))
}

fn long_name(letter: &str) -> &str {
    match letter {
        "c" => "checksum",
        "z" => "compress",
        "H" => "hard-links",
        "A" => "acls",
        "X" => "xattrs",
        "R" => "relative",
        "L" => "copy-links",
        "r" => "recursive",
        "l" => "links",
        "p" => "perms",
        "t" => "times",
        "o" => "owner",
        "g" => "group",
        "D" => "devices",
        "n" => "dry-run",
        "x" => "one-file-system",
        "C" => "cvs-exclude",
        "m" => "prune-empty-dirs",
        "U" => "atimes",
        "d" => "dirs",
        "s" => "secluded-args",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greetings_tell_the_version() {
        let protocol = |line: &str| Greeting::parse(line).map(|greeting| greeting.protocol);
        assert_eq!(protocol("@RSYNCD: 0.1"), Some(0));
        assert_eq!(protocol("@RSYNCD: 31.0 sha512 md5"), Some(31));
        assert_eq!(protocol("@RSYNCD: 31.14 md5"), Some(30));
        assert_eq!(protocol("@RSYNCD: 99.0"), Some(PROTOCOL_MAX));
        assert_eq!(protocol("@RSYNCD: 29"), Some(29));
        assert_eq!(protocol("GET / HTTP/1.0"), None);
        assert_eq!(protocol("@RSYNCD: x"), None);
    }

    #[test]
    fn paths_begin_with_the_module() {
        assert_eq!(in_module("m", b"m/a/b"), b"a/b");
        assert_eq!(in_module("m", b"m"), b"");
        assert_eq!(in_module("m", b"mm/a"), b"mm/a");
    }
}
