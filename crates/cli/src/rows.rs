//! Questions that any process may put to the owner of a pool, as `snowmelt rows POOL QUESTION`, and answers that
//! it merges with those of other pools. Both are JSON; both ends are the same program.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use snowmelt_pool::{KeyRecord, Kind, ScrubState, ScrubStatus};
use snowmelt_store::{CacheStatus, MemberState, MemberStatus, Traffic, Unanswered};

use crate::context::Context;
use crate::damaged;
use crate::error::{CliError, Result};
use crate::listing::{Request, Rows, collect};
use crate::pools::Session;
use crate::pools::pins::Pin;
use crate::report;

/// A question about one pool.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Query {
    /// Rows for `list` and `get`.
    Listing(Request),
    /// How the pool is.
    Pool,
    /// What of it is damaged, by name.
    Damage,
    /// What was done to it.
    History,
    /// How full its segments are.
    Segments,
}

/// The answer to a [`Query`] of the same name.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Answer {
    Listing(Rows),
    Pool(Box<PoolFacts>),
    /// As `zpool status -v` has it, of bytes that are no UTF-8 something like it.
    Damage(Vec<String>),
    /// When (seconds since 1970), and what.
    History(Vec<(u64, String)>),
    Segments(Vec<SegmentFacts>),
}

/// How a pool is.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
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
    /// Hundredths of what is free that lie between what is in use.
    #[serde(default)]
    pub fragmentation: u64,
    pub read_only: bool,
    pub txg: u64,
    pub comment: Option<String>,
    /// Hundredths of the data.
    pub parity: u8,
    /// Whether the medium below is told at once of what is free, if somebody said so.
    #[serde(default)]
    pub autotrim: Option<bool>,
    /// Of an encrypted pool.
    #[serde(default)]
    pub encryption: Option<EncryptionFacts>,
    /// What was wrong when it was opened.
    pub faults: Vec<String>,
    /// The last scrub.
    pub scan: Option<ScanFacts>,
    /// Blocks known to be damaged.
    pub damaged: u64,
    /// Blocks that the store could not read, since that was cleared.
    pub read_errors: u64,
    /// Blocks whose bytes were wrong, since that was cleared.
    pub checksum_errors: u64,
    /// The members of a mirror; none if the pool is on one device.
    pub members: Vec<MemberFacts>,
    /// The last resilver of the mirror, if there was one.
    pub resilver: Option<ResilverFacts>,
    /// What its owner asked of the object store since it opened the pool; `None` for pools elsewhere.
    #[serde(default)]
    pub requests: Option<Box<RequestFacts>>,
    /// What of a pool in an object store is kept on this machine.
    #[serde(default)]
    pub cache: Option<Box<CacheFacts>>,
    /// Seconds that a member of a mirror may take to answer, if somebody said so.
    #[serde(default)]
    pub deadman: Option<u64>,
    /// What it waits for, if that is long.
    #[serde(default)]
    pub unanswered: Option<String>,
    /// It is not where it was: only name, guid and place are known.
    #[serde(default)]
    pub is_missing: bool,
}

/// The cache of a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheFacts {
    pub directory: String,
    pub size: u64,
    pub used: u64,
    /// Why nothing is kept in it, or nothing more.
    pub trouble: Option<String>,
}

impl From<CacheStatus> for CacheFacts {
    fn from(status: CacheStatus) -> Self {
        Self {
            directory: status.location.directory.display().to_string(),
            size: status.location.max_bytes,
            used: status.bytes,
            trouble: status.trouble,
        }
    }
}

/// A segment.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SegmentFacts {
    pub id: u64,
    /// Blocks of data, or nodes of trees.
    pub is_data: bool,
    pub size: u64,
    /// Bytes of blocks in it that something refers to.
    pub allocated: u64,
    /// Whether it is being written to.
    pub is_open: bool,
}

impl From<snowmelt_pool::SegmentFacts> for SegmentFacts {
    fn from(segment: snowmelt_pool::SegmentFacts) -> Self {
        Self {
            id: segment.id.0,
            is_data: segment.kind == Kind::Data,
            size: segment.len,
            allocated: segment.alive,
            is_open: segment.is_open,
        }
    }
}

/// How a pool is encrypted.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct EncryptionFacts {
    pub suite: String,
    pub location: String,
    pub format: String,
}

impl From<KeyRecord> for EncryptionFacts {
    fn from(record: KeyRecord) -> Self {
        Self {
            suite: record.suite().name().to_owned(),
            location: record.location().to_owned(),
            format: record.format().name().to_owned(),
        }
    }
}

