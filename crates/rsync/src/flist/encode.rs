//! Writes file lists. Each entry has only the differences to the previous one (docs/format/rsync.md, "Entries").

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{self, Write};

use super::Entry;
use super::acl::AclCache;
use super::flags::*;
use super::xattr::XattrCache;
use crate::names::Names;
use crate::source::Metadata;
use crate::wire::WriteWire;

/// Which attributes of files are sent, and in which form.
#[derive(Debug, Clone, Default)]
#[allow(missing_docs, clippy::struct_excessive_bools)]
pub struct ListForm {
    pub protocol: u8,
    /// Flags are varints (compatibility flag `v`).
    pub varint_flags: bool,
    /// The end of a list can carry errors (`f`).
    pub error_end: bool,
    /// Incremental recursion: the lists of directories are sent one by one, with names beside numbers of owners.
    pub incremental: bool,
    pub owner: bool,
    pub group: bool,
    pub links: bool,
    pub devices: bool,
    pub specials: bool,
    pub hard_links: bool,
    pub atimes: bool,
    pub acls: bool,
    pub xattrs: bool,
    pub numeric_ids: bool,
    /// Directories are followed. Before version 30 this decides whose content is sent.
    pub recursive: bool,
    /// The names of user 0 and group 0 are sent too (`u`).
    pub zero_names: bool,
}

/// The values of the previous entry.
#[derive(Debug, Default)]
struct Previous {
    name: Vec<u8>,
    metadata: Metadata,
    major: u32,
    /// Before version 28: the device that was sent last, as one number.
    device: u32,
    /// Before version 30: the filesystem of the hard-linked file that was sent last.
    filesystem: Option<u64>,
    exists: bool,
}

/// Writes the lists of one connection.
pub struct ListWriter {
    form: ListForm,
    names: Names,
    previous: Previous,
    /// Users and groups whose names were sent, or will be sent after the list.
    users: BTreeSet<u32>,
    groups: BTreeSet<u32>,
    /// The index of the first file of each group of hard links, by filesystem and inode number.
    linked: HashMap<(u64, u64), u32>,
    acls: AclCache,
    xattrs: XattrCache,
}

/// How a hard-linked file is sent.
enum Link {
    No,
    First,
    /// With filesystem and inode number, before version 30.
    Id,
    /// The index of the first file of the group. True if that file is in the same list, so that the entry needs no
    /// attributes.
    Other(u32, bool),
}

impl ListWriter {
    /// A writer for all lists of one connection.
    pub fn new(form: ListForm, names: Names) -> Self {
        Self {
            form,
            names,
            previous: Previous::default(),
            users: BTreeSet::new(),
            groups: BTreeSet::new(),
            linked: HashMap::new(),
            acls: AclCache::default(),
            xattrs: XattrCache::default(),
        }
    }

    /// Writes an entry. It has the index `index`, in a list that begins with the index `first`.
    ///
    /// # Errors
    /// When the connection fails.
    pub fn entry(
        &mut self,
        entry: &Entry,
        (index, first): (u32, u32),
        attributes: &BTreeMap<Vec<u8>, Vec<u8>>,
        out: &mut impl Write,
    ) -> io::Result<()> {
        let it = entry.metadata;
        let link = self.link(&it, index, first);
        let common = common_prefix(&self.previous.name, &entry.name);
        let name = &entry.name[common..];
        let user_name = self.name_of(it.uid, true, self.form.owner && !self.is_same(|old| old.uid == it.uid));
        let group_name =
            self.name_of(it.gid, false, self.form.group && !self.is_same(|old| old.gid == it.gid));
        let mut flags = self.flags(entry, &link);
        let mut set = |flag, is_set| flags |= if is_set { flag } else { 0 };
        set(SAME_NAME, common > 0);
        set(LONG_NAME, name.len() > 255);
        set(USER_NAME, user_name.is_some());
        set(GROUP_NAME, group_name.is_some());
        if self.form.protocol < 28 && flags & 0xff == 0 {
            // Flags of zero would end the list, so a flag without effect is set.
            flags |= if it.is_dir() { LONG_NAME } else { TOP_DIR };
        }
        self.write_flags(flags, it.is_dir(), out)?;
        if common > 0 {
            out.write_u8(common as u8)?;
        }
        match flags & LONG_NAME {
            0 => out.write_u8(name.len() as u8)?,
            _ => self.number(name.len() as u32, out)?,
        }
        out.write_all(name)?;
        if let Link::Other(index, _) = link {
            out.write_varint(index)?;
        }
        if !matches!(link, Link::Other(_, true)) {
            self.body(entry, flags, &link, (user_name.as_deref(), group_name.as_deref()), out)?;
        }
        if self.sends_rdev(&it) {
            self.previous.major = it.rdev.0;
        }
        if it.is_device() || !it.is_special() {
            self.previous.device = if self.sends_rdev(&it) { device(it.rdev) } else { 0 };
        }
        if matches!(link, Link::Id) {
            self.previous.filesystem = Some(it.id.0);
        }
        self.previous.name.clone_from(&entry.name);
        self.previous.metadata = it;
        self.previous.exists = true;
        self.attributes(&it, attributes, out)
    }

