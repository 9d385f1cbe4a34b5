//! The other side of [`crate::wire`]: requests carried out on an open pool.

use std::collections::BTreeSet;
use std::io::{self, BufWriter, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use snowmelt_dataset::receive::{Observer, ReceiveEvent, ReceiveOptions, resume_token};
use snowmelt_dataset::send::{SendFlags, SendPlan, Source};
use snowmelt_dataset::{
    Catalog, CreateOptions, Dataset, DatasetError, Datasets, DestroyPlan, Found, Kind as DatasetKind, Name,
    Objset, RenameOptions, SendError, text,
};
use snowmelt_stream::features::Features;
use snowmelt_stream::token::ResumeToken;

use crate::access::{self, Access};
use crate::error::{Failure, FailureKind};
use crate::heal;
use crate::request::{
    Action, Answer, BookmarkInfo, DatasetInfo, Describe, Kind, ReadRequest, ReceiveRequest, Request,
    SendRequest, SnapshotInfo, TakeIn, TakenIn,
};
use crate::wire::{Channel, Handler, Patience, WireError, serve};

/// Interval of the check whether a request was cancelled.
const WATCH_INTERVAL: Duration = Duration::from_millis(100);
/// Lines that one client may write into the pool's history.
const NOTES_MAX: u32 = 1000;

/// Takes in a directory or an image, of which the pool that is served is the shadow.
pub trait Taker: Sync {
    /// Brings the pool's dataset up to date. `stop` is set when this is cancelled.
    ///
    /// # Errors
    /// `Busy` when another process is doing this.
    fn take_in(&self, how: &TakeIn, stop: &AtomicBool) -> Result<TakenIn, Failure>;

    /// The last state in the shadow was sent to `target`.
    ///
    /// # Errors
    /// When that cannot be noted.
    fn sent(&self, target: &str) -> Result<(), Failure>;
}

/// Serves a pool to the client at the other side of `input` and `output`, within the limits of `access`, until the
/// client disconnects or `cancelled` is set. With a `taker`, the pool is the shadow of the directory or image that
/// the `taker` reads.
///
/// # Errors
/// When the client is none, or breaks the protocol.
pub fn serve_pool(
    datasets: &Arc<Datasets>,
    access: &Access,
    taker: Option<&dyn Taker>,
    input: impl io::Read + Send + 'static,
    output: impl Write + Send + 'static,
    cancelled: &AtomicBool,
) -> Result<(), WireError> {
    serve(
        input,
        output,
        Patience::default(),
        &Server { datasets, access, taker, cancelled, notes: AtomicU32::new(0), growth: Mutex::new(()) },
    )
}

struct Server<'a> {
    datasets: &'a Arc<Datasets>,
    access: &'a Access,
    taker: Option<&'a dyn Taker>,
    cancelled: &'a AtomicBool,
    /// Lines that the client has written into the history.
    notes: AtomicU32,
    /// Held from the check of a limit until the object is created.
    growth: Mutex<()>,
}

impl Handler for Server<'_> {
    fn handle(&self, request: Request, channel: &Arc<Channel>) -> Result<Answer, Failure> {
        self.access.check_request(&request)?;
        match request {
            Request::Describe(what) => self.describe(&what, channel),
            Request::Send(request) => self.send(&request, channel),
            Request::Receive(request) => self.receive(&request, channel),
            Request::Sizes { sends } => {
                let catalog = self.datasets.catalog();
                Ok(Answer::Sizes(sends.iter().map(|send| self.size(&catalog, send)).collect()))
            }
            Request::Read(request) => self.read(&request, channel),
            Request::Apply { actions } => {
                Ok(Answer::Applied(actions.iter().map(|action| self.apply(action)).collect()))
            }
            Request::TakeIn(how) => {
                let (taker, stop) = (self.taker()?, AtomicBool::new(false));
                self.watched(channel, &stop, || taker.take_in(&how, &stop)).map(Answer::TakenIn)
            }
            Request::OpenTarget(_) | Request::Relocate { .. } | Request::Bring(_) => {
                Err(Failure::other("this server is not for targets: use 'serve sync --into'"))
            }
            Request::Sent { target } => self.taker()?.sent(&target).map(|()| Answer::Done),
            Request::Wanted { dataset, snapshots } => {
                heal::serve_wanted(self.datasets, &self.access.dataset(&dataset)?, snapshots, channel)
            }
            Request::Blocks { dataset } => {
                heal::serve_blocks(self.datasets, &self.access.dataset(&dataset)?, channel)
            }
            Request::Mend { dataset } => {
                heal::serve_mend(self.datasets, &self.access.dataset(&dataset)?, channel)
            }
        }
    }
}

