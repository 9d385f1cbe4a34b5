//! Lines of a log: on standard error, with priorities if that is systemd's journal (sd-daemon(3)).

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;

use parking_lot::Mutex;

/// How much a line matters, as syslog counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Something was not done.
    Error = 3,
    /// Something was done, but needs attention.
    Warning = 4,
    /// Normal actions.
    Info = 6,
    /// Details for the search of a fault.
    Debug = 7,
}

impl Level {
    /// That of a complaint: it begins with "warning:", or it is an error.
    pub fn of_complaint(text: &str) -> Self {
        if text.starts_with("warning:") { Self::Warning } else { Self::Error }
    }

    /// The least level that is written with `-q` and `-v`.
    pub fn least(quiet: bool, verbose: bool) -> Self {
        match (quiet, verbose) {
            (true, _) => Self::Warning,
            (false, true) => Self::Debug,
            (false, false) => Self::Info,
        }
    }
}

/// Whether this file is the journal in `JOURNAL_STREAM` ("device:inode"). A child of a service can have the variable,
/// but another standard error.
pub fn is_journal(err: &File, stream: Option<&OsStr>) -> bool {
    let named = stream.and_then(OsStr::to_str).and_then(|text| text.split_once(':'));
    let Some((device, inode)) = named else { return false };
    let found = rustix::fs::fstat(err);
    found.is_ok_and(|found| {
        device.parse::<u64>() == Ok(found.st_dev) && inode.parse::<u64>() == Ok(found.st_ino)
    })
}

/// Writes a text of one line or more in one call. In the journal each line has its priority.
///
/// # Errors
/// When it has no reader.
pub fn write(mut err: impl Write, is_journal: bool, level: Level, text: &str) -> io::Result<()> {
    // Names, reasons and the output of other programs can come from strangers.
    let text = snowmelt_dataset::text::visible_message(text);
    let mut lines = String::with_capacity(text.len() + 8);
    for line in text.split('\n') {
        if is_journal {
            lines.push_str(&format!("<{}>", level as u8));
        }
        lines.push_str(line);
        lines.push('\n');
    }
    err.write_all(lines.as_bytes())
}

/// The log of a server, for all its threads.
#[derive(Debug, Clone)]
pub struct ServerLog {
    err: Arc<Mutex<File>>,
    is_journal: bool,
    least: Level,
}

impl ServerLog {
    /// On this standard error, from `least` on.
    pub fn new(err: File, is_journal: bool, least: Level) -> Self {
        Self { err: Arc::new(Mutex::new(err)), is_journal, least }
    }

    /// Writes a line. There is nowhere to complain if that fails.
    pub fn line(&self, level: Level, text: &str) {
        if level <= self.least {
            let _ = write(&*self.err.lock(), self.is_journal, level, text);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn lines_have_priorities_in_the_journal_only() {
        let mut said = Vec::new();
        write(&mut said, true, Level::Error, "it failed\nfor two reasons").unwrap();
        write(&mut said, false, Level::Info, "done").unwrap();
        assert_eq!(String::from_utf8(said).unwrap(), "<3>it failed\n<3>for two reasons\ndone\n");
        assert_eq!(Level::of_complaint("warning: old"), Level::Warning);
        assert_eq!(Level::of_complaint("cannot open 'tank'"), Level::Error);
    }

    #[test]
    fn another_file_is_not_the_journal() {
        let file = tempfile::tempfile().unwrap();
        let found = file.metadata().unwrap();
        let stream = format!("{}:{}", found.dev(), found.ino());
        assert!(is_journal(&file, Some(OsStr::new(&stream))));
        assert!(!is_journal(&tempfile::tempfile().unwrap(), Some(OsStr::new(&stream))));
        assert!(!is_journal(&file, None) && !is_journal(&file, Some(OsStr::new("x"))));
    }
}
