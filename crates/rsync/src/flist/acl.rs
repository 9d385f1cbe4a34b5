//! POSIX ACLs in file lists. Each different ACL is sent once. Later entries refer to it by number.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Read, Write};

use snowmelt_zpl::acl::{ACCESS, DEFAULT, Entry, PosixAcl, Tag};

use crate::wire::{ReadWire, WriteWire};

const USER_OBJ: u8 = 1;
const GROUP_OBJ: u8 = 2;
const MASK_OBJ: u8 = 4;
const OTHER_OBJ: u8 = 8;
const NAMED: u8 = 16;
/// The bits below the permissions of a named entry.
const NAME_FOLLOWS: u32 = 1;
const IS_USER: u32 = 2;
const PERMISSIONS_SHIFT: u32 = 2;

/// An ACL in the form of the protocol.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct WireAcl {
    user: Option<u8>,
    group: Option<u8>,
    mask: Option<u8>,
    other: Option<u8>,
    /// The number of the user or group, whether it is a user, and the permissions.
    named: Vec<(u32, bool, u8)>,
}

impl WireAcl {
    fn new(acl: &PosixAcl) -> Self {
        let mut wire = Self::default();
        let (mut users, mut groups) = (Vec::new(), Vec::new());
        for entry in &acl.entries {
            let permissions = entry.permissions;
            match entry.tag {
                Tag::UserObj => wire.user = Some(permissions),
                Tag::GroupObj => wire.group = Some(permissions),
                Tag::Mask => wire.mask = Some(permissions),
                Tag::Other => wire.other = Some(permissions),
                Tag::User(id) => users.push((id, true, permissions)),
                Tag::Group(id) => groups.push((id, false, permissions)),
            }
        }
        wire.named = [users, groups].concat();
        wire
    }

    /// Leaves out what the mode of the file has already. The mode has the mask in the place of the group's permissions,
    /// so these are kept beside a mask.
    fn without_mode(mut self, mode: u32) -> Self {
        let of_group = (mode >> 3 & 7) as u8;
        (self.user, self.other) = (None, None);
        if self.mask.is_none() {
            self.group = None;
        }
        if !self.named.is_empty() && self.mask == Some(of_group) {
            self.mask = None;
        }
        self
    }

    fn write(
        &self,
        out: &mut impl Write,
        mut name: impl FnMut(u32, bool) -> Option<Vec<u8>>,
    ) -> io::Result<()> {
        let parts =
            [(USER_OBJ, self.user), (GROUP_OBJ, self.group), (MASK_OBJ, self.mask), (OTHER_OBJ, self.other)];
        let mut flags = if self.named.is_empty() { 0 } else { NAMED };
        parts.iter().filter(|(_, part)| part.is_some()).for_each(|(flag, _)| flags |= flag);
        out.write_u8(flags)?;
        for permissions in parts.iter().filter_map(|(_, part)| *part) {
            out.write_varint(u32::from(permissions))?;
        }
        if self.named.is_empty() {
            return Ok(());
        }
        out.write_varint(self.named.len() as u32)?;
        for (id, is_user, permissions) in &self.named {
            let name = name(*id, *is_user);
            let bits = u32::from(*permissions) << PERMISSIONS_SHIFT
                | if *is_user { IS_USER } else { 0 }
                | if name.is_some() { NAME_FOLLOWS } else { 0 };
            out.write_varint(*id)?;
            out.write_varint(bits)?;
            if let Some(name) = name {
                out.write_u8(name.len() as u8)?;
                out.write_all(&name)?;
            }
        }
        Ok(())
    }
}

/// The most named entries of an ACL. Linux has no room for more in an attribute.
const NAMED_MAX: usize = 8192;

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// A received ACL. It has the sender's numbers of users and groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceivedAcl(WireAcl);

