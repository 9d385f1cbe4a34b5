//! Where pools are looked for: what `--pool-dir` (or SNOWMELT_POOLS) names, then `$XDG_DATA_HOME/snowmelt/*`, then the
//! registry. Of pools with one name the first found counts; a pool found twice counts once.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use snowmelt_store::{Location, Pending, PoolLabel, QUIET, mirror_paths};

use super::asked::Asked;
use super::registry::Registry;
use super::{entry, shadow, stream_index};
use crate::context::Context;

/// A pool and where it is.
#[derive(Debug, Clone)]
pub struct KnownPool {
    /// Name and guid.
    pub label: PoolLabel,
    /// Where it is.
    pub location: Location,
}

/// All places to look.
#[derive(Debug, Clone)]
pub struct Places {
    named: Vec<PathBuf>,
    data_home: PathBuf,
    /// Where indexes of stream files are: pools that are found by name, and listed nowhere.
    indexes: PathBuf,
    /// Where shadows are: the same goes for them.
    shadows: PathBuf,
    registry: Registry,
    asked: Asked,
    /// Lists a directory.
    list: fn(&Path) -> Option<Vec<PathBuf>>,
}

/// Directories of pools that did not answer soon.
type Slow = RefCell<Vec<Pending<Option<Vec<PathBuf>>>>>;

impl Places {
    /// The places of a command: `named` is what its options name.
    pub fn new(context: &Context, named: &[PathBuf]) -> Self {
        let named = match (named, context.env("SNOWMELT_POOLS")) {
            ([], Some(list)) => std::env::split_paths(list).map(|path| context.path(path)).collect(),
            (named, _) => named.iter().map(|path| context.path(path)).collect(),
        };
        let home = |variable: &str, below: &str| match context.env(variable) {
            Some(path) if Path::new(path).is_absolute() => PathBuf::from(path),
            _ => Path::new(context.env("HOME").unwrap_or(OsStr::new("/"))).join(below),
        };
        let registry = match context.env("XDG_CONFIG_HOME") {
            None if rustix::process::geteuid().is_root() => PathBuf::from("/etc"),
            _ => home("XDG_CONFIG_HOME", ".config"),
        };
        Self {
            named,
            data_home: home("XDG_DATA_HOME", ".local/share").join("snowmelt"),
            indexes: home("XDG_CACHE_HOME", ".cache").join("snowmelt/streams"),
            shadows: home("XDG_STATE_HOME", ".local/state").join("snowmelt/shadow"),
            registry: Registry::new(registry.join("snowmelt/pools")),
            asked: Asked::new(context),
            list,
        }
    }

    /// Other places, none of the usual ones: for `pool import -d`.
    pub fn only(&self, named: Vec<PathBuf>) -> Self {
        Self {
            named,
            data_home: PathBuf::from("/nonexistent"),
            indexes: PathBuf::from("/nonexistent"),
            shadows: PathBuf::from("/nonexistent"),
            registry: Registry::new("/nonexistent/pools".into()),
            asked: self.asked.clone(),
            list: self.list,
        }
    }

    /// Where a pool is made that was given no place.
    pub fn default_path(&self, pool: &str) -> PathBuf {
        let parent = self.named.iter().find(|path| !self.is_pool(path) && (path.is_dir() || !path.exists()));
        parent.unwrap_or(&self.data_home).join(pool)
    }

    /// Where indexes of stream files are.
    pub fn indexes(&self) -> &Path {
        &self.indexes
    }

    /// Where shadows are.
    pub fn shadows(&self) -> &Path {
        &self.shadows
    }

    /// Where the configuration of snowmelt is.
    pub fn config_dir(&self) -> &Path {
        self.registry.path().parent().unwrap_or(Path::new("/"))
    }

    /// The list of pools elsewhere.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Whether a pool at this path is found without being listed.
    pub fn is_usual(&self, path: &Path) -> bool {
        let parent = path.parent();
        parent == Some(&self.data_home)
            || self.named.iter().any(|named| named == path || Some(named.as_path()) == parent)
    }

    /// Stops the messages about places that do not answer.
    pub fn tell_nobody(&self) {
        self.asked.tell_nobody();
    }

    /// The pool of this name.
    pub fn find(&self, name: &str) -> Option<KnownPool> {
        let index = stream_index::is_name(name).then(|| self.indexes.join(name));
        let shadow = shadow::is_name(name).then(|| self.shadows.join(name));
        let slow = Slow::default();
        let candidates = index.into_iter().chain(shadow).chain(self.candidates(&slow));
        let is_it = |pool: &KnownPool| pool.label.name == name;
        let found = self.first(candidates, is_it);
        // A directory that answers late is no directory without pools: a busy machine takes its time.
        found.or_else(|| self.first(self.late(slow).into_iter(), is_it))
    }

    /// The first pool at these places that is the one: of those that answer soon, or else of the others.
    fn first(
        &self,
        paths: impl Iterator<Item = PathBuf>,
        is_it: impl Fn(&KnownPool) -> bool,
    ) -> Option<KnownPool> {
        let mut silent = Vec::new();
        for path in paths {
            match self.asked.soon(&path) {
                Some(Some(pool)) if is_it(&pool) => return Some(pool),
                Some(_) => {}
                None => silent.push(path),
            }
        }
        self.asked.late(silent, &is_it).into_iter().find(is_it)
    }

