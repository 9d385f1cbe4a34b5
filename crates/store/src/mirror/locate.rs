//! Creating and opening mirrors by the paths of their members. The label of each member names all of them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::change::member_guid;
use super::open::{OpenOptions, SEGMENT_LEN_MAX};
use super::{MirrorStore, opening};
use crate::label::{Label, MEMBERS_MAX, MirrorLabel, PoolLabel};
use crate::{
    Access, CreateOptions, DEADMAN, FileStore, Location, MirrorMember, Pending, QUIET, Result, Store,
    StoreError, pending, runtime, single, trusted,
};

/// Maximum number of directory entries that are searched for a member that is not at its last path.
const SIBLINGS_MAX: usize = 256;

/// Creates a mirror with a member at each of `locations`.
///
/// # Errors
/// The same as [`create`](crate::create) for any of them; `Invalid` for too few or too many members, or for a
/// duplicate.
pub(crate) fn create(locations: &[Location], options: &CreateOptions) -> Result<Box<dyn Store>> {
    let first = locations.first().map(|first| first.path().to_owned()).unwrap_or_default();
    let distinct: BTreeSet<&Path> = locations.iter().map(Location::path).collect();
    if locations.len() < 2 || locations.len() > MEMBERS_MAX || distinct.len() < locations.len() {
        let why = format!("a mirror has 2 to {MEMBERS_MAX} members, all of them different");
        return Err(StoreError::Invalid { path: first, why });
    }
    let mut segment_len = SEGMENT_LEN_MAX;
    for location in locations {
        if let Location::File(path) = location {
            segment_len = segment_len.min(FileStore::slot_len(path, options)?);
        }
    }
    let mut members: Vec<MirrorMember> = Vec::new();
    for (location, place) in locations.iter().zip(0..) {
        let size = options.size.filter(|_| matches!(location, Location::File(_)));
        let made = single::create_member(location, &CreateOptions { size, ..options.clone() }, segment_len);
        let made = made.map(|store| (std::fs::canonicalize(location.path()).ok(), store));
        match made {
            Ok((path, store)) => members.push(MirrorMember {
                guid: member_guid(options.label.guid, 0, place),
                path: path.unwrap_or_else(|| location.path().to_owned()),
                store: Ok(store),
            }),
            Err(error) => {
                wipe(&members);
                return Err(error);
            }
        }
    }
    let list: Vec<_> = members.iter().map(|member| (member.guid, member.path.clone())).collect();
    for member in &members {
        let label = MirrorLabel { member: member.guid, members: list.clone() };
        if let Ok(store) = &member.store
            && let Err(error) = store.set_mirror(Some(&label))
        {
            wipe(&members);
            return Err(error);
        }
    }
    let socket = runtime::mirror_socket(options.label.guid);
    let options = OpenOptions { access: Access::ReadWrite, guid: options.label.guid, socket };
    Ok(Box::new(MirrorStore::assemble_with(members, options)?))
}

fn wipe(members: &[MirrorMember]) {
    for store in members.iter().filter_map(|member| member.store.as_ref().ok()) {
        // Ignore errors: the creation has failed already, and no store has a label that could be opened.
        let _ = store.destroy();
    }
}

/// The members of a pool that were found.
#[derive(Debug, Default)]
struct Found {
    /// Each member that was found: its path, and the members that its label lists.
    here: BTreeMap<u64, (PathBuf, Vec<(u64, PathBuf)>)>,
    /// The last known path of each member.
    hints: BTreeMap<u64, PathBuf>,
    /// Paths that did not answer.
    silent: BTreeSet<PathBuf>,
}

impl Found {
    /// Whether a search in other places cannot find more members.
    fn is_complete(&self) -> bool {
        self.hints.iter().all(|(guid, hint)| self.here.contains_key(guid) || self.silent.contains(hint))
    }

    /// Each member, with its path or its last known path.
    fn places(&self) -> Vec<(u64, PathBuf)> {
        let here = |guid| self.here.get(guid).map(|(path, _)| path.clone());
        self.hints.iter().map(|(guid, hint)| (*guid, here(guid).unwrap_or_else(|| hint.clone()))).collect()
    }
}

