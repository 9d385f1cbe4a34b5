//! Looks up names and addresses of clients.
//!
//! A server with another root directory cannot look them up, because the C library reads files outside of it. Then a
//! process that was started earlier does it. That process runs as nobody, opens no other files, and answers only these
//! two questions:
//!
//! - `name ADDRESS`: the name that the address resolves to and that resolves back to it, or nothing.
//! - `leads ADDRESS NAME`: whether the name resolves to the address: `yes`, `no`, or `unknown`.
//!
//! Each question is a message of its own and carries a socket for its answer, so that a slow answer does not delay
//! others.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

use super::confine::{ConfineError, Confinement};
use crate::names::Names;

/// The longest wait for an answer. The C library needs less time to ask all name servers.
const PATIENCE: Duration = Duration::from_secs(60);
/// The longest question and answer, in bytes. Names have at most 255 bytes.
const LEN_MAX: usize = 512;
/// The most questions that are answered at a time. A question beyond that gets no answer.
const AT_ONCE_MAX: usize = 256;
/// The user of the process that looks names up.
const NOBODY: u32 = 65534;

/// The process to ask, if this one cannot look up names.
static OUTSIDE: OnceLock<Outside> = OnceLock::new();

struct Outside(OwnedFd);

/// Starts a process with `command`, which answers all questions from now on. It gets them on its standard input, and
/// must call [`answer`].
///
/// # Errors
/// When it cannot be started.
pub(super) fn ask_from_now_on(command: &mut Command) -> io::Result<()> {
    let (own, its) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&own, Timeout::Send, Some(PATIENCE))?;
    // The process ends when this one does.
    command.stdin(its).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    OUTSIDE.set(Outside(own)).map_err(|_| io::Error::other("names are looked up elsewhere already"))
}

/// Answers the questions on a socket as nobody, until the socket is closed.
///
/// # Errors
/// When this process cannot become nobody, or the socket fails.
pub fn answer(socket: impl AsFd) -> Result<(), ConfineError> {
    let nobody = Some(NOBODY.to_string());
    if rustix::process::geteuid().is_root() {
        Confinement { chroot: None, uid: nobody.clone(), gid: nobody }.enter(&Names::default())?;
    }
    answer_all(socket).map_err(|source| ConfineError::System { what: "looking up names", source })
}

fn answer_all(socket: impl AsFd) -> io::Result<()> {
    static BUSY: AtomicUsize = AtomicUsize::new(0);
    loop {
        let mut text = [0; LEN_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received = match recvmsg(&socket, &mut [IoSliceMut::new(&mut text)], &mut ancillary, flags) {
            Err(rustix::io::Errno::INTR) => continue,
            received => received?,
        };
        if received.bytes == 0 {
            return Ok(());
        }
        let sockets = ancillary.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(sockets) => Some(sockets),
            _ => None,
        });
        let Some(to) = sockets.flatten().next() else { continue };
        let question = String::from_utf8_lossy(&text[..received.bytes]).into_owned();
        if BUSY.fetch_add(1, Ordering::AcqRel) >= AT_ONCE_MAX {
            BUSY.fetch_sub(1, Ordering::AcqRel);
            continue;
        }
        std::thread::spawn(move || {
            // The process that asked may be gone.
            let _ = UnixStream::from(to).write_all(answer_to(&question).as_bytes());
            BUSY.fetch_sub(1, Ordering::AcqRel);
        });
    }
}

/// The answer to a question. It ends with a period, so that an empty answer differs from none.
fn answer_to(question: &str) -> String {
    let mut words = question.split(' ');
    let (kind, address, name) = (words.next(), words.next(), words.next());
    let answer = match (kind, address.and_then(|address| address.parse().ok()), name) {
        (Some("name"), Some(address), None) => find_name(address).unwrap_or_default(),
        (Some("leads"), Some(address), Some(name)) => match look_up(name, address) {
            Some(true) => "yes".to_owned(),
            Some(false) => "no".to_owned(),
            None => "unknown".to_owned(),
        },
        _ => return String::new(),
    };
    answer + "."
}

impl Outside {
    fn ask(&self, question: &str) -> io::Result<String> {
        let (own, its) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let rights = [its.as_fd()];
        if !ancillary.push(SendAncillaryMessage::ScmRights(&rights)) {
            return Err(io::Error::other("no room for a socket"));
        }
        sendmsg(&self.0, &[IoSlice::new(question.as_bytes())], &mut ancillary, SendFlags::NOSIGNAL)?;
        drop(its);
        let own = UnixStream::from(own);
        own.set_read_timeout(Some(PATIENCE))?;
        let mut answer = String::new();
        own.take(LEN_MAX as u64).read_to_string(&mut answer)?;
        answer.strip_suffix('.').map(str::to_owned).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    fn asked(&self, question: &str) -> Option<String> {
        let answer = self.ask(question);
        if let Err(error) = &answer {
            tracing::warn!(%error, "looking up a name outside of the root directory");
        }
        answer.ok()
    }
}

/// The name that an address resolves to and that resolves back to it.
pub(super) fn name_of(address: IpAddr) -> Option<String> {
    match OUTSIDE.get() {
        Some(outside) => outside.asked(&format!("name {address}")).filter(|name| is_plain(name)),
        None => find_name(address),
    }
}

/// Whether a name resolves to an address. `None` if that cannot be found out.
pub(super) fn leads_to(name: &str, address: IpAddr) -> Option<bool> {
    match OUTSIDE.get() {
        Some(outside) => match outside.asked(&format!("leads {address} {name}"))?.as_str() {
            "yes" => Some(true),
            "no" => Some(false),
            _ => None,
        },
        None => look_up(name, address),
    }
}

/// Whether a name has harmless characters only. Names are used in logs, commands and paths.
fn is_plain(name: &str) -> bool {
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    !name.is_empty() && name.bytes().all(is_of_name)
}

fn find_name(address: IpAddr) -> Option<String> {
    let (name, _) = dns_lookup::getnameinfo(&SocketAddr::new(address, 0), libc::NI_NAMEREQD).ok()?;
    // The owner of an address can give it any name in the DNS.
    (is_plain(&name) && look_up(&name, address) == Some(true)).then_some(name)
}

fn look_up(name: &str, address: IpAddr) -> Option<bool> {
    let mut found = (name, 0).to_socket_addrs().ok()?;
    Some(found.any(|found| found.ip().to_canonical() == address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_answered_by_whoever_is_asked() {
        let (own, its) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let outside = Outside(own);
        std::thread::scope(|scope| {
            let answering = scope.spawn(move || answer_all(its));
            assert_eq!(outside.ask("leads 127.0.0.1 localhost").unwrap(), "yes");
            assert_eq!(outside.ask("leads 192.0.2.1 localhost").unwrap(), "no");
            assert_eq!(outside.ask("leads 192.0.2.1 nowhere.invalid").unwrap(), "unknown");
            let name = outside.ask("name 127.0.0.1").unwrap();
            assert_eq!(name, find_name(IpAddr::from([127, 0, 0, 1])).unwrap_or_default());
            for bad in ["name", "name x", "leads 127.0.0.1", "what 127.0.0.1"] {
                assert!(outside.ask(bad).is_err(), "{bad}");
            }
            drop(outside);
            answering.join().unwrap().unwrap();
        });
    }
}
