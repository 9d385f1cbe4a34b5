//! What a directory or an image holds, and how far a sync into it has come.
//!
//! A few lines of text in a file of its own, replaced at one stroke. It is on disk before whatever it announces is begun.

use super::MirrorError;
use rustix::fs::{Mode, OFlags};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read, Write as _};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

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

/// A time of the target's filesystem, in nanoseconds since 1970.
pub(super) type Stamp = i128;

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
        let is_id = record.id.len() == 9 && record.id.bytes().all(|byte| byte.is_ascii_alphanumeric());
        (is_id && !record.source.is_empty()).then_some(record)
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
    pub(super) fn load(path: &Path) -> Result<Option<(Self, Stamp)>, MirrorError> {
        let local = |step| MirrorError::local(path, step);
        let how = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = match rustix::fs::open(path, how, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(rustix::io::Errno::NOENT) => return Ok(None),
            Err(error) => return Err(local("open the record")(error.into())),
        };
        let stamp = stamp(&file).map_err(local("read the record"))?;
        let mut text = String::new();
        file.take(LEN_MAX).read_to_string(&mut text).map_err(local("read the record"))?;
        let mut record = Self::parse(&text).ok_or_else(|| MirrorError::Record { path: path.to_owned() })?;
        let stamp = record.stamp.take().unwrap_or(stamp);
        Ok(Some((record, stamp)))
    }

    /// Notes in the record at `path` what its target is a copy of, and nothing else: what others change is told by the time
    /// that it had before.
    pub(super) fn rename(path: &Path, source: &str) -> Result<(), MirrorError> {
        let Some((mut record, stamp)) = Self::load(path)? else { return Ok(()) };
        if record.source != source {
            source.clone_into(&mut record.source);
            record.stamp = Some(stamp);
            record.store(path)?;
        }
        Ok(())
    }

    /// Puts a record at another path too.
    pub(super) fn copy(from: &Path, to: &Path) -> Result<(), MirrorError> {
        let Some((mut record, stamp)) = Self::load(from)? else {
            return Err(MirrorError::Record { path: from.to_owned() });
        };
        record.stamp = Some(stamp);
        record.store(to).map(drop)
    }

    /// Puts the record on disk, and gives the time of that.
    pub(super) fn store(&self, path: &Path) -> Result<Stamp, MirrorError> {
        let put = || -> io::Result<Stamp> {
            let temporary = beside(path);
            let _ = std::fs::remove_file(&temporary);
            let how = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let mut file = File::from(rustix::fs::open(&temporary, how, Mode::RUSR | Mode::WUSR)?);
            file.write_all(self.text().as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&temporary, path)?;
            File::open(path.parent().unwrap_or(path))?.sync_all()?;
            stamp(&file)
        };
        put().map_err(MirrorError::local(path, "write the record"))
    }
}

fn stamp(file: &File) -> io::Result<Stamp> {
    let metadata = file.metadata()?;
    Ok(i128::from(metadata.ctime()) * 1_000_000_000 + i128::from(metadata.ctime_nsec()))
}

fn beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    path.with_file_name(name)
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
        ] {
            assert_eq!(Record::parse(bad), None, "{bad}");
        }
    }
}
