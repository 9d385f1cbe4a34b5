//! Patterns of files that an import leaves out, in the syntax of `.gitignore`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use ignore::gitignore::{Gitignore, GitignoreBuilder};

/// The error for an invalid pattern or an unreadable file of patterns.
#[derive(Debug, thiserror::Error)]
#[error("--exclude: {0}")]
pub struct FilterError(#[from] ignore::Error);

/// A list of patterns. The last match decides, and `!` negates a pattern.
#[derive(Debug, Clone)]
pub struct Filter(Gitignore);

impl Default for Filter {
    fn default() -> Self {
        Self(Gitignore::empty())
    }
}

impl Filter {
    /// Builds a filter from single patterns, then from files of patterns, in the given order.
    ///
    /// # Errors
    /// If a pattern is malformed or a file cannot be read.
    pub fn new(patterns: &[String], files: &[std::path::PathBuf]) -> Result<Self, FilterError> {
        let mut builder = GitignoreBuilder::new("");
        for pattern in patterns {
            builder.add_line(None, pattern)?;
        }
        for file in files {
            if let Some(error) = builder.add(file) {
                return Err(error.into());
            }
        }
        Ok(Self(builder.build()?))
    }

    /// Whether `name` in the directory at `path` is left out. Entries below an excluded directory are never checked.
    pub fn excludes(&self, path: &[u8], name: &[u8], is_directory: bool) -> bool {
        if self.0.is_empty() {
            return false;
        }
        let full = super::scan::join(path, name);
        self.0.matched(Path::new(OsStr::from_bytes(&full)), is_directory).is_ignore()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_those_of_gitignore() {
        let patterns = ["*.o", "!keep.o", "/top", "build/", "a/**/z"].map(str::to_owned);
        let filter = Filter::new(&patterns, &[]).unwrap();
        for (path, name, directory, excluded) in [
            ("", "x.o", false, true),
            ("deep/er", "x.o", false, true),
            ("", "keep.o", false, false),
            ("", "top", false, true),
            ("sub", "top", false, false),
            ("sub", "build", true, true),
            ("sub", "build", false, false),
            ("a/b/c", "z", false, true),
            ("", "x.c", false, false),
        ] {
            assert_eq!(
                filter.excludes(path.as_bytes(), name.as_bytes(), directory),
                excluded,
                "{path}/{name}"
            );
        }
        assert!(!filter.excludes(b"a\xff", b"\xfe.c", false));
        assert!(filter.excludes(b"a\xff", b"\xfe.o", false));
        assert!(Filter::new(&[], &["/nonexistent/patterns".into()]).is_err());
        assert!(!Filter::default().excludes(b"", b"x.o", false));
    }
}
