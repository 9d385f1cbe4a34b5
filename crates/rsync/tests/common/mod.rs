//! A daemon inside the test process, and helpers that the tests share.
#![allow(dead_code, clippy::unwrap_used, clippy::panic)]

pub mod trees;

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use snowmelt_rsync::daemon::{Config, Daemon, Listener, OpenPath, Shutdown};
use snowmelt_rsync::source::Source;

struct NoDatasets;

impl OpenPath for NoDatasets {
    fn open(&self, path: &str) -> Result<Arc<dyn Source>, String> {
        Err(format!("there is no {path}"))
    }
}

/// A daemon in this process.
pub struct Server {
    pub port: u16,
    shutdown: Shutdown,
    thread: Option<JoinHandle<()>>,
    pub log: Arc<Mutex<Vec<String>>>,
}

impl Server {
    pub fn new(config: &str) -> Self {
        Self::patient(config, Duration::from_secs(60))
    }

    /// A daemon that gives clients this time to send their request.
    pub fn patient(config: &str, patience: Duration) -> Self {
        let config = Config::parse(config, Path::new("rsyncd.conf")).unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        let lines = log.clone();
        let say = Box::new(move |_: Option<&Path>, line: &str| lines.lock().unwrap().push(line.to_owned()));
        let daemon = Arc::new(Daemon::new(config, Box::new(NoDatasets), say).with_patience(patience));
        let listener = Listener::tcp(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let port = listener.address().unwrap().port();
        let shutdown = Shutdown::new();
        let stop = shutdown.clone();
        let thread = std::thread::spawn(move || daemon.serve(&[listener], 64, &stop).unwrap());
        Self { port, shutdown, thread: Some(thread), log }
    }

    /// A daemon with one module, `m`.
    pub fn of(path: &Path, more: &str) -> Self {
        Self::new(&format!("uid = 0\ngid = 0\n[m]\npath = {}\n{more}\n", path.display()))
    }

    pub fn rsync(&self, args: &[&str], from: &str, to: &Path) -> Output {
        let mut command = Command::new("timeout");
        command.args(["60", "rsync", "--port", &self.port.to_string()]).args(args);
        command.arg(format!("localhost::{from}")).arg(to).output().unwrap()
    }

    pub fn pull(&self, args: &[&str], from: &str, to: &Path) {
        let output = self.rsync(args, from, to);
        assert!(output.status.success(), "{args:?}: {output:?}\n{}", self.log.lock().unwrap().join("\n"));
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.is_empty(), "{args:?}: {stderr}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shutdown.trigger();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

/// The output of a program, and its exit code.
pub fn text(output: &Output) -> (String, String, Option<i32>) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr), output.status.code())
}
