//! The table of mounts of the system: `/proc/self/mountinfo` (proc_pid_mountinfo(5)).

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// The kernel's name for the type of our mounts.
const TYPE: &[u8] = b"fuse.snowmelt";

/// A dataset or snapshot that some process has mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mounted {
    /// Its full name.
    pub name: String,
    /// Where it is mounted.
    pub dir: PathBuf,
    /// It cannot be written.
    pub read_only: bool,
}

impl Mounted {
    /// Whether the process that serves it still runs. This needs a request to it, because the kernel's cache of a
    /// mount outlives the server.
    pub fn is_alive(&self) -> bool {
        is_alive(&self.dir)
    }
}

/// Whether no mount whose server has died is at `dir`.
pub fn is_alive(dir: &Path) -> bool {
    !matches!(rustix::fs::statfs(dir), Err(Errno::NOTCONN | Errno::CONNABORTED))
}

/// All mounts of the system, in the order of mounting.
///
/// # Errors
/// When the table cannot be read.
pub fn mounted() -> io::Result<Vec<Mounted>> {
    Ok(parse(&std::fs::read("/proc/self/mountinfo")?))
}

fn parse(table: &[u8]) -> Vec<Mounted> {
    table.split(|byte| *byte == b'\n').filter_map(parse_line).collect()
}

fn parse_line(line: &[u8]) -> Option<Mounted> {
    let mut fields = line.split(|byte| *byte == b' ');
    let dir = fields.nth(4)?;
    let options = fields.next()?;
    let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
    if rest.next()? != TYPE {
        return None;
    }
    Some(Mounted {
        name: String::from_utf8(unescape(rest.next()?)).ok()?,
        dir: PathBuf::from(OsString::from_vec(unescape(dir))),
        read_only: options.split(|byte| *byte == b',').any(|option| option == b"ro"),
    })
}

/// `\040` is a blank: the kernel writes blanks, tabs, line ends and backslashes as octal numbers.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        let digits = (byte == b'\\').then(|| after.first_chunk::<3>()).flatten();
        let octal = digits.and_then(|digits| {
            digits.iter().try_fold(0_u32, |number, digit| {
                matches!(digit, b'0'..=b'7').then(|| number * 8 + u32::from(digit - b'0'))
            })
        });
        match octal.and_then(|number| u8::try_from(number).ok()) {
            Some(escaped) => {
                out.push(escaped);
                rest = &after[3..];
            }
            None => {
                out.push(byte);
                rest = after;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ours_are_found() {
        let table = b"22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
            90 22 0:50 / /mnt/a\\040b rw,nosuid shared:9 master:1 - fuse.snowmelt tank/a\\040b rw,user_id=0\n\
            91 22 0:51 / /mnt/s ro,relatime - fuse.snowmelt tank/x@monday rw,user_id=0\n\
            92 22 0:52 / /mnt/o ro - fuse.sshfs host: rw\n\
            short\n";
        let found = parse(table);
        let expected = [("tank/a b", "/mnt/a b", false), ("tank/x@monday", "/mnt/s", true)];
        let expected =
            expected.map(|(name, dir, read_only)| Mounted { name: name.into(), dir: dir.into(), read_only });
        assert_eq!(found, expected);
    }

    #[test]
    fn backslashes_are_left_where_they_mean_nothing() {
        assert_eq!(unescape(b"a\\134b\\9\\77"), b"a\\b\\9\\77");
        assert_eq!(unescape(b"\\777"), b"\\777");
    }
}
