//! The receiver: reads the file list, requests what differs from it, and handles the answers (docs/format/rsync.md,
//! "The transfer").
//!
//! One thread does all of this. It sends further requests as long as few are in flight, and never waits for sending:
//! see [`QueueWriter`](crate::wire::QueueWriter).

mod answer;
mod aside;
mod attributes;
mod backup;
mod basis;
mod delete;
mod files;
mod gathered;
mod generate;
mod links;
mod partial;
mod place;
mod sums;

use std::cell::RefCell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::io::{self, Read, Write};
use std::sync::Arc;

use snowmelt_zpl::{SetAttributes, SetTime};

use crate::chmod::Chmod;
use crate::client::Told;
use crate::daemon::Event;
use crate::error::{ExitCode, Result, RsyncError};
use crate::filter::{Filter, Subject, base_name};
use crate::flist::{List, ListReader, Order, Received};
use crate::history::Moment;
use crate::idmap::IdMap;
use crate::names::Names;
use crate::options::{Delete, Options};
use crate::scan::{Called, IO_ERROR_GENERAL, MUNGED, error_text};
use crate::sender::{Agreed, Summary};
use crate::target::{Found, Node, Target, Tree};
use crate::token::TokenReader;
use crate::wire::{MuxReader, MuxWriter, Ndx, NdxReader, NdxWriter, ReadWire, Tag, WriteWire};
use files::Files;
pub(crate) use generate::item;
use links::{GROUP_BYTES, Links};
pub(crate) use partial::DELAYED_DIR;
use sums::Blocks;

/// The most requests in flight, and the most bytes of them.
const PENDING_MAX: usize = 512;
const PENDING_BYTES_MAX: u64 = 1 << 20;
/// The number of requests that are sent together while answers to others are in flight. The sender must never run out
/// of requests, because then the two sides would wait for each other in turn.
const TOGETHER: usize = 64;

/// The number of files that are read ahead when hard links are looked for. Senders send lists for twice as many files
/// ahead of the receiver.
const LINKS_LOOKAHEAD: usize = 500;

/// The memory of a directory that is opened for writing, besides its path, in bytes.
const OPENED_BYTES: u64 = 64;

/// All permissions of the owner.
const OWNER: u32 = 0o700;

/// Deletions were stopped by `--max-delete`.
pub const IO_ERROR_DELETE_LIMIT: u32 = 4;

/// What the sender has to answer, in the order of sending.
enum Asked {
    Request(Pending),
    /// The end of one of several lists.
    ListDone,
    /// The end of a phase. Hard links to files that arrive later are reported after it.
    Done,
}

/// A request.
struct Pending {
    index: u32,
    flags: u16,
    /// The basis: a node, its size and the blocks whose checksums were sent.
    basis: Option<(Node, u64, Blocks)>,
    /// The bytes that were sent before the request.
    sent: u64,
    /// The file is requested again, because its content was wrong the first time.
    is_second: bool,
}

/// The files of a directory, as candidates for similar names.
struct Nearby {
    directory: Vec<u8>,
    files: Vec<(Vec<u8>, Found)>,
}

/// A file that is being written.
struct Writing {
    index: u32,
    path: Vec<u8>,
    node: Node,
    was: Was,
    /// The number of bytes before the connection broke, and whether any of them were sent as data.
    end: u64,
    has_literal: bool,
}

/// What was at the path of a file that is being written.
enum Was {
    Nothing,
    /// The file itself, which is written in place.
    Itself,
    /// Any file, which is untouched, because a temporary file is written.
    Aside,
    /// A file that was renamed to this backup path.
    At(Vec<u8>),
    /// A name of this node, which has further names.
    Name(Node),
}

/// The number of deleted files of each kind.
#[derive(Debug, Default, Clone, Copy)]
struct Deleted {
    files: u32,
    dirs: u32,
    links: u32,
    devices: u32,
    specials: u32,
}

/// The target of a receiver, and its name.
pub struct Into<'a> {
    /// A dataset or directory.
    pub target: Box<dyn Target + 'a>,
    /// The path in it that the client named.
    pub path: Vec<u8>,
    /// How paths are shown in messages.
    pub called: Called<'a>,
    /// The rules for files that are neither written nor deleted.
    pub hidden: &'a Filter,
    /// This side's settings for received files.
    pub terms: Terms<'a>,
}

