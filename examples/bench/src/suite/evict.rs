//! Eviction policies on a trace of requests to a language model, and on requests that
//! are made up to be hard for one policy or another.
//!
//! A block counts as a hit if it and all before it in its request are cached:
//! prefill can only skip a prefix. Every block of a request is then accessed, and
//! missing ones are inserted, the last one first: so the master enters the keys of a batch into
//! its order of eviction.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use flate2::read::MultiGzDecoder;
use mc_evict::{EvictionPolicy, Handle, Item, PolicyKind, Verdict};
use mc_types::SplitMix64;
use serde::Deserialize;

use crate::error::BenchError;
use crate::figure::{Figure, Report};
use crate::scale::Scale;

// The same requests as in the tests of mc-evict.
#[path = "../../../../mc-evict/tests/it/workload/mod.rs"]
mod workload;

mod plot;

use self::workload::Workload;

/// Parts of all different blocks that the cache holds.
const CAPACITIES: [f64; 6] = [0.01, 0.02, 0.05, 0.1, 0.2, 0.4];

/// The trace that comes with the project, where this program was built.
const SHIPPED: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../replay/data/conversation_trace.jsonl.gz");

/// Longest line of a trace in bytes.
const MAX_LINE: u64 = 16 << 20;

/// Which trace to replay, and where to draw the result.
#[derive(Clone, Debug, Default)]
pub(crate) struct TraceSource {
    /// A file of JSON lines, perhaps compressed with gzip; `None` for the shipped
    /// one.
    pub(crate) path: Option<PathBuf>,
    /// A file for the picture.
    pub(crate) plot: Option<PathBuf>,
}

/// Prints the suite's figures.
pub(crate) fn run<W: Write>(
    scale: Scale,
    source: &TraceSource,
    report: &mut Report<W>,
) -> Result<(), BenchError> {
    let path = source.path.clone().unwrap_or_else(|| SHIPPED.into());
    let trace =
        Trace::read(&path).map_err(|source| BenchError::Trace { path: path.clone(), source })?;
    let name =
        path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let name = name.trim_end_matches(".gz").trim_end_matches(".jsonl").to_owned();
    let mut traces = vec![(name, scale.pick(trace.clone(), trace.clone(), trace.first(500)))];
    let accesses = scale.pick(300_000, 60_000, 3_000);
    traces.extend(Workload::all(1, accesses).into_iter().map(|workload| {
        let Workload { name, requests, unique } = workload;
        (name.to_owned(), Trace { requests, unique })
    }));
    // A file that cannot be written is found before the work and not after it.
    let picture = match &source.plot {
        Some(path) => {
            let refused = |source| BenchError::Plot { path: path.clone(), source };
            Some((File::create(path).map_err(refused)?, path))
        }
        None => None,
    };
    let results = replay_all(&traces)?;
    let mut least = f64::INFINITY;
    for (at, ((name, _), result)) in traces.iter().zip(&results).enumerate() {
        let figure = if at == 0 { "prefix_hit" } else { "made_up_hit" };
        for (capacity, hits) in CAPACITIES.iter().zip(result) {
            let mut add = |policy: &str, value: f64| {
                let figure = Figure::new(figure, value, "ratio").with("capacity", *capacity);
                let figure = figure.with("policy", policy).with("trace", name.as_str());
                // Nothing is found in a loop, so there is no ratio.
                let mark = (policy != "optimal" && hits.optimal > 0.0).then_some(hits.optimal);
                report.add(figure.maybe_versus("optimal", mark))
            };
            for (kind, value) in PolicyKind::ALL.iter().zip(&hits.by_kind) {
                if *kind == PolicyKind::default() {
                    add("default", *value)?;
                }
                add(kind.as_str(), *value)?;
            }
            add("optimal", hits.optimal)?;
            least = least.min(hits.lead_of(PolicyKind::Adaptive));
        }
    }
    let figure = Figure::new("adaptive_minus_best_min", least, "ratio");
    report.add(figure.with("accesses", accesses))?;
    if let Some((mut file, path)) = picture {
        let charts: Vec<_> = traces.iter().map(|(name, _)| name.as_str()).zip(&results).collect();
        file.write_all(plot::draw(&charts).as_bytes())
            .map_err(|source| BenchError::Plot { path: path.clone(), source })?;
    }
    Ok(())
}

