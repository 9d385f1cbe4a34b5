//! Parses the arguments that a client sends: the server's side, what to transfer and how.

use std::io::Read;

use crate::checksum::Algorithm;
use crate::error::{ExitCode, Result, RsyncError};
use crate::token::Compressor;
use crate::wire::ReadWire;

/// The most arguments, and the most bytes of all of them.
const ARGS_MAX: usize = 16 << 10;
const ARGS_BYTES_MAX: usize = 4 << 20;
/// The most directories of `--compare-dest`, `--copy-dest` and `--link-dest`.
const BASIS_DIRS_MAX: usize = 20;

/// The options of a transfer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[allow(missing_docs, clippy::struct_excessive_bools)]
pub struct Options {
    /// The server is the sender.
    pub sender: bool,
    /// The letters after `-e.`: the abilities of the client.
    pub abilities: Vec<u8>,
    pub recursive: bool,
    /// `-d`: directories are listed, but not descended into.
    pub dirs: bool,
    pub links: bool,
    pub copy_links: bool,
    pub copy_unsafe_links: bool,
    pub safe_links: bool,
    pub copy_dirlinks: bool,
    pub owner: bool,
    pub group: bool,
    pub devices: bool,
    pub specials: bool,
    pub times: bool,
    pub atimes: bool,
    pub perms: bool,
    pub hard_links: bool,
    pub acls: bool,
    pub xattrs: bool,
    pub checksum: bool,
    pub compress: bool,
    pub relative: bool,
    pub dry_run: bool,
    pub one_file_system: u8,
    pub prune_empty_dirs: bool,
    pub cvs_exclude: bool,
    /// Further patterns that the user of this side excludes with `-C`. They do not come from an option.
    pub cvs_more: Vec<u8>,
    pub numeric_ids: bool,
    pub inplace: bool,
    /// 1: `--append`; 2: `--append-verify`.
    pub append: u8,
    pub ignore_errors: bool,
    /// `--ignore-missing-args`, `--delete-missing-args`.
    pub ignore_missing_args: bool,
    pub from0: bool,
    /// `-`: the client sends the names. Otherwise a file on this side.
    pub files_from: Option<Vec<u8>>,
    /// Further arguments follow in the protocol.
    pub secluded_args: bool,
    /// The paths were not expanded by a shell and may be patterns.
    pub patterns: bool,
    pub remove_source_files: bool,
    /// Replaced and deleted files are kept under another name. The name ends with the suffix, or is in a directory.
    pub backup: bool,
    pub suffix: Option<Vec<u8>>,
    pub backup_dir: Option<Vec<u8>>,
    /// Further directories that may have files which the destination lacks, and how such files are used.
    pub basis_dirs: Vec<Vec<u8>>,
    pub basis_use: BasisUse,
    /// 1: similar names are looked for in the directory of a new file. 2: in the further directories too.
    pub fuzzy: u8,
    /// Arguments that do not exist are deleted at the receiver.
    pub delete_missing_args: bool,
    pub user_map: Option<Vec<u8>>,
    pub group_map: Option<Vec<u8>>,
    /// The number of `-v`.
    pub verbosity: u8,
    /// The level of `--itemize-changes`. From 2 on, unchanged files are listed too.
    pub itemize: u8,
    pub update: bool,
    pub existing: bool,
    pub ignore_existing: bool,
    pub ignore_times: bool,
    pub size_only: bool,
    pub executability: bool,
    pub omit_dir_times: bool,
    pub omit_link_times: bool,
    pub whole_file: bool,
    pub partial: bool,
    /// Files are moved to their places after all were received.
    pub delay_updates: bool,
    /// The directory in which files are written before they are moved to their places.
    pub temp_dir: Option<Vec<u8>>,
    /// Zeros in files become holes.
    pub sparse: bool,
    pub preallocate: bool,
    /// Files are flushed to disk before they are moved to their places.
    pub fsync: bool,
    /// The directory for partly received files, instead of their final place.
    pub partial_dir: Option<Vec<u8>>,
    pub mkpath: bool,
    pub no_implied_dirs: bool,
    /// At the receiver, symbolic links to directories stay where the sender has directories.
    pub keep_dirlinks: bool,
    /// Attributes that only root can set are kept in extended attributes (`-M--fake-super`). Datasets store them in any
    /// case.
    pub fake_super: bool,
    /// Symbolic links are stored in a form that leads nowhere (`-M--munge-links`), and are sent in their original form.
    pub munge_links: bool,
    pub delete: Delete,
    pub delete_excluded: bool,
    pub max_delete: Option<u64>,
    /// The seconds that times may differ. Negative: nanoseconds are compared.
    pub modify_window: i64,
    pub block_len: Option<u32>,
    pub min_size: Option<u64>,
    pub max_size: Option<u64>,
    pub timeout_seconds: u32,
    /// Bytes per second. 0 is no limit.
    pub bandwidth: u64,
    pub checksum_choice: Option<(Algorithm, Algorithm)>,
    pub compress_choice: Option<Compressor>,
    pub compress_level: Option<i32>,
    pub checksum_seed: Option<u32>,
    /// The arguments after ".": the name of the module and paths in it.
    pub paths: Vec<Vec<u8>>,
    /// Filter rules that the client sets for this side only (`-M--filter=…`).
    pub own_rules: Vec<Vec<u8>>,
    /// The names of the options as given, for `refuse options`.
    pub given: Vec<String>,
}

