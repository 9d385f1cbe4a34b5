//! Tests of plans: for short histories, for a year, and properties that hold for all plans.

use jiff::SignedDuration;
use proptest::prelude::*;

use super::*;
use crate::state::{Bookmark, JobState, Side};

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn config(text: &str) -> Config {
    Config::from_toml("policy.toml", text).unwrap()
}

fn dataset(name: &str) -> Dataset {
    Dataset { name: name.to_owned(), ..Dataset::default() }
}

fn with(names: &[&str]) -> State {
    State { datasets: names.iter().map(|name| dataset(name)).collect(), ..State::default() }
}

fn planned(config: &Config, state: &State, now: Timestamp) -> Plan {
    plan(config, state, now, &TimeZone::UTC, "host")
}

/// Carries out the snapshots and pruning of a plan, like a pool.
fn apply(state: &mut State, plan: &Plan, now: Timestamp) {
    for action in &plan.actions {
        match action {
            Action::Take(taking) => {
                for name in taking.rounds().concat() {
                    let (dataset, short) = name.split_once('@').unwrap();
                    let dataset = state.datasets.iter_mut().find(|found| found.name == dataset).unwrap();
                    assert!(dataset.snapshots.iter().all(|found| found.name != short), "{name} twice");
                    let createtxg = dataset.snapshots.last().map_or(1, |last| last.createtxg + 1);
                    dataset.snapshots.push(Snapshot {
                        name: short.to_owned(),
                        guid: createtxg * 1000 + dataset.name.len() as u64,
                        createtxg,
                        creation: now.as_second(),
                        ..Snapshot::default()
                    });
                }
            }
            Action::Destroy(destroying) => {
                assert_eq!(destroying.place, "");
                let found = state.datasets.iter_mut().find(|found| found.name == destroying.dataset);
                let dataset = found.unwrap();
                let before = dataset.snapshots.len();
                dataset.snapshots.retain(|found| found.name != destroying.snapshot);
                assert_eq!(dataset.snapshots.len(), before - 1);
            }
            Action::Replicate { .. } => {}
        }
    }
}

fn names(state: &State) -> Vec<String> {
    let all = state.datasets.iter();
    all.flat_map(|dataset| dataset.snapshots.iter().map(|s| format!("{}@{}", dataset.name, s.name))).collect()
}

/// Full names of the snapshots that a plan takes, in rounds.
fn taken_names(plan: &Plan) -> Vec<Vec<String>> {
    let takings = plan.actions.iter().filter_map(|action| match action {
        Action::Take(taking) => Some(taking.rounds()),
        _ => None,
    });
    takings.flatten().collect()
}

#[test]
fn all_datasets_due_are_taken_at_one_moment() {
    let config = config(
        "[dataset.tank]\nrecursive = true\nhourly = 2\n[dataset.\"tank/b\"]\ndaily = 1\n[dataset.zoo]\nhourly = 1\n",
    );
    let mut state = with(&["tank", "tank/a", "tank/b", "zoo"]);
    let now = at("2026-11-21T12:00:03Z");
    let plan = planned(&config, &state, now);
    assert_eq!(
        taken_names(&plan),
        [
            vec![
                "tank@autosnap_2026-11-21_12:00:03_hourly",
                "tank/a@autosnap_2026-11-21_12:00:03_hourly",
                "tank/b@autosnap_2026-11-21_12:00:03_daily",
                "zoo@autosnap_2026-11-21_12:00:03_hourly",
            ],
            vec!["tank/b@autosnap_2026-11-21_12:00:03_hourly"],
        ]
    );
    apply(&mut state, &plan, now);
    assert_eq!(planned(&config, &state, now).actions, []);
    assert_eq!(planned(&config, &state, at("2026-11-21T12:59:59Z")).actions, []);
    assert_eq!(taken_names(&planned(&config, &state, at("2026-11-21T13:00:00Z"))).concat().len(), 4);
}

