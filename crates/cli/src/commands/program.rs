//! `completions`, `man` and `version`.

use std::io::Write;
use std::path::Path;

use clap::Command;
use clap_complete::Shell;
use serde_json::json;

use crate::app::App;
use crate::args::{CompletionsArgs, ManArgs, Program, VersionArgs, command};
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::output::json;

/// The release of OpenZFS whose `zfs` and `zpool` are stood in for.
const OPENZFS: &str = "2.3.0";

/// Scripts that ask [`super::complete`], so that they know the names of pools, datasets and snapshots.
const BASH: &str = include_str!("../completions/snowmelt.bash");
const ZSH: &str = include_str!("../completions/snowmelt.zsh");
const FISH: &str = include_str!("../completions/snowmelt.fish");

/// Prints completions for a shell.
///
/// # Errors
/// When output fails.
pub fn completions(app: &mut App<'_>, args: &CompletionsArgs) -> Result<Exit> {
    let text = match args.shell {
        Shell::Bash => BASH.into(),
        Shell::Zsh => ZSH.into(),
        Shell::Fish => FISH.into(),
        // Of other shells only words of the grammar are completed.
        shell => {
            // Into memory first: the generator takes a broken pipe for a bug.
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut command(), "snowmelt", &mut text);
            text
        }
    };
    app.context.out.write_all(&text)?;
    Ok(Exit::Ok)
}

/// Prints two lines as `zfs version` does: of the commands, and of what they command. Of the program itself, JSON.
///
/// # Errors
/// When output fails.
pub fn version(app: &mut App<'_>, program: Program, args: &VersionArgs) -> Result<Exit> {
    let version = format!("{OPENZFS}-snowmelt{}", env!("CARGO_PKG_VERSION"));
    let (user, kernel) = (format!("zfs-{version}"), format!("zfs-kmod-{version}"));
    if program == Program::Snowmelt {
        let mut document = json::document("snowmelt version");
        document.insert("version".to_owned(), env!("CARGO_PKG_VERSION").into());
        document.insert("zfs_version".to_owned(), OPENZFS.into());
        json::print(&mut app.context.out, document)?;
    } else if args.json {
        let mut document = json::document(&format!("{} version", program.name()));
        document.insert("zfs_version".to_owned(), json!({ "userland": user, "kernel": kernel }));
        json::print(&mut app.context.out, document)?;
    } else {
        writeln!(app.context.out, "{user}\n{kernel}")?;
    }
    Ok(Exit::Ok)
}

/// Writes a man page for each command.
///
/// # Errors
/// When the directory cannot be written.
pub fn man(app: &mut App<'_>, args: &ManArgs) -> Result<Exit> {
    let directory = app.context.path(&args.directory);
    let attempt = format!("cannot write man pages to {}", args.directory.display());
    std::fs::create_dir_all(&directory).map_err(|error| CliError::failed(&attempt, &error))?;
    let mut grammar = command();
    grammar.build();
    page(&grammar, "snowmelt", &directory).map_err(|error| CliError::failed(&attempt, &error))?;
    Ok(Exit::Ok)
}

fn page(command: &Command, name: &str, directory: &Path) -> std::io::Result<()> {
    let mut text = Vec::new();
    clap_mangen::Man::new(command.clone()).title(name).render(&mut text)?;
    std::fs::write(directory.join(format!("{name}.1")), text)?;
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        page(below, &format!("{name}-{}", below.get_name()), directory)?;
    }
    Ok(())
}
