//! Objects with data in heads.

use snowmelt_dataset::{Datasets, Head, OpenHead};
use snowmelt_zpl::{
    Caller, DMU_OT_PLAIN_FILE_CONTENTS, FilesystemMut, NewKind, NewNode, NewObject, ObjectsMut, Room,
    SourceError, Timestamp, WriteOptions,
};

pub fn open(datasets: &Datasets, dataset: &str) -> OpenHead {
    datasets.open_head(&datasets.catalog().dataset(dataset).unwrap()).unwrap()
}

/// `len` bytes that do not compress, different for each seed.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut data = Vec::with_capacity(len + 8);
    while data.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        data.extend_from_slice(&state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes());
    }
    data.truncate(len);
    data
}

/// A new object with blocks of `block_size`.
pub fn create(head: &Head, block_size: u32) -> Result<u64, SourceError> {
    let tx = head.begin(Room::Write(4096))?;
    let new = NewObject {
        object_type: DMU_OT_PLAIN_FILE_CONTENTS,
        bonus_type: 44,
        block_size,
        slots: 1,
        bonus: vec![0; 8],
    };
    head.create(&tx, new)
}

/// Writes in a separate transaction.
pub fn write(head: &Head, object: u64, offset: u64, data: &[u8]) -> Result<(), SourceError> {
    let tx = head.begin(Room::Write(data.len() as u64))?;
    head.write(&tx, object, offset, data)
}

/// Writes a new object in pieces of 128 KiB until an error occurs. Returns the object, the number of written bytes, and
/// the error.
pub fn fill(head: &Head, seed: u64, most: u64) -> (Option<u64>, u64, Option<SourceError>) {
    const PIECE: usize = 128 << 10;
    let object = match create(head, PIECE as u32) {
        Ok(object) => object,
        Err(error) => return (None, 0, Some(error)),
    };
    let mut written = 0;
    while written < most {
        if let Err(error) = write(head, object, written, &noise(seed + written, PIECE)) {
            return (Some(object), written, Some(error));
        }
        written += PIECE as u64;
    }
    (Some(object), written, None)
}

/// Creates a file of `len` bytes in the root directory, like a mount.
pub fn write_file(head: &OpenHead, file: &str, len: u64) {
    let fs = FilesystemMut::open(head.head().clone(), WriteOptions::default(), 7).unwrap();
    let caller = Caller { uid: 0, gid: 0, umask: 0, now: Timestamp { seconds: 10, nanoseconds: 0 } };
    let new = NewNode { kind: NewKind::File, permissions: 0o644 };
    let object = fs.create(fs.root(), file.as_bytes(), new, &caller).unwrap().object;
    let data = noise(file.len() as u64 + u64::from(file.as_bytes()[0]), len as usize);
    assert_eq!(fs.write(object, 0, &data, &caller).unwrap(), data.len());
}

/// Removes an object like an unlink.
pub fn remove(head: &Head, object: u64) {
    let tx = head.begin(Room::Free).unwrap();
    head.destroy(&tx, object).unwrap();
}