#[test]
fn hooks_are_shared_or_not() {
    let text = "[dataset.a]\nhourly = 1\npre_snapshot_script = \"x\"\n[dataset.b]\nhourly = 1\n\
                [dataset.c]\nhourly = 1\npre_snapshot_script = \"x\"\n";
    let mut config = config(text);
    let state = with(&["a", "b", "c"]);
    let now = at("2026-11-21T12:00:00Z");
    let groups = |config: &Config| -> Vec<Vec<String>> {
        let plan = planned(config, &state, now);
        let takings = plan.actions.iter().filter_map(|action| match action {
            Action::Take(taking) => Some(taking.datasets.iter().map(|of| of.dataset.clone()).collect()),
            _ => None,
        });
        takings.collect()
    };
    assert_eq!(groups(&config), [vec!["b"], vec!["a", "c"]]);
    config.shares_hooks = false;
    assert_eq!(groups(&config), [vec!["b"], vec!["a"], vec!["c"]]);
}

#[test]
fn followers_go_with_their_leader() {
    let config = config("[dataset.vm]\nrecursive = \"atomic\"\nhourly = 5\n");
    let mut state = with(&["vm", "vm/1"]);
    let now = at("2026-11-21T12:00:00Z");
    let plan = planned(&config, &state, now);
    assert_eq!(taken_names(&plan).concat().len(), 2);
    apply(&mut state, &plan, now);
    // A new dataset waits until the others are due.
    state.datasets.push(dataset("vm/2"));
    assert_eq!(planned(&config, &state, now).actions, []);
    state.datasets[1].receiving = true;
    let later = planned(&config, &state, at("2026-11-21T13:00:00Z"));
    assert_eq!(taken_names(&later).concat().len(), 2);
    assert_eq!(later.notes, ["vm/1: no snapshot while it is being received"]);
}

#[test]
fn after_sleep_one_is_taken_and_nothing_is_pruned_but_what_is_old() {
    let config = config("[dataset.a]\nhourly = 3\n");
    let mut state = with(&["a"]);
    for hour in 0..4 {
        let now = at("2026-11-21T00:00:10Z") + SignedDuration::from_hours(hour);
        let plan = planned(&config, &state, now);
        apply(&mut state, &plan, now);
    }
    let now = at("2026-11-29T11:31:00Z");
    let plan = planned(&config, &state, now);
    assert_eq!(taken_names(&plan).concat(), ["a@autosnap_2026-11-29_11:31:00_hourly"]);
    apply(&mut state, &plan, now);
    assert_eq!(state.datasets[0].snapshots.len(), 3);
    assert_eq!(planned(&config, &state, at("2026-11-29T11:59:59Z")).actions, []);
}

#[test]
fn a_clock_set_back_doubles_nothing_and_prunes_nothing() {
    let config = config("[dataset.a]\nhourly = 48\ndaily = 3\nfrequently = 96\n");
    let mut state = with(&["a"]);
    let mut now = at("2026-11-20T00:00:01Z");
    while now < at("2026-11-21T12:30:00Z") {
        let plan = planned(&config, &state, now);
        apply(&mut state, &plan, now);
        now += SignedDuration::from_mins(15);
    }
    let before = names(&state);
    for back in [1, 59, 600, 3600, 7 * 3600] {
        let set_back = now - SignedDuration::from_secs(back) - SignedDuration::from_mins(15);
        assert_eq!(planned(&config, &state, set_back).actions, [], "{back} s back");
    }
    assert_eq!(names(&state), before);
    // One snapshot from the future, taken with a wrong clock, does not stop snapshots.
    state.datasets[0].snapshots[5].creation = at("2099-01-01T00:00:00Z").as_second();
    assert_eq!(taken_names(&planned(&config, &state, at("2026-11-21T13:00:01Z"))).concat().len(), 2);
}

#[test]
fn both_hours_at_the_end_of_summer_time_have_names() {
    let mut config = config("[dataset.a]\nhourly = 48\ndaily = 3\ndaily_hour = 2\ndaily_min = 30\n");
    config.zone = Some(TimeZone::get("Europe/Vienna").unwrap());
    let mut state = with(&["a"]);
    let mut now = at("2026-10-24T00:00:00Z");
    while now < at("2026-10-26T00:00:00Z") {
        let plan = planned(&config, &state, now);
        apply(&mut state, &plan, now);
        now += SignedDuration::from_mins(10);
    }
    let all = names(&state);
    let hourly = all.iter().filter(|name| name.ends_with("_hourly"));
    assert_eq!(hourly.clone().count(), 48);
    assert!(hourly.clone().any(|name| name.ends_with("2026-10-25_02:00:00_hourly")));
    assert!(hourly.clone().any(|name| name.ends_with("2026-10-25_02:00:00dst_hourly")));
    // The first one is due for the day before.
    let daily: Vec<&String> = all.iter().filter(|name| name.ends_with("_daily")).collect();
    assert_eq!(daily.len(), 3, "{daily:?}");
}

