//! The transfer log (`transfer logging`, `log format`).

use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use crate::client::{Observer, itemize};
use crate::source::Metadata;

/// The format of a line of the transfer log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogFormat(Vec<Part>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    /// A field: the letter after a "%", and what stands between the two. That is how numbers are written, the least
    /// width in characters, and whether the text is aligned to the left.
    Field {
        letter: char,
        readable: Readable,
        width: usize,
        at_left: bool,
    },
}

/// How a number is written, as the apostrophes before the letter say (rsync(1), `--human-readable`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Readable {
    /// The digits alone.
    Plain,
    /// With a comma before each group of three digits.
    Grouped,
    /// In units. Each is this many times the one before it.
    Units(u16),
}

impl Readable {
    fn of(apostrophes: usize) -> Self {
        match apostrophes {
            0 => Self::Plain,
            1 => Self::Grouped,
            2 => Self::Units(1000),
            _ => Self::Units(1024),
        }
    }

    fn text(self, number: u64) -> String {
        let digits = number.to_string();
        match self {
            Self::Units(each) if number >= each.into() => {
                let mut left = number as f64 / f64::from(each);
                let mut unit = 'K';
                for larger in "MGTP".chars() {
                    if left < f64::from(each) {
                        break;
                    }
                    left /= f64::from(each);
                    unit = larger;
                }
                format!("{left:.2}{unit}")
            }
            Self::Grouped => {
                let groups = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy);
                groups.collect::<Vec<_>>().join(",")
            }
            _ => digits,
        }
    }
}

/// The known letters.
const FIELDS: &str = "abcfhilmnoptuBCGLMPU";
/// The greatest width of a field.
const WIDTH_MAX: usize = 1000;
/// rsync's default format.
const DEFAULT: &str = "%o %h [%a] %m (%u) %f %l";

/// The names of operations.
pub(crate) const SENT: &str = "send";
pub(crate) const DELETED: &str = "del.";

/// An operation on a file.
#[derive(Debug, Clone, Copy)]
pub struct Event<'a> {
    /// `send`, `recv` or `del.`.
    pub operation: &'static str,
    /// The path in the module.
    pub path: &'a [u8],
    /// The path in the transfer.
    pub name: &'a [u8],
    /// The metadata of the file.
    pub metadata: Metadata,
    /// Bytes of the file's data on the wire.
    pub bytes: u64,
    /// Bytes of block checksums that were received before the file was sent.
    pub sums: u64,
    /// The digest of the content.
    pub digest: &'a [u8],
    /// What changed, as the bits in a request.
    pub flags: u16,
}

/// Formats a time in seconds since 1970 for the log: `2026/11/22 14:50:01`.
pub type TimeText = dyn Fn(i64) -> String + Send + Sync;

/// Writes the messages of a client to the log.
pub(super) struct ClientMessages {
    pub(super) log: Arc<super::Log>,
    pub(super) file: Option<PathBuf>,
    /// The client.
    pub(super) peer: String,
}

impl Observer for ClientMessages {
    fn message(&self, line: &str) {
        (self.log)(self.file.as_deref(), &format!("{}: {line}", self.peer));
    }

    fn change(&self, _: &str, _: &str) {}
}

/// The values that are the same for a whole connection.
#[derive(Debug, Clone, Default)]
pub struct LogContext {
    /// The address of the client.
    pub address: String,
    /// The name of the client, if lines use it.
    pub host: String,
    /// The name of the module.
    pub module: String,
    /// The path of the module.
    pub path: String,
    /// The name of the user that logged in.
    pub user: String,
}

impl Default for LogFormat {
    fn default() -> Self {
        Self::parse(DEFAULT).unwrap_or(Self(Vec::new()))
    }
}

