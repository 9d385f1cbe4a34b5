//! JSON in the form that `zfs` and `zpool` have printed since OpenZFS 2.3 (`zfs_json_schema` and
//! `zprop_nvlist_one_property` in `lib/libzfs/libzfs_util.c`).

use std::io::{self, Write};

use serde_json::{Map, Value, json};
use snowmelt_dataset::property::Source;

/// An object that says which command wrote it, to be filled with results.
pub fn document(command: &str) -> Map<String, Value> {
    let mut document = Map::new();
    let version = json!({ "command": command, "vers_major": 0, "vers_minor": 1 });
    document.insert("output_version".to_owned(), version);
    document
}

/// One property: its text, or number if `as_number` and it is one, and where it comes from.
pub fn property(text: &str, source: &Source, as_number: bool) -> Value {
    let (kind, data) = match source {
        Source::None => ("NONE", "-"),
        Source::Default => ("DEFAULT", "-"),
        Source::Local => ("LOCAL", "-"),
        Source::Temporary => ("TEMPORARY", "-"),
        Source::Received => ("RECEIVED", "-"),
        Source::Inherited(dataset) => ("INHERITED", dataset.as_str()),
    };
    json!({ "value": number_or_text(text, as_number), "source": { "type": kind, "data": data } })
}

/// A text, or its number if `as_number` and it is a whole one.
pub fn number_or_text(text: &str, as_number: bool) -> Value {
    match text.parse::<u64>() {
        Ok(number) if as_number => number.into(),
        _ => text.into(),
    }
}

/// Prints a document.
///
/// # Errors
/// When the output cannot be written.
pub fn print(out: &mut impl Write, document: Map<String, Value>) -> io::Result<()> {
    serde_json::to_writer(&mut *out, &Value::Object(document))?;
    writeln!(out)
}