/// Called for each file whose content was received, and for each deletion.
pub type OnEvent<'a> = dyn Fn(&Event<'_>) + 'a;

/// This side's settings for received files, which override those of the client.
#[derive(Default)]
pub struct Terms<'a> {
    /// The number of snapshots of transfers that are kept. Without it, the dataset's property decides.
    pub keep: Option<usize>,
    /// The owner of all files.
    pub uid: Option<u32>,
    /// The group of all files.
    pub gid: Option<u32>,
    /// The changes of permissions.
    pub chmod: Option<&'a Chmod>,
    /// Whether targets of symbolic links are munged.
    pub munged: bool,
    /// Whether targets of symbolic links that lead out of the destination are changed so that they do not. Not used
    /// with `munged`.
    pub sanitized: bool,
    /// The directory for temporary files, unless the client names one.
    pub temp_dir: Option<&'a [u8]>,
    /// Called for each operation on a file.
    pub on_event: Option<&'a OnEvent<'a>>,
}

/// The receiver of one connection.
pub struct Receiver<'a, R, W: Write> {
    reader: &'a mut MuxReader<R>,
    writer: &'a mut MuxWriter<W>,
    options: &'a Options,
    filter: &'a Filter,
    into: Into<'a>,
    agreed: Agreed,
    lists: ListReader,
    list: Files,
    /// The transfer's root in the target.
    root: Vec<u8>,
    /// The same path as the client named it, with symbolic links.
    named_root: Vec<u8>,
    /// The path of the only file, instead of the one in the list.
    single: Option<Vec<u8>>,
    /// The same path as the client named it.
    single_named: Option<Vec<u8>>,
    links: Links,
    answers: NdxReader,
    requests: NdxWriter,
    tokens: TokenReader,
    pending: VecDeque<Asked>,
    /// The number of requests since the last flush.
    unsent: usize,
    /// Directories that are skipped with everything in them.
    left_out: HashSet<Vec<u8>>,
    /// Directories that were created before they were processed.
    made_early: HashSet<Vec<u8>>,
    /// Files whose content was wrong. The second request uses no basis.
    redo: Vec<u32>,
    is_second: bool,
    /// Files that are deleted at the end.
    doomed: Vec<(Vec<u8>, bool)>,
    deleted: Deleted,
    spared: u64,
    told_deletes_off: bool,
    scopes: HashMap<Vec<u8>, Option<std::sync::Arc<crate::filter::Scope>>>,
    writing: Option<Writing>,
    /// Directories whose owner has all permissions until the end, with their final permissions.
    opened: Vec<(Vec<u8>, u32)>,
    /// Files that are moved to their paths at the end.
    delayed: Vec<aside::Delayed>,
    /// The directory for temporary files, if it is not that of each file.
    temp_dir: Option<Vec<u8>>,
    /// The paths without symbolic links, for paths that the client named.
    named: RefCell<HashMap<Vec<u8>, Vec<u8>>>,
    /// The directories of `--compare-dest`, `--copy-dest` or `--link-dest`.
    basis_dirs: Vec<(Tree, Vec<u8>)>,
    /// The files of the directory that was last searched for similar names.
    similar_in: Option<Nearby>,
    /// Files that the sender may remove.
    came: Vec<u32>,
    /// The sender's errors as bits, and whether anything failed here.
    io_error: u32,
    has_failed: bool,
    /// The digest of the last content.
    digest: Vec<u8>,
    summary: Summary,
    /// Set if this side is the client, which shows changes.
    client: Option<Arc<Told>>,
}

