//! Opening the members of a mirror, some of which may not answer.
//!
//! Which members are waited for: `docs/format/store.md`, "Stores that do not answer".

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::locate::{member_at, why_not_there};

use super::open::{self, Entry};
use crate::{Access, Location, MirrorMember, Pending, QUIET, Result, Store, StoreError, single};

/// How often other members are checked while one is waited for.
const STEP: Duration = Duration::from_millis(50);

/// An opened member, and its newest publication.
struct Opened {
    store: Box<dyn Store>,
    newest: Option<Entry>,
}

/// The inner error concerns only this member. The outer one ends the opening of the mirror.
type Answer = Result<std::result::Result<Opened, String>>;

/// A member that is being opened.
struct Opening {
    guid: u64,
    path: PathBuf,
    asked: Pending<Answer>,
    opened: Option<std::result::Result<Opened, String>>,
}

impl Opening {
    fn begin((guid, path): (u64, PathBuf), (pool, owner): (u64, Option<u32>), access: Access) -> Self {
        let place = path.clone();
        let asked = Pending::ask(move || match member_at(&place, pool, owner) {
            Some((found, _)) if found == guid => open_member(&place, access),
            _ => Ok(Err(why_not_there(&place))),
        });
        Self { guid, path, asked, opened: None }
    }

    /// Waits until `wait` has passed since the start of the opening.
    fn wait(&mut self, wait: Duration) -> Result<()> {
        if self.opened.is_none() {
            self.opened = self.asked.within(wait).transpose()?;
        }
        Ok(())
    }

    fn newest(&self) -> Option<&Entry> {
        self.opened.as_ref()?.as_ref().ok()?.newest.as_ref()
    }

    fn done(self) -> MirrorMember {
        let silent = || match self.asked.since().as_secs() {
            0 => Err("cannot open: it does not answer".to_owned()),
            secs => Err(format!("cannot open: no answer for {secs} s")),
        };
        let store = self.opened.map_or_else(silent, |opened| opened.map(|opened| opened.store));
        MirrorMember { guid: self.guid, path: self.path, store }
    }
}

/// Opens the members of the mirrored pool `pool` at these places. A member that does not answer is waited for until
/// `deadman` has passed, or not at all if the others record that it is not written to. Also returns whether a member
/// was waited for in vain.
///
/// # Errors
/// `Locked` when another process uses any of them; `Io` when this process may not open one.
pub(super) fn open_all(
    places: Vec<(u64, PathBuf)>,
    pool: (u64, Option<u32>),
    access: Access,
    deadman: Duration,
) -> Result<(Vec<MirrorMember>, bool)> {
    let mut openings: Vec<Opening> = Vec::new();
    // All processes open the members in the same order, so that two processes do not each get one member. The first
    // lock that is held ends the opening. The caller then asks the owner, who knows which members do not answer.
    for place in places {
        let mut opening = Opening::begin(place, pool, access);
        opening.wait(QUIET)?;
        openings.push(opening);
    }
    while let Some(at) = openings.iter().position(|one| {
        one.opened.is_none() && one.asked.since() < deadman && is_written(&openings, one.guid)
    }) {
        let until = openings.get(at).map(|awaited| awaited.asked.since() + STEP).unwrap_or_default();
        openings.get_mut(at).map_or(Ok(()), |awaited| awaited.wait(until.min(deadman)))?;
        openings.iter_mut().try_for_each(|other| other.wait(Duration::ZERO))?;
    }
    let is_silent = openings.iter().any(|one| one.opened.is_none() && is_written(&openings, one.guid));
    Ok((openings.into_iter().map(Opening::done).collect(), is_silent))
}

/// Whether a member is written to, according to the newest publication of those that have answered.
fn is_written(openings: &[Opening], guid: u64) -> bool {
    let newest = openings.iter().filter_map(Opening::newest).max_by_key(|entry| entry.place());
    let known = newest.and_then(|entry| entry.record.as_ref()?.members.iter().find(|it| it.guid == guid));
    known.is_none_or(|known| known.written && !known.offline)
}

fn open_member(path: &Path, access: Access) -> Answer {
    let opened = Location::detect(path).and_then(|location| single::open_member(&location, access));
    let read = opened.and_then(|store| {
        let newest = open::entries(store.uberblocks()?).into_iter().max_by_key(Entry::place);
        Ok(Opened { store, newest })
    });
    match read {
        Ok(opened) => Ok(Ok(opened)),
        Err(error) if is_everybodys(&error) => Err(error),
        Err(error) => Ok(Err(error.to_string())),
    }
}

/// Whether the error concerns the process that opens the mirror, and not only this member.
fn is_everybodys(error: &StoreError) -> bool {
    use std::io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
    match error {
        StoreError::Locked { .. } => true,
        StoreError::Io { source, .. } => matches!(source.kind(), PermissionDenied | ReadOnlyFilesystem),
        _ => false,
    }
}
