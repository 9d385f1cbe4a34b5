//! Mounts snapshots from real ZFS and compares them with their manifests, which were made on real ZFS.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use common::{World, pools};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

fn base64(data: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in data.chunks(3) {
        let bits =
            chunk.iter().enumerate().fold(0_u32, |bits, (at, byte)| bits | u32::from(*byte) << (16 - 8 * at));
        for digit in 0..4 {
            match digit <= chunk.len() {
                true => text.push(DIGITS[(bits >> (18 - 6 * digit) & 63) as usize] as char),
                false => text.push('='),
            }
        }
    }
    text
}

fn nanos(seconds: i64, nanoseconds: i64) -> Value {
    let nanos = i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds);
    // Numbers beyond 64 bits lose the same precision here as when they are read from the manifest.
    serde_json::from_str(&nanos.to_string()).unwrap()
}

fn text(entry: &mut Value, key: &str, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => entry[key] = text.into(),
        Err(_) => entry[format!("{key}_b64")] = base64(bytes).into(),
    }
}

/// One line of a manifest (interop/vm/manifest.py) for a file, from the system calls.
fn line(path: &Path, name: &[u8]) -> Value {
    let metadata = fs::symlink_metadata(path).unwrap();
    let kind = metadata.file_type();
    let kind = [
        (kind.is_file(), "f"),
        (kind.is_dir(), "d"),
        (kind.is_symlink(), "l"),
        (kind.is_block_device(), "b"),
        (kind.is_char_device(), "c"),
        (kind.is_fifo(), "p"),
        (kind.is_socket(), "s"),
    ]
    .into_iter()
    .find_map(|(is, letter)| is.then_some(letter))
    .unwrap();
    let mut entry = json!({
        "type": kind, "mode": format!("{:04o}", metadata.mode() & 0o7777), "uid": metadata.uid(), "gid": metadata.gid(),
        "nlink": metadata.nlink(), "size": metadata.size(),
        "mtime": nanos(metadata.mtime(), metadata.mtime_nsec()),
        "ctime": nanos(metadata.ctime(), metadata.ctime_nsec()),
        "atime": nanos(metadata.atime(), metadata.atime_nsec()),
    });
    text(&mut entry, "path", name);
    if name != b"." {
        entry["ino"] = metadata.ino().into();
    }
    match kind {
        "f" => {
            let digest = Sha256::digest(fs::read(path).unwrap());
            entry["sha256"] = digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into();
        }
        "l" => text(&mut entry, "target", fs::read_link(path).unwrap().as_os_str().as_bytes()),
        "b" | "c" => {
            let device = metadata.rdev();
            entry["rdev"] = json!([rustix::fs::major(device), rustix::fs::minor(device)]);
        }
        _ => {}
    }
    let mut xattrs = BTreeMap::new();
    for name in xattr::list(path).unwrap() {
        let value = xattr::get(path, &name).unwrap().unwrap();
        xattrs.insert(name.into_string().unwrap(), base64(&value));
    }
    if !xattrs.is_empty() {
        entry["xattrs"] = json!(xattrs);
    }
    entry
}

fn lines(dir: &Path) -> BTreeMap<Vec<u8>, Value> {
    let mut found = BTreeMap::from([(b".".to_vec(), line(dir, b"."))]);
    let mut pending = vec![Vec::new()];
    while let Some(below) = pending.pop() {
        for entry in fs::read_dir(dir.join(Path::new(std::ffi::OsStr::from_bytes(&below)))).unwrap() {
            let entry = entry.unwrap();
            let mut name = below.clone();
            if !name.is_empty() {
                name.push(b'/');
            }
            name.extend(entry.file_name().into_vec());
            assert_eq!(entry.metadata().unwrap().ino(), std::os::unix::fs::DirEntryExt::ino(&entry));
            if entry.file_type().unwrap().is_dir() {
                pending.push(name.clone());
            }
            found.insert(name.clone(), line(&entry.path(), &name));
        }
    }
    found
}

fn unbase64(text: &str) -> Vec<u8> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let mut bytes = Vec::new();
    for chunk in text.as_bytes().chunks(4) {
        let digits: Vec<u8> = chunk.iter().filter(|byte| **byte != b'=').map(|byte| digit(*byte)).collect();
        let bits =
            digits.iter().enumerate().fold(0_u32, |bits, (at, d)| bits | u32::from(*d) << (18 - 6 * at));
        bytes.extend(&bits.to_be_bytes()[1..digits.len()]);
    }
    bytes
}

fn truth(manifest: &str) -> BTreeMap<Vec<u8>, Value> {
    let mut found = BTreeMap::new();
    for line in manifest.lines() {
        let mut entry: Value = serde_json::from_str(line).unwrap();
        let object = entry.as_object_mut().unwrap();
        // Other tests compare holes, and flags that can only be read with an ioctl.
        for key in ["data", "acl", "flags", "projid"] {
            object.remove(key);
        }
        let name = match object.get("path") {
            Some(path) => path.as_str().unwrap().as_bytes().to_vec(),
            None => unbase64(object["path_b64"].as_str().unwrap()),
        };
        found.insert(name, entry);
    }
    found
}

/// Receives the streams of a case, mounts every snapshot that has a manifest, and compares.
fn check(case: &str) -> usize {
    let top = pools::corpus().join(case);
    let table = |name: &str| -> Vec<Vec<String>> {
        let text = fs::read_to_string(top.join(name)).unwrap();
        text.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect()
    };
    let manifests: BTreeMap<u64, String> =
        table("snapshots.tsv").into_iter().map(|row| (row[0].parse().unwrap(), row[3].clone())).collect();
    let mut chains: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for row in table("chains.tsv") {
        chains.entry(row[0].clone()).or_default().push(row[1].clone());
    }
    let mut compared = 0;
    for streams in chains.values() {
        let world = World::empty();
        for stream in streams {
            pools::receive(&world.datasets, "tank/fs", &top.join(stream), true).unwrap();
        }
        let catalog = world.datasets.catalog();
        let dataset = catalog.dataset("tank/fs").unwrap();
        let snapshots: Vec<_> = catalog.snapshots(&dataset).map(Result::unwrap).collect();
        for snapshot in snapshots {
            let Some(manifest) = manifests.get(&snapshot.record.guid) else { continue };
            let manifest = fs::read_to_string(top.join(manifest)).unwrap();
            let mount = world.mount_snapshot(&snapshot.full_name());
            let (shown, truth) = (lines(&world.dir()), truth(&manifest));
            for (name, expected) in &truth {
                let what = format!("{case} {} {}", snapshot.full_name(), String::from_utf8_lossy(name));
                assert_eq!(shown.get(name), Some(expected), "{what}");
            }
            assert_eq!(shown.len(), truth.len());
            assert!(
                fs::write(world.dir().join("new"), "")
                    .is_err_and(|e| e.kind() == std::io::ErrorKind::ReadOnlyFilesystem)
            );
            world.unmount(&mount);
            compared += 1;
        }
    }
    compared
}

#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn many_files() {
    assert!(check("01-basic") > 5);
}

#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn attributes_and_acls() {
    assert!(check("06-xattr") >= 8);
}

#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn links_and_special_files() {
    assert!(check("07-special") >= 3);
}

#[test]
#[ignore = "needs FUSE and root: .ci/run clients"]
fn compressed_files() {
    assert!(check("03-compress") >= 1);
}
