//! `stream redup`, `recompress`, `decompress` and `drop-record`: streams in, changed streams out, as zstream(8) does.

use std::fs::File;
use std::io::{Seek, SeekFrom};

use snowmelt_dataset::property::format_bytes;
use snowmelt_stream::Compression;
use snowmelt_stream::compress::zstd_cookie;
use snowmelt_stream::filter::{
    Decompress, DropRecords, Filter, FilterError, MAX_REFERENCES, Pipe, Recompress, Redup,
};

use super::stream_verify::open;
use crate::app::App;
use crate::args::{StreamDecompressArgs, StreamDropRecordArgs, StreamRecompressArgs, StreamRedupArgs};
use crate::error::{CliError, Result, chain};
use crate::exit::Exit;

/// Writes the data in full of a deduplicated stream.
///
/// # Errors
/// When the file cannot be read twice, is not a valid stream, or output fails.
pub fn redup(app: &mut App<'_>, args: &StreamRedupArgs) -> Result<Exit> {
    let output = output(app)?;
    let name = args.file.display().to_string();
    let cannot_read = |error: std::io::Error| CliError::failed(format!("cannot read {name}"), &error);
    let mut input = File::open(app.context.path(&args.file)).map_err(cannot_read)?;
    // A pipe has no second beginning.
    if !input.metadata().map_err(cannot_read)?.is_file() {
        return Err(CliError::Failed(format!(
            "cannot read {name}: it is read twice, so it must be a file: store the stream in a file first"
        )));
    }
    let again = input.try_clone().map_err(cannot_read)?;
    let plan = Redup::plan(&input, again, MAX_REFERENCES).map_err(|error| failed(&name, &error))?;
    input.seek(SeekFrom::Start(0)).map_err(cannot_read)?;
    let pipe = run(app, Pipe::new(input, output, plan), &name, args.verbose)?;
    if args.verbose {
        let (records, references) = (pipe.records(), pipe.filter().references());
        let memory = format_bytes(pipe.filter().memory());
        app.context.complain(format_args!(
            "Converted stream with {records} total records, including {references} dedup records, using {memory}B \
             memory."
        ));
    }
    Ok(Exit::Ok)
}

/// Compresses the data of a stream with another algorithm.
///
/// # Errors
/// When there is no such algorithm or level, the stream is invalid, or output fails.
pub fn recompress(app: &mut App<'_>, args: &StreamRecompressArgs) -> Result<Exit> {
    let (algorithm, implied) = algorithm(&args.algorithm).ok_or_else(|| {
        CliError::Usage(format!(
            "invalid compression type {}: use off, lz4, zstd[-level], gzip[-level], lzjb or zle",
            args.algorithm
        ))
    })?;
    let level = args.level.unwrap_or(i64::from(implied));
    let filter = Recompress::new(algorithm, level).map_err(|error| CliError::Usage(error.to_string()))?;
    filter_input(app, filter, false)
}

/// Decompresses blocks whose records are wrong about their compression.
///
/// # Errors
/// A block is not well named; the stream is bad; output fails.
pub fn decompress(app: &mut App<'_>, args: &StreamDecompressArgs) -> Result<Exit> {
    let blocks: Result<Vec<_>> = args.blocks.iter().map(|text| named_block(text)).collect();
    filter_input(app, Decompress::new(blocks?), args.verbose)
}

/// Leaves out blocks.
///
/// # Errors
/// A block is not well named; the stream is bad; output fails.
pub fn drop_record(app: &mut App<'_>, args: &StreamDropRecordArgs) -> Result<Exit> {
    let blocks: Result<Vec<_>> = args.blocks.iter().map(|text| Ok(block(text)?.0)).collect();
    filter_input(app, DropRecords::new(blocks?), args.verbose)
}

fn filter_input(app: &mut App<'_>, filter: impl Filter, verbose: bool) -> Result<Exit> {
    let output = output(app)?;
    let (input, name) = open(app, None)?;
    run(app, Pipe::new(input, output, filter), &name, verbose)?;
    Ok(Exit::Ok)
}

/// Copies the whole stream, and reports what the filter did.
fn run<F: Filter>(
    app: &mut App<'_>,
    mut pipe: Pipe<File, File, F>,
    name: &str,
    verbose: bool,
) -> Result<Pipe<File, File, F>> {
    loop {
        if app.context.is_cancelled() {
            return Err(CliError::Failed("interrupted".to_owned()));
        }
        let more = pipe.step().map_err(|error| failed(name, &error))?;
        for notice in pipe.notices().filter(|notice| verbose || notice.is_warning()) {
            app.context.complain(notice);
        }
        if !more {
            return Ok(pipe);
        }
    }
}

