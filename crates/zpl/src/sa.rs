//! System attributes: the format of a file's metadata in its bonus buffer and spill block.
//!
//! A buffer begins with a small header that contains the number of a *layout*. A layout is a list of attribute numbers,
//! stored once per filesystem. The *registry* contains the name and length of each attribute. Lengths of variable
//! attributes are in the header. Sources: `include/sys/sa_impl.h`, `module/zfs/sa.c`, `include/sys/zfs_sa.h` of
//! OpenZFS. Filesystems of ZPL versions before 5 have a fixed `znode_phys_t` instead, which is read like one more
//! layout.

use crate::bytes::Endian;
use crate::error::ZplError;
use crate::source::{DMU_OT_SA, DMU_OT_ZNODE, Dnode, Objects};
use crate::zap::{Cursor, Zap};
use std::collections::{BTreeMap, HashSet};

pub(crate) mod edit;
pub(crate) mod tables;

/// `SA_MAGIC`.
const MAGIC: u32 = 0x002F_505A;
/// Length of the magic, layout number and header size.
const HEADER_LEN: usize = 6;
/// `ZFS_OLD_ZNODE_PHYS_SIZE`: length of a `znode_phys_t`. The target of a symlink may follow it.
pub const ZNODE_LEN: usize = 0x108;
/// Limits on the number of attributes and layouts. The number and count of one layout are bounded by the ZAP value that
/// holds them.
const REGISTRY_MAX: usize = 4096;
const LAYOUTS_MAX: usize = 1024;

/// The attributes of the ZPL (`zpl_attr_t`), in the order of OpenZFS's `zfs_attr_table`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Attr {
    Atime,
    Mtime,
    Ctime,
    Crtime,
    Gen,
    Mode,
    Size,
    Parent,
    Links,
    Xattr,
    Rdev,
    Flags,
    Uid,
    Gid,
    Pad,
    ZnodeAcl,
    DaclCount,
    Symlink,
    Scanstamp,
    DaclAces,
    Dxattr,
    Projid,
    Seq,
}

const ATTR_COUNT: usize = 23;

/// Name of each attribute, and its length in bytes. Length 0 means variable.
const KNOWN: [(Attr, &str, u16); ATTR_COUNT] = [
    (Attr::Atime, "ZPL_ATIME", 16),
    (Attr::Mtime, "ZPL_MTIME", 16),
    (Attr::Ctime, "ZPL_CTIME", 16),
    (Attr::Crtime, "ZPL_CRTIME", 16),
    (Attr::Gen, "ZPL_GEN", 8),
    (Attr::Mode, "ZPL_MODE", 8),
    (Attr::Size, "ZPL_SIZE", 8),
    (Attr::Parent, "ZPL_PARENT", 8),
    (Attr::Links, "ZPL_LINKS", 8),
    (Attr::Xattr, "ZPL_XATTR", 8),
    (Attr::Rdev, "ZPL_RDEV", 8),
    (Attr::Flags, "ZPL_FLAGS", 8),
    (Attr::Uid, "ZPL_UID", 8),
    (Attr::Gid, "ZPL_GID", 8),
    (Attr::Pad, "ZPL_PAD", 32),
    (Attr::ZnodeAcl, "ZPL_ZNODE_ACL", 88),
    (Attr::DaclCount, "ZPL_DACL_COUNT", 8),
    (Attr::Symlink, "ZPL_SYMLINK", 0),
    (Attr::Scanstamp, "ZPL_SCANSTAMP", 32),
    (Attr::DaclAces, "ZPL_DACL_ACES", 0),
    (Attr::Dxattr, "ZPL_DXATTR", 0),
    (Attr::Projid, "ZPL_PROJID", 8),
    (Attr::Seq, "ZPL_SEQ", 8),
];

/// The first sixteen attributes make up a `znode_phys_t` and have fixed numbers (`sa_legacy_attrs`).
const LEGACY_COUNT: usize = 16;

/// One registered attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Registered {
    /// The ZPL's attribute, or `None` for an unknown one, which is skipped.
    attr: Option<Attr>,
    /// Length in bytes, or 0 for variable.
    len: u16,
}

/// A list of attributes with their registry entries. The copy avoids a lookup in the registry for every buffer.
#[derive(Debug, Clone)]
struct Layout {
    numbers: Vec<u16>,
    registered: Vec<Registered>,
    /// Number of attributes whose lengths are in the header.
    variable: usize,
}

/// The registry and layouts of one filesystem.
#[derive(Debug, Clone, Default)]
pub struct SaTable {
    registry: BTreeMap<u16, Registered>,
    layouts: BTreeMap<u16, Layout>,
    /// Names in the registry as stored.
    stored: HashSet<String>,
    /// The SA master node.
    master: u64,
    registry_object: Option<u64>,
    layouts_object: Option<u64>,
}

