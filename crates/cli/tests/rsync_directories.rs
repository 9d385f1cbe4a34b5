//! Pushes by stock rsync (Debian: rsync) into plain directories. The results are compared with those of stock rsync's
//! own server for the same push. Tests that need rsync are ignored by a plain `cargo test`: `.ci/run clients` runs
//! them.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;
/// Random trees, the same as in the server's own tests.
#[path = "../../rsync/tests/common/trees.rs"]
mod trees;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use common::Scratch;
use common::rsync::{Server, StockDaemon, own_shell, stock_shell};
use trees::{Random, disturb, grow, manifest, set_time};

/// A user of this machine other than root, and one of its groups.
const USER: u32 = 65534;

/// Two destinations of the same pushes: this program serves one, stock rsync the other.
struct Pair {
    scratch: Scratch,
    begun: u64,
}

/// One of the two destinations.
#[derive(Clone, Copy, Debug)]
enum Side {
    Ours,
    Stock,
}

impl Pair {
    fn new() -> Self {
        let scratch = Scratch::new();
        // The users as which modules are served must be able to reach them.
        fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        for side in ["ours", "stock"] {
            fs::create_dir(scratch.path().join(side)).unwrap();
        }
        Self { scratch, begun: now }
    }

    fn root(&self, side: Side) -> PathBuf {
        self.scratch.path().join(match side {
            Side::Ours => "ours",
            Side::Stock => "stock",
        })
    }

    fn modules(&self, side: Side, more: &str) -> String {
        let root = self.root(side);
        let begin = format!("[m]\npath = {}\nread only = no\n", root.display());
        format!("{begin}use chroot = no\nmunge symlinks = no\n{more}\n")
    }

    /// Both trees. Times that the test itself caused are left out.
    fn trees(&self) -> [BTreeMap<PathBuf, String>; 2] {
        [Side::Ours, Side::Stock].map(|side| {
            let tree = manifest(&self.root(side));
            tree.into_iter().map(|(path, text)| (path, self.without_now(&text))).collect()
        })
    }

    fn without_now(&self, text: &str) -> String {
        let mut words: Vec<&str> = text.split(' ').collect();
        let at = words.iter().position(|word| *word == "time").unwrap() + 1;
        let seconds: i64 = words[at].split('.').next().unwrap().parse().unwrap();
        let since = seconds - i64::try_from(self.begun).unwrap();
        if (0..3600).contains(&since) {
            words[at] = "now";
        }
        words.join(" ")
    }

    #[track_caller]
    fn assert_same(&self, what: &str) {
        let [ours, stock] = self.trees();
        for (path, text) in &stock {
            assert_eq!(ours.get(path), Some(text), "{what}: {path:?}");
        }
        let more: Vec<_> = ours.keys().filter(|path| !stock.contains_key(*path)).collect();
        assert!(more.is_empty(), "{what}: {more:?}");
    }
}

/// Removes differences that are peculiar to stock rsync's server. It loses the group entry of a directory's ACL if it
/// sets the directory's sticky bit. It leaves directories open, or without their times, inside directories that its
/// user cannot enter. If it changes the owner of a device with setuid, it reports other changes.
fn without_quirks(tree: &Path) {
    for path in manifest(tree).into_keys().map(|name| tree.join(name)) {
        let found = path.symlink_metadata().unwrap();
        let mode = found.mode();
        if found.is_dir() {
            if mode & 0o1000 != 0 {
                run(Command::new("setfacl").arg("-b").arg(&path));
            }
            fs::set_permissions(&path, fs::Permissions::from_mode(mode & 0o7777 | 0o700)).unwrap();
        } else if !found.is_file() && !found.is_symlink() {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode & 0o777)).unwrap();
        } else {
            continue;
        }
        set_time(&path, found.mtime(), found.mtime_nsec());
    }
    // Changes inside a directory have changed its time.
    for path in manifest(tree).into_keys().map(|name| tree.join(name)).filter(|path| path.is_dir()) {
        if !path.is_symlink() {
            set_time(&path, 1_600_000_000, 0);
        }
    }
}

fn copy(from: &Path, to: &Path) {
    run(Command::new("cp").arg("-a").arg(from).arg(to));
}

#[track_caller]
fn run(command: &mut Command) {
    assert!(command.status().unwrap().success(), "{command:?}");
}

fn rsync(args: &[&str], from: &str, to: &str) -> Output {
    let mut command = Command::new("timeout");
    command.args(["120", "rsync"]).args(args).args(from.split(' ')).arg(to).stdin(Stdio::null());
    command.output().unwrap()
}

/// Names that the client lists as links to other files.
fn linked(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let links = text.lines().filter(|line| line.starts_with("hf")).filter_map(|line| line.get(12..));
    links.flat_map(|names| names.split(" => ").map(str::to_owned)).collect()
}

/// The client's output, with the directory that it named replaced.
fn said_of(output: &Output, root: &Path) -> Output {
    let text = String::from_utf8_lossy(&output.stdout).replace(root.to_str().unwrap(), "ROOT");
    Output { stdout: text.into_bytes(), ..output.clone() }
}

/// The client's output, sorted. Which name of a file gets the content and which names become links may differ.
fn said(output: &Output, linked: &[String]) -> (Option<i32>, Vec<String>) {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let name = |line: &str| line.get(12..).map(|rest| rest.split(" => ").next().unwrap().to_owned());
    let plain = |line: &str| match name(line).filter(|name| linked.contains(name)) {
        Some(name) => name,
        None => line.to_owned(),
    };
    let mut lines: Vec<String> = text.lines().filter(|line| !line.is_empty()).map(plain).collect();
    lines.sort();
    (output.status.code(), lines)
}

