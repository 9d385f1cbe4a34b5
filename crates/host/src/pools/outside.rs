//! Files outside of a pool that the pool refers to (docs/format/pool.md, "External blocks").

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use snowmelt_dataset::Datasets;
use snowmelt_fs::shadow::ShadowSource;
use snowmelt_pool::{Outside, OutsideFile, OutsidePtr, Pool, PoolError};

use super::shadow;

use snowmelt_pool::{OUTSIDE_PATH_PROPERTY as PATH, OUTSIDE_PROPERTY as KIND};

/// The file that a pool refers to.
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

/// The file that a pool refers to, if there is one.
///
/// # Errors
/// When the pool cannot be read.
pub fn of(pool: &Pool) -> Result<Option<(Kind, PathBuf)>, PoolError> {
    let (Some(kind), Some(path)) = (pool.property(KIND)?, pool.property(PATH)?) else { return Ok(None) };
    let kind = Kind::ALL.into_iter().find(|known| kind == known.name().as_bytes());
    Ok(kind.map(|kind| (kind, PathBuf::from(OsStr::from_bytes(&path)))))
}

/// Attaches the file that a pool in the directory `place` refers to, if there is one.
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

/// The file of a pool that must not refer to any.
struct Refused(PathBuf);

impl Outside for Refused {
    fn read(&self, _: &OutsidePtr, _: &mut [u8], _: bool) -> io::Result<()> {
        let why = "the pool is not in a directory of this user, so files outside of the pool are not read";
        Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
    }

    fn describe(&self, _: &OutsidePtr) -> String {
        self.0.display().to_string()
    }
}
