//! Changing the attributes of one object, as `sa_update`, `sa_modify_attrs` and `sa_build_layouts` of `module/zfs/sa.c`
//! do.
//!
//! If the length of an attribute stays the same, it is changed in place. Any other change lays out all attributes
//! again. As many as fit go into the bonus buffer, the others into a spill block.

use super::{Attr, HEADER_LEN, MAGIC, SaTable, SaValues};
use crate::bytes::{Endian, put_u16, put_u32};
use crate::error::ZplError;
use crate::source::{DMU_OT_SA, Dnode, ObjectsMut};
use parking_lot::RwLock;

/// `sizeof (sa_hdr_phys_t)`: size of a header with one length.
const HEADER_SIZE: usize = 8;
/// `sizeof (blkptr_t)`: size of the pointer to a spill block at the end of the bonus buffer.
const SPILL_POINTER: usize = 128;
/// `SPA_OLD_MAXBLOCKSIZE`: the largest spill block.
const SPILL_MAX: usize = 128 << 10;
/// Room in bytes that a new layout needs: blocks of the registry, the layouts and their master node.
const LAYOUT_ROOM: u64 = 64 << 10;
/// `SA_ATTR_MAX_LEN`.
pub(crate) const ATTR_MAX: usize = u16::MAX as usize;

/// `DN_BONUS_SIZE`: size of the bonus buffer in a dnode with this number of slots.
pub(crate) fn bonus_room(slots: u8) -> usize {
    usize::from(slots.max(1)) * 512 - 192
}

/// The place of an attribute.
#[derive(Debug, Clone, Copy)]
struct Place {
    number: u16,
    spilled: bool,
    at: usize,
    len: usize,
}

/// The layout of a buffer whose layout number is not resolved yet.
#[derive(Debug, Clone)]
struct Pending {
    attributes: Vec<u16>,
    header: usize,
    /// The filesystem already has this layout.
    known: bool,
}

/// The attributes of one object, with changes that are not written yet.
#[derive(Debug, Clone)]
pub(crate) struct SaEdit {
    object: u64,
    slots: u8,
    bonus: Vec<u8>,
    spill: Option<Vec<u8>>,
    places: Vec<Place>,
    /// Whether there is a spill block on disk.
    had_spill: bool,
    changed_bonus: bool,
    changed_spill: bool,
    pending_bonus: Option<Pending>,
    pending_spill: Option<Pending>,
}

/// The numbers of the attributes in one filesystem, indexed by [`Attr`].
pub(crate) type Numbers = [Option<u16>; super::ATTR_COUNT];

impl SaEdit {
    /// Reads the attributes from `dnode` and its spill block.
    pub(crate) fn read(table: &SaTable, dnode: Dnode, spill: Option<Vec<u8>>) -> Result<Self, ZplError> {
        let Dnode { object, slots, bonus_type, bonus, has_spill, .. } = dnode;
        if bonus_type != DMU_OT_SA {
            let what = format!("changing attributes in a bonus buffer of type {bonus_type}");
            return Err(ZplError::Unsupported { object, what });
        }
        let mut edit = Self {
            object,
            slots,
            bonus,
            spill,
            places: Vec::with_capacity(24),
            had_spill: has_spill,
            changed_bonus: false,
            changed_spill: false,
            pending_bonus: None,
            pending_spill: None,
        };
        edit.find_places(table, false)?;
        if edit.spill.is_some() {
            edit.find_places(table, true)?;
        }
        Ok(edit)
    }

    /// The attributes of a new object, in this order.
    pub(crate) fn new(table: &SaTable, slots: u8, attributes: &[(u16, &[u8])]) -> Result<Self, ZplError> {
        let mut edit = Self {
            object: 0,
            slots,
            bonus: Vec::new(),
            spill: None,
            places: Vec::new(),
            had_spill: false,
            changed_bonus: false,
            changed_spill: false,
            pending_bonus: None,
            pending_spill: None,
        };
        edit.lay_out(table, attributes)?;
        Ok(edit)
    }

    fn corrupt(&self, what: impl Into<String>) -> ZplError {
        ZplError::corrupt(self.object, what)
    }