#[track_caller]
fn assert_said(mine: &Output, theirs: &Output, what: &str) {
    let linked = [linked(mine), linked(theirs)].concat();
    let (mut ours, mut stock) = (said(mine, &linked), said(theirs, &linked));
    let differs = ours != stock;
    let same: Vec<String> = ours.1.iter().filter(|line| stock.1.contains(line)).cloned().collect();
    ours.1.retain(|line| !same.contains(line));
    stock.1.retain(|line| !same.contains(line));
    let errors = [mine, theirs].map(|output| String::from_utf8_lossy(&output.stderr).into_owned());
    assert!(!differs, "{what}: {ours:?}, not {stock:?}; {errors:?}");
}

/// The options of the default run: one of each way in which files are written, kept or deleted.
///
/// Another option hides what stock rsync does in its own way. With `--chown` it writes ACLs with two entries for one
/// user. With `--append` and `--update`, its result for a file with several names depends on their order. It reports
/// differently that a name is too long for a backup, and what is in a directory that it cannot make.
const VARIANTS: &[&str] = &[
    "",
    "--delete-delay",
    "--delete-after",
    "--delete-excluded --exclude=*b",
    "--exclude=*0 --include=*/ --filter=P_*c",
    "--max-delete=1",
    "--inplace --backup",
    "--append-verify --no-hard-links",
    "--partial-dir=.part",
    "--delay-updates --backup --exclude=x*",
    "--temp-dir=/aside",
    "--backup --backup-dir=/back/deep",
    "--link-dest=../other --delay-updates",
    "--copy-dest=../other",
    "--chown=1:5 --no-acls",
    "--keep-dirlinks",
    "--sparse",
    "--no-perms --executability",
    "--relative",
    "--protocol=30",
];

/// The number of variants at a time. Each of them mostly waits for its processes.
const THREADS: usize = 3;

/// The other options. One of them is tried, and all of them with `SNOWMELT_ALL_VARIANTS`.
const MORE_VARIANTS: &[&str] = &[
    "--delete-before",
    "--inplace",
    "--append --no-hard-links",
    "--partial",
    "--delay-updates",
    "--backup",
    "--backup --suffix=.old",
    "--backup --backup-dir=back",
    "--link-dest=../other",
    "--compare-dest=/other",
    "--chmod=D2750,F640",
    "--usermap=33:7,*:8 --groupmap=0-10:3 --no-acls",
    "--numeric-ids",
    "--checksum",
    "--whole-file",
    "--sparse --inplace",
    "--preallocate --fsync",
    "--fuzzy",
    "--existing",
    "--ignore-existing --exclude=3000*",
    "--update --no-hard-links",
    "--omit-dir-times --omit-link-times",
    "--no-owner --no-group",
    "--no-perms --no-times",
    "--no-xattrs --no-acls",
    "--atimes",
    "--safe-links",
    "--prune-empty-dirs",
    "--force --no-delete",
    "-z --zc=zstd",
    "--dry-run",
];

/// With all options, a push gives the same result and the same output as with stock rsync, both into nothing and into
/// another tree.
#[test]
#[ignore = "needs rsync, setfacl and root"]
fn pushes_to_modules_make_what_stock_rsync_makes() {
    pushes_make_what_stock_rsync_makes(VARIANTS);
}

/// The same with the other options.
#[test]
#[ignore = "needs rsync, setfacl and root; with SNOWMELT_ALL_VARIANTS it takes a minute"]
fn pushes_with_all_options_make_what_stock_rsync_makes() {
    let all = std::env::var_os("SNOWMELT_ALL_VARIANTS").is_some();
    // A different one each time.
    let one = std::process::id() as usize % MORE_VARIANTS.len();
    pushes_make_what_stock_rsync_makes(if all { MORE_VARIANTS } else { &MORE_VARIANTS[one..=one] });
}

fn pushes_make_what_stock_rsync_makes(variants: &[&str]) {
    let source = Scratch::new();
    let (tree, other) = (source.path().join("tree"), source.path().join("other"));
    grow(&tree, 51);
    without_quirks(&tree);
    copy(&tree, &other);
    disturb(&other, 3);
    // An entry of each kind replaces one of another kind.
    let names: Vec<PathBuf> =
        manifest(&tree).into_keys().filter(|path| path.components().count() == 1).collect();
    for (at, name) in names.iter().enumerate().filter(|(at, _)| at % 4 == 0) {
        let path = other.join(name);
        match path.symlink_metadata().unwrap().is_dir() {
            true => fs::remove_dir_all(&path).unwrap(),
            false => fs::remove_file(&path).unwrap(),
        }
        match at % 3 {
            0 => symlink("nowhere", &path).unwrap(),
            1 => fs::create_dir_all(path.join("more")).unwrap(),
            _ => fs::write(&path, "a file").unwrap(),
        }
    }
    for path in manifest(&other).into_keys().map(|name| other.join(name)) {
        let found = path.symlink_metadata().unwrap();
        if found.is_dir() && found.mode() & 0o1000 != 0 {
            run(Command::new("setfacl").arg("-b").arg(&path));
        }
        if path.symlink_metadata().unwrap().mtime() > 1_700_100_000 && !path.is_symlink() {
            set_time(&path, 1_650_000_000, 5);
        }
    }
    // So that copying them changes no times of access.
    for tree in [&tree, &other] {
        run(Command::new("find").arg(tree).args(["!", "-type", "l", "-exec", "touch", "-a", "{}", "+"]));
    }
    let differs = |variant: &&str| {
        std::panic::catch_unwind(|| push_as_stock_rsync_does(variant, (&source, &tree, &other))).is_err()
    };
    let some =
        |first| variants.iter().skip(first).step_by(THREADS).copied().filter(differs).collect::<Vec<_>>();
    let differing: Vec<&str> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|first| scope.spawn(move || some(first))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert!(differing.is_empty(), "{differing:?}");
}

