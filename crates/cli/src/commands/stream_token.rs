//! `stream token`.

use std::io::Write;

use snowmelt_stream::token::ResumeToken;

use crate::app::App;
use crate::args::StreamTokenArgs;
use crate::error::{CliError, Result};
use crate::exit::Exit;

/// Prints what a resume token says, as `zstream token` does.
///
/// # Errors
/// When it is none.
pub fn run(app: &mut App<'_>, args: &StreamTokenArgs) -> Result<Exit> {
    let token = ResumeToken::parse(&args.token).map_err(|error| CliError::Failed(error.to_string()))?;
    write!(app.context.out, "{}", token.0)?;
    Ok(Exit::Ok)
}
