//! Pins: the pool that was at a place when it was last open. With them, another pool at this place is detected.
//!
//! The file `known_pools`, beside the list of pools, has a line for each place: path, guid, whether the pool is
//! encrypted, its name, and a fingerprint of its key, separated by tabs. A place without a line is recorded when its
//! pool is opened, and so is a fingerprint that a line does not have yet. Docs: `docs/cli.md`, "Known pools".
//!
//! The guid of a pool is readable in its store, so anyone who can write there can make another pool with it. Such a
//! pool is encrypted too, with a key that this person can guess or has: its key record names any file of this machine.
//! Only the fingerprint shows that it is another one.

use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use snowmelt_dataset::text::visible_name;
use snowmelt_pool::Keys;
use snowmelt_store::Location;

use super::registry::Registry;
use super::{KnownPool, Places, shadow, stream_index};
use crate::context::Context;
use crate::error::{CliError, Result};

const HEADER: &str = "Pools that were open here: path, guid, encryption, name, key. Written by snowmelt.";

/// The pins of all places.
pub struct Pins {
    list: Registry,
    known: Vec<Pin>,
}

/// The pool that was found at a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    /// Without symbolic links; an address for a pool in an object store.
    pub place: PathBuf,
    /// Its guid.
    pub guid: u64,
    /// Whether it is encrypted.
    pub is_encrypted: bool,
    /// The fingerprint of its key. `None` if it is not encrypted, its key was not opened yet, or an older version
    /// recorded it.
    pub fingerprint: Option<[u8; 16]>,
    /// Its name.
    pub name: String,
}

impl Pin {
    /// The pin of a pool that is not open. Its key is not known.
    pub fn unopened(pool: &KnownPool, is_encrypted: bool) -> Self {
        let (guid, name) = (pool.label.guid, pool.label.name.clone());
        Self { place: place(&pool.location), guid, is_encrypted, fingerprint: None, name }
    }

    fn line(&self) -> PathBuf {
        let encrypted = if self.is_encrypted { "on" } else { "off" };
        let mut line = self.place.as_os_str().to_owned().into_vec();
        line.extend_from_slice(
            format!("\tguid={}\tencryption={encrypted}\tname={}", self.guid, self.name).as_bytes(),
        );
        if let Some(fingerprint) = &self.fingerprint {
            line.extend_from_slice(format!("\tkey={}", hex(fingerprint)).as_bytes());
        }
        std::ffi::OsString::from_vec(line).into()
    }

    fn parse(line: &Path) -> Option<Self> {
        let mut words = line.as_os_str().as_bytes().split(|byte| *byte == b'\t');
        let place = PathBuf::from(OsStr::from_bytes(words.next()?));
        let mut pin = Self { place, guid: 0, is_encrypted: false, fingerprint: None, name: String::new() };
        for word in words {
            match std::str::from_utf8(word).ok()?.split_once('=')? {
                ("guid", value) => pin.guid = value.parse().ok()?,
                ("encryption", value) => pin.is_encrypted = value == "on",
                ("name", value) => value.clone_into(&mut pin.name),
                ("key", value) => pin.fingerprint = Some(of_hex(value)?),
                // Of a later version.
                _ => {}
            }
        }
        (pin.guid != 0).then_some(pin)
    }

    fn words(&self) -> String {
        let encrypted = match &self.fingerprint {
            Some(fingerprint) => format!("encrypted, key fingerprint {}", hex(fingerprint)),
            None if self.is_encrypted => "encrypted".to_owned(),
            None => "not encrypted".to_owned(),
        };
        format!("'{}' (guid {}, {encrypted})", self.name, self.guid)
    }

    /// Whether they are the same pool, wherever it is. As long as the key of `found` was not opened, its guid decides.
    fn is_pool(&self, found: &Self) -> bool {
        self.guid == found.guid
            && self.is_encrypted == found.is_encrypted
            && (found.fingerprint.is_none() || self.fingerprint == found.fingerprint)
    }