    fn find_places(&mut self, table: &SaTable, spilled: bool) -> Result<(), ZplError> {
        let buf = if spilled { self.spill.as_deref().unwrap_or_default() } else { &self.bonus };
        match Endian::Little.u32(buf, 0) {
            Some(MAGIC) => {}
            Some(0) => return Ok(()),
            Some(magic) if magic.swap_bytes() == MAGIC => {
                let what = "changing attributes written in big-endian byte order".into();
                return Err(ZplError::Unsupported { object: self.object, what });
            }
            magic => return Err(self.corrupt(format!("SA magic is {:#x}", magic.unwrap_or(0)))),
        }
        let info = Endian::Little.u16(buf, 4).ok_or_else(|| self.corrupt("an SA buffer of 4 bytes"))?;
        let number = info & 0x3ff;
        let layout = match table.layout(number) {
            Some(layout) => layout,
            None if number < 2 => return Ok(()),
            None => return Err(self.corrupt(format!("SA layout {number} is unknown"))),
        };
        let mut at = (HEADER_LEN + 2 * layout.variable).next_multiple_of(8);
        let mut lengths = (0..layout.variable).map(|index| Endian::Little.u16(buf, HEADER_LEN + 2 * index));
        let mut places = Vec::with_capacity(layout.numbers.len());
        for (number, registered) in layout.numbers.iter().zip(&layout.registered) {
            let len = match registered.len {
                0 => lengths.next().flatten(),
                fixed => Some(fixed),
            };
            let Some(len) = len.map(usize::from).filter(|len| at + len <= buf.len()) else {
                return Err(self.corrupt(format!("attribute {number} runs past an SA buffer")));
            };
            places.push(Place { number: *number, spilled, at, len });
            at = (at + len).next_multiple_of(8);
        }
        self.places.extend(places);
        Ok(())
    }

    pub(crate) fn object(&self) -> u64 {
        self.object
    }

    fn bytes_at(&self, place: Place) -> &[u8] {
        let buf = if place.spilled { self.spill.as_deref().unwrap_or_default() } else { &self.bonus };
        buf.get(place.at..place.at + place.len).unwrap_or_default()
    }

    fn place(&self, number: u16) -> Option<Place> {
        self.places.iter().find(|place| place.number == number).copied()
    }

    /// The bytes of attribute `number`.
    pub(crate) fn get(&self, number: u16) -> Option<&[u8]> {
        self.place(number).map(|place| self.bytes_at(place))
    }

    /// Sets attribute `number`, or removes it if `value` is `None`.
    pub(crate) fn set(&mut self, table: &SaTable, number: u16, value: Option<&[u8]>) -> Result<(), ZplError> {
        let place = self.place(number);
        if let (Some(place), Some(value)) = (place, value)
            && place.len == value.len()
        {
            if self.bytes_at(place) == value {
                return Ok(());
            }
            let (buf, changed) = match place.spilled {
                true => (self.spill.get_or_insert_default(), &mut self.changed_spill),
                false => (&mut self.bonus, &mut self.changed_bonus),
            };
            *changed = true;
            if let Some(target) = buf.get_mut(place.at..place.at + place.len) {
                target.copy_from_slice(value);
            }
            return Ok(());
        }
        if place.is_none() && value.is_none() {
            return Ok(());
        }
        let before = self.clone();
        let mut attributes = Vec::with_capacity(self.places.len() + 1);
        for place in &before.places {
            match value {
                _ if place.number != number => attributes.push((place.number, before.bytes_at(*place))),
                Some(value) => attributes.push((number, value)),
                None => {}
            }
        }
        if let (None, Some(value)) = (place, value) {
            attributes.push((number, value));
        }
        self.lay_out(table, &attributes)
    }

