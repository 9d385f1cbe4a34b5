//! A session after the arguments: negotiates abilities and algorithms, then runs the transfer (docs/format/rsync.md,
//! "Setup").

use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;

use crate::checksum::{Algorithm, Seeded};
use crate::client::Told;
use crate::error::{ExitCode, Result, RsyncError};
use crate::file_list;
use crate::filter::Filter;
use crate::flist::ListForm;
use crate::names::Names;
use crate::options::{Delete, Options};
use crate::receiver::{DELAYED_DIR, Into, Receiver};
use crate::scan::{View, clean, error_text, is_pattern};
use crate::sender::{Agreed, OnFile, Sender, Summary};
use crate::source::Content;
use crate::token::{Compressor, TokenReader, TokenWriter};
use crate::wire::{MuxReader, MuxWriter, Patience, QueueWriter, ReadWire, Tag, WriteWire, drain};

/// The newest version of the protocol: rsync 3.4 and later.
pub const PROTOCOL_MAX: u8 = 32;
/// The oldest version: rsync 2.6.0.
pub const PROTOCOL_MIN: u8 = 27;
/// The longest file of rules, in bytes.
const RULES_LEN_MAX: u64 = 1 << 20;
/// The longest list of algorithm names, in bytes.
const NAMES_MAX: usize = 1024;

/// The compatibility flags.
mod compat {
    pub const SYMLINK_TIMES: u32 = 1 << 1;
    pub const SAFE_LIST: u32 = 1 << 3;
    pub const NO_XATTR_SHORTCUT: u32 = 1 << 4;
    pub const SEED_FIRST: u32 = 1 << 5;
    pub const INPLACE_PARTIAL: u32 = 1 << 6;
    pub const VARINT_FLAGS: u32 = 1 << 7;
    pub const ZERO_NAMES: u32 = 1 << 8;
}

/// The parameters of a receiving session, besides the client's options.
pub struct Receiving<'a> {
    /// The target.
    pub into: Into<'a>,
    /// The names of owners.
    pub names: Names,
    /// The timeout of this side in seconds. 0 is no limit.
    pub timeout_seconds: u32,
    /// The time limit for the client.
    pub patience: Patience,
    /// The checksum seed of the connection.
    pub seed: u32,
    /// Where messages from the client for users are shown.
    pub told: Option<Arc<Told>>,
    /// The list of `--files-from`, or the error of reading it.
    pub file_list: Option<FileList>,
}

/// The content of a list of names. The error is the name of the list and the reason.
pub(crate) type FileList = std::result::Result<Box<dyn Content>, (String, std::io::Error)>;

/// The parameters of a sending session, besides the client's options.
pub struct Surroundings<'a> {
    /// The tree that is served.
    pub view: View<'a>,
    /// The names of owners.
    pub names: Names,
    /// The requested paths in the tree.
    pub paths: Vec<Vec<u8>>,
    /// The timeout of this side in seconds. 0 is no limit.
    pub timeout_seconds: u32,
    /// The time limit for the client.
    pub patience: Patience,
    /// The checksum seed of the connection.
    pub seed: u32,
    /// Called for each file that was sent.
    pub on_file: &'a mut OnFile<'a>,
}

/// The letters after `-e.` for compatibility flags, without that of incremental recursion.
pub(crate) const ABILITIES: [(u8, u32); 7] = [
    (b'L', compat::SYMLINK_TIMES),
    (b'f', compat::SAFE_LIST),
    (b'x', compat::NO_XATTR_SHORTCUT),
    (b'C', compat::SEED_FIRST),
    (b'I', compat::INPLACE_PARTIAL),
    (b'v', compat::VARINT_FLAGS),
    (b'u', compat::ZERO_NAMES),
];

/// The number of empty messages after the last one. Together they have more than 512 bytes.
const PADDING: usize = 160;

/// The flag of incremental recursion.
pub(crate) const INCREMENTAL: u32 = 1 << 0;

/// A flag that servers set without being asked: targets of symbolic links are converted where names are. Here names are
/// never converted.
pub(crate) const SYMLINK_NAMES: u32 = 1 << 2;

fn flags(options: &Options, incremental: bool) -> u32 {
    let mut flags = if incremental { INCREMENTAL } else { 0 };
    for (ability, flag) in ABILITIES {
        flags |= if options.can(ability) { flag } else { 0 };
    }
    flags
}

/// A random seed.
///
/// # Errors
/// When the system has no random numbers.
pub fn seed() -> std::io::Result<u32> {
    let mut bytes = [0; 4];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(u32::from_le_bytes(bytes))
}

