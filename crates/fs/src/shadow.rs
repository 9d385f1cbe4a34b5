//! Reading the external blocks of a shadow: from the files of its directory, or from its image.
//!
//! A shadow is a dataset whose file data (or volume data) is not in the pool, but in the directory or image that was
//! imported. A block pointer contains the object and the offset in it. The file of an object is found by the object's
//! current path in the dataset, because imports follow renames. A file that is missing or changed is recorded in a list
//! of suspects. The next import reads it even if it looks unchanged, and stores the differences.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use snowmelt_dataset::{Datasets, Kind, Objset};
use snowmelt_pool::{Outside, OutsidePtr};
use snowmelt_zpl::zap::Cursor;
use snowmelt_zpl::{FileKind, Filesystem, ZplError};

use crate::import::{Filter, Scan, open_file};
use crate::names::Names;

/// Number of files that are kept open.
const OPEN_MAX: usize = 16;

/// Maximum number of files with another parent than recorded whose paths are kept in memory, with about 200 bytes each.
/// Other such files count as lost, so that the next import stores their data in the pool.
const STRAYS_MAX: usize = 500_000;

/// The reasons for an object in the list of suspects.
const LOST: &str = "lost";
const CHANGED: &str = "changed";

/// Maximum number of objects that are written to a list of suspects, or read from it. Others are found again later.
const SUSPECTS_MAX: usize = 1 << 20;
/// Maximum size of such a list in bytes. A line has at most 28 bytes.
const LIST_MAX: u64 = 28 * SUSPECTS_MAX as u64;

/// Supplies the data of a shadow.
pub struct ShadowSource {
    path: PathBuf,
    suspects: PathBuf,
    /// A weak reference, because the pool owns this source.
    datasets: Weak<Datasets>,
    state: Mutex<State>,
    noted: Mutex<BTreeSet<Suspect>>,
}

/// The state holds a view of the pool; see [`snowmelt_pool::Pool::clear_outside`].
#[derive(Default)]
struct State {
    directory: Option<Box<Directory>>,
    image: Option<Arc<File>>,
}

/// An open source directory, with the dataset of the newest import.
struct Directory {
    scan: Scan,
    names: Names<Box<Filesystem<Objset>>>,
    /// Paths of files whose recorded parent is wrong. Built when it is first needed.
    strays: Option<HashMap<u64, Vec<u8>>>,
    /// Open files, the most recently used last.
    open: Vec<(u64, Arc<File>)>,
}

impl ShadowSource {
    /// The source of the shadow in the pool of `datasets`. The shadow was imported from the directory or image at
    /// `path`. `suspects` is the file with the list of suspects.
    pub fn new(path: PathBuf, suspects: PathBuf, datasets: &Arc<Datasets>) -> Self {
        let datasets = Arc::downgrade(datasets);
        Self { path, suspects, datasets, state: Mutex::default(), noted: Mutex::default() }
    }

    fn note(&self, suspect: Suspect) {
        let mut noted = self.noted.lock();
        if !self.suspects.exists() {
            // An import has processed and removed the list.
            noted.clear();
        }
        if noted.len() >= SUSPECTS_MAX || !noted.insert(suspect) {
            return;
        }
        let why = if suspect.is_lost { LOST } else { CHANGED };
        let list = File::options().append(true).create(true).open(&self.suspects);
        let _ = list.and_then(|mut file| file.write_all(format!("{} {why}\n", suspect.object).as_bytes()));
    }

    /// The file of an object. `afresh` drops all cached state first.
    fn file(&self, object: u64, afresh: bool) -> io::Result<Arc<File>> {
        let mut state = self.state.lock();
        if afresh {
            *state = State::default();
        }
        if let Some(image) = &state.image {
            return Ok(image.clone());
        }
        if state.directory.is_none() {
            let datasets = self.datasets.upgrade().ok_or(io::ErrorKind::NotConnected)?;
            match open(&datasets, &self.path)? {
                Opened::Image(file) => {
                    let image = Arc::new(file);
                    state.image = Some(image.clone());
                    return Ok(image);
                }
                Opened::Directory(directory) => state.directory = Some(directory),
            }
        }
        match &mut state.directory {
            Some(directory) => directory.file(object),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }
}

enum Opened {
    Directory(Box<Directory>),
    Image(File),
}

fn open(datasets: &Datasets, path: &Path) -> io::Result<Opened> {
    let catalog = datasets.catalog();
    let root = catalog.root().and_then(|root| catalog.descendants(root)).map_err(io::Error::other)?;
    let found = root.into_iter().nth(1).ok_or(io::ErrorKind::NotFound)?;
    if found.record.kind == Kind::Volume {
        return Ok(Opened::Image(open_image(path)?));
    }
    let objset = catalog.head(&found).map_err(io::Error::other)?;
    let fs = Filesystem::open(objset).map_err(io::Error::other)?;
    let filter = Filter::new(&[], &[]).map_err(io::Error::other)?;
    let scan = Scan::open(path, filter, false)?;
    let names = Names::new(Box::new(fs));
    Ok(Opened::Directory(Box::new(Directory { scan, names, strays: None, open: Vec::new() })))
}

/// Opens a disk image or a disk. The name may have been replaced by a file of any type, so opening must not block or
/// have side effects.
fn open_image(path: &Path) -> io::Result<File> {
    let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::NOFOLLOW;
    let file = File::options().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    let kind = file.metadata()?.file_type();
    match kind.is_file() || kind.is_block_device() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is neither a file nor a disk")),
    }
}