    /// Lays out all attributes again.
    fn lay_out(&mut self, table: &SaTable, attributes: &[(u16, &[u8])]) -> Result<(), ZplError> {
        let lengths: Vec<(usize, bool)> =
            attributes.iter().map(|(number, value)| (value.len(), table.len_of(*number) == 0)).collect();
        let room = bonus_room(self.slots);
        let sizes = Sizes::of(&lengths, Some(room));
        let too_large = attributes.iter().any(|(_, value)| value.len() > ATTR_MAX);
        let spilled = sizes.spill_from.map_or(&[][..], |index| &lengths[index..]);
        let spill_sizes = Sizes::of(spilled, None);
        let spill_len = spill_sizes.total + spill_sizes.header;
        if too_large || sizes.total > SPILL_MAX || spill_len > SPILL_MAX {
            return Err(ZplError::AttributesFull { object: self.object, len: sizes.total });
        }
        if !table.has_room() {
            let what = "yet another order of attributes".into();
            return Err(ZplError::Unsupported { object: self.object, what });
        }
        let kept = sizes.spill_from.unwrap_or(attributes.len());
        let bonus_len = match sizes.spill_from {
            Some(_) => (room - SPILL_POINTER).min(sizes.total + sizes.header),
            None => sizes.total + sizes.header,
        };
        self.places.clear();
        let (in_bonus, in_spill) = attributes.split_at(kept);
        let (bonus, places) = fill(table, in_bonus, sizes.header, bonus_len);
        self.places.extend(places.into_iter().map(|place| Place { spilled: false, ..place }));
        self.bonus = bonus;
        self.changed_bonus = true;
        self.pending_bonus = Some(Pending::of(table, in_bonus, sizes.header));
        self.changed_spill |= self.spill.is_some() || !in_spill.is_empty();
        (self.spill, self.pending_spill) = match in_spill {
            [] => (None, None),
            _ => {
                let (spill, places) =
                    fill(table, in_spill, spill_sizes.header, spill_len.next_multiple_of(512));
                self.places.extend(places.into_iter().map(|place| Place { spilled: true, ..place }));
                (Some(spill), Some(Pending::of(table, in_spill, spill_sizes.header)))
            }
        };
        Ok(())
    }

    /// The attributes in the form that the reader uses.
    pub(crate) fn values(&self, table: &SaTable) -> SaValues<'_> {
        let mut values = SaValues { object: self.object, found: [None; super::ATTR_COUNT], legacy: false };
        for place in &self.places {
            if let Some(attr) = table.attr_of(place.number) {
                values.found[attr as usize] = Some((Endian::Little, self.bytes_at(*place)));
            }
        }
        values
    }

    /// Upper bound of the bytes that [`SaEdit::write`] writes to blocks.
    pub(crate) fn room(&self) -> u64 {
        let pending = [&self.pending_bonus, &self.pending_spill];
        let layouts = pending.into_iter().flatten().filter(|pending| !pending.known).count() as u64;
        self.spill.as_ref().map_or(0, |spill| spill.len() as u64) + 512 + layouts * LAYOUT_ROOM
    }

    /// Looks up the layout numbers, and creates layouts that do not exist.
    pub(crate) fn resolve<O: ObjectsMut>(
        &mut self,
        objects: &O,
        tx: &O::Tx<'_>,
        table: &RwLock<SaTable>,
        mut salt: impl FnMut() -> u64,
    ) -> Result<(), ZplError> {
        let buffers = [
            (self.pending_bonus.take(), Some(&mut self.bonus)),
            (self.pending_spill.take(), self.spill.as_mut()),
        ];
        for (pending, buf) in buffers {
            let (Some(pending), Some(buf)) = (pending, buf) else { continue };
            let found = table.read().find_layout(&pending.attributes);
            let number = match found {
                Some(number) => number,
                None => table.write().add_layout(objects, tx, &pending.attributes, &mut salt)?,
            };
            put_u16(buf, 4, number | (pending.header as u16 / 8) << 10);
        }
        Ok(())
    }

    /// The bonus buffer and the spill block of a new object.
    pub(crate) fn into_buffers(self) -> (Vec<u8>, Option<Vec<u8>>) {
        (self.bonus, self.spill)
    }

    /// Writes the changes.
    pub(crate) fn write<O: ObjectsMut>(
        mut self,
        objects: &O,
        tx: &O::Tx<'_>,
        table: &RwLock<SaTable>,
        salt: impl FnMut() -> u64,
    ) -> Result<(), ZplError> {
        self.resolve(objects, tx, table, salt)?;
        let object = self.object;
        let failed = |source| ZplError::Source { object, source };
        // The spill block is removed before the bonus buffer grows over its pointer. It is written only after the space
        // of the pointer is free.
        if self.had_spill && self.spill.is_none() && self.changed_spill {
            objects.set_spill(tx, object, None).map_err(failed)?;
        }
        if self.changed_bonus {
            objects.set_bonus(tx, object, DMU_OT_SA, self.bonus).map_err(failed)?;
        }
        if self.changed_spill && self.spill.is_some() {
            objects.set_spill(tx, object, self.spill).map_err(failed)?;
        }
        Ok(())
    }
}

impl Pending {
    fn of(table: &SaTable, attributes: &[(u16, &[u8])], header: usize) -> Self {
        let attributes: Vec<u16> = attributes.iter().map(|(number, _)| *number).collect();
        let known = table.find_layout(&attributes).is_some();
        Self { attributes, header, known }
    }
}

