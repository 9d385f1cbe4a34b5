//! JSON in the form that Python's `json.dumps(…, ensure_ascii=True, separators=(',', ':'))` writes, and base64.
//! Manifests have this form.

use std::fmt::Write;

/// A JSON object on one line. The keys are in the order of the calls.
pub(crate) struct Object {
    text: String,
}

impl Object {
    pub(crate) fn new() -> Self {
        Self { text: "{".into() }
    }

    fn key(&mut self, key: &str) -> &mut String {
        if self.text.len() > 1 {
            self.text.push(',');
        }
        string(&mut self.text, key.as_bytes());
        self.text.push(':');
        &mut self.text
    }

    pub(crate) fn str(&mut self, key: &str, value: &str) {
        string(self.key(key), value.as_bytes());
    }

    pub(crate) fn int(&mut self, key: &str, value: impl Into<i128>) {
        let value = value.into();
        let _ = write!(self.key(key), "{value}");
    }

    /// Adds a value that is already JSON.
    pub(crate) fn raw(&mut self, key: &str, value: &str) {
        self.key(key).push_str(value);
    }

    /// Adds bytes as a string. Bytes that are not UTF-8 are added as base64 under `key` with the suffix `_b64`.
    pub(crate) fn bytes(&mut self, key: &str, value: &[u8]) {
        match std::str::from_utf8(value) {
            Ok(value) => self.str(key, value),
            Err(_) => self.str(&format!("{key}_b64"), &base64(value)),
        }
    }

    pub(crate) fn finish(mut self) -> String {
        self.text.push('}');
        self.text
    }
}

/// Appends a JSON string. Bytes that are not UTF-8 become lone low surrogates, as in Python's `os.fsdecode`.
pub(crate) fn string(out: &mut String, value: &[u8]) {
    out.push('"');
    for chunk in value.utf8_chunks() {
        for c in chunk.valid().chars() {
            let escape = match c {
                '"' => "\\\"",
                '\\' => "\\\\",
                '\n' => "\\n",
                '\r' => "\\r",
                '\t' => "\\t",
                '\x0c' => "\\f",
                '\x08' => "\\b",
                ' '..='~' => {
                    out.push(c);
                    continue;
                }
                _ => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                    continue;
                }
            };
            out.push_str(escape);
        }
        for byte in chunk.invalid() {
            let _ = write!(out, "\\udc{byte:02x}");
        }
    }
    out.push('"');
}

/// RFC 4648 base64 with padding.
pub fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let word =
            group.iter().fold(0u32, |word, byte| word << 8 | u32::from(*byte)) << (8 * (3 - group.len()));
        for index in 0..4 {
            match index <= group.len() {
                true => out.push(char::from(ALPHABET[(word >> (18 - 6 * index)) as usize & 63])),
                false => out.push('='),
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_pads() {
        let encoded = ["", "f", "fo", "foo", "foob", "fooba", "foobar"].map(|text| base64(text.as_bytes()));
        assert_eq!(encoded, ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"]);
    }

    #[test]
    fn strings_are_escaped_as_python_does() {
        let mut object = Object::new();
        object.bytes("path", "a\"\\\n\x01\x7fé😀".as_bytes());
        object.bytes("path", b"\xff");
        object.int("n", -5);
        let mut surrogate = String::new();
        string(&mut surrogate, b"a\xff");
        assert_eq!(surrogate, r#""a\udcff""#);
        let expected = r#"{"path":"a\"\\\n\u0001\u007f\u00e9\ud83d\ude00","path_b64":"/w==","n":-5}"#;
        assert_eq!(object.finish(), expected);
    }
}
