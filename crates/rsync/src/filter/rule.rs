//! A single filter rule, and the parser for rules.

use super::wild::Pattern;
use super::work::Work;
use super::{CVS, Subject, base_name};

/// A pattern, and whether it includes or excludes the files that match.
#[derive(Debug, Clone)]
pub struct Rule {
    text: Text,
    reach: Reach,
    include: bool,
    /// The rule applies to files that do not match.
    negated: bool,
    only_dirs: bool,
    /// The pattern began with a slash: it is matched against the whole path.
    anchored: bool,
    /// The pattern begins with `**`, which can also match the slash before the first component.
    is_wide_first: bool,
    /// The pattern ends with `***`: `dir/***` also matches the directory itself.
    with_top: bool,
    /// The pattern is matched against the path in the module instead of the path in the transfer.
    pub(super) absolute: bool,
    /// The rule applies to names of extended attributes instead of files.
    pub(super) of_xattrs: bool,
    /// The directory (path in the module) whose file has the rule. The pattern is anchored there.
    base: Option<Vec<u8>>,
    /// The sides that the rule applies to.
    pub(super) sides: Sides,
}

/// The text of a pattern. A backslash is special only in patterns with wildcards.
#[derive(Debug, Clone)]
enum Text {
    Literal(Vec<u8>),
    Wild(Pattern),
}

/// The part of a path that is matched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// This number of components at the end.
    Last(usize),
    /// The whole path.
    Whole,
    /// The whole path, or the rest after any of its slashes.
    AnyEnd,
}

/// The sides that a rule applies to: the sender (what is in the list), the receiver (what may be deleted), or both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sides {
    pub(super) sender: bool,
    pub(super) receiver: bool,
}

impl Sides {
    const BOTH: Self = Self { sender: true, receiver: true };

    /// Whether the rule applies to the receiving side, or to the sending side.
    pub(super) fn count(self, receiving: bool) -> bool {
        if receiving { self.receiver } else { self.sender }
    }
}

/// A file with rules, in each directory or once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Merge {
    pub(super) name: Vec<u8>,
    /// The file is also read in the parent directories of the transfer.
    pub(super) is_from_top: bool,
    pub(super) is_inherited: bool,
    pub(super) is_once: bool,
    pub(super) excludes_itself: bool,
    /// The rules are separated by spaces instead of lines.
    by_words: bool,
    /// All rules of the file are patterns of one kind.
    only: Option<bool>,
    /// "!" clears the list even though all rules are patterns.
    is_cvs: bool,
    /// The defaults for the rules of the file.
    absolute: bool,
    of_xattrs: bool,
    is_sided: bool,
    pub(super) sides: Sides,
}

/// The kinds of a line with a rule.
pub(super) enum Line {
    Rule(Rule),
    Merge(Merge),
    Clear,
    Cvs,
}

/// Why a line is not a rule, in rsync's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Wrong {
    #[error("Unknown filter rule")]
    Unknown,
    #[error("unexpected end of filter rule")]
    End,
    #[error("invalid modifier in filter rule")]
    Modifier,
    #[error("specified-side merge file contains specified-side filter")]
    Sided,
    #[error("merge file of another directory in filter rule, which is not read here")]
    Elsewhere,
    #[error("rule of attributes in a file of a directory, which is not done here")]
    Xattrs,
}

/// The short form of a rule's kind, and the rest of the line.
fn kind_of(line: &[u8]) -> Option<(u8, &[u8])> {
    const LONG: [(&[u8], u8); 9] = [
        (b"exclude", b'-'),
        (b"include", b'+'),
        (b"merge", b'.'),
        (b"dir-merge", b':'),
        (b"hide", b'H'),
        (b"show", b'S'),
        (b"protect", b'P'),
        (b"risk", b'R'),
        (b"clear", b'!'),
    ];
    for (name, short) in LONG {
        if let Some(rest) = line.strip_prefix(name)
            && rest.first().is_none_or(|byte| matches!(byte, b' ' | b'_' | b','))
        {
            return Some((short, rest.strip_prefix(b",").unwrap_or(rest)));
        }
    }
    let (first, rest) = line.split_first()?;
    Some((*first, rest.strip_prefix(b",").unwrap_or(rest)))
}