/// Whether a sending session uses incremental recursion. With several arguments, or a pattern, directories of the same
/// name could have several contents.
fn is_incremental(options: &Options, paths: &[Vec<u8>]) -> bool {
    let is_plain = |path: &Vec<u8>| !(options.patterns && is_pattern(path));
    options.can(b'i')
        && options.recursive
        && !options.relative
        && options.files_from.is_none()
        && paths.len() == 1
        && paths.iter().all(is_plain)
}

/// Whether a receiving session uses incremental recursion. It does not if all files must be known before the start, or
/// must still be known at the end.
fn is_received_incrementally(options: &Options, is_staged: bool) -> bool {
    let deletes_apart = matches!(options.delete, Delete::Before | Delete::After);
    options.can(b'i')
        && options.recursive
        && !deletes_apart
        && !options.prune_empty_dirs
        && (is_staged || !options.delay_updates)
        && !options.remove_source_files
        && !options.no_implied_dirs
}

/// The first of the client's names that both sides know.
fn choose<T>(theirs: &[u8], known: impl Fn(&[u8]) -> Option<T>, what: &str) -> Result<T> {
    theirs.split(|byte| *byte == b' ').find_map(known).ok_or_else(|| {
        let message = format!("rsync: failed to negotiate a {what} choice.");
        RsyncError::refused(ExitCode::Unsupported, message)
    })
}

/// Sends the names of this side's algorithms, and reads those of the other side. `is_client` decides whose order
/// counts.
pub(crate) fn negotiate(
    protocol: u8,
    (options, is_client): (&Options, bool),
    reader: &mut dyn Read,
    writer: &mut dyn Write,
) -> Result<((Algorithm, Algorithm), Compressor)> {
    let with_names = options.can(b'v');
    let asks_sum = with_names && options.checksum_choice.is_none();
    let asks_compressor = with_names && options.compress && options.compress_choice.is_none();
    if asks_sum {
        writer.write_vstring(Algorithm::ALL.map(Algorithm::name).join(" ").as_bytes())?;
    }
    if asks_compressor {
        writer.write_vstring(Compressor::ALL.map(Compressor::name).join(" ").as_bytes())?;
    }
    writer.flush()?;
    let sums = match options.checksum_choice {
        Some(chosen) => chosen,
        None if asks_sum => {
            let theirs = reader.read_vstring(NAMES_MAX)?;
            let chosen = match is_client {
                true => choose(
                    &ours(&Algorithm::ALL.map(Algorithm::name), &theirs),
                    Algorithm::named,
                    "checksum",
                )?,
                false => choose(&theirs, Algorithm::named, "checksum")?,
            };
            (chosen, chosen)
        }
        None if protocol < 30 => (Algorithm::Md4, Algorithm::Md4),
        None => (Algorithm::Md5, Algorithm::Md5),
    };
    let compressor = match options.compress_choice {
        _ if !options.compress => Compressor::None,
        Some(chosen) => chosen,
        None if asks_compressor => {
            let theirs = reader.read_vstring(NAMES_MAX)?;
            match is_client {
                true => choose(
                    &ours(&Compressor::ALL.map(Compressor::name), &theirs),
                    Compressor::named,
                    "compress",
                )?,
                false => choose(&theirs, Compressor::named, "compress")?,
            }
        }
        None => Compressor::Zlib,
    };
    Ok((sums, compressor))
}

/// Those of our names that the other side has too.
fn ours(names: &[&str], theirs: &[u8]) -> Vec<u8> {
    let has = |name: &&&str| theirs.split(|byte| *byte == b' ').any(|one| one == name.as_bytes());
    names.iter().filter(has).copied().collect::<Vec<_>>().join(" ").into_bytes()
}

/// The result of the negotiation, before any messages.
pub(crate) struct Begun {
    pub(crate) agreed: Agreed,
    pub(crate) compressor: Compressor,
}

impl Begun {
    pub(crate) fn new(
        (protocol, options): (u8, &Options),
        incremental: bool,
        seed: u32,
        ((sum, list_sum), compressor): ((Algorithm, Algorithm), Compressor),
    ) -> Self {
        let form = ListForm {
            protocol,
            varint_flags: options.can(b'v'),
            error_end: options.can(b'f') || protocol >= 31,
            incremental,
            owner: options.owner,
            group: options.group,
            links: options.links,
            devices: options.devices,
            specials: options.specials,
            hard_links: options.hard_links,
            atimes: options.atimes,
            acls: options.acls,
            xattrs: options.xattrs,
            numeric_ids: options.numeric_ids,
            recursive: options.recursive,
            zero_names: options.can(b'u'),
        };
        let agreed = Agreed {
            protocol,
            incremental,
            form,
            sums: Seeded { algorithm: sum, seed, seed_first: options.can(b'C'), files_too: protocol < 30 },
            list_sum,
            xattr_shortcut: protocol >= 31 && !options.can(b'x'),
        };
        Self { agreed, compressor }
    }
}

