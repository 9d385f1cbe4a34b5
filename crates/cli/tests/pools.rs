//! Creating, finding, listing, moving and destroying pools.

mod common;

use std::fs;

use common::Scratch;

#[test]
fn a_pool_is_made_in_the_usual_place_and_found() {
    let scratch = Scratch::with_pool();
    assert!(scratch.path().join("data/snowmelt/tank").is_dir());
    assert_eq!(scratch.ok("pool list -H -o name,health,cap,dedup,altroot"), "tank\tONLINE\t0%\t1.00x\t-\n");
    assert_eq!(scratch.ok("list -H -o name,type,mountpoint"), "tank\tfilesystem\t/tank\n");
    assert_eq!(scratch.fails(1, "pool create tank"), "cannot create 'tank': pool already exists\n");
}

#[test]
fn bad_names_are_refused() {
    let scratch = Scratch::new();
    for (name, why) in [
        ("1tank", "pool names must begin with a letter"),
        ("mirror", "name is reserved"),
        ("a/b", "invalid character '/' in name"),
    ] {
        assert_eq!(
            scratch.fails(1, &format!("pool create {name}")),
            format!("cannot create '{name}': {why}\n")
        );
    }
}

#[test]
fn without_pools_nothing_is_wrong() {
    let scratch = Scratch::new();
    let said = scratch.run("pool list");
    assert_eq!((said.code, said.out.as_str(), said.err.as_str()), (0, "", "no pools available\n"));
    let said = scratch.run("list");
    assert_eq!((said.code, said.out.as_str(), said.err.as_str()), (0, "", "no datasets available\n"));
    assert_eq!(scratch.fails(1, "pool list tank"), "cannot open 'tank': no such pool\n");
    assert_eq!(scratch.fails(1, "list tank"), "cannot open 'tank': dataset does not exist\n");
}

#[test]
fn status_has_the_form_that_monitors_read() {
    let scratch = Scratch::with_pool();
    let out = scratch.ok("pool status tank");
    let lines: Vec<_> = out.lines().collect();
    assert_eq!(lines[..4], ["  pool: tank", " state: ONLINE", "config:", ""]);
    assert!(lines[4].starts_with("\tNAME"), "{out}");
    assert_eq!(lines[5].split_whitespace().collect::<Vec<_>>(), ["tank", "ONLINE", "0", "0", "0"]);
    assert!(lines[6].starts_with("\t  /"), "{out}");
    assert_eq!(lines.last(), Some(&"errors: No known data errors"));
    assert_eq!(scratch.ok("pool status -x"), "all pools are healthy\n");
    assert_eq!(scratch.ok("pool status -x tank"), "pool 'tank' is healthy\n");
    let json: serde_json::Value = serde_json::from_str(&scratch.ok("pool status -j")).unwrap();
    assert_eq!(json["pools"]["tank"]["state"], "ONLINE");
}

#[test]
fn a_pool_elsewhere_is_listed_until_it_is_exported() {
    let scratch = Scratch::new();
    scratch.ok("pool create other elsewhere");
    scratch.ok("create other/a");
    assert_eq!(scratch.ok("pool list -H -o name"), "other\n");
    scratch.ok("pool export other");
    assert_eq!(scratch.fails(1, "pool list other"), "cannot open 'other': no such pool\n");
    assert!(scratch.ok("pool import -d elsewhere").contains("   pool: other\n"));
    scratch.ok("pool import ./elsewhere renamed");
    assert_eq!(scratch.ok("list -H -o name"), "renamed\nrenamed/a\n");
    scratch.ok("pool destroy renamed");
    assert_eq!(scratch.run("pool list").err, "no pools available\n");
    assert_eq!(scratch.fails(1, "pool destroy renamed"), "cannot open 'renamed': no such pool\n");
}

#[test]
fn a_pool_that_is_gone_is_unavailable_until_it_is_forgotten() {
    let scratch = Scratch::with_pool();
    scratch.ok("pool create other elsewhere");
    std::fs::rename(scratch.path().join("elsewhere"), scratch.path().join("away")).unwrap();
    let said = scratch.run("pool list -H -o name,cap,health");
    assert_eq!((said.code, said.out.as_str()), (1, "other\t-\tUNAVAIL\ntank\t0%\tONLINE\n"));
    let said = scratch.run("pool status -x");
    assert_eq!(said.code, 1, "{said:?}");
    let place = scratch.path().join("elsewhere");
    for text in [" state: UNAVAIL\n", "'snowmelt pool export other' forgets it", place.to_str().unwrap()] {
        assert!(said.out.contains(text), "{said:?}");
    }
    assert!(!said.out.contains("tank") && !said.out.contains("errors"), "{said:?}");
    let json: serde_json::Value = serde_json::from_str(&scratch.run("pool status -j other").out).unwrap();
    assert_eq!(json["pools"]["other"]["state"], "UNAVAIL");
    assert_eq!(scratch.ok("pool status -x tank"), "pool 'tank' is healthy\n");
    let said = scratch.fails(1, "create other/a");
    assert!(
        said.starts_with("cannot create 'other/a': no such pool 'other'\nthe pool 'other' was not found"),
        "{said}"
    );
    assert!(scratch.fails(1, "pool destroy other").contains("'snowmelt pool export other'"));
    // The pool comes back, and is then removed for good.
    std::fs::rename(scratch.path().join("away"), &place).unwrap();
    assert_eq!(scratch.ok("pool status -x"), "all pools are healthy\n");
    std::fs::remove_dir_all(&place).unwrap();
    scratch.ok("pool export other");
    assert_eq!(scratch.ok("pool status -x"), "all pools are healthy\n");
    assert_eq!(scratch.fails(1, "pool list other"), "cannot open 'other': no such pool\n");
    // A missing pool at the default place is reported too.
    std::fs::remove_dir_all(scratch.path().join("data/snowmelt/tank")).unwrap();
    assert_eq!(scratch.run("pool list -H -o name,health").out, "tank\tUNAVAIL\n");
    scratch.ok("pool create tank");
    assert_eq!(scratch.ok("pool list -H -o name,health"), "tank\tONLINE\n");
}

