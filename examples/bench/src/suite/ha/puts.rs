//! Puts at a master with a journal beside one without.

use std::io::Write;
use std::time::Duration;

use super::super::rpc::{Load, LoadOptions, Operation};
use super::super::store::{Keeping, MasterAddress, MasterTask};
use crate::error::BenchError;
use crate::figure::{Figure, Report};
use crate::placement::Placement;
use crate::process::Peer;
use crate::scale::Scale;

/// Calls in flight of each caller.
const IN_FLIGHT: u32 = 64;

/// How each master keeps what it does; the first one is the measure.
const MODES: [(&str, Option<Keeping>); 3] =
    [("none", None), ("async", Some(Keeping::Async)), ("sync", Some(Keeping::Sync))];

/// Prints the rates of puts with a journal as parts of the rate without, in interleaved rounds.
pub(super) fn run<W: Write>(
    scale: Scale,
    options: &LoadOptions,
    report: &mut Report<W>,
) -> Result<(), BenchError> {
    let rounds = scale.pick(7, 3, 1);
    let time = Duration::from_secs_f64(scale.pick(3.0, 1.0, 0.05));
    let directory = tempfile::tempdir()?;
    let mut masters = Vec::new();
    for (name, keeping) in MODES {
        let task = MasterTask::at(Placement::Free);
        let task = match keeping {
            Some(keeping) => task.kept(directory.path().join(name), keeping),
            None => task,
        };
        masters.push(Peer::start::<_, MasterAddress>(&task)?);
    }
    for operation in [Operation::Put, Operation::BatchPut] {
        let load = Load::of(operation, options, time);
        let load = if operation.is_batch() { load.in_flight(4) } else { load.in_flight(IN_FLIGHT) };
        let mut rates = [const { Vec::new() }; MODES.len()];
        for _ in 0..rounds {
            for ((_, said), rates) in masters.iter().zip(&mut rates) {
                let outcome = load.run(&said.master.to_string(), Placement::Free)?;
                rates.push((outcome.calls * load.keys_per_call()) as f64 / outcome.seconds);
            }
        }
        let [none, kept @ ..] = rates.map(median);
        for ((mode, _), rate) in MODES[1..].iter().zip(kept) {
            let figure = Figure::new("journal_put_ratio", rate / none, "").with("mode", *mode);
            let figure = figure.with("operation", operation.figures().0).with("rounds", rounds);
            report.add(figure.with("puts_per_s", rate.round()).with("without", none.round()))?;
        }
    }
    Ok(())
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}