/// The modifiers between the kind of a rule and its pattern.
#[derive(Default)]
struct Modifiers {
    absolute: bool,
    negated: bool,
    cvs: bool,
    sender: bool,
    receiver: bool,
    xattr: bool,
    no_inherit: bool,
    itself: bool,
    words: bool,
    only: Option<bool>,
}

impl Modifiers {
    /// Parses the modifiers. Returns them and the pattern.
    fn take(mut rest: &[u8], kind: u8) -> Result<(Self, &[u8]), Wrong> {
        let mut found = Self::default();
        let is_merge = matches!(kind, b'.' | b':');
        // The kinds "H", "S", "P" and "R" have fixed sides.
        let is_plain = matches!(kind, b'-' | b'+');
        loop {
            match rest {
                [b' ' | b'_', pattern @ ..] => return Ok((found, pattern)),
                [] => return Ok((found, rest)),
                [modifier, after @ ..] => {
                    match modifier {
                        b'/' => found.absolute = true,
                        b'!' if !is_merge => found.negated = true,
                        b'C' if is_merge || kind == b'-' => found.cvs = true,
                        b's' if is_merge || is_plain => found.sender = true,
                        b'r' if is_merge || is_plain => found.receiver = true,
                        b'p' => {}
                        b'x' => found.xattr = true,
                        b'n' if is_merge => found.no_inherit = true,
                        b'e' if is_merge => found.itself = true,
                        b'w' if is_merge => found.words = true,
                        b'-' if is_merge => found.only = Some(false),
                        b'+' if is_merge => found.only = Some(true),
                        _ => return Err(Wrong::Modifier),
                    }
                    rest = after;
                }
            }
        }
    }

    /// The sides of a rule whose kind does not fix them.
    fn sides(&self) -> Sides {
        match (self.sender, self.receiver) {
            (false, false) => Sides::BOTH,
            (sender, receiver) => Sides { sender, receiver },
        }
    }
}

impl Line {
    pub(super) fn parse(line: &[u8]) -> Result<Self, Wrong> {
        Self::parse_in(line, None)
    }

    /// Parses a line of a file. The file has defaults for its rules.
    fn parse_in(line: &[u8], file: Option<&Merge>) -> Result<Self, Wrong> {
        let (kind, rest) = kind_of(line).ok_or(Wrong::End)?;
        let include = match kind {
            b'!' if rest.is_empty() => return Ok(Self::Clear),
            b'+' | b'S' | b'R' => true,
            b'-' | b'H' | b'P' => false,
            b'.' | b':' => return Self::parse_merge(kind, rest),
            _ => return Err(Wrong::Unknown),
        };
        let (modifiers, pattern) = Modifiers::take(rest, kind)?;
        let is_sided = modifiers.sender || modifiers.receiver || matches!(kind, b'H' | b'S' | b'P' | b'R');
        if is_sided && file.is_some_and(|file| file.is_sided) {
            return Err(Wrong::Sided);
        }
        match (modifiers.cvs, pattern) {
            (true, []) => return Ok(Self::Cvs),
            (true, _) => return Err(Wrong::Modifier),
            (false, []) => return Err(Wrong::End),
            (false, _) => {}
        }
        let sides = match kind {
            b'P' | b'R' => Sides { sender: false, receiver: true },
            b'H' | b'S' => Sides { sender: true, receiver: false },
            _ => modifiers.sides(),
        };
        let absolute = modifiers.absolute || file.is_some_and(|file| file.absolute);
        let of_xattrs = modifiers.xattr || file.is_some_and(|file| file.of_xattrs);
        let rule = Rule::new(pattern, include);
        Ok(Self::Rule(Rule { negated: modifiers.negated, absolute, of_xattrs, sides, ..rule }))
    }

