//! Filter rules of the client and of the module, which exclude files (rsync(1), "FILTER RULES").

mod rule;
mod scope;
mod wild;
mod work;

pub use rule::Rule;
pub use wild::{Pattern, matches};
pub use work::Work;

use std::borrow::Cow;
use std::io::Read;
use std::sync::Arc;

use crate::error::{ExitCode, Result, RsyncError};
use crate::wire::{Patience, ReadWire};
use rule::{Line, Merge, Sides, Wrong, cvs_rules};
pub use scope::Scope;
use work::Meter;

/// The most rules in one list, and in the files of one directory.
const RULES_MAX: usize = 100_000;
/// Limits for the rules that a client sends: their number, the length of each, and their bytes in all.
const SENT_MAX: usize = 10_000;
const RULE_MAX: usize = 8192;
const SENT_LEN_MAX: usize = 1 << 20;

/// The patterns that `--cvs-exclude` excludes (rsync(1)).
const CVS: &str = "RCS SCCS CVS CVS.adm RCSLOG cvslog.* tags TAGS .make.state .nse_depinfo *~ #* .#* ,* _$* *$ *.old \
    *.bak *.BAK *.orig *.rej .del-* *.a *.olb *.o *.obj *.so *.exe *.Z *.elc *.ln core .svn/ .git/ .hg/ .bzr/";

/// An item of a list of rules.
#[derive(Debug, Clone)]
enum Item {
    Rule(Rule),
    /// The rules of a file in each directory, as an index into [`Filter::merges`].
    Merge(usize),
}

/// A list of rules.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    items: Vec<Item>,
    merges: Vec<Arc<Merge>>,
    /// The rules for names of extended attributes.
    of_xattrs: Vec<Rule>,
    /// Whether the filter is for the receiving side, where it decides what may be deleted.
    receiving: bool,
    /// Whether the rules are those of a module. A rule for a directory then covers everything in it.
    is_of_module: bool,
    /// The limit on the work of applying the rules.
    meter: Meter,
    /// Further patterns that `-C` excludes.
    cvs_more: Vec<u8>,
}

/// The file that a filter decides about.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// The path in the transfer: below the directory where the request begins.
    pub path: &'a [u8],
    /// The path in the module, for rules that apply to it.
    pub full: &'a [u8],
    /// Whether it is a directory.
    pub is_dir: bool,
}

fn refused(wrong: Wrong, line: &[u8]) -> RsyncError {
    RsyncError::refused(ExitCode::Syntax, format!("{wrong}: `{}'", String::from_utf8_lossy(line)))
}

fn too_many() -> RsyncError {
    RsyncError::refused(ExitCode::Syntax, "too many filter rules")
}

impl Filter {
    /// A filter for the rules of a module. As with stock rsync, rules for the sender alone do not apply, and those for
    /// the receiver alone do, whichever side the server is.
    pub fn of_module() -> Self {
        Self { is_of_module: true, receiving: true, ..Self::default() }
    }

    /// A filter with those of the rules that apply to this side.
    ///
    /// # Errors
    /// When a rule is invalid, or there are too many.
    pub fn of_rules(rules: &[Vec<u8>], receiving: bool) -> Result<Self> {
        let mut filter = Self { receiving, ..Self::default() };
        for rule in rules {
            filter.add(rule)?;
        }
        Ok(filter)
    }

    /// Reads the rules that a client sends after its arguments. The rules of `first` come before them. Rules for the
    /// other side only are left out.
    ///
    /// # Errors
    /// When a rule is invalid, or there are too many.
    pub fn receive(from: &mut impl Read, protocol: u8, receiving: bool, first: &[Vec<u8>]) -> Result<Self> {
        Self::receive_with(from, protocol, receiving, (first, &[]))
    }

    /// The same, with further patterns for `-C`.
    ///
    /// # Errors
    /// As [`Filter::receive`].
    pub fn receive_with(
        from: &mut impl Read,
        protocol: u8,
        receiving: bool,
        (first, cvs_more): (&[Vec<u8>], &[u8]),
    ) -> Result<Self> {
        let mut filter = Self { receiving, cvs_more: cvs_more.to_vec(), ..Self::default() };
        for rule in first {
            filter.add(rule)?;
        }
        let mut total_len = 0;
        for count in 0.. {
            let len = from.read_i32()?;
            if len == 0 {
                return Ok(filter);
            }
            let len =
                usize::try_from(len).map_err(|_| RsyncError::protocol(format!("a rule of {len} bytes")))?;
            let line = from.read_bytes(len, RULE_MAX)?;
            total_len += len;
            if total_len > SENT_LEN_MAX || count >= SENT_MAX {
                return Err(too_many());
            }
            match line.as_slice() {
                // Before version 29 a bare pattern was an exclude rule.
                [b'-' | b'+', b' ', ..] | b"!" => filter.add(&line)?,
                pattern if protocol < 29 => filter.add(&[b"- ", pattern].concat())?,
                _ => filter.add(&line)?,
            }
        }
        Err(too_many())
    }