#[test]
fn fullness_defers_pruning() {
    let config = config("[dataset.\"tank/a\"]\nhourly = 0\nprune_defer = 60\n");
    let mut state = with(&["tank/a"]);
    state.datasets[0]
        .snapshots
        .push(Snapshot { name: "autosnap_2026-01-01_00:00:00_hourly".to_owned(), ..Snapshot::default() });
    for (used, count) in [(59, 0), (60, 0), (61, 1)] {
        state.pools.insert("tank".to_owned(), used);
        let plan = planned(&config, &state, at("2026-11-21T12:00:00Z"));
        assert_eq!((plan.actions.len(), plan.notes.len()), (count, 1 - count), "{used} %: {plan:?}");
    }
}

#[test]
fn delays_are_the_same_each_time() {
    let config = config("[dataset.a]\nhourly = 3\njitter = \"10m\"\n");
    let state = with(&["a"]);
    let due = |host: &str| {
        let next = Planner::new(&config, &state, at("2026-11-21T12:59:00Z"), &TimeZone::UTC, host).next_due();
        next.unwrap().as_second() % 3600
    };
    assert_eq!(due("one"), due("one"));
    assert_ne!(due("one"), due("two"));
    assert!((0..600).contains(&due("one")));
}

fn side(root: &str, place: &str, datasets: Vec<Dataset>) -> Side {
    Side { root: root.to_owned(), place: place.to_owned(), recursive: true, datasets: Some(datasets) }
}

const JOB: &str = "[dataset.tank]\nhourly = 1\nkeep_not_replicated = true\n\
                   [job.off]\nsource = \"tank\"\ntarget = \"back\"\n\
                   when = \"30 * * * *\"\nprune_target = { hourly = 2 }\n";

/// Five hourly snapshots. The target has the first `sent` of them.
fn with_job(sent: usize) -> State {
    let mut state = with(&["tank"]);
    let begin = at("2026-11-21T08:00:00Z").as_second();
    state.datasets[0].snapshots = (0..5_i64)
        .map(|hour| Snapshot {
            name: format!("autosnap_2026-11-21_{:02}:00:00_hourly", 8 + hour),
            guid: 100 + hour as u64,
            createtxg: 10 + hour as u64,
            creation: begin + hour * 3600,
            ..Snapshot::default()
        })
        .collect();
    let copy = Dataset {
        name: "back".to_owned(),
        snapshots: state.datasets[0].snapshots[..sent].to_vec(),
        ..Dataset::default()
    };
    let job = JobState {
        source: side("tank", "", state.datasets.clone()),
        target: side("back", "host:", vec![copy]),
        mark: "mark_".to_owned(),
        began: Some(at("2026-11-21T11:30:00Z").as_second()),
        ..JobState::default()
    };
    state.jobs.insert("off".to_owned(), job);
    state
}

/// The snapshots of source and target that a plan destroys.
fn going(config: &Config, state: &State, now: &str) -> Vec<String> {
    let plan = planned(config, state, at(now));
    let destroyed = plan.actions.iter().filter_map(|action| match action {
        Action::Destroy(of) => Some(format!("{}{}@{}", of.place, of.dataset, &of.snapshot[20..22])),
        _ => None,
    });
    destroyed.collect()
}

#[test]
fn the_base_stays_at_both_ends() {
    let now = "2026-11-21T12:20:00Z";
    let mut config = config(JOB);
    assert_eq!(going(&config, &with_job(3), now), ["tank@08", "tank@09", "host:back@08"]);
    // 10 is the base, although the count keeps only one.
    assert_eq!(
        going(&config, &with_job(5), now),
        ["tank@08", "tank@09", "tank@10", "tank@11", "host:back@08", "host:back@09", "host:back@10"]
    );
    // The target has nothing yet, so nothing is destroyed.
    assert_eq!(going(&config, &with_job(0), now), [] as [&str; 0]);
    let off = config.jobs.get_mut("off").unwrap();
    off.prune_target.as_mut().unwrap().retention.counts.insert("hourly".to_owned(), (0, None));
    assert_eq!(going(&config, &with_job(3), now), ["tank@08", "tank@09", "host:back@08", "host:back@09"]);
}

