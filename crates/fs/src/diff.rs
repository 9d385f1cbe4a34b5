//! The differences between two snapshots, in the form of `zfs diff`.
//!
//! The caller finds the changed objects by comparing the trees. The kind of change follows from an object's attributes
//! and path in both snapshots. The rules and the text are those of `lib/libzfs/libzfs_diff.c`. A path is found through
//! the parent of each file, like in `zfs_obj_to_path` of `module/zfs/zfs_znode.c`.

use crate::error::FsError;
use crate::names::Names;
use snowmelt_zpl::{DMU_OT_SA, DMU_OT_ZNODE, FileKind, Filesystem, Objects, Timestamp, ZplError};
use std::io::{self, Write};

/// The kind of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// "+": the file is new.
    Added {
        /// Its path.
        path: Vec<u8>,
    },
    /// "-": the file was removed.
    Removed {
        /// Its path in the older snapshot.
        path: Vec<u8>,
    },
    /// "M": its content or attributes changed.
    Modified {
        /// Its path.
        path: Vec<u8>,
    },
    /// "M" with a count: names were added or removed.
    Linked {
        /// One of its paths.
        path: Vec<u8>,
        /// Number of added names, negative for removed ones.
        delta: i64,
    },
    /// "R": it was renamed.
    Renamed {
        /// Its path in the older snapshot.
        from: Vec<u8>,
        /// Its path in the newer one.
        to: Vec<u8>,
    },
}

/// A change, with the further information of `zfs diff -F -t`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Object number.
    pub object: u64,
    /// The change.
    pub change: Change,
    /// The file's type.
    pub kind: FileKind,
    /// Its time of change, which is that of the older snapshot for a removed file.
    pub ctime: Timestamp,
}

/// The output format.
#[derive(Debug, Clone, Default)]
pub struct Format {
    /// Prefix of every path. In `zfs diff` it is the mount point.
    pub prefix: Vec<u8>,
    /// `-H`: a tab instead of an arrow between the names of a rename.
    pub scripted: bool,
    /// `-F`: a character for the file type.
    pub classify: bool,
    /// `-t`: the time of change first.
    pub timestamps: bool,
    /// `-h`: names are not escaped.
    pub no_mangle: bool,
}

/// The state of an object in one snapshot.
struct State {
    kind: FileKind,
    generation: u64,
    links: u64,
    ctime: Timestamp,
    path: Vec<u8>,
    /// Whether it was removed but still open when the snapshot was taken.
    deleted: bool,
}

/// What `zfs diff` prints for files that were removed but still open.
const ON_DELETE_QUEUE: &[u8] = b"(on_delete_queue)";

/// Compares two snapshots of one filesystem (or of a clone and its origin).
pub struct Differ<'f, A, B> {
    from: Names<&'f Filesystem<A>>,
    to: Names<&'f Filesystem<B>>,
}

impl<'f, A: Objects, B: Objects> Differ<'f, A, B> {
    /// A comparison of `from` with the later snapshot `to`.
    pub fn new(from: &'f Filesystem<A>, to: &'f Filesystem<B>) -> Self {
        Self { from: Names::new(from), to: Names::new(to) }
    }

    /// The differences of a changed object: none, one, or two if it was replaced by another file.
    ///
    /// # Errors
    /// If the object cannot be read in one of the snapshots.
    pub fn object(&mut self, object: u64) -> Result<Vec<Difference>, FsError> {
        if self.from.fs.shares() == Some(object) || self.to.fs.shares() == Some(object) {
            return Ok(Vec::new());
        }
        let at = |error| FsError::zpl(format!("object {object}").as_bytes())(error);
        let from = state(&mut self.from, object).map_err(at)?;
        let to = state(&mut self.to, object).map_err(at)?;
        let exists = self.to.fs.objects().dnode(object);
        let exists = exists.map_err(|source| at(ZplError::Source { object, source }))?.is_some();
        Ok(match (from, to) {
            (None, None) => Vec::new(),
            (None, Some(to)) => vec![difference(object, &to, Change::Added { path: to.path.clone() })],
            // The object no longer exists, and was already deleted in the older snapshot.
            (Some(from), None) if from.deleted && !exists => Vec::new(),
            (Some(from), None) => {
                vec![difference(object, &from, Change::Removed { path: from.path.clone() })]
            }
            (Some(from), Some(to)) => compare(object, &from, &to),
        })
    }

