//! Filling in the rows of one pool (`zfs_for_each` in `cmd/zfs/zfs_iter.c`).

use std::collections::HashSet;

use snowmelt_dataset::property::{Kind, PropertyName, Source, TextStyle, Types, Value};
use snowmelt_dataset::{Catalog, Dataset, DatasetError};

use super::request::{Cell, Columns, Listing, Row, Rows, Selection, SortValue, bit};
use crate::properties::{Entity, Mounted, Reader};
use crate::report;

const DATASETS: u8 = bit(Types::FILESYSTEM_VOLUME);
const SNAPSHOTS: u8 = bit(Types::SNAPSHOT);
const BOOKMARKS: u8 = bit(Types::BOOKMARK);

/// The rows of a pool of which `mounted` is mounted. Names of other pools are passed over.
///
/// # Errors
/// When the pool cannot be read. The rows have the errors of invalid names.
pub fn collect(
    catalog: &Catalog,
    mounted: Mounted,
    request: &Listing,
    style: &TextStyle<'_>,
) -> Result<Rows, DatasetError> {
    let reader = Reader::new(catalog).with_mounted(mounted);
    let mut chosen = Chosen::default();
    select(catalog, &request.selection, &mut chosen)?;
    let columns = match &request.columns {
        Columns::All => None,
        Columns::Named(names) => Some(names.iter().map(|name| PropertyName::parse(name)).collect::<Vec<_>>()),
    };
    let keys: Vec<_> = request.sort.iter().map(|key| PropertyName::parse(&key.property)).collect();
    let mut rows = Rows { rows: Vec::with_capacity(chosen.entities.len()), errors: chosen.errors };
    for entity in &chosen.entities {
        let cells = match &columns {
            None => all_cells(&reader, entity, request, style)?,
            Some(columns) => columns
                .iter()
                .flatten()
                .map(|name| named_cell(&reader, entity, name, request, style))
                .collect::<Result<_, _>>()?,
        };
        let sort =
            keys.iter().flatten().map(|key| sort_value(&reader, entity, key)).collect::<Result<_, _>>()?;
        rows.rows.push(Row {
            name: entity.name().to_owned(),
            dataset: entity.dataset_name().to_owned(),
            kind: entity.type_name().to_owned(),
            rank: entity.rank(),
            createtxg: entity.createtxg(),
            sort,
            cells,
        });
    }
    Ok(rows)
}

fn all_cells(
    reader: &Reader<'_>,
    entity: &Entity,
    request: &Listing,
    style: &TextStyle<'_>,
) -> Result<Vec<Cell>, DatasetError> {
    let mut cells = Vec::new();
    for shown in reader.all(entity, style)? {
        let received = match PropertyName::parse(&shown.name) {
            Ok(name) if request.received => reader.received(entity, &name, style)?,
            _ => None,
        };
        cells.push(Cell::new(shown.name, shown.text, &shown.source, received));
    }
    Ok(cells)
}

fn named_cell(
    reader: &Reader<'_>,
    entity: &Entity,
    name: &PropertyName,
    request: &Listing,
    style: &TextStyle<'_>,
) -> Result<Cell, DatasetError> {
    let received = if request.received { reader.received(entity, name, style)? } else { None };
    Ok(match reader.text(entity, name, style)? {
        Some((text, source)) => Cell::new(name.text(), text, &source, received),
        None => Cell::new(name.text(), "-".to_owned(), &Source::None, received),
    })
}

/// Index properties sort by their words, as people read them.
fn sort_value(reader: &Reader<'_>, entity: &Entity, key: &PropertyName) -> Result<SortValue, DatasetError> {
    let Some((value, _)) = reader.value(entity, key)? else { return Ok(SortValue::None) };
    Ok(match (key, value) {
        (PropertyName::Native(property), value) if matches!(property.kind, Kind::Index(_)) => {
            SortValue::Text(property.format(&value, &TextStyle::PARSABLE))
        }
        (_, Value::Number(number)) => SortValue::Number(number),
        (_, Value::Text(text)) => SortValue::Text(text),
    })
}

#[derive(Default)]
struct Chosen {
    entities: Vec<Entity>,
    seen: HashSet<String>,
    errors: Vec<String>,
}

impl Chosen {
    fn add(&mut self, entity: Entity) {
        if self.seen.insert(entity.name().to_owned()) {
            self.entities.push(entity);
        }
    }
}

fn select(catalog: &Catalog, selection: &Selection, chosen: &mut Chosen) -> Result<(), DatasetError> {
    if selection.names.is_empty() {
        // Everything: as if the root had been named with -r.
        let all = Selection { recursive: true, ..selection.clone() };
        return add_below(catalog, &catalog.root()?, &all, chosen);
    }
    for name in &selection.names {
        if name.split(['/', '@', '#']).next() != Some(catalog.pool_name()) {
            continue;
        }
        match Entity::find(catalog, name) {
            Ok(found) => add_named(catalog, found, selection, chosen)?,
            Err(error @ DatasetError::Pool(_)) => return Err(error),
            Err(error) => chosen.errors.push(report::dataset_error(&format!("cannot open '{name}'"), &error)),
        }
    }
    Ok(())
}

/// A given object must have a requested type. With -r, filesystems can be given for their descendants, and also
/// volumes if snapshots or bookmarks are requested.
fn add_named(
    catalog: &Catalog,
    found: Entity,
    selection: &Selection,
    chosen: &mut Chosen,
) -> Result<(), DatasetError> {
    let is_wanted = selection.types & bit(found.types()) != 0;
    let may_stand_above = selection.recursive
        && match found.types() {
            Types::FILESYSTEM => true,
            Types::VOLUME => selection.types & (SNAPSHOTS | BOOKMARKS) != 0,
            _ => false,
        };
    if !is_wanted && !may_stand_above {
        chosen.errors.push(format!(
            "cannot open '{}': operation not applicable to datasets of this type",
            found.name()
        ));
        return Ok(());
    }
    match found {
        Entity::Dataset(dataset) => add_below(catalog, &dataset, selection, chosen),
        other => {
            chosen.add(other);
            Ok(())
        }
    }
}

/// A dataset and, if requested, its descendants. Snapshots and bookmarks are one level below their dataset.
fn add_below(
    catalog: &Catalog,
    top: &Dataset,
    selection: &Selection,
    chosen: &mut Chosen,
) -> Result<(), DatasetError> {
    let deepest = if selection.recursive { selection.depth.unwrap_or(usize::MAX) } else { 0 };
    let mut pending = vec![(top.clone(), 0)];
    while let Some((dataset, level)) = pending.pop() {
        if selection.types & bit(Entity::Dataset(dataset.clone()).types()) != 0 {
            chosen.add(dataset.clone().into());
        }
        if level >= deepest {
            continue;
        }
        if selection.types & SNAPSHOTS != 0 {
            for snapshot in catalog.snapshots(&dataset) {
                chosen.add(snapshot?.into());
            }
        }
        if selection.types & BOOKMARKS != 0 {
            for bookmark in catalog.bookmarks(&dataset)? {
                chosen.add(bookmark.into());
            }
        }
        let children_count = level + 1 < deepest || selection.types & DATASETS != 0;
        if children_count {
            pending.extend(catalog.children(&dataset)?.into_iter().map(|child| (child, level + 1)));
        }
    }
    Ok(())
}