#[test]
fn a_pool_in_a_file() {
    let scratch = Scratch::new();
    scratch.ok("pool create disk disk.img --size 256M");
    scratch.ok("create disk/a");
    assert_eq!(scratch.ok("list -H -o name -r disk"), "disk\ndisk/a\n");
    let size: u64 = scratch.ok("pool list -Hp -o size disk").trim().parse().unwrap();
    assert!((200 << 20..=256 << 20).contains(&size), "{size}");
    assert!(scratch.fails(1, "pool create more disk.img").starts_with("cannot create 'more': "));
    assert!(scratch.fails(1, "pool create more none.img").contains("use --size"));
}

#[test]
fn pools_at_places_that_are_named() {
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.path().join("pools")).unwrap();
    scratch.ok("--pool-dir pools pool create one");
    assert!(scratch.path().join("pools/one").is_dir());
    assert_eq!(scratch.ok("--pool-dir pools list -H -o name"), "one\n");
    assert_eq!(scratch.ok("--pool-dir pools/one list -H -o name"), "one\n");
    let mut command = scratch.command("list -H -o name");
    command.env("SNOWMELT_POOLS", "nowhere:pools");
    assert_eq!(String::from_utf8(command.output().unwrap().stdout).unwrap(), "one\n");
    assert_eq!(scratch.run("list -H -o name").out, "");
}

#[test]
fn history_tells_what_was_done() {
    let scratch = Scratch::with_pool();
    scratch.ok("create tank/a");
    scratch.ok("list");
    scratch.ok("destroy tank/a");
    let out = scratch.ok("pool history tank");
    let lines: Vec<_> = out.lines().map(|line| line.split_once(' ').map_or(line, |(_, what)| what)).collect();
    assert_eq!(
        lines,
        ["for 'tank':", "snowmelt pool create tank", "snowmelt create tank/a", "snowmelt destroy tank/a", ""]
    );
    assert_eq!(out.lines().next(), Some("History for 'tank':"));
}

#[test]
fn trim_gives_back_what_is_dead() {
    let scratch = Scratch::with_pool();
    scratch.ok("create tank/a");
    scratch.ok("destroy tank/a");
    assert_eq!(scratch.ok("pool trim tank"), "");
    let told = scratch.ok("pool trim -v tank");
    assert!(told.starts_with("tank: ") && told.contains(" freed ("), "{told}");
    assert!(scratch.ok("pool history tank").contains("snowmelt pool trim tank"));
    assert_eq!(scratch.fails(1, "pool trim nopool"), "cannot open 'nopool': no such pool\n");
    scratch.ok("check tank");
}

