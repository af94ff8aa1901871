//! Streams that deliver in order, with a delay of their own for each piece, and that break.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use mc_rpc::{ByteStream, ClientEnvironment, Connecting, Streams};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use crate::world::Random;

/// How bad a network is; chances are of a thousand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weather {
    /// The longest delay of a piece that is not lost.
    pub(crate) delay: Duration,
    /// A piece is lost and sent again, after [`RETRANSMISSION`].
    pub(crate) loss: u64,
    /// A connection breaks when it is written to.
    pub(crate) breaks: u64,
}

/// How long a lost piece takes longer, as with TCP.
const RETRANSMISSION: Duration = Duration::from_millis(200);

/// A connection, and the hosts at its ends.
type Connection = ([Ipv4Addr; 2], Weak<Mutex<Wire>>);

/// What all hosts are connected by.
pub(crate) struct Network {
    weather: Weather,
    random: Random,
    /// The masters that listen, by their addresses.
    masters: Mutex<BTreeMap<String, (Ipv4Addr, Streams)>>,
    wires: Mutex<Vec<Connection>>,
    /// The hosts that are cut off, and until when.
    cut_off: Mutex<BTreeMap<Ipv4Addr, Instant>>,
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network").finish_non_exhaustive()
    }
}

impl Network {
    pub(crate) fn new(weather: Weather, random: Random) -> Arc<Self> {
        let (masters, wires, cut_off) = Default::default();
        Arc::new(Self { weather, random, masters, wires, cut_off })
    }

    /// Has a master on this host listen, in place of what listened at the address before.
    pub(crate) fn listen(&self, address: &str, host: Ipv4Addr, streams: Streams) {
        self.masters.lock().unwrap().insert(address.to_owned(), (host, streams));
    }

    /// Breaks all connections of a host whose process was killed; it listens no more.
    pub(crate) fn crash(&self, host: Ipv4Addr) {
        self.masters.lock().unwrap().retain(|_, (at, _)| *at != host);
        for (ends, wire) in &*self.wires.lock().unwrap() {
            if let Some(wire) = wire.upgrade()
                && ends.contains(&host)
            {
                wire.lock().unwrap().break_off();
            }
        }
    }

    /// Cuts a host off: what it sends and what is sent to it arrives after that time.
    pub(crate) fn cut_off(&self, host: Ipv4Addr, time: Duration) {
        self.cut_off.lock().unwrap().insert(host, Instant::now() + time);
    }

    /// Returns when the host is on the network again, at the latest now.
    pub(crate) fn back_at(&self, host: Ipv4Addr) -> Instant {
        let now = Instant::now();
        self.cut_off.lock().unwrap().get(&host).copied().unwrap_or(now).max(now)
    }

    /// Returns when a piece arrives that is sent now from or to the host.
    pub(crate) fn arrival(&self, host: Ipv4Addr) -> Instant {
        let longest = u64::try_from(self.weather.delay.as_micros()).unwrap();
        let mut delay = Duration::from_micros(self.random.below(longest + 1));
        if self.random.chance(self.weather.loss) {
            delay += RETRANSMISSION;
        }
        self.back_at(host) + delay
    }

    /// Whether a connection that is used now breaks.
    pub(crate) fn breaks(&self) -> bool {
        self.random.chance(self.weather.breaks)
    }

    async fn connect(
        self: Arc<Self>,
        host: Ipv4Addr,
        address: &str,
    ) -> io::Result<Box<dyn ByteStream>> {
        sleep_until(self.arrival(host)).await;
        let listens = self.masters.lock().unwrap().get(address).cloned();
        let (peer, streams) = listens.ok_or(io::ErrorKind::ConnectionRefused)?;
        sleep_until(self.back_at(peer)).await;
        let wire = Arc::new(Mutex::new(Wire::default()));
        let mut wires = self.wires.lock().unwrap();
        wires.retain(|(_, wire)| wire.strong_count() > 0);
        wires.push(([host, peer], Arc::downgrade(&wire)));
        drop(wires);
        let end = |side| End {
            side,
            hosts: [host, peer],
            network: Arc::clone(&self),
            wire: Arc::clone(&wire),
            timer: Box::pin(sleep(Duration::ZERO)),
        };
        streams.hand_in(end(1), SocketAddr::from((host, 40_000)))?;
        Ok(Box::new(end(0)))
    }
}

/// How a client's calls get to the master.
#[derive(Debug)]
pub(crate) struct ToMaster {
    network: Arc<Network>,
    host: Ipv4Addr,
    random: Random,
}

impl ToMaster {
    pub(crate) const fn new(network: Arc<Network>, host: Ipv4Addr, random: Random) -> Self {
        Self { network, host, random }
    }
}

impl ClientEnvironment for ToMaster {
    fn connect<'a>(&'a self, address: &'a str) -> Connecting<'a> {
        Box::pin(Arc::clone(&self.network).connect(self.host, address))
    }

    fn random(&self, bytes: &mut [u8]) -> io::Result<()> {
        self.random.fill(bytes);
        Ok(())
    }
}

/// What both ends of a stream share.
#[derive(Default)]
struct Wire {
    is_broken: bool,
    ways: [Way; 2],
}

impl Wire {
    fn break_off(&mut self) {
        self.is_broken = true;
        self.ways.iter_mut().for_each(Way::wake);
    }
}

/// What one end sends to the other.
#[derive(Default)]
struct Way {
    on_the_way: VecDeque<(Instant, Bytes)>,
    /// When the last piece arrives: none overtakes it.
    last: Option<Instant>,
    has_ended: bool,
    reader: Option<Waker>,
}

impl Way {
    fn wake(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }
}

/// One end of a stream.
struct End {
    side: usize,
    hosts: [Ipv4Addr; 2],
    network: Arc<Network>,
    wire: Arc<Mutex<Wire>>,
    timer: Pin<Box<Sleep>>,
}

impl AsyncRead for End {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let arrives = {
                let mut wire = self.wire.lock().unwrap();
                if wire.is_broken {
                    return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
                }
                let way = &mut wire.ways[1 - self.side];
                way.reader = Some(cx.waker().clone());
                let Some((arrives, piece)) = way.on_the_way.front_mut() else {
                    return if way.has_ended { Poll::Ready(Ok(())) } else { Poll::Pending };
                };
                if *arrives <= Instant::now() {
                    let len = piece.len().min(into.remaining());
                    into.put_slice(&piece[..len]);
                    piece.advance(len);
                    if piece.is_empty() {
                        way.on_the_way.pop_front();
                    }
                    return Poll::Ready(Ok(()));
                }
                *arrives
            };
            if self.timer.deadline() != arrives {
                self.timer.as_mut().reset(arrives);
            }
            ready!(self.timer.as_mut().poll(cx));
        }
    }
}

impl AsyncWrite for End {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut wire = self.wire.lock().unwrap();
        if wire.is_broken || self.network.breaks() {
            wire.break_off();
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let way = &mut wire.ways[self.side];
        let [host, peer] = self.hosts;
        let arrives = self.network.arrival(host).max(self.network.back_at(peer));
        let arrives = way.last.map_or(arrives, |last| last.max(arrives));
        way.last = Some(arrives);
        way.on_the_way.push_back((arrives, Bytes::copy_from_slice(bytes)));
        way.wake();
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let way = &mut self.wire.lock().unwrap().ways[self.side];
        way.has_ended = true;
        way.wake();
        Poll::Ready(Ok(()))
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let way = &mut self.wire.lock().unwrap().ways[self.side];
        way.has_ended = true;
        way.wake();
    }
}
