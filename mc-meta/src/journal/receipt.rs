//! The order of effects, and the receipts that name a command's last one.

use mc_types::Sequence;

use crate::journal::emit::last_of;
use crate::master::Master;

/// The result of commands, with the last effect that they had.
///
/// A reply must not leave a master whose journal is to survive it before the journal has made
/// everything durable up to this effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Receipt<T> {
    /// The result.
    pub value: T,
    /// The last effect; `None` when nothing changed that a sink wants to know of.
    pub sequence: Option<Sequence>,
}

impl Master {
    /// Executes commands, and returns with their result the number of the last effect that they
    /// had. Without a sink there are no effects and no numbers, and this costs nothing.
    ///
    /// `commands` runs on this thread. Receipts may be nested: effects of the inner one belong to
    /// both. Commands of another master must not be among them.
    ///
    /// ```
    /// use mc_meta::{Effect, EffectSink, Master, MasterConfig};
    /// use mc_types::{Sequence, Time};
    ///
    /// struct Journal;
    ///
    /// impl EffectSink for Journal {
    ///     fn emit(&self, _: Sequence, _: Time, _: &Effect<'_>) {
    ///         // Appends a record to a queue, which another thread writes to a disk.
    ///     }
    /// }
    ///
    /// let master = Master::new(MasterConfig::default(), 1)?.with_sink(Journal);
    /// let ticked = master.receipt(|master| master.tick(Time::ORIGIN));
    /// // Nothing was due.
    /// assert_eq!(ticked.sequence, None);
    /// # Ok::<(), mc_meta::ConfigError>(())
    /// ```
    pub fn receipt<T>(&self, commands: impl FnOnce(&Self) -> T) -> Receipt<T> {
        let Some(effects) = &self.effects else {
            return Receipt { value: commands(self), sequence: None };
        };
        let (value, sequence) = last_of(|| commands(self));
        if let Some(last) = sequence {
            effects.executed(last);
        }
        Receipt { value, sequence }
    }

    /// Returns the number of the last effect of all; 0 before the first one. Whatever a command
    /// has seen until now is the result of effects up to this one.
    #[must_use]
    pub fn last_sequence(&self) -> Sequence {
        self.effects.as_ref().map_or(Sequence::new(0), |effects| effects.last())
    }
}