impl Server<'_> {
    fn taker(&self) -> Result<&dyn Taker, Failure> {
        self.taker.ok_or_else(|| Failure::other("neither a directory nor an image is served"))
    }

    fn describe(&self, what: &Describe, channel: &Arc<Channel>) -> Result<Answer, Failure> {
        self.datasets.settle()?;
        let catalog = self.datasets.catalog();
        let root = match self.access.reaches(&what.root) {
            true => catalog.dataset(&what.root),
            false => Err(DatasetError::NotFound { name: what.root.clone() }),
        };
        let described = match root {
            Ok(root) if what.recursive => catalog.descendants(root)?,
            Ok(root) => vec![root],
            Err(DatasetError::NotFound { .. }) => Vec::new(),
            Err(error) => return Err(error.into()),
        };
        let mut out = BufWriter::new(channel.outgoing());
        for dataset in &described {
            let info = self.info(&catalog, dataset, &what.tag)?;
            serde_json::to_writer(&mut out, &info).map_err(|error| Failure::lost(error.to_string()))?;
            out.write_all(b"\n").map_err(lost)?;
        }
        let out = out.into_inner().map_err(|error| lost(error.into_error()))?;
        out.finish().map_err(|error| Failure::lost(error.to_string()))?;
        Ok(Answer::Done)
    }

    fn info(&self, catalog: &Catalog, dataset: &Dataset, tag: &str) -> Result<DatasetInfo, Failure> {
        let mut snapshots = Vec::new();
        for snapshot in catalog.snapshots(dataset) {
            let snapshot = snapshot?;
            let holds = catalog.holds(snapshot.id)?;
            let clones = catalog.clones(snapshot.id)?;
            let has_clones = clones.iter().any(|clone| self.access.reaches(&clone.name));
            snapshots.push(SnapshotInfo {
                name: snapshot.record.name,
                guid: snapshot.record.guid,
                createtxg: snapshot.id.txg,
                creation: snapshot.record.creation,
                held: holds.iter().any(|(found, _)| found == tag),
                holds: holds.len() as u64,
                has_clones,
            });
        }
        let bookmarks = catalog
            .bookmarks(dataset)?
            .into_iter()
            .map(|bookmark| BookmarkInfo {
                name: bookmark.name,
                guid: bookmark.record.guid,
                createtxg: bookmark.record.createtxg,
            })
            .collect();
        let space = |catalog: &Catalog| catalog.dataset_space(&catalog.dataset_by_id(dataset.id)?);
        let written = match self.datasets.read(space) {
            Ok(space) => space.written,
            // Destroyed meanwhile.
            Err(DatasetError::NotFound { .. }) => 0,
            Err(error) => return Err(error.into()),
        };
        let origin = dataset.record.origin.map(|origin| catalog.snapshot_by_id(origin)).transpose()?;
        let origin = origin.filter(|origin| self.access.reaches(&origin.dataset));
        Ok(DatasetInfo {
            name: dataset.name.clone(),
            kind: match dataset.record.kind {
                DatasetKind::Filesystem => Kind::Filesystem,
                DatasetKind::Volume => Kind::Volume,
            },
            encrypted: dataset.record.content.features.contains(Features::RAW),
            origin: origin.map(|origin| origin.record.guid),
            snapshots,
            bookmarks,
            written,
            resume_token: resume_token(catalog, dataset.id)?,
            inconsistent: dataset.record.inconsistent,
            receiving: self.datasets.is_receiving(dataset.id),
        })
    }

    fn send(&self, request: &SendRequest, channel: &Arc<Channel>) -> Result<Answer, Failure> {
        let plan = self.plan(&self.datasets.catalog(), request)?;
        let stop = plan.cancel_flag();
        let out = channel.outgoing();
        self.watched(channel, &stop, || plan.run(channel.outgoing(), &|_| {}))
            .map_err(|error| self.access.conceal_send(error))?;
        out.finish().map_err(|error| Failure::lost(error.to_string()))?;
        Ok(Answer::Done)
    }

    fn receive(&self, request: &ReceiveRequest, channel: &Arc<Channel>) -> Result<Answer, Failure> {
        let target = self.access.name(&request.target)?;
        let properties = request.properties.len();
        self.access.limits().check_receive(self.access, &self.datasets.catalog(), &target, properties)?;
        let target = target.to_string();
        let origin = request.origin.as_ref().map(|origin| self.access.name(origin)).transpose()?;
        let (properties, left_out) = self.access.properties(&request.properties)?;
        let mut confinement = self.access.confinement();
        confinement.only_adds |= request.only_adds;
        let options = ReceiveOptions {
            force: request.force,
            resumable: true,
            origin: origin.map(|origin| origin.to_string()),
            properties,
            exclude: self.access.excluded(&request.exclude),
            skip_holds: confinement.only_adds,
            confinement,
            ..ReceiveOptions::default()
        };
        let notes = ReceiveNotes::new(left_out);
        // If the sender disconnects, its stream ends after the data that has arrived. This data is not sent again.
        let observer = Observer { event: &|event| notes.add(event), cancelled: self.cancelled };
        match self.datasets.receive(&target, channel.incoming(), &options, &observer) {
            Ok(_) if request.wants_notes => Ok(Answer::Received { notes: notes.into_lines() }),
            Ok(_) => Ok(Answer::Done),
            Err(_) if channel.is_broken() => {
                // The stored part is kept: the sender can connect again.
                Err(Failure::lost("the sender is gone"))
            }
            Err(error) => Err(self.access.conceal_receive(error)),
        }
    }

    fn read(&self, request: &ReadRequest, channel: &Arc<Channel>) -> Result<Answer, Failure> {
        // Each has its own catalog, which is dropped before the long read, so that space that is freed in the
        // meantime can be reused.
        let open = |name: &str| -> Result<Objset, Failure> {
            let catalog = self.datasets.catalog();
            let objset = catalog.objset(&catalog.snapshot(&self.access.name(name)?)?);
            objset.require_readable().map_err(|error| self.access.conceal(error))?;
            Ok(objset)
        };
        let since = request.since.as_deref().map(open).transpose()?;
        crate::objects::answer(&open(&request.snapshot)?, since.as_ref(), channel)
    }

    /// Does `work`, and sets `stop` when it is cancelled.
    fn watched<T>(&self, channel: &Channel, stop: &AtomicBool, work: impl FnOnce() -> T) -> T {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let watcher = scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    if channel.is_broken() || self.cancelled.load(Ordering::Relaxed) {
                        stop.store(true, Ordering::Relaxed);
                    }
                    std::thread::park_timeout(WATCH_INTERVAL);
                }
            });
            let result = work();
            done.store(true, Ordering::Relaxed);
            watcher.thread().unpark();
            result
        })
    }

    fn apply(&self, action: &Action) -> Result<(), Failure> {
        let (datasets, access) = (self.datasets, self.access);
        access.check_action(action)?;
        let _alone = self.growth.lock();
        access.limits().check(access, &datasets.catalog(), action)?;
        let done = match action {
            Action::Snapshot { names } => {
                let names = names.iter().map(|name| access.name(name)).collect::<Result<Vec<_>, _>>()?;
                datasets.snapshot(&names, &[]).map(drop)
            }
            Action::DestroySnapshot { name } => return self.destroy_snapshot(&access.name(name)?),
            Action::Bookmark { snapshot, bookmark } => {
                datasets.bookmark(&access.name(snapshot)?, &access.name(bookmark)?)
            }
            Action::DestroyBookmark { name } => datasets.destroy_bookmark(&access.name(name)?),
            Action::Hold { tag, snapshot } => datasets.hold(tag, &[access.name(snapshot)?]),
            Action::Release { tag, snapshot } => datasets.release(tag, &[access.name(snapshot)?]),
            Action::Rename { from, to } => {
                let options = RenameOptions { parents: true, ..RenameOptions::default() };
                datasets.rename(&access.name(from)?, &access.name(to)?, options)
            }
            // Whether the datasets above the root are there is not told: without them it cannot be received.
            Action::CreateParents { name } if access.is_above(name) => Ok(()),
            Action::CreateParents { name } => {
                let properties = vec![("canmount".to_owned(), "off".to_owned())];
                let options = CreateOptions { parents: true, properties };
                datasets.create_filesystem(&access.dataset(name)?, &options)
            }
            Action::AbortReceive { name } => {
                let aborted = datasets.abort_receive(&access.dataset(name)?);
                return aborted.map_err(|error| access.conceal_receive(error));
            }
            Action::Note { line } => return self.note(line),
        };
        done.map_err(|error| access.conceal(error).into())
    }

    fn destroy_snapshot(&self, name: &Name) -> Result<(), Failure> {
        let catalog = self.datasets.catalog();
        let snapshot = catalog.snapshot(name)?;
        if self.access.keeps_newest()
            && catalog.snapshots_after(&catalog.dataset(name.dataset())?, snapshot.id.txg).next().is_none()
        {
            let why = format!(
                "'{name}' is the newest snapshot, which the next sync needs: it may not be destroyed"
            );
            return Err(Failure::new(FailureKind::NotAllowed, why));
        }
        self.datasets
            .read(|catalog| DestroyPlan::snapshots(catalog, vec![snapshot.clone()], false))
            .and_then(|plan| self.datasets.destroy(&plan).map(drop))
            .map_err(|error| self.access.conceal(error).into())
    }

    fn note(&self, line: &str) -> Result<(), Failure> {
        if self.notes.fetch_add(1, Ordering::Relaxed) >= NOTES_MAX {
            let why = format!("no more than {NOTES_MAX} lines of history in one connection");
            return Err(Failure::new(FailureKind::NotAllowed, why));
        }
        Ok(self.datasets.record_history(&access::note(line))?)
    }

    fn plan(&self, catalog: &Catalog, request: &SendRequest) -> Result<SendPlan, Failure> {
        let access = self.access;
        let made = match &request.token {
            Some(token) => {
                let token = ResumeToken::parse(token)
                    .map_err(|error| Failure::new(FailureKind::CannotResume, error.to_string()))?;
                SendPlan::resume_in(catalog, access.subtree(), &token)
            }
            None => self.new_plan(catalog, request)?,
        };
        made.map_err(|error| access.conceal_send(error))
    }

    fn new_plan(
        &self,
        catalog: &Catalog,
        request: &SendRequest,
    ) -> Result<Result<SendPlan, SendError>, Failure> {
        let access = self.access;
        let flags = SendFlags {
            large_blocks: request.large_blocks || request.raw,
            embed: true,
            compressed: true,
            raw: request.raw,
            properties: request.properties,
            within: access.subtree().cloned(),
            ..SendFlags::default()
        };
        let to = catalog.snapshot(&access.name(&request.to)?)?;
        let from = match &request.from {
            None => Source::None,
            Some(name) => match catalog.find(&access.name(name)?)? {
                Found::Snapshot(snapshot) => Source::Snapshot(snapshot),
                Found::Bookmark(bookmark) => Source::Bookmark(bookmark),
                Found::Dataset(_) => return Err(DatasetError::WrongType { name: name.clone() }.into()),
            },
        };
        if !request.intermediate {
            return Ok(SendPlan::single(catalog, &to, from, &flags));
        }
        // From the beginning, a clone would be sent as what differs from its origin.
        let dataset = catalog.dataset_by_id(to.id.dataset)?;
        if let (Source::None, Some(origin)) = (&from, dataset.record.origin) {
            let origin = catalog.snapshot_by_id(origin)?;
            if !access.reaches(&origin.dataset) {
                return Err(Failure::other(format!(
                    "'{to}': send its first snapshot in full first",
                    to = request.to
                )));
            }
        }
        Ok(SendPlan::all_between(catalog, from, &to, &flags))
    }

    fn size(&self, catalog: &Catalog, request: &SendRequest) -> Result<u64, Failure> {
        let plan = self.plan(catalog, request)?;
        let failed = |error| self.access.conceal_send(error);
        let steps: u64 = plan.estimate().map_err(failed)?.iter().map(|step| step.size).sum();
        Ok(steps + plan.package_size().map_err(failed)?)
    }
}

/// Notes for the client about a successful receive.
struct ReceiveNotes {
    left_out: Mutex<BTreeSet<String>>,
}

impl ReceiveNotes {
    /// Maximum number of names in the message.
    const NAMES_MAX: usize = 100;

    fn new(left_out: Vec<String>) -> Self {
        Self { left_out: Mutex::new(left_out.into_iter().take(Self::NAMES_MAX).collect()) }
    }

    fn add(&self, event: ReceiveEvent) {
        let ReceiveEvent::PropertyLeftOut { name } = event else { return };
        let mut left_out = self.left_out.lock();
        if left_out.len() < Self::NAMES_MAX {
            left_out.insert(text::visible_name(name.as_bytes()));
        }
    }

    fn into_lines(self) -> Vec<String> {
        let names: Vec<String> = self.left_out.into_inner().into_iter().collect();
        match names.is_empty() {
            true => Vec::new(),
            false => vec![format!(
                "the target does not take these properties from a sync: {} (see --allow-property)",
                names.join(", ")
            )],
        }
    }
}

fn lost(error: io::Error) -> Failure {
    Failure::lost(error.to_string())
}
