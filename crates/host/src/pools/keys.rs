//! The keys of encrypted pools (docs/format/encryption-at-rest.md): where they come from, and getting them.
//!
//! The pool's key record has the place of the key, as the creator of the pool gave it: `prompt`, `file:///path` or
//! `command`. The command itself is only known on this machine, so that a store of somebody else cannot run anything.
//! The place that was set on this machine (`<config>/keys/<guid>`) is used instead of the place in the record, which
//! anyone who can write to the store can change. After it comes the place that will be set when a change of the key is
//! complete (`<guid>.next`). If the change is interrupted, one of them opens the pool.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, OFlags, PROC_SUPER_MAGIC, RenameFlags, StatFs, fstatfs, renameat_with, statfs};
use rustix::termios::isatty;
use snowmelt_pool::{KeyError, KeyFormat, KeyRecord, Keys, PassphraseCost, Pool, PoolError, Suite, Wrap};
use snowmelt_store::{Location, Store};
use zeroize::Zeroizing;

use super::Places;
use super::registry::{create_private, make_config_dir};
use crate::context::Context;
use crate::error::{CliError, Result};
pub use crate::key_source::{KeySource, KnownKeys};
use crate::secrets::{self, Terminal};

/// How often a passphrase is asked for (`MAX_KEY_PROMPT_ATTEMPTS` of `lib/libzfs/libzfs_crypto.c`).
const ATTEMPTS: usize = 3;
/// Longer words are not ours.
const WORD_MAX: u64 = 64 << 10;

/// Whether a key may be read from standard input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stdin {
    /// Nothing else is.
    Free,
    /// If it is no terminal it may be the command's data.
    Data,
}

impl KeySource {
    /// The key material.
    fn read(&self, context: &Context, question: &str, stdin: Stdin) -> Result<Zeroizing<Vec<u8>>> {
        secrets::protect_process();
        match self {
            Self::File(path) => {
                let opened = key_file(path).inspect(|file| secrets::warn_of_readers(context, path, file));
                let read = opened.and_then(secrets::material);
                read.map_err(|error| CliError::failed(format!("cannot read the key file {path:?}"), &error))
            }
            Self::Command(command) => secrets::of_command(context, command),
            Self::Prompt if stdin == Stdin::Free && !isatty(&context.stdin) => {
                let read = context.stdin.try_clone().and_then(secrets::material);
                read.map_err(|error| CliError::failed("cannot read the key from standard input", &error))
            }
            Self::Prompt => match Terminal::of(context) {
                Some(terminal) => terminal.ask(context, question),
                None => Err(CliError::Failed("the key must be typed, and there is no terminal".to_owned())),
            },
        }
    }
}

/// Opens the file of a key, whose name can come from a stranger. It must be a regular file: opening others has
/// effects (watchdogs) or blocks for ever (fifos). The same is true of the files of procfs and sysfs, which look like
/// regular ones: reading `/proc/kmsg` takes the messages of the kernel away from others.
fn key_file(path: &Path) -> std::io::Result<fs::File> {
    let regular = |metadata: fs::Metadata| match metadata.is_file() {
        true => Ok(()),
        false => Err(std::io::Error::other("it is not a regular file")),
    };
    regular(fs::metadata(path)?)?;
    stored(&statfs(path)?)?;
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = fs::File::options().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    regular(file.metadata()?)?;
    stored(&fstatfs(&file)?)?;
    Ok(file)
}

/// Refuses procfs and sysfs: the kernel makes the content of their files when they are read.
fn stored(filesystem: &StatFs) -> std::io::Result<()> {
    let name = match filesystem.f_type {
        PROC_SUPER_MAGIC => "procfs",
        // SYSFS_MAGIC of <linux/magic.h>.
        0x6265_6572 => "sysfs",
        _ => return Ok(()),
    };
    Err(std::io::Error::other(format!("it is a file of {name}, where no key can be")))
}

/// What this machine was told about the key of a pool.
pub struct Told {
    now: PathBuf,
    /// When a change that is under way is through.
    next: PathBuf,
}

impl Told {
    /// About the pool with this guid.
    pub fn of(context: &Context, guid: u64) -> Self {
        let now = Places::new(context, &[]).config_dir().join("keys").join(guid.to_string());
        Self { next: now.with_extension("next"), now }
    }

