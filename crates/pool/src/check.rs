//! Check: verifies every invariant of the pool in one committed txg.
//!
//! The state is captured between two txgs: the committed meta tree, and the segment table of the same moment. The walk
//! uses the records in that meta tree, so other work can continue. Nodes are read without the cache. Memory: 12 bytes
//! per block, and a set of the nodes seen.

mod extents;
mod walk;

use snowmelt_store::{MemberState, SegmentId};
use std::collections::{BTreeMap, BTreeSet};

use crate::deadlist::{self, DeadSpace};
use crate::error::{PoolError, Result};
use crate::format::prefix;
use crate::format::ptr::{BlockPtr, StoredPtr};
use crate::format::tree_record::TreeRecord;
use crate::heal;
use crate::ids::{TreeId, Txg};
use crate::pool::Pool;
use crate::space::{SegmentRecord, SegmentTable};
use crate::tree::View;
use extents::Extents;
use walk::{Role, Walk};

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Unusual but harmless.
    Warning,
    /// An invariant is violated.
    Error,
}

/// One problem that the check found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The severity.
    pub severity: Severity,
    /// What is wrong.
    pub what: String,
    /// Where: a tree, a segment, a snapshot.
    pub place: String,
}

/// What to check in addition to the trees.
#[derive(Clone, Copy, Debug, Default)]
pub struct CheckOptions {
    /// Read every data block and verify its hash. External blocks are read if a reader for them is set and they must
    /// not change.
    pub data: bool,
}

/// The numbers of a check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// The txg checked.
    pub txg: Txg,
    /// Live trees and frozen roots.
    pub trees: u64,
    /// Distinct tree nodes.
    pub nodes: u64,
    /// Distinct blocks, nodes included.
    pub blocks: u64,
    /// Bytes of these blocks in segments.
    pub bytes: u64,
    /// Segments.
    pub segments: u64,
    /// Errors found.
    pub errors: u64,
    /// Warnings found.
    pub warnings: u64,
}

/// What the layer above knows about the trees: the frozen roots, and the places of block pointers in values.
pub trait Roots {
    /// Passes each frozen root (snapshot) recorded in `meta` to `each`, with a name for findings.
    ///
    /// # Errors
    /// The error of `each`; when `meta` cannot be read.
    fn frozen(&self, meta: &View, each: &mut dyn FnMut(&str, Option<StoredPtr>) -> Result<()>) -> Result<()>;

    /// Whether a tree is a deadlist according to `meta`. Deadlists named in the records of trees need not be known
    /// here.
    ///
    /// # Errors
    /// When `meta` cannot be read.
    fn is_deadlist(&self, meta: &View, tree: TreeId) -> Result<bool>;

    /// Passes each data block pointer in an entry of a tree to `each`; `None` means a frozen root. Not called for
    /// deadlists and the meta tree.
    ///
    /// # Errors
    /// When the value does not decode.
    fn pointers(
        &self,
        tree: Option<TreeId>,
        key: &[u8],
        value: &[u8],
        each: &mut dyn FnMut(&BlockPtr),
    ) -> Result<()>;
}

/// Counts and reports findings.
struct Findings<'a> {
    report: &'a mut dyn FnMut(Finding),
    errors: u64,
    warnings: u64,
}

impl Findings<'_> {
    fn error(&mut self, place: impl Into<String>, what: impl Into<String>) {
        self.errors += 1;
        (self.report)(Finding { severity: Severity::Error, what: what.into(), place: place.into() });
    }

    fn warning(&mut self, place: impl Into<String>, what: impl Into<String>) {
        self.warnings += 1;
        (self.report)(Finding { severity: Severity::Warning, what: what.into(), place: place.into() });
    }

    /// Turns an error into a finding if it can be reported. Other errors stop the check.
    fn settle(&mut self, place: &str, result: Result<()>) -> Result<()> {
        match result {
            Err(error @ PoolError::Store { .. }) if !error.is_corruption() => {
                self.error(place, error.chain());
                Ok(())
            }
            Err(error) if error.is_corruption() => {
                self.error(place, error.chain());
                Ok(())
            }
            other => other,
        }
    }
}

