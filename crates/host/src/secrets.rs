//! Reading keys: from files, from commands, from the user at the terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    DumpableBehavior, Pid, Resource, Rlimit, Signal, kill_process_group, set_dumpable_behavior, setrlimit,
};
use rustix::termios::{LocalModes, OptionalActions, Termios, isatty, tcgetattr, tcsetattr};
use snowmelt_dataset::text::visible_message;
use zeroize::Zeroizing;

use crate::context::Context;
use crate::error::{CliError, Result};

/// Longest key material that is read, in bytes; ZFS's longest passphrase has 512.
const MAX_MATERIAL: usize = 64 * 1024;
/// Interval of the check for an interrupt while the terminal waits for input.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
/// Time limit for a command that prints a key. It can ask the user.
const COMMAND_MAX: Duration = Duration::from_secs(120);
/// Pause before it is looked again whether it has ended.
const PAUSE: Duration = Duration::from_millis(10);

/// Reads everything. The buffer never grows, so that no copy of a key is left behind.
///
/// # Errors
/// When it cannot be read.
pub fn material(file: File) -> std::io::Result<Zeroizing<Vec<u8>>> {
    let mut material = Zeroizing::new(Vec::with_capacity(MAX_MATERIAL));
    let mut chunk = Zeroizing::new([0; 4096]);
    let mut source = file.take(MAX_MATERIAL as u64);
    loop {
        match source.read(chunk.as_mut())? {
            0 => return Ok(material),
            n => material.extend_from_slice(chunk.get(..n).unwrap_or_default()),
        }
    }
}

/// Prepares this process for keys in memory: from now on its memory is in no core dump, and other processes of the
/// same user cannot read it.
pub fn protect_process() {
    // Where the system forbids it the keys are as safe as they were.
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    let _ = setrlimit(Resource::Core, none);
}

/// Warns of a key file that others than its owner can read or write, where ssh would refuse it.
pub fn warn_of_readers(context: &Context, path: &Path, file: &File) {
    let Ok(found) = file.metadata() else { return };
    if found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o077 != 0 {
        let (mode, path) = (found.mode() & 0o777, path.display());
        let _ = writeln!(
            &context.err,
            "warning: other users can read or change the key file {path} (mode {mode:04o}): use 'chmod 600 {path}'"
        );
    }
}

/// A terminal that does not show what is typed. Its mode is restored on drop.
struct Hidden<'a> {
    terminal: &'a File,
    before: Termios,
}

impl<'a> Hidden<'a> {
    fn new(terminal: &'a File) -> std::io::Result<Self> {
        let before = tcgetattr(terminal)?;
        let mut hidden = before.clone();
        hidden.local_modes -= LocalModes::ECHO | LocalModes::ECHOE | LocalModes::ECHOK | LocalModes::ECHONL;
        tcsetattr(terminal, OptionalActions::Flush, &hidden)?;
        Ok(Self { terminal, before })
    }
}

impl Drop for Hidden<'_> {
    fn drop(&mut self) {
        // There is nothing to be done if the terminal has gone.
        let _ = tcsetattr(self.terminal, OptionalActions::Flush, &self.before);
    }
}

/// A terminal with a user who can be asked.
pub struct Terminal {
    file: File,
    /// It is not standard input, so standard error may be elsewhere too.
    is_other: bool,
}

impl Terminal {
    /// Standard input, if that is one, else the one that this process was started from.
    pub fn of(context: &Context) -> Option<Self> {
        match isatty(&context.stdin) {
            true => Some(Self { file: context.stdin.try_clone().ok()?, is_other: false }),
            false => {
                let file = File::options().read(true).write(true).open("/dev/tty").ok()?;
                Some(Self { file, is_other: true })
            }
        }
    }

    fn say(&self, context: &Context, text: &str) {
        let text = visible_message(text);
        // Standard output is for data. Without a prompt, the user cannot answer.
        let _ = match self.is_other {
            true => (&self.file).write_all(text.as_bytes()),
            false => (&context.err).write_all(text.as_bytes()),
        };
    }

    /// Asks for a line that is not shown.
    ///
    /// # Errors
    /// When the terminal is gone, or the command should end.
    pub fn ask(&self, context: &Context, question: &str) -> Result<Zeroizing<Vec<u8>>> {
        let hidden = Hidden::new(&self.file);
        self.say(context, question);
        let typed = hidden.and_then(|hidden| line(context, hidden.terminal));
        self.say(context, "\n");
        match typed {
            Ok(Some(typed)) => Ok(typed),
            Ok(None) => Err(CliError::Failed("interrupted".to_owned())),
            Err(error) => Err(CliError::failed("cannot read the key from the terminal", &error)),
        }
    }
}

