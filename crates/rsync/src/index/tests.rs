use std::collections::BTreeMap;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::PathBuf;
use std::sync::Arc;

use proptest::prelude::*;

use super::builder::Seen;
use super::*;
use crate::source::{DirectorySource, IndexedSource, Metadata, Source, kind};

fn made(builder: Builder) -> Index {
    Index::parse(builder.finish(Time { seconds: 7, nanoseconds: 8 }).unwrap()).unwrap()
}

fn whole(tree: &Path, threads: usize) -> Index {
    let (builder, unread) = scan(tree, threads).unwrap();
    assert!(unread.is_empty(), "{unread:?}");
    made(builder)
}

/// Everything that a source returns for a tree, by path.
fn told(source: &dyn Source) -> BTreeMap<Vec<u8>, String> {
    let mut found = BTreeMap::new();
    let mut left = vec![Vec::new()];
    while let Some(path) = left.pop() {
        let mut metadata = source.metadata(&path, false).unwrap();
        if metadata.is_dir() {
            for (name, listed) in source.read_dir(&path).unwrap() {
                let path = join(&path, &name);
                assert_eq!(listed.unwrap().mtime, source.metadata(&path, false).unwrap().mtime);
                left.push(path);
            }
            // Directories have no hard links, and their link count does not matter.
            (metadata.links, metadata.id.1) = (1, 0);
        }
        if metadata.links == 1 {
            metadata.id.1 = 0;
        }
        metadata.atime = metadata.mtime;
        let target = source.read_link(&path).ok();
        let xattrs = source.xattrs(&path, false).unwrap();
        found.insert(path, format!("{metadata:?} {target:?} {xattrs:?}"));
    }
    found
}

fn assert_is_like(index: Index, tree: &Path) {
    let expected = told(&DirectorySource::open(tree).unwrap());
    let found = told(&IndexedSource::new(Arc::new(index), tree));
    for (path, text) in &expected {
        assert_eq!(Some(text), found.get(path), "{}", String::from_utf8_lossy(path));
    }
    assert_eq!(expected.len(), found.len());
}

/// Makes nested directories, a directory with many files, links of both kinds, and odd names.
fn grow(root: &Path) {
    for directory in ["a/b/c", "a/bc", "many", "empty"] {
        std::fs::create_dir_all(root.join(directory)).unwrap();
    }
    for at in 0..333 {
        std::fs::write(root.join(format!("many/file{at}.deb")), vec![7; at % 5]).unwrap();
    }
    for name in ["a/x", "a/b/\n", "a/b/c/\u{e4}", "a.b", "a-b"] {
        std::fs::write(root.join(name), name).unwrap();
    }
    std::fs::hard_link(root.join("a/x"), root.join("many/x")).unwrap();
    symlink("b/c", root.join("a/link")).unwrap();
    symlink("/a/link/../../x", root.join("many/to-x")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        root.join("fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    xattr::set(root.join("a/x"), "user.one", b"1").unwrap_or(());
}

#[test]
fn an_index_tells_what_the_tree_tells() {
    let dir = tempfile::tempdir().unwrap();
    grow(dir.path());
    for threads in [1, 4] {
        let index = whole(dir.path(), threads);
        assert_eq!(index.files(), 348);
        assert_eq!(index.made(), Time { seconds: 7, nanoseconds: 8 });
        assert_is_like(index, dir.path());
    }
}

#[test]
fn links_lead_where_they_lead_in_the_tree() {
    let dir = tempfile::tempdir().unwrap();
    grow(dir.path());
    symlink("../../../../etc", dir.path().join("out")).unwrap();
    symlink("loop", dir.path().join("loop")).unwrap();
    let source = IndexedSource::new(Arc::new(whole(dir.path(), 1)), dir.path());
    let tree = DirectorySource::open(dir.path()).unwrap();
    for path in
        ["many/to-x", "a/link", "a/link/..", "out", "loop", "none", "a/x/y", "a/link/\u{e4}", "", "loop/x"]
    {
        let number = |found: std::io::Result<Metadata>| {
            found.map(|it| (it.mode, it.size, it.mtime)).map_err(|error| error.raw_os_error())
        };
        let (found, expected) =
            (source.metadata(path.as_bytes(), true), tree.metadata(path.as_bytes(), true));
        assert_eq!(number(found), number(expected), "{path}");
    }
    let mut text = String::new();
    use std::io::Read;
    source.open(b"many/to-x", true).unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "a/x");
}

#[test]
fn what_is_not_as_it_was_is_not_opened() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, outside) = (dir.path().join("tree"), dir.path().join("outside"));
    grow(&tree);
    std::fs::create_dir_all(outside.join("c")).unwrap();
    std::fs::write(outside.join("c/\u{e4}"), "a/b/c/\u{e4}").unwrap();
    let source = IndexedSource::new(Arc::new(whole(&tree, 1)), &tree);
    let open =
        |path: &str| source.open(path.as_bytes(), false).map(drop).map_err(|error| error.raw_os_error());
    let stale = Err(Some(rustix::io::Errno::STALE.raw_os_error()));
    assert_eq!(open("a.b"), Ok(()));
    std::fs::write(tree.join("a.b"), "longer").unwrap();
    assert_eq!(open("a.b"), stale);
    let x = tree.join("a/x");
    let opened = std::fs::File::open(&x).unwrap();
    opened.set_modified(std::time::UNIX_EPOCH).unwrap();
    assert_eq!(open("a/x"), stale);
    std::fs::remove_file(tree.join("a-b")).unwrap();
    assert_eq!(open("a-b"), Err(Some(rustix::io::Errno::NOENT.raw_os_error())));
    std::fs::create_dir(tree.join("a-b")).unwrap();
    assert_eq!(open("a-b"), stale);
    // A directory that was replaced by a link is not followed, especially not to the outside.
    assert_eq!(open("a/b/c/\u{e4}"), Ok(()));
    std::fs::rename(tree.join("a/b"), tree.join("moved")).unwrap();
    symlink(&outside, tree.join("a/b")).unwrap();
    assert_eq!(open("a/b/c/\u{e4}"), stale);
    std::fs::remove_file(tree.join("a/b")).unwrap();
    std::fs::write(tree.join("a/b"), b"").unwrap();
    assert_eq!(open("a/b/c/\u{e4}"), stale);
    std::fs::remove_dir_all(&tree).unwrap();
    assert!(open("many/file1.deb").is_err());
}

