//! Importing with the hints of an earlier import. Unchanged directories are skipped, and wrong hints do no harm.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use snowmelt_fs::import::{
    Filter, HintError, Hints, ImportEvent, ImportObserver, ImportOptions, Scan, SourceId, Summary, import,
};
use snowmelt_zpl::memory::MemoryObjset;
use snowmelt_zpl::{
    Cursor, FileKind, FilesystemMut, NewFilesystem, ObjectsMut, Room, WriteOptions, create_filesystem,
};

type Fs = FilesystemMut<Arc<MemoryObjset>>;

#[derive(Default)]
struct Noted {
    objects: HashMap<SourceId, (u64, u64)>,
    listings: HashMap<u64, [u8; 32]>,
    /// How often the object of a file was looked up.
    asked: usize,
}

impl Hints for Noted {
    fn object_of(&mut self, file: SourceId) -> Result<Option<(u64, u64)>, HintError> {
        self.asked += 1;
        Ok(self.objects.get(&file).copied())
    }

    fn note(&mut self, file: SourceId, object: u64, generation: u64) -> Result<(), HintError> {
        self.objects.insert(file, (object, generation));
        Ok(())
    }

    fn listing(&mut self, directory: u64) -> Result<Option<[u8; 32]>, HintError> {
        Ok(self.listings.get(&directory).copied())
    }

    fn note_listing(&mut self, directory: u64, digest: Option<[u8; 32]>) -> Result<(), HintError> {
        match digest {
            Some(digest) => self.listings.insert(directory, digest),
            None => self.listings.remove(&directory),
        };
        Ok(())
    }
}

struct Silent;

impl ImportObserver for Silent {
    fn event(&mut self, _path: &[u8], _event: ImportEvent<'_>) {}

    fn progress(&mut self, _summary: &Summary) {}

    fn is_cancelled(&self) -> bool {
        false
    }
}

fn filesystem() -> Fs {
    let objects = Arc::new(MemoryObjset::default());
    let new = NewFilesystem::default();
    create_filesystem(&*objects, &objects.begin(Room::Write(NewFilesystem::ROOM)).unwrap(), &new).unwrap();
    FilesystemMut::open(objects, WriteOptions::default(), 7).unwrap()
}

fn run(top: &Path, fs: &Fs, hints: &mut Noted) -> Summary {
    let scan = Scan::open(top, Filter::default(), false).unwrap();
    import(&scan, fs, hints, &mut Silent, ImportOptions::default()).unwrap()
}

/// Every path of a filesystem, with its number of links and its content.
fn held(fs: &Fs) -> BTreeMap<String, (u64, Vec<u8>)> {
    let (mut found, mut pending) = (BTreeMap::new(), vec![(String::new(), fs.root())]);
    while let Some((path, directory)) = pending.pop() {
        for entry in fs.read_dir(directory, Cursor::START, 1000).unwrap() {
            let path = format!("{path}/{}", String::from_utf8(entry.name).unwrap());
            let attributes = fs.attributes(entry.object).unwrap();
            let mut data = vec![0; attributes.size as usize];
            if attributes.kind() == FileKind::Directory {
                pending.push((path.clone(), entry.object));
                data.clear();
            } else {
                let len = fs.read(entry.object, 0, &mut data).unwrap();
                assert_eq!(len, data.len());
            }
            found.insert(path, (attributes.links, data));
        }
    }
    found
}

fn source() -> tempfile::TempDir {
    let top = tempfile::tempdir().unwrap();
    for name in ["a/one", "a/two", "b/three", "c/d/four", "z/five"] {
        let path = top.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, name).unwrap();
    }
    top
}

fn id(path: &Path) -> SourceId {
    SourceId { device: 0, inode: fs::metadata(path).unwrap().ino() }
}

#[test]
fn directories_that_are_as_they_were_are_passed_over() {
    let (top, fs, mut hints) = (source(), filesystem(), Noted::default());
    let first = run(top.path(), &fs, &mut hints);
    assert_eq!((first.entries, first.created), (11, 10));
    let before = held(&fs);

    hints.asked = 0;
    let again = run(top.path(), &fs, &mut hints);
    assert_eq!(again, Summary { entries: 11, ..Summary::default() });
    // Only for the root, which is in no listing.
    assert!(hints.asked <= 2, "asked {} times", hints.asked);
    assert_eq!(held(&fs), before);

    fs::write(top.path().join("c/d/four"), "4444").unwrap();
    fs::write(top.path().join("b/new"), "new").unwrap();
    let changed = run(top.path(), &fs, &mut hints);
    assert_eq!((changed.created, changed.files_read), (1, 2));
    let now = held(&fs);
    assert_eq!(now["/c/d/four"].1, b"4444");
    assert_eq!(now["/b/new"].1, b"new");
    assert_eq!(now.len(), 11);
    assert_eq!(run(top.path(), &fs, &mut hints).files_read, 0);
}

