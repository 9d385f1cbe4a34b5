//! Runs the commands of the configuration with a shell.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// The environment variables of a command, with their names.
pub(crate) type Variables = Vec<(String, OsString)>;

/// A command for the shell (`$RSYNC_SHELL`, or `/bin/sh`). It runs in `/` and in its own process group. Standard input
/// and output are pipes.
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