/// The part of all blocks that were hits, with the room of one capacity.
#[derive(Clone, Debug)]
struct Hits {
    /// In the order of [`PolicyKind::ALL`].
    by_kind: Vec<f64>,
    optimal: f64,
}

impl Hits {
    /// How far a policy is ahead of the best of all others.
    fn lead_of(&self, kind: PolicyKind) -> f64 {
        let (mut own, mut best) = (0.0, 0.0_f64);
        for (other, value) in PolicyKind::ALL.iter().zip(&self.by_kind) {
            if *other == kind {
                own = *value;
            } else {
                best = best.max(*value);
            }
        }
        own - best
    }
}

/// For each trace, the hits with the room of each capacity, by all policies; on all processors.
fn replay_all(traces: &[(String, Trace)]) -> Result<Vec<Vec<Hits>>, BenchError> {
    let jobs: Vec<_> = traces
        .iter()
        .flat_map(|(_, trace)| CAPACITIES.map(|capacity| (trace, trace.room(capacity))))
        .collect();
    let next = AtomicUsize::new(0);
    let results: Vec<OnceLock<Result<Hits, BenchError>>> =
        jobs.iter().map(|_| OnceLock::new()).collect();
    let workers = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some((trace, room)) = jobs.get(at) else { break };
                    let _ = results[at].set(trace.hits(*room));
                }
            });
        }
    });
    let hits: Result<Vec<Hits>, BenchError> = results
        .into_iter()
        .map(|result| result.into_inner().expect("every job was taken"))
        .collect();
    Ok(hits?.chunks(CAPACITIES.len()).map(<[Hits]>::to_vec).collect())
}

/// Requests, each a sequence of blocks; the blocks are numbered from 0.
#[derive(Clone, Debug)]
struct Trace {
    requests: Vec<Vec<Handle>>,
    unique: usize,
}

/// One line of a trace file; other members are ignored.
#[derive(Deserialize)]
struct Line {
    hash_ids: Vec<u64>,
}

impl Trace {
    fn read(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        if path.extension().is_some_and(|extension| extension == "gz") {
            Self::parse(BufReader::new(MultiGzDecoder::new(file)))
        } else {
            Self::parse(BufReader::new(file))
        }
    }

    fn parse(mut lines: impl BufRead) -> io::Result<Self> {
        let mut numbers = std::collections::HashMap::new();
        let mut requests = Vec::new();
        let mut line = Vec::new();
        for number in 1_u64.. {
            line.clear();
            let read = lines.by_ref().take(MAX_LINE).read_until(b'\n', &mut line)?;
            if read == 0 {
                break;
            }
            if line.trim_ascii().is_empty() {
                continue;
            }
            let Line { hash_ids } = serde_json::from_slice(&line)
                .map_err(|error| io::Error::other(format!("line {number}: {error}")))?;
            let mut blocks = Vec::with_capacity(hash_ids.len());
            for id in hash_ids {
                let next = Handle::try_from(numbers.len()).map_err(io::Error::other)?;
                blocks.push(*numbers.entry(id).or_insert(next));
            }
            requests.push(blocks);
        }
        if numbers.is_empty() {
            return Err(io::Error::other("it has no requests with blocks"));
        }
        Ok(Self { requests, unique: numbers.len() })
    }

    /// The first requests of this one.
    fn first(self, count: usize) -> Self {
        let mut requests = self.requests;
        requests.truncate(count);
        let unique = requests.iter().flatten().max().map_or(0, |last| *last as usize + 1);
        Self { requests, unique }
    }

