//! JSON in the form that `zfs` and `zpool` have printed since OpenZFS 2.3 (`zfs_json_schema` and
//! `zprop_nvlist_one_property` in `lib/libzfs/libzfs_util.c`).

use std::io::{self, Write};

use serde_json::{Map, Value, json};
use snowmelt_dataset::property::Source;
use snowmelt_fs::manifest;
use snowmelt_zpl::{Attributes, Timestamp};

/// An object with the name of the command, for the results.
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

/// A document with one list that may be long: its items are written as they come, one on each line.
#[derive(Debug)]
pub struct Listing {
    is_empty: bool,
}

impl Listing {
    /// Begins the document of this command, with the list under `key`.
    ///
    /// # Errors
    /// When the output cannot be written.
    pub fn begin(out: &mut impl Write, command: &str, key: &str) -> io::Result<Self> {
        let mut head = serde_json::to_string(&Value::Object(document(command)))?;
        // The list is the last entry of the object.
        head.pop();
        write!(out, "{head},{}:[", Value::from(key))?;
        Ok(Self { is_empty: true })
    }

    /// Writes an item.
    ///
    /// # Errors
    /// When the output cannot be written.
    pub fn push(&mut self, out: &mut impl Write, item: Map<String, Value>) -> io::Result<()> {
        out.write_all(if self.is_empty { b"\n" } else { b",\n" })?;
        self.is_empty = false;
        serde_json::to_writer(out, &Value::Object(item))?;
        Ok(())
    }

    /// Ends the list and the document.
    ///
    /// # Errors
    /// When the output cannot be written.
    pub fn end(self, out: &mut impl Write) -> io::Result<()> {
        out.write_all(b"]}\n")
    }
}

/// Enters a name that may be any bytes: as `key_b64`, in base64, where it is not UTF-8. Manifests do the same.
pub fn insert_bytes(item: &mut Map<String, Value>, key: &str, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => item.insert(key.to_owned(), text.into()),
        Err(_) => item.insert(format!("{key}_b64"), manifest::base64(bytes).into()),
    };
}

/// Enters the attributes of a file under the keys that manifests have.
pub fn insert_attributes(item: &mut Map<String, Value>, object: u64, attributes: &Attributes) {
    let at = attributes;
    let mut insert = |key: &str, value: Value| item.insert(key.to_owned(), value);
    insert("type", manifest::letter(at.kind()).into());
    insert("mode", format!("{:04o}", at.permissions()).into());
    insert("uid", at.uid.into());
    insert("gid", at.gid.into());
    insert("ino", object.into());
    insert("nlink", at.links.into());
    insert("size", at.size.into());
    insert("mtime", nanoseconds(at.mtime));
    insert("ctime", nanoseconds(at.ctime));
    insert("atime", nanoseconds(at.atime));
    if let Some((major, minor)) = at.rdev {
        insert("rdev", json!([major, minor]));
    }
}

/// A time in nanoseconds since 1970; one that no number of JSON holds is the nearest that it does.
pub fn nanoseconds(time: Timestamp) -> Value {
    let limited = time.as_nanos().clamp(i64::MIN.into(), i64::MAX.into());
    i64::try_from(limited).unwrap_or_default().into()
}

/// Prints a document.
///
/// # Errors
/// When the output cannot be written.
pub fn print(out: &mut impl Write, document: Map<String, Value>) -> io::Result<()> {
    serde_json::to_writer(&mut *out, &Value::Object(document))?;
    writeln!(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_any_length_are_documents() {
        for count in 0..3 {
            let mut out = Vec::new();
            let mut listing = Listing::begin(&mut out, "snowmelt ls", "files").unwrap();
            for number in 0..count {
                let mut item = Map::new();
                item.insert("number".to_owned(), number.into());
                insert_bytes(&mut item, "path", b"a\xff");
                listing.push(&mut out, item).unwrap();
            }
            listing.end(&mut out).unwrap();
            let read: Value = serde_json::from_slice(&out).unwrap();
            assert_eq!(read["output_version"]["command"], "snowmelt ls");
            let files = read["files"].as_array().unwrap();
            assert_eq!(files.len(), count);
            assert!(
                files.iter().enumerate().all(|(at, file)| file["number"] == at && file["path_b64"] == "Yf8=")
            );
        }
    }
}