#[test]
fn a_server_of_rsync_needs_no_base() {
    let now = "2026-11-21T12:20:00Z";
    let config = config(JOB);
    let mut state = with_job(0);
    let off = state.jobs.get_mut("off").unwrap();
    (off.has_files, off.target, off.succeeded) =
        (true, Side::default(), Some(at("2026-11-21T11:30:00Z").as_second()));
    assert_eq!(going(&config, &state, now), ["tank@08", "tank@09", "tank@10", "tank@11"]);
    let planner = Planner::new(&config, &state, at(now), &TimeZone::UTC, "host");
    assert_eq!(planner.jobs(at(now).as_second())[0].lag, Some(50 * 60));
    // A job from an end without snapshots does not prevent snapshots of its target.
    let off = state.jobs.get_mut("off").unwrap();
    (off.source, off.target) = (Side::default(), side("tank", "", state.datasets.clone()));
    state.datasets[0].snapshots.clear();
    let plan = planned(&config, &state, at(now));
    assert!(plan.actions.iter().any(|action| matches!(action, Action::Take(_))), "{plan:?}");
}

#[test]
fn a_mark_is_enough_to_know_the_base() {
    let now = "2026-11-21T12:20:00Z";
    let config = config(JOB);
    let mut state = with_job(3);
    state.jobs.get_mut("off").unwrap().target.datasets = None;
    let plan = planned(&config, &state, at(now));
    assert_eq!(plan.actions, []);
    assert_eq!(plan.notes, ["tank: nothing is pruned until job off has run: common snapshots must be kept"]);
    state.datasets[0].bookmarks.push(mark(102));
    // A mark is made before a snapshot is sent. It proves the arrival only after a success.
    assert_eq!(going(&config, &state, now), [] as [&str; 0]);
    state.jobs.get_mut("off").unwrap().succeeded = Some(0);
    assert_eq!(going(&config, &state, now), ["tank@08", "tank@09"]);
    // The base itself is gone, but the mark exists. Newer snapshots are kept.
    state.datasets[0].snapshots.remove(2);
    assert_eq!(going(&config, &state, now), ["tank@08", "tank@09"]);
}

/// A mark for one of the snapshots of `with_job`.
fn mark(guid: u64) -> Bookmark {
    Bookmark { name: format!("mark_{guid:x}"), guid, createtxg: guid - 90 }
}

/// A configuration in which only the count keeps snapshots of `tank`.
fn by_count() -> Config {
    let mut config = config(JOB);
    config.sections[0].settings.keep_not_replicated = None;
    config
}

#[test]
fn what_was_there_before_a_cut_stays() {
    let (config, now) = (by_count(), "2026-11-21T12:20:00Z");
    // A transfer from 09 to 11 was cut off, and the target cannot be listed.
    let mut state = with_job(2);
    let job = state.jobs.get_mut("off").unwrap();
    job.target.datasets = None;
    (job.succeeded, job.failure) = (Some(1), Some("cut off".to_owned()));
    job.began = Some(at("2026-11-21T12:19:00Z").as_second());
    state.datasets[0].bookmarks = vec![mark(101), mark(103)];
    assert_eq!(going(&config, &state, now), ["tank@08", "tank@10"]);
    // The same with a listed target that has received a part of the stream. The rest may still arrive.
    let mut state = with_job(2);
    state.datasets[0].bookmarks = vec![mark(101), mark(103)];
    state.jobs.get_mut("off").unwrap().target.datasets.as_mut().unwrap()[0].resumable = true;
    assert_eq!(going(&config, &state, now), ["tank@08"]);
    // The target was rolled back to 08 after 10 had arrived.
    let mut state = with_job(1);
    state.datasets[0].bookmarks = vec![mark(102)];
    assert_eq!(going(&config, &state, now), ["tank@09", "tank@11"]);
}

