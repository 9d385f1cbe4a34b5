//! Single cases with known records or errors.

use std::io::{self, Write as _};
use std::sync::atomic::Ordering;

use snowmelt_pool::BlockPtr;
use snowmelt_stream::features::Features;
use snowmelt_stream::reader::Reader;
use snowmelt_stream::record::{Begin, BeginFlags, Free, Object, Record, Spill};

use super::super::step::{Base, Style};
use super::super::{SendFlags, SendPlan, Source};
use super::world::{FS, World, parse, run, send};
use crate::diff::changed_objects;
use crate::error::{DatasetError, SendError};
use crate::name::Name;
use crate::objset::key::ObjsetKey;
use crate::objset::value::{Block, Dnode};
use crate::ops::clone::CloneOptions;
use crate::ops::create::CreateOptions;

const PLAIN: Style = Style { large_blocks: false, embed: false, compressed: false, raw: false };
const LEC: Style = Style { large_blocks: true, embed: true, compressed: true, raw: false };

/// Bytes that no algorithm compresses.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 1u64;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_le_bytes()[6]
    };
    (0..len).map(next).collect()
}

/// Bytes that compress to about half.
fn text(len: usize) -> Vec<u8> {
    noise(len)
        .chunks(64)
        .flat_map(|chunk| [&chunk[..chunk.len() / 2], &vec![7; chunk.len() - chunk.len() / 2]].concat())
        .collect()
}

/// A short form of the records: kind, object, offset, bytes in the stream.
fn shape(records: &[super::world::Parsed]) -> Vec<String> {
    let line = |record: &Record| match record {
        Record::Object(o) => format!(
            "OBJECT {} {}{}",
            o.object,
            o.block_size,
            if o.flags & Object::SPILL != 0 { " spill" } else { "" }
        ),
        Record::Write(w) => format!(
            "WRITE {} {} {} {} {}",
            w.object, w.offset, w.logical_size, w.compression, w.compressed_size
        ),
        Record::WriteEmbedded(w) => format!("EMBEDDED {} {} {}", w.object, w.offset, w.length),
        Record::Free(f) if f.length == Free::TO_END => format!("FREE {} {} end", f.object, f.offset),
        Record::Free(f) => format!("FREE {} {} {}", f.object, f.offset, f.length),
        Record::FreeObjects(f) => format!("FREEOBJECTS {} {}", f.first, f.count),
        Record::Spill(s) => format!(
            "SPILL {} {}{}",
            s.object,
            s.length,
            if s.flags & Spill::UNMODIFIED != 0 { " unmodified" } else { "" }
        ),
        Record::Begin(_) => "BEGIN".to_owned(),
        Record::End(_) => "END".to_owned(),
        other => panic!("{other:?}"),
    };
    records.iter().map(|(record, _)| line(record)).collect()
}

