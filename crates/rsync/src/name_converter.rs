//! `name converter`: a command that looks up names of users and groups (rsyncd.conf(5)). Requests are lines such as
//! `uid 7`, `gid 7`, `usr joe` and `grp staff`. The answer to each is a line, which is empty if the command does not
//! know.

use std::io::{self, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::shell;

/// The time limit of an answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// The longest answer, in bytes.
const ANSWER_MAX: usize = 1024;

/// A running command.
#[derive(Debug)]
pub struct NameConverter(Mutex<Option<Running>>);

#[derive(Debug)]
struct Running {
    child: Child,
    requests: ChildStdin,
    answers: ChildStdout,
}

/// The kind of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Users.
    User,
    /// Groups.
    Group,
}

impl NameConverter {
    /// Starts a command with the shell (`$RSYNC_SHELL`, or `/bin/sh`).
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(command: &str, variables: &[(String, std::ffi::OsString)]) -> io::Result<Self> {
        let mut child = shell::command(command, variables).stderr(Stdio::null()).spawn()?;
        let ends = child.stdin.take().zip(child.stdout.take());
        let (requests, answers) = ends.ok_or_else(|| io::Error::other("a command without pipes"))?;
        Ok(Self(Mutex::new(Some(Running { child, requests, answers }))))
    }

    /// The name of a user or group, if there is one.
    pub fn name_of(&self, kind: Kind, id: u32) -> Option<Vec<u8>> {
        let word = if kind == Kind::User { "uid" } else { "gid" };
        self.ask(format!("{word} {id}\n").as_bytes()).filter(|name| !name.is_empty())
    }

    /// The number of a user or group, if there is one.
    pub fn number_of(&self, kind: Kind, name: &[u8]) -> Option<u32> {
        // A request is one line, so a client's name must not have a newline.
        if name.is_empty() || name.iter().any(u8::is_ascii_control) {
            return None;
        }
        let word = if kind == Kind::User { "usr" } else { "grp" };
        let answer = self.ask(&[word.as_bytes(), b" ", name, b"\n"].concat())?;
        std::str::from_utf8(&answer).ok()?.trim().parse().ok()
    }

    /// Sends a request. A command that does not answer is not asked again.
    fn ask(&self, request: &[u8]) -> Option<Vec<u8>> {
        let mut running = self.0.lock();
        let answer = running.as_mut()?.ask(request);
        if let Err(error) = &answer {
            tracing::warn!(%error, "asking a name converter");
            *running = None;
        }
        answer.ok()
    }
}

impl Running {
    fn ask(&mut self, request: &[u8]) -> io::Result<Vec<u8>> {
        let until = Instant::now() + PATIENCE;
        self.requests.write_all(request)?;
        let mut answer = Vec::new();
        loop {
            let left = Timespec::try_from(until.saturating_duration_since(Instant::now()));
            let left = left.map_err(|_| io::ErrorKind::InvalidInput)?;
            match poll(&mut [PollFd::new(&self.answers, PollFlags::IN)], Some(&left)) {
                Err(rustix::io::Errno::INTR) => continue,
                Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
                polled => polled?,
            };
            let mut byte = [0];
            if self.answers.read(&mut byte)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            match byte[0] {
                b'\n' => return Ok(answer),
                byte if answer.len() < ANSWER_MAX => answer.push(byte),
                _ => return Err(io::Error::new(io::ErrorKind::InvalidData, "an answer too long")),
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let group = rustix::process::Pid::from_child(&self.child);
        // The command may have ended by itself.
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::TERM);
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_asked_by_lines() {
        let command = "while read -r kind what; do case \"$kind $what\" in 'uid 7') echo joe;; 'grp staff') echo 20;;\n\
                       'usr bad') echo x1;; 'usr end') exit;; *) echo;; esac; done";
        let converter = NameConverter::start(command, &[]).unwrap();
        assert_eq!(converter.name_of(Kind::User, 7), Some(b"joe".to_vec()));
        assert_eq!(converter.name_of(Kind::Group, 7), None);
        assert_eq!(converter.number_of(Kind::Group, b"staff"), Some(20));
        assert_eq!(converter.number_of(Kind::User, b"nobody"), None, "empty answers are no zero");
        assert_eq!(converter.number_of(Kind::User, b"bad"), None);
        assert_eq!(converter.number_of(Kind::User, b"x\ngrp staff"), None);
        assert_eq!(converter.number_of(Kind::User, b"end"), None);
        assert_eq!(converter.name_of(Kind::User, 7), None, "it has ended");
    }
}