fn push_as_stock_rsync_does(variant: &str, (source, tree, other): (&Scratch, &Path, &Path)) {
    {
        let pair = Pair::new();
        for root in [Side::Ours, Side::Stock].map(|side| pair.root(side)) {
            copy(other, &root.join("other"));
            copy(other, &root.join("full"));
            fs::create_dir(root.join("aside")).unwrap();
            set_time(&root, 1, 1);
        }
        let own = "uid = root\ngid = root";
        let ours = Server::start(&pair.scratch, &pair.modules(Side::Ours, own));
        let stock = StockDaemon::start(&pair.scratch, &pair.modules(Side::Stock, own));
        let from = match variant {
            "--relative" => format!("{}/./other {}/./tree", source.path().display(), source.path().display()),
            _ => format!("{}/", tree.display()),
        };
        let args: Vec<&str> = "-aHAX --delete -ii".split(' ').chain(variant.split(' ')).collect();
        let args: Vec<&str> = args.into_iter().filter(|arg| !arg.is_empty()).collect();
        for to in ["empty", "full", "full"] {
            let [theirs, mine] = [stock.port, ours.port].map(|port| {
                let url = format!("rsync://127.0.0.1:{port}/m/{to}/");
                rsync(&args, &from, &url)
            });
            assert_said(&mine, &theirs, &format!("{variant} {to}"));
            pair.assert_same(&format!("{variant} {to}"));
        }
    }
}

/// A module is written to as another user. Operations that only root may do are skipped without an error, as in stock
/// rsync.
#[test]
#[ignore = "needs rsync, setfacl and root"]
fn modules_are_written_to_as_their_user() {
    let source = Scratch::new();
    let tree = source.path().join("tree");
    grow(&tree, 52);
    without_quirks(&tree);
    // Stock rsync leaves some directories with the ACL that they have from the directory above.
    run(Command::new("setfacl").args(["-R", "-k"]).arg(&tree));
    fs::create_dir_all(tree.join("closed/in")).unwrap();
    fs::write(tree.join("closed/in/file"), "in a directory that nobody may write to").unwrap();
    for name in ["closed/in", "closed"] {
        fs::set_permissions(tree.join(name), fs::Permissions::from_mode(0o555)).unwrap();
        set_time(&tree.join(name), 1_600_000_000, 0);
    }
    let from = format!("{}/", tree.display());
    for variant in ["-rlptgoD", "-rlptgoDHX", "-aHAX --delete", "-a --backup --delay-updates", "-r", "-rtE"] {
        let pair = Pair::new();
        for root in [Side::Ours, Side::Stock].map(|side| pair.root(side)) {
            chown(&root, Some(USER), Some(USER)).unwrap();
            set_time(&root, 1, 1);
        }
        let user = format!("uid = {USER}\ngid = {USER}");
        let ours = Server::start(&pair.scratch, &pair.modules(Side::Ours, &user));
        let stock = StockDaemon::start(&pair.scratch, &pair.modules(Side::Stock, &user));
        let args: Vec<&str> = variant.split(' ').chain(["-i"]).collect();
        for _ in 0..2 {
            let [theirs, mine] = [stock.port, ours.port].map(|port| {
                let url = format!("rsync://127.0.0.1:{port}/m/to/");
                rsync(&args, &from, &url)
            });
            // Stock rsync cannot read attributes of files that their owner may not read, and takes them for new
            // without times.
            let told = String::from_utf8_lossy(&theirs.stderr).into_owned();
            match told.contains("lgetxattr") || told.contains("failed to open") {
                true => assert!(mine.status.success() && mine.stderr.is_empty(), "{mine:?}"),
                false => assert_said(&mine, &theirs, variant),
            }
            pair.assert_same(variant);
        }
    }
    // Without `uid` the user is nobody, who may not write there.
    let pair = Pair::new();
    let server = Server::start(&pair.scratch, &pair.modules(Side::Ours, ""));
    let output = server.run(&["-r"], &from, "localhost::m/");
    assert_eq!(output.status.code(), Some(23), "{output:?}");
    assert_eq!(fs::read_dir(pair.root(Side::Ours)).unwrap().count(), 0);
}

