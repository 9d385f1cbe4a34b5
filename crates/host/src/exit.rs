//! Exit statuses (docs/exit-codes.md).

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Everything was done.
    Ok,
    /// It failed. A message on standard error has the reason.
    Failed,
    /// The command line makes no sense; nothing was done.
    Usage,
    /// It was partly done: for the files or datasets without a message on standard error.
    Partial,
    /// As another process ended for us, if not well.
    Other(u8),
}

impl Exit {
    /// The number for the shell.
    pub fn code(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Partial => 3,
            Self::Other(code) => code,
        }
    }

    /// How a command ended that another process did for us.
    pub fn of(code: u8) -> Self {
        if code == 0 { Self::Ok } else { Self::Other(code) }
    }

    /// `Ok` or, if any of several things failed, `Failed`.
    pub fn unless(failed: bool) -> Self {
        if failed { Self::Failed } else { Self::Ok }
    }
}
