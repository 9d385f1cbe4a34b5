//! A directory as a target that stores attributes which only root can set in extended attributes (`fake super`).

use std::collections::BTreeMap;
use std::io;

use rustix::io::Errno;
use snowmelt_zpl::{NewKind, SetAttributes};

use super::{DirectoryTarget, Found, Node, Target, TargetError, Ways};
use crate::history::Moment;
use crate::source::fake_super::values::{self, STAT};
use crate::source::{Metadata, kind};

/// The longest target of a link, in bytes.
const TARGET_MAX: usize = 4095;
const SPECIAL: u32 = 0o7000;

/// A directory that a user other than root can write to like root.
pub struct FakeSuperTarget {
    real: DirectoryTarget,
}

impl FakeSuperTarget {
    /// A target of this directory.
    pub fn new(real: DirectoryTarget) -> Self {
        Self { real }
    }

    fn stat_value(&self, node: &Node) -> io::Result<Option<Vec<u8>>> {
        Ok(self.real.xattrs(node)?.remove(STAT))
    }

    fn metadata_of(&self, node: &Node, real: Metadata) -> io::Result<Metadata> {
        match real.is_file() || real.is_dir() {
            true => values::shown(real, self.stat_value(node)?.as_deref()),
            false => Ok(real),
        }
    }

    fn shown(&self, found: Found) -> io::Result<Found> {
        let metadata = self.metadata_of(&found.node, found.metadata)?;
        Ok(Found { metadata, ..found })
    }

    /// Stores the metadata for clients, if it differs from the real metadata.
    fn keep(&self, node: &Node, real: &Metadata, shown: &Metadata) -> io::Result<()> {
        let has = self.stat_value(node)?;
        let is_plain = (real.mode, real.uid, real.gid) == (shown.mode, shown.uid, shown.gid);
        let wanted = (!is_plain).then(|| values::value(shown));
        if has == wanted {
            return Ok(());
        }
        self.real.set_xattr(node, STAT, wanted.as_deref())
    }

    /// Makes a new file stand for one that only root can create, or that can have no attributes.
    fn stand_for(&self, made: Found, kind: NewKind<'_>, permissions: u32) -> io::Result<Found> {
        let of = |kind: u32, rdev| Metadata { mode: kind | permissions & 0o7777, rdev, ..made.metadata };
        let shown = match kind {
            NewKind::File | NewKind::Directory => return self.shown(made),
            NewKind::Symlink(target) => {
                self.real.write(&made.node, 0, target)?;
                Metadata { mode: kind::SYMLINK | 0o777, size: target.len() as u64, ..made.metadata }
            }
            NewKind::Fifo => of(kind::FIFO, (0, 0)),
            NewKind::Socket => of(kind::SOCKET, (0, 0)),
            NewKind::CharDevice(major, minor) => of(kind::CHAR_DEVICE, (major, minor)),
            NewKind::BlockDevice(major, minor) => of(kind::BLOCK_DEVICE, (major, minor)),
        };
        self.keep(&made.node, &made.metadata, &shown)?;
        Ok(Found { metadata: shown, ..made })
    }
}

