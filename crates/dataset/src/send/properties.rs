//! Properties in a package (`send_iterate_prop` of `lib/libzfs/libzfs_sendrecv.c`).

use snowmelt_pool::Txg;
use snowmelt_stream::nvlist::{NvList, NvValue};

use crate::catalog::{Catalog, DatasetId, Kind as DatasetKind, PropertyKind};
use crate::error::DatasetError;
use crate::property::{self, IndexValue, Kind, Property, Types};

/// The properties of a dataset, or of one of its snapshots (`txg` not 0): local values, and received values that were
/// not overridden. With `received_only`, all received values (`-b`).
pub(super) fn list(
    catalog: &Catalog,
    id: DatasetId,
    txg: Txg,
    kind: DatasetKind,
    received_only: bool,
) -> Result<NvList, DatasetError> {
    let stored = catalog.stored_properties(id, txg)?;
    let is_set = |name: &str| stored.iter().any(|p| p.name == name && p.kind != PropertyKind::Received);
    let mut list = NvList::new();
    for property in &stored {
        let counts = match property.kind {
            PropertyKind::Local => !received_only,
            PropertyKind::Received => received_only || !is_set(&property.name),
            PropertyKind::Inherit => false,
        };
        if counts && let Some(value) = value(&property.name, &property.value, kind, txg != 0) {
            list.insert(property.name.clone(), value);
        }
    }
    Ok(list)
}

/// A stored value for the package; `None` if the property is not sent: statistics, properties that are fixed at
/// creation, and space limits of snapshots.
fn value(name: &str, text: &str, kind: DatasetKind, of_snapshot: bool) -> Option<NvValue> {
    if property::is_user_property(name) {
        return Some(text.into());
    }
    let property = property::find(name)?;
    // The size of a volume is in its data.
    let travels = !property.is_readonly() && !matches!(property.kind, Kind::VolumeSize);
    let is_limit = matches!(property.kind, Kind::Quota | Kind::Reservation | Kind::RefReservation);
    if !travels || (is_limit && of_snapshot) {
        return None;
    }
    match property.kind {
        Kind::Text(_) => Some(text.into()),
        _ => number(property, text, kind).map(NvValue::Uint64),
    }
}

fn number(property: &Property, text: &str, kind: DatasetKind) -> Option<u64> {
    if let Kind::Index(table) = property.kind
        && let Some(number) = IndexValue::number_in(table, text)
    {
        return Some(number);
    }
    let types = match kind {
        DatasetKind::Filesystem => Types::FILESYSTEM,
        DatasetKind::Volume => Types::VOLUME,
    };
    text.parse().ok().or_else(|| property.parse(text, types).ok()?.as_number())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_travel_as_zfs_sends_them() {
        let fs = |name, text| value(name, text, DatasetKind::Filesystem, false);
        assert_eq!(fs("compression", "lz4"), Some(NvValue::Uint64(15)));
        assert_eq!(fs("atime", "off"), Some(NvValue::Uint64(0)));
        assert_eq!(fs("recordsize", "32768"), Some(NvValue::Uint64(32768)));
        assert_eq!(fs("quota", "0"), Some(NvValue::Uint64(0)));
        assert_eq!(fs("quota", "none"), Some(NvValue::Uint64(0)));
        assert_eq!(fs("com.example:owner", "alice"), Some("alice".into()));
        assert_eq!(fs("mountpoint", "/x"), Some("/x".into()));
        assert_eq!(fs("casesensitivity", "mixed"), None, "set once");
        assert_eq!(fs("used", "5"), None, "a statistic");
        assert_eq!(fs("nosuch", "5"), None, "unknown");
        assert_eq!(value("volsize", "1024", DatasetKind::Volume, false), None);
        assert_eq!(value("quota", "1024", DatasetKind::Filesystem, true), None);
    }
}
