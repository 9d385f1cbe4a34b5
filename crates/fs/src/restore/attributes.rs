//! Setting the attributes of restored nodes.

use super::{Privileges, Restore};
use crate::beneath::{change_mode, path_of_descriptor};
use crate::error::FsError;
use crate::fsxattr::{InodeFlags, Project};
use crate::walk::Node;
use rustix::fs::{AtFlags, CWD, Gid, IFlags, Mode, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use snowmelt_zpl::{Attributes, FileKind, Objects, Timestamp, ZfsFlags};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::BorrowedFd;

/// A failed step and its error.
pub(super) type Step = (&'static str, io::Error);

/// The step that sets the project ID.
pub(super) const SET_PROJECT: &str = "set the project id";

/// The attributes to set on one node.
pub(super) struct Wanted {
    attributes: Attributes,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    set_owner: bool,
    privileges: Privileges,
}

impl<O: Objects> Restore<'_, '_, O> {
    /// Reads the attributes of `node`, and counts those that are left out.
    pub(super) fn wanted(&mut self, node: &Node) -> Result<Wanted, FsError> {
        let mut xattrs = self.fs.xattrs(node.object).map_err(FsError::zpl(&node.path))?;
        let (privileges, all) = (self.options.privileges, xattrs.len());
        xattrs.retain(|name, _| !privileges.leave_out_xattr(name));
        self.summary.left_out.note(privileges, &node.attributes, xattrs.len() < all);
        Ok(Wanted { attributes: node.attributes.clone(), xattrs, set_owner: self.set_owners, privileges })
    }
}

fn timespec(time: Timestamp) -> Timespec {
    Timespec { tv_sec: time.seconds, tv_nsec: i64::from(time.nanoseconds) }
}

impl Wanted {
    fn times(&self) -> Timestamps {
        let at = &self.attributes;
        Timestamps { last_access: timespec(at.atime), last_modification: timespec(at.mtime) }
    }

    fn owner(&self) -> (Option<Uid>, Option<Gid>) {
        // An ID with all bits set would mean "do not change". No file can have it.
        let uid = Some(self.attributes.uid).filter(|id| *id != u32::MAX).map(Uid::from_raw);
        (uid, Some(self.attributes.gid).filter(|id| *id != u32::MAX).map(Gid::from_raw))
    }

    /// The mode to set. Setuid and setgid bits are set only with the right owner. Otherwise they would grant the rights
    /// of the user who restores.
    fn mode(&self, right_owner: bool) -> Mode {
        let mode = self.privileges.mode(&self.attributes);
        if right_owner { mode } else { mode - Mode::SUID - Mode::SGID }
    }

    /// Whether the node's owner and group are those of this process. Then the owner is right without being set.
    fn is_mine(&self) -> bool {
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        self.attributes.uid == uid.as_raw() && self.attributes.gid == gid.as_raw()
    }

    /// Sets the attributes of an open file or directory, except its inode flags, which may forbid further changes.
    pub(super) fn apply_but_flags(&self, file: BorrowedFd<'_>) -> Vec<Step> {
        let mut failed = Vec::new();
        let mut note = |step, result: rustix::io::Result<()>| {
            let failure = result.err();
            let done = failure.is_none();
            failed.extend(failure.map(|error| (step, error.into())));
            done
        };
        let right_owner = match self.set_owner {
            true => {
                let (uid, gid) = self.owner();
                note("set the owner", rustix::fs::fchown(file, uid, gid))
            }
            false => self.is_mine(),
        };
        // This is done before the mode is set, which might forbid it.
        for (name, value) in &self.xattrs {
            let result = rustix::fs::fsetxattr(file, name.as_slice(), value, XattrFlags::empty());
            note("set an extended attribute", result);
        }
        note("set the mode", rustix::fs::fchmod(file, self.mode(right_owner)));
        if let Some(project) = self.project() {
            note(SET_PROJECT, project.set(file));
        }
        note("set the times", rustix::fs::futimens(file, &self.times()));
        failed
    }

    /// The project to set. The kernel cannot set projects of links and special nodes.
    fn project(&self) -> Option<Project> {
        let Attributes { project_id, flags, .. } = &self.attributes;
        let inherits = flags.contains(ZfsFlags::PROJINHERIT);
        let id = u32::try_from(*project_id).ok().filter(|id| *id != u32::MAX)?;
        (id != 0 || inherits).then_some(Project { id, inherits })
    }

    /// Sets the inode flags, if there are any.
    pub(super) fn apply_flags(&self, file: BorrowedFd<'_>) -> Vec<Step> {
        apply_flags(&self.attributes, file)
    }

    /// Removes unwanted attributes of an open file or directory: flags that forbid changes, extended attributes, a
    /// project.
    pub(super) fn strip(&self, file: BorrowedFd<'_>) -> Vec<Step> {
        let mut failed = Vec::new();
        let mut note = |step, result: rustix::io::Result<()>| {
            failed.extend(result.err().map(|error| (step, io::Error::from(error))));
        };
        if let Ok(flags) = rustix::fs::ioctl_getflags(file) {
            let kept = flags - IFlags::from_bits_truncate(0x70);
            if kept != flags {
                note("take away the inode flags", rustix::fs::ioctl_setflags(file, kept));
            }
        }
        for name in xattr_names(file) {
            if is_restored(&name) && !self.xattrs.contains_key(&name) {
                let result = rustix::fs::fremovexattr(file, name.as_slice());
                note("remove an extended attribute", result);
            }
        }
        if self.project().is_none()
            && InodeFlags::of(file).is_ok_and(|found| found.is_some_and(|found| found.project_id != 0))
        {
            note(SET_PROJECT, Project { id: 0, inherits: false }.set(file));
        }
        failed
    }

    /// Sets the attributes of an open directory.
    pub(super) fn apply(&self, directory: BorrowedFd<'_>) -> Vec<Step> {
        let mut failed = self.apply_but_flags(directory);
        failed.extend(self.apply_flags(directory));
        failed
    }

    /// Sets the attributes of a link or special node, which cannot be opened, through an `O_PATH` descriptor. No other
    /// inode is changed, even if the name was replaced.
    pub(super) fn apply_to_node(&self, node: BorrowedFd<'_>) -> Vec<Step> {
        let mut failed = Vec::new();
        let mut note = |step, result: rustix::io::Result<()>| {
            let failure = result.err();
            let done = failure.is_none();
            failed.extend(failure.map(|error| (step, io::Error::from(error))));
            done
        };
        let right_owner = match self.set_owner {
            true => {
                let (uid, gid) = self.owner();
                note("set the owner", rustix::fs::chownat(node, "", uid, gid, AtFlags::EMPTY_PATH))
            }
            false => self.is_mine(),
        };
        for (name, value) in &self.xattrs {
            // The path leads to the inode itself, even if it is a link.
            let path = path_of_descriptor(node);
            let result = rustix::fs::setxattr(path, name.as_slice(), value, XattrFlags::empty());
            note("set an extended attribute", result);
        }
        if self.attributes.kind() != FileKind::Symlink {
            note("set the mode", change_mode(node, self.mode(right_owner)));
        }
        note("set the times", set_times(node, &self.times()));
        failed
    }

    /// Checks that a descriptor refers to a node of the right type. If it was `just_made`, it must have no other name.
    pub(super) fn check_node(&self, node: BorrowedFd<'_>, just_made: bool) -> io::Result<()> {
        let stat = rustix::fs::fstat(node)?;
        let is_kind = stat.st_mode & 0o170_000 == self.attributes.kind().mode_bits();
        match is_kind && !(just_made && stat.st_nlink != 1) {
            true => Ok(()),
            false => Err(io::Error::other("it was replaced in the meantime")),
        }
    }
}

/// Sets the times of the node of an `O_PATH` descriptor.
fn set_times(node: BorrowedFd<'_>, times: &Timestamps) -> rustix::io::Result<()> {
    match rustix::fs::utimensat(node, "", times, AtFlags::EMPTY_PATH) {
        // Linux before 5.8 returns these errors.
        Err(Errno::INVAL | Errno::NOENT) => {
            rustix::fs::utimensat(CWD, path_of_descriptor(node), times, AtFlags::empty())
        }
        done => done,
    }
}

/// Sets the inode flags of a file, if the snapshot has any.
pub(super) fn apply_flags(attributes: &Attributes, file: BorrowedFd<'_>) -> Vec<Step> {
    let wanted = IFlags::from_bits_truncate(attributes.flags.fs_ioc_flags() & 0x70);
    if wanted.is_empty() {
        return Vec::new();
    }
    let set = || {
        let flags = rustix::fs::ioctl_getflags(file)?;
        rustix::fs::ioctl_setflags(file, flags | wanted)
    };
    set().err().map(|error| ("set the inode flags", error.into())).into_iter().collect()
}

/// Names of the extended attributes of an open file. Empty if there are none or they cannot be listed.
fn xattr_names(file: BorrowedFd<'_>) -> Vec<Vec<u8>> {
    let names = crate::fsxattr::grown(|buf| rustix::fs::flistxattr(file, buf)).unwrap_or_default();
    names.split(|byte| *byte == 0).filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect()
}

/// Whether an extended attribute belongs to the file, unlike those of the system, such as labels of security modules.
fn is_restored(name: &[u8]) -> bool {
    name.starts_with(b"user.")
        || name.starts_with(b"trusted.")
        || [&b"security.capability"[..], b"system.posix_acl_access", b"system.posix_acl_default"]
            .contains(&name)
}
