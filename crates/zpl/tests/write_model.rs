//! Random operations on a filesystem give the same results as a model of POSIX. No object is lost.

#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "common/fsck.rs"]
mod fsck;

use proptest::prelude::*;
use snowmelt_zpl::memory::MemoryObjset;
use snowmelt_zpl::{
    Caller, FileKind, Filesystem, FilesystemMut, NewFilesystem, NewKind, NewNode, ObjectsMut, RenameMode,
    Room, SetAttributes, SetTime, SetXattr, Timestamp, WriteOptions, XattrStore, create_filesystem,
};
use std::collections::BTreeMap;
use std::sync::Arc;

const EPERM: i32 = 1;
const ENOENT: i32 = 2;
const EEXIST: i32 = 17;
const ENOTDIR: i32 = 20;
const EISDIR: i32 = 21;
const EINVAL: i32 = 22;
const ENOTEMPTY: i32 = 39;
const ENODATA: i32 = 61;

type Fs = FilesystemMut<Arc<MemoryObjset>>;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Body {
    File(Vec<u8>),
    Directory { entries: BTreeMap<Vec<u8>, usize>, parent: usize },
    Symlink(Vec<u8>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Inode {
    object: u64,
    body: Body,
    links: u64,
    permissions: u32,
    uid: u32,
    mtime: i64,
    ctime: i64,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    open: bool,
}

/// The model's files, by inode index. Removed files stay with no links.
struct Model {
    inodes: Vec<Inode>,
}

#[derive(Debug, Clone)]
enum Op {
    Create(usize, u8, u8),
    Link(usize, usize, u8),
    Unlink(usize, u8, bool),
    Rmdir(usize, u8),
    Rename(usize, u8, usize, u8, RenameMode),
    Write(usize, u32, u16, u8),
    Truncate(usize, u32),
    Punch(usize, u32, u32),
    Chmod(usize, u32),
    Chown(usize, u32),
    SetXattr(usize, u8, u32),
    RemoveXattr(usize, u8),
    Release(usize),
    Remount,
}

fn name(n: u8) -> Vec<u8> {
    // Only a few names, so that operations meet the same ones. Some are too long for a micro ZAP.
    match n % 12 {
        n @ 0..9 => format!("n{n}").into_bytes(),
        n => vec![b'a' + n; 40 + 70 * usize::from(n - 8)],
    }
}

fn op() -> impl Strategy<Value = Op> {
    let i = || 0usize..40;
    let mode =
        prop_oneof![Just(RenameMode::Replace), Just(RenameMode::NoReplace), Just(RenameMode::Exchange)];
    prop_oneof![
        6 => (i(), any::<u8>(), any::<u8>()).prop_map(|(d, n, k)| Op::Create(d, n, k)),
        2 => (i(), i(), any::<u8>()).prop_map(|(o, d, n)| Op::Link(o, d, n)),
        2 => (i(), any::<u8>(), any::<bool>()).prop_map(|(d, n, open)| Op::Unlink(d, n, open)),
        1 => (i(), any::<u8>()).prop_map(|(d, n)| Op::Rmdir(d, n)),
        4 => (i(), any::<u8>(), i(), any::<u8>(), mode)
            .prop_map(|(d, n, e, m, mode)| Op::Rename(d, n, e, m, mode)),
        4 => (i(), 0u32..40_000, 0u16..9000, any::<u8>()).prop_map(|(o, at, len, b)| Op::Write(o, at, len, b)),
        2 => (i(), 0u32..50_000).prop_map(|(o, size)| Op::Truncate(o, size)),
        1 => (i(), 0u32..40_000, 0u32..20_000).prop_map(|(o, at, len)| Op::Punch(o, at, len)),
        1 => (i(), 0u32..0o10000).prop_map(|(o, mode)| Op::Chmod(o, mode)),
        1 => (i(), 0u32..3).prop_map(|(o, uid)| Op::Chown(o, uid)),
        3 => (i(), 0u8..6, prop_oneof![0u32..300, Just(32768u32), Just(40_000u32), 30_000u32..32_768])
            .prop_map(|(o, n, len)| Op::SetXattr(o, n, len)),
        1 => (i(), 0u8..6).prop_map(|(o, n)| Op::RemoveXattr(o, n)),
        1 => i().prop_map(Op::Release),
        1 => Just(Op::Remount),
    ]
}

impl Model {
    fn pick(&self, n: usize) -> usize {
        n % self.inodes.len()
    }

    fn entries(&mut self, directory: usize) -> Result<&mut BTreeMap<Vec<u8>, usize>, i32> {
        let inode = &mut self.inodes[directory];
        let gone = inode.links == 0;
        match &mut inode.body {
            _ if gone && !inode.open => Err(ENOENT),
            Body::Directory { .. } if gone => Err(ENOENT),
            Body::Directory { entries, .. } => Ok(entries),
            _ => Err(ENOTDIR),
        }
    }

    fn is_directory(&self, inode: usize) -> bool {
        matches!(self.inodes[inode].body, Body::Directory { .. })
    }

    fn is_empty(&self, inode: usize) -> bool {
        matches!(&self.inodes[inode].body, Body::Directory { entries, .. } if entries.is_empty())
    }

    fn touch(&mut self, directory: usize, now: i64) {
        self.inodes[directory].mtime = now;
        self.inodes[directory].ctime = now;
    }

    fn is_below(&self, mut directory: usize, above: usize) -> bool {
        loop {
            if directory == above {
                return true;
            }
            match self.inodes[directory].body {
                Body::Directory { parent, .. } if parent != directory => directory = parent,
                _ => return false,
            }
        }
    }

    fn drop_link(&mut self, inode: usize, now: i64, open: bool) {
        let is_directory = self.is_directory(inode);
        let inode = &mut self.inodes[inode];
        inode.links = if is_directory { 0 } else { inode.links - 1 };
        inode.ctime = now;
        inode.open |= open && inode.links == 0;
    }

    fn unlink(&mut self, directory: usize, name: &[u8], now: i64, open: bool) -> Result<(), i32> {
        let target = *self.entries(directory)?.get(name).ok_or(ENOENT)?;
        if self.is_directory(target) {
            return Err(EISDIR);
        }
        self.entries(directory)?.remove(name);
        self.touch(directory, now);
        self.drop_link(target, now, open);
        Ok(())
    }

    fn rmdir(&mut self, directory: usize, name: &[u8], now: i64) -> Result<(), i32> {
        let target = *self.entries(directory)?.get(name).ok_or(ENOENT)?;
        if !self.is_directory(target) {
            return Err(ENOTDIR);
        }
        if !self.is_empty(target) {
            return Err(ENOTEMPTY);
        }
        self.entries(directory)?.remove(name);
        self.inodes[directory].links -= 1;
        self.touch(directory, now);
        self.drop_link(target, now, false);
        Ok(())
    }

    fn rename(
        &mut self,
        from: (usize, &[u8]),
        to: (usize, &[u8]),
        mode: RenameMode,
        now: i64,
    ) -> Result<(), i32> {
        self.entries(from.0)?;
        self.entries(to.0)?;
        let source = *self.entries(from.0)?.get(from.1).ok_or(ENOENT)?;
        let target = self.entries(to.0)?.get(to.1).copied();
        if mode == RenameMode::NoReplace && target.is_some() {
            return Err(EEXIST);
        }
        if target == Some(source) {
            return Ok(());
        }
        if mode == RenameMode::Exchange && target.is_none() {
            return Err(ENOENT);
        }
        if self.is_directory(source) && self.is_below(to.0, source) {
            return Err(EINVAL);
        }
        let back = mode == RenameMode::Exchange;
        if let Some(target) = target {
            match (self.is_directory(source), self.is_directory(target)) {
                (_, true) if back && self.is_below(from.0, target) => return Err(EINVAL),
                _ if back => {}
                (true, false) => return Err(ENOTDIR),
                (false, true) => return Err(EISDIR),
                (true, true) if !self.is_empty(target) => return Err(ENOTEMPTY),
                _ => {}
            }
        }
        let is_directory = |model: &Self, inode: Option<usize>| {
            u64::from(inode.is_some_and(|inode| model.is_directory(inode)))
        };
        let (s, t) = (is_directory(self, Some(source)), is_directory(self, target));
        self.entries(from.0)?.remove(from.1);
        self.inodes[from.0].links -= s;
        self.entries(to.0)?.insert(to.1.to_vec(), source);
        self.inodes[to.0].links = self.inodes[to.0].links + s - t;
        self.set_parent(source, to.0);
        self.inodes[source].ctime = now;
        match target {
            Some(target) if back => {
                self.entries(from.0)?.insert(from.1.to_vec(), target);
                self.inodes[from.0].links += t;
                self.set_parent(target, from.0);
                self.inodes[target].ctime = now;
            }
            Some(target) => self.drop_link(target, now, false),
            None => {}
        }
        self.touch(from.0, now);
        self.touch(to.0, now);
        Ok(())
    }

    fn set_parent(&mut self, inode: usize, new: usize) {
        if let Body::Directory { parent, .. } = &mut self.inodes[inode].body {
            *parent = new;
        }
    }
}

struct Both {
    model: Model,
    objects: Arc<MemoryObjset>,
    fs: Fs,
    options: WriteOptions,
    now: i64,
}

fn outcome<T>(result: Result<T, snowmelt_zpl::ZplError>) -> Result<T, i32> {
    result.map_err(|error| error.errno())
}

impl Both {
    fn new(options: WriteOptions) -> Self {
        let objects = Arc::new(MemoryObjset::default());
        let new = NewFilesystem { dnode_slots: options.dnode_slots, ..NewFilesystem::default() };
        create_filesystem(&*objects, &objects.begin(Room::Free).unwrap(), &new).unwrap();
        let fs = FilesystemMut::open(objects.clone(), options, 3).unwrap();
        let root = Inode {
            object: fs.root(),
            body: Body::Directory { entries: BTreeMap::new(), parent: 0 },
            links: 2,
            permissions: 0o755,
            uid: 0,
            mtime: 0,
            ctime: 0,
            xattrs: BTreeMap::new(),
            open: false,
        };
        Self { model: Model { inodes: vec![root] }, objects, fs, options, now: 100 }
    }

    fn caller(&self) -> Caller {
        Caller { uid: 7, gid: 8, umask: 0, now: Timestamp { seconds: self.now, nanoseconds: 0 } }
    }

    fn object(&self, inode: usize) -> u64 {
        self.model.inodes[inode].object
    }

    fn step(&mut self, op: &Op) {
        self.now += 1;
        let (now, caller) = (self.now, self.caller());
        match op {
            Op::Create(directory, n, kind) => self.create(self.model.pick(*directory), &name(*n), *kind),
            Op::Link(object, directory, n) => {
                let (inode, directory) = (self.model.pick(*object), self.model.pick(*directory));
                let got =
                    outcome(self.fs.link(self.object(inode), self.object(directory), &name(*n), &caller));
                let expected = self.expect_link(inode, directory, &name(*n));
                assert_eq!(got.map(drop), expected, "{op:?}");
            }
            Op::Unlink(directory, n, open) => {
                let directory = self.model.pick(*directory);
                let got =
                    outcome(self.fs.unlink(self.object(directory), &name(*n), &caller, |_| *open)).map(drop);
                assert_eq!(got, self.model.unlink(directory, &name(*n), now, *open), "{op:?}");
            }
            Op::Rmdir(directory, n) => {
                let directory = self.model.pick(*directory);
                let got = outcome(self.fs.rmdir(self.object(directory), &name(*n), &caller, |_| false));
                assert_eq!(got.map(drop), self.model.rmdir(directory, &name(*n), now), "{op:?}");
            }
            Op::Rename(from, n, to, m, mode) => {
                let (from, to) = (self.model.pick(*from), self.model.pick(*to));
                let (n, m) = (name(*n), name(*m));
                let got = outcome(self.fs.rename(
                    (self.object(from), &n),
                    (self.object(to), &m),
                    *mode,
                    &caller,
                    |_| false,
                ));
                assert_eq!(got.map(drop), self.model.rename((from, &n), (to, &m), *mode, now), "{op:?}");
            }
            Op::Write(..) | Op::Truncate(..) | Op::Punch(..) => self.data(op),
            Op::Chmod(..) | Op::Chown(..) => self.attributes(op),
            Op::SetXattr(..) | Op::RemoveXattr(..) => self.xattr(op),
            Op::Release(inode) => {
                let inode = self.model.pick(*inode);
                let (object, model) = (self.object(inode), &mut self.model.inodes[inode]);
                if model.links > 0 || model.open {
                    let gone = self.fs.release(object).unwrap();
                    assert_eq!(gone, model.links == 0 && model.open);
                    model.open = false;
                }
            }
            Op::Remount => {
                self.fs = FilesystemMut::open(self.objects.clone(), self.options, self.now as u64).unwrap();
                let mut count = 0;
                for inode in self.model.inodes.iter_mut().filter(|inode| inode.open) {
                    inode.open = false;
                    count += 1;
                }
                assert_eq!(self.fs.drain_unlinked().unwrap(), count);
            }
        }
    }

    fn create(&mut self, directory: usize, name: &[u8], kind: u8) {
        let (now, caller) = (self.now, self.caller());
        let target = vec![b'/'; 1 + usize::from(kind) * 16];
        let (kind, body) = match kind % 4 {
            0 | 1 => (NewKind::File, Body::File(Vec::new())),
            2 => (NewKind::Directory, Body::Directory { entries: BTreeMap::new(), parent: directory }),
            _ => (NewKind::Symlink(&target), Body::Symlink(target.clone())),
        };
        let new = NewNode { kind, permissions: 0o640 };
        let got = outcome(self.fs.create(self.object(directory), name, new, &caller));
        let number = self.model.inodes.len();
        let expected = match self.model.entries(directory) {
            Err(error) => Err(error),
            Ok(entries) if entries.contains_key(name) => Err(EEXIST),
            Ok(entries) => {
                entries.insert(name.to_vec(), number);
                Ok(())
            }
        };
        assert_eq!(got.as_ref().map(|_| ()).map_err(|error| *error), expected);
        let Ok(made) = got else { return };
        let is_directory = kind == NewKind::Directory;
        self.model.inodes[directory].links += u64::from(is_directory);
        self.model.touch(directory, now);
        let set_gid = self.model.inodes[directory].permissions & 0o2000;
        self.model.inodes.push(Inode {
            object: made.object,
            body,
            links: if is_directory { 2 } else { 1 },
            permissions: if is_directory { 0o640 | set_gid } else { 0o640 },
            uid: 7,
            mtime: now,
            ctime: now,
            xattrs: BTreeMap::new(),
            open: false,
        });
    }

    fn expect_link(&mut self, inode: usize, directory: usize, name: &[u8]) -> Result<(), i32> {
        let gone = self.model.inodes[inode].links == 0;
        let is_directory = self.model.is_directory(inode);
        if gone && !self.model.inodes[inode].open {
            // If both are missing, either error may be returned first.
            return self.model.entries(directory).map(drop).and(Err(ENOENT));
        }
        let entries = self.model.entries(directory)?;
        if is_directory {
            return Err(EPERM);
        }
        if entries.contains_key(name) {
            return Err(EEXIST);
        }
        entries.insert(name.to_vec(), inode);
        let now = self.now;
        self.model.touch(directory, now);
        let inode = &mut self.model.inodes[inode];
        inode.links += 1;
        inode.ctime = now;
        inode.open = false;
        Ok(())
    }

    /// Whether an operation on the inode itself succeeds in finding it.
    fn alive(&self, inode: usize) -> bool {
        self.model.inodes[inode].links > 0 || self.model.inodes[inode].open
    }

    fn data(&mut self, op: &Op) {
        let (now, caller) = (self.now, self.caller());
        let (Op::Write(inode, ..) | Op::Truncate(inode, _) | Op::Punch(inode, ..)) = op else { return };
        let inode = self.model.pick(*inode);
        let object = self.object(inode);
        let got = match op {
            Op::Write(_, at, len, byte) => {
                let data = vec![*byte; usize::from(*len)];
                outcome(self.fs.write(object, u64::from(*at), &data, &caller)).map(drop)
            }
            Op::Truncate(_, size) => outcome(self.fs.truncate(object, u64::from(*size), &caller)),
            Op::Punch(_, at, len) => {
                outcome(self.fs.punch_hole(object, u64::from(*at), u64::from(*len), &caller))
            }
            _ => return,
        };
        if !self.alive(inode) {
            assert_eq!(got, Err(ENOENT));
            return;
        }
        let inode = &mut self.model.inodes[inode];
        let content = match &mut inode.body {
            Body::File(content) => content,
            Body::Directory { .. } => return assert_eq!(got, Err(EISDIR)),
            Body::Symlink(_) => return assert_eq!(got, Err(EINVAL)),
        };
        assert_eq!(got, Ok(()), "{op:?}");
        let mut changed = true;
        match op {
            Op::Write(_, at, len, byte) => {
                let (at, len) = (*at as usize, usize::from(*len));
                changed = len > 0;
                if len > 0 {
                    content.resize(content.len().max(at + len), 0);
                    content[at..at + len].fill(*byte);
                }
            }
            Op::Truncate(_, size) => content.resize(*size as usize, 0),
            Op::Punch(_, at, len) => {
                let end = content.len().min((*at + *len) as usize);
                changed = (*at as usize) < end;
                if changed {
                    content[*at as usize..end].fill(0);
                }
            }
            _ => {}
        }
        if changed {
            (inode.mtime, inode.ctime) = (now, now);
        }
    }

    fn attributes(&mut self, op: &Op) {
        let (inode, set) = match op {
            Op::Chmod(inode, mode) => {
                (*inode, SetAttributes { permissions: Some(*mode), ..Default::default() })
            }
            Op::Chown(inode, uid) => {
                (*inode, SetAttributes { uid: Some(*uid), mtime: Some(SetTime::Now), ..Default::default() })
            }
            _ => return,
        };
        let inode = self.model.pick(inode);
        let got = outcome(self.fs.set_attributes(self.object(inode), &set, &self.caller())).map(drop);
        assert_eq!(got, if self.alive(inode) { Ok(()) } else { Err(ENOENT) });
        let inode = &mut self.model.inodes[inode];
        inode.ctime = self.now;
        inode.permissions = set.permissions.unwrap_or(inode.permissions);
        if let Some(uid) = set.uid {
            (inode.uid, inode.mtime) = (uid, self.now);
        }
    }

    fn xattr(&mut self, op: &Op) {
        let (Op::SetXattr(inode, n, _) | Op::RemoveXattr(inode, n)) = op else { return };
        let inode = self.model.pick(*inode);
        let name = format!("{}.{n}", if n % 2 == 0 { "user" } else { "trusted" }).into_bytes();
        let (object, caller) = (self.object(inode), self.caller());
        let value = match op {
            Op::SetXattr(_, n, len) => Some(vec![*n; *len as usize]),
            _ => None,
        };
        let got = match &value {
            Some(value) => outcome(self.fs.set_xattr(object, &name, value, SetXattr::Any, &caller)),
            None => outcome(self.fs.remove_xattr(object, &name, &caller)),
        };
        if !self.alive(inode) {
            return assert_eq!(got, Err(ENOENT));
        }
        let is_link = matches!(self.model.inodes[inode].body, Body::Symlink(_));
        let inode = &mut self.model.inodes[inode];
        let expected = match &value {
            _ if is_link && name.starts_with(b"user.") => Err(EPERM),
            None if !inode.xattrs.contains_key(&name) => Err(ENODATA),
            _ => Ok(()),
        };
        assert_eq!(got, expected, "{op:?}");
        if got.is_ok() {
            inode.ctime = self.now;
            match value {
                Some(value) => inode.xattrs.insert(name, value),
                None => inode.xattrs.remove(&name),
            };
        }
    }

    /// Compares everything through the code for reading only.
    fn compare(&self) {
        let objects = self.objects.snapshot();
        let tree = fsck::check(&objects);
        let fs = Filesystem::open(&objects).unwrap();
        let mut names = 0;
        for inode in &self.model.inodes {
            if inode.links == 0 {
                assert_eq!(tree.unlinked.contains(&inode.object), inode.open);
                if !inode.open {
                    continue;
                }
            }
            let found = fs.attributes(inode.object).unwrap();
            assert_eq!(
                (found.links, found.permissions(), found.uid),
                (inode.links, inode.permissions, inode.uid)
            );
            let is_gone = inode.links == 0;
            if !is_gone {
                assert_eq!((found.mtime.seconds, found.ctime.seconds), (inode.mtime, inode.ctime));
            }
            assert_eq!(fs.xattrs(inode.object).unwrap(), inode.xattrs);
            match &inode.body {
                Body::File(content) => {
                    assert_eq!(found.size, content.len() as u64);
                    let mut buf = vec![1; content.len()];
                    fs.read(inode.object, found.size, 0, &mut buf).unwrap();
                    assert!(buf == *content, "content of {}", inode.object);
                }
                Body::Symlink(target) => assert_eq!(&fs.readlink(inode.object).unwrap(), target),
                Body::Directory { entries, .. } => {
                    assert_eq!(found.kind(), FileKind::Directory);
                    for (name, child) in entries {
                        let object = self.model.inodes[*child].object;
                        assert_eq!(tree.names.get(&(inode.object, name.clone())), Some(&object));
                        names += 1;
                    }
                }
            }
        }
        assert_eq!(tree.names.len(), names);
    }
}

fn options() -> impl Strategy<Value = WriteOptions> {
    let xattr = prop_oneof![3 => Just(XattrStore::Sa), 1 => Just(XattrStore::Dir)];
    (
        xattr,
        prop_oneof![Just(1u8), Just(2), Just(3)],
        prop_oneof![Just(4096u32), Just(131_072)],
        any::<bool>(),
    )
        .prop_map(|(xattr, dnode_slots, record_size, project_ids)| WriteOptions {
            xattr,
            dnode_slots,
            record_size,
            project_ids,
            ..WriteOptions::default()
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn agrees_with_a_model(options in options(), ops in proptest::collection::vec(op(), 1..120)) {
        let mut both = Both::new(options);
        for (step, op) in ops.iter().enumerate() {
            both.step(op);
            if step % 8 == 0 {
                both.compare();
            }
        }
        both.compare();
    }
}
