//! The properties of pools: one table for `pool list` and `pool get` (zpoolprops(7), `zpool_prop_init` in
//! `module/zcommon/zpool_prop.c`), and the features of zpool-features(7) that are listed for our pools.
//!
//! Tools read `feature@…` to find out what they can use: `send -L`, `-e`, `-c`, `receive -s`, bookmarks. A feature is
//! listed if what it allows in streams, names or sizes works. Features of the disk format of ZFS are not listed.

use snowmelt_dataset::pool_features;
use snowmelt_dataset::property::{Source, format_bytes};
use snowmelt_store::DEADMAN;

use crate::error::{CliError, Result};
use crate::facts::{MemberFacts, PoolFacts};

/// A property of a pool.
#[derive(Debug)]
pub struct Field {
    pub name: &'static str,
    /// Another name for it.
    alias: &'static str,
    /// Its header in a list.
    pub header: &'static str,
    /// Whether it is aligned to the right in a list.
    pub right: bool,
    kind: Kind,
}

/// The kind of a property.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The pool is asked; it cannot be set.
    Fact,
    /// Can be set on a pool of ZFS; always this here.
    Fixed(&'static str),
    /// The name. It is a column of `pool list`, but not a property in `pool get`.
    Name,
    /// Set when the pool was made, or unset.
    Comment,
    /// Set, or on.
    Autotrim,
    /// Seconds, set or the default. ZFS has a module parameter instead, so it is only shown if it is requested by
    /// name.
    Deadman,
    /// Set, or off. ZFS has no such property, so it is shown when it is asked for by name.
    Parity,
    /// Chosen on this machine. ZFS has other caches, so it is shown when it is asked for by name.
    Cache,
    /// Chosen when the pool was created, or with its key. ZFS has these properties for datasets, so they are only
    /// shown if they are requested by name.
    Encryption,
}

const fn fact(name: &'static str, alias: &'static str, header: &'static str) -> Field {
    Field { name, alias, header, right: true, kind: Kind::Fact }
}

const fn fixed(name: &'static str, header: &'static str, value: &'static str) -> Field {
    Field { name, alias: "", header, right: false, kind: Kind::Fixed(value) }
}

const fn encryption(name: &'static str, header: &'static str) -> Field {
    Field { name, alias: "", header, right: false, kind: Kind::Encryption }
}

/// In the order of `zpool get all`.
static FIELDS: [Field; 39] = [
    Field { name: "name", alias: "", header: "NAME", right: false, kind: Kind::Name },
    fact("size", "", "SIZE"),
    fact("capacity", "cap", "CAP"),
    fixed("altroot", "ALTROOT", "-"),
    Field { name: "health", alias: "", header: "HEALTH", right: false, kind: Kind::Fact },
    fact("guid", "", "GUID"),
    Field { name: "version", alias: "", header: "VERSION", right: true, kind: Kind::Fixed("-") },
    fixed("bootfs", "BOOTFS", "-"),
    fixed("delegation", "DELEGATION", "on"),
    fixed("autoreplace", "REPLACE", "off"),
    fixed("cachefile", "CACHEFILE", "-"),
    fixed("failmode", "FAILMODE", "wait"),
    fixed("listsnapshots", "LISTSNAPS", "off"),
    fixed("autoexpand", "EXPAND", "off"),
    fact("dedupratio", "dedup", "DEDUP"),
    fact("free", "", "FREE"),
    fact("allocated", "alloc", "ALLOC"),
    Field { name: "readonly", alias: "rdonly", header: "RDONLY", right: false, kind: Kind::Fact },
    Field { name: "ashift", alias: "", header: "ASHIFT", right: true, kind: Kind::Fixed("12") },
    Field { name: "comment", alias: "", header: "COMMENT", right: false, kind: Kind::Comment },
    fact("expandsize", "expandsz", "EXPANDSZ"),
    fact("freeing", "", "FREEING"),
    fact("fragmentation", "frag", "FRAG"),
    fact("leaked", "", "LEAKED"),
    fixed("multihost", "MULTIHOST", "off"),
    fact("checkpoint", "ckpoint", "CKPOINT"),
    fact("load_guid", "", "LOAD_GUID"),
    Field { name: "autotrim", alias: "", header: "AUTOTRIM", right: false, kind: Kind::Autotrim },
    fixed("compatibility", "COMPATIBILITY", "off"),
    fact("bcloneused", "", "BCLONE_USED"),
    fact("bclonesaved", "", "BCLONE_SAVED"),
    Field { name: "parity", alias: "", header: "PARITY", right: true, kind: Kind::Parity },
    Field { name: "deadman", alias: "", header: "DEADMAN", right: true, kind: Kind::Deadman },
    encryption("encryption", "ENCRYPTION"),
    encryption("keylocation", "KEYLOCATION"),
    encryption("keyformat", "KEYFORMAT"),
    encryption("keystatus", "KEYSTATUS"),
    Field { name: "cache", alias: "", header: "CACHE", right: false, kind: Kind::Cache },
    Field { name: "cachesize", alias: "", header: "CACHESIZE", right: true, kind: Kind::Cache },
];

