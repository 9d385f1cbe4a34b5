//! The context of a command: its files, directory, environment and arguments.
//!
//! A command never uses the process's own standard files, directory or environment, since the owner of a pool runs
//! commands for other processes, with the files that those handed over.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use jiff::tz::TimeZone;
use rustix::io::Errno;
use snowmelt_dataset::property::TextStyle;

use crate::journal::{self, Level, ServerLog};
use crate::key_source::KnownKeys;
use crate::lines::{Heard, PassOn};
use crate::program::Program;

/// Variables of the environment that commands read. When the owner of a pool executes a command, the caller passes all
/// of them except [`PROCESS_VARIABLES`].
pub const VARIABLES: &[&str] = &[
    "POSIXLY_CORRECT",
    "COLUMNS",
    "HOME",
    "JOURNAL_STREAM",
    "LANG",
    "NOTIFY_SOCKET",
    "RSYNC_PASSWORD",
    "RUNTIME_DIRECTORY",
    "CVSIGNORE",
    "SSH_CLIENT",
    "SSH_CONNECTION",
    "SNOWMELT_AUTOMOUNT",
    "SNOWMELT_POOLS",
    "TZ",
    "USER",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_RUNTIME_DIR",
    "XDG_STATE_HOME",
    "ZFS_COLOR",
];

/// Variables about a process itself, set by systemd. They are not passed to another process.
pub const PROCESS_VARIABLES: &[&str] = &["JOURNAL_STREAM", "NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC"];

/// Bytes of output that are collected before they are written.
const OUTPUT_BUFFER: usize = 64 * 1024;

/// A command's surroundings.
pub struct Context {
    /// The words after the program's name; first of them `zfs` or `zpool` if it is called so.
    pub args: Vec<OsString>,
    /// Standard input.
    pub stdin: File,
    /// Standard output, buffered; flushed when the command ends.
    pub out: BufWriter<File>,
    /// Standard error.
    pub err: File,
    /// Where relative paths begin.
    cwd: PathBuf,
    env: Vec<(OsString, OsString)>,
    /// Set when the command should end as soon as it can: it was interrupted, or the process it is run for has gone.
    pub cancelled: Arc<AtomicBool>,
    /// Keys of pools, so that each is asked for only once.
    pub keys: KnownKeys,
    /// What programs that connect to other machines have said already.
    heard: Heard,
    /// The standard files are copies of this process's own.
    is_of_process: bool,
}

/// The parts of a [`Context`].
pub struct Surroundings {
    /// The words after the program's name.
    pub args: Vec<OsString>,
    /// Standard input.
    pub stdin: OwnedFd,
    /// Standard output.
    pub stdout: OwnedFd,
    /// Standard error.
    pub stderr: OwnedFd,
    /// The working directory.
    pub cwd: PathBuf,
    /// Variables of the environment.
    pub env: Vec<(OsString, OsString)>,
    /// Becomes true when the command should end.
    pub cancelled: Arc<AtomicBool>,
    /// Keys that are known already.
    pub keys: KnownKeys,
}

impl Context {
    /// Of these parts.
    pub fn new(parts: Surroundings) -> Self {
        Self {
            args: parts.args,
            stdin: parts.stdin.into(),
            out: BufWriter::with_capacity(OUTPUT_BUFFER, parts.stdout.into()),
            err: parts.stderr.into(),
            cwd: parts.cwd,
            env: parts.env,
            cancelled: parts.cancelled,
            keys: parts.keys,
            heard: Heard::default(),
            is_of_process: false,
        }
    }

    /// Of this process.
    ///
    /// # Errors
    /// When a standard file is closed or the working directory is gone.
    pub fn of_process(cancelled: Arc<AtomicBool>) -> std::io::Result<Self> {
        let env = VARIABLES
            .iter()
            .filter_map(|name| Some((OsString::from(name), std::env::var_os(name)?)))
            .collect();
        let copy = |fd: Result<OwnedFd, Errno>| fd.or_else(|_| null());
        let context = Self::new(Surroundings {
            args: Program::words(std::env::args_os()),
            stdin: copy(rustix::io::fcntl_dupfd_cloexec(std::io::stdin(), 3))?,
            stdout: copy(rustix::io::fcntl_dupfd_cloexec(std::io::stdout(), 3))?,
            stderr: copy(rustix::io::fcntl_dupfd_cloexec(std::io::stderr(), 3))?,
            cwd: std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/")),
            env,
            cancelled,
            keys: KnownKeys::default(),
        });
        Ok(Self { is_of_process: true, ..context })
    }