/// Finds the members of a mirror, starting with the label of the member at `path`. The label may be forged, so only
/// paths are opened that belong to the same user.
fn find(path: &Path, pool: &PoolLabel, mirror: &MirrorLabel) -> Found {
    let owner = trusted::owner_soon(path);
    let mut found = Found::default();
    let mut queue: VecDeque<PathBuf> =
        std::iter::once(path.to_owned()).chain(mirror.members.iter().map(|(_, path)| path.clone())).collect();
    let mut seen = BTreeSet::new();
    let mut is_scanned = false;
    loop {
        while let Some(path) = queue.pop_front() {
            if !seen.insert(path.clone()) {
                continue;
            }
            let (place, guid) = (path.clone(), pool.guid);
            let asked = Pending::ask(move || {
                let path = std::fs::canonicalize(&place).unwrap_or(place);
                Some((member_at(&path, guid, owner)?, path))
            });
            let Some(answer) = asked.within(QUIET) else {
                found.silent.insert(path);
                continue;
            };
            let Some(((guid, members), path)) = answer else { continue };
            queue.extend(members.iter().map(|(_, path)| path.clone()));
            for (guid, hint) in &members {
                found.hints.entry(*guid).or_insert_with(|| hint.clone());
            }
            found.here.entry(guid).or_insert((path, members));
        }
        if found.is_complete() || is_scanned {
            return found;
        }
        is_scanned = true;
        queue.extend(siblings(path));
    }
}

/// The paths in the directory that contains `path`.
fn siblings(path: &Path) -> Vec<PathBuf> {
    let entries = path.parent().and_then(|parent| std::fs::read_dir(parent).ok());
    let entries = entries.into_iter().flatten().take(SIBLINGS_MAX);
    entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
}

/// Reads the guid of the member at a path, and the members that its label lists. `None` unless the path belongs
/// to `owner`, the owner of the pool, or both its user and `owner` are trusted.
pub(super) fn member_at(path: &Path, pool: u64, owner: Option<u32>) -> Option<(u64, Vec<(u64, PathBuf)>)> {
    let found = trusted::owner(path)?;
    let is_trusted = owner.is_none_or(trusted::is_trusted) && trusted::is_trusted(found);
    if owner != Some(found) && !is_trusted {
        return None;
    }
    let label = single::whole_label(&Location::detect(path).ok()?).ok()?;
    let mirror = label.mirror.filter(|_| label.pool.guid == pool)?;
    Some((mirror.member, mirror.members))
}

/// Opens the mirror that the store at `location` is a member of.
///
/// # Errors
/// `Locked` when another process uses any of the members; the errors of [`MirrorStore::assemble`].
pub(crate) fn open(location: &Location, label: &Label, access: Access) -> Result<Box<dyn Store>> {
    open_within(location, label, access, DEADMAN)
}

/// The same as [`open`], with a given limit for waiting for a member.
pub(super) fn open_within(
    location: &Location,
    label: &Label,
    access: Access,
    deadman: Duration,
) -> Result<Box<dyn Store>> {
    let Some(mirror) = &label.mirror else { return single::open_member(location, access) };
    let path = pending::canonical(location.path());
    let found = find(&path, &label.pool, mirror);
    let pool = (label.pool.guid, trusted::owner_soon(&path));
    let (members, is_silent) = opening::open_all(found.places(), pool, access, deadman)?;
    let socket = runtime::mirror_socket(label.pool.guid);
    let options = OpenOptions { access, guid: label.pool.guid, socket };
    let mirror = MirrorStore::assemble_with(members, options)?;
    if access == Access::ReadWrite {
        let wanted: BTreeSet<_> = MirrorStore::labels(&mirror.state.read()).into_iter().collect();
        let is_told = |(_, list): &(PathBuf, Vec<_>)| list.iter().cloned().collect::<BTreeSet<_>>() == wanted;
        if !found.here.values().all(is_told) {
            mirror.write_labels()?;
        }
        if is_silent {
            // Publish the state, so that the next owner does not wait for the same member.
            mirror.settle()?;
        }
    }
    Ok(Box::new(mirror))
}

