use super::*;

fn parsed(line: &str) -> Cli {
    let words: Vec<OsString> =
        line.split(' ').map(|word| if word == "''" { "".into() } else { word.into() }).collect();
    parse(&words, None).unwrap_or_else(|failure| panic!("{line}: {failure:?}"))
}

fn refused(line: &str) -> String {
    let words: Vec<OsString> = line.split_whitespace().map(Into::into).collect();
    match parse(&words, None) {
        Err(ParseFailure::Usage(text)) => text,
        other => panic!("{line}: {other:?}"),
    }
}

fn dataset(line: &str) -> DatasetCommand {
    match parsed(line).command {
        Command::Dataset(command) => command,
        other => panic!("{line}: {other:?}"),
    }
}

use std::ffi::OsString;

#[test]
fn the_grammar_is_sound() {
    command().debug_assert();
}

#[test]
fn every_verb_is_in_one_group() {
    let mut shown: Vec<_> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
    let grammar = command();
    let mut known: Vec<_> =
        grammar.get_subcommands().filter(|c| !c.is_hide_set()).map(clap::Command::get_name).collect();
    shown.sort_unstable();
    known.sort_unstable();
    assert_eq!(shown, known);
}

#[test]
fn joined_options_take_a_value_at_the_end() {
    for line in [
        "get -Hpd 1 -t snapshot guid,creation,createtxg tank/a",
        "get -Hpd1 -tsnapshot guid,creation,createtxg tank/a",
        "get guid,creation,createtxg -t snapshot tank/a -Hpd 1",
    ] {
        let DatasetCommand::Get(get) = dataset(line) else { panic!("{line}") };
        assert!(get.scripted && get.parsable && !get.recursive, "{line}");
        assert_eq!(get.depth.as_deref(), Some("1"));
        assert_eq!(get.types.as_deref(), Some("snapshot"));
        assert_eq!(get.properties, "guid,creation,createtxg");
        assert_eq!(get.datasets, ["tank/a"]);
    }
}

#[test]
fn lines_of_stock_tools_parse() {
    for line in [
        "list -d0 -H -oname",
        "get -H -t snapshot '' ''",
        "get -H createtxg ''",
        "list -o name,origin -t filesystem,volume -Hr tank/a",
        "get -H -p used tank/a",
        "get -s local -H all tank/a",
        "get -Hrpt snapshot creation tank/a tank/b",
        "get -H -ovalue -p written@tank/a@s tank/a",
        "get -t volume,filesystem -Hp autobackup:x,createtxg",
        "list -H -p -o name,guid,createtxg,creation,userrefs -r -d 1 -t bookmark,snapshot -s createtxg tank/a",
        "send -nvP -I tank/a@1 tank/a@2",
        "send -nvP -t 1-abc",
        "send -nvt 1-abc",
        "send -L -e -c --raw -v -P -p -i @prev tank/a@s",
        "send -w -R -I @a tank@b",
        "send -Lecw -i tank/a#m tank/a@s",
        "send -D tank/a@s",
        "receive -s -F tank/x",
        "recv -u -x a -x b -o k=v -o l=w=x -v -F -s tank/x",
        "recv -F -s -o a:b=c tank/x@s",
        "receive -A tank/x",
        "receive -h -o k=v -x k -u -v -s -F tank/x",
        "destroy -nvr tank/a@x%y,z",
        "destroy -d tank/a@s",
        "create -pp -o a=b -o c=d tank/x/y",
        "create -s -V 1G -b 8K tank/v",
        "snapshot -r -o a:b=c tank@x tank/y@x",
        "snap tank@x",
        "holds -Hrp tank@x",
        "hold -r some:tag tank@x tank@y",
        "inherit -rS compression tank",
        "rollback -rf tank@x",
        "rename -r tank@a tank@b",
        "diff -FHth tank@a tank@b",
        "pool list -H -p -o name,size,cap,health,free tank",
        "pool create -f -o comment=x -O atime=off -m none tank /x",
        "pool scrub -w tank other",
        "pool scrub -p tank",
        "pool clear tank",
        "pool create --size 1G tank mirror /a /b",
        "pool attach -fsw -o ashift=12 tank /a /b",
        "pool detach tank /a",
        "pool replace -w tank /a",
        "pool replace tank /a /b",
        "pool online -e tank /a /b",
        "pool offline tank /a",
        "pool resilver tank other",
        "pool import -d /x -f -N tank new",
        "--pool-dir /x list --pool-dir /y",
    ] {
        parsed(line);
    }
}

#[test]
fn send_keeps_its_own_h() {
    let Command::Replication(ReplicationCommand::Send(send)) = parsed("send -hpv -v tank@x").command else {
        panic!("not a send")
    };
    assert!(send.holds && send.properties);
    assert_eq!(send.verbose, 2);
    let Command::Replication(ReplicationCommand::Receive(receive)) = parsed("recv -hsss tank").command else {
        panic!("not a receive")
    };
    assert!(receive.skip_holds && receive.resumable);
}

