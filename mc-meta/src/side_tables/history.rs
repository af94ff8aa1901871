//! The latest events of the keys of one shard: which objects went and why, and which puts were refused.

use core::time::Duration;
use std::collections::VecDeque;

use mc_types::{ErrorCode, Generation, Time};

use crate::vocabulary::removal::Removal;

/// Removals and refusals that each shard remembers.
const REMEMBERED: usize = 256;

/// An event of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyEvent {
    /// The time since then.
    pub ago: Duration,
    /// The event, with its data.
    pub kind: KeyEventKind,
}

/// The kind of an event of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyEventKind {
    /// An object of this key is gone.
    Removed {
        /// The put that the object came from.
        generation: Generation,
        /// Why.
        cause: Removal,
    },
    /// A put of the key was refused.
    Refused {
        /// The cause's number.
        code: ErrorCode,
    },
}

/// The latest happenings of one shard. Keys are told apart by 32 bits of their hash, so
/// once in millions of questions a happening is another key's.
#[derive(Debug, Default)]
pub(crate) struct History {
    latest: VecDeque<(u32, Time, KeyEventKind)>,
}

impl History {
    pub(crate) fn add(&mut self, tag: u32, at: Time, kind: KeyEventKind) {
        if self.latest.len() == REMEMBERED {
            self.latest.pop_back();
        }
        self.latest.push_front((tag, at, kind));
    }

    pub(crate) fn of(&self, tag: u32, now: Time) -> Vec<KeyEvent> {
        let own = self.latest.iter().filter(|(other, ..)| *other == tag);
        own.map(|&(_, at, kind)| KeyEvent { ago: now - at, kind }).collect()
    }
}
