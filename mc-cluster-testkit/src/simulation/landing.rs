//! A write at the node that owns the memory: let in once, and landing in parts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use mc_transport::{
    Access, Admitted, LinkId, Operation, Outcome, RegionTable, RemoteSpan, SliceSums, Source, Sums,
    TransferError, Transferred, checksum,
};
use tokio::time::{Instant, sleep_until};

use super::ledger::{Ledger, Owner};
use super::network::{Network, Process};
use super::transport::lost_link;

/// One write of so many lands in parts, and one of so many parts is long in coming.
const PARTED: u64 = 8;
const LONG: u64 = 8;

/// The longest pause between two parts of a write: its sender, or what lies between, stands still.
const LONGEST: Duration = Duration::from_secs(12);

/// How often a node that waits for the next part looks whether it is to end the write.
const LOOK: Duration = Duration::from_millis(20);

/// The node that a write goes to.
#[derive(Clone)]
pub(super) struct Landing {
    pub(super) regions: RegionTable,
    pub(super) peer: Process,
    pub(super) network: Arc<Network>,
    pub(super) ledger: Arc<Ledger>,
    /// The link that the write came by.
    pub(super) link: LinkId,
    /// Set when the sender has lost the link: it holds nothing back any more.
    pub(super) is_lost: Arc<AtomicBool>,
}

/// The bytes of a write.
pub(super) fn bytes_of(from: &[Source]) -> Bytes {
    let mut bytes = BytesMut::new();
    for piece in from {
        match piece {
            Source::Bytes(piece) => bytes.extend_from_slice(piece),
            Source::Memory(piece) => bytes.extend_from_slice(&piece.to_vec()),
        }
    }
    bytes.freeze()
}

impl Landing {
    /// Lands a write whose place was `owner`'s when it was sent. The node lets it in now, by its ticket,
    /// and each part checks at its own moment that it may still touch the memory.
    pub(super) async fn land(&self, write: &Operation, owner: Option<Owner>) -> Outcome {
        write.validate()?;
        let Operation::Write { from, to, sums } = write else {
            unreachable!("only writes land in parts");
        };
        let (sources, remote) = (from.iter().cloned().collect::<Vec<_>>(), *to);
        let bytes = bytes_of(&sources);
        let (offset, len) = (remote.extent.offset(), remote.extent.len());
        let ticket = remote.ticket.as_ref();
        let admitted = self.regions.admit(remote.key, offset, len, Access::Write, ticket)?;
        let mut at = 0;
        for (end, pause) in self.parts(bytes.len()) {
            self.wait(&admitted, pause).await?;
            self.land_part(&admitted, remote, &bytes[at..end], at)?;
            let part = remote.part(at as u64, (end - at) as u64).expect("a part of the write");
            self.ledger.written(part.key, part.extent, owner);
            at = end;
        }
        Ok(match sums {
            Sums::Whole => Transferred::new(Some(checksum(&bytes))),
            Sums::Slices => Transferred::with_slices(SliceSums::of(&sources)),
            _ => Transferred::default(),
        })
    }

    fn land_part(
        &self,
        admitted: &Admitted,
        remote: RemoteSpan,
        bytes: &[u8],
        at: usize,
    ) -> Result<(), TransferError> {
        if self.peer.ended().is_some() || self.peer.has_fenced(self.link) {
            return Err(lost_link());
        }
        if !self.is_lost.load(Relaxed) {
            remote.check_time()?;
        }
        admitted.check()?;
        admitted.memory().copy_from(at, bytes).expect("the memory has the length of the write");
        Ok(())
    }

    /// The parts in which a write lands: where each ends, and the pause before it.
    fn parts(&self, len: usize) -> Vec<(usize, Duration)> {
        let random = self.network.random();
        let mut parts = Vec::new();
        if random.below(PARTED) == 0 {
            let mut at = 0;
            for _ in 0..1 + random.below(3) {
                at += random.below((len - at) as u64 + 1) as usize;
                parts.push(at);
            }
        }
        parts.push(len);
        let mut pause = Duration::ZERO;
        let with_pause = |end| {
            let before = pause;
            let longest = if random.below(LONG) == 0 { LONGEST } else { LOOK };
            pause = Duration::from_millis(random.below(longest.as_millis() as u64 + 1));
            (end, before)
        };
        parts.into_iter().map(with_pause).collect()
    }

    /// Waits for the next part, or until the write is to end.
    async fn wait(&self, admitted: &Admitted, pause: Duration) -> Result<(), TransferError> {
        let until = Instant::now() + pause;
        while Instant::now() < until {
            sleep_until(until.min(Instant::now() + LOOK)).await;
            sleep_until(self.peer.runs_at(Instant::now())).await;
            admitted.check()?;
        }
        Ok(())
    }
}
