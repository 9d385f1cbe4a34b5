//! A pool of ZFS, through the `zfs` command, here or over ssh.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread::JoinHandle;

use super::described::Collected;
use super::{End, Sink, Source};
use crate::error::{Failure, FailureKind};
use crate::objects::RemoteSnapshot;
use crate::request::{
    Action, BookmarkInfo, DatasetInfo, Describe, Kind, ReadRequest, ReceiveRequest, SendRequest, SnapshotInfo,
};

/// Maximum number of bytes that are kept of a command's standard error.
const SAID_MAX: u64 = 64 * 1024;
/// Properties that make a description.
const PROPERTIES: &str =
    "type,guid,createtxg,creation,origin,encryption,written,receive_resume_token,userrefs,clones";
/// What ssh exits with if it could not connect.
const SSH_FAILED: i32 = 255;

/// Maximum size of a command's output: enough for a pool of half a million snapshots.
const OUTPUT_MAX: u64 = 256 * 1024 * 1024;
/// A pool of ZFS.
pub struct Zfs {
    /// The words before those of `zfs` itself: `ssh host`, or none.
    remote: Vec<String>,
}

impl Zfs {
    /// Through the `zfs` of this machine.
    pub fn local() -> Self {
        Self { remote: Vec::new() }
    }

    /// Through that of another, reached with these words (`ssh host`).
    pub fn remote(words: Vec<String>) -> Self {
        Self { remote: words }
    }

    fn command(&self, words: &[String]) -> Command {
        let Some((program, rest)) = self.remote.split_first() else {
            let mut command = Command::new("zfs");
            command.args(words);
            return command;
        };
        let mut command = Command::new(program);
        let line: Vec<String> =
            std::iter::once("zfs".to_owned()).chain(words.iter().map(|word| quoted(word))).collect();
        command.args(rest).arg(line.join(" "));
        command
    }

    fn run(&self, words: &[String]) -> Result<String, Failure> {
        let mut command = self.command(words);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| cannot_run(&error))?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let (stdout, stderr) = std::thread::scope(|scope| {
            let errors = scope.spawn(|| bounded(stderr, SAID_MAX));
            (
                bounded(stdout, OUTPUT_MAX),
                errors.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            )
        });
        let status = child.wait().map_err(|error| cannot_run(&error))?;
        match status.code() {
            _ if stdout.len() as u64 > OUTPUT_MAX => Err(Failure::other(format!(
                "zfs printed more than {} MiB, which is too much for one sync",
                OUTPUT_MAX >> 20
            ))),
            Some(0) => Ok(String::from_utf8_lossy(&stdout).into_owned()),
            code => Err(self.failed(code, &String::from_utf8_lossy(&stderr)).made_safe()),
        }
    }

    fn failed(&self, code: Option<i32>, said: &str) -> Failure {
        let said = said.trim_end();
        let lost = !self.remote.is_empty() && code == Some(SSH_FAILED);
        let kind = match said {
            _ if lost => FailureKind::Lost,
            _ if said.contains("no longer exists") => FailureKind::CannotResume,
            _ if said.contains("dataset is busy") => FailureKind::Busy,
            _ if said.contains("out of space") || said.contains("quota exceeded") => FailureKind::NoSpace,
            _ if said.contains("has been modified") || said.contains("does not\nmatch") => {
                FailureKind::Diverged
            }
            _ => FailureKind::Other,
        };
        let message = match (said, code) {
            ("", Some(code)) => format!("zfs ended with status {code}"),
            ("", None) => "zfs was killed".to_owned(),
            (said, _) => said.to_owned(),
        };
        Failure::new(kind, message)
    }

    fn action(&self, action: &Action) -> Result<(), Failure> {
        let words: Vec<String> = match action {
            Action::Snapshot { names } => words(&["snapshot"]).into_iter().chain(names.clone()).collect(),
            Action::DestroySnapshot { name } | Action::DestroyBookmark { name } => words(&["destroy", name]),
            Action::Bookmark { snapshot, bookmark } => words(&["bookmark", snapshot, bookmark]),
            Action::Hold { tag, snapshot } => words(&["hold", tag, snapshot]),
            Action::Release { tag, snapshot } => words(&["release", tag, snapshot]),
            Action::Rename { from, to } => words(&["rename", from, to]),
            Action::CreateParents { name } => words(&["create", "-p", "-o", "canmount=off", name]),
            Action::AbortReceive { name } => words(&["receive", "-A", name]),
            // ZFS writes its own history.
            Action::Note { .. } => return Ok(()),
        };
        self.run(&words).map(drop)
    }

    /// Which of these snapshots have the tag.
    fn held(&self, tag: &str, snapshots: &[String]) -> Result<Vec<String>, Failure> {
        let mut held = Vec::new();
        // A command line has no room for all names of a large pool.
        for names in snapshots.chunks(500) {
            let mut command = words(&["holds", "-H"]);
            command.extend_from_slice(names);
            for line in self.run(&command)?.lines() {
                let mut fields = line.split('\t');
                if let (Some(name), Some(found)) = (fields.next(), fields.next())
                    && found == tag
                {
                    held.push(name.to_owned());
                }
            }
        }
        Ok(held)
    }
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// A word for a shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// The output of a command, up to one byte more than `most`. Then it is closed.
fn bounded(output: Option<impl Read>, most: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(output) = output {
        // The lines that could be read are used. The exit status shows whether they are complete.
        let _ = output.take(most + 1).read_to_end(&mut bytes);
    }
    bytes
}

