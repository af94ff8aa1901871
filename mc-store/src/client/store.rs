//! How objects are stored: room from the master, bytes to the peers, then the object is
//! readable.

mod item;
mod limit;
mod patience;

use std::sync::Arc;
use std::time::Duration;

use mc_meta::{
    LateWrites, MAX_AVOIDED_SEGMENTS, MAX_NAMED_SEGMENTS, PutEnd, PutHandle, ReplicateConfig,
};
use mc_rpc::{PutGrant, PutRevokeItem, PutStartItem, Refusal, ReplicaLocation, RpcError};
use mc_tier::SliceInfo;
use mc_transport::BootTime;
use mc_types::{BoxFuture, ErrorCode, Extent, RemoteKey};
use tokio::time::Instant;

use self::item::{Awaited, Item};
use self::limit::Limit;
use self::patience::Patience;
use super::core::Core;
use super::data::{Job, LostLinks};
use super::late::when_fenced;
use super::put::{Put, PutMode as Mode, PutOutcome, checksums_of};
use super::put_keys::PutsUnderWay;
use super::settings::Settings;
use super::settle::{Unsettled, revoke_puts, settle};
use super::tiers::shared::Pending;
use super::unstoppable::Unstoppable;
use super::{Client, ClientOperation};
use crate::error::{PeerError, PutError};

/// Placements tried when bytes cannot be written where the master said: so many at least, and more
/// as long as the put would wait for room. Where many nodes have died and say so at once, a client
/// finds the others with one put.
const PLACEMENTS: u32 = 4;
const MOST_PLACEMENTS: u32 = 64;

/// Most segments that a put avoids: 16 bytes each in every call, while they are silent.
const AVOIDED: usize = 1024;

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
            if let Err(why) = self.core.link.request() {
                return puts.iter().map(|_| Err(why.into())).collect();
            }
            let timed = self.core.metrics.start(operation);
            let (items, invalid) = items_of(puts);
            let (awaited, stored) = self.core.store_items(items, config, mode, true).await;
            let codes = invalid.iter().flatten().map(|error| Err(error.code()));
            timed.ended(awaited.iter().map(Awaited::tally).chain(codes));
            in_order(invalid, stored)
        })
    }
}

/// The outcomes of all puts, from why some are invalid and the outcomes of the others.
fn in_order(
    invalid: Vec<Option<PutError>>,
    stored: Vec<Result<PutOutcome, PutError>>,
) -> Vec<Result<PutOutcome, PutError>> {
    let mut stored = stored.into_iter();
    let one_each = "every valid put is an item";
    let outcome = |invalid: Option<PutError>| match invalid {
        Some(error) => Err(error),
        None => stored.next().expect(one_each),
    };
    invalid.into_iter().map(outcome).collect()
}

