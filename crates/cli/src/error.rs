//! Why a command ended early.

use std::io;

pub use snowmelt_replicate::error::chain;

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
        Self::Failed(format!("{what}: {}", chain(why)))
    }
}
