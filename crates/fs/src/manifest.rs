//! Writing the manifest of a snapshot: one JSON line for each path, or one line for a volume.
//!
//! Two manifests are equal exactly if the snapshots have the same content. Their form is byte for byte that of the
//! project's reference manifests, which `interop/vm/manifest.py` creates from mounted snapshots of real ZFS.

use crate::error::FsError;
pub use crate::json::base64;
use crate::json::{self, Object};
use crate::walk::{Event, Node, Walk};
use sha2::{Digest, Sha256};
use snowmelt_zpl::{FileKind, Filesystem, Objects, ZplError, acl};
use std::fmt::Write as _;
use std::io::{Read, Write};

/// Above this size, only pages with data are hashed: `sha256_pages`.
const HUGE: u64 = 1 << 30;
const PAGE: u64 = 4096;
const CHUNK: usize = 1 << 20;

/// Writes the manifest of a filesystem: every path's attributes, content hash, extended attributes and ACL.
///
/// Memory is bounded by the entries of the directories on the current path.
///
/// # Errors
/// If anything cannot be read. The content of a file is an exception: its line contains `"eio":true` instead.
pub fn manifest<O: Objects>(fs: &Filesystem<O>, out: &mut impl Write) -> Result<(), FsError> {
    for event in Walk::new(fs, fs.root())? {
        if let Event::Node(node) = event? {
            let line = describe(fs, &node)?;
            out.write_all(line.as_bytes())?;
            out.write_all(b"\n")?;
        }
    }
    Ok(())
}

/// Writes the manifest of a volume from its content.
///
/// # Errors
/// If the content cannot be read or the manifest cannot be written.
pub fn manifest_volume(
    mut reader: impl Read,
    volsize: u64,
    volblocksize: u64,
    out: &mut impl Write,
) -> Result<(), FsError> {
    let (mut whole, mut chunks) = (Sha256::new(), String::from("["));
    let mut buf = vec![0; CHUNK];
    let mut left = volsize;
    while left > 0 {
        let len = usize::try_from(left).map_or(CHUNK, |left| left.min(CHUNK));
        reader.read_exact(&mut buf[..len])?;
        whole.update(&buf[..len]);
        let separator = if chunks.len() > 1 { "," } else { "" };
        let _ = write!(chunks, "{separator}\"{}\"", &hex(&Sha256::digest(&buf[..len]))[..16]);
        left -= len as u64;
    }
    chunks.push(']');
    let mut line = Object::new();
    line.str("type", "volume");
    line.int("volsize", volsize);
    line.int("volblocksize", volblocksize);
    line.str("sha256", &hex(&whole.finalize()));
    line.raw("chunks", &chunks);
    writeln!(out, "{}", line.finish())?;
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The letter of a file type, as in find(1).
pub fn letter(kind: FileKind) -> &'static str {
    match kind {
        FileKind::File => "f",
        FileKind::Directory => "d",
        FileKind::Symlink => "l",
        FileKind::BlockDevice => "b",
        FileKind::CharDevice => "c",
        FileKind::Fifo => "p",
        FileKind::Socket => "s",
        FileKind::Unknown => "?",
    }
}

fn describe<O: Objects>(fs: &Filesystem<O>, node: &Node) -> Result<String, FsError> {
    let at = &node.attributes;
    let kind = at.kind();
    let mut line = Object::new();
    line.bytes("path", &node.path);
    line.str("type", letter(kind));
    line.str("mode", &format!("{:04o}", at.permissions()));
    line.int("uid", at.uid);
    line.int("gid", at.gid);
    // A mounted snapshot shows an artificial inode number for its root.
    if node.path != b"." {
        line.int("ino", node.object);
    }
    line.int("nlink", at.links);
    line.int("size", at.size);
    line.int("mtime", at.mtime.as_nanos());
    line.int("ctime", at.ctime.as_nanos());
    line.int("atime", at.atime.as_nanos());
    if let Some((major, minor)) = at.rdev {
        line.raw("rdev", &format!("[{major},{minor}]"));
    }
    if kind == FileKind::Symlink {
        line.bytes("target", &fs.readlink(node.object).map_err(FsError::zpl(&node.path))?);
    }
    if kind == FileKind::File {
        content(fs, node, &mut line).map_err(FsError::zpl(&node.path))?;
    }
    if matches!(kind, FileKind::File | FileKind::Directory) {
        let flags = at.flags.fs_ioc_flags() & 0x70;
        if flags != 0 {
            line.int("flags", flags);
        }
        if at.project_id != 0 {
            line.int("projid", at.project_id);
        }
    }
    xattrs(fs, node, &mut line).map_err(FsError::zpl(&node.path))?;
    Ok(line.finish())
}

