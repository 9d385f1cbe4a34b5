//! Wrapping keys from `--keylocation`: files, or the user at the terminal (`get_key_material` in
//! `lib/libzfs/libzfs_crypto.c`).

use std::fs::File;
use std::io::Write;
use std::sync::Arc;

use rustix::termios::isatty;
use snowmelt_crypt::{Decryptor, KeyError, KeyFormat, Keydata, Keyring};
use zeroize::Zeroizing;

use crate::app::App;
use crate::error::{CliError, Result};
use crate::secrets::{Terminal, material, protect_process, warn_of_readers};

/// How often a key is asked for (`MAX_KEY_PROMPT_ATTEMPTS`).
const ATTEMPTS: usize = 3;

/// The keys of a command.
pub struct KeyMaterial {
    ring: Keyring,
    /// If no key fits, the user at the terminal is asked again.
    asks: bool,
}

impl KeyMaterial {
    /// Reads the keys at these locations. `is_stdin_free` is false if standard input is something else.
    ///
    /// # Errors
    /// A location that is none, or cannot be read.
    pub fn read(app: &App<'_>, locations: &[String], is_stdin_free: bool) -> Result<Self> {
        let mut keys = Self { ring: Keyring::new(), asks: false };
        if !locations.is_empty() {
            protect_process();
        }
        for location in locations {
            if location == "prompt" {
                if !is_stdin_free {
                    let why = "the key cannot be read from standard input, which has the stream";
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
    /// When no key fits, from the file or from the user.
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
            app.context.out.flush()?;
            let question = format!("Enter {what} for '{snapshot}':");
            let terminal = Terminal::of(app.context);
            let terminal = terminal.ok_or_else(|| CliError::Failed("the terminal was closed".to_owned()))?;
            self.ring.add(terminal.ask(app.context, &question)?);
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
    let path = app.context.path(path);
    let opened = File::open(&path).inspect(|file| warn_of_readers(app.context, &path, file));
    let read = opened.and_then(material);
    read.map_err(|error| CliError::failed("Key load error: Failed to open key material file", &error))
}
