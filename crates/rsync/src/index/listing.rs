//! The listing of one directory: records in the order of their names. They are in groups that can be read on their own,
//! so that a lookup does not read all of them (docs/format/index.md, "Listings").

use std::cmp::Ordering;

use super::IndexError;
use super::cursor::{Cursor, put_varint};
use super::record::{self, Before, Fields, Record};
use super::tables::{Shared, Tables};

/// The number of records in a group.
const GROUP: u32 = 32;
const OFFSET_LEN: usize = 4;

/// The tables that records refer to.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    pub shared: &'a [Shared],
    pub set_count: usize,
}

/// The listing of a directory, not decoded yet.
#[derive(Debug, Clone, Copy)]
pub struct Listing<'a> {
    context: Context<'a>,
    /// The `errno` of a directory that could not be listed when the index was made. Otherwise 0.
    pub failure: u32,
    pub count: u32,
    /// At the offsets of all groups but the first.
    offsets: Cursor<'a>,
    /// At the first group.
    groups: Cursor<'a>,
}

impl<'a> Listing<'a> {
    /// Reads the header of a listing.
    pub fn open(mut cursor: Cursor<'a>, context: Context<'a>) -> Result<Self, IndexError> {
        let failure = cursor.varint32()?;
        let count = cursor.varint32()?;
        if failure > i32::MAX.cast_unsigned() || failure != 0 && count != 0 {
            return Err(cursor.corrupt("a directory that was not listed has files"));
        }
        let offsets = cursor;
        let groups = count.div_ceil(GROUP).saturating_sub(1) as usize;
        cursor.take(groups.checked_mul(OFFSET_LEN).ok_or_else(|| cursor.corrupt("too many files"))?)?;
        Ok(Self { context, failure, count, offsets, groups: cursor })
    }

    /// A reader of all records, in order.
    pub fn records(&self) -> Records<'a> {
        Records {
            context: self.context,
            left: self.count,
            read: 0,
            cursor: self.groups,
            before: Before::default(),
        }
    }

    fn group(&self, number: u32) -> Result<Records<'a>, IndexError> {
        let mut cursor = self.groups;
        if let Some(skipped) = number.checked_sub(1) {
            let mut offsets = self.offsets;
            offsets.take(skipped as usize * OFFSET_LEN)?;
            cursor.take(offsets.u32()? as usize)?;
        }
        let left = self.count.saturating_sub(number.saturating_mul(GROUP)).min(GROUP);
        Ok(Records { context: self.context, left, read: 0, cursor, before: Before::default() })
    }

    /// Looks up a name.
    pub fn find(&self, name: &[u8]) -> Result<Option<Record>, IndexError> {
        let (mut low, mut high) = (0, self.count.div_ceil(GROUP));
        // Finds the last group whose first name is not greater.
        while high.saturating_sub(low) > 1 {
            let middle = low + (high - low) / 2;
            let mut group = self.group(middle)?;
            group.next()?;
            if group.name() <= name {
                low = middle;
            } else {
                high = middle;
            }
        }
        let mut group = self.group(low)?;
        while let Some(fields) = group.next()? {
            match group.name().cmp(name) {
                Ordering::Less => {}
                Ordering::Equal => return Ok(Some(fields.to_record(name))),
                Ordering::Greater => break,
            }
        }
        Ok(None)
    }

    /// Checks everything that readers rely on, and calls `directory` with the number of each directory. Returns the end
    /// of the listing.
    pub fn check(
        &self,
        mut directory: impl FnMut(u32) -> Result<(), IndexError>,
    ) -> Result<usize, IndexError> {
        let mut records = self.records();
        let mut name = Vec::new();
        let mut offsets = self.offsets;
        loop {
            if records.read > 0 && records.read.is_multiple_of(GROUP) && records.left > 0 {
                let expected = records.cursor.at() - self.groups.at();
                if offsets.u32()? as usize != expected {
                    return Err(offsets.corrupt("a group begins elsewhere"));
                }
            }
            let Some(fields) = records.next()? else { break };
            let is_name = !matches!(records.name(), b"" | b"." | b"..")
                && !records.name().iter().any(|byte| matches!(byte, 0 | b'/'));
            if !is_name || records.name() <= name.as_slice() {
                return Err(records.cursor.corrupt("a name that cannot be there"));
            }
            name.clear();
            name.extend_from_slice(records.name());
            fields.directory.map_or(Ok(()), &mut directory)?;
        }
        Ok(records.cursor.at())
    }
}

/// A reader of records.
pub struct Records<'a> {
    context: Context<'a>,
    left: u32,
    read: u32,
    cursor: Cursor<'a>,
    before: Before,
}

impl<'a> Records<'a> {
    /// The next record. Its name is [`Records::name`].
    pub fn next(&mut self) -> Result<Option<Fields<'a>>, IndexError> {
        if self.left == 0 {
            return Ok(None);
        }
        if self.read.is_multiple_of(GROUP) {
            self.before = Before::default();
        }
        (self.left, self.read) = (self.left - 1, self.read + 1);
        record::read_name(&mut self.cursor, &mut self.before)?;
        let Context { shared, set_count } = self.context;
        record::read_fields(&mut self.cursor, &mut self.before, shared, set_count).map(Some)
    }

    /// The name of the last record.
    pub fn name(&self) -> &[u8] {
        &self.before.name
    }

    /// All remaining records of directories.
    pub fn directories(mut self) -> Result<Vec<Record>, IndexError> {
        let mut found = Vec::new();
        while let Some(fields) = self.next()? {
            if fields.directory.is_some() {
                found.push(fields.to_record(self.name()));
            }
        }
        Ok(found)
    }

    /// All remaining records.
    pub fn collect(mut self) -> Result<Vec<Record>, IndexError> {
        let mut found = Vec::new();
        while let Some(fields) = self.next()? {
            found.push(fields.to_record(self.name()));
        }
        Ok(found)
    }
}

/// Sorts records and encodes them as a listing.
pub fn write(records: &mut [Record], tables: &mut Tables) -> Result<Vec<u8>, IndexError> {
    let too_many = |_| IndexError::TooMany { what: "files in a directory" };
    records.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    let mut out = Vec::new();
    put_varint(0, &mut out);
    put_varint(u32::try_from(records.len()).map_err(too_many)?.into(), &mut out);
    let (mut offsets, mut groups) = (Vec::new(), Vec::new());
    for (at, group) in records.chunks(GROUP as usize).enumerate() {
        if at > 0 {
            offsets.extend_from_slice(&u32::try_from(groups.len()).map_err(too_many)?.to_le_bytes());
        }
        let mut before = Before::default();
        for record in group {
            let shared = tables.shared(record.shared());
            record::write(record, shared, &mut before, &mut groups);
        }
    }
    out.extend(offsets);
    out.extend(groups);
    Ok(out)
}

/// Encodes the listing of a directory that cannot be listed.
pub fn write_failure(failure: u32) -> Vec<u8> {
    let mut out = Vec::new();
    put_varint(failure.into(), &mut out);
    put_varint(0, &mut out);
    out
}
