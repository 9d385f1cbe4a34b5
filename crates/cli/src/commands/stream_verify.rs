//! `stream verify`.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use serde_json::json;
use snowmelt_crypt::{Authenticated, Keydata, Verifier};
use snowmelt_dataset::property::format_bytes;
use snowmelt_dataset::text::visible_name;
use snowmelt_stream::error::StreamError;
use snowmelt_stream::reader::{Positioned, Reader};
use snowmelt_stream::verify::Summary;
use snowmelt_stream::{ByteOrder, Features, HeaderType, NvList, Record};

use super::key_material::KeyMaterial;
use crate::app::App;
use crate::args::StreamVerifyArgs;
use crate::error::{CliError, Result, chain};
use crate::exit::Exit;
use crate::output::json;

/// Reads a stream and checks everything that can be checked without a pool.
///
/// # Errors
/// When the stream is bad, no key fits, or output fails.
pub fn run(app: &mut App<'_>, args: &StreamVerifyArgs) -> Result<Exit> {
    let is_stdin = |file: &Path| file == Path::new("-");
    let is_stdin_free = args.file.as_deref().is_some_and(|file| !is_stdin(file))
        && !args.from.iter().any(|file| is_stdin(file));
    let mut content = match args.keylocation.is_empty() {
        true => None,
        false => Some(Content {
            keys: KeyMaterial::read(app, &args.keylocation, is_stdin_free)?,
            verifier: Verifier::new(),
        }),
    };
    for file in &args.from {
        let (input, name) = open(app, Some(file))?;
        if let Some(content) = &mut content {
            content.verifier.remember(true);
        }
        read(app, input, &name, &mut content)?;
    }
    let (input, name) = open(app, args.file.as_deref())?;
    if let Some(content) = &mut content {
        content.verifier.remember(false);
    }
    let checked = read(app, input, &name, &mut content)?;
    if args.json {
        print_json(app, &name, &checked)?;
    } else if !args.quiet {
        print(app, &name, &checked)?;
    }
    if !args.quiet
        && let Some(caveat) = checked.caveat()
    {
        app.context.complain(format_args!("{name}: {caveat}"));
    }
    Ok(Exit::Ok)
}

/// The keys that authenticate the content of encrypted records.
struct Content {
    keys: KeyMaterial,
    verifier: Verifier,
}

/// The parts of a stream.
#[derive(Default)]
struct Checked {
    summary: Summary,
    /// Encrypted snapshots.
    raw: u64,
    /// Their records whose content is encrypted, or authenticated with the same keys.
    encrypted: u64,
    /// The authenticated part of them, if there is a key.
    authenticated: Option<Authenticated>,
}

impl Checked {
    /// A note about content that was not checked.
    fn caveat(&self) -> Option<String> {
        let done = match (&self.authenticated, self.encrypted) {
            (None, 0) => return None,
            (Some(_), _) if self.raw == 0 => {
                return Some("nothing in it is encrypted: the key was not used".to_owned());
            }
            (None, count) => {
                return Some(format!(
                    "the content of {} was not authenticated; to do that, give the key with --keylocation file:///path or \
                     --keylocation prompt",
                    counted(count, "encrypted record")
                ));
            }
            (Some(done), _) => done,
        };
        let (blocks, sets) = (done.unknown_dnode_blocks, done.unknown_object_sets);
        (blocks > 0 || sets > 0).then(|| {
            format!(
                "{} and {} were not authenticated, because the base of the stream is not known; to do that, give \
                 the earlier streams with --from",
                counted(blocks, "block of dnodes"),
                counted(sets, "object set")
            )
        })
    }
}

/// `1 block of dnodes`, `2 blocks of dnodes`.
fn counted(count: u64, what: &str) -> String {
    match (count, what.split_once(' ')) {
        (1, _) => format!("1 {what}"),
        (_, Some((noun, of))) if of.starts_with("of ") => format!("{count} {noun}s {of}"),
        _ => format!("{count} {what}s"),
    }
}

/// Reads a stream to its end. Payloads are looked at only if there is a key.
fn read(app: &mut App<'_>, input: File, name: &str, content: &mut Option<Content>) -> Result<Checked> {
    let mut reader = Reader::new(input);
    let mut payload = Vec::new();
    let mut checked = Checked::default();
    let before = content.as_ref().map(|content| content.verifier.done());
    let mut is_raw = false;
    loop {
        if app.context.is_cancelled() {
            return Err(CliError::Failed("interrupted".to_owned()));
        }
        let next = if content.is_some() { reader.next(&mut payload) } else { reader.skip(&mut payload) };
        let Some(at) = next.map_err(|error| refused(name, &error))? else { break };
        checked.summary.count(&at.record);
        checked.summary.has_record_checksums |= reader.has_record_checksums();
        match &at.record {
            Record::Begin(begin) => {
                is_raw = begin.features.contains(Features::RAW);
                checked.raw += u64::from(is_raw);
            }
            Record::Write(_) | Record::Spill(_) | Record::ObjectRange(_) if is_raw => checked.encrypted += 1,
            _ => {}
        }
        if let Some(content) = content {
            let order = if reader.is_swapped() { ByteOrder::Big } else { ByteOrder::Little };
            authenticate(app, content, name, &at, &mut payload, order)?;
        }
    }
    checked.summary.is_swapped = reader.is_swapped();
    checked.authenticated = content.as_ref().map(|content| {
        let (done, before) = (content.verifier.done(), before.unwrap_or_default());
        Authenticated {
            blocks: done.blocks - before.blocks,
            dnode_blocks: done.dnode_blocks - before.dnode_blocks,
            object_sets: done.object_sets - before.object_sets,
            unknown_dnode_blocks: done.unknown_dnode_blocks - before.unknown_dnode_blocks,
            unknown_object_sets: done.unknown_object_sets - before.unknown_object_sets,
        }
    });
    Ok(checked)
}

