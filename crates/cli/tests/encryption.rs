//! Encrypted pools with the real binary.
//!
//! No store of any kind contains readable data. Keys may come from every source. Every command that opens a pool is
//! tested.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::s3::Server;
use common::{Said, Scratch, demo};

/// Strings that must not occur in a store.
const MARKERS: [&str; 4] = ["SecretDataset", "SecretFileName", "SecretProperty", "SecretContent"];

fn key(scratch: &Scratch, name: &str, byte: u8) {
    private(&scratch.path().join(name), &[byte; 32]);
}

/// Writes a file that only its owner can read, as is right for keys.
fn private(path: &Path, content: &[u8]) {
    fs::write(path, content).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

/// Creates a dataset, a property, and files with all kinds of blocks.
fn secrets(scratch: &Scratch, ok: &dyn Fn(&str)) {
    let source = scratch.path().join("source");
    fs::create_dir_all(&source).unwrap();
    fs::write(source.join("SecretFileName"), "SecretContent").unwrap();
    let mut noise: Vec<u8> = (0..300_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    noise[200_000..200_013].copy_from_slice(b"SecretContent");
    fs::write(source.join("noise"), noise).unwrap();
    fs::write(source.join("text"), "SecretContent, again and again. ".repeat(5000)).unwrap();
    ok("import source tank/SecretDataset@one");
    ok("set com.example:what=SecretProperty tank/SecretDataset");
    ok("snapshot tank/SecretDataset@SecretDataset");
}

/// The paths of all files below `path`, each with its bytes.
fn files(path: &Path, out: &mut Vec<(PathBuf, Vec<u8>)>) {
    if path.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            files(&entry.unwrap().path(), out);
        }
    } else if path.is_file() {
        out.push((path.to_owned(), fs::read(path).unwrap()));
    }
}

fn found(path: &Path) -> Vec<String> {
    let mut all = Vec::new();
    files(path, &mut all);
    assert!(!all.is_empty());
    let has = |bytes: &[u8], marker: &str| bytes.windows(marker.len()).any(|it| it == marker.as_bytes());
    let of = |(path, bytes): &(PathBuf, Vec<u8>)| {
        MARKERS
            .iter()
            .filter(|it| has(bytes, it))
            .map(|it| format!("{it} in {}", path.display()))
            .collect::<Vec<_>>()
    };
    all.iter().flat_map(of).collect()
}

/// Runs a command without a controlling terminal, whatever started the tests.
fn without_terminal(scratch: &Scratch, line: &str, stdin: Stdio) -> Said {
    let plain = scratch.command(line);
    let mut command = Command::new("setsid");
    command.arg("--wait").arg(plain.get_program()).args(plain.get_args());
    surround(&mut command, &plain).stdin(stdin);
    Said::of(command)
}

fn surround<'a>(command: &'a mut Command, as_of: &Command) -> &'a mut Command {
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    for (name, value) in as_of.get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    command.current_dir(as_of.get_current_dir().unwrap())
}

/// A shell command at its own terminal, started with script(1) of util-linux. `$snowmelt` is the program.
struct AtTerminal {
    child: Child,
    shown: String,
}

impl AtTerminal {
    fn new(scratch: &Scratch, words: &str) -> Self {
        let mut command = Command::new("script");
        surround(&mut command, &scratch.command("")).args(["-q", "-e", "-c", words, "/dev/null"]);
        command.env("snowmelt", env!("CARGO_BIN_EXE_snowmelt")).env("SHELL", "/bin/sh");
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        Self { child, shown: String::new() }
    }

    /// Waits for `question`, then types a line.
    fn answer(&mut self, question: &str, line: &str) -> &mut Self {
        let out = self.child.stdout.as_mut().unwrap();
        let from = self.shown.len();
        while !self.shown[from..].contains(question) {
            let mut byte = [0];
            assert_eq!(out.read(&mut byte).unwrap(), 1, "'{question}' is not asked: {}", self.shown);
            self.shown.push(char::from(byte[0]));
        }
        self.child.stdin.as_mut().unwrap().write_all(line.as_bytes()).unwrap();
        self
    }

