//! Stock rsync (Debian: rsync) as the other end: replacements for ssh, rsync's daemon and our daemon.
#![allow(clippy::unwrap_used, clippy::panic)]
#![allow(dead_code)]

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use super::Scratch;

/// A command that replaces ssh. In `text`, `$*` is the command for the remote side.
pub fn script(scratch: &Scratch, name: &str, text: &str) -> PathBuf {
    let path = scratch.path().join(name);
    fs::write(
        &path,
        format!("#!/bin/sh\nexport PATH=/usr/bin:/bin\n[ \"$1\" = host ] || exit 255\nshift\n{text}\n"),
    )
    .unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// A replacement for ssh to a machine with rsync and without snowmelt.
pub fn stock_shell(scratch: &Scratch) -> PathBuf {
    script(scratch, "stock-shell", "exec sh -c \"$*\"")
}

/// A replacement for ssh to a machine with snowmelt, which sees the pools of `scratch`.
pub fn own_shell(scratch: &Scratch, run: &str) -> PathBuf {
    let (home, bin) = (scratch.path().display(), scratch.path().join("bin"));
    fs::create_dir(&bin).unwrap();
    symlink(env!("CARGO_BIN_EXE_snowmelt"), bin.join("snowmelt")).unwrap();
    let text = format!(
        "cd {home}\nexport HOME={home} XDG_DATA_HOME={home}/data XDG_CONFIG_HOME={home}/config XDG_STATE_HOME={home}/state\n\
         export XDG_RUNTIME_DIR={home} PATH={home}/bin:/usr/bin:/bin\n{run}"
    );
    script(scratch, "own-shell", &text)
}

/// Waits until a file contains a text. Fails if it does not appear in time.
#[track_caller]
pub fn await_text(file: &Path, text: &str) -> String {
    let begun = Instant::now();
    loop {
        let found = fs::read_to_string(file).unwrap_or_default();
        if found.contains(text) {
            return found;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "no '{text}' in: {found}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The snapshots of a dataset, oldest first.
pub fn snapshots(scratch: &Scratch, dataset: &str) -> Vec<String> {
    let all = scratch.ok(&format!("list -Ht snapshot -o name -d 1 {dataset}"));
    all.lines().map(str::to_owned).collect()
}

/// A directory with the restored contents of a snapshot, or of the newest snapshot of a dataset.
pub fn restored(scratch: &Scratch, name: &str) -> PathBuf {
    let snapshot = match name.contains('@') {
        true => name.to_owned(),
        false => snapshots(scratch, name).pop().unwrap(),
    };
    let target = scratch.path().join("restored");
    let _ = fs::remove_dir_all(&target);
    scratch.ok(&format!("restore -q --setuid --devices {snapshot} {}", target.display()));
    target
}

/// rsync's own daemon. It is ended when dropped.
pub struct StockDaemon {
    process: Child,
    pub port: u16,
}

impl StockDaemon {
    pub fn start(scratch: &Scratch, modules: &str) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let config = scratch.path().join("stock.conf");
        fs::write(&config, format!("uid = 0\ngid = 0\nuse chroot = no\nmotd file = /dev/null\n{modules}\n"))
            .unwrap();
        let process = Command::new("rsync")
            .args(["--daemon", "--no-detach", "--address=127.0.0.1", "--port", &port.to_string(), "--config"])
            .arg(&config)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let begun = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(begun.elapsed() < Duration::from_secs(20), "the daemon does not listen");
            std::thread::sleep(Duration::from_millis(50));
        }
        Self { process, port }
    }

    pub fn url(&self, path: &str) -> String {
        format!("rsync://127.0.0.1:{}/{path}", self.port)
    }
}

impl Drop for StockDaemon {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Our daemon, killed when dropped. Its log is in the file `log`.
pub struct Server {
    child: Child,
    pub port: u16,
    /// Its configuration. The daemon reads it again after a change.
    pub config: PathBuf,
}

impl Server {
    pub fn start(scratch: &Scratch, config: &str) -> Self {
        // Other servers of the same test may still use their configurations.
        let mut names = (1..).map(|n| scratch.path().join(format!("rsyncd-{n}.conf")));
        let file = names.find(|name| !name.exists()).unwrap();
        fs::write(&file, config).unwrap();
        let log = File::create(scratch.path().join("log")).unwrap();
        let line = format!("serve rsync --config {} --address 127.0.0.1 --port 0", file.display());
        let mut child = scratch.command(&line).stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        let port = said.trim().strip_prefix("serving rsync on 127.0.0.1:");
        let port = port.and_then(|port| port.parse().ok()).unwrap_or_else(|| panic!("{said}"));
        Self { child, port, config: file }
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn client(&self, args: &[&str]) -> Command {
        let mut command = Command::new("timeout");
        let port = self.port.to_string();
        command.args(["120", "rsync", "--port", &port]).args(args).stdin(Stdio::null());
        command
    }

    pub fn run(&self, args: &[&str], from: &str, to: &str) -> Output {
        self.client(args).arg(from).arg(to).output().unwrap()
    }

    /// A push that must succeed without warnings. Returns the client's output.
    pub fn push(&self, args: &[&str], from: &str, to: &str) -> String {
        let output = self.run(args, from, &format!("localhost::{to}"));
        assert!(output.status.success() && output.stderr.is_empty(), "{args:?} {from} {to}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// A pull that must succeed without warnings.
    pub fn pull(&self, args: &[&str], from: &str, to: &Path) {
        let output = self.run(args, &format!("localhost::{from}"), to.to_str().unwrap());
        assert!(output.status.success() && output.stderr.is_empty(), "{args:?} {from}: {output:?}");
    }

    #[track_caller]
    pub fn fails(&self, args: &[&str], from: &str, to: &str, code: i32, message: &str) {
        let output = self.run(args, from, to);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(code) && stderr.contains(message), "{args:?} {to}: {output:?}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
