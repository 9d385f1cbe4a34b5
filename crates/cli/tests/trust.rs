//! Protection from other users: pools of other users, owner processes of other users, other pools at a known place.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::fs;
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{Said, Scratch};
use snowmelt_dataset::Datasets;
use snowmelt_pool::{KeyFormat, Keys, NewPool, PassphraseCost, Pool, PoolOptions, Suite, Wrap};
use snowmelt_store::{Access, CreateOptions, DirectoryStore, Location, StoreError};

/// A user who is not root.
const ALICE: u32 = 54_321;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// Makes Alice the owner of a directory and everything in it.
fn give(path: &Path) {
    chown(path, Some(ALICE), Some(ALICE)).unwrap();
    if path.is_dir() {
        fs::read_dir(path).unwrap().for_each(|entry| give(&entry.unwrap().path()));
    }
}

fn pool_of_alice(scratch: &Scratch) -> PathBuf {
    let pool = scratch.path().join("alice/pool");
    fs::create_dir(scratch.path().join("alice")).unwrap();
    scratch.ok("pool create tank alice/pool");
    scratch.ok("create tank/a");
    give(&scratch.path().join("alice"));
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755)).unwrap();
    pool
}

#[test]
#[ignore = "needs root"]
fn root_neither_reads_nor_writes_a_pool_of_another_user() {
    let scratch = Scratch::new();
    let pool = pool_of_alice(&scratch);
    let victim = scratch.path().join("victim");
    let text = "precious\n".repeat(5000);
    fs::write(&victim, &text).unwrap();
    // Alice can do this while root works: every segment becomes a link to a file of root.
    for shard in fs::read_dir(pool.join("segments")).unwrap() {
        for segment in fs::read_dir(shard.unwrap().path()).unwrap() {
            let segment = segment.unwrap().path();
            fs::remove_file(&segment).unwrap();
            symlink(&victim, &segment).unwrap();
        }
    }
    for line in ["list tank", "create tank/b", "import alice tank/c", "check tank", "pool get all tank"] {
        let said = scratch.run(line);
        assert_eq!(said.code, 1, "{line}: {said:?}");
        assert!(said.err.contains("belongs to user 54321"), "{line}: {said:?}");
        assert!(said.err.contains("sudo -u \\#54321 snowmelt"), "{line}: {said:?}");
    }
    // Even with permission to trust Alice it fails, because links in a pool are not followed.
    let mut command = scratch.command("import alice tank/c");
    command.env("SNOWMELT_TRUST_OWNERS", ALICE.to_string());
    Said::of(command);
    assert_eq!(fs::read_to_string(&victim).unwrap(), text);
}

#[test]
#[ignore = "needs root"]
fn root_works_on_a_pool_of_a_user_whom_it_was_told_to_trust() {
    let scratch = Scratch::new();
    let pool = pool_of_alice(&scratch);
    let said = |line: &str| {
        let mut command = scratch.command(line);
        command.env("SNOWMELT_TRUST_OWNERS", ALICE.to_string());
        let said = Said::of(command);
        assert_eq!((said.code, said.err.as_str()), (0, ""), "{line}");
        said.out
    };
    said("create tank/b");
    assert!(said("list -Ho name").contains("tank/b"));
    // Files that root created belong to Alice, who can continue to use the pool.
    let mut command = scratch.command("list -Ho name");
    let home = scratch.path().join("alice/home");
    fs::create_dir(&home).unwrap();
    give(&home);
    command.uid(ALICE).gid(ALICE).env("HOME", &home).env("SNOWMELT_POOLS", &pool);
    for name in ["XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"] {
        command.env_remove(name);
    }
    let said = Said::of(command);
    assert_eq!((said.code, said.out.as_str()), (0, "tank\ntank/a\ntank/b\n"), "{said:?}");
}