fn cannot_run(error: &io::Error) -> Failure {
    Failure::other(format!("cannot run zfs: {error}"))
}

/// Rows of `zfs get`, gathered by name, in order.
fn gathered(text: &str) -> Vec<(&str, HashMap<&str, &str>)> {
    let mut found: Vec<(&str, HashMap<&str, &str>)> = Vec::new();
    for line in text.lines() {
        let mut fields = line.split('\t');
        let (Some(name), Some(property), Some(value)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        match found.last_mut() {
            Some((last, properties)) if *last == name => {
                properties.insert(property, value);
            }
            _ => found.push((name, HashMap::from([(property, value)]))),
        }
    }
    found
}

fn number(properties: &HashMap<&str, &str>, name: &str) -> u64 {
    properties.get(name).and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn text<'a>(properties: &HashMap<&str, &'a str>, name: &str) -> Option<&'a str> {
    properties.get(name).copied().filter(|value| !value.is_empty() && *value != "-")
}

impl End for Zfs {
    fn describe(&self, what: &Describe) -> Result<Vec<DatasetInfo>, Failure> {
        let depth: &[&str] = if what.recursive { &["-r"] } else { &["-d", "1"] };
        let mut command = words(&["get", "-Hp"]);
        command.extend(words(depth));
        command.extend(words(&["-t", "filesystem,volume,snapshot,bookmark", "-o", "name,property,value"]));
        command.extend(words(&[PROPERTIES, &what.root]));
        let rows = match self.run(&command) {
            Ok(rows) => rows,
            Err(failure) if failure.message.contains("dataset does not exist") => return Ok(Vec::new()),
            Err(failure) => return Err(failure),
        };
        let rows = gathered(&rows);
        let is_wanted = |dataset: &str| what.recursive || dataset == what.root;
        let referenced: Vec<String> = rows
            .iter()
            .filter(|(_, properties)| number(properties, "userrefs") > 0)
            .map(|(name, _)| (*name).to_owned())
            .collect();
        let held = self.held(&what.tag, &referenced)?;
        let mut guids: HashMap<String, u64> = HashMap::new();
        let mut found: Vec<DatasetInfo> = Vec::new();
        let mut at: HashMap<String, usize> = HashMap::new();
        for (name, properties) in &rows {
            if name.contains(['@', '#']) || !is_wanted(name) {
                continue;
            }
            at.insert((*name).to_owned(), found.len());
            let resume_token = text(properties, "receive_resume_token").map(str::to_owned);
            found.push(DatasetInfo {
                name: (*name).to_owned(),
                kind: if properties.get("type") == Some(&"volume") { Kind::Volume } else { Kind::Filesystem },
                encrypted: text(properties, "encryption").is_some_and(|value| value != "off"),
                origin: None,
                snapshots: Vec::new(),
                bookmarks: Vec::new(),
                written: number(properties, "written"),
                resume_token,
                inconsistent: false,
                receiving: false,
            });
        }
        for (name, properties) in &rows {
            let (guid, createtxg) = (number(properties, "guid"), number(properties, "createtxg"));
            if let Some((dataset, short)) = name.split_once('@') {
                guids.insert((*name).to_owned(), guid);
                if let Some(info) = at.get(dataset).and_then(|at| found.get_mut(*at)) {
                    info.snapshots.push(SnapshotInfo {
                        name: short.to_owned(),
                        guid,
                        createtxg,
                        creation: number(properties, "creation"),
                        held: held.iter().any(|held| held == name),
                        holds: number(properties, "userrefs"),
                        has_clones: text(properties, "clones").is_some(),
                    });
                }
            } else if let Some((dataset, short)) = name.split_once('#')
                && let Some(info) = at.get(dataset).and_then(|at| found.get_mut(*at))
            {
                info.bookmarks.push(BookmarkInfo { name: short.to_owned(), guid, createtxg });
            }
        }
        for (name, properties) in &rows {
            let (Some(origin), Some(at)) = (text(properties, "origin"), at.get(*name)) else { continue };
            let guid = match guids.get(origin) {
                Some(guid) => Some(*guid),
                None => self.run(&words(&["get", "-Hp", "-o", "value", "guid", origin]))?.trim().parse().ok(),
            };
            if let Some(info) = found.get_mut(*at) {
                info.origin = guid;
            }
        }
        for info in &mut found {
            info.snapshots.sort_by_key(|snapshot| snapshot.createtxg);
            info.inconsistent = info.resume_token.is_some() && info.snapshots.is_empty();
        }
        let mut collected = Collected::new(what)?;
        found.into_iter().try_for_each(|info| collected.add(info))?;
        Ok(collected.into_datasets())
    }

