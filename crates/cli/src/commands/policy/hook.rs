//! Commands of others, before and after.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::lines::{PassOn, Passing};
use rustix::process::{Pid, Signal, kill_process_group};

/// How soon the end of a command is seen.
const TICK: Duration = Duration::from_millis(20);
/// How long a command that was asked to end may take for that.
const GRACE: Duration = Duration::from_secs(2);

/// A command, and how it is run.
pub(super) struct Hook<'a> {
    /// Its name in messages.
    pub(super) name: &'a str,
    /// For a shell.
    pub(super) command: &'a str,
    /// Variables besides those of this process.
    pub(super) variables: Vec<(String, String)>,
    /// Seconds; 0 for any time.
    pub(super) timeout: u64,
    /// Ends it when it becomes true.
    pub(super) cancelled: Option<&'a AtomicBool>,
    /// Where its output goes, line by line.
    pub(super) output: Option<PassOn>,
    /// Called while it runs.
    pub(super) alive: &'a dyn Fn(),
}

impl Hook<'_> {
    /// Runs it to its end.
    ///
    /// # Errors
    /// Why it did not succeed.
    pub(super) fn run(self) -> Result<(), String> {
        let name = self.name;
        let failed = |error| format!("{name} '{}' could not be run: {error}", self.command);
        let (reader, writer) = std::io::pipe().map_err(failed)?;
        let copy = writer.try_clone().map_err(failed)?;
        let mut child = Command::new("/bin/sh")
            .arg("-c")
            .arg(self.command)
            .envs(self.variables)
            .stdin(Stdio::null())
            .stdout(copy)
            .stderr(writer)
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let passing = match self.output {
            Some(output) => Some(output.begin(reader).map_err(failed)?),
            None => None,
        };
        let begun = Instant::now();
        let limit = (self.timeout > 0).then(|| Duration::from_secs(self.timeout));
        loop {
            match child.try_wait() {
                Ok(Some(status)) => {
                    passing.into_iter().for_each(Passing::settle);
                    return judged(name, self.command, status);
                }
                Ok(None) => {}
                Err(error) => {
                    return Err(format!("{name} '{}' could not be waited for: {error}", self.command));
                }
            }
            if limit.is_some_and(|limit| begun.elapsed() >= limit) {
                end(&mut child);
                return Err(format!("{name} '{}' did not finish within {} s", self.command, self.timeout));
            }
            if self.cancelled.is_some_and(|cancelled| cancelled.load(Ordering::Relaxed)) {
                end(&mut child);
                return Err(format!("{name} '{}' was interrupted", self.command));
            }
            (self.alive)();
            std::thread::sleep(TICK);
        }
    }
}

fn judged(name: &str, command: &str, status: ExitStatus) -> Result<(), String> {
    match (status.code(), status.signal()) {
        (Some(0), _) => Ok(()),
        (Some(code), _) => Err(format!("{name} '{command}' failed with status {code}")),
        (None, signal) => Err(format!("{name} '{command}' was ended by signal {}", signal.unwrap_or(0))),
    }
}

/// Ends a command with all that it has begun: politely, and then not.
fn end(child: &mut Child) {
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let signal = |signal| group.map(|group| kill_process_group(group, signal));
    signal(Signal::TERM);
    let begun = Instant::now();
    while begun.elapsed() < GRACE && matches!(child.try_wait(), Ok(None)) {
        std::thread::sleep(TICK);
    }
    signal(Signal::KILL);
    // It has been killed: this does not take long.
    let _ = child.wait();
}

/// A name and value as sanoid has it, and under our own name.
pub(super) fn both(name: &str, value: impl Into<String>) -> [(String, String); 2] {
    let value = value.into();
    [(format!("SANOID_{name}"), value.clone()), (format!("SNOWMELT_{name}"), value)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(command: &str, timeout: u64, cancelled: bool) -> Result<(), String> {
        let cancelled = AtomicBool::new(cancelled);
        let variables = both("SCRIPT", "pre").to_vec();
        let (name, cancelled) = ("hook", Some(&cancelled));
        Hook { name, command, variables, timeout, cancelled, output: None, alive: &|| {} }.run()
    }

    #[test]
    fn what_becomes_of_commands() {
        assert_eq!(run("exit 0", 5, false), Ok(()));
        assert_eq!(run("[ $SANOID_SCRIPT$SNOWMELT_SCRIPT = prepre ]", 5, false), Ok(()));
        assert_eq!(run("exit 3", 5, false), Err("hook 'exit 3' failed with status 3".to_owned()));
        assert_eq!(run("kill -9 $$", 5, false), Err("hook 'kill -9 $$' was ended by signal 9".to_owned()));
    }

    #[test]
    fn commands_end_with_all_they_began() {
        let begun = Instant::now();
        let said = run("sleep 300 & sleep 300", 1, false).unwrap_err();
        assert_eq!(said, "hook 'sleep 300 & sleep 300' did not finish within 1 s");
        let said = run("trap '' TERM; sleep 300", 0, true).unwrap_err();
        assert!(said.ends_with("was interrupted"), "{said}");
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    }
}
