//! Differences between Unicode 5.0, which ZFS's tables contain, and current Unicode.
//!
//! The ranges were found by comparing the results of OpenZFS's `u8_textprep_str` with those of current tables for every
//! character, alone and between combining marks. To keep the tables short, ranges may include unassigned characters and
//! characters that normalisation does not change.

/// Characters whose decomposition or combining class was added after Unicode 5.0.
const UNKNOWN: &[(char, char)] = &[
    ('\u{487}', '\u{487}'),
    ('\u{558}', '\u{558}'),
    ('\u{58b}', '\u{58c}'),
    ('\u{5c8}', '\u{5c9}'),
    ('\u{616}', '\u{61a}'),
    ('\u{65f}', '\u{65f}'),
    ('\u{7fd}', '\u{8ff}'),
    ('\u{9fe}', '\u{9fe}'),
    ('\u{c3c}', '\u{c3c}'),
    ('\u{d3b}', '\u{d3c}'),
    ('\u{eba}', '\u{eba}'),
    ('\u{103a}', '\u{108d}'),
    ('\u{135d}', '\u{135e}'),
    ('\u{1715}', '\u{1715}'),
    ('\u{1a60}', '\u{1af0}'),
    ('\u{1baa}', '\u{1cf9}'),
    ('\u{1dcb}', '\u{1dfd}'),
    ('\u{2095}', '\u{209f}'),
    ('\u{20f0}', '\u{20f0}'),
    ('\u{2150}', '\u{2152}'),
    ('\u{2189}', '\u{2189}'),
    ('\u{2c7c}', '\u{2cf1}'),
    ('\u{2d7f}', '\u{2dff}'),
    ('\u{3244}', '\u{3247}'),
    ('\u{32ff}', '\u{32ff}'),
    ('\u{a66f}', '\u{a7f9}'),
    ('\u{a82c}', '\u{abed}'),
    ('\u{fa2e}', '\u{fa2f}'),
    ('\u{fa6b}', '\u{fa6d}'),
    ('\u{fe24}', '\u{fe2f}'),
    ('\u{101fd}', '\u{107bf}'),
    ('\u{10ae5}', '\u{1107f}'),
    ('\u{1109a}', '\u{1109a}'),
    ('\u{1109c}', '\u{1109c}'),
    ('\u{110ab}', '\u{11102}'),
    ('\u{1112e}', '\u{1112f}'),
    ('\u{11133}', '\u{1133c}'),
    ('\u{1134b}', '\u{1134d}'),
    ('\u{11366}', '\u{1145e}'),
    ('\u{114bb}', '\u{114bc}'),
    ('\u{114be}', '\u{114c3}'),
    ('\u{115ba}', '\u{1183a}'),
    ('\u{11938}', '\u{11f42}'),
    ('\u{16121}', '\u{1612f}'),
    ('\u{16af0}', '\u{16d6a}'),
    ('\u{16ff0}', '\u{16ff1}'),
    ('\u{1b123}', '\u{1b126}'),
    ('\u{1bc9e}', '\u{1bc9e}'),
    ('\u{1ccd6}', '\u{1ccf9}'),
    ('\u{1d127}', '\u{1d128}'),
    ('\u{1d250}', '\u{1d281}'),
    ('\u{1d6a6}', '\u{1d6a6}'),
    ('\u{1df95}', '\u{1e94a}'),
    ('\u{1ee00}', '\u{1f251}'),
    ('\u{1fbf0}', '\u{1fbf9}'),
];

/// Letters whose upper case was added after Unicode 5.0.
const UNFOLDED: &[(char, char)] = &[
    ('\u{19b}', '\u{19b}'),
    ('\u{23f}', '\u{240}'),
    ('\u{250}', '\u{252}'),
    ('\u{25c}', '\u{25c}'),
    ('\u{261}', '\u{261}'),
    ('\u{264}', '\u{266}'),
    ('\u{26a}', '\u{26a}'),
    ('\u{26c}', '\u{26c}'),
    ('\u{271}', '\u{271}'),
    ('\u{282}', '\u{282}'),
    ('\u{287}', '\u{287}'),
    ('\u{29d}', '\u{29e}'),
    ('\u{371}', '\u{377}'),
    ('\u{3d7}', '\u{3d7}'),
    ('\u{3f3}', '\u{3f3}'),
    ('\u{515}', '\u{52f}'),
    ('\u{10d0}', '\u{10ff}'),
    ('\u{13f8}', '\u{13fd}'),
    ('\u{1c80}', '\u{1d79}'),
    ('\u{1d8e}', '\u{1d8e}'),
    ('\u{1efb}', '\u{1eff}'),
    ('\u{2c5f}', '\u{2c5f}'),
    ('\u{2c73}', '\u{2c73}'),
    ('\u{2cec}', '\u{2cf3}'),
    ('\u{2d27}', '\u{2d2d}'),
    ('\u{a641}', '\u{a7f6}'),
    ('\u{ab53}', '\u{abbf}'),
    ('\u{104d8}', '\u{105bc}'),
    ('\u{10cc0}', '\u{10d85}'),
    ('\u{118c0}', '\u{118df}'),
    ('\u{16e60}', '\u{16ed3}'),
    ('\u{1e922}', '\u{1e943}'),
];

fn within(ranges: &[(char, char)], c: char) -> bool {
    let after = ranges.partition_point(|(first, _)| *first <= c);
    after > 0 && c <= ranges[after - 1].1
}

/// Whether normalisation does not change the character and nothing combines with it.
pub(super) fn is_unknown(c: char) -> bool {
    within(UNKNOWN, c)
}

/// Whether `c` begins a new sequence although its decomposition has another combining class. ZFS normalises one
/// sequence at a time: a character of combining class 0 and the marks after it. It treats these characters as class 0,
/// so nothing combines across them.
pub(super) fn begins_sequence(c: char) -> bool {
    matches!(c, '\u{f73}' | '\u{f75}' | '\u{f81}' | '\u{ff9e}' | '\u{ff9f}')
}

/// The simple upper case of `c`: one character, or `c` itself.
pub(super) fn to_upper(c: char) -> char {
    // Greek letters with iota subscript: the current full mapping turns them into two letters. Their simple mapping is
    // their title case.
    let title = match c {
        '\u{1f80}'..='\u{1f87}' | '\u{1f90}'..='\u{1f97}' | '\u{1fa0}'..='\u{1fa7}' => u32::from(c) + 8,
        '\u{1fb3}' | '\u{1fc3}' | '\u{1ff3}' => u32::from(c) + 9,
        _ => 0,
    };
    if title != 0 {
        return char::from_u32(title).unwrap_or(c);
    }
    let mut upper = c.to_uppercase();
    match (upper.next(), upper.next()) {
        (Some(one), None) if !within(UNFOLDED, c) => one,
        _ => c,
    }
}
