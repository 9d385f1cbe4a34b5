//! `serve sync` as the forced command of an SSH key: the client's command line has no effect.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use common::{Scratch, demo};
use serde_json::{Value, json};

/// A client that sends arbitrary requests.
struct Raw {
    server: Child,
    input: Option<ChildStdin>,
    output: ChildStdout,
    channels: u32,
}

impl Raw {
    fn open(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut server = command.spawn().unwrap();
        let mut input = server.stdin.take().unwrap();
        input.write_all(b"SNOWSYNC\x01\0\0\0\0\0\0\0").unwrap();
        let mut output = server.stdout.take().unwrap();
        output.read_exact(&mut [0; 16]).unwrap();
        Self { server, input: Some(input), output, channels: 0 }
    }

    fn frame(&mut self, kind: u8, payload: &[u8]) {
        let mut frame = vec![kind, 0, 0, 0];
        frame.extend(self.channels.to_le_bytes());
        frame.extend(u32::try_from(payload.len()).unwrap().to_le_bytes());
        frame.extend(payload);
        self.input.as_mut().unwrap().write_all(&frame).unwrap();
    }

    /// Sends a request with its stream. Returns its result and the bytes of the server's stream.
    fn ask(&mut self, request: &Value, stream: &[u8]) -> (Value, Vec<u8>) {
        self.channels += 1;
        self.frame(1, request.to_string().as_bytes());
        for piece in stream.chunks(65536) {
            self.frame(2, piece);
        }
        self.frame(4, &[]);
        let mut came = Vec::new();
        loop {
            let mut header = [0; 12];
            self.output.read_exact(&mut header).unwrap();
            let len = u32::from_le_bytes(*header.last_chunk().unwrap()) as usize;
            let mut payload = vec![0; len];
            self.output.read_exact(&mut payload).unwrap();
            match header[0] {
                2 => came.extend(payload),
                5 => return (serde_json::from_slice(&payload).unwrap(), came),
                _ => {}
            }
        }
    }

    fn apply(&mut self, action: &Value) -> Value {
        let (result, _) = self.ask(&json!({"request": "apply", "actions": [action]}), &[]);
        result["Ok"]["applied"][0].clone()
    }

    fn names(&mut self, root: &str) -> Vec<String> {
        let request = json!({"request": "describe", "root": root, "recursive": true, "tag": "x"});
        let (_, lines) = self.ask(&request, &[]);
        let lines = String::from_utf8(lines).unwrap();
        let name =
            |line: &str| serde_json::from_str::<Value>(line).unwrap()["name"].as_str().unwrap().to_owned();
        lines.lines().map(name).collect()
    }

    fn close(mut self) {
        drop(self.input.take());
        self.server.wait().unwrap();
    }
}

fn kind(result: &Value) -> &str {
    result["Err"]["kind"].as_str().unwrap_or("done")
}

/// A replacement for ssh with a key that always runs this command, whatever the client asks for.
fn forced(scratch: &Scratch, command: &str) -> String {
    let home = scratch.path().join("remote");
    fs::create_dir_all(&home).unwrap();
    let path = scratch.path().join(format!("rsh{}", command.replace(['/', ' '], "_")));
    let (home, binary) = (home.display(), env!("CARGO_BIN_EXE_snowmelt"));
    let script = format!(
        "#!/bin/sh\nexport HOME={home} XDG_DATA_HOME={home}/data XDG_CONFIG_HOME={home}/config XDG_STATE_HOME={home}/state\n\
         export XDG_RUNTIME_DIR={home}\nexec {binary} {command}\n"
    );
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path.display().to_string()
}

/// Runs a command on the other machine.
fn there(scratch: &Scratch, line: &str) -> String {
    let said = common::Said::of(Command::new(forced(scratch, line)));
    assert_eq!((said.code, said.err.as_str()), (0, ""), "{line}: {said:?}");
    said.out
}

#[test]
fn a_key_for_a_dataset_reaches_nothing_else_of_the_pool() {
    let scratch = Scratch::with_home();
    scratch.ok("create tank/secret");
    scratch.ok("snapshot tank/secret@s");
    scratch.ok("create tank/home2");
    let mut raw = Raw::open(scratch.command("serve sync tank/home"));
    assert_eq!(raw.names("tank/home"), ["tank/home"]);
    for root in ["tank", "tank/secret", "tank/home2"] {
        assert!(raw.names(root).is_empty(), "{root}");
    }
    let (sent, bytes) = raw.ask(&json!({"request": "send", "to": "tank/secret@s"}), &[]);
    let (none, _) = raw.ask(&json!({"request": "send", "to": "tank/nothing@s"}), &[]);
    assert_eq!((bytes.len(), sent["Err"]["kind"].as_str()), (0, Some("other")));
    assert_eq!(sent.to_string().replace("secret", "nothing"), none.to_string());
    let stream = fs::read(demo("full.zstream")).unwrap();
    for target in [
        "tank/evil",
        "tank/secret",
        "tank",
        "tank/home2/x",
        "other/x",
        "tank/home/../x",
        "",
        "tank/home/a\nb",
    ] {
        let (result, _) = raw.ask(&json!({"request": "receive", "target": target, "force": true}), &stream);
        assert_eq!(kind(&result), "other", "{target}: {result}");
    }
    for action in [
        json!({"action": "rename", "from": "tank/secret", "to": "tank/home/mine"}),
        json!({"action": "create_parents", "name": "tank/evil/deep"}),
        json!({"action": "destroy_snapshot", "name": "tank/secret@s"}),
        json!({"action": "snapshot", "names": ["tank/secret@evil"]}),
        json!({"action": "hold", "tag": "x", "snapshot": "tank/secret@s"}),
    ] {
        let result = raw.apply(&action);
        assert!(result["Err"]["message"].as_str().unwrap().contains("does not exist"), "{result}");
    }
    raw.close();
    let names = scratch.ok("list -H -o name -t all -r tank/secret");
    assert_eq!(names, "tank/secret\ntank/secret@s\n");
}

