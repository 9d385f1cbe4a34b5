//! Tables of what is where and what has to be done.

use proptest::prelude::*;
use snowmelt_stream::nvlist::NvValue;
use snowmelt_stream::token::ResumeToken;

use super::{Marks, Options, Origin, Problem, Step, keep, plan, steps};
use crate::request::{Action, BookmarkInfo, DatasetInfo, Kind, SnapshotInfo};

/// A dataset with snapshots of these guids, named `s1`, `s2`, …; txgs follow their order.
fn dataset(name: &str, guids: &[u64]) -> DatasetInfo {
    DatasetInfo {
        name: name.to_owned(),
        kind: Kind::Filesystem,
        encrypted: false,
        origin: None,
        snapshots: guids
            .iter()
            .zip(1..)
            .map(|(guid, at)| SnapshotInfo {
                name: format!("s{guid}"),
                guid: *guid,
                createtxg: at * 10,
                creation: at,
                held: false,
                holds: 0,
                has_clones: false,
            })
            .collect(),
        bookmarks: Vec::new(),
        written: 0,
        resume_token: None,
        inconsistent: false,
        receiving: false,
    }
}

fn with_bookmark(mut info: DatasetInfo, guid: u64, createtxg: u64) -> DatasetInfo {
    info.bookmarks.push(BookmarkInfo { name: format!("b{guid}"), guid, createtxg });
    info
}

fn token(to: u64, from: u64) -> String {
    let mut token = ResumeToken::new(to, &format!("src/a@s{to}"));
    token.0.insert("object", NvValue::Uint64(7));
    if from != 0 {
        token.0.insert("fromguid", NvValue::Uint64(from));
    }
    token.to_string()
}

/// Steps as text: `from>to`, `from>>to` with those in between, `~to` for the rest of one, `!` for an abort.
fn told(steps: &[Step]) -> Vec<String> {
    let short = |name: &str| name.rsplit_once(['@', '#']).map_or(name, |(_, short)| short).to_owned();
    steps
        .iter()
        .map(|step| match step {
            Step::Release { snapshot } => format!("release {snapshot}"),
            Step::Abort { .. } => "!".to_owned(),
            Step::Send { send, .. } => {
                let to = short(&send.to);
                match (&send.token, &send.from, send.intermediate) {
                    (Some(_), ..) => format!("~{to}"),
                    (None, None, _) => format!(">{to}"),
                    (None, Some(from), false) => format!("{}>{to}", short(from)),
                    (None, Some(from), true) => format!("{}>>{to}", short(from)),
                }
            }
        })
        .collect()
}

fn planned(
    source: &DatasetInfo,
    target: Option<&DatasetInfo>,
    options: &Options,
) -> Result<Vec<String>, Problem> {
    steps(source, target, "dst/a", None, options).map(|steps| told(&steps))
}

#[test]
fn one_dataset() {
    let all = Options::default();
    let newest = Options { newest_only: true, ..Options::default() };
    let source = dataset("src/a", &[1, 2, 3, 4]);
    let bookmarked = with_bookmark(dataset("src/a", &[3, 4, 5]), 2, 5);
    type Row<'a> = (&'a str, &'a DatasetInfo, Option<DatasetInfo>, &'a Options, &'a [&'a str]);
    let rows: [Row<'_>; 9] = [
        ("not there", &source, None, &all, &[">s1", "s1>>s4"]),
        ("not there, newest only", &source, None, &newest, &[">s4"]),
        ("up to date", &source, Some(dataset("dst/a", &[1, 2, 3, 4])), &all, &[]),
        ("two behind", &source, Some(dataset("dst/a", &[1, 2])), &all, &["s2>>s4"]),
        ("one behind", &source, Some(dataset("dst/a", &[3])), &all, &["s3>s4"]),
        ("two behind, newest only", &source, Some(dataset("dst/a", &[2])), &newest, &["s2>s4"]),
        ("from a bookmark", &bookmarked, Some(dataset("dst/a", &[1, 2])), &all, &["b2>s3", "s3>>s5"]),
        ("from a bookmark, newest only", &bookmarked, Some(dataset("dst/a", &[2])), &newest, &["b2>s5"]),
        (
            "a snapshot before its bookmark",
            &with_bookmark(source.clone(), 4, 40),
            Some(dataset("dst/a", &[3, 4])),
            &all,
            &[],
        ),
    ];
    for (what, source, target, options, expected) in rows {
        assert_eq!(
            planned(source, target.as_ref(), options).as_deref(),
            Ok(&expected.map_text()[..]),
            "{what}"
        );
    }
}

