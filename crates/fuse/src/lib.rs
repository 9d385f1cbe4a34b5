//! Filesystem datasets mounted through FUSE; and volumes as files of one directory ([`VolumesMount`]).
//!
//! [`Mounts`] keeps what one process has mounted; each [`Mount`] serves a [`Vfs`](snowmelt_fs::vfs::Vfs) to the kernel,
//! all of them from a few threads (`server`). No storage is known here, and nothing of pools but that an open one wants to commit now and
//! then.
//!
//! What the kernel caches: names and attributes for as long as `told::NAMES_HOLD` and `filesystem::ATTRIBUTES_HOLD` say,
//! and content until it is told otherwise. All changes come through the one mount that a dataset has, so what the kernel
//! knows is right, unless a rollback or receive replaces the content, or a snapshot is destroyed: then
//! [`Mounts::refresh`] makes it forget. Names of snapshots are not cached.
//! Writes are passed on at once (no writeback cache), since the size of a file must not be the kernel's to say when a
//! rollback may change it.

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
