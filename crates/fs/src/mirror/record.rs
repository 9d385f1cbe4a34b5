//! The record of a target: the snapshot that a directory or image holds, and the progress of a sync into it.
//!
//! A record is a few lines of text in its own file, which is replaced atomically. It is on disk before the steps that
//! it announces begin.

use super::MirrorError;
use crate::alike::Stamp;
use crate::beneath::Place;
use rustix::fs::OFlags;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read, Write as _};
use std::os::unix::fs::MetadataExt;

const HEADER: &str = "snowmelt mirror 1";
/// Maximum length of a record.
const LEN_MAX: u64 = 64 * 1024;

/// A snapshot that a target holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// The guid, which is the same in all copies.
    pub guid: u64,
    /// The full name, for messages.
    pub name: String,
}

/// The progress of a sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// The whole target is compared with the snapshot.
    Whole,
    /// Files that are removed or moved are taken from their old places.
    Detach,
    /// All files that are removed or moved have left their old places.
    Attach,
}

/// A sync that has begun and is not finished.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Progress {
    pub(super) to: Held,
    pub(super) phase: Phase,
    /// The boot ID of this machine when the sync began. After another boot, data that was not synced to disk is lost.
    pub(super) boot: String,
    /// When the sync began, by the clock of the target's filesystem.
    pub(super) begun: Stamp,
}

/// The record of one target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The source, as the user named it.
    pub(super) source: String,
    /// The ID of this target, which is part of the names of snapshots.
    pub(super) id: String,
    /// Inode of the record's directory or of the image. If it differs, the target is a copy of the original one.
    pub(super) inode: u64,
    /// The time of the last write in which more than the source changed. Only stored if later writes changed only the
    /// source.
    pub(super) stamp: Option<Stamp>,
    /// Size and mtime of an image after the last sync.
    pub(super) image: Option<(u64, Stamp)>,
    /// The snapshot that the target holds.
    pub(super) held: Option<Held>,
    pub(super) progress: Option<Progress>,
}

impl Record {
    /// The record of a new target.
    pub(super) fn new(source: String, id: String, inode: u64) -> Self {
        Self { source, id, inode, stamp: None, image: None, held: None, progress: None }
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        if lines.next() != Some(HEADER) {
            return None;
        }
        let mut record = Self::new(String::new(), String::new(), 0);
        for line in lines {
            let (key, value) = line.split_once(' ')?;
            match key {
                "source" => value.clone_into(&mut record.source),
                "id" => value.clone_into(&mut record.id),
                "inode" => record.inode = value.parse().ok()?,
                "stamp" => record.stamp = Some(value.parse().ok()?),
                "image" => {
                    let (size, time) = value.split_once(' ')?;
                    record.image = Some((size.parse().ok()?, time.parse().ok()?));
                }
                "held" => record.held = Some(held(value)?),
                "progress" => record.progress = Some(progress(value)?),
                // Lines of later versions are ignored.
                _ => {}
            }
        }
        (record.is_sound() && !record.source.is_empty()).then_some(record)
    }

    /// Whether all texts fit in one line.
    fn is_sound(&self) -> bool {
        let is_id = self.id.len() == 9 && self.id.bytes().all(|byte| byte.is_ascii_alphanumeric());
        let names = self.held.iter().chain(self.progress.iter().map(|progress| &progress.to));
        let mut texts = names.map(|held| &held.name).chain([&self.source]);
        is_id && texts.all(|text| is_line(text))
    }

    pub(super) fn text(&self) -> String {
        let mut text = format!("{HEADER}\nsource {}\nid {}\ninode {}\n", self.source, self.id, self.inode);
        // Writing to a string does not fail.
        if let Some(stamp) = self.stamp {
            let _ = writeln!(text, "stamp {stamp}");
        }
        if let Some((size, time)) = self.image {
            let _ = writeln!(text, "image {size} {time}");
        }
        if let Some(Held { guid, name }) = &self.held {
            let _ = writeln!(text, "held {guid} {name}");
        }
        if let Some(Progress { to, phase, boot, begun }) = &self.progress {
            let phase = match phase {
                Phase::Whole => "whole",
                Phase::Detach => "detach",
                Phase::Attach => "attach",
            };
            let _ = writeln!(text, "progress {phase} {boot} {begun} {} {}", to.guid, to.name);
        }
        text
    }

    /// The record in a file, if it exists, and the time of its last change, apart from changes of the source.
    ///
    /// # Errors
    /// [`MirrorError::NotOurs`] if another user has written it, or if it is damaged or cannot be read.
    pub(super) fn load(place: &Place) -> Result<Option<(Self, Stamp)>, MirrorError> {
        let path = place.path();
        let local = |step| MirrorError::local(&path, step);
        let opened = place.directory.open_file(&place.name, OFlags::RDONLY);
        let Some(file) = opened.map_err(local("open the record"))? else { return Ok(None) };
        super::check_owner(&place.directory, &path, &file)?;
        let stamp = stamp(&file).map_err(local("read the record"))?;
        let mut text = String::new();
        file.take(LEN_MAX).read_to_string(&mut text).map_err(local("read the record"))?;
        let mut record = Self::parse(&text).ok_or_else(|| MirrorError::Record { path: path.clone() })?;
        let stamp = record.stamp.take().unwrap_or(stamp);
        Ok(Some((record, stamp)))
    }

    /// Changes only the source in a record. The old time is kept in the record, because changes by others are detected
    /// by it.
    pub(super) fn rename(place: &Place, source: &str) -> Result<(), MirrorError> {
        let Some((mut record, stamp)) = Self::load(place)? else { return Ok(()) };
        if record.source != source {
            source.clone_into(&mut record.source);
            record.stamp = Some(stamp);
            record.store(place)?;
        }
        Ok(())
    }