#[test]
fn updates_end_where_a_scan_would() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    grow(root);
    let mut index = whole(root, 1);
    let steps: [(&dyn Fn(), &[&str]); 7] = [
        (&|| std::fs::write(root.join("a/x2"), b"new").unwrap(), &["a/x2"]),
        // When a hard-linked file loses a name, its other name must be read too.
        (&|| std::fs::remove_dir_all(root.join("many")).unwrap(), &["many/x", "a/x"]),
        (
            &|| {
                std::fs::create_dir_all(root.join("new/er/est")).unwrap();
                std::fs::write(root.join("new/er/est/file"), b"1").unwrap();
            },
            &["new/er/est/file"],
        ),
        (
            &|| {
                std::fs::remove_file(root.join("a.b")).unwrap();
                std::fs::create_dir(root.join("a.b")).unwrap();
                std::fs::write(root.join("a.b/in"), b"").unwrap();
                std::fs::remove_dir_all(root.join("empty")).unwrap();
                std::fs::write(root.join("empty"), b"now a file").unwrap();
            },
            &["a.b/", "empty", "never/was/there"],
        ),
        (&|| std::fs::rename(root.join("a/b"), root.join("b")).unwrap(), &["a/b", "b"]),
        // A directory with a new modification time is read as a whole, although its files are not named.
        (
            &|| {
                std::fs::write(root.join("b/c/unnamed"), b"x").unwrap();
                std::fs::File::open(root.join("b")).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
            },
            &["b/"],
        ),
        (&|| std::fs::write(root.join("at the top"), b"x").unwrap(), &["./"]),
    ];
    for (at, (step, paths)) in steps.into_iter().enumerate() {
        step();
        let mut builder = Builder::from_index(&index).unwrap();
        let unread = update(&mut builder, root, paths.iter().map(|path| path.as_bytes().to_vec())).unwrap();
        assert!(unread.is_empty(), "{at}: {unread:?}");
        index = made(builder);
        let again = made(Builder::from_index(&index).unwrap());
        assert_eq!(index.bytes, again.bytes, "{at}");
        assert_is_like(index_copy(&index), root);
    }
}

fn index_copy(index: &Index) -> Index {
    Index::parse(index.bytes.clone()).unwrap()
}