/// A process that holds a pool's lock, accepts the owner's callers, and prints their requests.
fn impostor(pool: &Path, script: &Path) -> Child {
    fs::write(
        script,
        r"
import array, fcntl, os, socket, sys
pool = sys.argv[1]
lock = open(pool + '/lock', 'r+'); fcntl.flock(lock, fcntl.LOCK_EX)
s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM); s.bind(pool + '/control.sock'); s.listen(5)
print('ready', flush=True)
c, _ = s.accept()
message, ancillary, _, _ = c.recvmsg(65536, socket.CMSG_SPACE(4 * 8))
print('bytes', len(message), 'descriptors', len(ancillary), flush=True)
",
    )
    .unwrap();
    let mut command = Command::new("python3");
    command.arg(script).arg(pool).uid(ALICE).gid(ALICE).stdout(Stdio::piped());
    command.spawn().unwrap()
}

fn line(child: &mut Child) -> String {
    let mut line = Vec::new();
    let mut byte = [0];
    while child.stdout.as_mut().unwrap().read(&mut byte).unwrap() == 1 && byte[0] != b'\n' {
        line.push(byte[0]);
    }
    String::from_utf8(line).unwrap()
}

#[test]
#[ignore = "needs root and python3"]
fn root_gives_its_files_to_no_owner_of_another_user() {
    let scratch = Scratch::new();
    let pool = pool_of_alice(&scratch);
    let mut owner = impostor(&pool, &scratch.path().join("impostor.py"));
    assert_eq!(line(&mut owner), "ready");
    let mut command = scratch.command("receive tank/x");
    command.env("SNOWMELT_TRUST_OWNERS", ALICE.to_string());
    let secret = scratch.path().join("secret");
    fs::write(&secret, "root's own").unwrap();
    command.stdin(fs::File::open(secret).unwrap());
    let said = Said::of(command);
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.err.contains("in use by a process of user 54321"), "{said:?}");
    assert_eq!(line(&mut owner), "bytes 0 descriptors 0");
    owner.wait().unwrap();
}

/// Links that another user can change must not lead root elsewhere, neither as the last part of a path nor as an
/// earlier one.
#[test]
#[ignore = "needs root and /dev/fuse"]
fn root_is_led_nowhere_by_links_of_another_user() {
    let scratch = Scratch::with_pool();
    let (alice, victim) = (scratch.path().join("alice"), scratch.path().join("victim"));
    for directory in [&alice, &victim] {
        fs::create_dir(directory).unwrap();
    }
    fs::write(victim.join("kept"), "precious").unwrap();
    // There is no device behind the node. The message says so, and not that the link belongs to another user.
    let made = Command::new("mknod").arg(victim.join("disk")).args(["b", "7", "1000"]).status().unwrap();
    assert!(made.success());
    for (link, target) in [("way", &victim), ("disk", &victim.join("disk"))] {
        symlink(target, alice.join(link)).unwrap();
        lchown(alice.join(link), Some(ALICE), Some(ALICE)).unwrap();
    }
    let at = alice.display();
    scratch.ok("create tank/a");
    scratch.ok("create -V 1M tank/v");
    scratch.ok("snapshot tank/a@1 tank/v@1");
    scratch.ok("create -o canmount=noauto tank/m");
    for (place, line) in [
        ("alice/way", format!("restore tank/a@1 {at}/way")),
        ("alice/way", format!("restore tank/a@1 {at}/way/new")),
        ("alice/way", format!("restore tank/v@1 {at}/way/image")),
        ("alice/disk", format!("restore tank/v@1 {at}/disk")),
        ("alice/way", format!("sync tank/a {at}/way/copy")),
        ("alice/way", format!("sync tank/v {at}/way/copy")),
        ("alice/disk", format!("sync --force tank/v {at}/disk")),
        ("alice/way", format!("mount tank/m {at}/way")),
    ] {
        let said = scratch.run(&line);
        assert_eq!(said.code, 1, "{line}: {said:?}");
        assert!(said.err.contains(place) && said.err.contains("belongs to user 54321"), "{line}: {said:?}");
    }
    for mountpoint in ["way", "way/new"] {
        scratch.ok(&format!("set mountpoint={at}/{mountpoint} canmount=on tank/m"));
        let said = scratch.run("mount -a");
        assert!(said.err.contains("belongs to user 54321"), "{said:?}");
        scratch.ok("set canmount=noauto tank/m");
    }
    let mut left: Vec<_> = fs::read_dir(&victim).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["disk", "kept"]);
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(&victim.display().to_string()), "{mounts}");
}

