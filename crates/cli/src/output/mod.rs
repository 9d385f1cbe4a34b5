//! How results are printed: columns for people, tabs for programs, JSON.

pub mod json;
pub mod table;