    /// Where the key comes from; `None` for the place that the pool has.
    ///
    /// # Errors
    /// When that cannot be written.
    pub fn set(&self, source: Option<&KeySource>) -> Result<()> {
        match source {
            Some(source) => write(&self.now, &source.told()?)?,
            None => remove(&self.now)?,
        }
        remove(&self.next)
    }

    /// This will be the key. Where a source is set, the place that the pool has is not tried, so the new source is
    /// stored until the change is complete, even if the pool will have it.
    ///
    /// # Errors
    /// As [`set`](Self::set); when what was set cannot be read.
    pub fn prepare(&self, key: &UserKey) -> Result<()> {
        let source = if read(&self.now)?.is_some() { Some(&key.source) } else { key.own() };
        match source {
            Some(source) => write(&self.next, &source.told()?),
            None => remove(&self.next),
        }
    }

    /// The key will not change.
    ///
    /// # Errors
    /// As [`set`](Self::set).
    pub fn give_up(&self) -> Result<()> {
        remove(&self.next)
    }

    /// Records that this source opens the pool. If it was prepared for a change of the key, it is now the source that
    /// is set. The previous source is kept, because the change may still be in progress.
    fn settle(&self, source: &KeySource) {
        let is = |path: &Path| read(path).is_ok_and(|told| told.as_ref() == Some(source));
        if !is(&self.now) && is(&self.next) {
            let exchanged = renameat_with(CWD, &self.next, CWD, &self.now, RenameFlags::EXCHANGE);
            // Nothing was told before. If it cannot be written, both are tried again.
            let _ =
                exchanged.or_else(|_| renameat_with(CWD, &self.next, CWD, &self.now, RenameFlags::NOREPLACE));
        }
    }

    /// The sources of the key, the likeliest first, if the pool names this place.
    fn sources(&self, named: &str) -> Result<Vec<KeySource>> {
        let (now, next) = (read(&self.now)?, read(&self.next)?);
        let recorded = match KeySource::parse(named) {
            // Anyone who can write to the store could have put it there.
            Some(KeySource::Command(_)) | None => None,
            // A place was set on this machine.
            Some(_) if now.is_some() => None,
            recorded => recorded,
        };
        let mut sources: Vec<KeySource> = [now, next, recorded].into_iter().flatten().collect();
        sources.dedup();
        Ok(sources)
    }
}

fn read(path: &Path) -> Result<Option<KeySource>> {
    let attempt = || format!("cannot read {}", path.display());
    let no_word = || CliError::Failed(format!("{} has no valid place of a key: remove it", path.display()));
    let text = match fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(CliError::failed(attempt(), &error)),
        Ok(metadata) if metadata.len() > WORD_MAX => return Err(no_word()),
        Ok(_) => fs::read_to_string(path).map_err(|error| CliError::failed(attempt(), &error))?,
    };
    let word = text.strip_suffix('\n').unwrap_or(&text);
    KeySource::parse(word).map(Some).ok_or_else(no_word)
}

fn write(path: &Path, word: &str) -> Result<()> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    let new = path.with_extension("tmp");
    let write = || {
        make_config_dir(directory)?;
        let mut file = create_private(&new)?;
        file.write_all(format!("{word}\n").as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, path)?;
        fs::File::open(directory)?.sync_all()
    };
    write().map_err(|error| CliError::failed(format!("cannot write {}", path.display()), &error))
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(CliError::failed(format!("cannot remove {}", path.display()), &error))
        }
        _ => Ok(()),
    }
}

/// The record of the key of the pool in a store; `None` if it is not encrypted.
///
/// # Errors
/// When the store cannot be read.
pub fn record(store: &dyn Store, location: &Location) -> Result<Option<KeyRecord>> {
    let failed = |error: &PoolError| {
        CliError::failed(format!("cannot open the pool at {}", location.path().display()), error)
    };
    Pool::key_record_of(store).map_err(|error| failed(&error))
}

