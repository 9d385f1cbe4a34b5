//! The other side of [`crate::wire`]: requests carried out on an open pool.

use std::io::{self, BufWriter, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use snowmelt_dataset::receive::{Observer, ReceiveOptions, resume_token};
use snowmelt_dataset::send::{SendFlags, SendPlan, Source};
use snowmelt_dataset::{
    Catalog, CreateOptions, Dataset, DatasetError, Datasets, DestroyPlan, Found, Kind as DatasetKind, Name,
    Objset, RenameOptions,
};
use snowmelt_stream::features::Features;
use snowmelt_stream::token::ResumeToken;

use crate::error::{Failure, FailureKind};
use crate::heal;
use crate::request::{
    Action, Answer, BookmarkInfo, DatasetInfo, Describe, Kind, ReadRequest, ReceiveRequest, Request,
    SendRequest, SnapshotInfo, TakeIn, TakenIn,
};
use crate::wire::{Channel, Handler, Patience, WireError, serve};

/// How soon a request learns that nobody wants it any more.
const WATCH_INTERVAL: Duration = Duration::from_millis(100);

/// Takes in a directory or an image, of which the pool that is served is the shadow.
pub trait Taker: Sync {
    /// Brings the pool's dataset up to date; `stop` is set when nobody wants that any more.
    ///
    /// # Errors
    /// `Busy` when somebody else is at it.
    fn take_in(&self, how: &TakeIn, stop: &AtomicBool) -> Result<TakenIn, Failure>;

    /// What was taken in last has gone to `target`.
    ///
    /// # Errors
    /// When that cannot be noted.
    fn sent(&self, target: &str) -> Result<(), Failure>;
}

/// Serves a pool to the client at the other side of `input` and `output`, until it is gone or `cancelled` is set. With a
/// `taker`, it is served as what that takes in.
///
/// # Errors
/// When the client is none, or breaks the protocol.
pub fn serve_pool(
    datasets: &Arc<Datasets>,
    taker: Option<&dyn Taker>,
    input: impl io::Read + Send + 'static,
    output: impl Write + Send + 'static,
    cancelled: &AtomicBool,
) -> Result<(), WireError> {
    serve(input, output, Patience::default(), &Server { datasets, taker, cancelled })
}

struct Server<'a> {
    datasets: &'a Arc<Datasets>,
    taker: Option<&'a dyn Taker>,
    cancelled: &'a AtomicBool,
}