/// Clients learn of unreadable directories, so that they delete nothing in them.
#[test]
fn directories_that_could_not_be_read_are_told() {
    let dir = tempfile::tempdir().unwrap();
    grow(dir.path());
    let index = whole(dir.path(), 1);
    let mut builder = Builder::from_index(&index).unwrap();
    let number = builder.listing(ROOT).unwrap().unwrap().find(b"a").unwrap().unwrap().directory().unwrap();
    let denied = rustix::io::Errno::ACCESS;
    let mut unread = Vec::new();
    let next = scan::place(&mut builder, (number, b"a".to_vec()), Err(denied.into()), &mut unread).unwrap();
    assert!(next.is_empty() && unread.len() == 1 && unread[0].path == b"a");
    let index = made(builder);
    let source = IndexedSource::new(Arc::new(index_copy(&index)), dir.path());
    let denied = Some(denied.raw_os_error());
    assert_eq!(source.read_dir(b"a").unwrap_err().raw_os_error(), denied);
    assert_eq!(source.metadata(b"a/b", false).unwrap_err().raw_os_error(), denied);
    assert!(source.metadata(b"a", false).unwrap().is_dir());
    // A change in the directory makes it read again.
    let mut builder = Builder::from_index(&index).unwrap();
    update(&mut builder, dir.path(), [b"a/x".to_vec()]).unwrap();
    assert_is_like(made(builder), dir.path());
}

#[test]
fn two_do_not_make_one_index() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("index");
    let first = Replacement::begin(&path).unwrap();
    assert!(matches!(Replacement::begin(&path), Err(IndexError::Io { .. })));
    first.commit(b"one").unwrap();
    assert!(!dir.path().join("index.new").exists());
    let second = Replacement::begin(&path).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"one");
    drop(second);
    assert!(!dir.path().join("index.new").exists());
    // A file that was left by a dead process is used again.
    std::fs::write(dir.path().join("index.new"), b"longer than what comes").unwrap();
    Replacement::begin(&path).unwrap().commit(b"two").unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"two");
}

fn small() -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
    (0..70).for_each(|at| std::fs::write(dir.path().join(format!("a/f{at}")), b"x").unwrap());
    symlink("a", dir.path().join("l")).unwrap();
    let _ = xattr::set(dir.path().join("a"), "user.a", b"1");
    scan(dir.path(), 1).unwrap().0.finish(Time::default()).unwrap()
}

#[test]
fn a_file_that_nobody_wrote_is_not_waited_for_nor_kept_in_memory() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU);
    rustix::fs::mknodat(rustix::fs::CWD, at("fifo"), kind, mode, 0).unwrap();
    for special in [at("fifo"), dir.path().to_owned(), "/dev/zero".into()] {
        assert!(matches!(Index::load(&special), Err(IndexError::Io { .. })), "{special:?}");
    }
    let bytes = small();
    std::fs::write(at("index"), &bytes).unwrap();
    let file = Index::open(&at("index")).unwrap();
    let len = bytes.len() as u64;
    let most = Index::read(&file, &at("index")).unwrap().size() + 1000;
    let read = |most| (&file).rewind().map(|()| Index::read_up_to(&file, &at("index"), most)).unwrap();
    read(most).unwrap();
    assert!(matches!(read(len), Err(IndexError::TooLong { found, .. }) if found == len));
    // Longer than any memory, but sparse on the disk.
    let mut header = Header::read(&bytes).unwrap();
    for (len, is_read) in [(1 << 43, false), (64 << 20, true)] {
        header.len = len;
        let file = File::create(at("long")).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &header.write(), 0).unwrap();
        file.set_len(len).unwrap();
        match Index::load(&at("long")) {
            Err(IndexError::TooLong { .. }) => assert!(!is_read),
            Err(IndexError::Digest) => assert!(is_read),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn damage_is_found_wherever_it_is() {
    let bytes = small();
    for at in 0..bytes.len() {
        let mut flipped = bytes.clone();
        flipped[at] ^= 0x10;
        assert!(Index::parse(flipped).is_err(), "byte {at} flipped");
        assert!(Index::parse(bytes[..at].to_vec()).is_err(), "cut at {at}");
    }
    let mut longer = bytes.clone();
    longer.push(0);
    assert!(matches!(Index::parse(longer), Err(IndexError::Length { .. })));
    assert!(matches!(Index::parse(b"something else".to_vec()), Err(IndexError::NotAnIndex)));
    let mut later = bytes;
    later[8] = 2;
    assert!(matches!(Index::parse(later), Err(IndexError::Unsupported { version: 2, features: 0 })));
}

proptest! {
    /// With a valid digest, any bytes are either refused, or all of them can be read.
    #[test]
    fn what_passes_can_be_read(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)) {
        static SMALL: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
        let mut bytes = SMALL.get_or_init(small).clone();
        bytes.truncate(bytes.len() - DIGEST_LEN);
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        crate::fuzzing::index(&bytes);
    }
}