/// A member of a mirror.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MemberFacts {
    pub guid: u64,
    pub path: String,
    /// As zpool(8) has it.
    pub state: String,
    pub why: Option<String>,
    /// Whether it is being given what it lacks, or waits for that.
    pub is_resilvering: bool,
    /// The guid of the member whose place it takes.
    pub replaces: Option<u64>,
    pub read_errors: u64,
    pub write_errors: u64,
    pub checksum_errors: u64,
    /// For how many seconds it has not answered, if it is asked something.
    #[serde(default)]
    pub unanswered: Option<u64>,
}

/// A resilver.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct ResilverFacts {
    pub is_running: bool,
    /// Seconds since 1970; 0 at the end of one that is under way.
    pub started: u64,
    pub ended: u64,
    pub copied: u64,
    pub total: u64,
}

impl From<MemberStatus> for MemberFacts {
    fn from(status: MemberStatus) -> Self {
        Self {
            guid: status.guid,
            path: status.path.display().to_string(),
            state: status.state.to_string(),
            why: status.why,
            is_resilvering: status.is_stale && status.state == MemberState::Online,
            replaces: status.replaces,
            read_errors: status.read_errors,
            write_errors: status.write_errors,
            checksum_errors: status.checksum_errors,
            unanswered: status.unanswered.map(|unanswered| unanswered.since.as_secs()),
        }
    }
}

impl MemberFacts {
    pub fn is_online(&self) -> bool {
        self.state == "ONLINE"
    }

    fn is_well(&self) -> bool {
        self.is_online()
            && !self.is_resilvering
            && self.read_errors + self.write_errors + self.checksum_errors == 0
    }
}

/// Requests to an object store.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RequestFacts {
    pub puts: u64,
    pub gets: u64,
    pub lists: u64,
    pub deletes: u64,
    /// Of all these, repeated attempts.
    pub retries: u64,
    pub bytes_sent: u64,
    pub bytes_received: u64,
}

impl From<Traffic> for RequestFacts {
    fn from(traffic: Traffic) -> Self {
        let Traffic { puts, gets, lists, deletes, retries, bytes_sent, bytes_received } = traffic;
        Self { puts, gets, lists, deletes, retries, bytes_sent, bytes_received }
    }
}

/// A pool's last scrub.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ScanFacts {
    pub state: ScanState,
    /// Whether a process is at it.
    pub is_running: bool,
    /// Seconds since 1970.
    pub started: u64,
    /// When it ended or was paused.
    pub ended: u64,
    /// Seconds of work.
    pub worked: u64,
    /// Bytes that there were, were found so far, and read.
    pub total: u64,
    pub scanned: u64,
    pub issued: u64,
    pub repaired: u64,
    pub errors: u64,
}

/// How a scrub stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ScanState {
    Scanning,
    Paused,
    Finished,
    Canceled,
}

impl From<ScrubStatus> for ScanFacts {
    fn from(status: ScrubStatus) -> Self {
        Self {
            state: match status.state {
                ScrubState::Scanning => ScanState::Scanning,
                ScrubState::Paused => ScanState::Paused,
                ScrubState::Finished => ScanState::Finished,
                ScrubState::Canceled => ScanState::Canceled,
            },
            is_running: status.is_running,
            started: status.started,
            ended: status.ended,
            worked: status.worked,
            total: status.total,
            scanned: status.scanned,
            issued: status.issued,
            repaired: status.repaired,
            errors: status.errors,
        }
    }
}

impl PoolFacts {
    /// What is known of a pool that is not where it was.
    pub fn of_missing(pin: &Pin) -> Self {
        Self {
            name: pin.name.clone(),
            guid: pin.guid,
            vdev: pin.place.display().to_string(),
            is_missing: true,
            ..Self::default()
        }
    }

    /// ONLINE, DEGRADED if something was wrong when the pool was opened, SUSPENDED while its store does not answer,
    /// UNAVAIL if it is not where it was.
    pub fn health(&self) -> &'static str {
        if self.is_missing {
            return "UNAVAIL";
        }
        if self.unanswered.is_some() {
            return "SUSPENDED";
        }
        let is_whole = self.faults.is_empty() && self.members.iter().all(MemberFacts::is_online);
        if is_whole { "ONLINE" } else { "DEGRADED" }
    }

    /// Whether nothing is known to be wrong, nor was since that was cleared.
    pub fn is_well(&self) -> bool {
        !self.is_missing
            && self.faults.is_empty()
            && self.unanswered.is_none()
            && self.damaged == 0
            && self.read_errors == 0
            && self.checksum_errors == 0
            && self.members.iter().all(MemberFacts::is_well)
    }

    /// Things known to be wrong.
    pub fn error_count(&self) -> u64 {
        self.damaged.saturating_add(self.faults.len() as u64)
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
                let mounted = session.mounts.chosen();
                let rows =
                    context.with_style(request.parsable, |style| collect(&catalog, mounted, request, style));
                rows.map(Answer::Listing).map_err(report::failed(&attempt))
            }
            Self::Pool => facts(session).map(|facts| Answer::Pool(Box::new(facts))),
            Self::Damage => damaged::names(session).map(Answer::Damage),
            Self::History => {
                let history = session.datasets.catalog().history();
                history.map(Answer::History).map_err(report::failed(&attempt))
            }
            Self::Segments => {
                let segments = session.datasets.pool().segments();
                Ok(Answer::Segments(segments.into_iter().map(SegmentFacts::from).collect()))
            }
        }
    }
}

