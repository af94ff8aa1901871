//! Listening on a port that may be taken for a moment.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket, ToSocketAddrs, lookup_host};
use tokio::time::Instant;

use crate::holder::Holder;

/// How long a port that is taken is tried again.
pub const LISTEN_PATIENCE: Duration = Duration::from_secs(3);

/// The pause before it is tried again.
const PAUSE: Duration = Duration::from_millis(100);

/// Connections that wait to be accepted.
const BACKLOG: u32 = 1024;

/// The cause inside an error of the kind `AddrInUse`.
#[derive(Debug)]
pub struct PortTaken {
    /// The port asked for.
    pub port: u16,
    /// The process that has the port, where the system tells.
    pub holder: Option<Holder>,
}

impl fmt::Display for PortTaken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "port {} is taken", self.port)?;
        match &self.holder {
            Some(holder) => write!(f, " by {holder}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for PortTaken {}

/// Listens on the first address that can be listened on; tries for [`LISTEN_PATIENCE`] when it is
/// taken.
///
/// # Errors
/// The system's; `AddrInUse` has a [`PortTaken`] inside.
pub async fn listen(address: impl ToSocketAddrs) -> io::Result<TcpListener> {
    let addresses: Vec<_> = lookup_host(address).await?.collect();
    let nowhere = || io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    let port = addresses.first().ok_or_else(nowhere)?.port();
    bind_patiently(port, || {
        let mut failure = nowhere();
        for &address in &addresses {
            match open(address) {
                Ok(listener) => return Ok(listener),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    })
    .await
}

fn open(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // A restarted program must get its port back while old connections are in TIME_WAIT.
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Has `bind` take `port`, and tries again as [`listen`] does: for sockets with options of their
/// own.
///
/// # Errors
/// As those of [`listen`].
pub async fn bind_patiently<T>(
    port: u16,
    mut bind: impl FnMut() -> io::Result<T>,
) -> io::Result<T> {
    let deadline = Instant::now() + LISTEN_PATIENCE;
    loop {
        match bind() {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                if Instant::now() < deadline && port != 0 {
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
                let taken = PortTaken { port, holder: Holder::of(port) };
                return Err(io::Error::new(io::ErrorKind::AddrInUse, taken));
            }
            bound => return bound,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    #[cfg(target_os = "linux")]
    use tokio::io::AsyncReadExt as _;

    use super::*;

    #[tokio::test]
    async fn a_port_that_is_taken_for_a_moment_is_tried_again() {
        let holder = listen("127.0.0.1:0").await.unwrap();
        let address = holder.local_addr().unwrap();
        let mut tries = 0;
        let mut holder = Some(holder);
        let bound = bind_patiently(address.port(), || {
            tries += 1;
            if tries == 3 {
                holder = None;
            }
            open(address)
        });
        assert_eq!(bound.await.unwrap().local_addr().unwrap(), address);
        assert_eq!(tries, 3);
    }

    #[tokio::test]
    async fn the_error_names_the_process_that_has_the_port() {
        let holder = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = holder.local_addr().unwrap();
        let error = listen(address).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        let text = error.to_string();
        assert!(text.contains(&format!("port {} is taken", address.port())), "{text}");
        #[cfg(target_os = "linux")]
        assert!(text.contains(&format!("process {}", std::process::id())), "{text}");
    }

    #[tokio::test]
    async fn other_errors_are_told_at_once() {
        // An address of no host.
        let error = listen("192.0.2.1:0").await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrNotAvailable);
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn an_outgoing_connection_that_has_the_port_is_named_as_one() {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = tokio::net::TcpStream::connect(server.local_addr().unwrap()).await.unwrap();
        assert_is_a_connection_of_ours(client.local_addr().unwrap().port());
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn connections_that_have_ended_do_not_hide_the_one_that_is_open() {
        let connect = async |from: SocketAddr| {
            let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let socket = TcpSocket::new_v4().unwrap();
            socket.set_reuseaddr(true).unwrap();
            socket.bind(from).unwrap();
            let client = socket.connect(server.local_addr().unwrap()).await.unwrap();
            (client, server.accept().await.unwrap().0)
        };
        let (mut client, mut end) = connect("127.0.0.1:0".parse().unwrap()).await;
        let port = client.local_addr().unwrap();
        // The system lists connections in no order.
        for _ in 0..8 {
            // The side that closes first keeps the port in TIME_WAIT.
            drop(client);
            assert_eq!(end.read(&mut [0]).await.unwrap(), 0);
            drop(end);
            (client, end) = connect(port).await;
        }
        assert_is_a_connection_of_ours(port.port());
        drop((client, end));
    }

    #[cfg(target_os = "linux")]
    fn assert_is_a_connection_of_ours(port: u16) {
        let text = Holder::of(port).unwrap().to_string();
        assert!(text.contains("a connection of"), "{text}");
        assert!(text.contains(&std::process::id().to_string()), "{text}");
    }
}
