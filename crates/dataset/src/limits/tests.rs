//! Compares every space number with one that is counted by walking all roots, after random operations.

mod oracle;
mod world;

use self::oracle::compare;
use self::world::World;

/// Number of operations between two comparisons; `OPERATIONS` is the number in an ordinary run.
const EVERY: usize = 25;
const OPERATIONS: usize = 5000;

/// Each case has a world of its own, so that datasets and snapshots are often created from nothing.
const CASE: usize = 500;

fn run(operations: usize) {
    for case in 0..operations.div_ceil(CASE) {
        let mut world = World::new(case as u64 + 1);
        let mut done = Vec::new();
        for at in 0..CASE {
            done.push(world.step());
            if at % EVERY == EVERY - 1 {
                let recent = &done[done.len() - EVERY..];
                compare(&world.datasets, &format!("case {case}, after {recent:#?}"));
            }
        }
        world.check(&format!("case {case}"));
    }
}

#[test]
fn figures_are_what_is_counted() {
    run(OPERATIONS);
}

/// `SNOWMELT_OPERATIONS` sets the number.
#[test]
#[ignore = "takes minutes"]
fn figures_are_what_is_counted_for_long() {
    let operations = std::env::var("SNOWMELT_OPERATIONS").ok().and_then(|text| text.parse().ok());
    run(operations.unwrap_or(100_000));
}
