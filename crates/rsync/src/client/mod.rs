//! The client: asks a server elsewhere, which may be stock rsync, for its files, or gives it some (docs/format/rsync.md).
//!
//! Whoever connects opens the way first: a module of a daemon by [`greet`], or a remote shell by [`begin_shell`], both of which read nothing
//! beyond, so that another process can go on with [`pull`] or [`push`]. The server is as hostile as clients are to a server.

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
