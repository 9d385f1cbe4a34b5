//! Sets the attributes of files: owners, permissions, times, ACLs, extended attributes.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};

use snowmelt_zpl::acl::{ACCESS, DEFAULT, PosixAcl, Tag};
use snowmelt_zpl::{NewFile, SetAttributes, SetTime, Timestamp};

use super::generate::item;
use super::{OWNER, Receiver};
use crate::error::Result;
use crate::flist::{Received, XattrValue};
use crate::source::Time;
use crate::target::{Found, Node};
use crate::wire::WriteWire;

pub(super) fn timestamp(time: Time) -> Timestamp {
    Timestamp { seconds: time.seconds, nanoseconds: time.nanoseconds }
}

/// An access ACL without the permissions that the mode of the file has too.
fn apart_from_mode(mut acl: PosixAcl) -> PosixAcl {
    let has_mask = acl.entries.iter().any(|entry| entry.tag == Tag::Mask);
    for entry in &mut acl.entries {
        match entry.tag {
            Tag::UserObj | Tag::Mask | Tag::Other => entry.permissions = 0,
            Tag::GroupObj if !has_mask => entry.permissions = 0,
            _ => {}
        }
    }
    acl
}

impl<R: Read, W: Write> Receiver<'_, R, W> {
    /// Sets the attributes that differ. Extended attributes follow with the answer. Times of directories are set at the
    /// end, because changes in a directory change its time.
    pub(super) fn settle_attributes(
        &mut self,
        index: u32,
        path: &[u8],
        has: &Found,
        with_times: bool,
    ) -> Result<()> {
        let one = &self.list[index as usize];
        let set = self.changes(one, has, with_times);
        let result = match set == SetAttributes::default() {
            true => Ok(()),
            false => self.into.target.set_attributes(&has.node, &set),
        };
        match result.and_then(|()| self.set_acls(one, &has.node)) {
            Ok(()) => Ok(()),
            Err(error) => self.failed("set attributes of", path, &error),
        }
    }

    fn changes(&self, one: &Received, has: &Found, with_times: bool) -> SetAttributes {
        let (it, has) = (&one.metadata, has.metadata);
        let opened = it.is_dir() && !with_times && self.opens_directories();
        let permissions = it.mode & 0o7777 | if opened { OWNER } else { 0 };
        let time = |time: Time| SetTime::To(timestamp(time));
        let keeps_time =
            with_times && self.options.times && !(it.is_symlink() && self.options.omit_link_times);
        let atime = self.atime(one).filter(|atime| with_times && atime.seconds != has.atime.seconds);
        let is_other_time = match self.agreed.protocol {
            // Times without fractions of seconds.
            ..31 => it.mtime.seconds != has.mtime.seconds,
            _ => it.mtime != has.mtime,
        };
        SetAttributes {
            permissions: (!it.is_symlink() && permissions != has.mode & 0o7777).then_some(permissions),
            uid: self.uid(one).filter(|uid| *uid != has.uid),
            gid: self.gid(one).filter(|gid| *gid != has.gid),
            mtime: (keeps_time && is_other_time).then(|| time(it.mtime)),
            atime: atime.map(time),
            ..SetAttributes::default()
        }
    }

    fn uid(&self, one: &Received) -> Option<u32> {
        self.keeps_owner().then_some(one.metadata.uid)
    }

    fn gid(&self, one: &Received) -> Option<u32> {
        self.keeps_group(one.metadata.gid).then_some(one.metadata.gid)
    }

    fn atime(&self, one: &Received) -> Option<Time> {
        let keeps = self.options.atimes && !one.metadata.is_dir();
        keeps.then_some(Time { nanoseconds: 0, ..one.metadata.atime })
    }

    /// A regular file with its content and attributes, but without ACLs and extended attributes.
    pub(super) fn whole<'c>(&self, index: u32, content: &'c [u8]) -> NewFile<'c> {
        let one = &self.list[index as usize];
        NewFile {
            permissions: one.metadata.mode & 0o7777,
            uid: self.uid(one),
            gid: self.gid(one),
            atime: self.atime(one).map(timestamp),
            mtime: self.options.times.then(|| timestamp(one.metadata.mtime)),
            content,
        }
    }

    /// The ACLs of a file in the list: access and default.
    fn wanted_acls(&self, one: &Received) -> [(&'static str, Option<PosixAcl>); 2] {
        let own = |id, is_user| self.lists.own(id, is_user);
        let access = one.access.and_then(|number| self.lists.access_acl(number));
        let default = one.default.and_then(|number| self.lists.default_acl(number));
        [
            (ACCESS, access.and_then(|acl| acl.access(one.metadata.mode, own))),
            (DEFAULT, default.and_then(|acl| acl.default(own))),
        ]
    }

    fn acls_of(&self, node: &Node) -> io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
        let mut all = self.into.target.xattrs(node)?;
        all.retain(|name, _| name.starts_with(b"system."));
        Ok(all)
    }

    pub(super) fn acls_differ(&self, one: &Received, found: &Found) -> bool {
        if !self.agreed.form.acls || one.metadata.is_symlink() {
            return false;
        }
        let has = self.acls_of(&found.node).unwrap_or_default();
        self.wanted_acls(one).into_iter().any(|(name, wanted)| {
            let has = has.get(name.as_bytes()).and_then(|value| PosixAcl::decode(value).ok());
            match name {
                ACCESS => has.map(apart_from_mode) != wanted.map(apart_from_mode),
                _ => has != wanted,
            }
        })
    }

    fn set_acls(&self, one: &Received, node: &Node) -> io::Result<()> {
        if !self.agreed.form.acls || one.metadata.is_symlink() {
            return Ok(());
        }
        let has = self.acls_of(node)?;
        for (name, wanted) in self.wanted_acls(one) {
            let has = has.get(name.as_bytes());
            let is_same = match (has.map(|value| PosixAcl::decode(value).ok()), &wanted) {
                (None, None) => true,
                (Some(has), wanted) => has.is_some() && has == *wanted,
                _ => false,
            };
            if !is_same {
                let value = wanted.as_ref().map(PosixAcl::encode);
                self.into.target.set_xattr(node, name.as_bytes(), value.as_deref())?;
            }
        }
        Ok(())
    }

    fn plain_xattrs(&self, node: &Node) -> io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
        let mut all = self.into.target.xattrs(node)?;
        all.retain(|name, _| !name.starts_with(b"system."));
        Ok(all)
    }

    pub(super) fn xattrs_differ(&self, one: &Received, found: Option<&Found>) -> bool {
        let Some(number) = one.xattrs else { return false };
        let wanted = self.lists.xattrs(number);
        let has = match found {
            Some(found) => self.plain_xattrs(&found.node).unwrap_or_default(),
            None => BTreeMap::new(),
        };
        let wanted = || wanted.iter().filter(|one| self.into.target.takes_xattr(&one.name));
        wanted().count() != has.len()
            || wanted().any(|one| has.get(&one.name).is_none_or(|value| !one.is(value)))
    }

    /// Requests the values that are too long for the list, if neither the target nor an earlier answer has them.
    pub(super) fn ask_xattrs(&mut self, index: u32, flags: u16) -> Result<()> {
        if !self.sends_xattrs(flags) {
            return Ok(());
        }
        if let Some(number) = self.list[index as usize].xattrs {
            let has = match self.into.target.stat(&self.path_of(index)) {
                Ok(Some(found)) => self.plain_xattrs(&found.node).unwrap_or_default(),
                _ => BTreeMap::new(),
            };
            let mut previous = 0;
            for one in self.lists.xattrs_mut(number) {
                let XattrValue::Digest(digest) = one.value else { continue };
                if has.get(&one.name).is_some_and(|value| one.is(value)) {
                    continue;
                }
                self.writer.write_varint(one.number - previous)?;
                (previous, one.value) = (one.number, XattrValue::Asked(digest));
            }
        }
        Ok(self.writer.write_u8(0)?)
    }

    /// Whether a request and its answer have values of attributes.
    pub(super) fn sends_xattrs(&self, flags: u16) -> bool {
        let local = item::NAME_FOLLOWS | item::LOCAL_CHANGE;
        self.options.xattrs
            && !self.options.dry_run
            && flags & item::XATTRS != 0
            && !(self.agreed.xattr_shortcut && flags & local == local)
    }

    /// Sets the extended attributes of a file to those of the sender. `old` is a file here with the values that the
    /// sender therefore did not send.
    pub(super) fn settle_xattrs(
        &mut self,
        index: u32,
        path: &[u8],
        node: &Node,
        old: Option<&Node>,
    ) -> Result<()> {
        let Some(number) = self.list[index as usize].xattrs else { return Ok(()) };
        match self.set_xattrs(index, number, (node, old)) {
            Ok(()) => Ok(()),
            Err(error) => self.failed("set extended attributes of", path, &error),
        }
    }

    fn set_xattrs(&self, index: u32, number: u32, (node, old): (&Node, Option<&Node>)) -> io::Result<()> {
        let has = self.plain_xattrs(node)?;
        let wanted = self.lists.xattrs(number);
        let mut had = Vec::new();
        if wanted.iter().any(|one| !matches!(one.value, XattrValue::Whole(_))) {
            had.extend(old.map(|old| self.plain_xattrs(old)).transpose()?);
            // The file was also compared with those in further directories.
            let others = self.elsewhere(index).filter(Found::is_file);
            had.extend(others.filter_map(|other| self.plain_xattrs(&other.node).ok()));
        }
        for name in has.keys().filter(|name| wanted.iter().all(|one| one.name != **name)) {
            self.into.target.set_xattr(node, name, None)?;
        }
        for one in wanted.iter().filter(|one| self.into.target.takes_xattr(&one.name)) {
            if has.get(&one.name).is_some_and(|value| one.is(value)) {
                continue;
            }
            match &one.value {
                XattrValue::Whole(value) => self.into.target.set_xattr(node, &one.name, Some(value))?,
                XattrValue::Digest(_) | XattrValue::Asked(_) => {
                    let value = had.iter().filter_map(|had| had.get(&one.name)).find(|value| one.is(value));
                    if let Some(value) = value {
                        self.into.target.set_xattr(node, &one.name, Some(value))?;
                        continue;
                    }
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "a value did not come"));
                }
            }
        }
        Ok(())
    }
}