/// Builds a buffer of `len` bytes without the layout number. Returns it with the places of its attributes.
fn fill(table: &SaTable, attributes: &[(u16, &[u8])], header: usize, len: usize) -> (Vec<u8>, Vec<Place>) {
    let mut buf = vec![0; len.max(header)];
    put_u32(&mut buf, 0, MAGIC);
    let (mut at, mut length_at) = (header, HEADER_LEN);
    let mut places = Vec::with_capacity(attributes.len());
    for (number, value) in attributes {
        if table.len_of(*number) == 0 {
            put_u16(&mut buf, length_at, value.len() as u16);
            length_at += 2;
        }
        if let Some(target) = buf.get_mut(at..at + value.len()) {
            target.copy_from_slice(value);
        }
        places.push(Place { number: *number, spilled: false, at, len: value.len() });
        at = (at + value.len()).next_multiple_of(8);
    }
    (buf, places)
}

/// The result of `sa_find_sizes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sizes {
    /// Size of the header in bytes.
    header: usize,
    /// Size of all attributes in bytes, including those in the spill block.
    total: usize,
    /// Index of the first attribute in the spill block.
    spill_from: Option<usize>,
}

impl Sizes {
    /// Computes the sizes for attributes with these lengths, each with whether it is variable. `room` is the size of
    /// the bonus buffer, or `None` for a spill block.
    fn of(lengths: &[(usize, bool)], room: Option<usize>) -> Self {
        let (mut header, mut taken_back, mut variable) = (HEADER_SIZE, 0, 0);
        let (mut total, mut could_spill, mut spills) = (0usize, None, false);
        for (index, (len, varies)) in lengths.iter().enumerate() {
            total = total.next_multiple_of(8) + len;
            if spills {
                continue;
            }
            variable += usize::from(*varies);
            let another_length = *varies && variable > 1;
            let wider = header + if another_length { 2 } else { 0 };
            // In a bonus buffer: does the attribute overlap the place of a pointer to a spill block?
            let reaches = room.is_some_and(|room| {
                could_spill.is_none() && total + wider.next_multiple_of(8) > room - SPILL_POINTER
            });
            if another_length {
                if room.is_some_and(|room| wider + total >= room) {
                    could_spill = could_spill.or(Some(index));
                    spills = true;
                    continue;
                }
                header = wider;
                if could_spill.is_some() || reaches {
                    taken_back += 2;
                }
            }
            if reaches {
                could_spill = Some(index);
            }
            spills = room.is_some_and(|room| total + header.next_multiple_of(8) > room);
        }
        if spills {
            header -= taken_back;
        }
        Self { header: header.next_multiple_of(8), total, spill_from: could_spill.filter(|_| spills) }
    }
}

/// The number of `attr` in a filesystem, or `None` if it has none.
pub(crate) fn number_of(numbers: &Numbers, attr: Attr) -> Option<u16> {
    numbers.get(attr as usize).copied().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The attributes of a plain file. Its ACL of 3 entries is the first variable one.
    const BASE: [(usize, bool); 15] = [
        (8, false),
        (8, false),
        (8, false),
        (8, false),
        (8, false),
        (8, false),
        (8, false),
        (16, false),
        (16, false),
        (16, false),
        (16, false),
        (8, false),
        (8, false),
        (8, false),
        (24, true),
    ];

    fn with(len: usize) -> Sizes {
        let mut lengths = BASE.to_vec();
        lengths.push((len, true));
        Sizes::of(&lengths, Some(bonus_room(1)))
    }

    #[test]
    fn sizes_at_the_edge_of_the_bonus_buffer() {
        assert_eq!(Sizes::of(&BASE, Some(320)), Sizes { header: 8, total: 168, spill_from: None });
        assert_eq!(with(136), Sizes { header: 16, total: 304, spill_from: None });
        assert_eq!(with(137), Sizes { header: 8, total: 305, spill_from: Some(15) });
        assert_eq!(with(0).spill_from, None);
        assert_eq!(with(60_000), Sizes { header: 8, total: 60_168, spill_from: Some(15) });
        // Attributes in a spill block are never moved elsewhere.
        assert_eq!(Sizes::of(&[(60_000, true)], None), Sizes { header: 8, total: 60_000, spill_from: None });
        assert_eq!(Sizes::of(&[(1, true), (2, true), (3, true)], None).header, 16);
    }
}