/// How unchanged files in a further directory are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BasisUse {
    /// They are not transferred.
    #[default]
    Compare,
    /// They are copied.
    Copy,
    /// They are hard-linked.
    Link,
}

impl BasisUse {
    /// The name of the option.
    pub fn name(self) -> &'static str {
        match self {
            Self::Compare => "compare-dest",
            Self::Copy => "copy-dest",
            Self::Link => "link-dest",
        }
    }
}

/// When a receiver deletes what the sender does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Delete {
    /// Never.
    #[default]
    No,
    /// Before the transfer.
    Before,
    /// During the transfer, when each directory is processed.
    During,
    /// Found during the transfer, deleted after it.
    Delay,
    /// Found and deleted after the transfer.
    After,
}

/// Options for a receiver that are not supported.
const NOT_RECEIVED: &[&str] = &["iconv", "remove-sent-files", "write-devices"];

/// A size in the form of `--max-size`: `1.5m`, `10KB`, `1g-1`.
fn size(name: &str, value: &[u8]) -> Result<u64> {
    let text = String::from_utf8_lossy(value).to_lowercase();
    let parse = || -> Option<u64> {
        let (text, more) = match text.strip_suffix("+1").map(|text| (text, 1)) {
            Some(found) => found,
            None => text.strip_suffix("-1").map_or((text.as_str(), 0), |text| (text, -1)),
        };
        let digits = text.find(|letter: char| letter.is_ascii_alphabetic()).unwrap_or(text.len());
        let (base, unit) = match &text.as_bytes()[digits..] {
            [] | [b'b'] => (1.0_f64, 0),
            [unit] | [unit, b'i', b'b'] => (1024.0, "kmgtp".find(char::from(*unit))? + 1),
            [unit, b'b'] => (1000.0, "kmgtp".find(char::from(*unit))? + 1),
            _ => return None,
        };
        let bytes = text[..digits].parse::<f64>().ok()? * base.powi(i32::try_from(unit).ok()?);
        (bytes.is_finite() && bytes >= 0.0).then_some((bytes as u64).saturating_add_signed(more))
    };
    parse().ok_or_else(|| {
        let shown = String::from_utf8_lossy(value);
        refused(format!("rsync: on remote machine: --{name}={shown} is invalid"))
    })
}

fn refused(message: String) -> RsyncError {
    RsyncError::refused(ExitCode::Syntax, message)
}

fn number(name: &str, value: &[u8]) -> Result<u64> {
    std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()).ok_or_else(|| {
        refused(format!(
            "rsync: on remote machine: --{name}={}: invalid numeric value",
            String::from_utf8_lossy(value)
        ))
    })
}

