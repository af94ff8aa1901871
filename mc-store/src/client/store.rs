//! How objects are stored: room from the master, bytes to the peers, then the object is
//! readable.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mc_meta::{LateWrites, MAX_NAMED_SEGMENTS, PutEnd, PutHandle, ReplicateConfig};
use mc_rpc::{PutGrant, PutRevokeItem, PutStartItem, Refusal, ReplicaLocation, RpcError};
use mc_tier::SliceInfo;
use mc_transport::{BootTime, CHECKPOINT, Operation, RemoteSpan, SliceSums, Source, Transferred};
use mc_types::{BoxFuture, Checksum, ErrorCode, Extent, ObjectKey, RemoteKey, StoreEventInfo};
use tokio::time::Instant;

use super::core::Core;
use super::data::{Job, LostLinks};
use super::put::{Put, PutMode as Mode, PutOutcome};
use super::put_keys::PutsUnderWay;
use super::settle::Unsettled;
use super::tiers::shared::Pending;
use super::unstoppable::Unstoppable;
use super::{Client, ClientOperation};
use crate::error::{PeerError, PutError};

/// Placements tried when bytes cannot be written where the master said.
const PLACEMENTS: u32 = 4;

/// The first pause of a put that waits for room; each is twice the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// Objects asked room for in one call. Larger batches are divided, so that the
/// first objects of a batch that exceeds the pool can make room for its last.
const CHUNK: usize = 1024;

/// Bytes of the ends of puts in one call, unless a single end has more: a master accepts at least
/// four times as many in its default settings.
const MAX_END_BYTES: usize = 4 << 20;

impl Client {
    pub(super) fn store<'a>(
        &'a self,
        puts: Vec<Put<'a>>,
        config: &'a ReplicateConfig,
        mode: Mode,
        operation: ClientOperation,
    ) -> BoxFuture<'a, Vec<Result<PutOutcome, PutError>>> {
        Box::pin(async move {
            if let Err(why) = self.core.request() {
                return puts.iter().map(|_| Err(why.into())).collect();
            }
            let timed = self.core.metrics.start(operation);
            let (items, outcomes) = items_of(puts);
            let items = self.core.store_items(items, config, mode, true).await;
            let invalid = outcomes.iter().flatten().map(|error| Err(error.code()));
            timed.ended(items.iter().map(Item::tally).chain(invalid));
            in_order(outcomes, items)
        })
    }
}

/// The outcomes of puts, of which those without one here are items.
fn in_order(
    outcomes: Vec<Option<PutError>>,
    items: Vec<Item>,
) -> Vec<Result<PutOutcome, PutError>> {
    let done = "only work that was abandoned leaves an object without an outcome";
    let mut stored = items.into_iter().map(|item| item.outcome.expect(done));
    let one_each = "every valid put is an item";
    let outcome = |invalid: Option<PutError>| match invalid {
        Some(error) => Err(error),
        None => stored.next().expect(one_each),
    };
    outcomes.into_iter().map(outcome).collect()
}

/// The valid puts, and for each put why it is not among them.
fn items_of(puts: Vec<Put<'_>>) -> (Vec<Item>, Vec<Option<PutError>>) {
    let mut outcomes = Vec::with_capacity(puts.len());
    let mut items = Vec::with_capacity(puts.len());
    for put in puts {
        match Item::new(put) {
            Ok(item) => {
                items.push(item);
                outcomes.push(None);
            }
            Err(error) => outcomes.push(Some(error)),
        }
    }
    (items, outcomes)
}

/// An object on its way.
struct Item {
    key: ObjectKey,
    slices: Vec<Source>,
    lengths: Vec<u64>,
    event_info: Option<Arc<StoreEventInfo>>,
    /// The slices' checksums and prefixes, once they are known.
    sums: Option<Sums>,
    outcome: Option<Result<PutOutcome, PutError>>,
    placements: u32,
    /// Whether it was refused for lack of space, which the master has counted.
    was_refused: bool,
    /// Whether a former master may have begun it, without an answer: nobody can end that put. The one
    /// that leads gives it up when it is asked to; until then it keeps the key.
    may_be_begun: bool,
}

