//! Renaming files and directories: `zfs_rename`.

use super::link::Removed;
use super::unlinked::Fate;
use super::{Caller, FilesystemMut, Found, ROOM_BASE, dirent};
use crate::attributes::ZfsFlags;
use crate::error::ZplError;
use crate::sa::Attr;
use crate::source::{ObjectsMut, Room};
use crate::write::node::Node;
use crate::zap::{Value, ZapEdit};

/// What happens if the new name already exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RenameMode {
    /// The old object under that name is replaced.
    #[default]
    Replace,
    /// The renaming fails (`RENAME_NOREPLACE`).
    NoReplace,
    /// The two objects exchange their names (`RENAME_EXCHANGE`).
    Exchange,
}

/// A name in a directory.
#[derive(Debug, Clone, Copy)]
struct Place<'n> {
    directory: u64,
    name: &'n [u8],
}

impl<O: ObjectsMut> FilesystemMut<O> {
    /// Moves the object at `from` (directory and name) to `to`. Returns the object that was replaced, if any. `in_use`
    /// returns whether that object is open.
    ///
    /// # Errors
    /// [`ZplError::NotFound`], [`ZplError::Exists`], [`ZplError::IntoItself`], [`ZplError::NotEmpty`],
    /// [`ZplError::NotADirectory`] and [`ZplError::IsADirectory`] if the kinds differ, [`ZplError::OtherProject`],
    /// [`ZplError::NotPermitted`], the errors for an invalid name, or if there is no room.
    pub fn rename(
        &self,
        from: (u64, &[u8]),
        to: (u64, &[u8]),
        mode: RenameMode,
        caller: &Caller,
        in_use: impl FnOnce(u64) -> bool,
    ) -> Result<Option<Removed>, ZplError> {
        let from = Place { directory: from.0, name: from.1 };
        let to = Place { directory: to.0, name: to.1 };
        self.check_name(from.name)?;
        self.check_name(to.name)?;
        let _names = self.names.write();
        let mut from_zap = self.zap_of(from.directory)?;
        let mut to_zap = match from.directory == to.directory {
            true => None,
            false => Some(self.zap_of(to.directory)?),
        };
        let source = self.find(&mut from_zap, from.name)?;
        let source = source
            .ok_or_else(|| ZplError::NotFound { directory: from.directory, name: from.name.to_vec() })?;
        let target = self.find(to_zap.as_mut().unwrap_or(&mut from_zap), to.name)?;
        // Both names mean the same entry. At most the case or form of its name changes.
        let same_entry = to_zap.is_none() && target.as_ref().is_some_and(|found| found.name == source.name);
        let target = if same_entry { None } else { target };
        let is_noop = match &target {
            Some(target) => target.object == source.object && mode != RenameMode::NoReplace,
            None => same_entry && (source.name == to.name || mode == RenameMode::Exchange),
        };
        match (mode, &target) {
            (RenameMode::NoReplace, found) if found.is_some() || (same_entry && source.name == to.name) => {
                return Err(ZplError::Exists { directory: to.directory, name: to.name.to_vec() });
            }
            _ if is_noop => return Ok(None),
            (RenameMode::Exchange, None) => {
                return Err(ZplError::NotFound { directory: to.directory, name: to.name.to_vec() });
            }
            _ => {}
        }
        self.check_ancestors(&source, target.as_ref(), mode, [from.directory, to.directory])?;
        self.check_entry(&source, from.directory)?;
        if let Some(target) = &target {
            self.check_entry(target, to.directory)?;
        }
        let mut held = vec![from.directory, to.directory, source.object];
        held.extend(target.as_ref().map(|found| found.object));
        let _held = self.locks.write_all(&held);
        let mut nodes = Nodes {
            from: self.directory(from.directory)?,
            to: to_zap.as_ref().map(|_| self.directory(to.directory)).transpose()?,
            source: self.node(source.object)?,
            target: target.as_ref().map(|found| self.node(found.object)).transpose()?,
        };
        nodes.check(self, mode)?;

        let value = Value::One(dirent(source.object, nodes.source.word(Attr::Mode)?));
        let mut fate = None;
        match (&target, mode) {
            (Some(target), RenameMode::Exchange) => {
                let back = match &nodes.target {
                    Some(node) => Value::One(dirent(target.object, node.word(Attr::Mode)?)),
                    None => return Err(ZplError::NoObject { object: target.object }),
                };
                from_zap.update(&source.name, &back)?;
                to_zap.as_mut().unwrap_or(&mut from_zap).update(&target.name, &value)?;
            }
            (target, _) => {
                from_zap.remove(&source.name)?;
                let zap = to_zap.as_mut().unwrap_or(&mut from_zap);
                if let Some(target) = target {
                    zap.remove(&target.name)?;
                }
                zap.add(to.name, &value)?;
                if let Some(node) = &mut nodes.target {
                    fate = Some(self.drop_link(node, caller, in_use)?);
                }
            }
        }
        nodes.update(caller, mode, to.directory)?;
        self.write_rename(from_zap, to_zap, nodes, fate)
    }

