//! The secrets of a master, and the name of the history that began with them.

use core::fmt;
use core::str::FromStr;

use siphasher::sip::SipHasher24;

/// The secrets of a master that its successors need, too. `Debug` shows none of them.
///
/// They are drawn when a journal is new and passed on with it: all journals that have them hold the
/// same [history](Self::history).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// The seed of [`mc_meta::Master::new`].
    pub seed: u64,
    /// The secret of [`mc_meta::Master::with_secret`].
    pub secret: [u8; 16],
}

impl Identity {
    /// Returns the name of the history that began with these secrets. It tells nothing of them:
    /// SipHash-2-4 is a pseudo-random function of its key, which is the secret.
    #[must_use]
    pub fn history(&self) -> HistoryId {
        let message = [&b"history"[..], &self.seed.to_le_bytes()].concat();
        HistoryId(SipHasher24::new_with_key(&self.secret).hash(&message))
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Identity(..)")
    }
}

/// The name of a history: of all changes of a cluster's metadata since it was set up. A position in one
/// history says nothing about another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HistoryId(u64);

impl HistoryId {
    /// The history of this number.
    #[must_use]
    pub const fn new(id: u64) -> Self {
        Self(id)
    }

    /// Returns its number.
    #[must_use]
    pub const fn as_u64(self) -> u64 {
        self.0
    }
}

/// Sixteen hexadecimal digits.
impl fmt::Display for HistoryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for HistoryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HistoryId({self})")
    }
}

impl FromStr for HistoryId {
    type Err = core::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        u64::from_str_radix(text, 16).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_is_named_by_seed_and_secret() {
        let identity = Identity { seed: 1, secret: [7; 16] };
        let name = identity.history();
        assert_eq!(name, identity.history());
        assert_ne!(name, Identity { seed: 2, ..identity }.history());
        assert_ne!(name, Identity { secret: [8; 16], ..identity }.history());
        assert_eq!(name.to_string().parse(), Ok(name));
        assert_eq!(name.to_string().len(), 16);
    }
}
