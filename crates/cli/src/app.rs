//! A command at work: its surroundings, and the pools it can reach.

use std::ffi::OsString;
use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;

use crate::args::{GlobalArgs, Program};
use crate::commands::automount;
use crate::context::Context;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::pools::{Acquired, Forward, KnownPool, Places, Session, acquire, missing};
use crate::request::{Reply, Request};

/// A command at work.
pub struct App<'a> {
    /// Its surroundings.
    pub context: &'a mut Context,
    /// Where pools are.
    pub places: Places,
    /// The pool that this process owns, if it works for another process.
    served: Option<Arc<Session>>,
    /// What `--pool-dir` named.
    pool_dirs: Vec<PathBuf>,
    /// Filesystems that are to be mounted in the background when the pool is closed.
    pub to_mount: Vec<String>,
    /// Input or output of the command is a stream. They are closed when the work is done, before the owner of the pool
    /// waits for the commands of others: one of those may wait for the end of this stream, as the receiver of what this
    /// command sends does.
    pub is_streaming: bool,
    /// The mounts that the command leaves to its caller, if it is executed by an owner that does not mount.
    pub may_mount: Option<String>,
}

/// The end of a command that the owner executed for a caller, if the caller still has to mount something.
const MOUNT_THEN: u8 = 119;

impl<'a> App<'a> {
    /// With these surroundings.
    pub fn new(context: &'a mut Context, global: &GlobalArgs, served: Option<Arc<Session>>) -> Self {
        let places = Places::new(context, &global.pool_dirs);
        Self {
            context,
            places,
            served,
            pool_dirs: global.pool_dirs.clone(),
            to_mount: Vec::new(),
            is_streaming: false,
            may_mount: None,
        }
    }

    /// Runs a command of this process with this context and these places, not for a caller.
    pub fn at_work(context: &'a mut Context, places: Places, pool_dirs: Vec<PathBuf>) -> Self {
        Self {
            context,
            places,
            served: None,
            pool_dirs,
            to_mount: Vec::new(),
            is_streaming: false,
            may_mount: None,
        }
    }

    /// What `--pool-dir` named, for other commands that are to find the same pools.
    pub fn pool_dirs(&self) -> &[PathBuf] {
        &self.pool_dirs
    }