    /// The exit status, and everything that was shown.
    fn end(mut self) -> (i32, String) {
        self.child.stdout.as_mut().unwrap().read_to_string(&mut self.shown).unwrap();
        (self.child.wait().unwrap().code().unwrap_or(-1), self.shown)
    }
}

#[test]
fn passphrases_are_typed_and_never_shown() {
    let scratch = Scratch::new();
    let at = |words: &str| AtTerminal::new(&scratch, words);
    let mut create = at("$snowmelt pool create --encrypt tank pool");
    create.answer("Enter new passphrase for 'tank': ", "correct horse\n");
    create.answer("Re-enter new passphrase for 'tank': ", "correct house\n");
    let (code, shown) = create.end();
    assert!(code == 1 && shown.contains("do not match"), "{shown}");
    let mut create = at("$snowmelt pool create --encrypt tank pool");
    create.answer("Enter new", "correct horse\n").answer("Re-enter new", "correct horse\n");
    let (code, shown) = create.end();
    assert!(code == 0 && !shown.contains("horse"), "{shown}");

    // The program asks three times. At a terminal it asks even if standard input is something else.
    let stream = demo("full.zstream");
    let mut receive = at(&format!("$snowmelt receive tank/home < {}", stream.display()));
    receive.answer("Enter passphrase for 'tank': ", "something else\n");
    receive.answer("incorrect key", "").answer("Enter passphrase for 'tank': ", "correct horse\n");
    let (code, shown) = receive.end();
    assert!(code == 0 && !shown.contains("horse"), "{shown}");
    let mut list = at("$snowmelt list -H -o name -r tank");
    for _ in 0..3 {
        list.answer("Enter passphrase for 'tank': ", "something else\n");
    }
    let (code, shown) = list.end();
    assert!(code == 1 && shown.contains("incorrect key"), "{shown}");
    // A command asks only once, even if it opens the pool twice.
    let mut import = at("$snowmelt pool import ./pool other");
    import.answer("Enter passphrase for 'tank': ", "correct horse\n");
    let (code, shown) = import.end();
    assert!(code == 0 && shown.matches("Enter").count() == 1, "{shown}");
    // A command that continues in the background asks first.
    let mut scrub = at("$snowmelt pool scrub other");
    scrub.answer("Enter passphrase for 'other': ", "correct horse\n");
    let (code, shown) = scrub.end();
    assert_eq!(code, 0, "{shown}");
    // Ctrl-C ends the command, whichever process asks.
    for words in ["$snowmelt pool export other", "$snowmelt pool scrub other"] {
        settled(&scratch);
        let mut interrupted = at(words);
        interrupted.answer("Enter passphrase for 'other': ", "\x03");
        let (code, shown) = interrupted.end();
        assert!(code != 0, "{words}: {code} {shown}");
    }
    let mut change = at("$snowmelt pool change-key other");
    change.answer("Enter passphrase for 'other': ", "correct horse\n");
    change.answer("Enter new passphrase", "another one\n").answer("Re-enter new", "another one\n");
    let (code, shown) = change.end();
    assert!(code == 0 && !shown.contains("another one"), "{shown}");
    let mut list = at("$snowmelt list -H -o name -r other");
    list.answer("Enter passphrase for 'other': ", "another one\n");
    assert!(list.end().1.contains("other/home"));
    let mut all = Vec::new();
    files(scratch.path(), &mut all);
    for (path, bytes) in all {
        let has = |word: &str| bytes.windows(word.len()).any(|it| it == word.as_bytes());
        assert!(!has("correct horse") && !has("another one"), "{}", path.display());
    }
}

