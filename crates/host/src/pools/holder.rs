//! Which process has a pool open, for messages that say so.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use snowmelt_dataset::text::visible_name;
use snowmelt_store::Location;

/// Longer command lines are cut, in characters.
const WORDS_MAX: usize = 120;

/// `attempt: pool is busy`, and in a second line the process that has the pool open, where that can be found.
pub fn busy(attempt: &str, location: &Location) -> String {
    match of(location) {
        Some((pid, words)) => format!("{attempt}: pool is busy\nprocess {pid} uses it: {words}"),
        None => format!("{attempt}: pool is busy"),
    }
}

/// The process that holds the lock of a pool, and its command line. `None` if the kernel does not say, as for a process
/// outside of this container, and for pools in object stores.
pub fn of(location: &Location) -> Option<(u32, String)> {
    let file = match location {
        Location::Directory(path) => fs::metadata(path.join("lock")).ok()?,
        Location::File(path) => fs::metadata(path).ok()?,
        Location::Object(_) => return None,
        Location::ReadOnly(location) => return of(location),
    };
    let device = file.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let place = format!("{major:02x}:{minor:02x}:{}", file.ino());
    let pid = owner_of(&fs::read_to_string("/proc/locks").ok()?, &place)?;
    Some((pid, words(pid)?))
}

/// The process with an exclusive `flock(2)` on a file in the table of proc_locks(5):
/// `1: FLOCK ADVISORY WRITE 42 fe:00:7 0 EOF`.
fn owner_of(table: &str, place: &str) -> Option<u32> {
    table.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().skip(1).collect();
        match fields.as_slice() {
            ["FLOCK", _, "WRITE", pid, at, ..] if *at == place => pid.parse().ok().filter(|pid| *pid > 0),
            _ => None,
        }
    })
}

/// Whether a process runs another program file than this one, such as an earlier version. `false` if its file cannot be
/// examined.
pub fn is_other_program(pid: u32) -> bool {
    // The link leads to the file that runs, even if another file has taken its name.
    let file = |pid: &str| fs::metadata(Path::new("/proc").join(pid).join("exe")).ok();
    let id = |file: fs::Metadata| (file.dev(), file.ino());
    match (file(&pid.to_string()), file("self")) {
        (Some(other), Some(own)) => id(other) != id(own),
        _ => false,
    }
}

/// The command line of a process, as it can be printed.
pub fn words(pid: u32) -> Option<String> {
    let line = fs::read(Path::new("/proc").join(pid.to_string()).join("cmdline")).ok()?;
    let words: Vec<String> =
        line.split(|byte| *byte == 0).filter(|word| !word.is_empty()).map(visible_name).collect();
    let text: String = words.join(" ").chars().take(WORDS_MAX).collect();
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_of_a_lock_is_found_in_the_table() {
        let table = "1: POSIX  ADVISORY  WRITE 7 fe:00:12 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 8 fe:00:12 0 EOF\n\
                     3: FLOCK  ADVISORY  READ 9 fe:00:12 0 EOF\n\
                     4: FLOCK  ADVISORY  WRITE 0 fe:00:12 0 EOF\n\
                     5: FLOCK  ADVISORY  WRITE 42 fe:00:12 0 EOF\n";
        assert_eq!(owner_of(table, "fe:00:12"), Some(42));
        assert_eq!(owner_of(table, "fe:00:1"), None);
    }

    #[test]
    fn a_process_of_another_program_is_recognised() {
        assert!(!is_other_program(std::process::id()));
        let mut other = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert!(is_other_program(other.id()));
        other.kill().unwrap();
        other.wait().unwrap();
        assert!(!is_other_program(u32::MAX));
    }

    #[test]
    fn words_of_a_process() {
        assert!(words(std::process::id()).is_some());
        assert_eq!(words(u32::MAX), None);
    }
}
