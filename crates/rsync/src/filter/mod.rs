//! Which files are left out: rules of the client and of the module (rsync(1), "FILTER RULES").

mod rule;
mod scope;
mod wild;

pub use rule::Rule;
pub use wild::matches;

use std::io::Read;
use std::sync::Arc;

use crate::error::{ExitCode, Result, RsyncError};
use crate::wire::ReadWire;
use rule::{Line, Merge, Wrong, cvs_rules};
pub use scope::Scope;

/// Most rules of one connection, and most in one directory's file.
const RULES_MAX: usize = 100_000;
/// Longest rule, and bytes of all rules that a client sends.
const RULE_MAX: usize = 8192;
const RULES_LEN_MAX: usize = 16 << 20;

/// What `--cvs-exclude` leaves out (rsync(1)).
const CVS: &str = "RCS SCCS CVS CVS.adm RCSLOG cvslog.* tags TAGS .make.state .nse_depinfo *~ #* .#* ,* _$* *$ *.old \
    *.bak *.BAK *.orig *.rej .del-* *.a *.olb *.o *.obj *.so *.exe *.Z *.elc *.ln core .svn/ .git/ .hg/ .bzr/";

/// One of a list of rules.
#[derive(Debug, Clone)]
enum Item {
    Rule(Rule),
    /// Rules of each directory's own file, by place in [`Filter::merges`].
    Merge(usize),
}

/// A list of rules.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    items: Vec<Item>,
    merges: Vec<Arc<Merge>>,
    /// Those about names of attributes.
    of_xattrs: Vec<Rule>,
    /// It is about what is received: what may be deleted.
    receiving: bool,
}

/// What is asked about.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// Path in the transfer.
    pub path: &'a [u8],
    /// Path in the module, for rules that are about that.
    pub full: &'a [u8],
    /// A directory.
    pub is_dir: bool,
}

fn refused(wrong: Wrong, line: &[u8]) -> RsyncError {
    RsyncError::refused(ExitCode::Syntax, format!("{wrong}: `{}'", String::from_utf8_lossy(line)))
}

fn too_many() -> RsyncError {
    RsyncError::refused(ExitCode::Syntax, "too many filter rules")
}

impl Filter {
    /// Reads the rules that a client sends after its arguments; those of the other side than this one are left out.
    ///
    /// # Errors
    /// When one is none, or they are too many.
    pub fn receive(from: &mut impl Read, protocol: u8, receiving: bool) -> Result<Self> {
        let mut filter = Self { receiving, ..Self::default() };
        let mut total_len = 0;
        loop {
            let len = from.read_i32()?;
            if len == 0 {
                return Ok(filter);
            }
            let len =
                usize::try_from(len).map_err(|_| RsyncError::protocol(format!("a rule of {len} bytes")))?;
            let line = from.read_bytes(len, RULE_MAX)?;
            total_len += len;
            if total_len > RULES_LEN_MAX {
                return Err(too_many());
            }
            match line.as_slice() {
                // Before version 29 a pattern was enough, for what is left out.
                [b'-' | b'+', b' ', ..] | b"!" => filter.add(&line)?,
                pattern if protocol < 29 => filter.add(&[b"- ", pattern].concat())?,
                _ => filter.add(&line)?,
            }
        }
    }

    /// Adds a rule as it is written on a command line: `- *.o`, `+ /a/***`, `: .rsync-filter`.
    ///
    /// # Errors
    /// When it is none.
    pub fn add(&mut self, line: &[u8]) -> Result<()> {
        if self.items.len() >= RULES_MAX {
            return Err(too_many());
        }
        match Line::parse(line).map_err(|wrong| refused(wrong, line))? {
            Line::Clear => *self = Self { receiving: self.receiving, ..Self::default() },
            Line::Rule(Rule { sides, .. }) | Line::Merge(Merge { sides, .. })
                if !sides.count(self.receiving) => {}
            Line::Rule(rule) if rule.of_xattrs => self.of_xattrs.push(rule),
            Line::Rule(rule) => self.items.push(Item::Rule(rule)),
            Line::Cvs => self.items.extend(cvs_rules().map(Item::Rule)),
            // Of a file at the client, which has sent what is in it instead.
            Line::Merge(merge) if merge.is_once => return Err(refused(Wrong::Unknown, line)),
            Line::Merge(merge) => add_merge(&mut self.items, &mut self.merges, merge),
        }
        Ok(())
    }

    /// Adds a pattern of what to leave out, or to include.
    pub fn add_pattern(&mut self, pattern: &[u8], include: bool) {
        self.items.push(Item::Rule(Rule::new(pattern, include)));
    }

    /// Adds what `--cvs-exclude` leaves out: the usual names, and each directory's `.cvsignore`.
    pub fn add_cvs(&mut self) {
        add_merge(&mut self.items, &mut self.merges, Merge::cvs());
        self.items.extend(cvs_rules().map(Item::Rule));
    }

    /// Whether there are no rules about files.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Whether directories' own files have a say.
    pub fn has_merges(&self) -> bool {
        !self.merges.is_empty()
    }