/// Sends the compatibility flags to the client, and reads its choice. The seed is sent even if the negotiation fails,
/// so that the reason can be sent.
fn begin(
    protocol: u8,
    (reader, writer): (&mut impl Read, &mut impl Write),
    options: &Options,
    incremental: bool,
    seed: u32,
) -> Result<Result<Begun>> {
    if protocol >= 30 {
        writer.write_varint(flags(options, incremental))?;
    }
    let negotiated = negotiate(protocol, (options, false), reader, writer);
    let seed = options.checksum_seed.filter(|seed| *seed != 0).unwrap_or(seed);
    writer.write_i32(seed.cast_signed())?;
    writer.flush()?;
    Ok(negotiated.map(|chosen| Begun::new((protocol, options), incremental, seed, chosen)))
}

/// Serves a client that pulls. `failure` is an error in its arguments, which it is told later.
///
/// # Errors
/// When the connection fails, or the client violates the protocol. The client is told the reason where that is
/// possible.
pub fn serve(
    protocol: u8,
    (mut reader, mut writer): (impl Read, impl Write),
    (options, failure): (&Options, Option<RsyncError>),
    surroundings: Surroundings<'_>,
) -> Result<Summary> {
    let options = &in_version(options, protocol);
    let incremental = is_incremental(options, &surroundings.paths);
    let begun = begin(protocol, (&mut reader, &mut writer), options, incremental, surroundings.seed)?;
    let mut reader = mux_reader(reader, protocol).patient(surroundings.patience.clone());
    let mut writer = MuxWriter::new(writer);
    writer.set_protocol(protocol);
    let result = begun.and_then(|Begun { agreed, compressor }| {
        if let Some(failure) = failure {
            return Err(failure);
        }
        let tokens = TokenWriter::new(compressor, options.compress_level)?;
        transfer((&mut reader, &mut writer), options, agreed, tokens, surroundings)
    });
    if let Err(error) = &result {
        // This fails if the connection has failed.
        let _ = tell(error, protocol, "sender", &mut writer);
    }
    result
}

/// A reader from the client. Before version 30 clients sent no messages.
fn mux_reader<R: Read>(reader: R, protocol: u8) -> MuxReader<R> {
    if protocol < 30 { MuxReader::plain(reader) } else { MuxReader::new(reader) }
}

/// The meaning of the client's options in a version of the protocol.
pub(crate) fn in_version(options: &Options, protocol: u8) -> Options {
    let mut options = options.clone();
    if protocol < 30 {
        options.abilities.clear();
        // In these versions the present data was always verified.
        options.append = if options.append > 0 { 2 } else { 0 };
    }
    options
}

/// Receives from a client that pushes.
///
/// # Errors
/// As [`serve`]. Also when there is no space left.
pub fn receive(
    protocol: u8,
    (mut reader, mut writer): (impl Read, impl Write + Send),
    options: &Options,
    receiving: Receiving<'_>,
) -> Result<Summary> {
    let options = &in_version(options, protocol);
    let is_staged = receiving.into.target.is_staged();
    let incremental = protocol >= 30 && is_received_incrementally(options, is_staged);
    let begun = begin(protocol, (&mut reader, &mut writer), options, incremental, receiving.seed)?;
    let mut reader = mux_reader(reader, protocol).patient(receiving.patience.clone());
    if let Some(told) = receiving.told.clone() {
        reader = reader.telling(told);
    }
    let (queue, sent) = QueueWriter::new();
    std::thread::scope(|scope| {
        let sending = scope.spawn(move || drain(sent, &mut writer));
        let mut writer = MuxWriter::new(queue);
        writer.set_protocol(protocol);
        let result = begun.and_then(|begun| take((&mut reader, &mut writer), options, begun, receiving));
        if let Err(error) = &result {
            let _ = tell(error, protocol, "receiver", &mut writer);
        }
        drop(writer);
        match (result, sending.join()) {
            (Ok(_), Ok(Err(error))) => Err(error.into()),
            (result, _) => result,
        }
    })
}