/// Options that a sender ignores, because they concern the receiver or the output.
const OTHERS_BUSINESS: &[&str] = &[
    "list-only",
    "out-format",
    "force",
    "max-alloc",
    "super",
    "no-super",
    "info",
    "debug",
    "stats",
    "progress",
    "quiet",
    "msgs2stderr",
    "no-msgs2stderr",
    "outbuf",
    "human-readable",
    "no-human-readable",
    "chown",
    "chmod",
    "skip-compress",
    "open-noatime",
    "no-open-noatime",
    "no-omit-dir-times",
    "no-r",
    "no-inc-recursive",
    "no-i-r",
    "inc-recursive",
    "i-r",
    "blocking-io",
    "8-bit-output",
    "bs",
    "trust-sender",
    "no-iconv",
    "new-compress-level",
    // Each client has one thread here in any case.
    "compress-threads",
    "zt",
];

/// Aliases of options, with the name that they stand for.
pub const ALIASES: &[(&str, &str)] = &[
    ("cc", "checksum-choice"),
    ("del", "delete-during"),
    ("i-r", "inc-recursive"),
    ("ignore-non-existing", "existing"),
    ("log-format", "out-format"),
    ("no-i-r", "no-inc-recursive"),
    ("protect-args", "secluded-args"),
    ("remove-sent-files", "remove-source-files"),
    ("time-limit", "stop-after"),
    ("zc", "compress-choice"),
    ("zl", "compress-level"),
    ("zt", "compress-threads"),
];

/// Options whose value may be the next argument.
const WITH_VALUE: &[&str] = &[
    "backup-dir",
    "block-size",
    "bwlimit",
    "checksum-choice",
    "checksum-seed",
    "chmod",
    "chown",
    "compare-dest",
    "compress-choice",
    "compress-level",
    "copy-dest",
    "debug",
    "exclude",
    "files-from",
    "filter",
    "groupmap",
    "include",
    "info",
    "link-dest",
    "log-format",
    "max-alloc",
    "max-delete",
    "max-size",
    "min-size",
    "modify-window",
    "out-format",
    "outbuf",
    "partial-dir",
    "skip-compress",
    "suffix",
    "temp-dir",
    "timeout",
    "usermap",
];

impl Options {
    /// Parses the arguments, with `--server` among them. Returns what was understood, and the first error in rsync's
    /// words, if there is one: an unknown or unsupported option. The client is told later, when that is possible.
    pub fn parse(args: &[Vec<u8>]) -> (Self, Option<RsyncError>) {
        let mut options = Self::default();
        let mut failure = None;
        let mut left = args.iter();
        let mut is_server = false;
        while let Some(arg) = left.next() {
            match arg.as_slice() {
                b"." => {
                    options.paths = left.by_ref().cloned().collect();
                }
                b"--server" => is_server = true,
                [b'-', b'-', long @ ..] => {
                    let is_alone = WITH_VALUE.iter().any(|name| name.as_bytes() == long);
                    let value = if is_alone { left.next() } else { None };
                    let whole = value.map(|value| [long, b"=", value].concat());
                    failure = failure.or(options.long(whole.as_deref().unwrap_or(long)).err());
                }
                [b'-', short @ ..] if !short.is_empty() => failure = failure.or(options.short(short).err()),
                // Without a ".", the paths follow at once.
                _ => options.paths.push(arg.clone()),
            }
        }
        failure = failure.or(options.settle().err());
        if !is_server {
            failure = failure.or(Some(refused("rsync: on remote machine: --server was expected".to_owned())));
        }
        (options, failure)
    }

