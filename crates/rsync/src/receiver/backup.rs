//! Backups: replaced and deleted files are kept under another name (`--backup`, `--backup-dir`, `--suffix`).

use std::collections::BTreeMap;
use std::io::{self, Read, Write};

use snowmelt_zpl::{NewKind, SetAttributes, SetTime};

use super::Receiver;
use super::attributes::timestamp;
use super::place::DIRECTORY_MODE;
use crate::error::Result;
use crate::scan::clean;
use crate::target::Found;

/// The default suffix of backups without a directory of their own.
const SUFFIX: &[u8] = b"~";

/// The path that an option names. It is relative to the transfer's root, or to the directory of its only file.
fn beside(path: &[u8], root: &[u8], single: Option<&[u8]>) -> Vec<u8> {
    let above = match single {
        Some(single) => &single[..single.iter().rposition(|byte| *byte == b'/').unwrap_or(0)],
        None => root,
    };
    match path {
        [b'/', ..] => clean(path).0,
        _ => clean(&[above, b"/", path].concat()).0,
    }
}

impl<R: Read, W: Write> Receiver<'_, R, W> {
    fn suffix(&self) -> &[u8] {
        match (&self.options.suffix, &self.options.backup_dir) {
            (Some(suffix), _) => suffix,
            (None, Some(_)) => b"",
            (None, None) => SUFFIX,
        }
    }

    /// Whether a deleted file is kept. Backups themselves are not, unless they are moved to another directory.
    pub(super) fn keeps_deleted(&self, name: &[u8]) -> bool {
        self.options.backup && (self.options.backup_dir.is_some() || !name.ends_with(self.suffix()))
    }

    /// The path of a backup.
    fn backup_path(&self, path: &[u8]) -> Vec<u8> {
        match &self.options.backup_dir {
            None => [path, self.suffix()].concat(),
            Some(directory) => {
                let directory = self.beside(directory);
                let slash: &[u8] = if directory.is_empty() { b"" } else { b"/" };
                [&directory, slash, &self.name_of(path), self.suffix()].concat()
            }
        }
    }

    /// The path that an option names. It is relative to the transfer's root, or with a leading slash to the root of the
    /// target.
    pub(super) fn beside(&self, path: &[u8]) -> Vec<u8> {
        let path = beside(path, &self.root, self.single.as_deref());
        self.named(path)
    }

    /// The same path as the client names it, with its symbolic links.
    pub(super) fn named_beside(&self, path: &[u8]) -> Vec<u8> {
        beside(path, &self.named_root, self.single_named.as_deref())
    }

    /// Renames a file to its backup. Returns the path of the backup.
    pub(super) fn back_up(&self, path: &[u8]) -> io::Result<Vec<u8>> {
        let backup = self.backup_place(path)?;
        self.into.target.rename(path, &backup)?;
        Ok(backup)
    }

    /// The path of a backup. Its parent directories are created.
    fn backup_place(&self, path: &[u8]) -> io::Result<Vec<u8>> {
        let backup = self.backup_path(path);
        let named = match &self.options.backup_dir {
            Some(directory) if !self.into.target.is_staged() => {
                let name = [&self.name_of(path), self.suffix()].concat();
                super::below(&self.named_beside(directory), &name)
            }
            _ => backup.clone(),
        };
        if self.hides_path(&named, false) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        if let Some(directory) = &self.options.backup_dir {
            self.make_backup_way(&self.beside(directory), &backup)?;
        }
        Ok(backup)
    }

    /// Links a file to its backup. Where that is not possible, it is renamed.
    pub(super) fn back_up_linked(&self, found: &Found, path: &[u8]) -> io::Result<()> {
        let backup = self.backup_place(path)?;
        match self.into.target.link_over(&found.node, &backup) {
            Ok(()) => Ok(()),
            Err(_) => self.into.target.rename(path, &backup),
        }
    }

    /// Copies a file to its backup before it is written in place.
    pub(super) fn back_up_copy(&self, found: &Found, path: &[u8]) -> io::Result<()> {
        let backup = self.backup_place(path)?;
        self.into.target.copy_over(&found.node, &backup).map(drop)
    }

    /// Creates the directories of a backup, with the attributes of those that the file was in.
    fn make_backup_way(&self, top: &[u8], backup: &[u8]) -> io::Result<()> {
        let target = &*self.into.target;
        for (at, _) in backup.iter().enumerate().filter(|(_, byte)| **byte == b'/') {
            let directory = &backup[..at];
            if target.stat(directory)?.is_some() {
                continue;
            }
            let made = target.create(directory, NewKind::Directory, DIRECTORY_MODE)?;
            let name = directory.strip_prefix(top).and_then(|rest| rest.strip_prefix(b"/"));
            let like: Option<Found> = match name {
                Some(name) => target.stat(&self.directory_below(name))?,
                None => None,
            };
            if let Some(like) = like.filter(|like| like.is_dir()) {
                let set = SetAttributes {
                    permissions: Some(like.permissions()),
                    uid: Some(like.metadata.uid),
                    gid: Some(like.metadata.gid),
                    mtime: Some(SetTime::To(timestamp(like.metadata.mtime))),
                    ..SetAttributes::default()
                };
                if self.agreed.form.acls {
                    self.copy_acls(&like, &made)?;
                }
                target.set_attributes(&made.node, &set)?;
            }
        }
        Ok(())
    }

    /// Gives a directory the ACLs of another one. ACLs that it inherited from its parent are removed.
    fn copy_acls(&self, like: &Found, made: &Found) -> io::Result<()> {
        let target = &*self.into.target;
        let acls = |of: &Found| -> io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
            let mut all = target.xattrs(&of.node)?;
            all.retain(|name, _| name.starts_with(b"system."));
            Ok(all)
        };
        let wanted = acls(like)?;
        for name in acls(made)?.keys().filter(|name| !wanted.contains_key(*name)) {
            target.set_xattr(&made.node, name, None)?;
        }
        wanted.iter().try_for_each(|(name, value)| target.set_xattr(&made.node, name, Some(value)))
    }

    /// Removes a file, or renames it to its backup. Returns whether that succeeded.
    pub(super) fn take_away(&mut self, path: &[u8]) -> Result<bool> {
        let done = match self.options.backup {
            true => self.back_up(path).map(drop),
            false => self.into.target.remove(path, false),
        };
        match done {
            Ok(()) => Ok(true),
            Err(error) => {
                self.check_room(path, &error)?;
                Ok(false)
            }
        }
    }
}
