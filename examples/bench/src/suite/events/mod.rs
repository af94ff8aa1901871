//! Events: how many reach subscribers, and what they cost those who publish.

mod puts;
mod subscriber;

use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

use mc_events::{
    BlockStoreEvent, Encoding, Event, EventSystem, Medium, PublisherConfig, Replica, StoreEventInfo,
};

use self::subscriber::{Pace, Subscriber};
use super::keys::KeyWriter;
use crate::cpu_clock::CpuClock;
use crate::error::BenchError;
use crate::figure::{Figure, Report};
use crate::process;
use crate::scale::Scale;

/// Events that are made and then published in one go.
const BURST: u64 = 500;

/// Events that the slowest of the eager subscribers may be behind.
const BEHIND: u64 = 20 * BURST;

/// Tokens of a block.
const TOKENS: u32 = 16;

/// Time limit for messages to arrive.
const PATIENCE: Duration = Duration::from_secs(30);

/// Prints the suite's figures.
pub(crate) fn run<W: Write>(scale: Scale, report: &mut Report<W>) -> Result<(), BenchError> {
    let time = Duration::from_secs_f64(scale.pick(10.0, 2.0, 0.1));
    for encoding in
        [Encoding::S4, Encoding::Mooncake { backend_id: "bench".into() }, Encoding::Vllm]
    {
        let with = |figure: Figure| figure.with("encoding", encoding.name()).with("tokens", TOKENS);
        let load = Load { encoding: encoding.clone(), paces: vec![Pace::Eager], time };
        let outcome = load.run()?;
        report.add(with(Figure::new("events_per_s", outcome.events_per_s(), "1/s")))?;
        let bytes = outcome.payload_bytes as f64 / outcome.events as f64;
        report.add(with(Figure::new("bytes_per_event", bytes, "B")))?;
        for (call, nanos) in [("post", outcome.post_ns), ("publish", outcome.publish_ns)] {
            report.add(with(Figure::new("publish_cpu_ns", nanos, "ns").with("call", call)))?;
        }
    }
    crowd(scale, time, report)?;
    puts::run(scale, report)
}

/// Prints what one subscriber, many, and many of which one is slow and one stalled make of it.
fn crowd<W: Write>(scale: Scale, time: Duration, report: &mut Report<W>) -> Result<(), BenchError> {
    let many = vec![Pace::Eager; scale.pick(50, 50, 5)];
    let mut all = many.clone();
    all.extend([Pace::Slow, Pace::Stalled]);
    let mut rate = None;
    for (slow, paces) in [(0, vec![Pace::Eager]), (0, many), (2, all)] {
        let subscribers = paces.len();
        let eager = (subscribers - slow) as f64;
        let outcome = Load { encoding: Encoding::S4, paces, time }.run()?;
        let with = |name, value, unit| {
            let figure = Figure::new(name, value, unit).with("subscribers", subscribers);
            figure.with("slow_or_stalled", slow)
        };
        let per_s = outcome.events_per_s();
        let figure = with("crowd_events_per_s", per_s, "1/s");
        report.add(figure.maybe_versus("without slow ones", rate.filter(|_| slow > 0)))?;
        rate = Some(per_s);
        report.add(with("crowd_deliveries_per_s", per_s * eager, "1/s"))?;
        report.add(with("crowd_waiting_bytes", outcome.waiting_bytes as f64, "B"))?;
        report.add(with("crowd_resident_growth_bytes", outcome.resident_growth as f64, "B"))?;
        report.add(with("crowd_skipped", outcome.skipped as f64, "messages"))?;
    }
    Ok(())
}

/// A publisher that publishes as fast as its eager subscribers read.
struct Load {
    encoding: Encoding,
    paces: Vec<Pace>,
    time: Duration,
}

struct Outcome {
    events: u64,
    seconds: f64,
    payload_bytes: u64,
    /// CPU time of the caller for each event.
    post_ns: f64,
    publish_ns: f64,
    /// The most of what waited for all subscribers.
    waiting_bytes: usize,
    /// The most by which this process's memory grew.
    resident_growth: u64,
    skipped: u64,
}

