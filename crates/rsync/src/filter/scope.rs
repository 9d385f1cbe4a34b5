//! The rules in files of the directories (rsync(1), "MERGE-FILE FILTER RULES").

use std::io::Read;
use std::sync::Arc;

use super::rule::{Line, Merge, Rule, cvs_rules};
use super::{Filter, Item, RULES_MAX, Subject, Work, add_merge};
use crate::error::{ExitCode, Result, RsyncError};
use crate::source::Source;

/// The longest file of rules, in bytes.
const FILE_MAX: u64 = 4 << 20;
/// The most files of rules that a directory can have.
const MERGES_MAX: usize = 32;
/// The most files that include one another.
const DEPTH_MAX: usize = 8;

/// The rules in the files of a directory and of its parents.
#[derive(Debug)]
pub struct Scope {
    parent: Option<Arc<Scope>>,
    /// The files that are read here: those of the client's rules, then those that the files of this directory or its
    /// parents name.
    merges: Vec<Arc<Merge>>,
    /// The rules of each file in this directory.
    lists: Vec<List>,
}

#[derive(Debug, Default)]
struct List {
    items: Vec<Item>,
    /// The rules of the parent directories do not apply any more.
    is_cleared: bool,
}

impl Scope {
    /// What the rules in the files at index `at` decide about a file.
    pub(super) fn says(&self, at: usize, subject: Subject<'_>, work: &mut Work) -> Option<bool> {
        let is_inherited = self.merges.get(at).is_some_and(|merge| merge.is_inherited);
        let mut next = Some(self);
        while let Some(list) = next.and_then(|scope| scope.lists.get(at)) {
            let said = list.items.iter().find_map(|item| match item {
                Item::Rule(rule) => rule.says(subject, work),
                // A file has a greater index than the file that names it, so the recursion ends.
                Item::Merge(named) => self.says(*named, subject, work),
            });
            if said.is_some() || list.is_cleared || !is_inherited {
                return said;
            }
            next = next.and_then(|scope| scope.parent.as_deref());
        }
        None
    }
}

impl Filter {
    /// Reads the rule files of a directory. `full` is its path in the source.
    ///
    /// # Errors
    /// When a line is not a rule, or a file is too long.
    pub fn enter(
        &self,
        parent: Option<&Arc<Scope>>,
        source: &dyn Source,
        full: &[u8],
    ) -> Result<Option<Arc<Scope>>> {
        self.read(parent, source, full, |_| true)
    }

    /// Reads the rule files in all parents of `full`, as far as they apply there (`: /name`).
    ///
    /// # Errors
    /// As for the directory itself.
    pub fn enter_above(&self, source: &dyn Source, full: &[u8]) -> Result<Option<Arc<Scope>>> {
        let mut scope = None;
        if full.is_empty() || !self.merges.iter().any(|merge| merge.is_from_top) {
            return Ok(scope);
        }
        let ends = full.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        for end in [0].into_iter().chain(ends) {
            scope = self.read(scope.as_ref(), source, &full[..end], |merge| merge.is_from_top)?;
        }
        Ok(scope)
    }

    fn read(
        &self,
        parent: Option<&Arc<Scope>>,
        source: &dyn Source,
        directory: &[u8],
        is_wanted: impl Fn(&Merge) -> bool,
    ) -> Result<Option<Arc<Scope>>> {
        if self.merges.is_empty() {
            return Ok(None);
        }
        let merges = parent.map_or_else(|| self.merges.clone(), |parent| parent.merges.clone());
        let mut reading = Reading { source, directory, merges, rules: 0, receiving: self.receiving };
        let mut lists: Vec<List> = Vec::new();
        // A file that is read may add further ones.
        while let Some(merge) = reading.merges.get(lists.len()).cloned() {
            let mut list = List::default();
            if is_wanted(&merge) {
                reading.file(&merge, &mut list, 0)?;
            }
            lists.push(list);
        }
        Ok(Some(Arc::new(Scope { parent: parent.cloned(), merges: reading.merges, lists })))
    }
}

/// The state of reading the files of one directory.
struct Reading<'a> {
    source: &'a dyn Source,
    directory: &'a [u8],
    merges: Vec<Arc<Merge>>,
    rules: usize,
    receiving: bool,
}