fn take<R: Read, W: Write>(
    (reader, writer): (&mut MuxReader<R>, &mut MuxWriter<W>),
    options: &Options,
    Begun { agreed, compressor }: Begun,
    receiving: Receiving<'_>,
) -> Result<Summary> {
    set_timeout(options, receiving.timeout_seconds, agreed.protocol, writer)?;
    // Rules are sent if they can matter. Before version 29, with `--delete-excluded` no rule protected anything.
    let protects = !options.delete_excluded || agreed.protocol >= 29;
    let mut filter = match options.delete != Delete::No && protects || options.prune_empty_dirs {
        true => Filter::receive(reader, agreed.protocol, true, &own_rules(options, None)?)?,
        false => Filter::of_rules(&own_rules(options, None)?, true)?,
    }
    .metered(receiving.patience.clone());
    // Files in a partial directory are not deleted.
    if let Some(directory) = options.partial_dir.as_ref().filter(|directory| !directory.starts_with(b"/")) {
        filter.add_pattern(&[directory.as_slice(), b"/"].concat(), false);
    } else if options.delay_updates && options.partial_dir.is_none() && !receiving.into.target.is_staged() {
        filter.add_pattern(&[DELAYED_DIR, b"/"].concat(), false);
    }
    receiving.patience.begun();
    let Receiving { into, names, file_list, .. } = receiving;
    match file_list {
        Some(Ok(list)) => file_list::forward(list, !options.from0, agreed.protocol, writer)?,
        Some(Err((shown, error))) => return Err(file_list::not_opened(&shown, &error_text(&error))),
        None => {}
    }
    let tokens = TokenReader::new(compressor)?;
    Receiver::new((reader, writer), (options, &filter), agreed, (names, tokens), into).run()
}

fn set_timeout<W: Write>(
    options: &Options,
    ours: u32,
    protocol: u8,
    writer: &mut MuxWriter<W>,
) -> Result<()> {
    let timeout = match (options.timeout_seconds, ours) {
        (0, ours) => ours,
        (theirs, 0) => theirs,
        (theirs, ours) => theirs.min(ours),
    };
    let seconds = Duration::from_secs(u64::from(timeout));
    writer.set_peer_timeout((timeout > 0).then_some(seconds));
    if protocol >= 31 && ours > 0 {
        writer.message_number(Tag::IoTimeout, ours)?;
    }
    Ok(())
}

fn transfer<R: Read, W: Write>(
    (reader, writer): (&mut MuxReader<R>, &mut MuxWriter<W>),
    options: &Options,
    agreed: Agreed,
    tokens: TokenWriter,
    surroundings: Surroundings<'_>,
) -> Result<Summary> {
    writer.limit(options.bandwidth);
    set_timeout(options, surroundings.timeout_seconds, agreed.protocol, writer)?;
    let own = own_rules(options, Some(&surroundings.view))?;
    let filter = Filter::receive_with(reader, agreed.protocol, false, (&own, &options.cvs_more))?;
    let mut filter = filter.metered(surroundings.patience.clone());
    surroundings.patience.begun();
    if options.cvs_exclude {
        filter.add_cvs();
    }
    let Surroundings { view, names, paths, on_file, .. } = surroundings;
    let sender = Sender::new((reader, writer), view, (options, &filter), agreed, (names, tokens), on_file);
    sender.run(&paths)
}

/// The rules that the client sets for this side by options. Files of rules are read from the tree that is served,
/// unless they are hidden.
fn own_rules(options: &Options, view: Option<&View<'_>>) -> Result<Vec<Vec<u8>>> {
    let mut rules = Vec::new();
    for rule in &options.own_rules {
        let Some(file) = Filter::merged_file(rule) else {
            rules.push(rule.clone());
            continue;
        };
        let shown = String::from_utf8_lossy(file);
        let refused = |what: &str| {
            let text = format!("rsync: failed to open exclude file {shown}: {what}");
            RsyncError::refused(ExitCode::FileIo, text)
        };
        let view = view.ok_or_else(|| refused("it is not read where files are received"))?;
        let (path, _) = clean(file);
        if view.hidden.hides(&path, false) {
            continue;
        }
        let mut text = Vec::new();
        let read =
            view.source.open(&path, true).and_then(|file| file.take(RULES_LEN_MAX).read_to_end(&mut text));
        read.map_err(|error| refused(&error_text(&error)))?;
        let lines = text.split(|byte| matches!(byte, b'\n' | b'\r'));
        rules.extend(lines.filter(|line| !matches!(line, [] | [b'#' | b';', ..])).map(<[u8]>::to_vec));
    }
    Ok(rules)
}

/// Tells the client why the session ends.
fn tell<W: Write>(error: &RsyncError, protocol: u8, side: &str, writer: &mut MuxWriter<W>) -> Result<()> {
    if matches!(error, RsyncError::PeerExit { .. }) {
        return Ok(());
    }
    let code = error.code();
    let last = format!("rsync error: {} (code {}) [{side}=snowmelt]\n", code.meaning(), code as u8);
    // A client prints each message as one line, and a line break inside it as a number.
    for line in error.to_string().lines() {
        writer.message(Tag::Error, format!("{line}\n").as_bytes())?;
    }
    writer.message(Tag::Error, last.as_bytes())?;
    if protocol >= 31 {
        writer.message_number(Tag::ErrorExit, u32::from(code as u8))?;
        if side == "receiver" {
            // A client that is sending reads only beyond 512 bytes, until it has nothing more to send.
            for _ in 0..PADDING {
                writer.message(Tag::Noop, &[])?;
            }
        }
    }
    Ok(writer.flush()?)
}
