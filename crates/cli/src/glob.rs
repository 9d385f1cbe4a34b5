//! Patterns of file names: `*`, `?`, `[a-z]`, `[!a-z]` and `\` before a letter that means itself.
//!
//! Names are bytes; a pattern knows nothing of UTF-8. Matching takes time in proportion to both lengths at the worst,
//! whatever the pattern.

/// A pattern.
#[derive(Debug)]
pub struct Pattern {
    parts: Vec<Part>,
    fold: bool,
}

#[derive(Debug)]
enum Part {
    /// `*`
    Any,
    /// `?`
    One,
    Byte(u8),
    Set {
        ranges: Vec<(u8, u8)>,
        negated: bool,
    },
}

impl Pattern {
    /// Reads a pattern; with `fold`, ASCII letters match in either case.
    pub fn new(text: &str, fold: bool) -> Self {
        let mut parts = Vec::new();
        let mut rest = text.as_bytes();
        while let Some((&byte, tail)) = rest.split_first() {
            rest = tail;
            match byte {
                b'*' if matches!(parts.last(), Some(Part::Any)) => {}
                b'*' => parts.push(Part::Any),
                b'?' => parts.push(Part::One),
                b'[' => match set(tail) {
                    Some((part, tail)) => {
                        parts.push(part);
                        rest = tail;
                    }
                    None => parts.push(Part::Byte(b'[')),
                },
                b'\\' if !tail.is_empty() => {
                    parts.push(Part::Byte(tail.first().copied().unwrap_or(b'\\')));
                    rest = tail.get(1..).unwrap_or_default();
                }
                byte => parts.push(Part::Byte(byte)),
            }
        }
        Self { parts, fold }
    }

    /// Whether the whole name is like the pattern.
    pub fn matches(&self, name: &[u8]) -> bool {
        let (mut part, mut at) = (0, 0);
        // Where the last star stood, and the byte from which it gives the rest a try.
        let mut star: Option<(usize, usize)> = None;
        loop {
            match self.parts.get(part) {
                Some(Part::Any) => {
                    star = Some((part, at));
                    part += 1;
                    continue;
                }
                Some(one) if name.get(at).is_some_and(|&byte| self.accepts(one, byte)) => {
                    part += 1;
                    at += 1;
                    continue;
                }
                None if at == name.len() => return true,
                _ => {}
            }
            match star {
                Some((of, from)) if from < name.len() => {
                    star = Some((of, from + 1));
                    part = of + 1;
                    at = from + 1;
                }
                _ => return false,
            }
        }
    }

    fn accepts(&self, part: &Part, byte: u8) -> bool {
        let equal = |a: u8| a == byte || (self.fold && a.eq_ignore_ascii_case(&byte));
        match part {
            Part::Any => false,
            Part::One => true,
            Part::Byte(expected) => equal(*expected),
            Part::Set { ranges, negated } => {
                let holds = |byte: u8| ranges.iter().any(|&(from, to)| (from..=to).contains(&byte));
                let folded =
                    self.fold && (holds(byte.to_ascii_lowercase()) || holds(byte.to_ascii_uppercase()));
                (holds(byte) || folded) != *negated
            }
        }
    }
}

/// The text after `[`, if there is a closing bracket.
fn set(text: &[u8]) -> Option<(Part, &[u8])> {
    let (negated, mut rest) = match text.first() {
        Some(b'!' | b'^') => (true, text.get(1..)?),
        _ => (false, text),
    };
    let mut ranges = Vec::new();
    loop {
        let (&from, tail) = rest.split_first()?;
        rest = tail;
        if from == b']' && !ranges.is_empty() {
            return Some((Part::Set { ranges, negated }, rest));
        }
        match rest {
            [b'-', to, tail @ ..] if *to != b']' => {
                ranges.push((from, *to));
                rest = tail;
            }
            _ => ranges.push((from, from)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn patterns_as_shells_have_them() {
        for (pattern, name, expected) in [
            ("*.txt", "a.txt", true),
            ("*.txt", ".txt", true),
            ("*.txt", "a.txt~", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("[a-c]x", "bx", true),
            ("[a-c]x", "dx", false),
            ("[!a-c]x", "dx", true),
            ("[]]x", "]x", true),
            ("[a", "[a", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("a*b*c", "a1b2b3c", true),
            ("a*b*c", "a1b2b3", false),
            ("**", "", true),
            ("", "", true),
            ("", "a", false),
            ("a\\", "a\\", true),
        ] {
            assert_eq!(Pattern::new(pattern, false).matches(name.as_bytes()), expected, "{pattern} {name}");
        }
        assert!(Pattern::new("*.TXT", true).matches(b"a.txt"));
        assert!(Pattern::new("[A-C]", true).matches(b"b"));
        assert!(!Pattern::new("*.TXT", false).matches(b"a.txt"));
    }

    #[test]
    fn hostile_patterns_take_no_time() {
        let pattern = Pattern::new(&"*a".repeat(200), false);
        assert!(!pattern.matches(&[b'a'; 199]));
        assert!(!pattern.matches(&[b"a".repeat(5000), b"b".to_vec()].concat()));
    }

    /// The same, by trying everything.
    fn naive(parts: &[Part], name: &[u8], pattern: &Pattern) -> bool {
        match parts.split_first() {
            None => name.is_empty(),
            Some((Part::Any, rest)) => (0..=name.len()).any(|at| naive(rest, &name[at..], pattern)),
            Some((part, rest)) => name
                .split_first()
                .is_some_and(|(&byte, tail)| pattern.accepts(part, byte) && naive(rest, tail, pattern)),
        }
    }

    proptest! {
        #[test]
        fn same_as_trying_everything(text in "[ab*?]{0,8}", name in "[ab]{0,10}") {
            let pattern = Pattern::new(&text, false);
            prop_assert_eq!(pattern.matches(name.as_bytes()), naive(&pattern.parts, name.as_bytes(), &pattern));
        }
    }
}
