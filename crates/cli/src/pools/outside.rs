//! What is outside of a pool, as the pool remembers it (docs/format/pool.md, "Blocks outside the pool").

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use snowmelt_dataset::Datasets;
use snowmelt_pool::{OutsideFile, Pool, PoolError};

/// The pool's properties.
const KIND: &str = "outside";
const PATH: &str = "outside_path";

const STREAM: &[u8] = b"stream";

/// Allows a new pool to refer to a stream file, and says where that is.
///
/// # Errors
/// When the pool cannot be written.
pub fn refer_to_stream(pool: &Arc<Pool>, file: &Path) -> Result<(), PoolError> {
    pool.allow_outside();
    let hold = pool.begin()?;
    pool.set_property(&hold, KIND, STREAM)?;
    pool.set_property(&hold, PATH, file.as_os_str().as_bytes())?;
    drop(hold);
    pool.set_outside(Arc::new(OutsideFile::new(file)));
    Ok(())
}

/// Gives a pool that was opened what it refers to, if it does.
///
/// # Errors
/// When the pool cannot be read.
pub fn attach(datasets: &Datasets) -> Result<(), PoolError> {
    let pool = datasets.pool();
    let (Some(kind), Some(path)) = (pool.property(KIND)?, pool.property(PATH)?) else { return Ok(()) };
    let path = PathBuf::from(OsStr::from_bytes(&path));
    if kind == STREAM {
        pool.set_outside(Arc::new(OutsideFile::new(path)));
    }
    Ok(())
}