    fn parse_merge(kind: u8, rest: &[u8]) -> Result<Self, Wrong> {
        let (modifiers, name) = Modifiers::take(rest, kind)?;
        let name = match (modifiers.cvs, name) {
            (true, []) => b".cvsignore",
            (false, []) => return Err(Wrong::End),
            (_, name) => name,
        };
        let is_from_top = name.starts_with(b"/");
        let name = name.strip_prefix(b"/").unwrap_or(name);
        if kind == b':' && (name.contains(&b'/') || matches!(name, b"" | b"." | b"..")) {
            return Err(Wrong::Elsewhere);
        }
        Ok(Self::Merge(Merge {
            name: name.to_vec(),
            is_from_top,
            is_inherited: !modifiers.no_inherit && !modifiers.cvs,
            is_once: kind == b'.',
            excludes_itself: modifiers.itself,
            by_words: modifiers.words || modifiers.cvs,
            only: if modifiers.cvs { Some(false) } else { modifiers.only },
            is_cvs: modifiers.cvs,
            absolute: modifiers.absolute,
            of_xattrs: modifiers.xattr,
            is_sided: modifiers.sender || modifiers.receiver,
            sides: modifiers.sides(),
        }))
    }
}

impl Merge {
    pub(super) fn cvs() -> Self {
        Self {
            name: b".cvsignore".to_vec(),
            is_from_top: false,
            is_inherited: false,
            is_once: false,
            excludes_itself: false,
            by_words: true,
            only: Some(false),
            is_cvs: true,
            absolute: false,
            of_xattrs: false,
            is_sided: false,
            sides: Sides::BOTH,
        }
    }

    /// The rules in the text of such a file, with their line numbers. They are anchored at `base`.
    pub(super) fn lines(&self, text: &[u8], base: &[u8]) -> Vec<(usize, Result<Line, Wrong>)> {
        let mut found = Vec::new();
        for (number, line) in text.split(|byte| *byte == b'\n').enumerate() {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let pieces = match self.by_words {
                true => self.words(line),
                false if matches!(line, [] | [b'#' | b';', ..]) => Vec::new(),
                false => vec![line.to_vec()],
            };
            found.extend(pieces.iter().map(|piece| (number + 1, self.line(piece, base))));
        }
        found
    }

    /// The words of a line. A word that is only the kind of a rule is joined with the next one.
    fn words(&self, line: &[u8]) -> Vec<Vec<u8>> {
        let mut words: Vec<Vec<u8>> = Vec::new();
        let is_kind = |word: &[u8]| self.only.is_none() && matches!(Line::parse(word), Err(Wrong::End));
        for word in line.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty()) {
            match words.last_mut().filter(|last| is_kind(last)) {
                Some(kind) => kind.extend([b" ", word].concat()),
                None => words.push(word.to_vec()),
            }
        }
        words
    }

    fn line(&self, piece: &[u8], base: &[u8]) -> Result<Line, Wrong> {
        let line = match self.only {
            Some(_) if self.is_cvs && piece == b"!" => Line::Clear,
            Some(include) => {
                let (absolute, of_xattrs) = (self.absolute, self.of_xattrs);
                Line::Rule(Rule { absolute, of_xattrs, ..Rule::new(piece, include) })
            }
            None => Line::parse_in(piece, Some(self))?,
        };
        match line {
            Line::Rule(rule) if rule.of_xattrs => Err(Wrong::Xattrs),
            Line::Rule(rule) => Ok(Line::Rule(Rule { base: Some(base.to_vec()), ..rule })),
            other => Ok(other),
        }
    }
}

/// The rules of "-C", with further patterns of this side. "!" removes the patterns before it.
pub(super) fn cvs_rules(more: &[u8]) -> Vec<Rule> {
    let more = more.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let mut rules = Vec::new();
    for word in CVS.as_bytes().split(|byte| *byte == b' ').chain(more) {
        match word {
            b"!" => rules.clear(),
            pattern => rules.push(Rule::new(pattern, false)),
        }
    }
    rules
}

