//! Finding the copies of descendant datasets below a directory, and renaming them like their datasets.
//!
//! A copy that is renamed first waits in the record's directory of the top, so that names can be swapped. Then it moves
//! to its new place. After an interruption it is found where it waits, and the move continues from there. Nothing is
//! overwritten except an empty directory, which a mount of the dataset hides.

use super::nested::{Nested, record_of_image};
use super::record::{Held, Record};
use super::{Mirror, MirrorError, RECORD, RECORD_DIRECTORY, enter_copy, own_of};
use crate::beneath::{Directory, Place as Spot};
use rustix::fs::{
    AtFlags, FileType, FlockOperation, OFlags, RenameFlags, Stat, Timespec, Timestamps, UTIME_OMIT,
};
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

/// The directory in which copies wait for their new place, next to the record of the top.
const WAITING: &str = "moving";
/// Maximum depth. Datasets cannot be nested as deeply.
const DEPTH_MAX: usize = 256;

/// A place below the top, as a list of names. The place of a waiting copy is below [`RECORD_DIRECTORY`].
type Place = Vec<String>;

/// The copy of a descendant dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// The place of the copy.
    pub below: Place,
    /// Whether it is an image. Otherwise it is a directory.
    pub is_image: bool,
    /// The source of the copy, as the user named it.
    pub source: String,
    /// The snapshot that it holds, apart from changes that have begun.
    pub held: Option<Held>,
    /// The target snapshot of a change that has begun and is not finished.
    pub unfinished: Option<Held>,
}

/// A new place or a new source for a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Move {
    /// The current place, as in [`Kept`].
    pub from: Place,
    /// The new place.
    pub to: Place,
    /// The new source, as the user names it.
    pub source: String,
}

impl Mirror {
    /// All copies below this directory, parents before children. Copies that still wait after an interrupted move are
    /// included.
    ///
    /// # Errors
    /// If directories cannot be read.
    pub fn kept(&self) -> Result<Vec<Kept>, MirrorError> {
        kept(self.tree.top())
    }

    /// Moves copies to other places below this directory, in any order, and creates the directories above them. Places
    /// may be swapped. Each move succeeds or fails on its own. The results are in the order of `moves`.
    ///
    /// # Errors
    /// If directories cannot be read.
    pub fn relocate(&mut self, moves: &[Move]) -> Result<Vec<Result<(), MirrorError>>, MirrorError> {
        let top = self.tree.top();
        let there = kept(top)?;
        let mut work = Work::new(top, moves, &there);
        work.check()?;
        while !work.take_away()? {
            work.check()?;
        }
        work.put();
        let outcomes = work.outcomes;
        clear(&self.own);
        self.nested = Nested::load(&self.own)?;
        Ok(outcomes)
    }
}

fn kept(top: &Directory) -> Result<Vec<Kept>, MirrorError> {
    let mut found = Vec::new();
    let waiting = [RECORD_DIRECTORY.to_owned(), WAITING.to_owned()];
    for name in waiting_in(top)? {
        found.extend(look(top, [&waiting[..], &[name]].concat())?);
    }
    let mut left = vec![Place::new()];
    while let Some(above) = left.pop() {
        let Some(directory) = open(top, &above)? else { continue };
        for name in noted_in(&directory)?.names() {
            let Some(one) = look(top, [&above[..], &[name.to_owned()]].concat())? else { continue };
            if !one.is_image && one.below.len() < DEPTH_MAX {
                left.push(one.below.clone());
            }
            found.push(one);
        }
    }
    Ok(found)
}

/// The copy at a place, if there is one. A copy with a damaged record is skipped; the damage is reported when the copy
/// is opened.
fn look(top: &Directory, below: Place) -> Result<Option<Kept>, MirrorError> {
    let Some(spot) = spot(top, &below)? else { return Ok(None) };
    let Some(found) = stat(&spot)? else { return Ok(None) };
    let is_image = !is_directory(&found);
    let Ok(record) = record_of(&spot, is_image) else { return Ok(None) };
    let Ok(Some((record, _))) = Record::load(&record) else { return Ok(None) };
    if is_image && record.inode != found.st_ino {
        return Ok(None);
    }
    let unfinished = record.progress.map(|progress| progress.to);
    Ok(Some(Kept { below, is_image, source: record.source, held: record.held, unfinished }))
}

