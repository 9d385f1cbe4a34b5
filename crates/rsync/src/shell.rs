//! Commands of the configuration, which a shell runs.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// What a command is told, by names of variables.
pub(crate) type Variables = Vec<(String, OsString)>;

/// A command for the shell (`$RSYNC_SHELL`, or `/bin/sh`): in `/`, in a process group of its own, with pipes to its
/// standard input and from its standard output.
pub(crate) fn command(text: &str, variables: &[(String, OsString)]) -> Command {
    let mut command = Command::new(std::env::var_os("RSYNC_SHELL").unwrap_or_else(|| "/bin/sh".into()));
    command
        .args(["-c", text])
        .envs(variables.iter().map(|(name, value)| (name, value)))
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .process_group(0);
    command
}
