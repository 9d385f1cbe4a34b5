//! What a front end can ask about a pool, and the answers.
//!
//! A request is answered by the process that owns the pool, so requests and replies can travel between processes. Both
//! ends may be builds of different days: fields that an older build does not send have defaults.

use serde::{Deserialize, Serialize};

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
        }
    }
}