/// Standard output, which a stream may not go to if it is a terminal.
fn output(app: &App<'_>) -> Result<File> {
    if app.context.is_terminal_out() {
        let why = "Error: Stream can not be written to a terminal.\nYou must redirect standard output.";
        return Err(CliError::Failed(why.to_owned()));
    }
    let output = app.context.out.get_ref().try_clone();
    output.map_err(|error| CliError::failed("cannot write to standard output", &error))
}

fn failed(name: &str, error: &FilterError) -> CliError {
    CliError::Failed(format!("{name}: {}", chain(error)))
}

/// The algorithm that a value of the property `compression` stands for, and zstd's level as ZFS numbers it.
fn algorithm(text: &str) -> Option<(Compression, u8)> {
    let zstd = |level: i32| Some((Compression::Zstd, zstd_cookie(level)?));
    match text {
        "on" => return Some((Compression::Lz4, 0)),
        "gzip" => return Some((Compression::Gzip(6), 0)),
        "zstd-fast" => return zstd(-1),
        _ => {}
    }
    if let Some(level) = text.strip_prefix("zstd-fast-") {
        return zstd(level.parse::<i32>().ok()?.checked_neg()?);
    }
    if let Some(level) = text.strip_prefix("zstd-") {
        return zstd(level.parse().ok()?);
    }
    let algorithms = (0..=u8::MAX).map_while(Compression::from_id);
    let mut algorithms = algorithms.filter(|found| *found == Compression::Off || found.algorithm() == *found);
    algorithms.find(|found| found.name() == text).map(|found| (found, 0))
}

/// An object, where in it, and what follows.
type NamedBlock<'a> = ((u64, u64), Option<&'a str>);

/// `object,offset[,…]`; numbers as C has them.
fn block(text: &str) -> Result<NamedBlock<'_>> {
    let invalid = |what: &str| CliError::Usage(format!("'{text}': invalid value for {what}"));
    let mut parts = text.splitn(3, ',');
    let object = parts.next().and_then(number).ok_or_else(|| invalid("object"))?;
    let offset = parts.next().and_then(number).ok_or_else(|| invalid("offset"))?;
    Ok(((object, offset), parts.next()))
}

/// `object,offset[,type]`.
fn named_block(text: &str) -> Result<((u64, u64), Compression)> {
    let (block, algorithm) = block(text)?;
    let algorithm = match algorithm {
        Some("off") => Compression::Off,
        None | Some("lz4") => Compression::Lz4,
        Some("lzjb") => Compression::Lzjb,
        Some("gzip") => Compression::Gzip(1),
        Some("zle") => Compression::Zle,
        Some("zstd") => Compression::Zstd,
        Some(other) => {
            return Err(CliError::Usage(format!(
                "invalid compression type {other}. Supported types are off, lz4, lzjb, gzip, zle, and zstd"
            )));
        }
    };
    Ok((block, algorithm))
}

/// A number as `strtoull` reads it: hexadecimal after 0x, octal after 0.
fn number(text: &str) -> Option<u64> {
    let (digits, radix) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None if text.len() > 1 && text.starts_with('0') => (text, 8),
        None => (text, 10),
    };
    // `from_str_radix` takes a sign.
    digits.chars().all(|c| c.is_digit(radix)).then(|| u64::from_str_radix(digits, radix).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_named_as_for_zstream() {
        assert_eq!(block("128,0").unwrap(), ((128, 0), None));
        assert_eq!(block("0x80,010").unwrap(), ((128, 8), None));
        assert_eq!(block("3545761,18446744073709486080").unwrap().0.1, 0xffff_ffff_ffff_0000);
        assert_eq!(named_block("1,2").unwrap(), ((1, 2), Compression::Lz4));
        assert_eq!(named_block("1,2,off").unwrap(), ((1, 2), Compression::Off));
        for bad in ["", "1", "1,", ",1", "x,1", "1,-1", "1,+1", "0x,1", "1,18446744073709551616"] {
            assert!(block(bad).is_err(), "{bad}");
        }
        assert!(named_block("1,2,gzip-3").is_err());
    }

    #[test]
    fn algorithms_are_named_as_the_property() {
        for (text, expected) in [
            ("off", (Compression::Off, 0)),
            ("on", (Compression::Lz4, 0)),
            ("lz4", (Compression::Lz4, 0)),
            ("lzjb", (Compression::Lzjb, 0)),
            ("zle", (Compression::Zle, 0)),
            ("gzip", (Compression::Gzip(6), 0)),
            ("gzip-9", (Compression::Gzip(9), 0)),
            ("zstd", (Compression::Zstd, 0)),
            ("zstd-19", (Compression::Zstd, 19)),
            ("zstd-fast-1", (Compression::Zstd, 103)),
        ] {
            assert_eq!(algorithm(text), Some(expected), "{text}");
        }
        for bad in ["", "empty", "inherit", "gzip-0", "gzip-10", "zstd-20", "zstd-fast-11", "LZ4"] {
            assert_eq!(algorithm(bad), None, "{bad}");
        }
    }
}
