//! Tests with common clients: libnbd's tools, qemu and fio. A missing tool fails the test. Debian has the tools in
//! libnbd-bin, python3-libnbd, qemu-utils and fio.

#![allow(clippy::unwrap_used)]

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::certificates::Certificates;
use common::{Memory, Running, Shelf, quick};
use serde_json::Value;
use snowmelt_nbd::{Endpoint, Options, Tls, TlsConfig};

const MIB: u64 = 1 << 20;

fn run(program: &str, args: &[&str]) -> Output {
    match Command::new(program).args(args).output() {
        Ok(output) => output,
        Err(error) => {
            panic!("{program}: {error}; the tests need libnbd-bin, python3-libnbd, qemu-utils and fio")
        }
    }
}

/// The standard output of a command, which must succeed.
fn succeed(program: &str, args: &[&str]) -> String {
    let output = run(program, args);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{program} {args:?}: {}\n{out}\n{err}", output.status);
    out.into_owned()
}

fn json(program: &str, args: &[&str]) -> Value {
    let text = succeed(program, args);
    // fio prints other lines first
    let start = text.find(['{', '[']).unwrap_or(0);
    serde_json::from_str(&text[start..]).unwrap_or_else(|error| panic!("{program} {args:?}: {error}\n{text}"))
}

fn uri(server: &Running, export: &str) -> String {
    match &server.endpoint {
        Endpoint::Unix(path) => format!("nbd+unix:///{export}?socket={}", path.display()),
        Endpoint::Tcp(address) => format!("nbd://{address}/{export}"),
    }
}

/// Data and holes: blocks of `step` bytes, of which every third is zero, with a partial block at the end.
fn content(size: u64, step: usize, seed: u8) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(size).unwrap()];
    for (index, chunk) in bytes.chunks_mut(step).enumerate().filter(|(index, _)| index % 3 != 2) {
        for (at, byte) in chunk.iter_mut().enumerate() {
            *byte = (at.wrapping_mul(2_654_435_761) >> 7) as u8 ^ index as u8 ^ seed;
        }
    }
    bytes
}