/// A module with `fake super` stores the same extended attributes as stock rsync, and a pull returns what was pushed.
#[test]
#[ignore = "needs rsync, setfacl and root"]
fn what_only_root_can_give_is_kept_as_stock_rsync_keeps_it() {
    let source = Scratch::new();
    let tree = source.path().join("tree");
    grow(&tree, 54);
    without_quirks(&tree);
    // Both servers change links that could lead out of the module.
    for path in manifest(&tree).into_keys().map(|name| tree.join(name)).filter(|path| path.is_symlink()) {
        fs::remove_file(&path).unwrap();
        symlink("a", &path).unwrap();
        set_time(&path, 1_600_000_000, 0);
    }
    without_quirks(&tree);
    let from = format!("{}/", tree.display());
    // With both, stock rsync removes the ACLs of directories in the second push.
    let both = "-aHAX --numeric-ids";
    for variant in
        ["-aHX --delete", "-aHA --numeric-ids", both, "-aHX --inplace", "-rlptgo", "-aHA --delay-updates"]
    {
        let pair = Pair::new();
        for root in [Side::Ours, Side::Stock].map(|side| pair.root(side)) {
            chown(&root, Some(USER), Some(USER)).unwrap();
            set_time(&root, 1, 1);
        }
        let user = format!("uid = {USER}\ngid = {USER}\nfake super = yes");
        let ours = Server::start(&pair.scratch, &pair.modules(Side::Ours, &user));
        let stock = StockDaemon::start(&pair.scratch, &pair.modules(Side::Stock, &user));
        let args: Vec<&str> = variant.split(' ').chain(["-i"]).collect();
        for _ in 0..2 {
            let [theirs, mine] = [stock.port, ours.port].map(|port| {
                let url = format!("rsync://127.0.0.1:{port}/m/to/");
                rsync(&args, &from, &url)
            });
            if variant == both {
                assert!(mine.status.success() && mine.stderr.is_empty(), "{mine:?}");
                continue;
            }
            assert_said(&mine, &theirs, variant);
            pair.assert_same(variant);
        }
        let backs = [(stock.port, "back-stock"), (ours.port, "back-ours")].map(|(port, name)| {
            let to = pair.scratch.path().join(name);
            let url = format!("rsync://127.0.0.1:{port}/m/to/");
            let pulled = rsync(&args, &url, to.to_str().unwrap());
            assert!(pulled.status.success() && pulled.stderr.is_empty(), "{variant} {name}: {pulled:?}");
            to
        });
        match variant == both {
            true => trees::assert_same(&tree, &backs[1], "what was pushed"),
            false => trees::assert_same(&backs[0], &backs[1], variant),
        }
        // The owner of a file can write any value.
        let odd = pair.root(Side::Ours).join("to/odd");
        fs::write(&odd, "x").unwrap();
        for (value, code) in [("100644 0,0 5:6", 0), ("nonsense", 23), ("40755 0,0 0:0", 23)] {
            xattr::set(&odd, "user.rsync.%stat", value.as_bytes()).unwrap();
            let url = format!("rsync://127.0.0.1:{}/m/to/odd", ours.port);
            let pulled = rsync(&["-a"], &url, pair.scratch.path().join("odd").to_str().unwrap());
            assert_eq!(pulled.status.code(), Some(code), "{value}: {pulled:?}");
        }
    }
}

/// A full quota ends a push with a clear message. Clients still see the previous content.
#[test]
#[ignore = "needs rsync and root"]
fn a_full_quota_keeps_what_it_has() {
    let scratch = Scratch::with_pool();
    scratch.ok("create -o quota=20M tank/q");
    let server = Server::start(&scratch, "[q]\npath = tank/q\nread only = no\n");
    let source = scratch.path().join("source");
    fs::create_dir(&source).unwrap();
    let mut random = Random(11);
    for name in ["a", "b", "c"] {
        fs::write(source.join(name), random.bytes(1 << 20)).unwrap();
    }
    let from = format!("{}/", source.display());
    // The client compares times by the second, and its new directory has the current time.
    set_time(&source, 1_600_000_000, 0);
    server.push(&["-a"], &from, "q/");
    let back = scratch.path().join("back");
    server.pull(&["-a"], "q/", &back);
    let before = manifest(&back);
    fs::write(source.join("a"), "this one fits").unwrap();
    fs::write(source.join("b"), random.bytes(60 << 20)).unwrap();
    fs::remove_file(source.join("c")).unwrap();
    for args in [&["-a", "--delete"][..], &["-a", "--inplace", "--partial"]] {
        server.fails(args, &from, "localhost::q/", 11, "Disk quota exceeded");
        let again = scratch.path().join("again");
        let _ = fs::remove_dir_all(&again);
        server.pull(&["-a"], "q/", &again);
        assert_eq!(manifest(&again), before, "{args:?}");
    }
    // With room again it goes on.
    fs::write(source.join("b"), random.bytes(1 << 20)).unwrap();
    server.push(&["-a", "--delete"], &from, "q/");
}

/// Over a remote shell, paths are those of the machine, and symbolic links in them are followed.
#[test]
#[ignore = "needs rsync, setfacl and root"]
fn directories_are_pushed_into_over_a_remote_shell() {
    let pair = Pair::new();
    let tree = pair.scratch.path().join("tree");
    grow(&tree, 53);
    without_quirks(&tree);
    let [ours, stock] = [own_shell(&pair.scratch, "exec sh -c \"$*\""), stock_shell(&pair.scratch)];
    for root in [Side::Ours, Side::Stock].map(|side| pair.root(side)) {
        fs::create_dir_all(root.join("real/deep")).unwrap();
        symlink("real", root.join("way")).unwrap();
        set_time(&root, 1, 1);
    }
    let from = format!("{}/", tree.display());
    let push = |args: &[&str], to: &str| {
        let [mine, theirs] = [(Side::Ours, &ours, "snowmelt rsync"), (Side::Stock, &stock, "rsync")].map(
            |(side, shell, program)| {
                let all = [&["-e", shell.to_str().unwrap(), "--rsync-path", program][..], args].concat();
                rsync(&all, &from, &format!("host:{}/{to}", pair.root(side).display()))
            },
        );
        let mine = said_of(&mine, &pair.root(Side::Ours));
        let theirs = said_of(&theirs, &pair.root(Side::Stock));
        assert_said(&mine, &theirs, &format!("{args:?} {to}"));
        pair.assert_same(&format!("{args:?} {to}"));
    };
    push(&["-aHAX", "-i"], "way/deep/");
    push(&["-aHAX", "-i", "--link-dest=../deep"], "way/next/");
    push(&["-aHAX", "-i", "-s", "--mkpath"], "way/far/ther/");
    push(&["-a", "-i", "--delete", "-b", "--backup-dir=../back"], "real/deep/");
    push(&["-a", "-i", "--partial-dir=.p", "-T", "../far"], "real/deep/");
    assert!(pair.root(Side::Ours).join("way").is_symlink());
}

