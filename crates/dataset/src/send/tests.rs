//! Tests of `send`: against a model of a receiver, and against the streams that real OpenZFS made.

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