fn file(dir: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn server(size: u64) -> Running {
    let shelf = Shelf { default: Some("disk".to_owned()), ..Shelf::default() }
        .with("disk", Memory::new(size).described("a disk"))
        .with("other", Memory::new(size))
        .with("disk@monday", Memory::filled(size).read_only());
    Running::unix(shelf, quick())
}

#[test]
#[ignore = "needs libnbd-bin, python3-libnbd, qemu-utils and fio: .ci/run clients"]
fn nbdinfo_shows_an_export() {
    let server = server(3 * MIB + 512);
    let info = json("nbdinfo", &["--json", &uri(&server, "disk")]);
    assert_eq!(info["protocol"], "newstyle-fixed");
    assert_eq!(info["structured"], true);
    let export = &info["exports"][0];
    assert_eq!(export["export-size"], 3 * MIB + 512);
    assert_eq!(export["description"], "a disk");
    assert_eq!(export["block_size_minimum"], 1);
    assert_eq!(export["block_size_preferred"], 16 << 10);
    assert_eq!(export["block_size_maximum"], 32 * MIB);
    assert_eq!(export["contexts"], serde_json::json!(["base:allocation"]));
    for able in [
        "can_cache",
        "can_df",
        "can_fast_zero",
        "can_flush",
        "can_fua",
        "can_multi_conn",
        "can_trim",
        "can_zero",
    ] {
        assert_eq!(export[able], true, "{able}");
    }
    assert_eq!(export["is_read_only"], false);
    let snapshot = json("nbdinfo", &["--json", &uri(&server, "disk@monday")]);
    assert_eq!(snapshot["exports"][0]["is_read_only"], true);
    assert_eq!(snapshot["exports"][0]["can_trim"], false);
    let unknown = run("nbdinfo", &[&uri(&server, "nothing")]);
    assert!(
        String::from_utf8_lossy(&unknown.stderr).contains("No such file or directory for export"),
        "{unknown:?}"
    );
}

#[test]
#[ignore = "needs libnbd-bin, python3-libnbd, qemu-utils and fio: .ci/run clients"]
fn nbdinfo_lists_exports() {
    let server = server(MIB);
    let info = json("nbdinfo", &["--list", "--json", &uri(&server, "")]);
    let names: Vec<_> =
        info["exports"].as_array().unwrap().iter().map(|e| e["export-name"].as_str().unwrap()).collect();
    assert_eq!(names, ["disk", "disk@monday", "other"]);
}

#[test]
#[ignore = "needs libnbd-bin, python3-libnbd, qemu-utils and fio: .ci/run clients"]
fn nbdinfo_maps_holes() {
    let server = server(MIB);
    let uri = uri(&server, "disk");
    let script = [&uri, "-c", "write -P 7 64k 64k", "-c", "write -P 0 256k 4k", "-c", "flush"];
    succeed("qemu-io", &[&["-f", "raw"], &script[..]].concat());
    let map = json("nbdinfo", &["--map", "--json", &uri]);
    let extents: Vec<_> = map
        .as_array()
        .unwrap()
        .iter()
        .map(|e| (e["offset"].as_u64().unwrap(), e["length"].as_u64().unwrap(), e["type"].as_u64().unwrap()))
        .collect();
    let k = 1024;
    let expected = [
        (0, 64 * k, 3),
        (64 * k, 64 * k, 0),
        (128 * k, 128 * k, 3),
        (256 * k, 4 * k, 0),
        (260 * k, 764 * k, 3),
    ];
    assert_eq!(extents, expected);
}

#[test]
#[ignore = "needs libnbd-bin, python3-libnbd, qemu-utils and fio: .ci/run clients"]
fn nbdcopy_both_ways() {
    let size = 40 * MIB + 1536;
    let bytes = content(size, 300_000, 1);
    let server = server(size);
    let source = file(server.dir.path(), "source", &bytes);
    let target = server.dir.path().join("target");
    for connections in ["1", "4"] {
        server_is_zeroed(&server, size);
        let args = ["--connections", connections, "--flush", text(&source), &uri(&server, "disk")];
        succeed("nbdcopy", &args);
        assert!(server.memory("disk").content() == bytes, "{connections} connections");
        succeed("nbdcopy", &["--connections", connections, &uri(&server, "disk"), text(&target)]);
        assert!(std::fs::read(&target).unwrap() == bytes, "{connections} connections");
        std::fs::remove_file(&target).unwrap();
    }
    succeed("nbdcopy", &["--synchronous", &uri(&server, "disk"), text(&target)]);
    assert!(std::fs::read(&target).unwrap() == bytes);
    succeed("nbdcopy", &[&uri(&server, "disk"), &uri(&server, "other")]);
    assert!(server.memory("other").content() == bytes);
}

fn server_is_zeroed(server: &Running, size: u64) {
    let args = ["-f", "raw", &uri(server, "disk"), "-c", &format!("write -z -u 0 {size}")];
    succeed("qemu-io", &args);
    assert!(server.memory("disk").content().iter().all(|&byte| byte == 0));
}

#[test]
#[ignore = "needs libnbd-bin, python3-libnbd, qemu-utils and fio: .ci/run clients"]
fn qemu_img_converts_and_compares() {
    let size = 24 * MIB;
    let bytes = content(size, 65_536, 2);
    let server = server(size);
    let source = file(server.dir.path(), "source.raw", &bytes);
    let uri = uri(&server, "disk");
    succeed("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", text(&source), &uri]);
    assert!(server.memory("disk").content() == bytes);
    succeed("qemu-img", &["compare", "-f", "raw", "-F", "raw", text(&source), &uri]);
    let qcow2 = server.dir.path().join("copy.qcow2");
    succeed("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", "-W", "-m", "8", &uri, text(&qcow2)]);
    succeed("qemu-img", &["compare", "-f", "raw", "-F", "qcow2", &uri, text(&qcow2)]);
    let map = json("qemu-img", &["map", "--output=json", "-f", "raw", &uri]);
    let zero: u64 = map
        .as_array()
        .unwrap()
        .iter()
        .filter(|e| e["zero"] == true)
        .map(|e| e["length"].as_u64().unwrap())
        .sum();
    assert_eq!(zero, size / 65_536 / 3 * 65_536);
    let info = json("qemu-img", &["info", "--output=json", "-f", "raw", &uri]);
    assert_eq!(info["virtual-size"], size);
    succeed("qemu-io", &["-f", "raw", &uri, "-c", "write -P 99 1M 1"]);
    let differs = run("qemu-img", &["compare", "-f", "raw", "-F", "raw", text(&source), &uri]);
    assert_eq!(differs.status.code(), Some(1));
}