    /// Copies a record to another place.
    pub(super) fn copy(from: &Place, to: &Place) -> Result<(), MirrorError> {
        let Some((mut record, stamp)) = Self::load(from)? else {
            return Err(MirrorError::Record { path: from.path() });
        };
        record.stamp = Some(stamp);
        record.store(to).map(drop)
    }

    /// Writes the record to disk, and returns its time.
    ///
    /// # Errors
    /// If a text contains control characters, which would change the meaning of the record, or if it cannot be written.
    pub(super) fn store(&self, place: &Place) -> Result<Stamp, MirrorError> {
        let put = || -> io::Result<Stamp> {
            if !self.is_sound() {
                let what = "a name that is to be noted has control characters";
                return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
            }
            let directory = &place.directory;
            let temporary = [&place.name, &b".new"[..]].concat();
            let _ = directory.unlink(&temporary);
            let mut file = directory.create_file(&temporary)?;
            file.write_all(self.text().as_bytes())?;
            file.sync_all()?;
            directory.rename(&temporary, &place.name)?;
            directory.sync()?;
            stamp(&file)
        };
        put().map_err(MirrorError::local(&place.path(), "write the record"))
    }
}

fn stamp(file: &File) -> io::Result<Stamp> {
    let metadata = file.metadata()?;
    Ok(i128::from(metadata.ctime()) * 1_000_000_000 + i128::from(metadata.ctime_nsec()))
}

/// Whether a text fits in one line of a record.
fn is_line(text: &str) -> bool {
    !text.contains(char::is_control)
}

fn held(text: &str) -> Option<Held> {
    let (guid, name) = text.split_once(' ')?;
    Some(Held { guid: guid.parse().ok()?, name: name.to_owned() })
}

fn progress(text: &str) -> Option<Progress> {
    let mut words = text.splitn(4, ' ');
    let phase = match words.next()? {
        "whole" => Phase::Whole,
        "detach" => Phase::Detach,
        "attach" => Phase::Attach,
        _ => return None,
    };
    let boot = words.next()?.to_owned();
    let begun = words.next()?.parse().ok()?;
    Some(Progress { to: held(words.next()?)?, phase, boot, begun })
}

/// The boot ID of this machine.
pub(super) fn boot() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    match id.trim() {
        "" => "unknown".to_owned(),
        id => id.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_survives_its_text() {
        let held = Held { guid: 7, name: "tank/a b@x".to_owned() };
        let to = Held { guid: u64::MAX, name: "tank/a b@y z".to_owned() };
        for phase in [Phase::Whole, Phase::Detach, Phase::Attach] {
            let progress = Progress { to: to.clone(), phase, boot: "b-1".to_owned(), begun: -5 };
            let record = Record {
                source: "host:tank/a b".to_owned(),
                id: "d01234567".to_owned(),
                inode: 9,
                stamp: Some(-3),
                image: Some((1, 2)),
                held: Some(held.clone()),
                progress: Some(progress),
            };
            assert_eq!(Record::parse(&record.text()), Some(record));
        }
    }

    #[test]
    fn what_is_no_record_is_refused() {
        for bad in [
            "",
            "snowmelt mirror 2\n",
            "snowmelt mirror 1\nsource a\nid ../../../x\n",
            "snowmelt mirror 1\nheld x\n",
            "snowmelt mirror 1\nsource a\nid d01234567\nheld 7 tank/a\x1b[2J@x\n",
        ] {
            assert_eq!(Record::parse(bad), None, "{bad}");
        }
    }

    fn at(path: &std::path::Path) -> Place {
        crate::beneath::Directory::around(path).unwrap()
    }

    #[test]
    fn a_name_cannot_add_a_line_to_a_record() {
        let scratch = tempfile::tempdir().unwrap();
        let place = at(&scratch.path().join("record"));
        let mut record = Record::new("tank/a".to_owned(), "d01234567".to_owned(), 1);
        record.store(&place).unwrap();
        record.source = "tank/a\nheld 7 tank/b@x".to_owned();
        assert!(record.store(&place).is_err());
        record.source = "tank/a".to_owned();
        record.held = Some(Held { guid: 7, name: "tank/a@x\nid d76543210".to_owned() });
        assert!(record.store(&place).is_err());
        assert_eq!(Record::load(&place).unwrap().unwrap().0.held, None);
    }

    #[test]
    fn a_record_is_neither_read_nor_written_through_a_link() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("record");
        let record = Record::new("tank/a".to_owned(), "d01234567".to_owned(), 1);
        let elsewhere = at(&scratch.path().join("elsewhere"));
        record.store(&elsewhere).unwrap();
        std::os::unix::fs::symlink("elsewhere", &path).unwrap();
        assert!(Record::load(&at(&path)).is_err());
        // The record replaces the link. A link at its temporary name is replaced too.
        std::fs::write(scratch.path().join("victim"), "mine").unwrap();
        std::os::unix::fs::symlink("victim", scratch.path().join("record.new")).unwrap();
        Record { inode: 2, ..record }.store(&at(&path)).unwrap();
        assert_eq!(std::fs::read_to_string(scratch.path().join("victim")).unwrap(), "mine");
        assert_eq!(Record::load(&elsewhere).unwrap().unwrap().0.inode, 1);
        assert_eq!(Record::load(&at(&path)).unwrap().unwrap().0.inode, 2);
    }
}