impl ReceivedAcl {
    /// Reads an ACL. `name` is called for names that come with numbers: the number, whether it is a user, and the name.
    ///
    /// # Errors
    /// When the bytes are not an ACL.
    pub(super) fn read(from: &mut impl Read, mut name: impl FnMut(u32, bool, &[u8])) -> io::Result<Self> {
        let flags = from.read_u8()?;
        let mut part = |flag: u8| -> io::Result<Option<u8>> {
            if flags & flag == 0 {
                return Ok(None);
            }
            match from.read_varint()? {
                permissions @ 0..=7 => Ok(Some(permissions as u8)),
                _ => Err(invalid("permissions in an ACL that are none")),
            }
        };
        let mut acl = WireAcl {
            user: part(USER_OBJ)?,
            group: part(GROUP_OBJ)?,
            mask: part(MASK_OBJ)?,
            other: part(OTHER_OBJ)?,
            named: Vec::new(),
        };
        if flags & NAMED == 0 {
            return Ok(Self(acl));
        }
        let count = usize::try_from(from.read_varint()?).ok().filter(|count| *count <= NAMED_MAX);
        for _ in 0..count.ok_or_else(|| invalid("an ACL of too many entries"))? {
            let id = from.read_varint()?.cast_unsigned();
            let bits = from.read_varint()?.cast_unsigned();
            let permissions = bits >> PERMISSIONS_SHIFT;
            if permissions > 7 {
                return Err(invalid("permissions in an ACL that are none"));
            }
            let is_user = bits & IS_USER != 0;
            if bits & NAME_FOLLOWS != 0 {
                let len = from.read_u8()?;
                name(id, is_user, &from.read_bytes(usize::from(len), usize::from(u8::MAX))?);
            }
            acl.named.push((id, is_user, permissions as u8));
        }
        Ok(Self(acl))
    }

    /// The access ACL of a file with this mode. `None` if it adds nothing to the mode. `own` maps a number, and whether
    /// it is a user, to this side's number.
    pub fn access(&self, mode: u32, own: impl Fn(u32, bool) -> u32) -> Option<PosixAcl> {
        let of_group = (mode >> 3 & 7) as u8;
        if self.0.named.is_empty() && self.0.mask.is_none() {
            return None;
        }
        // In the mode, the mask is in the place of the group's permissions.
        let complete = WireAcl {
            user: Some((mode >> 6 & 7) as u8),
            group: Some(self.0.group.unwrap_or(of_group)),
            mask: Some(of_group),
            other: Some((mode & 7) as u8),
            named: self.0.named.clone(),
        };
        Some(complete.posix(own))
    }

    /// The default ACL of a directory. `None` if there is none.
    pub fn default(&self, own: impl Fn(u32, bool) -> u32) -> Option<PosixAcl> {
        if self.0 == WireAcl::default() {
            return None;
        }
        let mut complete = self.0.clone();
        if !complete.named.is_empty() && complete.mask.is_none() {
            let all = complete.named.iter().fold(0, |all, (.., permissions)| all | permissions);
            complete.mask = Some(all | complete.group.unwrap_or(0));
        }
        for part in [&mut complete.user, &mut complete.group, &mut complete.other] {
            part.get_or_insert(0);
        }
        Some(complete.posix(own))
    }
}

impl WireAcl {
    fn posix(&self, own: impl Fn(u32, bool) -> u32) -> PosixAcl {
        let entry = |tag: Tag, part: Option<u8>| part.map(|permissions| Entry { tag, permissions });
        let parts = [
            entry(Tag::UserObj, self.user),
            entry(Tag::GroupObj, self.group),
            entry(Tag::Mask, self.mask),
            entry(Tag::Other, self.other),
        ];
        let named = self.named.iter().map(|(id, is_user, permissions)| {
            let id = own(*id, *is_user);
            Entry { tag: if *is_user { Tag::User(id) } else { Tag::Group(id) }, permissions: *permissions }
        });
        let mut entries: Vec<Entry> = parts.into_iter().flatten().chain(named).collect();
        entries.sort();
        // Two names may have the same number here.
        entries.dedup_by_key(|entry| entry.tag);
        PosixAcl { entries }
    }
}

/// The value of permissions that are left out of an ACL in an attribute.
const NO_ENTRY: u32 = 0x80;
/// The bit in the permissions of a named entry that marks a user.
const ATTRIBUTE_IS_USER: u32 = 1 << 31;
/// Bytes of the permissions without a name, and of each named entry.
const HEAD_LEN: usize = 16;
const NAMED_LEN: usize = 8;

