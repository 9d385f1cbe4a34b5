//! `rsync`: the other end of a client that comes over a remote shell.

use std::cell::Cell;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use snowmelt_dataset::{Catalog, Found, Name};
use snowmelt_rsync::client::PROTOCOL_MAX;
use snowmelt_rsync::daemon;
use snowmelt_rsync::remote::{self, Request};
use snowmelt_rsync::source::{Content, DirectorySource, FakeSuperSource, NamedTrees, Source};
use snowmelt_rsync::target::{DatasetTarget, DirectoryTarget, FakeSuperTarget, Target};
use snowmelt_rsync::{ExitCode, RsyncError, Summary};

use super::serve_rsync::open_tree;
use crate::app::{App, pool_of};
use crate::args::{RSYNC, RsyncArgs};
use crate::error::{CliError, Result, chain};
use crate::exit::Exit;
use crate::pools::{Session, missing};

/// Bytes, and time, in which a client is to see that all is over.
const DRAIN_MAX: u64 = 16 << 20;
const DRAIN_PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of a file of patterns.
const CVS_MAX: u64 = 64 << 10;
/// Nothing that a user says.
const LOOK_UP: &str = "--look-up-names";

/// How a client was served.
type Served = std::result::Result<Summary, RsyncError>;

/// Serves the request of a client, with the exit codes of rsync.
///
/// # Errors
/// When standard input and output cannot be opened. Other errors are reported, to the client if possible.
pub fn run(app: &mut App<'_>, args: &RsyncArgs) -> Result<Exit> {
    app.is_streaming = true;
    let words: Vec<Vec<u8>> = args.words.iter().map(|word| word.as_bytes().to_vec()).collect();
    let has = |word: &[u8]| words.iter().take_while(|word| *word != b".").any(|given| given == word);
    if has(b"--daemon") {
        return super::rsync_daemon::run(app, &args.words);
    }
    if words == [LOOK_UP.as_bytes()] {
        let answered = daemon::answer_lookups(&app.context.stdin);
        return answered.map(|()| Exit::Ok).map_err(|error| CliError::failed("cannot look up names", &error));
    }
    if has(b"--version") || has(b"-V") || has(b"-VV") {
        return version(app, has(b"-VV"));
    }
    if !has(b"--server") {
        return Ok(refuse(
            app,
            "'snowmelt rsync' is not an rsync client: rsync starts it at the other end. Use: rsync \
             --rsync-path='snowmelt rsync' HOST:PATH TARGET",
        ));
    }
    let (mut input, _) = ends(app)?;
    let words = match remote::complete(words, &mut input) {
        Ok(words) => words,
        Err(error) => return Ok(ended(app, Err(error))),
    };
    let request = Request::parse(&words);
    // A push writes to the first path, wherever the list of names is.
    let most = if request.is_push() { 1 } else { usize::MAX };
    let dataset = request.paths().take(most).find(|path| is_dataset(app, path)).map(lossy);
    let Some(dataset) = dataset.filter(|_| !request.is_refused()) else {
        let served = match request.is_push() && !request.is_refused() {
            true => receive_directory(app, request)?,
            false => directories(app, request)?,
        };
        return Ok(ended(app, served));
    };
    // If another process owns the pool, it continues with all arguments.
    let given = app.context.args.len().saturating_sub(args.words.len());
    app.context.args.truncate(given);
    app.context.args.extend(words.into_iter().map(OsString::from_vec));
    let request = Cell::new(Some(request));
    let missing = |pool: &str| format!("no such pool '{pool}'");
    let result = app.on_pool(&dataset, missing, |app, session| {
        let Some(request) = request.take() else { return Ok(Exit::Failed) };
        let served = match request.is_push() {
            true => receive(app, session, request)?,
            false => datasets(app, session, request)?,
        };
        Ok(ended(app, served))
    });
    match (result, request.take()) {
        (Err(CliError::Failed(message) | CliError::NoSpace(message)), Some(request)) => {
            let served = request.refuse(ends(app)?, &format!("rsync: {message}"));
            Ok(ended(app, served))
        }
        (result, _) => result,
    }
}

