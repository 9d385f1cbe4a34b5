//! Reads file lists, the inverse of `encode` (docs/format/rsync.md, "Entries"). The peer is untrusted: names cannot
//! lead above the root of the list, and memory is limited.

use std::collections::{HashMap, HashSet};
use std::io::Read;

use super::acl::ReceivedAcl;
use super::encode::ListForm;
use super::flags::*;
use super::xattr::{self, ReceivedXattr};
use crate::budget::{MemoryBudget, Share};
use crate::error::{ExitCode, Result, RsyncError};
use crate::idmap::IdMap;
use crate::names::Names;
use crate::source::{Metadata, kind};
use crate::wire::ReadWire;

/// Length of the longest path or link target in bytes (`PATH_MAX`, which counts the zero byte).
const PATH_MAX: usize = 4095;
/// The most bytes of memory for all lists of one connection.
const BYTES_MAX: u64 = 2 << 30;
/// The bytes of memory for the lists of all connections of this process.
static ALL_LISTS: MemoryBudget = MemoryBudget::quarter();
/// The number of bytes that are taken from this budget at once.
const TAKEN_AT_ONCE: u64 = 1 << 20;
/// The approximate memory of an entry without its name, in bytes. It includes the entry in the index of names, and
/// notes about it.
const ENTRY_BYTES: u64 = 400;
const NANOSECONDS_MAX: i32 = 999_999_999;

/// A file in the sender's list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Received {
    /// The path in the transfer, without "." and "..". "." is its root.
    pub name: Vec<u8>,
    /// The metadata. After the list was read, owner and group are this side's numbers.
    pub metadata: Metadata,
    /// The file was an argument of the client.
    pub is_top: bool,
    /// The list has the content of this directory too.
    pub has_content: bool,
    /// The target of a symbolic link.
    pub target: Option<Vec<u8>>,
    /// The digest of the content.
    pub digest: Option<Vec<u8>>,
    /// A number that all names of a hard-linked file share.
    pub group: Option<u32>,
    /// The number of the access ACL.
    pub access: Option<u32>,
    /// The number of a directory's default ACL.
    pub default: Option<u32>,
    /// The number of the set of extended attributes.
    pub xattrs: Option<u32>,
}

impl Received {
    /// The approximate memory of the entry, in bytes.
    pub fn bytes(&self) -> u64 {
        ENTRY_BYTES + (self.name.len() + self.target.as_ref().map_or(0, Vec::len)) as u64
    }
}

/// The values of the previous entry, to which the next one is relative.
#[derive(Debug, Default)]
struct Previous {
    name: Vec<u8>,
    metadata: Metadata,
    /// The major number of the last device.
    major: u32,
    /// Before version 28: the last device, as one number.
    device: u32,
    /// Before version 30: the filesystem of the last hard-linked file.
    filesystem: u64,
    /// Before version 30: the last directory that was an argument and whose content is sent.
    top: Option<Vec<u8>>,
}

/// Maps the sender's numbers of users and groups to those of this side.
#[derive(Debug, Default)]
struct Owners {
    user_map: IdMap,
    group_map: IdMap,
    users: HashMap<u32, u32>,
    groups: HashMap<u32, u32>,
}

impl Owners {
    fn own(&self, id: u32, is_user: bool) -> u32 {
        let table = if is_user { &self.users } else { &self.groups };
        table.get(&id).copied().or_else(|| self.map(is_user).get(id, b"")).unwrap_or(id)
    }

    fn map(&self, is_user: bool) -> &IdMap {
        if is_user { &self.user_map } else { &self.group_map }
    }

    fn learn(&mut self, names: &Names, id: u32, is_user: bool, name: &[u8]) -> Result<()> {
        if names.refuses(name) {
            let text = format!("invalid name-converter token: {}", name.escape_ascii());
            return Err(RsyncError::refused(ExitCode::Unsupported, text));
        }
        let mapped = self.map(is_user).get(id, name);
        let (table, own) = match is_user {
            true => (&mut self.users, names.uid_of(name)),
            false => (&mut self.groups, names.gid_of(name)),
        };
        // An unknown user or group keeps its number.
        table.insert(id, mapped.or(own).unwrap_or(id));
        Ok(())
    }
}

