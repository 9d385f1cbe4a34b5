//! Checksums of blocks and of whole files, and the rolling checksum.

use md4::Md4;
use md5::{Digest, Md5};
use sha1::Sha1;
use xxhash_rust::xxh3::{Xxh3Default, xxh3_64_with_seed, xxh3_128_with_seed};
use xxhash_rust::xxh64::{Xxh64, xxh64};

/// Length of the longest digest, in bytes.
pub const DIGEST_MAX: usize = 20;

/// The checksum algorithm for blocks and files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Algorithm {
    Xxh128,
    Xxh3,
    Xxh64,
    Md5,
    Md4,
    Sha1,
    /// No checksum: nothing is compared, and files are sent whole.
    None,
}

impl Algorithm {
    /// All algorithms, in the order in which they are offered to the other side.
    pub const ALL: [Self; 7] =
        [Self::Xxh128, Self::Xxh3, Self::Xxh64, Self::Md5, Self::Md4, Self::Sha1, Self::None];

    /// The name on the wire and on command lines.
    pub fn name(self) -> &'static str {
        match self {
            Self::Xxh128 => "xxh128",
            Self::Xxh3 => "xxh3",
            Self::Xxh64 => "xxh64",
            Self::Md5 => "md5",
            Self::Md4 => "md4",
            Self::Sha1 => "sha1",
            Self::None => "none",
        }
    }

    /// The algorithm with this name. `xxhash` is an alias of `xxh64`.
    pub fn named(name: &[u8]) -> Option<Self> {
        match name {
            b"xxhash" => Some(Self::Xxh64),
            _ => Self::ALL.into_iter().find(|one| one.name().as_bytes() == name),
        }
    }

    /// Length of a digest in bytes.
    pub fn len(self) -> usize {
        match self {
            Self::Xxh128 | Self::Md5 | Self::Md4 => 16,
            Self::Xxh3 | Self::Xxh64 => 8,
            Self::Sha1 => 20,
            Self::None => 1,
        }
    }
}

/// An algorithm with the checksum seed of a connection.
#[derive(Debug, Clone, Copy)]
pub struct Seeded {
    /// The checksum algorithm.
    pub algorithm: Algorithm,
    /// The seed of the connection.
    pub seed: u32,
    /// Whether the seed is hashed before the data, where the seed is hashed as data (compatibility flag `C`).
    pub seed_first: bool,
    /// Whether digests of files begin with the seed too, as before version 30.
    pub files_too: bool,
}

impl Seeded {
    /// Starts the digest of a file.
    pub fn file(self) -> FileSum {
        let mut sum = FileSum::new(self.algorithm);
        self.begin(&mut sum);
        sum
    }

    /// Starts the digest of another file in a state that was [made](Self::file) for an earlier one. For small files,
    /// making a new state is most of the work.
    pub fn begin(self, sum: &mut FileSum) {
        sum.reset();
        if self.files_too {
            sum.update(&self.seed.to_le_bytes());
        }
    }

    /// The digest of a block. The bytes after its length are zero.
    pub fn block(self, data: &[u8]) -> [u8; DIGEST_MAX] {
        // The seed is a signed number and is sign-extended to 64 bits.
        let long_seed = i64::from(self.seed.cast_signed()).cast_unsigned();
        let seed = self.seed.to_le_bytes();
        let seed = if self.seed == 0 { &[][..] } else { &seed };
        let mut out = [0; DIGEST_MAX];
        let mut put = |digest: &[u8]| out[..digest.len()].copy_from_slice(digest);
        let (before, after) = if self.seed_first { (seed, &[][..]) } else { (&[][..], seed) };
        match self.algorithm {
            Algorithm::Xxh128 => put(&xxh3_128_with_seed(data, long_seed).to_le_bytes()),
            Algorithm::Xxh3 => put(&xxh3_64_with_seed(data, long_seed).to_le_bytes()),
            Algorithm::Xxh64 => put(&xxh64(data, long_seed).to_le_bytes()),
            Algorithm::Md5 => put(&digest_of::<Md5>(before, data, after)),
            Algorithm::Md4 => put(&digest_of::<Md4>(&[], data, seed)),
            Algorithm::Sha1 => put(&digest_of::<Sha1>(before, data, after)),
            Algorithm::None => {}
        }
        out
    }
}

fn digest_of<D: Digest>(before: &[u8], data: &[u8], after: &[u8]) -> Vec<u8> {
    D::new().chain_update(before).chain_update(data).chain_update(after).finalize().to_vec()
}

/// The state of an unfinished digest of a file.
pub enum FileSum {
    #[allow(missing_docs)]
    Xxh128(Box<Xxh3Default>),
    #[allow(missing_docs)]
    Xxh3(Box<Xxh3Default>),
    #[allow(missing_docs)]
    Xxh64(Xxh64),
    #[allow(missing_docs)]
    Md5(Md5),
    #[allow(missing_docs)]
    Md4(Md4),
    #[allow(missing_docs)]
    Sha1(Sha1),
    #[allow(missing_docs)]
    None,
}

