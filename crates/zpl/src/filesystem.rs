//! Reading a ZPL filesystem: files, directories and links, stored in the objects of one objset.
//!
//! Object 1, the *master node*, is a ZAP. It contains the numbers of the root directory and of the SA tables, the
//! version, and the properties that are fixed at creation. A directory is a ZAP from names to object numbers. Sources:
//! `include/sys/zfs_znode.h`, `module/zfs/zfs_znode.c`, `module/os/linux/zfs/{zfs_dir,zfs_vfsops,zfs_vnops_os}.c`.

use crate::attributes::{Attributes, FileKind};
use crate::error::ZplError;
use crate::fuid::FuidTable;
use crate::names::{CaseSensitivity, NamePolicy};
use crate::normalize::NormFlags;
use crate::sa::{Attr, SaTable, SaValues, ZNODE_LEN};
use crate::source::{DMU_OT_MASTER_NODE, Dnode, Objects};
use crate::zap::{Cursor, Zap};
use parking_lot::RwLock;

/// `MASTER_NODE_OBJ`.
pub const MASTER_NODE: u64 = 1;
/// `ZFS_DIRENT_OBJ`: the bits of a directory entry that hold an object number.
pub(crate) const DIRENT_OBJECT: u64 = (1 << 48) - 1;
/// Newest supported version: `ZPL_VERSION_SA`.
const VERSION_MAX: u64 = 5;
/// First version whose attributes are system attributes.
const VERSION_SA: u64 = 5;
/// Longest target of a symbolic link: Linux's `PATH_MAX`.
const LINK_MAX: u64 = 4096;

/// A filesystem opened for reading.
pub struct Filesystem<O> {
    objects: O,
    root: u64,
    version: u64,
    /// Layouts are added while the filesystem is written.
    sa: RwLock<SaTable>,
    names: NamePolicy,
    delete_queue: Option<u64>,
    shares: Option<u64>,
    fuids: Option<u64>,
}

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    /// The name. It may contain any bytes from a stream, also names that no real system would allow ("a/b", "..").
    pub name: Vec<u8>,
    /// Object number.
    pub object: u64,
    /// The file's type as stored in the directory.
    pub kind: FileKind,
    /// Cursor to resume after this entry.
    pub next: Cursor,
}

impl<O: Objects> Filesystem<O> {
    /// Reads the master node and the SA tables.
    ///
    /// # Errors
    /// If this is not a ZPL objset, has an unknown version, or cannot be read.
    pub fn open(objects: O) -> Result<Self, ZplError> {
        let corrupt = |what: String| ZplError::corrupt(MASTER_NODE, what);
        let master = objects
            .dnode(MASTER_NODE)
            .map_err(ZplError::source(MASTER_NODE))?
            .ok_or(ZplError::NoObject { object: MASTER_NODE })?;
        if master.object_type != DMU_OT_MASTER_NODE {
            return Err(corrupt(format!("type {} is no filesystem's master node", master.object_type)));
        }
        let zap = Zap::open(&objects, MASTER_NODE)?;
        let version = zap.lookup_u64("VERSION")?.ok_or_else(|| corrupt("no VERSION".into()))?;
        if !(1..=VERSION_MAX).contains(&version) {
            return Err(ZplError::Unsupported {
                object: MASTER_NODE,
                what: format!("filesystem version {version}"),
            });
        }
        let root = zap.lookup_u64("ROOT")?.ok_or_else(|| corrupt("no ROOT".into()))?;
        let sa = match zap.lookup_u64("SA_ATTRS")?.filter(|object| *object != 0) {
            Some(object) if version >= VERSION_SA => SaTable::load(&objects, object)?,
            _ => SaTable::legacy(),
        };
        let case = match zap.lookup_u64("casesensitivity")?.unwrap_or(0) {
            0 => CaseSensitivity::Sensitive,
            1 => CaseSensitivity::Insensitive,
            2 => CaseSensitivity::Mixed,
            other => return Err(corrupt(format!("casesensitivity is {other}"))),
        };
        let normalization = zap.lookup_u64("normalization")?.unwrap_or(0);
        let names = NamePolicy {
            case,
            normalization: NormFlags::from_bits(normalization as u32).without_case_folding(),
            utf8_only: zap.lookup_u64("utf8only")?.unwrap_or(0) != 0,
        };
        let delete_queue = zap.lookup_u64("DELETE_QUEUE")?;
        let shares = zap.lookup_u64("SHARES")?;
        let fuids = zap.lookup_u64("FUID")?.filter(|object| *object != 0);
        drop(zap);
        Ok(Self { objects, root, version, sa: RwLock::new(sa), names, delete_queue, shares, fuids })
    }