impl Rule {
    /// A rule from a bare pattern.
    pub fn new(pattern: &[u8], include: bool) -> Self {
        let (pattern, only_dirs) = match pattern.strip_suffix(b"/") {
            Some(directory) if !directory.is_empty() => (directory, true),
            _ => (pattern, false),
        };
        let with_top = pattern.ends_with(b"***");
        let slashes = pattern.iter().filter(|byte| **byte == b'/').count();
        let is_wide = pattern.windows(2).any(|pair| pair == b"**");
        let (pattern, anchored) = match pattern.strip_prefix(b"/") {
            Some(rest) => (rest, true),
            None => (pattern, false),
        };
        let is_wide_first = !anchored && pattern.starts_with(b"**");
        let reach = match (anchored || is_wide_first, is_wide) {
            (true, _) => Reach::Whole,
            (false, true) => Reach::AnyEnd,
            (false, false) => Reach::Last(slashes + 1),
        };
        let text = match pattern.iter().any(|byte| matches!(byte, b'*' | b'?' | b'[')) {
            true => Text::Wild(Pattern::new(pattern)),
            false => Text::Literal(pattern.to_vec()),
        };
        Self {
            text,
            reach,
            include,
            negated: false,
            only_dirs,
            anchored,
            is_wide_first,
            with_top,
            absolute: false,
            of_xattrs: false,
            base: None,
            sides: Sides::BOTH,
        }
    }

    /// Whether the rule includes or excludes a file. `None` if it does not apply.
    pub(super) fn says(&self, subject: Subject<'_>, work: &mut Work) -> Option<bool> {
        let is_like = (subject.is_dir || !self.only_dirs) && self.is_like(subject, work);
        (is_like != self.negated).then_some(self.include)
    }

    fn is_like(&self, subject: Subject<'_>, work: &mut Work) -> bool {
        let path = match &self.base {
            _ if self.reach == Reach::Last(1) => base_name(subject.path),
            _ if self.absolute => subject.full,
            Some(base) if self.anchored => match below(subject.full, base) {
                Some(path) => path,
                None => return false,
            },
            _ => subject.path,
        };
        // In a path that does not begin at the root of the transfer, a slash precedes the first component of the
        // transfer.
        let is_at_root = !self.absolute || path.len() == subject.path.len();
        let (before, after) = (self.is_wide_first && is_at_root, self.with_top && subject.is_dir);
        if !before && !after {
            return self.is_like_path(path, work);
        }
        let slash = |is_there: bool| if is_there { &b"/"[..] } else { b"" };
        self.is_like_path(&[slash(before), path, slash(after)].concat(), work)
    }

    fn is_like_path(&self, path: &[u8], work: &mut Work) -> bool {
        match self.reach {
            Reach::Whole => self.is_like_text(path, work),
            Reach::Last(count) => last_names(path, count).is_some_and(|end| self.is_like_text(end, work)),
            Reach::AnyEnd => {
                let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
                let ends = slashes.map(|(at, _)| &path[at + 1..]);
                [path].into_iter().chain(ends).any(|end| self.is_like_text(end, work))
            }
        }
    }

    fn is_like_text(&self, text: &[u8], work: &mut Work) -> bool {
        match &self.text {
            Text::Literal(literal) => work.spend(1) && literal == text,
            Text::Wild(pattern) => pattern.matches(text, work),
        }
    }
}

/// The last `count` components of a path, if it has that many.
fn last_names(path: &[u8], count: usize) -> Option<&[u8]> {
    let mut slashes = path.iter().enumerate().rev().filter(|(_, byte)| **byte == b'/');
    match slashes.nth(count - 1) {
        Some((at, _)) => Some(&path[at + 1..]),
        None => (path.iter().filter(|byte| **byte == b'/').count() + 1 == count).then_some(path),
    }
}

/// The rest of a path below a directory.
fn below<'p>(path: &'p [u8], directory: &[u8]) -> Option<&'p [u8]> {
    match directory {
        b"" => Some(path),
        directory => path.strip_prefix(directory)?.strip_prefix(b"/"),
    }
}
