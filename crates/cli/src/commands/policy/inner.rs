//! Commands that this process runs itself, with the same arguments as on the command line, so that they do the same.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::io::{self, Seek};
use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, memfd_create};

use crate::app::App;
use crate::context::{Context, Surroundings};
use crate::error::{CliError, Result};
use crate::exit::Exit;

/// Maximum size of the stored output of a command.
const SAID_MAX: u64 = 64 << 20;

/// The output of a command.
pub(super) struct Said {
    pub(super) exit: Exit,
    pub(super) out: String,
    pub(super) err: String,
}

/// Runs a command with these words, in our surroundings but for standard input and output.
///
/// # Errors
/// When there is no memory for its output.
pub(super) fn run(app: &App<'_>, words: impl IntoIterator<Item = impl Into<OsString>>) -> Result<Said> {
    let failed = |error: &io::Error| CliError::failed("cannot run a command", error);
    let mut args: Vec<OsString> = words.into_iter().map(Into::into).collect();
    for path in app.pool_dirs() {
        args.extend(["--pool-dir".into(), path.clone().into()]);
    }
    let (mut out, stdout) = memory("out").map_err(|error| failed(&error))?;
    let (mut err, stderr) = memory("err").map_err(|error| failed(&error))?;
    let stdin = File::open("/dev/null").map_err(|error| failed(&error))?;
    let mut context = Context::new(Surroundings {
        args,
        stdin: stdin.into(),
        stdout,
        stderr,
        cwd: app.context.cwd().to_owned(),
        env: app.context.environment().to_vec(),
        cancelled: app.context.cancelled.clone(),
        keys: app.context.keys.clone(),
    });
    let exit = crate::run::run(&mut context);
    drop(context);
    Ok(Said {
        exit,
        out: content(&mut out).map_err(|error| failed(&error))?,
        err: content(&mut err).map_err(|error| failed(&error))?,
    })
}

/// A file in memory, twice.
fn memory(name: &str) -> io::Result<(File, OwnedFd)> {
    let file = File::from(memfd_create(name, MemfdFlags::CLOEXEC)?);
    let copy = file.try_clone()?;
    Ok((file, copy.into()))
}

fn content(file: &mut File) -> io::Result<String> {
    file.rewind()?;
    let mut bytes = Vec::new();
    file.take(SAID_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