impl<'a, R: Read, W: Write> Receiver<'a, R, W> {
    /// The receiver of one connection. The client's filter rules were read before.
    pub fn new(
        (reader, writer): (&'a mut MuxReader<R>, &'a mut MuxWriter<W>),
        (options, filter): (&'a Options, &'a Filter),
        agreed: Agreed,
        (names, tokens): (Names, TokenReader),
        into: Into<'a>,
    ) -> Self {
        let digest_len = if options.checksum { agreed.list_sum.len() } else { 0 };
        let protocol = agreed.protocol;
        Self {
            reader,
            writer,
            options,
            filter,
            into,
            lists: ListReader::new(agreed.form.clone(), names, digest_len, options.relative),
            list: Files::new(agreed.incremental, Order::of(agreed.protocol)),
            agreed,
            root: Vec::new(),
            named_root: Vec::new(),
            single: None,
            single_named: None,
            links: Links::default(),
            answers: NdxReader::of(protocol),
            requests: NdxWriter::of(protocol),
            tokens,
            pending: VecDeque::new(),
            unsent: 0,
            left_out: HashSet::new(),
            made_early: HashSet::new(),
            redo: Vec::new(),
            is_second: false,
            doomed: Vec::new(),
            deleted: Deleted::default(),
            spared: 0,
            told_deletes_off: false,
            scopes: HashMap::new(),
            writing: None,
            opened: Vec::new(),
            delayed: Vec::new(),
            temp_dir: None,
            named: RefCell::default(),
            basis_dirs: Vec::new(),
            similar_in: None,
            came: Vec::new(),
            io_error: 0,
            has_failed: false,
            digest: Vec::new(),
            summary: Summary::default(),
            client: None,
        }
    }

    /// Makes this side the client, which shows changes.
    pub fn for_client(mut self, told: Arc<Told>) -> Self {
        self.client = Some(told);
        self
    }

    /// Runs the transfer. When the client disconnects early, completely received files are kept.
    ///
    /// # Errors
    /// When the connection fails, the sender violates the protocol, or there is no space left. Failures of single files
    /// are reported to the sender.
    pub fn run(mut self) -> Result<Summary> {
        match self.transfer() {
            Ok(()) => self.conclude(),
            Err(error) => {
                // A target that is not staged keeps its present state after any error.
                let is_cut_off = matches!(error, RsyncError::Connection(_) | RsyncError::PeerExit { .. });
                if is_cut_off || !self.into.target.is_staged() {
                    // The client is gone, so failures cannot be reported.
                    let _ = self.close_directories();
                    self.keep_what_came();
                }
                Err(error)
            }
        }
    }

    fn transfer(&mut self) -> Result<()> {
        self.map_owners()?;
        self.writer.flush()?;
        self.receive_list(None)?;
        if self.client.is_some() && self.list.counting().next().is_none() {
            // The server has sent the reason, and ends.
            return Err(RsyncError::refused(ExitCode::Partial, "there is nothing to receive"));
        }
        // The destination depends on whether a single directory has content.
        while !self.list.is_complete() && self.list.counting().nth(1).is_none() {
            self.take_answer()?;
        }
        self.place()?;
        self.find_temp_dir()?;
        self.find_basis_dirs()?;
        if self.options.delete == Delete::Before {
            self.delete_pass()?;
        }
        self.generate_all()?;
        self.end_phase()?;
        self.ask_again()?;
        self.end_phase()?;
        self.place_delayed()?;
        if self.agreed.protocol >= 29 {
            self.end_phase()?;
        }
        if self.client.is_some() {
            self.pass_statistics()?;
        }
        match self.options.delete {
            Delete::After => self.delete_pass()?,
            Delete::Delay => self.delete_doomed()?,
            Delete::No | Delete::Before | Delete::During => {}
        }
        if self.spared > 0 {
            self.io_error |= IO_ERROR_DELETE_LIMIT;
            let text = format!("Deletions stopped due to --max-delete limit ({} skipped)\n", self.spared);
            self.writer.message(Tag::Warning, text.as_bytes())?;
        }
        if self.agreed.protocol >= 31 {
            if self.options.delete != Delete::No && self.client.is_none() {
                let Deleted { files, dirs, links, devices, specials } = self.deleted;
                self.requests.write(Ndx::DelStats, self.writer)?;
                for count in [files, dirs, links, devices, specials] {
                    self.writer.write_varint(count)?;
                }
            }
            self.end_phase()?;
        }
        self.touch_up()
    }

    /// Reads the server's statistics and ignores them: bytes read and written, size of all files, and times of the
    /// lists.
    fn pass_statistics(&mut self) -> Result<()> {
        let count = if self.agreed.protocol < 29 { 3 } else { 5 };
        for _ in 0..count {
            match self.agreed.protocol {
                ..30 => drop(self.reader.read_longint()?),
                _ => drop(self.reader.read_varlong(3)?),
            }
        }
        Ok(())
    }

