//! Creating files, symbolic links, devices, fifos and sockets.

use super::{Failure, Restore};
use crate::ahead::pieces;
use crate::beneath::open_node;
use crate::error::FsError;
use crate::walk::Node;
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use snowmelt_zpl::{FileKind, Objects};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

/// Number of bytes copied at a time.
const CHUNK: u64 = 1 << 20;

impl<O: Objects> Restore<'_, '_, O> {
    fn failed(node: &Node, step: &'static str) -> impl FnOnce(io::Error) -> Failure {
        let path = node.path.clone();
        move |source| Failure::Local { path, step, source }
    }

    /// Removes a temporary name.
    fn discard(&self, temporary: &[u8]) {
        if let Ok(here) = self.target.here() {
            let _ = rustix::fs::unlinkat(here, temporary, AtFlags::empty());
        }
    }

    pub(super) fn file(&mut self, node: &Node, name: &[u8]) -> Result<(), Failure> {
        let wanted = self.wanted(node)?;
        let temporary = self.target.temporary_name();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = self.target.here().and_then(|here| {
            Ok(rustix::fs::openat(here, temporary.as_slice(), flags, Mode::RUSR | Mode::WUSR)?)
        });
        let file = File::from(opened.map_err(Self::failed(node, "create the file"))?);
        let written = match self.content(node, &file) {
            Ok(written) => written,
            Err(failure) => {
                self.discard(&temporary);
                return Err(failure);
            }
        };
        let steps = wanted.apply_but_flags(file.as_fd());
        self.report_steps(node, steps);
        if self.options.sync
            && let Err(error) = file.sync_all()
        {
            self.discard(&temporary);
            return Err(Self::failed(node, "sync the file")(error));
        }
        let published = self.target.publish(&temporary, name, self.options.existing);
        published.map_err(Self::failed(node, "give the file its name"))?;
        if !self.defers_flags {
            let steps = wanted.apply_flags(file.as_fd());
            self.report_steps(node, steps);
        }
        self.summary.files += 1;
        self.summary.bytes += written;
        Ok(())
    }

    /// Copies the extents that contain data. Returns their total size in bytes.
    fn content(&mut self, node: &Node, file: &File) -> Result<u64, Failure> {
        let fs = self.fs;
        let size = node.attributes.size;
        let source = |error| Failure::from(FsError::zpl(&node.path)(error));
        file.set_len(size).map_err(Self::failed(node, "set the file's size"))?;
        let mut buf = Vec::new();
        let (mut end, mut written) = (0, 0);
        while let Some((from, to)) = fs.next_extent(node.object, size, end).map_err(source)? {
            for (at, len) in pieces(fs.objects(), node.object, (from, to), CHUNK) {
                buf.resize(len as usize, 0);
                let len = fs.read(node.object, size, at, &mut buf).map_err(source)?;
                file.write_all_at(&buf[..len], at).map_err(Self::failed(node, "write the file"))?;
                self.observer.bytes(self.summary.bytes + written + (at - from) + len as u64);
            }
            written += to - from;
            end = to;
        }
        Ok(written)
    }

    pub(super) fn symlink(&mut self, node: &Node, name: &[u8]) -> Result<(), Failure> {
        let link = self.fs.readlink(node.object).map_err(FsError::zpl(&node.path))?;
        let temporary = self.target.temporary_name();
        let made = self
            .target
            .here()
            .and_then(|here| Ok(rustix::fs::symlinkat(link.as_slice(), here, temporary.as_slice())?));
        made.map_err(Self::failed(node, "make the symbolic link"))?;
        self.dress_and_publish(node, &temporary, name)?;
        self.summary.symlinks += 1;
        Ok(())
    }

    pub(super) fn special(&mut self, node: &Node, name: &[u8]) -> Result<(), Failure> {
        let kind = match node.attributes.kind() {
            FileKind::BlockDevice => FileType::BlockDevice,
            FileKind::CharDevice => FileType::CharacterDevice,
            FileKind::Fifo => FileType::Fifo,
            FileKind::Socket => FileType::Socket,
            _ => return Err(Self::failed(node, "restore it")(io::Error::other("a file of unknown type"))),
        };
        let (major, minor) = node.attributes.rdev.unwrap_or((0, 0));
        let temporary = self.target.temporary_name();
        let made = self.target.here().and_then(|here| {
            let device = rustix::fs::makedev(major, minor);
            Ok(rustix::fs::mknodat(here, temporary.as_slice(), kind, Mode::RUSR | Mode::WUSR, device)?)
        });
        made.map_err(Self::failed(node, "make the node"))?;
        self.dress_and_publish(node, &temporary, name)?;
        self.summary.specials += 1;
        Ok(())
    }

    fn dress_and_publish(&mut self, node: &Node, temporary: &[u8], name: &[u8]) -> Result<(), Failure> {
        let wanted = match self.wanted(node) {
            Ok(wanted) => wanted,
            Err(error) => {
                self.discard(temporary);
                return Err(error.into());
            }
        };
        let here = self.target.here().map_err(Self::failed(node, "open the directory"))?;
        let made = open_node(here, temporary).and_then(|made| {
            wanted.check_node(made.as_fd(), true)?;
            Ok(made)
        });
        let made = match made {
            Ok(made) => made,
            Err(error) => {
                self.discard(temporary);
                return Err(Self::failed(node, "find what was made")(error));
            }
        };
        let steps = wanted.apply_to_node(made.as_fd());
        self.report_steps(node, steps);
        let published = self.target.publish(temporary, name, self.options.existing);
        published.map_err(Self::failed(node, "give it its name"))
    }
}