/// The valid puts, and for each put why it is not among them.
fn items_of(puts: Vec<Put<'_>>) -> (Vec<Item>, Vec<Option<PutError>>) {
    let mut invalid = Vec::with_capacity(puts.len());
    let mut items = Vec::with_capacity(puts.len());
    for put in puts {
        match Item::new(put) {
            Ok(item) => {
                items.push(item);
                invalid.push(None);
            }
            Err(error) => invalid.push(Some(error)),
        }
    }
    (items, invalid)
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
        if let Err(why) = self.link.request() {
            return puts.iter().map(|_| Err(why.into())).collect();
        }
        let (items, invalid) = items_of(puts);
        in_order(invalid, self.store_items(items, config, mode, false).await.1)
    }

    /// Stores the items. Those of an application's own are converted for other models. Returns the
    /// outcomes when all are there, or the time limit has passed; what is under way then is given up.
    async fn store_items(
        self: &Arc<Self>,
        mut items: Vec<Item>,
        config: &ReplicateConfig,
        mode: Mode,
        #[cfg_attr(not(feature = "c2c"), allow(unused, reason = "nothing is converted"))]
        convert: bool,
    ) -> (Vec<Awaited>, Vec<Result<PutOutcome, PutError>>) {
        let awaited: Vec<Awaited> = items.iter().map(Item::awaited).collect();
        let (core, config) = (Arc::clone(self), config.clone());
        let Settings { clock, put_wait, put_timeout, .. } = self.settings;
        let after = put_wait.saturating_add(put_timeout);
        let work = Unstoppable::new(&self.background.runtime, |abandoned| {
            let limit = Limit::new(clock, after, abandoned);
            async move {
                for chunk in items.chunks_mut(CHUNK) {
                    if mode == Mode::Upsert {
                        core.tiers
                            .delete_replaced(chunk.iter().map(|item| item.key.as_ref()))
                            .await;
                    }
                    core.store_chunk(chunk, &config, mode, &limit).await;
                    #[cfg(feature = "c2c")]
                    if let (true, Some(conversions)) = (convert, &core.c2c) {
                        chunk
                            .iter()
                            .filter(|item| item.is_stored())
                            .for_each(|item| conversions.stored(&item.key, mode == Mode::Upsert));
                    }
                }
            }
        });
        let limited = {
            // The caller may poll on a thread that no runtime has.
            let _entered = self.background.runtime.enter();
            tokio::time::timeout(after, work)
        };
        // Work that is late goes on by itself, and gives up what it has begun.
        let _ = limited.await;
        let late = || PutError::TimedOut { after };
        let outcomes = awaited.iter().map(|item| item.take(late)).collect();
        (awaited, outcomes)
    }

    /// Tries until every item has an outcome, or the limit has passed and nothing is half done.
    async fn store_chunk(
        self: &Arc<Self>,
        items: &mut [Item],
        config: &ReplicateConfig,
        mode: Mode,
        limit: &Limit,
    ) {
        let deadline = Instant::now() + self.settings.put_wait;
        let under_way = self.put_keys.enter(items.iter().map(|item| item.key.as_ref()));
        let mut pause = FIRST_PAUSE;
        let mut avoid = true;
        loop {
            let open: Vec<usize> = (0..items.len()).filter(|&at| items[at].is_open()).collect();
            if open.is_empty() {
                return;
            }
            if limit.is_over() {
                open.into_iter().for_each(|at| items[at].end(Err(limit.error())));
                return;
            }
            let avoiding = if avoid { self.avoiding(config) } else { None };
            let may_come = config.excluded_segments.is_empty();
            let patience = Patience { deadline, avoiding: avoiding.is_some(), may_come };
            let config = avoiding.as_ref().unwrap_or(config);
            let granted = match self.start(items, &open, config, mode, &under_way, patience).await {
                Ok(granted) => granted,
                Err(error) => {
                    open.into_iter().for_each(|at| items[at].end(Err(error.clone())));
                    return;
                }
            };
            if granted.is_empty() && avoiding.is_some() {
                // Nobody else has room: a peer that failed may be back.
                avoid = false;
                continue;
            }
            if granted.is_empty() {
                // Everything left waits for room.
                if items.iter().any(Item::is_open) {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                continue;
            }
            let written = match limit.is_over() {
                true => granted.into_iter().map(Granted::unwritten).collect(),
                false => self.write(items, granted, limit).await,
            };
            // Not where all other segments are known to have no room.
            let is_early = avoid && Instant::now() < deadline;
            let most = if is_early { MOST_PLACEMENTS } else { PLACEMENTS };
            self.finish(items, written, mode, limit, most).await;
        }
    }

    /// `config` without the segments that could not be written a moment ago; `None` when there are
    /// none.
    fn avoiding(&self, config: &ReplicateConfig) -> Option<ReplicateConfig> {
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
            let asked = self.settings.clock.now();
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
    async fn write(
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
                            self.transfers.health.peers.refuses(segment.id, &segment.name);
                        }
                        self.transfers.health.peers.holds(
                            &segment.endpoint,
                            segment.id,
                            &segment.name,
                        );
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

    /// Makes written items readable and gives the others up, to be placed anew if
    /// they have not been placed `most` times.
    async fn finish(
        self: &Arc<Self>,
        items: &mut [Item],
        written: Vec<Written>,
        mode: Mode,
        limit: &Limit,
        most: u32,
    ) {
        let is_whole = |written: &Written| written.outcome.is_ok();
        let (whole, broken): (Vec<_>, Vec<_>) = written.into_iter().partition(is_whole);
        let mut rest = &whole[..];
        while !rest.is_empty() {
            let ends: Vec<PutEnd<'_>> =
                rest.iter().map(|written| items[written.at].put_end(written.handle)).collect();
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
                            (file, &self.tiers.shared, &answer)
                        {
                            shared.persist(file);
                        }
                        let answer = answer.map_err(PutError::Refused);
                        items[at].end(answer.map(|()| PutOutcome::Stored));
                    }
                }
                Err(error) => {
                    let mut unsettled = Vec::with_capacity(part.len());
                    for &Written { at, handle, until, .. } in part {
                        let key = items[at].key.clone();
                        unsettled.push(Unsettled { key, handle, until });
                        items[at].end(Err(error.clone().into()));
                    }
                    settle(self, unsettled, mode);
                }
            }
            rest = later;
        }
        self.give_up(items, broken, mode, limit, most).await;
    }

    /// The file that is to be written of an object; `None` where it gets none.
    fn file(&self, item: &Item, written: &Written) -> Option<Pending> {
        let (shared, replica) = (self.tiers.shared.as_ref()?, written.file_of?);
        let slices = item.lengths.iter().zip(item.checksums()?);
        let slices = slices.map(|(&len, &checksum)| SliceInfo { len, checksum }).collect();
        // What is in this client's own memory is read there.
        let is_own = self.segments.local(replica.0, replica.1).is_some();
        let bytes = shared.hold(&item.slices, (!is_own).then_some(&self.pool));
        let (key, handle, until) = (item.key.clone(), written.handle, written.until);
        Some(Pending { key, handle, slices, replica, until, bytes })
    }

    async fn end(
        &self,
        ends: &[PutEnd<'_>],
        mode: Mode,
    ) -> Result<Vec<Result<(), Refusal>>, RpcError> {
        match mode {
            Mode::Put => self.link.master.batch_put_end(self.link.id, ends).await,
            Mode::Upsert => self.link.master.batch_upsert_end(self.link.id, ends).await,
        }
    }

    async fn give_up(
        self: &Arc<Self>,
        items: &mut [Item],
        broken: Vec<Written>,
        mode: Mode,
        limit: &Limit,
        most: u32,
    ) {
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
        let revoked = revoke_puts(&self.link, &revokes, mode).await.is_ok();
        for Written { at, handle, until, outcome, late, .. } in broken {
            if !late.is_empty() {
                let key = items[at].key.clone();
                when_fenced(self, late, until, move |core| async move {
                    let (key, late) = (key.as_ref(), LateWrites::Impossible);
                    // If this is lost, the space comes back with the grant's end.
                    let revokes = [PutRevokeItem { key, handle, late }];
                    let _ = revoke_puts(&core.link, &revokes, mode).await;
                });
            }
            items[at].placements += 1;
            match outcome {
                Err(Unfinished::Changed) => items[at].end(Err(PutError::MemoryChanged)),
                Err(Unfinished::GivenUp) => items[at].end(Err(limit.error())),
                Err(Unfinished::Peer(error)) if !revoked || items[at].placements >= most => {
                    items[at].end(Err(PutError::Peer(error)));
                }
                Ok(()) | Err(Unfinished::Peer(_)) => {}
            }
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

impl Granted {
    /// The item of a put that is given up before anything of it is read.
    fn unwritten(self) -> Written {
        let Self { at, grant, until } = self;
        let (outcome, late) = (Err(Unfinished::GivenUp), Vec::new());
        Written { at, handle: grant.handle, until, outcome, file_of: None, late }
    }
}

/// An item that was written, or not.
struct Written {
    at: usize,
    handle: PutHandle,
    until: BootTime,
    outcome: Result<(), Unfinished>,
    /// The first replica of an object that is to have a file.
    file_of: Option<(RemoteKey, Extent)>,
    /// Links that were lost with writes of it under way.
    late: Vec<Arc<LostLinks>>,
}

/// Why a put that has space is given up.
enum Unfinished {
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