#[test]
fn keys_in_authorized_keys_work_for_what_they_are_for() {
    let scratch = Scratch::with_home();
    there(&scratch, "pool create far");
    for (mode, target) in
        [("--append-only", "far/append"), ("--receive-only", "far/receive"), ("", "far/full")]
    {
        let rsh = forced(&scratch, &format!("serve sync {mode} {target}"));
        for snapshot in ["x", "y"] {
            scratch.ok(&format!("snapshot tank/home@{snapshot}{}", &target[4..]));
            scratch.ok(&format!("sync -r -e {rsh} tank/home host:{target}"));
        }
        // Other places are not reachable.
        let refused = scratch.fails(1, &format!("sync -e {rsh} tank/home host:far/elsewhere"));
        assert!(refused.contains("does not exist"), "{refused}");
    }
    assert_eq!(there(&scratch, "list -H -o name -r far"), "far\nfar/append\nfar/full\nfar/receive\n");
    let append = forced(&scratch, "serve sync --append-only far/append");
    let refused = scratch.fails(1, &format!("sync -e {append} host:far/append tank/back"));
    assert!(refused.contains("not allowed here: this is 'serve sync --append-only'"), "{refused}");
    let send = forced(&scratch, "serve sync --send-only far/append");
    scratch.ok(&format!("sync -e {send} host:far/append tank/back"));
    let refused = scratch.fails(1, &format!("sync -e {send} tank/home host:far/append/new"));
    assert!(refused.contains("not allowed here: this is 'serve sync --send-only'"), "{refused}");
}

#[test]
fn a_directory_that_is_served_is_a_source_only() {
    let scratch = Scratch::with_home();
    let www = scratch.path().join("www");
    fs::create_dir(&www).unwrap();
    fs::write(www.join("index"), "hello").unwrap();
    let mut raw = Raw::open(scratch.command(&format!("serve sync {}", www.display())));
    let (taken, _) = raw.ask(&json!({"request": "take_in", "snapshot": "zz"}), &[]);
    let dataset = taken["Ok"]["taken_in"]["dataset"].as_str().unwrap().to_owned();
    let pool = dataset.split('/').next().unwrap().to_owned();
    let stream = fs::read(demo("full.zstream")).unwrap();
    for target in [format!("{pool}/evil"), format!("{dataset}/evil")] {
        let (result, _) = raw.ask(&json!({"request": "receive", "target": target}), &stream);
        assert_eq!(kind(&result), "not_allowed", "{result}");
    }
    let renamed = raw.apply(&json!({"action": "rename", "from": dataset, "to": format!("{dataset}/x")}));
    assert_eq!(kind(&renamed), "not_allowed", "{renamed}");
    let (sent, bytes) = raw.ask(&json!({"request": "send", "to": format!("{dataset}@zz")}), &[]);
    assert_eq!((kind(&sent), bytes.is_empty()), ("done", false), "{sent}");
    raw.close();
    for flag in ["--receive-only", "--append-only", "--allow-property mountpoint"] {
        let refused = scratch.fails(2, &format!("serve sync {flag} {}", www.display()));
        assert!(refused.contains("only as a source"), "{refused}");
    }
    // The permitted command works.
    let rsh = forced(&scratch, &format!("serve sync {}", www.display()));
    scratch.ok(&format!("sync -e {rsh} host:/srv/www tank/www"));
    scratch.ok(&format!("sync -e {rsh} host:/srv/www tank/www"));
}