impl Handler for Server<'_> {
    fn handle(&self, request: Request, channel: &Arc<Channel>) -> Result<Answer, Failure> {
        match request {
            Request::Describe(what) => self.describe(&what, channel),
            Request::Send(request) => self.send(&request, channel),
            Request::Receive(request) => self.receive(&request, channel),
            Request::Sizes { sends } => {
                let catalog = self.datasets.catalog();
                Ok(Answer::Sizes(sends.iter().map(|send| size(&catalog, send)).collect()))
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
                Err(Failure::other("what is served here is no target: 'serve sync --into' serves one"))
            }
            Request::Sent { target } => self.taker()?.sent(&target).map(|()| Answer::Done),
            Request::Wanted { dataset, snapshots } => {
                heal::serve_wanted(self.datasets, &dataset, snapshots, channel)
            }
            Request::Blocks { dataset } => heal::serve_blocks(self.datasets, &dataset, channel),
            Request::Mend { dataset } => heal::serve_mend(self.datasets, &dataset, channel),
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
        let described = match catalog.dataset(&what.root) {
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
            let has_clones = !catalog.clones(snapshot.id)?.is_empty();
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
        let origin = match dataset.record.origin {
            Some(origin) => Some(catalog.snapshot_by_id(origin)?.record.guid),
            None => None,
        };
        Ok(DatasetInfo {
            name: dataset.name.clone(),
            kind: match dataset.record.kind {
                DatasetKind::Filesystem => Kind::Filesystem,
                DatasetKind::Volume => Kind::Volume,
            },
            encrypted: dataset.record.content.features.contains(Features::RAW),
            origin,
            snapshots,
            bookmarks,
            written: catalog.dataset_space(dataset)?.written,
            resume_token: resume_token(catalog, dataset.id)?,
            inconsistent: dataset.record.inconsistent,
            receiving: self.datasets.is_receiving(dataset.id),
        })
    }

    fn send(&self, request: &SendRequest, channel: &Arc<Channel>) -> Result<Answer, Failure> {
        let plan = plan(&self.datasets.catalog(), request)?;
        let stop = plan.cancel_flag();
        let out = channel.outgoing();
        self.watched(channel, &stop, || plan.run(channel.outgoing(), &|_| {}))?;
        out.finish().map_err(|error| Failure::lost(error.to_string()))?;
        Ok(Answer::Done)
    }

    fn receive(&self, request: &ReceiveRequest, channel: &Arc<Channel>) -> Result<Answer, Failure> {
        let options = ReceiveOptions {
            force: request.force,
            resumable: true,
            origin: request.origin.clone(),
            properties: request.properties.clone(),
            exclude: request.exclude.clone(),
            ..ReceiveOptions::default()
        };
        // When the sender is gone its stream breaks off by itself, after all that has come: nothing of that is sent twice.
        let observer = Observer { event: &|_| {}, cancelled: self.cancelled };
        match self.datasets.receive(&request.target, channel.incoming(), &options, &observer) {
            Ok(_) => Ok(Answer::Done),
            Err(_) if channel.is_broken() => {
                // What was stored is kept: the sender can connect again.
                Err(Failure::lost("the sender is gone"))
            }
            Err(error) => Err(error.into()),
        }
    }

    fn read(&self, request: &ReadRequest, channel: &Arc<Channel>) -> Result<Answer, Failure> {
        // With a catalog each, gone before there is much to read: what is freed meanwhile is given back.
        let open = |name: &str| -> Result<Objset, Failure> {
            let catalog = self.datasets.catalog();
            let objset = catalog.objset(&catalog.snapshot(&parse(name)?)?);
            objset.require_readable()?;
            Ok(objset)
        };
        let since = request.since.as_deref().map(open).transpose()?;
        crate::objects::answer(&open(&request.snapshot)?, since.as_ref(), channel)
    }

    /// Does `work`, and sets `stop` when nobody wants it any more.
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
        let datasets = self.datasets;
        match action {
            Action::Snapshot { names } => {
                let names = names.iter().map(|name| parse(name)).collect::<Result<Vec<_>, _>>()?;
                datasets.snapshot(&names, &[])?;
            }
            Action::DestroySnapshot { name } => {
                let catalog = datasets.catalog();
                let snapshot = catalog.snapshot(&parse(name)?)?;
                datasets.destroy(&DestroyPlan::snapshots(&catalog, vec![snapshot], false)?)?;
            }
            Action::Bookmark { snapshot, bookmark } => {
                datasets.bookmark(&parse(snapshot)?, &parse(bookmark)?)?;
            }
            Action::DestroyBookmark { name } => datasets.destroy_bookmark(&parse(name)?)?,
            Action::Hold { tag, snapshot } => datasets.hold(tag, &[parse(snapshot)?])?,
            Action::Release { tag, snapshot } => datasets.release(tag, &[parse(snapshot)?])?,
            Action::Rename { from, to } => {
                let options = RenameOptions { parents: true, ..RenameOptions::default() };
                datasets.rename(&parse(from)?, &parse(to)?, options)?;
            }
            Action::CreateParents { name } => {
                let properties = vec![("canmount".to_owned(), "off".to_owned())];
                datasets.create_filesystem(name, &CreateOptions { parents: true, properties })?;
            }
            Action::AbortReceive { name } => datasets.abort_receive(name)?,
            Action::Note { line } => datasets.record_history(&line.replace(char::is_control, "?"))?,
        }
        Ok(())
    }
}

fn parse(name: &str) -> Result<Name, Failure> {
    Name::parse(name).map_err(|error| DatasetError::from(error).into())
}

fn lost(error: io::Error) -> Failure {
    Failure::lost(error.to_string())
}

fn plan(catalog: &Catalog, request: &SendRequest) -> Result<SendPlan, Failure> {
    if let Some(token) = &request.token {
        let token = ResumeToken::parse(token)
            .map_err(|error| Failure::new(FailureKind::CannotResume, error.to_string()))?;
        return Ok(SendPlan::resume(catalog, &token)?);
    }
    let flags = SendFlags {
        large_blocks: request.large_blocks || request.raw,
        embed: true,
        compressed: true,
        raw: request.raw,
        properties: request.properties,
        ..SendFlags::default()
    };
    let to = catalog.snapshot(&parse(&request.to)?)?;
    let from = match &request.from {
        None => Source::None,
        Some(name) => match catalog.find(&parse(name)?)? {
            Found::Snapshot(snapshot) => Source::Snapshot(snapshot),
            Found::Bookmark(bookmark) => Source::Bookmark(bookmark),
            Found::Dataset(_) => return Err(DatasetError::WrongType { name: name.clone() }.into()),
        },
    };
    Ok(match request.intermediate {
        true => SendPlan::all_between(catalog, from, &to, &flags)?,
        false => SendPlan::single(catalog, &to, from, &flags)?,
    })
}

fn size(catalog: &Catalog, request: &SendRequest) -> Result<u64, Failure> {
    let plan = plan(catalog, request)?;
    let steps: u64 = plan.estimate()?.iter().map(|step| step.size).sum();
    Ok(steps + plan.package_size()?)
}
