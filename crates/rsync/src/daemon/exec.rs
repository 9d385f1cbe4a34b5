//! Commands around a transfer (`early exec`, `pre-xfer exec`, `post-xfer exec`). They run as the user of the daemon.

use std::io::{self, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::shell;
pub(crate) use crate::shell::Variables;

/// The longest time that a client waits for a command.
pub const PATIENCE: Duration = Duration::from_secs(300);
/// The most bytes of a command's output that are kept.
const OUTPUT_MAX: u64 = 4096;
const TICK: Duration = Duration::from_millis(10);
/// The longest wait for the rest of the output after a command ended. A process that it started may keep the pipe open.
const OUTPUT_PATIENCE: Duration = Duration::from_millis(500);

/// The result of a command.
#[derive(Debug)]
pub struct Ended {
    /// The exit status. `None` if the command was killed because it took too long.
    pub status: Option<ExitStatus>,
    /// The beginning of its standard output.
    pub out: String,
    /// The beginning of its standard error.
    pub err: String,
}

impl Ended {
    pub fn is_success(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }

    /// The status as wait(2) returns it, or -1.
    pub fn raw_status(&self) -> i32 {
        self.status.map_or(-1, ExitStatus::into_raw)
    }
}

/// Reads all of an output, and keeps its beginning.
struct Output {
    text: Arc<Mutex<Vec<u8>>>,
    is_over: Receiver<()>,
}

impl Output {
    fn of(from: Option<impl Read + Send + 'static>) -> Self {
        let text = Arc::new(Mutex::new(Vec::new()));
        let (tell, is_over) = mpsc::channel();
        let kept = text.clone();
        if let Some(mut from) = from {
            std::thread::spawn(move || {
                let mut buffer = [0; OUTPUT_MAX as usize];
                while let Ok(len) = from.read(&mut buffer) {
                    if len == 0 {
                        break;
                    }
                    let mut kept = kept.lock();
                    let room = buffer.len() - kept.len();
                    kept.extend_from_slice(&buffer[..len.min(room)]);
                }
                // The receiver may be gone.
                let _ = tell.send(());
            });
        }
        Self { text, is_over }
    }

    fn text(self) -> String {
        let _ = self.is_over.recv_timeout(OUTPUT_PATIENCE);
        String::from_utf8_lossy(&self.text.lock()).replace("\r\n", "\n")
    }
}

/// Runs a command with the shell (`$RSYNC_SHELL`, or `/bin/sh`). `input`, a few KiB at most, is its standard input.
/// Without `patience` there is no time limit.
///
/// # Errors
/// When it cannot be run.
pub fn run(
    command: &str,
    variables: &Variables,
    input: &[u8],
    patience: Option<Duration>,
) -> io::Result<Ended> {
    let mut child = shell::command(command, variables).stderr(Stdio::piped()).spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        // The command need not read its input. A pipe has room for all of it.
        let _ = stdin.write_all(input);
    }
    let (out, err) = (Output::of(child.stdout.take()), Output::of(child.stderr.take()));
    let status = wait(&mut child, patience)?;
    Ok(Ended { status, out: out.text(), err: err.text() })
}

fn wait(child: &mut Child, patience: Option<Duration>) -> io::Result<Option<ExitStatus>> {
    let Some(patience) = patience else { return child.wait().map(Some) };
    let begun = Instant::now();
    while begun.elapsed() < patience {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        std::thread::sleep(TICK);
    }
    // The processes that the command started are killed too.
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        kill_process_group(group, Signal::KILL)?;
    }
    child.wait().map(|_| None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_bounded() {
        let variables = vec![("RSYNC_MODULE_NAME".to_owned(), "m".into())];
        let ended =
            run("cat; echo \" $RSYNC_MODULE_NAME\"; echo no >&2; exit 3", &variables, b"in", Some(PATIENCE));
        let ended = ended.unwrap();
        assert_eq!((ended.out.as_str(), ended.err.as_str(), ended.raw_status()), ("in m\n", "no\n", 3 << 8));
        let ended = run("sleep 60", &variables, b"", Some(Duration::from_millis(50))).unwrap();
        assert!(!ended.is_success() && ended.raw_status() == -1);
        // A command with much output ends, and so does one that leaves a process behind.
        let ended = run("head -c 1000000 /dev/zero | tr '\\0' x", &variables, b"", None).unwrap();
        assert!(ended.is_success() && ended.out.len() == OUTPUT_MAX as usize);
        let begun = Instant::now();
        assert!(run("sleep 5 & echo", &variables, b"", None).unwrap().is_success());
        assert!(begun.elapsed() < Duration::from_secs(4));
    }
}
