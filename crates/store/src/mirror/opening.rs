//! Opening the members of a mirror, of which some may not answer.
//!
//! Which of them are waited for: `docs/format/store.md`, "Stores that do not answer".

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::locate::{member_at, why_not_there};

use super::open::{self, Entry};
use crate::{Access, Location, MirrorMember, Pending, QUIET, Result, Store, StoreError, single};

/// How often others are looked at while one is waited for.
const STEP: Duration = Duration::from_millis(50);

/// A member that was opened, and its newest publication.
struct Opened {
    store: Box<dyn Store>,
    newest: Option<Entry>,
}

/// What is wrong with one member alone is no error.
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

    /// Waits until so much time has passed since the opening began.
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

/// Opens the members of the mirrored pool `pool` at these places. One that does not answer is waited for for `deadman`, or not
/// at all if others say that it is not written to. Says, too, whether one was waited for in vain.
///
/// # Errors
/// `Locked` when another process has any of them; `Io` when one may not be opened.
pub(super) fn open_all(
    places: Vec<(u64, PathBuf)>,
    pool: (u64, Option<u32>),
    access: Access,
    deadman: Duration,
) -> Result<(Vec<MirrorMember>, bool)> {
    let mut openings: Vec<Opening> = Vec::new();
    // In one order for everybody, so that two who try at once do not take one member each. The first that is locked ends it: its
    // owner is asked what was wanted, and knows who does not answer.
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

/// Whether a member is written to, by what those that have answered say.
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

/// Whether it says more of who opens than of the member.
fn is_everybodys(error: &StoreError) -> bool {
    use std::io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
    match error {
        StoreError::Locked { .. } => true,
        StoreError::Io { source, .. } => matches!(source.kind(), PermissionDenied | ReadOnlyFilesystem),
        _ => false,
    }
}
