//! A process between a storage node and its peers, which lets bytes through slowly for
//! some of them.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use socket2::{Domain, SockRef, Socket, Type};

use crate::error::BenchError;
use crate::process::{self, Task};

/// Bytes that the system may keep for a slow connection. What lies there has left the
/// node's memory already, so no lease protects it.
const SLOW_BUFFER: usize = 64 << 10;

/// Bytes passed on at a time.
const CHUNK: usize = 256 << 10;

/// The side that is slow, and its rate.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Pace {
    /// Connections from this address are.
    pub(super) slow: IpAddr,
    /// Their rate.
    pub(super) bytes_per_s: u64,
}

/// The parameters of [`serve_relay`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RelayTask {
    pub(super) listen: SocketAddr,
    pub(super) target: SocketAddr,
    pub(super) pace: Pace,
}

impl Task for RelayTask {
    const ROLE: &'static str = "relay";
    const NAME: &'static str = "relay";
}

/// Passes bytes on until told to end.
pub(crate) fn serve_relay(task: &RelayTask) -> Result<(), BenchError> {
    let listener = TcpListener::bind(task.listen)?;
    let (target, pace) = (task.target, task.pace);
    thread::Builder::new().name("relay".into()).spawn(move || {
        for stream in listener.incoming().flatten() {
            // A connection that cannot be passed on is closed, as by a broken network.
            let passing = thread::Builder::new().spawn(move || pass(stream, target, pace));
            drop(passing);
        }
    })?;
    process::say(&())?;
    process::wait_for_end();
    Ok(())
}

/// Connects `peer` with `target`, in both directions, until one closes.
fn pass(peer: TcpStream, target: SocketAddr, pace: Pace) -> io::Result<()> {
    let slow = peer.peer_addr()?.ip() == pace.slow;
    let socket = Socket::new(Domain::for_address(target), Type::STREAM, None)?;
    if slow {
        socket.set_recv_buffer_size(SLOW_BUFFER)?;
        SockRef::from(&peer).set_send_buffer_size(SLOW_BUFFER)?;
    }
    socket.connect(&target.into())?;
    let node = TcpStream::from(socket);
    peer.set_nodelay(true)?;
    node.set_nodelay(true)?;
    let (from_peer, to_node) = (peer.try_clone()?, node.try_clone()?);
    let requests = thread::Builder::new().spawn(move || copy(from_peer, to_node, None))?;
    let answers = copy(node, peer, slow.then_some(pace.bytes_per_s));
    // A thread that panicked has said so.
    let _ = requests.join();
    answers
}

/// Passes bytes on until either side closes, then closes the other.
fn copy(mut from: TcpStream, mut to: TcpStream, bytes_per_s: Option<u64>) -> io::Result<()> {
    let mut chunk = vec![0; bytes_per_s.map_or(CHUNK, |_| SLOW_BUFFER / 4)];
    let outcome = loop {
        let start = Instant::now();
        let len = match from.read(&mut chunk) {
            Ok(0) => break Ok(()),
            Ok(len) => len,
            Err(error) => break Err(error),
        };
        if let Err(error) = to.write_all(&chunk[..len]) {
            break Err(error);
        }
        if let Some(rate) = bytes_per_s {
            let due = Duration::from_secs_f64(len as f64 / rate as f64);
            thread::sleep(due.saturating_sub(start.elapsed()));
        }
    };
    // Both fail only where nothing is left to close.
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends back what it is sent, once.
    fn echo() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut bytes = vec![0; 100_000];
                stream.read_exact(&mut bytes).unwrap();
                stream.write_all(&bytes).unwrap();
            }
        });
        address
    }

    fn round_trip(slow: &str) -> Duration {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let target = echo();
        let pace = Pace { slow: slow.parse().unwrap(), bytes_per_s: 1_000_000 };
        thread::spawn(move || pass(listener.accept().unwrap().0, target, pace));
        let sent: Vec<u8> = (0..100_000_u32).map(|n| n as u8).collect();
        let mut stream = TcpStream::connect(address).unwrap();
        let start = Instant::now();
        stream.write_all(&sent).unwrap();
        let mut received = Vec::new();
        stream.read_to_end(&mut received).unwrap();
        assert_eq!(received, sent);
        start.elapsed()
    }

    #[test]
    fn bytes_pass_unchanged_and_slowly_for_some() {
        round_trip("127.0.0.9");
        // 100,000 bytes at a million a second, but for the last chunk's pause.
        assert!(round_trip("127.0.0.1") > Duration::from_millis(70));
    }
}
