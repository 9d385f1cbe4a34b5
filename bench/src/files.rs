//! Streams of filesystems: the system objects of a real one (master node, SA registry and layouts, …), a new root
//! directory, and directories of 1,000 files each.
//!
//! A directory is a microzap (OpenZFS `mzap_phys_t`). Bonus buffers are copies of those of a directory and a file of
//! the template, with new size, parent, links and mode. In the layout that `zfs_mknode` gives new files, these are at
//! fixed places after the SA header.

use std::fs::File;

use anyhow::{Context as _, Result, bail, ensure};
use snowmelt_stream::{Features, Free, Object, Reader, Record};

use crate::FilesArgs;
use crate::data::{Source, mix};
use crate::out::{FILESYSTEM, Out};

/// `DMU_OT_PLAIN_FILE_CONTENTS`.
const PLAIN_FILE: u32 = 19;
/// `DMU_OT_DIRECTORY_CONTENTS`.
const DIRECTORY: u32 = 20;
/// Files of one directory.
const PER_DIRECTORY: u64 = 1000;
/// The first object of ours. Those below belong to the template.
const FIRST: u64 = 1024;
/// Largest microzap, in bytes.
const MICROZAP_MAX: usize = 128 << 10;
/// Maximum size of a file: one record.
const RECORD: u64 = 128 << 10;

/// Offsets of attributes after the SA header.
mod attribute {
    pub(super) const MODE: usize = 0;
    pub(super) const SIZE: usize = 8;
    pub(super) const PARENT: usize = 40;
    pub(super) const LINKS: usize = 120;
}

/// The parts of a real stream that are reused.
struct Template {
    features: Features,
    system: Vec<(Record, Vec<u8>)>,
    root: (Object, Vec<u8>),
    directory: (Object, Vec<u8>),
    file: (Object, Vec<u8>),
}

impl Template {
    fn read(args: &FilesArgs) -> Result<Self> {
        let file = File::open(&args.template).with_context(|| args.template.display().to_string())?;
        let (mut reader, mut payload) = (Reader::new(file), Vec::new());
        let (mut features, mut system) = (Features::NONE, Vec::new());
        let (mut root, mut directory, mut plain) = (None, None, None);
        let mut ours = Vec::new();
        while let Some(at) = reader.next(&mut payload)? {
            match &at.record {
                Record::Begin(b) => features = b.features,
                Record::Object(o) if o.object_type == DIRECTORY || o.object_type == PLAIN_FILE => {
                    ours.push(o.object);
                    // the plainest of each: neither spill block nor ACL nor extended attributes
                    let slot = if o.object_type == DIRECTORY { &mut directory } else { &mut plain };
                    let found = (*o, payload.clone());
                    if o.object_type == DIRECTORY && links_to_itself(&found) {
                        root = Some(found.clone());
                    }
                    if o.flags & Object::SPILL == 0
                        && slot.as_ref().is_none_or(|(s, _): &(Object, _)| o.bonus_len < s.bonus_len)
                    {
                        *slot = Some(found);
                    }
                }
                Record::FreeObjects(_) | Record::End(_) => {}
                other if other.object().is_some_and(|o| ours.contains(&o)) => {}
                other => system.push((other.clone(), payload.clone())),
            }
        }
        match (root, directory, plain) {
            (Some(root), Some(directory), Some(file)) => Ok(Self { features, system, root, directory, file }),
            _ => bail!("{} has no root directory, or no file", args.template.display()),
        }
    }
}

/// Length of the SA header at the start of a bonus buffer (`SA_HDR_SIZE`).
fn header_len(bonus: &[u8]) -> usize {
    usize::from(u16::from_le_bytes([bonus[4], bonus[5]]) >> 10) << 3
}

fn get(bonus: &[u8], attribute: usize) -> u64 {
    let at = header_len(bonus) + attribute;
    bonus.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
}

