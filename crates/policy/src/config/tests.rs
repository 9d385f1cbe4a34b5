//! Tests of reading configurations: what is accepted, what is refused, and the resulting rules.

use super::*;
use crate::schedule::Schedule;

fn counts(rules: &Rules) -> Vec<(&str, usize)> {
    rules.periods.iter().map(|period| (period.name.as_str(), period.count)).collect()
}

fn wrong(content: &str) -> String {
    Config::from_toml("policy.toml", content).unwrap_err().to_string()
}

#[test]
fn templates_are_laid_over_one_another() {
    let config = Config::from_toml(
        "policy.toml",
        r#"
        timezone = "Europe/Vienna"
        [template.default]
        daily = 7
        [template.production]
        use_template = "often"
        daily = 30
        [template.often]
        hourly = 36
        daily = 2
        [template.db]
        use_template = ["production"]
        monthly = 3
        cron.noon = { at = "0 12 * * mon-fri", keep = 5 }
        [dataset."tank/db"]
        use_template = "db"
        hourly = 12
        hourly_min = 5
        [dataset.other]
        "#,
    )
    .unwrap();
    let rules = config.rules(["tank", "tank/db", "other"]);
    assert_eq!(rules.keys().collect::<Vec<_>>(), ["other", "tank/db"]);
    assert_eq!(counts(&rules["tank/db"]), [("monthly", 3), ("daily", 30), ("hourly", 12), ("noon", 5)]);
    assert_eq!(counts(&rules["other"]), [("daily", 7)]);
    let hourly = rules["tank/db"].periods.iter().find(|period| period.name == "hourly").unwrap();
    assert_eq!(hourly.schedule, Schedule::Hourly(vec![5]));
    assert_eq!(hourly.warn, Some(5400));
    assert!(config.zone.is_some());
}

#[test]
fn sections_reach_what_is_below() {
    let config = Config::from_toml(
        "policy.toml",
        r#"
        [dataset.tank]
        recursive = true
        process_children_only = true
        daily = 3
        [dataset."tank/a"]
        daily = 5
        [dataset."tank/vm"]
        recursive = "atomic"
        hourly = 1
        [dataset."tank/tmp"]
        skip_children = true
        autosnap = false
        "#,
    )
    .unwrap();
    let all = ["tank", "tank/a", "tank/a/b", "tank/tmp", "tank/tmp/x", "tank/vm", "tank/vm/1", "tankard"];
    let rules = config.rules(all);
    assert!(!rules.contains_key("tank/tmp/x") && !rules.contains_key("tankard"));
    assert!(!rules["tank"].autosnap && !rules["tank"].autoprune && !rules["tank"].monitor.enabled);
    assert_eq!(counts(&rules["tank/a"]), [("daily", 5)]);
    assert_eq!(counts(&rules["tank/a/b"]), [("daily", 3)]);
    assert!(rules["tank/a"].autosnap && !rules["tank/tmp"].autosnap);
    assert_eq!(rules["tank/vm/1"].follows.as_deref(), Some("tank/vm"));
    assert_eq!(rules["tank/vm"].follows, None);
    assert_eq!(config.roots(), [("tank", true)]);
}

#[test]
fn roots_are_looked_at_once() {
    let config = Config::from_toml(
        "x",
        "[dataset.a]\n[dataset.\"a/b/c\"]\n[dataset.b]\nrecursive = true\n[dataset.\"c/d\"]\n[dataset.ab]\n",
    )
    .unwrap();
    assert_eq!(config.roots(), [("a", true), ("ab", false), ("b", true), ("c/d", false)]);
}

