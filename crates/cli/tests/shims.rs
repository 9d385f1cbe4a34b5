//! The program called `zfs` or `zpool`: the questions of other tools, and how they read the answers.

#![allow(clippy::unwrap_used)]

mod common;

use std::process::Command;

use common::{Said, Scratch, demo};

/// A directory of links, made by `shims`, and a pool.
fn with_shims() -> Scratch {
    let scratch = Scratch::with_pool();
    scratch.ok("shims bin");
    scratch
}

#[test]
fn links_are_made_once_and_nothing_else_is_replaced() {
    let scratch = Scratch::new();
    assert_eq!(scratch.ok("shims bin").lines().count(), 5);
    assert_eq!(scratch.ok("shims bin"), "");
    let link = scratch.path().join("bin/zfs");
    std::fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink("/nonexistent", &link).unwrap();
    assert!(scratch.fails(1, "shims bin").contains("use --force to replace it"));
    assert_eq!(scratch.ok("shims --force bin").lines().count(), 1);
    std::fs::remove_file(&link).unwrap();
    std::fs::write(&link, "theirs").unwrap();
    assert!(scratch.fails(1, "shims --force bin").contains("it is not replaced"));
    assert_eq!(std::fs::read_to_string(&link).unwrap(), "theirs");
}

fn shim(scratch: &Scratch, line: &str) -> Said {
    let (name, rest) = line.split_once(' ').unwrap();
    let own = scratch.command(rest);
    let mut command = Command::new(scratch.path().join("bin").join(name));
    command.args(own.get_args()).env_clear().current_dir(scratch.path());
    command.envs(own.get_envs().filter_map(|(name, value)| Some((name, value?))));
    Said::of(command)
}

#[test]
fn a_link_speaks_as_its_name_says() {
    let scratch = with_shims();
    let said = shim(&scratch, "zfs version");
    let lines: Vec<_> = said.out.lines().collect();
    assert_eq!((said.code, lines.len()), (0, 2));
    assert!(lines[0].starts_with("zfs-2.") && lines[1].starts_with("zfs-kmod-2."), "{said:?}");
    assert_eq!(shim(&scratch, "zfs create tank/a").code, 0);
    assert_eq!(scratch.ok("zfs list -Ho name"), "tank\ntank/a\n");
    assert_eq!(shim(&scratch, "zpool list -Ho name,health").out, "tank\tONLINE\n");
    assert!(scratch.ok("pool history tank").contains(" zfs create tank/a\n"));
    let said = shim(&scratch, "zfs pool list");
    assert_eq!((said.code, said.err.lines().next()), (2, Some("unrecognized command 'pool'")));
    let said = shim(&scratch, "zfs load-key tank");
    assert_eq!(
        (said.code, said.err.as_str()),
        (1, "cannot load-key: native encryption keys are not supported by snowmelt\n")
    );
}

#[test]
fn what_tools_probe_for() {
    let scratch = with_shims();
    // syncoid: the first line shows whether -t and createtxg are known.
    let said = shim(&scratch, "zfs get -H -t snapshot '' ''");
    assert!(said.code != 0 && !said.err.starts_with("invalid option"), "{said:?}");
    let said = shim(&scratch, "zfs get -H createtxg ''");
    assert!(!said.err.starts_with("bad property list"), "{said:?}");
    assert_eq!(shim(&scratch, "zpool get -o value -H feature@extensible_dataset tank").out, "active\n");
    // zfs_autobackup: 1 means that the option is known.
    for line in ["send -L", "send -e", "send -c", "recv -s"] {
        assert_eq!(shim(&scratch, &format!("zfs {line} zfs_autobackup_option_test")).code, 1, "{line}");
    }
    let all = shim(&scratch, "zpool get -H -p all tank");
    assert!(all.out.lines().all(|line| line.split('\t').filter(|field| !field.is_empty()).count() == 4));
    for feature in ["extensible_dataset", "large_blocks", "embedded_data"] {
        let line = all.out.lines().find(|line| line.contains(feature)).unwrap();
        assert!(line.contains("\tactive\t") || line.contains("\tenabled\t"), "{line}");
    }
    // `all` leaves out unset properties: a token of "-" would be resumed.
    let all = shim(&scratch, "zfs get -H -o property,value -p all tank").out;
    assert!(
        !all.contains("receive_resume_token") && !all.contains("origin") && !all.contains("keystatus"),
        "{all}"
    );
    assert_eq!(
        shim(&scratch, "zfs get -H receive_resume_token tank").out,
        "tank\treceive_resume_token\t-\t-\n"
    );
    // A dataset without snapshots is not a failure.
    let said = shim(&scratch, "zfs get -Hpd 1 -t snapshot guid,creation,createtxg tank");
    assert_eq!((said.code, said.out.as_str(), said.err.as_str()), (0, "", ""));
    // zrepl.
    let said = shim(&scratch, "zfs recv -A tank");
    assert!(said.err.contains("does not have any resumable receive state to abort"), "{said:?}");
}