    /// The objset of the filesystem.
    pub fn objects(&self) -> &O {
        &self.objects
    }

    /// Object number of the root directory.
    pub fn root(&self) -> u64 {
        self.root
    }

    /// ZPL version, 1 to 5 (the `version` property).
    pub fn version(&self) -> u64 {
        self.version
    }

    /// How names are compared.
    pub fn name_policy(&self) -> NamePolicy {
        self.names
    }

    /// The ZAP of removed files that were still open when the snapshot was taken.
    pub fn delete_queue(&self) -> Option<u64> {
        self.delete_queue
    }

    /// The hidden directory of SMB shares, which `zfs diff` leaves out.
    pub fn shares(&self) -> Option<u64> {
        self.shares
    }

    /// The domains of owners that are not plain POSIX IDs.
    ///
    /// # Errors
    /// If the table cannot be read.
    pub fn fuid_table(&self) -> Result<FuidTable, ZplError> {
        self.fuids.map_or_else(|| Ok(FuidTable::default()), |object| FuidTable::load(&self.objects, object))
    }

    /// A property stored in the master node: a quota (`userquota@` is the number of an object), `acltype`, …
    ///
    /// # Errors
    /// If the master node cannot be read.
    pub fn master_node(&self, name: &str) -> Result<Option<u64>, ZplError> {
        Zap::open(&self.objects, MASTER_NODE)?.lookup_u64(name)
    }

    /// Whether attributes are system attributes. This depends on the ZPL version and the presence of SA tables.
    pub(crate) fn has_system_attributes(&self) -> bool {
        self.version >= VERSION_SA && self.sa.read().is_stored()
    }

    pub(crate) fn sa(&self) -> &RwLock<SaTable> {
        &self.sa
    }

    pub(crate) fn dnode(&self, object: u64) -> Result<Dnode, ZplError> {
        self.objects.dnode(object).map_err(ZplError::source(object))?.ok_or(ZplError::NoObject { object })
    }

    /// Calls `read` with the stored attributes of `object`.
    pub(crate) fn with_values<T>(
        &self,
        object: u64,
        read: impl FnOnce(&SaValues<'_>) -> Result<T, ZplError>,
    ) -> Result<T, ZplError> {
        let dnode = self.dnode(object)?;
        let spill = match dnode.has_spill {
            true => self.objects.spill(object).map_err(ZplError::source(object))?,
            false => None,
        };
        let values = self.sa.read().parse(&dnode, spill.as_deref())?;
        read(&values)
    }

    /// The attributes of a file, directory or other node.
    ///
    /// # Errors
    /// If there is no such object or it has no file attributes.
    pub fn attributes(&self, object: u64) -> Result<Attributes, ZplError> {
        self.with_values(object, |values| Attributes::new(object, values))
    }

    pub(crate) fn directory(&self, directory: u64) -> Result<Zap<'_, O>, ZplError> {
        if self.attributes(directory)?.kind() != FileKind::Directory {
            return Err(ZplError::NotADirectory { object: directory });
        }
        Zap::open(&self.objects, directory)
    }

