//! Requests of a front end about a pool, and the answers.
//!
//! A request is answered by the process that owns the pool, so requests and replies can travel between processes. Both
//! ends may be builds of different days: fields that an older build does not send have defaults.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use snowmelt_fuse::Mount;

use crate::context::Context;
use crate::damaged;
use crate::error::Result;
use crate::facts::{self, PoolFacts, SegmentFacts};
use crate::listing::{self, Rows};
use crate::pools::Session;
use crate::report;

/// A question about one pool.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Request {
    /// Rows for `list` and `get`.
    Listing(listing::Listing),
    /// How the pool is.
    Pool,
    /// The names of everything in it that is damaged.
    Damage,
    /// The commands that changed it.
    History,
    /// How full its segments are.
    Segments,
    /// The features that something in it uses.
    Features,
    /// What is mounted of it.
    Mounts,
}

/// The reply to a [`Request`] of the same name.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Reply {
    /// Rows for `list` and `get`.
    Listing(Rows),
    /// How the pool is.
    Pool(Box<PoolFacts>),
    /// As in `zpool status -v`. Bytes that are not UTF-8 are replaced.
    Damage(Vec<String>),
    /// When (seconds since 1970), and the command.
    History(Vec<(u64, String)>),
    /// How full each segment is.
    Segments(Vec<SegmentFacts>),
    /// Names of features.
    Features(Vec<String>),
    /// Directories, and the names that what is mounted there has now.
    Mounts(Vec<(PathBuf, String)>),
}

impl Request {
    /// Answers it from an open pool.
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub fn answer(&self, context: &Context, session: &Session) -> Result<Reply> {
        let attempt = format!("cannot read '{}'", session.name());
        match self {
            Self::Listing(request) => {
                let rows = session.datasets.read(|catalog| {
                    let mounted = session.mounts.chosen();
                    context.with_style(request.parsable, |style| {
                        listing::collect(catalog, mounted, request, style)
                    })
                });
                rows.map(Reply::Listing).map_err(report::failed(&attempt))
            }
            Self::Pool => facts::of(session).map(|facts| Reply::Pool(Box::new(facts))),
            Self::Damage => damaged::names(session).map(Reply::Damage),
            Self::History => {
                let history = session.datasets.catalog().history();
                history.map(Reply::History).map_err(report::failed(&attempt))
            }
            Self::Segments => {
                let segments = session.datasets.pool().segments();
                Ok(Reply::Segments(segments.into_iter().map(SegmentFacts::from).collect()))
            }
            Self::Features => {
                let used = session.datasets.features_in_use().map_err(report::failed(&attempt))?;
                Ok(Reply::Features(used.into_iter().map(str::to_owned).collect()))
            }
            Self::Mounts => {
                let catalog = session.datasets.catalog();
                let name = |mount: &Mount| match catalog.dataset_by_id(mount.vfs().dataset_id()) {
                    Ok(dataset) => mount.name_under(&dataset.name),
                    Err(_) => mount.name(),
                };
                let mounts = session.mounts.list();
                let places = mounts.iter().flat_map(|mount| {
                    let name = name(mount);
                    mount.dirs().into_iter().map(move |dir| (dir, name.clone()))
                });
                Ok(Reply::Mounts(places.collect()))
            }
        }
    }
}
