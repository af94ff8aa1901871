//! Plain blocking sockets: what a protocol over TCP cannot beat.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use socket2::SockRef;

use crate::latency::Latencies;

/// Longest request or reply in bytes: the largest transfer that is compared, and
/// room for a header.
const MAX_LEN: usize = (16 << 20) + 64;

/// Most bytes that replies are taken from.
const MAX_SPAN: usize = 1 << 30;

/// Congestion control of every socket here. The system's may be `bbr`, which
/// halves what one host can send to itself.
const CONGESTION: &[u8] = b"cubic";

/// The purpose of one connection.
#[derive(Clone, Copy, Debug)]
struct Terms {
    /// Bytes of a request; none means that replies follow each other unasked.
    request: usize,
    /// Bytes of a reply.
    reply: usize,
    /// Replies are taken from so many bytes in turn: as many as the region that is
    /// compared has, so that the caches help neither side.
    span: usize,
}

impl Terms {
    fn encode(self) -> [u8; 24] {
        let mut bytes = [0; 24];
        bytes[..8].copy_from_slice(&(self.request as u64).to_le_bytes());
        bytes[8..16].copy_from_slice(&(self.reply as u64).to_le_bytes());
        bytes[16..].copy_from_slice(&(self.span as u64).to_le_bytes());
        bytes
    }

    fn decode(bytes: [u8; 24]) -> io::Result<Self> {
        let (words, _) = bytes.as_chunks::<8>();
        let [request, reply, span] =
            [words[0], words[1], words[2]].map(|word| u64::from_le_bytes(word) as usize);
        if request > MAX_LEN || !(1..=MAX_LEN).contains(&reply) || span > MAX_SPAN {
            return Err(io::Error::other("a request or a reply of that length is not served"));
        }
        Ok(Self { request, reply, span })
    }
}

/// Answers raw connections on threads of their own, which last as long as the
/// process. Threads inherit the caller's CPUs.
pub(crate) fn serve() -> io::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    thread::Builder::new().name("raw".into()).spawn(move || {
        for stream in listener.incoming().flatten() {
            // A client that leaves ends its thread; that is no failure.
            let answering = thread::Builder::new().spawn(move || answer(stream));
            drop(answering);
        }
    })?;
    Ok(address)
}

fn answer(mut stream: TcpStream) -> io::Result<()> {
    tune(&stream)?;
    let mut terms = [0; 24];
    stream.read_exact(&mut terms)?;
    let Terms { request, reply, span } = Terms::decode(terms)?;
    let mut received = vec![0; request];
    let source = vec![7; span.max(reply)];
    for reply in source.chunks_exact(reply).cycle() {
        stream.read_exact(&mut received)?;
        stream.write_all(reply)?;
    }
    Ok(())
}

fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    // A system without it measures with what it has.
    let _ = SockRef::from(stream).set_tcp_congestion(CONGESTION);
    Ok(())
}

fn connect(address: SocketAddr, terms: Terms) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    tune(&stream)?;
    stream.write_all(&terms.encode())?;
    Ok(stream)
}

/// `count` round trips of these lengths, after some for warming up. Replies are
/// taken from `span` bytes in turn.
pub(crate) fn ping_pong(
    address: SocketAddr,
    request: usize,
    reply: usize,
    span: usize,
    count: usize,
) -> io::Result<Latencies> {
    let mut stream = connect(address, Terms { request, reply, span })?;
    let warm_up = count / 10 + 1;
    let (sent, mut received) = (vec![3; request], vec![0; reply]);
    let mut latencies = Latencies::default();
    for turn in 0..count + warm_up {
        let start = Instant::now();
        stream.write_all(&sent)?;
        stream.read_exact(&mut received)?;
        if turn >= warm_up {
            latencies.add(start.elapsed());
        }
    }
    Ok(latencies)
}

/// One stream in one direction for about `duration`: how long each piece of
/// `piece` bytes took to arrive. Pieces are taken from `span` bytes in turn.
pub(crate) fn stream(
    address: SocketAddr,
    piece: usize,
    span: usize,
    duration: Duration,
) -> io::Result<Latencies> {
    let mut stream = connect(address, Terms { request: 0, reply: piece, span })?;
    let mut received = vec![0; piece];
    // The window opens.
    for _ in 0..4 {
        stream.read_exact(&mut received)?;
    }
    let mut latencies = Latencies::default();
    let begun = Instant::now();
    while begun.elapsed() < duration || latencies.len() == 0 {
        let start = Instant::now();
        stream.read_exact(&mut received)?;
        latencies.add(start.elapsed());
    }
    Ok(latencies)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_and_streams() {
        let address = serve().unwrap();
        let mut latencies = ping_pong(address, 60, 4096, 65_536, 20).unwrap();
        assert_eq!(latencies.len(), 20);
        assert!(latencies.p50_us() > 0.0);
        let mut pieces = stream(address, 65_536, 1 << 20, Duration::from_millis(5)).unwrap();
        assert!(pieces.p50_us() > 0.0);
    }

    #[test]
    fn absurd_terms_are_refused() {
        let taken =
            |request, reply, span| Terms::decode(Terms { request, reply, span }.encode()).is_ok();
        assert!(taken(0, MAX_LEN, MAX_SPAN));
        assert!(!taken(1, 0, 0));
        assert!(!taken(MAX_LEN + 1, 1, 0));
        assert!(!taken(0, MAX_LEN + 1, 0));
        assert!(!taken(0, 1, MAX_SPAN + 1));
    }
}