/// An ACL in the form in which `--fake-super` stores it in an attribute. An access ACL is without what the file's
/// `mode` has. A default ACL has no mode.
pub(crate) fn to_attribute(acl: &PosixAcl, mode: Option<u32>) -> Vec<u8> {
    let wire = WireAcl::new(acl);
    // As in stock rsync, the mask stays, and the group's permissions are left out if they equal those of the mode.
    let mask = wire.mask;
    let wire = mode.map_or(wire.clone(), |mode| wire.without_mode(mode));
    let of_group = mode.map(|mode| (mode >> 3 & 7) as u8);
    let group = wire.group.filter(|group| Some(*group) != of_group);
    let parts = [wire.user, group, mask, wire.other];
    let parts = parts.into_iter().map(|part| part.map_or(NO_ENTRY, u32::from));
    let named = wire.named.iter().flat_map(|(id, is_user, permissions)| {
        [*id, u32::from(*permissions) | if *is_user { ATTRIBUTE_IS_USER } else { 0 }]
    });
    parts.chain(named).flat_map(u32::to_le_bytes).collect()
}

/// Parses an ACL from such an attribute. `None` if it is invalid.
pub(crate) fn from_attribute(value: &[u8]) -> Option<ReceivedAcl> {
    let (head, named) = value.split_at_checked(HEAD_LEN)?;
    let word = |bytes: &[u8]| bytes.try_into().ok().map(u32::from_le_bytes);
    let part = |at: usize| match word(head.get(at * 4..at * 4 + 4)?)? {
        NO_ENTRY => Some(None),
        permissions => u8::try_from(permissions).ok().filter(|it| *it <= 7).map(Some),
    };
    let mut acl =
        WireAcl { user: part(0)?, group: part(1)?, mask: part(2)?, other: part(3)?, named: Vec::new() };
    if named.len() % NAMED_LEN != 0 || named.len() / NAMED_LEN > NAMED_MAX {
        return None;
    }
    for entry in named.chunks_exact(NAMED_LEN) {
        let (id, bits) = (word(&entry[..4])?, word(&entry[4..])?);
        let permissions = u8::try_from(bits & !ATTRIBUTE_IS_USER).ok().filter(|it| *it <= 7)?;
        acl.named.push((id, bits & ATTRIBUTE_IS_USER != 0, permissions));
    }
    Some(ReceivedAcl(acl))
}

/// The ACLs that were sent so far.
#[derive(Debug, Default)]
pub(super) struct AclCache {
    access: HashMap<WireAcl, u32>,
    default: HashMap<WireAcl, u32>,
}

impl AclCache {
    /// Writes the ACLs of a file, which are among its extended attributes. An ACL that cannot be parsed is treated as
    /// absent.
    pub(super) fn write(
        &mut self,
        mode: u32,
        is_dir: bool,
        attributes: &BTreeMap<Vec<u8>, Vec<u8>>,
        out: &mut impl Write,
        mut name: impl FnMut(u32, bool) -> Option<Vec<u8>>,
    ) -> io::Result<()> {
        let find = |attribute: &str| {
            attributes.get(attribute.as_bytes()).and_then(|value| PosixAcl::decode(value).ok())
        };
        let access = find(ACCESS).map(|acl| WireAcl::new(&acl).without_mode(mode)).unwrap_or_default();
        write_or_refer(&mut self.access, access, out, &mut name)?;
        if is_dir {
            let default = find(DEFAULT).map(|acl| WireAcl::new(&acl)).unwrap_or_default();
            write_or_refer(&mut self.default, default, out, &mut name)?;
        }
        Ok(())
    }
}

fn write_or_refer(
    sent: &mut HashMap<WireAcl, u32>,
    acl: WireAcl,
    out: &mut impl Write,
    name: &mut impl FnMut(u32, bool) -> Option<Vec<u8>>,
) -> io::Result<()> {
    if let Some(number) = sent.get(&acl) {
        return out.write_varint(number + 1);
    }
    out.write_varint(0)?;
    acl.write(out, name)?;
    let number = sent.len() as u32;
    sent.insert(acl, number);
    Ok(())
}
