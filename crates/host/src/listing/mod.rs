//! Rows of `list` and `get`: which datasets, which properties, in which order.
//!
//! A listing can contain several pools, and some of them can have other owners. So requests and rows can be sent
//! between processes: each owner returns the rows of its pool, and the process of the command merges and prints them.

mod collect;
mod order;
mod request;

pub use collect::collect;
pub use order::sort;
pub use request::{Cell, Columns, Listing, Row, Rows, Selection, SortKey, bit, parse_depth, parse_types};
