//! From words to an exit status.

use std::io::{self, Write};
use std::sync::Arc;

use crate::app::App;
use crate::args::{
    Cli, Command, DatasetCommand, FilesCommand, MountCommand, ParseFailure, PoolCommand, Program,
    ReplicationCommand, RowsArgs, ServeCommand, ShadowCommand, StreamCommand, ToolsCommand, parse, posix,
    usage,
};
use crate::budget;
use crate::commands;
use crate::context::Context;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::pools::Session;
use crate::request::Request;

/// Runs the command that the context's words mean.
pub fn run(context: &mut Context) -> Exit {
    run_with(context, None)
}

/// The same for another process, which asked us as the owner of `session`.
pub fn serve(context: &mut Context, session: Arc<Session>) -> Exit {
    run_with(context, Some(session))
}

fn run_with(context: &mut Context, served: Option<Arc<Session>>) -> Exit {
    if context.env("POSIXLY_CORRECT").is_some() {
        posix::end_options(&mut context.args);
    }
    let result = match parse(&context.args, context.columns()) {
        Ok(cli) => dispatch(context, cli, served),
        Err(ParseFailure::Help(text)) => {
            context.out.write_all(text.as_bytes()).map(|()| Exit::Ok).map_err(Into::into)
        }
        Err(ParseFailure::Usage(text)) => {
            context.complain(text.trim_end());
            return Exit::Usage;
        }
        Err(ParseFailure::Missing(text)) => Err(CliError::Failed(text)),
    };
    let flushed = context.out.flush();
    let exit = match result {
        Ok(exit) => exit,
        Err(CliError::Output(error)) => return output_failed(context, &error),
        Err(CliError::Reported) => Exit::Failed,
        Err(CliError::Failed(message) | CliError::NoSpace(message) | CliError::NoProgram(message)) => {
            context.complain(message);
            Exit::Failed
        }
        Err(CliError::Usage(message)) => {
            let usage = usage(&context.args);
            context.complain(format_args!("{message}\n{}", usage.trim_end()));
            Exit::Usage
        }
    };
    match flushed {
        Ok(()) => exit,
        Err(error) => output_failed(context, &error),
    }
}

/// The reader of the output can close it early.
fn output_failed(context: &mut Context, error: &io::Error) -> Exit {
    if error.kind() == io::ErrorKind::BrokenPipe {
        return Exit::Ok;
    }
    context.complain(format_args!("cannot write output: {error}"));
    Exit::Failed
}