/// A process that looks up names for a server that cannot.
pub(super) fn lookups() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("snowmelt").args([RSYNC, LOOK_UP]).current_dir("/");
    command
}

fn lossy(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

/// The version and the capabilities, in the format of rsync's `--version` and `-VV`.
fn version(app: &mut App<'_>, as_json: bool) -> Result<Exit> {
    let version = env!("CARGO_PKG_VERSION");
    if as_json {
        let told = serde_json::json!({
            "program": "rsync",
            "version": format!("snowmelt {version}"),
            "protocol": PROTOCOL_MAX,
            "capabilities": {
                "hardlinks": true, "symlinks": true, "symtimes": true, "ACLs": true, "xattrs": true,
                "append": true, "atimes": true, "batchfiles": false, "inplace": true, "iconv": false,
            },
        });
        // A blank after each colon, for scripts that look for `"ACLs": true`.
        writeln!(app.context.out, "{}", serde_json::to_string_pretty(&told).map_err(io::Error::from)?)?;
    } else {
        writeln!(
            app.context.out,
            "rsync  version snowmelt-{version}  protocol version {PROTOCOL_MAX}\n\
             The server's side of rsync only: see 'snowmelt rsync --help'."
        )?;
    }
    Ok(Exit::Ok)
}

fn refuse(app: &mut App<'_>, message: &str) -> Exit {
    app.context.complain(format_args!("rsync: {message}"));
    Exit::Other(ExitCode::Unsupported as u8)
}

/// The client, in both directions. Where rsync starts the shell itself its descriptors are non-blocking.
///
/// # Errors
/// When they cannot be opened.
fn ends(app: &App<'_>) -> Result<(File, File)> {
    let copy = |fd: BorrowedFd<'_>| -> io::Result<File> {
        let flags = rustix::fs::fcntl_getfl(fd)?;
        rustix::fs::fcntl_setfl(fd, flags - rustix::fs::OFlags::NONBLOCK)?;
        fd.try_clone_to_owned().map(File::from)
    };
    let ends = copy(app.context.stdin.as_fd())
        .and_then(|input| Ok((input, copy(app.context.out.get_ref().as_fd())?)));
    ends.map_err(|error| CliError::failed("cannot serve rsync", &error))
}

/// Prints the error here if it could not be sent to the client.
fn ended(app: &mut App<'_>, served: Served) -> Exit {
    let code = match served {
        Ok(summary) => summary.shortcoming(),
        // As it was told.
        Err(RsyncError::PeerExit { code }) => return Exit::of(u8::try_from(code).unwrap_or(u8::MAX)),
        Err(error) => {
            let code = error.code();
            if matches!(error, RsyncError::Connection(_)) || code == ExitCode::Protocol {
                app.context.complain(format_args!("rsync: {error}"));
            } else {
                // A shell can use one socket for both directions. Then the client sees its end here, and not at the
                // end of this program.
                let _ = rustix::net::shutdown(app.context.out.get_ref(), rustix::net::Shutdown::Write);
                drain(app);
            }
            Some(code)
        }
    };
    code.map_or(Exit::Ok, |code| Exit::Other(code as u8))
}

/// Reads the rest that the client sends. The client sees the error only if it can send everything.
fn drain(app: &App<'_>) {
    let Ok(input) = app.context.stdin.try_clone() else { return };
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let _ = io::copy(&mut input.take(DRAIN_MAX), &mut io::sink());
        let _ = tell.send(());
    });
    let _ = told.recv_timeout(DRAIN_PATIENCE);
}

/// Whether a path begins with the name of a pool, and is not said to be a file's: the rule that `sync` has.
fn is_dataset(app: &App<'_>, path: &[u8]) -> bool {
    if [b'/', b'.', b'~'].iter().any(|first| path.first() == Some(first)) {
        return false;
    }
    let path = lossy(path);
    // The owner that serves us may look for pools in other places than we do, and was asked for its own.
    match app.served_pool() {
        Some(own) => own == pool_of(&path),
        None => app.places.find(pool_of(&path)).is_some(),
    }
}

