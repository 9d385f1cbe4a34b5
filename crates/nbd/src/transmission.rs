//! The transmission phase of one connection: requests in, replies out.
//!
//! One task reads requests and hands each to a worker thread; replies go out as they are ready (see [`crate::outbox`]).

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};
use tokio::time::timeout;

use crate::budget::Budget;
use crate::error::ConnectionError;
use crate::event::{Client, Event, Log};
use crate::execute::{execute, reply_bytes};
use crate::handshake::Agreement;
use crate::outbox::Outbox;
use crate::plan::{Limits, Operation, Plan};
use crate::shutdown::Shutdown;
use crate::wire::reply::{Address, Reply, ReplyError};
use crate::wire::request::{MAX_REQUEST_HEAD, RequestHead};
use crate::workers::Workers;

/// Holds a queue of small requests with their data, so that a system call brings in several.
const READ_BUFFER: usize = 128 << 10;

/// The reading side of a connection.
pub(crate) struct Transmission<'a> {
    pub(crate) agreement: &'a Agreement,
    pub(crate) client: &'a Arc<Client>,
    pub(crate) log: &'a Log,
    pub(crate) max_request: u32,
    pub(crate) stall: Duration,
    pub(crate) budget: &'a Budget,
    pub(crate) outbox: &'a Arc<Outbox>,
    pub(crate) workers: &'a Workers,
}

/// A request that was read.
struct Request {
    head: RequestHead,
    operation: Operation,
    payload: Vec<u8>,
}

impl Transmission<'_> {
    /// Reads and starts requests until the client says good-bye or goes, the server shuts down, or writing fails. Requests may
    /// be in flight when it returns.
    pub(crate) async fn read_requests<R: AsyncRead + Unpin>(
        &self,
        stream: R,
        shutdown: &Shutdown,
    ) -> Result<(), ConnectionError> {
        let mut stream = BufReader::with_capacity(READ_BUFFER, stream);
        let stop = async {
            tokio::select! {
                () = shutdown.triggered() => {}
                () = self.outbox.failed() => {}
            }
        };
        tokio::pin!(stop);
        loop {
            // between requests and while one waits for its share: a request half read when the server stops is not begun
            tokio::select! {
                biased;
                () = &mut stop => return Ok(()),
                more = self.next(&mut stream) => if !more? { return Ok(()) },
            }
        }
    }

    /// Reads one request and starts it. `false`: there is no further one.
    async fn next<R: AsyncBufRead + Unpin>(&self, stream: &mut R) -> Result<bool, ConnectionError> {
        let place = self.budget.place().await;
        let Some(head) = self.head(stream).await? else { return Ok(false) };
        let limits = self.limits();
        match limits.plan(&head) {
            Plan::Disconnect => return Ok(false),
            Plan::GiveUp(reason) => return Err(ConnectionError::Protocol(reason)),
            Plan::Refuse { error, payload } => {
                self.skip(stream, payload).await?;
                let share = self.budget.share(place, 0).await;
                self.outbox.push(self.frames(&head, Reply::Error(error)), share);
            }
            Plan::Run { operation, payload } => {
                let bytes = reply_bytes(&operation).max(u64::from(payload));
                let share = self.budget.share(place, bytes).await;
                let payload = self.payload(stream, payload).await?;
                let operation = match operation {
                    Operation::FilteredStatus { offset, one } => {
                        limits.filtered_status(offset, one, &payload)
                    }
                    operation => Ok(operation),
                };
                match operation {
                    Err(error) => self.outbox.push(self.frames(&head, Reply::Error(error)), share),
                    Ok(operation) => {
                        let request = Request { head, operation, payload };
                        let (export, outbox) = (Arc::clone(&self.agreement.export), Arc::clone(self.outbox));
                        let (client, log) = (Arc::clone(self.client), self.log.clone());
                        let style = self.agreement.style;
                        self.workers.run(move || {
                            let reply = execute(&*export, style, &request.operation, &request.payload);
                            if let Reply::Error(ReplyError { message, .. }) = &reply {
                                log.tell(&Event::Failed { client: &client, why: message });
                            }
                            let Request { head, payload, .. } = request;
                            // its memory is free before the reply is out, so that the share covers both
                            drop(payload);
                            let address = Address { style, cookie: head.cookie, offset: head.offset };
                            outbox.push(reply.into_frames(address), share);
                        });
                    }
                }
            }
        }
        Ok(true)
    }

    fn limits(&self) -> Limits {
        Limits {
            style: self.agreement.style,
            // the export may have shrunk; that it has grown this client does not know
            size: self.agreement.size.min(self.agreement.export.size()),
            read_only: self.agreement.read_only,
            meta_context: self.agreement.meta_context,
            max_request: self.max_request,
        }
    }

    fn frames(&self, head: &RequestHead, reply: Reply) -> Vec<Vec<u8>> {
        if let Reply::Error(ReplyError { errno, message, .. }) = &reply {
            tracing::debug!(command = head.command, flags = head.flags, ?errno, message, "request refused");
        }
        reply.into_frames(Address { style: self.agreement.style, cookie: head.cookie, offset: head.offset })
    }

    /// The next head; `None` if the client closed the connection between requests.
    async fn head<R: AsyncBufRead + Unpin>(
        &self,
        stream: &mut R,
    ) -> Result<Option<RequestHead>, ConnectionError> {
        // a client may be idle for as long as it likes, but not in the middle of a request
        if stream.fill_buf().await?.is_empty() {
            return Ok(None);
        }
        let style = self.agreement.style;
        let mut bytes = [0; MAX_REQUEST_HEAD];
        let bytes = &mut bytes[..RequestHead::len(style)];
        self.unless_stalled(stream.read_exact(bytes)).await?;
        let head = RequestHead::parse(style, bytes);
        head.map(Some).ok_or(ConnectionError::Protocol("a request does not begin like one"))
    }

    async fn payload<R: AsyncRead + Unpin>(
        &self,
        stream: &mut R,
        length: u32,
    ) -> Result<Vec<u8>, ConnectionError> {
        let length = length as usize;
        // memory that is not written to costs nothing: a client gets as much as it has sent
        let mut payload = Vec::with_capacity(length);
        while payload.len() < length {
            let left = (length - payload.len()) as u64;
            if self.unless_stalled((&mut *stream).take(left).read_buf(&mut payload)).await? == 0 {
                return Err(ConnectionError::Protocol("the connection ended in the middle of a request"));
            }
        }
        Ok(payload)
    }

    async fn skip<R: AsyncBufRead + Unpin>(
        &self,
        stream: &mut R,
        length: u32,
    ) -> Result<(), ConnectionError> {
        let mut left = length as usize;
        while left > 0 {
            let count = self.unless_stalled(stream.fill_buf()).await?.len().min(left);
            if count == 0 {
                return Err(ConnectionError::Protocol("the connection ended in the middle of a request"));
            }
            stream.consume(count);
            left -= count;
        }
        Ok(())
    }

    async fn unless_stalled<T>(
        &self,
        io: impl Future<Output = std::io::Result<T>>,
    ) -> Result<T, ConnectionError> {
        Ok(timeout(self.stall, io).await.map_err(|_| ConnectionError::Stalled(self.stall))??)
    }
}
