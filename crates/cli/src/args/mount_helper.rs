//! `mount.zfs`: the helper of mount(8) for `mount -t zfs tank/home /mnt` and for lines of /etc/fstab.
//!
//! `mount.zfs [-sfnvh] [-N namespace] [-o options] [-t type] DATASET DIRECTORY`, with options at any
//! position: mount(8) puts them last (mount.zfs(8); "external helpers" in mount(8)). `mount` does the work. The exit
//! statuses are those of mount(8).

use std::ffi::{OsStr, OsString};
use std::path::Path;

use crate::exit::Exit;

/// The names of the helper. The second is for machines on which OpenZFS has the first. mount(8) looks for the last one
/// if no type is given: the kernel reports this type for a mount.
const NAMES: [&str; 3] = ["mount.zfs", "mount.snowmelt", "mount.fuse.snowmelt"];
/// mount(8): "incorrect invocation or permissions", and "mount failure".
const STATUS_USAGE: u8 = 1;
const STATUS_FAILED: u8 = 32;

const USAGE: &str = "usage: mount.zfs [-sfnvh] [-o options] <dataset> <mountpoint>";

/// The arguments of `mount` for the arguments of a process, with its own name first. `None` if this is not the helper.
///
/// # Errors
/// The text to print instead.
pub fn words(argv: &[OsString]) -> Option<Result<Vec<OsString>, String>> {
    let (called, words) = argv.split_first()?;
    let called = Path::new(called).file_name().and_then(OsStr::to_str)?;
    NAMES.contains(&called).then(|| {
        let mut said = translate(words)?;
        if called == NAMES[0] {
            said.insert(1, "--only-legacy".into());
        }
        Ok(said)
    })
}

fn translate(words: &[OsString]) -> Result<Vec<OsString>, String> {
    let mut said: Vec<OsString> = vec!["mount".into()];
    let mut places: Vec<OsString> = Vec::new();
    let mut words = words.iter();
    let mut only_places = false;
    while let Some(word) = words.next() {
        let letters =
            word.to_str().and_then(|word| word.strip_prefix('-')).filter(|letters| !letters.is_empty());
        let Some(letters) = letters.filter(|_| !only_places) else {
            places.push(word.clone());
            continue;
        };
        if letters == "-" {
            only_places = true;
            continue;
        }
        for (at, letter) in letters.char_indices() {
            let rest = &letters[at + letter.len_utf8()..];
            let mut value = || match rest {
                "" => words
                    .next()
                    .cloned()
                    .ok_or_else(|| format!("option requires an argument -- '{letter}'\n{USAGE}")),
                rest => Ok(OsString::from(rest)),
            };
            match letter {
                's' => said.push("--sloppy".into()),
                'f' => said.push("--fake".into()),
                'v' => said.push("-v".into()),
                // There is no /etc/mtab to be written.
                'n' => {}
                'o' => said.extend(["-o".into(), value()?]),
                't' => drop(value()?),
                'N' => return Err("mounting in another namespace is not supported".to_owned()),
                'h' => return Err(USAGE.to_owned()),
                other => return Err(format!("invalid option -- '{other}'\n{USAGE}")),
            }
            if matches!(letter, 'o' | 't') {
                break;
            }
        }
    }
    match <[OsString; 2]>::try_from(places) {
        Ok(places) => {
            said.push("--".into());
            said.extend(places);
            Ok(said)
        }
        Err(_) => Err(USAGE.to_owned()),
    }
}

/// Converts the exit status of `mount` to that of mount(8).
pub fn status(exit: Exit) -> Exit {
    match exit.code() {
        0 => Exit::Ok,
        2 => Exit::Other(STATUS_USAGE),
        _ => Exit::Other(STATUS_FAILED),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(Into::into).collect()
    }

    #[test]
    fn options_may_come_last() {
        for (given, expected) in [
            ("tank/home /mnt", "mount -- tank/home /mnt"),
            ("tank/home /mnt -o rw,noatime", "mount -o rw,noatime -- tank/home /mnt"),
            ("-sno ro tank/home /mnt -v", "mount --sloppy -o ro -v -- tank/home /mnt"),
            ("-oro -t zfs -f tank /mnt", "mount -o ro --fake -- tank /mnt"),
            ("-- -odd /mnt", "mount -- -odd /mnt"),
        ] {
            assert_eq!(translate(&words(given)), Ok(words(expected)), "{given}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for given in ["tank", "tank /mnt /other", "tank /mnt -o", "tank /mnt -x", "-h", "tank /mnt -N 7"] {
            assert!(translate(&words(given)).is_err(), "{given}");
        }
    }
}
