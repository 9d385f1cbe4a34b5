//! Writing entries: each says only in what it differs from the one before (docs/format/rsync.md, "Entries").

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{self, Write};

use super::Entry;
use super::acl::AclCache;
use super::flags::*;
use super::xattr::XattrCache;
use crate::names::Names;
use crate::source::Metadata;
use crate::wire::WriteWire;

/// What of each file is sent, and how.
#[derive(Debug, Clone, Default)]
#[allow(missing_docs, clippy::struct_excessive_bools)]
pub struct ListForm {
    pub protocol: u8,
    /// Flags are varints (compatibility flag `v`).
    pub varint_flags: bool,
    /// The end of a list can tell of errors (`f`).
    pub error_end: bool,
    /// Lists of directories come one by one, with names beside numbers of owners.
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
    /// Names of the owner and group 0 are sent too (`u`).
    pub zero_names: bool,
}

/// What the entry before was.
#[derive(Debug, Default)]
struct Previous {
    name: Vec<u8>,
    metadata: Metadata,
    major: u32,
    exists: bool,
}

/// Writes lists.
pub struct ListWriter {
    form: ListForm,
    names: Names,
    previous: Previous,
    /// Owners and groups whose names the receiver knows, or will be told after the list.
    users: BTreeSet<u32>,
    groups: BTreeSet<u32>,
    /// The first file of each that has several names, by filesystem and number.
    linked: HashMap<(u64, u64), u32>,
    acls: AclCache,
    xattrs: XattrCache,
}

/// How a file with several names is sent.
enum Link {
    No,
    First,
    /// The index of the first one, and whether that is in the same list, so that nothing more need be told.
    Other(u32, bool),
}

impl ListWriter {
    /// A writer of all lists of one connection.
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

    /// Writes one entry, which has this index and is in a list that begins with `first`.
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
        self.write_flags(flags, it.is_dir(), out)?;
        if common > 0 {
            out.write_u8(common as u8)?;
        }
        match flags & LONG_NAME {
            0 => out.write_u8(name.len() as u8)?,
            _ => out.write_varint(name.len() as u32)?,
        }
        out.write_all(name)?;
        if let Link::Other(index, _) = link {
            out.write_varint(index)?;
        }
        if !matches!(link, Link::Other(_, true)) {
            self.body(entry, flags, user_name.as_deref(), group_name.as_deref(), out)?;
        }
        if self.sends_rdev(&it) {
            self.previous.major = it.rdev.0;
        }
        self.previous.name.clone_from(&entry.name);
        self.previous.metadata = it;
        self.previous.exists = true;
        self.attributes(&it, attributes, out)
    }

    fn is_same(&self, is_same: impl Fn(&Metadata) -> bool) -> bool {
        self.previous.exists && is_same(&self.previous.metadata)
    }

    fn link(&mut self, it: &Metadata, index: u32, first: u32) -> Link {
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
            set(TOP_DIR, entry.is_top);
            set(NO_CONTENT, !entry.has_content);
        }
        set(SAME_MODE, self.is_same(|old| old.mode == it.mode));
        set(SAME_UID, !self.form.owner || self.is_same(|old| old.uid == it.uid));
        set(SAME_GID, !self.form.group || self.is_same(|old| old.gid == it.gid));
        set(SAME_TIME, self.is_same(|old| old.mtime.seconds == it.mtime.seconds));
        set(NANOSECONDS, self.form.protocol >= 31 && it.mtime.nanoseconds != 0);
        set(SAME_ATIME, self.form.atimes && self.is_same(|old| old.atime.seconds == it.atime.seconds));
        if self.sends_rdev(it) {
            set(SAME_MAJOR, self.previous.major == it.rdev.0);
        }
        match link {
            Link::No => {}
            Link::First => set(HARD_LINKED | FIRST_LINK, true),
            Link::Other(..) => set(HARD_LINKED, true),
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
        // Zero would end the list; of what is no directory the first bit says nothing.
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
        user_name: Option<&[u8]>,
        group_name: Option<&[u8]>,
        out: &mut impl Write,
    ) -> io::Result<()> {
        let it = &entry.metadata;
        let name = |name: &[u8], out: &mut dyn Write| -> io::Result<()> {
            out.write_all(&[name.len() as u8])?;
            out.write_all(name)
        };
        out.write_varlong(it.size, 3)?;
        if flags & SAME_TIME == 0 {
            out.write_varlong(it.mtime.seconds.cast_unsigned(), 4)?;
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
            out.write_varint(it.uid)?;
            user_name.map_or(Ok(()), |text| name(text, out))?;
        }
        if flags & SAME_GID == 0 {
            out.write_varint(it.gid)?;
            group_name.map_or(Ok(()), |text| name(text, out))?;
        }
        if self.sends_rdev(it) {
            if flags & SAME_MAJOR == 0 {
                out.write_varint(it.rdev.0)?;
            }
            out.write_varint(it.rdev.1)?;
        }
        if let Some(target) = entry.target.as_ref().filter(|_| self.form.links) {
            out.write_varint(target.len() as u32)?;
            out.write_all(target)?;
        }
        entry.digest.as_ref().map_or(Ok(()), |digest| out.write_all(digest))
    }

    /// The name to be sent beside a number; when lists are not incremental, names come after the list.
    fn name_of(&mut self, id: u32, is_user: bool, is_sent: bool) -> Option<Vec<u8>> {
        if !is_sent || self.form.numeric_ids {
            return None;
        }
        let known = if is_user { &mut self.users } else { &mut self.groups };
        if !known.insert(id) || !self.form.incremental {
            return None;
        }
        let name = if is_user { self.names.user(id) } else { self.names.group(id) };
        name.map(<[u8]>::to_vec)
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

    /// Ends a list, with what failed in the making of it as bits.
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
        if self.form.incremental || self.form.numeric_ids {
            return Ok(());
        }
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
        name: impl Fn(&'n Names, u32) -> Option<&'n [u8]>,
        out: &mut impl Write,
    ) -> io::Result<()> {
        for id in ids.iter().filter(|id| **id != 0) {
            if let Some(name) = name(&self.names, *id) {
                out.write_varint(*id)?;
                out.write_u8(name.len() as u8)?;
                out.write_all(name)?;
            }
        }
        out.write_varint(0)?;
        if self.form.zero_names {
            let name = name(&self.names, 0).unwrap_or_default();
            out.write_u8(name.len() as u8)?;
            out.write_all(name)?;
        }
        Ok(())
    }
}

fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take(255).take_while(|(a, b)| a == b).count()
}