    /// Works on the pool of `dataset`: here, or in the process that owns it. `missing` is the message if there is no
    /// such pool.
    ///
    /// # Errors
    /// When the pool cannot be opened, and whatever `work` fails with.
    pub fn on_pool(
        &mut self,
        dataset: &str,
        missing: impl FnOnce(&str) -> String,
        work: impl FnOnce(&mut App<'_>, &Session) -> Result<Exit>,
    ) -> Result<Exit> {
        let name = pool_of(dataset);
        if let Some(served) = self.served.clone() {
            if served.name() == name {
                let exit = work(self, &served)?;
                let left = exit == Exit::Ok && !self.to_mount.is_empty();
                return Ok(if left { Exit::Other(MOUNT_THEN) } else { exit });
            }
            return Err(CliError::Failed(missing(name)));
        }
        let Some(known) = self.places.find(name) else {
            let missing = missing(name);
            return Err(CliError::Failed(match missing::find(self.context, &self.places, name)? {
                Some(pin) => {
                    format!(
                        "{missing}\nthe pool '{name}' was not found at its last place: {}",
                        pin.place.display()
                    )
                }
                None => missing,
            }));
        };
        let args = self.context.args.clone();
        let forward = Forward { args: &args, stdout: None };
        match acquire(self.context, &known.location, &forward, crate::run::serve)? {
            Acquired::Done(MOUNT_THEN) => {
                let which = automount::below(self.may_mount.as_deref().unwrap_or(name));
                automount::in_background(self, which, name)
            }
            Acquired::Done(code) => Ok(Exit::of(code)),
            Acquired::Owned(owner) => {
                let mut result = work(self, owner.session());
                if self.is_streaming {
                    let closed = self.context.hang_up();
                    result = result.and_then(|exit| closed.map(|()| exit).map_err(Into::into));
                }
                let closed = owner.close_when_unmounted(&self.context.cancelled);
                let exit = result?;
                closed?;
                if self.to_mount.is_empty() {
                    return Ok(exit);
                }
                let which = automount::each(std::mem::take(&mut self.to_mount));
                let mounted = automount::in_background(self, which, name)?;
                Ok(if exit == Exit::Ok { mounted } else { exit })
            }
        }
    }

    /// As [`App::on_pool`] for a command that opens datasets: `cannot open 'tank/a': dataset does not exist`.
    ///
    /// # Errors
    /// As [`App::on_pool`].
    pub fn on_dataset(
        &mut self,
        dataset: &str,
        work: impl FnOnce(&mut App<'_>, &Session) -> Result<Exit>,
    ) -> Result<Exit> {
        self.on_pool(dataset, |_| format!("cannot open '{dataset}': dataset does not exist"), work)
    }

    /// Works on datasets of several pools, one pool after the other: `work` gets the datasets of one pool. A failure
    /// in one pool does not affect the others.
    ///
    /// # Errors
    /// When the arguments are not valid, or output fails.
    pub fn on_each_pool(
        &mut self,
        datasets: &[String],
        mut work: impl FnMut(&mut App<'_>, &Session, &[String]) -> Result<Exit>,
    ) -> Result<Exit> {
        if datasets.is_empty() {
            return Err(CliError::Usage("missing dataset argument".to_owned()));
        }
        let mut pools: Vec<String> = Vec::new();
        for pool in datasets.iter().map(|name| pool_of(name).to_owned()) {
            if !pools.contains(&pool) {
                pools.push(pool);
            }
        }
        let is_alone = pools.len() == 1;
        let mut worst = Exit::Ok;
        for pool in self.own_share(&pools) {
            let names: Vec<String> = datasets.iter().filter(|name| pool_of(name) == pool).cloned().collect();
            let first = names.first().cloned().unwrap_or_default();
            match self.on_dataset(&first, |app, session| work(app, session, &names)) {
                Ok(Exit::Ok) => {}
                Ok(exit) => worst = exit,
                Err(error @ (CliError::Usage(_) | CliError::Output(_))) => return Err(error),
                Err(error) if is_alone => return Err(error),
                Err(CliError::Reported) => worst = Exit::Failed,
                Err(error) => {
                    self.context.complain(error);
                    worst = Exit::Failed;
                }
            }
        }
        Ok(worst)
    }

    /// Works on datasets that must all be of one pool.
    ///
    /// # Errors
    /// As [`App::on_pool`]; when they are of several.
    pub fn on_datasets(
        &mut self,
        datasets: &[String],
        work: impl FnOnce(&mut App<'_>, &Session) -> Result<Exit>,
    ) -> Result<Exit> {
        let Some(first) = datasets.first() else {
            return Err(CliError::Usage("missing dataset argument".to_owned()));
        };
        match datasets.iter().find(|name| pool_of(name) != pool_of(first)) {
            Some(other) => {
                let (a, b) = (pool_of(first), pool_of(other));
                Err(CliError::Failed(format!(
                    "'{a}' and '{b}' are different pools: all datasets of a command must be in one pool"
                )))
            }
            None => self.on_dataset(first, work),
        }
    }

    /// Sends a request to a pool, in this process or in its owner.
    ///
    /// # Errors
    /// When the pool cannot be opened or read.
    pub fn query(&mut self, pool: &KnownPool, query: &Request) -> Result<Reply> {
        if let Some(served) = self.served.clone().filter(|served| served.name() == pool.label.name) {
            return query.answer(self.context, &served);
        }
        let request = serde_json::to_string(query).map_err(|error| CliError::Failed(error.to_string()))?;
        let args: [OsString; 3] = ["rows".into(), pool.label.name.clone().into(), request.into()];
        let (mut reader, writer) =
            std::io::pipe().map_err(|error| CliError::failed("cannot make a pipe", &error))?;
        let writer = std::fs::File::from(std::os::fd::OwnedFd::from(writer));
        let collector = std::thread::spawn(move || {
            let mut text = Vec::new();
            reader.read_to_end(&mut text).map(|_| text)
        });
        let forward = Forward { args: &args, stdout: Some(&writer) };
        let acquired = acquire(self.context, &pool.location, &forward, crate::run::serve);
        drop(writer);
        match acquired? {
            Acquired::Owned(owner) => {
                let answer = query.answer(self.context, owner.session());
                owner.close_when_unmounted(&self.context.cancelled)?;
                answer
            }
            Acquired::Done(0) => {
                let text = collector.join().unwrap_or_else(|_| Ok(Vec::new()));
                let text = text.map_err(|error| {
                    CliError::failed("cannot read the answer of the pool's owner", &error)
                })?;
                serde_json::from_slice(&text)
                    .map_err(|error| CliError::failed("cannot read the answer of the pool's owner", &error))
            }
            Acquired::Done(_) => Err(CliError::Reported),
        }
    }

    /// Whether this process works for another one, which asked it as the owner of a pool.
    pub fn is_served(&self) -> bool {
        self.served.is_some()
    }

    /// The pool of the process that this command is run in for another one.
    pub fn served_pool(&self) -> Option<&str> {
        self.served.as_deref().map(Session::name)
    }

    /// The names of all pools. In an owner that works for another process, only the name of its pool: the other pools
    /// are known only to that process, because the places that it searches are not passed on.
    pub fn every_pool(&self) -> Vec<String> {
        match self.served_pool() {
            Some(own) => vec![own.to_owned()],
            None => self.places.all().into_iter().map(|known| known.label.name).collect(),
        }
    }

    /// The pools among these that this process handles. A caller of one pool's owner handles the others itself.
    pub fn own_share(&self, pools: &[String]) -> Vec<String> {
        let is_ours = |pool: &&String| self.served_pool().is_none_or(|own| own == *pool);
        pools.iter().filter(is_ours).cloned().collect()
    }

    /// Writes a successful command into the pool's history, as `zpool history` shows it.
    pub fn record(&mut self, session: &Session) {
        let (program, words) = Program::of(&self.context.args);
        let mut line = program.name().to_owned();
        for word in words {
            line.push(' ');
            line.push_str(&word.to_string_lossy());
        }
        if let Err(error) = session.datasets.record_history(&line) {
            self.context.complain(format_args!("warning: the pool's history could not be written: {error}"));
        }
    }
}

/// The pool that a dataset, snapshot or bookmark is in, by its name.
pub fn pool_of(name: &str) -> &str {
    name.split(['/', '@', '#']).next().unwrap_or_default()
}
