//! One rule.

use super::{CVS, Subject, base_name, matches};

/// A pattern, and what it says of what it matches.
#[derive(Debug, Clone)]
pub struct Rule {
    /// Without its leading slash.
    pattern: Vec<u8>,
    include: bool,
    /// Says it of what does not match.
    negated: bool,
    only_dirs: bool,
    /// The pattern is about the whole path, not its end.
    anchored: bool,
    /// The pattern has a slash, or "**": it is about more than the last name.
    is_path: bool,
    /// `dir/***`: also the directory itself.
    with_top: bool,
    /// The path is that in the module, not in the transfer.
    absolute: bool,
    /// About names of attributes, not of files.
    pub(super) of_xattrs: bool,
    /// The directory in the module whose file the rule is from: anchored there.
    base: Option<Vec<u8>>,
    /// Whose rule it is.
    pub(super) sides: Sides,
}

/// Whose rule it is: of who sends (what is in the list), of who receives (what may be deleted), of both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sides {
    pub(super) sender: bool,
    pub(super) receiver: bool,
}

impl Sides {
    const BOTH: Self = Self { sender: true, receiver: true };

    /// Whether it counts where files are received, or sent.
    pub(super) fn count(self, receiving: bool) -> bool {
        if receiving { self.receiver } else { self.sender }
    }
}

/// A file of rules, in each directory or once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Merge {
    pub(super) name: Vec<u8>,
    /// Looked for above what is asked for, too.
    pub(super) is_from_top: bool,
    pub(super) is_inherited: bool,
    pub(super) is_once: bool,
    pub(super) excludes_itself: bool,
    /// Words instead of lines.
    by_words: bool,
    /// All are patterns of one kind.
    only: Option<bool>,
    /// "!" clears even where all are patterns.
    is_cvs: bool,
    /// What its rules are unless they say so themselves.
    absolute: bool,
    of_xattrs: bool,
    is_sided: bool,
    pub(super) sides: Sides,
}

/// What a line of rules can be.
pub(super) enum Line {
    Rule(Rule),
    Merge(Merge),
    Clear,
    Cvs,
}

/// Why a line is no rule, in rsync's words.
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

/// The short form of a rule's long name, and what follows it.
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

/// What may stand between a rule's kind and its pattern.
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
    /// Takes them off a rule; what is left is the pattern.
    fn take(mut rest: &[u8], kind: u8) -> Result<(Self, &[u8]), Wrong> {
        let mut found = Self::default();
        let is_merge = matches!(kind, b'.' | b':');
        // The kinds "H", "S", "P" and "R" say themselves whose they are.
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

    /// Whose rule it is, where its kind does not say so.
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

    /// A line of a file, which says what its rules are by default.
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

    /// What a file of such rules says, with the number of each line; its rules are anchored at `base`.
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

    /// A line's words; a kind of rule by itself goes with the word after it.
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

/// The rules that "-C" stands for.
pub(super) fn cvs_rules() -> impl Iterator<Item = Rule> {
    CVS.split(' ').map(|pattern| Rule::new(pattern.as_bytes(), false))
}

impl Rule {
    /// From a bare pattern.
    pub fn new(pattern: &[u8], include: bool) -> Self {
        let anchored = pattern.starts_with(b"/");
        let pattern = pattern.strip_prefix(b"/").unwrap_or(pattern);
        let (pattern, with_top) = match pattern.strip_suffix(b"/***") {
            Some(top) => (top, true),
            None => (pattern, false),
        };
        let (pattern, only_dirs) = match pattern.strip_suffix(b"/") {
            Some(pattern) if !with_top => (pattern, true),
            _ => (pattern, false),
        };
        let is_path = with_top || pattern.contains(&b'/') || pattern.windows(2).any(|pair| pair == b"**");
        Self {
            pattern: pattern.to_vec(),
            include,
            negated: false,
            only_dirs,
            anchored,
            is_path: is_path || anchored,
            with_top,
            absolute: false,
            of_xattrs: false,
            base: None,
            sides: Sides::BOTH,
        }
    }

    /// What it says of a file, if it says something: to be sent or not.
    pub(super) fn says(&self, subject: Subject<'_>) -> Option<bool> {
        let is_like = (subject.is_dir || !self.only_dirs) && self.is_like(subject);
        (is_like != self.negated).then_some(self.include)
    }

    fn is_like(&self, subject: Subject<'_>) -> bool {
        if !self.is_path {
            return matches(&self.pattern, base_name(subject.path));
        }
        let path = match &self.base {
            _ if self.absolute => subject.full,
            Some(base) if self.anchored => match below(subject.full, base) {
                Some(path) => path,
                None => return false,
            },
            _ => subject.path,
        };
        if self.anchored || self.pattern.starts_with(b"**") {
            return self.is_like_path(path, subject.is_dir);
        }
        // The end of the path, from any name on.
        let mut path = path;
        loop {
            if self.is_like_path(path, subject.is_dir) {
                return true;
            }
            match path.iter().position(|byte| *byte == b'/') {
                Some(at) => path = &path[at + 1..],
                None => return false,
            }
        }
    }

    fn is_like_path(&self, path: &[u8], is_dir: bool) -> bool {
        if !self.with_top {
            return matches(&self.pattern, path);
        }
        let below = [&self.pattern[..], b"/**"].concat();
        matches(&below, path) || is_dir && matches(&self.pattern, path)
    }
}

/// The path from a directory on.
fn below<'p>(path: &'p [u8], directory: &[u8]) -> Option<&'p [u8]> {
    match directory {
        b"" => Some(path),
        directory => path.strip_prefix(directory)?.strip_prefix(b"/"),
    }
}