impl Pool {
    /// Commits, and verifies the pool's invariants on the committed state: structure and hashes of every tree and
    /// frozen root; space accounting against all reachable blocks; that no block exceeds its segment or overlaps
    /// another; deadlists and their sums; with `options.data`, the bytes of every data block.
    ///
    /// # Errors
    /// Only errors that stop the check; everything else is a finding.
    pub fn check(
        &self,
        roots: &dyn Roots,
        options: CheckOptions,
        report: &mut dyn FnMut(Finding),
    ) -> Result<CheckReport> {
        let (txg, meta, table) = self.capture()?;
        let mut findings = Findings { report, errors: 0, warnings: 0 };
        let mut check = Check {
            pool: self,
            meta,
            roots,
            data: options.data,
            live: Extents::within(&table),
            dead: Extents::within(&table),
        };
        let mut summary = CheckReport { txg, ..CheckReport::default() };
        check.trees(&mut findings, &mut summary)?;
        check.live.merge(&check.dead);
        check.live.compact();
        check.accounting(&table, &mut findings)?;
        summary.blocks = check.live.len();
        summary.bytes = check.live.bytes();
        summary.segments = table.iter().count() as u64;
        if options.data {
            check.live.verify(self, &mut findings)?;
            check_store(self, &mut findings)?;
            check_parity(self, &mut findings);
        }
        summary.errors = findings.errors;
        summary.warnings = findings.warnings;
        Ok(summary)
    }
}

struct Check<'a> {
    pool: &'a Pool,
    meta: View,
    roots: &'a dyn Roots,
    data: bool,
    /// Everything that trees and frozen roots can reach.
    live: Extents,
    /// Everything in deadlists.
    dead: Extents,
}

/// The records of all trees except the meta tree.
#[derive(Default)]
struct Records {
    all: BTreeMap<TreeId, TreeRecord>,
    /// The trees that these records name as deadlists.
    deadlists: BTreeSet<TreeId>,
}

