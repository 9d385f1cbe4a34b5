//! Where pools are, and who may work on one: the process that owns it, which also works for the others.

mod locate;
mod registry;
mod session;

pub use locate::{KnownPool, Places};
pub use session::{Acquired, Forward, Owner, Session, acquire, acquire_alone, complain};