    /// Whether a file is left out by the sender.
    pub fn excludes(&self, subject: Subject<'_>, scope: Option<&Arc<Scope>>) -> bool {
        let said = self.items.iter().find_map(|item| match item {
            Item::Rule(rule) => rule.says(subject),
            Item::Merge(at) => scope.and_then(|scope| scope.says(*at, subject)),
        });
        said == Some(false)
    }

    /// Whether an attribute of files is left out, by its name.
    pub fn excludes_xattr(&self, name: &[u8]) -> bool {
        let subject = Subject { path: name, full: name, is_dir: false };
        self.of_xattrs.iter().find_map(|rule| rule.says(subject)) == Some(false)
    }
}

/// Adds a file of rules, once: one of that name that is there already counts where it stands.
fn add_merge(items: &mut Vec<Item>, merges: &mut Vec<Arc<Merge>>, merge: Merge) {
    if merges.iter().all(|other| other.name != merge.name) {
        let itself = merge.excludes_itself.then(|| Item::Rule(Rule::new(&merge.name, false)));
        items.push(Item::Merge(merges.len()));
        items.extend(itself);
        merges.push(Arc::new(merge));
    }
}

impl Filter {
    /// Whether rules of a module's hide a path of it, or a directory on the way there: what is in a directory that is hidden is hidden too.
    pub(crate) fn hides(&self, path: &[u8], is_dir: bool) -> bool {
        if self.is_empty() || path.is_empty() {
            return false;
        }
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        ends.map(|end| (&path[..end], true))
            .chain([(path, is_dir)])
            .any(|(path, is_dir)| self.excludes(Subject { path, full: path, is_dir }, None))
    }
}

/// The last name of a path.
pub(crate) fn base_name(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(rules: &[&str]) -> Filter {
        let mut filter = Filter::default();
        rules.iter().for_each(|rule| filter.add(rule.as_bytes()).unwrap());
        filter
    }

    fn excludes(rules: &[&str], path: &str) -> bool {
        let is_dir = path.ends_with('/');
        let path = path.trim_end_matches('/').as_bytes();
        filter(rules).excludes(Subject { path, full: path, is_dir }, None)
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        assert!(excludes(&["- *.o"], "a/b/c.o"));
        assert!(!excludes(&["+ c.o", "- *.o"], "a/b/c.o"));
        assert!(excludes(&["- *.o", "!", "- a"], "a"));
        assert!(!excludes(&["- *.o", "!", "- a"], "c.o"));
        assert!(!excludes(&["-r a"], "a") && excludes(&["-s a"], "a") && excludes(&["H a"], "a"));
        assert!(!excludes(&["P a"], "a") && !excludes(&["S a", "- a"], "a"));
        assert!(excludes(&["-! *.c"], "a.h") && !excludes(&["-! *.c"], "a.c"));
        assert!(excludes(&["-C"], "x/core") && excludes(&["-C"], ".git/") && !excludes(&["-C"], "a.c"));
        assert!(excludes(&["exclude a", "include b"], "x/a"));
    }

    #[test]
    fn each_side_has_its_own_rules() {
        let excludes = |rules: &[&str], receiving| {
            let mut filter = Filter { receiving, ..Filter::default() };
            rules.iter().for_each(|rule| filter.add(rule.as_bytes()).unwrap());
            filter.excludes(Subject { path: b"a", full: b"a", is_dir: false }, None)
        };
        for (rule, sender, receiver) in [
            ("- a", true, true),
            ("-s a", true, false),
            ("-r a", false, true),
            ("-sr a", true, true),
            ("H a", true, false),
            ("P a", false, true),
        ] {
            assert_eq!((excludes(&[rule], false), excludes(&[rule], true)), (sender, receiver), "{rule}");
        }
        assert!(!excludes(&["R a", "- a"], true) && excludes(&["S a", "- a"], true));
    }

    #[test]
    fn patterns_are_anchored_as_in_the_manual() {
        assert!(excludes(&["- /foo"], "foo") && !excludes(&["- /foo"], "a/foo"));
        assert!(excludes(&["- foo/"], "a/foo/") && !excludes(&["- foo/"], "a/foo"));
        assert!(excludes(&["- a/b"], "x/a/b") && !excludes(&["- a/b"], "xa/b"));
        assert!(excludes(&["- /a/*/c"], "a/b/c") && !excludes(&["- /a/*/c"], "a/b/b/c"));
        assert!(excludes(&["- /a/**/c"], "a/b/b/c") && excludes(&["- a/**"], "x/a/b/c"));
        assert!(excludes(&["- a/***"], "x/a/") && excludes(&["- a/***"], "a/b"));
        assert!(!excludes(&["- a/**"], "a/"));
    }

    #[test]
    fn what_is_no_rule_is_refused() {
        for bad in ["x a", "-", "- ", "-q a", ". file", "hide", "hide,s a", "-C a", ": a/b", ": ..", "", "+C"]
        {
            assert!(Filter::default().add(bad.as_bytes()).is_err(), "{bad}");
        }
        let mut long = 9000_i32.to_le_bytes().to_vec();
        long.resize(9004, b'a');
        assert!(Filter::receive(&mut long.as_slice(), 32, false).is_err());
        assert!(Filter::receive(&mut &(-5_i32).to_le_bytes()[..], 32, false).is_err());
    }
}
