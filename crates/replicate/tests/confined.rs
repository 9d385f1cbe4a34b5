//! Requests to a server whose target is a directory: nothing outside of it is touched.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, makedev, mkfifoat, mknodat};
use snowmelt_replicate::request::{Kind, OpenTarget, Relocation, TargetState};
use snowmelt_replicate::target::{Here, Target};

fn asked(kind: Kind, below: &[&str]) -> OpenTarget {
    OpenTarget {
        list: true,
        source: "tank/t".to_owned(),
        kind,
        below: below.iter().map(|name| (*name).to_owned()).collect(),
        children: Vec::new(),
        force: true,
        dry_run: false,
    }
}

fn open(top: &Path, what: &OpenTarget) -> Result<TargetState, String> {
    let devices = top.with_file_name("devices");
    Here::new(top.to_owned(), devices).open(what).map_err(|failure| failure.to_string())
}

/// A served directory with a filesystem in it, and a directory beside it.
fn served() -> (tempfile::TempDir, std::path::PathBuf) {
    let scratch = tempfile::tempdir().unwrap();
    let top = scratch.path().join("top");
    fs::create_dir(scratch.path().join("victim")).unwrap();
    fs::write(scratch.path().join("victim/file"), "mine").unwrap();
    open(&top, &asked(Kind::Filesystem, &[])).unwrap();
    (scratch, top)
}

#[test]
fn nothing_is_opened_through_a_link() {
    let (scratch, top) = served();
    symlink("../victim/file", top.join("link")).unwrap();
    symlink("../victim/new", top.join("dangling")).unwrap();
    symlink("../victim", top.join("way")).unwrap();
    for below in [&["link"][..], &["dangling"], &["way"], &["way", "file"], &["way", "new"]] {
        for kind in [Kind::Volume, Kind::Filesystem] {
            for dry_run in [false, true] {
                let opened = open(&top, &OpenTarget { dry_run, ..asked(kind, below) });
                assert!(opened.is_err(), "{below:?} {kind:?} {dry_run}");
            }
        }
    }
    assert_eq!(fs::read_to_string(scratch.path().join("victim/file")).unwrap(), "mine");
    assert_eq!(fs::read_dir(scratch.path().join("victim")).unwrap().count(), 1);
    assert!(open(&top, &asked(Kind::Volume, &["image"])).is_ok());
}

#[test]
fn a_fifo_below_is_no_image() {
    let (_scratch, top) = served();
    mkfifoat(CWD, top.join("fifo"), Mode::RWXU).unwrap();
    let refused = open(&top, &asked(Kind::Volume, &["fifo"])).unwrap_err();
    assert!(refused.contains("it is a fifo, not a regular file"), "{refused}");
}

#[test]
#[ignore = "needs root"]
fn a_device_below_is_no_image() {
    let (_scratch, top) = served();
    mknodat(CWD, top.join("disk"), FileType::BlockDevice, Mode::RWXU, makedev(240, 240)).unwrap();
    let refused = open(&top, &asked(Kind::Volume, &["disk"])).unwrap_err();
    assert!(refused.contains("it is a block device, not a regular file"), "{refused}");
}

#[test]
fn names_and_texts_of_a_peer_are_checked() {
    let (_scratch, top) = served();
    for name in ["..", ".", "", "a/b", "a\0b", "a\nb", ".snowmelt-sync", ".Snowmelt-Sync"] {
        for dry_run in [false, true] {
            // A dry run may look into the directory of waiting copies.
            if (name, dry_run) != (".snowmelt-sync", true) {
                let opened = open(&top, &OpenTarget { dry_run, ..asked(Kind::Volume, &[name]) });
                assert!(opened.is_err(), "{name:?}");
            }
        }
        let children = vec![name.to_owned()];
        let opened = open(&top, &OpenTarget { children, ..asked(Kind::Filesystem, &[]) });
        assert!(opened.is_err(), "{name:?}");
    }
    for source in ["tank/t\nheld 7 tank/t@x", "tank/\u{1b}[2J"] {
        let opened = open(&top, &OpenTarget { source: source.to_owned(), ..asked(Kind::Filesystem, &[]) });
        assert!(opened.unwrap_err().contains("control characters"));
    }
    let mut here = Here::new(top.clone(), top.with_file_name("devices"));
    here.open(&asked(Kind::Filesystem, &[])).unwrap();
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let to = names(&["x"]);
    let moves = Relocation { from: names(&["..", "victim"]), to, source: "tank/t/x".to_owned() };
    assert!(here.relocate(std::slice::from_ref(&moves)).unwrap()[0].is_err());
    assert!(here.relocate(&[Relocation { to: names(&["..", "x"]), ..moves.clone() }]).is_err());
    assert!(here.relocate(&[Relocation { source: "a\nb".to_owned(), ..moves }]).is_err());
}

#[test]
fn what_was_opened_for_a_rehearsal_is_not_changed() {
    let (_scratch, top) = served();
    let mut here = Here::new(top.clone(), top.with_file_name("devices"));
    here.open(&OpenTarget { dry_run: true, ..asked(Kind::Filesystem, &[]) }).unwrap();
    let refused = here.relocate(&[]).unwrap_err();
    assert!(refused.message.contains("opened for a dry run"), "{refused}");
    here.open(&asked(Kind::Filesystem, &[])).unwrap();
    here.relocate(&[]).unwrap();
}
