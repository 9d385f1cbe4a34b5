//! What a client shows: messages of both sides, and the changes of files. All of this may come from the other side,
//! which is untrusted.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::wire::Tag;

/// The most messages of one connection that are shown. Further ones are only counted.
const SHOWN_MAX: u64 = 2000;

/// Shows messages and changes to the user.
pub trait Observer: Send + Sync {
    /// Shows one line of a message of either side. Control characters have been replaced.
    fn message(&self, line: &str);
    /// Shows a file that changes: the change as `rsync -i` writes it, and the name of the file.
    fn change(&self, item: &str, name: &str);
}

/// The messages and changes of one connection.
pub struct Told {
    observer: Box<dyn Observer>,
    messages: AtomicU64,
    has_failed: AtomicBool,
}

impl Told {
    /// Messages and changes that `observer` shows.
    pub fn new(observer: Box<dyn Observer>) -> Self {
        Self { observer, messages: AtomicU64::new(0), has_failed: AtomicBool::new(false) }
    }

    /// Whether the transfer of single files failed, on either side.
    pub fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }

    /// The number of messages that were not shown.
    pub fn left_out(&self) -> u64 {
        self.messages.load(Ordering::Relaxed).saturating_sub(SHOWN_MAX)
    }

    /// Handles a message. `tag` is its number on the wire.
    pub fn message(&self, tag: u32, body: &[u8]) {
        if tag == Tag::Deleted as u32 {
            let (name, end) = body.strip_suffix(&[0]).map_or((body, ""), |name| (name, "/"));
            return self.observer.change("*deleting  ", &(clean(name) + end));
        }
        if !is_text(tag) {
            return;
        }
        if tag == Tag::ErrorXfer as u32 {
            self.has_failed.store(true, Ordering::Relaxed);
        }
        for line in body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            if self.messages.fetch_add(1, Ordering::Relaxed) < SHOWN_MAX {
                self.observer.message(&clean(line));
            }
        }
    }

    /// Shows a file that changes.
    pub(crate) fn change(&self, item: &str, name: &[u8], is_dir: bool) {
        let end = if is_dir && name != b"." { "/" } else { "" };
        self.observer.change(item, &(clean(name) + end));
    }
}

/// Whether a message of this kind is text for users: errors, information, warnings and log lines.
fn is_text(tag: u32) -> bool {
    (1..=8).contains(&tag)
}

/// Text with control characters replaced, so that a terminal does not act on them.
pub fn clean(text: &[u8]) -> String {
    let shown = |letter: char| if letter.is_control() && letter != '\t' { '?' } else { letter };
    String::from_utf8_lossy(text).chars().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    struct Lines(Arc<Mutex<Vec<String>>>);

    impl Observer for Lines {
        fn message(&self, line: &str) {
            self.0.lock().unwrap().push(line.to_owned());
        }
        fn change(&self, item: &str, name: &str) {
            self.0.lock().unwrap().push(format!("{item} {name}"));
        }
    }

    #[test]
    fn what_is_shown_obeys_nobody_and_ends() {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let told = Told::new(Box::new(Lines(lines.clone())));
        told.message(2, b"one\x1b[2Jtwo\nthree\r\n");
        assert!(!told.has_failed());
        told.message(1, b"bad\n");
        assert!(told.has_failed());
        told.message(22, b"\x01\0\0\0");
        told.message(101, b"a/\x07b\0");
        told.change(">f+++++++++", b"d\x9b", true);
        assert_eq!(
            *lines.lock().unwrap(),
            ["one?[2Jtwo", "three?", "bad", "*deleting   a/?b/", ">f+++++++++ d\u{fffd}/"]
        );
        for _ in 0..3000 {
            told.message(3, b"again\n");
        }
        assert_eq!(lines.lock().unwrap().len() as u64, SHOWN_MAX + 2);
        assert_eq!(told.left_out(), 1003);
    }
}
