//! The names that the program goes by: its own, and those of the two programs of ZFS that it stands in for.
//!
//! `zfs list tank` and `snowmelt zfs list tank` are the same words: whoever is called `zfs` puts that name first, so that
//! the words alone say what is meant, also to the owner of a pool that carries them out for somebody else.

use std::ffi::{OsStr, OsString};
use std::path::Path;

/// Who the words are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// `snowmelt`, with all its verbs.
    Snowmelt,
    /// `zfs`, with those of zfs(8).
    Zfs,
    /// `zpool`, with those of zpool(8).
    Zpool,
}

impl Program {
    /// The names other than its own.
    pub const SHIMS: [Self; 2] = [Self::Zfs, Self::Zpool];

    /// The name it is called by.
    pub fn name(self) -> &'static str {
        match self {
            Self::Snowmelt => "snowmelt",
            Self::Zfs => "zfs",
            Self::Zpool => "zpool",
        }
    }

    /// Who the words are for, and the words after its name.
    pub fn of(words: &[OsString]) -> (Self, &[OsString]) {
        let first = words.first().and_then(|word| Self::SHIMS.into_iter().find(|shim| word == shim.name()));
        match first {
            Some(shim) => (shim, words.get(1..).unwrap_or_default()),
            None => (Self::Snowmelt, words),
        }
    }

    /// The words of a process, its own name (`argv[0]`) first: who is called `zfs` keeps that name as the first word.
    pub fn words(mut argv: impl Iterator<Item = OsString>) -> Vec<OsString> {
        let called = argv.next().unwrap_or_default();
        let called = Path::new(&called).file_name().and_then(OsStr::to_str).unwrap_or_default();
        let shim = Self::SHIMS.into_iter().find(|shim| shim.name() == called);
        shim.map(|shim| shim.name().into()).into_iter().chain(argv).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(Into::into).collect()
    }

    #[test]
    fn the_name_it_is_called_by_comes_first() {
        for (argv, expected, program) in [
            ("/usr/bin/snowmelt list tank", "list tank", Program::Snowmelt),
            ("/opt/shims/zfs list tank", "zfs list tank", Program::Zfs),
            ("snowmelt zfs list tank", "zfs list tank", Program::Zfs),
            ("zpool list tank", "zpool list tank", Program::Zpool),
            ("zfs.old list tank", "list tank", Program::Snowmelt),
        ] {
            let said = Program::words(words(argv).into_iter());
            assert_eq!(said, words(expected), "{argv}");
            let (found, rest) = Program::of(&said);
            assert_eq!((found, rest), (program, &words("list tank")[..]), "{argv}");
        }
    }
}
