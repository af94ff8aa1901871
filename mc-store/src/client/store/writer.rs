//! The steps of a put that name no task: room from the master, bytes to the peers, the end of the put.

use std::sync::Arc;

use mc_meta::{MAX_AVOIDED_SEGMENTS, MAX_NAMED_SEGMENTS, PutEnd, PutHandle, ReplicateConfig};
use mc_rpc::{PutGrant, PutStartItem, Refusal, ReplicaLocation, RpcError};
use mc_tier::SliceInfo;
use mc_transport::{BootClock, BootTime, BufferPool};
use mc_types::{ErrorCode, Extent, RemoteKey};
use tokio::time::Instant;

use super::item::Item;
use super::limit::Limit;
use super::patience::Patience;
use crate::client::data::{LostLinks, Transfers};
use crate::client::master_link::MasterLink;
use crate::client::put::PutMode as Mode;
use crate::client::put_keys::PutsUnderWay;
use crate::client::reports::Reports;
use crate::client::segments::Segments;
use crate::client::tiers::Tiers;
use crate::client::tiers::shared::Pending;
use crate::error::{PeerError, PutError};

/// Placements that are tried at least when bytes cannot be written where the master said.
pub(super) const PLACEMENTS: u32 = 4;

/// Most segments that a put avoids: 16 bytes each in every call, while they are silent.
const AVOIDED: usize = 1024;

/// The parts of a client that writes need.
#[derive(Clone, Copy, Debug)]
pub(super) struct Writer<'c> {
    pub(super) link: &'c MasterLink,
    pub(super) transfers: &'c Transfers,
    pub(super) tiers: &'c Tiers,
    pub(super) segments: &'c Segments,
    pub(super) reports: &'c Reports,
    /// Memory that bytes are copied to.
    pub(super) pool: &'c BufferPool,
    pub(super) clock: BootClock,
}

impl Writer<'_> {
    /// `config` without the segments that could not be written a moment ago; `None` when there are
    /// none.
    pub(super) fn avoiding(&self, config: &ReplicateConfig) -> Option<ReplicateConfig> {
        let avoided = self.transfers.health.avoided_segments(AVOIDED);
        if avoided.is_empty() {
            return None;
        }
        let mut config = config.clone();
        // An older master knows names alone, and takes few.
        let free = MAX_NAMED_SEGMENTS.saturating_sub(config.excluded_segments.len());
        config.excluded_segments.extend(avoided.iter().take(free).map(|it| it.name.clone()));
        config.avoided_segments.extend(avoided.iter().map(|it| it.id));
        config.avoided_segments.truncate(MAX_AVOIDED_SEGMENTS);
        Some(config)
    }

    /// Asks for room. Items that are refused get their outcome here, unless they
    /// may wait on.
    pub(super) async fn start(
        &self,
        items: &mut [Item],
        open: &[usize],
        config: &ReplicateConfig,
        mode: Mode,
        under_way: &PutsUnderWay<'_>,
        patience: Patience,
    ) -> Result<Vec<Granted>, PutError> {
        let (asked, answers) = self.ask_for_room(items, open, config, mode, under_way).await?;
        let mut granted = Vec::with_capacity(open.len());
        for (&at, answer) in open.iter().zip(answers) {
            match answer {
                Ok(grant) => {
                    items[at].may_be_begun = false;
                    let until = asked + grant.time_left;
                    let got = grant.replicas.len();
                    if got < config.replica_num as usize {
                        self.reports.few_replicas(items[at].key.as_str(), got, config.replica_num);
                    }
                    let preferred = &config.preferred_segments;
                    let is_preferred =
                        |replica: &ReplicaLocation| preferred.contains(&replica.segment.name);
                    if let Some(first) = preferred.first()
                        && !grant.replicas.iter().any(is_preferred)
                    {
                        self.reports.not_preferred(items[at].key.as_str(), first);
                    }
                    granted.push(Granted { at, grant, until });
                }
                // What is there was damaged a moment ago, and may be gone soon.
                Err(refusal)
                    if refusal.code == ErrorCode::ObjectAlreadyExists
                        && Instant::now() < patience.deadline
                        && self.reports.is_doubtful(items[at].key.as_str()) => {}
                Err(refusal)
                    if refusal.code == ErrorCode::PutInProgress
                        && Instant::now() < patience.deadline
                        && items[at].may_be_begun => {}
                Err(refusal) => {
                    items[at].was_refused |= refusal.code != ErrorCode::Overloaded;
                    if let Some(outcome) = patience.refused(refusal) {
                        items[at].end(outcome);
                    }
                }
            }
        }
        Ok(granted)
    }

    /// Asks for room, and says when. Puts that a former master may have begun are begun anew: no
    /// writer has learnt where to write for the others. The master is told of those that are the only
    /// ones of their keys, so that it gives the others up.
    async fn ask_for_room(
        &self,
        items: &mut [Item],
        open: &[usize],
        config: &ReplicateConfig,
        mode: Mode,
        under_way: &PutsUnderWay<'_>,
    ) -> Result<(BootTime, Vec<Result<PutGrant, Refusal>>), RpcError> {
        let mut tries_left = PLACEMENTS;
        loop {
            let puts: Vec<PutStartItem<'_>> = open
                .iter()
                .enumerate()
                .map(|(nth, &at)| PutStartItem {
                    key: items[at].key.as_ref(),
                    slice_lengths: &items[at].lengths,
                    again: items[at].was_refused,
                    may_be_begun: items[at].may_be_begun && under_way.is_only(at),
                    parent: left_out_before(open, nth).map(|at| items[at].key.as_ref()),
                })
                .collect();
            // The master counts from later on.
            let asked = self.clock.now();
            let answers = match mode {
                Mode::Put => self.link.master.batch_put_start(self.link.id, config, &puts).await,
                Mode::Upsert => {
                    self.link.master.batch_upsert_start(self.link.id, config, &puts).await
                }
            };
            tries_left -= 1;
            match answers {
                Err(RpcError::Refused(refusal))
                    if refusal.code == ErrorCode::OutcomeUnknown && tries_left > 0 =>
                {
                    open.iter().for_each(|&at| items[at].may_be_begun = true);
                }
                answers => return Ok((asked, answers?)),
            }
        }
    }

    /// Writes every replica of every granted item.
    pub(super) async fn write(
        &self,
        items: &mut [Item],
        granted: Vec<Granted>,
        limit: &Limit,
    ) -> Vec<Written> {
        let mut jobs = Vec::with_capacity(granted.len());
        for Granted { at, grant, until } in &granted {
            let replicas = grant.replicas.iter().enumerate();
            let until = limit.of_grant(*until);
            jobs.extend(replicas.map(|(nth, replica)| items[*at].job(nth, replica, until)));
        }
        let peers = &self.transfers.health.peers;
        let mut results = self.transfers.transfer(jobs).await.into_iter();
        let is_over = limit.is_over();
        let mut written = Vec::with_capacity(granted.len());
        for Granted { at, grant, until } in granted {
            let (mut outcome, mut late) = (Ok(()), Vec::new());
            // All of this object's results are taken, also after a failure.
            for (replica, result) in grant.replicas.iter().zip(results.by_ref()) {
                match result {
                    Ok(done) => {
                        if !items[at].is_written(done) {
                            outcome = Err(Unfinished::Changed);
                        }
                    }
                    Err(failed) => {
                        let segment = &replica.segment;
                        if failed.error.is_refusal() {
                            peers.refuses(segment.id, &segment.name);
                        }
                        peers.holds(&segment.endpoint, segment.id, &segment.name);
                        self.reports.failed(segment.id, &segment.name, &failed.error);
                        outcome = outcome.and(Err(Unfinished::Peer(failed.error)));
                        late.extend(failed.late);
                    }
                }
            }
            if is_over {
                outcome = Err(Unfinished::GivenUp);
            } else if outcome.is_ok() && !items[at].add_up() {
                outcome = Err(Unfinished::Changed);
            }
            let first = grant.replicas.first().filter(|_| grant.file || self.tiers.has_unlisted());
            let file_of = first.map(|replica| (replica.segment.remote_key, replica.extent));
            written.push(Written { at, handle: grant.handle, until, outcome, file_of, late });
        }
        written
    }

    /// The file that is to be written of an object; `None` where it gets none.
    pub(super) fn file(&self, item: &Item, written: &Written) -> Option<Pending> {
        let (shared, replica) = (self.tiers.shared.as_ref()?, written.file_of?);
        let slices = item.lengths.iter().zip(item.checksums()?);
        let slices = slices.map(|(&len, &checksum)| SliceInfo { len, checksum }).collect();
        // What is in this client's own memory is read there.
        let is_own = self.segments.local(replica.0, replica.1).is_some();
        let bytes = shared.hold(&item.slices, (!is_own).then_some(self.pool));
        let (key, handle, until) = (item.key.clone(), written.handle, written.until);
        Some(Pending { key, handle, slices, replica, until, bytes })
    }

    pub(super) async fn end(
        &self,
        ends: &[PutEnd<'_>],
        mode: Mode,
    ) -> Result<Vec<Result<(), Refusal>>, RpcError> {
        match mode {
            Mode::Put => self.link.master.batch_put_end(self.link.id, ends).await,
            Mode::Upsert => self.link.master.batch_upsert_end(self.link.id, ends).await,
        }
    }
}