impl LogFormat {
    /// Parses a format, with letters after "%".
    ///
    /// # Errors
    /// When a letter is not known.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut left = text.chars().peekable();
        let mut plain = String::new();
        while let Some(c) = left.next() {
            if c != '%' {
                plain.push(c);
                continue;
            }
            let apostrophes = std::iter::from_fn(|| left.next_if_eq(&'\'')).count();
            let at_left = left.next_if_eq(&'-').is_some();
            let digits: String = std::iter::from_fn(|| left.next_if(char::is_ascii_digit)).collect();
            let width = if digits.is_empty() { Some(0) } else { digits.parse().ok() };
            let width = width.filter(|width| *width <= WIDTH_MAX);
            let width =
                width.ok_or_else(|| format!("log format: a field is {WIDTH_MAX} letters wide at most"))?;
            match left.next() {
                Some('%') => plain.push('%'),
                Some(letter) if FIELDS.contains(letter) => {
                    parts.push(Part::Text(std::mem::take(&mut plain)));
                    parts.push(Part::Field { letter, readable: Readable::of(apostrophes), width, at_left });
                }
                other => return Err(format!("log format: '%{}' is not known here", other.unwrap_or(' '))),
            }
        }
        parts.push(Part::Text(plain));
        Ok(Self(parts))
    }

    /// Whether the format has the name of the client.
    pub(crate) fn tells_host(&self) -> bool {
        self.0.iter().any(|part| matches!(part, Part::Field { letter: 'h', .. }))
    }

    /// The line for one file.
    pub(crate) fn line(&self, context: &LogContext, event: &Event<'_>, time: &TimeText) -> String {
        let metadata = &event.metadata;
        let field = |letter: char, readable: Readable| match letter {
            'a' => context.address.clone(),
            'h' => context.host.clone(),
            'b' => readable.text(event.bytes),
            'c' => readable.text(event.sums),
            'C' => event.digest.iter().map(|byte| format!("{byte:02x}")).collect(),
            'f' => printable(event.path),
            'n' => printable(event.name),
            'l' => readable.text(event.metadata.size),
            'm' => context.module.clone(),
            'o' => event.operation.to_owned(),
            'i' if event.operation == DELETED => format!("*{:<10}", "deleting"),
            'i' => itemize(event.flags, metadata.mode, if event.operation == SENT { '<' } else { '>' }),
            't' => time(now()),
            'M' => time(metadata.mtime.seconds).replace(' ', "-"),
            'B' => permissions(metadata.mode),
            'p' => std::process::id().to_string(),
            'P' => context.path.clone(),
            'u' => context.user.clone(),
            'U' => event.metadata.uid.to_string(),
            'G' => event.metadata.gid.to_string(),
            _ => String::new(),
        };
        self.0
            .iter()
            .map(|part| match part {
                Part::Text(text) => text.clone(),
                Part::Field { letter, readable, width, at_left } => {
                    let text = field(*letter, *readable);
                    // rsync writes an arrow before the target of a link. Without a target, spaces stand in its place.
                    let before = if *letter == 'L' && *width > 0 { "    " } else { "" };
                    match at_left {
                        true => format!("{before}{text:<width$}"),
                        false => format!("{before}{text:>width$}"),
                    }
                }
            })
            .collect()
    }
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

/// Permissions as `ls` shows them, without the file type: `rwxr-xr-x`.
fn permissions(mode: u32) -> String {
    let bit = |bit: u32, letter: char| if mode & bit != 0 { letter } else { '-' };
    // The letter in the place of "x", with set-user-ID, set-group-ID and the sticky bit.
    let run = |bit: u32, special: u32, letter: char| match (mode & special != 0, mode & bit != 0) {
        (false, true) => 'x',
        (false, false) => '-',
        (true, true) => letter,
        (true, false) => letter.to_ascii_uppercase(),
    };
    let triples = [(0o400, 0o4000, 's'), (0o040, 0o2000, 's'), (0o004, 0o1000, 't')];
    let letters = triples.map(|(read, special, letter)| {
        [bit(read, 'r'), bit(read >> 1, 'w'), run(read >> 2, special, letter)]
    });
    letters.as_flattened().iter().collect()
}

/// A path with control characters escaped, so that it stays on one line.
fn printable(path: &[u8]) -> String {
    String::from_utf8_lossy(path)
        .chars()
        .flat_map(|c| if c.is_control() { c.escape_default().collect::<Vec<_>>() } else { vec![c] })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::receiver::item;
    use crate::source::{Time, kind};

    #[test]
    fn lines_are_made_as_the_manual_has_it() {
        let context = LogContext { address: "::1".into(), module: "m".into(), ..LogContext::default() };
        let mtime = Time { seconds: 86_400, nanoseconds: 0 };
        let metadata = Metadata { mode: kind::FILE | 0o4754, size: 12, mtime, ..Metadata::default() };
        let flags = item::TRANSFER | item::SIZE;
        let (sums, digest) = (5, &b"\x0f\xf0"[..]);
        let event =
            Event { operation: SENT, path: b"a/b", name: b"b", metadata, bytes: 7, sums, digest, flags };
        assert_eq!(LogFormat::parse("%c %C").unwrap().line(&context, &event, &|_| String::new()), "5 0ff0");
        let line = |format: &str, event: &Event<'_>| {
            let time = |seconds: i64| format!("day {}", seconds / 86_400);
            LogFormat::parse(format).unwrap().line(&context, event, &time)
        };
        assert_eq!(line("%i %B %M|%L|%5l|%-5n|%%", &event), "<f.s....... rwsr-xr-- day-1||   12|b    |%");
        assert!(line("%t", &event).starts_with("day 2"));
        assert_eq!(line("%3L|", &event), "       |");
        let deleted = Event { operation: DELETED, flags: 0, ..event };
        assert_eq!(line("%i %n", &deleted), "*deleting   b");
        assert_eq!(permissions(0o3071), "---rwS--t".replace("rwS", "rws"));
        assert_eq!(permissions(0o7000), "--S--S--T");
        let large = Event { metadata: Metadata { size: 12_345_678, ..metadata }, bytes: 999, ..event };
        assert_eq!(line("%l %'l %''l %'''l %'b %''b", &large), "12345678 12,345,678 12.35M 11.77M 999 999");
        assert_eq!(line("%'-12l|%'u|", &large), "12,345,678  ||");
        assert_eq!(Readable::Units(1000).text(u64::MAX), "18446.74P");
        for wrong in ["%z", "%", "%5", "%1001l", "%l %'"] {
            assert!(LogFormat::parse(wrong).is_err(), "{wrong}");
        }
    }
}