    fn short(&mut self, letters: &[u8]) -> Result<()> {
        for (at, letter) in letters.iter().enumerate() {
            self.given.push(char::from(*letter).to_string());
            let set = |flag: &mut bool| *flag = true;
            match letter {
                b'r' => set(&mut self.recursive),
                b'd' => set(&mut self.dirs),
                b'l' => set(&mut self.links),
                b'L' => set(&mut self.copy_links),
                b'k' => set(&mut self.copy_dirlinks),
                b'o' => set(&mut self.owner),
                b'g' => set(&mut self.group),
                b'D' => (self.devices, self.specials) = (true, true),
                b't' => set(&mut self.times),
                b'U' => set(&mut self.atimes),
                b'p' => set(&mut self.perms),
                b'H' => set(&mut self.hard_links),
                b'A' => (self.acls, self.perms) = (true, true),
                b'X' => set(&mut self.xattrs),
                b'c' => set(&mut self.checksum),
                b'z' => set(&mut self.compress),
                b'R' => set(&mut self.relative),
                b'n' => set(&mut self.dry_run),
                b'm' => set(&mut self.prune_empty_dirs),
                b'C' => set(&mut self.cvs_exclude),
                b's' => set(&mut self.secluded_args),
                b'0' => set(&mut self.from0),
                b'x' => self.one_file_system = self.one_file_system.saturating_add(1),
                b'e' => {
                    // The rest is ".LsfxCIvu". Test builds have a version before the dot.
                    let rest = &letters[at + 1..];
                    let dot = rest.iter().position(|byte| *byte == b'.').map_or(0, |dot| dot + 1);
                    self.abilities = rest[dot..].to_vec();
                    return Ok(());
                }
                b'B' => return self.long(&[b"block-size=", &letters[at + 1..]].concat()),
                b'@' => return self.long(&[b"modify-window=", &letters[at + 1..]].concat()),
                b'v' => self.verbosity = self.verbosity.saturating_add(1),
                b'u' => set(&mut self.update),
                b'E' => set(&mut self.executability),
                b'I' => set(&mut self.ignore_times),
                b'O' => set(&mut self.omit_dir_times),
                b'J' => set(&mut self.omit_link_times),
                b'W' => set(&mut self.whole_file),
                b'i' => self.itemize = self.itemize.saturating_add(1),
                // Options of the receiver that change nothing or are refused, and options of the output.
                b'b' => set(&mut self.backup),
                b'y' => self.fuzzy = self.fuzzy.saturating_add(1),
                b'K' => set(&mut self.keep_dirlinks),
                b'S' => set(&mut self.sparse),
                b'q' | b'h' | b'P' | b'V' => {}
                other => {
                    return Err(refused(format!(
                        "rsync: on remote machine: -{}: unknown option",
                        char::from(*other).escape_default()
                    )));
                }
            }
        }
        Ok(())
    }

