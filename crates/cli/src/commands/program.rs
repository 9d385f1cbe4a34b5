//! `completions` and `man`: what comes with the program.

use std::path::Path;

use clap::Command;

use crate::app::App;
use crate::args::{CompletionsArgs, ManArgs, command};
use crate::error::{CliError, Result};
use crate::exit::Exit;

/// Prints completions for a shell.
///
/// # Errors
/// When output fails.
pub fn completions(app: &mut App<'_>, args: &CompletionsArgs) -> Result<Exit> {
    // Into memory first: the generator takes a broken pipe for a bug.
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut command(), "snowmelt", &mut text);
    std::io::Write::write_all(&mut app.context.out, &text)?;
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