    /// Parses the client's rules that map owners.
    fn map_owners(&mut self) -> Result<()> {
        let (mut maps, names) = ([IdMap::default(), IdMap::default()], Names::of_this_machine());
        let texts = [("usermap", &self.options.user_map), ("groupmap", &self.options.group_map)];
        for (map, (option, text)) in maps.iter_mut().zip(texts) {
            let Some(text) = text else { continue };
            let number_of = |name: &str| if option == "usermap" { names.uid(name) } else { names.gid(name) };
            let (read, unknown) = IdMap::parse(option, text, number_of)?;
            *map = read;
            for name in unknown {
                let text = format!("Unknown --{option} name on receiver: {name}\n");
                self.writer.message(Tag::Error, text.as_bytes())?;
            }
        }
        let [users, groups] = maps;
        self.lists.map_owners(users, groups);
        if self.options.delete_missing_args {
            self.lists.take_missing();
        }
        Ok(())
    }

    /// Processes all files, list by list. Files of the last list that must be requested again are left for the next
    /// phase.
    fn generate_all(&mut self) -> Result<()> {
        let mut first = u32::from(self.agreed.incremental);
        loop {
            // The best name of a group of hard links can only be chosen among files that are known.
            while self.options.hard_links && !self.list.is_complete() && self.list.len() < LINKS_LOOKAHEAD {
                self.take_answer()?;
                self.finish_lists()?;
            }
            let Some(indices) = self.list.list_from(first) else {
                if self.list.is_complete() {
                    return self.finish_all();
                }
                self.take_answer()?;
                self.finish_lists()?;
                continue;
            };
            let end = indices.end;
            for index in indices {
                if self.list.counts(index) {
                    self.generate(index)?;
                    self.give_up_unsettled(index)?;
                    self.take_some()?;
                }
            }
            self.list.set_generated(first);
            self.finish_lists()?;
            first = end + 1;
            if !self.agreed.incremental {
                return Ok(());
            }
        }
    }

    /// Ends the lists that are done. The last list ends with the phase.
    fn finish_lists(&mut self) -> Result<()> {
        if self.agreed.incremental {
            self.ask_again()?;
        }
        while let Some(finished) = self.list.finish_first() {
            if let Some(directory) = finished.directory
                && !self.is_left_out(&directory.name)
            {
                let path = self.directory_below(&directory.name);
                self.touch_up_one(&path, &directory)?;
            }
            self.lists.release(finished.bytes);
            if !(self.list.is_empty() && self.list.is_complete()) {
                self.requests.write(Ndx::Done, self.writer)?;
                self.pending.push_back(Asked::ListDone);
            }
        }
        Ok(())
    }

    /// Handles answers until no list is left.
    fn finish_all(&mut self) -> Result<()> {
        while !self.list.is_empty() {
            if self.pending.is_empty() {
                return Err(RsyncError::protocol("files that never came"));
            }
            self.take_answer()?;
            self.finish_lists()?;
        }
        Ok(())
    }

    /// Requests files whose content was wrong again, without a basis.
    fn ask_again(&mut self) -> Result<()> {
        for index in std::mem::take(&mut self.redo) {
            self.is_second = true;
            self.request_content(index, None, None)?;
            self.is_second = false;
            self.list.release(index);
            self.take_some()?;
        }
        Ok(())
    }

    /// Ends the requests of this phase, and handles all answers.
    fn end_phase(&mut self) -> Result<()> {
        self.requests.write(Ndx::Done, self.writer)?;
        self.pending.push_back(Asked::Done);
        while self.take_answer()? {}
        Ok(())
    }

    fn take_some(&mut self) -> Result<()> {
        loop {
            let sent = match self.pending.front() {
                Some(Asked::Request(first)) => self.writer.total() - first.sent,
                Some(Asked::ListDone | Asked::Done) | None => 0,
            };
            if self.pending.len() < PENDING_MAX && sent < PENDING_BYTES_MAX || self.pending.is_empty() {
                return Ok(());
            }
            if !self.take_answer()? {
                return Err(RsyncError::protocol("an end before all was answered"));
            }
        }
    }