#[test]
fn errors_name_line_and_what_is_allowed() {
    for (content, parts) in [
        (
            "[dataset.tank]\nhourley = 3\n",
            vec!["policy.toml:2:", "hourley", "unknown key 'hourley': did you mean 'hourly'?"],
        ),
        ("[job.x]\nsource = \"tank\"\n", vec!["policy.toml:1:", "'target' is missing"]),
        ("[dataset.tank]\n\nhourly_min = 60\n", vec!["policy.toml:3:", "60 is not between 0 and 59"]),
        ("[dataset.tank]\ndaily = -1\n", vec![":2:", "between 0 and"]),
        ("[dataset.tank]\ndaily_warn = \"3q\"\n", vec![":2:", "3q", "units s, m, h, d, w, y"]),
        ("[dataset.tank]\nrecursive = \"yes\"\n", vec![":2:", "\"atomic\""]),
        ("[dataset.tank]\ngrid = \"1x\"\n", vec![":2:", "24x1h"]),
        ("[dataset.tank]\nprotect = [\"(\"]\n", vec![":2:", "regular expression"]),
        ("[dataset.tank]\ncron.noon = { at = \"0 12\", keep = 1 }\n", vec![":2:", "minute, hour, day"]),
        ("[dataset.tank]\ncron.daily = { at = \"0 12 * * *\", keep = 1 }\n", vec!["'daily' is a period"]),
        ("[dataset.tank]\ncron.\"a b\" = { at = \"0 12 * * *\", keep = 1 }\n", vec!["letters, digits"]),
        ("[dataset.\"/tank\"]\n", vec![":1:", "without a slash"]),
        (
            "\n[dataset.tank]\nuse_template = \"x\"\n[template.y]\n",
            vec![":2:", "no template 'x'; there are: y"],
        ),
        ("[template.a]\nuse_template = \"b\"\n[template.b]\nuse_template = \"a\"\n", vec!["uses itself"]),
        ("[template.a]\nrecursive = true\n", vec!["template 'a': 'recursive' is only for datasets"]),
        ("[dataset.a]\n[dataset.b]\npath = \"a\"\n", vec!["there are two sections for 'a'"]),
        ("timezone = \"Nowhere/Else\"\n", vec![":1:", "Nowhere/Else"]),
        ("[job.x]\nsource = \"a\"\ntarget = \"b\"\nwhen = \"often\"\n", vec![":4:", "\"after_snapshot\""]),
        ("[job.x]\nsource = \"a\"\nwhen = \"daily\"\n", vec!["target"]),
        ("[job.\"a/b\"]\nsource = \"a\"\ntarget = \"b\"\nwhen = \"daily\"\n", vec!["job 'a/b'"]),
        ("[dataset.tank\n", vec![":1:"]),
    ] {
        let said = wrong(content);
        for part in parts {
            assert!(said.contains(part), "{content:?}: {part:?} in {said:?}");
        }
    }
}

#[test]
fn jobs_say_what_sync_takes() {
    let config = Config::from_toml(
        "x",
        r#"
        [template.backup]
        daily = 90
        [job.offsite]
        source = "tank/home"
        target = "me@host:back/home"
        when = "15 * * * *"
        recursive = true
        bwlimit = "10M"
        lag_warn = "2h"
        prune_target = { use_template = "backup", hourly = 2 }
        "#,
    )
    .unwrap();
    let job = &config.jobs["offsite"];
    assert_eq!(job.when, When::At(Schedule::cron("15 * * * *").unwrap()));
    assert!(job.sync.recursive && job.sync.hold && !job.sync.snapshot);
    assert_eq!((job.lag_warn, job.lag_crit, job.retry), (Some(7200), None, 600));
    assert_eq!(counts(job.prune_target.as_ref().unwrap()), [("daily", 90), ("hourly", 2)]);
}

const SANOID: &str = "
# a sanoid.conf
[tank/home]
\tuse_template = production,scripts
\trecursive = yes
\tprocess_children_only = yes
[tank/home/quiet]
\tuse_template = ignore
[backup]
\tuse_template = backup
\tpath = back/up
[vm]
\trecursive = zfs
\thourly=3

[template_production]
\thourly = 36
\tdaily = 30
\tautosnap = yes
[template_scripts]
\tpre_snapshot_script = /path/to/script.sh
\tscript_timeout = 0
\tno_inconsistent_snapshot = yes
[template_ignore]
\tautoprune = no
\tautosnap = no
\tmonitor = no
[template_backup]
\tautosnap = no
\thourly_warn = 2880
\tdaily_crit = 4d
\tpre_snapshot_script =
";