trait MapText {
    fn map_text(&self) -> Vec<String>;
}

impl MapText for &[&str] {
    fn map_text(&self) -> Vec<String> {
        self.iter().map(|text| (*text).to_owned()).collect()
    }
}

#[test]
fn what_was_cut_off_is_resumed_where_it_can_be() {
    let all = Options::default();
    let source = dataset("src/a", &[1, 2, 3, 4]);
    let with = |guids: &[u64], to, from| {
        let mut info = dataset("dst/a", guids);
        info.resume_token = Some(token(to, from));
        info.inconsistent = guids.is_empty();
        Some(info)
    };
    for (what, target, expected) in [
        ("an incremental", with(&[1], 2, 1), &["~s2", "s2>>s4"][..]),
        ("the last one", with(&[3], 4, 3), &["~s4"]),
        ("a full one", with(&[], 1, 0), &["~s1", "s1>>s4"]),
        ("of a snapshot that is gone", with(&[1], 9, 1), &["!", "s1>>s4"]),
        ("from one that is gone", with(&[1], 2, 9), &["!", "s1>>s4"]),
        ("a full one of a snapshot that is gone", with(&[], 9, 0), &["!", ">s1", "s1>>s4"]),
    ] {
        let planned = planned(&source, target.as_ref(), &all);
        assert_eq!(planned.as_deref(), Ok(&expected.map_text()[..]), "{what}");
    }
}

