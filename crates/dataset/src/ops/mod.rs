//! Operations that change datasets, snapshots and properties of a pool, with one file for each.

pub(crate) mod bookmark;
pub(crate) mod clean;
pub(crate) mod clone;
pub(crate) mod create;
pub(crate) mod damage;
pub(crate) mod destroy;
pub mod filesystem;
pub(crate) mod free;
pub(crate) mod heal;
pub(crate) mod hold;
pub(crate) mod promote;
pub(crate) mod property;
pub(crate) mod rename;
pub(crate) mod rollback;
pub(crate) mod scrub;
pub(crate) mod snapshot;
pub mod volume;
