//! Tests of `send`: with a model of a receiver, and with streams made by real OpenZFS.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod compare;
mod corpus;
mod model;
mod random;
mod shapes;
#[allow(unreachable_pub)]
#[path = "../../../../testdata/unpack.rs"]
mod testdata;
mod world;
