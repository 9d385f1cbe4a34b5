//! The generator: decides for each file of the list whether it is up to date, is changed here, or is requested.

use std::io::{self, Read, Write};

use snowmelt_zpl::NewKind;

use super::basis::Elsewhere;
use super::links::{Group, Leader};
use super::place::DIRECTORY_MODE;
use super::sums::Blocks;
use super::{Asked, Pending, Receiver};
use crate::checksum::{Algorithm, FileSum};
use crate::client::itemize;
use crate::error::Result;
use crate::filter::Subject;
use crate::options::Delete;
use crate::source::{Metadata, Time, kind};
use crate::target::{Found, Node};
use crate::wire::{Ndx, Tag, WriteWire};

/// The number of bytes of a file that are read at once.
const CHUNK: usize = 256 << 10;

/// The bits of a request. The client shows them as itemized changes.
pub(crate) mod item {
    pub const ATIME: u16 = 1 << 0;
    pub const CHANGE: u16 = 1 << 1;
    pub const SIZE: u16 = 1 << 2;
    pub const TIME: u16 = 1 << 3;
    pub const PERMISSIONS: u16 = 1 << 4;
    pub const OWNER: u16 = 1 << 5;
    pub const GROUP: u16 = 1 << 6;
    pub const ACL: u16 = 1 << 7;
    pub const XATTRS: u16 = 1 << 8;
    pub const BASIS_FOLLOWS: u16 = 1 << 11;
    pub const NAME_FOLLOWS: u16 = 1 << 12;
    pub const NEW: u16 = 1 << 13;
    pub const LOCAL_CHANGE: u16 = 1 << 14;
    pub const TRANSFER: u16 = 1 << 15;
    /// Bits that alone are not reported.
    pub const INSIGNIFICANT: u16 = BASIS_FOLLOWS | NAME_FOLLOWS | LOCAL_CHANGE;
}

