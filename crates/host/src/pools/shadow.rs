//! Shadows of directories and images: small pools that hold everything but the data of files.
//!
//! A shadow is a directory `shadow-KEY` in the state directory, where KEY is computed from the path of its source. It
//! is created by the first sync of a directory (or image) to another machine. Like other pools it has a name, but it
//! is not in the list of pools. Beside it are
//!
//! - `shadow-KEY.about`: what it is of, and where that went (JSON)
//! - `shadow-KEY.suspects`: what was not as the shadow says when it was to be sent
//! - `shadow-KEY.lock`: locked by the one sync that may be under way

use std::collections::BTreeSet;
use std::fs::{File, Metadata};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use snowmelt_dataset::Name;

use super::outside::{self, Kind};
use super::private::create_private;
use super::registry;
use crate::error::{CliError, Result};

const PREFIX: &str = "shadow-";
const KEY_LEN: usize = 16;
/// The dataset, where the source's own name cannot be one.
const NAMELESS: &str = "data";
/// Maximum size of the files about a shadow in bytes.
const ABOUT_MAX: u64 = 1 << 20;
/// Targets that are remembered.
const TARGETS_MAX: usize = 256;

/// The shadow of a directory or image.
#[derive(Debug)]
pub struct Shadow {
    /// Its source: an absolute path without links.
    pub source: PathBuf,
    /// Name of the pool.
    pub pool: String,
    /// Full name of its dataset.
    pub dataset: String,
    place: PathBuf,
}

/// What is known about a shadow without opening it. Nothing of this is required.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct About {
    /// Its source, as text for the user.
    pub source: String,
    /// It is of an image or a block device.
    pub is_image: bool,
    /// The source's device when it was imported last.
    pub device: u64,
    /// Its inode at that time.
    pub inode: u64,
    /// Where it went, the latest last.
    pub sent: Vec<Sent>,
}

/// A target that was brought up to date.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Sent {
    /// As a person knows it.
    pub target: String,
    /// When: seconds since 1970.
    pub seconds: i64,
}

/// Another process reads the source.
#[derive(Debug)]
pub struct Taken {
    /// The process, if it has said so.
    pub process: Option<u32>,
}

/// The right to take the source in, until it is dropped.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

/// Whether a pool of this name is a shadow.
pub fn is_name(pool: &str) -> bool {
    let key = pool.strip_prefix(PREFIX);
    key.is_some_and(|key| key.len() == KEY_LEN && key.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// The name of the shadow of this path.
pub fn name_of(source: &Path) -> String {
    let hash = blake3::hash(source.as_os_str().as_bytes());
    PREFIX.chars().chain(hash.to_hex().chars().take(KEY_LEN)).collect()
}

/// Says what to do with a shadow that cannot be opened.
pub fn damaged(name: &str, why: &str) -> String {
    format!(
        "{why}\nif it is damaged, 'snowmelt shadow destroy {name}' removes it; the next sync then sends everything \
         to a new target"
    )
}

/// The file with the outdated objects of a shadow at `place`.
pub fn suspects(place: &Path) -> PathBuf {
    place.with_extension("suspects")
}

/// All that lies beside a shadow at `place`.
fn beside(place: &Path) -> [PathBuf; 3] {
    [place.with_extension("about"), suspects(place), place.with_extension("lock")]
}

/// Names of the shadows below `shadows`, those included of which the pool is gone.
///
/// # Errors
/// When the directory cannot be read.
pub fn names(shadows: &Path) -> io::Result<BTreeSet<String>> {
    let entries = match std::fs::read_dir(shadows) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        Err(error) => return Err(error),
    };
    let mut found = BTreeSet::new();
    for entry in entries {
        let name = entry?.file_name();
        let name = name.to_string_lossy();
        let name = name.strip_suffix(".about").unwrap_or(&name);
        if is_name(name) {
            found.insert(name.to_owned());
        }
    }
    Ok(found)
}

/// Removes all files of a shadow at `place`, in any state.
///
/// # Errors
/// When it is in use, or cannot be removed.
pub fn remove(place: &Path, attempt: &str) -> Result<()> {
    let failed = |error: &io::Error| CliError::failed(attempt, error);
    let _lock = match lock(place).map_err(|error| failed(&error))? {
        Ok(lock) => lock,
        Err(taken) => return Err(CliError::Failed(format!("{attempt}: {taken}"))),
    };
    if place.exists() {
        // A mount of it prevents this too. Files that are no longer a pool belong to nobody.
        match snowmelt_store::open(
            &snowmelt_store::Location::Directory(place.to_owned()),
            snowmelt_store::Access::ReadWrite,
        ) {
            Err(snowmelt_store::StoreError::Locked { .. }) => {
                return Err(CliError::Failed(format!("{attempt}: it is in use")));
            }
            Ok(_) | Err(_) => std::fs::remove_dir_all(place).map_err(|error| failed(&error))?,
        }
    }
    for file in beside(place) {
        match std::fs::remove_file(file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(&error)),
            _ => {}
        }
    }
    Ok(())
}

/// Locks the shadow at `place` for reading its source, unless another process has the lock.
///
/// # Errors
/// When the file for that cannot be made.
pub fn lock(place: &Path) -> io::Result<Result<Lock, Taken>> {
    let path = place.with_extension("lock");
    let mut file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {
            file.set_len(0)?;
            write!(file, "{}", std::process::id())?;
            Ok(Ok(Lock { _file: file }))
        }
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let mut text = String::new();
            let _ = file.take(20).read_to_string(&mut text);
            Ok(Err(Taken { process: text.parse().ok() }))
        }
        Err(error) => Err(error.into()),
    }
}

