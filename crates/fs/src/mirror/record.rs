//! What a directory or an image holds, and how far a sync into it has come.
//!
//! A few lines of text in a file of its own, replaced at one stroke. It is on disk before whatever it announces is begun.

use super::MirrorError;
use crate::alike::Stamp;
use crate::beneath::Place;
use rustix::fs::OFlags;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read, Write as _};
use std::os::unix::fs::MetadataExt;

const HEADER: &str = "snowmelt mirror 1";
/// Larger than any record.
const LEN_MAX: u64 = 64 * 1024;

/// A snapshot, as both sides know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// The same in every copy of it.
    pub guid: u64,
    /// Its full name, for people.
    pub name: String,
}

/// How far changes have come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Everything is compared with the snapshot.
    Whole,
    /// What is gone or moved is taken from its old place.
    Detach,
    /// All that is gone or moved is out of the way.
    Attach,
}

/// A sync that has begun and not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Progress {
    pub(super) to: Held,
    pub(super) phase: Phase,
    /// The boot of this machine in which it was begun: what has not reached the disk is lost with it.
    pub(super) boot: String,
    /// When it was begun, by the clock of the target's filesystem.
    pub(super) begun: Stamp,
}

/// The record of one target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// What it is a copy of, in the user's words.
    pub(super) source: String,
    /// Tells this target from others, in the names of snapshots.
    pub(super) id: String,
    /// The inode that was written: of the directory of the record, or of the image. Another one is a copy.
    pub(super) inode: u64,
    /// When it was written, where only its source has changed since: in the file alone.
    pub(super) stamp: Option<Stamp>,
    /// Size and mtime of an image as it was left.
    pub(super) image: Option<(u64, Stamp)>,
    /// What it holds as a whole.
    pub(super) held: Option<Held>,
    pub(super) progress: Option<Progress>,
}

impl Record {
    /// Of a target at which no sync has been.
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
                // What a later version notes besides.
                _ => {}
            }
        }
        (record.is_sound() && !record.source.is_empty()).then_some(record)
    }

    /// Whether all texts in it can stand in a line.
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

    /// The record in the file `path`, if there is one, and the time of its last change, but for that of its source.
    ///
    /// # Errors
    /// [`MirrorError::NotOurs`] when another user has written it; when it is damaged or cannot be read.
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

    /// Notes in the record at `path` what its target is a copy of, and nothing else: what others change is told by the time
    /// that it had before.
    pub(super) fn rename(place: &Place, source: &str) -> Result<(), MirrorError> {
        let Some((mut record, stamp)) = Self::load(place)? else { return Ok(()) };
        if record.source != source {
            source.clone_into(&mut record.source);
            record.stamp = Some(stamp);
            record.store(place)?;
        }
        Ok(())
    }

    /// Puts a record at another place too.
    pub(super) fn copy(from: &Place, to: &Place) -> Result<(), MirrorError> {
        let Some((mut record, stamp)) = Self::load(from)? else {
            return Err(MirrorError::Record { path: from.path() });
        };
        record.stamp = Some(stamp);
        record.store(to).map(drop)
    }

    /// Puts the record on disk, and gives the time of that.
    ///
    /// # Errors
    /// When a text in it has control characters, so that it would be read as something else; when it cannot be written.
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

/// Whether a text can stand in a line of a record.
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

/// What tells one boot of this machine from the next.
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
        // It takes the place of the link, and of one where it is written first.
        std::fs::write(scratch.path().join("victim"), "mine").unwrap();
        std::os::unix::fs::symlink("victim", scratch.path().join("record.new")).unwrap();
        Record { inode: 2, ..record }.store(&at(&path)).unwrap();
        assert_eq!(std::fs::read_to_string(scratch.path().join("victim")).unwrap(), "mine");
        assert_eq!(Record::load(&elsewhere).unwrap().unwrap().0.inode, 1);
        assert_eq!(Record::load(&at(&path)).unwrap().unwrap().0.inode, 2);
    }
}