impl Reading<'_> {
    /// Adds the rules of a file. A file that cannot be read has no rules. If another file includes it, that is an
    /// error.
    fn file(&mut self, merge: &Merge, list: &mut List, depth: usize) -> Result<()> {
        let path = match self.directory {
            b"" => merge.name.clone(),
            _ if merge.is_once && merge.is_from_top => merge.name.clone(),
            directory => [directory, b"/", &merge.name].concat(),
        };
        let refused = |code, what: &str, line: usize| {
            let shown = String::from_utf8_lossy(&path);
            RsyncError::refused(code, format!("{what}: <rule from {shown} line {line}>"))
        };
        let mut text = Vec::new();
        let opened = self.source.open(&path, true);
        if opened.and_then(|content| content.take(FILE_MAX + 1).read_to_end(&mut text)).is_err() {
            let shown = String::from_utf8_lossy(&path);
            let message = format!("failed to open exclude file {shown}");
            return if merge.is_once { Err(RsyncError::refused(ExitCode::FileIo, message)) } else { Ok(()) };
        }
        if text.len() as u64 > FILE_MAX || depth > DEPTH_MAX {
            return Err(refused(ExitCode::Syntax, "too many filter rules", 0));
        }
        for (number, line) in merge.lines(&text, self.directory) {
            self.rules += 1;
            if self.rules > RULES_MAX || self.merges.len() > MERGES_MAX {
                return Err(refused(ExitCode::Syntax, "too many filter rules", number));
            }
            match line.map_err(|wrong| refused(ExitCode::Syntax, &wrong.to_string(), number))? {
                Line::Rule(Rule { sides, .. }) | Line::Merge(Merge { sides, .. })
                    if !sides.count(self.receiving) => {}
                Line::Rule(rule) => list.items.push(Item::Rule(rule)),
                Line::Cvs => list.items.extend(cvs_rules(&[]).into_iter().map(Item::Rule)),
                Line::Clear => *list = List { items: Vec::new(), is_cleared: true },
                Line::Merge(named) if named.is_once => self.file(&named, list, depth + 1)?,
                Line::Merge(named) => add_merge(&mut list.items, &mut self.merges, named),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::DirectorySource;

    /// Whether a filter with `: .rules` excludes "d/a" and "d/b", when "d" has these files.
    fn excluded(files: &[(&str, &str)]) -> Result<(bool, bool)> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("d")).unwrap();
        for (name, text) in files {
            std::fs::write(dir.path().join("d").join(name), text).unwrap();
        }
        let source = DirectorySource::open(dir.path()).unwrap();
        let mut filter = Filter::default();
        filter.add(b": .rules").unwrap();
        let root = filter.enter(None, &source, b"")?;
        let scope = filter.enter(root.as_ref(), &source, b"d")?;
        let says = |path: &[u8]| {
            filter.excludes(Subject { path, full: path, is_dir: false }, scope.as_ref()).unwrap()
        };
        Ok((says(b"d/a"), says(b"d/b")))
    }

    #[test]
    fn files_may_name_others() {
        assert_eq!(excluded(&[]).unwrap(), (false, false));
        assert_eq!(excluded(&[(".rules", ". more\n"), ("more", "- /a\n")]).unwrap(), (true, false));
        assert_eq!(excluded(&[(".rules", ":n more\n+ a\n"), ("more", "- ?\n")]).unwrap(), (true, true));
        assert_eq!(excluded(&[(".rules", "+ a\n: more\n"), ("more", "- ?\n")]).unwrap(), (false, true));
        // A file that is in the list already keeps its place.
        assert_eq!(excluded(&[(".rules", ": .rules\n- a\n")]).unwrap(), (true, false));
    }

    #[test]
    fn what_is_wrong_in_a_file_is_told() {
        let many: String = (0..40).map(|at| format!(": .rules{at}\n")).collect();
        let long = "#".repeat(FILE_MAX as usize + 1);
        for (text, message) in [
            ("- a\nb\n", "Unknown filter rule: <rule from d/.rules line 2>"),
            (
                "-x user.a",
                "rule of attributes in a file of a directory, which is not done here: <rule from d/.rules line 1>",
            ),
            (". none", "failed to open exclude file d/none"),
            (". .rules", "too many filter rules: <rule from d/.rules line 0>"),
            (many.as_str(), "too many filter rules: <rule from d/.rules line 33>"),
            (long.as_str(), "too many filter rules: <rule from d/.rules line 0>"),
        ] {
            assert_eq!(excluded(&[(".rules", text)]).unwrap_err().to_string(), message);
        }
    }
}
