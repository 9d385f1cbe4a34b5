//! Normalisation and case folding of names, as in `u8_textprep_str` of `module/zfs/u8_textprep.c`.
//!
//! A directory hashes normalised names. So this module must agree with ZFS for every name that ZFS may have stored.
//! ZFS's tables are those of Unicode 5.0. Characters that were added later are not changed.

use std::borrow::Cow;
use unicode_normalization::UnicodeNormalization;

mod unicode5;

/// `U8_TEXTPREP_TOUPPER`.
const TO_UPPER: u32 = 0x02;
/// `U8_CANON_DECOMP`.
const CANON_DECOMP: u32 = 0x10;
/// `U8_COMPAT_DECOMP`.
const COMPAT_DECOMP: u32 = 0x20;
/// `U8_CANON_COMP`.
const CANON_COMP: u32 = 0x40;

/// Normalisation applied to names before they are hashed and compared: `U8_TEXTPREP_*` of `include/sys/u8_textprep.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NormFlags(u32);

impl NormFlags {
    /// No normalisation: names are compared byte for byte.
    pub const NONE: Self = Self(0);
    /// Case folding, by mapping to upper case.
    pub const UPPER: Self = Self(TO_UPPER);
    /// `normalization=formD`.
    pub const NFD: Self = Self(CANON_DECOMP);
    /// `normalization=formC`.
    pub const NFC: Self = Self(CANON_DECOMP | CANON_COMP);
    /// `normalization=formKD`.
    pub const NFKD: Self = Self(COMPAT_DECOMP);
    /// `normalization=formKC`.
    pub const NFKC: Self = Self(COMPAT_DECOMP | CANON_COMP);

    /// The flags from a ZAP header or the `normalization` property. Unknown bits are dropped.
    pub fn from_bits(bits: u32) -> Self {
        Self(bits & (TO_UPPER | CANON_DECOMP | COMPAT_DECOMP | CANON_COMP))
    }

    /// The flags as stored.
    pub fn bits(self) -> u32 {
        self.0
    }

    /// These flags with case folding.
    #[must_use]
    pub fn with_case_folding(self) -> Self {
        Self(self.0 | TO_UPPER)
    }

    /// These flags without case folding.
    #[must_use]
    pub fn without_case_folding(self) -> Self {
        Self(self.0 & !TO_UPPER)
    }

    /// Whether names are compared byte for byte.
    pub fn is_none(self) -> bool {
        self.0 == 0
    }

