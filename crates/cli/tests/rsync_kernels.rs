//! The rsync server on kernels without `openat2`, and on machines without IPv6. A filter of system calls imitates both.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;
/// Random trees, the same as in the server's own tests.
#[path = "../../rsync/tests/common/trees.rs"]
mod trees;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use common::Scratch;
use trees::{grow, manifest};

/// Runs a program. For it, `openat2` does not exist, and neither does IPv6.
const OLD: &str = r"
import ctypes, errno, os, platform, struct, sys
OPENAT2, AF_INET6 = 437, 10
SOCKET = {'x86_64': 41, 'aarch64': 198}[platform.machine()]
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, ERROR = 0x7fff0000, 0x50000
code = [
    (LOAD, 0, 0, 0),                # the number of the call
    (EQUAL, 4, 0, OPENAT2),
    (EQUAL, 0, 2, SOCKET),
    (LOAD, 0, 0, 16),               # its first argument
    (EQUAL, 2, 0, AF_INET6),
    (RETURN, 0, 0, ALLOW),
    (RETURN, 0, 0, ERROR | errno.ENOSYS),
    (RETURN, 0, 0, ERROR | errno.EAFNOSUPPORT),
]
code = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *step) for step in code))
program = ctypes.create_string_buffer(struct.pack('HxxxxxxQ', len(code) // 8, ctypes.addressof(code)))
libc = ctypes.CDLL(None, use_errno=True)
NO_NEW_PRIVS, SECCOMP, FILTER = 38, 22, 2
for call in [(NO_NEW_PRIVS, 1, 0, 0, 0), (SECCOMP, FILTER, ctypes.c_void_p(ctypes.addressof(program)), 0, 0)]:
    if libc.prctl(*call) != 0:
        sys.exit(f'prctl: {os.strerror(ctypes.get_errno())}')
os.execv(sys.argv[1], sys.argv[1:])
";

/// A server on all addresses. It is killed when dropped.
struct Server {
    child: Child,
    /// Its first line of output.
    said: String,
}

impl Server {
    fn start(scratch: &Scratch, config: &str, is_old: bool) -> Self {
        let (file, old) = (scratch.path().join("rsyncd.conf"), scratch.path().join("old.py"));
        fs::write(&file, config).unwrap();
        fs::write(&old, OLD).unwrap();
        let command = scratch.command(&format!("serve rsync --config {} --port 0", file.display()));
        let mut command = if is_old { on_old_kernel(&command, &old) } else { command };
        let log = fs::File::create(scratch.path().join("log")).unwrap();
        let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        Self { child, said }
    }

    fn rsync(&self, args: &[&str], from: &str, to: &str) -> Output {
        let port = self.said.trim().rsplit(':').next().unwrap();
        let mut command = Command::new("timeout");
        command.args(["60", "rsync", "--port", port]).args(args).args([from, to]).stdin(Stdio::null());
        command.output().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The same command as if the kernel were old.
fn on_old_kernel(command: &Command, script: &Path) -> Command {
    let mut old = Command::new("/usr/bin/python3");
    old.arg(script).arg(command.get_program()).args(command.get_args()).env_clear().stdin(Stdio::null());
    old.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    old.current_dir(command.get_current_dir().unwrap());
    old
}

/// Two modules: one for everything that root can do, one that is read as another user.
fn config(root: &Path) -> String {
    let root = root.display();
    format!(
        "use chroot = yes\n[m]\npath = {root}\nuid = root\ngid = root\nread only = no\n\
         [read]\npath = {root}\n"
    )
}

/// The results of the clients of a server. The first half writes, the second half tries to leave the module.
fn served(scratch: &Scratch, tree: &Path, is_old: bool) -> Vec<(String, Option<i32>)> {
    let root = scratch.path().join("root");
    for directory in ["real/deep", "aside"] {
        fs::create_dir_all(root.join(directory)).unwrap();
    }
    fs::write(scratch.path().join("secret"), "theirs").unwrap();
    for (target, name) in [("real", "way"), ("..", "out"), ("../secret", "secret"), ("/etc", "etc")] {
        symlink(target, root.join(name)).unwrap();
    }
    let server = Server::start(scratch, &config(&root), is_old);
    let begins = if is_old { "serving rsync on 0.0.0.0:" } else { "serving rsync on [::]:" };
    assert!(server.said.starts_with(begins), "{}", server.said);
    let from = format!("{}/", tree.display());
    let mut codes = Vec::new();
    for (args, to) in [
        (&["-aHAX"][..], "m/new/"),
        (&["-aHAX", "--delete", "--temp-dir=/aside"], "m/way/deep/"),
        (&["-aHAX", "--delete", "--link-dest=../new"], "m/linked/"),
        (&["-aHAXI", "--backup", "--backup-dir=/back/deep", "--delay-updates"], "m/new/"),
        (&["-aHAXI", "--inplace"], "m/way/deep/"),
        (&["-a"], "m/out/new/"),
        (&["-a"], "m/../new/"),
        (&["-aK"], "m/etc/new/"),
    ] {
        let output = server.rsync(args, &from, &format!("localhost::{to}"));
        codes.push((format!("{args:?} {to}: {output:?}"), output.status.code()));
    }
    for (args, path) in [
        ("-aHAX", "m/new/"),
        ("-aHAX", "m/way/deep/"),
        ("-aHAX", "read/real/"),
        ("-aL", "m/out/secret"),
        ("-aL", "m/secret"),
        ("-aL", "m/etc/passwd"),
    ] {
        let to = scratch.path().join("back");
        let _ = fs::remove_dir_all(&to);
        fs::create_dir(&to).unwrap();
        let output = server.rsync(&[args], &format!("localhost::{path}"), &format!("{}/", to.display()));
        codes.push((format!("{path}: {output:?}"), output.status.code()));
        if path == "m/new/" {
            trees::assert_same(tree, &to, path);
        }
        assert!(!to.join("secret").is_file() && !to.join("passwd").is_file(), "{path}: {output:?}");
    }
    codes
}

/// Without these calls, the same files are written and sent, and nothing outside of the module is.
#[test]
#[ignore = "needs rsync, setfacl, python3 and root"]
fn old_kernels_serve_the_same_files() {
    let source = Scratch::new();
    let tree = source.path().join("tree");
    grow(&tree, 52);
    let scratches = [Scratch::new(), Scratch::new()];
    for scratch in &scratches {
        fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let [new, old] =
        [(&scratches[0], false), (&scratches[1], true)].map(|(at, is_old)| served(at, &tree, is_old));
    for ((new, code), (old, old_code)) in new.iter().zip(&old) {
        assert_eq!(code, old_code, "{new}\n{old}");
    }
    let [new, old] = scratches.map(|scratch| {
        let names = manifest(&scratch.path().join("root")).into_keys();
        (names.collect::<Vec<_>>(), scratch.path().join("new").exists())
    });
    assert_eq!(new, old);
    assert!(!new.1, "outside of the module");
}
