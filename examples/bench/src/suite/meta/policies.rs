//! The cost of the default eviction policy, against LRU.

use std::io::Write;

use mc_evict::PolicyKind;
use mc_meta::{Master, MasterConfig};
use mc_types::Time;

use super::{KeyWriter, batch_gets, failed, master, put_pair};
use crate::cpu_clock::CpuClock;
use crate::error::BenchError;
use crate::figure::{Figure, Report};
use crate::scale::Scale;

/// Parts of each measurement. The masters take turns, part by part, so that the machine's moods meet
/// both alike.
const PARTS: u64 = 20;

/// Masters that are compared: of masters that are alike the one that is filled later is a little
/// slower, so there is one with LRU before and one after that with the default policy.
const MASTERS: usize = 3;

/// Keys of one call in `batch_get`.
const BATCH: u64 = 128;

/// Prints the rates of a master with the default policy as parts of those of one with LRU.
pub(super) fn run<W: Write>(scale: Scale, report: &mut Report<W>) -> Result<(), BenchError> {
    let count = scale.pick(4_000_000, 2_000_000, 20_000);
    for live in scale.pick(vec![1_000_000, 10_000_000], vec![1_000_000], vec![20_000]) {
        let kinds = [PolicyKind::Lru, PolicyKind::default(), PolicyKind::Lru];
        let mut masters = Vec::with_capacity(MASTERS);
        for eviction_policy in kinds {
            let mut config = MasterConfig::default();
            config.eviction_policy = eviction_policy;
            masters.push(master(config, 2 * live)?);
        }
        let mut keys = KeyWriter::new(0);
        // The first `live` ones are not measured.
        let mut put = |count: u64, first: u64| {
            ratio(&masters, |master, part| {
                for number in part * count / PARTS..(part + 1) * count / PARTS {
                    put_pair(master, Time::ORIGIN, &mut keys, first + number)?;
                }
                Ok(())
            })
        };
        put(live, 0)?;
        let put_ratio = put(live / 2, live)?;
        let get_ratio = ratio(&masters, |master, part| {
            let mut random = fastrand::Rng::with_seed(part);
            for _ in 0..count / PARTS {
                let list = master.get_replica_list(Time::ORIGIN, keys.key(random.u64(..live)));
                list.map_err(|error| failed("get_replica_list")(&error))?;
            }
            Ok(())
        })?;
        let batch_get_ratio =
            ratio(&masters, |master, _| batch_gets(master, live, count / PARTS / BATCH, BATCH))?;
        for (command, ratio) in
            [("put", put_ratio), ("get", get_ratio), ("batch_get", batch_get_ratio)]
        {
            let figure = Figure::new("policy_ratio", ratio, "ratio").with("command", command);
            let policy = PolicyKind::default().as_str();
            report.add(figure.with("policy", policy).with("live", live))?;
        }
    }
    Ok(())
}

/// The CPU time that `work` takes of masters with LRU over that of the one between them.
fn ratio(
    masters: &[Master],
    mut work: impl FnMut(&Master, u64) -> Result<(), BenchError>,
) -> Result<f64, BenchError> {
    let mut spent = [0.0; MASTERS];
    for part in 0..PARTS {
        for turn in 0..masters.len() {
            let at = (turn + part as usize) % masters.len();
            let clock = CpuClock::start();
            work(&masters[at], part)?;
            spent[at] += clock.nanos();
        }
    }
    let [before, own, after] = spent;
    Ok((before + after) / 2.0 / own)
}
