//! A tree of attributes in rsync-huai's format. Every file has the path and the attributes of a file in the served
//! tree, and contains the size of that file instead of its content. So it can be on a small fast disk, or in memory.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::directory::Links;
use super::{Content, DirectorySource, Metadata, Source};

/// The longest text of a size, in bytes.
const SIZE_LEN_MAX: u64 = 32;

/// A tree of attributes, and the tree that it describes.
#[derive(Debug)]
pub struct AttributesSource {
    attributes: DirectorySource,
    path: PathBuf,
    /// Opened when content is first read.
    tree: OnceLock<DirectorySource>,
}

/// The size in such a file: decimal digits, or eight bytes in little-endian order.
fn parse_size(content: &[u8]) -> Option<u64> {
    let text = content.trim_ascii();
    if !text.is_empty() && text.iter().all(u8::is_ascii_digit) {
        return std::str::from_utf8(text).ok()?.parse().ok();
    }
    let size = i64::from_le_bytes(content.try_into().ok()?);
    u64::try_from(size).ok()
}

impl AttributesSource {
    /// A source with the attributes of the first directory and the content of the second one.
    ///
    /// # Errors
    /// When the first directory cannot be opened.
    pub fn open(attributes: &Path, path: impl Into<PathBuf>) -> io::Result<Self> {
        let attributes = DirectorySource::open(attributes)?;
        Ok(Self { attributes, path: path.into(), tree: OnceLock::new() })
    }

    fn tree(&self) -> io::Result<&DirectorySource> {
        if let Some(tree) = self.tree.get() {
            return Ok(tree);
        }
        let opened = DirectorySource::open(&self.path)?;
        Ok(self.tree.get_or_init(|| opened))
    }

    fn sized(&self, path: &[u8], follow: bool, metadata: Metadata) -> io::Result<Metadata> {
        if !metadata.is_file() {
            return Ok(metadata);
        }
        let mut content = Vec::new();
        self.attributes.open(path, follow)?.take(SIZE_LEN_MAX).read_to_end(&mut content)?;
        let size = parse_size(&content);
        let size = size.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "it holds no size"))?;
        Ok(Metadata { size, ..metadata })
    }
}

impl Source for AttributesSource {
    fn metadata(&self, path: &[u8], follow: bool) -> io::Result<Metadata> {
        self.sized(path, follow, self.attributes.metadata(path, follow)?)
    }

    fn read_dir(&self, path: &[u8]) -> io::Result<Vec<(Vec<u8>, io::Result<Metadata>)>> {
        let mut found = self.attributes.read_dir(path)?;
        for (name, metadata) in &mut found {
            if let Ok(it) = metadata.as_ref().copied() {
                let path =
                    if path.is_empty() { name.clone() } else { [path, b"/", name.as_slice()].concat() };
                *metadata = self.sized(&path, false, it);
            }
        }
        Ok(found)
    }

    fn read_link(&self, path: &[u8]) -> io::Result<Vec<u8>> {
        self.attributes.read_link(path)
    }

    fn open(&self, path: &[u8], follow: bool) -> io::Result<Box<dyn Content>> {
        let known = self.metadata(path, follow)?;
        self.tree()?.open_known(path, &known, Links::Inside { last: follow })
    }

    fn xattrs(&self, path: &[u8], follow: bool) -> io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
        self.attributes.xattrs(path, follow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_told_in_digits_or_in_eight_bytes() {
        for (content, size) in [
            (&b"0"[..], Some(0)),
            (b"1234\n", Some(1234)),
            (b"12345678", Some(12_345_678)),
            (&[0, 16, 0, 0, 0, 0, 0, 0], Some(4096)),
            (&[255; 8], None),
            (b"", None),
            (b"\n", None),
            (b"12 x", None),
            (b"99999999999999999999999", None),
        ] {
            assert_eq!(parse_size(content), size, "{content:?}");
        }
    }

    #[test]
    fn attributes_are_of_one_tree_and_content_of_the_other() {
        let dir = tempfile::tempdir().unwrap();
        let (attributes, tree) = (dir.path().join("attributes"), dir.path().join("tree"));
        for root in [&attributes, &tree] {
            std::fs::create_dir_all(root.join("d")).unwrap();
            std::os::unix::fs::symlink("d", root.join("l")).unwrap();
        }
        for name in ["d/a", "d/b", "d/c"] {
            std::fs::write(tree.join(name), "content").unwrap();
            std::fs::write(attributes.join(name), 7_u64.to_le_bytes()).unwrap();
            for root in [&attributes, &tree] {
                let file = std::fs::File::options().write(true).open(root.join(name)).unwrap();
                file.set_modified(std::time::UNIX_EPOCH).unwrap();
            }
        }
        std::fs::write(attributes.join("d/bad"), "no size").unwrap();
        let source = AttributesSource::open(&attributes, &tree).unwrap();
        let mut listed = source.read_dir(b"d").unwrap();
        listed.sort_by(|a, b| a.0.cmp(&b.0));
        let sizes: Vec<_> = listed.into_iter().map(|(_, it)| it.map(|it| it.size).ok()).collect();
        assert_eq!(sizes, [Some(7), Some(7), None, Some(7)]);
        let mut text = String::new();
        source.open(b"l/a", false).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "content");
        std::fs::write(tree.join("d/b"), "longer content").unwrap();
        std::fs::write(tree.join("d/c"), "CONTENT").unwrap();
        for name in [&b"d/b"[..], b"d/c"] {
            let error = source.open(name, false).map(drop).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::STALE.raw_os_error()));
        }
    }
}
