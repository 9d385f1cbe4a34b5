//! Compares listings with random filter rules to those of stock rsync's daemon.
//!
//! `SNOWMELT_FILTER_CASES=10000 SNOWMELT_FILTER_SEED=7 cargo test --workspace --test filter_fuzz -- --ignored`
//! runs more cases than CI does. A case that differs is printed with the seed that makes this case alone.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::Server;

/// The number of cases in CI.
const CASES: u64 = 300;
/// The number of clients at a time.
const THREADS: u64 = 3;

/// The exit code of a client that rejects a list.
const REJECTED: Option<i32> = Some(4);

/// The pieces of patterns.
const PIECES: [&str; 38] = [
    "a",
    "b",
    "ab",
    "*",
    "**",
    "?",
    "a*",
    "*b",
    "[ab]",
    "[!a]",
    "[^b]",
    "a?",
    "***",
    "[a-c]*",
    "\\a",
    "a.b",
    "*.b",
    "[[:alpha:]]",
    "[]a]",
    "\\*",
    "a[",
    "{a,b}",
    "a\\",
    "[a\\]",
    "[\\]]",
    "[a-]",
    "[c-a]",
    "[[:nope:]]",
    "[[:alpha]",
    "a**",
    "**b",
    "*a*",
    "?*",
    "[!",
    "[a-b-c]",
    "\\\\",
    "[^]]",
    "-",
];
/// The names of files and directories.
const NAMES: [&[u8]; 20] = [
    b"a", b"b", b"ab", b"ba", b"aa", b"c", b"a.b", b".b", b"*", b"**", b"a[", b"[a", b"]a", b"{a,b}", b"\\a",
    b"a\\", b"-", b"[", b"\xe9", b"A",
];

/// A generator of pseudo-random numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    fn percent(&mut self, chance: usize) -> bool {
        self.below(100) < chance
    }

    fn part(&mut self) -> String {
        let first = self.pick(&PIECES).to_owned();
        if self.percent(30) { first + self.pick(&PIECES) } else { first }
    }

    fn pattern(&mut self) -> String {
        let parts: Vec<_> = (0..self.pick(&[1, 1, 1, 2, 2, 3])).map(|_| self.part()).collect();
        let mut pattern = parts.join("/");
        if self.percent(25) {
            pattern.insert(0, '/');
        }
        if self.percent(20) {
            pattern.push('/');
        }
        if self.percent(8) {
            pattern.push_str("/***");
        }
        pattern
    }

    fn rule(&mut self) -> String {
        const KINDS: [&str; 21] = [
            "-", "-", "-", "+", "-!", "-/", "+/", "H", "S", "-p", "-s", "+s", "-r", "P", "R", "-,s", "-!/",
            "exclude", "include", "hide", "show",
        ];
        let most = if self.percent(40) { KINDS.len() } else { 5 };
        let kind = KINDS[self.below(most)];
        if self.percent(3) {
            return "-C".to_owned();
        }
        let space = if kind.len() < 4 { self.pick(&[" ", "_"]) } else { " " };
        format!("{kind}{space}{}", self.pattern())
    }
}

/// The arguments of a client, and the parameters of the module.
#[derive(Debug)]
struct Case {
    rules: Vec<String>,
    options: Vec<&'static str>,
    from: &'static str,
    module: String,
}

impl Case {
    fn new(random: &mut Random) -> Self {
        let count = random.pick(&[1, 1, 1, 2, 3, 4]);
        let options: &[&[&str]] =
            &[&[], &[], &[], &["--no-inc-recursive"], &["-m"], &["-R"], &["--protocol=29"]];
        let options = random.pick(options).to_vec();
        let from = if random.percent(30) { random.pick(&["m/a", "m/a/", "m/ab/b/", "m/./a/"]) } else { "m/" };
        let (mut rules, mut module) = (Vec::new(), String::new());
        match random.below(5) {
            0 => {
                let patterns: Vec<_> = (0..count).map(|_| random.pattern()).collect();
                module = format!("exclude = {}", patterns.join(" "));
                if random.percent(40) {
                    module = format!("{module}\ninclude = {}", random.pattern());
                }
            }
            1 => {
                let kinds = ["-", "+", "-!", "-/", "exclude", "include"];
                let rules = (0..count).map(|_| format!("{} {}", random.pick(&kinds), random.pattern()));
                module = format!("filter = {}", rules.collect::<Vec<_>>().join(" "));
            }
            _ => rules.extend((0..count).map(|_| random.rule())),
        }
        // A backslash at the end of a line would continue it in the configuration.
        let lines = module
            .lines()
            .map(|line| if line.ends_with('\\') { format!("{line}c") } else { line.to_owned() });
        let module = lines.collect::<Vec<_>>().join("\n");
        Self { rules, options, from, module }
    }
}

