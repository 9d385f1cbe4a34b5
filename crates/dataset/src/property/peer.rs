//! Decides which properties a peer may set.
//!
//! A stream or a sync request comes from a peer, which may only be trusted with the data of a dataset. Properties that
//! control how the data is stored are accepted. Properties with effects beyond the dataset are not: where it is
//! mounted, whether its programs and devices are honoured, how it is shared, and how much of the pool it may use or
//! reserve.

use std::collections::BTreeSet;

use super::{PropertyError, PropertyName, is_user_property};

/// Native properties that every peer may set on the datasets that it sends.
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
/// User properties with this prefix control this program.
const OWN_PREFIX: &str = "snowmelt:";
/// Means every property.
const ALL: &str = "all";

/// The properties that a peer may set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PeerProperties {
    all: bool,
    more: BTreeSet<String>,
}

impl PeerProperties {
    /// The harmless properties and `more`: names of properties, or `all`.
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

    /// All properties.
    #[must_use]
    pub fn all() -> Self {
        Self { all: true, more: BTreeSet::new() }
    }

    /// Whether the property with this canonical name may be set.
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
