//! Endpoints: their text, listening on them and connecting to them.

use std::io::{self, ErrorKind};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mc_places::Source;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tracing::warn;

use crate::error::{StartError, SubscribeError};

/// Ports after the wanted one that are tried before any free one is taken.
const NEXT_PORTS: u16 = 32;

/// Silence after which the system asks a peer whether it is there.
const KEEPALIVE: Duration = Duration::from_secs(15);
/// Unanswered questions after which the connection ends.
const KEEPALIVE_PROBES: u32 = 3;

/// A connection.
pub(crate) trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}

impl<C: AsyncRead + AsyncWrite + Send + Unpin> Connection for C {}

/// An open endpoint.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener),
    Ipc { listener: UnixListener, _file: SocketFile },
}

/// The file of a socket; removed when it is dropped.
#[derive(Debug)]
pub(crate) struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Without it the next publisher finds a stale file and removes that.
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Listener {
    /// Opens the endpoint and returns it with the port that it got.
    pub(crate) async fn bind(text: &str, auto_port: bool) -> Result<(Self, String), StartError> {
        let (host, name, port) = match Address::parse(text) {
            Ok(Address::Ipc(path)) => return Ok((bind_ipc(text, path)?, text.into())),
            Ok(Address::Tcp { host, name, port }) => (host, name, port),
            Err(problem) => return Err(StartError::Endpoint { endpoint: text.into(), problem }),
        };
        let name = if name == "*" { "0.0.0.0" } else { name };
        let listener = bind_tcp(name, port, auto_port).await.map_err(|source| {
            let endpoint = text.into();
            if source.kind() == ErrorKind::AddrInUse {
                StartError::InUse { endpoint, source }
            } else {
                StartError::Listen { endpoint, source }
            }
        })?;
        let bound = listener
            .local_addr()
            .map_err(|source| StartError::Listen { endpoint: text.into(), source })?;
        let endpoint = format!("tcp://{host}:{}", bound.port());
        if port != 0 && port != bound.port() {
            warn!(wanted = text, taken = endpoint, "the port is in use; another one is taken");
        }
        Ok((Self::Tcp(listener), endpoint))
    }

    /// Returns the next connection and where it comes from.
    pub(crate) async fn accept(&self) -> io::Result<(Box<dyn Connection>, Source)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                tune(&stream);
                Ok((Box::new(stream), Source::of(peer)))
            }
            Self::Ipc { listener, .. } => {
                let (stream, _) = listener.accept().await?;
                let source = Source::process(&stream);
                Ok((Box::new(stream), source))
            }
        }
    }
}

/// Sends at once, and notices a peer that vanished without a word, to which nothing may be sent for
/// hours.
fn tune(stream: &TcpStream) {
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE)
        .with_interval(KEEPALIVE / 3)
        .with_retries(KEEPALIVE_PROBES);
    // Both fail if the peer has left already; reading shows that too.
    let _ = stream.set_nodelay(true);
    let _ = SockRef::from(stream).set_tcp_keepalive(&keepalive);
}

/// Connects to a publisher's endpoint.
pub(crate) async fn connect(text: &str) -> Result<Box<dyn Connection>, SubscribeError> {
    let wrong = |problem| SubscribeError::Endpoint { endpoint: text.into(), problem };
    let connected: io::Result<Box<dyn Connection>> = match Address::parse(text).map_err(wrong)? {
        Address::Ipc(path) => UnixStream::connect(path).await.map(|stream| Box::new(stream) as _),
        Address::Tcp { name: "*", .. } => return Err(wrong("no host has the name *")),
        Address::Tcp { port: 0, .. } => return Err(wrong("the port is 0")),
        Address::Tcp { name, port, .. } => mc_net::connect((name, port)).await.map(|stream| {
            tune(&stream);
            Box::new(stream) as _
        }),
    };
    connected.map_err(|source| SubscribeError::Connect { endpoint: text.into(), source })
}

/// The text of an endpoint, taken apart.
enum Address<'a> {
    Ipc(&'a Path),
    /// The host as it is written, and without brackets.
    Tcp {
        host: &'a str,
        name: &'a str,
        port: u16,
    },
}

impl<'a> Address<'a> {
    /// Returns what is wrong with a text that is no endpoint.
    fn parse(text: &'a str) -> Result<Self, &'static str> {
        if let Some(path) = text.strip_prefix("ipc://") {
            if path.is_empty() || path.starts_with(['@', '*']) || path.contains('\0') {
                return Err("the path must name a file");
            }
            return Ok(Self::Ipc(Path::new(path)));
        }
        let address = text.strip_prefix("tcp://").ok_or("the scheme is unknown")?;
        let (host, port) = address.rsplit_once(':').ok_or("the port is missing")?;
        let port = match port.parse() {
            Ok(number) if !port.starts_with('+') => number,
            _ => return Err("the port is not a number from 0 to 65535"),
        };
        let name = host.strip_prefix('[').and_then(|v6| v6.strip_suffix(']')).unwrap_or(host);
        if name.is_empty() || (name.contains(':') && name == host) {
            return Err("the host is missing, or an IPv6 address without brackets");
        }
        Ok(Self::Tcp { host, name, port })
    }
}

async fn bind_tcp(host: &str, port: u16, auto_port: bool) -> io::Result<TcpListener> {
    if !auto_port {
        return mc_net::listen((host, port)).await;
    }
    let mut ports = (port..=port.saturating_add(NEXT_PORTS)).chain([0]);
    loop {
        let Some(port) = ports.next() else { return Err(ErrorKind::AddrInUse.into()) };
        match TcpListener::bind((host, port)).await {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            result => return result,
        }
    }
}

fn bind_ipc(text: &str, path: &Path) -> Result<Listener, StartError> {
    let listen = |source| StartError::Listen { endpoint: text.into(), source };
    match std::fs::symlink_metadata(path) {
        Ok(file) if !file.file_type().is_socket() => {
            return Err(StartError::NotASocket { path: path.into() });
        }
        Ok(_) => match std::os::unix::net::UnixStream::connect(path) {
            // What a publisher left that was killed.
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                std::fs::remove_file(path).map_err(listen)?;
            }
            Err(error) => return Err(listen(error)),
            Ok(_) => {
                let source = ErrorKind::AddrInUse.into();
                return Err(StartError::InUse { endpoint: text.into(), source });
            }
        },
        Err(_) => {}
    }
    let listener = UnixListener::bind(path).map_err(listen)?;
    Ok(Listener::Ipc { listener, _file: SocketFile(path.into()) })
}
