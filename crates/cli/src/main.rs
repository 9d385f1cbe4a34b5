//! The `snowmelt` command.
fn main() {}
