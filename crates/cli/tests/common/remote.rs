//! A simulated remote machine: another home directory, reached through a replacement for ssh.
#![allow(clippy::unwrap_used)]
#![allow(dead_code)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use super::{Said, Scratch};

/// A command that replaces ssh: it runs the remote command in `home`, through `filter`.
pub fn rsh(scratch: &Scratch, name: &str, filter: &str) -> PathBuf {
    let home = scratch.path().join("remote");
    fs::create_dir_all(home.join("bin")).unwrap();
    let link = home.join("bin/snowmelt");
    if !link.exists() {
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_snowmelt"), &link).unwrap();
    }
    let home = home.display();
    let script = format!(
        "#!/bin/sh\n[ \"$1\" = host ] || exit 255\nexport HOME={home} XDG_DATA_HOME={home}/data XDG_CONFIG_HOME={home}/config XDG_STATE_HOME={home}/state\n\
         export XDG_RUNTIME_DIR={home} PATH={home}/bin:/usr/bin:/bin\n{filter} sh -c \"$2\"\n"
    );
    let path = scratch.path().join(name);
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// Creates a pool on the remote side.
pub fn with_remote(scratch: &Scratch) -> PathBuf {
    let rsh = rsh(scratch, "rsh", "");
    remote(scratch, "pool create far");
    rsh
}

/// Runs a command on the remote side. It must succeed.
pub fn remote(scratch: &Scratch, line: &str) -> String {
    let mut command = std::process::Command::new(scratch.path().join("rsh"));
    let said = Said::of({
        command.args(["host", &format!("snowmelt {line}")]).env_clear();
        command
    });
    assert_eq!((said.code, said.err.as_str()), (0, ""), "{line}: {said:?}");
    said.out
}