    fn long(&mut self, text: &[u8]) -> Result<()> {
        let (name, value) = match text.iter().position(|byte| *byte == b'=') {
            Some(at) => (&text[..at], Some(&text[at + 1..])),
            None => (text, None),
        };
        let name = String::from_utf8_lossy(name).into_owned();
        self.given.push(name.clone());
        let some = value.unwrap_or_default();
        match name.as_str() {
            "sender" => self.sender = true,
            "copy-unsafe-links" => self.copy_unsafe_links = true,
            "safe-links" => self.safe_links = true,
            "copy-links" => self.copy_links = true,
            "copy-dirlinks" => self.copy_dirlinks = true,
            "devices" => self.devices = true,
            "no-devices" => self.devices = false,
            "specials" => self.specials = true,
            "no-specials" => self.specials = false,
            "numeric-ids" => self.numeric_ids = true,
            "no-numeric-ids" => self.numeric_ids = false,
            "inplace" => self.inplace = true,
            "append" => self.append = (self.append + 1).min(2),
            "append-verify" => self.append = 2,
            "ignore-errors" => self.ignore_errors = true,
            "ignore-missing-args" => self.ignore_missing_args = true,
            "delete-missing-args" => (self.ignore_missing_args, self.delete_missing_args) = (true, true),
            "backup" => self.backup = true,
            "suffix" => self.suffix = Some(some.to_vec()),
            "backup-dir" => (self.backup, self.backup_dir) = (true, Some(some.to_vec())),
            "compare-dest" => self.basis(BasisUse::Compare, some)?,
            "copy-dest" => self.basis(BasisUse::Copy, some)?,
            "link-dest" => self.basis(BasisUse::Link, some)?,
            "fuzzy" => self.fuzzy = self.fuzzy.saturating_add(1),
            "usermap" => self.user_map = Some(some.to_vec()),
            "groupmap" => self.group_map = Some(some.to_vec()),
            "filter" => self.own_rules.push(some.to_vec()),
            "exclude" => self.own_rules.push([b"- ", some].concat()),
            "include" => self.own_rules.push([b"+ ", some].concat()),
            "from0" => self.from0 = true,
            "files-from" => self.files_from = Some(some.to_vec()),
            "dirs" => self.dirs = true,
            "no-dirs" => self.dirs = false,
            "relative" => self.relative = true,
            "no-relative" => self.relative = false,
            "prune-empty-dirs" => self.prune_empty_dirs = true,
            "secluded-args" | "protect-args" => self.secluded_args = true,
            "timeout" => self.timeout_seconds = number(&name, some)?.try_into().unwrap_or(u32::MAX),
            "bwlimit" => self.bandwidth = number(&name, some)?.saturating_mul(1024),
            "checksum-seed" => self.checksum_seed = Some(number(&name, some)? as u32),
            "compress-level" | "zl" => {
                let level = std::str::from_utf8(some).ok().and_then(|text| text.parse().ok());
                self.compress_level = Some(level.unwrap_or(6));
            }
            "compress" => self.compress = true,
            "no-compress" => self.compress = false,
            "compress-choice" | "zc" => self.choose_compressor(some)?,
            "new-compress" => self.choose_compressor(b"zlibx")?,
            "old-compress" => self.choose_compressor(b"zlib")?,
            "checksum-choice" | "cc" => self.choose_checksum(some)?,
            "log-format" | "out-format" => {
                let count = usize::from(some.windows(2).any(|two| two == b"%i"));
                self.itemize = (count + usize::from(some.windows(2).any(|two| two == b"%I"))) as u8;
            }
            "itemize-changes" => self.itemize = self.itemize.saturating_add(1),
            "verbose" => self.verbosity = self.verbosity.saturating_add(1),
            "partial" => self.partial = true,
            "delay-updates" => self.delay_updates = true,
            "temp-dir" => self.temp_dir = Some(some.to_vec()).filter(|name| !name.is_empty()),
            "sparse" => self.sparse = true,
            "preallocate" => self.preallocate = true,
            "fsync" => self.fsync = true,
            "partial-dir" => {
                self.partial = true;
                self.partial_dir =
                    Some(some.to_vec()).filter(|directory| !matches!(directory.as_slice(), b"" | b"."));
            }
            "delete-excluded" => {
                self.delete_excluded = true;
                if self.delete == Delete::No {
                    self.delete = Delete::During;
                }
            }
            "delete" if self.delete == Delete::No => self.delete = Delete::During,
            "delete" => {}
            "delete-before" => self.delete = Delete::Before,
            "delete-during" | "del" => self.delete = Delete::During,
            "delete-delay" => self.delete = Delete::Delay,
            "delete-after" => self.delete = Delete::After,
            "max-delete" => self.max_delete = Some(if some == b"-1" { 0 } else { number(&name, some)? }),
            "existing" | "ignore-non-existing" => self.existing = true,
            "ignore-existing" => self.ignore_existing = true,
            "update" => self.update = true,
            "size-only" => self.size_only = true,
            "ignore-times" => self.ignore_times = true,
            "modify-window" => {
                let text = std::str::from_utf8(some).ok().and_then(|text| text.parse().ok());
                self.modify_window = text.unwrap_or(0);
            }
            "whole-file" => self.whole_file = true,
            "no-whole-file" | "no-W" => self.whole_file = false,
            "omit-dir-times" => self.omit_dir_times = true,
            "omit-link-times" => self.omit_link_times = true,
            "executability" => self.executability = true,
            "mkpath" => self.mkpath = true,
            "no-mkpath" => self.mkpath = false,
            "keep-dirlinks" => self.keep_dirlinks = true,
            "fake-super" => self.fake_super = true,
            "munge-links" => self.munge_links = true,
            "no-munge-links" => self.munge_links = false,
            "no-implied-dirs" => self.no_implied_dirs = true,
            "block-size" => self.block_len = Some(number(&name, some)?.try_into().unwrap_or(u32::MAX)),
            "min-size" => self.min_size = Some(size(&name, some)?),
            "max-size" => self.max_size = Some(size(&name, some)?),
            "write-devices" => {}
            "remove-source-files" | "remove-sent-files" => self.remove_source_files = true,
            name if OTHERS_BUSINESS.contains(&name) => {}
            _ => return Err(refused(format!("rsync: on remote machine: --{name}: unknown option"))),
        }
        Ok(())
    }

