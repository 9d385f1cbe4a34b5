//! Volumes served over NBD, with real clients: `nbdinfo` and `nbdcopy` (Debian: libnbd-bin), `qemu-img` and `qemu-io`
//! (qemu-utils). Ignored by a plain `cargo test`, which needs only Rust: `.ci/run clients` runs them.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use common::Scratch;

/// A server, killed when dropped.
struct Server {
    child: Child,
    socket: PathBuf,
}

impl Server {
    fn start(scratch: &Scratch, line: &str) -> Self {
        Self::start_with(scratch, line, Path::new("/dev/null"))
    }

    /// Starts a server with its standard error in a file.
    fn start_with(scratch: &Scratch, line: &str, err: &Path) -> Self {
        let socket = scratch.path().join("nbd.sock");
        let mut command = scratch.command(&format!("serve nbd --unix {} {line}", socket.display()));
        command.stderr(fs::File::create(err).unwrap());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        assert!(said.starts_with("serving NBD on nbd+unix:"), "{said}");
        Self { child, socket }
    }

    fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.socket.display())
    }

    fn end(mut self, signal: rustix::process::Signal) -> Option<i32> {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
        self.child.wait().unwrap().code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Standard output of a client that must succeed.
fn client(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output();
    let output = output.unwrap_or_else(|error| panic!("{program} (see the packages above): {error}"));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{program} {args:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

/// Incompressible bytes.
fn noise(len: usize, mut seed: u64) -> Vec<u8> {
    let mut next = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) as u8
    };
    (0..len).map(|_| next()).collect()
}

#[test]
#[ignore = "needs libnbd-bin and qemu-utils: .ci/run clients"]
fn images_go_in_and_come_out() {
    let scratch = Scratch::with_pool();
    scratch.ok("create -s -V 64M tank/v");
    scratch.ok("create -s -V 8M -b 4K tank/w");
    let server = Server::start(&scratch, "tank");
    let image = scratch.path().join("image");
    let mut data = vec![0; 64 << 20];
    data[1 << 20..5 << 20].copy_from_slice(&noise(4 << 20, 1));
    data[63 << 20..].copy_from_slice(&noise(1 << 20, 2));
    fs::write(&image, &data).unwrap();
    let image = image.to_str().unwrap();
    client("nbdcopy", &["--destination-is-zero", "--flush", image, &server.uri("tank/v")]);
    scratch.ok("snapshot tank/v@a");
    client("qemu-img", &["compare", "-f", "raw", "-F", "raw", image, &server.uri("tank/v")]);
    client("qemu-io", &["-f", "raw", "-c", "write -P 9 100 5000", "-c", "flush", &server.uri("tank/v")]);

    let back = scratch.path().join("back");
    client("nbdcopy", &[&server.uri("tank/v@a"), back.to_str().unwrap()]);
    assert!(fs::read(&back).unwrap() == data, "the snapshot is as the image was");
    let listed = client("nbdinfo", &["--list", &server.uri("")]);
    for export in ["tank/v", "tank/v@a", "tank/w"] {
        assert!(listed.contains(&format!("export=\"{export}\":")), "{listed}");
    }
    assert!(client("nbdinfo", &[&server.uri("tank/v@a")]).contains("is_read_only: true"));
    let map = client("nbdinfo", &["--map", "--totals", &server.uri("tank/v@a")]);
    assert!(map.contains("5242880") && map.contains("hole,zero"), "{map}");
    // A served volume that no client uses can be destroyed.
    scratch.ok("destroy tank/w");
    assert_eq!(server.end(rustix::process::Signal::INT), Some(0));
    scratch.ok("check tank");
    let volume = scratch.to_file("send tank/v@a", "v.zstream");
    scratch.receive("receive tank/copy", &volume);
    scratch.ok("restore tank/copy@a copy.img");
    assert!(fs::read(scratch.path().join("copy.img")).unwrap() == data);
}

#[test]
#[ignore = "needs libnbd-bin and qemu-utils: .ci/run clients"]
fn what_was_flushed_survives_a_kill() {
    let scratch = Scratch::with_pool();
    scratch.ok("create -s -V 16M -b 4K tank/v");
    for round in 1..4u8 {
        let server = Server::start(&scratch, "tank/v");
        let uri = server.uri("");
        let flushed = format!("write -P {round} {} 700k", u32::from(round) << 20);
        let lost = format!("write -P {} 10M 1M", 100 + round);
        client("qemu-io", &["-f", "raw", "-c", &flushed, "-c", "flush", "-c", &lost, &uri]);
        assert_eq!(server.end(rustix::process::Signal::KILL), None);
        scratch.ok("check tank");
        let server = Server::start(&scratch, "tank/v");
        for earlier in 1..=round {
            let read = format!("read -P {earlier} {} 700k", u32::from(earlier) << 20);
            let said = client("qemu-io", &["-r", "-f", "raw", "-c", &read, &server.uri("")]);
            assert!(!said.contains("failed"), "{said}");
        }
        assert_eq!(server.end(rustix::process::Signal::TERM), Some(0));
    }
}

/// Setting and clearing `readonly` takes effect on a served volume from the next command on.
#[test]
#[ignore = "needs libnbd-bin and qemu-utils: .ci/run clients"]
fn readonly_counts_for_what_is_served() {
    let scratch = Scratch::with_pool();
    scratch.ok("create -s -V 16M -o readonly=on tank/v");
    let server = Server::start(&scratch, "tank");
    let uri = server.uri("tank/v");
    let write = |pattern: u8| {
        let write = format!("write -P {pattern} 0 64k");
        let done =
            Command::new("qemu-io").args(["-f", "raw", "-c", &write, "-c", "flush", &uri]).output().unwrap();
        let said = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
        (done.status.success() && said.contains("wrote 65536"), said)
    };
    let holds = |pattern: u8| {
        let read = format!("read -P {pattern} 0 64k");
        !client("qemu-io", &["-r", "-f", "raw", "-c", &read, &uri]).contains("verification failed")
    };
    let (written, said) = write(1);
    assert!(!written && holds(0), "{said}");
    assert!(client("nbdinfo", &[&uri]).contains("is_read_only: true"));
    scratch.ok("set readonly=off tank/v");
    let (written, said) = write(2);
    assert!(written && holds(2), "{said}");
    scratch.ok("set readonly=on tank");
    scratch.ok("inherit readonly tank/v");
    let (written, said) = write(3);
    assert!(!written && holds(2), "{said}");
    assert_eq!(server.end(rustix::process::Signal::TERM), Some(0));
    scratch.ok("check tank");
}

/// Space of overwritten data is freed while the volume is served, not only when the server ends.
#[test]
#[ignore = "needs libnbd-bin: .ci/run clients"]
fn what_is_overwritten_is_given_back() {
    const SIZE: usize = 32 << 20;
    let scratch = Scratch::with_pool();
    scratch.ok("create -s -V 32M tank/v");
    let server = Server::start(&scratch, "tank");
    let (image, mut data) = (scratch.path().join("image"), noise(SIZE, 1));
    for _ in 0..16 {
        data.rotate_left(5000);
        fs::write(&image, &data).unwrap();
        client("nbdcopy", &["--flush", image.to_str().unwrap(), &server.uri("tank/v")]);
    }
    fs::remove_file(&image).unwrap();
    let stored = scratch.stored();
    assert!(stored < 9 * SIZE as u64, "{stored} bytes for {SIZE}");
    assert_eq!(server.end(rustix::process::Signal::TERM), Some(0));
}

/// A full volume is reported, but not for each request.
#[test]
#[ignore = "needs qemu-utils: .ci/run clients"]
fn failures_are_told_of() {
    let scratch = Scratch::with_pool();
    scratch.ok("create -o quota=4M tank/full");
    scratch.ok("create -s -V 32M tank/full/v");
    let err = scratch.path().join("log");
    let server = Server::start_with(&scratch, "tank", &err);
    let image = scratch.path().join("image");
    fs::write(&image, noise(32 << 20, 1)).unwrap();
    let arguments = ["convert", "-n", "-f", "raw", "-O", "raw", image.to_str().unwrap()];
    let refused = Command::new("qemu-img").args(arguments).arg(server.uri("tank/full/v")).output().unwrap();
    assert!(String::from_utf8_lossy(&refused.stderr).contains("No space left"), "{refused:?}");
    assert_eq!(server.end(rustix::process::Signal::TERM), Some(0));
    let said = fs::read_to_string(&err).unwrap();
    let failures: Vec<&str> = said.lines().filter(|line| line.contains("failed")).collect();
    let told = r#": request to "tank/full/v" failed: "#;
    assert!(failures.len() == 1 && failures[0].contains(told) && failures[0].contains("quota"), "{said}");
}

/// The server's messages on standard error about clients that connect and disconnect.
#[test]
#[ignore = "needs libnbd-bin and qemu-utils: .ci/run clients"]
fn clients_are_told_of() {
    let scratch = Scratch::with_pool();
    scratch.ok("create -s -V 8M tank/v");
    scratch.ok("snapshot tank/v@a");
    for (options, is_verbose) in [("", false), ("-v", true)] {
        let err = scratch.path().join("log");
        let server = Server::start_with(&scratch, &format!("{options} tank"), &err);
        client("nbdinfo", &["--size", &server.uri("tank/v@a")]);
        client("nbdinfo", &["--list", &server.uri("")]);
        client("qemu-io", &["-f", "raw", "-c", "write 0 64k", &server.uri("tank/v")]);
        assert_eq!(server.end(rustix::process::Signal::INT), Some(0));
        let said = fs::read_to_string(&err).unwrap();
        let has = |text: &str| said.lines().any(|line| line.starts_with("unix:uid=") && line.contains(text));
        assert!(has(r#": connected to "tank/v@a" (8388608 bytes, read-only)"#), "{said}");
        assert!(has(r#": connected to "tank/v" (8388608 bytes, read-write)"#), "{said}");
        assert!(has(r#": disconnected from "tank/v@a""#) && has(r#": disconnected from "tank/v""#), "{said}");
        assert_eq!(has(": left without choosing an export"), is_verbose, "{said}");
    }
}

#[test]
#[ignore = "needs libnbd-bin and qemu-utils: .ci/run clients"]
fn refusals_say_why() {
    let scratch = Scratch::with_pool();
    scratch.ok("create tank/f");
    assert_eq!(
        scratch.fails(1, "serve nbd tank/nothing"),
        "cannot open 'tank/nothing': dataset does not exist\n"
    );
    assert_eq!(scratch.fails(1, "serve nbd nopool"), "cannot open 'nopool': no such pool 'nopool'\n");
    let said = scratch.run("serve nbd --tls required tank");
    assert_eq!(said.code, 2, "{said:?}");
    let said = scratch.fails(1, "serve nbd --tls required --tls-dir nowhere tank");
    assert!(said.contains("server-cert.pem") || said.contains("nowhere"), "{said}");
    let server = Server::start(&scratch, "tank/f");
    let refused = Command::new("nbdinfo").arg(server.uri("tank/f")).output().unwrap();
    assert!(!refused.status.success());
}

/// A server, and the first line of its standard output, which may name its socket.
fn listening(scratch: &Scratch, line: &str) -> (Server, String) {
    let mut command = scratch.command(&format!("serve nbd {line}"));
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
    let socket = said.split_once("?socket=").map(|(_, path)| PathBuf::from(path.trim_end()));
    (Server { child, socket: socket.unwrap_or_default() }, said)
}

#[test]
fn without_an_address_a_private_socket_is_listened_on() {
    use std::os::unix::fs::PermissionsExt;
    let scratch = Scratch::with_pool();
    scratch.ok("create -s -V 8M tank/v");
    let mode = |path: &Path| fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777;
    let (server, said) = listening(&scratch, "tank/v");
    let directory = scratch.path().join("snowmelt");
    let socket = directory.join("nbd-tank.sock");
    assert_eq!(said, format!("serving NBD on nbd+unix:///tank/v?socket={}\n", socket.display()));
    assert_eq!((mode(&directory), mode(&socket)), (0o700, 0o600));
    assert_eq!(server.end(rustix::process::Signal::TERM), Some(0));
    assert!(!socket.exists());
    // A directory that others can write to is not used.
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)).unwrap();
    let said = scratch.fails(1, "serve nbd tank");
    assert!(said.contains("others can write to") && said.contains("--unix"), "{said}");
}

#[test]
fn tcp_needs_tls_unless_it_is_given_up_in_words() {
    let scratch = Scratch::with_pool();
    for line in [
        "--listen 127.0.0.1:0",
        "--listen 127.0.0.1:0 --tls off",
        "--listen 127.0.0.1:0 --tls optional --tls-dir .",
    ] {
        let said = scratch.run(&format!("serve nbd {line} tank"));
        assert!(said.code == 2 && said.err.contains("--insecure"), "{line}: {said:?}");
    }
    let said = scratch.run("serve nbd --listen 127.0.0.1:0 --tls-dir . --insecure --clients x tank");
    assert_eq!(said.code, 2, "{said:?}");
    // Client certificates are always required.
    for name in ["server-cert.pem", "server-key.pem"] {
        fs::write(scratch.path().join(name), "").unwrap();
    }
    let said = scratch.fails(1, "serve nbd --listen 127.0.0.1:0 --tls-dir . tank");
    assert!(said.contains("ca-cert.pem"), "{said}");
    let (server, said) = listening(&scratch, "--listen 127.0.0.1:0 --insecure tank");
    assert!(said.starts_with("serving NBD on nbd://127.0.0.1:"), "{said}");
    assert_eq!(server.end(rustix::process::Signal::TERM), Some(0));
}

/// A certificate authority, and certificates for these names, made by openssl.
fn certificates(directory: &Path, names: &[&str]) {
    let openssl = |line: &str| {
        let output = Command::new("openssl").args(line.split(' ')).current_dir(directory).output().unwrap();
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    };
    let new_key = "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc";
    openssl(&format!("{new_key} -x509 -days 2 -subj /CN=authority -keyout ca-key.pem -out ca-cert.pem"));
    fs::write(directory.join("extensions"), "subjectAltName=DNS:localhost,IP:127.0.0.1\n").unwrap();
    for name in names {
        openssl(&format!("{new_key} -subj /CN={name} -keyout {name}-key.pem -out request.pem"));
        openssl(&format!(
            "x509 -req -days 2 -in request.pem -CA ca-cert.pem -CAkey ca-key.pem -CAcreateserial -extfile extensions -out \
             {name}-cert.pem"
        ));
    }
}

#[test]
#[ignore = "needs libnbd-bin, python3-libnbd and openssl: .ci/run clients"]
fn a_certificate_reaches_its_own_exports_only() {
    let scratch = Scratch::with_pool();
    for volume in ["mine", "images", "others"] {
        scratch.ok(&format!("create -s -V 8M tank/{volume}"));
    }
    certificates(scratch.path(), &["server", "client", "stranger"]);
    let map = "[client.vm]\ncommon_name = \"client\"\nwrite = [\"tank/mine\"]\nread = [\"tank/images\"]\n";
    fs::write(scratch.path().join("clients.toml"), map).unwrap();
    let (server, said) = listening(&scratch, "--listen 127.0.0.1:0 --tls-dir . --clients clients.toml tank");
    let uri = said.trim_end().strip_prefix("serving NBD on ").unwrap().to_owned();
    assert!(uri.starts_with("nbds://127.0.0.1:"), "{uri}");
    // Directories in the layout of libnbd, with a certificate called "client".
    for name in ["client", "stranger"] {
        let directory = scratch.path().join(format!("of-{name}"));
        fs::create_dir(&directory).unwrap();
        for (from, to) in [
            ("ca-cert.pem".to_owned(), "ca-cert.pem"),
            (format!("{name}-cert.pem"), "client-cert.pem"),
            (format!("{name}-key.pem"), "client-key.pem"),
        ] {
            fs::copy(scratch.path().join(from), directory.join(to)).unwrap();
        }
    }
    let script = scratch.path().join("client.py");
    fs::write(&script, CLIENT).unwrap();
    let ask = |name: &str| {
        let directory = scratch.path().join(format!("of-{name}"));
        client("/usr/bin/python3", &[script.to_str().unwrap(), &uri, directory.to_str().unwrap()])
    };
    let refused = "tank/others ENOENT\ntank/nothing ENOENT\n";
    assert_eq!(ask("client"), format!("tank/images,tank/mine\ntank/mine rw\ntank/images ro\n{refused}"));
    assert_eq!(ask("stranger"), format!("\ntank/mine ENOENT\ntank/images ENOENT\n{refused}"));
    assert_eq!(server.end(rustix::process::Signal::TERM), Some(0));
}

/// Lists the exports, and prints for each of four what may be done with it.
const CLIENT: &str = r#"
import errno, nbd, sys
def handle():
    h = nbd.NBD()
    h.set_tls(nbd.TLS_REQUIRE)
    h.set_tls_certificates(sys.argv[2])
    h.set_tls_verify_peer(True)
    h.set_opt_mode(True)
    host, port = sys.argv[1].split('/')[2].rsplit(':', 1)
    h.connect_tcp(host, port)
    return h
names, h = [], handle()
h.opt_list(lambda name, description: names.append(name))
print(','.join(sorted(names)))
for name in ['tank/mine', 'tank/images', 'tank/others', 'tank/nothing']:
    h = handle()
    h.set_export_name(name)
    try:
        h.opt_go()
        print(name, 'ro' if h.is_read_only() else 'rw')
    except nbd.Error as error:
        print(name, error.errno)
"#;
