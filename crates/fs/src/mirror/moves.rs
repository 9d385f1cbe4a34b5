//! Copies of datasets below the one that a directory is a copy of: which there are, and renaming them as their datasets were.
//!
//! What is renamed waits for a moment in the record's directory of the top, so that names can be swapped, then goes to its new
//! place. If that is cut off, it is found where it waits, and goes on from there. Nothing is ever overwritten but an empty
//! directory, which is what a mount of the dataset hides.

use super::nested::{Nested, record_of_image};
use super::record::{Held, Record};
use super::{Mirror, MirrorError, RECORD, RECORD_DIRECTORY};
use rustix::fs::{AtFlags, CWD, FlockOperation, RenameFlags, Timespec, Timestamps, UTIME_OMIT};
use std::collections::{HashMap, HashSet};
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The directory, beside the record of the top, in which copies wait for their new place.
const WAITING: &str = "moving";
/// Deeper than datasets can be below one another.
const DEPTH_MAX: usize = 256;

/// A place below the top, name by name. Where a copy waits is below [`RECORD_DIRECTORY`].
type Place = Vec<String>;

/// The copy of a dataset below.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// Where it is.
    pub below: Place,
    /// It is an image; else a directory.
    pub is_image: bool,
    /// What it is a copy of, in the user's words.
    pub source: String,
    /// The snapshot that it holds, but for changes that have begun.
    pub held: Option<Held>,
    /// The snapshot to which a change has begun and not ended.
    pub unfinished: Option<Held>,
}

/// A copy that is to be elsewhere, or to be known as one of something else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Move {
    /// Where it is, as [`Kept`] tells it.
    pub from: Place,
    /// Where it is to be.
    pub to: Place,
    /// What it is a copy of from then on, in the user's words.
    pub source: String,
}

impl Mirror {
    /// All copies below this directory, those above before those below them; also those that wait, since a move was cut off.
    ///
    /// # Errors
    /// When directories cannot be read.
    pub fn kept(&self) -> Result<Vec<Kept>, MirrorError> {
        kept(&self.path)
    }

    /// Moves copies to other places below this directory, in any order, also into one another's; makes the directories above
    /// them. Each is moved or not by itself: in the order of `moves`, why one was not.
    ///
    /// # Errors
    /// When directories cannot be read.
    pub fn relocate(&mut self, moves: &[Move]) -> Result<Vec<Result<(), MirrorError>>, MirrorError> {
        let there = kept(&self.path)?;
        let mut work = Work::new(&self.path, moves, &there);
        work.check()?;
        while !work.take_away()? {
            work.check()?;
        }
        work.put();
        clear(&self.path);
        let outcomes = work.outcomes;
        self.nested = Nested::load(&self.path.join(RECORD_DIRECTORY))?;
        Ok(outcomes)
    }
}

fn kept(top: &Path) -> Result<Vec<Kept>, MirrorError> {
    let mut found = Vec::new();
    let waiting = [RECORD_DIRECTORY.to_owned(), WAITING.to_owned()];
    for name in names(&path_of(top, &waiting))? {
        found.extend(look(top, [&waiting[..], &[name]].concat())?);
    }
    let mut left = vec![Place::new()];
    while let Some(above) = left.pop() {
        let nested = Nested::load(&path_of(top, &above).join(RECORD_DIRECTORY))?;
        for name in nested.names() {
            let Some(one) = look(top, [&above[..], &[name.to_owned()]].concat())? else { continue };
            if !one.is_image && one.below.len() < DEPTH_MAX {
                left.push(one.below.clone());
            }
            found.push(one);
        }
    }
    Ok(found)
}

/// The copy at a place, if there is one. What a damaged record is of shows when it is opened.
fn look(top: &Path, below: Place) -> Result<Option<Kept>, MirrorError> {
    let path = path_of(top, &below);
    let Some(metadata) = stat(&path)? else { return Ok(None) };
    let is_image = !metadata.is_dir();
    let Ok(Some((record, _))) = Record::load(&record_of(&path, is_image)) else { return Ok(None) };
    if is_image && record.inode != metadata.ino() {
        return Ok(None);
    }
    let unfinished = record.progress.map(|progress| progress.to);
    Ok(Some(Kept { below, is_image, source: record.source, held: record.held, unfinished }))
}

