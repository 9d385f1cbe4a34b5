//! DATA packed with zstd, frame by frame.
//!
//! A decompressed frame is at most as long as a frame of DATA may be, regardless of its announced length.

use zstd_safe::{CCtx, CParameter};

use super::WireError;
use super::frame::DATA_MAX;

/// Bytes before the packed ones: how many they were.
const HEADER_LEN: usize = 4;
/// Pieces that go out as they are after one that was not worth packing.
const PAUSE: u32 = 15;
/// Smaller pieces are not worth it.
const LEAST: usize = 512;

/// Packs the pieces of one stream.
pub(super) struct Packer {
    context: CCtx<'static>,
    level: u8,
    /// Pieces to go before packing is tried again.
    pause: u32,
}

impl Packer {
    pub(super) fn new(level: u8) -> Self {
        Self { context: CCtx::create(), level, pause: 0 }
    }

    /// The payload of a packed frame. `None` if the bytes should be sent unpacked, because compressed data does not
    /// get smaller.
    pub(super) fn pack(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        if bytes.len() < LEAST {
            return None;
        }
        if self.pause > 0 {
            self.pause -= 1;
            return None;
        }
        let mut packed = Vec::with_capacity(HEADER_LEN + bytes.len());
        packed.extend_from_slice(&u32::try_from(bytes.len()).ok()?.to_le_bytes());
        packed.resize(HEADER_LEN + bytes.len(), 0);
        self.context.set_parameter(CParameter::CompressionLevel(i32::from(self.level))).ok()?;
        let (_, room) = packed.split_at_mut_checked(HEADER_LEN)?;
        // A result that does not fit into the space of the original bytes is not useful either.
        let len = self.context.compress2(room, bytes).ok().filter(|len| *len < bytes.len() / 16 * 15);
        let Some(len) = len else {
            self.pause = PAUSE;
            return None;
        };
        packed.truncate(HEADER_LEN + len);
        Some(packed)
    }
}

/// The packed bytes.
pub(super) fn unpack(payload: &[u8]) -> Result<Vec<u8>, WireError> {
    let bad = |why: &str| WireError::protocol(format!("a packed frame {why}"));
    let (len, packed) = payload.split_first_chunk::<HEADER_LEN>().ok_or_else(|| bad("without a length"))?;
    let len = u32::from_le_bytes(*len) as usize;
    if !(1..=DATA_MAX).contains(&len) {
        return Err(bad("of a length that cannot be"));
    }
    let mut bytes = vec![0; len];
    match zstd_safe::decompress(bytes.as_mut_slice(), packed) {
        Ok(found) if found == len => Ok(bytes),
        _ => Err(bad("that cannot be unpacked")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_gets_smaller_is_packed_and_survives() {
        let mut packer = Packer::new(3);
        let text = b"snow melts ".repeat(20_000);
        let packed = packer.pack(&text[..DATA_MAX.min(text.len())]).unwrap();
        assert!(packed.len() < text.len() / 10);
        assert_eq!(unpack(&packed).unwrap(), &text[..DATA_MAX.min(text.len())]);
        let mut seed = 1u64;
        let noise: Vec<u8> = std::iter::repeat_with(|| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 56) as u8
        })
        .take(100_000)
        .collect();
        assert_eq!(packer.pack(&noise), None);
        // For a while it is not tried.
        assert_eq!(packer.pack(&text), None);
        for _ in 0..PAUSE {
            packer.pack(&text);
        }
        assert!(packer.pack(&text).is_some());
    }

    #[test]
    fn lies_are_refused() {
        let text = b"snow melts ".repeat(200);
        let packed = Packer::new(1).pack(&text).unwrap();
        for len in [0_u32, 1, text.len() as u32 - 1, text.len() as u32 + 1, DATA_MAX as u32 + 1, u32::MAX] {
            let mut lie = packed.clone();
            lie[..HEADER_LEN].copy_from_slice(&len.to_le_bytes());
            assert!(unpack(&lie).is_err(), "{len}");
        }
        for cut in 0..packed.len() {
            assert!(unpack(&packed[..cut]).is_err(), "{cut}");
        }
    }
}
