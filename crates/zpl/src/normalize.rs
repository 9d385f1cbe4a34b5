//! Normalisation and case folding of names, as `u8_textprep_str` of `module/zfs/u8_textprep.c` does them.
//!
//! A directory's hash is that of the normalised name, so this must agree with ZFS for every name that ZFS may have
//! stored. ZFS's tables are those of Unicode 5.0: characters that came later are left alone.

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

/// What is done to names before they are hashed and compared: `U8_TEXTPREP_*` of `include/sys/u8_textprep.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NormFlags(u32);

impl NormFlags {
    /// Names are compared byte for byte.
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

    /// The flags in a ZAP header or the `normalization` property; unknown bits are dropped.
    pub fn from_bits(bits: u32) -> Self {
        Self(bits & (TO_UPPER | CANON_DECOMP | COMPAT_DECOMP | CANON_COMP))
    }

    /// The flags as stored.
    pub fn bits(self) -> u32 {
        self.0
    }

    /// With case folding added.
    #[must_use]
    pub fn with_case_folding(self) -> Self {
        Self(self.0 | TO_UPPER)
    }

    /// With case folding taken away.
    #[must_use]
    pub fn without_case_folding(self) -> Self {
        Self(self.0 & !TO_UPPER)
    }

    /// Names are compared byte for byte.
    pub fn is_none(self) -> bool {
        self.0 == 0
    }

    /// `name`, folded and normalised. Bytes that are not UTF-8 are left as they are.
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
            self.apply_str(chunk.valid(), fold, &mut out);
            out.extend_from_slice(chunk.invalid());
        }
        Cow::Owned(out)
    }

    fn apply_str(self, text: &str, fold: bool, out: &mut Vec<u8>) {
        // Characters newer than the tables of ZFS part the text: nothing is done to them or across them.
        let mut rest = text;
        while !rest.is_empty() {
            let known = rest.find(unicode5::is_unknown).unwrap_or(rest.len());
            let (run, tail) = rest.split_at(known);
            let folded: Cow<'_, str> = if fold {
                Cow::Owned(run.chars().map(unicode5::to_upper).collect())
            } else {
                Cow::Borrowed(run)
            };
            let mut put = |c: char| out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
            match self.0 & (CANON_DECOMP | COMPAT_DECOMP | CANON_COMP) {
                0 => folded.chars().for_each(&mut put),
                CANON_DECOMP => folded.nfd().for_each(&mut put),
                COMPAT_DECOMP => folded.nfkd().for_each(&mut put),
                forms if forms & COMPAT_DECOMP != 0 => folded.nfkc().for_each(&mut put),
                _ => folded.nfc().for_each(&mut put),
            }
            let unknown = tail.chars().next().map_or(0, char::len_utf8);
            out.extend_from_slice(&tail.as_bytes()[..unknown]);
            rest = &tail[unknown..];
        }
    }
}
