//! A pool in an object store, as the list of pools has it: one line of words separated by tabs, so that looking for a pool by name
//! asks no store.
//!
//! `s3://bucket/prefix <tab> name=tank <tab> guid=1234 [<tab> readonly=on] [<tab> cache=/dir <tab> cachesize=1234]`

use std::path::{Path, PathBuf};

use snowmelt_store::{CACHE_BYTES, CacheLocation, Location, ObjectLocation, PoolLabel, is_url};

use super::KnownPool;

/// The line for a pool in an object store; of any other, its path.
pub fn line(location: &Location, label: &PoolLabel) -> PathBuf {
    let Location::Object(object) = location else { return location.path().to_owned() };
    let mut line = format!("{}\tname={}\tguid={}", object.url.display(), label.name, label.guid);
    if object.read_only {
        line.push_str("\treadonly=on");
    }
    if let Some(cache) = &object.cache {
        line.push_str(&format!("\tcache={}\tcachesize={}", cache.directory.display(), cache.max_bytes));
    }
    line.into()
}

/// The pool that a line is of; `None` if it is a path, or an address and nothing else.
pub fn parse(line: &Path) -> Option<KnownPool> {
    let mut words = line.to_str().filter(|_| is_url(line))?.split('\t');
    let url = PathBuf::from(words.next()?);
    let (mut name, mut guid, mut read_only) = (None, None, false);
    let (mut cache, mut cache_size) = (None, CACHE_BYTES);
    for word in words {
        match word.split_once('=')? {
            ("name", value) => name = Some(value.to_owned()),
            ("guid", value) => guid = Some(value.parse().ok()?),
            ("readonly", value) => read_only = value == "on",
            ("cache", value) => cache = Some(PathBuf::from(value)),
            ("cachesize", value) => cache_size = value.parse().ok()?,
            // Of a later version.
            _ => {}
        }
    }
    let label = PoolLabel { name: name?, guid: guid? };
    let cache = cache.map(|directory| CacheLocation { directory, max_bytes: cache_size });
    Some(KnownPool { label, location: Location::Object(ObjectLocation { url, read_only, cache }) })
}

/// Whether a line of the list is of the pool at `place`.
pub fn is_of(line: &Path, place: &Path) -> bool {
    line == place || parse(line).is_some_and(|pool| pool.location.path() == place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_back() {
        let label = PoolLabel { name: "tank".to_owned(), guid: 7 };
        let cache = CacheLocation { directory: "/a b/c=d".into(), max_bytes: 7 };
        for (read_only, cache) in
            [(false, None), (true, None), (false, Some(cache.clone())), (true, Some(cache))]
        {
            let location = Location::Object(ObjectLocation { url: "s3://b/p".into(), read_only, cache });
            let line = line(&location, &label);
            let pool = parse(&line).unwrap();
            assert_eq!((&pool.label, &pool.location), (&label, &location));
            assert!(is_of(&line, Path::new("s3://b/p")) && !is_of(&line, Path::new("s3://b/q")));
        }
    }

    #[test]
    fn paths_and_bare_addresses_are_no_lines() {
        for other in ["/srv/a\tname=x\tguid=1", "s3://b/p", "s3://b/p\tname=x", "s3://b/p\tname=x\tguid=z"] {
            assert!(parse(Path::new(other)).is_none(), "{other}");
        }
        assert!(is_of(Path::new("/srv/a"), Path::new("/srv/a")));
    }
}
