//! Random objsets: a receiver of any stream must have exactly the sent content.

use proptest::prelude::*;
use snowmelt_stream::features::Features;

use super::super::step::{Base, Style};
use super::model::{Model, reached};
use super::world::{World, resumed, send};

const OBJECTS: u64 = 100;
const CONTENT: Features = Features(Features::LARGE_DNODE.0 | Features::SA_SPILL.0);

#[derive(Clone, Debug)]
enum Op {
    Put { object: u64, slots: u8, block_size: u32, bonus: Vec<u8> },
    Write { pick: u64, blkid: u64, byte: u8, random: bool },
    Punch { pick: u64, from: u64, len: u64 },
    Spill { pick: u64, byte: Option<u8> },
    Remove { pick: u64 },
}

fn op() -> impl Strategy<Value = Op> {
    let object = 1..OBJECTS;
    let put =
        (object, prop_oneof![3 => Just(1u8), 1 => 2u8..5], prop_oneof![Just(512u32), Just(1024)], 0u8..4)
            .prop_map(|(object, slots, block_size, bonus)| {
                // A dnode lies within one block of dnodes.
                let slots = slots.min(u8::try_from(32 - object % 32).unwrap());
                Op::Put { object, slots, block_size, bonus: vec![bonus; usize::from(bonus) * 8] }
            });
    let write = (any::<u64>(), prop_oneof![0u64..4, 0u64..40], any::<u8>(), any::<bool>())
        .prop_map(|(pick, blkid, byte, random)| Op::Write { pick, blkid, byte, random });
    let punch =
        (any::<u64>(), 0u64..40, 1u64..20).prop_map(|(pick, from, len)| Op::Punch { pick, from, len });
    let spill = (any::<u64>(), any::<Option<u8>>()).prop_map(|(pick, byte)| Op::Spill { pick, byte });
    prop_oneof![4 => put, 8 => write, 2 => punch, 2 => spill, 2 => any::<u64>().prop_map(|pick| Op::Remove { pick })]
}

fn apply(world: &mut World, op: &Op) {
    let alive: Vec<u64> = (1..OBJECTS).filter(|object| world.dnode(*object).is_some()).collect();
    let pick =
        |pick: u64| (!alive.is_empty()).then(|| alive[usize::try_from(pick).unwrap_or(0) % alive.len()]);
    match op {
        Op::Put { object, slots, block_size, bonus } => {
            // Not inside another object.
            let inside = alive
                .iter()
                .any(|at| at < object && at + u64::from(world.dnode(*at).unwrap().slots) > *object);
            if !inside {
                world.put(*object, *slots, *block_size, bonus);
            }
        }
        Op::Write { pick: number, blkid, byte, random } => {
            let Some(object) = pick(*number) else { return };
            let size = usize::try_from(world.dnode(object).unwrap().block_size).unwrap();
            let mut data = vec![*byte; size];
            if *random {
                let mut state = u64::from(*byte) | 1;
                for byte in &mut data {
                    state = state.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17);
                    *byte = state.to_le_bytes()[7];
                }
            }
            world.write(object, *blkid, &data);
        }
        Op::Punch { pick: number, from, len } => {
            if let Some(object) = pick(*number) {
                world.punch(object, *from, from + len);
            }
        }
        Op::Spill { pick: number, byte } => {
            if let Some(object) = pick(*number) {
                world.spill(object, byte.map(|byte| vec![byte; 512]).as_deref());
            }
        }
        Op::Remove { pick: number } => {
            if let Some(object) = pick(*number) {
                world.remove(object);
            }
        }
    }
}

fn style() -> impl Strategy<Value = Style> {
    (any::<bool>(), any::<bool>()).prop_map(|(embed, compressed)| Style {
        embed,
        compressed,
        ..Style::default()
    })
}

proptest! {
    #[test]
    fn receivers_end_up_with_what_was_sent(
        phases in prop::collection::vec(prop::collection::vec(op(), 0..40), 2..4),
        raw in any::<bool>(), style in style(), cut in any::<prop::sample::Index>(),
    ) {
        let mut world = World::new(512, raw);
        let mut snapshots = Vec::new();
        for (n, phase) in phases.iter().enumerate() {
            for op in phase {
                apply(&mut world, op);
            }
            snapshots.push(world.snapshot(&format!("s{n}")));
        }
        let full: Vec<Model> = snapshots.iter().map(|snapshot| {
            let step = world.step(snapshot, Base::Empty, CONTENT, style);
            let mut model = Model::default();
            model.receive(&send(step.clone()));
            assert_eq!(model, Model::of(&step));
            model
        }).collect();
        for (i, from) in snapshots.iter().enumerate() {
            for (to, target) in snapshots.iter().zip(&full).skip(i + 1) {
                for base in [world.tree_base(from), world.txg_base(from)] {
                    let step = world.step(to, base, CONTENT, style);
                    let records = send(step.clone());
                    let mut model = full[i].clone();
                    model.receive(&records);
                    prop_assert_eq!(&model, target);

                    // Interrupted anywhere, and resumed where the receiver was.
                    let records = &records[..cut.index(records.len())];
                    if let Some((object, offset)) = reached(records) {
                        let mut model = full[i].clone();
                        model.receive(records);
                        model.receive_from(&send(resumed(&step, object, offset)), Some(object));
                        prop_assert_eq!(&model, target);
                    }
                }
            }
        }
    }
}
