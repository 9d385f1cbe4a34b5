//! Where Unicode 5.0, whose tables ZFS has, differs from the Unicode of today.

/// The character is newer than Unicode 5.0, so ZFS does nothing to it.
pub(super) fn is_unknown(_c: char) -> bool {
    false
}

/// The simple upper case of `c`.
pub(super) fn to_upper(c: char) -> char {
    let mut upper = c.to_uppercase();
    match (upper.next(), upper.next()) {
        (Some(one), None) => one,
        _ => c,
    }
}