#[test]
fn nothing_goes_that_a_target_not_seen_may_need() {
    let (config, now) = (by_count(), "2026-11-21T12:20:00Z");
    let none = [] as [&str; 0];
    let seen = with_job(3);
    assert_eq!(going(&config, &seen, now), ["tank@08", "tank@09", "tank@11", "host:back@08"]);
    let mut state = seen.clone();
    state.jobs.get_mut("off").unwrap().target.datasets = None;
    assert_eq!(going(&config, &state, now), none);
    // If the place does not have the dataset, its disk is missing.
    state.jobs.get_mut("off").unwrap().target.datasets = Some(vec![dataset("back-elsewhere")]);
    assert_eq!(going(&config, &state, now), none);
    // Nothing is destroyed at a target whose source was not listed.
    let mut state = seen.clone();
    state.jobs.get_mut("off").unwrap().source.datasets = None;
    assert!(!going(&config, &state, now).iter().any(|name| name.starts_with("host:")));
    // Nothing is destroyed at all if the ends of a job are not known.
    let mut state = seen.clone();
    state.jobs.clear();
    let plan = planned(&config, &state, at(now));
    assert!(!plan.actions.iter().any(|action| matches!(action, Action::Destroy(_))), "{plan:?}");
    assert!(plan.notes[0].contains("while job off is not valid"), "{:?}", plan.notes);
}

#[test]
fn a_copy_is_known_by_what_it_has() {
    let (config, now) = (by_count(), "2026-11-21T12:20:00Z");
    let mut state = with_job(3);
    let job = state.jobs.get_mut("off").unwrap();
    // tank/new was called tank/old when it was last sent.
    let mut renamed = job.target.datasets.as_ref().unwrap()[0].clone();
    renamed.name = "back/old".to_owned();
    job.target.datasets = Some(vec![dataset("back"), renamed]);
    state.datasets[0].name = "tank/new".to_owned();
    state.datasets.push(dataset("tank"));
    job.source = side("tank", "", state.datasets.clone());
    let config = Config { sections: sections(&config, "tank/new"), ..config };
    assert_eq!(
        going(&config, &state, now),
        ["tank/new@08", "tank/new@09", "tank/new@11", "host:back/old@08"]
    );
}

/// The single section of a configuration, changed to another dataset.
fn sections(config: &Config, dataset: &str) -> Vec<crate::config::Section> {
    let mut sections = config.sections.clone();
    sections[0].dataset = dataset.to_owned();
    sections
}

#[test]
fn what_the_next_job_of_a_chain_needs_stays() {
    let now = "2026-11-21T12:20:00Z";
    let text = "[job.next]\nsource = \"root@host:back\"\ntarget = \"third\"\nwhen = \"30 * * * *\"\n";
    let config = config(&format!("{JOB}{text}"));
    let mut state = with_job(5);
    let began = Some(at("2026-11-21T11:30:00Z").as_second());
    let mut next = JobState { began, ..JobState::default() };
    next.source = Side { datasets: None, ..side("back", "root@host:", Vec::new()) };
    let third = Dataset { name: "third".to_owned(), ..state.datasets[0].clone() };
    next.target = side("third", "", vec![Dataset { snapshots: third.snapshots[..2].to_vec(), ..third }]);
    state.jobs.insert("next".to_owned(), next);
    // 09 is the snapshot that `third` has, although its source was not listed.
    assert_eq!(going(&config, &state, now)[4..], ["host:back@08", "host:back@10"]);
    state.jobs.get_mut("next").unwrap().target.datasets = None;
    assert!(!going(&config, &state, now).iter().any(|name| name.starts_with("host:")));
}

#[test]
fn no_snapshots_are_taken_of_what_a_job_brings() {
    let config = config(
        "[dataset.tank]\nrecursive = true\nhourly = 1\n\
         [job.in]\nsource = \"tank/home\"\ntarget = \"tank/back\"\nrecursive = true\nwhen = \"daily\"\n",
    );
    let mut state = with(&["tank", "tank/home", "tank/home/a", "tank/back", "tank/back/a", "tank/back/own"]);
    let within = |root: &str| {
        let below = state.datasets.iter().filter(|dataset| dataset.name.starts_with(root));
        side(root, "", below.cloned().collect())
    };
    let job = JobState { source: within("tank/home"), target: within("tank/back"), ..JobState::default() };
    state.jobs.insert("in".to_owned(), job);
    let now = at("2026-11-21T12:20:00Z");
    let plan = planned(&config, &state, now);
    let taken = taken_names(&plan).concat();
    let taken: Vec<&str> = taken.iter().filter_map(|name| name.split('@').next()).collect();
    assert_eq!(taken, ["tank", "tank/back/own", "tank/home", "tank/home/a"]);
    assert_eq!(plan.notes[0], "tank/back: no snapshot, because it is a target of job in");
    // If the source was not listed, all datasets may be copies.
    state.jobs.get_mut("in").unwrap().source.datasets = None;
    assert_eq!(taken_names(&planned(&config, &state, now)).concat().len(), 3);
}