/// Reads the lists of one connection.
pub struct ListReader {
    form: ListForm,
    names: Names,
    /// Length of the digests of files in bytes (`--checksum`). 0 without digests.
    digest_len: usize,
    /// Names may begin with a slash, which is ignored.
    relative: bool,
    /// Entries may stand for missing files (`--delete-missing-args`).
    with_missing: bool,
    previous: Previous,
    owners: Owners,
    access: Vec<ReceivedAcl>,
    default: Vec<ReceivedAcl>,
    xattrs: Vec<Vec<ReceivedXattr>>,
    /// Before version 30: the first file of each group of hard links, by filesystem and inode number.
    linked: HashMap<(u64, u64), u32>,
    /// The indices of files that entries of later lists may be hard links to.
    first_links: HashSet<u32>,
    bytes: u64,
    share: Share,
}

/// A list that was read.
#[derive(Debug, Default)]
pub struct List {
    /// The entries, in the order of arrival.
    pub entries: Vec<Received>,
    /// The sender's errors while it made the list, as bits.
    pub io_error: u32,
    /// The memory of the entries in bytes. [`ListReader::release`] returns it.
    pub bytes: u64,
}

fn bad(what: impl Into<String>) -> RsyncError {
    RsyncError::protocol(what)
}

/// The bytes to take from the process's budget for lists of this size.
fn taken(bytes: u64) -> usize {
    usize::try_from(bytes.next_multiple_of(TAKEN_AT_ONCE)).unwrap_or(usize::MAX)
}

/// A name without empty components and ".". A name "." stays.
fn clean(raw: &[u8], relative: bool) -> Result<Vec<u8>> {
    let unsafe_path = || {
        let shown = String::from_utf8_lossy(raw);
        RsyncError::refused(
            ExitCode::Unsupported,
            format!("ABORTING due to unsafe pathname from sender: {shown}"),
        )
    };
    if raw.is_empty() || raw.contains(&0) || raw.starts_with(b"/") && !relative {
        return Err(unsafe_path());
    }
    let parts: Vec<&[u8]> =
        raw.split(|byte| *byte == b'/').filter(|part| !matches!(*part, b"" | b".")).collect();
    if parts.contains(&&b".."[..]) {
        return Err(unsafe_path());
    }
    Ok(if parts.is_empty() { b".".to_vec() } else { parts.join(&b'/') })
}

impl ListReader {
    /// A reader for all lists of one connection.
    pub fn new(form: ListForm, names: Names, digest_len: usize, relative: bool) -> Self {
        Self {
            form,
            names,
            digest_len,
            relative,
            with_missing: false,
            previous: Previous::default(),
            owners: Owners::default(),
            access: Vec::new(),
            default: Vec::new(),
            xattrs: Vec::new(),
            linked: HashMap::new(),
            first_links: HashSet::new(),
            bytes: 0,
            share: ALL_LISTS.share(),
        }
    }

    /// Sets the rules that map owners and groups to others.
    pub fn map_owners(&mut self, users: IdMap, groups: IdMap) {
        (self.owners.user_map, self.owners.group_map) = (users, groups);
    }

    /// Accepts entries for missing files, which have mode 0.
    pub fn take_missing(&mut self) {
        self.with_missing = true;
    }

    /// Reads a list. Its first entry has the index `first`.
    ///
    /// # Errors
    /// When the connection fails, or the list is invalid.
    pub fn read(&mut self, first: u32, from: &mut impl Read) -> Result<List> {
        let mut list = List { bytes: ENTRY_BYTES, ..List::default() };
        self.keep(list.bytes)?;
        loop {
            let flags = match self.flags(from)? {
                Ok(flags) => flags,
                Err(io_error) => {
                    list.io_error = io_error;
                    break;
                }
            };
            let entry = self.entry(flags, first, &list.entries, from)?;
            self.keep(entry.bytes())?;
            list.bytes += entry.bytes();
            list.entries.push(entry);
            if list.entries.len() >= i32::MAX as usize {
                return Err(bad("more files than the protocol can count"));
            }
        }
        if !self.form.incremental && !self.form.numeric_ids {
            if self.form.owner || self.form.acls {
                self.id_list(true, from)?;
            }
            if self.form.group || self.form.acls {
                self.id_list(false, from)?;
            }
        }
        if self.form.protocol < 30 {
            list.io_error = from.read_i32()?.cast_unsigned();
        }
        for entry in &mut list.entries {
            entry.metadata.uid = self.own(entry.metadata.uid, true);
            entry.metadata.gid = self.own(entry.metadata.gid, false);
        }
        Ok(list)
    }