impl FileSum {
    /// The state before any bytes.
    pub fn new(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::Xxh128 => Self::Xxh128(Box::default()),
            Algorithm::Xxh3 => Self::Xxh3(Box::default()),
            Algorithm::Xxh64 => Self::Xxh64(Xxh64::new(0)),
            Algorithm::Md5 => Self::Md5(Md5::new()),
            Algorithm::Md4 => Self::Md4(Md4::new()),
            Algorithm::Sha1 => Self::Sha1(Sha1::new()),
            Algorithm::None => Self::None,
        }
    }

    /// Returns to the state before any bytes.
    fn reset(&mut self) {
        match self {
            Self::Xxh128(state) | Self::Xxh3(state) => state.reset(),
            Self::Xxh64(state) => state.reset(0),
            Self::Md5(state) => Digest::reset(state),
            Self::Md4(state) => Digest::reset(state),
            Self::Sha1(state) => Digest::reset(state),
            Self::None => {}
        }
    }

    /// Hashes more bytes.
    pub fn update(&mut self, data: &[u8]) {
        match self {
            Self::Xxh128(state) | Self::Xxh3(state) => state.update(data),
            Self::Xxh64(state) => state.update(data),
            Self::Md5(state) => state.update(data),
            Self::Md4(state) => state.update(data),
            Self::Sha1(state) => state.update(data),
            Self::None => {}
        }
    }

    /// The digest of the bytes so far.
    pub fn finish(&self) -> Vec<u8> {
        match self {
            Self::Xxh128(state) => state.digest128().to_le_bytes().to_vec(),
            Self::Xxh3(state) => state.digest().to_le_bytes().to_vec(),
            Self::Xxh64(state) => state.digest().to_le_bytes().to_vec(),
            Self::Md5(state) => state.clone().finalize().to_vec(),
            Self::Md4(state) => state.clone().finalize().to_vec(),
            Self::Sha1(state) => state.clone().finalize().to_vec(),
            Self::None => vec![0],
        }
    }
}

/// The rolling checksum: two sums modulo 2^16 over bytes that are read as signed numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rolling {
    sum: u32,
    weighted: u32,
}

fn signed(byte: u8) -> u32 {
    i32::from(byte.cast_signed()).cast_unsigned()
}

impl Rolling {
    /// The checksum of a window.
    pub fn new(data: &[u8]) -> Self {
        data.iter().fold(Self::default(), |sum, byte| sum.push(*byte))
    }

    /// The checksum after `byte` was appended to the window.
    #[must_use]
    pub fn push(self, byte: u8) -> Self {
        let sum = self.sum.wrapping_add(signed(byte));
        Self { sum, weighted: self.weighted.wrapping_add(sum) }
    }

    /// The checksum after the first byte of a window of `len` bytes was removed.
    #[must_use]
    pub fn pop(self, byte: u8, len: usize) -> Self {
        let byte = signed(byte);
        Self {
            sum: self.sum.wrapping_sub(byte),
            weighted: self.weighted.wrapping_sub(byte.wrapping_mul(len as u32)),
        }
    }

    /// The checksum as the number that is sent.
    pub fn value(self) -> u32 {
        self.sum & 0xffff | self.weighted << 16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rolling_is_the_same_however_it_got_there() {
        let data: Vec<u8> = (0..2000_u32).map(|i| ((i * i) >> 3) as u8).collect();
        let mut rolling = Rolling::new(&data[..700]);
        for at in 0..1300 {
            assert_eq!(rolling.value(), Rolling::new(&data[at..at + 700]).value());
            rolling = rolling.pop(data[at], 700).push(data[at + 700]);
        }
        // The value that stock rsync sent for "hel".
        assert_eq!(Rolling::new(b"hel").value() & 0xffff, 0x68 + 0x65 + 0x6c);
    }

    #[test]
    fn a_digest_is_begun_anew_with_the_seed_it_is_to_have() {
        for (algorithm, files_too) in Algorithm::ALL.into_iter().flat_map(|it| [(it, false), (it, true)]) {
            let seeded = Seeded { algorithm, seed: 77, seed_first: true, files_too };
            let mut again = seeded.file();
            for content in [&b"one"[..], &[7; 5000], b"", b"four"] {
                seeded.begin(&mut again);
                let mut expected = FileSum::new(algorithm);
                if files_too {
                    expected.update(&77_u32.to_le_bytes());
                }
                again.update(content);
                expected.update(content);
                assert_eq!(again.finish(), expected.finish(), "{algorithm:?}, seeds: {files_too}");
            }
        }
    }

    #[test]
    fn files_and_blocks_of_unseeded_sums_are_alike() {
        for algorithm in Algorithm::ALL {
            let mut sum = FileSum::new(algorithm);
            sum.update(b"hel");
            sum.update(b"lo\n");
            let digest = sum.finish();
            assert_eq!(digest.len(), algorithm.len());
            let block = Seeded { algorithm, seed: 0, seed_first: true, files_too: false }.block(b"hello\n");
            assert_eq!(digest, block[..algorithm.len()]);
            assert_eq!(Algorithm::named(algorithm.name().as_bytes()), Some(algorithm));
        }
        // The value that stock rsync 3.5 sent.
        let mut sum = FileSum::new(Algorithm::Xxh128);
        sum.update(b"hello\n");
        assert_eq!(sum.finish()[..4], [0x9c, 0xe4, 0xc8, 0xf1]);
    }
}