/// The state of moves.
struct Work<'a> {
    top: &'a Directory,
    moves: &'a [Move],
    /// For each move, whether the copy is an image.
    is_image: Vec<bool>,
    /// For each move, whether the copy leaves its place.
    goes: Vec<bool>,
    outcomes: Vec<Result<(), MirrorError>>,
    /// For each move, the current place of the copy.
    at: Vec<Place>,
}

impl<'a> Work<'a> {
    fn new(top: &'a Directory, moves: &'a [Move], there: &[Kept]) -> Self {
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

    /// The moves that are still to be done, indexed by the place that `of` returns.
    fn going(&self, of: impl Fn(&'a Move) -> &'a Place) -> HashMap<&'a [String], usize> {
        let numbers = (0..self.moves.len()).filter(|at| self.goes[*at] && self.outcomes[*at].is_ok());
        numbers.map(|at| (&of(&self.moves[at])[..], at)).collect()
    }

    /// Finds obstacles for the moves, also those that arise because another move is not possible.
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

    /// Moves all copies to where they wait, children before parents. If one of them cannot be moved, the others move
    /// back and `false` is returned. Then the moves must be checked again.
    fn take_away(&mut self) -> Result<bool, MirrorError> {
        let mut order: Vec<usize> = self.going(|one| &one.from).into_values().collect();
        order.sort_by_key(|at| std::cmp::Reverse(self.moves[*at].from.len()));
        let waiting = [RECORD_DIRECTORY.to_owned(), WAITING.to_owned()];
        if !order.is_empty() {
            make(&own_of(self.top)?, WAITING)?;
        }
        let mut number = 0;
        for (done, at) in order.iter().enumerate() {
            if self.moves[*at].from.starts_with(&waiting) {
                continue;
            }
            let place = loop {
                let place = [&waiting[..], &[format!("w{number}")]].concat();
                number += 1;
                let Some(spot) = spot(self.top, &place)? else { break place };
                if stat(&spot)?.is_none() {
                    break place;
                }
            };
            let moved = self.shift(*at, place);
            if let Err(error) = moved {
                self.outcomes[*at] = Err(error);
                for at in order[..done].iter().rev() {
                    // A copy that cannot move back waits, and is found there later.
                    let _ = self.shift(*at, self.moves[*at].from.clone());
                }
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Moves all copies to their new places, parents before children, and notes their new sources.
    fn put(&mut self) {
        let mut order: Vec<usize> = (0..self.moves.len()).filter(|at| self.outcomes[*at].is_ok()).collect();
        order.sort_by_key(|at| self.moves[*at].to.len());
        for at in order {
            let one = &self.moves[at];
            let put = match self.goes[at] {
                true => prepare(self.top, &one.to).and_then(|()| self.shift(at, one.to.clone())),
                false => Ok(()),
            };
            let record = || record_of(&there(self.top, &one.to)?, self.is_image[at]);
            self.outcomes[at] = put.and_then(|()| Record::rename(&record()?, &one.source));
        }
    }

    /// Moves one copy with its record, unless another process has locked it.
    fn shift(&mut self, at: usize, to: Place) -> Result<(), MirrorError> {
        if self.at[at] == to {
            return Ok(());
        }
        let (old, new) = (there(self.top, &self.at[at])?, there(self.top, &to)?);
        let is_image = self.is_image[at];
        let _lock = lock(&old, is_image)?;
        let times = [&old, &new].map(|spot| Times::of(&spot.directory));
        match is_image {
            // For a moment the record is in both places. It is valid only where the image is.
            true => {
                let records = [record_of(&old, true)?, record_of(&new, true)?];
                let copied = Record::copy(&records[0], &records[1]);
                copied.and_then(|()| rename(&old, &new))?;
                let removed = records[0].directory.unlink(&records[0].name);
                removed.map_err(MirrorError::local(&old.path(), "remove its old record"))?;
            }
            false => rename(&old, &new)?,
        }
        times.into_iter().flatten().for_each(|times| times.put_back());
        self.at[at] = to;
        Ok(())
    }
}

/// The old and new places of all moves.
struct Plan<'a> {
    from: HashMap<&'a [String], usize>,
    to: HashMap<&'a [String], usize>,
    /// Places that a copy cannot reach. Nothing may be moved below them either.
    refused: HashSet<&'a [String]>,
}

impl Plan<'_> {
    /// The current place of the node that would be at `place` after all other moves, if nothing were moved there.
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

    /// The obstacle that prevents moving a copy to a place.
    fn in_the_way(
        &self,
        top: &Directory,
        moves: &[Move],
        place: &[String],
    ) -> Result<Option<PathBuf>, MirrorError> {
        let found = |place: &[String]| -> Result<Option<(Spot, Stat)>, MirrorError> {
            let Some(now) = self.now(moves, place) else { return Ok(None) };
            let Some(spot) = spot(top, &now)? else { return Ok(None) };
            Ok(stat(&spot)?.map(|found| (spot, found)))
        };
        if let Some((spot, found)) = found(place)?
            && (!is_directory(&found) || !enter(&spot)?.is_empty())
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
                Some((spot, found)) if is_directory(&found) => {
                    let names = enter(&spot)?;
                    if names.iter().any(|name| name == RECORD_DIRECTORY.as_bytes()) {
                        break;
                    }
                    if !names.is_empty() {
                        return Ok(Some(path_of(top, above)));
                    }
                }
                Some(_) => return Ok(Some(path_of(top, above))),
            }
        }
        Ok(None)
    }
}