/// A line from a terminal, or nothing if the command should end.
fn line(context: &Context, mut terminal: &File) -> std::io::Result<Option<Zeroizing<Vec<u8>>>> {
    let mut line = Zeroizing::new(Vec::with_capacity(MAX_MATERIAL));
    let mut byte = Zeroizing::new([0]);
    while line.len() < MAX_MATERIAL {
        if context.is_cancelled() {
            return Ok(None);
        }
        let mut fds = [PollFd::from_borrowed_fd(terminal.as_fd(), PollFlags::IN)];
        match poll(&mut fds, Some(&LOOK)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        if terminal.read(byte.as_mut())? == 0 || byte[0] == b'\n' {
            break;
        }
        line.push(byte[0]);
    }
    Ok(Some(line))
}

/// The output of a shell command. It always runs in the root directory.
///
/// # Errors
/// When it fails, or takes too long; it is killed then.
pub fn of_command(context: &Context, command: &str) -> Result<Zeroizing<Vec<u8>>> {
    let failed =
        |error: &std::io::Error| CliError::failed("cannot run the command that prints the key", error);
    let err = context.err.try_clone().map_err(|error| failed(&error))?;
    // Whatever asks at a terminal must stay in our group, and the terminal's signals reach it there. Elsewhere it is a
    // group of its own, to be ended with all that it started.
    let is_group = Terminal::of(context).is_none();
    let mut shell = Command::new("/bin/sh");
    if is_group {
        shell.process_group(0);
    }
    let mut child = shell
        .args(["-c", command])
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(err)
        .spawn()
        .map_err(|error| failed(&error))?;
    let deadline = Instant::now() + COMMAND_MAX;
    let printed = printed(context, &mut child, deadline);
    let ended = printed.and_then(|printed| Ok((printed, ended(context, &mut child, deadline)?)));
    if !matches!(ended, Ok((_, Some(_)))) {
        // It may have ended by itself meanwhile.
        let _ = match is_group {
            true => kill_process_group(Pid::from_child(&child), Signal::KILL).map_err(Into::into),
            false => child.kill(),
        };
        let _ = child.wait();
    }
    match ended.map_err(|error| failed(&error))? {
        (printed, Some(status)) if status.success() => Ok(printed),
        (_, Some(status)) => {
            Err(CliError::Failed(format!("the command that prints the key failed ({status})")))
        }
        (_, None) if context.is_cancelled() => Err(CliError::Failed("interrupted".to_owned())),
        (_, None) => Err(CliError::Failed(format!(
            "the command that prints the key took longer than {} seconds",
            COMMAND_MAX.as_secs()
        ))),
    }
}

/// The output of a command until it ends, closes its output, or until `deadline`. A background process of the command
/// can keep the output open.
fn printed(context: &Context, child: &mut Child, deadline: Instant) -> std::io::Result<Zeroizing<Vec<u8>>> {
    let mut material = Zeroizing::new(Vec::with_capacity(MAX_MATERIAL));
    let mut chunk = Zeroizing::new([0; 4096]);
    let Some(mut pipe) = child.stdout.take() else { return Ok(material) };
    while !context.is_cancelled() && Instant::now() < deadline {
        // Checked before the read, so that everything that the command printed before its end is read.
        let has_ended = child.try_wait()?.is_some();
        let mut fds = [PollFd::from_borrowed_fd(pipe.as_fd(), PollFlags::IN)];
        match poll(&mut fds, Some(&LOOK)) {
            Ok(0) if has_ended => break,
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        match pipe.read(chunk.as_mut())? {
            0 => break,
            n if material.len() + n > MAX_MATERIAL => {
                return Err(std::io::Error::other("its output is too long for a key"));
            }
            n => material.extend_from_slice(chunk.get(..n).unwrap_or_default()),
        }
    }
    Ok(material)
}

/// How a command ended; `None` if it runs for too long, or this process was interrupted.
fn ended(context: &Context, child: &mut Child, deadline: Instant) -> std::io::Result<Option<ExitStatus>> {
    loop {
        let status = child.try_wait()?;
        if status.is_some() || context.is_cancelled() || Instant::now() >= deadline {
            return Ok(status);
        }
        std::thread::sleep(PAUSE);
    }
}