#[test]
fn a_sanoid_conf_means_what_it_means_to_sanoid() {
    let config = Config::from_sanoid("sanoid.conf", SANOID, None).unwrap();
    let all = ["tank", "tank/home", "tank/home/a", "tank/home/quiet", "back/up", "vm", "vm/1"];
    let rules = config.rules(all);
    assert!(!rules.contains_key("tank"));
    assert!(!rules["tank/home"].autosnap);
    let a = &rules["tank/home/a"];
    let expected =
        [("yearly", 0), ("monthly", 6), ("weekly", 0), ("daily", 30), ("hourly", 36), ("frequently", 0)];
    assert_eq!(counts(a), expected);
    assert!(a.autosnap && a.hooks.no_inconsistent_snapshot);
    assert_eq!((a.hooks.pre_snapshot.as_deref(), a.hooks.timeout), (Some("/path/to/script.sh"), 0));
    assert!(!rules["tank/home/quiet"].autosnap && !rules["tank/home/quiet"].monitor.enabled);
    let back = &rules["back/up"];
    let warn = |name: &str| {
        back.periods.iter().find(|period| period.name == name).map(|period| (period.warn, period.crit))
    };
    assert_eq!(warn("hourly"), Some((Some(2880 * 60), Some(360 * 60))));
    assert_eq!(warn("daily"), Some((Some(28 * 3600), Some(4 * 86_400))));
    assert_eq!(back.hooks.pre_snapshot, None);
    assert_eq!(rules["vm/1"].follows.as_deref(), Some("vm"));
    assert!(!config.shares_hooks);
    // The counts of another defaults file take precedence.
    let defaults = "[version]\nversion = 2\n[template_default]\ndaily = 9\nhourly = 8\n";
    let config = Config::from_sanoid("sanoid.conf", SANOID, Some(("defaults", defaults))).unwrap();
    assert_eq!(counts(&config.rules(all)["back/up"])[3..5], [("daily", 9), ("hourly", 8)]);
}

#[test]
fn what_sanoid_does_not_know_is_refused() {
    for (content, part) in [
        (
            "[tank]\nhourley = 3\n",
            "sanoid.conf:2: [tank]: hourley: unknown key 'hourley': did you mean 'hourly'?",
        ),
        ("[tank]\nxyz = 3\n", "sanoid.conf:2: [tank]: xyz: unknown key 'xyz'"),
        ("[tank]\nuse_template = x\n", "sanoid.conf:1: [tank]: there is no [template_x]"),
        ("[tank]\nautosnap = maybe\n", "'maybe' is neither yes nor no"),
        ("[tank]\nkeep_last = 3\n", "'keep_last' is not a setting of sanoid"),
        ("hourly = 3\n", "before the first [section]"),
        ("[tank\n", "must end with ']'"),
        ("[tank]\nhello\n", "neither [section] nor key = value"),
        ("[tank]\nprune_defer = 101\n", "sanoid.conf:2: [tank]: prune_defer: 101 is not between 0 and 100"),
        ("[/tank]\nhourly = 1\n", "not a valid name of a dataset"),
    ] {
        let said = Config::from_sanoid("sanoid.conf", content, None).unwrap_err().to_string();
        assert!(said.contains(part), "{content:?}: {said}");
    }
    let config =
        Config::from_sanoid("s", "[tank]\ndaily = 3\ndaily = 4\n[template_a]\nrecursive = yes\n", None)
            .unwrap();
    assert_eq!(config.warnings.len(), 2, "{:?}", config.warnings);
    assert_eq!(counts(&config.rules(["tank"])["tank"])[3], ("daily", 3));
}

#[test]
fn examples_are_understood() {
    let shipped = include_str!("../../../../packaging/policy.toml");
    let config = Config::from_toml("packaging/policy.toml", shipped).unwrap();
    assert_eq!((config.sections.len(), config.jobs.len()), (2, 1));
    let page = include_str!("../../../../docs/policy.md");
    let example = page.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let config = Config::from_toml("docs/policy.md", example).unwrap();
    assert_eq!(counts(&config.rules(["tank/home"])["tank/home"]), [("daily", 30), ("hourly", 12)]);
}

#[test]
fn for_an_unknown_key_those_there_are_are_told() {
    let told = |text: &str| Config::from_toml("p.toml", text).unwrap_err().to_string();
    let near = told("[dataset.\"tank/a\"]\nhuorly = 3\n");
    assert_eq!(near, "p.toml:2: unknown key 'huorly': did you mean 'hourly'?");
    let far = told("[dataset.\"tank/a\"]\nxyzzy = 3\n");
    assert!(far.starts_with("p.toml:2: unknown key 'xyzzy'; valid keys: path, recursive,"), "{far}");
    assert!(far.ends_with(", capacity_crit"), "{far}");
    let table = told("[datasets.\"tank/a\"]\nhourly = 3\n");
    assert_eq!(table, "p.toml:1: unknown key 'datasets': did you mean 'dataset'?");
    let table = told("[zzz]\n");
    assert_eq!(table, "p.toml:1: unknown key 'zzz'; valid keys: timezone, template, dataset, job");
}
