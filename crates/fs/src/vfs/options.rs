//! The options of a mount, from the properties of the dataset.

use snowmelt_dataset::catalog::PropertyKind;
use snowmelt_dataset::{Catalog, Dataset, DatasetError};
use snowmelt_zpl::XattrStore;

/// When the time of the last read is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Atime {
    /// Never (`atime=off`).
    Off,
    /// If the recorded time is older than the last change, or older than a day (`relatime=on`).
    #[default]
    Relative,
    /// At the first read after each open.
    Strict,
}

/// The property `snapdir`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SnapDir {
    /// There is no `.zfs`.
    Disabled,
    /// It exists but is not listed.
    #[default]
    Hidden,
    /// It is listed.
    Visible,
}

/// The options of a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VfsOptions {
    /// Whether the filesystem is read-only.
    pub read_only: bool,
    /// When the time of the last read is recorded.
    pub atime: Atime,
    /// How snapshots are shown.
    pub snapdir: SnapDir,
    /// Whether POSIX ACLs are supported (`acltype=posix`).
    pub posix_acl: bool,
    /// Whether extended attributes other than ACLs are supported (`xattr`).
    pub xattrs: bool,
    /// `devices`: whether device nodes work. This option and the next two are enforced by the code that mounts the
    /// filesystem. In ZFS the default is on. Here a dataset may be untrusted, so the property must be set locally.
    pub devices: bool,
    /// `exec`: whether files can be executed.
    pub exec: bool,
    /// `setuid`: whether setuid and setgid bits and file capabilities are honoured. The property must be set locally.
    pub setuid: bool,
    /// `recordsize` in bytes, which `stat` shows as the best size of reads and writes.
    pub record_size: u32,
}

/// The options of a dataset with no properties set.
impl Default for VfsOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            atime: Atime::default(),
            snapdir: SnapDir::default(),
            posix_acl: false,
            xattrs: true,
            devices: false,
            exec: true,
            setuid: false,
            record_size: 128 << 10,
        }
    }
}

impl VfsOptions {
    /// The options that follow from the properties of a dataset.
    ///
    /// # Errors
    /// If the pool cannot be read.
    pub fn of(catalog: &Catalog, dataset: &Dataset) -> Result<Self, DatasetError> {
        let value = |name: &str| -> Result<Option<String>, DatasetError> {
            Ok(catalog.inherited_property(dataset, name)?.map(|(value, ..)| value))
        };
        let is_on = |name: &str| -> Result<bool, DatasetError> { Ok(value(name)?.as_deref() != Some("off")) };
        // Streams contain properties too. Their sender must not decide what grants rights on this machine.
        let is_granted = |name: &str| -> Result<bool, DatasetError> {
            let found = catalog.inherited_property(dataset, name)?;
            Ok(found.is_some_and(|(value, kind, _)| value == "on" && kind == PropertyKind::Local))
        };
        let atime = match (is_on("atime")?, is_on("relatime")?) {
            (false, _) => Atime::Off,
            (true, true) => Atime::Relative,
            (true, false) => Atime::Strict,
        };
        let written = snowmelt_dataset::write_options(catalog, dataset)?;
        Ok(Self {
            read_only: value("readonly")?.as_deref() == Some("on"),
            atime,
            snapdir: match value("snapdir")?.as_deref() {
                Some("disabled") => SnapDir::Disabled,
                Some("visible") => SnapDir::Visible,
                _ => SnapDir::Hidden,
            },
            posix_acl: written.posix_acl,
            xattrs: written.xattr != XattrStore::Off,
            devices: is_granted("devices")?,
            exec: is_on("exec")?,
            setuid: is_granted("setuid")?,
            record_size: written.record_size,
        })
    }

    /// The properties that differ from `other`, with their values in `self`.
    pub(super) fn differing(&self, other: &Self) -> Vec<(&'static str, bool)> {
        let each = |options: &Self| {
            [
                ("atime", options.atime != Atime::Off),
                ("devices", options.devices),
                ("exec", options.exec),
                ("readonly", options.read_only),
                ("setuid", options.setuid),
            ]
        };
        let mut found: Vec<_> =
            each(self).into_iter().zip(each(other)).filter(|(a, b)| a != b).map(|(own, _)| own).collect();
        // If `atime` is off, `relatime` has no meaning.
        if self.atime != other.atime && self.atime != Atime::Off && other.atime != Atime::Off {
            found.push(("relatime", self.atime == Atime::Relative));
        }
        found
    }

    /// These options with the changes of properties from `was` to `is`. Options that only a new mount can change stay.
    pub(super) fn following(self, was: &Self, is: &Self) -> Self {
        fn one<T: PartialEq + Copy>(chosen: T, was: T, is: T) -> T {
            if was == is { chosen } else { is }
        }
        Self {
            read_only: one(self.read_only, was.read_only, is.read_only),
            posix_acl: self.posix_acl,
            atime: one(self.atime, was.atime, is.atime),
            devices: one(self.devices, was.devices, is.devices),
            exec: one(self.exec, was.exec, is.exec),
            setuid: one(self.setuid, was.setuid, is.setuid),
            ..*is
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_stay_as_chosen_until_their_property_changes() {
        let was = VfsOptions::default();
        let chosen = VfsOptions { read_only: true, atime: Atime::Off, exec: false, ..was };
        let is = VfsOptions { snapdir: SnapDir::Visible, record_size: 4096, ..was };
        assert_eq!(
            chosen.following(&was, &is),
            VfsOptions { snapdir: SnapDir::Visible, record_size: 4096, ..chosen }
        );
        let set = VfsOptions { atime: Atime::Strict, setuid: true, posix_acl: true, ..is };
        let expected = VfsOptions {
            atime: Atime::Strict,
            setuid: true,
            posix_acl: false,
            ..chosen.following(&was, &is)
        };
        assert_eq!(chosen.following(&was, &is).following(&is, &set), expected);
        assert_eq!(chosen.differing(&was), [("atime", false), ("exec", false), ("readonly", true)]);
        let strict = VfsOptions { atime: Atime::Strict, ..was };
        assert_eq!(strict.differing(&was), [("relatime", false)]);
        let read_only = VfsOptions { read_only: true, ..is };
        assert!(is.following(&is, &read_only).read_only);
        assert!(!chosen.following(&read_only, &is).read_only);
    }
}