/// Waits until no process has the pool open.
fn settled(scratch: &Scratch) {
    let deadline = Instant::now() + Duration::from_secs(20);
    let lock = fs::File::open(scratch.path().join("pool/lock")).unwrap();
    while lock.try_lock().is_err() {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn commands_that_hang_or_fail_give_no_key() {
    let scratch = Scratch::new();
    let script = scratch.path().join("ask.sh");
    let says = |text: &str| {
        fs::write(&script, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o700)).unwrap();
    };
    says("echo correct horse; echo asked >&2");
    let create = format!("pool create --encrypt --key-command {} tank pool", script.display());
    let said = scratch.run(&create);
    assert_eq!(
        (said.code, said.err.as_str()),
        (0, "asked\n"),
        "what it says on standard error is for the user"
    );
    // A background process that the command leaves behind does not delay anything.
    says(
        "sleep 100 2>&- & echo $! > pid; echo correct horse"
            .replace("pid", scratch.path().join("pid").to_str().unwrap())
            .as_str(),
    );
    let begun = Instant::now();
    scratch.ok("list tank");
    assert!(begun.elapsed() < Duration::from_secs(60));
    let pid = fs::read_to_string(scratch.path().join("pid")).unwrap();
    Command::new("kill").arg(pid.trim()).status().unwrap();
    for (text, why) in [
        ("echo correct horse; exit 7", "failed (exit status: 7)"),
        ("kill -9 $$", "the command that prints the key failed ("),
        ("exec yes", "its output is too long for a key"),
        ("true", "a passphrase has 8 to 512 bytes, not 0"),
        ("echo wrong horse", "incorrect key"),
    ] {
        says(text);
        let said = scratch.fails(1, "list tank");
        assert!(said.contains(why) && said.contains("pool import --key-file FILE tank"), "{text}: {said}");
        assert!(!said.contains("horse"), "{said}");
    }
    for hanging in ["exec sleep 100", "exec >&-; exec sleep 100"] {
        says(hanging);
        let plain = scratch.command("list tank");
        let mut list = Command::new("setsid");
        list.arg(plain.get_program()).args(plain.get_args());
        let mut list = surround(&mut list, &plain).stderr(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(500));
        assert!(list.try_wait().unwrap().is_none());
        Command::new("kill").args(["-INT", &list.id().to_string()]).status().unwrap();
        let begun = Instant::now();
        let said = list.wait_with_output().unwrap();
        assert!(String::from_utf8_lossy(&said.stderr).contains("interrupted"), "{said:?}");
        assert!(begun.elapsed() < Duration::from_secs(20));
    }
}

/// Slots of the ring of uberblocks with their sequence numbers, newest first (docs/format/store.md).
fn newest_slots(ring: &[u8]) -> Vec<usize> {
    let sequence = |slot: &usize| u64::from_le_bytes(ring[slot * 8192 + 16..][..8].try_into().unwrap());
    let mut slots: Vec<usize> = (0..64).filter(|slot| ring[slot * 8192..].starts_with(b"SNOWUBER")).collect();
    slots.sort_by_key(|slot| std::cmp::Reverse(sequence(slot)));
    slots
}

/// Tests the state after each commit of `change-key`, also with the newest uberblocks damaged.
#[test]
fn a_change_of_key_that_is_cut_off_leaves_the_old_one_or_the_new() {
    let scratch = Scratch::new();
    key(&scratch, "old.key", 7);
    key(&scratch, "new.key", 9);
    scratch.ok("pool create --encrypt --key-file old.key tank pool");
    scratch.receive("receive tank/home", &demo("full.zstream"));
    let ring = || fs::read(scratch.path().join("pool/uberblocks")).unwrap();
    let before = ring();
    scratch.ok("pool change-key --key-file new.key tank");
    let after = ring();
    let newest = newest_slots(&after);
    let slot = |ring: &[u8], slot: usize| ring[slot * 8192..][..8192].to_vec();
    let since = newest.iter().position(|at| slot(&before, *at) == slot(&after, *at)).unwrap();
    // The record of the key is not encrypted. It states which key it is.
    let is_new = |ring: &[u8], at: usize| slot(ring, at).windows(7).any(|it| it == b"new.key");
    assert!(newest[..4].iter().all(|at| is_new(&after, *at)) && !is_new(&after, newest[since]));
    let opens = |pool: &Path, key: &str| {
        let said = scratch.run(&format!("pool import -Fn --key-file {key} {}", pool.display()));
        assert!(said.code == 0 || said.err.contains("incorrect key"), "{said:?}");
        said.code == 0
    };
    let mut seen = [0, 0];
    for commits in 0..=since {
        for damaged in 0..3 {
            // Opening for writing changes a pool, so each case has its own copy.
            let pool = scratch.path().join(format!("copy-{commits}-{damaged}"));
            Command::new("cp").arg("-a").arg(scratch.path().join("pool")).arg(&pool).status().unwrap();
            let mut ring = after.clone();
            for at in &newest[..since - commits] {
                ring[at * 8192..][..8192].copy_from_slice(&slot(&before, *at));
            }
            let left = newest_slots(&ring);
            for at in &left[..damaged] {
                ring[at * 8192 + 100..][..64].fill(0xff);
            }
            fs::write(pool.join("uberblocks"), &ring).unwrap();
            let is_new = is_new(&ring, left[damaged]);
            seen[usize::from(is_new)] += 1;
            let opened = (opens(&pool, "old.key"), opens(&pool, "new.key"));
            assert_eq!(opened, (!is_new, is_new), "{commits} of {since} commits, {damaged} damaged");
            if damaged == 0 {
                // The right key is found without an option.
                let listed = scratch.ok(&format!("--pool-dir {} list -H -o name -r tank", pool.display()));
                assert!(listed.contains("tank/home"), "{commits}");
            }
        }
    }
    assert!(seen[0] > 2 && seen[1] > 8, "{seen:?}");
}

#[test]
fn a_change_of_key_can_be_killed_at_any_moment() {
    let scratch = Scratch::new();
    key(&scratch, "old", 7);
    key(&scratch, "new", 9);
    let file = |name: &str| scratch.path().join(name).display().to_string();
    scratch.ok("pool create --encrypt --key-file old tank pool");
    scratch.receive("receive tank/home", &demo("full.zstream"));
    let sources = [
        vec!["--key-command".to_owned(), format!("cat {}", file("new")), "--key-format=raw".to_owned()],
        vec!["--key-command".to_owned(), format!("cat {}", file("old")), "--key-format=raw".to_owned()],
        vec!["--key-file".to_owned(), file("new")],
        vec!["--key-file".to_owned(), file("old")],
    ];
    let mut killed = 0;
    for round in 0..32u64 {
        let mut command = scratch.command("pool change-key tank");
        let mut change = command.args(&sources[round as usize % 4]).stderr(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(3 * round));
        let _ = change.kill();
        killed += u32::from(!change.wait().unwrap().success());
        assert!(scratch.ok("list -H -o name -r tank").contains("tank/home"), "round {round}");
    }
    assert!(killed > 0);
    assert!(scratch.ok("check tank").contains("no errors"));
}

#[test]
fn who_has_no_key_takes_no_pool_over() {
    let server = Server::start();
    let scratch = Scratch::new();
    key(&scratch, "key", 7);
    key(&scratch, "other", 8);
    let run = |machine: &str, line: &str| {
        let mut command = scratch.command(line);
        command
            .env("AWS_ENDPOINT_URL", server.endpoint())
            .env("AWS_ACCESS_KEY_ID", "test")
            .env("AWS_SECRET_ACCESS_KEY", "testsecret")
            .env("AWS_REGION", "us-east-1")
            .env("XDG_CONFIG_HOME", scratch.path().join(machine))
            .env("SNOWMELT_MACHINE", machine);
        Said::of(command)
    };
    let said = run("a", "pool create --encrypt --key-file key tank s3://bucket/pool");
    assert_eq!(said.code, 0, "{said:?}");
    let before = server.objects();
    let said = run("b", "pool import -f --key-file other s3://bucket/pool");
    assert!(said.code == 1 && said.err.contains("incorrect key"), "{said:?}");
    assert_eq!(server.objects(), before);
    let said = run("a", "create tank/still");
    assert_eq!(said.code, 0, "{said:?}");
    let said = run("b", "pool import -f --key-file key s3://bucket/pool");
    assert_eq!(said.code, 0, "{said:?}");
    assert_eq!(run("b", "create tank/mine").code, 0);
    assert_eq!(run("a", "create tank/not").code, 1);
}

#[test]
fn no_file_but_a_regular_one_is_a_key() {
    let scratch = Scratch::new();
    Command::new("mkfifo").arg(scratch.path().join("fifo")).status().unwrap();
    fs::create_dir(scratch.path().join("directory")).unwrap();
    for file in ["fifo", "directory", "/dev/zero"] {
        let said = scratch.fails(1, &format!("pool create --encrypt --key-file {file} tank pool"));
        assert!(said.contains("it is not a regular file"), "{said}");
    }
    let said = scratch.fails(1, "pool create --encrypt --key-file /proc/self/status tank pool");
    assert!(said.contains("it is a file of procfs"), "{said}");
    key(&scratch, "key", 7);
    assert!(scratch.fails(2, "pool import -a --key-file key").contains("give its name"));
    // A file that is not a regular file, in the place of a pool's key.
    scratch.ok("pool create --encrypt --key-file key tank pool");
    fs::rename(scratch.path().join("fifo"), scratch.path().join("key")).unwrap();
    assert!(scratch.fails(1, "list tank").contains("it is not a regular file"));
}

/// Every process that opens a pool finds its key or reports that it does not: owners, their callers, services, further
/// mounts.
#[test]
fn every_command_finds_the_key_or_says_why_not() {
    let scratch = Scratch::new();
    key(&scratch, "key", 7);
    scratch.ok("pool create --encrypt --key-file key tank pool");
    scratch.ok("pool create plain");
    scratch.receive("receive tank/home", &demo("full.zstream"));
    scratch.receive("receive plain/home", &demo("full.zstream"));
    fs::create_dir(scratch.path().join("source")).unwrap();
    fs::write(scratch.path().join("source/a"), "a").unwrap();
    let lines = [
        "list tank",
        "get all tank",
        "pool list tank",
        "pool status tank",
        "pool get all tank",
        "check tank",
        "pool scrub -w tank",
        "pool trim tank",
        "pool clear tank",
        "pool sync tank",
        "pool history tank",
        "pool set comment=x tank",
        "pool resilver -w tank",
        "heal plain/home tank/home",
        "import source tank/source",
        "sync source tank/synced",
        "find tank/home:",
        "serve sync tank/home",
        "serve nbd tank",
        "serve zvol source tank",
        "mount tank/home source",
        "pool attach tank pool other",
        "pool change-key --key-file away tank",
        "pool export tank",
        "salvage tank",
    ];
    for line in lines {
        fs::rename(scratch.path().join("key"), scratch.path().join("away")).unwrap();
        let said = scratch.run(line);
        assert!(said.code != 0 && said.err.contains("cannot read the key file"), "{line}: {said:?}");
        fs::rename(scratch.path().join("away"), scratch.path().join("key")).unwrap();
    }
    // The owner has the key. Its callers need none.
    let (mut gate, writer) = (scratch.command("receive tank/slow"), std::io::pipe().unwrap());
    let mut owner = gate.stdin(writer.0).spawn().unwrap();
    let mut input = writer.1;
    let stream = fs::read(demo("full.zstream")).unwrap();
    input.write_all(&stream[..stream.len() / 2]).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    fs::rename(scratch.path().join("key"), scratch.path().join("away")).unwrap();
    assert!(scratch.ok("list -H -o name -r tank").contains("tank/home"));
    assert!(scratch.ok("pool get -H -o value keystatus tank").contains("available"));
    fs::rename(scratch.path().join("away"), scratch.path().join("key")).unwrap();
    key(&scratch, "new", 9);
    scratch.ok("pool change-key --key-file new tank");
    fs::remove_file(scratch.path().join("key")).unwrap();
    input.write_all(&stream[stream.len() / 2..]).unwrap();
    drop((gate, input));
    assert!(owner.wait().unwrap().success());
    assert!(scratch.ok("list -H -o name -r tank").contains("tank/slow"));
    scratch.ok("pool destroy tank");
}

#[test]
fn nothing_readable_is_in_any_store() {
    for vdev in ["store/pool", "--size 128M store/disk.img", "--size 128M mirror store/a store/b.img"] {
        for suite in ["", "=aes-256-gcm-siv"] {
            let scratch = Scratch::new();
            key(&scratch, "key", 7);
            fs::create_dir(scratch.path().join("store")).unwrap();
            let (options, vdev) = match vdev.strip_prefix("--size 128M ") {
                Some(vdev) => ("--size 128M", vdev),
                None => ("", vdev),
            };
            scratch.ok(&format!("pool create --encrypt{suite} --key-file key {options} tank {vdev}"));
            secrets(&scratch, &|line| drop(scratch.ok(line)));
            assert_eq!(found(&scratch.path().join("store")), [""; 0], "{vdev}");
            assert!(scratch.ok("check tank").contains("no errors"));
            scratch.ok("pool scrub -w tank");
            let out = scratch.ok("cat tank/SecretDataset@one:/SecretFileName");
            assert_eq!(out, "SecretContent");
        }
    }
    let scratch = Scratch::with_pool();
    private(&scratch.path().join("key"), &[7; 32]);
    secrets(&scratch, &|line| drop(scratch.ok(line)));
    // How many depends on what is compressed together.
    assert!(!found(&scratch.path().join("data")).is_empty(), "or this test tests nothing");
}

#[test]
fn nothing_readable_is_in_a_bucket_or_its_cache() {
    let server = Server::start();
    let scratch = Scratch::new();
    key(&scratch, "key", 7);
    let run = |line: &str| {
        let mut command = scratch.command(line);
        command
            .env("AWS_ENDPOINT_URL", server.endpoint())
            .env("AWS_ACCESS_KEY_ID", "test")
            .env("AWS_SECRET_ACCESS_KEY", "testsecret")
            .env("AWS_REGION", "us-east-1")
            .env("SNOWMELT_CACHE", scratch.path().join("cache"))
            .env("SNOWMELT_MACHINE", "a");
        let said = Said::of(command);
        assert_eq!((said.code, said.err.as_str()), (0, ""), "{line}: {said:?}");
        said.out
    };
    run("pool create --encrypt --key-file key tank s3://bucket/pool");
    secrets(&scratch, &|line| drop(run(line)));
    assert_eq!(run("cat tank/SecretDataset@one:/SecretFileName"), "SecretContent");
    assert!(run("check tank").contains("no errors"));
    run("pool export tank");
    run("pool import -o readonly=on s3://bucket/pool");
    assert!(run("list -H -o name").contains("tank/SecretDataset"));
    assert_eq!(found(&scratch.path().join("cache")), [""; 0]);
    for (name, bytes) in server.objects() {
        for marker in MARKERS {
            assert!(!bytes.windows(marker.len()).any(|it| it == marker.as_bytes()), "{marker} in {name}");
        }
    }
}

#[test]
fn a_key_that_is_missing_or_wrong_opens_nothing_and_touches_nothing() {
    let scratch = Scratch::new();
    key(&scratch, "key", 7);
    key(&scratch, "other", 8);
    scratch.ok("pool create --encrypt --key-file key tank pool");
    scratch.receive("receive tank/home", &demo("full.zstream"));
    let listed =
        scratch.ok("pool get -H -o property,value,source encryption,keylocation,keyformat,keystatus tank");
    let place = scratch.path().canonicalize().unwrap().join("key");
    let words: Vec<_> = listed.lines().map(|line| line.split('\t').collect::<Vec<_>>()).collect();
    assert_eq!(words[0][..2], ["encryption", "xchacha20-poly1305"]);
    assert_eq!(words[1][0], "keylocation");
    assert!(
        words[1][1].starts_with("file:///") && words[1][1].ends_with("/key"),
        "{listed} {}",
        place.display()
    );
    assert_eq!(words[2][..2], ["keyformat", "raw"]);
    assert_eq!(words[3][..2], ["keystatus", "available"]);
    let state = || {
        let mut all = Vec::new();
        files(&scratch.path().join("pool"), &mut all);
        all.sort();
        all
    };
    let before = state();
    fs::rename(scratch.path().join("key"), scratch.path().join("moved")).unwrap();
    let said = scratch.fails(1, "list -r tank");
    assert!(said.contains("cannot read the key file") && said.contains("No such file"), "{said}");
    assert!(said.contains("'snowmelt pool import --key-file FILE tank'"), "{said}");
    assert!(scratch.run("salvage tank").code != 0);
    for line in ["pool import --key-file other tank", "pool import -Fn --key-file other tank"] {
        let said = scratch.run(line);
        assert_eq!(said.code, 1, "{said:?}");
        assert!(said.err.contains("incorrect key"), "{said:?}");
    }
    private(&scratch.path().join("short"), b"no key");
    assert!(scratch.fails(1, "pool import --key-file short tank").contains("a raw key has 32 bytes, not 6"));
    assert_eq!(state(), before);
    // The key file is named at its new place, also for a pool in another directory.
    scratch.ok("pool import --key-file moved tank");
    assert!(scratch.ok("list -H -o name -r tank").contains("tank/home"));
    scratch.ok("pool export tank");
    scratch.ok("pool import -Fn --key-file moved tank");
    scratch.ok("pool import --key-file moved ./pool store");
    assert!(scratch.ok("check store").contains("no errors"));
    // A key needs `--encrypt`, and the suite must exist.
    assert!(scratch.fails(2, "pool create --key-file moved x").contains("--encrypt"));
    assert!(scratch.fails(2, "pool create --encrypt=rot13 --key-file moved x").contains("aes-256-gcm-siv"));
    assert!(
        scratch.fails(1, "pool create --encrypt --key-file short x").contains("32 bytes or 64 hexadecimal")
    );
    assert!(!scratch.path().join("data/snowmelt/x").exists());
    assert!(scratch.fails(1, "pool create --encrypt --key-file gone x").contains("No such file"));
}

#[test]
fn keys_come_from_commands_and_prompts_and_can_be_changed() {
    let scratch = Scratch::new();
    key(&scratch, "key", 7);
    let script = scratch.path().join("ask.sh");
    fs::write(&script, "#!/bin/sh\necho correct horse battery\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o700)).unwrap();
    // A relative command is not looked up in the current directory.
    assert!(scratch.fails(1, "pool create --encrypt --key-command ./ask.sh tank pool").contains("not found"));
    scratch.ok(&format!("pool create --encrypt --key-command {} tank pool", script.display()));
    scratch.receive("receive tank/home", &demo("full.zstream"));
    let get = |name: &str| scratch.ok(&format!("pool get -H -o value {name} tank")).trim().to_owned();
    assert_eq!((get("keylocation"), get("keyformat")), ("command".to_owned(), "passphrase".to_owned()));
    // A machine on which the command was not configured runs no command.
    let told = scratch.path().join("config/snowmelt/keys");
    let hidden = scratch.path().join("hidden");
    fs::rename(&told, &hidden).unwrap();
    assert!(
        scratch
            .fails(1, "list tank")
            .contains("the command that prints its key is not known on this machine")
    );
    fs::rename(&hidden, &told).unwrap();
    scratch.ok("list tank");
    // Simulates a change of the key that was killed after its last commit. The next process that opens the pool
    // finishes it.
    let entry = fs::read_dir(&told).unwrap().next().unwrap().unwrap().path();
    fs::rename(&entry, entry.with_extension("next")).unwrap();
    scratch.ok("list tank");
    assert!(entry.exists());
    fs::write(&script, "#!/bin/sh\nexit 3\n").unwrap();
    assert!(scratch.fails(1, "list tank").contains("the command that prints the key failed"));
    fs::write(&script, "#!/bin/sh\necho correct horse battery\n").unwrap();

    scratch.ok("pool change-key --key-file key tank");
    assert_eq!((get("keylocation").starts_with("file:///"), get("keyformat")), (true, "raw".to_owned()));
    fs::remove_file(&script).unwrap();
    assert!(scratch.ok("list -H -o name -r tank").contains("tank/home"));

    // Standard input is read as a key only where nothing but a key is expected.
    let passphrase = scratch.path().join("passphrase");
    private(&passphrase, b"another long one\n");
    let said = scratch.run_with_input("pool change-key --key-format passphrase tank", &passphrase);
    assert_eq!((said.code, said.err.as_str()), (0, ""));
    let said = without_terminal(&scratch, "list tank", Stdio::null());
    assert!(said.code == 1 && said.err.contains("there is no terminal"), "{said:?}");
    let stream = fs::File::open(demo("full.zstream")).unwrap();
    let said = without_terminal(&scratch, "receive tank/again", stream.into());
    assert!(said.code == 1 && said.err.contains("there is no terminal"), "{said:?}");
    // Only the new key opens the pool, from the file that `--key-file` names.
    let said = scratch.run("pool import --key-file key ./pool");
    assert!(said.code == 1 && said.err.contains("incorrect key"), "{said:?}");
    scratch.ok("pool import --key-file passphrase ./pool");
    assert!(scratch.ok("list -H -o name -r tank").contains("tank/home"));
}

#[test]
fn streams_and_healing_go_between_encrypted_pools_and_others() {
    let scratch = Scratch::new();
    key(&scratch, "key", 7);
    scratch.ok("pool create --encrypt --key-file key tank pool");
    scratch.ok("pool create plain");
    for pool in ["tank", "plain"] {
        scratch.receive(&format!("receive {pool}/home"), &demo("full.zstream"));
        scratch.receive(&format!("receive {pool}/home"), &demo("incremental.zstream"));
    }
    // A plain pool with the same names, so that the streams are equal.
    let other = Scratch::with_home();
    let newest = scratch.ok("list -H -o name -t snapshot -r plain/home").lines().last().unwrap().to_owned();
    let newest = newest.split('@').nth(1).unwrap().to_owned();
    for options in ["", "-c", "-Lec"] {
        let sealed = fs::read(scratch.to_file(&format!("send {options} tank/home@{newest}"), "a")).unwrap();
        let plain = fs::read(other.to_file(&format!("send {options} tank/home@{newest}"), "b")).unwrap();
        assert!(sealed == plain, "send {options}");
    }
    // `heal` repairs a block that is damaged in one pool with its copy in the other.
    let mut all = Vec::new();
    files(&scratch.path().join("pool/segments"), &mut all);
    let (path, mut bytes) = all.into_iter().max_by_key(|(_, bytes)| bytes.len()).unwrap();
    let at = bytes.len() / 2;
    bytes[at..at + 16].iter_mut().for_each(|byte| *byte ^= 1);
    fs::write(&path, bytes).unwrap();
    assert_ne!(scratch.run("check tank").code, 0);
    scratch.run("pool scrub -w tank");
    let healed = scratch.ok("heal -v plain/home tank/home");
    assert!(healed.starts_with("1 blocks"), "{healed}");
    assert!(scratch.ok("check tank").contains("no errors"));
}

#[test]
fn a_pool_that_lost_its_uberblocks_is_salvaged() {
    let scratch = Scratch::new();
    key(&scratch, "key", 7);
    key(&scratch, "new", 9);
    scratch.ok("pool create --encrypt --key-file key tank pool");
    scratch.receive("receive tank/home", &demo("full.zstream"));
    scratch.ok("pool change-key --key-file new tank");
    let ring = scratch.path().join("pool/uberblocks");
    let len = fs::metadata(&ring).unwrap().len();
    fs::write(&ring, vec![0; usize::try_from(len).unwrap()]).unwrap();
    assert_eq!(scratch.run("list tank").code, 1);
    fs::rename(scratch.path().join("new"), scratch.path().join("away")).unwrap();
    assert!(scratch.run("salvage tank").err.contains("cannot read the key file"));
    fs::rename(scratch.path().join("away"), scratch.path().join("new")).unwrap();
    let said = scratch.run("salvage tank");
    assert_eq!(said.code, 0, "{said:?}");
    assert!(scratch.ok("list -H -o name -r tank").contains("tank/home"));
    assert!(scratch.ok("check tank").contains("no errors"));
}

#[test]
fn a_mirror_takes_new_members() {
    let scratch = Scratch::new();
    key(&scratch, "key", 7);
    scratch.ok("pool create --encrypt --key-file key --size 128M tank a.img");
    secrets(&scratch, &|line| drop(scratch.ok(line)));
    scratch.ok("pool attach -w --size 128M tank a.img b.img");
    scratch.ok("pool detach tank a.img");
    assert!(scratch.ok("check tank").contains("no errors"));
    assert_eq!(scratch.ok("cat tank/SecretDataset@one:/SecretFileName"), "SecretContent");
    assert_eq!(found(&scratch.path().join("b.img")), [""; 0]);
}

#[test]
fn a_key_is_in_no_argument_and_no_history() {
    let scratch = Scratch::new();
    private(&scratch.path().join("key"), "ab".repeat(32).as_bytes());
    scratch.ok("pool create --encrypt --key-file key tank pool");
    let history = scratch.ok("pool history tank");
    assert!(history.contains("--key-file key") && !history.contains("abab"), "{history}");
    assert_eq!(scratch.ok("pool get -H -o value keyformat tank"), "hex\n");
}