/// Creates the directories above a place, and notes in each that the next one is a copy of its own.
fn prepare(top: &Directory, place: &[String]) -> Result<(), MirrorError> {
    let mut directory = top.clone();
    for (len, name) in place.iter().enumerate() {
        if len > 0 {
            let above = &place[len - 1];
            make(&directory, above)?;
            directory = enter_copy(&directory, above.as_bytes())
                .map_err(MirrorError::local(&directory.path_of(above.as_bytes()), "open the directory"))?;
        }
        make(&directory, RECORD_DIRECTORY)?;
        let own = own_of(&directory)?;
        Nested::load(&own)?.note(&own, name.as_bytes())?;
    }
    // An image cannot replace an empty directory, so it is removed. A directory can.
    let Some(name) = place.last() else { return Ok(()) };
    match rustix::fs::unlinkat(&directory, name.as_str(), AtFlags::REMOVEDIR).map_err(io::Error::from) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(MirrorError::local(&directory.path_of(name.as_bytes()), "remove the empty directory")(error))
        }
        _ => Ok(()),
    }
}

/// Removes the waiting directory, with the records of images that have moved on.
fn clear(own: &Directory) {
    let waiting = own.child(WAITING.as_bytes()).and_then(|waiting| waiting.names());
    if waiting.is_ok_and(|names| names.iter().all(|name| name.starts_with(b"."))) {
        let _ = crate::beneath::remove_all(own.as_fd(), WAITING.as_bytes());
    }
}

/// Renames without replacing anything.
fn rename(old: &Spot, new: &Spot) -> Result<(), MirrorError> {
    let (from, to) = (&old.directory, &new.directory);
    let (old_name, new_name) = (old.name.as_slice(), new.name.as_slice());
    let renamed = match rustix::fs::renameat_with(from, old_name, to, new_name, RenameFlags::NOREPLACE) {
        // Not every filesystem supports this. The target was checked before.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => {
            rustix::fs::renameat(from, old_name, to, new_name)
        }
        done => done,
    };
    let step = "move it to where its dataset was renamed to";
    renamed.map_err(|error| MirrorError::local(&old.path(), step)(error.into()))?;
    for above in [from, to] {
        above.sync().map_err(MirrorError::local(above.path(), "sync"))?;
    }
    Ok(())
}

/// Locks a copy in the same way as a sync does.
fn lock(copy: &Spot, is_image: bool) -> Result<OwnedFd, MirrorError> {
    let path = copy.path();
    let local = |step| MirrorError::local(&path, step);
    let file = match is_image {
        true => {
            copy.directory.open_file(&copy.name, OFlags::RDONLY).map_err(local("open it"))?.map(OwnedFd::from)
        }
        false => {
            let directory = enter_copy(&copy.directory, &copy.name).map_err(local("open it"))?;
            let own = own_of(&directory)?;
            Some(own.as_fd().try_clone_to_owned().map_err(local("open it"))?)
        }
    };
    let Some(file) = file else { return Err(MirrorError::NotKept { path }) };
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(_) => Err(MirrorError::Busy { path }),
    }
}

/// The mtime of a directory. Moving copies does not count as a change, so it is restored.
struct Times {
    directory: Directory,
    mtime: Timespec,
}

impl Times {
    fn of(directory: &Directory) -> Option<Self> {
        let found = rustix::fs::fstat(directory).ok()?;
        #[allow(clippy::unnecessary_cast)]
        let mtime = Timespec { tv_sec: found.st_mtime as i64, tv_nsec: found.st_mtime_nsec as i64 };
        Some(Self { directory: directory.clone(), mtime })
    }

