//! The transmission phase of one connection: requests and replies.
//!
//! One task reads requests and passes each to a worker thread. Replies are sent as soon as they are ready (see
//! [`crate::outbox`]).

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

/// Size of the read buffer. It holds several small requests with their data, so that one system call reads them.
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

/// A request with its payload.
struct Request {
    head: RequestHead,
    operation: Operation,
    payload: Vec<u8>,
}

impl Transmission<'_> {
    /// Reads and starts requests until the client disconnects, the server shuts down, or writing fails. Requests may be
    /// in flight when it returns.
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
            // this also stops while a request waits for its share; a request that is only partly read is not started
            tokio::select! {
                biased;
                () = &mut stop => return Ok(()),
                more = self.next(&mut stream) => if !more? { return Ok(()) },
            }
        }
    }

    /// Reads one request and starts it. Returns `false` if there are no more requests.
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
                            // the payload is freed before the reply is sent, so that the share covers both
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
            // the export may have shrunk; if it has grown, this client does not know it
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

    /// The next head. `None` if the client closed the connection between requests.
    async fn head<R: AsyncBufRead + Unpin>(
        &self,
        stream: &mut R,
    ) -> Result<Option<RequestHead>, ConnectionError> {
        // a client may be idle without limit, but not within a request
        if stream.fill_buf().await?.is_empty() {
            return Ok(None);
        }
        let style = self.agreement.style;
        let mut bytes = [0; MAX_REQUEST_HEAD];
        let bytes = &mut bytes[..RequestHead::len(style)];
        self.unless_stalled(stream.read_exact(bytes)).await?;
        let head = RequestHead::parse(style, bytes);
        head.map(Some).ok_or(ConnectionError::Protocol("a request has a wrong magic number"))
    }

    async fn payload<R: AsyncRead + Unpin>(
        &self,
        stream: &mut R,
        length: u32,
    ) -> Result<Vec<u8>, ConnectionError> {
        let length = length as usize;
        // memory that is not written to costs nothing, so a client occupies only as much as it has sent
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