    fn has_other_key(&self, found: &Self) -> bool {
        self.fingerprint.is_some() && found.fingerprint.is_some() && self.fingerprint != found.fingerprint
    }
}

fn hex(fingerprint: &[u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(*fingerprint))
}

fn of_hex(digits: &str) -> Option<[u8; 16]> {
    let is_hex = digits.len() == 32 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let number = u128::from_str_radix(digits, 16).ok().filter(|_| is_hex);
    number.map(u128::to_be_bytes)
}

impl Pins {
    /// Those of the user of this command.
    ///
    /// # Errors
    /// When the list exists and cannot be read, or has an invalid line. Then pools cannot be identified.
    pub fn of(context: &Context) -> Result<Self> {
        let file = Places::new(context, &[]).config_dir().join("known_pools");
        Self::read(Registry::with_header(file, HEADER))
    }

    /// All of them, as they were learned.
    pub fn all(&self) -> &[Pin] {
        &self.known
    }

    fn read(list: Registry) -> Result<Self> {
        let unusable = |why: String| {
            let file = list.path().display();
            CliError::Failed(format!(
                "cannot read the list of known pools {file}: {why}\nrepair it, or remove it if no pool can have \
                 been replaced: then all pools are recorded again"
            ))
        };
        let lines = list.read().map_err(|error| unusable(error.to_string()))?;
        let damaged = |line: &PathBuf| {
            unusable(format!("'{}' is not a valid line", visible_name(line.as_os_str().as_bytes())))
        };
        let known =
            lines.iter().map(|line| Pin::parse(line).ok_or_else(|| damaged(line))).collect::<Result<_>>()?;
        Ok(Self { list, known })
    }

    /// Refuses a pool without encryption at the place of a known encrypted pool. This needs no read of the pool.
    ///
    /// # Errors
    /// When it is not the pool that is known.
    pub fn check_encryption(&self, place: &Path, is_encrypted: bool) -> Result<()> {
        match self.known.iter().find(|pin| pin.place == place) {
            Some(known) if known.is_encrypted && !is_encrypted => {
                Err(refused(place, known, "one that is not encrypted"))
            }
            _ => Ok(()),
        }
    }

    /// As [`verify`](Self::verify); a pool that passes is known from now on.
    ///
    /// # Errors
    /// When it is not the pool that is known.
    pub fn check(&self, found: &Pin) -> Result<()> {
        self.verify(found)?;
        if !self.known.contains(found) && !is_made_by_us(&found.name) {
            self.set(found);
        }
        Ok(())
    }

    /// Refuses a pool that is not the one that is known at its place.
    ///
    /// # Errors
    /// When it is not the pool that is known.
    pub fn verify(&self, found: &Pin) -> Result<()> {
        if self.known.contains(found) || is_made_by_us(&found.name) {
            return Ok(());
        }
        // The names of disks change places: a pool that is known in another place is the same pool.
        let is_known = self.known.iter().any(|known| known.is_pool(found));
        let is_of_here = |known: &Pin| known.place == found.place && known.guid == found.guid;
        let is_known_here = self.known.iter().any(is_of_here);
        for known in &self.known {
            let is_here = known.place == found.place;
            let is_namesake = known.name == found.name && known.place.parent() == found.place.parent();
            let is_stripped = known.is_encrypted && !found.is_encrypted;
            let is_other = is_here && known.guid != found.guid && !is_known;
            let is_double = known.guid == found.guid || is_namesake && !is_known_here;
            let is_forged = is_double && known.has_other_key(found) && !is_known;
            if is_other || is_forged || is_stripped && (is_here || is_namesake) {
                return Err(refused(&found.place, known, &found.words()));
            }
        }
        Ok(())
    }

