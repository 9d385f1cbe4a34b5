//! Patterns with wildcards: `*` and `?` stop at slashes, `**` does not, `[a-z]` is a set, a backslash takes what follows
//! as it is.

/// Steps tried on one name: with many stars, all ways to share a name among them would be too many.
const STEPS_MAX: usize = 100_000;

/// Whether all of `text` is as the pattern says.
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let mut steps = 0;
    run(pattern, text, &mut steps) == Some(true)
}

/// `None` when it took too long.
fn run(mut pattern: &[u8], mut text: &[u8], steps: &mut usize) -> Option<bool> {
    loop {
        *steps += 1;
        if *steps > STEPS_MAX {
            return None;
        }
        match pattern {
            [] => return Some(text.is_empty()),
            [b'*', b'*', rest @ ..] => return star(skip_stars(rest), text, true, steps),
            [b'*', rest @ ..] => return star(rest, text, false, steps),
            _ => {}
        }
        let [first, later @ ..] = text else { return Some(false) };
        let (is_match, rest) = one(pattern, *first);
        if !is_match {
            return Some(false);
        }
        (pattern, text) = (rest, later);
    }
}

fn skip_stars(mut pattern: &[u8]) -> &[u8] {
    while let [b'*', rest @ ..] = pattern {
        pattern = rest;
    }
    pattern
}

fn star(rest: &[u8], text: &[u8], crosses: bool, steps: &mut usize) -> Option<bool> {
    for at in 0..=text.len() {
        if run(rest, &text[at..], steps)? {
            return Some(true);
        }
        if !crosses && text.get(at) == Some(&b'/') {
            break;
        }
    }
    Some(false)
}

/// Whether the pattern's first element is this byte, and what follows it.
fn one(pattern: &[u8], byte: u8) -> (bool, &[u8]) {
    match pattern {
        [b'?', rest @ ..] => (byte != b'/', rest),
        [b'\\', literal, rest @ ..] => (*literal == byte, rest),
        [b'[', rest @ ..] => match set(rest, byte) {
            Some((is_in, rest)) => (is_in && byte != b'/', rest),
            None => (byte == b'[', rest),
        },
        [literal, rest @ ..] => (*literal == byte, rest),
        [] => (false, pattern),
    }
}

/// A set, after its opening bracket; `None` if it has no end.
fn set(pattern: &[u8], byte: u8) -> Option<(bool, &[u8])> {
    let (negated, mut rest) = match pattern {
        [b'!' | b'^', rest @ ..] => (true, rest),
        _ => (false, pattern),
    };
    let (mut is_in, mut is_first) = (false, true);
    loop {
        match rest {
            [] => return None,
            [b']', after @ ..] if !is_first => return Some((is_in != negated, after)),
            [b'[', b':', after @ ..] => {
                let end = after.windows(2).position(|pair| pair == b":]")?;
                is_in |= class(&after[..end], byte);
                rest = &after[end + 2..];
            }
            _ => {
                let (low, after) = literal(rest)?;
                match after {
                    [b'-', after @ ..] if after.first().is_some_and(|byte| *byte != b']') => {
                        let (high, after) = literal(after)?;
                        is_in |= (low..=high).contains(&byte);
                        rest = after;
                    }
                    _ => {
                        is_in |= low == byte;
                        rest = after;
                    }
                }
            }
        }
        is_first = false;
    }
}

fn literal(pattern: &[u8]) -> Option<(u8, &[u8])> {
    match pattern {
        [b'\\', byte, rest @ ..] | [byte, rest @ ..] => Some((*byte, rest)),
        [] => None,
    }
}

fn class(name: &[u8], byte: u8) -> bool {
    match name {
        b"alnum" => byte.is_ascii_alphanumeric(),
        b"alpha" => byte.is_ascii_alphabetic(),
        b"blank" => matches!(byte, b' ' | b'\t'),
        b"cntrl" => byte.is_ascii_control(),
        b"digit" => byte.is_ascii_digit(),
        b"graph" => byte.is_ascii_graphic(),
        b"lower" => byte.is_ascii_lowercase(),
        b"print" => byte.is_ascii_graphic() || byte == b' ',
        b"punct" => byte.is_ascii_punctuation(),
        b"space" => byte.is_ascii_whitespace() || byte == 0x0b,
        b"upper" => byte.is_ascii_uppercase(),
        b"xdigit" => byte.is_ascii_hexdigit(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_are_those_of_rsync() {
        for (pattern, text, is_match) in [
            ("*.o", "a.o", true),
            ("*.o", "a/b.o", false),
            ("**.o", "a/b.o", true),
            ("a?c", "abc", true),
            ("a?c", "a/c", false),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[]]", "]", true),
            ("[[:digit:]]", "7", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("[a", "[a", true),
            ("a**b", "a/x/b", true),
            ("", "", true),
            ("*", "", true),
            ("a", "", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), is_match, "{pattern} {text}");
        }
    }

    #[test]
    fn what_would_take_for_ever_is_no_match() {
        let pattern = "*a".repeat(40);
        assert!(!matches(pattern.as_bytes(), "a".repeat(200).replace("aa", "ab").as_bytes()));
    }
}
