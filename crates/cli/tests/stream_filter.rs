//! `stream redup`, `recompress`, `decompress` and `drop-record`, and the program called `zstream`.
#![allow(clippy::unwrap_used)]

mod common;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Said, Scratch, demo};

/// Runs a filter from one file to another.
fn filter(scratch: &Scratch, line: &str, input: &Path, output: &str) -> (PathBuf, Said) {
    let path = scratch.path().join(output);
    let mut command = scratch.command(line);
    command.stdin(File::open(input).unwrap()).stdout(File::create(&path).unwrap());
    (path, Said::of(command))
}

/// The records in the verbose dump of a stream, each with its object and offset.
fn blocks(scratch: &Scratch, stream: &Path) -> Vec<(String, String)> {
    let dump = scratch.ok(&format!("stream dump -v {}", stream.display()));
    let field = |line: &str, name: &str| {
        let at = line.find(&format!("{name} = ")).unwrap() + name.len() + 3;
        line[at..].split_whitespace().next().unwrap().to_owned()
    };
    let writes = dump.lines().filter(|line| line.starts_with("WRITE object"));
    writes.map(|line| (field(line, "object"), field(line, "offset"))).collect()
}

#[test]
fn a_recompressed_stream_holds_the_same_files() {
    let scratch = Scratch::with_pool();
    let mut sizes = Vec::new();
    for algorithm in ["off", "lz4", "gzip-9", "zstd"] {
        let line = format!("stream recompress {algorithm}");
        let (stream, said) = filter(&scratch, &line, &demo("full.zstream"), "out");
        assert_eq!((said.code, said.err.as_str()), (0, ""), "{algorithm}");
        scratch.ok("stream verify -q out");
        sizes.push(std::fs::metadata(&stream).unwrap().len());
        scratch.receive("receive tank/x", &stream);
        scratch.receive("receive tank/home", &demo("full.zstream"));
        let manifest = |dataset: &str| scratch.ok(&format!("manifest {dataset}@monday"));
        assert_eq!(manifest("tank/x"), manifest("tank/home"), "{algorithm}");
        // Incremental streams can be received on top of it.
        scratch.receive("receive tank/x", &demo("incremental.zstream"));
        scratch.ok("destroy -r tank/x");
        scratch.ok("destroy -r tank/home");
    }
    assert!(sizes[1] < sizes[0] && sizes[2] < sizes[1], "{sizes:?}");
}

#[test]
fn a_filter_refuses_what_it_does_not_know() {
    let scratch = Scratch::new();
    for (line, why) in [
        ("stream recompress lz5", "invalid compression type lz5"),
        ("stream recompress -l 20 zstd", "zstd has no level 20"),
        ("stream decompress 1,2,brotli", "invalid compression type brotli"),
        ("stream decompress x,2", "invalid value for object"),
        ("stream drop-record 1", "invalid value for offset"),
        ("stream drop_record 1,y", "invalid value for offset"),
    ] {
        let said = scratch.fails(2, line);
        assert!(said.contains(why), "{line}: {said}");
    }
    let said = scratch.fails(1, "stream redup nothing");
    assert!(said.starts_with("cannot read nothing: "), "{said}");
    assert!(scratch.fails(1, "stream redup /dev/null").contains("it must be a file"));
    std::fs::write(scratch.path().join("text"), [b'x'; 1000]).unwrap();
    assert!(scratch.fails(1, "stream redup text").starts_with("text: "));
}

#[test]
fn records_are_left_out_by_object_and_offset() {
    let scratch = Scratch::new();
    let full = demo("full.zstream");
    let before = blocks(&scratch, &full);
    let (object, offset) = before.last().unwrap().clone();
    let line = format!("stream drop-record -v {object},{offset} 9999999,0");
    let (stream, said) = filter(&scratch, &line, &full, "out");
    let expected = format!("dropping WRITE record for object {object} offset {offset}\n");
    assert_eq!((said.code, said.err), (0, expected));
    assert_eq!(blocks(&scratch, &stream), before[..before.len() - 1]);
    // Nothing to leave out, replace or correct: no byte changes.
    for line in ["stream drop-record", "stream decompress", "stream drop-record 9999999,0"] {
        let (stream, _) = filter(&scratch, line, &full, "out");
        assert!(std::fs::read(stream).unwrap() == std::fs::read(&full).unwrap(), "{line}");
    }
    let stream = scratch.to_file(&format!("stream redup {}", full.display()), "out");
    assert!(std::fs::read(stream).unwrap() == std::fs::read(&full).unwrap());
}

#[test]
fn a_block_that_is_not_compressed_is_left_with_a_warning() {
    let scratch = Scratch::new();
    let full = demo("full.zstream");
    let (plain, _) = filter(&scratch, "stream recompress off", &full, "plain");
    let (object, offset) = blocks(&scratch, &plain).last().unwrap().clone();
    let line = format!("stream decompress {object},{offset},zstd");
    let (stream, said) = filter(&scratch, &line, &plain, "out");
    assert_eq!(said.code, 0);
    let expected = format!("decompression failed for ino {object} offset {offset}: ");
    assert!(said.err.starts_with(&expected), "{said:?}");
    assert!(std::fs::read(stream).unwrap() == std::fs::read(&plain).unwrap());
}

#[test]
fn the_program_called_zstream_has_its_verbs() {
    let scratch = Scratch::new();
    scratch.ok("shims bin");
    let shim = |name: &str, words: &[&str]| {
        let mut command = Command::new(scratch.path().join("bin").join(name));
        command.args(words).env_clear().env("HOME", scratch.path()).current_dir(scratch.path());
        command.stdin(File::open(demo("full.zstream")).unwrap());
        command
    };
    let dump = scratch.run_with_input("stream dump", &demo("full.zstream")).out;
    assert!(dump.contains("SUMMARY"), "{dump}");
    assert_eq!(Said::of(shim("zstream", &["dump"])).out, dump);
    assert_eq!(Said::of(shim("zstreamdump", &[])).out, dump);
    assert!(Said::of(shim("zstreamdump", &["-v"])).out.len() > dump.len());
    for words in [&["recompress", "lz4"][..], &["decompress", "-v"], &["drop_record", "-v", "1,2"]] {
        let out = shim("zstream", words).output().unwrap();
        assert!(out.status.success(), "{words:?}: {out:?}");
        std::fs::write(scratch.path().join("out"), out.stdout).unwrap();
        scratch.ok("stream verify -q out");
    }
    let full = demo("full.zstream");
    let out = shim("zstream", &["redup", full.to_str().unwrap()]).output().unwrap();
    assert!(out.stdout == std::fs::read(&full).unwrap());
    let said = Said::of(shim("zstream", &["list"]));
    assert_eq!((said.code, said.err.lines().next()), (2, Some("unrecognized command 'list'")));
    let said = Said::of(shim("zstream", &["--help"]));
    assert!(said.out.contains("\tdrop_record [-v] ") && said.out.contains("\tredup [-v] "), "{said:?}");
    assert!(!said.out.contains("stream redup"), "{said:?}");
    let said = Said::of(shim("zstream", &["raw", "/dev/null"]));
    assert_eq!(said.err, "cannot raw: 'zstream raw' is not supported by snowmelt\n");
}
