//! The options of the negotiation: their data, and the replies.

use super::Cursor;
use super::consts::{BASE_ALLOCATION, MAX_STRING, OPTS_MAGIC, REP_MAGIC};

/// The head of an option, before its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OptionHead {
    pub(crate) option: u32,
    pub(crate) length: u32,
}

impl OptionHead {
    pub(crate) const LEN: usize = 16;

    /// `None` if the magic number is wrong.
    pub(crate) fn parse(bytes: [u8; Self::LEN]) -> Option<Self> {
        let mut cursor = Cursor(&bytes);
        let magic = cursor.u64()?;
        let head = Self { option: cursor.u32()?, length: cursor.u32()? };
        (magic == OPTS_MAGIC).then_some(head)
    }
}

/// Why the data of an option is invalid. The texts are sent to the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum OptionError {
    #[error("the option's data ends too early")]
    Short,
    #[error("the option has data after its end")]
    Long,
    #[error("a string is longer than 4096 bytes")]
    StringLength,
    #[error("a string is not UTF-8, or has a NUL in it")]
    String,
    #[error("a query for metadata contexts has no namespace")]
    Namespace,
}

/// A string of the protocol: UTF-8 without NUL, at most 4,096 bytes.
pub(crate) fn string(bytes: &[u8]) -> Result<&str, OptionError> {
    if bytes.len() > MAX_STRING {
        return Err(OptionError::StringLength);
    }
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => Ok(text),
        _ => Err(OptionError::String),
    }
}

/// A string that follows its length in 32 bits.
fn counted<'a>(cursor: &mut Cursor<'a>) -> Result<&'a str, OptionError> {
    let length = cursor.u32().ok_or(OptionError::Short)?;
    let length = usize::try_from(length).map_err(|_| OptionError::Short)?;
    string(cursor.bytes(length).ok_or(OptionError::Short)?)
}

fn end(cursor: Cursor<'_>) -> Result<(), OptionError> {
    if cursor.is_empty() { Ok(()) } else { Err(OptionError::Long) }
}

/// The data of `NBD_OPT_INFO` and `NBD_OPT_GO`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InfoRequest<'a> {
    pub(crate) name: &'a str,
    /// The requested `NBD_INFO` numbers, known or not.
    pub(crate) items: Vec<u16>,
}

impl<'a> InfoRequest<'a> {
    pub(crate) fn parse(data: &'a [u8]) -> Result<Self, OptionError> {
        let mut cursor = Cursor(data);
        let name = counted(&mut cursor)?;
        let count = cursor.u16().ok_or(OptionError::Short)?;
        // at most 65,535, and each needs two bytes of `data`
        let mut items = Vec::new();
        for _ in 0..count {
            items.push(cursor.u16().ok_or(OptionError::Short)?);
        }
        end(cursor)?;
        Ok(Self { name, items })
    }
}

/// The data of `NBD_OPT_LIST_META_CONTEXT` and `NBD_OPT_SET_META_CONTEXT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MetaRequest<'a> {
    pub(crate) name: &'a str,
    /// Number of queries.
    pub(crate) queries: u32,
    /// Whether one of them is exactly [`BASE_ALLOCATION`].
    pub(crate) allocation: bool,
    /// Whether one of them is `base:`, which means all contexts of that namespace in a list.
    pub(crate) all_base: bool,
}

impl<'a> MetaRequest<'a> {
    pub(crate) fn parse(data: &'a [u8]) -> Result<Self, OptionError> {
        let mut cursor = Cursor(data);
        let name = counted(&mut cursor)?;
        let queries = cursor.u32().ok_or(OptionError::Short)?;
        let mut request = Self { name, queries, allocation: false, all_base: false };
        // each query uses at least four bytes of the data, so the loop ends even if the count is too large
        for _ in 0..queries {
            let query = counted(&mut cursor)?;
            match query.split_once(':') {
                None | Some(("", _)) => return Err(OptionError::Namespace),
                Some(("base", "")) => request.all_base = true,
                Some(_) => request.allocation |= query == BASE_ALLOCATION,
            }
        }
        end(cursor)?;
        Ok(request)
    }
}

