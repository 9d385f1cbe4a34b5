//! `shims`.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::app::App;
use crate::args::{Program, RSYNC, ShimsArgs, ZSTREAMDUMP};
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::output::json;

/// What mount(8) calls for `mount -t zfs`, besides the names of [`Program::SHIMS`].
const MOUNT_HELPER: &str = "mount.zfs";

/// Makes links to this program with the names of those it stands in for.
///
/// # Errors
/// When there are other files of these names; then no link is made.
pub fn run(app: &mut App<'_>, args: &ShimsArgs) -> Result<Exit> {
    let directory = app.context.path(&args.directory);
    let attempt = format!("cannot install links in {}", directory.display());
    let failed = |error: std::io::Error| CliError::failed(&attempt, &error);
    let program = std::env::current_exe().map_err(failed)?;
    fs::create_dir_all(&directory).map_err(failed)?;
    let mut wanted = Vec::new();
    let rsync = args.rsync.then_some(RSYNC);
    for name in Program::SHIMS.iter().map(|shim| shim.name()).chain([ZSTREAMDUMP, MOUNT_HELPER]).chain(rsync)
    {
        let link = directory.join(name);
        match found(&link).map_err(failed)? {
            Found::Nothing => wanted.push((link, false)),
            Found::Link(target) if target == program => {}
            Found::Link(_) if args.force => wanted.push((link, true)),
            Found::Link(target) => {
                let (link, target) = (link.display(), target.display());
                return Err(CliError::Failed(format!(
                    "{attempt}: {link} is a link to {target}: use --force to replace it"
                )));
            }
            Found::File => {
                let link = link.display();
                return Err(CliError::Failed(format!(
                    "{attempt}: {link} exists and is not a link: it is not replaced"
                )));
            }
        }
    }
    let mut made = Vec::new();
    for (link, replace) in wanted {
        if replace {
            fs::remove_file(&link).map_err(failed)?;
        }
        std::os::unix::fs::symlink(&program, &link).map_err(failed)?;
        match args.json {
            true => made.push(link.display().to_string()),
            false => writeln!(app.context.out, "{} -> {}", link.display(), program.display())?,
        }
    }
    if args.json {
        let mut document = json::document("snowmelt shims");
        document.insert("links".to_owned(), json!(made));
        document.insert("program".to_owned(), json!(program.display().to_string()));
        json::print(&mut app.context.out, document)?;
    }
    Ok(Exit::Ok)
}

/// The existing entry with the name of a link.
enum Found {
    Nothing,
    /// A link, and where it leads.
    Link(PathBuf),
    File,
}

fn found(path: &Path) -> std::io::Result<Found> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_symlink() => fs::read_link(path).map(Found::Link),
        Ok(_) => Ok(Found::File),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Found::Nothing),
        Err(error) => Err(error),
    }
}