    /// This side's number of the sender's user or group.
    pub fn own(&self, id: u32, is_user: bool) -> u32 {
        self.owners.own(id, is_user)
    }

    /// The access ACL with this number.
    pub fn access_acl(&self, number: u32) -> Option<&ReceivedAcl> {
        self.access.get(number as usize)
    }

    /// The default ACL with this number.
    pub fn default_acl(&self, number: u32) -> Option<&ReceivedAcl> {
        self.default.get(number as usize)
    }

    /// The set of extended attributes with this number.
    pub fn xattrs(&self, number: u32) -> &[ReceivedXattr] {
        self.xattrs.get(number as usize).map_or(&[], Vec::as_slice)
    }

    /// The same set, to record which values were requested and received.
    pub fn xattrs_mut(&mut self, number: u32) -> &mut [ReceivedXattr] {
        self.xattrs.get_mut(number as usize).map_or(&mut [], Vec::as_mut_slice)
    }

    /// Counts memory that is in use.
    ///
    /// # Errors
    /// When it is too much.
    pub fn keep(&mut self, bytes: u64) -> Result<()> {
        self.bytes += bytes;
        let text = match (self.bytes > BYTES_MAX, self.share.grow(taken(self.bytes))) {
            (true, _) => "ERROR: the file list is too long",
            (false, false) => "ERROR: the file lists of all clients together take too much memory",
            (false, true) => return Ok(()),
        };
        Err(RsyncError::refused(ExitCode::Memory, text))
    }

    /// Returns the memory of a list that was dropped.
    pub fn release(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
        self.share.shrink(taken(self.bytes));
    }

    /// The flags of an entry. At the end of the list, the sender's errors.
    fn flags(&self, from: &mut impl Read) -> Result<std::result::Result<u32, u32>> {
        if self.form.varint_flags {
            return Ok(match from.read_varint()?.cast_unsigned() {
                0 => Err(from.read_varint()?.cast_unsigned()),
                flags => Ok(flags),
            });
        }
        let mut flags = u32::from(from.read_u8()?);
        if flags == 0 {
            return Ok(Err(0));
        }
        if flags & EXTENDED != 0 && self.form.protocol >= 28 {
            flags |= u32::from(from.read_u8()?) << 8;
        }
        if flags == EXTENDED | ERROR_END && self.form.error_end {
            return Ok(Err(from.read_varint()?.cast_unsigned()));
        }
        Ok(Ok(flags))
    }

    /// Reads a number: a varint, or before version 30 an int.
    fn number(&self, from: &mut impl Read) -> Result<i32> {
        Ok(if self.form.protocol < 30 { from.read_i32()? } else { from.read_varint()? })
    }

    fn name(&mut self, flags: u32, from: &mut impl Read) -> Result<Vec<u8>> {
        let common = if flags & SAME_NAME != 0 { usize::from(from.read_u8()?) } else { 0 };
        let len = match flags & LONG_NAME {
            0 => usize::from(from.read_u8()?),
            _ => usize::try_from(self.number(from)?).unwrap_or(usize::MAX),
        };
        let shared = self.previous.name.get(..common).ok_or_else(|| bad("a name like none before"))?;
        if len > PATH_MAX - common {
            // rsync's word, which log searches look for.
            return Err(bad(format!("overflow: xflags={flags:#x} l1={common} l2={len}: a path too long")));
        }
        let name = [shared, &from.read_bytes(len, PATH_MAX)?].concat();
        self.previous.name.clone_from(&name);
        clean(&name, self.relative)
    }