/// Writes the hash, and the extents with data unless they are the whole file.
fn content<O: Objects>(fs: &Filesystem<O>, node: &Node, line: &mut Object) -> Result<(), ZplError> {
    let size = node.attributes.size;
    // Most files are one extent and need no list. Otherwise the list is written while extents are found.
    let mut extents = String::from("[");
    let mut whole = size == 0;
    let mut end = 0;
    while let Some((from, to)) = next_extent(fs, node, end)? {
        whole = (from, to) == (0, size);
        let separator = if extents.len() > 1 { "," } else { "" };
        let _ = write!(extents, "{separator}[{from},{}]", to - from);
        end = to;
    }
    if !whole {
        extents.push(']');
        line.raw("data", &extents);
    }
    let (key, digest) = match size <= HUGE {
        true => ("sha256", hash_all(fs, node)),
        false => ("sha256_pages", hash_pages(fs, node)),
    };
    match digest {
        Ok(digest) => line.str(key, &digest),
        Err(error) if error.is_unreadable_block() => line.raw("eio", "true"),
        Err(error) => return Err(error),
    }
    Ok(())
}

/// The next extent as a mounted snapshot shows it. A single block of odd size counts as data even if it is a hole
/// (`dnode_next_offset` of `module/zfs/dnode.c`).
fn next_extent<O: Objects>(
    fs: &Filesystem<O>,
    node: &Node,
    offset: u64,
) -> Result<Option<(u64, u64)>, ZplError> {
    let size = node.attributes.size;
    let dnode = fs.objects().dnode(node.object);
    let dnode = dnode.map_err(|source| ZplError::Source { object: node.object, source })?;
    let block_size = dnode.map_or(0, |dnode| u64::from(dnode.block_size));
    if block_size == 0 || block_size.is_power_of_two() {
        return fs.next_extent(node.object, size, offset);
    }
    Ok((offset < block_size.min(size)).then_some((offset, block_size.min(size))))
}

fn hash_all<O: Objects>(fs: &Filesystem<O>, node: &Node) -> Result<String, ZplError> {
    let mut digest = Sha256::new();
    let mut buf = vec![0; CHUNK.min(node.attributes.size.max(1) as usize)];
    let mut at = 0;
    loop {
        let len = fs.read(node.object, node.attributes.size, at, &mut buf)?;
        if len == 0 {
            return Ok(hex(&digest.finalize()));
        }
        digest.update(&buf[..len]);
        at += len as u64;
    }
}

/// The hash over all pages that are not all zeros: the offset of each page, then the page, with the last one padded.
fn hash_pages<O: Objects>(fs: &Filesystem<O>, node: &Node) -> Result<String, ZplError> {
    let size = node.attributes.size;
    let mut digest = Sha256::new();
    let mut page = [0; PAGE as usize];
    let (mut end, mut done) = (0, 0);
    while let Some((from, to)) = fs.next_extent(node.object, size, end)? {
        let mut at = done.max(from / PAGE * PAGE);
        while at < to {
            let len = fs.read(node.object, size, at, &mut page)?;
            page[len..].fill(0);
            if page.iter().any(|byte| *byte != 0) {
                digest.update(at.to_le_bytes());
                digest.update(page);
            }
            at += PAGE;
            done = at;
        }
        end = to;
    }
    Ok(hex(&digest.finalize()))
}

fn xattrs<O: Objects>(fs: &Filesystem<O>, node: &Node, line: &mut Object) -> Result<(), ZplError> {
    let found = fs.xattrs(node.object)?;
    if found.is_empty() {
        return Ok(());
    }
    let mut text = String::from("{");
    for (name, value) in &found {
        if text.len() > 1 {
            text.push(',');
        }
        json::string(&mut text, name);
        let _ = write!(text, ":\"{}\"", json::base64(value));
    }
    text.push('}');
    line.raw("xattrs", &text);
    let posix = |name: &str| found.get(name.as_bytes()).map(Vec::as_slice);
    let (access, default) = (posix(acl::ACCESS), posix(acl::DEFAULT));
    if access.is_some() || default.is_some() {
        let lines = acl::getfacl(node.attributes.mode, access, default)
            .map_err(|error| ZplError::Corrupt { object: node.object, what: error.to_string() })?;
        let mut text = String::from("[");
        for entry in lines {
            if text.len() > 1 {
                text.push(',');
            }
            json::string(&mut text, entry.as_bytes());
        }
        text.push(']');
        line.raw("acl", &text);
    }
    Ok(())
}