/// The kind of the real file.
fn real_kind(kind: NewKind<'_>) -> NewKind<'_> {
    match kind {
        NewKind::Directory => NewKind::Directory,
        _ => NewKind::File,
    }
}

impl Target for FakeSuperTarget {
    fn is_staged(&self) -> bool {
        false
    }

    fn finish(self: Box<Self>, moment: Moment, keep: Option<usize>) -> Result<bool, TargetError> {
        Box::new(self.real).finish(moment, keep)
    }

    fn ways(&self) -> &Ways {
        self.real.ways()
    }

    fn depth_for_links(&self) -> Option<usize> {
        self.real.depth_for_links()
    }

    fn stat(&self, path: &[u8]) -> io::Result<Option<Found>> {
        self.real.stat(path)?.map(|found| self.shown(found)).transpose()
    }

    fn metadata(&self, node: &Node) -> io::Result<Metadata> {
        self.metadata_of(node, self.real.metadata(node)?)
    }

    fn list(&self, directory: &Node) -> io::Result<Vec<(Vec<u8>, Found)>> {
        let found = self.real.list(directory)?.into_iter();
        found.map(|(name, found)| Ok((name, self.shown(found)?))).collect()
    }

    fn read_link(&self, node: &Node) -> io::Result<Vec<u8>> {
        if !self.real.metadata(node)?.is_file() {
            return self.real.read_link(node);
        }
        if !self.metadata(node)?.is_symlink() {
            return Err(Errno::INVAL.into());
        }
        let mut target = vec![0; TARGET_MAX];
        let len = self.real.read(node, 0, &mut target)?;
        target.truncate(len);
        Ok(target)
    }

    fn xattrs(&self, node: &Node) -> io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
        let found = self.real.xattrs(node)?;
        let real = self.real.metadata(node)?;
        let shown = values::shown(real, found.get(STAT).map(Vec::as_slice))?;
        Ok(values::outward(found, &shown))
    }

    fn read(&self, node: &Node, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.real.read(node, offset, buffer)
    }

    fn is_old(&self, node: &Node) -> bool {
        self.real.is_old(node)
    }

    fn read_old(&self, file: (&Node, u64), offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.real.read_old(file, offset, buffer)
    }

    fn create(&self, path: &[u8], kind: NewKind<'_>, permissions: u32) -> io::Result<Found> {
        if matches!(kind, NewKind::File | NewKind::Directory) {
            let is_dir = matches!(kind, NewKind::Directory);
            let real = values::real_permissions(permissions, is_dir);
            return self.real.create(path, kind, real).and_then(|made| self.shown(made));
        }
        // The file is not visible before it stands for the right kind.
        if self.real.stat(path)?.is_some() {
            return Err(Errno::EXIST.into());
        }
        let made = self.create_temporary(path, None, kind, permissions)?;
        let node = self.real.publish(&made.node, path, false)?;
        Ok(Found { node, ..made })
    }

    fn create_temporary(
        &self,
        path: &[u8],
        directory: Option<&[u8]>,
        kind: NewKind<'_>,
        permissions: u32,
    ) -> io::Result<Found> {
        let made = self.real.create_temporary(path, directory, real_kind(kind), 0)?;
        self.stand_for(made, kind, permissions)
    }

    fn publish(&self, made: &Node, path: &[u8], sync: bool) -> io::Result<Node> {
        self.real.publish(made, path, sync)
    }

    fn link_over(&self, node: &Node, path: &[u8]) -> io::Result<()> {
        self.real.link_over(node, path)
    }

    fn copy_over(&self, node: &Node, path: &[u8]) -> io::Result<Node> {
        self.real.copy_over(node, path)
    }

    fn preallocate(&self, node: &Node, size: u64) -> io::Result<()> {
        self.real.preallocate(node, size)
    }

    fn write(&self, node: &Node, offset: u64, data: &[u8]) -> io::Result<()> {
        self.real.write(node, offset, data)
    }

    fn truncate(&self, node: &Node, size: u64) -> io::Result<()> {
        self.real.truncate(node, size)
    }

    fn restore(&self, node: &Node) -> io::Result<()> {
        self.real.restore(node)
    }

    fn set_attributes(&self, node: &Node, set: &SetAttributes) -> io::Result<()> {
        let real = self.real.metadata(node)?;
        let times = SetAttributes { mtime: set.mtime, atime: set.atime, ..SetAttributes::default() };
        if !real.is_file() && !real.is_dir() {
            // A symbolic link or special file from before has no stored attributes.
            return self.real.set_attributes(node, &times);
        }
        let before = self.metadata_of(node, real)?;
        let permissions = set.permissions.unwrap_or(before.mode & 0o7777);
        let shown = Metadata {
            mode: before.kind() | permissions & 0o7777,
            uid: set.uid.unwrap_or(before.uid),
            gid: set.gid.unwrap_or(before.gid),
            ..before
        };
        let is_changed = set.permissions.is_some() || set.uid.is_some() || set.gid.is_some();
        if is_changed {
            let wanted = values::real_permissions(shown.mode, real.is_dir());
            if real.mode & (0o777 | SPECIAL) != wanted {
                let set = SetAttributes { permissions: Some(wanted), ..SetAttributes::default() };
                self.real.set_attributes(node, &set)?;
            }
            let real = Metadata { mode: real.kind() | wanted, ..real };
            self.keep(node, &real, &shown)?;
        }
        match times == SetAttributes::default() {
            true => Ok(()),
            false => self.real.set_attributes(node, &times),
        }
    }

    fn set_xattr(&self, node: &Node, name: &[u8], value: Option<&[u8]>) -> io::Result<()> {
        let (place, value) = values::inward(name, value, &self.metadata(node)?)?;
        self.real.set_xattr(node, &place, value.as_deref())
    }

    fn link(&self, node: &Node, path: &[u8]) -> io::Result<()> {
        self.real.link(node, path)
    }

    fn rename(&self, from: &[u8], to: &[u8]) -> io::Result<()> {
        self.real.rename(from, to)
    }

    fn remove(&self, path: &[u8], is_dir: bool) -> io::Result<()> {
        self.real.remove(path, is_dir)
    }

    fn new_mask(&self, directory: &[u8]) -> u32 {
        self.real.new_mask(directory)
    }

    fn takes_xattr(&self, name: &[u8]) -> bool {
        values::is_taken(name)
    }
}
