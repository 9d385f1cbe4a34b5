//! The byte order of a stream.

/// Byte order of a stream's integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteOrder {
    /// Least significant byte first (x86, most others).
    Little,
    /// Most significant byte first (SPARC, s390x).
    Big,
}
