//! `list`.

use serde_json::{Map, Value, json};
use snowmelt_dataset::property::{PropertyName, Types};

use super::gather;
use crate::app::{App, pool_of};
use crate::args::{ListArgs, Program};
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::listing::{Cell, Columns, Listing, Row, Selection, SortKey, bit, parse_depth, parse_types};
use crate::output::json;
use crate::output::table::{self, Column};

const DEFAULT_COLUMNS: &str = "name,used,available,referenced,mountpoint";
const SPACE_COLUMNS: &str =
    "name,available,used,usedbysnapshots,usedbydataset,usedbyrefreservation,usedbychildren";

/// Lists datasets.
///
/// # Errors
/// When options make no sense, or output fails.
pub fn run(app: &mut App<'_>, args: &ListArgs) -> Result<Exit> {
    let columns = columns(args.columns.as_deref().unwrap_or(DEFAULT_COLUMNS))?;
    let request = request(args, &columns)?;
    let gathered = gather::rows(app, request)?;
    if args.json {
        json::print(&mut app.context.out, document(&gathered.rows, &columns, args.json_int))?;
    } else if gathered.rows.is_empty() {
        if !gathered.failed && !args.scripted {
            app.context.complain("no datasets available");
        }
    } else {
        let headers: Vec<Column> = columns.iter().map(header).collect();
        let rows: Vec<Vec<String>> = gathered
            .rows
            .into_iter()
            .map(|row| row.cells.into_iter().map(|cell| shown(app, cell)).collect())
            .collect();
        table::print(&mut app.context.out, &headers, &rows, args.scripted)?;
    }
    Ok(Exit::unless(gathered.failed))
}

/// The longest list of clones that `zfs` prints, in bytes (`ZFS_MAXPROPLEN` without the closing zero).
const CLONES_MAX: usize = 4095;

/// The text of a property. As in ZFS, `zfs` cuts a long list of clones; `snowmelt` and JSON have all of it.
pub fn shown(app: &App<'_>, cell: Cell) -> String {
    let mut text = cell.text;
    if cell.property == "clones" && Program::of(&app.context.args).0 == Program::Zfs {
        text.truncate(text.floor_char_boundary(CLONES_MAX));
    }
    text
}

fn request(args: &ListArgs, columns: &[PropertyName]) -> Result<Listing> {
    let is_space = args.columns.as_deref() == Some("space");
    let types = match &args.types {
        Some(types) => parse_types(types)?,
        None => bit(Types::FILESYSTEM_VOLUME),
    };
    // A snapshot may be named without -t.
    let named_snapshots =
        args.types.is_none() && !is_space && args.datasets.iter().any(|name| name.contains('@'));
    let named_bookmarks = args.types.is_none() && args.datasets.iter().any(|name| name.contains('#'));
    let mut types = types;
    if named_snapshots {
        types |= bit(Types::SNAPSHOT);
    }
    if named_bookmarks {
        types |= bit(Types::BOOKMARK);
    }
    let mut sort = Vec::new();
    for (properties, descending) in [(&args.sort, false), (&args.sort_descending, true)] {
        for property in properties {
            if PropertyName::parse(property).is_err() {
                return Err(CliError::Usage(format!("invalid property '{property}'")));
            }
            sort.push(SortKey { property: property.clone(), descending });
        }
    }
    let (recursive, depth) = reach(args.recursive, args.depth.as_deref(), types, !args.datasets.is_empty())?;
    Ok(Listing {
        selection: Selection { names: args.datasets.clone(), types, recursive, depth },
        columns: Columns::Named(columns.iter().map(PropertyName::text).collect()),
        sort,
        parsable: args.parsable || args.json_int,
        received: false,
    })
}

/// How far below the named datasets to look: `-t snapshot tank/a` alone means the snapshots of `tank/a`.
///
/// # Errors
/// When the depth is not a number.
pub fn reach(
    recursive: bool,
    depth: Option<&str>,
    types: u8,
    has_names: bool,
) -> Result<(bool, Option<usize>)> {
    let depth = depth.map(parse_depth).transpose()?;
    let only_parts = types == bit(Types::SNAPSHOT) || types == bit(Types::BOOKMARK);
    if only_parts && has_names && !recursive && depth.is_none() {
        return Ok((true, Some(1)));
    }
    Ok((recursive || depth.is_some() || !has_names, depth))
}