impl Item {
    /// # Errors
    /// [`PutError::Key`], [`PutError::EventInfo`].
    fn new(put: Put<'_>) -> Result<Self, PutError> {
        put.check_info()?;
        let Put { key, mut slices, event_info } = put;
        // An object has none; a caller's parts may happen to be empty.
        slices.retain(|slice| !slice.is_empty());
        Ok(Self {
            key: ObjectKey::new(key)?,
            lengths: slices.iter().map(|slice| slice.len() as u64).collect(),
            slices,
            event_info,
            sums: None,
            outcome: None,
            placements: 0,
            was_refused: false,
            may_be_begun: false,
        })
    }

    /// The bytes that were stored, or why none were, for the metrics.
    fn tally(&self) -> Result<u64, ErrorCode> {
        match &self.outcome {
            Some(Ok(PutOutcome::Stored)) => Ok(self.lengths.iter().sum()),
            Some(Ok(_)) => Ok(0),
            Some(Err(error)) => Err(error.code()),
            None => Err(ErrorCode::Internal),
        }
    }

    /// Takes the checksums, if they were not taken on the way.
    fn add_up(&mut self) {
        self.sums.get_or_insert_with(|| Sums::Slices(Arc::new(SliceSums::of(&self.slices))));
    }

    /// Whether its only checksum is that of all its bytes.
    fn has_one_sum(&self) -> bool {
        matches!(self.lengths[..], [len] if len <= CHECKPOINT)
    }

    /// What makes the object readable, once it is added up and written.
    fn end(&self, handle: PutHandle) -> PutEnd<'_> {
        let sums = self.sums.as_ref().expect("what was written is added up");
        let (checksums, prefixes) = sums.as_slices();
        let event_info = self.event_info.as_deref();
        PutEnd { key: self.key.as_ref(), handle, checksums, prefixes, event_info }
    }

    /// Writes a replica; of the first the checksums are taken on the way.
    fn job(&self, nth: usize, replica: &ReplicaLocation, until: BootTime) -> Job {
        let to = RemoteSpan::new(replica.segment.remote_key, replica.extent)
            .with_ticket(replica.ticket)
            .until(until);
        let operation = match self.slices.as_slice() {
            [slice] => Operation::write(slice.clone(), to),
            slices => Operation::write(slices.to_vec(), to),
        };
        let is_summed = nth == 0 && self.sums.is_none();
        let operation = match is_summed {
            true if self.has_one_sum() => operation.checksummed(),
            true => operation.checkpointed(),
            false => operation,
        };
        Job { endpoint: replica.segment.endpoint.clone(), operation, may_move_on: false }
    }
}

/// Checksums of an object's slices, and their prefixes.
enum Sums {
    /// Of an object with one slice that has no prefixes.
    Whole(Checksum),
    Slices(Arc<SliceSums>),
}

impl Sums {
    /// Those that were taken while the bytes moved, if any.
    fn taken(done: Transferred) -> Option<Self> {
        done.checksum.map(Self::Whole).or(done.slices.map(Self::Slices))
    }

    fn as_slices(&self) -> (&[Checksum], &[Checksum]) {
        match self {
            Self::Whole(checksum) => (std::slice::from_ref(checksum), &[]),
            Self::Slices(sums) => (&sums.checksums, &sums.prefixes),
        }
    }
}

impl Core {
    /// Stores objects of the client's own making, which are neither counted as a call nor converted.
    #[cfg(feature = "c2c")]
    pub(super) async fn store_own(
        self: &Arc<Self>,
        puts: Vec<Put<'_>>,
        config: &ReplicateConfig,
        mode: Mode,
    ) -> Vec<Result<PutOutcome, PutError>> {
        if let Err(why) = self.request() {
            return puts.iter().map(|_| Err(why.into())).collect();
        }
        let (items, outcomes) = items_of(puts);
        in_order(outcomes, self.store_items(items, config, mode, false).await)
    }