pub(super) fn why_not_there(path: &Path) -> String {
    match path.exists() {
        true => "what is there is not this member".to_owned(),
        false => "cannot open: there is nothing".to_owned(),
    }
}

/// Renames a mirrored pool on all members that can be reached.
///
/// # Errors
/// The same as [`set_label`](crate::set_label).
pub(crate) fn set_label(location: &Location, old: &Label, label: &PoolLabel) -> Result<()> {
    let Some(mirror) = &old.mirror else { return single::set_label_single(location, label) };
    for (path, _) in find(location.path(), &old.pool, mirror).here.values() {
        single::set_label_single(&Location::detect(path)?, label)?;
    }
    Ok(())
}

/// Converts the pool at `location`, which has a single store, to a mirror with one member, to which others can be
/// attached. The pool must have no owner at this moment.
///
/// # Errors
/// The same as [`open`](crate::open).
pub fn attach_to_single(location: &Location) -> Result<()> {
    let label = single::whole_label(location)?;
    if label.mirror.is_some() {
        return Ok(());
    }
    let path = std::fs::canonicalize(location.path()).unwrap_or_else(|_| location.path().to_owned());
    let guid = member_guid(label.pool.guid, 0, 0);
    let store = single::open_single(location, Access::ReadWrite)?;
    store.set_mirror(Some(&MirrorLabel { member: guid, members: vec![(guid, path)] }))
}

impl MirrorStore {
    /// Makes a store at `location` and [attaches](Self::attach) it. The label of the options is the pool's.
    ///
    /// # Errors
    /// The same as [`create`](crate::create) and [`attach`](Self::attach).
    pub fn attach_at(
        &self,
        location: &Location,
        options: &CreateOptions,
        replaces: Option<u64>,
    ) -> Result<()> {
        let (place, options, segment_len) = (location.clone(), options.clone(), self.segment_capacity());
        let store = self.bounded("make a pool in", location.path(), move || {
            single::create_member(&place, &options, segment_len)
        })?;
        let path = pending::canonical(location.path());
        let guid = self.new_guid();
        let label = MirrorLabel { member: guid, members: Self::labels(&self.state.read()) };
        let attached = store.set_mirror(Some(&label)).and_then(|()| {
            self.attach(MirrorMember { guid, path: path.clone(), store: Ok(store) }, replaces)
        });
        if attached.is_err() && !self.members().iter().any(|member| member.guid == guid) {
            // Destroy the new store, and return the error of attaching it.
            let unwanted = single::open_single(location, Access::ReadWrite);
            let _ = unwanted.and_then(|store| store.destroy());
        }
        attached
    }

    /// Brings a member [online](Self::online) that is where it was last found.
    ///
    /// # Errors
    /// The same as [`online`](Self::online); `Invalid` when another store is there; `NoAnswer`.
    pub fn online_again(&self, guid: u64) -> Result<()> {
        self.has_answered(guid)?;
        let path = self.path_of(guid).unwrap_or_default();
        let (place, pool) = (path.clone(), self.pool_guid());
        self.bounded("look at", &path, move || match member_at(&place, pool, None) {
            Some((found, _)) if found == guid => Ok(()),
            _ => Err(StoreError::Invalid { why: why_not_there(&place), path: place }),
        })?;
        let (failed, place) = (self.take_failed(guid), path.clone());
        let store = self.bounded("open", &path, move || {
            // Dropping the failed store releases its lock.
            drop(failed);
            single::open_member(&Location::detect(&place)?, Access::ReadWrite)
        })?;
        self.online(guid, path, store)
    }

    /// Runs `work`, and waits for it no longer than for an answer of a member.
    fn bounded<T: Send + 'static>(
        &self,
        op: &'static str,
        path: &Path,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let deadman = *self.deadman.lock();
        let no_answer = StoreError::NoAnswer { op, path: path.to_owned(), since: deadman };
        Pending::ask(work).within(deadman).unwrap_or(Err(no_answer))
    }

    /// Takes the store of a failed member out of the mirror, so that it can be closed and opened again.
    fn take_failed(&self, guid: u64) -> Option<Box<dyn Store>> {
        let mut state = self.state.write();
        state.members.iter_mut().find(|member| member.guid == guid && !member.written)?.store.take()
    }
}