#[test]
fn a_file_is_as_long_as_what_is_in_it_where_autotrim_is_on() {
    use std::os::unix::fs::MetadataExt;
    let scratch = Scratch::new();
    let path = scratch.path().join("tank.img");
    let taken = || (std::fs::metadata(&path).unwrap().blocks() * 512) >> 20;
    scratch.ok("pool create --size 256M -o autotrim=off tank tank.img");
    let autotrim = || scratch.ok("pool get -H -o value,source autotrim tank");
    assert_eq!(autotrim(), "off\tlocal\n");
    let fill = || {
        scratch.ok("create -V 64M -o compression=off tank/v");
        let noise: Vec<u8> = (0..40u32 << 20).map(|n| (n.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
        std::fs::write(scratch.path().join("v.img"), noise).unwrap();
        scratch.ok("sync --force v.img tank/v");
        scratch.ok("destroy -r tank/v");
    };
    fill();
    assert!(taken() >= 40, "{} MiB", taken());
    let told = scratch.ok("pool trim -v tank");
    assert!(told.contains(" trimmed"), "{told}");
    assert!(taken() < 20, "{} MiB", taken());
    scratch.ok("pool set autotrim=on tank");
    assert_eq!(autotrim(), "on\tlocal\n");
    fill();
    assert!(taken() < 20, "{} MiB", taken());
    let refused = "cannot set property for 'tank': 'autotrim' must be one of 'on | off'\n";
    assert_eq!(scratch.fails(1, "pool set autotrim=often tank"), refused);
    scratch.ok("check tank");
}

#[test]
fn segments_are_told_alone_and_by_what_is_alive() {
    let scratch = Scratch::with_pool();
    scratch.ok("create tank/a");
    let table = scratch.ok("pool segments tank");
    assert!(table.starts_with("ALIVE ") && table.lines().last().unwrap().starts_with("all"), "{table}");
    let each = scratch.ok("pool segments -Hpv tank");
    let numbers =
        |line: &str| line.split('\t').skip(3).map(|n| n.parse::<u64>().unwrap()).collect::<Vec<_>>();
    let all: Vec<_> = each.lines().map(numbers).collect();
    assert!(!all.is_empty() && all.iter().all(|row| row[0] == row[1] + row[2]), "{each}");
    let allocated: u64 = scratch.ok("pool list -Hpo alloc tank").trim().parse().unwrap();
    assert_eq!(all.iter().map(|row| row[1]).sum::<u64>(), allocated);
    let json = scratch.ok("pool segments -j");
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["pools"]["tank"]["segments"].as_array().unwrap().len(), all.len());
    assert_eq!(scratch.fails(1, "pool segments nopool"), "cannot open 'nopool': no such pool\n");
}

#[test]
fn a_pool_passes_its_check() {
    let scratch = Scratch::with_home();
    assert!(scratch.ok("check tank").starts_with("tank: no errors in "));
    assert_eq!(scratch.ok("check -q tank"), "");
    let json: serde_json::Value = serde_json::from_str(&scratch.ok("check -j tank")).unwrap();
    assert_eq!(json["errors"], 0);
    assert_eq!(scratch.fails(1, "check nopool"), "cannot open 'nopool': no such pool\n");
}

#[test]
fn a_pool_that_is_imported_to_be_read_is_not_written() {
    let scratch = Scratch::new();
    for place in ["elsewhere", "disk.img"] {
        let options = if place == "disk.img" { "--size 64M " } else { "" };
        scratch.ok(&format!("pool create {options}other {place}"));
        scratch.ok("create other/a");
        scratch.ok("snapshot other/a@s");
        scratch.ok("pool export other");
        scratch.ok(&format!("pool import -d {place} -o readonly=on other"));
        assert_eq!(scratch.ok("pool get -Ho value readonly other"), "on\n");
        assert_eq!(scratch.ok("list -Ho name -t all -r other"), "other\nother/a\nother/a@s\n");
        assert!(fs::metadata(scratch.to_file("send other/a@s", "a.zstream")).unwrap().len() > 0);
        for line in ["create other/b", "snapshot other/a@t", "set atime=off other/a", "destroy other/a@s"] {
            let said = scratch.run(line);
            assert_eq!(said.code, 1, "{line}: {said:?}");
        }
        // Another import makes it writable again.
        scratch.ok("pool export other");
        scratch.ok(&format!("pool import -d {place} other"));
        assert_eq!(scratch.ok("pool get -Ho value readonly other"), "off\n");
        scratch.ok("create other/b");
        scratch.ok("pool import -o readonly=on other");
        assert_eq!(scratch.run("create other/c").code, 1);
        scratch.ok("pool import other");
        scratch.ok("create other/c");
        scratch.ok("pool destroy other");
    }
    // A pool at a place that is searched would be found there as writable.
    let scratch = Scratch::with_pool();
    assert!(
        scratch.fails(1, "pool import -o readonly=on tank").contains("its directory is searched for pools")
    );
}

#[test]
fn iostat_tells_what_was_read_and_written() {
    let scratch = Scratch::with_pool();
    scratch.ok("pool create dozer");
    let whole = scratch.ok("zpool iostat");
    let lines: Vec<&str> = whole.lines().collect();
    assert_eq!(
        lines[1].split_whitespace().collect::<Vec<_>>(),
        ["pool", "alloc", "free", "read", "write", "read", "write"]
    );
    assert!(lines[3].starts_with("dozer ") && lines[4].starts_with("tank "), "{whole}");
    let vdevs = scratch.ok("zpool iostat -v tank");
    assert!(vdevs.lines().nth(4).unwrap().trim_start().starts_with('/'), "{vdevs}");
    // Two reports, each with all columns.
    let twice = scratch.ok("zpool iostat -Hp tank 0.1 2");
    let rows: Vec<Vec<&str>> = twice.lines().map(|line| line.split('\t').collect()).collect();
    assert_eq!((rows.len(), rows[0].len(), rows[1][0]), (2, 7, "tank"), "{twice}");
    assert!(rows[0][1].parse::<u64>().unwrap() > 0, "{twice}");
    assert_eq!(scratch.fails(1, "zpool iostat nopool"), "cannot open 'nopool': no such pool\n");
    assert_eq!(scratch.run("zpool iostat tank 0").code, 2);
}
