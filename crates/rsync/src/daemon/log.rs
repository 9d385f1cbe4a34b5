//! The transfer log (`transfer logging`, `log format`).

use crate::source::Metadata;

/// What a line of the transfer log is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogFormat(Vec<Part>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    /// A letter after a "%".
    Field(char),
}

/// The letters that are known.
const FIELDS: &str = "abfhlmnopPuUG";
/// What rsync has unless told otherwise.
const DEFAULT: &str = "%o %h [%a] %m (%u) %f %l";

/// Something that was done with a file.
#[derive(Debug, Clone, Copy)]
pub struct Event<'a> {
    /// `send`, `recv` or `del.`.
    pub operation: &'static str,
    /// Path in the module.
    pub path: &'a [u8],
    /// Path in the transfer.
    pub name: &'a [u8],
    /// What the file is.
    pub metadata: Metadata,
    /// Bytes that went over the connection.
    pub bytes: u64,
}

/// What is the same for a whole connection.
#[derive(Debug, Clone, Default)]
pub struct LogContext {
    /// Address of the client.
    pub address: String,
    /// The module's name.
    pub module: String,
    /// Its path.
    pub path: String,
    /// Who logged in.
    pub user: String,
}

impl Default for LogFormat {
    fn default() -> Self {
        Self::parse(DEFAULT).unwrap_or(Self(Vec::new()))
    }
}

impl LogFormat {
    /// From a text with letters after "%".
    ///
    /// # Errors
    /// When there is a letter that is not known here.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut left = text.chars();
        let mut plain = String::new();
        while let Some(c) = left.next() {
            if c != '%' {
                plain.push(c);
                continue;
            }
            match left.next() {
                Some('%') => plain.push('%'),
                Some(field) if FIELDS.contains(field) => {
                    parts.push(Part::Text(std::mem::take(&mut plain)));
                    parts.push(Part::Field(field));
                }
                other => return Err(format!("log format: '%{}' is not known here", other.unwrap_or(' '))),
            }
        }
        parts.push(Part::Text(plain));
        Ok(Self(parts))
    }

    /// The line of one file.
    pub(crate) fn line(&self, context: &LogContext, event: &Event<'_>) -> String {
        let field = |field: &char| match field {
            'a' | 'h' => context.address.clone(),
            'b' => event.bytes.to_string(),
            'f' => printable(event.path),
            'n' => printable(event.name),
            'l' => event.metadata.size.to_string(),
            'm' => context.module.clone(),
            'o' => event.operation.to_owned(),
            'p' => std::process::id().to_string(),
            'P' => context.path.clone(),
            'u' => context.user.clone(),
            'U' => event.metadata.uid.to_string(),
            'G' => event.metadata.gid.to_string(),
            _ => String::new(),
        };
        self.0
            .iter()
            .map(|part| match part {
                Part::Text(text) => text.clone(),
                Part::Field(letter) => field(letter),
            })
            .collect()
    }
}

/// A path on one line, whatever is in it.
fn printable(path: &[u8]) -> String {
    String::from_utf8_lossy(path)
        .chars()
        .flat_map(|c| if c.is_control() { c.escape_default().collect::<Vec<_>>() } else { vec![c] })
        .collect()
}