    /// From now on this pool is known at its place. Where the list cannot be written nothing is remembered.
    pub fn set(&self, found: &Pin) {
        if found.name.contains(['\t', '\n']) || found.place.as_os_str().as_bytes().contains(&b'\t') {
            return;
        }
        let is_of = |line: &Path| Pin::parse(line).is_some_and(|pin| pin.place == found.place);
        let _ = self.list.replace(&found.line(), is_of);
    }

    /// As [`verify`](Self::verify), of a pool that is not opened as one: `is_encrypted` is what its store has.
    ///
    /// # Errors
    /// When it is not the pool that is known.
    pub fn verify_unopened(&self, pool: &KnownPool, is_encrypted: bool) -> Result<()> {
        let found = Pin::unopened(pool, is_encrypted);
        self.check_encryption(&found.place, is_encrypted)?;
        self.verify(&found)
    }

    /// As [`verify_unopened`](Self::verify_unopened), when the key of an encrypted pool was opened.
    ///
    /// # Errors
    /// When it is not the pool that is known.
    pub fn verify_key(&self, pool: &KnownPool, keys: &Keys) -> Result<()> {
        self.verify(&Pin { fingerprint: Some(keys.fingerprint()), ..Pin::unopened(pool, true) })
    }

    /// No pool is known at these places any more.
    pub fn forget(&self, places: &[PathBuf]) {
        if self.known.iter().any(|pin| places.contains(&pin.place)) {
            let is_of = |line: &Path| Pin::parse(line).is_some_and(|pin| places.contains(&pin.place));
            let _ = self.list.remove_all(is_of);
        }
    }
}

/// Shadows and stream indexes can always be made again.
fn is_made_by_us(name: &str) -> bool {
    shadow::is_name(name) || stream_index::is_name(name)
}

/// The place of a pool, as in the list.
pub fn place(location: &Location) -> PathBuf {
    match location {
        Location::Object(object) => object.url.clone(),
        // The caller has opened the pool, so this does not wait.
        other => std::fs::canonicalize(other.path()).unwrap_or_else(|_| other.path().to_owned()),
    }
}

