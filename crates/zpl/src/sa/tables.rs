//! Writing the registry and the layouts: `sa_setup`, `sa_attr_register_sync`, `sa_find_layout` of `module/zfs/sa.c`.

use super::{ATTR_COUNT, Attr, KNOWN, LAYOUTS_MAX, LEGACY_COUNT, Layout, Registered, SaTable};
use crate::error::ZplError;
use crate::normalize::NormFlags;
use crate::source::ObjectsMut;
use crate::zap::{NewZap, Value, ZapEdit};

/// `DMU_OT_SA_MASTER_NODE`.
pub(crate) const DMU_OT_SA_MASTER_NODE: u8 = 45;
/// `DMU_OT_SA_ATTR_REGISTRATION`.
const DMU_OT_SA_ATTR_REGISTRATION: u8 = 46;
/// `DMU_OT_SA_ATTR_LAYOUTS`.
const DMU_OT_SA_ATTR_LAYOUTS: u8 = 47;

/// Number of attributes that this crate registers: those of OpenZFS 2.3, so without `ZPL_SEQ`.
const REGISTERED_COUNT: usize = 22;
/// First stored layout. Layouts 0 (`znode_phys_t`) and 1 (empty) are never stored.
const FIRST_LAYOUT: u16 = 2;

/// `sa_bswap_type_t`: how an attribute is converted to the other byte order.
fn swap_class(attr: Attr) -> u64 {
    match attr {
        Attr::DaclAces => 4,
        Attr::ZnodeAcl | Attr::Symlink | Attr::Scanstamp | Attr::Dxattr => 3,
        _ => 0,
    }
}

impl SaTable {
    /// Whether the filesystem has an SA master node.
    pub(crate) fn is_stored(&self) -> bool {
        self.master != 0
    }

    /// Assigns numbers to the attributes that are not registered yet. They are registered when they are first used.
    pub(crate) fn prepare_writing(&mut self) {
        let mut next = match self.registry_object {
            Some(_) => self.stored.len() as u16,
            None => LEGACY_COUNT as u16,
        };
        for (attr, name, len) in &KNOWN[LEGACY_COUNT..REGISTERED_COUNT] {
            if self.number(*attr).is_some() {
                continue;
            }
            while self.registry.contains_key(&next) {
                next += 1;
            }
            debug_assert!(!self.stored.contains(*name));
            self.registry.insert(next, Registered { attr: Some(*attr), len: *len });
        }
    }

    /// The number that `attr` has in this filesystem.
    pub(crate) fn number(&self, attr: Attr) -> Option<u16> {
        match (attr as usize) < LEGACY_COUNT {
            true => Some(attr as u16),
            false => self
                .registry
                .iter()
                .find(|(_, registered)| registered.attr == Some(attr))
                .map(|(number, _)| *number),
        }
    }

    /// The numbers of all attributes, indexed by [`Attr`].
    pub(crate) fn numbers(&self) -> [Option<u16>; ATTR_COUNT] {
        KNOWN.map(|(attr, ..)| self.number(attr))
    }

    /// Length of attribute `number` in bytes, or 0 if it is variable.
    pub(crate) fn len_of(&self, number: u16) -> u16 {
        self.registry.get(&number).map_or(0, |registered| registered.len)
    }

    /// The ZPL's attribute with this `number`.
    pub(crate) fn attr_of(&self, number: u16) -> Option<Attr> {
        self.registry.get(&number).and_then(|registered| registered.attr)
    }

    pub(super) fn layout(&self, number: u16) -> Option<&Layout> {
        self.layouts.get(&number)
    }

    /// The number of the layout that lists `attributes`.
    pub(crate) fn find_layout(&self, attributes: &[u16]) -> Option<u16> {
        self.layouts.iter().find(|(_, layout)| layout.numbers == attributes).map(|(number, _)| *number)
    }

    /// Whether the table has room for another layout.
    pub(crate) fn has_room(&self) -> bool {
        self.layouts.len() + usize::from(FIRST_LAYOUT) + 2 < LAYOUTS_MAX
    }

    /// Creates the missing parts of the table, and the layout that lists `attributes` unless it exists.
    pub(crate) fn add_layout<O: ObjectsMut>(
        &mut self,
        objects: &O,
        tx: &O::Tx<'_>,
        attributes: &[u16],
        mut salt: impl FnMut() -> u64,
    ) -> Result<u16, ZplError> {
        if let Some(number) = self.find_layout(attributes) {
            return Ok(number);
        }
        self.register(objects, tx, &mut salt)?;
        let mut number = self.layouts.len() as u16 + FIRST_LAYOUT;
        while self.layouts.contains_key(&number) {
            number += 1;
        }
        if usize::from(number) >= LAYOUTS_MAX {
            return Err(ZplError::corrupt(self.master, format!("{number} SA layouts")));
        }
        let layouts = match self.layouts_object {
            Some(object) => object,
            None => self.link(objects, tx, "LAYOUTS", new_zap(DMU_OT_SA_ATTR_LAYOUTS, salt()))?,
        };
        self.layouts_object = Some(layouts);
        let integers = attributes.iter().map(|number| u64::from(*number)).collect();
        let mut edit = ZapEdit::open(objects, layouts)?;
        edit.update(number.to_string().as_bytes(), &Value::Many { integer_size: 2, integers })?;
        edit.write(tx)?;
        self.put_layout(number, attributes.to_vec());
        Ok(number)
    }

    fn register<O: ObjectsMut>(
        &mut self,
        objects: &O,
        tx: &O::Tx<'_>,
        salt: &mut impl FnMut() -> u64,
    ) -> Result<(), ZplError> {
        let missing = |(_, name, _): &&(Attr, &str, u16)| !self.stored.contains(*name);
        if KNOWN[..REGISTERED_COUNT].iter().find(missing).is_none() {
            return Ok(());
        }
        let registry = match self.registry_object {
            Some(object) => object,
            None => self.link(objects, tx, "REGISTRY", new_zap(DMU_OT_SA_ATTR_REGISTRATION, salt()))?,
        };
        self.registry_object = Some(registry);
        let mut edit = ZapEdit::open(objects, registry)?;
        for (attr, name, len) in &KNOWN[..REGISTERED_COUNT] {
            let Some(number) = self.number(*attr).filter(|_| !self.stored.contains(*name)) else { continue };
            // ATTR_LENGTH, ATTR_BSWAP, ATTR_NUM.
            let value = u64::from(*len) << 24 | swap_class(*attr) << 16 | u64::from(number);
            edit.update(name.as_bytes(), &Value::One(value))?;
        }
        edit.write(tx)?;
        self.stored.extend(KNOWN[..REGISTERED_COUNT].iter().map(|(_, name, _)| (*name).to_owned()));
        Ok(())
    }

    /// Creates a ZAP and adds its number to the SA master node: `zap_create_link`.
    fn link<O: ObjectsMut>(
        &self,
        objects: &O,
        tx: &O::Tx<'_>,
        name: &str,
        new: NewZap,
    ) -> Result<u64, ZplError> {
        let object = new.create(objects, tx)?;
        let mut edit = ZapEdit::open(objects, self.master)?;
        edit.add(name.as_bytes(), &Value::One(object))?;
        edit.write(tx)?;
        Ok(object)
    }
}

fn new_zap(object_type: u8, salt: u64) -> NewZap {
    NewZap { norm: NormFlags::NONE, ..NewZap::plain(object_type, salt) }
}