impl Check<'_> {
    fn trees(&mut self, findings: &mut Findings<'_>, summary: &mut CheckReport) -> Result<()> {
        let mut walk = Walk::new(self.pool.io(), self.data);
        summary.trees += 1;
        let root = self.meta.root_ptr();
        let walked =
            walk.tree(root.as_ref(), Role::Meta, &mut self.live, findings, "the meta tree", &mut |_, _| {
                Ok(Vec::new())
            });
        findings.settle("the meta tree", walked.map(drop))?;
        let records = self.tree_records(findings)?;
        for (id, record) in &records.all {
            self.tree(*id, record, &records, &mut walk, findings)?;
            summary.trees += 1;
        }
        let (roots, meta) = (self.roots, self.meta.clone());
        let listed = roots.frozen(&meta, &mut |name, root| {
            summary.trees += 1;
            let place = format!("snapshot {name}");
            let mut pointers = |key: &[u8], value: &[u8]| collect(roots, None, key, value);
            let walked = walk.shared(root.as_ref(), &mut self.live, findings, &place, &mut pointers);
            findings.settle(&place, walked)
        });
        findings.settle("the list of snapshots", listed)?;
        summary.nodes = walk.nodes();
        Ok(())
    }

    fn tree_records(&self, findings: &mut Findings<'_>) -> Result<Records> {
        let mut records = Records::default();
        let next = self.pool.next_tree.load(std::sync::atomic::Ordering::Relaxed);
        for item in self.meta.range(&[prefix::TREE], Some(&[prefix::TREE + 1])) {
            let (key, entry) = match item {
                Ok(item) => item,
                Err(error) => {
                    findings.settle("the list of trees", Err(error))?;
                    break;
                }
            };
            let id = key.get(1..).and_then(|id| id.try_into().ok()).map(u64::from_be_bytes);
            match (id, TreeRecord::decode(&entry.value)) {
                (Some(id), Ok(record)) => {
                    if id >= next {
                        findings.error(format!("tree {id}"), format!("the next tree's id is {next}"));
                    }
                    records.deadlists.extend(record.deadlist);
                    records.all.insert(TreeId(id), record);
                }
                (None, _) => findings.error("the list of trees", "a key of a wrong length"),
                (Some(id), Err(error)) => findings.error(format!("tree {id}"), error.chain()),
            }
        }
        Ok(records)
    }

    fn tree(
        &mut self,
        id: TreeId,
        record: &TreeRecord,
        records: &Records,
        walk: &mut Walk<'_>,
        findings: &mut Findings<'_>,
    ) -> Result<()> {
        let place = format!("tree {}", id.0);
        if let Some(deadlist) = record.deadlist
            && !records.all.contains_key(&deadlist)
        {
            findings.error(&place, format!("its deadlist, tree {}, does not exist", deadlist.0));
        }
        let is_deadlist = match records.deadlists.contains(&id) {
            true => true,
            false => match self.roots.is_deadlist(&self.meta, id) {
                Ok(is_deadlist) => is_deadlist,
                Err(error) => return findings.settle(&place, Err(error)),
            },
        };
        let roots = self.roots;
        let mut pointers = |key: &[u8], value: &[u8]| {
            if is_deadlist { Ok(Vec::new()) } else { collect(roots, Some(id), key, value) }
        };
        let role = if is_deadlist { Role::Deadlist } else { Role::Other };
        let errors = findings.errors;
        let walked = walk.tree(record.root.as_ref(), role, &mut self.live, findings, &place, &mut pointers);
        let is_sound = findings.errors == errors;
        match walked {
            Ok(stats) if stats != record.stats => findings.error(
                &place,
                format!("its stats are {:?}, but what it refers to is {stats:?}", record.stats),
            ),
            Ok(_) => {}
            Err(error) => findings.settle(&place, Err(error))?,
        }
        // Nodes that others have too would be read for each of them.
        if is_deadlist && is_sound {
            let checked = self.deadlist(record, &place, findings);
            findings.settle(&place, checked)?;
        }
        Ok(())
    }

    fn deadlist(&mut self, record: &TreeRecord, place: &str, findings: &mut Findings<'_>) -> Result<()> {
        let view = self.pool.view(record.root.clone());
        let mut sums: BTreeMap<Txg, DeadSpace> = BTreeMap::new();
        for dead in deadlist::entries(&view) {
            let dead = match dead {
                Ok(dead) => dead,
                Err(error) => {
                    findings.settle(place, Err(error))?;
                    continue;
                }
            };
            sums.entry(dead.birth).or_default().add_dead(&dead);
            let (segment, offset) = self.pool.io().locate_at(dead.segment, dead.offset)?;
            if let Err(what) = self.dead.push((segment, offset), dead.asize, None) {
                findings.error(place, what);
            }
        }
        let mut recorded: BTreeMap<Txg, DeadSpace> = BTreeMap::new();
        for sum in deadlist::sums(&view) {
            let (birth, sum) = sum?;
            recorded.insert(birth, sum);
        }
        // Blocks embedded in pointers count only with their logical size.
        let covers = |birth: &Txg, sum: &DeadSpace| {
            let counted = sums.get(birth).copied().unwrap_or_default();
            (counted.blocks, counted.physical) == (sum.blocks, sum.physical) && counted.logical <= sum.logical
        };
        let complete = sums.keys().all(|birth| recorded.contains_key(birth));
        if !complete || !recorded.iter().all(|(birth, sum)| covers(birth, sum)) {
            findings.error(place, format!("its sums are {recorded:?}, but its entries give {sums:?}"));
        }
        Ok(())
    }

    /// Compares the reachable blocks with the segment table, the records and the store.
    fn accounting(&self, table: &SegmentTable, findings: &mut Findings<'_>) -> Result<()> {
        self.live.check_overlaps(findings);
        for (id, segment) in table.iter() {
            let reachable = self.live.bytes_in(id);
            let recorded = segment.live + segment.meta;
            if reachable != recorded {
                findings.error(
                    format!("segment {id}"),
                    format!("{recorded} bytes are accounted as alive, {reachable} are reachable"),
                );
            }
        }
        for item in self.meta.range(&[prefix::SEGMENT], Some(&[prefix::SEGMENT + 1])) {
            let decoded = item.and_then(|(key, entry)| Ok((key, SegmentRecord::decode(&entry.value)?)));
            let (key, record) = match decoded {
                Ok(decoded) => decoded,
                Err(error) => {
                    findings.settle("the list of segments", Err(error))?;
                    break;
                }
            };
            let id = key.get(1..).and_then(|id| id.try_into().ok()).map(u64::from_be_bytes);
            let known = id.and_then(|id| table.get(SegmentId(id)));
            if known.is_none_or(|segment| segment.live != record.live) {
                let what = format!("record {record:?} against {known:?} in memory");
                findings.error(format!("segment {id:x?}"), what);
            }
        }
        let stored = self.pool.store().segments().map_err(PoolError::store("listing the segments"))?;
        let stored: BTreeMap<SegmentId, u64> = stored.iter().map(|info| (info.id, info.len)).collect();
        for (id, segment) in table.iter().filter(|(_, segment)| segment.live + segment.meta > 0) {
            match stored.get(&id) {
                Some(len) if *len >= segment.len => {}
                Some(len) => findings
                    .error(format!("segment {id}"), format!("ends at {len} instead of {}", segment.len)),
                None => findings.error(format!("segment {id}"), "is missing in the store"),
            }
        }
        for id in stored.keys().filter(|id| table.get(**id).is_none()) {
            if self.pool.io().space.lock().get(*id).is_none() {
                findings.warning(format!("segment {id}"), "is in the store, but not of this pool's state");
            }
        }
        Ok(())
    }
}

