//! The places of pools, and the process that owns a pool. It executes the commands of all other processes.

mod asked;
pub mod entry;
pub mod holder;
pub mod keys;
mod locate;
pub mod missing;
pub mod outside;
pub mod pins;
mod private;
pub mod registry;
mod session;
pub mod shadow;
pub mod stream_index;
pub mod waiting;

pub use locate::{KnownPool, Places};
pub use private::random_guid;
pub use session::{
    AUTOMOUNT_VARIABLE, Acquired, Forward, Owner, Session, acquire, acquire_alone, acquire_lost, acquire_txg,
    complain, look_at_txg, pool_options,
};