/// Files that a module hides are neither written nor deleted, and its rules for incoming files apply.
#[test]
#[ignore = "needs rsync and root"]
fn modules_keep_their_rules() {
    let more = "uid = root\ngid = root\nexclude = *.key /kept/\nincoming chmod = D755,F644\nmax connections = 4\n\
                refuse options = delete-after\ntransfer logging = yes\nlog format = %o %f %l";
    let pair = Pair::new();
    let source = pair.scratch.path().join("source");
    fs::create_dir_all(source.join("d")).unwrap();
    for name in ["a", "d/b", "d/c.key"] {
        fs::write(source.join(name), name).unwrap();
        fs::set_permissions(source.join(name), fs::Permissions::from_mode(0o666)).unwrap();
        set_time(&source.join(name), 1_600_000_000, 0);
    }
    set_time(&source.join("d"), 1_600_000_000, 0);
    set_time(&source, 1_600_000_000, 0);
    for root in [Side::Ours, Side::Stock].map(|side| pair.root(side)) {
        fs::create_dir_all(root.join("kept/on")).unwrap();
        fs::create_dir_all(root.join("gone/deep")).unwrap();
        fs::create_dir(root.join("aside")).unwrap();
        for name in ["kept/on/file", "gone/file", "gone/deep/my.key", "my.key"] {
            fs::write(root.join(name), name).unwrap();
        }
    }
    let ours = Server::start(&pair.scratch, &pair.modules(Side::Ours, more));
    let stock = StockDaemon::start(&pair.scratch, &pair.modules(Side::Stock, more));
    let from = format!("{}/", source.display());
    for (args, to) in [
        (&["-a", "--delete"][..], "m/"),
        (&["-a", "--delete-after"], "m/"),
        (&["-a", "--exclude=*.key", "--delete", "--delete-excluded"], "m/"),
        (&["-a"], "m/kept/"),
        (&["-a", "--temp-dir=/kept"], "m/"),
        (&["-a", "--backup-dir=/kept"], "m/"),
    ] {
        let [theirs, mine] = [stock.port, ours.port].map(|port| {
            let url = format!("rsync://127.0.0.1:{port}/{to}");
            rsync(args, &from, &url)
        });
        assert_eq!(mine.status.code(), theirs.status.code(), "{args:?} {to}: {mine:?} {theirs:?}");
        pair.assert_same(&format!("{args:?} {to}"));
    }
    let log = fs::read_to_string(pair.scratch.path().join("log")).unwrap();
    assert!(log.contains("recv a 1") && log.contains("recv d/b 3") && log.contains("del. gone"), "{log}");
    // The module's directory for temporary files is treated like one that the client names.
    for side in [Side::Ours, Side::Stock] {
        // The directory was deleted by the previous push.
        fs::create_dir_all(pair.root(side).join("aside")).unwrap();
    }
    for (temporary, code) in [("/aside", 0), ("/kept", 4), ("/none", 1)] {
        let more = format!("uid = root\ngid = root\nexclude = /kept/\ntemp dir = {temporary}");
        let ours = Server::start(&pair.scratch, &pair.modules(Side::Ours, &more));
        let stock = StockDaemon::start(&pair.scratch, &pair.modules(Side::Stock, &more));
        let codes = [stock.port, ours.port]
            .map(|port| rsync(&["-aI"], &from, &format!("rsync://127.0.0.1:{port}/m/")).status.code());
        assert_eq!(codes, [Some(code); 2], "{temporary}");
        pair.assert_same(temporary);
    }
    // Symbolic links that could lead anywhere are made harmless. A pull restores their targets.
    let config = format!(
        "[m]\npath = {}\nread only = no\nuid = root\nmunge symlinks = yes\n",
        pair.root(Side::Ours).display()
    );
    symlink("/etc/passwd", source.join("link")).unwrap();
    let munging = Server::start(&pair.scratch, &config);
    munging.push(&["-a"], &from, "m/munged/");
    let stored = fs::read_link(pair.root(Side::Ours).join("munged/link")).unwrap();
    assert_eq!(stored, Path::new("/rsyncd-munged//etc/passwd"));
    munging.pull(&["-a"], "m/munged/", &pair.scratch.path().join("back"));
    assert_eq!(fs::read_link(pair.scratch.path().join("back/link")).unwrap(), Path::new("/etc/passwd"));
}

/// A module's rule without a slash applies to the path below the destination, any other to the path in the module.
#[test]
#[ignore = "needs rsync and root"]
fn rules_of_modules_apply_below_the_destination() {
    let pair = Pair::new();
    let source = pair.scratch.path().join("source");
    fs::create_dir_all(source.join("ab")).unwrap();
    for name in ["b", "c", "ab/b", "ab/c"] {
        fs::write(source.join(name), name).unwrap();
        set_time(&source.join(name), 1_600_000_000, 0);
    }
    let (all, one) = (format!("{}/", source.display()), source.join("b").display().to_string());
    for rules in
        ["exclude = a**b", "exclude = a/b", "exclude = **/a/b", "filter = -! a**", "filter = -!/ a**"]
    {
        let more = format!("uid = root\ngid = root\n{rules}");
        let ours = Server::start(&pair.scratch, &pair.modules(Side::Ours, &more));
        let stock = StockDaemon::start(&pair.scratch, &pair.modules(Side::Stock, &more));
        for (from, to) in [(&all, "m/"), (&one, "m/a/b"), (&one, "m/a/"), (&all, "m/a/"), (&all, "m/ab/")] {
            for root in [Side::Ours, Side::Stock].map(|side| pair.root(side)) {
                fs::create_dir_all(root.join("a/ab")).unwrap();
            }
            let [theirs, mine] = [stock.port, ours.port].map(|port| {
                let url = format!("rsync://127.0.0.1:{port}/{to}");
                rsync(&["-rt", "--delete", "--omit-dir-times"], from, &url)
            });
            assert_eq!(mine.status.code(), theirs.status.code(), "{rules} {to}: {mine:?} {theirs:?}");
            pair.assert_same(&format!("{rules} {to}"));
        }
    }
}

