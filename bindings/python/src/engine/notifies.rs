//! Notifies that peers have sent, until the program takes them.

use std::collections::VecDeque;

use parking_lot::Mutex;

use super::protocol::Notify;

/// The most notifies that wait for the program.
const MAX_NOTIFIES: usize = 65_536;

/// The most bytes of their texts.
const MAX_BYTES: usize = 64 << 20;

/// Notifies in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Inbox(Mutex<WaitingNotifies>);

#[derive(Debug, Default)]
struct WaitingNotifies {
    notifies: VecDeque<Notify>,
    bytes: usize,
}

impl Inbox {
    /// Keeps a notify; returns whether there was room for it.
    pub(super) fn push(&self, notify: Notify) -> bool {
        let len = notify.name.len() + notify.message.len();
        let mut waiting = self.0.lock();
        if waiting.notifies.len() >= MAX_NOTIFIES || waiting.bytes + len > MAX_BYTES {
            return false;
        }
        waiting.bytes += len;
        waiting.notifies.push_back(notify);
        true
    }

    /// Takes all notifies.
    pub(super) fn take(&self) -> VecDeque<Notify> {
        std::mem::take(&mut *self.0.lock()).notifies
    }
}
