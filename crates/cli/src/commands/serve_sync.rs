//! `serve sync`.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use snowmelt_dataset::Subtree;
use snowmelt_dataset::property::PeerProperties;
use snowmelt_dataset::text::visible_message;
use snowmelt_fs::restore::Privileges;
use snowmelt_replicate::access::{Access, Role};
use snowmelt_replicate::serve::{Taker, serve_pool};
use snowmelt_replicate::target::{Here, serve_target};

use super::sync::devices;
use super::take_in::ShadowTaker;
use crate::app::{App, pool_of};
use crate::args::ServeSyncArgs;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::pools::Session;
use crate::pools::shadow::{self, Shadow};

/// Serves a pool, or a directory or image through its shadow, to `sync` at the other side of standard input and
/// output, until `sync` disconnects.
///
/// # Errors
/// When there is no such pool, or the other side is not `sync`.
pub fn run(app: &mut App<'_>, args: &ServeSyncArgs) -> Result<Exit> {
    app.is_streaming = true;
    if args.into {
        return target(app, &args.source, args.privileges.of());
    }
    if args.source.as_os_str().as_encoded_bytes().starts_with(b"/") {
        if args.receive_only || args.append_only || !args.allow_property.is_empty() {
            let name = args.source.display();
            return Err(CliError::Usage(format!(
                "'{name}': a directory or image is served only as a source; use --into to serve it as a target"
            )));
        }
        return directory(app, &args.source);
    }
    let name = args.source.to_string_lossy();
    let access = access(&name, args)?;
    let pool = pool_of(&name);
    let missing = |_: &str| {
        format!(
            "cannot open '{pool}': no such pool\nif it was exported, 'snowmelt pool import' imports it again"
        )
    };
    app.on_pool(pool, missing, |app, session| {
        let cancelled = app.context.cancelled.clone();
        Files::of(app, &name)?.serve(session, &access, None, &cancelled)
    })
}

/// The rights of the client in a pool.
fn access(name: &str, args: &ServeSyncArgs) -> Result<Access> {
    let attempt = format!("cannot serve '{name}'");
    let root = Subtree::new(name).map_err(|error| CliError::Failed(format!("{attempt}: {error}")))?;
    let properties = PeerProperties::with(args.allow_property.iter().map(String::as_str))
        .map_err(|error| CliError::Usage(format!("{attempt}: --allow-property: {error}")))?;
    let access = match name.contains('/') {
        true => Access::to_subtree(root, role(args)),
        false => Access::to_pool(role(args)),
    };
    Ok(access.with_properties(properties))
}

fn role(args: &ServeSyncArgs) -> Role {
    match (args.send_only, args.append_only, args.receive_only) {
        (true, _, _) => Role::Send,
        (_, true, _) => Role::Append,
        (_, _, true) => Role::Receive,
        _ => Role::Full,
    }
}

/// An existing or new target.
fn target(app: &App<'_>, path: &Path, privileges: Privileges) -> Result<Exit> {
    let name = path.display().to_string();
    if !path.is_absolute() {
        return Err(CliError::Usage(format!("--into '{name}': the path must be absolute (/srv/copy)")));
    }
    let Files { attempt, input, output } = Files::of(app, &name)?;
    let err = Mutex::new(&app.context.err);
    let teller = |what: &str| {
        let Ok(mut err) = err.lock() else { return };
        // If the output is closed, the sync continues.
        let _ = writeln!(err, "{}", visible_message(what));
    };
    let streams = (File::from(input), File::from(output));
    let target = Here::new(path.to_owned(), devices(app)).with_privileges(privileges);
    serve_target(target, streams, &teller, &app.context.cancelled)
        .map_err(|error| CliError::failed(attempt, &error))?;
    Ok(Exit::Ok)
}

/// The source is read into its shadow at the request of the client. A shadow that never had any content is not kept.
fn directory(app: &mut App<'_>, path: &Path) -> Result<Exit> {
    let name = path.display().to_string();
    let attempt = format!("cannot serve '{name}'");
    let shadow =
        Shadow::of(app.places.shadows(), path).map_err(|error| CliError::failed(&attempt, &error))?;
    // The owner of the pool works in another process's name, and does not know where that keeps its shadows.
    let is_ours = !app.is_served();
    let lost = if is_ours { shadow.make(&attempt)? } else { None };
    let missing = |name: &str| shadow::damaged(name, &format!("{attempt}: its shadow cannot be read"));
    let served = app.on_pool(&shadow.pool, missing, |app, session| {
        let (files, cancelled) = (Files::of(app, &name)?, app.context.cancelled.clone());
        let Some(place) = session.shadow() else {
            return Err(CliError::Failed(format!("{attempt}: '{}' is not a shadow", session.name())));
        };
        let taker = ShadowTaker::new(app, session, &shadow, place, lost.as_ref());
        // A source is never written to.
        let root = Subtree::new(&shadow.dataset).map_err(|error| CliError::failed(&attempt, &error))?;
        files.serve(session, &Access::to_subtree(root, Role::Send), Some(&taker), &cancelled)
    });
    if is_ours {
        shadow.remove_if_unused();
    }
    served
}

/// Where the client is.
struct Files {
    attempt: String,
    input: OwnedFd,
    output: OwnedFd,
}

impl Files {
    /// Standard input and output.
    fn of(app: &App<'_>, what: &str) -> Result<Self> {
        let attempt = format!("cannot serve '{what}'");
        let copy =
            |fd: BorrowedFd<'_>| fd.try_clone_to_owned().map_err(|error| CliError::failed(&attempt, &error));
        let (input, output) = (copy(app.context.stdin.as_fd())?, copy(app.context.out.get_ref().as_fd())?);
        Ok(Self { attempt, input, output })
    }

    fn serve(
        self,
        session: &Session,
        access: &Access,
        taker: Option<&dyn Taker>,
        cancelled: &AtomicBool,
    ) -> Result<Exit> {
        let Self { attempt, input, output } = self;
        serve_pool(&session.datasets, access, taker, File::from(input), File::from(output), cancelled)
            .map_err(|error| CliError::failed(attempt, &error))?;
        Ok(Exit::Ok)
    }
}