/// Makes three levels of directories with files of all names.
fn make_tree(at: &Path, depth: usize) {
    fs::create_dir_all(at).unwrap();
    for name in NAMES {
        let path = at.join(std::ffi::OsStr::from_bytes(name));
        match name {
            b"a" | b"ab" | b"b" if depth < 3 => make_tree(&path, depth + 1),
            b"a[" | b"*" | b"\\a" if depth < 1 => make_tree(&path, depth + 2),
            _ if depth < 3 || name.len() < 3 => fs::write(path, "").unwrap(),
            _ => {}
        }
    }
}

/// The exit code and the names of a listing, and the error messages.
type Listed = (Option<i32>, BTreeSet<Vec<u8>>, String);

fn list(case: &Case, command: &mut Command) -> Listed {
    command.args(["-r"]).args(&case.options).env("LC_ALL", "C");
    command.args(case.rules.iter().map(|rule| format!("--filter={rule}")));
    let output = command.arg(format!("localhost::{}", case.from)).output().unwrap();
    let name = |line: &[u8]| line.splitn(5, |byte| *byte == b' ').last().unwrap().to_vec();
    let names = output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(|line| {
        // Mode, size, date, time, name. Only the size is aligned with spaces.
        let squeezed: Vec<_> = line.split(|byte| *byte == b' ').filter(|word| !word.is_empty()).collect();
        name(&squeezed.join(&b' '))
    });
    // With -R, the root of the transfer may or may not be listed, whatever the rules.
    let names = names.filter(|name| name != b".");
    (output.status.code(), names.collect(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// The difference in the results of a case, if there is one.
fn difference(case: &Case, tree: &Path, config: &Path) -> Option<String> {
    let ours = Server::of(tree, &case.module);
    let text = format!(
        "uid = 0\ngid = 0\nuse chroot = no\nlog file = /dev/null\n[m]\npath = {}\n{}\n",
        tree.display(),
        case.module
    );
    fs::write(config, text).unwrap();
    let mut client = Command::new("timeout");
    let found = list(case, client.args(["60", "rsync", "--port", &ours.port.to_string()]));
    let mut client = Command::new("timeout");
    let daemon = format!("rsync --daemon --config={}", config.display());
    let expected = list(case, client.args(["60", "rsync"]).env("RSYNC_CONNECT_PROG", daemon));
    let names = |names: &BTreeSet<Vec<u8>>, others: &BTreeSet<Vec<u8>>| {
        let only = names.difference(others).take(5).map(|name| String::from_utf8_lossy(name).into_owned());
        only.collect::<Vec<_>>()
    };
    // A client that rejects a list ends at once. How much it has printed by then is chance.
    let is_cut = (found.0, expected.0) == (REJECTED, REJECTED);
    (found.0 != expected.0 || found.1 != expected.1 && !is_cut).then(|| {
        format!(
            "{case:?}: codes {:?} (stock {:?}), only here {:?}, only of stock {:?}; {} / {}",
            found.0,
            expected.0,
            names(&found.1, &expected.1),
            names(&expected.1, &found.1),
            found.2.lines().next().unwrap_or_default(),
            expected.2.lines().next().unwrap_or_default(),
        )
    })
}

fn from_environment(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().unwrap())
}

#[test]
#[ignore = "needs rsync and root"]
fn random_rules_select_what_stock_rsync_selects() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    make_tree(&tree, 0);
    let (cases, seed) =
        (from_environment("SNOWMELT_FILTER_CASES", CASES), from_environment("SNOWMELT_FILTER_SEED", 1));
    let run = |first: u64| -> Vec<String> {
        let config: PathBuf = dir.path().join(format!("rsyncd{first}.conf"));
        let seeds = (first..cases).step_by(THREADS as usize).map(|case| seed.wrapping_add(case));
        let differ = |seed: u64| {
            let case = Case::new(&mut Random(seed.wrapping_mul(0x5851_f42d_4c95_7f2d)));
            Some(format!("seed {seed}: {}", difference(&case, &tree, &config)?))
        };
        seeds.filter_map(differ).collect()
    };
    let differences: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|first| {
                let run = &run;
                scope.spawn(move || run(first))
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let shown: Vec<_> = differences.iter().take(20).map(String::as_str).collect();
    assert!(differences.is_empty(), "{} of {cases} differ\n{}", differences.len(), shown.join("\n"));
}
