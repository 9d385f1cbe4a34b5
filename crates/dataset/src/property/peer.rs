//! Which properties another machine may set here.
//!
//! A stream, or a request of a sync, comes from somebody who need not be trusted with more than the data of a dataset. What
//! says how the data is kept is taken. What reaches beyond the dataset is not: where it is mounted, whether its programs
//! and devices count, who it is shared with, and how much of the pool it may use or keep from others.

use std::collections::BTreeSet;

use super::{PropertyError, PropertyName, is_user_property};

/// Native properties that anybody may set on what he sends.
const HARMLESS: [&str; 24] = [
    "aclinherit",
    "aclmode",
    "acltype",
    "atime",
    "casesensitivity",
    "checksum",
    "compression",
    "direct",
    "dnodesize",
    "logbias",
    "longname",
    "normalization",
    "prefetch",
    "primarycache",
    "recordsize",
    "redundant_metadata",
    "relatime",
    "secondarycache",
    "special_small_blocks",
    "utf8only",
    "version",
    "volblocksize",
    "volthreading",
    "xattr",
];
/// User properties that begin so tell this program what to do.
const OWN_PREFIX: &str = "snowmelt:";
/// Stands for every property.
const ALL: &str = "all";

/// The properties that another machine may set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PeerProperties {
    all: bool,
    more: BTreeSet<String>,
}

impl PeerProperties {
    /// Those that are harmless, and `more`: names of properties, or `all`.
    ///
    /// # Errors
    /// [`PropertyError::Unknown`].
    pub fn with<'a>(more: impl IntoIterator<Item = &'a str>) -> Result<Self, PropertyError> {
        let mut allowed = Self::default();
        for name in more {
            match name {
                ALL => allowed.all = true,
                name => match PropertyName::parse(name)? {
                    PropertyName::Written { name, .. } => return Err(PropertyError::ReadOnly { name }),
                    PropertyName::Accounting(name) => return Err(PropertyError::UserQuota { name }),
                    known => drop(allowed.more.insert(known.text())),
                },
            }
        }
        Ok(allowed)
    }

    /// Every property.
    #[must_use]
    pub fn all() -> Self {
        Self { all: true, more: BTreeSet::new() }
    }

    /// Whether the property of this canonical name may be set.
    #[must_use]
    pub fn takes(&self, name: &str) -> bool {
        let is_harmless = match is_user_property(name) {
            true => !name.starts_with(OWN_PREFIX),
            false => HARMLESS.contains(&name),
        };
        is_harmless || self.all || self.more.contains(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_stays_within_the_dataset_is_harmless() {
        let allowed = PeerProperties::default();
        for name in HARMLESS {
            assert!(super::super::find(name).is_some_and(|property| property.name == name), "{name}");
        }
        for name in ["compression", "recordsize", "com.example:owner"] {
            assert!(allowed.takes(name), "{name}");
        }
        for name in [
            "mountpoint",
            "canmount",
            "setuid",
            "devices",
            "exec",
            "sharenfs",
            "sharesmb",
            "overlay",
            "zoned",
            "readonly",
            "quota",
            "refquota",
            "reservation",
            "refreservation",
            "keylocation",
            "snapdir",
            "sync",
            "copies",
            "snowmelt:rsync-keep",
            "no-such",
        ] {
            assert!(!allowed.takes(name), "{name}");
        }
    }

    #[test]
    fn more_is_named() {
        let allowed = PeerProperties::with(["mountpoint", "rdonly"]).unwrap();
        assert!(allowed.takes("mountpoint") && allowed.takes("readonly") && !allowed.takes("exec"));
        assert!(
            PeerProperties::with(["all"]).unwrap().takes("setuid") && PeerProperties::all().takes("setuid")
        );
        assert!(PeerProperties::with(["no-such"]).is_err());
    }
}
