//! The client: pulls files from a server or pushes files to it. The server may be stock rsync (docs/format/rsync.md).
//!
//! The caller first opens the connection: [`greet`] opens a module of a daemon, and [`begin_shell`] starts with a
//! remote shell. Neither reads further than it has to, so that another process can continue with [`pull`] or [`push`].
//! The server is untrusted, just as a client is for a server.

mod greeting;
mod itemize;
mod told;
mod transfer;
mod words;

pub use crate::session::PROTOCOL_MAX;
pub use greeting::{Login, greet};
pub(crate) use itemize::itemize;
pub use told::{Observer, Told};
pub use transfer::{begin_shell, pull, push};
pub use words::{Direction, SHELL_FORMS, Wishes, fits, send_words};