impl Directory {
    fn path(&mut self, object: u64) -> io::Result<Vec<u8>> {
        let attributes = self.names.fs.attributes(object).map_err(io::Error::other)?;
        if let Some(path) = self.names.path(&attributes).map_err(io::Error::other)? {
            return Ok(path.strip_prefix(b"/").unwrap_or(&path).to_vec());
        }
        // A file with several names keeps the parent of its newest name, even after that name was removed.
        if self.strays.is_none() {
            self.strays = Some(strays(&self.names.fs).map_err(io::Error::other)?);
        }
        let path = self.strays.as_ref().and_then(|strays| strays.get(&object));
        path.cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn file(&mut self, object: u64) -> io::Result<Arc<File>> {
        if let Some(at) = self.open.iter().position(|(found, _)| *found == object) {
            let known = self.open.remove(at);
            let file = known.1.clone();
            self.open.push(known);
            return Ok(file);
        }
        let path = self.path(object)?;
        let (file, _): (OwnedFd, _) = open_file(&self.scan, &path)?;
        let file = Arc::new(File::from(file));
        if self.open.len() >= OPEN_MAX {
            self.open.remove(0);
        }
        self.open.push((object, file.clone()));
        Ok(file)
    }
}

/// Files whose recorded parent is wrong, with their paths from the root, up to [`STRAYS_MAX`].
fn strays(fs: &Filesystem<Objset>) -> Result<HashMap<u64, Vec<u8>>, ZplError> {
    let mut found = HashMap::new();
    let mut directories = vec![(fs.root(), Vec::new())];
    while let Some((directory, above)) = directories.pop() {
        for entry in fs.read_dir(directory)?.from(Cursor::START) {
            let entry = entry?;
            let attributes = fs.attributes(entry.object)?;
            let path = match above.is_empty() {
                true => entry.name,
                false => [above.as_slice(), &entry.name].join(&b'/'),
            };
            if attributes.kind() == FileKind::Directory {
                directories.push((entry.object, path));
            } else if attributes.parent != directory && found.len() < STRAYS_MAX {
                found.entry(entry.object).or_insert(path);
            }
        }
    }
    Ok(found)
}

/// Reads bytes at an offset. Bytes past the end of the file are zeros.
fn fill(file: &File, buf: &mut [u8], at: u64) -> io::Result<()> {
    let mut done = 0;
    while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, at.saturating_add(done as u64)) {
            Ok(0) => {
                rest.fill(0);
                break;
            }
            Ok(len) => done += len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

impl Outside for ShadowSource {
    fn read(&self, ptr: &OutsidePtr, buf: &mut [u8], again: bool) -> io::Result<()> {
        // The file may have been replaced since it was opened, and the dataset by a newer import.
        fill(&*self.file(ptr.place.source, again)?, buf, ptr.place.offset)
    }

    fn describe(&self, ptr: &OutsidePtr) -> String {
        let name = {
            let mut state = self.state.lock();
            match &mut state.directory {
                Some(directory) => directory.path(ptr.place.source).ok(),
                None => None,
            }
        };
        match name {
            Some(name) => self.path.join(String::from_utf8_lossy(&name).as_ref()).display().to_string(),
            None => self.path.display().to_string(),
        }
    }

    fn may_change(&self) -> bool {
        true
    }

    fn lost(&self, ptr: &OutsidePtr, why: Option<&io::Error>) {
        self.note(Suspect { object: ptr.place.source, is_lost: why.is_some() });
    }
}

/// An object with a missing or changed file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Suspect {
    /// Its object number.
    pub object: u64,
    /// Whether its file could not be found or read. Otherwise the file has changed.
    pub is_lost: bool,
}

/// The objects in a list of suspects.
///
/// # Errors
/// If the list exists and cannot be read.
pub fn suspects(list: &Path) -> io::Result<BTreeSet<Suspect>> {
    let file = match File::open(list) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        Err(error) => return Err(error),
    };
    let mut text = Vec::new();
    file.take(LIST_MAX).read_to_end(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    let found = text.lines().filter_map(|line| {
        let (object, why) = line.split_once(' ')?;
        Some(Suspect { object: object.parse().ok()?, is_lost: why == LOST })
    });
    Ok(found.take(SUSPECTS_MAX).collect())
}