/// The key that a record holds.
///
/// # Errors
/// When it cannot be read, or is the wrong one.
pub fn of_record(context: &Context, record: &KeyRecord, location: &Location, stdin: Stdin) -> Result<Keys> {
    if let Some(keys) = context.keys.opened(record) {
        return Ok(keys);
    }
    let name =
        snowmelt_store::label(location).map_or_else(|_| location.path().display().to_string(), |it| it.name);
    let mut first = None;
    for source in sources(context, record)? {
        match open(context, record, &source, &name, stdin) {
            Ok(keys) => {
                Told::of(context, record.guid()).settle(&source);
                context.keys.remember(keys.clone());
                return Ok(keys);
            }
            Err(_) if context.is_cancelled() => return Err(CliError::Failed("interrupted".to_owned())),
            Err(why) => {
                first.get_or_insert(why);
            }
        }
    }
    let why = first.unwrap_or_else(|| match record.location() {
        "command" => "the command that prints its key is not known on this machine".to_owned(),
        other => format!("the place of its key is not valid here: {other:?}"),
    });
    Err(CliError::Failed(format!(
        "cannot open the pool at {}: it is encrypted, and {why}\nuse 'snowmelt pool import --key-file FILE {name}' \
         (or --key-command, or --key-prompt) to set the source of its key",
        location.path().display()
    )))
}

/// The places where the key can be, the likeliest first. If the command line has one, only this one. The place in the
/// record is one only if none was set on this machine.
fn sources(context: &Context, record: &KeyRecord) -> Result<Vec<KeySource>> {
    match context.keys.source(record.guid()) {
        Some(source) => Ok(vec![source]),
        None => Told::of(context, record.guid()).sources(record.location()),
    }
}

/// The key that a record holds, by one source; or why it is not.
fn open(
    context: &Context,
    record: &KeyRecord,
    source: &KeySource,
    name: &str,
    stdin: Stdin,
) -> Result<Keys, String> {
    let is_prompt = *source == KeySource::Prompt;
    let what = match record.format() {
        KeyFormat::Passphrase => "passphrase",
        KeyFormat::Hex => "hex key",
        KeyFormat::Raw if is_prompt && (stdin == Stdin::Data || isatty(&context.stdin)) => {
            return Err("a raw key cannot be typed".to_owned());
        }
        KeyFormat::Raw => "key",
    };
    let question = format!("Enter {what} for '{name}': ");
    let is_typed = is_prompt && (stdin == Stdin::Data || isatty(&context.stdin));
    let mut attempts = if is_typed { ATTEMPTS } else { 1 };
    loop {
        attempts -= 1;
        let material = source.read(context, &question, stdin).map_err(|error| error.to_string())?;
        match Keys::open(record, &material) {
            Ok(keys) => return Ok(keys),
            Err(error @ (KeyError::Incorrect | KeyError::Form(_))) if attempts > 0 => {
                let _ = writeln!(&context.err, "Key load error: {error}.");
            }
            Err(KeyError::Incorrect) => {
                return Err(format!("incorrect key from {}", named(source)));
            }
            Err(error) => return Err(format!("invalid key from {}: {error}", named(source))),
        }
    }
}

fn named(source: &KeySource) -> String {
    match source {
        KeySource::Prompt => "the prompt".to_owned(),
        // The path can come from a stranger who wrote it to the store.
        KeySource::File(path) => format!("{path:?}"),
        KeySource::Command(command) => format!("the command '{command}'"),
    }
}

/// A user's key for a new pool, or instead of another.
pub struct UserKey {
    source: KeySource,
    format: KeyFormat,
    material: Zeroizing<Vec<u8>>,
    location: String,
}

impl UserKey {
    /// Reads a new key; on a terminal it is asked for twice. Without a format, 32 bytes or 64 hexadecimal digits in a
    /// file are a key, and everything else is a passphrase.
    ///
    /// # Errors
    /// When it cannot be read, or does not have its format.
    pub fn read(context: &Context, source: KeySource, format: Option<KeyFormat>, pool: &str) -> Result<Self> {
        let what = match format {
            Some(KeyFormat::Hex) => "hex key",
            Some(KeyFormat::Raw) if source == KeySource::Prompt => {
                return Err(CliError::Failed("a raw key cannot be entered on the terminal".to_owned()));
            }
            _ => "passphrase",
        };
        let material = source.read(context, &format!("Enter new {what} for '{pool}': "), Stdin::Free)?;
        if source == KeySource::Prompt && isatty(&context.stdin) {
            let again = source.read(context, &format!("Re-enter new {what} for '{pool}': "), Stdin::Free)?;
            if *again != *material {
                return Err(CliError::Failed("Provided keys do not match.".to_owned()));
            }
        }
        let format = match (format, &source, KeyFormat::of_key(&material)) {
            (Some(format), ..) => format,
            (None, KeySource::File(_), Some(format)) => format,
            (None, KeySource::File(path), None) => {
                return Err(CliError::Failed(format!(
                    "{} is not a key: it must have 32 bytes or 64 hexadecimal digits (for a passphrase, give \
                     --key-format passphrase)",
                    path.display()
                )));
            }
            (None, KeySource::Prompt | KeySource::Command(_), _) => KeyFormat::Passphrase,
        };
        let location = source.recorded()?;
        Ok(Self { source, format, material, location })
    }

