//! Patterns with wildcards. `*` and `?` do not match slashes, `**` does, `[a-z]` is a set, and a backslash makes the
//! next character literal.
//!
//! A pattern is compiled once. Matching never tries all ways to divide a text among the stars. When another star of the
//! same kind follows a star, the first one never has to match more than at first. So only the last `*` and the last
//! `**` are tried again. Everything after the last star has a fixed length and is compared first.

use super::work::Work;

/// An element of a pattern: the value of a byte, one of these constants, or `SET` plus the number of a set.
const ANY: u16 = 0x100;
const STAR: u16 = 0x101;
const WIDE: u16 = 0x102;
/// Matches nothing, because the pattern ends in the middle of an element.
const NEVER: u16 = 0x103;
const SET: u16 = 0x8000;

/// A set of bytes, with one bit for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Set([u64; 4]);

impl Set {
    fn add(&mut self, first: u8, last: u8) {
        for byte in first..=last {
            self.0[usize::from(byte >> 6)] |= 1 << (byte & 63);
        }
    }

    fn has(&self, byte: u8) -> bool {
        self.0[usize::from(byte >> 6)] & 1 << (byte & 63) != 0
    }
}

/// A compiled pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    elements: Vec<u16>,
    sets: Vec<Set>,
    /// The index of the last star.
    last_star: Option<usize>,
}

/// Whether the pattern matches all of `text`.
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    Pattern::new(pattern).matches(text, &mut Work::unlimited())
}

impl Pattern {
    /// Compiles a pattern. Every text is a valid pattern.
    pub fn new(mut pattern: &[u8]) -> Self {
        let (mut elements, mut sets): (Vec<u16>, Vec<Set>) = (Vec::new(), Vec::new());
        while let [first, rest @ ..] = pattern {
            pattern = rest;
            elements.push(match first {
                b'*' => {
                    let more = rest.iter().take_while(|byte| **byte == b'*').count();
                    pattern = &rest[more..];
                    if more > 0 { WIDE } else { STAR }
                }
                b'?' => ANY,
                b'\\' => match rest {
                    [literal, after @ ..] => {
                        pattern = after;
                        u16::from(*literal)
                    }
                    [] => NEVER,
                },
                b'[' => match set(rest) {
                    Some((set, after)) => {
                        pattern = after;
                        if sets.last() != Some(&set) {
                            sets.push(set);
                        }
                        SET | (sets.len() - 1) as u16
                    }
                    None => NEVER,
                },
                literal => u16::from(*literal),
            });
            if elements.last() == Some(&NEVER) || sets.len() >= usize::from(SET) {
                elements.push(NEVER);
                break;
            }
        }
        let last_star = elements.iter().rposition(|element| matches!(*element, STAR | WIDE));
        Self { elements, sets, last_star }
    }

    /// Whether the pattern matches all of `text`. Also `false` when the work is used up.
    pub fn matches(&self, text: &[u8], work: &mut Work) -> bool {
        let fixed = self.last_star.map_or(0, |at| at + 1);
        let tail = &self.elements[fixed..];
        let is_long_enough = match self.last_star {
            None => text.len() == tail.len(),
            Some(_) => text.len() >= tail.len(),
        };
        if !work.spend(1) || !is_long_enough {
            return false;
        }
        let (text, end) = text.split_at(text.len() - tail.len());
        let are_alike = tail.iter().zip(end).all(|(element, byte)| work.spend(1) && self.is(*element, *byte));
        are_alike && (self.last_star.is_none() || self.begins(&self.elements[..fixed], text, work))
    }

    /// Whether these elements match the text. The last one is a star.
    fn begins(&self, elements: &[u16], text: &[u8], work: &mut Work) -> bool {
        let (mut element, mut at) = (0, 0);
        // For the last star of each kind: the element after it, and the position in the text where that is tried.
        let mut star: Option<(usize, usize)> = None;
        let mut wide: Option<(usize, usize)> = None;
        while work.spend(1) {
            match elements[element] {
                WIDE if element + 1 == elements.len() => return true,
                STAR if element + 1 == elements.len() => {
                    if !text[at..].contains(&b'/') {
                        return true;
                    }
                    star = None;
                }
                WIDE => {
                    (wide, star) = (Some((element + 1, at)), None);
                    element += 1;
                    continue;
                }
                STAR => {
                    star = Some((element + 1, at));
                    element += 1;
                    continue;
                }
                one => match text.get(at) {
                    // At a later position there is even less text.
                    None => return false,
                    Some(byte) if self.is(one, *byte) => {
                        (element, at) = (element + 1, at + 1);
                        continue;
                    }
                    Some(_) => {}
                },
            }
            star = star.filter(|(_, from)| text.get(*from).is_some_and(|byte| *byte != b'/'));
            let again = if star.is_some() { &mut star } else { &mut wide };
            match again {
                Some((after, from)) if *from < text.len() => {
                    *from += 1;
                    (element, at) = (*after, *from);
                }
                _ => return false,
            }
        }
        false
    }

    /// Whether an element that is not a star matches a byte.
    fn is(&self, element: u16, byte: u8) -> bool {
        match element {
            ANY => byte != b'/',
            0..ANY => element == u16::from(byte),
            SET.. => byte != b'/' && self.sets[usize::from(element & !SET)].has(byte),
            _ => false,
        }
    }
}

