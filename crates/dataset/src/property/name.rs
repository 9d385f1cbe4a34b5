//! What kind of property a name stands for.

use super::{NAME_LEN_MAX, Property, PropertyError, find};

/// Prefixes of the properties of single users, groups and projects (`zfs_userquota_prop_prefixes` in
/// `module/zcommon/zfs_prop.c`).
const ACCOUNTING_PREFIXES: [&str; 12] = [
    "userused@",
    "userquota@",
    "groupused@",
    "groupquota@",
    "userobjused@",
    "userobjquota@",
    "groupobjused@",
    "groupobjquota@",
    "projectused@",
    "projectquota@",
    "projectobjused@",
    "projectobjquota@",
];

/// A property's name, taken apart.
#[derive(Clone, Debug)]
pub enum PropertyName {
    /// One of ZFS's own.
    Native(&'static Property),
    /// A user property: its name has a colon.
    User(String),
    /// `written@SNAPSHOT` or `written#BOOKMARK`: what was written since.
    Written {
        /// The property's whole name as given.
        name: String,
        /// The snapshot or bookmark: short with its `@` or `#` (`@monday`), or in full (`tank/fs@monday`).
        since: String,
    },
    /// `userused@joe`, `groupquota@staff`, …: what is kept per user, group or project. No dataset here has a value.
    Accounting(String),
}

impl PropertyName {
    /// Takes a name apart; aliases (`compress`, `avail`, `lrefer`, …) are accepted.
    ///
    /// # Errors
    /// `Unknown` or `NameTooLong`.
    pub fn parse(name: &str) -> Result<Self, PropertyError> {
        if let Some(native) = find(name) {
            return Ok(Self::Native(native));
        }
        if is_user_property(name) {
            if name.len() > NAME_LEN_MAX {
                return Err(PropertyError::NameTooLong { name: name.to_owned() });
            }
            return Ok(Self::User(name.to_owned()));
        }
        if let Some(since) = name.strip_prefix("written")
            && since.len() > 1
            && since.starts_with(['@', '#'])
        {
            return Ok(Self::Written { name: name.to_owned(), since: Self::since(since) });
        }
        let of_whom = ACCOUNTING_PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix));
        if of_whom.is_some_and(|whom| !whom.is_empty() && name.len() <= NAME_LEN_MAX) {
            return Ok(Self::Accounting(name.to_owned()));
        }
        Err(PropertyError::Unknown { name: name.to_owned() })
    }

    /// `@snap` and `#mark` stay as they are; in `@pool/fs@snap` the first sign only introduces a full name.
    fn since(text: &str) -> String {
        let name = text.get(1..).unwrap_or_default();
        if name.contains(['@', '#']) { name.to_owned() } else { text.to_owned() }
    }

    /// The name as ZFS prints it.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Self::Native(property) => property.name.to_owned(),
            Self::User(name) | Self::Written { name, .. } | Self::Accounting(name) => name.clone(),
        }
    }
}

/// Whether a name is of a user property: lower-case letters, digits and `-_.:` only, with at least one colon
/// (`zfs_prop_user` in `module/zcommon/zfs_prop.c`). The length is not looked at.
#[must_use]
pub fn is_user_property(name: &str) -> bool {
    name.contains(':')
        && name
            .bytes()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, b'-' | b'_' | b'.' | b':'))
}
