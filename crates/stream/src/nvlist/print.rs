//! Lists as text, in the formats of `nvlist_print` and `dump_nvlist` in `lib/libnvpair/libnvpair.c`.

use std::fmt;

use super::{NvList, NvValue};

/// A list printed with each line indented by a number of tabs.
#[derive(Clone, Copy, Debug)]
pub struct Indented<'a> {
    list: &'a NvList,
    tabs: usize,
}

impl NvList {
    /// Prints each line after `tabs` tabs.
    #[must_use]
    pub fn indented(&self, tabs: usize) -> Indented<'_> {
        Indented { list: self, tabs }
    }
}

impl fmt::Display for NvList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.indented(0).fmt(f)
    }
}

impl fmt::Display for Indented<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print(f, self.list, self.tabs)
    }
}

struct Tabs(usize);

impl fmt::Display for Tabs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (0..self.0).try_for_each(|_| f.write_str("\t"))
    }
}

fn print(f: &mut fmt::Formatter<'_>, list: &NvList, tabs: usize) -> fmt::Result {
    // Only version 0 exists.
    writeln!(f, "{}nvlist version: 0", Tabs(tabs))?;
    let inner = Tabs(tabs + 1);
    for (name, value) in &list.pairs {
        match value {
            NvValue::List(nested) => {
                writeln!(f, "{inner}{name} = (embedded nvlist)")?;
                print(f, nested, tabs + 1)?;
                writeln!(f, "{inner}(end {name})")?;
            }
            NvValue::ListArray(lists) => {
                writeln!(f, "{inner}{name} = (array of embedded nvlists)")?;
                for (i, nested) in lists.iter().enumerate() {
                    writeln!(f, "{inner}(start {name}[{i}])")?;
                    print(f, nested, tabs + 1)?;
                    writeln!(f, "{inner}(end {name}[{i}])")?;
                }
            }
            // An empty array prints nothing, not even its name.
            _ if value.elements() == 0 && !matches!(value, NvValue::Boolean) => {}
            _ => write!(f, "{inner}{name} = {}", Plain(value))?,
        }
        writeln!(f)?;
    }
    Ok(())
}

/// A value that is not a list. The elements of arrays are separated by blanks.
struct Plain<'a>(&'a NvValue);

impl fmt::Display for Plain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn all<T>(
            f: &mut fmt::Formatter<'_>,
            items: &[T],
            item: impl Fn(&mut fmt::Formatter<'_>, &T) -> fmt::Result,
        ) -> fmt::Result {
            items.iter().enumerate().try_for_each(|(i, v)| {
                if i > 0 {
                    f.write_str(" ")?;
                }
                item(f, v)
            })
        }
        let text = |f: &mut fmt::Formatter<'_>, v: &Vec<u8>| f.write_str(&String::from_utf8_lossy(v));
        match self.0 {
            NvValue::Boolean => f.write_str("1"),
            NvValue::BooleanValue(v) => write!(f, "{}", u8::from(*v)),
            NvValue::Byte(v) => write!(f, "0x{v:02x}"),
            NvValue::Int8(v) => write!(f, "{v}"),
            NvValue::Uint8(v) => write!(f, "{v:#x}"),
            NvValue::Int16(v) => write!(f, "{v}"),
            NvValue::Uint16(v) => write!(f, "{v:#x}"),
            NvValue::Int32(v) => write!(f, "{v}"),
            NvValue::Uint32(v) => write!(f, "{v:#x}"),
            NvValue::Int64(v) => write!(f, "{v}"),
            NvValue::Uint64(v) => write!(f, "{v:#x}"),
            NvValue::Hrtime(v) => write!(f, "{v:#x}"),
            NvValue::Double(v) => write!(f, "0x{v:.6}"),
            NvValue::String(v) => text(f, v),
            NvValue::BooleanArray(v) => all(f, v, |f, v| write!(f, "{}", u8::from(*v))),
            NvValue::ByteArray(v) => all(f, v, |f, v| write!(f, "0x{v:02x}")),
            NvValue::Int8Array(v) => all(f, v, |f, v| write!(f, "{v}")),
            NvValue::Uint8Array(v) => all(f, v, |f, v| write!(f, "{v:#x}")),
            NvValue::Int16Array(v) => all(f, v, |f, v| write!(f, "{v}")),
            NvValue::Uint16Array(v) => all(f, v, |f, v| write!(f, "{v:#x}")),
            NvValue::Int32Array(v) => all(f, v, |f, v| write!(f, "{v}")),
            NvValue::Uint32Array(v) => all(f, v, |f, v| write!(f, "{v:#x}")),
            NvValue::Int64Array(v) => all(f, v, |f, v| write!(f, "{v}")),
            NvValue::Uint64Array(v) => all(f, v, |f, v| write!(f, "{v:#x}")),
            NvValue::StringArray(v) => all(f, v, text),
            NvValue::List(_) | NvValue::ListArray(_) => Ok(()),
        }
    }
}