    /// `name`, folded and normalised. Bytes that are not UTF-8 are not changed.
    pub fn apply(self, name: &[u8]) -> Cow<'_, [u8]> {
        if self.is_none() {
            return Cow::Borrowed(name);
        }
        let fold = self.0 & TO_UPPER != 0;
        if name.is_ascii() {
            return if fold { Cow::Owned(name.to_ascii_uppercase()) } else { Cow::Borrowed(name) };
        }
        let mut out = Vec::with_capacity(name.len() + 8);
        for chunk in name.utf8_chunks() {
            let text = chunk.valid();
            if fold {
                self.apply_str(&text.chars().map(unicode5::to_upper).collect::<String>(), &mut out);
            } else {
                self.apply_str(text, &mut out);
            }
            out.extend_from_slice(chunk.invalid());
        }
        Cow::Owned(out)
    }

    fn apply_str(self, text: &str, out: &mut Vec<u8>) {
        let mut put = |c: char| out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
        // Characters that ZFS's tables do not contain divide the text. Neither they nor combinations across them are
        // changed.
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let after_first = first.len_utf8();
            let parted = |c| unicode5::is_unknown(c) || unicode5::begins_sequence(c);
            let end = match unicode5::is_unknown(first) {
                true => 0,
                false => rest[after_first..].find(parted).map_or(rest.len(), |at| at + after_first),
            };
            let (run, tail) = rest.split_at(end);
            match self.0 & (CANON_DECOMP | COMPAT_DECOMP | CANON_COMP) {
                0 => run.chars().for_each(&mut put),
                CANON_DECOMP => run.nfd().for_each(&mut put),
                COMPAT_DECOMP => run.nfkd().for_each(&mut put),
                forms if forms & COMPAT_DECOMP != 0 => run.nfkc().for_each(&mut put),
                _ => run.nfc().for_each(&mut put),
            }
            rest = match end {
                0 => {
                    put(first);
                    &tail[after_first..]
                }
                _ => tail,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Flags, name, and the result of OpenZFS's `u8_textprep_str`.
    const GOLDEN: &[(u32, &str, &str)] = &[
        (0x2, "stra\u{df}e \u{c9}a", "STRA\u{df}E \u{c9}A"),
        (0x10, "stra\u{df}e \u{c9}a", "stra\u{df}e E\u{301}a"),
        (0x50, "stra\u{df}e \u{c9}a", "stra\u{df}e \u{c9}a"),
        (0x20, "stra\u{df}e \u{c9}a", "stra\u{df}e E\u{301}a"),
        (0x60, "stra\u{df}e \u{c9}a", "stra\u{df}e \u{c9}a"),
        (0x12, "stra\u{df}e \u{c9}a", "STRA\u{df}E E\u{301}A"),
        (0x2, "\u{1c6}", "\u{1c4}"),
        (0x10, "\u{1c6}", "\u{1c6}"),
        (0x50, "\u{1c6}", "\u{1c6}"),
        (0x20, "\u{1c6}", "dz\u{30c}"),
        (0x60, "\u{1c6}", "d\u{17e}"),
        (0x12, "\u{1c6}", "\u{1c4}"),
        (0x2, "\u{1fb3}\u{1f80}", "\u{1fbc}\u{1f88}"),
        (0x10, "\u{1fb3}\u{1f80}", "\u{3b1}\u{345}\u{3b1}\u{313}\u{345}"),
        (0x50, "\u{1fb3}\u{1f80}", "\u{1fb3}\u{1f80}"),
        (0x20, "\u{1fb3}\u{1f80}", "\u{3b1}\u{345}\u{3b1}\u{313}\u{345}"),
        (0x60, "\u{1fb3}\u{1f80}", "\u{1fb3}\u{1f80}"),
        (0x12, "\u{1fb3}\u{1f80}", "\u{391}\u{345}\u{391}\u{313}\u{345}"),
        (0x2, "\u{ac01}\u{ac00}", "\u{ac01}\u{ac00}"),
        (0x10, "\u{ac01}\u{ac00}", "\u{1100}\u{1161}\u{11a8}\u{1100}\u{1161}"),
        (0x50, "\u{ac01}\u{ac00}", "\u{ac01}\u{ac00}"),
        (0x20, "\u{ac01}\u{ac00}", "\u{1100}\u{1161}\u{11a8}\u{1100}\u{1161}"),
        (0x60, "\u{ac01}\u{ac00}", "\u{ac01}\u{ac00}"),
        (0x12, "\u{ac01}\u{ac00}", "\u{1100}\u{1161}\u{11a8}\u{1100}\u{1161}"),
        (0x2, "\u{ac01}", "\u{ac01}"),
        (0x10, "\u{ac01}", "\u{1100}\u{1161}\u{11a8}"),
        (0x50, "\u{ac01}", "\u{ac01}"),
        (0x20, "\u{ac01}", "\u{1100}\u{1161}\u{11a8}"),
        (0x60, "\u{ac01}", "\u{ac01}"),
        (0x12, "\u{ac01}", "\u{1100}\u{1161}\u{11a8}"),
        (0x2, "\u{e9}", "\u{c9}"),
        (0x10, "\u{e9}", "e\u{301}"),
        (0x50, "\u{e9}", "\u{e9}"),
        (0x20, "\u{e9}", "e\u{301}"),
        (0x60, "\u{e9}", "\u{e9}"),
        (0x12, "\u{e9}", "E\u{301}"),
        (0x2, "\u{e9}", "\u{c9}"),
        (0x10, "\u{e9}", "e\u{301}"),
        (0x50, "\u{e9}", "\u{e9}"),
        (0x20, "\u{e9}", "e\u{301}"),
        (0x60, "\u{e9}", "\u{e9}"),
        (0x12, "\u{e9}", "E\u{301}"),
        (0x2, "\u{fb01}\u{b2}", "\u{fb01}\u{b2}"),
        (0x10, "\u{fb01}\u{b2}", "\u{fb01}\u{b2}"),
        (0x50, "\u{fb01}\u{b2}", "\u{fb01}\u{b2}"),
        (0x20, "\u{fb01}\u{b2}", "fi2"),
        (0x60, "\u{fb01}\u{b2}", "fi2"),
        (0x12, "\u{fb01}\u{b2}", "\u{fb01}\u{b2}"),
        (0x2, "\u{c5}", "\u{c5}"),
        (0x10, "\u{c5}", "A\u{30a}"),
        (0x50, "\u{c5}", "\u{c5}"),
        (0x20, "\u{c5}", "A\u{30a}"),
        (0x60, "\u{c5}", "\u{c5}"),
        (0x12, "\u{c5}", "A\u{30a}"),
        (0x2, "a\u{323}\u{307}", "A\u{323}\u{307}"),
        (0x10, "a\u{323}\u{307}", "a\u{323}\u{307}"),
        (0x50, "a\u{323}\u{307}", "\u{1ea1}\u{307}"),
        (0x20, "a\u{323}\u{307}", "a\u{323}\u{307}"),
        (0x60, "a\u{323}\u{307}", "\u{1ea1}\u{307}"),
        (0x12, "a\u{323}\u{307}", "A\u{323}\u{307}"),
        (0x2, "a\u{307}\u{323}", "A\u{307}\u{323}"),
        (0x10, "a\u{307}\u{323}", "a\u{323}\u{307}"),
        (0x50, "a\u{307}\u{323}", "\u{1ea1}\u{307}"),
        (0x20, "a\u{307}\u{323}", "a\u{323}\u{307}"),
        (0x60, "a\u{307}\u{323}", "\u{1ea1}\u{307}"),
        (0x12, "a\u{307}\u{323}", "A\u{323}\u{307}"),
        (0x2, "\u{e7}a", "\u{c7}A"),
        (0x10, "\u{e7}a", "c\u{327}a"),
        (0x50, "\u{e7}a", "\u{e7}a"),
        (0x20, "\u{e7}a", "c\u{327}a"),
        (0x60, "\u{e7}a", "\u{e7}a"),
        (0x12, "\u{e7}a", "C\u{327}A"),
        (0x2, "q\u{307}\u{323}", "Q\u{307}\u{323}"),
        (0x10, "q\u{307}\u{323}", "q\u{323}\u{307}"),
        (0x50, "q\u{307}\u{323}", "q\u{323}\u{307}"),
        (0x20, "q\u{307}\u{323}", "q\u{323}\u{307}"),
        (0x60, "q\u{307}\u{323}", "q\u{323}\u{307}"),
        (0x12, "q\u{307}\u{323}", "Q\u{323}\u{307}"),
        (0x2, "\u{1e9b}\u{323}", "\u{1e60}\u{323}"),
        (0x10, "\u{1e9b}\u{323}", "\u{17f}\u{323}\u{307}"),
        (0x50, "\u{1e9b}\u{323}", "\u{1e9b}\u{323}"),
        (0x20, "\u{1e9b}\u{323}", "s\u{323}\u{307}"),
        (0x60, "\u{1e9b}\u{323}", "\u{1e69}"),
        (0x12, "\u{1e9b}\u{323}", "S\u{323}\u{307}"),
        (0x2, "\u{2c81}\u{2c7d}", "\u{2c80}\u{2c7d}"),
        (0x10, "\u{2c81}\u{2c7d}", "\u{2c81}\u{2c7d}"),
        (0x50, "\u{2c81}\u{2c7d}", "\u{2c81}\u{2c7d}"),
        (0x20, "\u{2c81}\u{2c7d}", "\u{2c81}\u{2c7d}"),
        (0x60, "\u{2c81}\u{2c7d}", "\u{2c81}\u{2c7d}"),
        (0x12, "\u{2c81}\u{2c7d}", "\u{2c80}\u{2c7d}"),
        (0x2, "\u{250}\u{1d79}", "\u{250}\u{1d79}"),
        (0x10, "\u{250}\u{1d79}", "\u{250}\u{1d79}"),
        (0x50, "\u{250}\u{1d79}", "\u{250}\u{1d79}"),
        (0x20, "\u{250}\u{1d79}", "\u{250}\u{1d79}"),
        (0x60, "\u{250}\u{1d79}", "\u{250}\u{1d79}"),
        (0x12, "\u{250}\u{1d79}", "\u{250}\u{1d79}"),
        (0x2, "\u{1c5}x", "\u{1c4}X"),
        (0x10, "\u{1c5}x", "\u{1c5}x"),
        (0x50, "\u{1c5}x", "\u{1c5}x"),
        (0x20, "\u{1c5}x", "Dz\u{30c}x"),
        (0x60, "\u{1c5}x", "D\u{17e}x"),
        (0x12, "\u{1c5}x", "\u{1c4}X"),
        (0x2, "\u{487}a\u{487}", "\u{487}A\u{487}"),
        (0x10, "\u{487}a\u{487}", "\u{487}a\u{487}"),
        (0x50, "\u{487}a\u{487}", "\u{487}a\u{487}"),
        (0x20, "\u{487}a\u{487}", "\u{487}a\u{487}"),
        (0x60, "\u{487}a\u{487}", "\u{487}a\u{487}"),
        (0x12, "\u{487}a\u{487}", "\u{487}A\u{487}"),
        (0x2, "\u{915}\u{93c}", "\u{915}\u{93c}"),
        (0x10, "\u{915}\u{93c}", "\u{915}\u{93c}"),
        (0x50, "\u{915}\u{93c}", "\u{915}\u{93c}"),
        (0x20, "\u{915}\u{93c}", "\u{915}\u{93c}"),
        (0x60, "\u{915}\u{93c}", "\u{915}\u{93c}"),
        (0x12, "\u{915}\u{93c}", "\u{915}\u{93c}"),
        (0x2, "\u{ff76}\u{ff9e}", "\u{ff76}\u{ff9e}"),
        (0x10, "\u{ff76}\u{ff9e}", "\u{ff76}\u{ff9e}"),
        (0x50, "\u{ff76}\u{ff9e}", "\u{ff76}\u{ff9e}"),
        (0x20, "\u{ff76}\u{ff9e}", "\u{30ab}\u{3099}"),
        (0x60, "\u{ff76}\u{ff9e}", "\u{30ab}\u{3099}"),
        (0x12, "\u{ff76}\u{ff9e}", "\u{ff76}\u{ff9e}"),
        (0x2, "\u{2167}", "\u{2167}"),
        (0x10, "\u{2167}", "\u{2167}"),
        (0x50, "\u{2167}", "\u{2167}"),
        (0x20, "\u{2167}", "VIII"),
        (0x60, "\u{2167}", "VIII"),
        (0x12, "\u{2167}", "\u{2167}"),
        (0x2, "\u{1f130}", "\u{1f130}"),
        (0x10, "\u{1f130}", "\u{1f130}"),
        (0x50, "\u{1f130}", "\u{1f130}"),
        (0x20, "\u{1f130}", "\u{1f130}"),
        (0x60, "\u{1f130}", "\u{1f130}"),
        (0x12, "\u{1f130}", "\u{1f130}"),
        (0x2, "\u{110ab}", "\u{110ab}"),
        (0x10, "\u{110ab}", "\u{110ab}"),
        (0x50, "\u{110ab}", "\u{110ab}"),
        (0x20, "\u{110ab}", "\u{110ab}"),
        (0x60, "\u{110ab}", "\u{110ab}"),
        (0x12, "\u{110ab}", "\u{110ab}"),
        (0x2, "\u{3244}", "\u{3244}"),
        (0x10, "\u{3244}", "\u{3244}"),
        (0x50, "\u{3244}", "\u{3244}"),
        (0x20, "\u{3244}", "\u{3244}"),
        (0x60, "\u{3244}", "\u{3244}"),
        (0x12, "\u{3244}", "\u{3244}"),
    ];

    #[test]
    fn agrees_with_openzfs() {
        for (flags, name, expected) in GOLDEN {
            let got = NormFlags::from_bits(*flags).apply(name.as_bytes()).into_owned();
            assert_eq!(String::from_utf8_lossy(&got), *expected, "{} by {flags:#x}", name.escape_unicode());
        }
    }

    #[test]
    fn bytes_that_are_not_utf8_stay() {
        let name = b"a\xff\xc3\xa9\xc3";
        assert_eq!(*NormFlags::NFD.apply(name), *b"a\xffe\xcc\x81\xc3");
        assert_eq!(*NormFlags::UPPER.apply(name), *b"A\xff\xc3\x89\xc3");
        assert_eq!(*NormFlags::NONE.apply(name), *name);
    }
}
