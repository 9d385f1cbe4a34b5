//! The directory into which files are restored: a stack of open directories, with moves by one name at a time.

use super::Existing;
use crate::beneath::{self, Directory, Mounts};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// Maximum number of directories that are held open. In deeper trees, the upper ones are opened again on the way back.
const OPEN_MAX: usize = 64;

/// The identity of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    device: u64,
    inode: u64,
}

impl From<Stat> for Identity {
    fn from(stat: Stat) -> Self {
        #[allow(clippy::unnecessary_cast)]
        Self { device: stat.st_dev as u64, inode: stat.st_ino as u64 }
    }
}

struct Level {
    name: Vec<u8>,
    /// `None` if it was closed because too many are open.
    directory: Option<OwnedFd>,
    identity: Identity,
}

/// The current position in the target. Level 0 is the target itself and stays open.
pub(super) struct Target {
    levels: Vec<Level>,
    /// Counter for temporary names.
    temporary: u64,
    /// Whether mount points are entered.
    mounts: Mounts,
}

impl Target {
    /// Opens `path`, and creates the directory if needed. The path is the user's, so it may be a symbolic link.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        // Mounts are entered, because the tree of a machine is restored with its filesystems mounted.
        Self::at(&Directory::made(path, Mode::RWXU)?, Mounts::Cross)
    }

    /// A target in an open directory.
    pub(super) fn at(directory: &Directory, mounts: Mounts) -> io::Result<Self> {
        let directory = directory.as_fd().try_clone_to_owned()?;
        let identity = rustix::fs::fstat(&directory)?.into();
        let top = Level { name: Vec::new(), directory: Some(directory), identity };
        Ok(Self { levels: vec![top], temporary: 0, mounts })
    }

    /// The current directory.
    pub(super) fn here(&self) -> io::Result<BorrowedFd<'_>> {
        let level = self.levels.last().and_then(|level| level.directory.as_ref());
        level.map(AsFd::as_fd).ok_or_else(|| io::Error::other("the directory is closed"))
    }

    /// The names from the target to the current directory.
    pub(super) fn way(&self) -> Vec<Vec<u8>> {
        self.levels[1..].iter().map(|level| level.name.clone()).collect()
    }

    /// Creates a directory here. Only its owner can access it until its attributes are set. An existing directory is
    /// used.
    pub(super) fn make_directory(&self, name: &[u8], existing: Existing) -> io::Result<()> {
        let here = self.here()?;
        match rustix::fs::mkdirat(here, name, Mode::RWXU) {
            Err(Errno::EXIST) => {}
            done => return Ok(done?),
        }
        let stat = rustix::fs::statat(here, name, AtFlags::SYMLINK_NOFOLLOW)?;
        match (FileType::from_raw_mode(stat.st_mode), existing) {
            (FileType::Directory, _) => Ok(()),
            (_, Existing::Keep) => Err(Errno::EXIST.into()),
            (_, Existing::Replace) => {
                rustix::fs::unlinkat(here, name, AtFlags::empty())?;
                Ok(rustix::fs::mkdirat(here, name, Mode::RWXU)?)
            }
        }
    }

    /// Enters a directory of the current one.
    pub(super) fn enter(&mut self, name: &[u8]) -> io::Result<()> {
        let directory = beneath::open(self.here()?, name, beneath::DIRECTORY, self.mounts)?;
        let identity = rustix::fs::fstat(&directory)?.into();
        if let Some(far) = self.levels.len().checked_sub(OPEN_MAX).filter(|far| *far > 0) {
            self.levels[far].directory = None;
        }
        self.levels.push(Level { name: name.to_vec(), directory: Some(directory), identity });
        Ok(())
    }

    /// Returns to the parent directory. If it was closed, it is opened again through "..", and must be the same
    /// directory.
    pub(super) fn leave(&mut self) -> io::Result<()> {
        if self.levels.len() < 2 {
            return Err(io::Error::other("there is nothing above the target"));
        }
        let below = self.levels.pop();
        let Some((level, below)) = self.levels.last_mut().zip(below.and_then(|level| level.directory)) else {
            return Err(io::Error::other("the directory is closed"));
        };
        if level.directory.is_none() {
            let how = beneath::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let directory = rustix::fs::openat(&below, "..", how, Mode::empty())?;
            if Identity::from(rustix::fs::fstat(&directory)?) != level.identity {
                return Err(io::Error::other("the directory was moved while it was restored into"));
            }
            level.directory = Some(directory);
        }
        Ok(())
    }

    /// Opens a directory by its names from the target. None of them may be a link.
    pub(super) fn find(&self, way: &[Vec<u8>]) -> io::Result<OwnedFd> {
        let top = self.levels.first().and_then(|level| level.directory.as_ref());
        let top = top.ok_or_else(|| io::Error::other("the target is closed"))?;
        let mut directory = top.try_clone()?;
        for name in way {
            directory = beneath::open(directory.as_fd(), name, beneath::DIRECTORY, self.mounts)?;
        }
        Ok(directory)
    }

    /// A name that probably does not exist here yet. The user of the name must create it exclusively.
    pub(super) fn temporary_name(&mut self) -> Vec<u8> {
        self.temporary += 1;
        format!(".snowmelt-restore-{}-{}", std::process::id(), self.temporary).into_bytes()
    }

    /// Renames `temporary` to its final name. If that fails, `temporary` is removed.
    pub(super) fn publish(&self, temporary: &[u8], name: &[u8], existing: Existing) -> io::Result<()> {
        let here = self.here()?;
        let result = match existing {
            Existing::Replace => rustix::fs::renameat(here, temporary, here, name),
            Existing::Keep => rename_new(here, temporary, name),
        };
        if result.is_err() {
            let _ = rustix::fs::unlinkat(here, temporary, AtFlags::empty());
        }
        Ok(result?)
    }
}

/// Renames without replacing anything. If the filesystem does not support this, a hard link is used.
fn rename_new(here: BorrowedFd<'_>, temporary: &[u8], name: &[u8]) -> rustix::io::Result<()> {
    match rustix::fs::renameat_with(here, temporary, here, name, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS) => {
            rustix::fs::linkat(here, temporary, here, name, AtFlags::empty())?;
            rustix::fs::unlinkat(here, temporary, AtFlags::empty())
        }
        done => done,
    }
}
