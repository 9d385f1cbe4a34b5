//! What is on this machine.

use std::ffi::OsStr;
use std::fs::Metadata;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use snowmelt_dataset::Name;
use snowmelt_fs::mirror::{Image, Mirror, MirrorError, RECORD_DIRECTORY, record_of_image};
use snowmelt_stream::wire::MAGIC;

use super::explain::explained;
use super::opened::{Opened, Thing};
use super::{Material, Target, Watcher, stream_file};
use crate::error::Failure;
use crate::request::{Bring, Brought, Form, Kind, OpenTarget, Relocation, TargetState};

/// What files with a stream are called that are not there yet.
const STREAM_EXTENSIONS: [&str; 2] = ["zstream", "zfs"];

/// A target on this machine.
pub struct Here {
    path: PathBuf,
    /// Where the records of block devices are.
    devices: PathBuf,
    opened: Option<Opened>,
}

impl Here {
    /// At `path`. Records of block devices are in the directory `devices`, which need not exist.
    pub fn new(path: PathBuf, devices: PathBuf) -> Self {
        Self { path, devices, opened: None }
    }

    /// The path of what is to be opened. What leads there from the target is directories and no links.
    fn place(&self, below: &[String], dry_run: bool) -> Result<PathBuf, Failure> {
        let mut path = self.path.clone();
        for (at, name) in below.iter().enumerate() {
            // A rehearsal also looks at copies that wait for their place.
            if !(dry_run && at == 0 && name == RECORD_DIRECTORY) {
                check_name(name)?;
            }
            path.push(name);
            match std::fs::symlink_metadata(&path) {
                Ok(found) if found.is_symlink() || at + 1 < below.len() && !found.is_dir() => {
                    return Err(Failure::other(format!(
                        "'{}' is in the way: remove it, and sync again",
                        path.display()
                    )));
                }
                _ => {}
            }
        }
        Ok(path)
    }

    /// What was opened.
    pub(super) fn form(&self) -> Option<Form> {
        self.opened.as_ref().map(|opened| opened.form)
    }

    fn open_at(&self, path: PathBuf, form: Form, what: &OpenTarget) -> Result<Opened, MirrorError> {
        let thing = match form {
            Form::Stream => Thing::Stream,
            Form::Directory if is_untouched(&path, what) => Thing::Untouched,
            Form::Directory => {
                let mut mirror = Mirror::open(&path, &what.source, what.force)?;
                if !what.dry_run {
                    mirror.nest(&what.children)?;
                }
                Thing::Directory(mirror)
            }
            Form::Image if what.dry_run && !path.exists() => Thing::Untouched,
            Form::Image => {
                let record = self.image_record(&path)?;
                Thing::Image(Image::open(&path, &record, &what.source, what.force)?)
            }
        };
        Ok(Opened { thing, form, path, source: what.source.clone(), children: what.children.clone() })
    }

    /// Where the record of an image is: beside it; that of a device with what this machine keeps for its user.
    fn image_record(&self, path: &Path) -> Result<PathBuf, MirrorError> {
        use std::os::unix::fs::FileTypeExt;
        let is_device = std::fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device());
        if !is_device {
            return Ok(record_of_image(path));
        }
        let local = |step| move |source| MirrorError::Local { path: path.to_owned(), step, source };
        std::fs::create_dir_all(&self.devices).map_err(local("make the directory of its record"))?;
        let whole = path.canonicalize().map_err(local("find it"))?;
        let name = whole.as_os_str().as_bytes().iter().map(|byte| if *byte == b'/' { b'-' } else { *byte });
        let name: Vec<u8> = name.skip(1).collect();
        Ok(self.devices.join(OsStr::from_bytes(&name)))
    }
}

