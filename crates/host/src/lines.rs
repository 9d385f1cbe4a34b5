//! What other programs write on their standard error, passed on line by line.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::journal::{self, Level};

/// A longer line is cut into several.
const LINE_MAX: u64 = 4096;
/// Lines that are remembered.
const HEARD_MAX: usize = 1000;
/// How long to wait for the last lines of a program that has ended. Its background processes can keep its standard
/// error open.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Lines that were passed on, so that each attempt of a command to connect does not repeat them.
pub type Heard = Arc<Mutex<HashSet<String>>>;

/// How lines are passed on.
#[derive(Debug)]
pub struct PassOn {
    /// Where to.
    pub err: File,
    /// It is the journal.
    pub is_journal: bool,
    /// Their priority.
    pub level: Level,
    /// Before each line.
    pub prefix: String,
    /// Lines to leave out, and to add to.
    pub heard: Option<Heard>,
}

/// The forwarding of lines. It continues when this is dropped.
#[derive(Debug)]
pub struct Passing(Receiver<()>);

impl Passing {
    /// Waits until all is passed on that a program said which has ended.
    pub fn settle(self) {
        // The sender is dropped at the end. The receiver waits for this.
        let _ = self.0.recv_timeout(LAST_WORDS);
    }
}

impl PassOn {
    /// Starts to forward the lines of `from`.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn begin(self, from: impl Read + Send + 'static) -> std::io::Result<Passing> {
        let (sender, receiver) = mpsc::channel();
        std::thread::Builder::new().name("lines".to_owned()).spawn(move || {
            let _ended = sender;
            self.all(from);
        })?;
        Ok(Passing(receiver))
    }

    fn all(&self, from: impl Read) {
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        loop {
            line.clear();
            match (&mut from).take(LINE_MAX).read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) => self.line(String::from_utf8_lossy(&line).trim_end_matches(['\r', '\n'])),
            }
        }
    }

    fn line(&self, line: &str) {
        if let Some(heard) = &self.heard
            && let Ok(mut heard) = heard.lock()
        {
            if heard.contains(line) {
                return;
            }
            if heard.len() < HEARD_MAX {
                heard.insert(line.to_owned());
            }
        }
        // There is nowhere to complain if that fails.
        let _ = journal::write(&self.err, self.is_journal, self.level, &format!("{}{line}", self.prefix));
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, Write};

    use super::*;

    #[test]
    fn lines_are_prefixed_and_not_repeated() {
        let mut file = tempfile::tempfile().unwrap();
        let heard = Heard::default();
        for text in ["no route to host\r\nlast words", "no route to host\nnews\n"] {
            let (reader, mut writer) = std::io::pipe().unwrap();
            let pass_on = PassOn {
                err: file.try_clone().unwrap(),
                is_journal: true,
                level: Level::Warning,
                prefix: "ssh: ".to_owned(),
                heard: Some(heard.clone()),
            };
            let passing = pass_on.begin(reader).unwrap();
            writer.write_all(text.as_bytes()).unwrap();
            drop(writer);
            passing.settle();
        }
        let mut said = String::new();
        file.rewind().unwrap();
        file.read_to_string(&mut said).unwrap();
        assert_eq!(said, "<4>ssh: no route to host\n<4>ssh: last words\n<4>ssh: news\n");
    }
}