#[test]
fn lists_of_options_keep_all_values() {
    let Command::Replication(ReplicationCommand::Receive(receive)) =
        parsed("recv -x a -o b=c -x d tank").command
    else {
        panic!("not a receive")
    };
    assert_eq!(receive.exclude, ["a", "d"]);
    assert_eq!(receive.set, ["b=c"]);
    let cli = parsed("--pool-dir /x --pool-dir /y list");
    assert_eq!(cli.global.pool_dirs, [PathBuf::from("/x"), PathBuf::from("/y")]);
}

#[test]
fn refusals_say_what_is_wrong_and_how_it_is_used() {
    for (line, first) in [
        ("", "missing command"),
        ("frobnicate", "unrecognized command 'frobnicate'"),
        ("list -Z", "invalid option 'Z'"),
        ("list --frob", "invalid option '--frob'"),
        ("list -o", "missing argument for 'o' option"),
        ("send", "missing snapshot argument"),
        ("send -i @a", "missing snapshot argument"),
        ("receive", "missing snapshot argument"),
        ("destroy", "missing dataset argument"),
        ("get", "missing property argument"),
        ("hold tag", "missing snapshot argument"),
        ("clone", "missing source dataset argument"),
        ("clone tank@a", "missing target dataset argument"),
        ("set", "missing arguments"),
        ("pool", "missing command"),
        ("pool frob", "unrecognized command 'frob'"),
        ("pool destroy", "missing pool argument"),
        ("send a@b c@d", "too many arguments"),
    ] {
        let text = refused(line);
        assert_eq!(text.lines().next(), Some(first), "{line}: {text}");
        assert!(text.contains("usage:"), "{text}");
    }
    assert!(refused("send").contains("receive_resume_token"));
    assert!(refused("receive").contains("-A <filesystem|volume>"));
    assert!(refused("destroy").contains("<filesystem|volume>@<snap>[%<snap>][,...]"));
}

#[test]
fn shims_take_their_own_verbs_and_no_others() {
    for line in [
        "zfs list -Ho name",
        "zfs diff a@b a@c",
        "zfs umount -a",
        "zfs version -j",
        "zfs --version",
        "zpool -V",
    ] {
        parsed(line);
    }
    assert!(matches!(parsed("zpool get -H -p all tank").command, Command::Pool(_)));
    for (line, first) in [
        ("zfs", "missing command"),
        ("zfs pool list", "unrecognized command 'pool'"),
        ("zfs check tank", "unrecognized command 'check'"),
        ("zfs send", "missing snapshot argument"),
        ("zfs list -Z", "invalid option 'Z'"),
        ("zfs send --help", "usage:"),
        ("zpool list -Z", "invalid option 'Z'"),
        ("zpool frob", "unrecognized command 'frob'"),
        ("zpool get", "missing property argument"),
    ] {
        let text = refused(line);
        assert_eq!(text.lines().next(), Some(first), "{line}: {text}");
        assert!(!text.contains("snowmelt"), "{text}");
    }
    // What zrepl looks for.
    assert!(refused("zfs send").contains("\n\tsend [-nVvPe] -t <receive_resume_token>\n"));
    // Of a verb whose usage is printed, tools believe that it works.
    for (line, said) in [
        ("zfs load-key", "cannot load-key: native encryption keys are not supported by snowmelt"),
        ("zfs unload-key -a", "cannot unload-key: native encryption keys are not supported by snowmelt"),
        ("zfs allow tank", "cannot allow: delegated permissions are not supported by snowmelt"),
        ("zpool add tank x", "cannot add: pools of several devices are not supported by snowmelt"),
        ("zpool initialize tank", "cannot initialize: 'zpool initialize' is not supported by snowmelt"),
    ] {
        let words: Vec<OsString> = line.split(' ').map(Into::into).collect();
        let parsed = parse(&words, None);
        assert!(matches!(&parsed, Err(ParseFailure::Missing(text)) if text == said), "{line}: {parsed:?}");
    }
    for line in ["zfs help", "zfs help send", "zpool --help", "zfs -?", "zfs help nosuch"] {
        let words: Vec<OsString> = line.split(' ').map(Into::into).collect();
        assert!(
            matches!(parse(&words, None), Err(ParseFailure::Help(text)) if text.starts_with("usage:")),
            "{line}"
        );
    }
}

#[test]
fn help_is_asked_for_by_its_long_name() {
    for line in ["--help", "-h", "list --help", "pool create --help", "send --help", "--version", "-V"] {
        let words: Vec<OsString> = line.split(' ').map(Into::into).collect();
        assert!(matches!(parse(&words, Some(80)), Err(ParseFailure::Help(_))), "{line}");
    }
}

#[test]
fn the_overview_fits_eighty_columns() {
    let Err(ParseFailure::Help(text)) = parse(&["--help".into()], Some(80)) else { panic!("no help") };
    for line in text.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    for verb in ["receive", "send", "pool", "restore", "check"] {
        assert!(text.contains(&format!("\n  {verb}")), "{verb}:\n{text}");
    }
}
