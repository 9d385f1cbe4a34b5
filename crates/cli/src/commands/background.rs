//! Processes that stay in the background.
//!
//! A command starts this program again as a detached process. It ends when the new process reports on its standard
//! output that it is ready. All output before this is passed on.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufWriter, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use rustix::termios::isatty;
use snowmelt_pool::memory;

use crate::app::App;
use crate::budget;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::pools::Session;

/// The last byte that a detached process writes, when it is ready; the second if some of its work failed.
const READY: u8 = 0;
const READY_BUT: u8 = 1;
/// Its name in lists of processes.
const OWN_NAME: &str = "snowmelt";
/// Longest output of a detached process that is passed on.
const OUTPUT_MAX: usize = 1 << 20;
/// How often it is looked whether the command should end.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// Starts this program with these words, and waits until it is ready or ends.
///
/// # Errors
/// When it cannot be started, or was killed.
pub fn start(app: &mut App<'_>, words: &[OsString]) -> Result<Exit> {
    let failed = |error: std::io::Error| CliError::failed("cannot start the background process", &error);
    // The key of an encrypted pool may have to be asked for.
    let stdin = match isatty(&app.context.stdin) {
        true => app.context.stdin.try_clone()?.into(),
        false => Stdio::null(),
    };
    let mut child = Command::new("/proc/self/exe")
        .arg0(OWN_NAME)
        .envs(memory::limited_to().map(|limit| (budget::VARIABLE, limit.to_string())))
        .args(words)
        .current_dir(app.context.cwd())
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(app.context.err.try_clone()?)
        .spawn()
        .map_err(failed)?;
    let mut output = Vec::new();
    let mut ready = None;
    if let Some(mut stdout) = child.stdout.take() {
        // It may be handed over to another process, and keep its end open: so the byte counts, not the end.
        while let Some(byte) = next(app, &child, &mut stdout).map_err(failed)? {
            match byte {
                READY | READY_BUT => {
                    ready = Some(Exit::unless(byte == READY_BUT));
                    break;
                }
                byte if output.len() < OUTPUT_MAX => output.push(byte),
                _ => break,
            }
        }
    }
    app.context.out.write_all(&output)?;
    if let Some(exit) = ready {
        return Ok(exit);
    }
    let status = child.wait().map_err(failed)?;
    match status.code().and_then(|code| u8::try_from(code).ok()) {
        Some(code) => Ok(Exit::of(code)),
        None => Err(CliError::Failed(format!("the background process was killed: {status}"))),
    }
}

/// The next byte that a detached process writes. The terminal's signals reach us alone, so they are passed on.
fn next(app: &App<'_>, child: &Child, output: &mut ChildStdout) -> std::io::Result<Option<u8>> {
    let mut is_told = false;
    loop {
        let mut fds = [PollFd::from_borrowed_fd(output.as_fd(), PollFlags::IN)];
        match poll(&mut fds, Some(&LOOK)) {
            Ok(0) | Err(Errno::INTR) => {
                if app.context.is_cancelled() && !is_told {
                    // It may have ended meanwhile.
                    let _ = kill_process(Pid::from_child(child), Signal::TERM);
                    is_told = true;
                }
            }
            Ok(_) => {
                let mut byte = [0];
                return Ok((output.read(&mut byte)? > 0).then_some(byte[0]));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// The terminal's signals are not for this process any more. It fails where the session is ours already.
pub fn leave_terminal() {
    let _ = rustix::process::setsid();
}

/// Reports to the process that started this one that it is ready, and whether some of its work failed. Then closes
/// the files of that process. The next command finds this process serving.
///
/// # Errors
/// When the process that waits for the report has ended.
pub fn ready(app: &mut App<'_>, session: &Session, failed: bool) -> Result<()> {
    session.serve_now();
    ready_alone(app, failed)
}

/// The same for work that is continued after the owner of the pool had to leave it. The process that waited for the
/// report has had it from that owner, and has ended.
///
/// # Errors
/// When the report cannot be written for another reason.
pub fn ready_or_continued(app: &mut App<'_>, session: &Session) -> Result<()> {
    match ready(app, session, false) {
        Err(CliError::Output(error)) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

/// The same for a process that may have no pool.
///
/// # Errors
/// When the process that waits for the report has ended.
pub fn ready_alone(app: &mut App<'_>, failed: bool) -> Result<()> {
    let own = null()?;
    ready_with(app, failed, &own)
}

/// Standard input and output of a process without any.
///
/// # Errors
/// When it cannot be opened.
pub fn null() -> std::io::Result<File> {
    File::options().read(true).write(true).open("/dev/null")
}

/// The same for a process that can no longer open `/dev/null`, but has it open.
///
/// # Errors
/// When the process that waits for the report has ended.
pub fn ready_with(app: &mut App<'_>, failed: bool, own: &File) -> Result<()> {
    let report = [if failed { READY_BUT } else { READY }];
    let reported = app.context.out.write_all(&report).and_then(|()| app.context.out.flush());
    let (stdin, out, err) = (own.try_clone()?, own.try_clone()?, own.try_clone()?);
    app.context.stdin = stdin;
    app.context.out = BufWriter::new(out);
    app.context.err = err;
    app.places.tell_nobody();
    if app.is_served() {
        // The files of this process are another command's.
        return Ok(reported?);
    }
    let replaced = rustix::stdio::dup2_stdin(own)
        .and_then(|()| rustix::stdio::dup2_stdout(own))
        .and_then(|()| rustix::stdio::dup2_stderr(own));
    replaced.map_err(std::io::Error::from)?;
    // No other filesystem is kept busy by this process.
    let _ = std::env::set_current_dir("/");
    Ok(reported?)
}
