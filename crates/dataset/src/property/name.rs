//! Parses the names of properties.

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

/// A parsed property name.
#[derive(Clone, Debug)]
pub enum PropertyName {
    /// A native property of ZFS.
    Native(&'static Property),
    /// A user property: its name has a colon.
    User(String),
    /// `written@SNAPSHOT` or `written#BOOKMARK`: the space written since then.
    Written {
        /// The property's whole name as given.
        name: String,
        /// The snapshot or bookmark: a short name with `@` or `#` (`@monday`), or a full name (`tank/fs@monday`).
        since: String,
    },
    /// `userused@joe`, `groupquota@staff`, …: accounting of users, groups or projects. No dataset here has a value for
    /// it.
    Accounting(String),
}

impl PropertyName {
    /// Parses a name. Aliases (`compress`, `avail`, `lrefer`, …) are accepted.
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

    /// `@snap` and `#mark` do not change. In `@pool/fs@snap` the first `@` only introduces a full name.
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

/// Whether a name is that of a user property: only lower-case letters, digits and `-_.:`, with at least one colon
/// (`zfs_prop_user` in `module/zcommon/zfs_prop.c`). Does not check the length.
#[must_use]
pub fn is_user_property(name: &str) -> bool {
    name.contains(':')
        && name
            .bytes()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, b'-' | b'_' | b'.' | b':'))
}
