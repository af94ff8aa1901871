//! Receipts: the effects that a reply depends on.

use mc_types::{SegmentId, Sequence};

use crate::effect::emit::dependencies_of;
use crate::master::Master;
use crate::tables::index::tag_of;
use crate::vocabulary::hash::HashedKey;

/// The result of commands, with the last effect that it depends on.
///
/// Everything up to this effect is what the reply shows or made: a change that the commands made, or
/// one of another command that they saw the result of. A get that finds an object names
/// the end of its put or a later effect, and one that finds none names the object's removal. That a put has
/// begun is not seen: it changes nothing that can be read. A reply must not leave a master whose journal is to survive it before the journal has made everything durable up to
/// this effect: otherwise a client learns of a change that is undone when another master takes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Receipt<T> {
    /// The result.
    pub value: T,
    /// The last effect that the result depends on. It may be a later one of another object, and never
    /// an earlier one. `None` when nothing was changed that a sink wants to know of, and nothing seen
    /// that has changed since the master began.
    pub sequence: Option<Sequence>,
}

impl Master {
    /// Executes commands, and returns with their result the number of the last effect that they
    /// had or saw. Without a sink there are no effects and no numbers, and this costs nothing. The
    /// sinks learn of the end of commands that had effects ([`EffectSink::executed`]), and not of those
    /// that only saw some.
    ///
    /// Commands that look for keys see the last effect of each key; a key may share it with others, of which
    /// master keeps one number. Commands that look at all objects (by pattern, or page by page) see
    /// the last effect of all. Commands that name no object, as a ping or a report of totals, see nothing.
    ///
    /// `commands` runs on this thread. Receipts may be nested: what the inner one depends on belongs
    /// to both. Commands of another master must not be among them.
    ///
    /// [`EffectSink::executed`]: crate::EffectSink::executed
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
        let (value, depends) = dependencies_of(|| commands(self));
        if let Some(last) = depends.last {
            effects.executed(last);
        }
        Receipt { value, sequence: depends.last.max(depends.seen) }
    }

    /// Returns the number of the last effect of all; 0 before the first one. Whatever a command
    /// has seen until now is the result of effects up to this one.
    #[must_use]
    pub fn last_sequence(&self) -> Sequence {
        self.effects.as_ref().map_or(Sequence::new(0), |effects| effects.last())
    }

    /// Notes that the command of this thread sees what has become of a key. Its shard is locked.
    pub(crate) fn see_key(&self, key: HashedKey<'_>) {
        if let Some(effects) = &self.effects {
            effects.see_key(tag_of(key.hash));
        }
    }

    /// Notes that the command of this thread sees what has become of a segment. The segments are locked.
    pub(crate) fn see_segment(&self, id: SegmentId) {
        if let Some(effects) = &self.effects {
            effects.see_segment(id);
        }
    }

    /// Notes that the command of this thread has seen any objects. Called when it has.
    pub(crate) fn see_all(&self) {
        if let Some(effects) = &self.effects {
            effects.see_all();
        }
    }
}