/// Moves that are under way.
struct Work<'a> {
    top: &'a Path,
    moves: &'a [Move],
    /// Whether each is of an image.
    is_image: Vec<bool>,
    /// Whether each is to be taken from where it is.
    goes: Vec<bool>,
    outcomes: Vec<Result<(), MirrorError>>,
    /// Where each is now.
    at: Vec<Place>,
}

impl<'a> Work<'a> {
    fn new(top: &'a Path, moves: &'a [Move], there: &[Kept]) -> Self {
        let there: HashMap<&Place, bool> = there.iter().map(|one| (&one.below, one.is_image)).collect();
        let leaving: HashSet<&[String]> =
            moves.iter().filter(|one| one.from != one.to).map(|one| &one.from[..]).collect();
        let goes = |one: &Move| (1..=one.from.len()).any(|len| leaving.contains(&one.from[..len]));
        let (mut from, mut to) = (HashSet::new(), HashSet::new());
        let outcomes = moves.iter().map(|one| {
            let is_sound = there.contains_key(&one.from) && from.insert(&one.from) && to.insert(&one.to);
            let path = || path_of(top, &one.from);
            if is_sound && !one.to.is_empty() { Ok(()) } else { Err(MirrorError::NotKept { path: path() }) }
        });
        Self {
            top,
            moves,
            is_image: moves.iter().map(|one| there.get(&one.from).copied().unwrap_or_default()).collect(),
            outcomes: outcomes.collect(),
            goes: moves.iter().map(goes).collect(),
            at: moves.iter().map(|one| one.from.clone()).collect(),
        }
    }

    /// The moves that are still to be made, by what `of` says of them.
    fn going(&self, of: impl Fn(&'a Move) -> &'a Place) -> HashMap<&'a [String], usize> {
        let numbers = (0..self.moves.len()).filter(|at| self.goes[*at] && self.outcomes[*at].is_ok());
        numbers.map(|at| (&of(&self.moves[at])[..], at)).collect()
    }

    /// Finds what is in the way of moves, and of what is in the way because of that.
    fn check(&mut self) -> Result<(), MirrorError> {
        loop {
            let refused = (0..self.moves.len()).filter(|at| self.goes[*at] && self.outcomes[*at].is_err());
            let plan = Plan {
                from: self.going(|one| &one.from),
                to: self.going(|one| &one.to),
                refused: refused.map(|at| &self.moves[at].to[..]).collect(),
            };
            let mut blocked = Vec::new();
            for (place, at) in &plan.to {
                if let Some(path) = plan.in_the_way(self.top, self.moves, place)? {
                    blocked.push((*at, path));
                }
            }
            if blocked.is_empty() {
                return Ok(());
            }
            for (at, path) in blocked {
                let of = path_of(self.top, &self.moves[at].from);
                self.outcomes[at] = Err(MirrorError::InTheWay { path, of });
            }
        }
    }