    fn entry(
        &mut self,
        flags: u32,
        first: u32,
        before: &[Received],
        from: &mut impl Read,
    ) -> Result<Received> {
        let name = self.name(flags, from)?;
        let index = first + before.len() as u32;
        let mut entry = Received { name, is_top: flags & TOP_DIR != 0, ..Received::default() };
        let mut leader = None;
        if self.form.hard_links && flags & HARD_LINKED != 0 && self.form.protocol >= 30 {
            entry.group = Some(index);
            if flags & FIRST_LINK != 0 {
                self.first_links.insert(index);
            } else {
                let group = from.read_varint()?.cast_unsigned();
                if group >= index {
                    return Err(bad(format!("a link to file {group}, which comes later")));
                }
                if group < first && !self.first_links.contains(&group) {
                    return Err(bad(format!(
                        "hard-link gnum {group} precedes flist start and is no first link"
                    )));
                }
                entry.group = Some(group);
                leader = group.checked_sub(first).map(|at| &before[at as usize]);
            }
        }
        match leader {
            Some(leader) => {
                entry.metadata = leader.metadata;
                if leader.metadata.is_device() {
                    self.previous.major = leader.metadata.rdev.0;
                }
                (entry.target, entry.digest) = (leader.target.clone(), leader.digest.clone());
            }
            None => self.body(&mut entry, flags, index, from)?,
        }
        if entry.name == b"." && !entry.metadata.is_dir() {
            return Err(bad("rejecting non-directory transfer-root entry"));
        }
        if entry.metadata.is_dir() {
            entry.group = None;
            entry.has_content = match self.form.protocol {
                ..30 => self.is_followed(&entry),
                _ => flags & NO_CONTENT == 0,
            };
        }
        self.previous.metadata = entry.metadata;
        if self.form.acls && !entry.metadata.is_symlink() {
            entry.access = Some(self.acl(from, false)?);
            entry.default = entry.metadata.is_dir().then(|| self.acl(from, true)).transpose()?;
        }
        if self.form.xattrs {
            entry.xattrs = Some(self.xattr_set(from)?);
        }
        Ok(entry)
    }

    /// Before version 30: whether the content of a directory is sent. It is for an argument, and below one that is
    /// followed.
    fn is_followed(&mut self, entry: &Received) -> bool {
        if entry.is_top {
            self.previous.top = Some(entry.name.clone());
            return true;
        }
        let is_below = |top: &Vec<u8>| {
            top == b"." || entry.name.strip_prefix(&top[..]).is_some_and(|rest| rest.starts_with(b"/"))
        };
        self.form.recursive && self.previous.top.as_ref().is_some_and(is_below)
    }

    fn body(&mut self, entry: &mut Received, flags: u32, index: u32, from: &mut impl Read) -> Result<()> {
        let is_old = self.form.protocol < 30;
        let it = &mut entry.metadata;
        *it = Metadata { links: 1, rdev: (0, 0), ..self.previous.metadata };
        it.size = match is_old {
            true => from.read_longint()?,
            false => u64::try_from(from.read_varlong(3)?).map_err(|_| bad("a file of negative size"))?,
        };
        if flags & SAME_TIME == 0 {
            it.mtime.seconds = match is_old {
                true => i64::from(from.read_i32()?.cast_unsigned()),
                false => from.read_varlong(4)?,
            };
        }
        it.mtime.nanoseconds = 0;
        if flags & NANOSECONDS != 0 && !is_old {
            let nanoseconds = from.read_varint()?;
            if !(0..=NANOSECONDS_MAX).contains(&nanoseconds) {
                return Err(bad(format!("a time of {nanoseconds} nanoseconds")));
            }
            it.mtime.nanoseconds = nanoseconds.cast_unsigned();
        }
        if flags & SAME_MODE == 0 {
            it.mode = from.read_i32()?.cast_unsigned();
        }
        let is_known = self.with_missing && it.mode == 0
            || it.is_dir()
            || it.is_file()
            || it.is_symlink()
            || it.is_device()
            || it.is_special();
        if !is_known || it.mode & !(kind::MASK | 0o7777) != 0 {
            return Err(bad(format!("a file of mode {:o}", it.mode)));
        }
        if self.form.atimes && !it.is_dir() && flags & SAME_ATIME == 0 {
            it.atime.seconds = from.read_varlong(4)?;
        }
        let owners =
            [(self.form.owner, SAME_UID, USER_NAME, true), (self.form.group, SAME_GID, GROUP_NAME, false)];
        for (is_sent, same, has_name, is_user) in owners {
            if !is_sent || flags & same != 0 {
                continue;
            }
            let id = self.number(from)?.cast_unsigned();
            *(if is_user { &mut it.uid } else { &mut it.gid }) = id;
            if flags & has_name != 0 && !is_old {
                let len = from.read_u8()?;
                let name = from.read_bytes(usize::from(len), usize::from(u8::MAX))?;
                self.owners.learn(&self.names, id, is_user, &name)?;
            }
        }
        let sends_rdev = self.form.devices && it.is_device()
            || self.form.specials && it.is_special() && self.form.protocol < 31;
        if sends_rdev {
            it.rdev = self.rdev(flags, from)?;
        } else if !it.is_special() {
            self.previous.device = 0;
        }
        if self.form.links && it.is_symlink() {
            let len = usize::try_from(self.number(from)?).unwrap_or(usize::MAX);
            let target = from.read_bytes(len, PATH_MAX)?;
            if target.is_empty() || target.contains(&0) {
                return Err(bad("a symbolic link that leads nowhere"));
            }
            entry.target = Some(target);
        }
        // Before version 28 all files had their inode number in the list.
        let is_told = flags & HARD_LINKED != 0 || self.form.protocol < 28 && it.is_file();
        if is_old && self.form.hard_links && is_told {
            if flags & SAME_FILESYSTEM == 0 || self.form.protocol < 28 {
                self.previous.filesystem = from.read_longint()?;
            }
            let id = (self.previous.filesystem, from.read_longint()?);
            entry.group = Some(*self.linked.entry(id).or_insert(index));
        }
        // Before version 28 other kinds of files had a digest too.
        if self.digest_len > 0 && (it.is_file() || self.form.protocol < 28) {
            let digest = from.read_bytes(self.digest_len, self.digest_len)?;
            entry.digest = Some(digest).filter(|_| it.is_file());
        }
        Ok(())
    }

