//! `heal`.

use std::io::Write;

use serde_json::json;
use snowmelt_dataset::property::format_bytes;
use snowmelt_replicate::heal::heal;

use super::ends::{Peers, Reach, Unreached};
use super::place::{self, Place, Remote};
use crate::app::App;
use crate::args::HealArgs;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::output::json;

/// Repairs damaged blocks of a dataset from a copy.
///
/// # Errors
/// When a side cannot be reached, or is not a snowmelt dataset.
pub fn run(app: &mut App<'_>, args: &HealArgs) -> Result<Exit> {
    let (source, target) = (side(app, &args.source)?, side(app, &args.target)?);
    let attempt = format!("cannot heal '{}' from '{}'", args.target, args.source);
    if source == target {
        return Err(CliError::Failed(format!("{attempt}: source and target are the same")));
    }
    let reach = Reach {
        rsh: &args.rsh,
        remote_command: &args.remote_command,
        level: 0,
        set: &[],
        allow: &[],
        is_from_here: false,
    };
    let peers = Peers::open(app, reach, &source, &target).map_err(|unreached| match unreached {
        Unreached::Lost(why) | Unreached::Busy(why) => CliError::Failed(why),
        Unreached::Failed(error) => error,
    })?;
    let healed = heal((&peers.source, &source.dataset), (&peers.target, &target.dataset));
    peers.close();
    let healed = healed.map_err(|failure| CliError::Failed(format!("{attempt}: {failure}")))?;
    if args.json {
        let mut document = json::document("snowmelt heal");
        for (key, value) in
            [("target", json!(args.target)), ("blocks", json!(healed.blocks)), ("bytes", json!(healed.bytes))]
        {
            document.insert(key.to_owned(), value);
        }
        document.insert("damaged".to_owned(), healed.damaged.into());
        json::print(&mut app.context.out, document)?;
    } else if args.verbose {
        let (blocks, bytes) = (healed.blocks, format_bytes(healed.bytes));
        writeln!(app.context.out, "{blocks} blocks ({bytes}) of {} repaired", args.target)?;
    }
    if healed.damaged > 0 {
        app.context.complain(format_args!(
            "{attempt}: {} damaged blocks were not repaired: they are metadata, in no common snapshot, or damaged \
             in the source too",
            healed.damaged
        ));
    }
    Ok(Exit::unless(healed.damaged > 0))
}

fn side(app: &App<'_>, text: &str) -> Result<Remote> {
    match place::parse(app, text)? {
        Place::Dataset(remote) if !remote.is_zfs && remote.path.is_none() => Ok(remote),
        _ => Err(CliError::Failed(format!("'{text}' is not a snowmelt dataset"))),
    }
}
