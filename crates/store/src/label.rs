//! The label: which pool a store belongs to, and its layout. It is one page, the same for directories and files.
//!
//! Format: `docs/format/store.md`, "The label".

use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::codec::{self, SUM_LEN};
use crate::{Result, StoreError};

/// Length of a label in bytes.
pub(crate) const LABEL_LEN: usize = 4096;
/// The first bytes of a label. They also identify a file that holds a pool.
pub(crate) const MAGIC: &[u8; 8] = b"SNOWMELT";
/// The maximum length of a pool name in bytes, as in OpenZFS (`ZFS_MAX_DATASET_NAME_LEN` without its NUL).
pub(crate) const NAME_MAX: usize = 255;

/// The maximum number of members of a mirror.
pub(crate) const MEMBERS_MAX: usize = 8;

const VERSION: u32 = 1;
/// The version of a label that has the record of a mirror.
const VERSION_MIRROR: u32 = 2;

const OFF_MAGIC: usize = 0;
const OFF_VERSION: usize = 8; // u32
const OFF_KIND: usize = 12; // u32
const OFF_GUID: usize = 16; // u64
const OFF_SEQ: usize = 24; // u64
const OFF_FLAGS: usize = 32; // u64
const OFF_SLOT_LEN: usize = 40; // u64, file store: bytes of a segment slot
const OFF_SLOT_COUNT: usize = 48; // u64, file store: number of slots
const OFF_SLOT_BASE: usize = 56; // u64, file store: offset of the first slot
const OFF_NAME_LEN: usize = 64; // u16
const OFF_NAME: usize = 66;
const OFF_MEMBER: usize = 512; // u64, version 2: guid of this member
const OFF_MEMBERS: usize = 520; // u16, version 2: number of members
const OFF_MEMBER_LIST: usize = 522; // for each member: guid (u64), length of its path (u16), path
const OFF_SUM: usize = LABEL_LEN - SUM_LEN; // BLAKE3 of all bytes before it

const _: () = assert!(OFF_NAME + NAME_MAX <= OFF_MEMBER);

const FLAG_MADE_DIRECTORY: u64 = 1;

/// The name and guid of a pool, as its label holds them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolLabel {
    /// The pool's name.
    pub name: String,
    /// The pool's guid.
    pub guid: u64,
}

/// The part of a member's label from which the other members are found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MirrorLabel {
    /// The guid of the member that holds this label.
    pub member: u64,
    /// The guid and the last known path of every member, this one included.
    pub members: Vec<(u64, PathBuf)>,
}

/// The kind and layout of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    Directory {
        /// Whether the directory was made for the pool, so that it is removed with the pool.
        made: bool,
    },
    File {
        slot_len: u64,
        slot_count: u64,
        slot_base: u64,
    },
    /// Objects below a prefix in an object store.
    Object,
}

/// The contents of a label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Label {
    pub(crate) pool: PoolLabel,
    /// Sequence number. Of two copies, the one with the greater number is valid.
    pub(crate) seq: u64,
    pub(crate) layout: Layout,
    /// The record of the mirror, if the store is a member of one.
    pub(crate) mirror: Option<MirrorLabel>,
}

/// Checks whether the name fits a label. The rules for names of pools are in higher layers.
pub(crate) fn check_name(label: &PoolLabel, path: &Path) -> Result<()> {
    let why = match label.name.len() {
        0 => "the pool's name is empty".to_owned(),
        len if len > NAME_MAX => {
            format!("the pool's name is {len} bytes long, {NAME_MAX} is the most")
        }
        _ if label.name.contains(['/', '\0']) => "a pool's name cannot contain a slash or NUL".to_owned(),
        _ => return Ok(()),
    };
    Err(StoreError::Invalid { path: path.to_owned(), why })
}