/// Inode numbers are reused, so a hint may lead to an object that now belongs to another file.
#[test]
fn wrong_hints_take_nothing_from_directories_that_are_passed_over() {
    // The new file comes before or after the directory whose object it could take.
    for (new, victim) in [("a/new", "z/five"), ("z/new", "a/one"), ("z/new", "c/d"), ("a/new", "c/d")] {
        let (top, fs, mut hints) = (source(), filesystem(), Noted::default());
        run(top.path(), &fs, &mut hints);
        let victim_hint = hints.objects[&id(&top.path().join(victim))];
        let new_path = top.path().join(new);
        if top.path().join(victim).is_dir() {
            fs::create_dir(&new_path).unwrap();
        } else {
            fs::write(&new_path, "new").unwrap();
        }
        hints.objects.insert(id(&new_path), victim_hint);
        let mut expected = held(&fs);
        run(top.path(), &fs, &mut hints);
        let now = held(&fs);
        let made = &now[&format!("/{new}")];
        assert!(made.1.is_empty() || made.1 == b"new", "{new} {victim}");
        expected.insert(format!("/{new}"), made.clone());
        let files = |held: &BTreeMap<String, (u64, Vec<u8>)>| {
            held.iter().map(|(path, (_, data))| (path.clone(), data.clone())).collect::<Vec<_>>()
        };
        assert_eq!(files(&now), files(&expected), "{new} {victim}");
        assert_eq!(now["/c/d/four"], expected["/c/d/four"]);
        let again = run(top.path(), &fs, &mut hints);
        assert_eq!((again.files_read, again.created), (0, 0), "{new} {victim}");
    }
}

/// The same, if size and modification time are equal to those of the old file, as in a restored tree.
#[test]
fn an_inode_number_that_is_used_again_is_another_file() {
    let (top, fs, mut hints) = (source(), filesystem(), Noted::default());
    let (old, new) = (top.path().join("a/one"), top.path().join("b/new"));
    run(top.path(), &fs, &mut hints);
    let hint = hints.objects[&id(&old)];
    let modified = fs::metadata(&old).unwrap().modified().unwrap();
    fs::write(&new, "B/NEW").unwrap();
    fs::File::options().write(true).open(&new).unwrap().set_modified(modified).unwrap();
    fs::remove_file(&old).unwrap();
    hints.objects.insert(id(&new), hint);
    run(top.path(), &fs, &mut hints);
    assert_eq!(held(&fs)["/b/new"].1, b"B/NEW");
    // A file that was only renamed is not read.
    fs::rename(&new, top.path().join("z/renamed")).unwrap();
    let renamed = run(top.path(), &fs, &mut hints);
    assert_eq!((renamed.renamed, renamed.files_read), (1, 0));
    assert_eq!(held(&fs)["/z/renamed"].1, b"B/NEW");
}

#[test]
fn names_of_one_file_in_directories_that_are_passed_over_stay_one_file() {
    let (top, fs, mut hints) = (source(), filesystem(), Noted::default());
    for other in ["b/one", "z/one"] {
        fs::hard_link(top.path().join("a/one"), top.path().join(other)).unwrap();
    }
    run(top.path(), &fs, &mut hints);
    assert_eq!(held(&fs)["/z/one"].0, 3);
    // One of the directories changes.
    fs::write(top.path().join("b/new"), "new").unwrap();
    let changed = run(top.path(), &fs, &mut hints);
    assert_eq!((changed.created, changed.files_read, changed.renamed, changed.removed), (1, 1, 0, 0));
    assert_eq!(held(&fs)["/b/one"], (3, b"a/one".to_vec()));
    // One name is removed, and one is added.
    fs::remove_file(top.path().join("b/one")).unwrap();
    fs::hard_link(top.path().join("z/one"), top.path().join("c/d/one")).unwrap();
    run(top.path(), &fs, &mut hints);
    let now = held(&fs);
    assert_eq!(now["/c/d/one"], (3, b"a/one".to_vec()));
    assert!(!now.contains_key("/b/one"));
    assert_eq!(run(top.path(), &fs, &mut hints).created, 0);
}