/// A directory that is mirrored from upstream and served with an index. The index is updated after each push.
#[test]
#[ignore = "needs rsync and root"]
fn an_index_is_brought_up_to_date_after_a_push() {
    let scratch = Scratch::new();
    let (tree, source) = (scratch.path().join("tree"), scratch.path().join("source"));
    let index = scratch.path().join("index");
    fs::create_dir(&tree).unwrap();
    fs::create_dir(&source).unwrap();
    scratch.ok(&format!("index {} {}", tree.display(), index.display()));
    let program = env!("CARGO_BIN_EXE_snowmelt");
    let config = format!(
        "[up]\npath = {tree}\nread only = no\nuid = root\ngid = root\n\
         post-xfer exec = [ \"$RSYNC_EXIT_STATUS\" = 0 ] && {program} index {tree} {index}\n\
         [pub]\npath = {tree}\nindex = {index}\nuid = root\n",
        tree = tree.display(),
        index = index.display(),
    );
    let server = Server::start(&scratch, &config);
    for text in ["one", "another"] {
        fs::write(source.join(text), text).unwrap();
        let before = fs::metadata(&index).unwrap().ino();
        server.push(&["-a"], &format!("{}/", source.display()), "up/");
        // The command runs after the client has disconnected.
        let begun = std::time::Instant::now();
        while fs::metadata(&index).unwrap().ino() == before {
            assert!(begun.elapsed().as_secs() < 60, "the index is as it was");
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        let back = scratch.path().join("back");
        server.pull(&["-a"], "pub/", &back);
        assert_eq!(fs::read_to_string(back.join(text)).unwrap(), text);
    }
}

/// A small filesystem in a file.
struct Small {
    path: PathBuf,
}

impl Small {
    fn new(scratch: &Scratch, megabytes: u64) -> Self {
        let (image, path) = (scratch.path().join("image"), scratch.path().join("small"));
        fs::create_dir(&path).unwrap();
        fs::File::create(&image).unwrap().set_len(megabytes << 20).unwrap();
        let ok = |command: &mut Command| assert!(command.output().unwrap().status.success(), "{command:?}");
        ok(Command::new("mkfs.ext4").args(["-q", "-m", "0"]).arg(&image));
        ok(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&path));
        Self { path }
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.path).status();
    }
}

/// Without space, a push ends with rsync's exit code, and every file is the old or the new one.
#[test]
#[ignore = "needs rsync, mkfs.ext4 and root"]
fn a_full_filesystem_keeps_what_it_has() {
    let scratch = Scratch::new();
    let small = Small::new(&scratch, 16);
    let config = format!("[m]\npath = {}\nread only = no\nuid = root\ngid = root\n", small.path.display());
    let server = Server::start(&scratch, &config);
    let source = scratch.path().join("source");
    fs::create_dir(&source).unwrap();
    let mut random = Random(9);
    for at in 0..3 {
        fs::write(source.join(at.to_string()), random.bytes(3 << 20)).unwrap();
    }
    let from = format!("{}/", source.display());
    server.push(&["-a"], &from, "m/");
    let before = fs::read(small.path.join("2")).unwrap();
    for at in 0..3 {
        fs::write(source.join(at.to_string()), random.bytes(5 << 20)).unwrap();
    }
    fs::write(source.join("1"), "this one fits").unwrap();
    for args in [&["-a", "-W"][..], &["-a", "-W", "--temp-dir=/", "--delay-updates"]] {
        server.fails(args, &from, "localhost::m/", 11, "No space left on device");
        for at in 0..3 {
            let now = fs::read(small.path.join(at.to_string())).unwrap();
            let new = fs::read(source.join(at.to_string())).unwrap();
            assert!(now == new || now.len() == 3 << 20, "{at} is neither the old nor the new file");
        }
        assert_eq!(fs::read(small.path.join("2")).unwrap(), before);
        let is_left =
            |name: &String| name.ends_with(".2") || name.starts_with(".0.") || name.starts_with(".2.");
        let names: Vec<String> =
            manifest(&small.path).into_keys().map(|name| name.display().to_string()).collect();
        assert!(!names.iter().any(is_left), "{names:?}");
    }
    // On a read-only filesystem each file is reported.
    assert!(Command::new("mount").args(["-o", "remount,ro"]).arg(&small.path).status().unwrap().success());
    server.fails(&["-a"], &from, "localhost::m/", 23, "Read-only file system");
    // A name that is too long does not stop the push.
    assert!(Command::new("mount").args(["-o", "remount,rw"]).arg(&small.path).status().unwrap().success());
}