    fn is_same(&self, is_same: impl Fn(&Metadata) -> bool) -> bool {
        self.previous.exists && is_same(&self.previous.metadata)
    }

    /// Writes a number: a varint, or before version 30 an int.
    fn number(&self, value: u32, out: &mut impl Write) -> io::Result<()> {
        if self.form.protocol < 30 { out.write_i32(value.cast_signed()) } else { out.write_varint(value) }
    }

    fn link(&mut self, it: &Metadata, index: u32, first: u32) -> Link {
        if self.form.protocol < 30 {
            // Before version 28 all files had their inode number in the list.
            let is_told = if self.form.protocol < 28 { it.is_file() } else { !it.is_dir() && it.links > 1 };
            return if self.form.hard_links && is_told { Link::Id } else { Link::No };
        }
        if !self.form.hard_links || it.is_dir() || it.links < 2 {
            return Link::No;
        }
        match self.linked.entry(it.id) {
            std::collections::hash_map::Entry::Vacant(place) => {
                place.insert(index);
                Link::First
            }
            std::collections::hash_map::Entry::Occupied(place) => {
                Link::Other(*place.get(), *place.get() >= first)
            }
        }
    }

    fn flags(&self, entry: &Entry, link: &Link) -> u32 {
        let it = &entry.metadata;
        let mut flags = 0;
        let mut set = |flag, is_set| flags |= if is_set { flag } else { 0 };
        if it.is_dir() {
            // Since version 30 the entry says whether the content of a directory is sent.
            let is_new = self.form.protocol >= 30;
            set(TOP_DIR, entry.is_top && (is_new || entry.has_content));
            set(NO_CONTENT, is_new && !entry.has_content);
        }
        set(SAME_MODE, self.is_same(|old| old.mode == it.mode));
        set(SAME_UID, !self.form.owner || self.is_same(|old| old.uid == it.uid));
        set(SAME_GID, !self.form.group || self.is_same(|old| old.gid == it.gid));
        set(SAME_TIME, self.is_same(|old| old.mtime.seconds == it.mtime.seconds));
        set(NANOSECONDS, self.form.protocol >= 31 && it.mtime.nanoseconds != 0);
        set(SAME_ATIME, self.form.atimes && self.is_same(|old| old.atime.seconds == it.atime.seconds));
        if self.sends_rdev(it) {
            match self.form.protocol {
                ..28 => set(SAME_DEVICE, it.is_special() || self.previous.device == device(it.rdev)),
                28 | 29 => {
                    set(SAME_MAJOR, self.previous.major == it.rdev.0);
                    set(SMALL_MINOR, it.rdev.1 <= 0xff);
                }
                _ => set(SAME_MAJOR, self.previous.major == it.rdev.0),
            }
        }
        match link {
            Link::No => {}
            Link::First => set(HARD_LINKED | FIRST_LINK, true),
            Link::Other(..) => set(HARD_LINKED, true),
            Link::Id if self.form.protocol < 28 => {}
            Link::Id => {
                set(HARD_LINKED, true);
                set(SAME_FILESYSTEM, self.previous.filesystem == Some(it.id.0));
            }
        }
        flags
    }

    fn sends_rdev(&self, it: &Metadata) -> bool {
        self.form.devices && it.is_device()
            || self.form.specials && it.is_special() && self.form.protocol < 31
    }

    fn write_flags(&self, mut flags: u32, is_dir: bool, out: &mut impl Write) -> io::Result<()> {
        if self.form.varint_flags {
            return out.write_varint(if flags == 0 { EXTENDED } else { flags });
        }
        if self.form.protocol < 28 {
            return out.write_u8(flags as u8);
        }
        // Flags of zero would end the list. For other files than directories the first bit has no meaning.
        if flags == 0 && !is_dir {
            flags = TOP_DIR;
        }
        match flags {
            1..=0xff => out.write_u8(flags as u8),
            _ => out.write_u16((flags | EXTENDED) as u16),
        }
    }