#[test]
fn mountpoints_come_from_another_machine_only_where_that_is_allowed() {
    let scratch = Scratch::with_home();
    there(&scratch, "pool create far");
    scratch.ok("set mountpoint=/etc/cron.d tank/home");
    let here = "get -H -o value,source mountpoint";
    let plain = forced(&scratch, "serve sync far");
    let said = scratch.run(&format!("sync -p -o readonly=on -e {plain} tank/home host:far/a"));
    assert_eq!(said.code, 0, "{said:?}");
    assert!(said.err.contains("does not take these properties from a sync: mountpoint"), "{said:?}");
    assert!(said.err.contains("readonly"), "{said:?}");
    assert_eq!(there(&scratch, &format!("{here} far/a")), "/far/a\tdefault\n");
    let allows = forced(&scratch, "serve sync --allow-property mountpoint,readonly far");
    scratch.ok(&format!("sync -p -o readonly=on -e {allows} tank/home host:far/b"));
    assert_eq!(there(&scratch, &format!("{here} far/b")), "/etc/cron.d\treceived\n");
    assert_eq!(there(&scratch, "get -H -o value readonly far/b"), "on\n");
    // On one machine, properties are received, because the user may set them anyway.
    scratch.ok("pool create back");
    scratch.ok("sync -p tank/home back/home");
    assert_eq!(scratch.ok(&format!("{here} back/home")), "/etc/cron.d\treceived\n");
    // From another machine they are not accepted here either.
    let said = scratch.run(&format!("sync -p -e {plain} host:far/b back/b"));
    assert!(said.code == 0 && said.err.contains("mountpoint"), "{said:?}");
    scratch.ok(&format!("sync -p --allow-property mountpoint,readonly -e {plain} host:far/b back/c"));
    assert_eq!(scratch.ok(&format!("{here} back/c")), "/etc/cron.d\treceived\n");
}

/// A server that answers every request with these bytes, repeated for as long as the client reads, and with this
/// result.
fn hostile(scratch: &Scratch, name: &str, line: &str, repeat: &str, result: &str) -> String {
    let path = scratch.path().join(name);
    let script = format!(
        r#"#!/usr/bin/env python3
import sys, struct
i, o = sys.stdin.buffer, sys.stdout.buffer
line, repeat, result = {line}, {repeat}, {result}
i.read(16); o.write(b'SNOWSYNC' + struct.pack('<IHBB', 1, 0, 0, 0)); o.flush()
def frame(k, c, p=b''): o.write(struct.pack('<B3xII', k, c, len(p)) + p); o.flush()
def read():
    h = i.read(12)
    if len(h) < 12: sys.exit()
    k, c, l = struct.unpack('<B3xII', h)
    return k, c, i.read(l)
credit = 4 << 20
while True:
    k, c, p = read()
    if k != 1: continue
    for at in range(repeat):
        b = (line % at if b'%d' in line else line)
        while b:
            while credit < 65536:
                kk, cc, pp = read()
                if kk == 3: credit += struct.unpack('<I', pp)[0]
                if kk == 6: sys.exit()
            frame(2, c, b[:65536]); credit -= len(b[:65536]); b = b[65536:]
    frame(4, c); frame(5, c, result)
"#
    );
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path.display().to_string()
}

#[test]
fn what_a_hostile_server_says_is_bounded_and_harmless_to_a_terminal() {
    let scratch = Scratch::with_home();
    let done = r#"b'{"Ok":"done"}'"#;
    for (name, line) in [
        ("parent", r#"b'{"name":"far/x/../../tank/home","kind":"filesystem","snapshots":[]}\n'"#),
        ("other", r#"b'{"name":"other","kind":"filesystem","snapshots":[]}\n'"#),
        (
            "escape",
            r#"b'{"name":"far/x","kind":"filesystem","snapshots":[{"name":"a\\u001b[31mb\\n","guid":7,"createtxg":1,"creation":1}]}\n'"#,
        ),
    ] {
        let rsh = hostile(&scratch, name, line, "1", done);
        let said = scratch.run(&format!("sync -r --retries 0 -e {rsh} host:far/x tank/x"));
        assert_eq!(said.code, 1, "{name}: {said:?}");
        assert!(said.err.contains("is not valid"), "{name}: {said:?}");
        assert!(!said.err.contains(['\x1b', '\x07']), "{name}: {said:?}");
    }
    let failing = r#"b'{"Err":{"kind":"other","message":"\\u001b]0;PWNED\\u0007\\u001b[31mfake"}}'"#;
    let rsh = hostile(&scratch, "failing", "b''", "0", failing);
    let said = scratch.fails(1, &format!("sync --retries 0 -e {rsh} host:far/x tank/x"));
    assert!(said.contains("PWNED\\007\\033[31mfake") && !said.contains('\x1b'), "{said:?}");
}

#[test]
fn a_server_that_describes_without_end_is_refused() {
    let scratch = Scratch::with_home();
    // 80 MiB of one dataset's description.
    let endless = hostile(
        &scratch,
        "endless",
        r#"b'{"name":"far/x","kind":"' + b'x' * 1000000"#,
        "80",
        r#"b'{"Ok":"done"}'"#,
    );
    let said = scratch.fails(1, &format!("sync --retries 0 -e {endless} host:far/x tank/x"));
    assert!(said.contains("more than 64 MiB"), "{said}");
}

#[test]
fn a_kind_of_place_that_there_is_not_is_no_host() {
    let scratch = Scratch::with_home();
    for place in ["nbd://h/x", "https://h/x", "smb://h/x/y"] {
        for line in [format!("sync {place} tank/y"), format!("sync tank/home {place}")] {
            let refused = scratch.fails(2, &line);
            assert!(refused.contains("is not supported"), "{line}: {refused}");
        }
    }
}
