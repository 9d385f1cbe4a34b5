//! Parses rsync's reports of changes: lines of `--itemize-changes` and of log files (`--log-file`), as rsync(1)
//! describes them at `--itemize-changes`, `--log-file-format` and `--8-bit-output`.

/// The letters of an item: the operation, the kind of file, and the attributes that differed.
const DONE: &[u8] = b"<>ch.";
const KINDS: &[u8] = b"fdLDS";
const ATTRIBUTES: &[u8] = b".+?cstTpoguaxnb ";
/// Length of an item, without the space after it.
const ITEM_LEN: usize = 11;
const DELETING: &[u8] = b"*deleting ";

/// The paths in a line, relative to the directory that was written to. Empty if the line is about no file.
///
/// Where the end of a name is ambiguous (`a -> b`), all possible names are returned.
pub fn changed_paths(line: &[u8]) -> Vec<Vec<u8>> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let Some((item, rest)) = item(line).or_else(|| item(after_time(line)?)) else { return Vec::new() };
    let arrow: &[u8] = match item {
        [b'*', ..] => return vec![unescaped(rest)],
        [b'h', ..] => b" => ",
        [_, b'L', ..] => b" -> ",
        _ => return vec![unescaped(rest)],
    };
    let mut found = vec![unescaped(rest)];
    for (at, _) in rest.windows(arrow.len()).enumerate().filter(|(_, window)| *window == arrow) {
        found.push(unescaped(&rest[..at]));
        // The other name of a hard link counts too, because its link count changed.
        if item.starts_with(b"h") {
            found.push(unescaped(&rest[at + arrow.len()..]));
        }
    }
    found
}

/// An item and the rest of the line.
fn item(line: &[u8]) -> Option<(&[u8], &[u8])> {
    if let Some(rest) = line.strip_prefix(DELETING) {
        return Some((DELETING, rest.strip_prefix(b"  ").unwrap_or(rest)));
    }
    let (item, rest) = line.split_at_checked(ITEM_LEN)?;
    let rest = rest.strip_prefix(b" ")?;
    let [done, kind, attributes @ ..] = item else { return None };
    let is_item = DONE.contains(done)
        && KINDS.contains(kind)
        && attributes.iter().all(|attribute| ATTRIBUTES.contains(attribute));
    (is_item && !rest.is_empty()).then_some((item, rest))
}

/// A line of a log file without its prefix, for example `2026/11/21 22:43:12 [1234] `.
fn after_time(line: &[u8]) -> Option<&[u8]> {
    let end = line.windows(2).take(64).position(|two| two == b"] ")?;
    let start = line.get(..end)?.iter().position(|byte| *byte == b'[')?;
    let is_number = line.get(start + 1..end)?.iter().all(u8::is_ascii_digit);
    let is_time = line.get(..start)?.iter().all(|byte| byte.is_ascii_digit() || b"/: ".contains(byte));
    if is_number && is_time { line.get(end + 2..) } else { None }
}

/// Replaces `\#ooo`, an octal number, by the unprintable byte that it stands for.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut left = text;
    while let Some((first, rest)) = left.split_first() {
        let escaped = match left {
            [b'\\', b'#', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', rest @ ..] => {
                Some(((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'), rest))
            }
            _ => None,
        };
        let (byte, rest) = escaped.unwrap_or((*first, rest));
        out.push(byte);
        left = rest;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(line: &str) -> Vec<String> {
        changed_paths(line.as_bytes()).into_iter().map(|path| String::from_utf8(path).unwrap()).collect()
    }

    #[test]
    fn items_and_lines_of_logs_are_understood() {
        for (line, expected) in [
            (">f+++++++++ a/b c\n", &["a/b c"][..]),
            (".d..t...... ./", &["./"]),
            ("cd+++++++++ new/", &["new/"]),
            ("*deleting   old/x", &["old/x"]),
            ("2026/11/21 22:43:12 [1234] >f.st...... pool/x.deb", &["pool/x.deb"]),
            ("2026/11/21 22:43:12 [1234] *deleting   pool/ y", &["pool/ y"]),
            ("cL+++++++++ l -> t -> u", &["l -> t -> u", "l", "l -> t"]),
            ("hf+++++++++ a => b", &["a => b", "a", "b"]),
            (">f..T...... n\\#012\\#134#101", &["n\n\\#101"]),
            (">f.st...... a b => c", &["a b => c"]),
            ("2026/11/21 22:43:12 [1234] sent 12 bytes  received 5 bytes  total size 7", &[]),
            ("building file list", &[]),
            ("sending incremental file list", &[]),
            (">f+++++++++ ", &[]),
            ("", &[]),
        ] {
            assert_eq!(paths(line), expected, "{line}");
        }
    }
}