fn refused(place: &Path, known: &Pin, found: &str) -> CliError {
    let place = place.display();
    CliError::Failed(format!(
        "the pool at {place} is not the known one: expected {}, found {found}\nsomebody who can write there may \
         have replaced it; if you replaced it yourself, 'snowmelt pool import --accept-new {place}' accepts the \
         new one",
        known.words()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pin(place: &str, guid: u64, is_encrypted: bool) -> Pin {
        Pin { place: place.into(), guid, is_encrypted, fingerprint: None, name: "tank".to_owned() }
    }

    fn sealed(place: &str, guid: u64, key: u8) -> Pin {
        Pin { fingerprint: Some([key; 16]), ..pin(place, guid, true) }
    }

    fn pins(dir: &tempfile::TempDir) -> Pins {
        Pins::read(Registry::with_header(dir.path().join("known_pools"), HEADER)).unwrap()
    }

    #[test]
    fn lines_are_read_back() {
        for pin in [pin("/a b", 7, true), pin("s3://b/p", u64::MAX, false), sealed("/a", 7, 3)] {
            assert_eq!(Pin::parse(&pin.line()), Some(pin));
        }
        assert_eq!(Pin::parse(Path::new("/a")), None);
        let line = "/a\tguid=7\tencryption=on\tname=tank\tkey=03030303030303030303030303030303";
        assert_eq!(sealed("/a", 7, 3).line(), Path::new(line));
        for damaged in [&line[..line.len() - 1], &format!("{line}0"), &line.replace("key=0", "key=+")] {
            assert_eq!(Pin::parse(Path::new(damaged)), None, "{damaged}");
        }
    }

    #[test]
    fn another_pool_at_a_known_place_is_refused_until_it_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let known = || pins(&dir);
        known().check(&pin("/p/a", 1, true)).unwrap();
        known().check(&pin("/p/a", 1, true)).unwrap();
        let error = known().check(&pin("/p/a", 2, true)).unwrap_err().to_string();
        assert!(error.contains("guid 1") && error.contains("pool import --accept-new /p/a"), "{error}");
        known().check(&pin("/p/a", 1, false)).unwrap_err();
        known().check_encryption(Path::new("/p/a"), false).unwrap_err();
        known().check_encryption(Path::new("/p/a"), true).unwrap();
        // A pool of the same name that is found first. Anyone who can write to a directory of pools can put one
        // there.
        known().check(&pin("/p/0", 3, false)).unwrap_err();
        known().check(&pin("/elsewhere/0", 3, false)).unwrap();
        known().forget(&["/p/a".into()]);
        known().check(&pin("/p/a", 2, false)).unwrap();
    }

    #[test]
    fn a_pool_with_the_guid_of_a_known_one_and_another_key_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let known = || pins(&dir);
        known().check(&sealed("/p/a", 1, 1)).unwrap();
        known().check(&sealed("/p/a", 1, 1)).unwrap();
        // Before the key is opened, it cannot be compared.
        known().verify(&pin("/p/a", 1, true)).unwrap();
        let error = known().check(&sealed("/p/a", 1, 2)).unwrap_err().to_string();
        assert!(error.contains("pool import --accept-new /p/a"), "{error}");
        assert!(error.contains(&"01".repeat(16)) && error.contains(&"02".repeat(16)), "{error}");
        assert!(known().all().contains(&sealed("/p/a", 1, 1)));
        // Its key is as wrong in any other place, and so is that of another pool which would be found by its name.
        known().check(&sealed("/elsewhere", 1, 2)).unwrap_err();
        known().check(&sealed("/p/0", 2, 2)).unwrap_err();
        known().check(&sealed("/elsewhere", 2, 2)).unwrap();
        // It was moved.
        known().check(&sealed("/p/b", 1, 1)).unwrap();
        known().forget(&["/p/a".into(), "/p/b".into()]);
        known().check(&sealed("/p/a", 1, 2)).unwrap();
    }

    #[test]
    fn a_pool_that_was_accepted_is_known_beside_one_that_it_was_refused_for() {
        let dir = tempfile::tempdir().unwrap();
        let known = || pins(&dir);
        known().check(&sealed("/p/a", 1, 1)).unwrap();
        known().verify(&sealed("/p/0", 1, 2)).unwrap_err();
        known().set(&sealed("/p/0", 1, 2));
        known().check(&sealed("/p/0", 1, 2)).unwrap();
        known().check(&sealed("/p/a", 1, 1)).unwrap();
        known().check(&sealed("/p/a", 1, 3)).unwrap_err();
    }

    #[test]
    fn a_pool_of_an_older_list_is_known_by_its_key_from_the_next_time_on() {
        let dir = tempfile::tempdir().unwrap();
        let known = || pins(&dir);
        known().check(&pin("/p/a", 1, true)).unwrap();
        known().check(&sealed("/p/a", 1, 1)).unwrap();
        assert_eq!(known().all(), [sealed("/p/a", 1, 1)]);
        known().check(&sealed("/p/a", 1, 2)).unwrap_err();
        // Another place of such a list is no reason to take a pool with any key for the known one.
        known().set(&pin("/p/b", 2, true));
        known().check(&sealed("/p/a", 2, 2)).unwrap_err();
        known().check(&sealed("/p/b", 2, 2)).unwrap();
    }

    #[test]
    fn disks_whose_names_change_places_are_still_known() {
        let dir = tempfile::tempdir().unwrap();
        let known = || pins(&dir);
        known().check(&pin("/dev/sda", 1, false)).unwrap();
        known().check(&pin("/dev/sdb", 2, false)).unwrap();
        known().check(&pin("/dev/sda", 2, false)).unwrap();
        known().check(&pin("/dev/sdb", 3, false)).unwrap_err();
    }
}