#[test]
#[ignore = "needs libnbd-bin, python3-libnbd, qemu-utils and fio: .ci/run clients"]
fn qemu_io_reads_what_it_wrote() {
    let server = server(8 * MIB);
    let uri = uri(&server, "disk");
    let script = [
        "write -P 0x11 0 1M",
        "write -f -P 0x22 100000 4096",
        "read -P 0x11 0 100000",
        "read -P 0x22 100000 4096",
        "read -P 0x11 104096 900000",
        "write -z 65536 65536",
        "read -P 0 65536 65536",
        "write -z -u -f 131072 131072",
        "read -P 0 131072 131072",
        "write -z -n -u 262144 65536",
        "read -P 0 262144 65536",
        "discard 524288 65536",
        "aio_write -P 0x33 2M 64k",
        "aio_write -P 0x44 3M 64k",
        "aio_read -P 0x11 400k 64k",
        "aio_flush",
        "read -P 0x33 2M 64k",
        "read -P 0x44 3M 64k",
        "writev -P 0x55 4M 4k 8k 512",
        "readv -P 0x55 4M 12k 512",
        "flush",
    ];
    let mut args = vec!["-f", "raw", &uri];
    script.iter().for_each(|line| args.extend(["-c", line]));
    let output = succeed("qemu-io", &args);
    assert!(!output.contains("failed") && !output.contains("error"), "{output}");
    assert_eq!(output.matches("bytes at offset").count(), script.len() - 2, "{output}");
    let read_only = self::uri(&server, "disk@monday");
    let refused = run("qemu-io", &["-f", "raw", &read_only, "-c", "write 0 512"]);
    assert!(!refused.status.success() || !refused.stderr.is_empty(), "{refused:?}");
    succeed("qemu-io", &["-r", "-f", "raw", &read_only, "-c", "read 0 512"]);
}

/// Runs fio with these further arguments. It verifies what it has written.
fn fio(uri: &str, dir: &Path, args: &[&str]) {
    let uri = format!("--uri={uri}");
    let aux = format!("--aux-path={}", dir.display());
    let common = [
        "--name=verify",
        "--ioengine=nbd",
        &uri,
        &aux,
        "--size=64m",
        "--verify=crc32c",
        "--verify_fatal=1",
        "--randrepeat=1",
        "--output-format=json",
    ];
    let report = json("fio", &[&common, args].concat());
    assert_eq!(report["jobs"][0]["error"], 0);
    assert!(report["jobs"][0]["read"]["total_ios"].as_u64().unwrap() > 0, "nothing was verified");
}

#[test]
#[ignore = "needs libnbd-bin, python3-libnbd, qemu-utils and fio: .ci/run clients"]
fn fio_verifies_what_it_wrote() {
    let server = server(64 * MIB);
    let uri = uri(&server, "disk");
    let dir = server.dir.path();
    fio(&uri, dir, &["--rw=randwrite", "--bs=4k", "--iodepth=32"]);
    fio(&uri, dir, &["--rw=write", "--bs=1m", "--iodepth=8"]);
    fio(
        &uri,
        dir,
        &["--rw=randrw", "--bsrange=512-256k", "--bs_unaligned=1", "--iodepth=64", "--io_size=128m"],
    );
    fio(&uri, dir, &["--rw=randwrite", "--bs=16k", "--iodepth=16", "--fsync=20"]);
}