    /// The same rules with a limit on the work that a client causes. The work also ends when the client is gone.
    #[must_use]
    pub fn metered(self, client: Patience) -> Self {
        Self { meter: Meter::of(client), ..self }
    }

    /// Adds a rule as it is written on a command line: `- *.o`, `+ /a/***`, `: .rsync-filter`.
    ///
    /// # Errors
    /// When the rule is invalid.
    pub fn add(&mut self, line: &[u8]) -> Result<()> {
        let receiving = self.receiving;
        self.add_for(line, |sides| sides.count(receiving))
    }

    /// Adds a rule from a file that a module's rule names. There, rules for either side apply.
    ///
    /// # Errors
    /// When the rule is invalid.
    pub fn add_merged(&mut self, line: &[u8]) -> Result<()> {
        self.add_for(line, |_| true)
    }

    fn add_for(&mut self, line: &[u8], is_wanted: impl Fn(Sides) -> bool) -> Result<()> {
        if self.items.len() >= RULES_MAX {
            return Err(too_many());
        }
        let covered =
            self.covering(line, |line| matches!(line, [b'-' | b'H' | b'P' | b'e' | b'h' | b'p', ..]));
        match Line::parse(&covered).map_err(|wrong| refused(wrong, line))? {
            Line::Clear => {
                (self.items, self.merges, self.of_xattrs) = Default::default();
            }
            Line::Rule(Rule { sides, .. }) | Line::Merge(Merge { sides, .. }) if !is_wanted(sides) => {}
            Line::Rule(rule) if rule.of_xattrs => self.of_xattrs.push(rule),
            Line::Rule(rule) => self.items.push(Item::Rule(self.placed(rule, line))),
            Line::Cvs => self.items.extend(cvs_rules(&self.cvs_more).into_iter().map(Item::Rule)),
            // Names a file at the client, which sends the content of the file instead of this rule.
            Line::Merge(merge) if merge.is_once => return Err(refused(Wrong::Unknown, line)),
            Line::Merge(merge) => add_merge(&mut self.items, &mut self.merges, merge),
        }
        Ok(())
    }

    /// The file of a merge rule (`. FILE`, `merge FILE`). Its lines are rules.
    pub fn merged_file(rule: &[u8]) -> Option<&[u8]> {
        let at = rule.iter().position(|byte| matches!(byte, b' ' | b'_'))?;
        match &rule[..at] {
            b"." | b"merge" => Some(&rule[at + 1..]),
            _ => None,
        }
    }

    /// Adds a pattern that excludes files, or includes them.
    pub fn add_pattern(&mut self, pattern: &[u8], include: bool) {
        let covered = self.covering(pattern, |_| !include);
        let rule = self.placed(Rule::new(&covered, include), pattern);
        self.items.push(Item::Rule(rule));
    }

    /// A rule of a module with a slash before its end applies to the path in the module, like those with the modifier
    /// `/`. Other rules apply to the path in the transfer.
    fn placed(&self, mut rule: Rule, written: &[u8]) -> Rule {
        let has_slash = written.strip_suffix(b"/").unwrap_or(written).contains(&b'/');
        rule.absolute |= self.is_of_module && has_slash;
        rule
    }