    /// Blocks that fit, for a part of all different ones.
    fn room(&self, capacity: f64) -> usize {
        ((self.unique as f64 * capacity) as usize).max(1)
    }

    /// The part of all blocks that were hits.
    fn hit_rate(&self, cache: &mut impl Cache) -> Result<f64, BenchError> {
        let (mut hits, mut blocks) = (0, 0);
        for request in &self.requests {
            hits += request.iter().take_while(|block| cache.holds(**block)).count();
            blocks += request.len();
            for (at, block) in request.iter().enumerate().rev() {
                let before = at.checked_sub(1).map(|before| request[before]);
                cache.access(*block, before)?;
            }
        }
        Ok(hits as f64 / blocks as f64)
    }

    /// The hits of all policies in a cache with this room.
    fn hits(&self, room: usize) -> Result<Hits, BenchError> {
        let by_kind =
            PolicyKind::ALL.iter().map(|kind| self.hit_rate(&mut ByPolicy::new(*kind, room)));
        let by_kind = by_kind.collect::<Result<_, _>>()?;
        Ok(Hits { by_kind, optimal: self.hit_rate(&mut Optimal::new(self, room))? })
    }
}

/// A cache of blocks that has room for a fixed number.
trait Cache {
    fn holds(&self, block: Handle) -> bool;
    /// Uses a block, which follows another one or is the first of its request,
    /// inserting it when it is missing.
    fn access(&mut self, block: Handle, before: Option<Handle>) -> Result<(), BenchError>;
}

/// A cache that evicts in the order of a policy of `mc-evict`.
struct ByPolicy {
    policy: Box<dyn EvictionPolicy>,
    /// Whether the policy hears which block is before which. Most engines do not say.
    chains: bool,
    held: Vec<bool>,
    room: usize,
    count: usize,
}

impl ByPolicy {
    fn new(kind: PolicyKind, room: usize) -> Self {
        let chains = kind == PolicyKind::Prefix;
        Self { policy: kind.build(), chains, held: Vec::new(), room, count: 0 }
    }
}

impl Cache for ByPolicy {
    fn holds(&self, block: Handle) -> bool {
        self.held.get(block as usize).copied().unwrap_or(false)
    }

    fn access(&mut self, block: Handle, before: Option<Handle>) -> Result<(), BenchError> {
        if self.holds(block) {
            self.policy.access(block);
            return Ok(());
        }
        let Self { policy, chains, held, room, count } = self;
        policy.evict(&mut |victim| {
            if *count < *room {
                return Verdict::Stop;
            }
            held[victim as usize] = false;
            *count -= 1;
            Verdict::Evict
        });
        if *count >= *room {
            return Err(BenchError::wrong("evicting", "a full cache has no victim"));
        }
        if held.len() <= block as usize {
            held.resize(block as usize + 1, false);
        }
        held[block as usize] = true;
        *count += 1;
        let parent = before.filter(|_| *chains).map_or(0, hash);
        policy.insert(block, Item::new(hash(block)).with_parent(parent));
        Ok(())
    }
}

/// The hash by which policies know a block: its number, well mixed (splitmix64).
fn hash(block: Handle) -> u64 {
    SplitMix64::mix((u64::from(block) + 1).wrapping_mul(SplitMix64::STEP))
}

/// Knows the future: the block that is used last, or never again, goes, and it may
/// be the one that was just used (Belady 1966, with bypass). It counts accesses and
/// not prefixes, so it is a mark to compare with rather than a proven bound.
struct Optimal {
    /// For each access in turn, when its block is used next.
    next: Vec<usize>,
    now: usize,
    /// When each block that is held is used next.
    held: Vec<Option<usize>>,
    /// The held blocks by their next use.
    order: BTreeSet<(usize, Handle)>,
    room: usize,
}

