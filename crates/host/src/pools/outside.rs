//! What is outside of a pool, as the pool remembers it (docs/format/pool.md, "External blocks").

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use snowmelt_dataset::Datasets;
use snowmelt_fs::shadow::ShadowSource;
use snowmelt_pool::{Outside, OutsideFile, OutsidePtr, Pool, PoolError};

use super::shadow;

/// The pool's properties.
const KIND: &str = "outside";
const PATH: &str = "outside_path";

/// What a pool refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A file that holds a stream.
    Stream,
    /// The files of a directory.
    Directory,
    /// A disk image or block device.
    Image,
}

impl Kind {
    const ALL: [Kind; 3] = [Kind::Stream, Kind::Directory, Kind::Image];

    fn name(self) -> &'static str {
        match self {
            Kind::Stream => "stream",
            Kind::Directory => "directory",
            Kind::Image => "image",
        }
    }
}

/// Allows a new pool to refer to what is at `path`.
///
/// # Errors
/// When the pool cannot be written.
pub fn refer_to(pool: &Arc<Pool>, kind: Kind, path: &Path) -> Result<(), PoolError> {
    pool.allow_outside();
    let hold = pool.begin()?;
    pool.set_property(&hold, KIND, kind.name().as_bytes())?;
    pool.set_property(&hold, PATH, path.as_os_str().as_bytes())
}

/// What a pool refers to, if it does.
///
/// # Errors
/// When the pool cannot be read.
pub fn of(pool: &Pool) -> Result<Option<(Kind, PathBuf)>, PoolError> {
    let (Some(kind), Some(path)) = (pool.property(KIND)?, pool.property(PATH)?) else { return Ok(None) };
    let kind = Kind::ALL.into_iter().find(|known| kind == known.name().as_bytes());
    Ok(kind.map(|kind| (kind, PathBuf::from(OsStr::from_bytes(&path)))))
}

/// Gives a pool in the directory `place` what it refers to, if it does.
///
/// # Errors
/// When the pool cannot be read.
pub fn attach(datasets: &Arc<Datasets>, place: &Path) -> Result<(), PoolError> {
    let pool = datasets.pool();
    match of(pool)? {
        Some((Kind::Stream, path)) => pool.set_outside(Arc::new(OutsideFile::new(path))),
        Some((Kind::Directory | Kind::Image, path)) => {
            pool.set_outside(Arc::new(ShadowSource::new(path, shadow::suspects(place), datasets)));
        }
        None => {}
    }
    Ok(())
}

/// Lets nothing outside of a pool be read: the pool is another user's, or not in a directory.
///
/// # Errors
/// When the pool cannot be read.
pub fn refuse(datasets: &Datasets) -> Result<(), PoolError> {
    let pool = datasets.pool();
    if let Some((_, path)) = of(pool)? {
        pool.set_outside(Arc::new(Refused(path)));
    }
    Ok(())
}

/// What a pool names that may not name anything.
struct Refused(PathBuf);

impl Outside for Refused {
    fn read(&self, _: &OutsidePtr, _: &mut [u8], _: bool) -> io::Result<()> {
        let why =
            "the pool is not in a directory of this user, so nothing that it names outside of itself is read";
        Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
    }

    fn describe(&self, _: &OutsidePtr) -> String {
        self.0.display().to_string()
    }
}