#[test]
fn five_columns_of_snapshots_and_bookmarks_in_the_order_they_were_made() {
    let scratch = Scratch::with_home();
    scratch.ok("bookmark tank/home@monday #b");
    let out = scratch.ok(
        "zfs list -H -p -o name,guid,createtxg,creation,userrefs -r -d 1 -t bookmark,snapshot -s createtxg tank/home",
    );
    let rows: Vec<Vec<&str>> = out.lines().map(|line| line.split('\t').collect()).collect();
    assert_eq!(rows.len(), 3);
    assert!(rows.iter().all(|row| row.len() == 5 && row.iter().all(|field| !field.is_empty())), "{out}");
    assert!(
        rows.windows(2).all(|two| two[0][2].parse::<u64>().unwrap() <= two[1][2].parse().unwrap()),
        "{out}"
    );
    for row in rows {
        assert_eq!(row[4], if row[0].contains('#') { "-" } else { "0" });
    }
}

#[test]
fn receiving_where_something_is_says_so_and_nothing_else() {
    let scratch = Scratch::with_home();
    let said = scratch.run_with_input("zfs receive tank/home", &demo("full.zstream"));
    // syncoid extracts the name from exactly this line.
    let expected = "cannot restore to tank/home@monday: destination already exists\n";
    assert_eq!((said.code, said.out.as_str(), said.err.as_str()), (1, "", expected));

    // zrepl recognises this line only if it is the only one.
    let said = scratch.run("zfs receive tank/empty");
    assert_eq!((said.code, said.err.as_str()), (1, "cannot receive: failed to read from stream\n"));
}

#[test]
fn a_stream_cut_off_says_how_to_go_on() {
    let scratch = Scratch::with_pool();
    let part = scratch.path().join("part");
    std::fs::write(&part, &std::fs::read(demo("full.zstream")).unwrap()[..100_000]).unwrap();
    let said = scratch.run_with_input("zfs receive -s tank/home", &part);
    let token = scratch.ok("zfs get -Ho value receive_resume_token tank/home");
    let expected = format!(
        "cannot receive resume stream: checksum mismatch or incomplete stream.\nPartially received snapshot is saved.\nA \
         resuming stream can be generated on the sending system by running:\n    zfs send -t {token}"
    );
    assert!(said.err.starts_with(&expected), "{said:?}");
    let said = scratch.run(&format!("zfs send -nvt {}", token.trim()));
    assert!(said.out.starts_with("resume token contents:\nnvlist version: 0\n\t"), "{said:?}");
    let gone = "cannot resume send: 'tank/home@monday' used in the initial send no longer exists\n";
    assert_eq!((said.code, said.err.as_str()), (255, gone));
    assert!(scratch.fails(1, "zfs send -nvt 1-abc").contains("resume token is corrupt"));
}

#[test]
fn pools_are_synced_and_get_comments() {
    let scratch = Scratch::with_pool();
    scratch.ok("zpool sync");
    scratch.ok("zpool sync tank");
    scratch.ok("zpool set comment=winter tank");
    assert_eq!(scratch.ok("zpool get -H -o value comment tank"), "winter\n");
    assert!(scratch.fails(1, "zpool set nonsense=1 tank").contains("nonsense"));
    assert!(scratch.fails(1, "zpool sync nowhere").contains("no such pool"));
    // The usage, and the exit status of zfs for invalid arguments.
    let said = scratch.fails(2, "zfs snapshot tank/nowhere@x");
    assert!(said.starts_with("cannot open 'tank/nowhere': dataset does not exist"), "{said}");
}
