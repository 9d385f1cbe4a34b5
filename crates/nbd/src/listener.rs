//! Listening sockets: TCP and Unix.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with, sockopt};

use crate::endpoint::Endpoint;
use crate::error::ServeError;

/// Number of clients that may wait to be accepted.
const BACKLOG: i32 = 128;

/// A socket that accepts connections immediately. They are answered after it was passed to a server.
#[derive(Debug)]
pub struct Listener {
    pub(crate) socket: Socket,
    pub(crate) endpoint: Endpoint,
    pub(crate) plain: bool,
    _file: Option<SocketFile>,
}

#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(std::net::TcpListener),
    Unix(std::os::unix::net::UnixListener),
}

/// Removes the file of a Unix socket when it is dropped.
#[derive(Debug)]
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // a failure is harmless, because the next server replaces an unused socket
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Listener {
    /// Listens on a TCP address. Port 0 means any free port; see [`endpoint`](Self::endpoint). NBD's standard port is
    /// 10809.
    ///
    /// # Errors
    /// [`ServeError::Listen`].
    pub fn tcp(address: SocketAddr) -> Result<Self, ServeError> {
        let listen = |source| ServeError::Listen { endpoint: Endpoint::Tcp(address), source };
        Self::from_tcp(std::net::TcpListener::bind(address).map_err(listen)?)
    }

    /// Listens on a Unix socket that only this user can connect to (mode 0600); see [`unix_mode`](Self::unix_mode).
    ///
    /// # Errors
    /// Like [`unix_mode`](Self::unix_mode).
    pub fn unix(path: &Path) -> Result<Self, ServeError> {
        Self::unix_mode(path, 0o600)
    }

    /// Listens on a Unix socket with the permissions `mode`. An unused socket of an earlier server is replaced. The
    /// file is removed when the server ends. It never has other permissions: it is created as `path~` and then renamed
    /// to `path`.
    ///
    /// # Errors
    /// [`ServeError::SocketInUse`], [`ServeError::NotASocket`], [`ServeError::Listen`].
    pub fn unix_mode(path: &Path, mode: u32) -> Result<Self, ServeError> {
        let listen = |source| ServeError::Listen { endpoint: Endpoint::Unix(path.to_path_buf()), source };
        match std::fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(listen(error)),
            Ok(metadata) if !metadata.file_type().is_socket() => {
                return Err(ServeError::NotASocket { path: path.to_path_buf() });
            }
            Ok(_) => match std::os::unix::net::UnixStream::connect(path) {
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(listen(error)),
                Ok(_) => return Err(ServeError::SocketInUse { path: path.to_path_buf() }),
            },
        }
        let mut beside = path.as_os_str().to_owned();
        beside.push("~");
        let beside = PathBuf::from(beside);
        match std::fs::remove_file(&beside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(listen(error)),
            _ => {}
        }
        let socket = bind(&beside, mode).map_err(listen)?;
        let file = SocketFile(beside.clone());
        // Restores the permissions that the umask has removed.
        set_mode(&beside, mode).map_err(listen)?;
        rustix::net::listen(&socket, BACKLOG).map_err(|error| listen(error.into()))?;
        std::fs::rename(&beside, path).map_err(listen)?;
        std::mem::forget(file);
        let file = Some(SocketFile(path.to_path_buf()));
        Ok(Self {
            socket: Socket::Unix(socket.into()),
            endpoint: Endpoint::Unix(path.to_path_buf()),
            plain: false,
            _file: file,
        })
    }

    /// Uses a socket that is already listening, for example from a service manager.
    ///
    /// # Errors
    /// [`ServeError::Listen`] if the socket has no address.
    pub fn from_tcp(socket: std::net::TcpListener) -> Result<Self, ServeError> {
        let unknown = Endpoint::Tcp(SocketAddr::from(([0, 0, 0, 0], 0)));
        let address =
            socket.local_addr().map_err(|source| ServeError::Listen { endpoint: unknown, source })?;
        Ok(Self { socket: Socket::Tcp(socket), endpoint: Endpoint::Tcp(address), plain: false, _file: None })
    }

    /// Uses a Unix socket that is already listening. The caller is responsible for its file.
    pub fn from_unix(socket: std::os::unix::net::UnixListener) -> Self {
        let path = socket.local_addr().ok().and_then(|address| address.as_pathname().map(Path::to_path_buf));
        let endpoint = Endpoint::Unix(path.unwrap_or_default());
        Self { socket: Socket::Unix(socket), endpoint, plain: false, _file: None }
    }

    /// Disables TLS on this socket, independently of [`Options::tls`](crate::Options::tls). For a Unix socket next to
    /// an encrypted TCP port.
    #[must_use]
    pub fn plain(mut self) -> Self {
        self.plain = true;
        self
    }

    /// The address of the socket.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }
}

