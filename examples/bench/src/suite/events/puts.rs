//! The cost of events for those who put objects.

use std::io::Write;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::try_join_all;
use mc_meta::{PutEnd, PutStart, ReplicateConfig};
use mc_rpc::{ClientConfig, blocking};
use mc_store::{Client, PutOutcome};
use mc_types::ClientId;

use super::super::keys::KeyWriter;
use super::super::segments;
use super::super::store::{Carrier, Cluster, MasterAddress, MasterTask, Plan};
use super::subscriber::{Pace, Subscriber};
use crate::error::BenchError;
use crate::figure::{Figure, Report};
use crate::pattern::Pattern;
use crate::placement::{self, Placement};
use crate::process::{ClientRuntime, Peer};
use crate::scale::Scale;

/// Clients that put at the same time.
const CALLERS: u32 = 8;

/// Bytes of an object that is only booked.
const BOOKED: u64 = 4096;

/// Bytes of a segment that no node serves.
const SEGMENT: u64 = 1 << 40;

/// Bytes of an object that is stored.
const STORED: usize = 64 << 10;

/// Time for which one master, or cluster, is measured before it is the other's turn.
const WINDOW: Duration = Duration::from_millis(200);

/// Prints the rate of puts at a master that publishes events to a subscriber over that at one
/// that does not, for objects that are only booked and for real ones.
pub(super) fn run<W: Write>(scale: Scale, report: &mut Report<W>) -> Result<(), BenchError> {
    let rounds = scale.pick(150, 20, 1);
    for place in placement::possible(&[Placement::Cross, Placement::Free])? {
        booked(place, rounds, report)?;
    }
    stored(scale, rounds, report)
}

fn booked<W: Write>(
    place: Placement,
    rounds: usize,
    report: &mut Report<W>,
) -> Result<(), BenchError> {
    let task = MasterTask::at(place);
    let (off_peer, off) = Peer::start::<_, MasterAddress>(&task)?;
    let (on_peer, on) = Peer::start::<_, MasterAddress>(&task.with_events())?;
    let mut rates = placement::on_client_cpu(place, || {
        let mut subscriber = Subscriber::start(events_of(on.events.as_deref())?, Pace::Eager)?;
        let mut sides = [Callers::connect(&off)?, Callers::connect(&on)?];
        let rates = Rates::measure(rounds, |side| sides[side].window())?;
        super::wait_for(std::slice::from_mut(&mut subscriber), sides[1].pairs)?;
        Ok(rates)
    })?;
    let with = |figure: Figure| {
        figure.with("threads", CALLERS).with("placement", place.name()).with("size", BOOKED)
    };
    for (side, (events, peer)) in [("off", &off_peer), ("on", &on_peer)].into_iter().enumerate() {
        let with = |figure: Figure| with(figure).with("events", events);
        report.add(with(Figure::new("put_pairs_per_s", rates.mean(side), "1/s")))?;
        let micros = peer.cpu_seconds()? * 1e6 / rates.puts[side] as f64;
        report.add(with(Figure::new("put_master_cpu_us", micros, "µs")))?;
    }
    report.add(with(Figure::new("put_ratio", rates.ratio(), "ratio")))
}

fn stored<W: Write>(scale: Scale, rounds: usize, report: &mut Report<W>) -> Result<(), BenchError> {
    let plan = Plan::new(Placement::Free, Carrier::Tcp, scale.pick(1 << 30, 1 << 29, 64 << 20));
    let clusters = [plan.clone().start()?, plan.with_events().start()?];
    let mut rates = ClientRuntime::Multi.start()?.block_on(async {
        let _subscriber =
            Subscriber::start(events_of(clusters[1].events.as_deref())?, Pace::Eager)?;
        let mut sides =
            [Putters::connect(&clusters[0]).await?, Putters::connect(&clusters[1]).await?];
        let mut rates = Rates::default();
        for turn in 0..2 * rounds {
            let side = Rates::side(turn);
            let (puts, seconds) = sides[side].window().await?;
            rates.add(side, puts, seconds);
        }
        for side in sides {
            side.client.shutdown().await;
        }
        Ok::<_, BenchError>(rates)
    })?;
    let with = |figure: Figure| figure.with("threads", CALLERS).with("size", STORED);
    for (side, events) in ["off", "on"].into_iter().enumerate() {
        let figure = Figure::new("put_objects_per_s", rates.mean(side), "1/s");
        report.add(with(figure).with("events", events))?;
    }
    report.add(with(Figure::new("put_ratio", rates.ratio(), "ratio")))
}

fn events_of(endpoint: Option<&str>) -> Result<&str, BenchError> {
    endpoint.ok_or_else(|| BenchError::wrong("starting a master", "it publishes no events"))
}

