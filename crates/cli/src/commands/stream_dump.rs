//! `stream dump`.

use std::io::Write;

use snowmelt_dataset::text::visible_message;
use snowmelt_stream::reader::Reader;
use snowmelt_stream::verify::Summary;

use super::stream_verify::{open, refused};
use crate::app::App;
use crate::args::StreamDumpArgs;
use crate::error::{CliError, Result};
use crate::exit::Exit;

/// Bytes of data in a line.
const LINE: usize = 16;

/// Prints the records of a stream.
///
/// # Errors
/// When the stream is bad, or output fails.
pub fn run(app: &mut App<'_>, args: &StreamDumpArgs) -> Result<Exit> {
    let (input, name) = open(app, args.file.as_deref())?;
    let mut reader = Reader::new(input);
    let mut payload = Vec::new();
    let mut summary = Summary::default();
    let verbose = args.verbose > 0 || args.data;
    loop {
        if app.context.is_cancelled() {
            return Err(CliError::Failed("interrupted".to_owned()));
        }
        let Some(positioned) = reader.next(&mut payload).map_err(|error| refused(&name, &error))? else {
            break;
        };
        let record = &positioned.record;
        let out = &mut app.context.out;
        let text = match verbose {
            true => record.dump(&payload).to_string(),
            false => record.dump_brief(&payload).to_string(),
        };
        // Names in it may be a stranger's.
        write!(out, "{}", visible_message(&text))?;
        if args.data {
            hex(out, &payload)?;
        }
        summary.count(record);
    }
    write!(app.context.out, "{summary}")?;
    Ok(Exit::Ok)
}

fn hex(out: &mut impl Write, payload: &[u8]) -> Result<()> {
    for (at, line) in payload.chunks(LINE).enumerate() {
        write!(out, "    {:08x} ", at * LINE)?;
        for byte in line {
            write!(out, " {byte:02x}")?;
        }
        let text: String =
            line.iter().map(|&b| if (0x20..0x7f).contains(&b) { char::from(b) } else { '.' }).collect();
        writeln!(out, "{}  {text}", "   ".repeat(LINE - line.len()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_in_hexadecimal() {
        let mut out = Vec::new();
        hex(&mut out, b"0123456789abcdef\x00\xffz").unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "    00000000  30 31 32 33 34 35 36 37 38 39 61 62 63 64 65 66  0123456789abcdef\n    \
             00000010  00 ff 7a                                         ..z\n"
        );
    }
}
