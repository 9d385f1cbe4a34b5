//! Makes names and messages from outside safe to print.
//!
//! Such text may contain characters that control a terminal: escape sequences, line breaks, characters that change the
//! text direction. They are replaced here.

use std::borrow::Cow;
use std::fmt::Write;

/// Whether a character controls the terminal instead of being shown.
fn is_unsafe(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// A name on one line. Control characters are shown as `\n`, `\033` and so on (like `ls -b`), bytes that are not UTF-8
/// as `\377`.
#[must_use]
pub fn visible_name(bytes: &[u8]) -> String {
    let mut shown = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        push_visible(&mut shown, chunk.valid(), |_| false);
        push_octal(&mut shown, chunk.invalid());
    }
    shown
}

/// A message: like [`visible_name`], but line breaks and tabs are kept.
#[must_use]
pub fn visible_message(text: &str) -> Cow<'_, str> {
    let stays = |letter: char| matches!(letter, '\n' | '\t');
    if !text.contains(|letter| is_unsafe(letter) && !stays(letter)) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    push_visible(&mut shown, text, stays);
    Cow::Owned(shown)
}

fn push_visible(shown: &mut String, text: &str, stays: impl Fn(char) -> bool) {
    for letter in text.chars() {
        match letter {
            safe if !is_unsafe(safe) || stays(safe) => shown.push(safe),
            '\n' => shown.push_str("\\n"),
            '\r' => shown.push_str("\\r"),
            '\t' => shown.push_str("\\t"),
            other => push_octal(shown, other.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}

fn push_octal(shown: &mut String, bytes: &[u8]) {
    for byte in bytes {
        // Writing to a String cannot fail.
        let _ = write!(shown, "\\{byte:03o}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_one_line_that_no_terminal_obeys() {
        for (name, shown) in [
            (&b"plain name \\ \xc3\xa9"[..], "plain name \\ \u{e9}"),
            (b"\x1b]0;PWNED\x07", "\\033]0;PWNED\\007"),
            (b"a\nb\tc\rd", "a\\nb\\tc\\rd"),
            (b"\xff\x80", "\\377\\200"),
            ("\u{9b}31m\u{202e}".as_bytes(), "\\302\\23331m\\342\\200\\256"),
        ] {
            assert_eq!(visible_name(name), shown);
        }
    }

    #[test]
    fn messages_keep_their_lines() {
        assert_eq!(visible_message("one\n\ttwo"), "one\n\ttwo");
        assert_eq!(visible_message("one\x1b[31m\ntwo\r"), "one\\033[31m\ntwo\\r");
    }
}