/// Serves directories of this machine. The client has the rights of this process.
fn directories(app: &App<'_>, mut request: Request) -> Result<Served> {
    request
        .begin_at(app.context.cwd().as_os_str().as_bytes(), app.context.env("HOME").map(OsStrExt::as_bytes));
    let ends = ends(app)?;
    request.leave_out_with_cvs(own_cvs(app));
    Ok(match DirectorySource::open(Path::new("/")) {
        Ok(root) if request.wants_fake_super() => {
            request.serve(ends, &FakeSuperSource::new(Arc::new(root)), "/")
        }
        Ok(root) => request.serve(ends, &root, "/"),
        Err(error) => request.refuse(ends, &format!("rsync: /: {error}")),
    })
}

/// The exclusions of the logged-in user for `-C`: from `.cvsignore` in the home directory, and from `CVSIGNORE`.
fn own_cvs(app: &App<'_>) -> Vec<u8> {
    let home = app.context.env("HOME").map(|home| Path::new(home).join(".cvsignore"));
    let mut text = Vec::new();
    // A file that does not exist or cannot be read is ignored, as in rsync.
    if let Some(file) = home.and_then(|path| File::open(path).ok()) {
        let _ = file.take(CVS_MAX).read_to_end(&mut text);
    }
    text.push(b'\n');
    text.extend(app.context.env("CVSIGNORE").map(OsStrExt::as_bytes).unwrap_or_default());
    text
}

/// Receives into a directory of this machine, with the rights of this process.
fn receive_directory(app: &App<'_>, mut request: Request) -> Result<Served> {
    let ends = ends(app)?;
    if let Some(pool) = missing_pool(app, &request)? {
        let text = format!(
            "rsync: [receiver] the pool '{pool}' is missing: 'snowmelt pool list' shows its last place\nrsync: for \
             a directory of that name use ./{pool}"
        );
        return Ok(request.refuse_with(ends, ExitCode::FileIo, &text));
    }
    let list = file_list_here(app, &request);
    request
        .begin_at(app.context.cwd().as_os_str().as_bytes(), app.context.env("HOME").map(OsStrExt::as_bytes));
    let path = request.paths().next().unwrap_or_default();
    let path = path.strip_prefix(b"/").unwrap_or(path).to_vec();
    Ok(match DirectoryTarget::open(Path::new("/")) {
        Ok(target) => {
            let target: Box<dyn Target> = match request.wants_fake_super() {
                true => Box::new(FakeSuperTarget::new(target)),
                false => Box::new(target),
            };
            request.receive(ends, (target, &path, "/"), list)
        }
        Err(error) => request.refuse_with(ends, ExitCode::FileIo, &format!("rsync: [receiver] /: {error}")),
    })
}

/// The pool that a push probably means and that is not there now: a directory of its name would only look like it.
fn missing_pool(app: &App<'_>, request: &Request) -> Result<Option<String>> {
    let path = request.paths().next().unwrap_or_default();
    if matches!(path.first(), None | Some(b'/' | b'.' | b'~')) {
        return Ok(None);
    }
    let path = lossy(path);
    let pool = pool_of(&path);
    Ok(missing::find(app.context, &app.places, pool)?.map(|_| pool.to_owned()))
}

/// Serves datasets and snapshots, each in a directory with its name.
fn datasets(app: &App<'_>, session: &Session, request: Request) -> Result<Served> {
    let ends = ends(app)?;
    let mut trees = NamedTrees::default();
    let mut failure = None;
    for path in request.paths() {
        let shown = lossy(path);
        if !is_dataset(app, path) || pool_of(&shown) != session.name() {
            failure = Some(format!(
                "'{shown}' is not in the pool '{}' of the other paths: transfer it separately",
                session.name()
            ));
            break;
        }
        let name = tree_of(&session.datasets.catalog(), path);
        if trees.has(name.as_bytes()) {
            continue;
        }
        match open_tree(&session.datasets, name) {
            Ok(tree) => trees.add(name, tree),
            Err(error) => failure = Some(format!("cannot open '{name}': {error}")),
        }
    }
    Ok(match failure {
        None => request.serve(ends, &trees, ""),
        Some(failure) => request.refuse(ends, &format!("rsync: {failure}")),
    })
}