    /// Takes everything to where it waits, what is below before what is above. If one cannot be moved, all goes back, and it is
    /// to be planned anew: false.
    fn take_away(&mut self) -> Result<bool, MirrorError> {
        let mut order: Vec<usize> = self.going(|one| &one.from).into_values().collect();
        order.sort_by_key(|at| std::cmp::Reverse(self.moves[*at].from.len()));
        let waiting = [RECORD_DIRECTORY.to_owned(), WAITING.to_owned()];
        let directory = path_of(self.top, &waiting);
        if !order.is_empty() {
            make(&directory)?;
        }
        let mut number = 0;
        for (done, at) in order.iter().enumerate() {
            if self.moves[*at].from.starts_with(&waiting) {
                continue;
            }
            let place = loop {
                let place = [&waiting[..], &[format!("w{number}")]].concat();
                number += 1;
                if stat(&path_of(self.top, &place))?.is_none() {
                    break place;
                }
            };
            let moved = self.shift(*at, place);
            if let Err(error) = moved {
                self.outcomes[*at] = Err(error);
                for at in order[..done].iter().rev() {
                    // What cannot go back waits, and is found there.
                    let _ = self.shift(*at, self.moves[*at].from.clone());
                }
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Puts everything where it is to be, what is above before what is below, and says what it is a copy of.
    fn put(&mut self) {
        let mut order: Vec<usize> = (0..self.moves.len()).filter(|at| self.outcomes[*at].is_ok()).collect();
        order.sort_by_key(|at| self.moves[*at].to.len());
        for at in order {
            let one = &self.moves[at];
            let put = match self.goes[at] {
                true => prepare(self.top, &one.to).and_then(|()| self.shift(at, one.to.clone())),
                false => Ok(()),
            };
            let path = path_of(self.top, &one.to);
            self.outcomes[at] =
                put.and_then(|()| Record::rename(&record_of(&path, self.is_image[at]), &one.source));
        }
    }

    /// Moves one, with its record, unless somebody is at work on it.
    fn shift(&mut self, at: usize, to: Place) -> Result<(), MirrorError> {
        let (old, new) = (path_of(self.top, &self.at[at]), path_of(self.top, &to));
        if old == new {
            return Ok(());
        }
        let is_image = self.is_image[at];
        let locked = if is_image { old.clone() } else { old.join(RECORD_DIRECTORY) };
        let _lock = lock(&locked, &old)?;
        let times = [&old, &new].map(|path| path.parent().and_then(Times::of));
        match is_image {
            // Its record is in both places for a moment: it counts only where the image is.
            true => {
                let records = [record_of(&old, true), record_of(&new, true)];
                let copied = Record::copy(&records[0], &records[1]);
                copied.and_then(|()| rename(&old, &new))?;
                std::fs::remove_file(&records[0])
                    .map_err(MirrorError::local(&old, "remove its old record"))?;
            }
            false => rename(&old, &new)?,
        }
        times.into_iter().flatten().for_each(|times| times.put_back());
        self.at[at] = to;
        Ok(())
    }
}

/// Where things come from and go to.
struct Plan<'a> {
    from: HashMap<&'a [String], usize>,
    to: HashMap<&'a [String], usize>,
    /// Where something cannot go: nothing goes below that either.
    refused: HashSet<&'a [String]>,
}

impl Plan<'_> {
    /// Where that is now which, if nothing were put there, would be at a place when everything else has been moved.
    fn now(&self, moves: &[Move], place: &[String]) -> Option<Place> {
        let carried = (1..place.len()).rev().find_map(|len| {
            let at = self.to.get(&place[..len])?;
            let from = &moves[*at].from;
            Some(([&from[..], &place[len..]].concat(), from.len()))
        });
        let (place, known) = carried.unwrap_or_else(|| (place.to_vec(), 0));
        let has_left = (known + 1..=place.len()).any(|len| self.from.contains_key(&place[..len]));
        (!has_left).then_some(place)
    }

    /// What keeps a copy from being put at a place.
    fn in_the_way(
        &self,
        top: &Path,
        moves: &[Move],
        place: &[String],
    ) -> Result<Option<PathBuf>, MirrorError> {
        let found = |place: &[String]| -> Result<Option<(PathBuf, Metadata)>, MirrorError> {
            let Some(now) = self.now(moves, place) else { return Ok(None) };
            let path = path_of(top, &now);
            Ok(stat(&path)?.map(|metadata| (path, metadata)))
        };
        if let Some((path, metadata)) = found(place)?
            && (!metadata.is_dir() || !is_empty(&path)?)
        {
            return Ok(Some(path_of(top, place)));
        }
        for len in (1..place.len()).rev() {
            let above = &place[..len];
            if self.to.contains_key(above) {
                break;
            }
            if self.refused.contains(above) {
                return Ok(Some(path_of(top, above)));
            }
            match found(above)? {
                None => {}
                Some((path, metadata)) if metadata.is_dir() => {
                    if stat(&path.join(RECORD_DIRECTORY))?.is_some() {
                        break;
                    }
                    if !is_empty(&path)? {
                        return Ok(Some(path_of(top, above)));
                    }
                }
                Some(_) => return Ok(Some(path_of(top, above))),
            }
        }
        Ok(None)
    }
}

/// Makes the directories above a place, and notes in each that the next one is kept by itself.
fn prepare(top: &Path, place: &[String]) -> Result<(), MirrorError> {
    for (len, name) in place.iter().enumerate() {
        let directory = path_of(top, &place[..len]);
        if len > 0 {
            make(&directory)?;
        }
        let own = directory.join(RECORD_DIRECTORY);
        make(&own)?;
        Nested::load(&own)?.note(&own, name.as_bytes())?;
    }
    // For an image; a directory could take its place.
    let path = path_of(top, place);
    match std::fs::remove_dir(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(MirrorError::local(&path, "remove the empty directory")(error))
        }
        _ => Ok(()),
    }
}

