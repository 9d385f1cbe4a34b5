//! Parts of a snapshot that grant rights on the machine where it is restored.

use super::Restore;
use rustix::fs::Mode;
use snowmelt_zpl::{Attributes, FileKind, Objects};
use std::fmt;

/// The extended attribute that holds file capabilities.
const CAPABILITY: &[u8] = b"security.capability";
/// The setuid and setgid bits.
const LENDING: u32 = 0o6000;

/// Which parts that grant rights on this machine are restored. By default none are, because a received snapshot may
/// come from an untrusted source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Privileges {
    /// Setuid and setgid bits of files, and file capabilities (`security.capability`).
    pub setuid: bool,
    /// Block and character devices. The character device (0, 0) is a marker of overlay filesystems, and always
    /// restored.
    pub devices: bool,
}

/// Numbers of files for which something was left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LeftOut {
    /// Files whose setuid or setgid bit was left out.
    pub setuid: u64,
    /// Files whose capabilities were left out.
    pub capabilities: u64,
    /// Device nodes that were left out.
    pub devices: u64,
    /// Names that are reserved for records of syncs ([`crate::reserved::RECORD_DIRECTORY`]).
    pub records: u64,
}

impl Privileges {
    /// Everything is restored, for a snapshot whose content is trusted.
    pub const ALL: Self = Self { setuid: true, devices: true };

    /// Whether a node is a device that is left out.
    pub(crate) fn leave_out(self, attributes: &Attributes) -> bool {
        let is_device = matches!(attributes.kind(), FileKind::BlockDevice | FileKind::CharDevice);
        let is_mark =
            attributes.kind() == FileKind::CharDevice && attributes.rdev.unwrap_or((0, 0)) == (0, 0);
        is_device && !is_mark && !self.devices
    }

    /// The mode that a node gets. The setgid bit of a directory grants no rights and is kept.
    pub(super) fn mode(self, attributes: &Attributes) -> Mode {
        let bits = attributes.permissions();
        let keeps = self.setuid || attributes.kind() == FileKind::Directory;
        Mode::from_raw_mode(if keeps { bits } else { bits & !LENDING })
    }

    /// Whether an extended attribute is left out.
    pub(super) fn leave_out_xattr(self, name: &[u8]) -> bool {
        name == CAPABILITY && !self.setuid
    }
}

impl LeftOut {
    /// Counts what was left out of one restored node.
    pub(super) fn note(&mut self, privileges: Privileges, attributes: &Attributes, lost_capability: bool) {
        let is_lowered = privileges.mode(attributes) != Mode::from_raw_mode(attributes.permissions());
        self.setuid += u64::from(is_lowered);
        self.capabilities += u64::from(lost_capability);
    }
}

/// Formats the numbers in one line, with the flags that restore these parts. Empty if nothing was left out.
impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { setuid, capabilities, devices, records } = *self;
        let told = [
            (setuid, "setuid or setgid bits", "--setuid"),
            (capabilities, "file capabilities", "--setuid"),
            (devices, "device nodes", "--devices"),
            (records, "records of syncs", "never restored"),
        ];
        let told = told.iter().filter(|(count, ..)| *count > 0);
        let told = told.map(|(count, what, flag)| format!("{count} {what} ({flag})"));
        let told: Vec<String> = told.collect();
        match told.is_empty() {
            true => Ok(()),
            false => write!(f, "left out: {}", told.join(", ")),
        }
    }
}

impl<O: Objects> Restore<'_, '_, O> {
    /// Whether a node is a device that is left out. If so, it is counted.
    pub(crate) fn leaves_out(&mut self, attributes: &Attributes) -> bool {
        let is_left_out = self.options.privileges.leave_out(attributes);
        self.summary.left_out.devices += u64::from(is_left_out);
        is_left_out
    }
}
