//! The objset tree of a dataset: its keys and values, and how to read it.

pub(crate) mod fill;
pub mod key;
mod objects;
pub mod types;
pub mod value;
pub mod view;
mod zpl;

pub use key::ObjsetKey;
pub use objects::ObjectSet;
pub use value::{Block, BlockCrypt, Dnode, RawDnode};
pub use view::Objset;
