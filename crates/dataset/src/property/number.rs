//! Parses sizes typed by users: `128K`, `1.5G`, `10MiB`.

use super::PropertyError;

const UNITS: &[u8] = b"BKMGTPEZ";

/// Parses a number with an optional unit, a power of 1024 (`zfs_nicestrtonum` in `lib/libzfs/libzfs_util.c`). `G`, `GB`
/// and `GiB` are equal, in upper or lower case; `B` alone means bytes.
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

/// As `parse_size` for a number with a fraction after `whole` digits. Uses floating point as ZFS does.
fn parse_decimal(text: &str, whole: usize) -> Result<u64, PropertyError> {
    let fraction = text.bytes().skip(whole + 1).take_while(u8::is_ascii_digit).count();
    let (number, rest) = text.split_at(whole + 1 + fraction);
    let shift = unit_shift(rest)?;
    // strtod rejects a point without a digit on either side.
    let value: f64 = number.parse().map_err(|_| PropertyError::BadNumber { text: text.to_owned() })?;
    let scaled = value * 2f64.powi(shift.try_into().unwrap_or(i32::MAX));
    // 2^64 is the first double above every u64.
    if scaled >= 18_446_744_073_709_551_616.0 {
        return Err(PropertyError::NumberTooLarge);
    }
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    Ok(scaled as u64)
}

/// By how many bits a unit shifts the number before it (`str2shift` in `lib/libzfs/libzfs_util.c`).
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