    fn body(
        &mut self,
        entry: &Entry,
        flags: u32,
        link: &Link,
        (user_name, group_name): (Option<&[u8]>, Option<&[u8]>),
        out: &mut impl Write,
    ) -> io::Result<()> {
        let it = &entry.metadata;
        let name = |name: &[u8], out: &mut dyn Write| -> io::Result<()> {
            out.write_all(&[name.len() as u8])?;
            out.write_all(name)
        };
        let is_old = self.form.protocol < 30;
        if is_old { out.write_longint(it.size) } else { out.write_varlong(it.size, 3) }?;
        if flags & SAME_TIME == 0 {
            match is_old {
                true => out.write_i32(it.mtime.seconds as i32)?,
                false => out.write_varlong(it.mtime.seconds.cast_unsigned(), 4)?,
            }
        }
        if flags & NANOSECONDS != 0 {
            out.write_varint(it.mtime.nanoseconds)?;
        }
        if flags & SAME_MODE == 0 {
            out.write_i32(it.mode.cast_signed())?;
        }
        if self.form.atimes && !it.is_dir() && flags & SAME_ATIME == 0 {
            out.write_varlong(it.atime.seconds.cast_unsigned(), 4)?;
        }
        if flags & SAME_UID == 0 {
            self.number(it.uid, out)?;
            user_name.map_or(Ok(()), |text| name(text, out))?;
        }
        if flags & SAME_GID == 0 {
            self.number(it.gid, out)?;
            group_name.map_or(Ok(()), |text| name(text, out))?;
        }
        if self.sends_rdev(it) {
            self.rdev(it.rdev, flags, out)?;
        }
        if let Some(target) = entry.target.as_ref().filter(|_| self.form.links) {
            self.number(target.len() as u32, out)?;
            out.write_all(target)?;
        }
        if let Link::Id = link {
            if self.form.protocol < 28 || flags & SAME_FILESYSTEM == 0 {
                // One is added, so that the number is never zero.
                out.write_longint(it.id.0.wrapping_add(1))?;
            }
            out.write_longint(it.id.1)?;
        }
        entry.digest.as_ref().map_or(Ok(()), |digest| out.write_all(digest))
    }

    fn rdev(&self, (major, minor): (u32, u32), flags: u32, out: &mut impl Write) -> io::Result<()> {
        if self.form.protocol < 28 {
            let is_same = flags & SAME_DEVICE != 0;
            return if is_same { Ok(()) } else { out.write_i32(device((major, minor)).cast_signed()) };
        }
        if flags & SAME_MAJOR == 0 {
            self.number(major, out)?;
        }
        match self.form.protocol {
            30.. => out.write_varint(minor),
            _ if flags & SMALL_MINOR != 0 => out.write_u8(minor as u8),
            _ => out.write_i32(minor.cast_signed()),
        }
    }

    /// The name to send beside a number. Without incremental recursion, names are sent after the list.
    fn name_of(&mut self, id: u32, is_user: bool, is_sent: bool) -> Option<Vec<u8>> {
        if !is_sent || self.form.numeric_ids {
            return None;
        }
        let known = if is_user { &mut self.users } else { &mut self.groups };
        if !known.insert(id) || !self.form.incremental {
            return None;
        }
        let name = if is_user { self.names.user(id) } else { self.names.group(id) };
        name.map(Cow::into_owned)
    }

    fn attributes(
        &mut self,
        it: &Metadata,
        attributes: &BTreeMap<Vec<u8>, Vec<u8>>,
        out: &mut impl Write,
    ) -> io::Result<()> {
        if self.form.acls && !it.is_symlink() {
            let mut acls = std::mem::take(&mut self.acls);
            let result = acls
                .write(it.mode, it.is_dir(), attributes, out, |id, is_user| self.name_of(id, is_user, true));
            self.acls = acls;
            result?;
        }
        if self.form.xattrs { self.xattrs.write(attributes, out) } else { Ok(()) }
    }

    /// Ends a list, with the errors while it was made as bits.
    ///
    /// # Errors
    /// When the connection fails.
    pub fn end(&mut self, io_error: u32, out: &mut impl Write) -> io::Result<()> {
        if self.form.varint_flags {
            out.write_varint(0)?;
            out.write_varint(io_error)?;
        } else if io_error != 0 && self.form.error_end {
            out.write_u16((EXTENDED | ERROR_END) as u16)?;
            out.write_varint(io_error)?;
        } else {
            out.write_u8(0)?;
        }
        if !self.form.incremental && !self.form.numeric_ids {
            self.id_lists(out)?;
        }
        if self.form.protocol < 30 { out.write_i32(io_error.cast_signed()) } else { Ok(()) }
    }

    fn id_lists(&self, out: &mut impl Write) -> io::Result<()> {
        if self.form.owner || self.form.acls {
            self.id_list(&self.users, |names, id| names.user(id), out)?;
        }
        if self.form.group || self.form.acls {
            self.id_list(&self.groups, |names, id| names.group(id), out)?;
        }
        Ok(())
    }

    fn id_list<'n>(
        &'n self,
        ids: &BTreeSet<u32>,
        name: impl Fn(&'n Names, u32) -> Option<Cow<'n, [u8]>>,
        out: &mut impl Write,
    ) -> io::Result<()> {
        for id in ids.iter().filter(|id| **id != 0) {
            if let Some(name) = name(&self.names, *id) {
                self.number(*id, out)?;
                out.write_u8(name.len() as u8)?;
                out.write_all(&name)?;
            }
        }
        self.number(0, out)?;
        if self.form.zero_names {
            let name = name(&self.names, 0).unwrap_or_default();
            out.write_u8(name.len() as u8)?;
            out.write_all(&name)?;
        }
        Ok(())
    }
}

/// A device as one number of 32 bits, in Linux's form.
fn device((major, minor): (u32, u32)) -> u32 {
    minor & 0xff | (major & 0xfff) << 8 | (minor & !0xff) << 12
}

fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take(255).take_while(|(a, b)| a == b).count()
}
