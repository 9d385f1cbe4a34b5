//! Raw streams that real OpenZFS made, with their keys.
#![allow(clippy::print_stderr, clippy::unwrap_used, dead_code, missing_docs)]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use snowmelt_crypt::{Authenticated, Decryptor, Keydata, Keyring, Verifier};
use snowmelt_stream::reader::Positioned;
use snowmelt_stream::{ByteOrder, Features, NvList, Reader, Record};
use zeroize::Zeroizing;

#[path = "../../../../testdata/unpack.rs"]
pub mod testdata;

/// The files of a case: from the corpus that `SNOWMELT_CORPUS` names, or from the repository if the corpus has no such
/// case.
pub fn case(name: &str) -> BTreeMap<String, Vec<u8>> {
    let Some(corpus) = std::env::var_os("SNOWMELT_CORPUS") else {
        eprintln!("SNOWMELT_CORPUS is not set: only the repository's own streams are tested");
        return testdata::case(name);
    };
    let whole = Path::new(&corpus).join(name);
    if !whole.is_dir() {
        return testdata::case(name);
    }
    let mut files = BTreeMap::new();
    walk(&whole, "", &mut files);
    files
}

fn walk(directory: &Path, prefix: &str, files: &mut BTreeMap<String, Vec<u8>>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = format!("{prefix}{}", path.file_name().unwrap().to_str().unwrap());
        if path.is_dir() {
            walk(&path, &format!("{name}/"), files);
        } else {
            files.insert(name, fs::read(path).unwrap());
        }
    }
}

/// A description of the error.
pub type Failure = Box<dyn std::error::Error>;

/// Reads streams one after the other, and passes on each record with its decrypted payload.
pub fn verify_with(
    streams: &[&[u8]],
    keys: &[&[u8]],
    mut each: impl FnMut(&Positioned, &[u8], Option<&Decryptor>),
) -> Result<Authenticated, Failure> {
    let mut keyring = Keyring::new();
    for key in keys {
        keyring.add(Zeroizing::new(key.to_vec()));
    }
    let mut verifier = Verifier::new();
    for (index, stream) in streams.iter().enumerate() {
        let (mut reader, mut payload) = (Reader::new(*stream), Vec::new());
        verifier.remember(index + 1 < streams.len());
        let mut decryptor = None;
        while let Some(at) = reader.next(&mut payload)? {
            let order = if reader.is_swapped() { ByteOrder::Big } else { ByteOrder::Little };
            match &at.record {
                Record::Begin(begin) if begin.features.contains(Features::RAW) => {
                    let list = NvList::unpack(&payload)?;
                    let keydata = Keydata::of_begin(&list)?;
                    let opened = keyring.open(&keydata)?;
                    decryptor = Some(opened.clone());
                    verifier.begin(&at, begin, &list, (keydata, opened, order))?;
                }
                Record::Begin(_) => verifier.remember(true),
                _ => verifier.record(&at, &mut payload)?,
            }
            each(&at, &payload, decryptor.as_deref());
        }
    }
    Ok(verifier.done())
}

pub fn verify(streams: &[&[u8]], keys: &[&[u8]]) -> Result<Authenticated, Failure> {
    verify_with(streams, keys, |_, _, _| {})
}
