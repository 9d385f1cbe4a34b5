//! `get`.

use serde_json::{Map, Value};
use snowmelt_dataset::property::{PropertyName, Source, Types, find};

use super::{gather, list};
use crate::app::App;
use crate::args::GetArgs;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::listing::{Cell, Columns, Listing, Row, Selection, bit, parse_types};
use crate::output::json;
use crate::output::table::{self, Column};

/// A column of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Name,
    Property,
    Value,
    Received,
    Source,
}

const DEFAULT_FIELDS: [Field; 4] = [Field::Name, Field::Property, Field::Value, Field::Source];
const ALL_FIELDS: [Field; 5] = [Field::Name, Field::Property, Field::Value, Field::Received, Field::Source];

/// Shows properties.
///
/// # Errors
/// When options make no sense, or output fails.
pub fn run(app: &mut App<'_>, args: &GetArgs) -> Result<Exit> {
    let fields = match &args.columns {
        Some(columns) => fields(columns)?,
        None => DEFAULT_FIELDS.to_vec(),
    };
    let sources = args.sources.as_deref().map(sources).transpose()?;
    let request = request(args, fields.contains(&Field::Received))?;
    let mut gathered = gather::rows(app, request)?;
    if let Some(sources) = &sources {
        for row in &mut gathered.rows {
            row.cells.retain(|cell| sources.contains(&source_word(&cell.source())));
        }
    }
    if args.json {
        json::print(&mut app.context.out, document(&gathered.rows, args.json_int))?;
    } else {
        let cells = gathered.rows.iter().flat_map(|row| row.cells.iter().map(move |cell| (row, cell)));
        let lines: Vec<Vec<String>> = cells
            .map(|(row, cell)| fields.iter().map(|field| field_text(*field, row, cell)).collect())
            .collect();
        let headers: Vec<Column> = fields.iter().map(|field| header(*field, &args.properties)).collect();
        // Nothing to show is no reason for a header.
        if !lines.is_empty() {
            table::print(&mut app.context.out, &headers, &lines, args.scripted)?;
        }
    }
    Ok(Exit::unless(gathered.failed))
}

fn request(args: &GetArgs, received: bool) -> Result<Listing> {
    let types = args.types.as_deref().map_or(Ok(bit(Types::ANY)), parse_types)?;
    let columns = match args.properties.as_str() {
        "all" => Columns::All,
        "" => return Err(CliError::Usage("bad property list: no properties specified".to_owned())),
        list => {
            let names: Result<Vec<_>> = list
                .split(',')
                .map(|name| match PropertyName::parse(name) {
                    Ok(name) => Ok(name.text()),
                    Err(error) => Err(CliError::Usage(format!("bad property list: {error}"))),
                })
                .collect();
            Columns::Named(names?)
        }
    };
    let (recursive, depth) =
        list::reach(args.recursive, args.depth.as_deref(), types, !args.datasets.is_empty())?;
    Ok(Listing {
        selection: Selection { names: args.datasets.clone(), types, recursive, depth },
        columns,
        sort: Vec::new(),
        parsable: args.parsable || args.json_int,
        received,
    })
}

fn fields(list: &str) -> Result<Vec<Field>> {
    if list == "all" {
        return Ok(ALL_FIELDS.to_vec());
    }
    list.split(',')
        .map(|word| {
            Ok(match word {
                "name" => Field::Name,
                "property" => Field::Property,
                "value" => Field::Value,
                "received" => Field::Received,
                "source" => Field::Source,
                "all" => {
                    let why = "\"all\" conflicts with specific fields given to -o option";
                    return Err(CliError::Usage(why.to_owned()));
                }
                _ => return Err(CliError::Usage(format!("invalid column name '{word}'"))),
            })
        })
        .collect()
}

fn sources(list: &str) -> Result<Vec<&'static str>> {
    const KNOWN: [&str; 6] = ["local", "default", "inherited", "received", "temporary", "none"];
    list.split(',')
        .map(|word| {
            let known = KNOWN.iter().find(|known| **known == word);
            known.copied().ok_or_else(|| CliError::Usage(format!("invalid source '{word}'")))
        })
        .collect()
}

fn source_word(source: &Source) -> &'static str {
    match source {
        Source::Local => "local",
        Source::Default => "default",
        Source::Inherited(_) => "inherited",
        Source::Received => "received",
        Source::Temporary => "temporary",
        Source::None => "none",
    }
}

fn field_text(field: Field, row: &Row, cell: &Cell) -> String {
    match field {
        Field::Name => row.name.clone(),
        Field::Property => cell.property.clone(),
        Field::Value => cell.text.clone(),
        Field::Received => cell.received.clone().unwrap_or_else(|| "-".to_owned()),
        Field::Source => cell.source().to_string(),
    }
}

/// The column of values is as wide as its widest property would be in `list`.
fn header(field: Field, properties: &str) -> Column {
    let name = match field {
        Field::Name => "NAME",
        Field::Property => "PROPERTY",
        Field::Value => "VALUE",
        Field::Received => "RECEIVED",
        Field::Source => "SOURCE",
    };
    let width = match field {
        Field::Value if properties == "all" => {
            let shown = snowmelt_dataset::property::all().filter(|property| !property.hidden);
            shown.map(snowmelt_dataset::property::Property::width).max().unwrap_or(0)
        }
        Field::Value => {
            properties.split(',').filter_map(find).map(|property| property.width()).max().unwrap_or(0)
        }
        _ => 0,
    };
    Column::left(name).at_least(width)
}

fn document(rows: &[Row], as_number: bool) -> Map<String, Value> {
    let mut datasets = Map::new();
    for row in rows.iter().filter(|row| !row.cells.is_empty()) {
        let properties: Map<String, Value> = row
            .cells
            .iter()
            .map(|cell| (cell.property.clone(), json::property(&cell.text, &cell.source(), as_number)))
            .collect();
        let mut item = list::identity(row, as_number);
        item.insert("properties".to_owned(), properties.into());
        datasets.insert(row.name.clone(), item.into());
    }
    let mut document = json::document("zfs get");
    document.insert("datasets".to_owned(), datasets.into());
    document
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_by_name() {
        assert_eq!(fields("value").unwrap(), [Field::Value]);
        assert_eq!(fields("property,value").unwrap(), [Field::Property, Field::Value]);
        assert_eq!(fields("all").unwrap(), ALL_FIELDS);
        assert_eq!(fields("name,frob").unwrap_err().to_string(), "invalid column name 'frob'");
        assert!(fields("name,all").is_err());
    }

    #[test]
    fn sources_by_name() {
        assert_eq!(sources("local,inherited").unwrap(), ["local", "inherited"]);
        assert_eq!(sources("frob").unwrap_err().to_string(), "invalid source 'frob'");
        assert_eq!(source_word(&Source::Inherited("tank".into())), "inherited");
    }
}
