//! An NBD server: block devices over a Unix socket or TCP, for qemu, libnbd, fio, the Linux kernel and other clients of
//! the Network Block Device protocol.
//!
//! This crate knows nothing of pools. It serves any implementation of [`Exports`]. Each export is an [`Export`]: a
//! range of bytes that many threads read and write at once. Storage code is synchronous and runs on a pool of threads.
//! Only the sockets are asynchronous.
//!
//! The protocol is `doc/proto.md` of the NBD project, with the `EXTENDED_HEADERS` extension of its branch
//! `extension-ext-header`. `docs/nbd.md` lists the supported options.
//!
//! ```no_run
//! # use std::sync::Arc;
//! # fn exports() -> Arc<dyn snowmelt_nbd::Exports> { unimplemented!() }
//! use snowmelt_nbd::{Listener, Options, Server, Shutdown};
//!
//! let listener = Listener::tcp("127.0.0.1:10809".parse()?)?;
//! let shutdown = Shutdown::new();       // a signal handler's thread calls `trigger` on a clone of it
//! Server::new(exports(), Options::default())?.serve(vec![listener], &shutdown)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod budget;
mod connection;
mod endpoint;
mod errno;
mod error;
mod event;
mod execute;
mod export;
mod handshake;
mod identity;
mod listener;
mod options;
mod outbox;
mod peers;
mod plan;
mod server;
mod shutdown;
mod tls;
mod transmission;
mod wire;
mod workers;

pub use endpoint::Endpoint;
pub use error::{ServeError, TlsError};
pub use event::{Client, Event, Log};
pub use export::{Export, Exports, Extent, OpenError};
pub use identity::{Certificate, Identity};
pub use listener::Listener;
pub use options::{MAX_PAYLOAD, Options};
pub use server::Server;
pub use shutdown::Shutdown;
pub use tls::{ClientCertificates, Tls, TlsConfig};