    /// Finds `name` in a directory, by the filesystem's rules for case and normalisation. "." and ".." are never found,
    /// because directories do not store them.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn lookup(&self, directory: u64, name: &[u8]) -> Result<Option<DirEntry>, ZplError> {
        let found = self.directory(directory)?.lookup(name, self.names.matching())?;
        found.map(|entry| dir_entry(directory, entry)).transpose()
    }

    /// Opens a directory for listing with [`DirEntries::from`].
    ///
    /// # Errors
    /// If `directory` is not a directory or cannot be read.
    pub fn read_dir(&self, directory: u64) -> Result<DirEntries<'_, O>, ZplError> {
        Ok(DirEntries { zap: self.directory(directory)?, directory })
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// If `object` is not a symbolic link, or if its target cannot be read or is too long.
    pub fn readlink(&self, object: u64) -> Result<Vec<u8>, ZplError> {
        let dnode = self.dnode(object)?;
        let attributes = self.attributes(object)?;
        if attributes.kind() != FileKind::Symlink {
            return Err(ZplError::NotASymlink { object });
        }
        if attributes.size > LINK_MAX {
            let what = format!("a symbolic link with a target of {} bytes", attributes.size);
            return Err(ZplError::corrupt(object, what));
        }
        let size = attributes.size as usize;
        let (stored, legacy) = self.with_values(object, |values| {
            Ok((values.bytes(Attr::Symlink).map(|(_, target)| target.to_vec()), values.is_legacy()))
        })?;
        if let Some(mut target) = stored {
            target.truncate(size);
            return Ok(target);
        }
        // `zfs_sa_readlink`: the target follows the znode if there is room, otherwise it is in the data.
        if let Some(target) = dnode.bonus.get(ZNODE_LEN..ZNODE_LEN + size).filter(|_| legacy) {
            return Ok(target.to_vec());
        }
        let mut target = vec![0; size];
        self.objects.read(object, 0, &mut target).map_err(ZplError::source(object))?;
        Ok(target)
    }

    /// Reads a file's content at `offset` into `buf`, up to the end of the file. Returns the number of bytes read.
    ///
    /// `size` is the file's size from its [`Attributes`]. The caller passes it, so that reading in pieces looks it up
    /// only once.
    ///
    /// # Errors
    /// If a block cannot be read ([`ZplError::is_unreadable_block`]).
    pub fn read(&self, object: u64, size: u64, offset: u64, buf: &mut [u8]) -> Result<usize, ZplError> {
        let left = size.saturating_sub(offset);
        let len = usize::try_from(left).map_or(buf.len(), |left| left.min(buf.len()));
        self.objects.read(object, offset, &mut buf[..len]).map_err(ZplError::source(object))?;
        Ok(len)
    }

    /// The next extent of data at or after `offset` in a file of `size` bytes, as found by `SEEK_DATA` and then
    /// `SEEK_HOLE` (`zfs_holey`). `None` if only a hole is left.
    ///
    /// # Errors
    /// If the block pointers cannot be read.
    pub fn next_extent(&self, object: u64, size: u64, offset: u64) -> Result<Option<(u64, u64)>, ZplError> {
        if offset >= size {
            return Ok(None);
        }
        let source = |source| ZplError::Source { object, source };
        let begin = self.objects.next_data(object, offset).map_err(source)?;
        let Some(begin) = begin.filter(|begin| *begin < size) else { return Ok(None) };
        let end = self.objects.next_hole(object, begin).map_err(source)?.unwrap_or(size).min(size);
        if end <= begin || begin < offset {
            return Err(ZplError::corrupt(object, format!("no end to the data at {begin}")));
        }
        Ok(Some((begin, end)))
    }
}

pub(crate) fn dir_entry(directory: u64, entry: crate::zap::Entry) -> Result<DirEntry, ZplError> {
    let next = entry.at.after();
    let (crate::zap::Key::Name(name), Some(value)) = (entry.key, entry.value.as_u64()) else {
        return Err(ZplError::corrupt(directory, "a directory entry is not a name with one 64-bit integer"));
    };
    Ok(DirEntry {
        name,
        object: value & DIRENT_OBJECT,
        kind: FileKind::from_type_bits((value >> 60) as u8),
        next,
    })
}

/// A directory opened for listing.
pub struct DirEntries<'f, O: Objects> {
    zap: Zap<'f, O>,
    directory: u64,
}

impl<'f, O: Objects> DirEntries<'f, O> {
    /// The entries from `cursor` on, in the directory's stable order, without "." and "..".
    pub fn from<'d>(
        &'d self,
        cursor: Cursor,
    ) -> impl Iterator<Item = Result<DirEntry, ZplError>> + use<'d, 'f, O> {
        let directory = self.directory;
        self.zap.entries(cursor).map(move |entry| dir_entry(directory, entry?))
    }

    /// All entries.
    pub fn all(&self) -> impl Iterator<Item = Result<DirEntry, ZplError>> + use<'_, 'f, O> {
        self.from(Cursor::START)
    }

    /// Number of entries, from the ZAP.
    pub fn count(&self) -> u64 {
        self.zap.count()
    }

    /// Number of hash bits in this directory's cursors ([`Cursor::serialize`]).
    pub fn hash_bits(&self) -> u32 {
        self.zap.hashing().hash_bits()
    }
}
