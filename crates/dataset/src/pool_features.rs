//! Features of a pool (zpool-features(7)): which there are, which are disabled, and which are in use.
//!
//! A disabled feature does not change how the pool stores data. It restricts properties, bookmarks and streams: a pool
//! without `large_blocks` sends nothing that a ZFS pool without this feature refuses. As in ZFS, features are disabled
//! when the pool is created, and can be enabled later.

use std::collections::BTreeSet;

use snowmelt_pool::{Pool, PoolError};
use snowmelt_stream::features::Features;

use crate::catalog::{Catalog, Dataset};
use crate::datasets::Datasets;
use crate::error::DatasetError;

/// The property of a pool that names its disabled features, separated by commas.
const DISABLED: &str = "disabled_features";
/// What most features need (`extensible_dataset`), and which of ours do not.
const BASE: &str = "extensible_dataset";
const WITHOUT_BASE: [&str; 5] =
    ["async_destroy", "empty_bpobj", "lz4_compress", "hole_birth", "embedded_data"];
/// Largest block of a pool without `large_blocks` (`SPA_OLD_MAXBLOCKSIZE`).
const OLD_BLOCK_MAX: u64 = 128 << 10;

/// Features that are in use from the first moment on, unless they are disabled.
pub const FROM_THE_FIRST: [&str; 7] = [
    "async_destroy",
    "empty_bpobj",
    "lz4_compress",
    "hole_birth",
    BASE,
    "embedded_data",
    "userobj_accounting",
];
/// Features that are in use when something uses them.
pub const WHEN_USED: [&str; 19] = [
    "filesystem_limits",
    "bookmarks",
    "large_blocks",
    "large_dnode",
    "sha512",
    "skein",
    "edonr",
    "encryption",
    "project_quota",
    "resilver_defer",
    "bookmark_v2",
    "bookmark_written",
    "redaction_bookmarks",
    "redacted_datasets",
    "livelist",
    "zstd_compress",
    "blake3",
    "longname",
    "large_microzap",
];

/// All features by name.
pub fn names() -> impl Iterator<Item = &'static str> {
    FROM_THE_FIRST.into_iter().chain(WHEN_USED)
}

/// The names of a pool's disabled features.
///
/// # Errors
/// When the pool cannot be read.
pub fn disabled(pool: &Pool) -> Result<BTreeSet<String>, PoolError> {
    let text = pool.property(DISABLED)?.unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    Ok(text.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect())
}

/// Disables features of a pool that is being made.
///
/// # Errors
/// When the pool cannot be written.
pub fn disable<'a>(pool: &Pool, names: impl IntoIterator<Item = &'a str>) -> Result<(), PoolError> {
    let mut off = disabled(pool)?;
    off.extend(names.into_iter().map(str::to_owned));
    put(pool, &off)
}

/// Enables features, and what they need; all if none is named. Returns those that were disabled.
///
/// # Errors
/// When the pool cannot be written.
pub fn enable(pool: &Pool, wanted: &[&str]) -> Result<Vec<String>, PoolError> {
    let off = disabled(pool)?;
    let needs_base = wanted.iter().any(|name| !WITHOUT_BASE.contains(name));
    let is_wanted = |name: &str| wanted.is_empty() || wanted.contains(&name) || (needs_base && name == BASE);
    let (enabled, left): (BTreeSet<_>, BTreeSet<_>) = off.into_iter().partition(|name| is_wanted(name));
    if !enabled.is_empty() {
        put(pool, &left)?;
    }
    Ok(enabled.into_iter().collect())
}

fn put(pool: &Pool, off: &BTreeSet<String>) -> Result<(), PoolError> {
    let text: Vec<&str> = off.iter().map(String::as_str).collect();
    {
        let hold = pool.begin_free()?;
        pool.set_property(&hold, DISABLED, text.join(",").as_bytes())?;
    }
    pool.commit().map(drop)
}

/// The feature that a value of a property needs, both as they are stored.
pub fn of_property(name: &str, value: &str) -> Option<&'static str> {
    let is_large = || value.parse().is_ok_and(|bytes: u64| bytes > OLD_BLOCK_MAX);
    match (name, value) {
        ("compression", "lz4") => Some("lz4_compress"),
        ("compression", value) if value.starts_with("zstd") => Some("zstd_compress"),
        ("recordsize" | "volblocksize", _) if is_large() => Some("large_blocks"),
        ("dnodesize", value) if value != "legacy" => Some("large_dnode"),
        ("filesystem_limit" | "snapshot_limit", _) => Some("filesystem_limits"),
        ("checksum" | "dedup", value) => {
            let algorithm = value.split(',').next().unwrap_or_default();
            ["sha512", "skein", "edonr", "blake3"].into_iter().find(|name| *name == algorithm)
        }
        _ => None,
    }
}

