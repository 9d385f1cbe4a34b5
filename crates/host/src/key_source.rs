//! Where the key of an encrypted pool comes from, and the keys that a command has opened.

use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use snowmelt_pool::{KeyRecord, Keys};

use crate::error::{CliError, Result};

/// Where a key comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// The user at the terminal.
    Prompt,
    /// A file.
    File(PathBuf),
    /// What this command of the shell prints.
    Command(String),
}

impl KeySource {
    /// The text for the pool's record.
    ///
    /// # Errors
    /// When a path is not valid UTF-8.
    pub(crate) fn recorded(&self) -> Result<String> {
        match self {
            Self::Prompt => Ok("prompt".to_owned()),
            Self::File(path) => match path.to_str() {
                Some(path) => Ok(format!("file://{path}")),
                None => Err(CliError::Failed(format!("the path {} is not valid UTF-8", path.display()))),
            },
            Self::Command(_) => Ok("command".to_owned()),
        }
    }

    /// The text that is stored on this machine.
    pub(crate) fn told(&self) -> Result<String> {
        match self {
            Self::Command(command) => Ok(format!("command:{command}")),
            other => other.recorded(),
        }
    }

    /// Of a word that the record or this machine has; `None` if it is no such, as the record's `command`.
    pub(crate) fn parse(word: &str) -> Option<Self> {
        match word {
            "prompt" => Some(Self::Prompt),
            word => match word.strip_prefix("command:") {
                Some(command) => Some(Self::Command(command.to_owned())),
                None => word
                    .strip_prefix("file://")
                    .filter(|path| path.starts_with('/'))
                    .map(|it| Self::File(it.into())),
            },
        }
    }
}

/// The keys that a command has opened, and the given sources of others. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct KnownKeys(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    opened: Vec<Keys>,
    sources: Vec<(u64, KeySource)>,
}

impl KnownKeys {
    /// The key of the pool with this guid comes from nowhere else.
    pub fn only(&self, guid: u64, source: KeySource) {
        self.0.lock().sources.push((guid, source));
    }

    pub(crate) fn source(&self, guid: u64) -> Option<KeySource> {
        self.0.lock().sources.iter().find(|(of, _)| *of == guid).map(|(_, source)| source.clone())
    }

    pub(crate) fn opened(&self, record: &KeyRecord) -> Option<Keys> {
        self.0.lock().opened.iter().find(|keys| keys.record() == record).cloned()
    }

    /// Keeps an opened key for later pools of the same command.
    pub(crate) fn remember(&self, keys: Keys) {
        self.0.lock().opened.push(keys);
    }
}
