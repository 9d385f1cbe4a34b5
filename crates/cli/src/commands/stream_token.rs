//! `stream token`.

use std::io::Write;

use serde_json::{Map, Value, json};
use snowmelt_stream::nvlist::NvValue;
use snowmelt_stream::token::ResumeToken;

use crate::app::App;
use crate::args::StreamTokenArgs;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::output::json;

/// Prints the contents of a resume token, like `zstream token`.
///
/// # Errors
/// When it is none.
pub fn run(app: &mut App<'_>, args: &StreamTokenArgs) -> Result<Exit> {
    let token = ResumeToken::parse(&args.token).map_err(|error| CliError::Failed(error.to_string()))?;
    if args.json {
        let mut contents = Map::new();
        for (key, value) in token.0.iter() {
            insert(&mut contents, key, value);
        }
        let mut document = json::document("snowmelt stream token");
        document.insert("token".to_owned(), contents.into());
        json::print(&mut app.context.out, document)?;
        return Ok(Exit::Ok);
    }
    write!(app.context.out, "{}", token.0)?;
    Ok(Exit::Ok)
}

/// The kinds of values that tokens have; of others only that they are there.
fn insert(contents: &mut Map<String, Value>, key: &str, value: &NvValue) {
    let value = match value {
        NvValue::Boolean => json!(true),
        NvValue::BooleanValue(value) => json!(value),
        NvValue::Uint64(value) => json!(value),
        NvValue::Int64(value) => json!(value),
        NvValue::Uint32(value) => json!(value),
        NvValue::Int32(value) => json!(value),
        NvValue::Uint8(value) | NvValue::Byte(value) => json!(value),
        NvValue::Uint64Array(values) => json!(values),
        NvValue::String(text) => return json::insert_bytes(contents, key, text),
        _ => Value::Null,
    };
    contents.insert(key.to_owned(), value);
}
