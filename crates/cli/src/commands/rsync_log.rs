//! What `serve rsync` has to say: on standard error or in syslog, or in the log files of its configuration.

use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use jiff::tz::TimeZone;
use parking_lot::Mutex;
use snowmelt_rsync::daemon::{Config, trusted};

use crate::context::Context;
use crate::journal::{Level, ServerLog};
use crate::syslog::Syslog;

/// Files that are open at once; of log files that are named after clients there may be any number.
const OPEN_MAX: usize = 256;

/// Where lines go.
pub struct RsyncLog {
    /// Where lines go that no log file is for.
    elsewhere: Elsewhere,
    /// `None` is one that cannot be opened, which has been told.
    files: Mutex<HashMap<PathBuf, Option<LogFile>>>,
    /// Names of files are from here.
    directory: PathBuf,
    zone: TimeZone,
}

enum Elsewhere {
    Err(ServerLog),
    /// Like rsync's daemon. The process that started it waits for the end of its standard error, so this is not kept
    /// open.
    Syslog(Syslog),
}

struct LogFile {
    path: PathBuf,
    file: File,
    /// It stays open when another file has its name.
    is_kept: bool,
}

impl RsyncLog {
    /// Opens the log files of the configuration. A file that cannot be opened is reported. Its lines, and lines
    /// without a file, go to syslog with `prefers_syslog` (unless standard error is the journal), otherwise to
    /// standard error.
    ///
    /// # Errors
    /// When standard error cannot be duplicated.
    pub fn open(context: &Context, config: &Config, prefers_syslog: bool) -> io::Result<Self> {
        let tag = config.syslog_tag.as_deref().unwrap_or("rsyncd");
        // If systemd connects standard error to the journal, each line keeps its priority there.
        let uses_syslog = prefers_syslog && !context.is_journal_err();
        let log = Self {
            elsewhere: match uses_syslog {
                true => Elsewhere::Syslog(Syslog::open(config.syslog_facility.as_deref(), tag)),
                false => Elsewhere::Err(context.server_log(Level::Info)?),
            },
            files: Mutex::default(),
            directory: context.path(""),
            zone: context.time_zone(),
        };
        let modules = config.modules.iter().filter(|module| !module.has_variable_log_file());
        for name in modules.filter_map(|module| module.log_file.as_ref()).chain(&config.log_file) {
            log.file(&mut log.files.lock(), name);
        }
        Ok(log)
    }

    /// The files that are open now stay open: where their names lead will be another place.
    pub fn keep_files(&self) {
        self.files.lock().values_mut().flatten().for_each(|file| file.is_kept = true);
    }

    /// Writes a line, to the log file `name` if there is one.
    pub fn line(&self, name: Option<&Path>, text: &str) {
        if let Some(name) = name {
            let mut files = self.files.lock();
            if let Some(file) = self.file(&mut files, name) {
                // There is nowhere to complain.
                let _ = file.write(&format!("{} {text}\n", self.stamp()));
                return;
            }
        }
        self.elsewhere(level(text), text);
    }

    /// Writes a line that no log file is for.
    fn elsewhere(&self, level: Level, text: &str) {
        match &self.elsewhere {
            Elsewhere::Syslog(syslog) => syslog.line(level, text),
            Elsewhere::Err(err) => err.line(level, text),
        }
    }

    /// The file of this name, which is opened when it is needed first.
    fn file<'f>(
        &self,
        files: &'f mut HashMap<PathBuf, Option<LogFile>>,
        name: &Path,
    ) -> Option<&'f mut LogFile> {
        if !files.contains_key(name) {
            if files.len() >= OPEN_MAX {
                files.retain(|_, file| file.as_ref().is_some_and(|file| file.is_kept));
            }
            let path = self.directory.join(name);
            let opened = trusted::append(&path);
            if let Err(error) = &opened {
                let path = path.display();
                let text =
                    format!("warning: cannot open the log file {path}: {error}: log lines go here instead");
                self.elsewhere(Level::Warning, &text);
            }
            files.insert(name.to_owned(), opened.ok().map(|file| LogFile { path, file, is_kept: false }));
        }
        files.get_mut(name)?.as_mut()
    }

    /// Time and process, in the format of rsync.
    fn stamp(&self) -> String {
        let now = Timestamp::now().to_zoned(self.zone.clone());
        format!("{} [{}]", now.strftime("%Y/%m/%d %H:%M:%S"), std::process::id())
    }
}

impl LogFile {
    /// A rotated file is no longer written to, once a new file can be opened in its place.
    fn write(&mut self, line: &str) -> io::Result<()> {
        let of = |metadata: Metadata| (metadata.dev(), metadata.ino());
        if !self.is_kept
            && self.path.metadata().map(of).ok() != self.file.metadata().map(of).ok()
            && let Ok(file) = trusted::append(&self.path)
        {
            self.file = file;
        }
        self.file.write_all(line.as_bytes())
    }
}

/// How much a line of the daemon matters: the lines themselves are as rsync has them.
fn level(text: &str) -> Level {
    let is_wrong = text.starts_with("warning:")
        || ["auth failed", "denied", "unknown module", "error"].iter().any(|part| text.contains(part));
    if is_wrong { Level::Warning } else { Level::Info }
}