fn set(bonus: &mut [u8], attribute: usize, value: u64) {
    let at = header_len(bonus) + attribute;
    bonus[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

/// The root directory is its own parent.
fn links_to_itself((object, bonus): &(Object, Vec<u8>)) -> bool {
    get(bonus, attribute::PARENT) == object.object
}

/// A microzap of at least `least` bytes, with the power of two that holds all entries.
pub fn microzap(entries: &[(String, u64)], least: usize) -> Vec<u8> {
    const MICRO: u64 = (1 << 63) | 3;
    let mut zap = Vec::with_capacity(64 + entries.len() * 64);
    zap.extend_from_slice(&MICRO.to_le_bytes());
    zap.extend_from_slice(&mix(entries.len() as u64).to_le_bytes());
    zap.resize(64, 0);
    for (name, value) in entries {
        assert!(name.len() < 50, "a name of at most 49 bytes");
        zap.extend_from_slice(&value.to_le_bytes());
        zap.extend_from_slice(&[0; 6]);
        zap.extend_from_slice(name.as_bytes());
        zap.resize(zap.len().next_multiple_of(64), 0);
    }
    zap.resize(zap.len().next_power_of_two().max(least), 0);
    zap
}

/// A directory entry: the type in the top four bits, the object below (`ZFS_DIRENT_MAKE`).
fn entry(name: String, kind: u64, object: u64) -> (String, u64) {
    (name, kind << 60 | object)
}

/// Numbers the objects: each directory is followed by its files.
struct Layout {
    count: u64,
}

impl Layout {
    fn directories(&self) -> u64 {
        self.count.div_ceil(PER_DIRECTORY)
    }
    fn directory(&self, d: u64) -> u64 {
        FIRST + d * (PER_DIRECTORY + 1)
    }
    fn files(&self, d: u64) -> u64 {
        PER_DIRECTORY.min(self.count - d * PER_DIRECTORY)
    }
    fn file(&self, number: u64) -> u64 {
        self.directory(number / PER_DIRECTORY) + 1 + number % PER_DIRECTORY
    }
}

/// Writes OBJECT with its bonus, its content in one block, and a FREE for everything after it.
fn object(
    out: &mut Out,
    from: &(Object, Vec<u8>),
    number: u64,
    attributes: &[(usize, u64)],
    block: u64,
    content: &[u8],
) -> Result<()> {
    let (template, mut bonus) = from.clone();
    for &(attribute, value) in attributes {
        set(&mut bonus, attribute, value);
    }
    let record =
        Object { object: number, block_size: u32::try_from(block)?, to_guid: out.guid(), ..template };
    out.put(&Record::Object(record), &bonus)?;
    if !content.is_empty() {
        out.block(number, template.object_type, 0, block, content, 0)?;
    }
    let end = if content.is_empty() { 0 } else { block };
    out.put(
        &Record::Free(Free { object: number, offset: end, length: Free::TO_END, to_guid: out.guid() }),
        &[],
    )
}

fn directory(
    out: &mut Out,
    from: &(Object, Vec<u8>),
    number: u64,
    parent: u64,
    entries: &[(String, u64)],
    below: u64,
) -> Result<()> {
    let zap = microzap(entries, 512);
    ensure!(zap.len() <= MICROZAP_MAX, "{} entries are too many for one directory", entries.len());
    let attributes = [
        (attribute::PARENT, parent),
        (attribute::SIZE, entries.len() as u64 + 2),
        (attribute::LINKS, below + 2),
    ];
    object(out, from, number, &attributes, zap.len() as u64, &zap)
}

/// The content of a file fills its block. Bytes beyond its size are zero.
fn file(
    out: &mut Out,
    template: &Template,
    source: &mut Source,
    args: &FilesArgs,
    layout: &Layout,
    number: u64,
    version: u64,
) -> Result<()> {
    let (size, block) = (args.size, args.size.next_multiple_of(512).max(512));
    let mut content = source.block(number, version, usize::try_from(block)?).0.to_vec();
    content[usize::try_from(size)?..].fill(0);
    let parent = layout.directory(number / PER_DIRECTORY);
    let attributes = [(attribute::PARENT, parent), (attribute::SIZE, size), (attribute::LINKS, 1)];
    object(out, &template.file, layout.file(number), &attributes, block, &content)
}

fn checked(args: &FilesArgs) -> Result<Template> {
    ensure!(args.count > 0, "--count is at least 1");
    ensure!(args.size <= RECORD, "a file is at most one record");
    let template = Template::read(args)?;
    let (mode, dir_mode) =
        (get(&template.file.1, attribute::MODE), get(&template.directory.1, attribute::MODE));
    ensure!(mode >> 12 == 8 && dir_mode >> 12 == 4, "the template's attributes are laid out in another way");
    Ok(template)
}

/// Writes the whole filesystem.
pub fn full(args: &FilesArgs) -> Result<()> {
    let template = checked(args)?;
    let layout = Layout { count: args.count };
    let mut source = Source::new(args.data, false);
    let mut out = Out::begin(&args.snapshot, 0, FILESYSTEM, template.features)?;
    let root = template.root.0.object;
    let names: Vec<_> = (0..layout.directories())
        .map(|d| entry(format!("directory-{d:05}"), 4, layout.directory(d)))
        .collect();
    let mut rooted = false;
    for (record, payload) in &template.system {
        if !rooted && record.object().is_some_and(|o| o > root) {
            directory(&mut out, &template.root, root, root, &names, layout.directories())?;
            rooted = true;
        }
        if let Some(record) = retarget(record, out.guid()) {
            out.put(&record, payload)?;
        }
    }
    if !rooted {
        directory(&mut out, &template.root, root, root, &names, layout.directories())?;
    }
    for d in 0..layout.directories() {
        let first = d * PER_DIRECTORY;
        let names: Vec<_> = (first..first + layout.files(d))
            .map(|n| entry(format!("file-{n:08}"), 8, layout.file(n)))
            .collect();
        directory(&mut out, &template.directory, layout.directory(d), root, &names, 0)?;
        for number in first..first + layout.files(d) {
            file(&mut out, &template, &mut source, args, &layout, number, 0)?;
        }
    }
    out.end()
}

/// New content in `changes` of the files, spread over all of them.
pub fn changes(args: &FilesArgs, changes: u64, from: u64) -> Result<()> {
    let template = checked(args)?;
    ensure!(changes > 0 && changes <= args.count, "there are {} files to change", args.count);
    let layout = Layout { count: args.count };
    let mut source = Source::new(args.data, false);
    let mut out = Out::begin(&args.snapshot, from, FILESYSTEM, template.features)?;
    for change in 0..changes {
        let number = change * (args.count / changes);
        file(&mut out, &template, &mut source, args, &layout, number, args.snapshot.guid)?;
    }
    out.end()
}

/// The same record in a stream of another snapshot.
fn retarget(record: &Record, to_guid: u64) -> Option<Record> {
    Some(match record.clone() {
        Record::Object(r) => Record::Object(Object { to_guid, ..r }),
        Record::Write(r) => Record::Write(snowmelt_stream::Write { to_guid, ..r }),
        Record::WriteEmbedded(r) => Record::WriteEmbedded(snowmelt_stream::WriteEmbedded { to_guid, ..r }),
        Record::Spill(r) => Record::Spill(snowmelt_stream::Spill { to_guid, ..r }),
        Record::Free(r) => Record::Free(Free { to_guid, ..r }),
        _ => return None,
    })
}