impl Target for Here {
    fn open(&mut self, what: &OpenTarget) -> Result<TargetState, Failure> {
        // Its lock first: it may be what is opened again.
        self.opened = None;
        let path = self.place(&what.below, what.dry_run)?;
        what.children.iter().try_for_each(|name| check_name(name))?;
        let form = match (what.below.is_empty(), what.kind) {
            (true, kind) => form(kind, &path)?,
            (false, Kind::Filesystem) => Form::Directory,
            (false, Kind::Volume) => Form::Image,
        };
        let opened = self.open_at(path, form, what).map_err(|error| explained(&what.source, &error))?;
        let mut state = opened.state();
        if state.is_foreign && !what.force {
            return Err(explained(&what.source, &MirrorError::Foreign { path: opened.path }));
        }
        if what.list {
            state.kept = opened.kept()?;
        }
        self.opened = Some(opened);
        Ok(state)
    }

    fn relocate(&mut self, moves: &[Relocation]) -> Result<Vec<Result<(), Failure>>, Failure> {
        let Some(opened) = &mut self.opened else { return Err(Failure::other("no target was opened")) };
        moves.iter().flat_map(|one| &one.to).try_for_each(|name| check_name(name))?;
        opened.relocate(moves)
    }

    fn bring(
        &mut self,
        how: &Bring,
        material: Material,
        watcher: &mut dyn Watcher,
    ) -> Result<Brought, Failure> {
        let Some(opened) = &mut self.opened else { return Err(Failure::other("no target was opened")) };
        match material {
            Material::Stream(_) if opened.form != Form::Stream => {
                Err(Failure::other("the target is made from snapshots, not from a stream"))
            }
            Material::Stream(source) => {
                let bytes = stream_file::replace(&opened.path, source, watcher)?;
                Ok(Brought { bytes, is_touched: true, ..opened.brought() })
            }
            Material::Snapshots { new, old } => opened.bring(how, new, old, watcher),
        }
    }
}

/// Whether a name can be the last part of that of a dataset, and be used in a path.
fn check_name(name: &str) -> Result<(), Failure> {
    let is_fine = !name.contains('/')
        && ![".", "..", RECORD_DIRECTORY].contains(&name)
        && Name::parse_dataset(&format!("pool/{name}")).is_ok();
    if is_fine { Ok(()) } else { Err(Failure::other(format!("'{name}' is no name of a dataset"))) }
}

/// Whether a rehearsal has to do with a directory that no sync has been at.
fn is_untouched(path: &Path, what: &OpenTarget) -> bool {
    what.dry_run && !path.join(RECORD_DIRECTORY).exists()
}

/// What a target is; one that is not there becomes what suits the dataset.
fn form(kind: Kind, path: &Path) -> Result<Form, Failure> {
    let is_named_stream = is_stream_name(path);
    let is_empty = |metadata: &Metadata| metadata.is_file() && metadata.len() == 0;
    let form = match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => Form::Directory,
        Ok(metadata) if metadata.is_file() && is_stream(path) => Form::Stream,
        Ok(metadata) if is_empty(&metadata) && is_named_stream => Form::Stream,
        Ok(_) => Form::Image,
        Err(_) if is_named_stream => Form::Stream,
        Err(_) if kind == Kind::Volume => Form::Image,
        Err(_) => Form::Directory,
    };
    match (form, kind) {
        (Form::Directory, Kind::Volume) => {
            Err(Failure::other("a volume goes into an image or a block device, not into a directory"))
        }
        (Form::Image, Kind::Filesystem) => Err(Failure::other(
            "a filesystem goes into a directory, and this is a file without a stream in it\n\
             remove it, or name a file that ends in .zstream",
        )),
        _ => Ok(form),
    }
}

/// Whether a file that is not there yet is to become a stream.
pub fn is_stream_name(path: &Path) -> bool {
    path.extension().is_some_and(|extension| STREAM_EXTENSIONS.iter().any(|known| extension == *known))
}

/// Whether a file begins as a stream does, in either byte order.
pub fn is_stream(path: &Path) -> bool {
    let mut begin = [0; 16];
    let read = std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut begin));
    let [.., a, b, c, d, e, f, g, h] = begin;
    let magic = [a, b, c, d, e, f, g, h];
    read.is_ok() && (u64::from_le_bytes(magic) == MAGIC || u64::from_be_bytes(magic) == MAGIC)
}
