//! Pools that the program makes for itself.

use std::path::Path;
use std::sync::Arc;

use snowmelt_dataset::Datasets;
use snowmelt_pool::{NewPool, Pool, PoolOptions};
use snowmelt_store::{CreateOptions, Location, PoolLabel};

use crate::error::{CliError, Result};

/// Creates a pool in a directory that does not exist yet. Missing parents are created too, with access only for the
/// user.
///
/// # Errors
/// When it cannot be created. `attempt` is the beginning of the message.
pub fn create_private(directory: &Path, name: &str, attempt: &str) -> Result<Arc<Datasets>> {
    use std::os::unix::fs::DirBuilderExt;
    let failed = |error: &(dyn std::error::Error + 'static)| CliError::failed(attempt, error);
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .map_err(|error| failed(&error))?;
    let guid = random_guid(attempt)?;
    let label = PoolLabel { name: name.to_owned(), guid };
    let options = CreateOptions { label, size: None, force: false };
    let store = snowmelt_store::create(&Location::Directory(directory.to_owned()), &options)
        .map_err(|error| failed(&error))?;
    let pool = Pool::create(store, &NewPool { name, guid }, PoolOptions::default())
        .map_err(|error| failed(&error))?;
    Datasets::create(pool).map_err(|error| failed(&error))
}

/// A guid for a new pool.
///
/// # Errors
/// When the system has no random numbers.
pub fn random_guid(attempt: &str) -> Result<u64> {
    let mut bytes = [0; 8];
    loop {
        match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
            Ok(8) if bytes != [0; 8] => return Ok(u64::from_le_bytes(bytes)),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(CliError::failed(attempt, &error)),
        }
    }
}
