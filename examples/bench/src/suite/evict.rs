//! Eviction policies on a trace of requests to a language model, and on requests that
//! are made up to be hard for one policy or another.
//!
//! A block counts as a hit if it and all before it in its request are cached:
//! prefill can only skip a prefix. Every block of a request is then accessed, and
//! missing ones are inserted.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use mc_evict::{EvictionPolicy, Handle, Item, PolicyKind, Verdict};
use mc_types::SplitMix64;
use serde::Deserialize;

use crate::error::BenchError;
use crate::figure::{Figure, Report};
use crate::scale::Scale;

// The same requests as in the tests of mc-evict.
#[path = "../../../../mc-evict/tests/workload/mod.rs"]
mod workload;

use self::workload::Workload;

/// The policy by which the master evicts.
const DEFAULT: PolicyKind = PolicyKind::Lru;

/// Parts of all different blocks that the cache holds.
const CAPACITIES: [f64; 6] = [0.01, 0.02, 0.05, 0.1, 0.2, 0.4];

/// The same for requests that are made up.
const FEW_CAPACITIES: [f64; 3] = [0.05, 0.1, 0.4];

/// The trace that comes with the project, where this program was built.
const SHIPPED: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../replay/data/conversation_trace.jsonl.gz");

/// Longest line of a trace in bytes.
const MAX_LINE: u64 = 16 << 20;

/// Which trace to replay.
#[derive(Clone, Debug, Default)]
pub(crate) struct TraceSource {
    /// A file of JSON lines, perhaps compressed with gzip; `None` for the shipped
    /// one.
    pub(crate) path: Option<PathBuf>,
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
    let trace = scale.pick(trace.clone(), trace.clone(), trace.first(500));
    let name =
        path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let name = name.trim_end_matches(".gz").trim_end_matches(".jsonl");
    for capacity in CAPACITIES {
        let room = trace.room(capacity);
        let optimal = trace.hit_rate(&mut Optimal::new(&trace, room))?;
        let mut add = |policy: &str, value: f64| {
            let figure = Figure::new("prefix_hit", value, "ratio").with("capacity", capacity);
            let figure = figure.with("policy", policy).with("trace", name);
            report.add(if policy == "optimal" { figure } else { figure.versus("optimal", optimal) })
        };
        for kind in PolicyKind::ALL {
            let value = trace.hit_rate(&mut ByPolicy::new(*kind, room))?;
            if *kind == DEFAULT {
                add("default", value)?;
            }
            add(kind.as_str(), value)?;
        }
        add("optimal", optimal)?;
    }
    made_up(scale, report)
}

/// Compares the policy that learns with LRU, where LRU is good and where it is bad.
fn made_up<W: Write>(scale: Scale, report: &mut Report<W>) -> Result<(), BenchError> {
    let accesses = scale.pick(300_000, 60_000, 3_000);
    let mut least = f64::INFINITY;
    for workload in Workload::all(1, accesses) {
        let Workload { name, requests, unique } = workload;
        let trace = Trace { requests, unique };
        for capacity in FEW_CAPACITIES {
            let room = trace.room(capacity);
            let lru = trace.hit_rate(&mut ByPolicy::new(PolicyKind::Lru, room))?;
            let adaptive = trace.hit_rate(&mut ByPolicy::new(PolicyKind::Adaptive, room))?;
            least = least.min(adaptive - lru);
            let figure = |policy: &str, value| {
                let figure = Figure::new("made_up_hit", value, "ratio").with("capacity", capacity);
                figure.with("policy", policy).with("trace", name)
            };
            report.add(figure("lru", lru))?;
            // LRU finds nothing in a loop, so there is no ratio.
            let rival = (lru > 0.0).then_some(lru);
            report.add(figure("adaptive", adaptive).maybe_versus("lru", rival))?;
        }
    }
    report.add(Figure::new("adaptive_minus_lru_min", least, "ratio").with("accesses", accesses))
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
            let mut before = None;
            for block in request {
                cache.access(*block, before)?;
                before = Some(*block);
            }
        }
        Ok(hits as f64 / blocks as f64)
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
    policy: Box<dyn EvictionPolicy + Send>,
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
        let accesses: Vec<Handle> = trace.requests.iter().flatten().copied().collect();
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
            CAPACITIES.into_iter().zip([0.100, 0.140, 0.210, 0.285, 0.343, 0.360])
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
        let missing = TraceSource { path: Some("/nonexistent/trace".into()) };
        let mut report = Report::new(Vec::new(), true);
        assert!(run(Scale::Smoke, &missing, &mut report).is_err());
    }
}
