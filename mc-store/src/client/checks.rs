//! The second look at replicas that a reader reported as damaged: this client holds them in its memory
//! or on its disk, and compares their bytes with the checksums that the master has.

use mc_environment::Blocking;
use mc_meta::{ReplicaCheck, Slices, Verdict};
use mc_types::Extent;
use tracing::warn;

use super::checksums::match_checksums;
use super::disk_region::LocalDiskLook;
use super::segments::{Held, Segments};

/// Checks under way, and what those before them found. They run on a thread of their own, one
/// after the other, so that they take no more than that from the client; those of the disk on
/// another one, because a disk may hang.
#[derive(Debug, Default)]
pub(super) struct Checks {
    in_memory: Option<ChecksUnderWay>,
    on_disk: Option<ChecksUnderWay>,
    outcomes: Vec<(u64, Verdict)>,
}

type ChecksUnderWay = Blocking<Vec<(u64, Verdict)>>;

impl Checks {
    /// Whether the client has time for more.
    pub(super) const fn is_idle(&self) -> bool {
        self.in_memory.is_none()
    }

    /// Returns the outcomes that the master has not been told.
    pub(super) fn outcomes(&self) -> &[(u64, Verdict)] {
        &self.outcomes
    }

    /// The master has been told.
    pub(super) fn told(&mut self) {
        self.outcomes.clear();
    }

    /// Begins to look. Of the disk nothing is known while earlier checks of it have not ended.
    pub(super) fn begin(&mut self, segments: &Segments, checks: Vec<ReplicaCheck>) {
        if !self.is_idle() {
            return;
        }
        let disk = segments.disk().filter(|_| self.on_disk.is_none());
        let looks = checks.into_iter().map(|ReplicaCheck { id, segment, extent, slices }| {
            let at = match segment {
                Some(segment) => segments.held(segment, extent).map(At::Memory),
                None => disk.clone().map(|disk| At::Disk(disk, extent)),
            };
            Look { id, at, slices }
        });
        let (on_disk, in_memory): (Vec<Look>, Vec<Look>) =
            looks.partition(|look| matches!(look.at, Some(At::Disk(..))));
        let start = |looks: Vec<Look>| {
            let look = move || looks.iter().map(|look| (look.id, look.verdict())).collect();
            segments.environment().blocking(look)
        };
        if !in_memory.is_empty() {
            self.in_memory = Some(start(in_memory));
        }
        if !on_disk.is_empty() {
            self.on_disk = Some(start(on_disk));
        }
    }

    /// Waits until checks that are under way have ended; for ever when there are none.
    ///
    /// # Cancellation
    /// Nothing is lost.
    pub(super) async fn ended(&mut self) {
        let found = tokio::select! {
            biased;
            found = end_of(&mut self.in_memory) => found,
            found = end_of(&mut self.on_disk) => found,
        };
        self.outcomes.extend(found);
    }
}

async fn end_of(running: &mut Option<ChecksUnderWay>) -> Vec<(u64, Verdict)> {
    let Some(under_way) = running else { return std::future::pending().await };
    // There are none when the runtime ends, and the heartbeat with it.
    let found = under_way.await.and_then(Result::ok).unwrap_or_default();
    *running = None;
    found
}

/// A replica to look at.
struct Look {
    id: u64,
    /// `None` when this client does not hold it.
    at: Option<At>,
    slices: Slices,
}

enum At {
    Memory(Held),
    Disk(LocalDiskLook, Extent),
}

impl Look {
    fn verdict(&self) -> Verdict {
        let memory = match &self.at {
            Some(At::Memory(held)) => held.on_host().ok(),
            Some(At::Disk(disk, extent)) => return disk.look(*extent, &self.slices),
            None => None,
        };
        // What cannot be looked at, because its device fails, may be intact.
        let Some(memory) = memory else { return Verdict::Unknown };
        let sums = self.slices.as_slice().iter().map(|slice| (slice.len, slice.checksum));
        if match_checksums(std::slice::from_ref(&memory), sums) {
            return Verdict::Intact;
        }
        warn!(bytes = memory.len(), "this client holds a damaged replica; its memory may be bad");
        Verdict::Damaged
    }
}