/// Verifies the store's own records, and whether every member of a mirror is complete.
fn check_store(pool: &Pool, findings: &mut Findings<'_>) -> Result<()> {
    let wrong = pool.store().verify_own(false).map_err(PoolError::store("verifying the store"))?;
    if wrong > 0 {
        findings.error(pool.store().describe(), format!("{wrong} bytes of its own records are wrong"));
    }
    for member in pool.store().mirror().map(|mirror| mirror.members()).unwrap_or_default() {
        let place = member.path.display().to_string();
        if member.state != MemberState::Online {
            findings.warning(place, format!("is {}", member.state));
        } else if member.is_stale {
            findings.warning(place, "lacks something: a resilver is due");
        }
    }
    Ok(())
}

/// Verifies parity. Damaged blocks are found elsewhere; other wrong bytes that parity covers are dead.
fn check_parity(pool: &Pool, findings: &mut Findings<'_>) {
    let mut found = |finding: heal::Finding| {
        let heal::Finding { segment, member, at, data, own, can_mend } = finding;
        let mirror = pool.store().mirror();
        let on = mirror.zip(member).map(|(mirror, member)| format!(" on {}", mirror.name_of(member)));
        let place = format!("segment {segment} offset {at}{}", on.unwrap_or_default());
        let mend = if can_mend { "a scrub mends it" } else { "that is more than can be mended" };
        match own {
            0 => {
                findings.warning(place, format!("parity: {data} pieces of what it covers are wrong; {mend}"))
            }
            _ => {
                let what = format!(
                    "parity: {own} of its own pieces are wrong, and {data} of what it covers; {mend}"
                );
                findings.error(place, what);
            }
        }
    };
    pool.io().verify_parity(false, &mut found, &mut |_| true);
}

fn collect(roots: &dyn Roots, tree: Option<TreeId>, key: &[u8], value: &[u8]) -> Result<Vec<BlockPtr>> {
    let mut out = Vec::new();
    roots.pointers(tree, key, value, &mut |ptr| out.push(ptr.clone()))?;
    Ok(out)
}
