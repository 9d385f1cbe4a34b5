//! The server that a client starts through a remote shell (docs/format/rsync.md, "The remote shell").

use std::io::{BufReader, Read, Write};

use crate::error::{ExitCode, Result, RsyncError};
use crate::filter::Filter;
use crate::names::Names;
use crate::options::{self, Options};
use crate::receiver::{Into, Terms};
use crate::scan::{Called, View, clean};
use crate::sender::Summary;
use crate::session::{self, PROTOCOL_MAX, PROTOCOL_MIN, Receiving, Surroundings};
use crate::source::{Content, NamedTrees, Source};
use crate::target::Target;
use crate::wire::{Patience, ReadWire, WriteWire};

/// The highest plausible version. A greater number is text that a shell printed, not a version.
const PLAUSIBLE_MAX: u8 = 40;

/// The arguments of the client, with those that it sends afterwards (`-s`). Nothing beyond them is read, so that
/// another process can continue.
///
/// # Errors
/// When the connection fails, or there are too many arguments.
pub fn complete(args: Vec<Vec<u8>>, from: &mut impl Read) -> Result<Vec<Vec<u8>>> {
    options::complete(args, from)
}

/// The request of a client.
pub struct Request {
    options: Options,
    failure: Option<RsyncError>,
}

impl Request {
    /// Parses all arguments after the name of the program. The client learns of errors when it is served.
    pub fn parse(args: &[Vec<u8>]) -> Self {
        let (mut options, failure) = Options::parse(args);
        options.patterns = options.secluded_args;
        if options.paths.is_empty() {
            options.paths.push(b".".to_vec());
        }
        let failure = failure.or_else(|| {
            let text = match (options.sender, options.remove_source_files) {
                (false, _) => return options.not_received(),
                (true, true) => "ERROR: --remove-source-files: nothing is removed here",
                (true, false) => return None,
            };
            Some(RsyncError::refused(ExitCode::Unsupported, text))
        });
        Self { options, failure }
    }

    /// Whether the client is refused in any case, because of its arguments.
    pub fn is_refused(&self) -> bool {
        self.failure.is_some()
    }

    /// The paths of the request, and the file with their names (`--files-from=:FILE`).
    pub fn paths(&self) -> impl Iterator<Item = &[u8]> {
        let list = self.options.files_from.as_deref().filter(|file| *file != b"-");
        self.options.paths.iter().map(Vec::as_slice).chain(list)
    }

    /// Whether the client wants attributes that `--fake-super` stored. Directories here are not searched for them.
    pub fn wants_fake_super(&self) -> bool {
        self.options.fake_super
    }

    /// Adds patterns of this side's user that `-C` excludes, besides the usual ones.
    pub fn leave_out_with_cvs(&mut self, patterns: Vec<u8>) {
        self.options.cvs_more = patterns;
    }

    /// Whether the client pushes.
    pub fn is_push(&self) -> bool {
        !self.options.sender
    }

    /// The file here with the names of a push (`--files-from=:FILE`).
    pub fn file_list(&self) -> Option<&[u8]> {
        self.options.files_from.as_deref().filter(|file| self.is_push() && *file != b"-")
    }

    /// The path of this file below the root directory of this machine, if it is not in a dataset. A relative path
    /// begins at `directory`.
    pub fn file_list_at(&self, directory: &[u8]) -> Option<Vec<u8>> {
        let path = match self.file_list()? {
            path @ [b'/', ..] => path.to_vec(),
            path => [directory, b"/", path].concat(),
        };
        Some(clean(&path).0)
    }

