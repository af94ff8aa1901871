//! The arguments.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use mc_cli::UsageError;
use mc_sim::{Durability, Plan, Replication};

/// Runs whole clusters in a deterministic simulation and checks every invariant.
#[derive(Clone, Debug, clap::Parser)]
#[command(name = "mc-sim", version)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Run one simulation; one that fails is made small and shown
    Run(RunArgs),
    /// Run a simulation for each of many seeds, until one fails
    Soak(SoakArgs),
}

/// The size of a simulation.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct SizeArgs {
    /// Number of nodes; each contributes memory and runs applications
    #[arg(long, default_value_t = 8)]
    nodes: u32,
    /// Virtual minutes with load and faults; a few without follow
    #[arg(long, default_value_t = 10)]
    minutes: u64,
    /// Mean virtual milliseconds between the operations of a node
    #[arg(long, default_value_t = 100)]
    pace_ms: u64,
    /// When a change is acknowledged by masters with a journal, in place of what follows from the seed
    #[arg(long)]
    durability: Option<Durability>,
    /// When a change is acknowledged by one of several masters, in place of what follows from the seed
    #[arg(long)]
    replication: Option<Replication>,
}

impl SizeArgs {
    pub(crate) fn plan(self, seed: u64) -> Result<Plan, UsageError> {
        let time = Duration::from_secs(self.minutes.saturating_mul(60));
        let plan = Plan::new(seed, self.nodes, time, Duration::from_millis(self.pace_ms));
        let mut plan = plan.map_err(|error| UsageError::new(error.to_string()))?;
        plan.durability = self.durability.unwrap_or(plan.durability);
        plan.replication = self.replication.unwrap_or(plan.replication);
        Ok(plan)
    }
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct RunArgs {
    /// The seed that everything random follows from
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    #[command(flatten)]
    pub(crate) size: SizeArgs,
    /// A plan to run in place of the seed's, as a failure is shown
    #[arg(long, conflicts_with_all = ["seed", "nodes", "minutes", "pace_ms", "durability", "replication"])]
    pub(crate) plan: Option<PathBuf>,
    /// File that the history is written to, a line for each event
    #[arg(long)]
    pub(crate) history: Option<PathBuf>,
    /// Add a line for each effect of the master to the history
    #[arg(long)]
    pub(crate) effects: bool,
    /// Do not make a simulation that fails smaller
    #[arg(long)]
    pub(crate) no_shrink: bool,
    /// Seconds that making it smaller may take
    #[arg(long, default_value_t = 60)]
    shrink_seconds: u64,
    /// Print JSON, one object per line
    #[arg(long)]
    pub(crate) json: bool,
}

impl RunArgs {
    pub(crate) fn shrink_time(&self) -> Duration {
        Duration::from_secs(self.shrink_seconds)
    }
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct SoakArgs {
    /// The seeds, as FIRST..END; the last one is END - 1
    #[arg(long, default_value = "1..101", value_parser = parse_seeds)]
    pub(crate) seeds: Range<u64>,
    #[command(flatten)]
    pub(crate) size: SizeArgs,
    /// Seconds after which no further seed is begun
    #[arg(long)]
    pub(crate) seconds: Option<u64>,
    /// Go on after a simulation that failed
    #[arg(long)]
    pub(crate) keep_going: bool,
    /// Simulations at a time [default: one for each processor]
    #[arg(long)]
    pub(crate) threads: Option<NonZeroUsize>,
    /// Print JSON, one object per line
    #[arg(long)]
    pub(crate) json: bool,
}

fn parse_seeds(text: &str) -> Result<Range<u64>, String> {
    let bounds = text
        .split_once("..")
        .and_then(|(first, end)| Some(first.trim().parse().ok()?..end.trim().parse().ok()?));
    match bounds {
        Some(seeds) if !seeds.is_empty() => Ok(seeds),
        _ => {
            Err("expected FIRST..END, two whole numbers of which the second is greater".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_a_range_that_is_not_empty() {
        assert_eq!(parse_seeds("3..5"), Ok(3..5));
        for wrong in ["", "3", "5..3", "3..3", "a..b", "3..", "..3", "-1..2", "1..=2"] {
            assert!(parse_seeds(wrong).is_err(), "{wrong}");
        }
    }
}
