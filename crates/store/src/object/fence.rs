//! Publications, which also fence off other owners: `docs/format/object-store.md`, "Publications".

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::Inner;
use super::publication::{self, FOLDER, Publication, utc};
use super::remote::Created;
use crate::{OtherOwner, RawUberblock, Result, StoreError, UBERBLOCK_RING};

/// After this time without a publication, an owner checks whether another owner has published. By then, the object
/// that would have shown this may be deleted.
pub(super) const RECHECK_AFTER: Duration = Duration::from_secs(10 * 60);
/// The minimum age of other owners' publications that may be deleted, in seconds by the clock of the store.
pub(super) const KEEP_SECONDS: i64 = 60 * 60;
/// How many of its own publications an owner keeps. One would be enough if no medium ever failed.
const KEEP_OWN: usize = 8;

/// What this process knows about the publications.
#[derive(Debug)]
pub(super) struct Published {
    /// The number of the newest publication.
    pub(super) seq: u64,
    pub(super) ring: VecDeque<RawUberblock>,
    /// Whether this owner has published.
    pub(super) claimed: bool,
    /// The last time at which this process was certainly the owner, since the start of the machine.
    pub(super) confirmed: Duration,
    /// The publications of this owner, without the first, which stops the previous owner.
    pub(super) own: VecDeque<u64>,
    /// Publications of other owners that are no longer needed.
    pub(super) stale: Vec<u64>,
}

/// The other owner, once one was found.
#[derive(Debug, Default)]
pub(super) struct Fence(OnceLock<OtherOwner>);

impl Fence {
    pub(super) fn check(&self, url: &Path) -> Result<()> {
        match self.0.get() {
            Some(by) => Err(StoreError::Fenced { path: url.to_owned(), by: Box::new(by.clone()) }),
            None => Ok(()),
        }
    }
}

/// Time since the start of the machine, including sleep.
pub(super) fn uptime() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
}

impl Inner {
    /// Makes this process the owner by publishing. This must precede all other writes.
    pub(super) fn claim(&self) -> Result<()> {
        let mut published = self.published.lock();
        if published.claimed {
            return Ok(());
        }
        let ring = published.ring.clone();
        self.put_publication(&mut published, ring).map(drop)
    }

    pub(super) fn publish(this: &Arc<Self>, uberblock: RawUberblock) -> Result<()> {
        let mut published = this.published.lock();
        let mut ring = published.ring.clone();
        ring.retain(|other| other.txg != uberblock.txg);
        ring.push_back(uberblock);
        while ring.len() > UBERBLOCK_RING {
            ring.pop_front();
        }
        let old = this.put_publication(&mut published, ring)?;
        let due = this.state.lock().take_due(Self::now().saturating_sub(this.delete_after.as_secs()));
        let parts = due.iter().map(super::parts::Part::name);
        let names = old.into_iter().map(publication::name).chain(parts).collect();
        Self::delete_later(this, names);
        Ok(())
    }

    /// Makes the next publication. Returns the numbers of those that may be deleted now.
    pub(super) fn put_publication(
        &self,
        published: &mut Published,
        ring: VecDeque<RawUberblock>,
    ) -> Result<Vec<u64>> {
        // Only a forged one has the last number there is.
        let seq = published.seq.checked_add(1).ok_or_else(|| StoreError::NotAPool {
            path: self.url.clone(),
            why: "its last publication has the highest number there is".to_owned(),
        })?;
        let begun = uptime();
        let (doomed, kept) = {
            let state = self.state.lock();
            (state.doomed(), state.kept())
        };
        let publication = Publication {
            seq,
            epoch: self.epoch,
            guid: self.label.lock().pool.guid,
            writer: self.writer.clone(),
            time: Self::now(),
            ring,
            doomed,
            kept,
        };
        let created = self.remote.create(&publication::name(seq), &publication.encode().into());
        match created {
            Ok(Created::Ours) => {}
            Ok(Created::Theirs(bytes)) => return Err(self.fenced(&bytes)),
            Err(error) => {
                let error = self.refused("publish the uberblock in", error);
                self.gate.shut_after_failure();
                return Err(error);
            }
        }
        if uptime().saturating_sub(published.confirmed) > self.recheck_after {
            self.recheck(seq)?;
        }
        (published.seq, published.ring, published.confirmed) = (seq, publication.ring, begun);
        if !published.claimed {
            published.claimed = true;
            return Ok(std::mem::take(&mut published.stale));
        }
        published.own.push_back(seq);
        let excess = published.own.len().saturating_sub(KEEP_OWN);
        Ok(published.own.drain(..excess).collect())
    }

    /// Checks whether another owner has published with a number greater than `seq`.
    fn recheck(&self, seq: u64) -> Result<()> {
        let listed = self.remote.list(FOLDER).map_err(|error| {
            self.gate.shut_after_failure();
            self.refused("list the uberblocks in", error)
        })?;
        let newest = listed.iter().filter_map(|listed| publication::parse_name(&listed.key)).max();
        match newest {
            Some(newest) if newest > seq => {
                let bytes = self.remote.get(&publication::name(newest)).unwrap_or_default();
                Err(self.fenced(&bytes))
            }
            _ => Ok(()),
        }
    }

    fn fenced(&self, theirs: &[u8]) -> StoreError {
        let by = match Publication::decode(theirs) {
            Ok(other) => OtherOwner { host: other.writer.host, time: utc(other.writer.since) },
            Err(why) => OtherOwner {
                host: format!("another writer, whose publication {why}"),
                time: "an unknown time".to_owned(),
            },
        };
        self.gate.shut_after_failure();
        let by = Box::new(self.fence.0.get_or_init(|| by).clone());
        StoreError::Fenced { path: self.url.clone(), by }
    }
}