    /// Reads the first list, or that of a directory.
    fn receive_list(&mut self, directory: Option<Received>) -> Result<()> {
        let first = self.list.next_index();
        let mut list = self.lists.read(first, self.reader)?;
        if !self.options.ignore_errors {
            self.io_error |= list.io_error;
        }
        self.impose_terms(&mut list);
        let sized = |one: &&Received| one.metadata.is_file() || one.metadata.is_symlink();
        let sizes = list.entries.iter().filter(sized).map(|one| one.metadata.size);
        self.summary.size = sizes.fold(self.summary.size, u64::saturating_add);
        let bytes = self.list.add(list, directory)?;
        self.lists.keep(bytes)?;
        if self.options.prune_empty_dirs {
            self.prune();
        }
        let new = self.list.counting().rev().take_while(|(index, _)| *index >= first);
        let linked: Vec<_> = new.filter_map(|(index, one)| Some((index, one.group?))).collect();
        for (index, group) in linked.into_iter().rev() {
            if self.links.add(index, group) {
                self.lists.keep(GROUP_BYTES)?;
            }
        }
        Ok(())
    }

    /// Applies this side's settings for owners and link targets to a list.
    fn impose_terms(&self, list: &mut List) {
        let Terms { uid, gid, munged, sanitized, .. } = self.into.terms;
        let munged = munged || self.options.munge_links;
        for one in &mut list.entries {
            one.metadata.uid = uid.unwrap_or(one.metadata.uid);
            one.metadata.gid = gid.unwrap_or(one.metadata.gid);
            if let Some(target) = one.target.as_mut().filter(|_| munged) {
                target.splice(..0, MUNGED.iter().copied());
            } else if let Some(target) = one.target.as_mut().filter(|_| sanitized) {
                let depth = one.name.iter().filter(|byte| **byte == b'/').count();
                *target = sanitized_target(target, depth);
            }
        }
    }

    /// Whether files get the owner of the list.
    fn keeps_owner(&self) -> bool {
        self.options.owner && self.into.target.is_privileged() || self.into.terms.uid.is_some()
    }

    /// Whether a file gets the group of the list.
    fn keeps_group(&self, gid: u32) -> bool {
        self.options.group && self.into.target.can_give_to(gid) || self.into.terms.gid.is_some()
    }

    /// Excludes directories that have nothing but directories in them (`--prune-empty-dirs`).
    fn prune(&mut self) {
        let mut needed: HashSet<Vec<u8>> = HashSet::new();
        self.list.retain_counting(|one| {
            if one.metadata.is_dir() {
                return one.name == b"." || needed.contains(&one.name);
            }
            let mut ends = one.name.iter().enumerate().rev().filter(|(_, byte)| **byte == b'/');
            // If a directory is in the set, so are its parents.
            while let Some((end, _)) = ends.next()
                && needed.insert(one.name[..end].to_vec())
            {}
            true
        });
    }

    /// The path of a file in the target.
    fn path_of(&self, index: u32) -> Vec<u8> {
        match &self.single {
            Some(path) => path.clone(),
            None => match &self.list[index as usize] {
                one if one.metadata.is_dir() => self.directory_below(&one.name),
                one => self.path_below(&one.name),
            },
        }
    }

    fn path_below(&self, name: &[u8]) -> Vec<u8> {
        let path = self.path_with_links(name);
        if self.options.keep_dirlinks { self.into.target.followed_above(&path) } else { path }
    }

    /// The path of what is a directory at the sender.
    fn directory_below(&self, name: &[u8]) -> Vec<u8> {
        let path = self.path_with_links(name);
        if self.options.keep_dirlinks { self.into.target.followed(&path) } else { path }
    }

    fn path_with_links(&self, name: &[u8]) -> Vec<u8> {
        below(&self.root, name)
    }

    /// Whether the module hides a file of the list. In a directory its rules apply to the names that clients use, as
    /// with rsync: a symbolic link leads to a hidden file. In a dataset they apply to the real path.
    fn is_hidden(&self, index: u32, path: &[u8], is_dir: bool) -> bool {
        match (&self.single_named, self.into.target.is_staged()) {
            (_, true) => self.into.hidden.hides(path, is_dir),
            (Some(named), _) => {
                let subject = Subject { path: base_name(named), full: named, is_dir };
                self.into.hidden.hides_it(subject)
            }
            (None, _) => self.hides_named(&self.list[index as usize].name, is_dir),
        }
    }

    /// Whether the module hides a name below the destination.
    fn hides_named(&self, name: &[u8], is_dir: bool) -> bool {
        let full = below(&self.named_root, name);
        let path = if name == b"." { &full } else { name };
        !path.is_empty() && self.into.hidden.hides_it(Subject { path, full: &full, is_dir })
    }