/// The functions of libnbd that its tools do not use.
#[test]
#[ignore = "needs libnbd-bin, python3-libnbd, qemu-utils and fio: .ci/run clients"]
fn libnbd_uses_the_rest() {
    let server = server(8 * MIB);
    let script = r#"
import errno
h.set_full_info(True)
h.connect_uri(uri)
assert h.get_structured_replies_negotiated()
assert h.get_block_size(nbd.SIZE_PREFERRED) == 16384
assert h.get_canonical_export_name() == "disk"
h.pwrite(b"x" * 65536, 0, nbd.CMD_FLAG_FUA)
h.zero(65536, 65536, nbd.CMD_FLAG_FAST_ZERO)
h.cache(65536, 0)
h.trim(65536, 131072, nbd.CMD_FLAG_FUA)
h.flush()

def refused(expected, call, *args):
    try:
        call(*args)
    except nbd.Error as e:
        assert e.errno == errno.errorcode[expected], e      # libnbd keeps the number's name
    else:
        raise AssertionError("not refused")

h.set_strict_mode(0)
refused(errno.ENOTSUP, h.zero, 512, 1, nbd.CMD_FLAG_FAST_ZERO)
refused(errno.EINVAL, h.pread, 512, h.get_size())
refused(errno.ENOSPC, h.pwrite, b"x" * 512, h.get_size() - 1)
refused(errno.EINVAL, h.trim, 512, h.get_size())
refused(errno.EINVAL, h.flush, nbd.CMD_FLAG_DF)

chunks = []
def chunk(data, offset, kind, error):
    chunks.append((offset, len(data), kind))
data = h.pread_structured(1 << 20, 0, chunk)
assert data == b"x" * 65536 + bytes((1 << 20) - 65536)
assert chunks == [(0, 65536, nbd.READ_DATA), (65536, (1 << 20) - 65536, nbd.READ_HOLE)], chunks
chunks.clear()
h.pread_structured(1 << 20, 0, chunk, nbd.CMD_FLAG_DF)
assert chunks == [(0, 1 << 20, nbd.READ_DATA)], chunks

extents = []
def extent(context, offset, entries, error):
    assert context == nbd.CONTEXT_BASE_ALLOCATION
    extents.extend(entries)
h.block_status(1 << 20, 0, extent)
assert extents == [65536, 0, (1 << 20) - 65536, 3], extents
h.shutdown()
"#;
    // metadata contexts must be requested before the connection is made
    let prefix = format!(
        "import nbd\nuri = {:?}\nh = nbd.NBD()\nh.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)\n",
        uri(&server, "disk")
    );
    // nbdsh is not used, because it runs the first python3 in the path, which may lack libnbd
    succeed("/usr/bin/python3", &["-c", &(prefix + script)]);
}

#[test]
#[ignore = "needs libnbd-bin, python3-libnbd, qemu-utils and fio: .ci/run clients"]
fn clients_over_tcp() {
    let shelf = Shelf::default().with("disk", Memory::new(16 * MIB));
    let server = Running::tcp(shelf, quick());
    let bytes = content(16 * MIB, 100_000, 3);
    let source = file(server.dir.path(), "source", &bytes);
    succeed("nbdcopy", &[text(&source), &uri(&server, "disk")]);
    assert!(server.memory("disk").content() == bytes);
    succeed("qemu-img", &["compare", "-f", "raw", "-F", "raw", text(&source), &uri(&server, "disk")]);
}

#[test]
#[ignore = "needs libnbd-bin, python3-libnbd, qemu-utils and fio: .ci/run clients"]
fn clients_with_tls() {
    let certificates = Certificates::new();
    let dir = tempfile::tempdir().unwrap();
    certificates.write_to(dir.path());
    let tls = Tls::Required(TlsConfig::from_directory(dir.path(), true).unwrap());
    let shelf = Shelf::default().with("disk", Memory::new(16 * MIB));
    let server = Running::tcp(shelf, Options { tls, ..quick() });
    let Endpoint::Tcp(address) = server.endpoint else { panic!("{}", server.endpoint) };
    let port = address.port();
    let secure = format!("nbds://localhost:{port}/disk?tls-certificates={}", text(dir.path()));

    let info = json("nbdinfo", &["--json", &secure]);
    assert_eq!(
        (&info["TLS"], &info["exports"][0]["export-size"]),
        (&Value::Bool(true), &Value::from(16 * MIB))
    );
    let plain = run("nbdinfo", &[&format!("nbd://localhost:{port}/disk")]);
    assert!(!plain.status.success());

    let bytes = content(16 * MIB, 100_000, 4);
    let source = file(dir.path(), "source", &bytes);
    succeed("nbdcopy", &["--connections", "2", text(&source), &secure]);
    assert!(server.memory("disk").content() == bytes);
    let target = dir.path().join("target");
    succeed("nbdcopy", &[&secure, text(&target)]);
    assert!(std::fs::read(&target).unwrap() == bytes);

    let credentials = format!("tls-creds-x509,id=tls0,endpoint=client,dir={}", text(dir.path()));
    let image = format!("driver=nbd,host=localhost,port={port},export=disk,tls-creds=tls0");
    let compare = ["compare", "--object", &credentials, "--image-opts", &image];
    let raw = format!("driver=raw,file.driver=file,file.filename={}", text(&source));
    succeed("qemu-img", &[&compare[..], &[&raw]].concat());
}
