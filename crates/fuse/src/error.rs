//! Why something cannot be mounted or unmounted.

use std::io;
use std::path::PathBuf;

use snowmelt_fs::vfs::VfsError;

/// A failure to mount or unmount.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// The dataset cannot be opened.
    #[error(transparent)]
    Vfs(#[from] VfsError),
    /// It is mounted already: a dataset has one mount.
    #[error("filesystem already mounted at {}", dir.display())]
    Mounted {
        /// Where.
        dir: PathBuf,
    },
    /// There is no directory to mount on.
    #[error("{}: {source}", dir.display())]
    Directory {
        /// Where it was to be mounted.
        dir: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The system refuses to mount.
    #[error("cannot mount on {}: {source}", dir.display())]
    Mount {
        /// Where it was to be mounted.
        dir: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// There is no FUSE.
    #[error("/dev/fuse: {source}")]
    NoFuse {
        /// The error of the system.
        source: io::Error,
    },
    /// It is in use.
    #[error("{}: the filesystem is in use", dir.display())]
    Busy {
        /// Where it is mounted.
        dir: PathBuf,
    },
    /// The system refuses to change a mount.
    #[error("cannot remount {}: {source}", dir.display())]
    Remount {
        /// Where it is mounted.
        dir: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The system refuses to unmount.
    #[error("cannot unmount {}: {source}", dir.display())]
    Unmount {
        /// Where it is mounted.
        dir: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}