    /// Extends a module's rule that excludes a directory, `dir/`, to `dir/***`, so that it covers what is in the
    /// directory.
    fn covering<'l>(&self, line: &'l [u8], leaves_out: impl Fn(&[u8]) -> bool) -> Cow<'l, [u8]> {
        let names_dir = line.len() > 1 && line.ends_with(b"/") && !line.ends_with(b" /");
        match self.is_of_module && names_dir && leaves_out(line) {
            true => [line, b"***"].concat().into(),
            false => line.into(),
        }
    }

    /// Adds the rules of `--cvs-exclude`: the usual patterns, and `.cvsignore` of each directory.
    pub fn add_cvs(&mut self) {
        add_merge(&mut self.items, &mut self.merges, Merge::cvs());
        self.items.extend(cvs_rules(&self.cvs_more).into_iter().map(Item::Rule));
    }

    /// Whether there are no rules for files.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Whether there are rules in files of the directories.
    pub fn has_merges(&self) -> bool {
        !self.merges.is_empty()
    }

    /// Whether a file is excluded.
    ///
    /// # Errors
    /// When the client's rules need too much work.
    pub fn excludes(&self, subject: Subject<'_>, scope: Option<&Arc<Scope>>) -> Result<bool> {
        let mut work = self.meter.begin();
        let is_excluded = self.says(subject, scope, &mut work) == Some(false);
        self.meter.end(&work)?;
        Ok(is_excluded)
    }

    fn says(&self, subject: Subject<'_>, scope: Option<&Arc<Scope>>, work: &mut Work) -> Option<bool> {
        self.items.iter().find_map(|item| match item {
            Item::Rule(rule) => rule.says(subject, work),
            Item::Merge(at) => scope.and_then(|scope| scope.says(*at, subject, work)),
        })
    }

    /// Whether an extended attribute with this name is excluded.
    ///
    /// # Errors
    /// As for files.
    pub fn excludes_xattr(&self, name: &[u8]) -> Result<bool> {
        let subject = Subject { path: name, full: name, is_dir: false };
        let mut work = self.meter.begin();
        let said = self.of_xattrs.iter().find_map(|rule| rule.says(subject, &mut work));
        self.meter.end(&work)?;
        Ok(said == Some(false))
    }

    /// Does other work for the client, and counts it like that of the rules.
    ///
    /// # Errors
    /// When there was too much of it.
    pub fn charge<T>(&self, work: impl FnOnce(&mut Work) -> T) -> Result<T> {
        let mut left = self.meter.rest();
        let done = work(&mut left);
        self.meter.end(&left)?;
        Ok(done)
    }
}

/// Adds a file of rules, unless a file of that name is in the list already.
fn add_merge(items: &mut Vec<Item>, merges: &mut Vec<Arc<Merge>>, merge: Merge) {
    if merges.iter().all(|other| other.name != merge.name) {
        let itself = merge.excludes_itself.then(|| Item::Rule(Rule::new(&merge.name, false)));
        items.push(Item::Merge(merges.len()));
        items.extend(itself);
        merges.push(Arc::new(merge));
    }
}

impl Filter {
    /// Whether a module's rules hide a path or one of its parent directories. Everything in a hidden directory is
    /// hidden.
    pub(crate) fn hides(&self, path: &[u8], is_dir: bool) -> bool {
        self.hides_below(b"", path, is_dir)
    }

    /// The same for a path in a request that begins at `root`, without the parents of `root` and itself.
    pub(crate) fn hides_below(&self, root: &[u8], path: &[u8], is_dir: bool) -> bool {
        if self.is_empty() || path.is_empty() {
            return false;
        }
        let slash = if root.is_empty() { &b""[..] } else { b"/" };
        let full = [root, slash, path].concat();
        let before = full.len() - path.len();
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        ends.map(|end| (end, true)).chain([(path.len(), is_dir)]).any(|(end, is_dir)| {
            self.hides_it(Subject { path: &path[..end], full: &full[..before + end], is_dir })
        })
    }

    /// Whether the rules hide this file itself, regardless of its parents.
    pub(crate) fn hides_it(&self, subject: Subject<'_>) -> bool {
        self.says(subject, None, &mut Work::unlimited()) == Some(false)
    }
}

