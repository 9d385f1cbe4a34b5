//! What a client asks for, and the arguments that start the server with it.

use std::io::{self, Write};

use crate::error::{ExitCode, Result, RsyncError};
use crate::filter::Filter;
use crate::options::{Delete, Options};
use crate::session::PROTOCOL_MAX;
use crate::wire::WriteWire;

/// The options for all attributes, as letters: links, owner, group, devices, times, permissions, recursion, hard links,
/// ACLs and extended attributes.
const ALL: &str = "logDtprHAX";
/// The same before version 30, where file lists have no place for ACLs and extended attributes.
const ALL_OLD: &str = "logDtprH";
/// The abilities of this side, as letters of `-e`.
const ABILITIES: &str = "e.iLfxCIvu";

/// Versions whose form of arguments is tried over a remote shell. There the arguments are sent before the version is
/// known. Each of these versions has options that older versions reject.
pub const SHELL_FORMS: [u8; 3] = [PROTOCOL_MAX, 29, 28];

/// Whether a server of version `protocol` understands arguments in the form of version `form`.
pub fn fits(form: u8, protocol: u8) -> bool {
    protocol <= form && (form < 30) == (protocol < 30)
}

/// The direction of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the server.
    Pull,
    /// To the server.
    Push,
}

/// The options of a transfer. Without any, the two trees become equal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)]
pub struct Wishes {
    /// Delete what the sender does not have.
    pub delete: bool,
    /// Change nothing, only report changes.
    pub dry_run: bool,
    /// Compare content instead of sizes and times.
    pub checksum: bool,
    /// Keep a partly received file in its place when the connection breaks.
    pub partial: bool,
    /// Compress the data on the wire.
    pub compress: bool,
    /// Ask the server to report what it deletes.
    pub verbose: bool,
    /// The most bytes per second. 0 is no limit.
    pub bandwidth: u64,
    /// Seconds without data after which either side gives up. 0 is no limit.
    pub timeout_seconds: u32,
    /// Filter rules, as after `--filter`.
    pub rules: Vec<String>,
}

impl Wishes {
    fn letters(&self, protocol: u8) -> String {
        let more = [(self.dry_run, 'n'), (self.checksum, 'c'), (self.compress, 'z')];
        let all = if protocol < 30 { ALL_OLD } else { ALL };
        all.chars().chain(more.into_iter().filter(|(is_on, _)| *is_on).map(|(_, letter)| letter)).collect()
    }

    /// The arguments for a server that speaks this version, without the paths at the end.
    pub fn words(&self, direction: Direction, protocol: u8) -> Vec<String> {
        let is_pull = direction == Direction::Pull;
        let mut words = vec!["--server".to_owned()];
        words.extend(is_pull.then(|| "--sender".to_owned()));
        let abilities = if protocol < 30 { "" } else { ABILITIES };
        words.push(format!("-{}{abilities}", self.letters(protocol)));
        words.push("--numeric-ids".to_owned());
        words.extend((self.timeout_seconds > 0).then(|| format!("--timeout={}", self.timeout_seconds)));
        // Each side limits the rate of what it sends.
        let rate = self.bandwidth.div_ceil(1024);
        words.extend((is_pull && rate > 0).then(|| format!("--bwlimit={rate}")));
        if !is_pull {
            let is_old = protocol < 29;
            words.extend((self.verbose && !is_old).then(|| "--log-format=%i".to_owned()));
            let delete = if is_old { "--delete" } else { "--delete-during" };
            words.extend(self.delete.then(|| delete.to_owned()));
            words.extend(self.partial.then(|| "--partial".to_owned()));
        }
        words
    }

    /// The same wishes as this side's options.
    pub(super) fn options(&self, direction: Direction, protocol: u8) -> Options {
        let words: Vec<Vec<u8>> =
            self.words(direction, protocol).into_iter().map(String::into_bytes).collect();
        let (mut options, failure) = Options::parse(&words);
        debug_assert!(failure.is_none(), "{failure:?}");
        options.delete = if self.delete { Delete::During } else { Delete::No };
        options.bandwidth = self.bandwidth;
        options.partial = self.partial;
        options
    }