impl Optimal {
    fn new(trace: &Trace, room: usize) -> Self {
        let accesses: Vec<Handle> =
            trace.requests.iter().flat_map(|request| request.iter().rev()).copied().collect();
        let mut next = vec![usize::MAX; accesses.len()];
        let mut later = vec![usize::MAX; trace.unique];
        for (at, block) in accesses.iter().enumerate().rev() {
            next[at] = std::mem::replace(&mut later[*block as usize], at);
        }
        Self { next, now: 0, held: vec![None; trace.unique], order: BTreeSet::new(), room }
    }
}

impl Cache for Optimal {
    fn holds(&self, block: Handle) -> bool {
        self.held[block as usize].is_some()
    }

    fn access(&mut self, block: Handle, _before: Option<Handle>) -> Result<(), BenchError> {
        let next = self.next[self.now];
        self.now += 1;
        if let Some(due) = self.held[block as usize].replace(next) {
            self.order.remove(&(due, block));
        }
        self.order.insert((next, block));
        if self.order.len() > self.room
            && let Some((_, victim)) = self.order.pop_last()
        {
            self.held[victim as usize] = None;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(lines: &str) -> Trace {
        Trace::parse(lines.as_bytes()).unwrap()
    }

    #[test]
    fn a_hit_needs_all_before_it() {
        let trace = trace(
            "{\"hash_ids\":[10,11,12],\"timestamp\":1}\n\n\
             {\"hash_ids\":[10,99,12]}\n{\"hash_ids\":[10,11,12]}",
        );
        assert_eq!((trace.requests.len(), trace.unique), (3, 4));
        // With room for all: 0, then block 10 alone, then all three.
        let rate = trace.hit_rate(&mut ByPolicy::new(PolicyKind::Lru, 4)).unwrap();
        assert_eq!(rate, 4.0 / 9.0);
        assert_eq!(trace.hit_rate(&mut Optimal::new(&trace, 4)).unwrap(), 4.0 / 9.0);
    }

    #[test]
    fn lru_and_fifo_differ_by_use() {
        let trace = trace(
            "{\"hash_ids\":[1]}\n{\"hash_ids\":[2]}\n{\"hash_ids\":[1]}\n\
                           {\"hash_ids\":[3]}\n{\"hash_ids\":[1]}",
        );
        assert_eq!(trace.hit_rate(&mut ByPolicy::new(PolicyKind::Lru, 2)).unwrap(), 0.4);
        assert_eq!(trace.hit_rate(&mut ByPolicy::new(PolicyKind::Fifo, 2)).unwrap(), 0.2);
        assert_eq!(trace.hit_rate(&mut Optimal::new(&trace, 1)).unwrap(), 0.4);
    }

    #[test]
    fn the_policy_that_learns_does_well_at_all_capacities() {
        let trace = Trace::read(Path::new(SHIPPED)).unwrap();
        for (capacity, least) in
            CAPACITIES.into_iter().zip([0.105, 0.150, 0.216, 0.289, 0.345, 0.360])
        {
            let mut cache = ByPolicy::new(PolicyKind::Adaptive, trace.room(capacity));
            let rate = trace.hit_rate(&mut cache).unwrap();
            assert!(rate >= least, "{rate:.4} at {capacity}");
        }
    }

    #[test]
    fn files_that_are_no_trace_are_refused() {
        assert!(Trace::parse(&b""[..]).is_err());
        assert!(Trace::parse(&b"{\"hash_ids\":[]}"[..]).is_err());
        let error = Trace::parse(&b"{\"hash_ids\":[1]}\n{]"[..]).unwrap_err();
        assert!(error.to_string().starts_with("line 2:"), "{error}");
        let missing = TraceSource { path: Some("/nonexistent/trace".into()), plot: None };
        let mut report = Report::new(Vec::new(), true);
        assert!(run(Scale::Smoke, &missing, &mut report).is_err());
    }
}