/// The last component of a path.
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
        filter(rules).excludes(Subject { path, full: path, is_dir }, None).unwrap()
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
            filter.excludes(Subject { path: b"a", full: b"a", is_dir: false }, None).unwrap()
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
        assert!(excludes(&["- **/bar"], "bar") && excludes(&["- **/bar"], "a/b/bar"));
        assert!(excludes(&["- **/bar/"], "bar/") && !excludes(&["- **/bar"], "abar"));
        assert!(!excludes(&["- /**/bar"], "bar") && excludes(&["- /**/bar"], "a/bar"));
        assert!(excludes(&["- ***"], "a") && excludes(&["- x**/bar"], "a/xb/bar"));
    }

    #[test]
    fn a_backslash_is_special_only_beside_wildcards() {
        assert!(excludes(&[r"- \a"], r"\\a".replace(r"\\", r"\").as_str()));
        assert!(excludes(&[r"- \*"], "*") && !excludes(&[r"- \*"], "a"));
        assert!(!excludes(&["- a["], "a["));
    }

    #[test]
    fn what_is_in_a_hidden_directory_is_hidden() {
        let hidden = filter(&["- /d/", "- **/secret"]);
        assert!(hidden.hides(b"d", true) && hidden.hides(b"d/x", false) && hidden.hides(b"d/e/x", false));
        assert!(!hidden.hides(b"d", false) && !hidden.hides(b"a/d/x", false));
        assert!(hidden.hides(b"secret", false) && hidden.hides(b"a/secret/x", false));
        let mut shown = Filter::of_module();
        shown.add(b"-! d/").unwrap();
        shown.add_pattern(b"e/", false);
        assert!(!shown.hides(b"d/x", false) && shown.hides(b"x", false) && shown.hides(b"d/e/x", false));
    }

    #[test]
    fn modules_rules_with_a_slash_apply_to_the_path_in_the_module() {
        let hides = |rule: &str, root: &str, path: &str| {
            let mut module = Filter::of_module();
            module.add(rule.as_bytes()).unwrap();
            module.hides_below(root.as_bytes(), path.as_bytes(), false)
        };
        assert!(hides("- a**b", "", "a/b") && !hides("- a**b", "a", "b") && hides("- a**b", "x", "a/b"));
        assert!(!hides("-! a**", "", "a/b") && hides("-! a**", "a", "b") && !hides("-!/ a**", "a", "b"));
        assert!(hides("- a**/b", "a", "b") && hides("-/ a**b", "a", "b") && hides("- /a/b", "a", "b"));
        assert!(
            hides("- **/a/b", "", "a/b") && !hides("- **/a/b", "a", "b") && hides("- **/a/b", "x/a", "b")
        );
        // The slash at the end, which makes it a rule for directories, does not count.
        assert!(hides("- a**b/", "", "a/b/x") && !hides("- a**b/", "a", "b/x"));
    }

    #[test]
    fn modules_rules_for_the_receiver_apply() {
        let hides = |rule: &str, is_merged: bool| {
            let mut module = Filter::of_module();
            let added =
                if is_merged { module.add_merged(rule.as_bytes()) } else { module.add(rule.as_bytes()) };
            added.unwrap();
            module.hides(b"a", false)
        };
        for (rule, is_hidden) in
            [("- a", true), ("P a", true), ("-r a", true), ("H a", false), ("-s a", false)]
        {
            assert_eq!((hides(rule, false), hides(rule, true)), (is_hidden, true), "{rule}");
        }
    }

    #[test]
    fn rules_that_take_too_long_are_refused() {
        let rules: Vec<String> = vec![format!("- **/{}*Zb*", "*a*b".repeat(20)); 200];
        let rules: Vec<&str> = rules.iter().map(String::as_str).collect();
        let filter = filter(&rules).metered(Patience::default());
        let name = "ab".repeat(120) + "/" + &"ab".repeat(120) + "b";
        let asked = Subject { path: name.as_bytes(), full: name.as_bytes(), is_dir: false };
        let refused = (0..10_000).find_map(|_| filter.excludes(asked, None).err()).unwrap();
        assert_eq!(refused.to_string(), "the filter rules take too long to apply");
    }

    #[test]
    fn a_client_sends_only_so_many_rules() {
        let sent = |count: usize, rule: &[u8]| {
            let len = i32::try_from(rule.len()).unwrap().to_le_bytes();
            let one = [&len[..], rule].concat();
            let all = [one.repeat(count), vec![0; 4]].concat();
            Filter::receive(&mut all.as_slice(), 32, false, &[])
        };
        assert!(sent(SENT_MAX, b"- a").is_ok() && sent(SENT_MAX + 1, b"- a").is_err());
        assert!(sent(129, &[b"- ", "a".repeat(RULE_MAX - 2).as_bytes()].concat()).is_err());
    }

    #[test]
    fn what_is_no_rule_is_refused() {
        for bad in ["x a", "-", "- ", "-q a", ". file", "hide", "hide,s a", "-C a", ": a/b", ": ..", "", "+C"]
        {
            assert!(Filter::default().add(bad.as_bytes()).is_err(), "{bad}");
        }
        let mut long = 9000_i32.to_le_bytes().to_vec();
        long.resize(9004, b'a');
        assert!(Filter::receive(&mut long.as_slice(), 32, false, &[]).is_err());
        assert!(Filter::receive(&mut &(-5_i32).to_le_bytes()[..], 32, false, &[]).is_err());
    }
}
