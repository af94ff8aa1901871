//! Where a server listens.

use core::future::poll_fn;
use core::task::{Context, Poll};
use std::io;
use std::net::SocketAddr;
#[cfg(unix)]
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use socket2::SockRef;
use tokio::net::TcpListener;
#[cfg(unix)]
use tokio::net::UnixListener;
use tokio::sync::mpsc;

use super::peer::{Peer, Source};
use crate::error::BindError;
#[cfg(target_os = "linux")]
use crate::frame::SOCKET_NAME_PREFIX;
use crate::stream::{ByteStream, Stream};

/// Connections that wait until the server takes them; the system may have a lower limit. Beyond
/// it TCP lets a client try again only after a second.
const BACKLOG: i32 = 4096;

/// A socket that connections come from.
#[derive(Debug)]
pub(super) enum Listener {
    Tcp(TcpListener),
    #[cfg(unix)]
    Unix {
        listener: UnixListener,
        _file: SocketFile,
    },
    /// A socket that TCP clients are told of.
    #[cfg(target_os = "linux")]
    Offered(UnixListener),
    /// Streams that are handed in.
    Handed(Mutex<mpsc::UnboundedReceiver<Handed>>),
}

/// A stream, and where it comes from.
type Handed = (Box<dyn ByteStream>, SocketAddr);

/// Takes streams to a [`Listener::Handed`].
pub(super) type HandedIn = mpsc::UnboundedSender<Handed>;

/// A Unix socket's file; removed when dropped.
#[cfg(unix)]
#[derive(Debug)]
pub(super) struct SocketFile(PathBuf);

#[cfg(unix)]
impl Drop for SocketFile {
    fn drop(&mut self) {
        // A client may have removed it before.
        drop(std::fs::remove_file(&self.0));
    }
}

fn failed(addr: &str, source: io::Error) -> BindError {
    match source.kind() {
        io::ErrorKind::AddrInUse => BindError::AddressInUse { addr: addr.into(), source },
        _ => BindError::Listen { addr: addr.into(), source },
    }
}

impl Listener {
    pub(super) async fn tcp(addr: &str) -> Result<(Self, SocketAddr), BindError> {
        let listener = mc_net::listen(addr).await.map_err(|error| failed(addr, error))?;
        let has_backlog = SockRef::from(&listener).listen(BACKLOG);
        let local_addr = has_backlog.and_then(|()| listener.local_addr());
        let local_addr = local_addr.map_err(|error| failed(addr, error))?;
        Ok((Self::Tcp(listener), local_addr))
    }

    #[cfg(unix)]
    pub(super) fn unix(path: &Path) -> Result<Self, BindError> {
        use std::os::unix::fs::PermissionsExt;
        let name = path.display().to_string();
        remove_stale(path).map_err(|error| failed(&name, error))?;
        // It gets its name when it is private, so that no other process connects before.
        let mut unnamed = path.as_os_str().to_owned();
        unnamed.push(format!(".{}", std::process::id()));
        let mut file = SocketFile(unnamed.into());
        let bind = || {
            drop(std::fs::remove_file(&file.0));
            let listener = UnixListener::bind(&file.0)?;
            SockRef::from(&listener).listen(BACKLOG)?;
            std::fs::set_permissions(&file.0, std::fs::Permissions::from_mode(0o600))?;
            std::fs::rename(&file.0, path)?;
            Ok(listener)
        };
        let listener = bind().map_err(|error| failed(&name, error))?;
        file.0 = path.into();
        Ok(Self::Unix { listener, _file: file })
    }

    /// Listens at a name that no process can know beforehand: none takes it first, and who
    /// names it has been told.
    #[cfg(target_os = "linux")]
    pub(super) fn offered() -> io::Result<(Self, Box<str>)> {
        use std::os::linux::net::SocketAddrExt;
        use std::os::unix::net;
        let mut random = [0; 16];
        getrandom::fill(&mut random).map_err(io::Error::other)?;
        let name = format!("{SOCKET_NAME_PREFIX}{:032x}", u128::from_ne_bytes(random));
        let address = net::SocketAddr::from_abstract_name(&name)?;
        let listener = net::UnixListener::bind_addr(&address)?;
        SockRef::from(&listener).listen(BACKLOG)?;
        listener.set_nonblocking(true)?;
        Ok((Self::Offered(UnixListener::from_std(listener)?), name.into()))
    }

    pub(super) fn handed() -> (HandedIn, Self) {
        let (sender, handed) = mpsc::unbounded_channel();
        (sender, Self::Handed(Mutex::new(handed)))
    }

    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<Accepted>> {
        match self {
            Self::Tcp(listener) => listener.poll_accept(cx).map_ok(|(stream, address)| {
                (Stream::Tcp(stream), Peer::Ip(address), Source::of(address))
            }),
            #[cfg(unix)]
            Self::Unix { listener, .. } => listener.poll_accept(cx).map_ok(|(stream, _)| {
                let uid = stream.peer_cred().ok().map(|of| of.uid());
                let source = Source::process(&stream);
                (Stream::Unix(stream), Peer::Local { uid }, source)
            }),
            // In place of a TCP connection, which does not show the user either.
            #[cfg(target_os = "linux")]
            Self::Offered(listener) => listener.poll_accept(cx).map_ok(|(stream, _)| {
                let source = Source::process(&stream);
                (Stream::Unix(stream), Peer::Local { uid: None }, source)
            }),
            Self::Handed(handed) => match handed.lock().poll_recv(cx) {
                Poll::Ready(Some((stream, from))) => {
                    Poll::Ready(Ok((Stream::Handed(stream), Peer::Ip(from), Source::of(from))))
                }
                // Without anything that hands streams in there will be none.
                Poll::Ready(None) | Poll::Pending => Poll::Pending,
            },
        }
    }
}

/// A new connection, its other end, and what it is counted by.
pub(super) type Accepted = (Stream, Peer, Source);

/// The next connection at any of the listeners.
pub(super) async fn accept_any(listeners: &[Listener]) -> io::Result<Accepted> {
    poll_fn(|cx| {
        let mut polled = listeners.iter().map(|listener| listener.poll_accept(cx));
        polled.find(Poll::is_ready).unwrap_or(Poll::Pending)
    })
    .await
}

/// Removes the socket of a process that has ended: one at which no process answers.
#[cfg(unix)]
fn remove_stale(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::FileTypeExt;
    let found = match std::fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if !found.file_type().is_socket() {
        let text = "a file that is no socket is there; choose another path";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path)
        }
        Ok(_) => Err(io::ErrorKind::AddrInUse.into()),
        Err(error) => Err(error),
    }
}