impl SaTable {
    /// The table of a filesystem without SA. It contains only the attributes of a `znode_phys_t`.
    pub fn legacy() -> Self {
        let known = |(number, (attr, _, len)): (usize, &(Attr, &str, u16))| {
            (number as u16, Registered { attr: Some(*attr), len: *len })
        };
        let registry = KNOWN[..LEGACY_COUNT].iter().enumerate().map(known).collect();
        Self { registry, ..Self::default() }
    }

    /// Reads the registry and the layouts from the SA master node (`SA_ATTRS` of the filesystem's master node).
    ///
    /// # Errors
    /// If ZAPs cannot be read or have unexpected content.
    pub fn load<O: Objects + ?Sized>(objects: &O, master: u64) -> Result<Self, ZplError> {
        let mut table = Self { master, ..Self::legacy() };
        let zap = Zap::open(objects, master)?;
        table.registry_object = zap.lookup_u64("REGISTRY")?;
        table.layouts_object = zap.lookup_u64("LAYOUTS")?;
        if let Some(registry) = table.registry_object {
            table.load_registry(objects, registry)?;
        }
        if let Some(layouts) = table.layouts_object {
            table.load_layouts(objects, layouts)?;
        }
        Ok(table)
    }

    fn load_registry<O: Objects + ?Sized>(&mut self, objects: &O, object: u64) -> Result<(), ZplError> {
        for entry in Zap::open(objects, object)?.entries(Cursor::START) {
            let entry = entry?;
            let (Some(name), Some(value)) = (entry.key.as_name(), entry.value.as_u64()) else {
                return Err(ZplError::corrupt(object, "an SA registry entry is not one 64-bit integer"));
            };
            // The value contains ATTR_NUM and ATTR_LENGTH. The byte-swapping class between them follows from the
            // attribute.
            let (number, len) = (value as u16, (value >> 24) as u16);
            let known = KNOWN.iter().find(|(_, known, _)| known.as_bytes() == name);
            if let Some((_, name, expected)) = known.filter(|(_, _, expected)| *expected != len) {
                let what = format!("attribute {name} is registered with {len} bytes, not {expected}");
                return Err(ZplError::corrupt(object, what));
            }
            if self.registry.len() >= REGISTRY_MAX {
                return Err(ZplError::corrupt(
                    object,
                    format!("more than {REGISTRY_MAX} attributes registered"),
                ));
            }
            self.registry.insert(number, Registered { attr: known.map(|(attr, _, _)| *attr), len });
            self.stored.insert(String::from_utf8_lossy(name).into_owned());
        }
        Ok(())
    }

    fn load_layouts<O: Objects + ?Sized>(&mut self, objects: &O, object: u64) -> Result<(), ZplError> {
        for entry in Zap::open(objects, object)?.entries(Cursor::START) {
            let entry = entry?;
            let name = entry.key.as_name().unwrap_or_default();
            let number = std::str::from_utf8(name).ok().and_then(|name| name.parse::<u16>().ok());
            let Some(number) = number.filter(|number| usize::from(*number) < LAYOUTS_MAX) else {
                let what = format!("an SA layout called {:?}", String::from_utf8_lossy(name));
                return Err(ZplError::corrupt(object, what));
            };
            let layout: Vec<u16> = entry.value.integers().iter().map(|number| *number as u16).collect();
            if let Some(number) = layout.iter().find(|number| !self.registry.contains_key(number)) {
                let what = format!("an SA layout names attribute {number}, which is not registered");
                return Err(ZplError::corrupt(object, what));
            }
            self.put_layout(number, layout);
        }
        Ok(())
    }

    /// Adds a layout. Attributes that are not registered become unknown ones of variable length.
    fn put_layout(&mut self, number: u16, numbers: Vec<u16>) {
        let unknown = Registered { attr: None, len: 0 };
        let registered = |number| self.registry.get(number).copied().unwrap_or(unknown);
        let registered: Vec<_> = numbers.iter().map(registered).collect();
        let variable = registered.iter().filter(|one| one.len == 0).count();
        self.layouts.insert(number, Layout { numbers, registered, variable });
    }

    /// Finds each attribute in `dnode`'s bonus buffer and, if there is one, in `spill`.
    ///
    /// # Errors
    /// If the object has no ZPL attributes or they are malformed.
    pub fn parse<'b>(&self, dnode: &'b Dnode, spill: Option<&'b [u8]>) -> Result<SaValues<'b>, ZplError> {
        let mut values = SaValues { object: dnode.object, found: [None; ATTR_COUNT], legacy: false };
        match dnode.bonus_type {
            DMU_OT_SA => self.parse_buffer(dnode.object, &dnode.bonus, &mut values)?,
            DMU_OT_ZNODE => parse_znode(dnode, &mut values)?,
            other => {
                let what = format!("its bonus buffer (type {other}) holds no file attributes");
                return Err(ZplError::corrupt(dnode.object, what));
            }
        }
        if let Some(spill) = spill {
            self.parse_buffer(dnode.object, spill, &mut values)?;
        }
        Ok(values)
    }

