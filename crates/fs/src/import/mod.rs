//! Taking a directory into a filesystem dataset, as it is now.
//!
//! Source and dataset are gone through together, directory by directory from the top. A directory of which the listing is
//! as the last import found it is passed over whole; elsewhere what did not change is not read;
//! what was renamed or moved is known by its inode and keeps its object, so it costs no data; of what changed all is
//! read and, by the layers below, only the blocks that differ are written. What the source has no more is gone at the
//! end.
//!
//! Names that are in the way are first put aside, into a hidden directory: what they name may turn up at another
//! place. A file that has replaced another under its name (as editors do) is looked at last, when it is known whether
//! the old one lives on elsewhere; if not, the new one becomes a change of the old.

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

/// How to import.
#[derive(Debug, Clone, Copy, Default)]
pub struct ImportOptions {
    /// A file whose size and modification time are as they were is taken to be unchanged, whatever its ctime says.
    pub ignore_ctime: bool,
    /// Contents are not read: only for finding out what would be done.
    pub dry_run: bool,
    /// Bytes: all that lies between two multiples of this in a file is given to the dataset at once, and what was there before is
    /// never needed for it. 0 for no such care.
    pub whole_blocks: u32,
}

/// What was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Summary {
    /// Files, directories and all else that the source has.
    pub entries: u64,
    /// Of these, those that are new.
    pub created: u64,
    /// Those whose content or attributes changed.
    pub changed: u64,
    /// Those that have another name or place.
    pub renamed: u64,
    /// Names that the source has no more.
    pub removed: u64,
    /// Files whose content was read.
    pub files_read: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// What could not be read, or changed while it was.
    pub failures: u64,
}

/// What happened to a path.
#[derive(Debug)]
#[non_exhaustive]
pub enum ImportEvent<'a> {
    /// It is new.
    Created,
    /// Its content or attributes changed.
    Changed,
    /// It had another name.
    Renamed,
    /// It is there no more.
    Removed,
    /// It could not be read: the dataset keeps what it had.
    Unreadable(&'a io::Error),
    /// It changed while it was read, each time.
    Unsteady,
    /// It went away while the source was read.
    Vanished,
}

/// Hears what happens, and may end it.
pub trait ImportObserver {
    /// Something happened to a path.
    fn event(&mut self, path: &[u8], event: ImportEvent<'_>);

    /// So much has been gone over.
    fn progress(&mut self, summary: &Summary);

    /// Whether to stop.
    fn is_cancelled(&self) -> bool;
}

/// A file where it comes from: device (0 for that of the source's root) and inode number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SourceId {
    /// Device.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
}

/// Any failure of whoever keeps the hints.
pub type HintError = Box<dyn std::error::Error + Send + Sync>;

/// Remembers from one import to the next.
///
/// Which object a file became is a hint: a wrong answer does no harm, since the generation is compared. What a directory
/// looked like must be answered only while the dataset is as the import left it that noted it.
pub trait Hints {
    /// The object, and its generation.
    ///
    /// # Errors
    /// Any.
    fn object_of(&mut self, file: SourceId) -> Result<Option<(u64, u64)>, HintError>;

    /// A file became an object of such a generation.
    ///
    /// # Errors
    /// Any.
    fn note(&mut self, file: SourceId, object: u64, generation: u64) -> Result<(), HintError>;

    /// The digest of the source's directory that became this object, and of what was in it.
    ///
    /// # Errors
    /// Any.
    fn listing(&mut self, directory: u64) -> Result<Option<[u8; 32]>, HintError>;

    /// What is in this directory is what has this digest; `None`: it is not.
    ///
    /// # Errors
    /// Any.
    fn note_listing(&mut self, directory: u64, digest: Option<[u8; 32]>) -> Result<(), HintError>;

    /// Whether the file that became this object has to be read though it looks unchanged.
    fn is_suspect(&self, _object: u64) -> bool {
        false
    }

    /// The content of a file will be read, and written to this object, which is new or was something before.
    fn reading(&mut self, _object: u64, _stat: &SourceStat, _is_new: bool) {}
}

/// Why an import came to nothing. What concerns one file only is told to the observer instead.
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
    /// Asked to stop.
    #[error("interrupted")]
    Interrupted,
}

/// Makes the filesystem `fs` hold what the source holds.
///
/// # Errors
/// [`ImportError`]; the filesystem is then half changed, and of no use.
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

/// An import under way.
struct Importer<'a, O> {
    scan: &'a Scan,
    fs: &'a FilesystemMut<O>,
    hints: &'a mut dyn Hints,
    observer: &'a mut dyn ImportObserver,
    options: ImportOptions,
    summary: Summary,
    /// Objects that are what a file of the source is.
    claimed: ObjectSet,
    /// Files of several names of which not all have been seen: their objects, and how many are left.
    links: HashMap<SourceId, (u64, u64)>,
    /// The hidden directory for what is put aside: its object and its name in the root.
    aside: Option<(u64, Vec<u8>)>,
    /// Files under a name that another had.
    later: Vec<tree::Replaced>,
    /// Directories in which nothing has changed.
    skipped: Skipped,
    /// What was taken of the directory in hand is what its listing says.
    is_as_listed: bool,
    /// What was last seen to be no object that must not be changed: mostly the directory in hand.
    unlocked: Option<u64>,
    buf: Vec<u8>,
}
