//! Targets on this machine.

use std::fs::Metadata;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use snowmelt_dataset::Name;
use snowmelt_fs::beneath::{Directory, Place};
use snowmelt_fs::mirror::{Image, Mirror, MirrorError, RECORD_DIRECTORY, enter_copy, is_reserved};
use snowmelt_fs::restore::Privileges;
use snowmelt_stream::wire::MAGIC;

use super::explain::explained;
use super::opened::{Opened, Thing};
use super::{Material, Target, Watcher, stream_file};
use crate::error::Failure;
use crate::request::{Bring, Brought, Form, Kind, OpenTarget, Relocation, TargetState};

/// The extensions that make a new file a stream file.
const STREAM_EXTENSIONS: [&str; 2] = ["zstream", "zfs"];

/// A target on this machine.
pub struct Here {
    path: PathBuf,
    /// Where the records of block devices are.
    devices: PathBuf,
    /// The privileged attributes to restore on this machine.
    privileges: Privileges,
    opened: Option<Opened>,
}

impl Here {
    /// At `path`. Records of block devices are in the directory `devices`, which need not exist.
    pub fn new(path: PathBuf, devices: PathBuf) -> Self {
        Self { path, devices, privileges: Privileges::default(), opened: None }
    }

    /// With the privileged attributes in `privileges`. The peer does not choose these.
    #[must_use]
    pub fn with_privileges(self, privileges: Privileges) -> Self {
        Self { privileges, ..self }
    }

    /// The target to open. The path to it consists of directories, not of links: each is opened in its parent, and
    /// stays open.
    fn spot(&self, below: &[String], dry_run: bool) -> Result<Spot, Failure> {
        let Some((last, above)) = below.split_last() else { return Ok(Spot::Top) };
        // A rehearsal also looks at copies that wait for their place.
        let waits = |at: usize, name: &str| dry_run && at == 0 && name == RECORD_DIRECTORY;
        let mut names = below.iter().enumerate().filter(|(at, name)| !waits(*at, name));
        names.try_for_each(|(_, name)| check_name(name))?;
        let top = Directory::named(&self.path);
        let Some(mut directory) = found(top, &self.path, dry_run)? else { return Ok(Spot::Missing) };
        for (at, name) in above.iter().enumerate() {
            let path = directory.path_of(name.as_bytes());
            let next = match waits(at, name) {
                true => directory.child(name.as_bytes()),
                false => enter_copy(&directory, name.as_bytes()),
            };
            let Some(next) = found(next, &path, dry_run)? else { return Ok(Spot::Missing) };
            directory = next;
        }
        Ok(Spot::Below(directory.place(last.as_bytes())))
    }

    /// The opened target.
    pub(super) fn form(&self) -> Option<Form> {
        self.opened.as_ref().map(|opened| opened.form)
    }

    fn opened_before(&mut self) -> Result<&mut Opened, Failure> {
        self.opened.as_mut().ok_or_else(|| Failure::other("no target was opened"))
    }

    /// The opened target, if this is not a dry run.
    fn opened_for_change(&mut self) -> Result<&mut Opened, Failure> {
        let opened = self.opened_before()?;
        match opened.is_rehearsal {
            true => Err(Failure::other("the target was opened for a dry run, and cannot be changed")),
            false => Ok(opened),
        }
    }

    fn open_at(&self, spot: &Spot, form: Form, what: &OpenTarget) -> Result<Opened, MirrorError> {
        let untouched = if what.dry_run { self.untouched(spot, form)? } else { None };
        let thing = match (form, spot, untouched) {
            (Form::Stream, ..) => Thing::Stream,
            (.., Some(is_foreign)) => Thing::Untouched { is_foreign },
            (Form::Directory, ..) => {
                let mut mirror = match spot {
                    Spot::Below(place) => Mirror::open_at(place, &what.source, what.force)?,
                    _ => Mirror::open(&self.path, &what.source, what.force)?,
                };
                if !what.dry_run {
                    mirror.nest(&what.children)?;
                }
                Thing::Directory(mirror)
            }
            (Form::Image, ..) => Thing::Image(match spot {
                Spot::Below(place) => Image::open_at(place, &what.source, what.force)?,
                _ => Image::open(&self.path, &self.devices, &what.source, what.force)?,
            }),
        };
        let path = match spot {
            Spot::Below(place) => place.path(),
            Spot::Top | Spot::Missing => self.path.clone(),
        };
        let (source, children) = (what.source.clone(), what.children.clone());
        Ok(Opened {
            thing,
            form,
            path,
            source,
            children,
            privileges: self.privileges,
            is_rehearsal: what.dry_run,
        })
    }