fn facts(session: &Session) -> Result<PoolFacts> {
    let pool = session.datasets.pool();
    let unanswered = pool.store().unanswered().filter(|it| it.since >= TOLD_AFTER);
    if let Some(unanswered) = unanswered {
        return Ok(waiting(session, &unanswered));
    }
    let failed = |error: snowmelt_pool::PoolError| {
        CliError::failed(format!("cannot read '{}'", session.name()), &error)
    };
    let space = pool.space().map_err(failed)?;
    let comment = pool.property("comment").map_err(failed)?;
    let (scan, counters) = (pool.scrub_status().map_err(failed)?, pool.damage_counters().map_err(failed)?);
    let damaged = pool.damage().map_err(failed)?.len() as u64;
    let report = pool.open_report();
    let mirror = pool.store().mirror();
    let members = members(session);
    let resilver = mirror.map(|mirror| mirror.resilver_status()).filter(|status| status.started > 0);
    let lost = report.passed_over.iter().map(|(txg, why)| format!("txg {txg} could not be read: {why}"));
    let missing = report.missing.iter().map(|segment| format!("segment {segment} is missing or cut short"));
    Ok(PoolFacts {
        name: session.name().to_owned(),
        guid: pool.guid(),
        vdev: if members.is_empty() { pool.store().describe() } else { "mirror-0".to_owned() },
        size: space.size.unwrap_or(space.allocated + space.free),
        allocated: space.allocated,
        free: space.free,
        fragmentation: space.fragmentation(),
        read_only: pool.is_read_only(),
        txg: pool.committed_txg(),
        parity: pool.parity(),
        autotrim: pool.autotrim().map_err(failed)?,
        encryption: pool.key_record().map(Into::into),
        comment: comment.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()),
        faults: lost.chain(missing).collect(),
        scan: scan.map(ScanFacts::from),
        damaged: damaged.saturating_add(counters.unnamed),
        read_errors: counters.read,
        checksum_errors: counters.checksum,
        members,
        resilver: resilver.map(|status| ResilverFacts {
            is_running: status.is_running,
            started: status.started,
            ended: status.ended,
            copied: status.copied,
            total: status.total,
        }),
        requests: pool.store().traffic().map(|traffic| Box::new(traffic.into())),
        cache: pool.store().cache().map(|status| Box::new(status.into())),
        deadman: pool.property("deadman").map_err(failed)?.and(pool.deadman().ok()).map(|it| it.as_secs()),
        unanswered: None,
        is_missing: false,
    })
}

/// A store that has not answered for so long is told about.
const TOLD_AFTER: Duration = Duration::from_secs(10);

/// What is known of a pool whose store does not answer, without asking the store.
fn waiting(session: &Session, unanswered: &Unanswered) -> PoolFacts {
    let pool = session.datasets.pool();
    let segments = pool.segments();
    let (size, allocated) = segments.iter().fold((0, 0), |(len, alive), it| (len + it.len, alive + it.alive));
    let members = members(session);
    let place = pool.store().describe();
    PoolFacts {
        name: session.name().to_owned(),
        guid: pool.guid(),
        unanswered: Some(format!(
            "no answer for {} s from {place} ({})",
            unanswered.since.as_secs(),
            unanswered.op
        )),
        vdev: if members.is_empty() { place } else { "mirror-0".to_owned() },
        size,
        allocated,
        read_only: pool.is_read_only(),
        txg: pool.committed_txg(),
        parity: pool.parity(),
        members,
        ..PoolFacts::default()
    }
}

/// The members of a mirror, if it is one of several.
fn members(session: &Session) -> Vec<MemberFacts> {
    let mirror = session.datasets.pool().store().mirror();
    let members = mirror.map(|mirror| mirror.members().into_iter().map(MemberFacts::from).collect());
    members.filter(|members: &Vec<MemberFacts>| members.len() > 1).unwrap_or_default()
}