    /// Whether the module hides a path that an option names.
    fn hides_path(&self, named: &[u8], is_dir: bool) -> bool {
        match self.into.target.is_staged() {
            true => self.into.hidden.hides(named, is_dir),
            false => {
                let subject = Subject { path: named, full: named, is_dir };
                !named.is_empty() && self.into.hidden.hides_it(subject)
            }
        }
    }

    fn shown(&self, path: &[u8]) -> String {
        let path = String::from_utf8_lossy(path);
        match self.into.called {
            Called::Module(name) => format!("\"/{path}\" (in {name})"),
            Called::After(before) => format!("\"{before}{path}\""),
        }
    }

    /// Reports a failure with a file. The client continues, and ends with exit code 23.
    fn failed(&mut self, what: &str, path: &[u8], error: &io::Error) -> Result<()> {
        self.check_room(path, error)?;
        let text = format!("rsync: [receiver] {what} {} failed: {}\n", self.shown(path), error_text(error));
        self.has_failed = true;
        Ok(self.writer.message(Tag::ErrorXfer, text.as_bytes())?)
    }

    /// Fails if the target has no space left, because nothing can continue then.
    fn check_room(&self, path: &[u8], error: &io::Error) -> Result<()> {
        use rustix::io::Errno;
        // In a directory other files may still succeed, as with rsync.
        if !self.into.target.is_staged() {
            return Ok(());
        }
        let ends = [Errno::NOSPC, Errno::DQUOT, Errno::ROFS, Errno::IO];
        if !ends.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error())) {
            return Ok(());
        }
        let text = format!("rsync: [receiver] write failed on {}: {}", self.shown(path), error_text(error));
        Err(RsyncError::refused(ExitCode::FileIo, text))
    }

    /// Sets the times of directories, which changed with their content.
    fn touch_up(&mut self) -> Result<()> {
        let directories = self.list.counting().rev().filter(|(_, one)| one.metadata.is_dir());
        for index in directories.map(|(index, _)| index).collect::<Vec<_>>() {
            let path = self.path_of(index);
            self.touch_up_one(&path, &self.list[index as usize].clone())?;
        }
        self.close_directories()
    }

    /// Sets the final permissions of directories that were opened for writing, children before parents.
    fn close_directories(&mut self) -> Result<()> {
        let mut opened = std::mem::take(&mut self.opened);
        opened.sort_unstable();
        for (path, mode) in opened.into_iter().rev() {
            let Ok(Some(found)) = self.into.target.stat(&path) else { continue };
            if !found.is_dir() || found.permissions() != mode | OWNER {
                continue;
            }
            let set = SetAttributes { permissions: Some(mode), ..SetAttributes::default() };
            if let Err(error) = self.into.target.set_attributes(&found.node, &set) {
                self.failed("set permissions of", &path, &error)?;
            }
        }
        Ok(())
    }

    /// Whether directories get the sender's times.
    fn keeps_dir_times(&self) -> bool {
        let Options { times, omit_dir_times, dry_run, .. } = *self.options;
        times && !omit_dir_times && !dry_run && self.single.is_none()
    }

    /// Whether the owner gets all permissions of directories during the transfer. Users other than root need them.
    fn opens_directories(&self) -> bool {
        !self.into.target.is_staged() && !self.into.target.is_privileged()
    }

    fn touch_up_one(&mut self, path: &[u8], directory: &Received) -> Result<()> {
        let mode = directory.metadata.mode & 0o7777;
        if self.options.dry_run || self.single.is_some() {
            return Ok(());
        }
        if self.opens_directories() && mode & OWNER != OWNER {
            self.lists.keep(path.len() as u64 + OPENED_BYTES)?;
            self.opened.push((path.to_vec(), mode));
        }
        if !self.keeps_dir_times() {
            return Ok(());
        }
        let wanted = directory.metadata.mtime;
        let Ok(Some(found)) = self.into.target.stat(path) else { return Ok(()) };
        let is_other = match self.agreed.protocol {
            ..31 => found.metadata.mtime.seconds != wanted.seconds,
            _ => found.metadata.mtime != wanted,
        };
        if found.is_dir() && is_other {
            let mtime = Some(SetTime::To(attributes::timestamp(wanted)));
            let set = SetAttributes { mtime, ..SetAttributes::default() };
            if let Err(error) = self.into.target.set_attributes(&found.node, &set) {
                self.failed("set times on", path, &error)?;
            }
        }
        Ok(self.writer.keep_alive()?)
    }

    /// Makes the received files visible, and ends the connection with the client.
    fn conclude(self) -> Result<Summary> {
        let Self {
            reader, writer, into, mut requests, mut summary, io_error, has_failed, came, client, ..
        } = self;
        if client.is_some() {
            // The server need not wait. It changes nothing if it has disconnected.
            let _ = requests.write(Ndx::Done, writer).and_then(|()| writer.flush());
        }
        if let Err(error) = into.target.finish(Moment::Whole, into.terms.keep) {
            let text = format!("rsync: [receiver] nothing was received: {}", chain(&error));
            return Err(RsyncError::refused(ExitCode::FileIo, text));
        }
        if client.is_none() {
            // Not before the files are durable.
            for index in came {
                writer.message_number(Tag::Success, index)?;
            }
            requests.write(Ndx::Done, writer)?;
            writer.flush()?;
        }
        summary.io_error = io_error | if has_failed { IO_ERROR_GENERAL } else { 0 };
        (summary.read, summary.written) = (reader.total(), writer.total());
        Ok(summary)
    }

    /// Removes what was written of a file, and restores the previous one.
    fn undo(&self, writing: &Writing) -> io::Result<()> {
        let target = &*self.into.target;
        match &writing.was {
            Was::Itself => target.restore(&writing.node),
            Was::Nothing => target.remove(&writing.path, false),
            Was::Aside => target.remove(writing.node.way().unwrap_or_default(), false),
            Was::At(backup) => target.rename(backup, &writing.path),
            Was::Name(node) => {
                target.remove(&writing.path, false)?;
                target.link(node, &writing.path)
            }
        }
    }

    /// Records that the sender may remove a file, once it is durable here.
    fn came(&mut self, index: u32) {
        if self.options.remove_source_files && !self.options.dry_run {
            self.came.push(index);
        }
    }

    /// Keeps the completely received files after the client disconnected, so that they need not be sent again.
    fn keep_what_came(mut self) {
        if let Some(writing) = self.writing.take() {
            let kept = self.keep_partial(&writing);
            if let Err(error) = kept {
                tracing::warn!(%error, "what was received is given up");
                return;
            }
        }
        if let Err(error) = self.into.target.finish(Moment::Partial, None) {
            tracing::warn!(%error, "what was received is given up");
        }
    }
}