    /// For a dry run: whether no sync has written there, and if so, whether the place is not empty.
    fn untouched(&self, spot: &Spot, form: Form) -> Result<Option<bool>, MirrorError> {
        let look = || -> io::Result<Option<bool>> {
            match (form, spot) {
                (Form::Stream, _) => Ok(None),
                (_, Spot::Missing) => Ok(Some(false)),
                (Form::Image, Spot::Below(place)) => Ok(place.stat()?.is_none().then_some(false)),
                (Form::Image, Spot::Top) => Ok((!self.path.exists()).then_some(false)),
                (Form::Directory, Spot::Below(place)) => match place.stat()? {
                    None => Ok(Some(false)),
                    Some(_) => untouched(&enter_copy(&place.directory, &place.name)?),
                },
                (Form::Directory, Spot::Top) => match Directory::named(&self.path) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Some(false)),
                    opened => untouched(&opened?),
                },
            }
        };
        let path = || self.path.clone();
        look().map_err(|source| MirrorError::Local { path: path(), step: "look at what is there", source })
    }
}

/// Where a target is.
enum Spot {
    /// The path that the user has named.
    Top,
    /// Below it.
    Below(Place),
    /// Below it, in a directory that is not there; in a rehearsal only.
    Missing,
}

/// A directory that leads to a target; in a rehearsal it may be missing.
fn found(
    opened: io::Result<Directory>,
    path: &Path,
    may_be_missing: bool,
) -> Result<Option<Directory>, Failure> {
    use io::ErrorKind::{CrossesDevices, NotADirectory, NotFound};
    let is_link = |error: &io::Error| error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error());
    let shown = path.display();
    match opened {
        Ok(directory) => Ok(Some(directory)),
        Err(error) if error.kind() == NotFound && may_be_missing => Ok(None),
        Err(error) if error.kind() == NotADirectory || is_link(&error) => {
            Err(Failure::other(format!("'{shown}' is in the way: remove it, and sync again")))
        }
        Err(error) if error.kind() == CrossesDevices => Err(Failure::other(format!(
            "'{shown}' is a mount point, and has no copy: first sync the dataset that belongs there into it"
        ))),
        Err(error) => Err(Failure::other(format!("{shown}: cannot open the directory: {error}"))),
    }
}

/// Whether no sync has been at a directory, and if so, whether it holds something.
fn untouched(directory: &Directory) -> io::Result<Option<bool>> {
    let names = directory.names()?;
    let is_ours = names.iter().any(|name| name == RECORD_DIRECTORY.as_bytes());
    Ok((!is_ours).then_some(!names.is_empty()))
}

impl Target for Here {
    fn open(&mut self, what: &OpenTarget) -> Result<TargetState, Failure> {
        // Its lock is released first, because the same target may be opened again.
        self.opened = None;
        check_text(&what.source)?;
        let spot = self.spot(&what.below, what.dry_run)?;
        what.children.iter().try_for_each(|name| check_name(name))?;
        let form = match (what.below.is_empty(), what.kind) {
            (true, kind) => form(kind, &self.path)?,
            (false, Kind::Filesystem) => Form::Directory,
            (false, Kind::Volume) => Form::Image,
        };
        let opened = self.open_at(&spot, form, what).map_err(|error| explained(&what.source, &error))?;
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
        let opened = self.opened_for_change()?;
        moves.iter().flat_map(|one| &one.to).try_for_each(|name| check_name(name))?;
        moves.iter().try_for_each(|one| check_text(&one.source))?;
        opened.relocate(moves)
    }

    fn bring(
        &mut self,
        how: &Bring,
        material: Material,
        watcher: &mut dyn Watcher,
    ) -> Result<Brought, Failure> {
        let opened = if how.dry_run { self.opened_before()? } else { self.opened_for_change()? };
        check_text(&how.to.name)?;
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
        && ![".", ".."].contains(&name)
        && !is_reserved(name.as_bytes())
        && Name::parse_dataset(&format!("pool/{name}")).is_ok();
    if is_fine { Ok(()) } else { Err(Failure::other(format!("'{name}' is not a valid name of a dataset"))) }
}

/// Whether a text can be noted in a record, where it has a line.
fn check_text(text: &str) -> Result<(), Failure> {
    match text.contains(char::is_control) {
        true => Err(Failure::other(format!("{text:?} has control characters, so it cannot be recorded"))),
        false => Ok(()),
    }
}

/// The kind of a target. A target that does not exist gets the kind that fits the dataset.
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
            "a filesystem goes into a directory, and this is a file that is not a stream\nremove it, or name a \
             file that ends in .zstream",
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