/// Parses a set after its opening bracket. Returns it and the rest. `None` if it has no end, or names an unknown class.
fn set(pattern: &[u8]) -> Option<(Set, &[u8])> {
    let (negated, mut rest) = match pattern {
        [b'!' | b'^', rest @ ..] => (true, rest),
        _ => (false, pattern),
    };
    let mut set = Set::default();
    // The possible start of a range.
    let mut before: Option<u8> = None;
    let mut is_first = true;
    loop {
        let (&byte, after) = rest.split_first()?;
        rest = after;
        match (byte, before) {
            (b']', _) if !is_first => break,
            (b'-', Some(low)) if after.first().is_some_and(|byte| *byte != b']') => {
                let (high, after) = literal(after)?;
                if low <= high {
                    set.add(low, high);
                }
                (rest, before) = (after, None);
            }
            (b'[', _) if after.first() == Some(&b':') => {
                let end = after.iter().position(|byte| *byte == b']')?;
                match after[1..end].strip_suffix(b":") {
                    Some(name) => {
                        add_class(&mut set, name)?;
                        (rest, before) = (&after[end + 1..], None);
                    }
                    // Not a class: the bracket is an ordinary character.
                    None => {
                        set.add(b'[', b'[');
                        before = Some(b'[');
                    }
                }
            }
            (b'\\', _) => {
                let (&byte, after) = after.split_first()?;
                set.add(byte, byte);
                (rest, before) = (after, Some(byte));
            }
            _ => {
                set.add(byte, byte);
                before = Some(byte);
            }
        }
        is_first = false;
    }
    if negated {
        set.0.iter_mut().for_each(|bits| *bits = !*bits);
    }
    Some((set, rest))
}

fn literal(pattern: &[u8]) -> Option<(u8, &[u8])> {
    match pattern {
        [b'\\', byte, rest @ ..] => Some((*byte, rest)),
        [b'\\'] | [] => None,
        [byte, rest @ ..] => Some((*byte, rest)),
    }
}

fn add_class(set: &mut Set, name: &[u8]) -> Option<()> {
    let is_in: fn(u8) -> bool = match name {
        b"alnum" => |byte| byte.is_ascii_alphanumeric(),
        b"alpha" => |byte| byte.is_ascii_alphabetic(),
        b"blank" => |byte| matches!(byte, b' ' | b'\t'),
        b"cntrl" => |byte| byte.is_ascii_control(),
        b"digit" => |byte| byte.is_ascii_digit(),
        b"graph" => |byte| byte.is_ascii_graphic(),
        b"lower" => |byte| byte.is_ascii_lowercase(),
        b"print" => |byte| byte.is_ascii_graphic() || byte == b' ',
        b"punct" => |byte| byte.is_ascii_punctuation(),
        b"space" => |byte| byte.is_ascii_whitespace() || byte == 0x0b,
        b"upper" => |byte| byte.is_ascii_uppercase(),
        b"xdigit" => |byte| byte.is_ascii_hexdigit(),
        _ => return None,
    };
    (0..=u8::MAX).filter(|byte| is_in(*byte)).for_each(|byte| set.add(byte, byte));
    Some(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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
            ("[[:digit:]", "7", false),
            ("[[:numbers:]7]", "7", false),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("[a", "[a", false),
            ("a\\", "a\\", false),
            ("a**b", "a/x/b", true),
            ("", "", true),
            ("*", "", true),
            ("a", "", false),
            ("*/*", "a/b/c", false),
            ("**/b*c/*", "x/b/b/bc/d", true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), is_match, "{pattern} {text}");
        }
    }

    #[test]
    fn many_stars_take_few_steps() {
        for (pattern, text) in [
            ("*a".repeat(40) + "Z", "a".repeat(200).replace("aa", "ab")),
            ("*a".repeat(40) + "*Zb*", "a".repeat(200) + "b"),
            ("*a".repeat(100) + "*", "a".repeat(99)),
            ("**/".to_owned() + &"*a*/".repeat(20) + "Z*", "a/".repeat(200)),
        ] {
            let mut work = Work::of(200_000);
            assert!(!Pattern::new(pattern.as_bytes()).matches(text.as_bytes(), &mut work));
            assert!(!work.is_over(), "{pattern}");
        }
        assert!(matches("*a".repeat(40).as_bytes(), "a".repeat(40).as_bytes()));
    }

    #[test]
    fn work_has_an_end() {
        let mut work = Work::of(5);
        assert!(!Pattern::new(b"*abc*").matches(b"xxxxxxxxabc", &mut work) && work.is_over());
    }

    /// A matcher that tries everything, for comparison.
    fn naive(pattern: &Pattern, elements: &[u16], text: &[u8]) -> bool {
        match (elements, text) {
            ([], _) => text.is_empty(),
            ([kind @ (STAR | WIDE), rest @ ..], _) => {
                naive(pattern, rest, text)
                    || text.split_first().is_some_and(|(byte, after)| {
                        (*kind == WIDE || *byte != b'/') && naive(pattern, elements, after)
                    })
            }
            ([one, rest @ ..], [byte, after @ ..]) => pattern.is(*one, *byte) && naive(pattern, rest, after),
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn same_as_trying_everything(pattern in "([ab/*?]|\\*\\*|\\[ab\\]){0,9}", text in "[ab/]{0,10}") {
            let compiled = Pattern::new(pattern.as_bytes());
            let expected = naive(&compiled, &compiled.elements, text.as_bytes());
            prop_assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), expected);
        }
    }
}