#[test]
fn problems_tell_what_to_do() {
    let all = Options::default();
    let source = dataset("src/a", &[1, 2, 3]);
    let diverged = dataset("dst/a", &[1, 2, 8, 9]);
    let problem = planned(&source, Some(&diverged), &all).expect_err("newer snapshots");
    let text = problem.to_string();
    for part in ["dst/a@s8", "dst/a@s9", "@s2", "--force"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let force = Options { force: true, ..Options::default() };
    assert_eq!(planned(&source, Some(&diverged), &force).as_deref(), Ok(&["s2>s3".to_owned()][..]));
    // What is newer at the target stands in the way of a stream only.
    assert_eq!(planned(&dataset("src/a", &[1, 2]), Some(&diverged), &all), Ok(Vec::new()));
    // Even with force nothing else than a rollback happens.
    let other = dataset("dst/a", &[8, 9]);
    for options in [&all, &force] {
        assert!(matches!(planned(&source, Some(&other), options), Err(Problem::NothingInCommon { .. })));
        assert!(matches!(
            planned(&source, Some(&dataset("dst/a", &[])), options),
            Err(Problem::NothingInCommon { .. })
        ));
    }
    let mut receiving = dataset("dst/a", &[1]);
    receiving.receiving = true;
    assert!(matches!(planned(&source, Some(&receiving), &force), Err(Problem::Receiving { .. })));
    assert!(matches!(planned(&dataset("src/a", &[]), None, &all), Err(Problem::NothingToSend { .. })));
    let mut volume = dataset("dst/a", &[1]);
    volume.kind = Kind::Volume;
    assert!(matches!(planned(&source, Some(&volume), &force), Err(Problem::OtherKind { is: "volume", .. })));
}

#[test]
fn encrypted_datasets_go_raw() {
    let mut source = dataset("src/a", &[1]);
    source.encrypted = true;
    let steps = steps(&source, None, "dst/a", None, &Options::default()).expect("a full send");
    assert!(matches!(&steps[..], [Step::Send { send, .. }] if send.raw));
}

/// Tasks as text: `target`, `(from)` if renamed, `[needs]`.
fn tasks(source: &[DatasetInfo], target: &[DatasetInfo]) -> Vec<String> {
    plan(source, target, "dst/a")
        .tasks
        .iter()
        .map(|task| {
            let rename = task.rename.as_ref().map(|from| format!(" ({from})")).unwrap_or_default();
            let there = if task.target_at.is_some() { "" } else { " new" };
            format!("{}{rename}{there} {:?}", task.target, task.needs)
        })
        .collect()
}

#[test]
fn children_wait_for_parents_that_are_to_be_made() {
    let source = [dataset("src/a", &[1]), dataset("src/a/b", &[2]), dataset("src/a/b/c", &[3])];
    assert_eq!(tasks(&source, &[]), ["dst/a new []", "dst/a/b new [0]", "dst/a/b/c new [1]"]);
    let target = [dataset("dst/a", &[1]), dataset("dst/a/b", &[2])];
    assert_eq!(tasks(&source, &target), ["dst/a []", "dst/a/b []", "dst/a/b/c new []"]);
}

#[test]
fn clones_wait_for_their_origin() {
    let mut clone = dataset("src/a/a-clone", &[5]);
    clone.origin = Some(2);
    let source = [dataset("src/a", &[1]), clone, dataset("src/a/z", &[2, 3])];
    let planned = plan(&source, &[], "dst/a");
    assert_eq!(tasks(&source, &[]), ["dst/a new []", "dst/a/a-clone new [0, 2]", "dst/a/z new [0]"]);
    let origin = Origin { source: "src/a/z@s2".to_owned(), target: "dst/a/z@s2".to_owned() };
    assert_eq!(planned.tasks[1].origin, Some(origin.clone()));
    let steps =
        steps(&source[1], None, "dst/a/a-clone", Some(&origin), &Options::default()).expect("a clone");
    assert_eq!(told(&steps), ["s2>s5"]);
    assert!(
        matches!(&steps[..], [Step::Send { receive, .. }] if receive.origin.as_deref() == Some("dst/a/z@s2"))
    );
}

#[test]
fn renames_are_followed_by_guid() {
    let source = [dataset("src/a", &[1]), dataset("src/a/new", &[2, 4]), dataset("src/a/new/below", &[3])];
    let target = [dataset("dst/a", &[1]), dataset("dst/a/old", &[2]), dataset("dst/a/old/below", &[3])];
    // What is below goes along with what is above.
    assert_eq!(tasks(&source, &target), ["dst/a []", "dst/a/new (dst/a/old) []", "dst/a/new/below [1]"]);
    // One that moved to another parent.
    let source = [dataset("src/a", &[1]), dataset("src/a/p", &[2]), dataset("src/a/p/moved", &[3])];
    let target = [dataset("dst/a", &[1]), dataset("dst/a/moved", &[3]), dataset("dst/a/p", &[2])];
    assert_eq!(tasks(&source, &target), ["dst/a []", "dst/a/p []", "dst/a/p/moved (dst/a/moved) []"]);
    // A copy in its place is not looked for elsewhere, and what nobody knows stays.
    let target = [dataset("dst/a", &[1]), dataset("dst/a/p", &[2]), dataset("dst/a/x", &[9])];
    assert_eq!(tasks(&source, &target), ["dst/a []", "dst/a/p []", "dst/a/p/moved new []"]);
}

#[test]
fn a_missing_place_is_made() {
    let source = [dataset("src/a", &[1])];
    assert_eq!(plan(&source, &[], "dst/x/y").parent.as_deref(), Some("dst/x"));
    assert_eq!(plan(&source, &[], "dst/y").parent, None);
    assert_eq!(plan(&source, &[dataset("dst/x/y", &[1])], "dst/x/y").parent, None);
}

fn names(actions: &[Action]) -> Vec<String> {
    actions
        .iter()
        .map(|action| match action {
            Action::Bookmark { snapshot, .. } => format!("bookmark {snapshot}"),
            Action::DestroyBookmark { name } | Action::DestroySnapshot { name } => format!("destroy {name}"),
            Action::Hold { snapshot, .. } => format!("hold {snapshot}"),
            Action::Release { snapshot, .. } => format!("release {snapshot}"),
            other => format!("{other:?}"),
        })
        .collect()
}

#[test]
fn the_base_is_marked_and_older_marks_go() {
    let marks = Marks::new(None, "host:dst/a", true);
    let old = "snowmelt-sync_2026-01-02_03:04:05.678";
    let mut source = dataset("src/a", &[1, 2, 3]);
    source.snapshots[1].name = old.to_owned();
    source.bookmarks.push(BookmarkInfo {
        name: format!("{}{:016x}", marks.bookmark_prefix, 2),
        guid: 2,
        createtxg: 20,
    });
    let mut target = dataset("dst/a", &[1, 2]);
    target.snapshots[1].name = old.to_owned();
    target.snapshots[1].held = true;
    let (here, there) = keep(&source, "dst/a", Some(&target), 3, &marks);
    let bookmark = format!("destroy src/a#{}0000000000000002", marks.bookmark_prefix);
    assert_eq!(names(&here), ["bookmark src/a@s3".to_owned(), bookmark, format!("destroy src/a@{old}")]);
    assert_eq!(
        names(&there),
        ["hold dst/a@s3".to_owned(), format!("release dst/a@{old}"), format!("destroy dst/a@{old}")]
    );
    // Another target's, or another identifier's, are left alone.
    for other in [Marks::new(None, "other:dst/a", true), Marks::new(Some("x"), "host:dst/a", true)] {
        let (here, _) = keep(&source, "dst/a", Some(&target), 3, &other);
        assert!(!names(&here).iter().any(|name| name.contains("destroy src/a#")), "{here:?}");
    }
    let (here, _) = keep(&source, "dst/a", Some(&target), 3, &Marks::new(Some("x"), "host:dst/a", true));
    assert_eq!(names(&here), ["bookmark src/a@s3"]);
}

#[test]
fn a_second_time_there_is_nothing_to_keep() {
    let marks = Marks::new(Some("x"), "host:dst/a", true);
    let mut source = dataset("src/a", &[1, 2]);
    source.bookmarks.push(BookmarkInfo {
        name: format!("{}{:016x}", marks.bookmark_prefix, 2),
        guid: 2,
        createtxg: 20,
    });
    let mut target = dataset("dst/a", &[1, 2]);
    target.snapshots[1].held = true;
    assert_eq!(keep(&source, "dst/a", Some(&target), 2, &marks), (Vec::new(), Vec::new()));
}

proptest! {
    /// For any state of both ends, a plan ends at the newest snapshot, each step continues from the end of the previous
    /// one, and the target has the base.
    #[test]
    fn steps_lead_from_what_is_there_to_the_newest(
        made in 1..12u64,
        source_has in proptest::collection::vec(any::<bool>(), 12),
        target_has in proptest::collection::vec(any::<bool>(), 12),
        bookmarked in proptest::collection::vec(any::<bool>(), 12),
        newest_only in any::<bool>(),
        force in any::<bool>(),
    ) {
        let guids = |has: &[bool]| -> Vec<u64> {
            (1..=made).filter(|guid| has[*guid as usize - 1]).collect()
        };
        let mut source = dataset("src/a", &guids(&source_has));
        for snapshot in &mut source.snapshots {
            snapshot.createtxg = snapshot.guid * 10;
        }
        for guid in guids(&bookmarked) {
            source = with_bookmark(source, guid, guid * 10);
        }
        let there = guids(&target_has);
        let target = (!there.is_empty()).then(|| dataset("dst/a", &there));
        let options = Options { newest_only, force, ..Options::default() };
        let Ok(steps) = steps(&source, target.as_ref(), "dst/a", None, &options) else { return Ok(()) };
        let newest = source.snapshots.last().map(|snapshot| snapshot.guid);
        let mut at: Option<u64> = None;
        for step in &steps {
            let Step::Send { send, brings, .. } = step else { panic!("nothing was cut off") };
            match &send.from {
                None => prop_assert!(at.is_none() && target.is_none()),
                Some(from) => {
                    let base: u64 = from.rsplit(['s', 'b']).next().and_then(|n| n.parse().ok()).expect("a number");
                    match at {
                        None => prop_assert!(there.contains(&base)),
                        Some(at) => prop_assert_eq!(at, base),
                    }
                    prop_assert!(base < *brings);
                }
            }
            at = Some(*brings);
        }
        if let Some(at) = at {
            prop_assert_eq!(Some(at), newest);
            prop_assert!(!there.contains(&at));
        }
    }
}