/// The features that a stream needs where it is received.
fn of_stream(features: Features) -> impl Iterator<Item = &'static str> {
    [
        (Features::LZ4, "lz4_compress"),
        (Features::ZSTD, "zstd_compress"),
        (Features::EMBED_DATA, "embedded_data"),
        (Features::LARGE_BLOCKS, "large_blocks"),
        (Features::LARGE_DNODE, "large_dnode"),
        (Features::RAW, "encryption"),
        (Features::REDACTED, "redacted_datasets"),
        (Features::LONGNAME, "longname"),
        (Features::LARGE_MICROZAP, "large_microzap"),
    ]
    .into_iter()
    .filter(move |(feature, _)| features.contains(*feature))
    .map(|(_, name)| name)
}

impl Catalog {
    /// Refuses what needs a feature that is disabled. `name` is what it is for.
    pub(crate) fn require_feature(&self, name: &str, feature: &str) -> Result<(), DatasetError> {
        if !disabled(self.pool())?.contains(feature) {
            return Ok(());
        }
        Err(DatasetError::FeatureDisabled {
            name: name.to_owned(),
            feature: feature.to_owned(),
            pool: self.pool_name().to_owned(),
        })
    }

    /// The same for properties, as they are stored.
    pub(crate) fn require_features_of(
        &self,
        name: &str,
        properties: &[(String, String)],
    ) -> Result<(), DatasetError> {
        for (property, value) in properties {
            if let Some(feature) = of_property(property, value) {
                self.require_feature(name, feature)?;
            }
        }
        Ok(())
    }

    /// The same for a stream, which is received so that it can be resumed, or not.
    pub(crate) fn require_features_of_stream(
        &self,
        name: &str,
        features: Features,
        resumable: bool,
    ) -> Result<(), DatasetError> {
        for feature in of_stream(features).chain(resumable.then_some(BASE)) {
            self.require_feature(name, feature)?;
        }
        Ok(())
    }

    fn features_in_use_of(
        &self,
        dataset: &Dataset,
        found: &mut BTreeSet<&'static str>,
    ) -> Result<(), DatasetError> {
        // What was received compressed says only that its stream was.
        let content = Features(dataset.record.content.features.0 & !Features::LZ4.0);
        found.extend(of_stream(content));
        for stored in self.stored_properties(dataset.id, 0)? {
            let is_unlimited = stored.name.ends_with("_limit") && stored.value == u64::MAX.to_string();
            found.extend(of_property(&stored.name, &stored.value).filter(|_| !is_unlimited));
        }
        if !self.bookmarks(dataset)?.is_empty() {
            found.insert("bookmarks");
        }
        Ok(())
    }
}

impl Datasets {
    /// The features that something in the pool uses. Reads the records of all datasets.
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub fn features_in_use(&self) -> Result<BTreeSet<&'static str>, DatasetError> {
        let catalog = self.catalog();
        let off = disabled(self.pool())?;
        let mut found: BTreeSet<&'static str> = FROM_THE_FIRST.into_iter().collect();
        for dataset in catalog.descendants(catalog.root()?)? {
            catalog.features_in_use_of(&dataset, &mut found)?;
        }
        found.retain(|name| !off.contains(*name));
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_need_a_feature() {
        for (name, value, feature) in [
            ("compression", "lz4", Some("lz4_compress")),
            ("compression", "zstd-7", Some("zstd_compress")),
            ("compression", "gzip", None),
            ("compression", "on", None),
            ("recordsize", "1048576", Some("large_blocks")),
            ("recordsize", "131072", None),
            ("dnodesize", "auto", Some("large_dnode")),
            ("dnodesize", "legacy", None),
            ("checksum", "blake3", Some("blake3")),
            ("checksum", "sha256", None),
            ("dedup", "sha512,verify", Some("sha512")),
            ("com.example:compression", "lz4", None),
        ] {
            assert_eq!(of_property(name, value), feature, "{name}={value}");
        }
    }

    #[test]
    fn each_feature_has_one_name() {
        let mut all: Vec<_> = names().collect();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
        for feature in of_stream(Features(u64::MAX)) {
            assert!(all.contains(&feature), "{feature}");
        }
    }
}
