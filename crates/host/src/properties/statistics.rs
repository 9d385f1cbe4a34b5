//! Properties that are computed rather than set.

use snowmelt_dataset::property::{Property, Source, Value};
use snowmelt_dataset::{Dataset, DatasetError, Snapshot};

use super::space::ratio;
use super::{Entity, Reader};

/// What became of a question: not a statistic, or its value, or that it has none here.
type Answer = Option<Option<(Value, Source)>>;

impl Reader<'_> {
    /// The value of a statistic. `None` if the property is no statistic; `Some(None)` if there is no value.
    pub(super) fn statistic(&self, entity: &Entity, property: &Property) -> Result<Answer, DatasetError> {
        if let Some(value) = self.identity(entity, property.name) {
            return Ok(Some(Some((value, Source::None))));
        }
        let answer = match entity {
            Entity::Dataset(dataset) => self.of_dataset(dataset, property.name)?,
            Entity::Snapshot(snapshot, _) => self.of_snapshot(snapshot, property.name)?,
            Entity::Bookmark(..) => Some(None),
        };
        Ok(answer.map(|value| value.map(|value| (value, Source::None))))
    }

    /// What everything has.
    fn identity(&self, entity: &Entity, name: &str) -> Option<Value> {
        Some(match name {
            "name" => entity.name().into(),
            "type" => entity.type_name().into(),
            "creation" => entity.creation().into(),
            "createtxg" => entity.createtxg().into(),
            "guid" => entity.guid().into(),
            _ => return None,
        })
    }

    fn of_dataset(&self, dataset: &Dataset, name: &str) -> Result<Option<Option<Value>>, DatasetError> {
        let number = |number: u64| Ok(Some(Some(Value::Number(number))));
        match name {
            "used" => number(self.totals(dataset)?.used),
            "usedbychildren" => number(self.totals(dataset)?.children),
            "usedbyrefreservation" => number(self.totals(dataset)?.refreservation),
            "usedbydataset" => number(self.totals(dataset)?.own.used_by_dataset),
            "usedbysnapshots" => number(self.totals(dataset)?.own.used_by_snapshots),
            "referenced" => number(self.totals(dataset)?.own.referenced.physical),
            "logicalreferenced" => number(self.totals(dataset)?.own.referenced.logical),
            "logicalused" => number(self.totals(dataset)?.logical),
            "written" => number(self.totals(dataset)?.own.written),
            "available" => number(self.space.available(dataset)?),
            "compressratio" => {
                let totals = self.totals(dataset)?;
                number(ratio(totals.logical, totals.stored))
            }
            "refcompressratio" => {
                let referenced = self.totals(dataset)?.own.referenced;
                number(ratio(referenced.logical, referenced.physical))
            }
            "objsetid" => number(dataset.id.0),
            "mounted" => number(u64::from(self.mounted.contains_key(&dataset.id))),
            "inconsistent" => number(u64::from(dataset.record.inconsistent)),
            "origin" => match dataset.record.origin {
                Some(origin) => Ok(Some(Some(self.catalog.snapshot_by_id(origin)?.full_name().into()))),
                None => Ok(Some(None)),
            },
            "prevsnap" => {
                Ok(Some(self.catalog.newest_snapshot(dataset)?.map(|newest| newest.full_name().into())))
            }
            "filesystem_count" | "snapshot_count" => Ok(None),
            "snapshots_changed" | "snapshots_changed_nsecs" => Ok(Some(None)),
            _ => Ok(None),
        }
    }

    fn of_snapshot(&self, snapshot: &Snapshot, name: &str) -> Result<Option<Option<Value>>, DatasetError> {
        let number = |number: u64| Ok(Some(Some(Value::Number(number))));
        let stats = snapshot.record.stats;
        match name {
            "used" => number(self.snapshot_space(snapshot)?.used),
            "written" => number(self.snapshot_space(snapshot)?.written),
            "referenced" => number(stats.physical),
            "logicalreferenced" => number(stats.logical),
            "compressratio" | "refcompressratio" => number(ratio(stats.logical, stats.physical)),
            "userrefs" => number(self.catalog.holds(snapshot.id)?.len() as u64),
            "defer_destroy" => number(u64::from(snapshot.record.defer_destroy)),
            "numclones" => number(self.catalog.clones(snapshot.id)?.len() as u64),
            "clones" => {
                let names: Vec<_> =
                    self.catalog.clones(snapshot.id)?.into_iter().map(|clone| clone.name).collect();
                Ok(Some((!names.is_empty()).then(|| names.join(",").into())))
            }
            "objsetid" => Ok(Some(None)),
            _ => Ok(None),
        }
    }
}
