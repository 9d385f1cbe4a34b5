//! What a restored node is to look like besides its content.

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

/// Something tried, and how it failed.
pub(super) type Step = (&'static str, io::Error);

/// The step of project ids.
pub(super) const SET_PROJECT: &str = "set the project id";

/// The attributes to be given to one node.
pub(super) struct Wanted {
    attributes: Attributes,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    set_owner: bool,
    privileges: Privileges,
}

impl<O: Objects> Restore<'_, '_, O> {
    /// Reads what `node` is to look like, and counts what it is not given.
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
        // All ones would mean "leave it", and is no ID that a file can have.
        let uid = Some(self.attributes.uid).filter(|id| *id != u32::MAX).map(Uid::from_raw);
        (uid, Some(self.attributes.gid).filter(|id| *id != u32::MAX).map(Gid::from_raw))
    }

    /// Setuid and setgid only go with the right owner: else whoever restores would lend their rights.
    fn mode(&self, right_owner: bool) -> Mode {
        let mode = self.privileges.mode(&self.attributes);
        if right_owner { mode } else { mode - Mode::SUID - Mode::SGID }
    }

    /// Whoever restores is the owner, so the owner is right without being set.
    fn is_mine(&self) -> bool {
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        self.attributes.uid == uid.as_raw() && self.attributes.gid == gid.as_raw()
    }

    /// Dresses an open file or directory, all but its inode flags, which may forbid what is left to do.
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
        // Before the mode, which might forbid it.
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

    /// The project to be set; those of links and special nodes the kernel gives no way to set.
    fn project(&self) -> Option<Project> {
        let Attributes { project_id, flags, .. } = &self.attributes;
        let inherits = flags.contains(ZfsFlags::PROJINHERIT);
        let id = u32::try_from(*project_id).ok().filter(|id| *id != u32::MAX)?;
        (id != 0 || inherits).then_some(Project { id, inherits })
    }

    /// Sets the inode flags, where there are any.
    pub(super) fn apply_flags(&self, file: BorrowedFd<'_>) -> Vec<Step> {
        apply_flags(&self.attributes, file)
    }

    /// Takes from an open file or directory what it has and is not to have: flags that forbid changes, extended attributes, a
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

    /// Dresses an open directory.
    pub(super) fn apply(&self, directory: BorrowedFd<'_>) -> Vec<Step> {
        let mut failed = self.apply_but_flags(directory);
        failed.extend(self.apply_flags(directory));
        failed
    }

    /// Dresses what cannot be opened, a link or special node, by a descriptor that only names its inode (`O_PATH`). Nothing
    /// else is touched, whatever its name leads to by now.
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
            // The path leads to the inode itself, also where that is a link.
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

    /// Checks that a descriptor is of a node of the right kind, which has no other name if it was `just_made`.
    pub(super) fn check_node(&self, node: BorrowedFd<'_>, just_made: bool) -> io::Result<()> {
        let stat = rustix::fs::fstat(node)?;
        let is_kind = stat.st_mode & 0o170_000 == self.attributes.kind().mode_bits();
        match is_kind && !(just_made && stat.st_nlink != 1) {
            true => Ok(()),
            false => Err(io::Error::other("it was replaced by something else meanwhile")),
        }
    }
}

/// Sets the times of what a descriptor is of that only names it.
fn set_times(node: BorrowedFd<'_>, times: &Timestamps) -> rustix::io::Result<()> {
    match rustix::fs::utimensat(node, "", times, AtFlags::EMPTY_PATH) {
        // Linux before 5.8.
        Err(Errno::INVAL | Errno::NOENT) => {
            rustix::fs::utimensat(CWD, path_of_descriptor(node), times, AtFlags::empty())
        }
        done => done,
    }
}

/// Sets the inode flags of a file that has them in the snapshot.
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

/// Names of the extended attributes of an open file; none where it has none or they cannot be told.
fn xattr_names(file: BorrowedFd<'_>) -> Vec<Vec<u8>> {
    let names = crate::fsxattr::grown(|buf| rustix::fs::flistxattr(file, buf)).unwrap_or_default();
    names.split(|byte| *byte == 0).filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect()
}

/// Whether an extended attribute is the file's own, and not the system's, as labels of security modules are.
fn is_restored(name: &[u8]) -> bool {
    name.starts_with(b"user.")
        || name.starts_with(b"trusted.")
        || [&b"security.capability"[..], b"system.posix_acl_access", b"system.posix_acl_default"]
            .contains(&name)
}