fn wait_for(what: &str, is_there: impl Fn() -> bool) {
    let begun = std::time::Instant::now();
    while !is_there() {
        assert!(begun.elapsed().as_secs() < 60, "{what}");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

fn temporary_of(directory: &Path) -> Option<PathBuf> {
    let mut names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    names.find(|path| path.file_name().unwrap().as_encoded_bytes().starts_with(b".large."))
}

/// A push that is cut off leaves old and new files. The options decide what remains of the file in transfer.
#[test]
#[ignore = "needs rsync and root"]
fn what_is_cut_off_leaves_old_and_new_files() {
    let scratch = Scratch::new();
    let (root, source) = (scratch.path().join("root"), scratch.path().join("source"));
    fs::create_dir(&source).unwrap();
    let new = Random(5).bytes(20 << 20);
    fs::write(source.join("large"), &new).unwrap();
    fs::write(source.join("a-small"), "new").unwrap();
    let from = format!("{}/", source.display());
    for (option, kept) in [
        ("--whole-file", None),
        ("--partial", Some("large")),
        ("--partial-dir=.p", Some(".p/large")),
        ("--delay-updates", None),
    ] {
        let _ = fs::remove_dir_all(&root);
        fs::create_dir(&root).unwrap();
        fs::write(root.join("large"), "old").unwrap();
        let config = format!("[m]\npath = {}\nread only = no\nuid = root\ngid = root\n", root.display());
        let server = Server::start(&scratch, &config);
        let mut client = Command::new("rsync");
        let client = client.args(["--port", &server.port.to_string(), "-a", "-W", "--bwlimit=2000", option]);
        let client = client.arg(&from).arg("localhost::m/").stdin(Stdio::null()).stderr(Stdio::null());
        let mut client = client.spawn().unwrap();
        let is_under_way = || {
            temporary_of(&root).and_then(|path| fs::metadata(path).ok()).is_some_and(|it| it.len() > 1 << 20)
        };
        wait_for("a temporary file", is_under_way);
        assert_eq!(fs::read_to_string(root.join("large")).unwrap(), "old");
        let mode = fs::metadata(temporary_of(&root).unwrap()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "what is not whole is nobody else's business");
        client.kill().unwrap();
        client.wait().unwrap();
        wait_for("the temporary file is still there", || temporary_of(&root).is_none());
        if let Some(kept) = kept {
            let has = fs::read(root.join(kept)).unwrap();
            assert!(has.len() > 1 << 20 && new.starts_with(&has), "{option}: {} bytes", has.len());
        }
        if kept != Some("large") {
            assert_eq!(fs::read_to_string(root.join("large")).unwrap(), "old", "{option}");
        }
        let small = root.join(if option == "--delay-updates" { ".~tmp~/a-small" } else { "a-small" });
        assert_eq!(fs::read_to_string(small).unwrap(), "new", "{option}");
        server.push(&["-a", option], &from, "m/");
        assert!(fs::read(root.join("large")).unwrap() == new && !root.join(".p").exists(), "{option}");
        assert!(!root.join(".~tmp~").exists(), "{option}");
    }
}

/// A server that is killed leaves old files, new files and a temporary one.
#[test]
#[ignore = "needs rsync and root"]
fn a_killed_server_leaves_old_and_new_files() {
    let scratch = Scratch::new();
    let (root, source) = (scratch.path().join("root"), scratch.path().join("source"));
    fs::create_dir(&source).unwrap();
    fs::create_dir(&root).unwrap();
    let mut random = Random(6);
    for at in 0..400 {
        fs::write(source.join(format!("f{at:03}")), random.bytes(20_000)).unwrap();
        fs::write(root.join(format!("f{at:03}")), random.bytes(20_000)).unwrap();
    }
    let old: Vec<_> = (0..400).map(|at| fs::read(root.join(format!("f{at:03}"))).unwrap()).collect();
    let config = format!("[m]\npath = {}\nread only = no\nuid = root\ngid = root\n", root.display());
    let mut seen = Vec::new();
    for round in 0..5 {
        let server = Server::start(&scratch, &config);
        let mut client = server.client(&["-aI", "--bwlimit=4000"]);
        let from = format!("{}/", source.display());
        let mut client = client.arg(from).arg("localhost::m/").stderr(Stdio::null()).spawn().unwrap();
        let last = source.join(format!("f{:03}", 60 * round + 30));
        let expected = fs::read(&last).unwrap();
        let there = root.join(last.file_name().unwrap());
        wait_for("files that come", || fs::read(&there).unwrap() == expected);
        // SIGKILL.
        drop(server);
        client.wait().unwrap();
        let mut temporary = 0;
        for entry in fs::read_dir(&root).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if name.starts_with('.') {
                temporary += 1;
                fs::remove_file(root.join(name)).unwrap();
                continue;
            }
            let at: usize = name[1..].parse().unwrap();
            let now = fs::read(root.join(&name)).unwrap();
            assert!(now == old[at] || now == fs::read(source.join(&name)).unwrap(), "{name} is a mixture");
        }
        seen.push(temporary);
        assert!(temporary <= 1, "{temporary} temporary files");
    }
}

/// Symbolic links that an attacker placed in the destination are not followed, with any option.
#[test]
#[ignore = "needs rsync and root"]
fn links_in_the_destination_lead_nowhere() {
    for option in [
        "--inplace",
        "--append",
        "--backup",
        "--delay-updates",
        "--keep-dirlinks",
        "--partial-dir=.p",
        "--backup-dir=b",
        "--temp-dir=t",
        "--link-dest=l",
        "--copy-dest=l",
        "--delete",
        "--force",
    ] {
        let scratch = Scratch::new();
        let (root, outside) = (scratch.path().join("root"), scratch.path().join("outside"));
        let source = scratch.path().join("source");
        for directory in [&root, &outside, &source] {
            fs::create_dir(directory).unwrap();
        }
        fs::write(outside.join("file"), "theirs").unwrap();
        fs::write(outside.join("victim"), "theirs").unwrap();
        let before = manifest(&outside);
        // Links replace a directory, a file, and each directory that an option names.
        fs::create_dir(source.join("d")).unwrap();
        for name in ["file", "d/file", "d/victim", "d/new"] {
            fs::write(source.join(name), format!("mine: {name}")).unwrap();
        }
        for name in ["d", ".p", ".~tmp~", "b", "t", "l"] {
            symlink("../outside", root.join(name)).unwrap();
        }
        symlink("../outside/victim", root.join("file")).unwrap();
        let config = format!("[m]\npath = {}\nread only = no\nuid = root\ngid = root\n", root.display());
        let server = Server::start(&scratch, &config);
        server.run(&["-a", option], &format!("{}/", source.display()), "localhost::m/");
        let mut after = manifest(&outside);
        after.retain(|path, text| before.get(path) != Some(text));
        assert!(after.is_empty(), "{option}: {after:?}");
        assert_eq!(manifest(&outside).len(), before.len(), "{option}");
    }
}

/// A local user who constantly swaps directories for symbolic links gains nothing.
#[test]
#[ignore = "needs rsync and root"]
fn directories_that_are_swapped_for_links_lead_nowhere() {
    let scratch = Scratch::new();
    let (root, outside) = (scratch.path().join("root"), scratch.path().join("outside"));
    let source = scratch.path().join("source");
    fs::create_dir_all(root.join("d/e")).unwrap();
    fs::create_dir_all(outside.join("e")).unwrap();
    fs::create_dir_all(source.join("d/e")).unwrap();
    for at in 0..300 {
        fs::write(source.join(format!("d/e/{at}")), format!("mine {at}")).unwrap();
        fs::write(outside.join(format!("e/{at}")), "theirs").unwrap();
        fs::write(root.join(format!("d/e/{at}")), "old").unwrap();
        symlink("target", source.join(format!("d/e/link-{at}"))).unwrap();
    }
    fs::write(outside.join("e/superfluous"), "theirs").unwrap();
    let before = manifest(&outside);
    let config = format!("[m]\npath = {}\nread only = no\nuid = root\ngid = root\n", root.display());
    let server = Server::start(&scratch, &config);
    symlink("../outside", root.join("link")).unwrap();
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let swaps = std::thread::scope(|scope| {
        let swapper = scope.spawn(|| {
            let mut swaps = 0_u64;
            let exchange = rustix::fs::RenameFlags::EXCHANGE;
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                // Both names exist at all times.
                let cwd = rustix::fs::CWD;
                let (a, b) = (root.join("d"), root.join("link"));
                if rustix::fs::renameat_with(cwd, &a, cwd, &b, exchange).is_ok() {
                    swaps += 1;
                }
            }
            swaps
        });
        for option in ["--delete", "--inplace", "--backup", "--delay-updates", "--checksum", "-K"] {
            for chmod in ["F600", "F666"] {
                let chmod = format!("--chmod={chmod}");
                server.run(&["-aI", &chmod, option], &format!("{}/", source.display()), "localhost::m/");
            }
        }
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        swapper.join().unwrap()
    });
    assert!(swaps > 100, "{swaps}");
    let mut after = manifest(&outside);
    after.retain(|path, text| before.get(path) != Some(text));
    assert!(after.is_empty(), "{after:?}");
    assert_eq!(manifest(&outside).len(), before.len());
}

