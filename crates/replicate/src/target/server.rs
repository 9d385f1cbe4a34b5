//! The other side of a target that is elsewhere.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::{Here, Material, Target, Watcher};
use crate::end::Source;
use crate::error::Failure;
use crate::objects::RemoteSnapshot;
use crate::request::{Answer, Bring, Form, Request};
use crate::wire::{Channel, Handler, Incoming, Patience, WireError, serve};

/// Tells a person what could not be done.
pub type Teller<'a> = &'a (dyn Fn(&str) + Sync);

/// Serves a directory, image or file of this machine as a target to the client at the other side of `input` and
/// `output`, until the client disconnects or `cancelled` is set.
///
/// # Errors
/// When the client is none, or breaks the protocol.
pub fn serve_target(
    target: Here,
    (input, output): (impl Read + Send + 'static, impl Write + Send + 'static),
    teller: Teller<'_>,
    cancelled: &AtomicBool,
) -> Result<(), WireError> {
    let target = Mutex::new(target);
    serve(input, output, Patience::default(), &Server { target, teller, cancelled })
}

struct Server<'a> {
    target: Mutex<Here>,
    teller: Teller<'a>,
    cancelled: &'a AtomicBool,
}

impl Handler for Server<'_> {
    fn handle(&self, request: Request, channel: &Arc<Channel>) -> Result<Answer, Failure> {
        match request {
            Request::OpenTarget(what) => self.target.lock().open(&what).map(Answer::Target),
            Request::Relocate { moves } => self.target.lock().relocate(&moves).map(Answer::Applied),
            Request::Bring(how) => self.bring(&how, channel),
            _ => Err(Failure::other("this server is for the target of a sync, not for a pool")),
        }
    }
}

impl Server<'_> {
    fn bring(&self, how: &Bring, channel: &Arc<Channel>) -> Result<Answer, Failure> {
        let mut target = self.target.lock();
        let material = match target.form() {
            Some(Form::Stream) => Material::Stream(Box::new(Coming(channel.incoming()))),
            _ => {
                let (new, old) = RemoteSnapshot::lent(channel);
                Material::Snapshots { new, old: how.has_base.then_some(old) }
            }
        };
        let mut telling = Telling { teller: self.teller, channel, cancelled: self.cancelled };
        let brought = target.bring(how, material, &mut telling);
        match channel.is_broken() {
            // The result is ignored: the client can connect again, and continue.
            true => Err(Failure::lost("the client is gone")),
            false => brought.map(Answer::Brought),
        }
    }
}

/// A stream from the client: it ends it only if it was whole.
struct Coming(Incoming);

impl Read for Coming {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read(buf)
    }
}

impl Source for Coming {
    fn finish(self: Box<Self>) -> Result<(), Failure> {
        Ok(())
    }
}

struct Telling<'a> {
    teller: Teller<'a>,
    channel: &'a Channel,
    cancelled: &'a AtomicBool,
}

impl Watcher for Telling<'_> {
    fn failure(&mut self, what: &str) {
        (self.teller)(what);
    }

    fn is_cancelled(&self) -> bool {
        self.channel.is_broken() || self.cancelled.load(Ordering::Relaxed)
    }
}