/// Names, sizes, times, owners and modes like those of a Debian mirror.
fn debian_like(builder: &mut Builder, files: usize) -> u64 {
    let mut random = 1_u64;
    let mut next = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    let seen = |name: String, mode: u32, size: u64, mtime: Time| {
        let metadata = Metadata {
            mode,
            size,
            mtime,
            uid: 1000,
            gid: 1000,
            links: 1,
            id: (8 << 32 | 1, 0),
            ..Metadata::default()
        };
        let record = Record { name: name.into_bytes(), metadata, special: Special::Nothing, xattrs: None };
        Seen { record, xattrs: XattrSet::new() }
    };
    let (mut count, mut top) = (0, Vec::new());
    for letter in 0.. {
        if count >= files as u64 {
            break;
        }
        let mut sources = Vec::new();
        for source in 0..50 {
            let package: String = (0..4 + next(10)).map(|_| (b'a' + next(26) as u8) as char).collect();
            let mut names = Vec::new();
            let made = Time { seconds: 1_500_000_000 + next(200_000_000).cast_signed(), nanoseconds: 0 };
            let (major, minor) = (next(9), next(30));
            let base = format!("{package}_{major}.{minor}.{}-{}", next(20), next(4));
            for (suffix, size) in [(".dsc", 2000), (".debian.tar.xz", 9000), (".orig.tar.xz", 900_000)] {
                names.push(seen(format!("{base}{suffix}"), kind::FILE | 0o644, size + next(size), made));
            }
            for part in ["", "-dev", "-doc", "-dbgsym"] {
                for architecture in ["amd64", "arm64", "i386", "all"].iter().take(1 + next(4) as usize) {
                    let later = Time { seconds: made.seconds + next(90_000).cast_signed(), nanoseconds: 0 };
                    let name = base.replacen('_', &format!("{part}_"), 1);
                    names.push(seen(
                        format!("{name}_{architecture}.deb"),
                        kind::FILE | 0o644,
                        3000 + next(4_000_000),
                        later,
                    ));
                }
            }
            count += names.len() as u64 + 1;
            let number = builder.allocate().unwrap();
            let records = names.into_iter().map(|seen| builder.record(seen, None)).collect();
            builder.set_listing(number, records).unwrap();
            let directory = seen(format!("{package}{source}"), kind::DIRECTORY | 0o755, 4096, made);
            sources.push((directory, number));
        }
        let number = builder.allocate().unwrap();
        top.push((seen(format!("lib{letter}"), kind::DIRECTORY | 0o755, 4096, Time::default()), number));
        // In a scan, parents have lower numbers than here. The size is the same.
        let records = sources.into_iter().map(|(seen, number)| builder.record(seen, Some(number))).collect();
        builder.set_listing(number, records).unwrap();
        count += 1;
    }
    let records = top.into_iter().map(|(seen, number)| builder.record(seen, Some(number))).collect();
    builder.set_listing(ROOT, records).unwrap();
    count
}

#[test]
fn a_file_of_a_mirror_takes_few_bytes() {
    let root = Record {
        name: Vec::new(),
        metadata: Metadata { mode: kind::DIRECTORY | 0o755, ..Metadata::default() },
        special: Special::Directory(ROOT),
        xattrs: None,
    };
    let mut builder = Builder::new(Seen { record: root, xattrs: XattrSet::new() });
    let files = debian_like(&mut builder, 20_000);
    let bytes = builder.finish(Time::default()).unwrap();
    let each = bytes.len() as f64 / files as f64;
    println!("{each:.1} bytes for each of {files} files");
    assert!(each <= 60.0, "{each} bytes for each of {files} files");
}

#[test]
fn the_kinds_of_files_are_those_of_the_tree() {
    let dir = tempfile::tempdir().unwrap();
    grow(dir.path());
    let fifo = PathBuf::from(dir.path()).join("fifo");
    assert!(fifo.symlink_metadata().unwrap().file_type().is_fifo());
    let source = IndexedSource::new(Arc::new(whole(dir.path(), 1)), dir.path());
    let found = source.metadata(b"fifo", false).unwrap();
    assert_eq!((found.kind(), found.mode), (kind::FIFO, fifo.symlink_metadata().unwrap().mode()));
    let linked = [source.metadata(b"a/x", false).unwrap(), source.metadata(b"many/x", false).unwrap()];
    assert!(linked[0].links == 2 && linked[0].id == linked[1].id, "{linked:?}");
}

/// Makes random changes of all kinds, reproducible by a number.
struct Stirring {
    root: PathBuf,
    state: u64,
}