/// What a property of a pool is, or a feature of it.
#[derive(Debug, Clone, Copy)]
pub enum Column {
    Field(&'static Field),
    /// Its name after `feature@`.
    Feature(&'static str),
}

impl Column {
    /// Its name.
    pub fn name(&self) -> String {
        match self {
            Self::Field(field) => field.name.to_owned(),
            Self::Feature(name) => format!("feature@{name}"),
        }
    }

    /// Its header in a list.
    pub fn header(&self) -> String {
        match self {
            Self::Field(field) => field.header.to_owned(),
            Self::Feature(name) => format!("FEAT@{}", name.to_uppercase()),
        }
    }

    /// Whether it is aligned to the right in a list.
    pub fn right(&self) -> bool {
        matches!(self, Self::Field(field) if field.right)
    }

    /// Its value; as a number where `exact`.
    pub fn text(&self, pool: &PoolFacts, exact: bool) -> String {
        match self {
            Self::Field(field) => field.text(pool, exact),
            Self::Feature(name) => feature_state(pool, name).to_owned(),
        }
    }

    /// Its value for the one vdev of the pool.
    pub fn vdev_text(&self, pool: &PoolFacts, exact: bool) -> String {
        match self {
            Self::Field(field) if field.name == "name" => format!("  {}", pool.vdev),
            Self::Field(field) if !matches!(field.kind, Kind::Fixed(_) | Kind::Encryption | Kind::Cache) => {
                match field.name {
                    "dedupratio" | "guid" | "readonly" | "comment" | "parity" | "autotrim" | "deadman" => {
                        "-".to_owned()
                    }
                    _ => field.text(pool, exact),
                }
            }
            _ => "-".to_owned(),
        }
    }

    /// Its value for a member of a mirror. All members have the same space, so only name and state are shown.
    pub fn member_text(&self, member: &MemberFacts) -> String {
        match self {
            Self::Field(field) if field.name == "name" => format!("    {}", member.path),
            Self::Field(field) if field.name == "health" => member.state.clone(),
            _ => "-".to_owned(),
        }
    }

    /// Where its value comes from.
    pub fn source(&self, pool: &PoolFacts) -> Source {
        match self {
            Self::Feature(_) => Source::Local,
            Self::Field(field) => match field.kind {
                Kind::Comment if has_comment(pool) => Source::Local,
                Kind::Parity if pool.parity > 0 => Source::Local,
                Kind::Autotrim if pool.autotrim.is_some() => Source::Local,
                Kind::Deadman if pool.deadman.is_some() => Source::Local,
                Kind::Encryption if pool.encryption.is_some() => match field.name {
                    "keylocation" => Source::Local,
                    _ => Source::None,
                },
                Kind::Cache if pool.cache.is_some() => Source::Local,
                Kind::Fixed(_)
                | Kind::Comment
                | Kind::Parity
                | Kind::Autotrim
                | Kind::Deadman
                | Kind::Encryption
                | Kind::Cache => Source::Default,
                Kind::Fact | Kind::Name => Source::None,
            },
        }
    }
}

impl Field {
    fn text(&self, pool: &PoolFacts, exact: bool) -> String {
        let size = |bytes: u64| if exact { bytes.to_string() } else { format_bytes(bytes) };
        let percent = |number: u64| if exact { number.to_string() } else { format!("{number}%") };
        if pool.is_missing
            && !matches!(self.name, "name" | "health" | "guid")
            && !matches!(self.kind, Kind::Fixed(_))
        {
            return "-".to_owned();
        }
        let sealed = pool.encryption.as_ref();
        match (self.name, self.kind) {
            ("encryption", _) => sealed.map_or("off", |it| &it.suite).to_owned(),
            ("keylocation", _) => sealed.map_or("none", |it| &it.location).to_owned(),
            ("keyformat", _) => sealed.map_or("none", |it| &it.format).to_owned(),
            // The process that answers has it open.
            ("keystatus", _) => sealed.map_or("-", |_| "available").to_owned(),
            ("cache", _) => pool.cache.as_ref().map_or("none", |it| &it.directory).to_owned(),
            ("cachesize", _) => pool.cache.as_ref().map_or_else(|| "-".to_owned(), |it| size(it.size)),
            (_, Kind::Fixed(value)) => value.to_owned(),
            ("name", _) => pool.name.clone(),
            ("size", _) => size(pool.size),
            ("allocated", _) => size(pool.allocated),
            ("free", _) => size(pool.free),
            // Numbers there, not sizes.
            ("freeing" | "leaked", _) => "0".to_owned(),
            ("bcloneused" | "bclonesaved", _) => size(0),
            ("fragmentation", _) => percent(pool.fragmentation),
            ("parity", _) if pool.parity == 0 => "off".to_owned(),
            ("parity", _) => percent(pool.parity.into()),
            ("autotrim", _) => (if pool.autotrim.unwrap_or(true) { "on" } else { "off" }).to_owned(),
            ("deadman", _) => {
                let secs = pool.deadman.unwrap_or(DEADMAN.as_secs());
                if exact { secs.to_string() } else { format!("{secs}s") }
            }
            ("capacity", _) => percent(pool.capacity()),
            ("dedupratio", _) if exact => "1.00".to_owned(),
            ("dedupratio", _) => "1.00x".to_owned(),
            ("health", _) => pool.health().to_owned(),
            ("guid" | "load_guid", _) => pool.guid.to_string(),
            ("readonly", _) => (if pool.read_only { "on" } else { "off" }).to_owned(),
            ("comment", _) if has_comment(pool) => pool.comment.clone().unwrap_or_default(),
            _ => "-".to_owned(),
        }
    }
}

fn has_comment(pool: &PoolFacts) -> bool {
    pool.comment.as_ref().is_some_and(|text| !text.is_empty())
}

/// All that `zpool get all` shows.
pub fn all() -> Vec<Column> {
    let of_zfs = |field: &&Field| {
        !matches!(field.kind, Kind::Name | Kind::Parity | Kind::Deadman | Kind::Encryption | Kind::Cache)
    };
    let fields = FIELDS.iter().filter(of_zfs).map(Column::Field);
    fields.chain(features()).collect()
}

/// Whether a feature is disabled, enabled, or in use.
fn feature_state(pool: &PoolFacts, name: &str) -> &'static str {
    let is_in = |list: &[String]| list.iter().any(|one| one == name);
    if is_in(&pool.disabled) {
        "disabled"
    } else if pool_features::FROM_THE_FIRST.contains(&name) || is_in(&pool.in_use) {
        "active"
    } else {
        "enabled"
    }
}

fn features() -> impl Iterator<Item = Column> {
    pool_features::names().map(Column::Feature)
}

/// Whether what uses the features of a pool has to be looked for to show these.
pub fn needs_features(columns: &[Column]) -> bool {
    columns
        .iter()
        .any(|column| matches!(column, Column::Feature(name) if pool_features::WHEN_USED.contains(name)))
}

/// Properties by name, separated by commas.
///
/// # Errors
/// When one is none.
pub fn parse(list: &str) -> Result<Vec<Column>> {
    list.split(',')
        .map(|name| {
            let field =
                FIELDS.iter().find(|field| field.name == name || (!name.is_empty() && field.alias == name));
            let field = field.map(Column::Field);
            let feature = || features().find(|column| column.name() == name);
            let found = field.or_else(feature);
            found.ok_or_else(|| CliError::Usage(format!("bad property list: invalid property '{name}'")))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool() -> PoolFacts {
        PoolFacts {
            name: "tank".to_owned(),
            guid: 7,
            vdev: "/srv/tank".to_owned(),
            size: 10 << 30,
            allocated: 3 << 30,
            free: 7 << 30,
            fragmentation: 12,
            txg: 9,
            parity: 5,
            ..PoolFacts::default()
        }
    }

    #[test]
    fn columns_that_monitors_read() {
        let line = |list: &str, exact| {
            let columns = parse(list).unwrap();
            columns.iter().map(|column| column.text(&pool(), exact)).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(line("name,size,cap,health,free", false), "tank 10G 30% ONLINE 7G");
        assert_eq!(line("size,alloc,frag,cap,dedup", true), "10737418240 3221225472 12 30 1.00");
        assert_eq!(line("altroot,comment,ckpoint", false), "- - -");
        assert_eq!(line("feature@extensible_dataset,feature@large_blocks", false), "active enabled");
        let some = PoolFacts {
            disabled: vec!["bookmarks".to_owned(), "lz4_compress".to_owned()],
            in_use: vec!["zstd_compress".to_owned()],
            ..pool()
        };
        let states: Vec<_> = ["bookmarks", "lz4_compress", "zstd_compress", "large_blocks"]
            .map(|name| parse(&format!("feature@{name}")).unwrap()[0].text(&some, false))
            .into();
        assert_eq!(states, ["disabled", "disabled", "active", "enabled"]);
        assert_eq!(line("parity,deadman", false), "5% 60s");
        assert_eq!(
            line("encryption,keylocation,keyformat,keystatus,cache,cachesize", false),
            "off none none - none -"
        );
        assert!(!all().iter().any(|column| column.name() == "parity"));
        assert!(parse("frob").is_err());
        assert!(parse("").is_err());
        assert!(parse("feature@frob").is_err());
    }

    #[test]
    fn everything_has_a_name_of_its_own_and_a_value() {
        let mut names: Vec<_> = all().iter().map(Column::name).collect();
        assert!(all().iter().all(|column| !column.text(&pool(), false).is_empty()));
        assert!(!names.contains(&"name".to_owned()));
        names.sort();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
