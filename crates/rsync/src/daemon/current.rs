//! The current configuration: a change of its files applies from the next connection on, as with rsync's daemon.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::config::{Config, Seen};

/// The shortest time before invalid files are read again.
const PATIENCE: Duration = Duration::from_secs(1);

/// The configuration that was read last.
#[derive(Debug)]
pub struct Current {
    config: Arc<Config>,
    /// The error in the present files, and the time at which it was found.
    failed: Option<(String, Instant)>,
    /// The configuration is never read again.
    is_kept: bool,
}

impl Current {
    pub fn new(config: Config) -> Self {
        Self { config: Arc::new(config), failed: None, is_kept: false }
    }

    /// The configuration that was read last.
    pub fn last(&self) -> &Arc<Config> {
        &self.config
    }

    /// Keeps the present configuration for good.
    pub fn keep(&mut self) {
        self.is_kept = true;
    }

    /// Reads the files again if one has changed. Returns a message for the log, if there is one. An error in the files
    /// is reported once, and the last valid configuration stays.
    pub fn renew(&mut self) -> Option<String> {
        if self.is_kept {
            return None;
        }
        let first = self.config.files.first()?.path.clone();
        if !self.config.files.iter().any(Seen::has_changed) {
            return self.failed.take().map(|_| format!("{} is as before", first.display()));
        }
        if self.failed.as_ref().is_some_and(|(_, when)| when.elapsed() < PATIENCE) {
            return None;
        }
        match Config::load_with(&first, &self.config.overrides) {
            Ok(config) => {
                self.config = Arc::new(config);
                self.failed = None;
                Some(format!("{} was read again", first.display()))
            }
            Err(error) => {
                let why = format!("{error}: what was read before counts");
                let is_news = self.failed.as_ref().is_none_or(|(told, _)| *told != why);
                self.failed = Some((why.clone(), Instant::now()));
                is_news.then_some(why)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changes_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let (main, more) = (dir.path().join("main.conf"), dir.path().join("more"));
        let write = |path: &std::path::Path, text: &str| std::fs::write(path, text).unwrap();
        std::fs::create_dir(&more).unwrap();
        write(&main, "[a]\npath = /a\n&include more\n");
        let mut current = Current::new(Config::load(&main).unwrap());
        let names = |current: &Current| {
            current.last().modules.iter().map(|module| module.name.clone()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!((current.renew(), names(&current).as_str()), (None, "a"));
        write(&more.join("b.conf"), "[b]\npath = /b\n");
        assert!(current.renew().unwrap().ends_with("main.conf was read again"));
        assert_eq!((current.renew(), names(&current).as_str()), (None, "a b"));
        // An invalid file changes nothing, and is reported once.
        write(&more.join("b.conf"), "[b]\npath = /b\nlist = maybe\n");
        assert!(current.renew().unwrap().contains("b.conf, line 3: 'maybe'"));
        assert_eq!((current.renew(), names(&current).as_str()), (None, "a b"));
        std::thread::sleep(PATIENCE);
        assert_eq!((current.renew(), names(&current).as_str()), (None, "a b"));
        std::thread::sleep(PATIENCE);
        write(&more.join("b.conf"), "[c]\npath = /b\n");
        assert!(current.renew().is_some());
        assert_eq!(names(&current), "a c");
        // Files of a configuration that is kept are not checked.
        current.keep();
        write(&main, "[d]\npath = /d\n");
        assert_eq!((current.renew(), names(&current).as_str()), (None, "a c"));
        // A configuration from a text has no files.
        let mut of_text = Current::new(Config::parse("[a]\npath = /a\n", &main).unwrap());
        assert_eq!(of_text.renew(), None);
    }
}