    /// Receives what the client pushes. `before` is the prefix of paths in messages. `list` is the content of
    /// [`Request::file_list`], or the error of opening it.
    ///
    /// # Errors
    /// When the connection fails, the client violates the protocol or there is no space left. The client is told the
    /// reason where that is possible.
    pub fn receive(
        self,
        (reader, mut writer): (impl Read, impl Write + Send),
        (target, path, before): (Box<dyn Target + '_>, &[u8], &str),
        list: Option<std::io::Result<Box<dyn Content>>>,
    ) -> Result<Summary> {
        let mut reader = BufReader::new(reader);
        let protocol = exchange_versions(&mut reader, &mut writer)?;
        let hidden = Filter::default();
        let called = Called::After(before);
        let shown = self.file_list().map(String::from_utf8_lossy).unwrap_or_default().into_owned();
        let receiving = Receiving {
            told: None,
            file_list: list.map(|list| list.map_err(|error| (shown, error))),
            into: Into { target, path: path.to_vec(), called, hidden: &hidden, terms: Terms::default() },
            names: if self.options.numeric_ids { Names::default() } else { Names::of_this_machine() },
            timeout_seconds: 0,
            patience: Patience::default(),
            seed: session::seed()?,
        };
        session::receive(protocol, (reader, writer), &self.options, receiving)
    }

    /// Makes relative paths begin at `directory`. Paths that begin with `~/` and were not expanded by a shell begin at
    /// `home`. With `--relative` the names that the client gets are those of the original paths.
    pub fn begin_at(&mut self, directory: &[u8], home: Option<&[u8]>) {
        let keeps_path = self.options.relative && self.options.files_from.is_none();
        let home = home.filter(|_| self.options.patterns);
        let place = |path: &[u8], mark: &[u8]| match (path, home) {
            ([b'/', ..], _) => path.to_vec(),
            ([b'~'], Some(home)) => home.to_vec(),
            ([b'~', b'/', rest @ ..], Some(home)) => [home, b"/", rest].concat(),
            _ => [directory, mark, path].concat(),
        };
        for path in &mut self.options.paths {
            let has_mark = path.windows(3).any(|three| three == b"/./");
            *path = place(path, if keeps_path && !has_mark { b"/./" } else { b"/" });
        }
        if let Some(file) = self.options.files_from.as_mut().filter(|file| *file != b"-") {
            *file = place(file, b"/");
        }
    }

    /// Sends the requested files of a tree. `before` is the prefix of paths in messages.
    ///
    /// # Errors
    /// When the connection fails, or the client violates the protocol or is refused. The client is told the reason
    /// where that is possible.
    pub fn serve(
        self,
        (reader, mut writer): (impl Read, impl Write),
        source: &dyn Source,
        before: &str,
    ) -> Result<Summary> {
        let Self { options, failure } = self;
        let mut reader = BufReader::new(reader);
        let protocol = exchange_versions(&mut reader, &mut writer)?;
        let surroundings = Surroundings {
            view: View {
                source,
                hidden: &Filter::default(),
                called: Called::After(before),
                munged: false,
                keeps_outward_links: false,
            },
            names: if options.numeric_ids { Names::default() } else { Names::of_this_machine() },
            paths: options.paths.clone(),
            timeout_seconds: 0,
            patience: Patience::default(),
            seed: session::seed()?,
            on_file: &mut |_| {},
        };
        session::serve(protocol, (reader, writer), (&options, failure), surroundings)
    }

    /// Tells the client why it is refused. An earlier reason takes precedence.
    ///
    /// # Errors
    /// Always: that reason, or a failure of the connection.
    pub fn refuse(self, ends: (impl Read, impl Write), message: &str) -> Result<Summary> {
        self.refuse_with(ends, ExitCode::FileSelect, message)
    }

    /// The same, with an exit code.
    ///
    /// # Errors
    /// As [`Request::refuse`].
    pub fn refuse_with(
        mut self,
        ends: (impl Read, impl Write),
        code: ExitCode,
        message: &str,
    ) -> Result<Summary> {
        self.failure.get_or_insert_with(|| RsyncError::refused(code, message));
        self.serve(ends, &NamedTrees::default(), "")
    }
}

/// Agrees on a protocol version. Both sides do the same.
pub(crate) fn exchange_versions(reader: &mut impl Read, writer: &mut impl Write) -> Result<u8> {
    writer.write_i32(i32::from(PROTOCOL_MAX))?;
    writer.flush()?;
    let theirs = reader.read_i32()?;
    let mismatch = |text: String| {
        RsyncError::refused(ExitCode::Protocol, format!("protocol version mismatch -- {text}"))
    };
    match u8::try_from(theirs).ok().filter(|version| *version <= PLAUSIBLE_MAX) {
        None => Err(mismatch("is your shell clean?\n(see the rsync manpage for an explanation)".to_owned())),
        Some(old) if old < PROTOCOL_MIN => {
            Err(mismatch(format!("{old} is older than {PROTOCOL_MIN}, the oldest spoken here")))
        }
        Some(version) => Ok(version.min(PROTOCOL_MAX)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(words: &str) -> Request {
        Request::parse(&words.split(' ').map(|word| word.as_bytes().to_vec()).collect::<Vec<_>>())
    }

    const PULL: &str = "--server --sender -logDtpre.iLsfxCIvu . a /b c/./d";

    #[test]
    fn versions_are_exchanged() {
        for (input, expected) in [
            (&[32, 0, 0, 0][..], Ok(32)),
            (&[31, 0, 0, 0], Ok(31)),
            (&[40, 0, 0, 0], Ok(32)),
            (&[27, 0, 0, 0], Ok(27)),
            (&[26, 0, 0, 0], Err(ExitCode::Protocol)),
            (&[41, 0, 0, 0], Err(ExitCode::Protocol)),
            (b"Last login", Err(ExitCode::Protocol)),
            (&[32, 0], Err(ExitCode::Stream)),
        ] {
            let mut said = Vec::new();
            let version = exchange_versions(&mut &input[..], &mut said);
            assert_eq!(version.map_err(|error| error.code()), expected, "{input:?}");
            assert_eq!(said, [32, 0, 0, 0]);
        }
    }

    #[test]
    fn paths_begin_where_the_shell_is() {
        let placed = |words: &str| {
            let mut request = request(words);
            request.begin_at(b"/home/me", Some(b"/home/me"));
            request.paths().map(|path| String::from_utf8_lossy(path).into_owned()).collect::<Vec<_>>()
        };
        assert_eq!(placed(PULL), ["/home/me/a", "/b", "/home/me/c/./d"]);
        assert_eq!(placed(&PULL.replace("-l", "-Rl")), ["/home/me/./a", "/b", "/home/me/c/./d"]);
        let listed = PULL.replace("-logDtpre.iLsfxCIvu .", "-Re.iLsfxCIvu --files-from list .");
        assert_eq!(placed(&listed), ["/home/me/a", "/b", "/home/me/c/./d", "/home/me/list"]);
        assert_eq!(placed("--server --sender -re.iLsfxCIvu"), ["/home/me/."]);
        assert_eq!(placed("--server --sender -rse.LsfxCIvu . ~/a"), ["/home/me/a"]);
        assert_eq!(placed("--server --sender -re.LsfxCIvu . ~/a"), ["/home/me/~/a"]);
    }

    #[test]
    fn what_is_not_done_here_is_refused() {
        for words in [
            PULL.replace("--sender -l", "--write-devices -l"),
            PULL.replace(" .", " --remove-source-files ."),
        ] {
            let request = request(&words);
            assert!(request.is_refused());
            // A client that sends only its version and no rules.
            let input = [&[32, 0, 0, 0][..], b"\x04none", &[4, 0, 0, 7, 0, 0, 0, 0]].concat();
            let mut said = Vec::new();
            let refused = request.refuse((input.as_slice(), &mut said), "no tree").unwrap_err();
            assert_eq!(refused.code(), ExitCode::Unsupported, "{words}");
            assert!(said.windows(5).any(|five| five == b"ERROR"), "{words}");
        }
    }
}
