//! The keys of encrypted pools (docs/format/encryption-at-rest.md): where they come from, and getting them.
//!
//! The pool's key record says it in the words of whoever made the pool: `prompt`, `file:///path` or `command`. Which command that is
//! only this machine knows: a store that one does not own must not be able to have anything run. What this machine was told
//! (`<config>/keys/<guid>`) comes before what the record says, and is followed by what it will be told when a change of the key is through
//! (`<guid>.next`): whenever that is cut off, one of these opens the pool.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, OFlags, RenameFlags, renameat_with};
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
                None => Err(CliError::Failed("the key is to be typed, and there is no terminal".to_owned())),
            },
        }
    }
}

/// Opens a key's file, whose name may be a stranger's: nothing but a regular file, as opening others does something (watchdogs) or takes for ever
/// (fifos).
fn key_file(path: &Path) -> std::io::Result<fs::File> {
    let regular = |metadata: fs::Metadata| match metadata.is_file() {
        true => Ok(()),
        false => Err(std::io::Error::other("it is no regular file")),
    };
    regular(fs::metadata(path)?)?;
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = fs::File::options().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    regular(file.metadata()?)?;
    Ok(file)
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

    /// The key comes from there; `None` if what the pool itself says is right.
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

    /// The key will come from there.
    ///
    /// # Errors
    /// As [`set`](Self::set).
    pub fn prepare(&self, source: Option<&KeySource>) -> Result<()> {
        match source {
            Some(source) => write(&self.next, &source.told()?),
            None => remove(&self.next),
        }
    }

    /// This one opens the pool. If that was to be so when a change of the key is through, then it is so now; what was so before is kept, as
    /// the change may be under way still.
    fn settle(&self, source: &KeySource) {
        let is = |path: &Path| read(path).is_ok_and(|told| told.as_ref() == Some(source));
        if !is(&self.now) && is(&self.next) {
            let exchanged = renameat_with(CWD, &self.next, CWD, &self.now, RenameFlags::EXCHANGE);
            // Nothing was told before. If it cannot be written, both are tried again.
            let _ =
                exchanged.or_else(|_| renameat_with(CWD, &self.next, CWD, &self.now, RenameFlags::NOREPLACE));
        }
    }

    /// What was told, the likelier first.
    fn sources(&self) -> Result<Vec<KeySource>> {
        Ok([read(&self.now)?, read(&self.next)?].into_iter().flatten().collect())
    }
}

fn read(path: &Path) -> Result<Option<KeySource>> {
    let attempt = || format!("cannot read {}", path.display());
    let no_word = || CliError::Failed(format!("{} does not say where a key is: remove it", path.display()));
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
/// When it is not to be had, or the wrong one.
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
        "command" => "its key comes from a command that this machine was not told".to_owned(),
        other => format!("its key is at a place that means nothing here: {other:?}"),
    });
    Err(CliError::Failed(format!(
        "cannot open the pool at {}: it is encrypted, and {why}\n'snowmelt pool import --key-file FILE {name}' (or \
         --key-command, or --key-prompt) tells this machine where its key is",
        location.path().display()
    )))
}

/// Where the key may be: only where the command was told, or everywhere else, the likeliest first.
fn sources(context: &Context, record: &KeyRecord) -> Result<Vec<KeySource>> {
    if let Some(source) = context.keys.source(record.guid()) {
        return Ok(vec![source]);
    }
    let mut sources = Told::of(context, record.guid()).sources()?;
    match KeySource::parse(record.location()) {
        // Whoever can write to the store could have put it there.
        Some(KeySource::Command(_)) | None => {}
        Some(source) => sources.push(source),
    }
    sources.dedup();
    Ok(sources)
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
                return Err(format!("what {} gives is not its key: incorrect key", named(source)));
            }
            Err(error) => return Err(format!("what {} gives is no key: {error}", named(source))),
        }
    }
}

fn named(source: &KeySource) -> String {
    match source {
        KeySource::Prompt => "the prompt".to_owned(),
        // The path may be what a stranger wrote into the store.
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
    /// Reads it, from whoever sits at the terminal twice. Without a format it is what it looks like: 32 bytes or 64 hexadecimal digits in a
    /// file are a key, all else a passphrase.
    ///
    /// # Errors
    /// When it is not to be had, or not of its form.
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
                    "{} is no key: it should have 32 bytes or 64 hexadecimal digits (for a passphrase, give \
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

    /// What this machine has to be told of it, as the pool itself does not say it.
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
}