impl Stirring {
    fn below(&mut self, end: usize) -> usize {
        self.state =
            self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.state >> 33) as usize % end
    }

    /// A path of few different names, so that many of them exist already as something else.
    fn path(&mut self) -> PathBuf {
        let depth = 1 + self.below(3);
        let names = (0..depth).map(|_| format!("{}", self.below(6))).collect::<Vec<_>>();
        self.root.join(names.join("/"))
    }

    /// Makes one change. Changes that fail are ignored.
    fn stir(&mut self) {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        let (one, other, number) = (self.path(), self.path(), self.below(1000));
        let _ = match self.below(12) {
            0 | 1 => std::fs::create_dir_all(&one),
            2 | 3 => std::fs::write(&one, vec![7; number]),
            4 => std::fs::rename(&one, &other),
            5 => std::fs::hard_link(&one, &other),
            6 => symlink(&one, &other),
            7 => std::fs::remove_dir_all(&one),
            8 => std::fs::remove_file(&one),
            // Exchanges two directories with the same modification time.
            9 => {
                let old = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1000);
                for path in [&one, &other] {
                    let _ = std::fs::File::open(path).and_then(|file| file.set_modified(old));
                }
                renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE).map_err(Into::into)
            }
            10 => xattr::set(&one, "user.number", format!("{number}").as_bytes()),
            _ => {
                use std::os::unix::fs::PermissionsExt;
                std::fs::set_permissions(&one, PermissionsExt::from_mode(0o700 + number as u32 % 64))
            }
        };
    }
}

/// Waits until the kernel has reported the changes.
fn settle() {
    std::thread::sleep(std::time::Duration::from_millis(300));
}

#[test]
#[ignore = "needs root"]
fn a_watched_tree_and_its_index_are_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("tree");
    grow(&root);
    let mut watch = Watch::begin(&root, 2).unwrap();
    let (mut builder, _) = watch.scan().unwrap();
    let mut stirring = Stirring { root: root.clone(), state: 11 };
    for round in 0..40 {
        (0..1 + round * 2).for_each(|_| stirring.stir());
        if round == 20 {
            // The root of the tree is renamed.
            std::fs::rename(&root, dir.path().join("elsewhere")).unwrap();
            settle();
            assert!(matches!(watch.update(builder), Err(IndexError::Io { .. })));
            std::fs::rename(dir.path().join("elsewhere"), &root).unwrap();
            (builder, _) = watch.scan().unwrap();
        }
        settle();
        (builder, _) = watch.update(builder).unwrap();
        assert!(!watch.has_news().unwrap(), "round {round}");
        let index = made(builder);
        builder = Builder::from_index(&index).unwrap();
        assert!(index.is_like(&Builder::from_index(&index).unwrap().finish(Time::default()).unwrap()));
        assert_is_like(index, &root);
    }
}

#[test]
#[ignore = "needs root"]
fn what_happens_while_a_watched_tree_is_read_is_not_lost() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("tree");
    grow(&root);
    let mut stirring = Stirring { root: root.clone(), state: 12 };
    (0..100).for_each(|_| stirring.stir());
    let mut watch = Watch::begin(&root, 2).unwrap();
    let stirred = std::thread::spawn(move || (0..3000).for_each(|_| stirring.stir()));
    let (mut builder, _) = watch.scan().unwrap();
    while !stirred.is_finished() {
        (builder, _) = watch.update(builder).unwrap();
    }
    stirred.join().unwrap();
    settle();
    (builder, _) = watch.update(builder).unwrap();
    assert_is_like(made(builder), &root);
    // The queue of the kernel overflowed, so the tree is read again.
    watch.lose();
    std::fs::write(root.join("unseen"), b"x").unwrap();
    let (builder, _) = watch.update(Builder::from_index(&whole(&root, 1)).unwrap()).unwrap();
    assert_is_like(made(builder), &root);
}

#[test]
#[ignore = "needs root"]
fn a_tree_is_not_watched_past_a_mount() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("tree");
    grow(&root);
    let mount = |args: &[&str]| {
        assert!(std::process::Command::new(args[0]).args(&args[1..]).status().unwrap().success());
    };
    let at = root.join("a/b/c").display().to_string();
    mount(&["mount", "-t", "tmpfs", "none", &at]);
    let mut watch = Watch::begin(&root, 2).unwrap();
    let (builder, _) = watch.scan().unwrap();
    std::fs::write(root.join("a/b/c/new"), b"x").unwrap();
    settle();
    let (builder, _) = watch.update(builder).unwrap();
    let index = made(builder);
    assert!(told(&IndexedSource::new(Arc::new(index), &root)).contains_key(&b"a/b/c/new"[..]));
    mount(&["umount", &at]);
    assert!(matches!(watch.scan(), Err(IndexError::Mounts { .. })));
}
