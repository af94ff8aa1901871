//! Connecting to a name that may have several addresses.

use std::future::poll_fn;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::pin::Pin;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::net::{TcpStream, ToSocketAddrs, lookup_host};

/// The time after which the next address is tried beside those before it: the "Connection Attempt
/// Delay" of RFC 8305.
pub const NEXT_AFTER: Duration = Duration::from_millis(250);

/// Connects to the first address that answers. The caller sets the time limit.
///
/// # Errors
/// Those of the lookup, or what went wrong first when no address could be reached.
///
/// # Cancellation
/// Dropping the future ends all attempts.
pub async fn connect(address: impl ToSocketAddrs) -> io::Result<TcpStream> {
    let addresses = lookup_host(address).await?;
    first_of(addresses, TcpStream::connect).await.unwrap_or_else(|| Err(nowhere()))
}

/// Makes an attempt with each address as [`race`] does, the families in turn.
///
/// # Cancellation
/// Dropping the future ends all attempts.
pub async fn first_of<T, E, F>(
    addresses: impl IntoIterator<Item = SocketAddr>,
    attempt: impl FnMut(SocketAddr) -> F,
) -> Option<Result<T, E>>
where
    F: Future<Output = Result<T, E>>,
{
    race(alternate(addresses), attempt).await
}

/// Makes an attempt with each of `ways` in turn, the next when one failed or [`NEXT_AFTER`] has
/// passed, and returns the first success. Without one it returns what went wrong first; `None`
/// without a way.
///
/// # Cancellation
/// Dropping the future ends all attempts.
pub async fn race<A, T, E, F>(ways: Vec<A>, mut attempt: impl FnMut(A) -> F) -> Option<Result<T, E>>
where
    F: Future<Output = Result<T, E>>,
{
    let mut ways = ways.into_iter();
    let (mut running, mut failure) = (Vec::new(), None);
    loop {
        if let Some(way) = ways.next() {
            running.push(Box::pin(attempt(way)));
        }
        if running.is_empty() {
            return failure.map(Err);
        }
        let ended = match ways.len() {
            0 => first_to_end(&mut running).await,
            _ => match tokio::time::timeout(NEXT_AFTER, first_to_end(&mut running)).await {
                Ok(ended) => ended,
                Err(_) => continue,
            },
        };
        match ended {
            Ok(connected) => return Some(Ok(connected)),
            Err(error) => failure = failure.or(Some(error)),
        }
    }
}

/// Waits for one of the futures, and takes it out.
async fn first_to_end<F: Future>(running: &mut Vec<Pin<Box<F>>>) -> F::Output {
    poll_fn(|cx| {
        for at in 0..running.len() {
            if let Poll::Ready(output) = running[at].as_mut().poll(cx) {
                drop(running.remove(at));
                return Poll::Ready(output);
            }
        }
        Poll::Pending
    })
    .await
}

/// Connects to the first address that answers, until `deadline`. Blocks; an attempt that loses
/// may run in a thread of its own until then.
///
/// # Errors
/// As those of [`connect`], and `TimedOut` at the deadline.
pub fn connect_blocking(address: &str, deadline: Instant) -> io::Result<std::net::TcpStream> {
    race_blocking(address.to_socket_addrs()?, deadline)
}

fn race_blocking(
    addresses: impl IntoIterator<Item = SocketAddr>,
    deadline: Instant,
) -> io::Result<std::net::TcpStream> {
    let addresses = alternate(addresses);
    if let [only] = addresses[..] {
        return connect_until(only, deadline);
    }
    let mut addresses = addresses.into_iter();
    let (ended, outcomes) = channel();
    let (mut running, mut failure) = (0, None);
    loop {
        if let Some(address) = addresses.next() {
            let ended = ended.clone();
            std::thread::Builder::new().name("mc-connect".into()).spawn(move || {
                // The receiver is gone when another address was faster.
                let _ = ended.send(connect_until(address, deadline));
            })?;
            running += 1;
        }
        if running == 0 {
            return Err(failure.unwrap_or_else(nowhere));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let wait = if addresses.len() > 0 { left.min(NEXT_AFTER) } else { left };
        match outcomes.recv_timeout(wait) {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => {
                running -= 1;
                failure = failure.or(Some(error));
            }
            Err(RecvTimeoutError::Timeout) if left > wait => {}
            Err(_) => return Err(failure.unwrap_or_else(|| io::ErrorKind::TimedOut.into())),
        }
    }
}

fn connect_until(address: SocketAddr, deadline: Instant) -> io::Result<std::net::TcpStream> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    std::net::TcpStream::connect_timeout(&address, left)
}

