//! Members of a mirror by their paths: each one's label names all of them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};

use super::MirrorStore;
use super::change::member_guid;
use super::member::MirrorMember;
use super::open::{OpenOptions, SEGMENT_LEN_MAX};
use crate::label::{Label, MEMBERS_MAX, MirrorLabel, PoolLabel};
use crate::{Access, CreateOptions, FileStore, Location, Result, Store, StoreError, location, runtime};

/// Members that are not where they were are looked for beside one that is, among so many at most.
const SIBLINGS_MAX: usize = 256;

/// Makes a new mirror of what is at these places.
///
/// # Errors
/// As [`create`](crate::create), of any of them; `Invalid` for too few, too many, or one twice.
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
        let made = location::create_member(location, &CreateOptions { size, ..options.clone() }, segment_len);
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
    let socket = runtime::mirror_socket(options.label.guid, &first);
    let options = OpenOptions { access: Access::ReadWrite, guid: options.label.guid, socket };
    Ok(Box::new(MirrorStore::assemble_with(members, options)?))
}

fn wipe(members: &[MirrorMember]) {
    for store in members.iter().filter_map(|member| member.store.as_ref().ok()) {
        // It failed already; what is left has no label of a pool that could be opened.
        let _ = store.destroy();
    }
}

/// Where the members of a pool are.
#[derive(Debug, Default)]
struct Found {
    /// Of each member that was found: where, and what its label says of the others.
    here: BTreeMap<u64, (PathBuf, Vec<(u64, PathBuf)>)>,
    /// Where the others were last seen.
    hints: BTreeMap<u64, PathBuf>,
}

/// Finds the members of the mirror of which `label` is a member's, at `path`.
fn find(path: &Path, pool: &PoolLabel, mirror: &MirrorLabel) -> Found {
    let mut found = Found::default();
    let mut queue: VecDeque<PathBuf> =
        std::iter::once(path.to_owned()).chain(mirror.members.iter().map(|(_, path)| path.clone())).collect();
    let mut seen = BTreeSet::new();
    let mut is_scanned = false;
    loop {
        while let Some(path) = queue.pop_front() {
            let path = std::fs::canonicalize(&path).unwrap_or(path);
            if !seen.insert(path.clone()) {
                continue;
            }
            let Some((guid, members)) = member_at(&path, pool.guid) else { continue };
            queue.extend(members.iter().map(|(_, path)| path.clone()));
            for (guid, hint) in &members {
                found.hints.entry(*guid).or_insert_with(|| hint.clone());
            }
            found.here.entry(guid).or_insert((path, members));
        }
        let is_complete = found.hints.keys().all(|guid| found.here.contains_key(guid));
        if is_complete || is_scanned {
            return found;
        }
        is_scanned = true;
        queue.extend(siblings(path));
    }
}

/// What is in the directory around a path.
fn siblings(path: &Path) -> Vec<PathBuf> {
    let entries = path.parent().and_then(|parent| std::fs::read_dir(parent).ok());
    let entries = entries.into_iter().flatten().take(SIBLINGS_MAX);
    entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
}

/// The guid of the member of a pool at a path, and what its label says of all.
fn member_at(path: &Path, pool: u64) -> Option<(u64, Vec<(u64, PathBuf)>)> {
    if !path.exists() {
        return None;
    }
    let label = location::whole_label(&Location::detect(path).ok()?).ok()?;
    let mirror = label.mirror.filter(|_| label.pool.guid == pool)?;
    Some((mirror.member, mirror.members))
}

/// Opens the mirror of which the store at `location` is a member.
///
/// # Errors
/// `Locked` when another process has any of its members; as [`MirrorStore::assemble`].
pub(crate) fn open(location: &Location, label: &Label, access: Access) -> Result<Box<dyn Store>> {
    let Some(mirror) = &label.mirror else { return location::open_member(location, access) };
    let path = std::fs::canonicalize(location.path()).unwrap_or_else(|_| location.path().to_owned());
    let found = find(&path, &label.pool, mirror);
    // In one order for everybody, so that two who try at once do not take one member each.
    let mut members = Vec::new();
    for (guid, hint) in &found.hints {
        let (path, store) = match found.here.get(guid) {
            Some((path, _)) => (path.clone(), open_member(path, access)?),
            None => (hint.clone(), Err(why_not_there(hint))),
        };
        members.push(MirrorMember { guid: *guid, path, store });
    }
    let socket = runtime::mirror_socket(label.pool.guid, &path);
    let options = OpenOptions { access, guid: label.pool.guid, socket };
    let mirror = MirrorStore::assemble_with(members, options)?;
    if access == Access::ReadWrite {
        let wanted: BTreeSet<_> = MirrorStore::labels(&mirror.state.read()).into_iter().collect();
        let is_told = |(_, list): &(PathBuf, Vec<_>)| list.iter().cloned().collect::<BTreeSet<_>>() == wanted;
        if !found.here.values().all(is_told) {
            mirror.write_labels()?;
        }
    }
    Ok(Box::new(mirror))
}

