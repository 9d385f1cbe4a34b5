//! Hashing and comparing names, as in `zap_hash`, `zap_name_init_str` and `zap_match`.

use super::Matching;
use crate::crc64;
use crate::normalize::NormFlags;
use std::borrow::Cow;

/// `ZAP_FLAG_HASH64`: 48 bits of the hash are significant instead of 28.
pub(crate) const FLAG_HASH64: u64 = 1 << 0;
/// `ZAP_FLAG_UINT64_KEY`: keys are arrays of 64-bit integers.
pub(crate) const FLAG_UINT64_KEY: u64 = 1 << 1;
/// `ZAP_FLAG_PRE_HASHED_KEY`: the first word of an integer key is its hash.
pub(crate) const FLAG_PRE_HASHED_KEY: u64 = 1 << 2;

/// How the names of one ZAP are hashed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hashing {
    /// Start value of the CRC.
    pub salt: u64,
    /// `zap_flags_t`.
    pub flags: u64,
    /// Normalisation applied to names before hashing.
    pub norm: NormFlags,
}

impl Hashing {
    /// Number of significant high bits of a hash: 28, or 48 with `ZAP_FLAG_HASH64`.
    pub fn hash_bits(&self) -> u32 {
        if self.flags & FLAG_HASH64 != 0 { 48 } else { 28 }
    }

    /// Whether keys are arrays of integers.
    pub fn has_word_keys(&self) -> bool {
        self.flags & FLAG_UINT64_KEY != 0
    }

    fn mask(&self, hash: u64) -> u64 {
        hash & !((1 << (64 - self.hash_bits())) - 1)
    }

    /// The hash of a string, after the normalisation of this ZAP.
    pub fn hash_name(&self, name: &[u8]) -> u64 {
        self.hash_normalized(&self.norm.apply(name))
    }

    fn hash_normalized(&self, name: &[u8]) -> u64 {
        self.mask(crc64::update(self.salt, name))
    }

    /// The hash of an array of integers.
    pub fn hash_words(&self, words: &[u64]) -> u64 {
        if self.flags & FLAG_PRE_HASHED_KEY != 0 {
            return self.mask(words.first().copied().unwrap_or(0));
        }
        self.mask(words.iter().fold(self.salt, |crc, word| crc64::update(crc, &word.to_le_bytes())))
    }
}

/// A name to look up.
pub(super) struct Wanted<'n> {
    pub(super) hash: u64,
    name: Cow<'n, [u8]>,
    /// Normalisation applied to a stored name before it is compared.
    norm: NormFlags,
}

impl<'n> Wanted<'n> {
    pub(super) fn new(hashing: &Hashing, name: &'n [u8], matching: Matching) -> Self {
        let norm = match matching {
            Matching::Exact => NormFlags::NONE,
            Matching::Normalized => hashing.norm,
            Matching::NormalizedCaseSensitive => hashing.norm.without_case_folding(),
        };
        Self { hash: hashing.hash_name(name), name: norm.apply(name), norm }
    }

    pub(super) fn matches(&self, stored: &[u8]) -> bool {
        *self.name == *self.norm.apply(stored)
    }

    /// Like [`Wanted::matches`], for a name in `padded` that ends at the first NUL or at the end. An empty name never
    /// matches.
    pub(super) fn matches_padded(&self, padded: &[u8]) -> bool {
        if !self.norm.is_none() {
            let end = padded.iter().position(|byte| *byte == 0).unwrap_or(padded.len());
            return end > 0 && self.matches(&padded[..end]);
        }
        // Fast path: without normalisation, most names already differ in their first bytes.
        !self.name.is_empty()
            && padded.starts_with(&self.name)
            && padded.get(self.name.len()).is_none_or(|byte| *byte == 0)
    }
}