/// Authenticates the content of a record.
fn authenticate(
    app: &mut App<'_>,
    content: &mut Content,
    name: &str,
    at: &Positioned,
    payload: &mut [u8],
    order: ByteOrder,
) -> Result<()> {
    let Content { keys, verifier } = content;
    let authentic = match &at.record {
        Record::Begin(begin) if begin.features.contains(Features::RAW) => {
            let (list, keydata) = keydata(payload).map_err(|why| {
                CliError::Failed(format!(
                    "{name}: record {} (BEGIN) at offset {}: {why}",
                    at.index, at.offset
                ))
            })?;
            let decryptor = keys.open(app, &keydata, &begin.to_name.to_string())?;
            verifier.begin(at, begin, &list, (keydata, decryptor, order))
        }
        Record::Begin(begin) => {
            // The bases of a package's incremental streams are in the package.
            if begin.header_type == HeaderType::Compound {
                verifier.remember(true);
            }
            Ok(())
        }
        _ => verifier.record(at, payload),
    };
    authentic.map_err(|error| CliError::Failed(format!("{name}: {}", chain(&error))))
}

/// The data about keys in the BEGIN of a raw stream.
fn keydata(payload: &[u8]) -> Result<(NvList, Keydata), String> {
    let list = NvList::unpack(payload).map_err(|error| error.to_string())?;
    let keydata = Keydata::of_begin(&list).map_err(|error| error.to_string())?;
    Ok((list, keydata))
}

fn print_json(app: &mut App<'_>, name: &str, checked: &Checked) -> Result<()> {
    let summary = &checked.summary;
    let snapshots: Vec<_> = summary
        .snapshots
        .iter()
        .map(|begin| {
            json!({
                "name": begin.to_name.to_string(),
                "guid": begin.to_guid.to_string(),
                "from_guid": begin.from_guid.to_string(),
                "creation": begin.creation_time.to_string(),
            })
        })
        .collect();
    let mut document = json::document("snowmelt stream verify");
    document.insert("stream".to_owned(), name.into());
    document.insert("bytes".to_owned(), summary.bytes.into());
    document.insert("records".to_owned(), summary.records().into());
    document.insert("package".to_owned(), summary.is_package.into());
    document.insert("byteswapped".to_owned(), summary.is_swapped.into());
    document.insert("record_checksums".to_owned(), summary.has_record_checksums.into());
    document.insert("features".to_owned(), feature_names(summary).into());
    document.insert("snapshots".to_owned(), snapshots.into());
    document.insert("encrypted_records".to_owned(), checked.encrypted.into());
    if let Some(done) = &checked.authenticated {
        let done = json!({
            "blocks": done.blocks,
            "dnode_blocks": done.dnode_blocks,
            "object_sets": done.object_sets,
            "unknown_dnode_blocks": done.unknown_dnode_blocks,
            "unknown_object_sets": done.unknown_object_sets,
        });
        document.insert("authenticated".to_owned(), done);
    }
    json::print(&mut app.context.out, document)?;
    Ok(())
}

fn print(app: &mut App<'_>, name: &str, checked: &Checked) -> Result<()> {
    let summary = &checked.summary;
    let out = &mut app.context.out;
    for begin in &summary.snapshots {
        let kind = if begin.from_guid == 0 { "full" } else { "incremental" };
        let name = visible_name(begin.to_name.to_string().as_bytes());
        writeln!(out, "{kind}  {name}  guid {}", begin.to_guid)?;
    }
    let (records, bytes) = (summary.records(), format_bytes(summary.bytes));
    let features = feature_names(summary);
    let features = if features.is_empty() { "none".to_owned() } else { features.join(" ") };
    writeln!(out, "{name}: good: {records} records, {bytes}, features: {features}")?;
    if let Some(done) = checked.authenticated.filter(|_| checked.raw > 0) {
        let blocks = counted(done.blocks, "block");
        let (dnodes, sets) =
            (counted(done.dnode_blocks, "block of dnodes"), counted(done.object_sets, "object set"));
        writeln!(out, "{name}: authentic: {blocks}, {dnodes}, {sets}")?;
    }
    Ok(())
}

fn feature_names(summary: &Summary) -> Vec<String> {
    summary.features.names().map(|name| name.to_string()).collect()
}

/// The file, or standard input, and what to call it.
///
/// # Errors
/// When it cannot be opened.
pub fn open(app: &App<'_>, file: Option<&Path>) -> Result<(File, String)> {
    match file.filter(|path| *path != Path::new("-")) {
        Some(path) => {
            let name = path.display().to_string();
            let file = File::open(app.context.path(path));
            Ok((file.map_err(|error| CliError::failed(format!("cannot open {name}"), &error))?, name))
        }
        None if rustix::termios::isatty(&app.context.stdin) => {
            let why =
                "Error: Backup stream can not be read from a terminal.\nYou must redirect standard input.";
            Err(CliError::Failed(why.to_owned()))
        }
        None => {
            let input = app.context.stdin.try_clone();
            let input = input.map_err(|error| CliError::failed("cannot read standard input", &error))?;
            Ok((input, "standard input".to_owned()))
        }
    }
}

/// An error of a stream.
pub fn refused(name: &str, error: &StreamError) -> CliError {
    CliError::Failed(format!("{name}: {}", chain(error)))
}