impl Outcome {
    fn events_per_s(&self) -> f64 {
        self.events as f64 / self.seconds
    }
}

impl Load {
    fn run(&self) -> Result<Outcome, BenchError> {
        process::raise_file_limit()?;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let config = PublisherConfig {
            endpoint: "tcp://127.0.0.1:0".into(),
            encoding: self.encoding.clone(),
            ..PublisherConfig::default()
        };
        let system = runtime
            .block_on(EventSystem::start(config))
            .map_err(|error| BenchError::start("publisher")(error.into()))?;
        let endpoint = &system.endpoints()[0].endpoint;
        let mut eager = Vec::new();
        let mut others = Vec::new();
        for &pace in &self.paces {
            let subscriber = Subscriber::start(endpoint, pace)?;
            if pace == Pace::Eager { &mut eager } else { &mut others }.push(subscriber);
        }
        wait("subscribing", || Ok(system.stats().subscribers == self.paces.len()))?;
        let mut keys = KeyWriter::new(7);
        let resident = process::own_resident_bytes()?;
        let (mut waiting_bytes, mut most_resident) = (0, resident);
        // Of `post` and `publish`, which take turns.
        let mut nanos = [0.0; 2];
        let mut events = 0;
        let start = Instant::now();
        while start.elapsed() < self.time || events % (2 * BURST) != 0 {
            let burst: Vec<Event> = (events..events + BURST).map(|n| event(&mut keys, n)).collect();
            let posts = events % (2 * BURST) == 0;
            let clock = CpuClock::start();
            for event in burst {
                if posts {
                    system.post(event);
                } else {
                    drop(system.publish(event));
                }
            }
            nanos[usize::from(!posts)] += clock.nanos();
            events += BURST;
            if events % (100 * BURST) == 0 {
                waiting_bytes = waiting_bytes.max(system.stats().waiting_bytes);
                most_resident = most_resident.max(process::own_resident_bytes()?);
            }
            wait_for(&mut eager, events.saturating_sub(BEHIND))?;
        }
        wait_for(&mut eager, events)?;
        let seconds = start.elapsed().as_secs_f64();
        let stats = system.stats();
        if stats.dropped > 0 || stats.published != events {
            return Err(BenchError::wrong("publishing", format!("{stats:?}")));
        }
        Ok(Outcome {
            events,
            seconds,
            payload_bytes: stats.bytes,
            post_ns: nanos[0] / (events / 2) as f64,
            publish_ns: nanos[1] / (events / 2) as f64,
            waiting_bytes: waiting_bytes.max(stats.waiting_bytes),
            resident_growth: most_resident.max(process::own_resident_bytes()?) - resident,
            skipped: stats.skipped,
        })
    }
}

/// Waits until each has received so many events.
fn wait_for(subscribers: &mut [Subscriber], events: u64) -> Result<(), BenchError> {
    for subscriber in subscribers {
        wait("subscribing", || Ok(subscriber.received()? >= events))?;
    }
    Ok(())
}

fn wait(
    what: &'static str,
    mut is_so: impl FnMut() -> Result<bool, BenchError>,
) -> Result<(), BenchError> {
    let deadline = Instant::now() + PATIENCE;
    while !is_so()? {
        if Instant::now() > deadline {
            return Err(BenchError::wrong(what, format!("not done after {PATIENCE:?}")));
        }
        thread::sleep(Duration::from_micros(50));
    }
    Ok(())
}

/// A stored block that every encoding has a form for.
fn event(keys: &mut KeyWriter, number: u64) -> Event {
    let location = "192.168.1.10:6000".into();
    BlockStoreEvent {
        key: keys.key(number).as_str().into(),
        replicas: vec![Replica { medium: Medium::Memory, location }],
        store_event_info: StoreEventInfo {
            model_name: "llama".into(),
            block_size: TOKENS,
            block_hash: format!("{:#x}", number + 1),
            parent_block_hash: format!("{number:#x}"),
            token_ids: (0..TOKENS).collect(),
        },
        ..BlockStoreEvent::default()
    }
    .into()
}