impl Label {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut page = vec![0; LABEL_LEN];
        let (kind, flags, [slot_len, slot_count, slot_base]) = match self.layout {
            Layout::Directory { made } => (1u32, if made { FLAG_MADE_DIRECTORY } else { 0 }, [0; 3]),
            Layout::File { slot_len, slot_count, slot_base } => (2, 0, [slot_len, slot_count, slot_base]),
            Layout::Object => (3, 0, [0; 3]),
        };
        codec::put(&mut page, OFF_MAGIC, MAGIC);
        let version = if self.mirror.is_some() { VERSION_MIRROR } else { VERSION };
        codec::put(&mut page, OFF_VERSION, &version.to_le_bytes());
        codec::put(&mut page, OFF_KIND, &kind.to_le_bytes());
        codec::put(&mut page, OFF_GUID, &self.pool.guid.to_le_bytes());
        codec::put(&mut page, OFF_SEQ, &self.seq.to_le_bytes());
        codec::put(&mut page, OFF_FLAGS, &flags.to_le_bytes());
        codec::put(&mut page, OFF_SLOT_LEN, &slot_len.to_le_bytes());
        codec::put(&mut page, OFF_SLOT_COUNT, &slot_count.to_le_bytes());
        codec::put(&mut page, OFF_SLOT_BASE, &slot_base.to_le_bytes());
        codec::put(&mut page, OFF_NAME_LEN, &(self.pool.name.len() as u16).to_le_bytes());
        codec::put(&mut page, OFF_NAME, self.pool.name.as_bytes());
        if let Some(mirror) = &self.mirror {
            mirror.encode(&mut page);
        }
        let sum = codec::sum(&[&page[..OFF_SUM]]);
        codec::put(&mut page, OFF_SUM, &sum);
        page
    }

    /// Returns this label with another record of the mirror, or without one.
    pub(crate) fn mirrored(&self, mirror: Option<&MirrorLabel>, path: &Path) -> Result<Self> {
        if let Some(mirror) = mirror {
            mirror.check(path)?;
        }
        Ok(Self { seq: self.seq.wrapping_add(1), mirror: mirror.cloned(), ..self.clone() })
    }

    /// Returns this label with the name of `pool`. The guid must be the same, because uberblocks contain it.
    pub(crate) fn renamed(&self, pool: &PoolLabel, path: &Path) -> Result<Self> {
        check_name(pool, path)?;
        if pool.guid != self.pool.guid {
            let why = format!("its pool has guid {}, not {}", self.pool.guid, pool.guid);
            return Err(StoreError::Invalid { path: path.to_owned(), why });
        }
        Ok(Self { pool: pool.clone(), seq: self.seq.wrapping_add(1), ..self.clone() })
    }

    /// # Errors
    /// A sentence that says what is wrong.
    pub(crate) fn decode(page: &[u8]) -> Result<Self, String> {
        if page.get(OFF_MAGIC..OFF_VERSION) != Some(MAGIC) {
            return Err("it has no label".to_owned());
        }
        match codec::u32_at(page, OFF_VERSION) {
            Some(VERSION | VERSION_MIRROR) => {}
            Some(version) => {
                return Err(format!(
                    "its label is of version {version}, this program knows {VERSION_MIRROR}"
                ));
            }
            None => return Err("its label is cut short".to_owned()),
        }
        if page.len() != LABEL_LEN || codec::bytes_at(page, OFF_SUM) != Some(codec::sum(&[&page[..OFF_SUM]]))
        {
            return Err("its label is damaged (checksum mismatch)".to_owned());
        }
        Self::decode_fields(page).ok_or_else(|| "its label makes no sense".to_owned())
    }

    fn decode_fields(page: &[u8]) -> Option<Self> {
        let len = usize::from(codec::u16_at(page, OFF_NAME_LEN)?);
        let name =
            page.get(OFF_NAME..OFF_NAME.checked_add(len).filter(|&end| len <= NAME_MAX && end <= OFF_SUM)?)?;
        let name = std::str::from_utf8(name).ok()?.to_owned();
        let flags = codec::u64_at(page, OFF_FLAGS)?;
        let layout = match codec::u32_at(page, OFF_KIND)? {
            1 => Layout::Directory { made: flags & FLAG_MADE_DIRECTORY != 0 },
            2 => Layout::File {
                slot_len: codec::u64_at(page, OFF_SLOT_LEN)?,
                slot_count: codec::u64_at(page, OFF_SLOT_COUNT)?,
                slot_base: codec::u64_at(page, OFF_SLOT_BASE)?,
            },
            3 => Layout::Object,
            _ => return None,
        };
        let mirror = match codec::u32_at(page, OFF_VERSION)? {
            VERSION_MIRROR => Some(MirrorLabel::decode(page)?),
            _ => None,
        };
        let guid = codec::u64_at(page, OFF_GUID)?;
        Some(Self { pool: PoolLabel { name, guid }, seq: codec::u64_at(page, OFF_SEQ)?, layout, mirror })
    }
}

impl MirrorLabel {
    fn len(&self) -> usize {
        self.members.iter().map(|(_, path)| 10 + path.as_os_str().len()).sum()
    }

    /// Checks whether the record fits a label.
    fn check(&self, path: &Path) -> Result<()> {
        let why = match () {
            () if self.members.len() > MEMBERS_MAX => {
                format!("a mirror has {MEMBERS_MAX} members at most")
            }
            () if OFF_MEMBER_LIST + self.len() > OFF_SUM => {
                "the paths of the mirror's members are too long for their labels".to_owned()
            }
            () => return Ok(()),
        };
        Err(StoreError::Invalid { path: path.to_owned(), why })
    }

    /// Writes the record into `page`. [`check`](Self::check) must have accepted it.
    fn encode(&self, page: &mut [u8]) {
        codec::put(page, OFF_MEMBER, &self.member.to_le_bytes());
        codec::put(page, OFF_MEMBERS, &(self.members.len() as u16).to_le_bytes());
        let mut at = OFF_MEMBER_LIST;
        for (guid, path) in &self.members {
            let path = path.as_os_str().as_bytes();
            codec::put(page, at, &guid.to_le_bytes());
            codec::put(page, at + 8, &(path.len() as u16).to_le_bytes());
            codec::put(page, at + 10, path);
            at += 10 + path.len();
        }
    }

    fn decode(page: &[u8]) -> Option<Self> {
        let member = codec::u64_at(page, OFF_MEMBER)?;
        let count = usize::from(codec::u16_at(page, OFF_MEMBERS)?);
        if count > MEMBERS_MAX {
            return None;
        }
        let mut members = Vec::new();
        let mut at = OFF_MEMBER_LIST;
        for _ in 0..count {
            let guid = codec::u64_at(page, at)?;
            let len = usize::from(codec::u16_at(page, at.checked_add(8)?)?);
            let start = at.checked_add(10)?;
            at = start.checked_add(len).filter(|&end| end <= OFF_SUM)?;
            let path = std::ffi::OsString::from_vec(page.get(start..at)?.to_vec());
            members.push((guid, PathBuf::from(path)));
        }
        Some(Self { member, members })
    }
}