/// The target of a link without what leads out of the destination: a leading slash, and ".." above the destination.
/// `depth` is the number of directories from the destination to the link. As in rsync, slashes at the end stay.
fn sanitized_target(target: &[u8], depth: usize) -> Vec<u8> {
    let mut depth = if target.starts_with(b"/") { 0 } else { depth };
    let mut names: Vec<&[u8]> = Vec::new();
    // The number of ".." at the beginning.
    let mut up = 0;
    for name in target.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." if names.len() > up => drop(names.pop()),
            b".." if depth > 0 => {
                (depth, up) = (depth - 1, up + 1);
                names.push(name);
            }
            b".." => {}
            _ => names.push(name),
        }
    }
    let mut path = names.join(&b'/');
    if path.is_empty() {
        path.push(b'.');
    } else if target.ends_with(b"/") {
        path.push(b'/');
    }
    path
}

/// The path of a name in the list below a root.
fn below(root: &[u8], name: &[u8]) -> Vec<u8> {
    match (root, name) {
        (root, b".") => root.to_vec(),
        (b"", name) => name.to_vec(),
        (root, name) => [root, b"/", name].concat(),
    }
}

/// The text of an error with its sources.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text += &format!(": {error}");
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_stay_in_the_destination() {
        for (target, depth, expected) in [
            ("a/b", 0, "a/b"),
            ("/etc/passwd", 2, "etc/passwd"),
            ("../x", 0, "x"),
            ("../x", 1, "../x"),
            ("../../x", 1, "../x"),
            ("a/../../x", 1, "../x"),
            ("a/../../../x", 1, "../x"),
            ("./a//b/./c", 0, "a/b/c"),
            ("..", 0, "."),
            ("/", 3, "."),
            ("a/..", 0, "."),
            ("/../../x", 4, "x"),
        ] {
            let made = sanitized_target(target.as_bytes(), depth);
            assert_eq!(made, expected.as_bytes(), "{target} at {depth}");
        }
    }
}
