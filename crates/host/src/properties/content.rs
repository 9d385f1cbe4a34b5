//! Properties that are kept in the data itself: a volume's sizes, a filesystem's rules for names, the keys of an
//! encrypted dataset, and what an interrupted receive left.

use snowmelt_dataset::property::{DefaultValue, Property, Source, Value};
use snowmelt_dataset::receive::resume_token;
use snowmelt_dataset::{DatasetError, Kind, Objset};
use snowmelt_stream::nvlist::NvList;
use snowmelt_zpl::Filesystem;

use super::{Entity, Reader};

/// The values in a filesystem's master node (`module/zfs/zfs_vfsops.c`), in the order of [`NAMES`].
pub type NameRules = [u64; 4];

const NAMES: [&str; 4] = ["version", "utf8only", "normalization", "casesensitivity"];
/// Of a filesystem that nothing was written to yet.
const EMPTY: NameRules = [5, 0, 0, 0];

impl Reader<'_> {
    /// The value of a property that is kept in the data; `None` if the property is not, or has only its default.
    pub(super) fn content(
        &self,
        entity: &Entity,
        property: &Property,
    ) -> Result<Option<Option<(Value, Source)>>, DatasetError> {
        if let Some(at) = NAMES.iter().position(|name| *name == property.name) {
            let rules = self.name_rules(entity)?;
            let number = rules.and_then(|rules| rules.get(at).copied());
            return Ok(Some(number.map(|number| (Value::Number(number), Source::None))));
        }
        match property.name {
            "volsize" | "volblocksize" => self.volume(entity, property).map(Some),
            "receive_resume_token" => match entity {
                Entity::Dataset(dataset) => {
                    let token = resume_token(self.catalog, dataset.id)?;
                    Ok(Some(token.map(|token| (token.into(), Source::None))))
                }
                _ => Ok(Some(None)),
            },
            "encryption" | "keyformat" | "pbkdf2iters" | "keylocation" | "encryptionroot" | "keystatus" => {
                self.key(entity, property.name)
            }
            _ => Ok(None),
        }
    }

    /// The objset of a dataset or snapshot.
    fn objset(&self, entity: &Entity) -> Result<Option<Objset>, DatasetError> {
        Ok(match entity {
            Entity::Dataset(dataset) => Some(self.catalog.head(dataset)?),
            Entity::Snapshot(snapshot, _) => Some(self.catalog.objset(snapshot)),
            Entity::Bookmark(..) => None,
        })
    }

    fn volume(&self, entity: &Entity, property: &Property) -> Result<Option<(Value, Source)>, DatasetError> {
        if entity.content_kind() != Some(Kind::Volume) {
            return Ok(None);
        }
        let Some(objset) = self.objset(entity)? else { return Ok(None) };
        let is_size = property.name == "volsize";
        match if is_size { objset.volume_size() } else { objset.volume_block_size() } {
            Ok(size) if is_size => Ok(Some((size.into(), Source::Local))),
            // As `dsl_prop_nvlist_add_uint64` has it: who chose another one is not known.
            Ok(size) => {
                let is_default = property.default == DefaultValue::Number(size);
                Ok(Some((size.into(), if is_default { Source::Default } else { Source::None })))
            }
            Err(error @ DatasetError::Pool(_)) => Err(error),
            // Encrypted, or half received.
            Err(_) => Ok(None),
        }
    }

    /// `None` where there is no filesystem to be read.
    fn name_rules(&self, entity: &Entity) -> Result<Option<NameRules>, DatasetError> {
        let (Some(Kind::Filesystem), Some(place)) = (entity.content_kind(), entity.place()) else {
            return Ok(None);
        };
        if let Some(known) = self.name_rules.borrow().get(&place) {
            return Ok(*known);
        }
        let Some(objset) = self.objset(entity)? else { return Ok(None) };
        let rules = if objset.is_encrypted() {
            None
        } else if objset.dnode(1)?.is_none() {
            Some(EMPTY)
        } else {
            Filesystem::open(objset).ok().map(|fs| {
                let rule = |name| fs.master_node(name).ok().flatten().unwrap_or(0);
                [fs.version(), rule("utf8only"), rule("normalization"), rule("casesensitivity")]
            })
        };
        self.name_rules.borrow_mut().insert(place, rules);
        Ok(rules)
    }

    /// Of datasets that are not encrypted the defaults hold.
    fn key(&self, entity: &Entity, name: &str) -> Result<Option<Option<(Value, Source)>>, DatasetError> {
        let none = if matches!(name, "encryptionroot" | "keystatus") { Ok(Some(None)) } else { Ok(None) };
        let Some((id, txg)) = entity.place() else { return none };
        let Some(packed) = self.catalog.key_data(id, txg)? else { return none };
        let keys = NvList::unpack(&packed).unwrap_or_default();
        let number = |key: &str| keys.get_u64(key).map(|number| (Value::Number(number), Source::None));
        Ok(Some(match name {
            "encryption" => number("DSL_CRYPTO_SUITE"),
            "keyformat" | "pbkdf2iters" => number(name),
            "keylocation" if self.catalog.encryption_root(id)? != id => {
                Some(("none".into(), Source::Default))
            }
            // The set value, or else the one that a raw receive sets.
            "keylocation" => match self.set_value(entity, name, false)? {
                Some(_) => return Ok(None),
                None => Some(("prompt".into(), Source::Local)),
            },
            "encryptionroot" => {
                let root = self.catalog.dataset_by_id(self.catalog.encryption_root(id)?)?;
                Some((root.name.into(), Source::None))
            }
            // ZFS_KEYSTATUS_UNAVAILABLE
            _ => Some((Value::Number(1), Source::None)),
        }))
    }
}