    fn rdev(&mut self, flags: u32, from: &mut impl Read) -> Result<(u32, u32)> {
        if self.form.protocol < 28 {
            if flags & SAME_DEVICE == 0 {
                self.previous.device = from.read_i32()?.cast_unsigned();
            }
            let device = self.previous.device;
            return Ok((device >> 8 & 0xfff, device & 0xff | device >> 12 & !0xff));
        }
        if flags & SAME_MAJOR == 0 {
            self.previous.major = self.number(from)?.cast_unsigned();
        }
        let minor = match self.form.protocol {
            30.. => from.read_varint()?.cast_unsigned(),
            _ if flags & SMALL_MINOR != 0 => u32::from(from.read_u8()?),
            _ => from.read_i32()?.cast_unsigned(),
        };
        Ok((self.previous.major, minor))
    }

    fn acl(&mut self, from: &mut impl Read, is_default: bool) -> Result<u32> {
        let reference = from.read_varint()?;
        let known = if is_default { self.default.len() } else { self.access.len() };
        if reference != 0 {
            return number_of(reference, known);
        }
        let Self { owners, names, form, .. } = self;
        let mut learned = Ok(());
        let acl = ReceivedAcl::read(from, |id, is_user, name| {
            if !form.numeric_ids && learned.is_ok() {
                learned = owners.learn(names, id, is_user, name);
            }
        })?;
        learned?;
        self.keep(ENTRY_BYTES)?;
        if is_default {
            self.default.push(acl)
        } else {
            self.access.push(acl)
        }
        Ok(known as u32)
    }

    fn xattr_set(&mut self, from: &mut impl Read) -> Result<u32> {
        let (reference, known) = (from.read_varint()?, self.xattrs.len());
        if reference != 0 {
            return number_of(reference, known);
        }
        let set = xattr::read_set(from)?;
        let bytes: usize = set.iter().map(|one| one.name.len() + one.len.min(xattr::VALUE_MAX)).sum();
        self.keep(ENTRY_BYTES * (1 + set.len() as u64) + bytes as u64)?;
        self.xattrs.push(set);
        Ok(known as u32)
    }

    fn id_list(&mut self, is_user: bool, from: &mut impl Read) -> Result<()> {
        loop {
            match self.number(from)?.cast_unsigned() {
                0 => break,
                id => self.learn(id, is_user, from)?,
            }
        }
        if self.form.zero_names { self.learn(0, is_user, from) } else { Ok(()) }
    }

    fn learn(&mut self, id: u32, is_user: bool, from: &mut impl Read) -> Result<()> {
        let len = from.read_u8()?;
        let name = from.read_bytes(usize::from(len), usize::from(u8::MAX))?;
        self.keep(ENTRY_BYTES)?;
        self.owners.learn(&self.names, id, is_user, &name)
    }
}