/// Appends a reply to `option` to `out`. `data` must be shorter than 4 GiB.
pub(crate) fn push_reply(out: &mut Vec<u8>, option: u32, kind: u32, data: &[&[u8]]) {
    let length: usize = data.iter().map(|part| part.len()).sum();
    let length = u32::try_from(length).expect("replies to options are short");
    out.extend_from_slice(&REP_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&length.to_be_bytes());
    for part in data {
        out.extend_from_slice(part);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn counted_bytes(text: &[u8]) -> Vec<u8> {
        let mut out = u32::try_from(text.len()).unwrap().to_be_bytes().to_vec();
        out.extend_from_slice(text);
        out
    }

    fn info(name: &[u8], items: &[u16]) -> Vec<u8> {
        let mut out = counted_bytes(name);
        out.extend_from_slice(&u16::try_from(items.len()).unwrap().to_be_bytes());
        out.extend(items.iter().flat_map(|item| item.to_be_bytes()));
        out
    }

    fn meta(name: &[u8], queries: &[&str]) -> Vec<u8> {
        let mut out = counted_bytes(name);
        out.extend_from_slice(&u32::try_from(queries.len()).unwrap().to_be_bytes());
        out.extend(queries.iter().flat_map(|query| counted_bytes(query.as_bytes())));
        out
    }

    #[test]
    fn reads_info_requests() {
        let data = info(b"tank/vm1@monday", &[3, 1, 999]);
        let request = InfoRequest::parse(&data).unwrap();
        assert_eq!(request, InfoRequest { name: "tank/vm1@monday", items: vec![3, 1, 999] });
        for end in 0..data.len() {
            assert_eq!(InfoRequest::parse(&data[..end]), Err(OptionError::Short), "cut at {end}");
        }
        let longer = [data, vec![0]].concat();
        assert_eq!(InfoRequest::parse(&longer), Err(OptionError::Long));
    }

    #[test]
    fn refuses_names_that_are_not_strings() {
        assert_eq!(InfoRequest::parse(&info(b"a\0b", &[])), Err(OptionError::String));
        assert_eq!(InfoRequest::parse(&info(b"\xff", &[])), Err(OptionError::String));
        assert_eq!(InfoRequest::parse(&info(&[b'a'; 4097], &[])), Err(OptionError::StringLength));
        assert!(InfoRequest::parse(&info(&[b'a'; 4096], &[])).is_ok());
    }

    #[test]
    fn finds_the_context_among_queries() {
        let cases: [(&[&str], bool, bool); 5] = [
            (&[], false, false),
            (&["base:"], false, true),
            (&["base:allocation"], true, false),
            (&["qemu:dirty-bitmap:x", "base:allocation", "base:"], true, true),
            (&["base:allocation2", "x-base:allocation"], false, false),
        ];
        for (queries, allocation, all_base) in cases {
            let data = meta(b"x", queries);
            let request = MetaRequest::parse(&data).unwrap();
            assert_eq!((request.allocation, request.all_base), (allocation, all_base), "{queries:?}");
            assert_eq!(request.queries as usize, queries.len());
        }
        assert_eq!(MetaRequest::parse(&meta(b"x", &["allocation"])), Err(OptionError::Namespace));
    }

    #[test]
    fn a_count_of_queries_beyond_the_data_is_refused() {
        let mut data = counted_bytes(b"x");
        data.extend_from_slice(&u32::MAX.to_be_bytes());
        data.extend_from_slice(&counted_bytes(b"base:allocation"));
        assert_eq!(MetaRequest::parse(&data), Err(OptionError::Short));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(data in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = InfoRequest::parse(&data);
            let _ = MetaRequest::parse(&data);
        }
    }
}
