//! The way of the bytes to each segment and back, and its rate.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use mc_cli::{cause_chain, duration};
use mc_rpc::SegmentReport;
use mc_store::{Client, ErrorCode, PutOutcome, ReplicateConfig};
use mc_types::{ByteSize, SplitMix64};
use tokio::time::timeout;

use super::findings::Findings;

/// Bytes of the value that is put into each segment, got and compared.
const VALUE: usize = 1 << 20;

/// Bytes of a value whose time is that of the calls alone.
const SMALL: usize = 8;

/// How long one segment may take for one value.
const PATIENCE: Duration = Duration::from_secs(5);

/// A way that moves fewer bytes in a second is slow, whatever its transport.
const FLOOR: f64 = 20e6;

/// Of so many segments, one below this part of the median is slow.
const MANY: usize = 3;
const PART: f64 = 0.25;

/// How often a way that looks slow is measured again: the best counts.
const ATTEMPTS: usize = 2;

/// Puts a value into each segment, gets and compares it.
pub(super) async fn look(findings: &mut Findings, client: &Client, segments: &[&SegmentReport]) {
    let mut values = Values { client, next: 0, random: SplitMix64::new(std::process::id().into()) };
    let (mut rates, mut full) = (Vec::new(), 0);
    for segment in segments {
        match values.try_one(segment, VALUE).await {
            Ok(Tried::NoRoom) => full += 1,
            Ok(Tried::There(time)) => rates.push((rate(time), *segment)),
            Err(Fault { found, advice }) => {
                let told = format!("{} at {}: {found}", segment.name, segment.endpoint);
                findings.fault("transfer", told, advice);
            }
        }
    }
    if full > 0 {
        let size = ByteSize::bytes(VALUE as u64);
        let told = format!("{full} of {} segments had no room for {size}", segments.len());
        let advice = "nothing is known of the way there: ask again with more room";
        findings.warn("transfer", told, advice);
    }
    // Segments of this host are reached without a network, and compared with each other.
    let of = |here| rates.iter().filter(move |(_, it)| is_here(it) == here).map(|(rate, _)| *rate);
    let (bound_here, bound_there) = (bound(of(true).collect()), bound(of(false).collect()));
    for (rate, segment) in &mut rates {
        let bound = if is_here(segment) { bound_here } else { bound_there };
        if *rate < bound {
            *rate = rate.max(values.measure(segment).await);
        }
        if *rate < bound {
            let (own, usual) = (per_second(*rate), per_second(bound));
            let told = format!("{} at {} moves {own}", segment.name, segment.endpoint);
            let advice = format!(
                "below {usual} it is far slower than the others, or than any usual network: look at this \
                 link (`ethtool`, `ip -s link`, `ping`) and at the load of that host"
            );
            findings.warn("slow link", told, advice);
        }
    }
    if let Some((rate, slowest)) = rates.iter().min_by(|(a, _), (b, _)| a.total_cmp(b)) {
        let told = format!(
            "{} of {} segments took and gave back {}; the slowest, {}, at {}",
            rates.len(),
            segments.len(),
            ByteSize::bytes(VALUE as u64),
            slowest.name,
            per_second(*rate)
        );
        findings.ok("transfer", told);
    }
}

/// The rate below which a way is slow, given those of all.
fn bound(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    let median = rates.get(rates.len() / 2).copied().unwrap_or_default();
    let of_others = if rates.len() >= MANY { PART * median } else { 0.0 };
    of_others.max(FLOOR)
}

/// Returns whether a segment is at an address of this host.
fn is_here(segment: &SegmentReport) -> bool {
    let address = segment.endpoint.address().parse::<SocketAddr>();
    // Only a host's own addresses can be bound.
    address.is_ok_and(|address| UdpSocket::bind((address.ip(), 0)).is_ok())
}

/// Bytes in a second of a value that went there and back in this time.
fn rate(time: Duration) -> f64 {
    2.0 * VALUE as f64 / time.as_secs_f64().max(1e-9)
}

fn per_second(rate: f64) -> String {
    format!("{:.1} MB/s", rate / 1e6)
}

/// Makes values, each under a key of its own.
struct Values<'c> {
    client: &'c Client,
    next: usize,
    random: SplitMix64,
}