/// Removes where things waited, with records whose images have gone on.
fn clear(top: &Path) {
    let directory = top.join(RECORD_DIRECTORY).join(WAITING);
    if names(&directory).is_ok_and(|names| names.is_empty()) {
        let _ = std::fs::remove_dir_all(&directory);
    }
}

/// Renames; nothing that is there is replaced.
fn rename(old: &Path, new: &Path) -> Result<(), MirrorError> {
    let renamed = match rustix::fs::renameat_with(CWD, old, CWD, new, RenameFlags::NOREPLACE) {
        // Not every filesystem can promise that; it was looked at before.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => std::fs::rename(old, new),
        done => done.map_err(io::Error::from),
    };
    renamed.map_err(MirrorError::local(old, "move it to where its dataset was renamed to"))?;
    for above in [old, new].into_iter().filter_map(Path::parent) {
        let synced = File::open(above).and_then(|directory| directory.sync_all());
        synced.map_err(MirrorError::local(above, "sync"))?;
    }
    Ok(())
}

fn lock(path: &Path, of: &Path) -> Result<OwnedFd, MirrorError> {
    let file = OwnedFd::from(File::open(path).map_err(MirrorError::local(of, "open it"))?);
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(_) => Err(MirrorError::Busy { path: of.to_owned() }),
    }
}

/// When a directory was changed last: that what is kept in it moves is no change of it.
struct Times {
    path: PathBuf,
    mtime: Timespec,
}

impl Times {
    fn of(path: &Path) -> Option<Self> {
        let metadata = std::fs::symlink_metadata(path).ok()?;
        let mtime = Timespec { tv_sec: metadata.mtime(), tv_nsec: metadata.mtime_nsec() };
        Some(Self { path: path.to_owned(), mtime })
    }

    fn put_back(self) {
        let omitted = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        let times = Timestamps { last_access: omitted, last_modification: self.mtime };
        // The next change of the directory sets it anyway.
        let _ = rustix::fs::utimensat(CWD, &self.path, &times, AtFlags::SYMLINK_NOFOLLOW);
    }
}

fn path_of(top: &Path, below: &[String]) -> PathBuf {
    below.iter().fold(top.to_owned(), |path, name| path.join(name))
}

/// Where the record of a copy is.
fn record_of(path: &Path, is_image: bool) -> PathBuf {
    match is_image {
        true => record_of_image(path),
        false => path.join(RECORD_DIRECTORY).join(RECORD),
    }
}

/// What is there, itself and not what a link leads to.
fn stat(path: &Path) -> Result<Option<Metadata>, MirrorError> {
    match std::fs::symlink_metadata(path) {
        Ok(found) => Ok(Some(found)),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(error) => Err(MirrorError::local(path, "look at what is there")(error)),
    }
}

fn make(path: &Path) -> Result<(), MirrorError> {
    match std::fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(MirrorError::local(path, "make the directory")(error))
        }
        _ => Ok(()),
    }
}

fn is_empty(path: &Path) -> Result<bool, MirrorError> {
    let mut entries = std::fs::read_dir(path).map_err(MirrorError::local(path, "read the directory"))?;
    Ok(entries.next().is_none())
}

/// What waits in a directory, if that is there: not the records of images.
fn names(path: &Path) -> Result<Vec<String>, MirrorError> {
    let local = |error| MirrorError::local(path, "read the directory")(error);
    let entries = match std::fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(local)?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let name = entry.map_err(local)?.file_name();
        found.extend(name.into_string().ok().filter(|name| !name.starts_with('.')));
    }
    found.sort_unstable();
    Ok(found)
}
