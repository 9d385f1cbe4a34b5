//! How a filesystem compares names: its `casesensitivity` and `normalization` properties.

use crate::normalize::NormFlags;
use crate::zap::Matching;

/// `casesensitivity`, fixed when the filesystem is created (`ZFS_CASE_*` of `include/sys/zfs_ioctl.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CaseSensitivity {
    /// Names are case-sensitive.
    #[default]
    Sensitive,
    /// Names are case-insensitive.
    Insensitive,
    /// Names are case-sensitive for POSIX callers. Other callers may ask for case-insensitive lookups.
    Mixed,
}

/// The rules by which the names of one filesystem are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NamePolicy {
    /// `casesensitivity`.
    pub case: CaseSensitivity,
    /// `normalization`, without the case folding.
    pub normalization: NormFlags,
    /// `utf8only`.
    pub utf8_only: bool,
}

impl NamePolicy {
    /// How a POSIX lookup compares names (`zfs_dirent_lock` of `zfs_dir.c`).
    pub fn matching(&self) -> Matching {
        match self.case {
            CaseSensitivity::Sensitive if self.normalization.is_none() => Matching::Exact,
            CaseSensitivity::Sensitive | CaseSensitivity::Insensitive => Matching::Normalized,
            CaseSensitivity::Mixed => Matching::NormalizedCaseSensitive,
        }
    }
}
