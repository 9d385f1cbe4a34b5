//! Sizes as people type them: `128K`, `1.5G`, `10MiB`.

use super::PropertyError;

const UNITS: &[u8] = b"BKMGTPEZ";

/// Reads a number with an optional unit of 1024 (`zfs_nicestrtonum` in `lib/libzfs/libzfs_util.c`):
/// `G`, `GB` and `GiB` are the same in any case of letters, `B` alone is a byte.
///
/// # Errors
/// `BadNumber`, `BadSuffix` or `NumberTooLarge`.
pub fn parse_size(text: &str) -> Result<u64, PropertyError> {
    if !text.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return Err(PropertyError::BadNumber { text: text.to_owned() });
    }
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (whole, rest) = text.split_at(digits);
    if rest.starts_with('.') {
        return parse_decimal(text, digits);
    }
    let number: u64 = whole.parse().map_err(|_| PropertyError::NumberTooLarge)?;
    let shift = unit_shift(rest)?;
    if shift > number.leading_zeros() && number != 0 {
        return Err(PropertyError::NumberTooLarge);
    }
    Ok(number.checked_shl(shift).unwrap_or(0))
}

/// As `parse_size` where there is a fraction, which `whole` digits precede: computed in floating point as ZFS does.
fn parse_decimal(text: &str, whole: usize) -> Result<u64, PropertyError> {
    let fraction = text.bytes().skip(whole + 1).take_while(u8::is_ascii_digit).count();
    let (number, rest) = text.split_at(whole + 1 + fraction);
    let shift = unit_shift(rest)?;
    // A point with no digit on either side is read as nothing at all by strtod.
    let value: f64 = number.parse().map_err(|_| PropertyError::BadNumber { text: text.to_owned() })?;
    let scaled = value * 2f64.powi(shift.try_into().unwrap_or(i32::MAX));
    // 2^64 is the first double above every u64.
    if scaled >= 18_446_744_073_709_551_616.0 {
        return Err(PropertyError::NumberTooLarge);
    }
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    Ok(scaled as u64)
}

/// How far a unit shifts the number before it (`str2shift` in `lib/libzfs/libzfs_util.c`).
fn unit_shift(suffix: &str) -> Result<u32, PropertyError> {
    let bad = || PropertyError::BadSuffix { suffix: suffix.to_owned() };
    let upper = suffix.to_ascii_uppercase();
    let Some((&unit, tail)) = upper.as_bytes().split_first() else { return Ok(0) };
    let power = UNITS.iter().position(|&known| known == unit).ok_or_else(bad)?;
    let allowed = tail.is_empty() || (unit != b'B' && (tail == b"B" || tail == b"IB"));
    if !allowed {
        return Err(bad());
    }
    u32::try_from(power * 10).map_err(|_| bad())
}