    /// The ZAP of a directory that has a name.
    pub(super) fn zap_of(&self, directory: u64) -> Result<ZapEdit<'_, O>, ZplError> {
        self.directory(directory)?;
        self.zap(directory)
    }

    fn write_rename(
        &self,
        from_zap: ZapEdit<'_, O>,
        to_zap: Option<ZapEdit<'_, O>>,
        nodes: Nodes<'_>,
        fate: Option<Fate<'_, O>>,
    ) -> Result<Option<Removed>, ZplError> {
        let room = from_zap.room() + to_zap.as_ref().map_or(0, |zap| zap.room()) + nodes.room() + ROOM_BASE;
        let removed = match (&fate, &nodes.target) {
            (Some(fate), Some(node)) => Some(fate.removed(node)?),
            _ => None,
        };
        let tx = self.begin(Room::Write(room), nodes.from.object())?;
        self.write_zap(&tx, from_zap)?;
        if let Some(zap) = to_zap {
            self.write_zap(&tx, zap)?;
        }
        let Nodes { from, to, source, target } = nodes;
        self.write_node(&tx, source)?;
        self.write_node(&tx, from)?;
        if let Some(to) = to {
            self.write_node(&tx, to)?;
        }
        match (target, fate) {
            (Some(target), Some(fate)) => self.finish(&tx, target, fate)?,
            (Some(target), None) => self.write_node(&tx, target)?,
            (None, _) => {}
        }
        Ok(removed)
    }

    /// Checks that a directory is not moved below itself: `zfs_rename_lock`.
    fn check_ancestors(
        &self,
        source: &Found,
        target: Option<&Found>,
        mode: RenameMode,
        [from, to]: [u64; 2],
    ) -> Result<(), ZplError> {
        if from == to {
            return Ok(());
        }
        if self.is_directory(source.object)? {
            self.check_not_below(to, source.object)?;
        }
        if let Some(target) = target.filter(|_| mode == RenameMode::Exchange)
            && self.is_directory(target.object)?
        {
            self.check_not_below(from, target.object)?;
        }
        Ok(())
    }

    fn is_directory(&self, object: u64) -> Result<bool, ZplError> {
        self.node(object)?.is_directory()
    }

    /// Checks that `directory` is not `above` and is not below it.
    fn check_not_below(&self, directory: u64, above: u64) -> Result<(), ZplError> {
        let mut at = directory;
        // The parents of damaged directories may form a circle. It is detected by waiting for one directory, with
        // limits that double.
        let (mut mark, mut steps, mut limit) = (directory, 0u64, 2u64);
        while at != above {
            if at == self.root() {
                return Ok(());
            }
            at = self.node(at)?.word(Attr::Parent)?;
            steps += 1;
            if at == mark {
                return Err(ZplError::corrupt(at, "a directory that lies below itself"));
            }
            if steps == limit {
                (mark, limit) = (at, limit * 2);
                steps = 0;
            }
        }
        Err(ZplError::IntoItself { object: above, directory })
    }
}