fn columns(list: &str) -> Result<Vec<PropertyName>> {
    let list = if list == "all" { all_columns() } else { list.to_owned() };
    if list.is_empty() {
        return Err(CliError::Usage("bad property list: no properties specified".to_owned()));
    }
    let mut columns = Vec::new();
    for word in list.split(',') {
        let words = if word == "space" { SPACE_COLUMNS } else { word };
        for name in words.split(',') {
            let parsed = PropertyName::parse(name);
            columns.push(parsed.map_err(|error| CliError::Usage(format!("bad property list: {error}")))?);
        }
    }
    Ok(columns)
}

fn all_columns() -> String {
    let shown = snowmelt_dataset::property::all().filter(|property| !property.hidden);
    std::iter::once("name").chain(shown.map(|property| property.name)).collect::<Vec<_>>().join(",")
}

fn header(name: &PropertyName) -> Column {
    match name {
        PropertyName::Native(property) => {
            let header = property.column.to_owned();
            Column { header, width: property.width(), right: property.aligns_right() }
        }
        PropertyName::Written { name, .. } | PropertyName::Accounting(name) => {
            Column::right(name.to_uppercase())
        }
        PropertyName::User(name) => Column::left(name.to_uppercase()),
    }
}

fn document(rows: &[Row], columns: &[PropertyName], as_number: bool) -> Map<String, Value> {
    let mut datasets = Map::new();
    for row in rows {
        let mut properties = Map::new();
        for (cell, column) in row.cells.iter().zip(columns) {
            if column.text() != "name" {
                properties
                    .insert(cell.property.clone(), json::property(&cell.text, &cell.source(), as_number));
            }
        }
        let mut item = identity(row, as_number);
        item.insert("properties".to_owned(), properties.into());
        datasets.insert(row.name.clone(), item.into());
    }
    let mut document = json::document("zfs list");
    document.insert("datasets".to_owned(), datasets.into());
    document
}

/// What every dataset has in JSON (`fill_dataset_info` in `cmd/zfs/zfs_main.c`).
pub fn identity(row: &Row, as_number: bool) -> Map<String, Value> {
    let mut item = Map::new();
    item.insert("name".to_owned(), json!(row.name));
    item.insert("type".to_owned(), json!(row.kind.to_uppercase()));
    item.insert("pool".to_owned(), json!(pool_of(&row.name)));
    item.insert("createtxg".to_owned(), json::number_or_text(&row.createtxg.to_string(), as_number));
    if let Some((dataset, snapshot)) = row.name.split_once('@') {
        item.insert("dataset".to_owned(), json!(dataset));
        item.insert("snapshot_name".to_owned(), json!(snapshot));
    }
    item
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_of_a_dataset_need_no_depth() {
        let snapshots = bit(Types::SNAPSHOT);
        assert_eq!(reach(false, None, snapshots, true).unwrap(), (true, Some(1)));
        assert_eq!(reach(true, None, snapshots, true).unwrap(), (true, None));
        assert_eq!(reach(false, Some("2"), snapshots, true).unwrap(), (true, Some(2)));
        assert_eq!(reach(false, None, snapshots, false).unwrap(), (true, None));
        assert_eq!(reach(false, None, bit(Types::DATASET), true).unwrap(), (false, None));
        assert_eq!(reach(false, Some("0"), bit(Types::DATASET), false).unwrap(), (true, Some(0)));
        assert!(reach(false, Some("x"), snapshots, true).is_err());
    }

    #[test]
    fn columns_are_checked_and_expanded() {
        let names =
            |list| columns(list).unwrap().iter().map(PropertyName::text).collect::<Vec<_>>().join(",");
        assert_eq!(names("name,avail,com.x:y,written@a"), "name,available,com.x:y,written@a");
        assert_eq!(names("space"), SPACE_COLUMNS);
        assert!(names("all").starts_with("name,type,creation,used"));
        assert_eq!(
            columns("nosuch").unwrap_err().to_string(),
            "bad property list: invalid property 'nosuch'"
        );
        assert_eq!(columns("").unwrap_err().to_string(), "bad property list: no properties specified");
    }
}
