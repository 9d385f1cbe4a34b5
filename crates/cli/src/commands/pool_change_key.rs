//! `pool change-key`.

use snowmelt_pool::{KeyFormat, PoolError};

use crate::app::App;
use crate::args::PoolChangeKeyArgs;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::pools::keys::{self, KeySource, UserKey};

/// Has another key of the user open an encrypted pool.
///
/// # Errors
/// When there is no such pool, it is not encrypted, or the new key is not valid.
pub fn run(app: &mut App<'_>, args: &PoolChangeKeyArgs) -> Result<Exit> {
    let attempt = format!("cannot change the key of '{}'", args.pool);
    let missing = |pool: &str| format!("cannot open '{pool}': no such pool");
    let format = key_format(args.key_format.as_deref())?;
    app.on_pool(&args.pool, missing, |app, session| {
        let pool = session.datasets.pool();
        if pool.key_record().is_none() {
            return Err(CliError::Failed(format!("{attempt}: it is not encrypted")));
        }
        let source = args.key.source(app.context).unwrap_or(KeySource::Prompt);
        let key = UserKey::read(app.context, source, format, &args.pool)?;
        // Done before the change: if this is interrupted, this machine has the key that opens the pool.
        let told = keys::Told::of(app.context, pool.guid());
        told.prepare(&key)?;
        if let Err(error) = pool.change_key(&key.wrap()) {
            if matches!(error, PoolError::Key(_)) {
                told.give_up()?;
            }
            return Err(CliError::failed(&attempt, &error));
        }
        told.set(key.own())?;
        app.record(session);
        Ok(Exit::Ok)
    })
}

/// The form of a key by its name.
///
/// # Errors
/// When there is no such.
pub fn key_format(name: Option<&str>) -> Result<Option<KeyFormat>> {
    let format = |name| {
        let format = KeyFormat::of_name(name);
        format.ok_or_else(|| {
            CliError::Usage(format!("invalid key format '{name}': it must be raw, hex or passphrase"))
        })
    };
    name.map(format).transpose()
}
