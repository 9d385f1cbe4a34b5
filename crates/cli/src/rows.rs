//! Questions that any process may put to the owner of a pool, as `snowmelt rows POOL QUESTION`, and answers that
//! it merges with those of other pools. Both are JSON; both ends are the same program.

use serde::{Deserialize, Serialize};

use crate::context::Context;
use crate::error::{CliError, Result};
use crate::listing::{Request, Rows, collect};
use crate::pools::Session;
use crate::report;

/// A question about one pool.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Query {
    /// Rows for `list` and `get`.
    Listing(Request),
    /// How the pool is.
    Pool,
    /// What was done to it.
    History,
}

/// The answer to a [`Query`] of the same name.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Answer {
    Listing(Rows),
    Pool(PoolFacts),
    /// When (seconds since 1970), and what.
    History(Vec<(u64, String)>),
}

/// How a pool is.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PoolFacts {
    pub name: String,
    pub guid: u64,
    /// Where it is.
    pub vdev: String,
    /// Bytes of the store, or what it holds and what its host has free.
    pub size: u64,
    /// Bytes in use.
    pub allocated: u64,
    /// Bytes free.
    pub free: u64,
    pub read_only: bool,
    pub txg: u64,
    pub comment: Option<String>,
    /// What was wrong when it was opened.
    pub faults: Vec<String>,
}

impl PoolFacts {
    /// ONLINE, or DEGRADED if something was wrong when the pool was opened.
    pub fn health(&self) -> &'static str {
        if self.faults.is_empty() { "ONLINE" } else { "DEGRADED" }
    }

    /// Percent of the size that is in use.
    pub fn capacity(&self) -> u64 {
        let percent = u128::from(self.allocated) * 100 / u128::from(self.size.max(1));
        u64::try_from(percent).unwrap_or(100)
    }
}

impl Query {
    /// Answers it from an open pool.
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub fn answer(&self, context: &Context, session: &Session) -> Result<Answer> {
        let attempt = format!("cannot read '{}'", session.name());
        match self {
            Self::Listing(request) => {
                let catalog = session.datasets.catalog();
                let mounted = session.mounts.heads();
                let rows =
                    context.with_style(request.parsable, |style| collect(&catalog, mounted, request, style));
                rows.map(Answer::Listing).map_err(report::failed(&attempt))
            }
            Self::Pool => facts(session).map(Answer::Pool),
            Self::History => {
                let history = session.datasets.catalog().history();
                history.map(Answer::History).map_err(report::failed(&attempt))
            }
        }
    }
}

fn facts(session: &Session) -> Result<PoolFacts> {
    let pool = session.datasets.pool();
    let failed = |error: snowmelt_pool::PoolError| {
        CliError::failed(format!("cannot read '{}'", session.name()), &error)
    };
    let space = pool.space().map_err(failed)?;
    let comment = pool.property("comment").map_err(failed)?;
    let report = pool.open_report();
    let lost = report.passed_over.iter().map(|(txg, why)| format!("txg {txg} could not be read: {why}"));
    let missing = report.missing.iter().map(|segment| format!("segment {segment} is missing or cut short"));
    Ok(PoolFacts {
        name: session.name().to_owned(),
        guid: pool.guid(),
        vdev: pool.store().describe(),
        size: space.size.unwrap_or(space.occupied + space.free),
        allocated: space.allocated,
        free: space.free,
        read_only: pool.is_read_only(),
        txg: pool.committed_txg(),
        comment: comment.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()),
        faults: lost.chain(missing).collect(),
    })
}