#[test]
fn what_a_running_job_may_need_stays() {
    let config = by_count();
    let mut state = with_job(3);
    let now = "2026-11-21T12:20:00Z";
    assert!(going(&config, &state, now).contains(&"tank@11".to_owned()));
    state.jobs.get_mut("off").unwrap().running = true;
    let needed = ["tank@08", "tank@09", "host:back@08"];
    assert_eq!(going(&config, &state, now), needed);
    // The same for a job that is about to run.
    state.jobs.get_mut("off").unwrap().running = false;
    assert_eq!(going(&config, &state, "2026-11-21T12:30:00Z"), needed);
}

#[test]
fn jobs_are_due_once_and_failures_are_tried_again() {
    let config = config(JOB);
    let mut state = with_job(5);
    let due = |state: &State, now: &str| {
        let plan = planned(&config, state, at(now));
        plan.actions.iter().any(|action| matches!(action, Action::Replicate { .. }))
    };
    assert!(!due(&state, "2026-11-21T12:29:59Z"));
    assert!(due(&state, "2026-11-21T12:30:00Z"));
    assert!(due(&state, "2026-11-24T12:29:00Z"));
    // The clock was set back to a time before the last run.
    assert!(!due(&state, "2026-11-21T11:31:00Z"));
    let job = state.jobs.get_mut("off").unwrap();
    job.failure = Some("no room".to_owned());
    assert!(!due(&state, "2026-11-21T11:39:59Z"));
    assert!(due(&state, "2026-11-21T11:40:00Z"));
    state.jobs.get_mut("off").unwrap().began = None;
    assert!(due(&state, "2026-11-21T12:00:00Z"));
}

#[test]
fn a_job_after_snapshots_runs_when_there_are_newer_ones() {
    let config = config(&JOB.replace("30 * * * *", "after_snapshot"));
    let mut state = with_job(5);
    let due = |state: &State| planned(&config, state, at("2026-11-21T12:59:00Z")).actions.len();
    let with_began = |state: &mut State, began: &str| {
        state.jobs.get_mut("off").unwrap().began = Some(at(began).as_second());
    };
    with_began(&mut state, "2026-11-21T12:00:01Z");
    let quiet = due(&state);
    with_began(&mut state, "2026-11-21T11:59:59Z");
    assert_eq!(due(&state), quiet + 1);
    with_began(&mut state, "2026-11-21T12:00:01Z");
    let plan = planned(&config, &state, at("2026-11-21T13:00:00Z"));
    assert!(plan.actions.iter().any(|action| matches!(action, Action::Replicate { .. })), "{plan:?}");
}

#[test]
fn lag_is_how_long_a_snapshot_has_waited() {
    let config = config(JOB);
    let lag = |state: &State| {
        let now = at("2026-11-21T12:20:00Z");
        Planner::new(&config, state, now, &TimeZone::UTC, "host").jobs(now.as_second())[0].lag
    };
    assert_eq!(lag(&with_job(5)), Some(0));
    assert_eq!(lag(&with_job(4)), Some(20 * 60));
    assert_eq!(lag(&with_job(0)), Some(4 * 3600 + 20 * 60));
}