/// A server that drops its privileges has none left in any thread, and serves the files in its new root directory.
#[test]
#[ignore = "needs rsync and root"]
fn a_confined_server_is_confined() {
    let scratch = Scratch::new();
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let (jail, source) = (scratch.path().join("jail"), scratch.path().join("source"));
    fs::create_dir_all(jail.join("pub")).unwrap();
    fs::create_dir(&source).unwrap();
    fs::write(source.join("file"), "text").unwrap();
    fs::write(scratch.path().join("outside"), "theirs").unwrap();
    symlink("../outside", jail.join("pub/link")).unwrap();
    chown(jail.join("pub"), Some(USER), Some(USER)).unwrap();
    let confined = format!("daemon chroot = {}\ndaemon uid = {USER}\ndaemon gid = {USER}\n", jail.display());
    let log = scratch.path().join("rsyncd.log");
    let modules = format!("log file = {}\n[m]\npath = /pub\nread only = no\n", log.display());
    let server = Server::start(&scratch, &format!("{confined}{modules}"));
    server.push(&["-rlt"], &format!("{}/", source.display()), "m/");
    assert_eq!(fs::metadata(jail.join("pub/file")).unwrap().uid(), USER);
    let back = scratch.path().join("back");
    server.pull(&["-a"], "m/file", &back);
    assert_eq!(fs::read_to_string(&back).unwrap(), "text");
    let process = PathBuf::from(format!("/proc/{}", server.id()));
    assert_eq!(fs::read_link(process.join("root")).unwrap(), jail);
    let tasks: Vec<PathBuf> =
        fs::read_dir(process.join("task")).unwrap().map(|task| task.unwrap().path()).collect();
    assert!(tasks.len() > 1, "the allocator's thread counts too");
    for task in tasks {
        let status = fs::read_to_string(task.join("status")).unwrap();
        let of = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim();
        let all = [USER; 4].map(|id| id.to_string()).join("\t");
        assert_eq!(
            (of("Uid:"), of("Gid:"), of("Groups:")),
            (all.as_str(), all.as_str(), "65534"),
            "{task:?}"
        );
        assert_eq!(of("CapEff:"), "0000000000000000", "{task:?}");
        assert_eq!(of("CapPrm:"), "0000000000000000", "{task:?}");
    }
    // The log is still at its old place, and nothing of it is in the new root directory.
    assert!(fs::read_to_string(&log).unwrap().contains("rsync on m/file"));
    assert_eq!(fs::read_dir(&jail).unwrap().count(), 1);
    // A server that cannot be confined does not start.
    let config = scratch.path().join("wrong.conf");
    for (line, why) in [
        ("daemon uid = nobody-at-all", "there is no user"),
        ("daemon gid = nobody-at-all", "there is no group"),
        ("daemon chroot = /nowhere/at/all", "daemon chroot failed"),
        ("daemon uid = 4242", "set 'daemon gid' too"),
    ] {
        fs::write(&config, format!("{line}\n[m]\npath = /pub\n")).unwrap();
        let words = format!("serve rsync --config {} --address 127.0.0.1 --port 0", config.display());
        let output = scratch.command(&words).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(why), "{line}: {said}");
    }
}