    fn basis(&mut self, how: BasisUse, directory: &[u8]) -> Result<()> {
        if !self.basis_dirs.is_empty() && self.basis_use != how {
            return Err(refused(
                "ERROR: You may not mix --compare-dest, --copy-dest, and --link-dest.".to_owned(),
            ));
        }
        if self.basis_dirs.len() >= BASIS_DIRS_MAX {
            let name = how.name();
            return Err(refused(format!("ERROR: at most {BASIS_DIRS_MAX} --{name} args may be specified")));
        }
        self.basis_use = how;
        self.basis_dirs.push(directory.to_vec());
        Ok(())
    }

    /// Applies the effects of combined options.
    fn settle(&mut self) -> Result<()> {
        if self.backup_dir.as_deref().is_some_and(|directory| matches!(directory, b"" | b"." | b"./")) {
            self.backup_dir = None;
        }
        if self.backup && self.backup_dir.is_none() {
            // A backup changes the time of its directory after that was set.
            self.omit_dir_times = true;
            if self.suffix.as_ref().is_some_and(Vec::is_empty) {
                return Err(refused("rsync: --suffix cannot be empty without a --backup-dir".to_owned()));
            }
        }
        if self.suffix.as_ref().is_some_and(|suffix| suffix.contains(&b'/')) {
            return Err(refused("rsync: --suffix cannot contain slashes".to_owned()));
        }
        Ok(())
    }

    fn choose_compressor(&mut self, name: &[u8]) -> Result<()> {
        let known = Compressor::named(name);
        let shown = String::from_utf8_lossy(name);
        self.compress_choice =
            Some(known.ok_or_else(|| refused(format!("rsync: unknown compress name: {shown}")))?);
        self.compress = true;
        Ok(())
    }

    fn choose_checksum(&mut self, names: &[u8]) -> Result<()> {
        let named = |name: &[u8]| {
            let shown = String::from_utf8_lossy(name).into_owned();
            Algorithm::named(name).ok_or_else(|| refused(format!("rsync: unknown checksum name: {shown}")))
        };
        if names == b"auto" {
            return Ok(());
        }
        self.checksum_choice = Some(match names.iter().position(|byte| *byte == b',') {
            Some(at) => (named(&names[..at])?, named(&names[at + 1..])?),
            None => (named(names)?, named(names)?),
        });
        Ok(())
    }

    /// The error for an option that a receiver does not support.
    pub fn not_received(&self) -> Option<RsyncError> {
        // A list of names from the client is for a sender.
        let is_theirs = |name: &str| name == "files-from" && self.files_from.as_deref() == Some(b"-");
        let is_refused = |name: &&String| NOT_RECEIVED.contains(&name.as_str()) || is_theirs(name);
        let name = self.given.iter().find(is_refused)?;
        let shown = if name.len() == 1 { format!("-{name}") } else { format!("--{name}") };
        Some(RsyncError::refused(
            ExitCode::Unsupported,
            format!("ERROR: {shown} is not done where files are received here"),
        ))
    }

