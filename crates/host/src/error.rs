//! Why a command ended early.

use std::io;

use snowmelt_dataset::DatasetError;
use snowmelt_pool::PoolError;
pub use snowmelt_replicate::error::chain;
use snowmelt_store::StoreError;
use snowmelt_zpl::SourceError;

/// Why a command ended early. Texts are printed as they are, so they begin as `zfs` begins them
/// (`cannot open 'tank/a': …`).
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The words make no sense together: printed with the usage of the command.
    #[error("{0}")]
    Usage(String),
    /// It failed.
    #[error("{0}")]
    Failed(String),
    /// It failed since there was no room, in a pool or on the disk that it is on.
    #[error("{0}")]
    NoSpace(String),
    /// Another machine does not have the program that was to run there.
    #[error("{0}")]
    NoProgram(String),
    /// It failed, and everything about it was said.
    #[error("failed")]
    Reported,
    /// Standard output could not be written. A reader that went away is no failure.
    #[error("cannot write output: {0}")]
    Output(#[from] io::Error),
}

/// The result of a command, or of a part of one.
pub type Result<T, E = CliError> = std::result::Result<T, E>;

impl CliError {
    /// A failure: `what` names the attempt ("cannot open 'tank'"), `why` the reason, with all its causes.
    pub fn failed(what: impl std::fmt::Display, why: &(dyn std::error::Error + 'static)) -> Self {
        let text = format!("{what}: {}", chain(why));
        if is_no_space(why) { Self::NoSpace(text) } else { Self::Failed(text) }
    }
}

/// Whether an error, or one of its causes, means that a disk or a pool is full. Transparent errors are looked
/// through.
pub fn is_no_space(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        let io = error.downcast_ref::<io::Error>().map(io::Error::kind);
        let is_it = matches!(io, Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded))
            || matches!(error.downcast_ref(), Some(SourceError::NoSpace))
            || matches!(error.downcast_ref(), Some(StoreError::Full { .. }))
            || matches!(error.downcast_ref(), Some(PoolError::NoSpace { .. }))
            || matches!(error.downcast_ref(), Some(DatasetError::Pool(PoolError::NoSpace { .. })));
        if is_it {
            return true;
        }
        cause = error.source();
    }
    false
}