    /// Writes the differences of the `changed` objects, which are in ascending order.
    ///
    /// # Errors
    /// If an object cannot be read, `changed` fails or `out` cannot be written.
    pub fn write<E>(
        &mut self,
        changed: impl IntoIterator<Item = Result<u64, E>>,
        format: &Format,
        out: &mut impl Write,
    ) -> Result<(), E>
    where
        E: From<FsError>,
    {
        for object in changed {
            for difference in self.object(object?)? {
                difference.write(format, out).map_err(FsError::from)?;
            }
        }
        Ok(())
    }
}

fn difference(object: u64, state: &State, change: Change) -> Difference {
    Difference { object, change, kind: state.kind, ctime: state.ctime }
}

/// `None` if the object is not a file or has no path.
fn state<O: Objects>(names: &mut Names<&Filesystem<O>>, object: u64) -> Result<Option<State>, ZplError> {
    let dnode = names.fs.objects().dnode(object).map_err(|source| ZplError::Source { object, source })?;
    if !dnode.is_some_and(|dnode| matches!(dnode.bonus_type, DMU_OT_SA | DMU_OT_ZNODE)) {
        return Ok(None);
    }
    let attributes = names.fs.attributes(object)?;
    let deleted = names.is_deleted(object)?;
    let path = match deleted {
        true => Some(ON_DELETE_QUEUE.to_vec()),
        false => names.path(&attributes)?,
    };
    Ok(path.map(|path| State {
        kind: attributes.kind(),
        generation: attributes.generation,
        links: attributes.links,
        ctime: attributes.ctime,
        path,
        deleted,
    }))
}

fn compare(object: u64, from: &State, to: &State) -> Vec<Difference> {
    // An object may be used again for another file. If the type differs, it is another file even if the generation is
    // the same.
    if from.generation != to.generation || from.kind != to.kind {
        return vec![
            difference(object, from, Change::Removed { path: from.path.clone() }),
            difference(object, to, Change::Added { path: to.path.clone() }),
        ];
    }
    if from.ctime == to.ctime {
        return Vec::new();
    }
    let directory = from.kind == FileKind::Directory;
    let delta = match directory || from.links == 0 || to.links == 0 {
        true => 0,
        false => (to.links as i64).wrapping_sub(from.links as i64),
    };
    let change = match delta {
        0 if from.path == to.path => Change::Modified { path: from.path.clone() },
        0 => Change::Renamed { from: from.path.clone(), to: to.path.clone() },
        delta if delta > 0 => Change::Linked { path: from.path.clone(), delta },
        delta => Change::Linked { path: to.path.clone(), delta },
    };
    vec![difference(object, to, change)]
}

/// The character of `zfs diff -F`.
fn kind_letter(kind: FileKind) -> char {
    match kind {
        FileKind::BlockDevice => 'B',
        FileKind::CharDevice => 'C',
        FileKind::Directory => '/',
        FileKind::Fifo => '|',
        FileKind::Symlink => '@',
        FileKind::Socket => '=',
        FileKind::File => 'F',
        FileKind::Unknown => '?',
    }
}

impl Format {
    fn path(&self, path: &[u8], out: &mut impl Write) -> io::Result<()> {
        for part in [&self.prefix, path] {
            if self.no_mangle {
                out.write_all(part)?;
                continue;
            }
            for byte in part {
                match byte {
                    b'!'..=b'~' if *byte != b'\\' => out.write_all(&[*byte])?,
                    _ => write!(out, "\\{byte:04o}")?,
                }
            }
        }
        Ok(())
    }
}

impl Difference {
    /// Writes the line that `zfs diff` prints.
    ///
    /// # Errors
    /// If `out` cannot be written.
    pub fn write(&self, format: &Format, out: &mut impl Write) -> io::Result<()> {
        if format.timestamps {
            write!(out, "{:10}.{:09}\t", self.ctime.seconds, self.ctime.nanoseconds)?;
        }
        let letter = match &self.change {
            Change::Added { .. } => '+',
            Change::Removed { .. } => '-',
            Change::Modified { .. } | Change::Linked { .. } => 'M',
            Change::Renamed { .. } => 'R',
        };
        write!(out, "{letter}\t")?;
        if format.classify {
            write!(out, "{}\t", kind_letter(self.kind))?;
        }
        match &self.change {
            Change::Added { path } | Change::Removed { path } | Change::Modified { path } => {
                format.path(path, out)?
            }
            Change::Linked { path, delta } => {
                format.path(path, out)?;
                write!(out, "\t({delta:+})")?;
            }
            Change::Renamed { from, to } => {
                format.path(from, out)?;
                out.write_all(if format.scripted { b"\t" } else { b" -> " })?;
                format.path(to, out)?;
            }
        }
        out.write_all(b"\n")
    }
}
