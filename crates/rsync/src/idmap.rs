//! Rules that map owners to others (`--usermap`, `--groupmap`, and `--chown`, which is sent as these).

use crate::error::{ExitCode, Result, RsyncError};
use crate::filter::matches;

/// The users or groups that a rule applies to.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Who {
    /// A range of numbers, both ends included.
    Numbers(u32, u32),
    /// A name, which may have wildcards. "" stands for numbers without a name.
    Named(Vec<u8>),
}

/// A list of rules. The first that matches applies.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IdMap(Vec<(Who, u32)>);

impl IdMap {
    /// Parses `0-99:nobody,wheel:admin,*:joe`. `number_of` returns the number of a name on this machine. Rules with an
    /// unknown name as their result are left out, and these names are returned.
    ///
    /// # Errors
    /// When the text is invalid. The error has rsync's words and the name of the option.
    pub fn parse(
        option: &str,
        text: &[u8],
        number_of: impl Fn(&str) -> Option<u32>,
    ) -> Result<(Self, Vec<String>)> {
        let wrong = |what: &str, rule: &[u8]| {
            let rule = String::from_utf8_lossy(rule);
            RsyncError::refused(ExitCode::Syntax, format!("{what} --{option}: {rule}"))
        };
        let (mut rules, mut unknown) = (Vec::new(), Vec::new());
        for rule in text.split(|byte| *byte == b',') {
            let colon = rule.iter().position(|byte| *byte == b':');
            let colon = colon.ok_or_else(|| wrong("No colon found in", rule))?;
            let (from, to) = (&rule[..colon], &rule[colon + 1..]);
            if to.is_empty() {
                return Err(wrong("No name found after colon", rule));
            }
            let who = match from.first().is_some_and(u8::is_ascii_digit) {
                true => numbers(from).ok_or_else(|| wrong("Invalid number in", rule))?,
                false => Who::Named(from.to_vec()),
            };
            let to = String::from_utf8_lossy(to);
            match number_of(&to) {
                Some(number) => rules.push((who, number)),
                None => unknown.push(to.into_owned()),
            }
        }
        Ok((Self(rules), unknown))
    }

    /// The number that replaces a user or group, if a rule applies.
    pub fn get(&self, id: u32, name: &[u8]) -> Option<u32> {
        let fits = |who: &Who| match who {
            Who::Numbers(first, last) => (*first..=*last).contains(&id),
            Who::Named(pattern) if pattern.iter().any(|byte| b"*?[".contains(byte)) => matches(pattern, name),
            Who::Named(exact) => exact == name,
        };
        self.0.iter().find(|(who, _)| fits(who)).map(|(_, number)| *number)
    }
}

fn numbers(text: &[u8]) -> Option<Who> {
    let text = std::str::from_utf8(text).ok()?;
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some(Who::Numbers(first.parse().ok()?, last.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rule_that_fits_counts() {
        let number_of = |name: &str| name.parse().ok().or_else(|| (name == "joe").then_some(7));
        let parse = |text: &str| IdMap::parse("usermap", text.as_bytes(), number_of);
        let (map, unknown) = parse("0-9:joe,12:1,ann:2,:3,w*:4,*:eve,x:5").unwrap();
        assert_eq!(unknown, ["eve"]);
        for (id, name, expected) in [
            (5, "ann", Some(7)),
            (12, "", Some(1)),
            (20, "ann", Some(2)),
            (20, "", Some(3)),
            (20, "who", Some(4)),
        ] {
            assert_eq!(map.get(id, name.as_bytes()), expected, "{id} {name}");
        }
        assert_eq!((map.get(20, b"x"), map.get(20, b"y")), (Some(5), None));
        assert_eq!(parse("*:9").unwrap().0.get(3, b""), Some(9));
        for bad in ["", "joe", "1-:2", "1x:2", "4294967296:1", "a:"] {
            assert_eq!(parse(bad).unwrap_err().code(), ExitCode::Syntax, "{bad}");
        }
    }
}
