//! One module for each suite.

pub(crate) mod alloc;
mod c2c;
mod events;
mod evict;
mod ha;
mod keys;
pub(crate) mod meta;
pub(crate) mod roles;
mod rpc;
mod segments;
pub(crate) mod store;
pub(crate) mod tier;
pub(crate) mod transport;

use std::io::Write;

pub(crate) use self::evict::TraceSource;
pub(crate) use self::rpc::LoadOptions;
pub(crate) use self::store::ReferenceOptions;
pub(crate) use self::tier::TierOptions;
use crate::error::BenchError;
use crate::figure::Report;
use crate::scale::Scale;

/// A group of figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Suite {
    /// The offset allocator.
    Alloc,
    /// The master's state machine.
    Meta,
    /// Eviction policies on a trace.
    Evict,
    /// The control protocol.
    Rpc,
    /// Moving bytes.
    Transport,
    /// Puts and gets.
    Store,
    /// Events for subscribers.
    Events,
    /// Conversion between models.
    C2c,
    /// Metadata that outlives the master.
    Ha,
    /// Storage below memory.
    Tier,
    /// Every suite.
    All,
}

/// The options of single suites.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) scale: Scale,
    pub(crate) trace: TraceSource,
    pub(crate) reference: ReferenceOptions,
    pub(crate) load: LoadOptions,
    pub(crate) tier: TierOptions,
}

impl Suite {
    const EACH: [Self; 10] = [
        Self::Alloc,
        Self::Meta,
        Self::Evict,
        Self::Rpc,
        Self::Transport,
        Self::Store,
        Self::Events,
        Self::C2c,
        Self::Ha,
        Self::Tier,
    ];

    /// The suites that stand behind what was named, in a fixed order, once each.
    pub(crate) fn expand(named: &[Self]) -> Vec<Self> {
        let all = named.contains(&Self::All);
        Self::EACH.into_iter().filter(|suite| all || named.contains(suite)).collect()
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Alloc => "alloc",
            Self::Meta => "meta",
            Self::Evict => "evict",
            Self::Rpc => "rpc",
            Self::Transport => "transport",
            Self::Store => "store",
            Self::Events => "events",
            Self::C2c => "c2c",
            Self::Ha => "ha",
            Self::Tier => "tier",
            Self::All => "all",
        }
    }

    /// Measures, and prints what was measured.
    pub(crate) fn run<W: Write>(
        self,
        options: &Options,
        report: &mut Report<W>,
    ) -> Result<(), BenchError> {
        report.begin(self.name());
        let scale = options.scale;
        let outcome = match self {
            Self::Alloc => alloc::run(scale, report),
            Self::Meta => meta::run(scale, report),
            Self::Evict => evict::run(scale, &options.trace, report),
            Self::Rpc => rpc::run(scale, &options.load, report),
            Self::Transport => transport::run(scale, report),
            Self::Store => store::run(scale, &options.reference, report),
            Self::Events => events::run(scale, report),
            Self::C2c => c2c::run(scale, report),
            Self::Ha => ha::run(scale, &options.load, report),
            Self::Tier => tier::run(scale, &options.tier, report),
            Self::All => Self::EACH.iter().try_for_each(|suite| suite.run(options, report)),
        };
        // What was measured before a failure is still true.
        outcome.and(report.end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suites_run_once_and_in_order() {
        use Suite::{All, Alloc, Meta, Store};
        assert_eq!(Suite::expand(&[Store, Alloc, Store]), [Alloc, Store]);
        assert_eq!(Suite::expand(&[Meta, All]), Suite::EACH);
    }
}