    /// Whether the client has this ability.
    pub fn can(&self, ability: u8) -> bool {
        self.abilities.contains(&ability)
    }
}

/// Reads arguments that end with the byte `end`, up to an empty one.
///
/// # Errors
/// When the connection fails, or there are too many.
pub fn read_args(from: &mut impl Read, end: u8) -> Result<Vec<Vec<u8>>> {
    let (mut args, mut total) = (Vec::new(), 0);
    loop {
        let mut arg = Vec::new();
        loop {
            match from.read_u8()? {
                byte if byte == end => break,
                byte => arg.push(byte),
            }
            total += 1;
            if total > ARGS_BYTES_MAX {
                return Err(RsyncError::protocol("arguments too long"));
            }
        }
        if arg.is_empty() {
            return Ok(args);
        }
        args.push(arg);
        if args.len() > ARGS_MAX {
            return Err(RsyncError::protocol("too many daemon arguments"));
        }
    }
}

/// Removes the backslashes from options that were sent without `-s`. Clients put one before each character that is
/// special to a shell or in a pattern. The arguments after "." are paths, where a backslash may be part of a pattern.
pub fn unescape_options(args: &mut [Vec<u8>]) {
    for arg in args.iter_mut().take_while(|arg| *arg != b".") {
        let mut plain = Vec::with_capacity(arg.len());
        let mut bytes = arg.iter();
        while let Some(byte) = bytes.next() {
            plain.extend(if *byte == b'\\' { bytes.next().or(Some(byte)) } else { Some(byte) });
        }
        *arg = plain;
    }
}