/// Returns the item before `open[nth]`, which that one continues, if the call that asks for room for
/// the open ones does not have it there.
fn left_out_before(open: &[usize], nth: usize) -> Option<usize> {
    let before = open[nth].checked_sub(1)?;
    let is_there = nth > 0 && open[nth - 1] == before;
    (!is_there).then_some(before)
}

/// An item that has space, until that time.
pub(super) struct Granted {
    pub(super) at: usize,
    pub(super) grant: PutGrant,
    pub(super) until: BootTime,
}

impl Granted {
    /// The item of a put that is revoked before anything of it is read.
    pub(super) fn unwritten(self) -> Written {
        let Self { at, grant, until } = self;
        let (outcome, late) = (Err(Unfinished::GivenUp), Vec::new());
        Written { at, handle: grant.handle, until, outcome, file_of: None, late }
    }
}

/// An item that was written, or not.
pub(super) struct Written {
    pub(super) at: usize,
    pub(super) handle: PutHandle,
    pub(super) until: BootTime,
    pub(super) outcome: Result<(), Unfinished>,
    /// The first replica of an object that is to have a file.
    pub(super) file_of: Option<(RemoteKey, Extent)>,
    /// Links that were lost with writes of it under way.
    pub(super) late: Vec<Arc<LostLinks>>,
}

/// Why a put that has space is revoked.
pub(super) enum Unfinished {
    /// The bytes could not be written.
    Peer(PeerError),
    /// The bytes that were written are not those of the call.
    Changed,
    /// Its caller has given it up, or its time limit has passed.
    GivenUp,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_continues_the_one_before_it_also_when_that_is_done() {
        let parents = |open: &[usize]| -> Vec<Option<usize>> {
            (0..open.len()).map(|nth| left_out_before(open, nth)).collect()
        };
        assert_eq!(parents(&[0, 1, 2]), [None; 3], "the order of the call says it");
        assert_eq!(parents(&[2, 3, 6]), [Some(1), None, Some(5)]);
    }
}
