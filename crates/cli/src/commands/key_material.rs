//! Wrapping keys from where `--keylocation` says: files, or whoever sits at the terminal (`get_key_material` in
//! `lib/libzfs/libzfs_crypto.c`).

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{LocalModes, OptionalActions, Termios, isatty, tcgetattr, tcsetattr};
use snowmelt_crypt::{Decryptor, KeyError, KeyFormat, Keydata, Keyring};
use zeroize::Zeroizing;

use crate::app::App;
use crate::error::{CliError, Result};

/// Longest key material that is read, in bytes; ZFS's longest passphrase has 512.
const MAX_MATERIAL: usize = 64 * 1024;
/// How often a key is asked for (`MAX_KEY_PROMPT_ATTEMPTS`).
const ATTEMPTS: usize = 3;
/// How often it is looked whether the command should end while nobody types.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// The keys of a command.
pub struct KeyMaterial {
    ring: Keyring,
    /// Whoever sits at the terminal is asked when no key fits.
    asks: bool,
}

impl KeyMaterial {
    /// Reads the keys at these locations. `is_stdin_free` is false if standard input is something else.
    ///
    /// # Errors
    /// A location that is none, or cannot be read.
    pub fn read(app: &App<'_>, locations: &[String], is_stdin_free: bool) -> Result<Self> {
        let mut keys = Self { ring: Keyring::new(), asks: false };
        for location in locations {
            if location == "prompt" {
                if !is_stdin_free {
                    let why = "the key cannot be read from standard input, which is the stream";
                    return Err(CliError::Usage(why.to_owned()));
                }
                if isatty(&app.context.stdin) {
                    keys.asks = true;
                    continue;
                }
                let read = app.context.stdin.try_clone().and_then(material);
                let fails = |error| CliError::failed("cannot read the key from standard input", &error);
                keys.ring.add(read.map_err(fails)?);
            } else {
                keys.ring.add(of_file(app, location)?);
            }
        }
        Ok(keys)
    }

    /// Opens the keys of a snapshot, by which its records are decrypted.
    ///
    /// # Errors
    /// No key fits, or whoever was asked gave none that does.
    pub fn open(&mut self, app: &mut App<'_>, keydata: &Keydata, snapshot: &str) -> Result<Arc<Decryptor>> {
        let mut opened = self.ring.open(keydata);
        let mut attempts = if self.asks { ATTEMPTS } else { 0 };
        while let Err(error) = opened {
            if attempts == 0 {
                return Err(CliError::Failed(refused(&error, snapshot)));
            }
            if attempts < ATTEMPTS {
                app.context.complain(refused(&error, snapshot));
            }
            attempts -= 1;
            let what = match keydata.format {
                KeyFormat::Raw => {
                    let why = "Key load error: Cannot enter raw keys on the terminal";
                    return Err(CliError::Failed(why.to_owned()));
                }
                KeyFormat::Hex => "hex key",
                KeyFormat::Passphrase => "passphrase",
            };
            self.ring.add(ask(app, &format!("Enter {what} for '{snapshot}':"))?);
            opened = self.ring.open(keydata);
        }
        opened.map_err(|error| CliError::Failed(refused(&error, snapshot)))
    }
}

fn refused(error: &KeyError, snapshot: &str) -> String {
    match error {
        KeyError::Incorrect => format!("Key load error: Incorrect key provided for '{snapshot}'."),
        other => format!("Key load error: {other}."),
    }
}

fn of_file(app: &App<'_>, location: &str) -> Result<Zeroizing<Vec<u8>>> {
    let Some(path) = location.strip_prefix("file://").filter(|path| path.starts_with('/')) else {
        let why = format!("invalid keylocation '{location}': it must be prompt or file:///path");
        return Err(CliError::Usage(why));
    };
    let read = File::open(app.context.path(path)).and_then(material);
    read.map_err(|error| CliError::failed("Key load error: Failed to open key material file", &error))
}

/// All there is. The buffer never grows, so that no copy of a key stays behind.
fn material(file: File) -> std::io::Result<Zeroizing<Vec<u8>>> {
    let mut material = Zeroizing::new(Vec::with_capacity(MAX_MATERIAL));
    let mut chunk = Zeroizing::new([0; 4096]);
    let mut source = file.take(MAX_MATERIAL as u64);
    loop {
        match source.read(chunk.as_mut())? {
            0 => return Ok(material),
            n => material.extend_from_slice(chunk.get(..n).unwrap_or_default()),
        }
    }
}

/// A terminal that does not show what is typed; as it was when dropped.
struct Hidden<'a> {
    terminal: &'a File,
    before: Termios,
}

impl<'a> Hidden<'a> {
    fn new(terminal: &'a File) -> std::io::Result<Self> {
        let before = tcgetattr(terminal)?;
        let mut hidden = before.clone();
        hidden.local_modes -= LocalModes::ECHO | LocalModes::ECHOE | LocalModes::ECHOK | LocalModes::ECHONL;
        tcsetattr(terminal, OptionalActions::Flush, &hidden)?;
        Ok(Self { terminal, before })
    }
}

impl Drop for Hidden<'_> {
    fn drop(&mut self) {
        // There is nothing to be done if the terminal has gone.
        let _ = tcsetattr(self.terminal, OptionalActions::Flush, &self.before);
    }
}

/// Asks for a line that is not shown.
fn ask(app: &mut App<'_>, question: &str) -> Result<Zeroizing<Vec<u8>>> {
    use std::io::Write;
    // Standard output is for data.
    let _ = app.context.out.flush();
    let _ = app.context.err.write_all(question.as_bytes());
    let typed = Hidden::new(&app.context.stdin).and_then(|hidden| line(app, hidden.terminal));
    let _ = app.context.err.write_all(b"\n");
    match typed {
        Ok(Some(typed)) => Ok(typed),
        Ok(None) => Err(CliError::Failed("interrupted".to_owned())),
        Err(error) => Err(CliError::failed("cannot read the key from the terminal", &error)),
    }
}

/// A line from a terminal, or nothing if the command should end.
fn line(app: &App<'_>, mut terminal: &File) -> std::io::Result<Option<Zeroizing<Vec<u8>>>> {
    let mut line = Zeroizing::new(Vec::with_capacity(MAX_MATERIAL));
    let mut byte = Zeroizing::new([0]);
    while line.len() < MAX_MATERIAL {
        if app.context.is_cancelled() {
            return Ok(None);
        }
        let mut fds = [PollFd::from_borrowed_fd(terminal.as_fd(), PollFlags::IN)];
        match poll(&mut fds, Some(&LOOK)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        if terminal.read(byte.as_mut())? == 0 || byte[0] == b'\n' {
            break;
        }
        line.push(byte[0]);
    }
    Ok(Some(line))
}
