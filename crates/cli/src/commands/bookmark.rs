//! `bookmark`.

use super::names;
use crate::app::App;
use crate::args::BookmarkArgs;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::properties::Entity;
use crate::report;

/// Makes a bookmark of a snapshot, or of another bookmark.
///
/// # Errors
/// When the bookmark exists or its source does not.
pub fn run(app: &mut App<'_>, args: &BookmarkArgs) -> Result<Exit> {
    let (source, bookmark) = full_names(&args.source, &args.bookmark)?;
    app.on_dataset(&source, |app, session| {
        let open = format!("cannot open '{source}'");
        Entity::find(&session.datasets.catalog(), &source).map_err(report::failed(&open))?;
        let attempt = format!("cannot create bookmark '{bookmark}'");
        let (from, to) = (names::parse(&source, &open)?, names::parse(&bookmark, &attempt)?);
        session.datasets.bookmark(&from, &to).map_err(report::failed(&attempt))?;
        app.record(session);
        Ok(Exit::Ok)
    })
}

/// One of the two may be short: its dataset is the other's.
fn full_names(source: &str, bookmark: &str) -> Result<(String, String)> {
    let usage = |why: String| Err(CliError::Usage(why));
    let Some(at) = source.find(['@', '#']) else {
        return usage(format!("invalid source name '{source}': must contain a '@' or '#'"));
    };
    let Some(hash) = bookmark.find('#') else {
        return usage(format!("invalid bookmark name '{bookmark}': must contain a '#'"));
    };
    match (at, hash) {
        (0, 0) => usage("either source or bookmark must be specified as full dataset paths".to_owned()),
        (0, _) => Ok((format!("{}{source}", bookmark.get(..hash).unwrap_or_default()), bookmark.to_owned())),
        (_, 0) => Ok((source.to_owned(), format!("{}{bookmark}", source.get(..at).unwrap_or_default()))),
        _ => Ok((source.to_owned(), bookmark.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn either_name_may_be_short() {
        let full = |a: &str, b: &str| full_names(a, b).map_err(|error| error.to_string());
        let ok = |a: &str, b: &str| Ok((a.to_owned(), b.to_owned()));
        assert_eq!(full("t/a@s", "t/a#b"), ok("t/a@s", "t/a#b"));
        assert_eq!(full("t/a@s", "#b"), ok("t/a@s", "t/a#b"));
        assert_eq!(full("@s", "t/a#b"), ok("t/a@s", "t/a#b"));
        assert_eq!(full("t/a#x", "#b"), ok("t/a#x", "t/a#b"));
        assert!(full("@s", "#b").is_err());
        assert_eq!(full("t/a", "#b").unwrap_err(), "invalid source name 't/a': must contain a '@' or '#'");
        assert_eq!(full("t/a@s", "b").unwrap_err(), "invalid bookmark name 'b': must contain a '#'");
    }
}