    fn put_back(self) {
        let omitted = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        let times = Timestamps { last_access: omitted, last_modification: self.mtime };
        // If this fails, the next change of the directory sets the time anyway.
        let _ = rustix::fs::futimens(&self.directory, &times);
    }
}

/// The path of a place, for messages.
fn path_of(top: &Directory, below: &[String]) -> PathBuf {
    below.iter().fold(top.path().to_owned(), |path, name| path.join(name))
}

/// Opens the directory at a place. `None` if there is none. Waiting copies are below the record's directory of the top.
fn open(top: &Directory, place: &[String]) -> Result<Option<Directory>, MirrorError> {
    let mut directory = top.clone();
    for (len, name) in place.iter().enumerate() {
        let opened = match place.first().is_some_and(|first| first == RECORD_DIRECTORY) && len < 2 {
            true => directory.child(name.as_bytes()),
            false => enter_copy(&directory, name.as_bytes()),
        };
        directory = match opened {
            Ok(opened) => opened,
            Err(error) if super::tree::is_missing(&error) => return Ok(None),
            // A separate disk without a copy is not entered.
            Err(error) if error.kind() == io::ErrorKind::CrossesDevices => return Ok(None),
            Err(error) => return Err(MirrorError::local(&path_of(top, place), "open the directory")(error)),
        };
    }
    Ok(Some(directory))
}

/// The place in its open parent directory. `None` if the parent does not exist.
fn spot(top: &Directory, place: &[String]) -> Result<Option<Spot>, MirrorError> {
    let Some((name, above)) = place.split_last() else { return Ok(None) };
    Ok(open(top, above)?.map(|directory| directory.place(name.as_bytes())))
}

/// Like [`spot`], but the parent must exist.
fn there(top: &Directory, place: &[String]) -> Result<Spot, MirrorError> {
    spot(top, place)?.ok_or_else(|| MirrorError::NotKept { path: path_of(top, place) })
}

/// The place of a copy's record.
fn record_of(copy: &Spot, is_image: bool) -> Result<Spot, MirrorError> {
    if is_image {
        return Ok(copy.directory.place(&record_of_image(&copy.name)));
    }
    let directory = enter_copy(&copy.directory, &copy.name);
    let directory = directory.map_err(MirrorError::local(&copy.path(), "open the directory"))?;
    Ok(own_of(&directory)?.place(RECORD))
}

/// The copies below a directory that its record names. Empty if it has no record.
fn noted_in(directory: &Directory) -> Result<Nested, MirrorError> {
    let found = stat(&directory.place(RECORD_DIRECTORY.as_bytes()))?;
    match found.is_some_and(|found| is_directory(&found)) {
        true => Nested::load(&own_of(directory)?),
        false => Ok(Nested::default()),
    }
}

fn is_directory(found: &Stat) -> bool {
    FileType::from_raw_mode(found.st_mode).is_dir()
}

/// The `lstat` data of a place.
fn stat(spot: &Spot) -> Result<Option<Stat>, MirrorError> {
    spot.stat().map_err(MirrorError::local(&spot.path(), "look at what is there"))
}

fn make(directory: &Directory, name: &str) -> Result<(), MirrorError> {
    let made = directory.make(name.as_bytes());
    made.map_err(MirrorError::local(&directory.path_of(name.as_bytes()), "make the directory"))
}

/// The names in the directory at a place.
fn enter(spot: &Spot) -> Result<Vec<Vec<u8>>, MirrorError> {
    let names = enter_copy(&spot.directory, &spot.name).and_then(|directory| directory.names());
    names.map_err(MirrorError::local(&spot.path(), "read the directory"))
}

/// The waiting copies, without the records of images.
fn waiting_in(top: &Directory) -> Result<Vec<String>, MirrorError> {
    let own = own_of(top)?;
    let waiting = own.place(WAITING.as_bytes());
    if stat(&waiting)?.is_none() {
        return Ok(Vec::new());
    }
    let names = own.child(WAITING.as_bytes()).and_then(|waiting| waiting.names());
    let names = names.map_err(MirrorError::local(&waiting.path(), "read the directory"))?;
    let names = names.into_iter().filter_map(|name| String::from_utf8(name).ok());
    let mut found: Vec<String> = names.filter(|name| !name.starts_with('.')).collect();
    found.sort_unstable();
    Ok(found)
}