fn number_of(reference: i32, known: usize) -> Result<u32> {
    let number = u32::try_from(reference).ok().and_then(|reference| reference.checked_sub(1));
    let number = number.filter(|number| (*number as usize) < known);
    number.ok_or_else(|| bad(format!("a reference to what is not there ({reference} of {known})")))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::budget::Budget;
    use crate::flist::{Entry, ListWriter};
    use crate::source::Time;

    fn everything(protocol: u8, varint_flags: bool) -> ListForm {
        ListForm {
            protocol,
            varint_flags,
            error_end: protocol >= 30,
            incremental: false,
            owner: true,
            group: true,
            links: true,
            devices: true,
            specials: true,
            hard_links: true,
            atimes: protocol >= 30,
            acls: protocol >= 30,
            xattrs: protocol >= 30,
            numeric_ids: false,
            recursive: true,
            zero_names: protocol >= 30,
        }
    }

    fn names(text: &str) -> Names {
        Names::parse(text.as_bytes(), text.as_bytes())
    }

    fn entry(name: &[u8], metadata: Metadata) -> Entry {
        Entry {
            name: name.to_vec(),
            root: b"".as_slice().into(),
            target: metadata.is_symlink().then(|| b"to/there".to_vec()),
            digest: metadata.is_file().then(|| vec![metadata.mode as u8; 16]),
            metadata,
            is_top: false,
            has_content: metadata.is_dir(),
            followed: false,
        }
    }

    fn metadata() -> impl Strategy<Value = Metadata> {
        let kinds = [kind::FILE, kind::DIRECTORY, kind::SYMLINK, kind::FIFO, kind::CHAR_DEVICE];
        let numbers = (0..kinds.len(), 0..0o10000_u32, 0..4_u32, 0..4_u32, 0..1_u64 << 50);
        let times = (any::<i32>(), prop_oneof![Just(0), 0..1_000_000_000_u32], 0..3_u64, 1..3_u64);
        (numbers, times).prop_map(
            move |((at, mode, uid, gid, size), (seconds, nanoseconds, inode, links))| Metadata {
                mode: kinds[at] | mode,
                uid,
                gid,
                size,
                mtime: Time { seconds: seconds.into(), nanoseconds },
                atime: Time { seconds: seconds.into(), nanoseconds: 0 },
                rdev: if kinds[at] == kind::CHAR_DEVICE { (uid * 100, gid) } else { (0, 0) },
                // All names of one file have the same kind.
                links: if at == 0 { links } else { 1 },
                id: (0, inode),
            },
        )
    }

    proptest! {
        #[test]
        fn lists_are_read_as_written(all in prop::collection::vec(("[a-c]{1,3}(/[a-c]{1,300})?", metadata()), 0..20), protocol in 27..33_u8) {
            let form = everything(protocol, protocol > 30);
            let mut writer = ListWriter::new(form.clone(), names("a:x:0:\nb:x:2:\nc:x:3:\n"));
            let mut wire = Vec::new();
            let attributes = |at: usize| -> BTreeMap<Vec<u8>, Vec<u8>> {
                [(b"user.a".to_vec(), vec![7; at % 3 * 20])].into()
            };
            let mut linked: BTreeMap<u64, Metadata> = BTreeMap::new();
            let mut expected = Vec::new();
            for (at, (name, it)) in all.iter().enumerate() {
                let mut it = *it;
                if it.links > 1 {
                    it = *linked.entry(it.id.1).or_insert(it);
                }
                let mut entry = entry(name.as_bytes(), it);
                if protocol < 30 {
                    // Seconds since 1970 had 32 bits.
                    entry.metadata.mtime.seconds &= 0xffff_ffff;
                }
                if protocol < 28 {
                    // Other kinds of files had a digest too.
                    entry.digest.get_or_insert(vec![0; 16]);
                }
                writer.entry(&entry, (at as u32, 0), &attributes(at), &mut wire).unwrap();
                expected.push(entry);
            }
            writer.end(4, &mut wire).unwrap();
            // The sender has the name of user 2 for what is user 5 here.
            let mut reader = ListReader::new(form, names("b:x:5:\n"), 16, false);
            let mut from = wire.as_slice();
            // The digests are the client's. The writer has one for each regular file.
            let list = reader.read(0, &mut from).unwrap();
            prop_assert!(from.is_empty());
            prop_assert_eq!((list.entries.len(), list.io_error), (expected.len(), 4));
            for (at, (read, sent)) in list.entries.iter().zip(&expected).enumerate() {
                let own = |id| if id == 2 { 5 } else { id };
                prop_assert_eq!(&read.name, &sent.name);
                let (is, was) = (read.metadata, sent.metadata);
                prop_assert_eq!((is.mode, is.size, is.mtime.seconds), (was.mode, was.size, was.mtime.seconds));
                prop_assert_eq!((is.uid, is.gid), (own(was.uid), own(was.gid)));
                if protocol > 30 {
                    prop_assert_eq!(is.mtime, was.mtime);
                }
                if was.is_device() {
                    prop_assert_eq!(is.rdev, was.rdev);
                }
                prop_assert_eq!(&read.target, &sent.target);
                prop_assert_eq!(&read.digest, &sent.digest.clone().filter(|_| was.is_file()));
                // Before version 28 all files had their inode number in the list.
                let is_told = |it: &Metadata| if protocol < 28 { it.is_file() } else { it.links > 1 };
                let first = expected.iter().position(|other| {
                    is_told(&other.metadata) && other.metadata.id == was.id
                });
                prop_assert_eq!(read.group, first.filter(|_| is_told(&was)).map(|first| first as u32));
                if protocol < 30 {
                    continue;
                }
                let set = reader.xattrs(read.xattrs.unwrap());
                prop_assert!(set.len() == 1 && set[0].is(&attributes(at)[&b"user.a"[..]]));
            }
        }
    }

    fn read(wire: &[u8]) -> Result<List> {
        let form = ListForm { protocol: 32, varint_flags: true, hard_links: true, ..ListForm::default() };
        ListReader::new(form, Names::default(), 0, false).read(0, &mut &wire[..])
    }

    #[test]
    fn what_leads_elsewhere_is_refused() {
        let of = |name: &str| {
            let body = [&[0, 0, 0][..], &[0, 0, 0, 0], &0o100_644_i32.to_le_bytes()].concat();
            [&[0x18, name.len() as u8][..], name.as_bytes(), &body, &[0, 0]].concat()
        };
        assert_eq!(read(&of("a//./b")).unwrap().entries[0].name, b"a/b");
        for name in ["..", "a/../b", "/a", "", "a\0b", "."] {
            assert!(read(&of(name)).is_err(), "{name:?}");
        }
        // A name that shares a prefix with none before it, a name that is too long, a mode without a file type, and a
        // hard link to a later entry.
        for wire in [
            &[0x38, 5, 1, b'a', 0, 0, 0, 0, 0, 0, 0][..],
            &[0x58, 0xc0, 0, 0x40],
            &[0x18, 1, b'a', 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0],
            &[0x82, 0x18, 1, b'a', 7],
        ] {
            assert!(read(wire).is_err(), "{wire:x?}");
        }
    }

    /// The encoding of one entry with a long name, again and again.
    struct Endless(std::iter::Cycle<std::vec::IntoIter<u8>>);

    impl Endless {
        fn new() -> Self {
            let body = [&[0, 0, 0][..], &[0, 0, 0, 0], &0o100_644_i32.to_le_bytes()].concat();
            let entry = [&[0x18, 250][..], &[b'n'; 250], &body].concat();
            Self(entry.into_iter().cycle())
        }
    }

    impl Read for Endless {
        fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
            into.iter_mut().zip(&mut self.0).for_each(|(to, byte)| *to = byte);
            Ok(into.len())
        }
    }

    #[test]
    fn a_list_without_an_end_is_refused_by_its_memory() {
        static SMALL: Budget = Budget::new(4 << 20);
        static LARGE: Budget = Budget::new(usize::MAX);
        let refused = |budget: &'static Budget, before: u64| {
            let form = ListForm { protocol: 32, varint_flags: true, ..ListForm::default() };
            let mut reader = ListReader::new(form, Names::default(), 0, false);
            reader.share = Share::of(budget);
            reader.keep(before).unwrap();
            let error = reader.read(0, &mut Endless::new()).unwrap_err();
            assert_eq!(error.code(), ExitCode::Memory);
            (error.to_string(), reader)
        };
        // The limit of all clients together counts for each, and is free again afterwards.
        for _ in 0..2 {
            let (text, _reader) = refused(&SMALL, 0);
            assert_eq!(text, "ERROR: the file lists of all clients together take too much memory");
        }
        // The limit of one client.
        let (text, reader) = refused(&LARGE, BYTES_MAX - (2 << 20));
        assert_eq!(text, "ERROR: the file list is too long");
        assert!(reader.bytes < BYTES_MAX + (1 << 20));
    }
}
