//! Where `serve nbd` listens, and with which certificates.

use std::net::{SocketAddr, ToSocketAddrs};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use snowmelt_nbd::{Listener, Tls, TlsConfig};

use crate::app::App;
use crate::args::{ServeNbdArgs, TlsMode};
use crate::context::Context;
use crate::error::{CliError, Result};
use crate::journal::{Level, ServerLog};

/// NBD's own port.
const PORT: u16 = 10809;
const ATTEMPT: &str = "cannot serve NBD";

/// How connections over TCP are protected.
///
/// # Errors
/// When the arguments open TCP to everyone without `--insecure`, or the certificates are not valid.
pub(super) fn tls(app: &App<'_>, args: &ServeNbdArgs, log: &ServerLog) -> Result<Tls> {
    let mode = args.tls.unwrap_or(if args.tls_dir.is_some() { TlsMode::Required } else { TlsMode::Off });
    if let Some(address) = args.listen.first()
        && mode != TlsMode::Required
        && !args.insecure
    {
        return Err(CliError::Usage(format!(
            "--listen {address}: TCP needs TLS and certificates (--tls-dir DIRECTORY), or --insecure, with which \
             anyone who reaches the address can read and write all exports"
        )));
    }
    let Some(directory) = args.tls_dir.as_ref().filter(|_| mode != TlsMode::Off) else {
        return Ok(Tls::Off);
    };
    let directory = app.context.path(directory);
    warn_of_open_key(&directory.join("server-key.pem"), log);
    let config = TlsConfig::from_directory(&directory, !args.insecure)
        .map_err(|error| CliError::failed(ATTEMPT, &error))?;
    Ok(if mode == TlsMode::Required { Tls::Required(config) } else { Tls::Optional(config) })
}

fn warn_of_open_key(path: &Path, log: &ServerLog) {
    if std::fs::metadata(path).is_ok_and(|found| found.mode() & 0o007 != 0) {
        let path = path.display();
        log.line(Level::Warning, &format!("warning: every user can read '{path}': chmod o= '{path}'"));
    }
}

/// The addresses to listen on: those in the arguments, or else a Unix socket of the user.
///
/// # Errors
/// When an address cannot be listened on, or there is no private directory for the socket.
pub(super) fn listeners(app: &App<'_>, args: &ServeNbdArgs, pool: &str) -> Result<Vec<Listener>> {
    let failed = |error| CliError::failed(ATTEMPT, &error);
    let mut listeners = Vec::new();
    for address in addresses(&args.listen)? {
        listeners.push(Listener::tcp(address).map_err(failed)?);
    }
    let mut sockets: Vec<PathBuf> = args.unix.iter().map(|path| app.context.path(path)).collect();
    if sockets.is_empty() && listeners.is_empty() {
        sockets.push(private_directory(app.context)?.join(format!("nbd-{pool}.sock")));
    }
    for path in sockets {
        listeners.push(Listener::unix(&path).map_err(failed)?.plain());
    }
    Ok(listeners)
}

fn addresses(texts: &[String]) -> Result<Vec<SocketAddr>> {
    let mut found = Vec::new();
    for text in texts {
        let with_port = text.to_socket_addrs();
        let resolved = with_port.or_else(|_| (text.trim_matches(['[', ']']), PORT).to_socket_addrs());
        found.extend(resolved.map_err(|error| CliError::Usage(format!("--listen {text}: {error}")))?);
    }
    Ok(found)
}

/// A directory for sockets with access only for this user: the runtime directory of the service, or `snowmelt` in the
/// runtime directory of the user.
fn private_directory(context: &Context) -> Result<PathBuf> {
    // systemd makes the directory of a service, and separates several with colons
    let of_service = context.env("RUNTIME_DIRECTORY").and_then(|text| text.to_str()?.split(':').next());
    if let Some(directory) = of_service {
        return Ok(PathBuf::from(directory));
    }
    let uid = rustix::process::geteuid();
    let of_user = || match uid.is_root() {
        true => PathBuf::from("/run"),
        false => PathBuf::from(format!("/run/user/{}", uid.as_raw())),
    };
    let directory = context.env("XDG_RUNTIME_DIR").map_or_else(of_user, PathBuf::from).join("snowmelt");
    let shown = directory.display();
    let hint = "use --unix PATH, in a directory that only you can write to";
    match std::fs::DirBuilder::new().mode(0o700).create(&directory) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(CliError::Failed(format!("{ATTEMPT}: cannot make '{shown}': {error}\n{hint}")));
        }
        _ => {}
    }
    let is_own = std::fs::symlink_metadata(&directory)
        .is_ok_and(|found| found.is_dir() && found.uid() == uid.as_raw() && found.mode() & 0o022 == 0);
    if !is_own {
        return Err(CliError::Failed(format!(
            "{ATTEMPT}: '{shown}' belongs to another user, or others can write to it\n{hint}"
        )));
    }
    Ok(directory)
}
