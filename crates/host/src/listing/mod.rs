//! Rows of `list` and `get`: which datasets, which properties, in which order.
//!
//! A listing may cover several pools, of which some may be owned by other processes. So a request and its rows can
//! travel: each owner fills in the rows of its pool, and whoever was asked merges and prints them.

mod collect;
mod order;
mod request;

pub use collect::collect;
pub use order::sort;
pub use request::{Cell, Columns, Listing, Row, Rows, Selection, SortKey, bit, parse_depth, parse_types};