    fn send(&self, request: &SendRequest) -> Result<Box<dyn Source>, Failure> {
        let mut command = self.command(&send_words(request, &[]));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| cannot_run(&error))?;
        let output = child.stdout.take().ok_or_else(|| Failure::other("zfs has no output"))?;
        Ok(Box::new(Sending { output, process: Process::new(child, self.remote.clone()) }))
    }

    fn receive(&self, request: &ReceiveRequest) -> Result<Box<dyn Sink>, Failure> {
        let mut command = words(&["receive", "-s", "-u"]);
        if request.force {
            command.push("-F".to_owned());
        }
        if let Some(origin) = &request.origin {
            command.extend(["-o".to_owned(), format!("origin={origin}")]);
        }
        for (name, value) in &request.properties {
            command.extend(["-o".to_owned(), format!("{name}={value}")]);
        }
        for name in &request.exclude {
            command.extend(["-x".to_owned(), name.clone()]);
        }
        command.push(request.target.clone());
        let mut command = self.command(&command);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| cannot_run(&error))?;
        let input = child.stdin.take();
        Ok(Box::new(Receiving { input, process: Process::new(child, self.remote.clone()) }))
    }

    fn read(&self, request: &ReadRequest) -> Result<RemoteSnapshot, Failure> {
        Err(Failure::other(format!(
            "'{}' is in a ZFS pool, which sends only streams\nsync it to a snowmelt dataset, and this dataset to a \
             directory or image",
            request.snapshot
        )))
    }

    fn is_lost(&self) -> bool {
        false
    }

    fn sizes(&self, sends: &[SendRequest]) -> Result<Vec<Result<u64, Failure>>, Failure> {
        let size = |request: &SendRequest| {
            let text = self.run(&send_words(request, &["-nP"]))?;
            let last = text.lines().last().and_then(|line| line.split('\t').next_back());
            last.and_then(|size| size.parse().ok())
                .ok_or_else(|| Failure::other("zfs send -nP did not print a size"))
        };
        Ok(sends.iter().map(size).collect())
    }

    fn apply(&self, actions: &[Action]) -> Result<Vec<Result<(), Failure>>, Failure> {
        Ok(actions.iter().map(|action| self.action(action)).collect())
    }
}

fn send_words(request: &SendRequest, more: &[&str]) -> Vec<String> {
    let mut command = words(&["send"]);
    command.extend(words(more));
    if let Some(token) = &request.token {
        command.extend(["-t".to_owned(), token.clone()]);
        return command;
    }
    command.extend(words(if request.raw { &["-w"] } else { &["-e", "-c"] }));
    if request.large_blocks && !request.raw {
        command.push("-L".to_owned());
    }
    if request.properties {
        command.push("-p".to_owned());
    }
    if let Some(from) = &request.from {
        command.extend([if request.intermediate { "-I" } else { "-i" }.to_owned(), from.clone()]);
    }
    command.push(request.to.clone());
    command
}

/// A command under way. Dropped before it has ended, it is killed.
struct Process {
    child: Child,
    said: Option<JoinHandle<String>>,
    remote: Vec<String>,
}

impl Process {
    fn new(mut child: Child, remote: Vec<String>) -> Self {
        let said = child.stderr.take().map(|mut stderr| {
            std::thread::spawn(move || {
                let mut text = Vec::new();
                // A command with more output than is kept must not wait for a reader.
                let _ = (&mut stderr).take(SAID_MAX).read_to_end(&mut text);
                let _ = io::copy(&mut stderr, &mut io::sink());
                String::from_utf8_lossy(&text).into_owned()
            })
        });
        Self { child, said, remote }
    }

    fn finish(&mut self) -> Result<(), Failure> {
        let status = self.child.wait().map_err(|error| cannot_run(&error))?;
        let said = self.said.take().and_then(|said| said.join().ok()).unwrap_or_default();
        match status.success() {
            true => Ok(()),
            false => Err(Zfs { remote: self.remote.clone() }.failed(status.code(), &said)),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It fails only for a process that has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Sending {
    output: ChildStdout,
    process: Process,
}

impl Read for Sending {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.output.read(buf)
    }
}

impl Source for Sending {
    fn finish(mut self: Box<Self>) -> Result<(), Failure> {
        self.process.finish()
    }
}

struct Receiving {
    input: Option<ChildStdin>,
    process: Process,
}

impl Write for Receiving {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match &mut self.input {
            Some(input) => input.write(buf),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Sink for Receiving {
    fn finish(mut self: Box<Self>) -> Result<Vec<String>, Failure> {
        drop(self.input.take());
        self.process.finish().map(|()| Vec::new())
    }
}
