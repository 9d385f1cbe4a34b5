//! The names of the program: its own, and those of the ZFS programs that it replaces.
//!
//! `zfs list tank` and `snowmelt zfs list tank` are the same command. A program that is called `zfs` puts this name
//! before the arguments. So the arguments alone have the full meaning, also for the owner of a pool that executes
//! them for another process.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::path::Path;

/// Commands in messages: the ZFS program, its equivalent here, and the verbs that both have.
const QUOTED: [(&str, &str, &[&str]); 2] = [
    (
        "zpool",
        "snowmelt pool",
        &["clear", "destroy", "export", "import", "online", "replace", "resilver", "scrub", "status"],
    ),
    ("zfs", "snowmelt", &["destroy", "holds", "inherit", "mount ", "set "]),
];

/// The program that a command line is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// `snowmelt`, with all its verbs.
    Snowmelt,
    /// `zfs`, with those of zfs(8).
    Zfs,
    /// `zpool`, with those of zpool(8).
    Zpool,
    /// `zstream`, with those of zstream(8).
    Zstream,
}

/// Another name of `zstream dump`.
pub const ZSTREAMDUMP: &str = "zstreamdump";
/// Another name of `snowmelt rsync`.
pub const RSYNC: &str = "rsync";

impl Program {
    /// The names other than its own.
    pub const SHIMS: [Self; 3] = [Self::Zfs, Self::Zpool, Self::Zstream];

    /// The name it is called by.
    pub fn name(self) -> &'static str {
        match self {
            Self::Snowmelt => "snowmelt",
            Self::Zfs => "zfs",
            Self::Zpool => "zpool",
            Self::Zstream => "zstream",
        }
    }

    /// A text with its quoted commands (`'zpool online'`, `'snowmelt set x=y tank'`) changed to those of this
    /// program. Commands that only `snowmelt` has (`'snowmelt check'`) do not change.
    pub fn spoken(self, text: &str) -> Cow<'_, str> {
        let mut spoken = Cow::Borrowed(text);
        for (program, own, verbs) in QUOTED {
            for verb in verbs {
                let (theirs, ours) = (format!("'{program} {verb}"), format!("'{own} {verb}"));
                let (said, meant) = if self == Self::Snowmelt { (theirs, ours) } else { (ours, theirs) };
                if spoken.contains(&said) {
                    spoken = Cow::Owned(spoken.replace(&said, &meant));
                }
            }
        }
        spoken
    }

    /// The program that a command line is for, and the arguments after its name.
    pub fn of(words: &[OsString]) -> (Self, &[OsString]) {
        let first = words.first().and_then(|word| Self::SHIMS.into_iter().find(|shim| word == shim.name()));
        match first {
            Some(shim) => (shim, words.get(1..).unwrap_or_default()),
            None => (Self::Snowmelt, words),
        }
    }

    /// The arguments of a process, with its own name (`argv[0]`) first. If this is `zfs`, it stays the first
    /// argument.
    pub fn words(mut argv: impl Iterator<Item = OsString>) -> Vec<OsString> {
        let called = argv.next().unwrap_or_default();
        let called = Path::new(&called).file_name().and_then(OsStr::to_str).unwrap_or_default();
        if called == ZSTREAMDUMP {
            return ["zstream", "dump"].into_iter().map(OsString::from).chain(argv).collect();
        }
        if called == RSYNC {
            return std::iter::once(OsString::from(RSYNC)).chain(argv).collect();
        }
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
    fn commands_in_messages_are_those_of_the_program_that_was_called() {
        let text = "use 'zpool online' or 'zfs holds -r tank/a', not 'zfs x'";
        let own = "use 'snowmelt pool online' or 'snowmelt holds -r tank/a', not 'zfs x'";
        assert_eq!(Program::Snowmelt.spoken(text), own);
        assert_eq!(Program::Zfs.spoken(text), text);
        assert_eq!(Program::Zpool.spoken(text), text);
        let text = "'snowmelt pool import -F tank' or 'snowmelt set a=b tank', then 'snowmelt check tank'";
        let theirs = "'zpool import -F tank' or 'zfs set a=b tank', then 'snowmelt check tank'";
        assert_eq!(Program::Zfs.spoken(text), theirs);
        assert_eq!(Program::Snowmelt.spoken(text), text);
    }

    #[test]
    fn the_name_it_is_called_by_comes_first() {
        for (argv, expected, program) in [
            ("/usr/bin/snowmelt list tank", "list tank", Program::Snowmelt),
            ("/opt/shims/zfs list tank", "zfs list tank", Program::Zfs),
            ("snowmelt zfs list tank", "zfs list tank", Program::Zfs),
            ("zpool list tank", "zpool list tank", Program::Zpool),
            ("zfs.old list tank", "list tank", Program::Snowmelt),
            ("/sbin/zstream list tank", "zstream list tank", Program::Zstream),
        ] {
            let said = Program::words(words(argv).into_iter());
            assert_eq!(said, words(expected), "{argv}");
            let (found, rest) = Program::of(&said);
            assert_eq!((found, rest), (program, &words("list tank")[..]), "{argv}");
        }
        let said = Program::words(words("/usr/sbin/zstreamdump -v").into_iter());
        assert_eq!(said, words("zstream dump -v"));
        let said = Program::words(words("/usr/local/bin/rsync --daemon").into_iter());
        assert_eq!(said, words("rsync --daemon"));
    }
}