fn begin(records: &[super::world::Parsed]) -> Begin {
    match &records[0].0 {
        Record::Begin(begin) => begin.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_full_stream_names_holes_and_free_slots() {
    let mut world = World::new(32 << 10, false);
    world.put(2, 1, 512, b"bonus");
    world.write(2, 1, &noise(512));
    world.write(2, 4, &noise(512));
    world.put(4, 2, 512, b"");
    world.spill(4, Some(&noise(1024)));
    let snapshot = world.snapshot("a");
    let records = send(world.step(&snapshot, Base::Empty, Features::LARGE_DNODE, PLAIN));
    assert_eq!(
        shape(&records),
        [
            "BEGIN",
            "FREEOBJECTS 1 1",
            "OBJECT 2 512",
            "FREE 2 2560 end",
            "FREE 2 0 512",
            "WRITE 2 512 512 0 0",
            "FREE 2 1024 1024",
            "WRITE 2 2048 512 0 0",
            "FREEOBJECTS 3 1",
            "OBJECT 4 512 spill",
            "FREE 4 512 end",
            "FREE 4 0 512",
            "SPILL 4 1024",
            "FREEOBJECTS 6 26",
            "END",
        ]
    );
    let begin = begin(&records);
    assert_eq!(begin.flags, BeginFlags::FREERECORDS | BeginFlags::SPILL_BLOCK);
    assert_eq!(begin.features, Features::SA_SPILL | Features::LARGE_DNODE);
    assert_eq!(begin.to_name.to_string(), format!("{FS}@a"));
    assert_eq!((begin.to_guid, begin.from_guid), (snapshot.record.guid, 0));
}

#[test]
fn an_incremental_says_what_changed_and_no_more() {
    let mut world = World::new(32 << 10, false);
    for object in [2, 3, 8, 9] {
        world.put(object, 1, 512, b"bonus");
        for blkid in 0..4 {
            world.write(object, blkid, &noise(512));
        }
        world.spill(object, Some(&noise(512)));
    }
    let a = world.snapshot("a");
    world.write(3, 1, &text(512));
    world.punch(3, 2, 4);
    world.remove(8);
    world.spill(9, None);
    world.put(9, 1, 512, b"another");
    let b = world.snapshot("b");
    let records = send(world.step(&b, world.tree_base(&a), Features::NONE, PLAIN));
    assert_eq!(
        shape(&records),
        [
            "BEGIN",
            "OBJECT 3 512 spill",
            "FREE 3 1024 end",
            "SPILL 3 512 unmodified",
            "WRITE 3 512 512 0 0",
            "FREEOBJECTS 8 1",
            "OBJECT 9 512",
            "FREE 9 2048 end",
            "END",
        ]
    );
    assert_eq!(begin(&records).from_guid, a.record.guid);
    let none = send(world.step(&b, world.tree_base(&b), Features::NONE, PLAIN));
    assert_eq!(shape(&none), ["BEGIN", "END"]);
}

#[test]
fn options_shape_the_blocks() {
    const LARGE: u32 = 512 << 10;
    let mut world = World::new(32 << 10, false);
    world.put(1, 1, LARGE, b"");
    world.write(1, 0, &text(LARGE as usize));
    world.put(2, 1, 128 << 10, b"");
    world.write(2, 0, &text(128 << 10));
    world.put(3, 1, 4096, b"");
    world.write(3, 0, &[5; 4096]);
    // A directory: metadata is never sent compressed.
    world.put(4, 1, 16 << 10, b"");
    let directory = Dnode { object_type: 20, ..world.dnode(4).unwrap() };
    world.put_dnode(4, directory);
    world.write(4, 0, &text(16 << 10));
    let snapshot = world.snapshot("a");
    let blocks = |features, style| {
        let records = send(world.step(&snapshot, Base::Empty, features, style));
        let found = shape(&records);
        (
            begin(&records).features,
            found
                .into_iter()
                .filter(|line| line.starts_with("WRITE") || line.starts_with("EMB"))
                .collect::<Vec<_>>(),
        )
    };
    let (features, plain) = blocks(Features::LARGE_BLOCKS, PLAIN);
    assert_eq!(features, Features::SA_SPILL);
    assert_eq!(
        plain,
        [
            "WRITE 1 0 131072 0 0",
            "WRITE 1 131072 131072 0 0",
            "WRITE 1 262144 131072 0 0",
            "WRITE 1 393216 131072 0 0",
            "WRITE 2 0 131072 0 0",
            "WRITE 3 0 4096 0 0",
            "WRITE 4 0 16384 0 0",
        ]
    );
    let (features, packed) = blocks(Features::LARGE_BLOCKS, LEC);
    let all = Features::SA_SPILL
        | Features::EMBED_DATA
        | Features::LZ4
        | Features::COMPRESSED
        | Features::LARGE_BLOCKS;
    assert_eq!(features, all);
    assert_eq!(packed.len(), 4);
    for (line, start) in packed.iter().zip([
        "WRITE 1 0 524288 15 ",
        "WRITE 2 0 131072 15 ",
        "EMBEDDED 3 0 4096",
        "WRITE 4 0 16384 0 0",
    ]) {
        assert!(line.starts_with(start), "{line}");
    }
    for line in &packed[..2] {
        let size: u64 = line.rsplit(' ').next().unwrap().parse().unwrap();
        assert!(size.is_multiple_of(512) && size > 0, "{line}");
    }
    // -L without large blocks, and -c without -L with large blocks.
    assert_eq!(blocks(Features::NONE, Style { large_blocks: true, ..PLAIN }).0, Features::SA_SPILL);
    let (_, packed) = blocks(Features::LARGE_BLOCKS, Style { compressed: true, ..PLAIN });
    assert!(
        packed[..4].iter().all(|line| line.ends_with("131072 0 0")) && packed[4].contains(" 15 "),
        "{packed:?}"
    );
    // -w for a dataset without encryption means -Lec.
    assert_eq!(blocks(Features::LARGE_BLOCKS, Style { raw: true, ..PLAIN }).0, all);
}

#[test]
fn what_cannot_be_sent_is_refused_before_the_first_byte() {
    let mut world = World::new(32 << 10, false);
    world.put(1, 1, 512, b"");
    let snapshot = world.snapshot("a");
    let refused = |features, style| {
        let plan = SendPlan::of(vec![world.step(&snapshot, Base::Empty, features, style)], None);
        let mut out = Vec::new();
        let error = plan.run(&mut out, &|_| {}).expect_err("it is refused");
        assert!(out.is_empty());
        error
    };
    let error = refused(Features::LARGE_MICROZAP | Features::LARGE_BLOCKS, PLAIN);
    assert!(
        matches!(&error, SendError::Unsendable { .. }) && error.to_string().contains("large microzaps"),
        "{error}"
    );
    assert!(
        matches!(refused(Features::RAW, PLAIN), SendError::NeedsRaw { name } if name == format!("{FS}@a"))
    );
    assert!(
        matches!(refused(Features::RAW, Style { raw: true, ..PLAIN }), SendError::Unsendable { .. }),
        "no key data"
    );
    assert!(matches!(refused(Features::REDACTED, PLAIN), SendError::Unsendable { .. }), "no guids");
}

/// Accepts this many bytes, then fails.
struct Full(usize, io::ErrorKind);

impl io::Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0 == 0 {
            return Err(self.1.into());
        }
        let len = bytes.len().min(self.0);
        self.0 -= len;
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_closed_pipe_ends_the_send_and_so_does_whoever_cancels_it() {
    let mut world = World::new(32 << 10, false);
    world.put(1, 1, 128 << 10, b"");
    for blkid in 0..300 {
        world.write(1, blkid, &noise(128 << 10));
    }
    let snapshot = world.snapshot("a");
    let plan = SendPlan::of(vec![world.step(&snapshot, Base::Empty, Features::NONE, PLAIN)], None);
    for room in [0, 1, 1 << 20, 30 << 20] {
        let closed = plan.run(Full(room, io::ErrorKind::BrokenPipe), &|_| {});
        assert!(matches!(closed, Err(SendError::Closed)), "{closed:?}");
        let failed = plan.run(Full(room, io::ErrorKind::StorageFull), &|_| {});
        assert!(matches!(failed, Err(SendError::Write(_))), "{failed:?}");
    }
    let flag = plan.cancel_flag();
    let cancelled = plan.run(io::sink(), &|progress| {
        assert_eq!((progress.snapshot, progress.step, progress.steps), ("tank/fs@a", 1, 1));
        flag.store(progress.bytes > 4 << 20, Ordering::Relaxed);
    });
    assert!(matches!(cancelled, Err(SendError::Dataset(DatasetError::Interrupted))), "{cancelled:?}");
    io::sink().flush().unwrap();
}

#[test]
fn the_cost_of_an_incremental_is_that_of_what_changed() {
    let reads = |objects: u64| {
        let mut world = World::new(2048, false);
        for object in 1..=objects {
            world.put(object, 1, 512, b"");
            world.write(object, 0, &noise(512));
        }
        let a = world.snapshot("a");
        for n in 0..20 {
            world.write(1 + n * objects / 20, 0, &text(512));
        }
        let b = world.snapshot("b");
        [world.tree_base(&a), world.txg_base(&a)].map(|base| {
            let step = world.step(&b, base, Features::NONE, PLAIN);
            let before = world.pool.counters().node_reads;
            run(&SendPlan::of(vec![step], None)).unwrap();
            world.pool.counters().node_reads - before
        })
    };
    let (few, many) = (reads(200), reads(4000));
    for (few, many) in few.into_iter().zip(many) {
        // Twenty times the size, and a tree with at most two more levels.
        assert!(many < few * 3, "{many} node reads instead of {few}");
    }
}

fn snapshot(world: &World, name: &str) -> crate::catalog::Snapshot {
    world.datasets.snapshot(&[Name::parse(name).unwrap()], &[]).unwrap();
    world.datasets.catalog().snapshot(&Name::parse(name).unwrap()).unwrap()
}

#[test]
fn sources_are_earlier_points_of_the_same_line() {
    let mut world = World::new(32 << 10, false);
    world.put(1, 1, 512, b"");
    let (a, b) = (world.snapshot("a"), world.snapshot("b"));
    world.datasets.bookmark(&Name::parse("tank/fs@a").unwrap(), &Name::parse("tank/fs#a").unwrap()).unwrap();
    world
        .datasets
        .clone_snapshot(&Name::parse("tank/fs@a").unwrap(), "tank/clone", &CloneOptions::default())
        .unwrap();
    world.datasets.create_filesystem("tank/other", &CreateOptions::default()).unwrap();
    let (clone, other) = (snapshot(&world, "tank/clone@c"), snapshot(&world, "tank/other@a"));
    let catalog = world.datasets.catalog();
    let flags = SendFlags::default();
    let single = |to: &crate::catalog::Snapshot, from: &crate::catalog::Snapshot| {
        SendPlan::single(&catalog, to, Source::Snapshot(from.clone()), &flags)
    };
    for (to, from) in [(&a, &b), (&a, &a), (&b, &other), (&clone, &b), (&a, &clone)] {
        let refused = single(to, from);
        assert!(matches!(refused, Err(SendError::NotEarlier { .. })), "{refused:?}");
    }
    let begin_of = |plan: &SendPlan| begin(&parse(&run(plan).unwrap()));
    assert!(!begin_of(&single(&b, &a).unwrap()).flags.contains(BeginFlags::CLONE));
    assert!(begin_of(&single(&clone, &a).unwrap()).flags.contains(BeginFlags::CLONE));
    let bookmark = catalog.bookmark(&Name::parse("tank/fs#a").unwrap()).unwrap();
    let plan = SendPlan::single(&catalog, &b, Source::Bookmark(bookmark.clone()), &flags).unwrap();
    assert_eq!(begin_of(&plan).from_guid, a.record.guid);
    let refused = SendPlan::single(&catalog, &a, Source::Bookmark(bookmark), &flags);
    assert!(matches!(refused, Err(SendError::NotEarlier { .. })), "{refused:?}");
    // The first snapshot of a clone is incremental from its origin.
    let all = SendPlan::all_between(&catalog, Source::Snapshot(a.clone()), &clone, &flags).unwrap();
    assert_eq!(all.snapshots().collect::<Vec<_>>(), ["tank/clone@c"]);
    let all = SendPlan::all_between(&catalog, Source::None, &b, &flags).unwrap();
    let begins: Vec<u64> = parse(&run(&all).unwrap())
        .iter()
        .filter_map(|(record, _)| match record {
            Record::Begin(begin) => Some(begin.from_guid),
            _ => None,
        })
        .collect();
    assert_eq!(begins, [0, 0, a.record.guid], "a package, a full stream, an incremental");
}

#[test]
fn a_replication_leaves_out_what_it_is_told_to() {
    let world = World::new(32 << 10, false);
    for name in ["tank/fs/x", "tank/fs/x/below", "tank/fs/y"] {
        world.datasets.create_filesystem(name, &CreateOptions::default()).unwrap();
    }
    let names = ["tank/fs@r", "tank/fs/x@r", "tank/fs/x/below@r"].map(|name| Name::parse(name).unwrap());
    world.datasets.snapshot(&names, &[]).unwrap();
    let catalog = world.datasets.catalog();
    let to = catalog.snapshot(&names[0]).unwrap();
    let flags = SendFlags { replicate: true, ..SendFlags::default() };
    let error = SendPlan::replicate(&catalog, &to, None, &flags).unwrap_err();
    assert!(error.to_string().contains("snapshot tank/fs/y@r does not exist"), "{error}");
    let plan =
        SendPlan::replicate(&catalog, &to, None, &SendFlags { skip_missing: true, ..flags.clone() }).unwrap();
    assert_eq!(plan.snapshots().collect::<Vec<_>>(), ["tank/fs@r", "tank/fs/x@r", "tank/fs/x/below@r"]);
    assert_eq!(plan.warnings().len(), 1);
    let exclude = vec!["tank/fs/x".to_owned(), "tank/fs/y".to_owned()];
    let plan = SendPlan::replicate(&catalog, &to, None, &SendFlags { exclude, ..flags }).unwrap();
    assert_eq!(plan.snapshots().collect::<Vec<_>>(), ["tank/fs@r"]);
    let missing = SendPlan::replicate(&catalog, &to, Some(("nosuch", true)), &SendFlags::default());
    assert!(matches!(missing, Err(SendError::NoSource { .. })), "{missing:?}");
}

#[test]
fn a_guessed_size_is_near_the_true_one() {
    let mut world = World::new(32 << 10, false);
    for object in 1..400 {
        world.put(object, 1, 4096, b"");
        world.write(object, 0, &noise(4096));
    }
    let snapshot = world.snapshot("a");
    let step = world.step(&snapshot, Base::Empty, Features::NONE, PLAIN);
    let plan = SendPlan::of(vec![step.clone()], None);
    let exact = plan.estimate().unwrap()[0].size;
    let guess = plan.step_size_within(&step, 100).unwrap();
    assert!(guess > exact * 3 / 4 && guess < exact * 4 / 3, "{guess} instead of {exact}");
}

#[test]
fn a_damaged_block_ends_the_stream_and_is_named() {
    let mut world = World::new(32 << 10, false);
    world.put(3, 1, 4096, b"");
    world.write(3, 0, &noise(4096));
    world.write(3, 5, &noise(4096));
    let snapshot = world.snapshot("a");
    let step = world.step(&snapshot, Base::Empty, Features::NONE, PLAIN);
    let entry = step.target.view.get(&ObjsetKey::Block { object: 3, blkid: 5 }.encode()).unwrap().unwrap();
    let BlockPtr::Stored(ptr) = Block::decode(&entry.value).unwrap().ptr else { panic!("it is embedded") };
    world.store.corrupt(ptr.segment, u64::from(ptr.offset) + ptr.asize() - 100, 1).unwrap();
    let mut out = Vec::new();
    let error = SendPlan::of(vec![step], None).run(&mut out, &|_| {}).expect_err("it is damaged");
    assert!(error.to_string().contains("object 3, offset 20480 of tank/fs@a"), "{error}");
    assert!(matches!(error, SendError::Unreadable { object: 3, offset: Some(20480), .. }), "{error:?}");
    // Everything before it was sent, without END.
    let mut reader = Reader::new(out.as_slice());
    let mut payload = Vec::new();
    let writes = std::iter::from_fn(|| reader.next(&mut payload).ok().flatten())
        .filter(|record| matches!(record.record, Record::Write(_)));
    assert_eq!(writes.count(), 1);
}

#[test]
fn changed_objects_are_named_once_each() {
    let mut world = World::new(512, false);
    for object in 1..60 {
        world.put(object, 1, 512, b"bonus");
        world.write(object, 0, &noise(512));
        world.write(object, 1, &noise(512));
    }
    let a = world.snapshot("a");
    world.write(7, 0, &text(512));
    world.write(7, 1, &text(512));
    world.spill(9, Some(&[1; 512]));
    world.remove(20);
    world.put(70, 1, 512, b"");
    world.punch(33, 1, 2);
    let b = world.snapshot("b");
    let catalog = world.datasets.catalog();
    let (a, b) = (catalog.objset(&a), catalog.objset(&b));
    let changed: Vec<u64> = changed_objects(&a, &b).collect::<Result<_, _>>().unwrap();
    assert_eq!(changed, [7, 9, 20, 33, 70]);
    assert_eq!(changed_objects(&a, &a).count(), 0);
}