    /// The pool at this path, wherever pools are looked for otherwise.
    pub fn at(&self, path: &Path) -> Option<KnownPool> {
        let late = || self.asked.late(vec![path.to_owned()], |_| true).pop();
        self.asked.soon(path).unwrap_or_else(late)
    }

    /// Every pool, by name.
    pub fn all(&self) -> Vec<KnownPool> {
        let mut pools: Vec<KnownPool> = Vec::new();
        let (mut silent, slow) = (Vec::new(), Slow::default());
        let mut ask = |path: PathBuf| match self.asked.soon(&path) {
            Some(found) => add(&mut pools, found),
            None => silent.push(path),
        };
        self.candidates(&slow).for_each(&mut ask);
        self.late(slow).into_iter().for_each(ask);
        if !silent.is_empty() {
            // If a mirror was found at one member, its other members are not waited for.
            let members: BTreeSet<PathBuf> =
                pools.iter().flat_map(|pool| mirror_paths(&pool.location)).collect();
            silent.retain(|path| !members.contains(path));
            add(&mut pools, self.asked.late(silent, |_| false));
        }
        pools.sort_by(|a, b| a.label.name.cmp(&b.label.name));
        pools
    }

    fn candidates<'a>(&'a self, slow: &'a Slow) -> impl Iterator<Item = PathBuf> + 'a {
        let named = self.named.iter().flat_map(|path| match self.asked.soon(path) {
            Some(Some(_)) => vec![path.clone()],
            Some(None) => self.below(path, slow),
            // It may be a pool, or a directory of pools.
            None => std::iter::once(path.clone()).chain(self.below(path, slow)).collect(),
        });
        let usual = std::iter::once_with(|| self.below(&self.data_home, slow)).flatten();
        let listed = std::iter::once_with(|| self.registry.read().unwrap_or_default()).flatten();
        named.chain(usual).chain(listed)
    }

    /// The entries of a directory, in order; nothing if it cannot be read. A directory that does not answer soon is
    /// added to `slow`.
    fn below(&self, directory: &Path, slow: &Slow) -> Vec<PathBuf> {
        let (directory, list) = (directory.to_owned(), self.list);
        let listed = Pending::ask(move || list(&directory));
        let found = listed.within(QUIET);
        if found.is_none() {
            slow.borrow_mut().push(listed);
        }
        found.flatten().unwrap_or_default()
    }

    /// The entries of the directories that did not answer soon, if they answer now.
    fn late(&self, slow: Slow) -> Vec<PathBuf> {
        let listed = slow.into_inner();
        listed.iter().filter_map(|listed| self.asked.wait(listed).flatten()).flatten().collect()
    }

    /// Whether a pool is at this path, and not below it: what does not answer is asked itself.
    fn is_pool(&self, path: &Path) -> bool {
        self.asked.soon(path).is_none_or(|found| found.is_some())
    }
}

/// Adds pools that are not known yet.
fn add(pools: &mut Vec<KnownPool>, found: impl IntoIterator<Item = KnownPool>) {
    for pool in found {
        let same =
            |other: &KnownPool| other.label.guid == pool.label.guid || other.label.name == pool.label.name;
        if !pools.iter().any(same) {
            pools.push(pool);
        }
    }
}

fn list(directory: &Path) -> Option<Vec<PathBuf>> {
    let entries = std::fs::read_dir(directory).ok()?;
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    Some(paths)
}

/// The pool at a path, if there is one.
pub(super) fn known(path: &Path) -> Option<KnownPool> {
    if let Some(pool) = entry::parse(path) {
        return Some(pool);
    }
    let read_only = entry::read_only_path(path);
    let path = read_only.unwrap_or(path);
    if !snowmelt_store::is_url(path) && !path.exists() {
        return None;
    }
    let location = Location::detect(path).ok()?.with_read_only(read_only.is_some());
    let label = snowmelt_store::label(&location).ok()?;
    Some(KnownPool { label, location })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::Surroundings;
    use crate::pools::keys::KnownKeys;
    use std::sync::Arc;

    /// As a busy machine may: later than others are asked in its place.
    fn list_late(directory: &Path) -> Option<Vec<PathBuf>> {
        std::thread::sleep(2 * QUIET);
        list(directory)
    }

    fn places(home: &Path, named: &[PathBuf]) -> Places {
        let null = || std::fs::File::options().read(true).write(true).open("/dev/null").unwrap().into();
        let context = Context::new(Surroundings {
            args: Vec::new(),
            stdin: null(),
            stdout: null(),
            stderr: null(),
            cwd: home.to_owned(),
            env: ["HOME", "XDG_CONFIG_HOME"].map(|name| (name.into(), home.into())).to_vec(),
            cancelled: Arc::default(),
            keys: KnownKeys::default(),
        });
        Places { list: list_late, ..Places::new(&context, named) }
    }

    #[test]
    fn a_directory_that_answers_late_has_its_pools_found() {
        let home = tempfile::tempdir().unwrap();
        let pools = home.path().join(".local/share/snowmelt");
        std::fs::create_dir_all(&pools).unwrap();
        let label = PoolLabel { name: "tank".to_owned(), guid: 7 };
        let options = snowmelt_store::CreateOptions { label, size: None, force: false };
        snowmelt_store::create(&Location::Directory(pools.join("tank")), &options).unwrap();
        for places in
            [places(home.path(), &[]), places(Path::new("/nonexistent"), std::slice::from_ref(&pools))]
        {
            assert_eq!(places.find("tank").unwrap().label.guid, 7);
            assert!(places.find("other").is_none());
            assert_eq!(places.all().len(), 1);
        }
    }
}
