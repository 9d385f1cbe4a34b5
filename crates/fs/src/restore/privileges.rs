//! What of a snapshot gives rights on the machine that it is restored on.

use super::Restore;
use rustix::fs::Mode;
use snowmelt_zpl::{Attributes, FileKind, Objects};
use std::fmt;

/// The extended attribute that holds file capabilities.
const CAPABILITY: &[u8] = b"security.capability";
/// Setuid and setgid.
const LENDING: u32 = 0o6000;

/// What is restored of that which gives rights on this machine. By default nothing is: a snapshot that was received is what
/// somebody else made of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Privileges {
    /// Setuid and setgid bits of files, and file capabilities (`security.capability`).
    pub setuid: bool,
    /// Block and character devices. (0, 0) is no device but a mark of overlay filesystems, and always restored.
    pub devices: bool,
}

/// What was left out, and of how many files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LeftOut {
    /// Files whose setuid or setgid bit was left out.
    pub setuid: u64,
    /// Files whose capabilities were left out.
    pub capabilities: u64,
    /// Names of device nodes.
    pub devices: u64,
    /// Names that only records of syncs have ([`crate::reserved::RECORD_DIRECTORY`]).
    pub records: u64,
}

impl Privileges {
    /// A snapshot whose content is trusted is restored completely.
    pub const ALL: Self = Self { setuid: true, devices: true };

    /// Whether a node is a device that is left out.
    pub(crate) fn leave_out(self, attributes: &Attributes) -> bool {
        let is_device = matches!(attributes.kind(), FileKind::BlockDevice | FileKind::CharDevice);
        let is_mark =
            attributes.kind() == FileKind::CharDevice && attributes.rdev.unwrap_or((0, 0)) == (0, 0);
        is_device && !is_mark && !self.devices
    }

    /// The permission bits that a node gets; those of a directory lend nothing.
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
    /// What was left out of one node that is restored.
    pub(super) fn note(&mut self, privileges: Privileges, attributes: &Attributes, lost_capability: bool) {
        let is_lowered = privileges.mode(attributes) != Mode::from_raw_mode(attributes.permissions());
        self.setuid += u64::from(is_lowered);
        self.capabilities += u64::from(lost_capability);
    }
}

/// In one line, with the flags that restore it; nothing if nothing was left out.
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
    /// Whether a node is a device that is left out, which is counted.
    pub(crate) fn leaves_out(&mut self, attributes: &Attributes) -> bool {
        let is_left_out = self.options.privileges.leave_out(attributes);
        self.summary.left_out.devices += u64::from(is_left_out);
        is_left_out
    }
}