    /// Closes standard input and output. So the programs at the other ends see the end of the stream, while this
    /// process continues. Later writes to standard output are lost.
    ///
    /// # Errors
    /// When the rest of the output cannot be written.
    pub fn hang_up(&mut self) -> std::io::Result<()> {
        let flushed = self.out.flush();
        let null = null()?;
        if self.is_of_process {
            rustix::stdio::dup2_stdin(&null)?;
            rustix::stdio::dup2_stdout(&null)?;
        }
        self.stdin = null.try_clone()?.into();
        self.out = BufWriter::with_capacity(OUTPUT_BUFFER, null.into());
        flushed
    }

    /// A variable of the environment, if it is set and not empty.
    pub fn env(&self, name: &str) -> Option<&OsStr> {
        let (_, value) = self.env.iter().find(|(known, _)| known == name)?;
        Some(value.as_os_str()).filter(|value| !value.is_empty())
    }

    /// The whole environment that is passed on with a command.
    pub fn environment(&self) -> &[(OsString, OsString)] {
        &self.env
    }

    /// The working directory.
    pub fn cwd(&self) -> &Path {
        &self.cwd
    }

    /// A path relative to the working directory. The address of an object store does not change.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        if snowmelt_store::is_url(path) { path.to_owned() } else { self.cwd.join(path) }
    }

    /// Prints an error, or a text that begins with "warning:", on standard error. A failure to print is ignored.
    pub fn complain(&mut self, message: impl Display) {
        let text = message.to_string();
        self.log(Level::of_complaint(&text), &text);
    }

    /// Prints a text on standard error. If standard error is the journal, the text gets its priority. Control
    /// characters are removed, because names and reasons in it can come from strangers.
    pub fn log(&mut self, level: Level, text: &str) {
        // Earlier output stays before later output.
        let _ = self.out.flush();
        let _ = journal::write(&self.err, self.is_journal_err(), level, &self.spoken(text));
    }

    /// Whether standard error is systemd's journal.
    pub fn is_journal_err(&self) -> bool {
        let stream = self.env("JOURNAL_STREAM");
        stream.is_some() && journal::is_journal(&self.err, stream)
    }

    /// How lines of other programs are passed on to standard error.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn pass_on(&self, level: Level, prefix: String) -> std::io::Result<PassOn> {
        let (err, is_journal) = (self.err.try_clone()?, self.is_journal_err());
        Ok(PassOn { err, is_journal, level, prefix, heard: None })
    }

    /// The same for a program that connects to another machine, and may be started again: lines come once.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn pass_on_once(&self) -> std::io::Result<PassOn> {
        Ok(PassOn { heard: Some(self.heard.clone()), ..self.pass_on(Level::Warning, String::new())? })
    }

    /// Standard error as the log of a server.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn server_log(&self, least: Level) -> std::io::Result<ServerLog> {
        Ok(ServerLog::new(self.err.try_clone()?, self.is_journal_err(), least))
    }

    /// A message whose quoted commands are those of the program that was called.
    pub fn spoken<'a>(&self, message: &'a str) -> Cow<'a, str> {
        Program::of(&self.args).0.spoken(message)
    }

    /// Whether standard output is a terminal.
    pub fn is_terminal_out(&self) -> bool {
        rustix::termios::isatty(self.out.get_ref())
    }

    /// Whether standard error is a terminal.
    pub fn is_terminal_err(&self) -> bool {
        rustix::termios::isatty(self.err.as_fd())
    }

    /// Width of the terminal, or the value of COLUMNS.
    pub fn columns(&self) -> Option<usize> {
        let asked = self.env("COLUMNS").and_then(OsStr::to_str).and_then(|text| text.parse().ok());
        asked.or_else(|| {
            rustix::termios::tcgetwinsize(self.out.get_ref()).ok().map(|size| usize::from(size.ws_col))
        })
    }

    /// Whether the command should end.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// The time zone of the reader of the output.
    pub fn time_zone(&self) -> TimeZone {
        match self.env("TZ").and_then(OsStr::to_str) {
            Some(name) => TimeZone::get(name.trim_start_matches(':'))
                .or_else(|_| TimeZone::posix(name))
                .unwrap_or(TimeZone::UTC),
            None => TimeZone::system(),
        }
    }

    /// Runs `use_style` with the style for values that `parsable` asks for.
    pub fn with_style<T>(&self, parsable: bool, use_style: impl FnOnce(&TextStyle<'_>) -> T) -> T {
        let zone = self.time_zone();
        let utc_offset = move |seconds: i64| {
            jiff::Timestamp::from_second(seconds).map_or(0, |time| zone.to_offset(time).seconds())
        };
        use_style(&TextStyle { parsable, utc_offset: &utc_offset })
    }
}

fn null() -> std::io::Result<OwnedFd> {
    Ok(File::options().read(true).write(true).open("/dev/null")?.into())
}