/// Opens one member; what is wrong with it alone is no error.
fn open_member(path: &Path, access: Access) -> Result<std::result::Result<Box<dyn Store>, String>> {
    let opened = Location::detect(path).and_then(|location| location::open_member(&location, access));
    match opened {
        Ok(store) => Ok(Ok(store)),
        Err(error @ StoreError::Locked { .. }) => Err(error),
        Err(StoreError::Io { op, path, source })
            if matches!(
                source.kind(),
                std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem
            ) =>
        {
            Err(StoreError::Io { op, path, source })
        }
        Err(error) => Ok(Err(error.to_string())),
    }
}

fn why_not_there(path: &Path) -> String {
    match path.exists() {
        true => "what is there is not this member".to_owned(),
        false => "cannot open: there is nothing".to_owned(),
    }
}

/// Gives a mirrored pool another name, on all members that are there.
///
/// # Errors
/// As [`set_label`](crate::set_label).
pub(crate) fn set_label(location: &Location, old: &Label, label: &PoolLabel) -> Result<()> {
    let Some(mirror) = &old.mirror else { return location::set_label_single(location, label) };
    for (path, _) in find(location.path(), &old.pool, mirror).here.values() {
        location::set_label_single(&Location::detect(path)?, label)?;
    }
    Ok(())
}

/// Makes the pool at `location`, which is on one store, a mirror of one member, to which others can be attached. Nobody
/// may own it at this moment.
///
/// # Errors
/// As [`open`](crate::open).
pub fn attach_to_single(location: &Location) -> Result<()> {
    let label = location::whole_label(location)?;
    if label.mirror.is_some() {
        return Ok(());
    }
    let path = std::fs::canonicalize(location.path()).unwrap_or_else(|_| location.path().to_owned());
    let guid = member_guid(label.pool.guid, 0, 0);
    let store = location::open_single(location, Access::ReadWrite)?;
    store.set_mirror(Some(&MirrorLabel { member: guid, members: vec![(guid, path)] }))
}

impl MirrorStore {
    /// Makes a store at `location` and [attaches](Self::attach) it. The options' label is the pool's.
    ///
    /// # Errors
    /// As [`create`](crate::create) and [`attach`](Self::attach).
    pub fn attach_at(
        &self,
        location: &Location,
        options: &CreateOptions,
        replaces: Option<u64>,
    ) -> Result<()> {
        let store = location::create_member(location, options, self.segment_capacity())?;
        let path = std::fs::canonicalize(location.path()).unwrap_or_else(|_| location.path().to_owned());
        let guid = self.new_guid();
        let label = MirrorLabel { member: guid, members: Self::labels(&self.state.read()) };
        let attached = store.set_mirror(Some(&label)).and_then(|()| {
            self.attach(MirrorMember { guid, path: path.clone(), store: Ok(store) }, replaces)
        });
        if attached.is_err() && !self.members().iter().any(|member| member.guid == guid) {
            // It is nobody's; that it could not be attached is the error to tell.
            let unwanted = location::open_single(location, Access::ReadWrite);
            let _ = unwanted.and_then(|store| store.destroy());
        }
        attached
    }

    /// Brings a member [online](Self::online) that is where it was last seen.
    ///
    /// # Errors
    /// As [`online`](Self::online); `Invalid` when what is there is not that member.
    pub fn online_again(&self, guid: u64) -> Result<()> {
        let path = self.path_of(guid).unwrap_or_default();
        match member_at(&path, self.pool_guid()) {
            Some((found, _)) if found == guid => {}
            _ => return Err(StoreError::Invalid { why: why_not_there(&path), path }),
        }
        self.has_answered(guid)?;
        self.close_failed(guid);
        let store = location::open_member(&Location::detect(&path)?, Access::ReadWrite)?;
        self.online(guid, path, store)
    }

    /// Lets go of the store of a member that failed, so that it can be opened afresh.
    fn close_failed(&self, guid: u64) {
        let mut state = self.state.write();
        if let Some(member) = state.members.iter_mut().find(|member| member.guid == guid && !member.written) {
            member.store = None;
        }
    }
}
