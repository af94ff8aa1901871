//! Segments that clients could not reach: nothing is placed there until their nodes have
//! answered.
//!
//! A dead node counts as alive until its time is over, and meanwhile the free space in its
//! segments attracts puts: more and more, the fuller the others are. So clients tell which
//! segments they could not reach. A segment is suspect when two sources say so, or one does and
//! the node's heartbeat is late; its next heartbeat clears it. One reporter alone, whatever it
//! says, takes nothing from a node whose heartbeat is on time, and the last segment that takes
//! new objects is never taken away. A node that finds its own data path dead says so with
//! its heartbeat, and is believed at once. One that has never reached itself may be at an address
//! that no client reaches: there, one reporter is believed for a minute, whatever the heartbeat.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use mc_types::{ClientId, SegmentId, Time};
use smallvec::SmallVec;

use crate::side_tables::credits::Credits;
use crate::vocabulary::metrics::Totals;

/// Segments that are doubted at a time.
pub(crate) const MAX_DOUBTS: usize = 16_384;

/// Segments that one tick takes from those that take new objects; the others wait for the next.
pub(crate) const AT_A_TIME: usize = 64;

/// How long a report about a node that has never reached itself is believed. Then one put may find
/// out whether it still holds.
pub(crate) const TRIAL_AFTER: Duration = Duration::from_secs(60);

/// Most reporters of one segment that are remembered.
pub(crate) const MAX_WITNESSES: usize = 4;

#[derive(Debug)]
pub(crate) struct Doubt {
    pub(crate) client: ClientId,
    pub(crate) witnesses: SmallVec<[u64; 2]>,
    pub(crate) is_suspect: bool,
    /// Its own node says that it cannot be reached.
    pub(crate) is_declared: bool,
    pub(crate) since: Time,
}

impl Doubt {
    pub(crate) fn of(client: ClientId, since: Time) -> Self {
        let witnesses = SmallVec::new();
        Self { client, witnesses, is_suspect: false, is_declared: false, since }
    }
}

/// Segments that were reported since their nodes were last heard of. Locked after the clients
/// and the segment table.
#[derive(Debug, Default)]
pub(crate) struct Suspicion {
    pub(crate) doubts: BTreeMap<SegmentId, Doubt>,
    pub(crate) by_client: BTreeMap<ClientId, SmallVec<[SegmentId; 1]>>,
    /// Nodes with segments that have never reached themselves, by their last heartbeats.
    pub(crate) unproven: BTreeSet<ClientId>,
    pub(crate) credits: Credits,
    pub(crate) totals: Totals,
}

impl Suspicion {
    pub(crate) const fn totals(&self) -> Totals {
        self.totals
    }

    pub(crate) fn take(&mut self, id: SegmentId) -> Option<Doubt> {
        let doubt = self.doubts.remove(&id)?;
        if let Some(own) = self.by_client.get_mut(&doubt.client) {
            own.retain(|other| *other != id);
            if own.is_empty() {
                self.by_client.remove(&doubt.client);
            }
        }
        self.totals.suspicion_suspects -= u64::from(doubt.is_suspect);
        Some(doubt)
    }
}