    /// Checks the filter rules.
    ///
    /// # Errors
    /// The first text that is not a filter rule.
    pub fn check_rules(&self) -> Result<()> {
        self.filter(false).map(drop)
    }

    /// The filter that applies on this side.
    pub(super) fn filter(&self, receiving: bool) -> Result<Filter> {
        let mut bytes = Vec::new();
        self.send_rules(&mut bytes, PROTOCOL_MAX)?;
        Filter::receive(&mut bytes.as_slice(), PROTOCOL_MAX, receiving, &[])
    }

    /// Sends the filter rules to a server of this version.
    ///
    /// # Errors
    /// When the connection fails, or this version has no form for a rule.
    pub(super) fn send_rules(&self, to: &mut impl Write, protocol: u8) -> Result<()> {
        let is_known = |rule: &str| rule.starts_with("- ") || rule.starts_with("+ ") || rule == "!";
        for rule in &self.rules {
            if protocol < 29 && !is_known(rule) {
                let text = format!(
                    "the server speaks version {protocol} of the protocol, which has no form for the rule '{rule}'"
                );
                return Err(RsyncError::refused(ExitCode::Unsupported, text));
            }
            to.write_i32(i32::try_from(rule.len()).unwrap_or(i32::MAX))?;
            to.write_all(rule.as_bytes())?;
        }
        Ok(to.write_i32(0)?)
    }
}

/// Sends arguments. Each ends with a zero byte, or before version 30 with a newline.
///
/// # Errors
/// When the connection fails.
pub fn send_words<'w>(
    words: impl IntoIterator<Item = &'w [u8]>,
    protocol: u8,
    to: &mut impl Write,
) -> io::Result<()> {
    let end = if protocol < 30 { b'\n' } else { 0 };
    let mut bytes = Vec::new();
    for word in words {
        bytes.extend(word);
        bytes.push(end);
    }
    bytes.push(end);
    to.write_all(&bytes)?;
    to.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_say_what_is_wanted() {
        let wishes = Wishes {
            delete: true,
            compress: true,
            partial: true,
            bandwidth: 2048,
            timeout_seconds: 60,
            ..Wishes::default()
        };
        assert_eq!(
            wishes.words(Direction::Pull, 32).join(" "),
            "--server --sender -logDtprHAXze.iLfxCIvu --numeric-ids --timeout=60 --bwlimit=2"
        );
        assert_eq!(
            wishes.words(Direction::Push, 32).join(" "),
            "--server -logDtprHAXze.iLfxCIvu --numeric-ids --timeout=60 --delete-during --partial"
        );
        assert_eq!(
            wishes.words(Direction::Push, 28).join(" "),
            "--server -logDtprHz --numeric-ids --timeout=60 --delete --partial"
        );
        for (form, protocol, fitting) in
            [(32, 30, true), (32, 29, false), (29, 27, true), (29, 30, false), (28, 29, false)]
        {
            assert_eq!(fits(form, protocol), fitting, "{form} {protocol}");
        }
        let options = wishes.options(Direction::Pull, 32);
        assert!(options.hard_links && options.acls && options.xattrs && options.numeric_ids && options.times);
        assert_eq!((options.delete, options.bandwidth), (Delete::During, 2048));
        let rules = |text: &str| Wishes { rules: vec![text.to_owned()], ..Wishes::default() };
        assert!(rules("- *.o").check_rules().is_ok());
        assert!(rules("x").check_rules().is_err());
        for (rule, protocol, is_known) in [("- *.o", 27, true), ("P x", 28, false), ("P x", 29, true)] {
            let sent = rules(rule).send_rules(&mut Vec::new(), protocol);
            assert_eq!(sent.is_ok(), is_known, "{rule} {protocol}");
        }
    }
}