impl<R: Read, W: Write> Receiver<'_, R, W> {
    /// Processes one file of the list.
    pub(super) fn generate(&mut self, index: u32) -> Result<()> {
        self.writer.keep_alive()?;
        let path = self.path_of(index);
        let one = &self.list[index as usize];
        let is_dir = one.metadata.is_dir();
        if self.is_left_out(&one.name) {
            return self.skip(index);
        }
        if self.list.is_only_named(index) {
            return self.make_early(index, &path);
        }
        if self.is_hidden(index, &path, is_dir) {
            let what = if is_dir { "directory" } else { "file" };
            let text =
                format!("ERROR: daemon refused to receive {what} \"{}\"\n", String::from_utf8_lossy(&path));
            self.has_failed = true;
            self.writer.message(Tag::ErrorXfer, text.as_bytes())?;
            return self.leave_out(index);
        }
        let makes_way = self.options.relative && self.options.no_implied_dirs && !self.options.dry_run;
        if makes_way && let Err(error) = self.make_way(&path) {
            self.failed("recv_generator: mkdir", &path, &error)?;
        }
        let mut found = match self.find(&path) {
            Ok(found) => found,
            Err(error) => {
                self.failed("recv_generator: failed to stat", &path, &error)?;
                return self.leave_out(index);
            }
        };
        if self.list[index as usize].metadata.mode == 0 {
            return self.missing(index, &path, found.as_ref());
        }
        if found.is_none() && self.options.existing {
            return self.leave_out(index);
        }
        let is_early = is_dir && self.made_early.remove(&self.list[index as usize].name);
        let made = found.take_if(|_| is_early);
        let found_dir = found.as_ref().is_some_and(|found| found.is_dir());
        if found.is_some() && self.options.ignore_existing && !(is_dir && found_dir) {
            return self.skip(index);
        }
        self.settle_mode(index, &path, found.as_ref());
        match self.list[index as usize].metadata.kind() {
            kind::DIRECTORY => self.directory(index, &path, found, made),
            _ if self.is_follower(index) => self.follow(index),
            kind::FILE => self.file(index, &path, found),
            _ => self.node(index, &path, found),
        }
    }

    /// The file at a path. In a dry run, a parent directory may still be another kind of file.
    fn find(&self, path: &[u8]) -> io::Result<Option<Found>> {
        match self.into.target.stat(path) {
            Err(error) if self.options.dry_run && error.kind() == io::ErrorKind::NotADirectory => Ok(None),
            found => found,
        }
    }

    /// An argument that does not exist at the sender. It is deleted here too, unless a rule protects it.
    fn missing(&mut self, index: u32, path: &[u8], found: Option<&Found>) -> Result<()> {
        let Some(found) = found else { return Ok(()) };
        let name = self.list[index as usize].name.clone();
        let is_dir = found.is_dir();
        if self.filter.excludes(Subject { path: &name, full: path, is_dir }, None)? {
            return Ok(());
        }
        let shown = String::from_utf8_lossy(&name).into_owned();
        if is_dir && !self.is_recursive() && !self.is_empty_dir(&shown, &found.node)? {
            return Ok(());
        }
        self.delete(&name, found).map(drop)
    }

    /// Skips a file, and those that would be hard links to it.
    pub(super) fn skip(&mut self, index: u32) -> Result<()> {
        self.settle_links(index, Leader::Failed)
    }

    /// Skips a file, and if it is a directory everything in it.
    fn leave_out(&mut self, index: u32) -> Result<()> {
        if self.list[index as usize].metadata.is_dir() {
            self.left_out.insert(self.list[index as usize].name.clone());
        }
        self.skip(index)
    }

    /// Whether a file is a skipped directory, or is in one.
    pub(super) fn is_left_out(&self, name: &[u8]) -> bool {
        let is_it = |end: usize| self.left_out.contains(&name[..end]);
        let slashes = name.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        !self.left_out.is_empty() && slashes.chain([name.len()]).any(is_it)
    }

    /// Creates a directory that is processed with its own list. Otherwise its creation would later change the time of
    /// its parent.
    fn make_early(&mut self, index: u32, path: &[u8]) -> Result<()> {
        if !self.keeps_dir_times() || path.is_empty() || self.is_hidden(index, path, true) {
            return Ok(());
        }
        // A failure here occurs again later and is reported then.
        let Ok(found) = self.into.target.stat(path) else { return Ok(()) };
        match found {
            None if self.options.existing => return Ok(()),
            Some(_) if self.options.ignore_existing => return Ok(()),
            Some(found) if found.is_dir() => return Ok(()),
            Some(other) if !self.make_room(index, path, &other)? => return self.leave_out(index),
            _ => {}
        }
        let one = &self.list[index as usize];
        let (name, mode) = (one.name.clone(), one.metadata.mode & 0o700);
        if self.into.target.create(path, NewKind::Directory, mode).is_ok() {
            self.made_early.insert(name);
        }
        Ok(())
    }

    /// Without `--perms`, takes the permissions of the present file, or those that the target allows for a new one.
    /// Then applies this side's own changes of permissions.
    fn settle_mode(&mut self, index: u32, path: &[u8], found: Option<&Found>) {
        if !self.options.perms {
            self.keep_mode(index, path, found);
        }
        let one = &mut self.list[index as usize].metadata;
        if let Some(chmod) = self.into.terms.chmod.filter(|_| !one.is_symlink()) {
            one.mode = chmod.apply(one.mode, one.is_dir());
        }
    }

    fn keep_mode(&mut self, index: u32, path: &[u8], found: Option<&Found>) {
        let above = path.iter().rposition(|byte| *byte == b'/').map_or(&b""[..], |at| &path[..at]);
        let mask = self.into.target.new_mask(above);
        let one = &mut self.list[index as usize].metadata;
        let is_same_kind = |found: &&Found| (found.is_dir()) == one.is_dir();
        let permissions = match found.filter(is_same_kind) {
            None => one.mode & mask,
            Some(found) => {
                let has = found.permissions();
                match (self.options.executability && one.is_file(), one.mode & 0o111 != 0, has & 0o111 != 0) {
                    (true, false, _) => has & !0o111,
                    (true, true, false) => has | (has & 0o444) >> 2,
                    _ => has,
                }
            }
        };
        one.mode = one.kind() | permissions;
    }

    /// Processes a directory. `made` is the directory, if it was created early.
    fn directory(
        &mut self,
        index: u32,
        path: &[u8],
        mut found: Option<Found>,
        made: Option<Found>,
    ) -> Result<()> {
        let dry_run = self.options.dry_run;
        if let Some(other) = found.take_if(|found| !found.is_dir())
            && !self.make_room(index, path, &other)?
        {
            return self.leave_out(index);
        }
        let local = if found.is_none() { item::LOCAL_CHANGE } else { 0 };
        let elsewhere = match &found {
            Some(_) => (Elsewhere::Nothing, true),
            None => self.node_elsewhere(index, path)?,
        };
        match &elsewhere {
            (Elsewhere::Like(other), is_told) => {
                if *is_told {
                    self.report(index, Some(other), local)?;
                }
            }
            _ => self.report(index, found.as_ref(), local)?,
        }
        if !dry_run {
            let made = match found.as_ref().or(made.as_ref()) {
                Some(there) => Ok(there.clone()),
                None => {
                    let mode = self.list[index as usize].metadata.mode & 0o7777;
                    let mode = if self.options.perms { mode } else { mode | DIRECTORY_MODE & 0o700 };
                    self.into.target.create(path, NewKind::Directory, mode)
                }
            };
            let made = match made {
                Ok(made) => made,
                Err(error) => {
                    self.failed("recv_generator: mkdir", path, &error)?;
                    return self.leave_out(index);
                }
            };
            self.settle_attributes(index, path, &made, false)?;
            if let (Elsewhere::Like(other), _) = &elsewhere {
                // The values that the other directory has too were not sent.
                self.settle_xattrs(index, path, &made.node, Some(&other.node))?;
            }
        }
        let has_content = self.list[index as usize].has_content;
        match self.options.delete {
            Delete::During | Delete::Delay if has_content && found.is_some() && self.single.is_none() => {
                self.delete_in(index)
            }
            _ => Ok(()),
        }
    }

    /// Processes a symbolic link, device, fifo or socket.
    fn node(&mut self, index: u32, path: &[u8], found: Option<Found>) -> Result<()> {
        let one = self.list[index as usize].clone();
        let it = one.metadata;
        let makes_devices = self.options.devices && self.into.target.is_privileged();
        let new = match (it.kind(), &one.target) {
            (kind::SYMLINK, Some(target)) if self.options.links => NewKind::Symlink(target),
            (kind::CHAR_DEVICE, _) if makes_devices => NewKind::CharDevice(it.rdev.0, it.rdev.1),
            (kind::BLOCK_DEVICE, _) if makes_devices => NewKind::BlockDevice(it.rdev.0, it.rdev.1),
            (kind::FIFO, _) if self.options.specials => NewKind::Fifo,
            (kind::SOCKET, _) if self.options.specials => NewKind::Socket,
            _ => {
                let text = format!("skipping non-regular file \"{}\"\n", String::from_utf8_lossy(&one.name));
                self.writer.message(Tag::Info, text.as_bytes())?;
                return self.skip(index);
            }
        };
        if self.options.safe_links
            && one.target.as_ref().is_some_and(|target| crate::scan::is_unsafe(target, &one.name))
        {
            return self.skip(index);
        }
        let same_kind = found.as_ref().filter(|found| found.metadata.kind() == it.kind());
        let is_same = same_kind.is_some_and(|found| self.is_same_node(index, found));
        if let (true, Some(found)) = (is_same, &found) {
            self.report(index, Some(found), 0)?;
            if !self.options.dry_run {
                self.settle_attributes(index, path, found, true)?;
            }
            self.came(index);
            return self.settle_links(index, Leader::Done(found.node.clone()));
        }
        let mut shown = same_kind.cloned();
        let mut is_told = true;
        if found.is_none() {
            match self.node_elsewhere(index, path)? {
                (Elsewhere::Settled, _) => return Ok(()),
                (Elsewhere::Like(other), tell) => (shown, is_told) = (Some(other), tell),
                (Elsewhere::Nothing, _) => {}
            }
        }
        let replaces = found.as_ref().is_some_and(|found| self.replaces(found));
        if let Some(other) = found.as_ref().filter(|_| !replaces)
            && !self.make_room(index, path, other)?
        {
            return self.skip(index);
        }
        let is_copy = shown.as_ref().is_some_and(|other| self.is_all_the_same(index, other));
        let flags = if is_copy { item::LOCAL_CHANGE } else { item::LOCAL_CHANGE | item::CHANGE };
        if !self.options.dry_run {
            let made = match self.make_node(index, path, new, replaces)? {
                Ok(made) => made,
                Err(error) => {
                    let what = if it.is_symlink() { "symlink" } else { "mknod" };
                    self.failed(what, path, &error)?;
                    return self.skip(index);
                }
            };
            if is_told {
                self.report(index, shown.as_ref(), flags)?;
            }
            self.came(index);
            return self.settle_links(index, Leader::Done(made));
        }
        if is_told {
            self.report(index, shown.as_ref(), flags)?;
        }
        self.settle_links(index, Leader::Supposed)
    }

    /// Creates a symbolic link, device, fifo or socket with its attributes.
    fn make_node(
        &mut self,
        index: u32,
        path: &[u8],
        new: NewKind<'_>,
        replaces: bool,
    ) -> Result<io::Result<Node>> {
        let permissions = self.list[index as usize].metadata.mode & 0o7777;
        let made = match replaces {
            true => self.into.target.create_temporary(path, None, new, permissions),
            false => self.into.target.create(path, new, permissions),
        };
        let made = match made {
            Ok(made) => made,
            Err(error) => return Ok(Err(error)),
        };
        self.settle_attributes(index, path, &made, true)?;
        Ok(if replaces { self.put_in_place(&made.node, path) } else { Ok(made.node) })
    }

    /// Whether a link has the same target as in the list, or a device the same number.
    pub(super) fn is_same_node(&self, index: u32, found: &Found) -> bool {
        let one = &self.list[index as usize];
        match one.metadata.is_symlink() {
            true => self.into.target.read_link(&found.node).ok() == one.target,
            false => !one.metadata.is_device() || found.metadata.rdev == one.metadata.rdev,
        }
    }

    fn file(&mut self, index: u32, path: &[u8], mut found: Option<Found>) -> Result<()> {
        let it = self.list[index as usize].metadata;
        let is_too = |limit: Option<u64>, is_too: fn(&u64, &u64) -> bool| {
            limit.is_some_and(|limit| is_too(&it.size, &limit))
        };
        if is_too(self.options.max_size, u64::gt) || is_too(self.options.min_size, u64::lt) {
            return self.skip(index);
        }
        if let Some(other) = found.take_if(|found| !found.is_file())
            && !(self.writes_aside() && self.replaces(&other))
            && !self.make_room(index, path, &other)?
        {
            return self.skip(index);
        }
        if let Some(found) = found.as_ref().filter(|_| self.options.update) {
            let newer_by = found.metadata.mtime.seconds.saturating_sub(it.mtime.seconds);
            if newer_by > -self.options.modify_window.max(0) {
                return self.skip(index);
            }
        }
        match self.file_elsewhere(index, path, found.as_ref())? {
            Elsewhere::Settled => return Ok(()),
            Elsewhere::Like(other) => return self.request_content(index, Some(&other), Some(&other)),
            Elsewhere::Nothing => {}
        }
        if let Some(found) = &found {
            if self.is_unchanged(index, found)? {
                self.report(index, Some(found), 0)?;
                if !self.options.dry_run {
                    self.settle_attributes(index, path, found, true)?;
                }
                self.came(index);
                return self.settle_links(index, Leader::Done(found.node.clone()));
            }
            if self.options.append > 0 && found.metadata.size >= it.size {
                return self.skip(index);
            }
        }
        let similar = match (self.partial_of(path), &found) {
            (Some(partial), _) => Some(partial),
            (None, Some(found)) => Some(found.clone()),
            (None, None) => self.similar(path, index),
        };
        self.request_content(index, found.as_ref(), similar.as_ref())
    }

    /// Whether a file's content is assumed to be that of the sender.
    pub(super) fn is_unchanged(&mut self, index: u32, found: &Found) -> Result<bool> {
        let one = &self.list[index as usize];
        if found.metadata.size != one.metadata.size {
            return Ok(false);
        }
        if let Some(digest) = one.digest.clone() {
            return Ok(self.digest(found).ok() == Some(digest));
        }
        let is_same_time = self.is_same_time(found.metadata.mtime, self.list[index as usize].metadata.mtime);
        Ok(self.options.size_only || !self.options.ignore_times && is_same_time)
    }

    fn digest(&mut self, found: &Found) -> io::Result<Vec<u8>> {
        let mut sum = FileSum::new(self.agreed.list_sum);
        let mut buffer = vec![0; CHUNK];
        let mut at = 0;
        while at < found.metadata.size {
            let len = self.into.target.read(&found.node, at, &mut buffer)?;
            if len == 0 {
                break;
            }
            sum.update(&buffer[..len]);
            at += len as u64;
            self.writer.keep_alive()?;
        }
        Ok(sum.finish())
    }

    /// Whether two times are equal, within `--modify-window`.
    pub(super) fn is_same_time(&self, a: Time, b: Time) -> bool {
        match self.options.modify_window {
            0 => a.seconds == b.seconds,
            ..0 => a == b,
            window => a.seconds.abs_diff(b.seconds) <= window.unsigned_abs(),
        }
    }

    /// Requests the content of a file. `basis` is another file with similar content, and `found` is the present file.
    pub(super) fn request_content(
        &mut self,
        index: u32,
        found: Option<&Found>,
        basis: Option<&Found>,
    ) -> Result<()> {
        // Appending is only possible to the file itself.
        let is_elsewhere = || self.into.target.stat(&self.path_of(index)).is_ok_and(|found| found.is_none());
        let like = basis.filter(|_| self.options.append == 0 || !is_elsewhere());
        let change = if self.options.checksum { item::CHANGE } else { 0 };
        let flags = item::TRANSFER | change | self.differences(index, found, item::TRANSFER);
        self.show(index, flags);
        let sent = self.writer.total();
        self.request(index, flags)?;
        self.ask_xattrs(index, flags)?;
        let mut basis = None;
        if !self.options.dry_run {
            basis = self.basis(like);
            match &basis {
                Some((node, size, blocks)) => self.send_sums((node, *size), *blocks)?,
                None => Blocks::default().write_head(self.writer)?,
            }
        }
        self.ask(Pending { index, flags, basis, sent, is_second: self.is_second });
        Ok(())
    }

    /// Sends the header of a request. Before version 29 it has no flags, because requests are for content only.
    fn request(&mut self, index: u32, flags: u16) -> Result<()> {
        self.requests.write(Ndx::File(index), self.writer)?;
        if self.agreed.protocol >= 29 {
            self.writer.write_u16(flags)?;
        }
        Ok(())
    }

    /// The present file that serves as the basis, with its division into blocks.
    fn basis(&self, found: Option<&Found>) -> Option<(Node, u64, Blocks)> {
        let found = found.filter(|found| self.into.target.is_old(&found.node))?;
        let is_whole = self.options.whole_file && self.options.append == 0;
        if is_whole || self.is_second || self.agreed.sums.algorithm == Algorithm::None {
            return None;
        }
        let blocks =
            Blocks::of(found.metadata.size, self.options.block_len, self.agreed.sums.algorithm.len());
        (blocks.count > 0).then_some((found.node.clone(), found.metadata.size, blocks))
    }

    fn send_sums(&mut self, file: (&Node, u64), blocks: Blocks) -> Result<()> {
        blocks.write_head(self.writer)?;
        if self.options.append > 0 {
            return Ok(());
        }
        let per_read = (CHUNK / blocks.len as usize).max(1);
        let mut buffer = vec![0; per_read * blocks.len as usize];
        let mut at = 0;
        while at < file.1 {
            let len = buffer.len().min(usize::try_from(file.1 - at).unwrap_or(usize::MAX));
            let data = &mut buffer[..len];
            if self.into.target.read_old(file, at, data).is_err() {
                // A part that cannot be read matches nothing. Checksums of zeros serve as well as any others.
                data.fill(0);
            }
            for block in data.chunks(blocks.len as usize) {
                blocks.write_sums(block, self.agreed.sums, self.writer)?;
            }
            at += len as u64;
            self.writer.keep_alive()?;
        }
        Ok(())
    }

    /// Reports a change to the sender, if there is one.
    pub(super) fn report(&mut self, index: u32, found: Option<&Found>, flags: u16) -> Result<()> {
        let flags = flags | self.differences(index, found, flags);
        match flags & !item::INSIGNIFICANT != 0 || self.tells_all() {
            true => self.announce(index, flags, None),
            false => Ok(()),
        }
    }

    /// Reports a change to the sender, with the name that the file is linked to.
    pub(super) fn announce(&mut self, index: u32, flags: u16, name: Option<&[u8]>) -> Result<()> {
        self.show(index, flags);
        if self.agreed.protocol < 29 {
            // In these versions requests were for content only.
            return Ok(());
        }
        let sent = self.writer.total();
        self.request(index, flags)?;
        if let Some(name) = name {
            self.writer.write_vstring(name)?;
        }
        self.ask_xattrs(index, flags)?;
        self.ask(Pending { index, flags, basis: None, sent, is_second: false });
        Ok(())
    }

    fn ask(&mut self, request: Pending) {
        self.list.hold(request.index);
        self.pending.push_back(Asked::Request(request));
        self.unsent += 1;
    }

    /// Shows a change, if this side is the client.
    fn show(&self, index: u32, flags: u16) {
        if let Some(told) = &self.client {
            let one = &self.list[index as usize];
            told.change(&itemize(flags, one.metadata.mode, '>'), &one.name, one.metadata.is_dir());
        }
    }

    /// The differences between a file and its entry in the list, as bits.
    pub(super) fn differences(&self, index: u32, found: Option<&Found>, flags: u16) -> u16 {
        let one = &self.list[index as usize];
        let it = &one.metadata;
        let xattrs = if self.xattrs_differ(one, found) { item::XATTRS } else { 0 };
        let Some(found) = found else { return item::NEW | xattrs };
        let has: Metadata = found.metadata;
        let keeps_time = self.options.times
            && !(it.is_dir() && self.options.omit_dir_times)
            && !(it.is_symlink() && self.options.omit_link_times);
        let time = match keeps_time {
            true => !self.is_same_time(has.mtime, it.mtime),
            false => flags & (item::TRANSFER | item::LOCAL_CHANGE) != 0,
        };
        let permissions = match (self.options.perms, self.options.executability) {
            _ if it.is_symlink() => false,
            (true, _) => (has.mode ^ it.mode) & 0o7777 != 0,
            (false, true) => (has.mode & 0o111 == 0) != (it.mode & 0o111 == 0),
            (false, false) => false,
        };
        let atime =
            self.options.atimes && !it.is_dir() && !it.is_symlink() && has.atime.seconds != it.atime.seconds;
        [
            (item::SIZE, it.is_file() && has.size != it.size),
            (item::TIME, time),
            (item::ATIME, atime),
            (item::PERMISSIONS, permissions),
            (item::OWNER, self.keeps_owner() && has.uid != it.uid),
            (item::GROUP, self.keeps_group(it.gid) && has.gid != it.gid),
            (item::ACL, self.acls_differ(one, found)),
        ]
        .into_iter()
        .filter(|(_, differs)| *differs)
        .fold(xattrs, |flags, (flag, _)| flags | flag)
    }

    /// Removes a file that is in the way of one of another kind. Returns whether it is gone.
    fn make_room(&mut self, index: u32, path: &[u8], other: &Found) -> Result<bool> {
        let is_dir = other.is_dir();
        // With `--keep-dirlinks`, the path may be outside of the transfer.
        let name = match self.single {
            Some(_) => path.to_vec(),
            None => self.list[index as usize].name.clone(),
        };
        let shown = String::from_utf8_lossy(&name).into_owned();
        let is_empty = match (is_dir, self.is_recursive()) {
            (false, _) => true,
            (true, true) => self.empty(&name, &other.node)?,
            (true, false) => self.is_empty_dir(&shown, &other.node)?,
        };
        if is_empty && self.options.dry_run {
            return Ok(true);
        }
        if is_empty && !is_dir && self.take_away(path)? {
            return Ok(true);
        }
        if is_empty && is_dir {
            match self.into.target.remove(path, true) {
                Ok(()) => return Ok(true),
                Err(error) => self.check_room(path, &error)?,
            }
        }
        let what = match self.list[index as usize].metadata.kind() {
            kind::DIRECTORY => "directory",
            kind::SYMLINK => "symlink",
            kind::CHAR_DEVICE | kind::BLOCK_DEVICE => "device file",
            kind::FIFO | kind::SOCKET => "special file",
            _ => "regular file",
        };
        self.has_failed = true;
        self.writer
            .message(Tag::ErrorXfer, format!("could not make way for new {what}: {shown}\n").as_bytes())?;
        Ok(false)
    }

    /// Whether a directory is empty. If not, reports that it stays.
    fn is_empty_dir(&mut self, shown: &str, node: &Node) -> Result<bool> {
        let is_empty = self.into.target.list(node).is_ok_and(|all| all.is_empty());
        if !is_empty {
            let text = format!("cannot delete non-empty directory: {shown}\n");
            self.writer.message(Tag::Info, text.as_bytes())?;
        }
        Ok(is_empty)
    }

    /// Whether directories are removed with their content.
    fn is_recursive(&self) -> bool {
        self.options.delete != Delete::No || self.options.given.iter().any(|name| name == "force")
    }

    /// Whether a file is a hard link whose content another name receives.
    fn is_follower(&mut self, index: u32) -> bool {
        let leader = match self.links.of(&self.list[index as usize]) {
            None => return false,
            Some(Group { leader: Some(leader), .. }) => *leader,
            Some(group) => {
                let members = std::mem::take(&mut group.members);
                let leader = self.leader(index, &members).unwrap_or(index);
                if let Some(group) = self.links.of(&self.list[index as usize]) {
                    (group.members, group.leader) = (members, Some(leader));
                }
                leader
            }
        };
        leader != index
    }

    /// The best name of a group of hard links: one that exists with the right size, because it may have the content
    /// already. Names before `first` were skipped.
    fn leader(&self, first: u32, members: &[u32]) -> Option<u32> {
        let is_there = |index: &u32| {
            let it = &self.list[*index as usize].metadata;
            let found = self.into.target.stat(&self.path_of(*index)).ok().flatten();
            found.is_some_and(|found| found.metadata.kind() == it.kind() && found.metadata.size == it.size)
        };
        members.iter().copied().filter(|index| *index >= first).find(is_there)
    }

    /// Fails the hard links that wait for this name, if it has no result and its content was not requested.
    pub(super) fn give_up_unsettled(&mut self, index: u32) -> Result<()> {
        let is_asked = matches!(self.pending.back(), Some(Asked::Request(last)) if last.index == index && last.flags & item::TRANSFER != 0);
        let Some(one) = self.list.get(index).filter(|one| !is_asked && one.group.is_some()) else {
            return Ok(());
        };
        match self.links.of(one).is_some_and(|group| group.state == Leader::Awaited) {
            true => self.settle_links(index, Leader::Failed),
            false => Ok(()),
        }
    }

    /// Makes a name a hard link to the leader of its group, once the leader has its content.
    fn follow(&mut self, index: u32) -> Result<()> {
        let one = &self.list[index as usize];
        let Some(group) = self.links.groups.get_mut(&one.group.unwrap_or(u32::MAX)) else { return Ok(()) };
        match group.state {
            Leader::Awaited => {
                group.waiting.push(index);
                self.list.hold(index);
                Ok(())
            }
            Leader::Done(ref node) => {
                let (name, node) = (group.name.clone(), node.clone());
                self.link(index, &name, &node)
            }
            Leader::Supposed => {
                let name = group.name.clone();
                self.tell_of_link(index, &name)
            }
            Leader::Failed => Ok(()),
        }
    }

    /// Records the result of a leader, and processes the hard links that wait for it.
    pub(super) fn settle_links(&mut self, index: u32, state: Leader) -> Result<()> {
        let one = &self.list[index as usize];
        // A name that is skipped before its group has a leader is not the leader.
        let Some(group) = self.links.of(one).filter(|group| group.leader == Some(index)) else {
            return Ok(());
        };
        let waiting = std::mem::take(&mut group.waiting);
        group.members = Vec::new();
        group.name.clone_from(&one.name);
        group.state = state.clone();
        let name = one.name.clone();
        for follower in waiting {
            match &state {
                Leader::Done(node) => self.link(follower, &name, node)?,
                Leader::Supposed => self.tell_of_link(follower, &name)?,
                Leader::Awaited | Leader::Failed => {}
            }
            self.list.release(follower);
        }
        Ok(())
    }

    /// In a dry run, reports a name that would become a hard link.
    fn tell_of_link(&mut self, index: u32, leader: &[u8]) -> Result<()> {
        let found = self.find(&self.path_of(index)).ok().flatten();
        let flags = item::LOCAL_CHANGE | item::NAME_FOLLOWS;
        let flags = flags | self.differences(index, found.as_ref(), flags) & !item::XATTRS;
        self.announce(index, flags, Some(leader))
    }

    /// Makes a name a hard link to the leader of its group.
    fn link(&mut self, index: u32, leader: &[u8], node: &Node) -> Result<()> {
        let path = self.path_of(index);
        let found = match self.find(&path) {
            Ok(found) => found,
            Err(error) => return self.failed("link", &path, &error),
        };
        if found.as_ref().is_some_and(|found| found.node == *node) {
            if self.tells_all() {
                self.announce(index, item::LOCAL_CHANGE | item::NAME_FOLLOWS, Some(b""))?;
            }
            self.came(index);
            return Ok(());
        }
        let (like, is_told) = match &found {
            Some(_) => (found.clone(), true),
            None => self.link_elsewhere_too(index, node)?,
        };
        let flags = item::LOCAL_CHANGE | item::NAME_FOLLOWS;
        let flags = flags | self.differences(index, like.as_ref(), flags) & !item::XATTRS;
        if self.options.dry_run {
            return if is_told { self.announce(index, flags, Some(leader)) } else { Ok(()) };
        }
        if let Some(other) = found.as_ref().filter(|found| !self.replaces(found))
            && !self.make_room(index, &path, other)?
        {
            return Ok(());
        }
        match self.link_to(node, &path) {
            Ok(()) => {
                if is_told {
                    self.announce(index, flags, Some(leader))?;
                }
                self.came(index);
                Ok(())
            }
            Err(error) => self.failed("link", &path, &error),
        }
    }
}