/// Receives into a dataset.
fn receive(app: &App<'_>, session: &Session, request: Request) -> Result<Served> {
    let ends = ends(app)?;
    let list = file_list(app, session, &request);
    let path = request.paths().next().unwrap_or_default().to_vec();
    let name = tree_of(&session.datasets.catalog(), &path);
    let refuse = |request: Request, ends, text: String| request.refuse_with(ends, ExitCode::FileIo, &text);
    if name.contains('@') {
        let text =
            format!("rsync: [receiver] {}: Read-only file system (30): it is a snapshot", lossy(&path));
        return Ok(refuse(request, ends, text));
    }
    let rest = path[name.len()..].strip_prefix(b"/").unwrap_or(&path[name.len()..]);
    if let Some(missing) = missing_dataset(session, name, rest) {
        let text = format!(
            "rsync: [receiver] there is no dataset '{missing}', and no directory of that name in '{name}'\nrsync: \
             create a dataset with 'snowmelt create {missing}', or use {name}/./{} for a directory",
            lossy(rest)
        );
        return Ok(refuse(request, ends, text));
    }
    Ok(match DatasetTarget::begin(&session.datasets, name) {
        Ok(target) => request.receive(ends, (Box::new(target), rest, &format!("{name}/")), list),
        Err(error) => refuse(request, ends, format!("rsync: [receiver] {}", chain(&error))),
    })
}

/// The missing dataset that a push probably means: `tank/home/` would become a directory in the root filesystem of
/// the pool, where nobody expects it. If this directory already exists, the push writes to it.
fn missing_dataset(session: &Session, name: &str, rest: &[u8]) -> Option<String> {
    let first = rest.split(|byte| *byte == b'/').next().filter(|first| !first.is_empty())?;
    if name != session.name() || first == b"." {
        return None;
    }
    let is_there = open_tree(&session.datasets, name).is_ok_and(|tree| tree.metadata(first, false).is_ok());
    (!is_there).then(|| format!("{name}/{}", lossy(first)))
}

/// The list of names that a push is to be of: in a dataset of the pool, or a file of this machine.
fn file_list(app: &App<'_>, session: &Session, request: &Request) -> Option<io::Result<Box<dyn Content>>> {
    let path = request.file_list()?;
    if is_dataset(app, path) {
        let name = tree_of(&session.datasets.catalog(), path);
        let rest = path[name.len()..].strip_prefix(b"/").unwrap_or(&path[name.len()..]);
        let tree = open_tree(&session.datasets, name).map_err(io::Error::other);
        return Some(tree.and_then(|tree| tree.open(rest, true)));
    }
    file_list_here(app, request)
}

/// The same, of this machine.
fn file_list_here(app: &App<'_>, request: &Request) -> Option<io::Result<Box<dyn Content>>> {
    let path = request.file_list_at(app.context.cwd().as_os_str().as_bytes())?;
    Some(DirectorySource::open(Path::new("/")).and_then(|root| root.open(&path, true)))
}

/// The dataset or snapshot that a path leads into: the longest beginning that is the name of one.
fn tree_of<'p>(catalog: &Catalog, path: &'p [u8]) -> &'p str {
    let slashes = (0..path.len()).rev().filter(|at| path[*at] == b'/');
    let mut names =
        std::iter::once(path.len()).chain(slashes).filter_map(|end| std::str::from_utf8(&path[..end]).ok());
    let is_tree = |name: &&str| {
        let parsed = Name::parse(name.strip_suffix('@').unwrap_or(name));
        parsed.is_ok_and(|parsed| match catalog.find(&parsed) {
            Ok(Found::Dataset(_)) => true,
            Ok(Found::Snapshot(_)) => !name.ends_with('@'),
            _ => false,
        })
    };
    // If there is none, opening the root filesystem of the pool returns the reason.
    names.clone().find(is_tree).or_else(|| names.next_back()).unwrap_or_default()
}