fn dispatch(context: &mut Context, cli: Cli, served: Option<Arc<Session>>) -> Result<Exit> {
    // An owner has the budget that it was started with.
    if served.is_none() {
        budget::set(context, cli.global.memory.as_deref())?;
    }
    let app = &mut App::new(context, &cli.global, served);
    match cli.command {
        Command::Pool(pool) => match pool.command {
            PoolCommand::Create(args) => commands::pool_create::run(app, &args),
            PoolCommand::List(args) => commands::pool_list::run(app, &args),
            PoolCommand::Status(args) => commands::pool_status::run(app, &args),
            PoolCommand::Export(args) => commands::pool_export::run(app, &args),
            PoolCommand::Import(args) => commands::pool_import::run(app, &args),
            PoolCommand::Destroy(args) => commands::pool_destroy::run(app, &args),
            PoolCommand::Get(args) => commands::pool_get::run(app, &args),
            PoolCommand::History(args) => commands::pool_history::run(app, &args),
            PoolCommand::Set(args) => commands::pool_set::run(app, &args),
            PoolCommand::ChangeKey(args) => commands::pool_change_key::run(app, &args),
            PoolCommand::Sync(args) => commands::pool_sync::run(app, &args),
            PoolCommand::Segments(args) => commands::pool_segments::run(app, &args),
            PoolCommand::Iostat(args) => commands::pool_iostat::run(app, &args),
            PoolCommand::Trim(args) => commands::pool_trim::run(app, &args),
            PoolCommand::Scrub(args) => commands::pool_scrub::run(app, &args),
            PoolCommand::Attach(args) => commands::pool_devices::attach(app, &args),
            PoolCommand::Detach(args) => commands::pool_devices::detach(app, &args),
            PoolCommand::Replace(args) => commands::pool_devices::replace(app, &args),
            PoolCommand::Online(args) => commands::pool_devices::online(app, &args),
            PoolCommand::Offline(args) => commands::pool_devices::offline(app, &args),
            PoolCommand::Resilver(args) => commands::pool_resilver::run(app, &args),
            PoolCommand::Clear(args) => commands::pool_clear::run(app, &args),
        },
        Command::Replication(ReplicationCommand::Receive(args)) => commands::receive::run(app, &args),
        Command::Replication(ReplicationCommand::Send(args)) => commands::send::run(app, &args),
        Command::Sync(args) => commands::sync::run(app, &args),
        Command::Heal(args) => commands::sync::heal::run(app, &args),
        Command::Shadow(shadow) => match shadow.command {
            ShadowCommand::List(args) => commands::shadow::list(app, &args),
            ShadowCommand::Destroy(args) => commands::shadow::destroy(app, &args),
        },
        Command::Policy(args) => commands::policy::run(app, &args),
        Command::Dataset(command) => match command {
            DatasetCommand::List(args) => commands::list::run(app, &args),
            DatasetCommand::Get(args) => commands::get::run(app, &args),
            DatasetCommand::Set(args) => commands::set::run(app, &args),
            DatasetCommand::Inherit(args) => commands::inherit::run(app, &args),
            DatasetCommand::Create(args) => commands::create::run(app, &args),
            DatasetCommand::Destroy(args) => commands::destroy::run(app, &args),
            DatasetCommand::Rename(args) => commands::rename::run(app, &args),
            DatasetCommand::Snapshot(args) => commands::snapshot::run(app, &args),
            DatasetCommand::Rollback(args) => commands::rollback::run(app, &args),
            DatasetCommand::Clone(args) => commands::clone::run(app, &args),
            DatasetCommand::Promote(args) => commands::promote::run(app, &args),
            DatasetCommand::Bookmark(args) => commands::bookmark::run(app, &args),
            DatasetCommand::Hold(args) => commands::hold::run_hold(app, &args),
            DatasetCommand::Holds(args) => commands::holds::run(app, &args),
            DatasetCommand::Release(args) => commands::hold::run_release(app, &args),
        },
        Command::Files(command) => match command {
            FilesCommand::Import(args) => commands::import::run(app, &args),
            FilesCommand::Diff(args) => commands::diff::run(app, &args),
            FilesCommand::Ls(args) => commands::ls::run(app, &args),
            FilesCommand::Cat(args) => commands::cat::run(app, &args),
            FilesCommand::Find(args) => commands::find::run(app, &args),
            FilesCommand::Restore(args) => commands::restore::run(app, &args),
            FilesCommand::Manifest(args) => commands::manifest::run(app, &args),
        },
        Command::Mount(MountCommand::Mount(args)) => commands::mount::run(app, &args),
        Command::Mount(MountCommand::Unmount(args)) => commands::unmount::run(app, &args),
        Command::Serve(mut serve) => match serve.command.take() {
            Some(ServeCommand::Nbd(args)) => commands::serve_nbd::run(app, &args),
            Some(ServeCommand::Rsync(args)) => commands::serve_rsync::run(app, &args),
            Some(ServeCommand::Zvol(args)) => commands::serve_zvol::run(app, &args),
            Some(ServeCommand::Sync(args)) => commands::serve_sync::run(app, &args),
            None => commands::policy::serve(app, &serve),
        },
        Command::Rsync(args) => commands::rsync::run(app, &args),
        Command::Index(args) => commands::index::run(app, &args),
        Command::Tools(command) => match command {
            ToolsCommand::Stream(stream) => match stream.command {
                StreamCommand::Dump(args) => commands::stream_dump::run(app, &args),
                StreamCommand::Verify(args) => commands::stream_verify::run(app, &args),
                StreamCommand::Token(args) => commands::stream_token::run(app, &args),
                StreamCommand::Redup(args) => commands::stream_filter::redup(app, &args),
                StreamCommand::Recompress(args) => commands::stream_filter::recompress(app, &args),
                StreamCommand::Decompress(args) => commands::stream_filter::decompress(app, &args),
                StreamCommand::DropRecord(args) => commands::stream_filter::drop_record(app, &args),
            },
            ToolsCommand::Check(args) => commands::check::run(app, &args),
            ToolsCommand::Salvage(args) => commands::salvage::run(app, &args),
            ToolsCommand::Completions(args) => commands::program::completions(app, &args),
            ToolsCommand::Man(args) => commands::program::man(app, &args),
            ToolsCommand::Shims(args) => commands::shims::run(app, &args),
        },
        Command::Rows(args) => rows(app, &args),
        Command::Complete(args) => commands::complete::run(app, &args),
        Command::Version(program, args) => commands::program::version(app, program, &args),
        Command::Upgrade(Program::Zpool, args) => commands::upgrade::pools(app, &args),
        Command::Upgrade(_, args) => commands::upgrade::filesystems(app, &args),
    }
}

fn rows(app: &mut App<'_>, args: &RowsArgs) -> Result<Exit> {
    let query: Request = serde_json::from_str(&args.request)
        .map_err(|error| CliError::Usage(format!("cannot read the request: {error}")))?;
    app.on_dataset(&args.pool, |app, session| {
        let answer = query.answer(app.context, session)?;
        serde_json::to_writer(&mut app.context.out, &answer).map_err(io::Error::from)?;
        Ok(Exit::Ok)
    })
}