impl std::fmt::Display for Taken {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("another sync of it is running")?;
        match self.process {
            Some(process) => write!(out, " (process {process})"),
            None => Ok(()),
        }
    }
}

impl About {
    /// What is known about the shadow at `place`; empty if it cannot be read.
    pub fn load(place: &Path) -> Self {
        let mut text = Vec::new();
        let read = File::open(place.with_extension("about"))
            .and_then(|file| file.take(ABOUT_MAX).read_to_end(&mut text));
        read.ok().and_then(|_| serde_json::from_slice(&text).ok()).unwrap_or_default()
    }

    /// Keeps it, all or nothing.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn store(&self, place: &Path) -> io::Result<()> {
        let (path, new) = (place.with_extension("about"), place.with_extension("about-new"));
        let text = serde_json::to_vec(self)?;
        let written = registry::create_private(&new)
            .and_then(|mut file| file.write_all(&text))
            .and_then(|()| std::fs::rename(&new, path));
        if written.is_err() {
            // A part of it is useless.
            let _ = std::fs::remove_file(new);
        }
        written
    }

    /// Whether it was of another file or directory that had the same path.
    pub fn is_replaced(&self, now: &Metadata) -> bool {
        self.inode != 0 && (self.device, self.inode) != (now.dev(), now.ino())
    }

    /// Records that the shadow has the current state of `source`.
    pub fn became(&mut self, source: &Path, now: &Metadata) {
        self.source = source.display().to_string();
        self.is_image = !now.is_dir();
        (self.device, self.inode) = (now.dev(), now.ino());
    }

    /// Notes that `target` has been brought up to date.
    pub fn sent(&mut self, target: &str, seconds: i64) {
        self.sent.retain(|sent| sent.target != target);
        self.sent.push(Sent { target: target.to_owned(), seconds });
        if self.sent.len() > TARGETS_MAX {
            self.sent.remove(0);
        }
    }
}

impl Shadow {
    /// Of the directory or image at `path`, below `shadows`.
    ///
    /// # Errors
    /// When there is nothing at `path`.
    pub fn of(shadows: &Path, path: &Path) -> io::Result<Self> {
        let source = path.canonicalize()?;
        let pool = name_of(&source);
        let last = source.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let named = format!("{pool}/{last}");
        let is_name = Name::parse(&named).is_ok_and(|name| name.dataset() == named);
        let dataset = if is_name { named } else { format!("{pool}/{NAMELESS}") };
        Ok(Self { source, place: shadows.join(&pool), pool, dataset })
    }

    /// Creates the pool if it does not exist. Otherwise returns what is known about it.
    ///
    /// # Errors
    /// When it cannot be created. `attempt` is the beginning of the message.
    pub fn make(&self, attempt: &str) -> Result<Option<About>> {
        if self.place.exists() {
            return Ok(None);
        }
        let lost = About::load(&self.place);
        for file in [self.place.with_extension("about"), suspects(&self.place)] {
            // It is written again in any case.
            let _ = std::fs::remove_file(file);
        }
        let failed = |error: &(dyn std::error::Error + 'static)| CliError::failed(attempt, error);
        // Each process has its own. The first one to complete the last step has created it.
        let unfinished = self.place.with_extension(format!("new-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&unfinished);
        let made = self.make_at(&unfinished, attempt).and_then(|()| {
            match std::fs::rename(&unfinished, &self.place) {
                Err(_) if self.place.exists() => Ok(()),
                renamed => renamed.map_err(|error| failed(&error)),
            }
        });
        let _ = std::fs::remove_dir_all(&unfinished);
        match made {
            Ok(()) => Ok(Some(lost).filter(|lost| !lost.sent.is_empty())),
            Err(error) => Err(self.told_of_room(error)),
        }
    }

    /// The message if there was no space for the shadow, which the user did not name.
    pub fn told_of_room(&self, error: CliError) -> CliError {
        match error {
            CliError::NoSpace(text) => CliError::NoSpace(format!(
                "{text}\nthe names and hashes of '{}' are stored in '{}': free some space there, or choose another \
                 place with XDG_STATE_HOME, and sync again",
                self.source.display(),
                self.place.parent().unwrap_or(&self.place).display()
            )),
            other => other,
        }
    }

    fn make_at(&self, place: &Path, attempt: &str) -> Result<()> {
        let failed = |error: &(dyn std::error::Error + 'static)| CliError::failed(attempt, error);
        let datasets = create_private(place, &self.pool, attempt)?;
        let kind = if self.source.is_dir() { Kind::Directory } else { Kind::Image };
        outside::refer_to(datasets.pool(), kind, &self.source).map_err(|error| failed(&error))?;
        let root = Name::parse(&self.pool).map_err(|error| failed(&error))?;
        datasets
            .set_properties(&root, &[("readonly".to_owned(), "on".to_owned())])
            .map_err(|error| failed(&error))?;
        let pool = datasets.pool().clone();
        drop(datasets);
        pool.close().map_err(|error| failed(&error))
    }

    /// Removes the pool again if nothing has been taken into it.
    pub fn remove_if_unused(&self) {
        if !self.place.with_extension("about").exists() {
            // If it cannot be removed, it is used the next time.
            let _ = remove(&self.place, "");
        }
    }
}