/// The puts of two sides, without events and with, that take turns.
#[derive(Default)]
struct Rates {
    per_s: [Vec<f64>; 2],
    puts: [u64; 2],
    seconds: [f64; 2],
}

impl Rates {
    fn measure(
        rounds: usize,
        mut window: impl FnMut(usize) -> Result<(u64, f64), BenchError>,
    ) -> Result<Self, BenchError> {
        let mut rates = Self::default();
        for turn in 0..2 * rounds {
            let side = Self::side(turn);
            let (puts, seconds) = window(side)?;
            rates.add(side, puts, seconds);
        }
        Ok(rates)
    }

    /// Returns the side of this turn: in each pair of turns the other one goes first.
    const fn side(turn: usize) -> usize {
        (turn + turn / 2) % 2
    }

    fn add(&mut self, side: usize, puts: u64, seconds: f64) {
        self.per_s[side].push(puts as f64 / seconds);
        self.puts[side] += puts;
        self.seconds[side] += seconds;
    }

    fn mean(&self, side: usize) -> f64 {
        self.puts[side] as f64 / self.seconds[side]
    }

    /// The median over pairs of windows that followed each other.
    fn ratio(&mut self) -> f64 {
        let [off, on] = &self.per_s;
        let mut ratios: Vec<f64> = off.iter().zip(on).map(|(off, on)| on / off).collect();
        ratios.sort_by(f64::total_cmp);
        ratios[ratios.len() / 2]
    }
}

/// Connections to a master whose one segment no node serves.
struct Callers {
    callers: Vec<PuttingCaller>,
    pairs: u64,
}

struct PuttingCaller {
    master: blocking::MasterClient,
    keys: KeyWriter,
    next: u64,
}

/// The owner of the segment, and the client that puts.
const NODE: ClientId = ClientId::from_u128(1);
const WRITER: ClientId = ClientId::from_u128(2);

impl Callers {
    fn connect(master: &MasterAddress) -> Result<Self, BenchError> {
        let mut config = ClientConfig::default();
        config.local_socket = false;
        let address = master.master.to_string();
        let connect = |number| {
            let master = blocking::MasterClient::connect(&address, config.clone())?;
            Ok::<_, BenchError>(PuttingCaller { master, keys: KeyWriter::new(number), next: 0 })
        };
        let callers = (0..CALLERS).map(connect).collect::<Result<Vec<_>, _>>()?;
        callers[0].master.mount_segment(NODE, &segments::spec(0, SEGMENT)?)?;
        Ok(Self { callers, pairs: 0 })
    }

    /// Puts for the time of a window; returns how many objects, and the seconds.
    fn window(&mut self) -> Result<(u64, f64), BenchError> {
        // The windows are shorter than the time after which a master gives a node up.
        self.callers[0].master.ping(NODE)?;
        let start = Instant::now();
        let puts = std::thread::scope(|scope| {
            let threads: Vec<_> = self
                .callers
                .iter_mut()
                .map(|caller| scope.spawn(move || caller.put_until(start + WINDOW)))
                .collect();
            threads.into_iter().try_fold(0, |puts, thread| {
                let more = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                Ok::<_, BenchError>(puts + more?)
            })
        })?;
        self.pairs += puts;
        Ok((puts, start.elapsed().as_secs_f64()))
    }
}

impl PuttingCaller {
    fn put_until(&mut self, end: Instant) -> Result<u64, BenchError> {
        let config = ReplicateConfig::default();
        let first = self.next;
        while Instant::now() < end {
            let key = self.keys.key(self.next);
            let put = PutStart { key, slice_lengths: &[BOOKED], config: &config };
            let grant = self.master.put_start(WRITER, &put)?;
            self.master.put_end(WRITER, &PutEnd::new(key, grant.handle))?;
            self.next += 1;
        }
        Ok(self.next - first)
    }
}

/// A client of a cluster that stores objects. The oldest are evicted.
struct Putters {
    client: Client,
    value: Bytes,
    next: u64,
}

impl Putters {
    async fn connect(cluster: &Cluster) -> Result<Self, BenchError> {
        let value = Pattern::new(3).bytes(STORED).into();
        Ok(Self { client: cluster.client().await?, value, next: 0 })
    }

    async fn window(&mut self) -> Result<(u64, f64), BenchError> {
        let (start, first) = (Instant::now(), self.next);
        while start.elapsed() < WINDOW {
            let puts = (0..u64::from(CALLERS)).map(|n| {
                let key = format!("events-{}", self.next + n);
                let (client, value) = (&self.client, self.value.clone());
                async move { client.put(&key, value).await }
            });
            for outcome in try_join_all(puts).await? {
                if outcome != PutOutcome::Stored {
                    return Err(BenchError::wrong("put", format!("{outcome:?} for a new key")));
                }
            }
            self.next += u64::from(CALLERS);
        }
        Ok((self.next - first, start.elapsed().as_secs_f64()))
    }
}
