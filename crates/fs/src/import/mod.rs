//! Importing the current content of a directory into a filesystem dataset.
//!
//! Source and dataset are compared directory by directory from the top. A directory is skipped if its listing is the
//! same as at the last import. Elsewhere, unchanged files are not read. A renamed or moved file is recognised by its
//! inode and keeps its object, so it costs no data. A changed file is read in full, but the lower layers write only the
//! blocks that differ. At the end, everything that the source no longer has is removed.
//!
//! Entries whose names are needed for others are first moved into a hidden directory, because the source may have them
//! in another place. A file that has replaced another one under its name (as editors do) is imported last. By then it
//! is known whether the old file still exists elsewhere. If it does not, the new file is imported as a change of the
//! old one.

mod content;
mod digest;
mod file;
mod filter;
mod scan;
mod tree;
mod unchanged;

use std::collections::HashMap;
use std::io;

use snowmelt_dataset::objset::ObjectSet;
use snowmelt_zpl::{FilesystemMut, ObjectsMut, ZplError};

pub(crate) use content::open_file;
pub use filter::{Filter, FilterError};
pub use scan::{Listing, Scan, SourceEntry, SourcePath, SourceStat};

use unchanged::Skipped;

/// The options of an import.
#[derive(Debug, Clone, Copy, Default)]
pub struct ImportOptions {
    /// A file whose size and modification time are the same counts as unchanged, even if its ctime differs.
    pub ignore_ctime: bool,
    /// Content is not read. Used to find out what an import would do.
    pub dry_run: bool,
    /// If this is not 0, all data between two multiples of this number of bytes is written at once, so that the old
    /// content of the block is never needed.
    pub whole_blocks: u32,
}

/// The result of an import.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Summary {
    /// Files, directories and other nodes of the source.
    pub entries: u64,
    /// New ones.
    pub created: u64,
    /// Those with changed content or attributes.
    pub changed: u64,
    /// Those that were renamed or moved.
    pub renamed: u64,
    /// Names that the source no longer has.
    pub removed: u64,
    /// Files whose content was read.
    pub files_read: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Files that could not be read, or changed while they were read.
    pub failures: u64,
}

/// An event for a path.
#[derive(Debug)]
#[non_exhaustive]
pub enum ImportEvent<'a> {
    /// The path is new.
    Created,
    /// Its content or attributes changed.
    Changed,
    /// It was renamed or moved.
    Renamed,
    /// It was removed.
    Removed,
    /// It could not be read. The dataset keeps the old state.
    Unreadable(&'a io::Error),
    /// It changed during every attempt to read it.
    Unsteady,
    /// It disappeared while the source was read.
    Vanished,
}

/// Receives the events of an import, and may stop it.
pub trait ImportObserver {
    /// Reports an event for a path.
    fn event(&mut self, path: &[u8], event: ImportEvent<'_>);

    /// Reports the progress so far.
    fn progress(&mut self, summary: &Summary);

    /// Whether to stop.
    fn is_cancelled(&self) -> bool;
}

/// The identity of a file in the source: device (0 for the device of the source's root) and inode number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SourceId {
    /// Device.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
}

/// Any error of the store of hints.
pub type HintError = Box<dyn std::error::Error + Send + Sync>;

/// Stores hints from one import for the next.
///
/// The object of a file is only a hint. A wrong answer does no harm, since the generation is compared. The digest of a
/// directory may be returned only while the dataset is exactly as the import that noted it has left it.
pub trait Hints {
    /// The object of a file, and its generation.
    ///
    /// # Errors
    /// Any error.
    fn object_of(&mut self, file: SourceId) -> Result<Option<(u64, u64)>, HintError>;

    /// Notes the object of a file, and its generation.
    ///
    /// # Errors
    /// Any error.
    fn note(&mut self, file: SourceId, object: u64, generation: u64) -> Result<(), HintError>;

    /// The digest of the source's directory that was imported to this object, and of its entries.
    ///
    /// # Errors
    /// Any error.
    fn listing(&mut self, directory: u64) -> Result<Option<[u8; 32]>, HintError>;

    /// Notes that the content of this directory has this digest. `None` removes the digest.
    ///
    /// # Errors
    /// Any error.
    fn note_listing(&mut self, directory: u64, digest: Option<[u8; 32]>) -> Result<(), HintError>;

    /// Whether the file of this object must be read although it looks unchanged.
    fn is_suspect(&self, _object: u64) -> bool {
        false
    }

    /// The content of a file will be read and written to this object. `is_new` is set if the object is new.
    fn reading(&mut self, _object: u64, _stat: &SourceStat, _is_new: bool) {}
}

/// Why an import failed. Failures of single files are reported to the observer instead.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// The dataset cannot be read or written.
    #[error(transparent)]
    Dataset(#[from] ZplError),
    /// A file's content cannot be stored.
    #[error("storing '{}'", crate::error::show(path))]
    Content {
        /// Its path in the source.
        path: Vec<u8>,
        /// What failed.
        source: ZplError,
    },
    /// The source's root cannot be read.
    #[error("reading the directory")]
    Root(#[source] io::Error),
    /// The hints cannot be read or written.
    #[error(transparent)]
    Hints(HintError),
    /// The import was stopped.
    #[error("interrupted")]
    Interrupted,
}

/// Makes the filesystem `fs` equal to the source.
///
/// # Errors
/// [`ImportError`]. Then the filesystem is partly changed and must be dropped.
pub fn import<O: ObjectsMut>(
    scan: &Scan,
    fs: &FilesystemMut<O>,
    hints: &mut dyn Hints,
    observer: &mut dyn ImportObserver,
    options: ImportOptions,
) -> Result<Summary, ImportError> {
    let mut importer = Importer {
        scan,
        fs,
        hints,
        observer,
        options,
        summary: Summary::default(),
        claimed: ObjectSet::default(),
        links: HashMap::new(),
        aside: None,
        later: Vec::new(),
        skipped: Skipped::default(),
        is_as_listed: true,
        unlocked: None,
        buf: Vec::new(),
    };
    scan.with_readers(|| importer.run())?;
    Ok(importer.summary)
}

/// The state of an import.
struct Importer<'a, O> {
    scan: &'a Scan,
    fs: &'a FilesystemMut<O>,
    hints: &'a mut dyn Hints,
    observer: &'a mut dyn ImportObserver,
    options: ImportOptions,
    summary: Summary,
    /// Objects that already belong to a file of the source.
    claimed: ObjectSet,
    /// Files with several names that are not all found yet: their objects, and the number of missing names.
    links: HashMap<SourceId, (u64, u64)>,
    /// The hidden directory for entries that were moved aside: its object, and its name in the root.
    aside: Option<(u64, Vec<u8>)>,
    /// Files that have replaced another one under its name.
    later: Vec<tree::Replaced>,
    /// Unchanged directories that were skipped.
    skipped: Skipped,
    /// Whether the imported entries of the current directory are the same as in its listing.
    is_as_listed: bool,
    /// An object that has no flags that forbid changes; usually the current directory.
    unlocked: Option<u64>,
    buf: Vec<u8>,
}
