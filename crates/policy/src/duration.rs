//! Durations in the form that people write: `90m`, `28h`, `14d`.

use serde::Deserialize;

/// The units in seconds.
const UNITS: [(char, i64); 6] =
    [('s', 1), ('m', 60), ('h', 3600), ('d', 86_400), ('w', 7 * 86_400), ('y', 365 * 86_400)];

/// A number with or without a unit. Without one, the reader of the value chooses the unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Written")]
pub struct Duration {
    count: i64,
    /// Seconds of the unit, or `None` for no unit.
    unit: Option<i64>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a number, or a number with one of the units s, m, h, d, w, y: \"90m\"")]
enum Written {
    Number(i64),
    Text(String),
}

impl TryFrom<Written> for Duration {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        match written {
            Written::Number(count) if count >= 0 => Ok(Self { count, unit: None }),
            // In sanoid, a negative number means no limit.
            Written::Number(_) => Ok(Self { count: 0, unit: None }),
            Written::Text(text) => Self::parse(&text).ok_or_else(|| {
                format!("'{text}' is not a duration: use a number with one of the units s, m, h, d, w, y, such as 90m")
            }),
        }
    }
}

impl Duration {
    /// Parses a duration.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let last = text.chars().last()?.to_ascii_lowercase();
        let unit = UNITS.iter().find(|(name, _)| *name == last).map(|(_, seconds)| *seconds);
        let digits = if unit.is_some() { text.get(..text.len() - 1)? } else { text };
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let count: i64 = digits.parse().ok()?;
        // Durations are limited to about 35 thousand years.
        count.checked_mul(unit.unwrap_or(86_400)).filter(|seconds| *seconds < 1 << 40)?;
        Some(Self { count, unit })
    }

    /// The duration in seconds. A number without a unit is multiplied by `unit` seconds.
    pub fn seconds(self, unit: i64) -> i64 {
        self.count.saturating_mul(self.unit.unwrap_or(unit))
    }
}

/// Formats a duration like sanoid: `1d 2h 0m 5s`.
pub fn spelled(seconds: i64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    let mut text = String::new();
    if days > 0 {
        text.push_str(&format!("{days}d "));
    }
    if hours > 0 || days > 0 {
        text.push_str(&format!("{hours}h "));
    }
    if minutes > 0 || hours > 0 || days > 0 {
        text.push_str(&format!("{minutes}m "));
    }
    text.push_str(&format!("{}s", seconds % 60));
    text
}

/// Formats the two largest units of a duration: `3d 4h`, `12m`, `40s`.
pub fn short(seconds: i64) -> String {
    let parts =
        [(seconds / 86_400, 'd'), (seconds / 3600 % 24, 'h'), (seconds / 60 % 60, 'm'), (seconds % 60, 's')];
    let begin = parts.iter().position(|(count, _)| *count != 0).unwrap_or(3);
    let shown = parts.iter().skip(begin).take(2).filter(|(count, _)| *count != 0);
    let text: Vec<String> = shown.map(|(count, unit)| format!("{count}{unit}")).collect();
    if text.is_empty() { "0s".to_owned() } else { text.join(" ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts() {
        for (text, unit, seconds) in [
            ("90m", 1, Some(5400)),
            ("28H", 1, Some(28 * 3600)),
            ("14d", 1, Some(14 * 86_400)),
            ("2w", 1, Some(14 * 86_400)),
            ("1y", 1, Some(365 * 86_400)),
            ("48", 3600, Some(48 * 3600)),
            ("0", 60, Some(0)),
            ("", 1, None),
            ("m", 1, None),
            ("-5m", 1, None),
            ("5 m", 1, None),
            ("99999999999999y", 1, None),
        ] {
            assert_eq!(Duration::parse(text).map(|parsed| parsed.seconds(unit)), seconds, "{text:?}");
        }
    }

    #[test]
    fn spans() {
        assert_eq!(spelled(5400), "1h 30m 0s");
        assert_eq!(spelled(86_400 + 7), "1d 0h 0m 7s");
        assert_eq!(spelled(59), "59s");
        assert_eq!(spelled(0), "0s");
        assert_eq!(short(3 * 86_400 + 4 * 3600 + 59), "3d 4h");
        assert_eq!(short(720), "12m");
        assert_eq!(short(3600 + 9), "1h");
        assert_eq!(short(0), "0s");
    }
}