/// Removes the pool at `pool`, and puts another pool with the same name there.
fn replace(scratch: &Scratch, pool: &str, options: &str) {
    let other = Scratch::new();
    other.ok(&format!("pool create tank {}/other {options}", other.path().display()));
    let place = scratch.path().join(pool);
    fs::remove_dir_all(&place).unwrap();
    let copied = Command::new("cp").arg("-r").arg(other.path().join("other")).arg(&place).status().unwrap();
    assert!(copied.success());
}

fn key(scratch: &Scratch, mode: u32) {
    let key = scratch.path().join("key");
    fs::write(&key, [7; 32]).unwrap();
    fs::set_permissions(key, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_plain_pool_in_the_place_of_an_encrypted_one_is_refused_until_it_is_accepted() {
    for place in ["data/snowmelt/tank", "elsewhere"] {
        let scratch = Scratch::new();
        key(&scratch, 0o600);
        scratch
            .ok(&format!("pool create --encrypt --key-file key tank {}/{place}", scratch.path().display()));
        scratch.ok("create tank/a");
        replace(&scratch, place, "");
        for line in ["create tank/b", "list -o name tank", "pool export tank"] {
            let said = scratch.run(line);
            assert_eq!(said.code, 1, "{line}: {said:?}");
            assert!(said.err.contains("is not the known one"), "{line}: {said:?}");
            assert!(said.err.contains("encrypted"), "{line}: {said:?}");
        }
        let path = scratch.path().join(place);
        let accept = format!("pool import --accept-new {}", path.display());
        assert!(scratch.fails(1, "list -o name tank").contains(&accept));
        assert!(scratch.fails(1, &format!("pool import {}", path.display())).contains(&accept));
        scratch.ok(&accept);
        scratch.ok("create tank/b");
    }
}

/// Puts an encrypted pool with the same name and guid in the place of a pool, as anyone can who writes to the store. It
/// names the file `key` as its key.
fn substitute(place: &Path, key: &Path) {
    let label = snowmelt_store::label(&Location::Directory(place.to_owned())).unwrap();
    let guid = label.guid;
    fs::remove_dir_all(place).unwrap();
    fs::create_dir(place).unwrap();
    let create = CreateOptions { label, size: None, force: false };
    // Another test may start a process at this moment, which has the lock until it executes its program.
    let mut made = DirectoryStore::create(place, &create);
    let deadline = Instant::now() + Duration::from_secs(60);
    while matches!(made, Err(StoreError::Locked { .. })) && Instant::now() < deadline {
        made = DirectoryStore::open(place, Access::ReadWrite);
    }
    let store = made.unwrap();
    let (location, material) = (format!("file://{}", key.display()), fs::read(key).unwrap());
    let cost = PassphraseCost::default();
    let wrap = Wrap { format: KeyFormat::Raw, location: &location, material: &material, cost };
    let keys = Some(Keys::new(guid, Suite::default(), &wrap).unwrap());
    let options = PoolOptions { keys, ..PoolOptions::default() };
    let pool = Pool::create(Box::new(store), &NewPool { name: "tank", guid }, options).unwrap();
    let datasets = Datasets::create(pool).unwrap();
    let pool = datasets.pool().clone();
    drop(datasets);
    pool.close().unwrap();
}

/// A key that somebody else knows.
fn guessed(scratch: &Scratch) -> PathBuf {
    let path = scratch.path().join("guessed");
    fs::write(&path, [9; 32]).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    path
}

#[test]
fn a_pool_with_the_guid_of_an_encrypted_one_and_another_key_is_refused_until_it_is_accepted() {
    for place in ["data/snowmelt/tank", "elsewhere"] {
        let scratch = Scratch::new();
        key(&scratch, 0o600);
        let path = scratch.path().join(place);
        scratch.ok(&format!("pool create --encrypt --key-file key tank {}", path.display()));
        scratch.ok("create tank/a");
        substitute(&path, &guessed(&scratch));
        let ring = fs::read(path.join("uberblocks")).unwrap();
        for line in ["create tank/b", "list -o name tank", "pool export tank"] {
            let said = scratch.run(line);
            assert_eq!(said.code, 1, "{line}: {said:?}");
            assert!(said.err.contains("is not the known one"), "{line}: {said:?}");
            assert!(said.err.contains("key fingerprint"), "{line}: {said:?}");
        }
        let accept = format!("pool import --accept-new {}", path.display());
        assert!(scratch.fails(1, &format!("pool import {}", path.display())).contains(&accept));
        if place == "elsewhere" {
            let import = format!("pool import -o readonly=on {}", path.display());
            assert!(scratch.fails(1, &import).contains(&accept));
        }
        assert_eq!(fs::read(path.join("uberblocks")).unwrap(), ring, "nothing was written");
        scratch.ok(&accept);
        scratch.ok("create tank/b");
    }
}

#[test]
fn where_the_source_of_a_key_was_set_a_pool_names_no_other() {
    let scratch = Scratch::new();
    key(&scratch, 0o600);
    let path = scratch.path().join("data/snowmelt/tank");
    scratch.ok("pool create --encrypt --key-file key tank");
    scratch.ok("pool import --key-file key tank");
    // Not even on a machine that does not know the pool.
    fs::remove_file(scratch.path().join("config/snowmelt/known_pools")).unwrap();
    substitute(&path, &guessed(&scratch));
    for line in ["create tank/b", "list -o name tank"] {
        let said = scratch.fails(1, line);
        assert!(said.contains("incorrect key") && !said.contains("guessed"), "{line}: {said}");
    }
    scratch.ok(&format!("pool import --accept-new --key-file guessed {}", path.display()));
    scratch.ok("create tank/b");
}

#[test]
fn the_key_of_a_known_pool_is_learned_and_stays_known_when_the_users_key_changes() {
    let scratch = Scratch::new();
    key(&scratch, 0o600);
    scratch.ok("pool create --encrypt --key-file key tank");
    let known = scratch.path().join("config/snowmelt/known_pools");
    let text = fs::read_to_string(&known).unwrap();
    let (older, fingerprint) = text.split_once("\tkey=").unwrap();
    assert_eq!(fingerprint.trim_end().len(), 32, "{text}");
    fs::write(&known, format!("{older}\n")).unwrap();
    scratch.ok("list -o name tank");
    assert_eq!(fs::read_to_string(&known).unwrap(), text);
    let new = guessed(&scratch);
    scratch.ok("pool change-key --key-file guessed tank");
    scratch.ok("create tank/a");
    assert_eq!(fs::read_to_string(&known).unwrap(), text);
    substitute(&scratch.path().join("data/snowmelt/tank"), &new);
    assert!(scratch.fails(1, "create tank/b").contains("is not the known one"));
}

#[test]
fn another_pool_in_the_place_of_a_known_one_is_refused_and_one_that_is_made_anew_is_not() {
    let scratch = Scratch::with_pool();
    replace(&scratch, "data/snowmelt/tank", "");
    assert!(scratch.fails(1, "create tank/b").contains("is not the known one"));
    fs::remove_dir_all(scratch.path().join("data/snowmelt/tank")).unwrap();
    scratch.ok("pool create tank");
    scratch.ok("create tank/b");
    scratch.ok("pool destroy tank");
    scratch.ok("pool create tank");
    scratch.ok("create tank/b");
}

#[test]
fn a_pool_of_before_is_learned_when_it_is_opened() {
    let scratch = Scratch::with_pool();
    let known = scratch.path().join("config/snowmelt/known_pools");
    assert_eq!(mode(&known), 0o600);
    assert_eq!(mode(known.parent().unwrap()), 0o700);
    fs::remove_file(&known).unwrap();
    scratch.ok("list -o name");
    let text = fs::read_to_string(&known).unwrap();
    assert!(
        text.contains("data/snowmelt/tank\tguid=") && text.contains("\tencryption=off\tname=tank"),
        "{text}"
    );
    replace(&scratch, "data/snowmelt/tank", "");
    assert!(scratch.fails(1, "create tank/b").contains("is not the known one"));
}

#[test]
fn a_list_of_known_pools_that_cannot_be_read_is_an_error() {
    let scratch = Scratch::with_pool();
    let known = scratch.path().join("config/snowmelt/known_pools");
    let whole = fs::read(&known).unwrap();
    let lines =
        ["create tank/a", "list -o name tank", "pool create other", "pool export tank", "pool destroy tank"];
    for damaged in [&b"/somewhere\tguid=x\n"[..], b"nonsense\n", &vec![b'#'; 2 << 20]] {
        fs::write(&known, damaged).unwrap();
        for line in lines {
            let said = scratch.fails(1, line);
            assert!(said.contains(&known.display().to_string()) && said.contains("remove"), "{line}: {said}");
        }
        assert_eq!(fs::read(&known).unwrap(), damaged);
    }
    fs::remove_file(&known).unwrap();
    fs::create_dir(&known).unwrap();
    assert!(scratch.fails(1, "list -o name tank").contains(&known.display().to_string()));
    fs::remove_dir(&known).unwrap();
    assert_eq!(scratch.ok("list -H -o name tank"), "tank\n");
    assert_eq!(fs::read(&known).unwrap(), whole);
}

#[test]
fn another_pool_is_neither_salvaged_nor_destroyed() {
    let scratch = Scratch::new();
    key(&scratch, 0o600);
    scratch.ok("pool create --encrypt --key-file key tank");
    replace(&scratch, "data/snowmelt/tank", "");
    let ring = scratch.path().join("data/snowmelt/tank/uberblocks");
    let whole = fs::read(&ring).unwrap();
    assert!(scratch.fails(1, "pool destroy tank").contains("is not the known one"));
    let none = vec![0; whole.len()];
    fs::write(&ring, &none).unwrap();
    for line in ["salvage -n tank", "salvage tank", "pool destroy tank"] {
        assert!(scratch.fails(1, line).contains("is not the known one"), "{line}");
    }
    assert_eq!(fs::read(&ring).unwrap(), none);
}

#[test]
fn files_that_others_can_read_are_warned_of() {
    let scratch = Scratch::new();
    let image = scratch.path().join("disk.img");
    fs::write(&image, "").unwrap();
    fs::set_permissions(&image, fs::Permissions::from_mode(0o644)).unwrap();
    key(&scratch, 0o644);
    let said = scratch.run("pool create --encrypt --key-file key --size 64M tank disk.img");
    assert_eq!(said.code, 0, "{said:?}");
    for file in ["disk.img", "key"] {
        let path = scratch.path().join(file);
        assert!(said.err.contains(&format!("(mode 0644): use 'chmod 600 {}'", path.display())), "{said:?}");
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    }
    scratch.ok("create tank/a");
    scratch.ok("pool create --size 64M other new.img");
    assert_eq!(mode(&scratch.path().join("new.img")), 0o600);
}

#[test]
fn a_process_with_keys_leaves_no_core_dump() {
    let scratch = Scratch::new();
    key(&scratch, 0o600);
    scratch.ok("pool create --encrypt --key-file key tank");
    let mut command = scratch.command("receive tank/x");
    let mut receive = command.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let limits = format!("/proc/{}/limits", receive.id());
    let is_safe = || {
        let text = fs::read_to_string(&limits).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with("Max core file size")).unwrap_or_default();
        line.split_whitespace().skip(4).take(2).eq(["0", "0"])
    };
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !is_safe() {
        assert!(std::time::Instant::now() < deadline, "{}", fs::read_to_string(&limits).unwrap());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    drop(receive.stdin.take());
    receive.wait().unwrap();
}
