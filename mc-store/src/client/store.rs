//! How objects are stored: room from the master, bytes to the peers, then the object is
//! readable.

mod item;
mod limit;
mod patience;
mod writer;

use std::sync::Arc;
use std::time::Duration;

use mc_meta::{LateWrites, PutEnd, ReplicateConfig};
use mc_rpc::PutRevokeItem;
use mc_types::BoxFuture;
use tokio::time::Instant;

use self::item::{Awaited, Item};
use self::limit::Limit;
use self::patience::Patience;
use self::writer::{Granted, PLACEMENTS, Unfinished, Writer, Written};
use super::core::Core;
use super::late::when_fenced;
use super::put::{Put, PutMode as Mode, PutOutcome};
use super::settings::Settings;
use super::settle::{Unsettled, revoke_puts, settle};
use super::unstoppable::Unstoppable;
use super::{Client, ClientOperation};
use crate::error::PutError;

/// Most placements that are tried as long as the put would wait for room. Where many nodes have died and say so
/// at once, a client finds the others with one put.
const MOST_PLACEMENTS: u32 = 64;

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
            let storing = self.core.store_items(items, config, mode, true);
            let (awaited, stored) = timed.within(storing).await;
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
    /// outcomes when all are there, or the time limit has passed; what is under way then is revoked.
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

    /// The parts that writes need.
    fn writer(&self) -> Writer<'_> {
        Writer {
            link: &self.link,
            transfers: &self.transfers,
            tiers: &self.tiers,
            segments: &self.segments,
            reports: &self.reports,
            pool: &self.pool,
            clock: self.settings.clock,
        }
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
        let writer = self.writer();
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
            let avoiding = if avoid { writer.avoiding(config) } else { None };
            let may_come = config.excluded_segments.is_empty();
            let patience = Patience { deadline, avoiding: avoiding.is_some(), may_come };
            let config = avoiding.as_ref().unwrap_or(config);
            let granted = match writer.start(items, &open, config, mode, &under_way, patience).await
            {
                Ok(granted) => granted,
                Err(error) => {
                    open.into_iter().for_each(|at| items[at].end(Err(error.clone())));
                    return;
                }
            };
            if granted.is_empty() && avoiding.is_some() {
                // No other node has room: a peer that failed may be back.
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
                false => writer.write(items, granted, limit).await,
            };
            // Not where all other segments are known to have no room.
            let is_early = avoid && Instant::now() < deadline;
            let most = if is_early { MOST_PLACEMENTS } else { PLACEMENTS };
            self.finish(items, written, mode, limit, most).await;
        }
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
        let writer = self.writer();
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
                    files.push(writer.file(&items[written.at], written));
                }
                files
            };
            let (answers, files) = tokio::join!(writer.end(ends, mode), files);
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
