//! A target at the other side of a connection.

use std::io::{self, Write};
use std::sync::Arc;

use super::{Material, Target, Watcher, stream_file};
use crate::end::{End, Peer, confused};
use crate::error::Failure;
use crate::objects::lend;
use crate::request::{Answer, Bring, Brought, OpenTarget, Relocation, Request, TargetState};
use crate::wire::Outgoing;

/// A target at the other side of a connection.
pub struct There {
    peer: Arc<Peer>,
}

impl There {
    /// Served there.
    pub fn new(peer: Arc<Peer>) -> Self {
        Self { peer }
    }
}

impl Target for There {
    fn open(&mut self, what: &OpenTarget) -> Result<TargetState, Failure> {
        match self.peer.ask(&Request::OpenTarget(what.clone()))? {
            Answer::Target(state) => Ok(state),
            _ => Err(confused()),
        }
    }

    fn relocate(&mut self, moves: &[Relocation]) -> Result<Vec<Result<(), Failure>>, Failure> {
        match self.peer.ask(&Request::Relocate { moves: moves.to_vec() })? {
            Answer::Applied(outcomes) if outcomes.len() == moves.len() => Ok(outcomes),
            _ => Err(confused()),
        }
    }

    fn bring(
        &mut self,
        how: &Bring,
        material: Material,
        watcher: &mut dyn Watcher,
    ) -> Result<Brought, Failure> {
        let call = self.peer.begin(&Request::Bring(how.clone()))?;
        match material {
            Material::Snapshots { new, old } => lend(call.channel(), &new, old.as_ref(), watcher)?,
            Material::Stream(source) => {
                let mut out = Out { out: call.channel().outgoing(), is_broken: false };
                match stream_file::copy(source, &mut out, watcher) {
                    Ok(_) => drop(out.out.finish()),
                    // The other side knows why.
                    Err(_) if out.is_broken => {}
                    Err(failure) => return Err(failure),
                }
            }
        }
        match call.channel().result()? {
            Answer::Brought(brought) => Ok(brought),
            _ => Err(confused()),
        }
    }

    fn is_lost(&self) -> bool {
        self.peer.is_lost()
    }
}

/// A stream to the other side, and whether the other side has stopped reading it.
struct Out {
    out: Outgoing,
    is_broken: bool,
}

impl Write for Out {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.out.write(buf).inspect_err(|_| self.is_broken = true)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
