//! Gathering the facts of an open pool.

use std::time::Duration;

use snowmelt_dataset::pool_features;
use snowmelt_store::Unanswered;

use super::{IoFacts, MemberFacts, PoolFacts, ResilverFacts, ScanFacts};
use crate::error::{CliError, Result};
use crate::pools::Session;

/// A store is reported if it has not answered for this long.
const TOLD_AFTER: Duration = Duration::from_secs(10);

/// The facts of an open pool.
///
/// # Errors
/// When the pool cannot be read.
pub fn of(session: &Session) -> Result<PoolFacts> {
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
    let missing = report.missing.iter().map(|segment| format!("segment {segment} is missing or incomplete"));
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
        io: io(session),
        disabled: pool_features::disabled(pool).map_err(failed)?.into_iter().collect(),
        in_use: Vec::new(),
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

fn io(session: &Session) -> IoFacts {
    let counters = session.datasets.pool().counters();
    IoFacts {
        reads: counters.node_misses + counters.block_reads,
        writes: counters.nodes_written + counters.blocks_written,
        bytes_read: counters.bytes_read,
        bytes_written: counters.bytes_written,
        milliseconds: u64::try_from(session.opened.elapsed().as_millis()).unwrap_or(u64::MAX),
    }
}

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
