//! Changes of permissions for `incoming chmod` and `outgoing chmod` (rsync(1), `--chmod`; chmod(1)).

/// Bits that a change without a class (`u`, `g`, `o`, `a`) does not set, like a umask.
const UMASK: u32 = 0o022;
const ALL: u32 = 0o7777;

/// A list of changes, applied in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Chmod(Vec<Change>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Change {
    /// `Some(true)`: the change applies to directories only. `Some(false)`: to everything else only.
    of_directories: Option<bool>,
    clears: u32,
    sets: u32,
    /// Bits that are cleared and set only on directories and on files that have an execute bit.
    clears_executable: u32,
    sets_executable: u32,
}

impl Chmod {
    /// Parses changes such as `Dg+s,ug+w,Fo-w,+X` or `D2775,F664`.
    ///
    /// # Errors
    /// When a part is not a change of permissions.
    pub fn parse(text: &str) -> Result<Self, String> {
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        let parse = |part| parse(part).ok_or_else(|| format!("'{part}' is no change of permissions"));
        parts.map(parse).collect::<Result<_, _>>().map(Self)
    }

    /// The mode after the changes. The file type in it stays.
    pub fn apply(&self, mode: u32, is_dir: bool) -> u32 {
        self.0.iter().fold(mode, |mode, change| {
            if change.of_directories.is_some_and(|of_directories| of_directories != is_dir) {
                return mode;
            }
            let (clears, sets) = match is_dir || mode & 0o111 != 0 {
                true => (change.clears | change.clears_executable, change.sets | change.sets_executable),
                false => (change.clears, change.sets),
            };
            mode & !clears | sets
        })
    }
}

fn parse(text: &str) -> Option<Change> {
    let (of_directories, text) = match text.as_bytes().first()? {
        b'D' => (Some(true), &text[1..]),
        b'F' => (Some(false), &text[1..]),
        _ => (None, text),
    };
    let change = |clears, sets, clears_executable, sets_executable| {
        Some(Change { of_directories, clears, sets, clears_executable, sets_executable })
    };
    if text.starts_with(|first: char| first.is_ascii_digit()) {
        let bits = u32::from_str_radix(text, 8).ok().filter(|bits| *bits <= ALL)?;
        return change(ALL, bits, 0, 0);
    }
    let at = text.find(['+', '-', '='])?;
    // `who` has one bit for each class. `special` has the bit that "s" means for each class.
    let (mut who, mut special) = (0, 0);
    for class in text[..at].chars() {
        match class {
            'u' => (who, special) = (who | 0o100, special | 0o4000),
            'g' => (who, special) = (who | 0o010, special | 0o2000),
            'o' => who |= 0o001,
            'a' => who |= 0o111,
            _ => return None,
        }
    }
    let mask = if at == 0 { !UMASK } else { ALL };
    let who = if at == 0 { 0o111 } else { who };
    let (mut bits, mut top, mut executable) = (0, 0, 0);
    for letter in text[at + 1..].chars() {
        match letter {
            'r' => bits |= (who * 4) & mask,
            'w' => bits |= (who * 2) & mask,
            'x' => bits |= who & mask,
            'X' => executable |= who & mask,
            's' => top |= if special == 0 { 0o4000 } else { special },
            't' => top |= 0o1000,
            _ => return None,
        }
    }
    match text.as_bytes()[at] {
        b'+' => change(0, bits | top, 0, executable),
        b'-' => change(bits | top, 0, executable, 0),
        _ => change((who * 7) | if top == 0 { 0 } else { special | top }, bits | top, 0, executable),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_change_as_in_the_manual() {
        for (text, mode, is_dir, expected) in [
            ("D2775,F664", 0o700, true, 0o2775),
            ("D2775,F664", 0o100_700, false, 0o100_664),
            ("Dg+s,ug+w,Fo-w,+X", 0o505, true, 0o2735),
            ("Dg+s,ug+w,Fo-w,+X", 0o446, false, 0o664),
            ("a+X", 0o644, false, 0o644),
            ("a+X", 0o744, false, 0o755),
            ("go=", 0o4777, false, 0o4700),
            ("u=rws,+t", 0o077, false, 0o5677),
            ("+w", 0o444, false, 0o644),
            ("a-x", 0o755, false, 0o644),
            ("", 0o755, false, 0o755),
        ] {
            assert_eq!(Chmod::parse(text).unwrap().apply(mode, is_dir), expected, "{text} {mode:o}");
        }
        for bad in ["x", "u", "u*r", "z+r", "u+q", "99", "17777", "D", "é+r"] {
            assert!(Chmod::parse(bad).is_err(), "{bad}");
        }
    }
}
