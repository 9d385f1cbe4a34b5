//! A line of the list of pools that has more than a path. The line of a pool in an object store has words separated
//! by tabs. So a search for a pool by name makes no request to a store:
//!
//! `s3://bucket/prefix <tab> name=tank <tab> guid=1234 [<tab> readonly=on] [<tab> cache=/dir <tab> cachesize=1234]`
//!
//! And that of a pool elsewhere which is only read here:
//!
//! `readonly=on <tab> /path`

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use snowmelt_store::{CACHE_BYTES, CacheLocation, Location, ObjectLocation, PoolLabel, is_url};

use super::KnownPool;

/// The beginning of a line whose pool is imported read-only.
const READ_ONLY: &str = "readonly=on\t";

/// The line for a path of a pool that is in no object store.
pub fn path_line(path: &Path, read_only: bool) -> PathBuf {
    let mut line = OsString::from(if read_only { READ_ONLY } else { "" });
    line.push(path);
    line.into()
}

/// The path in a line, if its pool is only read.
pub fn read_only_path(line: &Path) -> Option<&Path> {
    let path = line.as_os_str().as_bytes().strip_prefix(READ_ONLY.as_bytes())?;
    Some(Path::new(std::ffi::OsStr::from_bytes(path)))
}

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

/// The pool of a line; `None` if the line has only a path or an address.
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

/// Where the pool of a line is: a path, or an address.
pub fn place(line: &Path) -> PathBuf {
    match parse(line) {
        Some(pool) => pool.location.path().to_owned(),
        None => read_only_path(line).unwrap_or(line).to_owned(),
    }
}

/// Whether a line of the list is of the pool at `place`.
pub fn is_of(line: &Path, place: &Path) -> bool {
    let path = read_only_path(line).unwrap_or(line);
    path == place || parse(line).is_some_and(|pool| pool.location.path() == place)
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
    fn a_path_that_is_only_read_is_read_back() {
        let path = Path::new("/srv/a\tb");
        let line = path_line(path, true);
        assert_eq!(read_only_path(&line), Some(path));
        assert!(is_of(&line, path) && !is_of(&line, Path::new("/srv")));
        assert_eq!(path_line(path, false), path);
        assert_eq!(read_only_path(path), None);
    }

    #[test]
    fn paths_and_bare_addresses_are_no_lines() {
        for other in ["/srv/a\tname=x\tguid=1", "s3://b/p", "s3://b/p\tname=x", "s3://b/p\tname=x\tguid=z"] {
            assert!(parse(Path::new(other)).is_none(), "{other}");
        }
        assert!(is_of(Path::new("/srv/a"), Path::new("/srv/a")));
    }
}