/// The nodes that a renaming changes.
struct Nodes<'f> {
    from: Node<'f>,
    /// The target's directory, if it differs from `from`.
    to: Option<Node<'f>>,
    source: Node<'f>,
    target: Option<Node<'f>>,
}

impl Nodes<'_> {
    fn to(&self) -> &Node<'_> {
        self.to.as_ref().unwrap_or(&self.from)
    }

    fn room(&self) -> u64 {
        let rest = [self.to.as_ref(), self.target.as_ref()];
        let rest: u64 = rest.into_iter().flatten().map(Node::room).sum();
        self.from.room() + self.source.room() + rest
    }

    fn check<O: ObjectsMut>(&self, fs: &FilesystemMut<O>, mode: RenameMode) -> Result<(), ZplError> {
        // If names are replaced or exchanged, entries are removed from both directories.
        self.from.check_mutable(false)?;
        self.to().check_mutable(self.target.is_none())?;
        self.source.check_mutable(false)?;
        if self.to.is_some() {
            fs.check_project(&self.source, self.to())?;
        }
        let source_is_directory = self.source.is_directory()?;
        let Some(target) = &self.target else {
            return self.check_links(source_is_directory);
        };
        target.check_mutable(false)?;
        if mode == RenameMode::Exchange {
            if self.to.is_some() {
                fs.check_project(target, &self.from)?;
            }
            return Ok(());
        }
        match (source_is_directory, target.is_directory()?) {
            (true, false) => Err(ZplError::NotADirectory { object: target.object() }),
            (false, true) => Err(ZplError::IsADirectory { object: target.object() }),
            _ => Ok(()),
        }
    }

    fn check_links(&self, is_directory: bool) -> Result<(), ZplError> {
        let links = self.to().word(Attr::Links)?;
        if is_directory && self.to.is_some() && links >= super::create::LINKS_MAX {
            return Err(ZplError::TooManyLinks { object: self.to().object(), links });
        }
        Ok(())
    }

    /// Updates counts, parents, times and flags.
    fn update(&mut self, caller: &Caller, mode: RenameMode, to: u64) -> Result<(), ZplError> {
        let from = self.from.object();
        let source_directories = i64::from(self.source.is_directory()?);
        let target_directories = match &self.target {
            Some(target) => i64::from(target.is_directory()?),
            None => 0,
        };
        let target_entries = i64::from(self.target.is_some());
        let exchange = i64::from(mode == RenameMode::Exchange);
        // The source moves from `from` to `to`. The target is removed, or moves from `to` to `from` in an exchange.
        let to_change = (1 - target_entries, source_directories - target_directories);
        let from_change =
            (-1 + exchange * target_entries, -source_directories + exchange * target_directories);
        match &mut self.to {
            Some(node) => {
                node.count_entries(to_change.0, to_change.1)?;
                node.content_changed(caller.now)?;
                self.from.count_entries(from_change.0, from_change.1)?;
            }
            None => self.from.count_entries(to_change.0 + from_change.0, to_change.1 + from_change.1)?,
        }
        self.from.content_changed(caller.now)?;
        let passes_on = |node: &Node<'_>| node.flags().0 & ZfsFlags::PROJINHERIT;
        let (to_inherit, from_inherit) = (passes_on(self.to()), passes_on(&self.from));
        self.source.set_word(Attr::Parent, to)?;
        self.source.add_flags(ZfsFlags::AV_MODIFIED | to_inherit)?;
        self.source.state_changed(caller.now)?;
        if let Some(target) = self.target.as_mut().filter(|_| mode == RenameMode::Exchange) {
            target.set_word(Attr::Parent, from)?;
            target.add_flags(ZfsFlags::AV_MODIFIED | from_inherit)?;
            target.state_changed(caller.now)?;
        }
        Ok(())
    }
}
