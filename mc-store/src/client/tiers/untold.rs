//! Objects that were evicted from a tier, of which the master is still to be told.

use std::collections::VecDeque;

use mc_meta::ReplicaKind;
use mc_rpc::RpcError;
use mc_tier::ObjectId;
use parking_lot::Mutex;

use super::work::DELETIONS;
use crate::client::core::Core;

/// Objects that wait to be told at most. Readers find out of the others.
const MOST: usize = 1 << 18;

/// Evicted objects, in the order of their evictions.
#[derive(Debug, Default)]
pub(super) struct Untold(Mutex<VecDeque<ObjectId>>);

impl Untold {
    /// Notes evicted objects.
    pub(super) fn note(&self, evicted: impl Iterator<Item = ObjectId>) {
        let mut untold = self.0.lock();
        let room = MOST.saturating_sub(untold.len());
        untold.extend(evicted.take(room));
    }

    fn take(&self) -> Vec<ObjectId> {
        let mut untold = self.0.lock();
        let count = untold.len().min(DELETIONS);
        untold.drain(..count).collect()
    }

    fn put_back(&self, ids: Vec<ObjectId>) {
        let mut untold = self.0.lock();
        ids.into_iter().rev().for_each(|id| untold.push_front(id));
    }
}

impl Core {
    /// Tells the master of objects that were evicted. What it could not be told waits for the next time.
    pub(super) async fn tell_untold(
        &self,
        untold: &Untold,
        kind: ReplicaKind,
    ) -> Result<(), RpcError> {
        loop {
            let part = untold.take();
            if part.is_empty() {
                return Ok(());
            }
            if let Err(error) = self.tell_evicted(&part, kind).await {
                untold.put_back(part);
                return Err(error);
            }
        }
    }
}