/// Every hour of a year, with the rules of sanoid, in a zone with summer time.
#[test]
fn a_year() {
    let mut config = config("[dataset.a]\nhourly = 48\ndaily = 90\nweekly = 8\nmonthly = 6\nyearly = 1\n");
    config.zone = Some(TimeZone::get("America/New_York").unwrap());
    let mut state = with(&["a"]);
    let (mut now, end) = (at("2026-01-01T05:00:00Z"), at("2027-01-01T05:00:00Z"));
    let mut taken = std::collections::BTreeMap::<String, usize>::new();
    while now < end {
        let plan = planned(&config, &state, now);
        for name in taken_names(&plan).concat() {
            *taken.entry(name.rsplit('_').next().unwrap_or_default().to_owned()).or_default() += 1;
        }
        apply(&mut state, &plan, now);
        now += SignedDuration::from_hours(1);
    }
    // The first snapshot of each period is due for a time before the year.
    let expected = [("daily", 365), ("hourly", 8760), ("monthly", 12), ("weekly", 53), ("yearly", 1)];
    assert_eq!(taken, expected.map(|(name, count)| (name.to_owned(), count)).into());
    let mut left = std::collections::BTreeMap::<&str, usize>::new();
    for snapshot in &state.datasets[0].snapshots {
        *left.entry(snapshot.name.rsplit('_').next().unwrap_or_default()).or_default() += 1;
    }
    // A snapshot with exactly the maximum age is kept, as in sanoid.
    assert_eq!(left, [("daily", 90), ("hourly", 49), ("monthly", 6), ("weekly", 8), ("yearly", 1)].into());
}

/// Plans for 8,760 existing snapshots are computed quickly.
#[test]
fn many_snapshots_are_no_burden() {
    let config = config("[dataset.a]\nhourly = 48\ngrid = \"1x1h(keep=all) | 24x1h | 365x1d\"\n");
    let mut state = with(&["a"]);
    let begin = at("2026-01-01T00:00:00Z");
    state.datasets[0].snapshots = (0..8760)
        .map(|hour| {
            let creation = begin + SignedDuration::from_hours(hour);
            Snapshot {
                name: crate::name::of("autosnap", creation, &TimeZone::UTC, "hourly", false),
                guid: hour as u64,
                createtxg: hour as u64,
                creation: creation.as_second(),
                ..Snapshot::default()
            }
        })
        .collect();
    let plan = planned(&config, &state, at("2026-12-31T23:30:00Z"));
    let left = 8760 - plan.actions.len();
    assert!((48 + 340..48 + 367).contains(&left), "{left}");
}