/// How a value went there and back.
enum Tried {
    There(Duration),
    /// The segment has no room for it.
    NoRoom,
}

/// Why a value did not come back, and what to do.
struct Fault {
    found: String,
    advice: &'static str,
}

impl Fault {
    fn new(found: impl Into<String>) -> Self {
        let advice = "the port takes connections, so look at the node: its log names the cause";
        Self { found: found.into(), advice }
    }
}

impl Values<'_> {
    /// Puts so many bytes into a segment and gets them.
    async fn try_one(&mut self, segment: &SegmentReport, len: usize) -> Result<Tried, Fault> {
        let word = |_| self.random.next_u64().to_le_bytes();
        let value: Vec<u8> = (0..len.div_ceil(8)).flat_map(word).collect();
        let key = format!("mc-ctl doctor {} {}", std::process::id(), self.next);
        self.next += 1;
        let tried = timeout(PATIENCE, there_and_back(self.client, segment, &key, value)).await;
        // What is left of it goes by itself when room is needed.
        let _ = timeout(PATIENCE, self.client.remove(&key, true)).await;
        tried.unwrap_or_else(|_| {
            let advice = "the port takes connections, and the process does not answer: it is stopped, \
                          hangs, or its host is overloaded; or the link is far too slow";
            Err(Fault { found: format!("no end within {}", duration(PATIENCE)), advice })
        })
    }

    /// Measures a way without the time that calls take whatever they move; 0 when it fails.
    async fn measure(&mut self, segment: &SegmentReport) -> f64 {
        let Ok(Tried::There(calls)) = self.try_one(segment, SMALL).await else { return 0.0 };
        let mut best = 0.0_f64;
        for _ in 0..ATTEMPTS {
            if let Ok(Tried::There(time)) = self.try_one(segment, VALUE).await {
                // Calls may have taken longer just then: no more than half of the time is theirs.
                best = best.max(rate(time - calls.min(time / 2)));
            }
        }
        best
    }
}

/// Puts a value into a segment and gets it.
async fn there_and_back(
    client: &Client,
    segment: &SegmentReport,
    key: &str,
    value: Vec<u8>,
) -> Result<Tried, Fault> {
    let failed = |error: &dyn std::error::Error| Fault::new(cause_chain(error));
    let mut config = ReplicateConfig::default();
    config.preferred_segments = vec![segment.name.as_ref().into()];
    let (len, begun) = (value.len() as u64, Instant::now());
    let outcome = match client.put_with(key, value.clone(), &config).await {
        Ok(outcome) => outcome,
        Err(error) if is_full(error.code()) => return Ok(Tried::NoRoom),
        Err(error) => return Err(failed(&error)),
    };
    if outcome != PutOutcome::Stored {
        return Err(Fault::new(format!("the put of a new key is {outcome:?}")));
    }
    let found = client.get(key).await.map_err(|error| failed(&error))?;
    let took = begun.elapsed();
    let object = client.describe(key).await.map_err(|error| failed(&error))?;
    if !object.replicas.iter().any(|replica| replica.segment_name == segment.name) {
        // A client that does not reach a segment puts elsewhere, too.
        return match segment.largest_free < len {
            true => Ok(Tried::NoRoom),
            false => {
                Err(Fault::new("another segment had to take the value, though this one has room"))
            }
        };
    }
    match found == value {
        true => Ok(Tried::There(took)),
        false => Err(Fault::new("other bytes came back than were put")),
    }
}

const fn is_full(code: ErrorCode) -> bool {
    matches!(code, ErrorCode::Full | ErrorCode::Fragmented | ErrorCode::AllLeased)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_is_slow_beside_others_or_by_itself() {
        assert_eq!(bound(Vec::new()), FLOOR);
        assert_eq!(bound(vec![1e9, 1e3]), FLOOR, "two tell nothing of each other");
        assert_eq!(bound(vec![1e9, 2e8, 1e3, 1e9]), PART * 1e9);
        assert_eq!(bound(vec![3e7; 5]), FLOOR);
        assert_eq!(per_second(rate(Duration::from_millis(100))), "21.0 MB/s");
    }
}