/// Adds the arguments that follow in the protocol (`-s`), if there are any. In that case the first arguments have no
/// ".". Nothing beyond them is read, except into the buffer of `from`.
///
/// # Errors
/// As [`read_args`].
pub fn complete(mut args: Vec<Vec<u8>>, from: &mut impl Read) -> Result<Vec<Vec<u8>>> {
    let (options, _) = Options::parse(&args);
    if options.secluded_args && !args.iter().any(|arg| arg == b".") {
        // The first argument is the name of a program.
        args.extend(read_args(from, 0)?.into_iter().skip(1));
    }
    Ok(args)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Options> {
        let words: Vec<_> = text.split(' ').map(|word| word.as_bytes().to_vec()).collect();
        let (options, failure) = Options::parse(&words);
        failure.map_or(Ok(options), Err)
    }

    #[test]
    fn what_stock_rsync_sends_is_understood() {
        let options = parse("--server --sender -vvnlHogDtprze.iLsfxCIvu --timeout=9 --bwlimit=100 --append --append --numeric-ids . m/a m/b").unwrap();
        assert!(
            options.sender && options.recursive && options.hard_links && options.dry_run && options.compress
        );
        assert!(options.can(b'i') && options.can(b'u') && !options.can(b'q'));
        assert_eq!((options.append, options.timeout_seconds, options.bandwidth), (2, 9, 102_400));
        assert_eq!(options.paths, [b"m/a".to_vec(), b"m/b".to_vec()]);
        let options =
            parse("--server --sender -re.iLsfxCIvu --backup-dir q --files-from /a --list-only . m/").unwrap();
        assert_eq!((options.files_from, options.paths), (Some(b"/a".to_vec()), vec![b"m/".to_vec()]));
        // The form that rsync sends for --zc=zlibx, without a "z".
        let options = parse("--server --sender -re.iLsfxCIvu --new-compress . m/").unwrap();
        assert!(options.compress && options.compress_choice == Some(Compressor::Zlibx));
    }

    #[test]
    fn what_a_receiver_is_told_is_understood() {
        let options = parse("--server -vvuOlogDtprEWe.iLsfxCIvu -B700 --log-format=%i%I --delete-delay --delete-excluded --max-delete=-1 --max-size 1.5k --min-size=2kB -@-1 --partial . t/").unwrap();
        assert!(
            !options.sender
                && options.update
                && options.omit_dir_times
                && options.whole_file
                && options.partial
        );
        assert_eq!((options.verbosity, options.itemize, options.block_len), (2, 2, Some(700)));
        assert_eq!((options.delete, options.max_delete), (Delete::Delay, Some(0)));
        assert_eq!((options.max_size, options.min_size, options.modify_window), (Some(1536), Some(2000), -1));
        assert!(options.not_received().is_none());
        assert_eq!(parse("--server -r --delete . t").unwrap().delete, Delete::During);
        assert_eq!(parse("--server -r --delete-after --delete-excluded . t").unwrap().delete, Delete::After);
        let options = parse("--server -byy --backup-dir ../b --suffix=.old --link-dest ../a --link-dest /c --usermap=*:joe . t").unwrap();
        assert!(options.backup && !options.omit_dir_times && options.not_received().is_none());
        assert_eq!((options.fuzzy, options.basis_use), (2, BasisUse::Link));
        assert_eq!(options.basis_dirs, [b"../a".to_vec(), b"/c".to_vec()]);
        assert!(parse("--server -b . t").unwrap().omit_dir_times);
        for wrong in ["-b --suffix=", "-b --suffix=a/b", "--link-dest a --copy-dest b"] {
            assert!(parse(&format!("--server -r {wrong} . t")).is_err(), "{wrong}");
        }
        assert!(parse("--server -rK --files-from list --from0 . t").unwrap().not_received().is_none());
        for refused in ["--files-from=-", "--remove-sent-files"] {
            assert!(
                parse(&format!("--server -r {refused} . t")).unwrap().not_received().is_some(),
                "{refused}"
            );
        }
        assert!(parse("--server --max-size=x . t").is_err());
    }

    #[test]
    fn arguments_that_come_later_count_too() {
        let words = |text: &str| text.split(' ').map(|word| word.as_bytes().to_vec()).collect::<Vec<_>>();
        let first = words("--server --sender -sre.iLsfxCIvu");
        let mut late = &b"rsync\0--files-from=-\0--numeric-ids\0.\0a b\0*\0\0rest"[..];
        let args = complete(first.clone(), &mut late).unwrap();
        assert_eq!(late, b"rest");
        let (options, failure) = Options::parse(&complete(args, &mut late).unwrap());
        assert!(failure.is_none() && options.numeric_ids && options.recursive && options.can(b'u'));
        assert_eq!(
            (options.files_from, options.paths),
            (Some(b"-".to_vec()), vec![b"a b".to_vec(), b"*".to_vec()])
        );
        let args = complete(first.clone(), &mut &b"rsync\0--frob\0.\0a\0\0"[..]).unwrap();
        assert!(Options::parse(&args).1.is_some());
        assert!(complete(first.clone(), &mut &b"rsync\0a"[..]).is_err());
        let many = b"a\0".repeat(ARGS_MAX + 1);
        assert!(complete(first, &mut many.as_slice()).is_err());
    }

    #[test]
    fn options_lose_the_backslashes_that_clients_put_in() {
        let words = [r"--server", r"--usermap=\*:1000", r"--suffix=\\x", r"--x\", ".", r"m/a\*"];
        let mut args = words.map(|word| word.as_bytes().to_vec());
        unescape_options(&mut args);
        assert_eq!(
            args.each_ref().map(|arg| std::str::from_utf8(arg).unwrap()),
            ["--server", "--usermap=*:1000", r"--suffix=\x", r"--x\", ".", r"m/a\*"]
        );
    }

    #[test]
    fn what_is_not_known_is_told_in_rsyncs_words() {
        for (text, message) in [
            ("--server --nonsense . m", "rsync: on remote machine: --nonsense: unknown option"),
            ("--server -lZ . m", "rsync: on remote machine: -Z: unknown option"),
            ("--server --checksum-choice=crc . m", "rsync: unknown checksum name: crc"),
        ] {
            assert_eq!(parse(text).unwrap_err().to_string(), message);
        }
        assert!(parse("--sender . m").is_err());
    }
}
