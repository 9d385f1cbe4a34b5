//! Tests of `send`: against a model of a receiver, and against the streams that real OpenZFS made.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod corpus;
mod model;
mod packages;
mod random;
mod shapes;
mod world;