    /// Stores the items. Those of an application's own are converted for other models.
    async fn store_items(
        self: &Arc<Self>,
        mut items: Vec<Item>,
        config: &ReplicateConfig,
        mode: Mode,
        #[cfg_attr(not(feature = "c2c"), allow(unused, reason = "nothing is converted"))]
        convert: bool,
    ) -> Vec<Item> {
        let (core, config) = (Arc::clone(self), config.clone());
        let work = Unstoppable::new(&self.runtime, |abandoned| async move {
            for chunk in items.chunks_mut(CHUNK) {
                if mode == Mode::Upsert {
                    core.delete_replaced(chunk.iter().map(|item| item.key.as_ref())).await;
                }
                core.store_chunk(chunk, &config, mode, &abandoned).await;
                #[cfg(feature = "c2c")]
                if let (true, Some(conversions)) = (convert, &core.c2c) {
                    let is_stored =
                        |item: &&Item| matches!(item.outcome, Some(Ok(PutOutcome::Stored)));
                    chunk
                        .iter()
                        .filter(is_stored)
                        .for_each(|item| conversions.stored(&item.key, mode == Mode::Upsert));
                }
            }
            items
        });
        work.await
    }

    /// Tries until every item has an outcome, or nobody waits for it any more and nothing
    /// is half done.
    async fn store_chunk(
        self: &Arc<Self>,
        items: &mut [Item],
        config: &ReplicateConfig,
        mode: Mode,
        abandoned: &AtomicBool,
    ) {
        let deadline = Instant::now() + self.settings.put_wait;
        let under_way = self.put_keys.enter(items.iter().map(|item| item.key.as_ref()));
        let mut pause = FIRST_PAUSE;
        let mut avoid_suspects = true;
        loop {
            let open: Vec<usize> =
                (0..items.len()).filter(|&at| items[at].outcome.is_none()).collect();
            if open.is_empty() || abandoned.load(Ordering::Relaxed) {
                return;
            }
            let avoiding = if avoid_suspects { self.avoiding(config) } else { None };
            let may_come = config.excluded_segments.is_empty();
            let patience = Patience { deadline, avoiding: avoiding.is_some(), may_come };
            let config = avoiding.as_ref().unwrap_or(config);
            let granted = match self.start(items, &open, config, mode, &under_way, patience).await {
                Ok(granted) => granted,
                Err(error) => {
                    for at in open {
                        items[at].outcome = Some(Err(error.clone()));
                    }
                    return;
                }
            };
            if granted.is_empty() && avoiding.is_some() {
                // Nobody else has room: a peer that failed may be back.
                avoid_suspects = false;
                continue;
            }
            if granted.is_empty() {
                // Everything left waits for room.
                if items.iter().any(|item| item.outcome.is_none()) {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                continue;
            }
            let written = self.write(items, granted).await;
            self.finish(items, written, mode).await;
        }
    }

    /// `config` with the segments of peers that failed a moment ago excluded;
    /// `None` when there are none.
    fn avoiding(&self, config: &ReplicateConfig) -> Option<ReplicateConfig> {
        let free = MAX_NAMED_SEGMENTS.saturating_sub(config.excluded_segments.len());
        let suspects = self.suspect_segments(free);
        let exclude = |config: ReplicateConfig, name| config.exclude(name);
        (!suspects.is_empty()).then(|| suspects.into_iter().fold(config.clone(), exclude))
    }

    /// Asks for room. Items that are refused get their outcome here, unless they
    /// may wait on.
    async fn start(
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
                    items[at].outcome = patience.refused(refusal);
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
            let asked = self.settings.clock.now();
            let answers = match mode {
                Mode::Put => self.master.batch_put_start(self.id, config, &puts).await,
                Mode::Upsert => self.master.batch_upsert_start(self.id, config, &puts).await,
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
    async fn write(&self, items: &mut [Item], granted: Vec<Granted>) -> Vec<Written> {
        let mut jobs = Vec::with_capacity(granted.len());
        for Granted { at, grant, until } in &granted {
            let replicas = grant.replicas.iter().enumerate();
            jobs.extend(replicas.map(|(nth, replica)| items[*at].job(nth, replica, *until)));
        }
        let mut results = self.transfer(jobs).await.into_iter();
        let mut written = Vec::with_capacity(granted.len());
        for Granted { at, grant, until } in granted {
            let (mut outcome, mut late) = (Ok(()), Vec::new());
            // All of this object's results are taken, also after a failure.
            for (replica, result) in grant.replicas.iter().zip(results.by_ref()) {
                match result {
                    Ok(done) => items[at].sums = items[at].sums.take().or(Sums::taken(done)),
                    Err(failed) => {
                        let segment = &replica.segment;
                        self.peers.holds(&segment.endpoint, &segment.name);
                        self.reports.failed(segment.id, &segment.name, &failed.error);
                        outcome = Err(failed.error);
                        late.extend(failed.late);
                    }
                }
            }
            if outcome.is_ok() {
                items[at].add_up();
            }
            let first = grant.replicas.first().filter(|_| grant.disk || self.has_unlisted());
            let file_of = first.map(|replica| (replica.segment.remote_key, replica.extent));
            written.push(Written { at, handle: grant.handle, until, outcome, file_of, late });
        }
        written
    }

    /// Makes written items readable and gives the others up, to be placed anew if
    /// they have not been too often.
    async fn finish(self: &Arc<Self>, items: &mut [Item], written: Vec<Written>, mode: Mode) {
        let is_whole = |written: &Written| written.outcome.is_ok();
        let (whole, broken): (Vec<_>, Vec<_>) = written.into_iter().partition(is_whole);
        let mut rest = &whole[..];
        while !rest.is_empty() {
            let ends: Vec<PutEnd<'_>> =
                rest.iter().map(|written| items[written.at].end(written.handle)).collect();
            let ends = first_call(&ends);
            let (part, later) = rest.split_at(ends.len());
            // Bytes are copied while the master answers. The task that sends the call may wait for this
            // thread, and goes first.
            let files = async {
                let mut files = Vec::with_capacity(part.len());
                for written in part {
                    if written.file_of.is_some() {
                        tokio::task::yield_now().await;
                    }
                    files.push(self.file(&items[written.at], written));
                }
                files
            };
            let (answers, files) = tokio::join!(self.end(ends, mode), files);
            match answers {
                Ok(answers) => {
                    for ((&Written { at, .. }, file), answer) in part.iter().zip(files).zip(answers)
                    {
                        if let (Some(file), Some(shared), Ok(())) =
                            (file, &self.shared_tier, &answer)
                        {
                            shared.persist(file);
                        }
                        let answer = answer.map_err(PutError::Refused);
                        items[at].outcome = Some(answer.map(|()| PutOutcome::Stored));
                    }
                }
                Err(error) => {
                    let mut unsettled = Vec::with_capacity(part.len());
                    for &Written { at, handle, until, .. } in part {
                        let key = items[at].key.clone();
                        unsettled.push(Unsettled { key, handle, until });
                        items[at].outcome = Some(Err(error.clone().into()));
                    }
                    self.settle(unsettled, mode);
                }
            }
            rest = later;
        }
        self.give_up(items, broken, mode).await;
    }

    /// The file that is to be written of an object; `None` where it gets none.
    fn file(&self, item: &Item, written: &Written) -> Option<Pending> {
        let (shared, replica) = (self.shared_tier.as_ref()?, written.file_of?);
        let (checksums, _) = item.sums.as_ref()?.as_slices();
        let slices = item.lengths.iter().zip(checksums);
        let slices = slices.map(|(&len, &checksum)| SliceInfo { len, checksum }).collect();
        // What is in this client's own memory is read there.
        let is_own = self.segments.local(replica.0, replica.1).is_some();
        let bytes = shared.hold(&item.slices, (!is_own).then_some(&self.pool));
        Some(Pending { key: item.key.clone(), handle: written.handle, slices, replica, bytes })
    }

    async fn end(
        &self,
        ends: &[PutEnd<'_>],
        mode: Mode,
    ) -> Result<Vec<Result<(), Refusal>>, RpcError> {
        match mode {
            Mode::Put => self.master.batch_put_end(self.id, ends).await,
            Mode::Upsert => self.master.batch_upsert_end(self.id, ends).await,
        }
    }

    async fn give_up(self: &Arc<Self>, items: &mut [Item], broken: Vec<Written>, mode: Mode) {
        if broken.is_empty() {
            return;
        }
        let revokes: Vec<PutRevokeItem<'_>> = broken
            .iter()
            .map(|put| PutRevokeItem {
                key: items[put.at].key.as_ref(),
                handle: put.handle,
                late: match put.late.is_empty() {
                    true => LateWrites::Impossible,
                    false => LateWrites::Possible,
                },
            })
            .collect();
        // A revoke that is lost only delays the space: the master's time-out
        // takes it back. But then the key is not free for another try.
        let revoked = self.revoke_puts(&revokes, mode).await.is_ok();
        for Written { at, handle, until, outcome, late, .. } in broken {
            if !late.is_empty() {
                let key = items[at].key.clone();
                self.when_fenced(late, until, move |core| async move {
                    let (key, late) = (key.as_ref(), LateWrites::Impossible);
                    // If this is lost, the space comes back with the grant's end.
                    let _ = core.revoke_puts(&[PutRevokeItem { key, handle, late }], mode).await;
                });
            }
            items[at].placements += 1;
            if let Err(error) = outcome
                && (!revoked || items[at].placements >= PLACEMENTS)
            {
                items[at].outcome = Some(Err(PutError::Peer(error)));
            }
        }
    }

    pub(super) async fn revoke_puts(
        &self,
        revokes: &[PutRevokeItem<'_>],
        mode: Mode,
    ) -> Result<Vec<Result<(), Refusal>>, RpcError> {
        match mode {
            Mode::Put => self.master.batch_put_revoke(self.id, revokes).await,
            Mode::Upsert => self.master.batch_upsert_revoke(self.id, revokes).await,
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

/// The first of `ends` that go into one call, at least one.
fn first_call<'e, 'a>(ends: &'e [PutEnd<'a>]) -> &'e [PutEnd<'a>] {
    /// More bytes than a number of 32 bits has.
    const TOKEN: usize = 5;
    /// More bytes than the fields of fixed length have, with the heads of the others.
    const FIXED: usize = 128;
    let mut bytes = 0;
    let fits = |end: &&PutEnd<'_>| {
        let sums = 4 * (end.checksums.len() + end.prefixes.len());
        let info = end.event_info.map_or(0, |info| {
            let hashes = info.block_hash.len() + info.parent_block_hash.len();
            info.model_name.len() + hashes + TOKEN * info.token_ids.len()
        });
        bytes += FIXED + end.key.as_str().len() + sums + info;
        bytes <= MAX_END_BYTES
    };
    let count = ends.iter().take_while(fits).count().max(1);
    &ends[..count.min(ends.len())]
}

/// An item that has space, until that time.
struct Granted {
    at: usize,
    grant: PutGrant,
    until: BootTime,
}

/// An item that was written, or not.
struct Written {
    at: usize,
    handle: PutHandle,
    until: BootTime,
    outcome: Result<(), PeerError>,
    /// The first replica of an object that is to have a file.
    file_of: Option<(RemoteKey, Extent)>,
    /// What was lost with writes of it under way.
    late: Vec<Arc<LostLinks>>,
}

/// What a refused put may still try.
#[derive(Clone, Copy)]
struct Patience {
    /// Until when it waits for room.
    deadline: Instant,
    /// Whether segments are left out that are there.
    avoiding: bool,
    /// Whether a segment that is mounted in the meantime could take the put.
    may_come: bool,
}

impl Patience {
    /// The outcome of a refused put; `None` when it may try again.
    fn refused(self, refusal: Refusal) -> Option<Result<PutOutcome, PutError>> {
        match refusal.code {
            ErrorCode::ObjectAlreadyExists => Some(Ok(PutOutcome::Existing)),
            ErrorCode::PutInProgress => Some(Ok(PutOutcome::Pending)),
            ErrorCode::TooFewSegments | ErrorCode::ObjectTooLarge if self.avoiding => None,
            // A master that has just begun has no segments until its nodes have come back.
            ErrorCode::TooFewSegments if self.may_come && Instant::now() < self.deadline => None,
            ErrorCode::Full
            | ErrorCode::Fragmented
            | ErrorCode::AllLeased
            | ErrorCode::Overloaded
                if Instant::now() < self.deadline =>
            {
                None
            }
            _ => Some(Err(PutError::Refused(refusal))),
        }
    }
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
