//! Filesystem datasets mounted through FUSE; and volumes as files of one directory ([`VolumesMount`]).
//!
//! [`Mounts`] has the mounts of a process. Each [`Mount`] serves a [`Vfs`](snowmelt_fs::vfs::Vfs) to the kernel, and
//! all of them share a few threads (`server`). This crate knows nothing about storage, and about pools only that an
//! open one has to commit now and then.
//!
//! The kernel caches names and attributes for the time in `told::NAMES_HOLD` and `filesystem::ATTRIBUTES_HOLD`, and
//! content until it is invalidated. All changes come through the one mount of a dataset, so the caches are correct,
//! unless a rollback or receive replaces the content, or a snapshot is destroyed. Then [`Mounts::refresh`]
//! invalidates them. Names of snapshots are not cached. Writes are passed on at once (no writeback cache): with that
//! cache the kernel would decide the size of a file, which a rollback may change.

mod attach;
mod convert;
mod error;
mod filesystem;
mod ioctl;
mod kernel;
mod mount;
mod mounts;
mod notify;
mod server;
mod table;
mod told;
mod unmount;
mod volumes;
mod wire;

pub use error::MountError;
pub use mount::{Mount, MountOptions};
pub use mounts::Mounts;
pub use table::{Mounted, is_alive, mounted};
pub use volumes::{VolumesMount, VolumesOptions};
