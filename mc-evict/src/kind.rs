//! The policies by name.

use alloc::boxed::Box;
use core::error::Error;
use core::fmt;
use core::str::FromStr;

use crate::{Adaptive, EvictionPolicy, Fifo, Lru, Prefix, S3Fifo, Sieve, WTinyLfu};

/// The policies that there are, for programs that let their users choose one.
///
/// ```
/// use mc_evict::{Item, PolicyKind};
///
/// let kind: PolicyKind = "fifo".parse()?;
/// let mut policy = kind.build();
/// policy.insert(0, Item::new(0x9e37_79b9));
/// assert_eq!(policy.coldest(), Some(0));
/// # Ok::<(), mc_evict::UnknownPolicy>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PolicyKind {
    /// [`Adaptive`]: follows the rule that would have found most.
    #[default]
    Adaptive,
    /// [`Lru`]: least recently used.
    Lru,
    /// [`Fifo`]: first in, first out.
    Fifo,
    /// [`S3Fifo`]: three queues.
    S3Fifo,
    /// [`Sieve`]: a queue and a hand.
    Sieve,
    /// [`WTinyLfu`]: how often, and a window for what is new.
    WTinyLfu,
    /// [`Prefix`]: least recently used, leaves first.
    Prefix,
}

impl PolicyKind {
    /// Every kind, the default one first.
    pub const ALL: &[Self] = &[
        Self::Adaptive,
        Self::Lru,
        Self::Fifo,
        Self::S3Fifo,
        Self::Sieve,
        Self::WTinyLfu,
        Self::Prefix,
    ];

    /// The name of the kind, as [`FromStr`] reads it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Lru => "lru",
            Self::Fifo => "fifo",
            Self::S3Fifo => "s3_fifo",
            Self::Sieve => "sieve",
            Self::WTinyLfu => "w_tinylfu",
            Self::Prefix => "prefix",
            Self::Adaptive => "adaptive",
        }
    }

    /// An empty policy of this kind.
    #[must_use]
    pub fn build(self) -> Box<dyn EvictionPolicy> {
        match self {
            Self::Lru => Box::new(Lru::new()),
            Self::Fifo => Box::new(Fifo::new()),
            Self::S3Fifo => Box::new(S3Fifo::new()),
            Self::Sieve => Box::new(Sieve::new()),
            Self::WTinyLfu => Box::new(WTinyLfu::new()),
            Self::Prefix => Box::new(Prefix::new()),
            Self::Adaptive => Box::new(Adaptive::new()),
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for PolicyKind {
    type Err = UnknownPolicy;

    /// Reads a name of [`as_str`](Self::as_str).
    ///
    /// # Errors
    /// [`UnknownPolicy`] when it is none of them.
    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL.iter().copied().find(|kind| kind.as_str() == name).ok_or(UnknownPolicy {})
    }
}

/// A name that is no policy's; the message lists those that are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnknownPolicy {}

impl UnknownPolicy {
    /// A stable name for this error.
    #[must_use]
    pub const fn code(self) -> &'static str {
        "unknown_policy"
    }

    /// Returns whether the same name can be one later: no.
    #[must_use]
    pub const fn is_retryable(self) -> bool {
        false
    }
}

impl fmt::Display for UnknownPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no such eviction policy; there are")?;
        for (at, kind) in PolicyKind::ALL.iter().enumerate() {
            write!(f, "{} {kind}", if at == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl Error for UnknownPolicy {}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn every_kind_has_a_name_of_its_own() {
        for kind in PolicyKind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(*kind));
            assert!(kind.build().is_empty());
        }
        assert_eq!(PolicyKind::ALL[0], PolicyKind::default());
        for wrong in ["", "LRU", "lru ", "mru"] {
            let error = wrong.parse::<PolicyKind>().unwrap_err();
            assert!(error.to_string().contains("lru, fifo"), "{error}");
        }
    }
}