prop_compose! {
    fn any_snapshot()(age in 0i64..2000, period in 0usize..4, holds in 0u64..20, sent in any::<bool>())
        -> (i64, usize, bool, bool)
    {
        (age, period, holds == 0, sent)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn whatever_there_is(
        history in prop::collection::vec(any_snapshot(), 0..60),
        counts in prop::collection::vec(0usize..8, 3),
        grid in prop::option::of(Just("2x1h(keep=all) | 5x3h | 4x2d")),
        last in prop::option::of(0usize..5),
        keep_not_replicated in any::<bool>(),
        minute in 0i64..120,
    ) {
        let now = at("2026-11-21T12:00:00Z") + SignedDuration::from_mins(minute);
        let mut text = format!(
            "[dataset.tank]\nhourly = {}\ndaily = {}\nmonthly = {}\nkeep_not_replicated = {keep_not_replicated}\n",
            counts[0], counts[1], counts[2]
        );
        if let Some(grid) = grid { text.push_str(&format!("grid = \"{grid}\"\n")); }
        if let Some(last) = last { text.push_str(&format!("keep_last = {last}\n")); }
        text.push_str("[job.off]\nsource = \"tank\"\ntarget = \"back\"\nwhen = \"daily\"\n");
        text.push_str("prune_target = { hourly = 1, daily = 0 }\n");
        let config = config(&text);
        let periods = ["hourly", "daily", "monthly", "manual"];
        let mut history = history;
        history.sort_by_key(|(age, ..)| -age);
        let mut tank = dataset("tank");
        let mut back = dataset("back");
        for (nth, (age, period, held, sent)) in history.iter().enumerate() {
            let creation = now - SignedDuration::from_hours(*age) - SignedDuration::from_mins(nth as i64);
            let name = match periods[*period] {
                "manual" => format!("by-hand-{nth}"),
                period => crate::name::of("autosnap", creation, &TimeZone::UTC, period, false),
            };
            if tank.snapshots.iter().any(|found| found.name == name) { continue; }
            let snapshot = Snapshot {
                name, guid: nth as u64 + 1, createtxg: nth as u64 + 1, creation: creation.as_second(),
                holds: u64::from(*held), has_clones: false,
            };
            if *sent { back.snapshots.push(Snapshot { holds: 0, ..snapshot.clone() }); }
            tank.snapshots.push(snapshot);
        }
        let base = back.snapshots.last().map(|snapshot| snapshot.guid);
        let mut state = State { datasets: vec![tank], ..State::default() };
        let refresh = |state: &mut State, back: &Dataset| {
            state.jobs.insert("off".to_owned(), JobState {
                source: side("tank", "", state.datasets.clone()),
                target: side("back", "host:", vec![back.clone()]),
                began: Some(now.as_second()),
                ..JobState::default()
            });
        };
        refresh(&mut state, &back);
        let before = state.datasets[0].clone();
        let plan = planned(&config, &state, now);
        // Planning is deterministic.
        prop_assert_eq!(&plan, &planned(&config, &state, now));
        let (mut here, mut there) = (plan.clone(), Vec::new());
        here.actions.retain(|action| match action {
            Action::Destroy(of) if !of.place.is_empty() => { there.push(of.clone()); false }
            _ => true,
        });
        for of in &there {
            prop_assert_ne!(Some(of.guid), base, "the base at the target");
            back.snapshots.retain(|snapshot| snapshot.guid != of.guid);
        }
        apply(&mut state, &here, now);
        let is_left = |old: &Snapshot| state.datasets[0].snapshots.iter().any(|left| left.guid == old.guid);
        for gone in before.snapshots.iter().filter(|old| !is_left(old)) {
            prop_assert_ne!(Some(gone.guid), base, "the base at the source");
            prop_assert!(gone.holds == 0);
            prop_assert!(gone.name.starts_with("autosnap_"));
            if keep_not_replicated {
                prop_assert!(base.is_some_and(|base| gone.createtxg <= base));
            }
        }
        // Of each period, at least the count is kept.
        for (period, count) in ["hourly", "daily", "monthly"].into_iter().zip(&counts) {
            let of = |dataset: &Dataset| {
                dataset.snapshots.iter().filter(|snapshot| snapshot.name.ends_with(period)).count()
            };
            prop_assert!(of(&state.datasets[0]) >= (*count).min(of(&before)), "{}", period);
        }
        // After the plan was carried out, nothing more is due.
        refresh(&mut state, &back);
        let again = planned(&config, &state, now);
        prop_assert_eq!(again.actions, vec![]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// A base stays at the source, even if streams were cut off, the target lost snapshots, or an end was not listed.
    #[test]
    fn a_base_stays_however_little_is_known(
        at_target in prop::collection::vec(any::<bool>(), 5),
        cut_off in prop::collection::vec(any::<bool>(), 5),
        marks in any::<bool>(),
        seen in any::<bool>(),
        root_is_there in any::<bool>(),
        failed in any::<bool>(),
        began in 0i64..7200,
    ) {
        let config = by_count();
        let now = at("2026-11-21T12:20:00Z");
        let mut state = with_job(5);
        let job = state.jobs.get_mut("off").unwrap();
        let target = job.target.datasets.as_mut().unwrap();
        let mut kept = at_target.iter();
        target[0].snapshots.retain(|_| *kept.next().unwrap());
        let base = target[0].snapshots.last().map(|snapshot| snapshot.guid);
        if !root_is_there {
            target[0].name = "elsewhere".to_owned();
        }
        if !seen {
            job.target.datasets = None;
        }
        job.began = Some(now.as_second() - began);
        job.succeeded = base.is_some().then_some(1);
        job.failure = failed.then(|| "cut off".to_owned());
        // A sync marks what it is about to send. It removes older marks after that has arrived.
        let newer = (100..105).filter(|guid| base.is_some_and(|base| *guid > base));
        let under_way = newer.zip(&cut_off).filter(|(_, is_marked)| **is_marked).map(|(guid, _)| guid);
        let marked: Vec<u64> = base.into_iter().chain(under_way).filter(|_| marks).collect();
        state.datasets[0].bookmarks = marked.into_iter().map(mark).collect();
        state.jobs.get_mut("off").unwrap().source.datasets = Some(state.datasets.clone());
        for action in planned(&config, &state, now).actions {
            if let Action::Destroy(of) = action {
                prop_assert_ne!(Some(of.guid), base, "{}{}@{}", of.place, of.dataset, of.snapshot);
            }
        }
    }
}