    /// How it wraps a pool's key.
    pub fn wrap(&self) -> Wrap<'_> {
        Wrap {
            format: self.format,
            location: &self.location,
            material: &self.material,
            cost: PassphraseCost::default(),
        }
    }

    /// A new pool's key, wrapped.
    ///
    /// # Errors
    /// When this is not of its form.
    pub fn new_pool(&self, guid: u64, suite: Suite) -> Result<Keys, KeyError> {
        Keys::new(guid, suite, &self.wrap())
    }

    /// The part that must be stored on this machine, because the pool does not have it.
    pub fn own(&self) -> Option<&KeySource> {
        Some(&self.source).filter(|source| matches!(source, KeySource::Command(_)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_back_and_no_pool_has_a_command_run() {
        for source in [
            KeySource::Prompt,
            KeySource::File("/a b/key".into()),
            KeySource::Command("pass show 'x: y'".to_owned()),
        ] {
            assert_eq!(KeySource::parse(&source.told().unwrap()), Some(source));
        }
        let command = KeySource::Command("touch /tmp/x".to_owned());
        assert_eq!(command.recorded().unwrap(), "command");
        for word in ["command", "file://relative", "https://x", ""] {
            assert_eq!(KeySource::parse(word), None, "{word}");
        }
    }

    #[test]
    fn the_place_that_a_pool_names_is_tried_only_where_none_was_set() {
        let directory = tempfile::tempdir().unwrap();
        let now = directory.path().join("7");
        let told = Told { next: now.with_extension("next"), now };
        let file = |name: &str| KeySource::File(format!("/keys/{name}").into());
        let key = |source: KeySource| UserKey {
            location: source.recorded().unwrap(),
            source,
            format: KeyFormat::Raw,
            material: Zeroizing::new(vec![7; 32]),
        };
        let sources = || told.sources("file:///keys/named").unwrap();
        assert_eq!(sources(), [file("named")]);
        assert!(told.sources("command").unwrap().is_empty());
        assert!(told.sources("command:touch /tmp/x").unwrap().is_empty());
        // A change to a file that the pool will name needs nothing here.
        told.prepare(&key(file("new"))).unwrap();
        assert_eq!(sources(), [file("named")]);
        // A change to a command that was cut off before anything was set.
        let command = KeySource::Command("pass show tank".to_owned());
        told.prepare(&key(command.clone())).unwrap();
        assert_eq!(sources(), [command.clone(), file("named")]);
        told.set(Some(&command)).unwrap();
        assert_eq!(sources(), std::slice::from_ref(&command));
        // A change to a file that was cut off.
        told.prepare(&key(file("new"))).unwrap();
        assert_eq!(sources(), [command.clone(), file("new")]);
        told.give_up().unwrap();
        assert_eq!(sources(), [command]);
        told.set(None).unwrap();
        assert_eq!(sources(), [file("named")]);
    }

    #[test]
    fn no_file_that_the_kernel_makes_up_is_a_key() {
        for (path, filesystem) in [("/proc/self/status", "procfs"), ("/sys/kernel/notes", "sysfs")] {
            // Not every machine has a sysfs with this file.
            if !Path::new(path).is_file() {
                continue;
            }
            let refused = key_file(Path::new(path)).unwrap_err().to_string();
            assert!(refused.contains(filesystem), "{path}: {refused}");
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        fs::write(&path, [7; 32]).unwrap();
        key_file(&path).unwrap();
    }
}