    fn parse_buffer<'b>(
        &self,
        object: u64,
        buf: &'b [u8],
        values: &mut SaValues<'b>,
    ) -> Result<(), ZplError> {
        let corrupt = |what: String| ZplError::corrupt(object, what);
        let endian = match Endian::Little.u32(buf, 0) {
            Some(MAGIC) => Endian::Little,
            // A buffer to which no attributes were ever written.
            Some(0) => return Ok(()),
            Some(other) if other.swap_bytes() == MAGIC => Endian::Big,
            other => return Err(corrupt(format!("SA magic is {:#x}, not {MAGIC:#x}", other.unwrap_or(0)))),
        };
        let info =
            endian.u16(buf, 4).ok_or_else(|| corrupt(format!("an SA buffer of {} bytes", buf.len())))?;
        let number = info & 0x3ff;
        let Some(layout) = self.layouts.get(&number) else {
            // Layouts 0 and 1 are never stored. Both are treated as empty.
            return if number <= 1 { Ok(()) } else { Err(corrupt(format!("SA layout {number} is unknown"))) };
        };
        let mut at = (HEADER_LEN + 2 * layout.variable).next_multiple_of(8);
        let mut lengths = (0..layout.variable).map(|index| endian.u16(buf, HEADER_LEN + 2 * index));
        for (number, &Registered { attr, len }) in layout.numbers.iter().zip(&layout.registered) {
            let len = if len == 0 { lengths.next().flatten() } else { Some(len) };
            let bytes = len.and_then(|len| buf.get(at..at + usize::from(len)));
            let Some(bytes) = bytes else {
                return Err(corrupt(format!(
                    "attribute {number} at byte {at} runs past an SA buffer of {}",
                    buf.len()
                )));
            };
            if let Some(attr) = attr {
                values.found[attr as usize] = Some((endian, bytes));
            }
            at = (at + bytes.len()).next_multiple_of(8);
        }
        Ok(())
    }
}

/// Offset of each attribute in a `znode_phys_t` (`include/sys/zfs_sa.h`).
const ZNODE: [(Attr, usize); LEGACY_COUNT - 1] = [
    (Attr::Atime, 0),
    (Attr::Mtime, 16),
    (Attr::Ctime, 32),
    (Attr::Crtime, 48),
    (Attr::Gen, 64),
    (Attr::Mode, 72),
    (Attr::Size, 80),
    (Attr::Parent, 88),
    (Attr::Links, 96),
    (Attr::Xattr, 104),
    (Attr::Rdev, 112),
    (Attr::Flags, 120),
    (Attr::Uid, 128),
    (Attr::Gid, 136),
    (Attr::ZnodeAcl, 176),
];

fn parse_znode<'b>(dnode: &'b Dnode, values: &mut SaValues<'b>) -> Result<(), ZplError> {
    let bonus = &dnode.bonus;
    // There is no magic number here. But a mode has its file type in the low 16 bits, and zeros above.
    let mode = Endian::Little.u64(bonus, 72);
    let endian = match mode {
        Some(mode) if mode <= 0xffff => Endian::Little,
        Some(mode) if mode.swap_bytes() <= 0xffff => Endian::Big,
        _ => return Err(ZplError::corrupt(dnode.object, "its znode holds no file mode")),
    };
    for (attr, at) in ZNODE {
        let len = usize::from(KNOWN[attr as usize].2);
        let bytes = bonus.get(at..at + len).ok_or_else(|| {
            ZplError::corrupt(dnode.object, format!("a znode of {} bytes, not {ZNODE_LEN}", bonus.len()))
        })?;
        values.found[attr as usize] = Some((endian, bytes));
    }
    values.legacy = true;
    Ok(())
}

/// The attributes of one object, borrowed from its buffers.
#[derive(Debug, Clone)]
pub struct SaValues<'b> {
    object: u64,
    found: [Option<(Endian, &'b [u8])>; ATTR_COUNT],
    legacy: bool,
}

impl<'b> SaValues<'b> {
    /// Whether the attributes come from a `znode_phys_t`.
    pub fn is_legacy(&self) -> bool {
        self.legacy
    }

    /// The raw bytes of `attr` and their byte order.
    pub fn bytes(&self, attr: Attr) -> Option<(Endian, &'b [u8])> {
        self.found[attr as usize]
    }

    /// Word `index` of `attr`, an attribute that consists of 64-bit integers.
    pub fn word(&self, attr: Attr, index: usize) -> Option<u64> {
        let (endian, bytes) = self.bytes(attr)?;
        endian.u64(bytes, index * 8)
    }

    /// The first word of a required attribute.
    ///
    /// # Errors
    /// If the attribute is missing.
    pub fn required(&self, attr: Attr) -> Result<u64, ZplError> {
        self.word(attr, 0).ok_or_else(|| {
            ZplError::corrupt(self.object, format!("attribute {} is missing", KNOWN[attr as usize].1))
        })
    }
}

#[cfg(test)]
mod tests;