fn nowhere() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "the host has no address")
}

/// Returns the addresses with the families in turn, each in the order given, the first one first
/// (RFC 8305, section 4): a family that leads nowhere costs one wait.
fn alternate(addresses: impl IntoIterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let mut addresses: Vec<_> = addresses.into_iter().collect();
    let Some(first) = addresses.first() else { return addresses };
    let is_first = first.is_ipv4();
    let (mut ours, mut others) = (0, 0);
    addresses.sort_by_cached_key(|address| {
        let is_other = address.is_ipv4() != is_first;
        let place = if is_other { &mut others } else { &mut ours };
        *place += 1;
        (*place, is_other)
    });
    addresses
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use socket2::{Domain, Socket, Type};

    const LIMIT: Duration = Duration::from_secs(20);

    /// An address whose packets are swallowed: a socket that takes no more connections.
    struct Silent {
        address: SocketAddr,
        _kept: (Socket, Vec<Socket>),
    }

    impl Silent {
        fn new() -> Self {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
            socket.bind(&any.into()).unwrap();
            socket.listen(0).unwrap();
            let address = socket.local_addr().unwrap().as_socket().unwrap();
            // The queue takes one more than it is told, and then nothing.
            let waiting = (0..4).map(|_| {
                let waiting = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
                waiting.set_nonblocking(true).unwrap();
                let _ = waiting.connect(&address.into());
                waiting
            });
            let waiting = waiting.collect();
            Self { address, _kept: (socket, waiting) }
        }
    }

    fn listener() -> (std::net::TcpListener, SocketAddr) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    fn refused() -> SocketAddr {
        listener().1
    }

    #[tokio::test]
    async fn an_address_that_swallows_packets_does_not_hide_the_next() {
        let silent = Silent::new();
        let alone = tokio::time::timeout(2 * NEXT_AFTER, connect(silent.address)).await;
        assert!(alone.is_err(), "it swallows packets");
        let (_listener, address) = listener();
        let addresses = [silent.address, refused(), address];
        let connected = tokio::time::timeout(LIMIT, connect(&addresses[..])).await;
        assert_eq!(connected.expect("in time").unwrap().peer_addr().unwrap(), address);
    }

    #[tokio::test]
    async fn the_first_error_is_told_when_no_address_answers() {
        let refused = [refused(), refused()];
        let error = connect(&refused[..]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        let nowhere: [SocketAddr; 0] = [];
        assert_eq!(connect(&nowhere[..]).await.unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[tokio::test]
    async fn a_slow_first_address_may_still_win() {
        let addresses = [refused(), refused()];
        let attempt = |address| async move {
            if address == addresses[1] {
                tokio::time::sleep(LIMIT).await;
            } else {
                tokio::time::sleep(2 * NEXT_AFTER).await;
            }
            Ok::<_, ()>(address)
        };
        assert_eq!(first_of(addresses, attempt).await, Some(Ok(addresses[0])));
    }

    #[test]
    fn a_blocking_caller_gets_past_an_address_that_swallows_packets() {
        let silent = Silent::new();
        let (_listener, address) = listener();
        let deadline = Instant::now() + LIMIT;
        let stream = race_blocking([silent.address, address], deadline).unwrap();
        assert_eq!(stream.peer_addr().unwrap(), address);
        assert!(Instant::now() < deadline);
        let error =
            race_blocking([silent.address; 2], Instant::now() + 2 * NEXT_AFTER).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let error = connect_blocking("localhost:no-port", deadline).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn families_take_turns() {
        let addresses = |ports: &[(&str, u16)]| -> Vec<SocketAddr> {
            ports.iter().map(|(host, port)| format!("{host}:{port}").parse().unwrap()).collect()
        };
        let (four, six) = ("10.0.0.1", "[2001:db8::1]");
        let given = addresses(&[(six, 1), (six, 2), (six, 3), (four, 4), (four, 5)]);
        let turns = addresses(&[(six, 1), (four, 4), (six, 2), (four, 5), (six, 3)]);
        assert_eq!(alternate(given), turns);
        assert_eq!(alternate([]), []);
    }
}