/// Creates a Unix socket with a name that does not listen yet. On Linux its file inherits the permissions of the
/// socket, without those of the umask. So it never has more permissions than `mode`.
fn bind(path: &Path, mode: u32) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    rustix::fs::fchmod(&socket, Mode::from_raw_mode(mode))?;
    rustix::net::bind(&socket, &address)?;
    Ok(socket)
}

/// Changes the permissions of a socket of this process. Other users of the directory could replace it by a link, which
/// is not followed.
fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    let node = rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let found = rustix::fs::fstat(&node)?;
    let is_ours = FileType::from_raw_mode(found.st_mode) == FileType::Socket
        && found.st_uid == rustix::process::geteuid().as_raw();
    if !is_ours {
        return Err(io::Error::other("the socket was replaced by something else meanwhile"));
    }
    Ok(rustix::fs::chmod(format!("/proc/self/fd/{}", node.as_raw_fd()), Mode::from_raw_mode(mode))?)
}

/// The asynchronous form of a listener's socket.
pub(crate) enum Accept {
    Tcp(tokio::net::TcpListener),
    Unix(tokio::net::UnixListener),
}

/// A connected client.
pub(crate) struct Accepted {
    pub(crate) stream: Stream,
    /// The client's name for the log.
    pub(crate) peer: String,
    /// The client's address, if it uses TCP.
    pub(crate) source: Option<IpAddr>,
}

/// A client's socket.
pub(crate) enum Stream {
    Tcp(tokio::net::TcpStream),
    Unix(tokio::net::UnixStream),
}

impl Listener {
    /// Converts the socket. It must be called within a runtime. The file of a Unix socket stays with `self`.
    pub(crate) fn accept(&self) -> Result<Accept, ServeError> {
        let listen = |source| ServeError::Listen { endpoint: self.endpoint.clone(), source };
        match &self.socket {
            Socket::Tcp(socket) => {
                let socket = socket.try_clone().map_err(listen)?;
                socket.set_nonblocking(true).map_err(listen)?;
                Ok(Accept::Tcp(tokio::net::TcpListener::from_std(socket).map_err(listen)?))
            }
            Socket::Unix(socket) => {
                let socket = socket.try_clone().map_err(listen)?;
                socket.set_nonblocking(true).map_err(listen)?;
                Ok(Accept::Unix(tokio::net::UnixListener::from_std(socket).map_err(listen)?))
            }
        }
    }
}

impl Accept {
    /// Waits for the next client.
    pub(crate) async fn next(&self) -> io::Result<Accepted> {
        match self {
            Self::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                if let Err(error) = tune(&stream) {
                    tracing::debug!(%peer, %error, "socket options");
                }
                Ok(Accepted { stream: Stream::Tcp(stream), peer: peer.to_string(), source: Some(peer.ip()) })
            }
            Self::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                let peer = match stream.peer_cred() {
                    Ok(cred) => format!("unix:uid={}", cred.uid()),
                    Err(_) => "unix".to_owned(),
                };
                Ok(Accepted { stream: Stream::Unix(stream), peer, source: None })
            }
        }
    }
}

/// Sets socket options, so that replies are sent immediately, and a client whose machine is gone is detected within
/// about two minutes.
fn tune(stream: &tokio::net::TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(60))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(15))?;
    sockopt::set_tcp_keepcnt(stream, 4)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_socket_gets_the_permissions_of_one() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let (victim, link) = (dir.path().join("victim"), dir.path().join("link"));
        std::fs::write(&victim, "mine").unwrap();
        std::fs::set_permissions(&victim, std::fs::Permissions::from_mode(0o644)).unwrap();
        std::os::unix::fs::symlink("victim", &link).unwrap();
        for path in [&link, &victim] {
            assert!(set_mode(path, 0o600).is_err());
        }
        assert_eq!(std::fs::metadata(&victim).unwrap().permissions().mode() & 0o777, 0o644);
        let socket = dir.path().join("socket");
        let _listening = bind(&socket, 0o600).unwrap();
        set_mode(&socket, 0o660).unwrap();
        assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o660);
    }

    #[test]
    fn uris_are_what_clients_take() {
        let unix = Endpoint::Unix("/run/a b/nbd-tank.sock".into());
        assert_eq!(unix.uri("tank/vm1", true), "nbd+unix:///tank/vm1?socket=/run/a%20b/nbd-tank.sock");
        assert_eq!(unix.to_string(), "nbd+unix:///?socket=/run/a%20b/nbd-tank.sock");
        let tcp = Endpoint::Tcp("[::1]:10809".parse().unwrap());
        assert_eq!(tcp.uri("tank/vm1@a", true), "nbds://[::1]:10809/tank/vm1@a");
        assert_eq!(tcp.uri("", false), "nbd://[::1]:10809/");
    }
}
