//! A scratch directory in which tests run the real binary.
#![allow(clippy::unwrap_used, clippy::panic)]
#![allow(dead_code)]

pub mod mounting;
pub mod remote;
pub mod rsync;
pub mod s3;

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A directory with pools. The binary sees nothing else.
pub struct Scratch {
    directory: tempfile::TempDir,
}

/// The output and exit code of a command.
#[derive(Debug)]
pub struct Said {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Scratch {
    pub fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    /// A directory with an empty pool called tank.
    pub fn with_pool() -> Self {
        let scratch = Self::new();
        scratch.ok("pool create tank");
        scratch
    }

    /// A directory with the two snapshots of the repository's demonstration streams in tank/home.
    pub fn with_home() -> Self {
        let scratch = Self::with_pool();
        scratch.receive("receive tank/home", &demo("full.zstream"));
        scratch.receive("receive tank/home", &demo("incremental.zstream"));
        scratch
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    pub fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_snowmelt"));
        let home = self.path();
        command
            .args(line.split_whitespace().map(|word| if word == "''" { "" } else { word }))
            .env_clear()
            .env("HOME", home)
            .env("XDG_DATA_HOME", home.join("data"))
            .env("XDG_CONFIG_HOME", home.join("config"))
            .env("XDG_STATE_HOME", home.join("state"))
            .env("XDG_RUNTIME_DIR", home)
            .env("TZ", "UTC")
            .env("SNOWMELT_AUTOMOUNT", "off")
            .current_dir(home)
            .stdin(Stdio::null());
        command
    }

    /// Bytes on disk of all files in the directory, nearly all of them in the pool.
    pub fn stored(&self) -> u64 {
        let mut directories = vec![self.path().to_path_buf()];
        let mut stored = 0;
        while let Some(directory) = directories.pop() {
            // Files may disappear while the directory is read.
            for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
                match entry.metadata() {
                    Ok(found) if found.is_dir() => directories.push(entry.path()),
                    Ok(found) => stored += found.blocks() * 512,
                    Err(_) => {}
                }
            }
        }
        stored
    }

    pub fn run(&self, line: &str) -> Said {
        Said::of(self.command(line))
    }

    /// Standard output of a command that must succeed and print nothing on standard error.
    pub fn ok(&self, line: &str) -> String {
        let said = self.run(line);
        assert_eq!((said.code, said.err.as_str()), (0, ""), "{line}: {said:?}");
        said.out
    }

    /// Standard error of a command that must fail with `code` and print nothing on standard output.
    pub fn fails(&self, code: i32, line: &str) -> String {
        let said = self.run(line);
        assert_eq!((said.code, said.out.as_str()), (code, ""), "{line}: {said:?}");
        said.err
    }

    pub fn receive(&self, line: &str, stream: &Path) -> String {
        let said = self.run_with_input(line, stream);
        assert_eq!((said.code, said.err.as_str()), (0, ""), "{line}: {said:?}");
        said.out
    }

    pub fn run_with_input(&self, line: &str, input: &Path) -> Said {
        let mut command = self.command(line);
        command.stdin(File::open(input).unwrap());
        Said::of(command)
    }

    /// Runs a command and writes its standard output to a file.
    pub fn to_file(&self, line: &str, file: &str) -> PathBuf {
        let path = self.path().join(file);
        let mut command = self.command(line);
        command.stdout(File::create(&path).unwrap());
        let said = command.output().unwrap();
        assert!(said.status.success(), "{line}: {said:?}");
        path
    }
}

impl Said {
    pub fn of(mut command: Command) -> Self {
        let output = command.output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Self { code: output.status.code().unwrap_or(-1), out: text(output.stdout), err: text(output.stderr) }
    }
}

/// A file of testdata/demo.
pub fn demo(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/demo").join(name)
}
