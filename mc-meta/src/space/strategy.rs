//! How segments are chosen for new objects.

use core::fmt;
use core::str::FromStr;

/// In which order segments are tried for the replicas of an object. The segments that
/// the writer prefers come first with every strategy; replicas go to distinct segments,
/// and to distinct hosts where that is possible.
///
/// Written as [`FromStr`] reads it: `random`, `round_robin`, `free_ratio_first`,
/// `least_fragmented`, `local_first`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AllocationStrategy {
    /// Any, evenly.
    #[default]
    Random,
    /// One after the other.
    RoundRobin,
    /// The segment of a random sample with the highest part of its bytes free.
    FreeRatioFirst,
    /// The segment of a random sample with the largest free region.
    LeastFragmented,
    /// The segments on the writer's host, then any. The host is that of the segments that the
    /// writer itself contributes; a writer without segments has no near ones.
    LocalFirst,
}

impl AllocationStrategy {
    /// Every strategy.
    pub const ALL: [Self; 5] = [
        Self::Random,
        Self::RoundRobin,
        Self::FreeRatioFirst,
        Self::LeastFragmented,
        Self::LocalFirst,
    ];

    /// Its name in settings.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::RoundRobin => "round_robin",
            Self::FreeRatioFirst => "free_ratio_first",
            Self::LeastFragmented => "least_fragmented",
            Self::LocalFirst => "local_first",
        }
    }
}

impl fmt::Display for AllocationStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for AllocationStrategy {
    type Err = UnknownStrategy;

    fn from_str(name: &str) -> Result<Self, UnknownStrategy> {
        Self::ALL.into_iter().find(|strategy| strategy.as_str() == name).ok_or(UnknownStrategy)
    }
}

/// No allocation strategy has the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("choose random, round_robin, free_ratio_first, least_fragmented or local_first")]
pub struct UnknownStrategy;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strategies_are_known_by_their_names() {
        for strategy in AllocationStrategy::ALL {
            assert_eq!(strategy.to_string().parse(), Ok(strategy));
            assert!(UnknownStrategy.to_string().contains(strategy.as_str()));
        }
        assert_eq!("best".parse::<AllocationStrategy>(), Err(UnknownStrategy));
    }
}
