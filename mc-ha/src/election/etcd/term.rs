//! Winning, keeping and ending a term.

use std::hash::{BuildHasher, RandomState};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use mc_types::{Epoch, Sequence, Time};
use tokio::sync::{oneshot, watch};
use tokio::time::{sleep, timeout};

use super::super::authority::{Fence, safe_lease};
use super::super::candidacy::Takeover;
use super::super::error::ElectionError;
use super::super::leadership::{Leadership, Term};
use super::super::member::{InSync, Leader, Member, MemberId, Progress, Standing};
use super::keys::{Record, encode_in_sync, encode_progress};
use super::shared::{Context, Etcd};
use super::watcher::Known;
use crate::etcd::messages::{Compare, RequestOp, ResponseOp, TxnRequest};
use crate::position::Position;

/// The pause before a renewal that failed is tried again.
const RENEWAL_PAUSE: Duration = Duration::from_millis(20);

/// How often a term is renewed in the time of its lease. With the default lease four seconds are
/// left at least when a renewal fails, in which etcd can elect a leader of its own twice.
const RENEWALS: u32 = 6;

/// Makes one attempt to win a term.
pub(super) async fn campaign(
    context: Arc<Context>,
    member: Member,
    standing: watch::Receiver<Standing>,
    takeover: Takeover,
) -> Result<Leadership, ElectionError> {
    let etcd = &context.etcd;
    let own = standing.borrow().position;
    let Vacancy { written_at, last, last_unclean } = find_vacancy(etcd, own).await?;
    let next = last.as_u64().checked_add(1);
    let epoch = Epoch::new(next.ok_or(ElectionError::NoEpochLeft { epoch: last })?);
    let leader = Leader { epoch, member };
    // Its keys are drawn from the system's source of random numbers.
    let nonce = RandomState::new().hash_one(epoch.as_u64());
    let value = Record::encode_term(&leader, etcd.ttl, nonce);
    let key = &etcd.keys.leader;
    let sent = etcd.clock.now();
    let transaction = TxnRequest {
        compare: vec![Compare::written_at(key, written_at)],
        success: vec![RequestOp::put(key, value.clone())],
        failure: vec![RequestOp::get(key)],
    };
    let done = etcd.client.transact(transaction).await?;
    if !done.succeeded {
        let found = done.responses.into_iter().find_map(ResponseOp::into_pair);
        let Some(found) = found.map(|pair| pair.value) else {
            return Err(ElectionError::Contended);
        };
        // The transaction runs twice when the answer to the first is lost.
        if found != value {
            return Err(match Record::decode(key, &found)? {
                Record::Term { leader, .. } => ElectionError::Lost(leader),
                Record::Vacant { .. } => ElectionError::Contended,
            });
        }
    }
    let fence = Fence::new(epoch, Arc::clone(&etcd.clock), sent + safe_lease(etcd.ttl));
    let authority = fence.authority();
    let (resigning, resigned) = oneshot::channel();
    let common = Arc::<AtomicU64>::default();
    let kept = KeptTerm {
        etcd: Arc::clone(etcd),
        fence: fence.clone(),
        value: value.clone(),
        begun: sent,
        standing: standing.clone(),
        common: Arc::clone(&common),
    };
    context.runtime.spawn(kept.keep(resigned));
    let last_unclean = if takeover == Takeover::InSync { last_unclean } else { epoch };
    let term = EtcdTerm {
        context: Arc::clone(&context),
        fence,
        value,
        standing,
        common,
        last_unclean,
        resigning: Some(resigning),
    };
    Ok(Leadership::new(authority, leader.member, last_unclean, Box::new(term)))
}

/// The state of the election while no member leads.
struct Vacancy {
    /// The revision of the leader's key.
    written_at: i64,
    /// The highest epoch in any key.
    last: Epoch,
    /// The last term that began uncleanly.
    last_unclean: Epoch,
}

/// Looks what the last term was, if it is over.
async fn find_vacancy(etcd: &Etcd, own: Position) -> Result<Vacancy, ElectionError> {
    let known = Known::read(etcd.client.range(etcd.keys.all()).await?);
    let (written_at, record) = known.leader(&etcd.keys)?;
    let seen = etcd.sighting.lock().clone();
    let now = etcd.clock.now();
    match (&record, seen) {
        // The term lasts until nothing was written for its whole time, by this member's clock.
        (Some(Record::Term { leader, .. }), seen) => {
            let over = seen.is_some_and(|seen| seen.renewed == written_at && now >= seen.end());
            if !over {
                return Err(ElectionError::Lost(leader.clone()));
            }
        }
        // The key was deleted by hand: its leader may not know it yet.
        (None, Some(seen)) if now < seen.end() => return Err(ElectionError::Lost(seen.leader)),
        (None | Some(Record::Vacant { .. }), _) => {}
    }
    // An etcd that was set up anew does not know the epochs that were, but journals do. Nor is the
    // record there when it was deleted by hand.
    let seen = Epoch::new(etcd.highest.load(Ordering::Relaxed));
    let view = known.view(&etcd.keys);
    let members = view.members.iter().map(|status| status.standing.position.epoch);
    let in_sync = view.in_sync.as_ref();
    let recorded = [record.map(|record| record.epoch()), in_sync.map(|in_sync| in_sync.epoch)];
    let last = recorded.into_iter().flatten().chain(members).fold(seen.max(own.epoch), Epoch::max);
    let last_unclean = in_sync.map_or(Epoch::new(0), |in_sync| in_sync.last_unclean);
    Ok(Vacancy { written_at, last, last_unclean })
}

/// The wish to end a term.
#[derive(Debug)]
struct Resignation {
    to: Option<MemberId>,
    yields: bool,
    /// Told how the term ended.
    told: oneshot::Sender<Result<(), ElectionError>>,
}

/// A term that is renewed.
struct KeptTerm {
    etcd: Arc<Etcd>,
    fence: Fence,
    /// The value of the leader's key.
    value: Bytes,
    /// When it began.
    begun: Time,
    standing: watch::Receiver<Standing>,
    /// The last change that all members in sync have.
    common: Arc<AtomicU64>,
}

impl KeptTerm {
    /// Renews it until it is over, abandoned or resigned from, and then tells the others. A member that wins
    /// next may do so at once: so the end is written here alone, and with the successor's name.
    async fn keep(self, mut resigned: oneshot::Receiver<Resignation>) {
        let epoch = self.fence.authority().epoch();
        let resignation = tokio::select! {
            resignation = &mut resigned => resignation.ok(),
            () = self.renew() => {
                // A resignation ends the authority, which the renewal may notice first.
                resigned.close();
                let resignation = resigned.try_recv().ok();
                if resignation.is_none() {
                    tracing::warn!(epoch = epoch.as_u64(), "the term as the leader is over");
                }
                resignation
            }
        };
        self.fence.end();
        let (to, yields, told) = match resignation {
            Some(Resignation { to, yields, told }) => (to, yields, Some(told)),
            None => (None, false, None),
        };
        let ended = self.end(to.as_ref(), yields).await;
        if let Err(error) = &ended {
            tracing::debug!(
                error = error as &dyn std::error::Error,
                "cannot record the end of the term; it ends with its lease"
            );
        }
        if let Some(told) = told {
            // Who resigned may have gone.
            let _ = told.send(ended);
        }
    }

    /// Writes that there is no leader.
    async fn end(&self, to: Option<&MemberId>, yields: bool) -> Result<(), ElectionError> {
        let Self { etcd, fence, value, .. } = self;
        let epoch = fence.authority().epoch();
        let mut vacant = vec![RequestOp::put(&etcd.keys.leader, Record::encode_vacant(epoch, to))];
        if yields {
            vacant.extend(
                [&etcd.keys.in_sync, &etcd.keys.progress].map(|key| RequestOp::delete(key)),
            );
        }
        let written = etcd.transact_in_term(value.clone(), vacant).await?;
        // The transaction runs twice when the answer to the first is lost.
        if written || etcd.is_vacant(epoch).await? {
            Ok(())
        } else {
            Err(ElectionError::Deposed { epoch })
        }
    }

    /// Renews it until it is over.
    async fn renew(&self) {
        let Self { etcd, fence, value, .. } = self;
        let authority = fence.authority();
        let mut progress = Progress::new(authority.epoch());
        let mut again = |sent: Time| {
            progress.note(self.standing.borrow().position, sent - self.begun);
            progress.common = Sequence::new(self.common.load(Ordering::Relaxed));
            vec![
                RequestOp::put(&etcd.keys.leader, value.clone()),
                RequestOp::put(&etcd.keys.progress, encode_progress(&progress)),
            ]
        };
        let mut pause = etcd.ttl / RENEWALS;
        let mut has_failed = false;
        while let Some(remaining) = authority.remaining() {
            sleep(pause.min(remaining)).await;
            let Some(remaining) = authority.remaining() else { return };
            pause = match timeout(remaining, etcd.renew_term(value, &mut again)).await {
                Ok(Ok((sent, true))) => {
                    fence.extend(sent + safe_lease(etcd.ttl));
                    has_failed = false;
                    etcd.ttl / RENEWALS
                }
                Ok(Ok((_, false))) => return,
                Ok(Err(error)) => {
                    // Once: it is tried many times a second.
                    if !std::mem::replace(&mut has_failed, true) {
                        tracing::warn!(
                            epoch = authority.epoch().as_u64(),
                            error = &error as &dyn std::error::Error,
                            "the term was not renewed; trying again"
                        );
                    }
                    RENEWAL_PAUSE
                }
                // The next look finds that it is over.
                Err(_) => RENEWAL_PAUSE,
            };
        }
    }
}

impl Etcd {
    /// Writes what `again` makes of the time, the value of the term among it. Returns a time before the write, and whether the leader's
    /// key still had the value. While a request has no answer, others are sent beside it: etcd forgets
    /// a request when it elects another leader, and answers after seconds or never.
    async fn renew_term(
        &self,
        value: &Bytes,
        again: &mut (impl FnMut(Time) -> Vec<RequestOp> + Send),
    ) -> Result<(Time, bool), ElectionError> {
        let mut requests = FuturesUnordered::new();
        loop {
            let sent = self.clock.now();
            let request = self.transact_in_term(value.clone(), again(sent));
            requests.push(async move { Ok((sent, request.await?)) });
            let mut next = pin!(sleep(self.ttl / (2 * RENEWALS)));
            loop {
                tokio::select! {
                    Some(answer) = requests.next() => {
                        if answer.is_ok() || requests.is_empty() {
                            return answer;
                        }
                    }
                    () = &mut next => break,
                }
            }
        }
    }

    /// Runs requests if the leader's key still has the value of this term, and returns whether it
    /// has.
    async fn transact_in_term(
        &self,
        value: Bytes,
        success: Vec<RequestOp>,
    ) -> Result<bool, ElectionError> {
        let compare = vec![Compare::has_value(&self.keys.leader, value)];
        let transaction = TxnRequest { compare, success, failure: Vec::new() };
        Ok(self.client.transact(transaction).await?.succeeded)
    }
}

#[derive(Debug)]
struct EtcdTerm {
    context: Arc<Context>,
    fence: Fence,
    /// The value of the leader's key.
    value: Bytes,
    standing: watch::Receiver<Standing>,
    common: Arc<AtomicU64>,
    last_unclean: Epoch,
    /// To the task that renews the term, which gives it up when this is dropped.
    resigning: Option<oneshot::Sender<Resignation>>,
}

#[async_trait]
impl Term for EtcdTerm {
    async fn set_in_sync(&self, members: &[MemberId]) -> Result<(), ElectionError> {
        let (etcd, term) = (Arc::clone(&self.context.etcd), self.value.clone());
        let epoch = self.fence.authority().epoch();
        let history = self.standing.borrow().history;
        let (members, last_unclean) = (members.to_vec(), self.last_unclean);
        let in_sync = InSync { epoch, members, history, last_unclean };
        let put = vec![RequestOp::put(&etcd.keys.in_sync, encode_in_sync(&in_sync))];
        if self.context.run(async move { etcd.transact_in_term(term, put).await }).await? {
            return Ok(());
        }
        self.fence.end();
        Err(ElectionError::Deposed { epoch })
    }

    fn set_common(&self, common: Sequence) {
        self.common.store(common.as_u64(), Ordering::Relaxed);
    }

    async fn resign(
        mut self: Box<Self>,
        to: Option<&MemberId>,
        yields: bool,
    ) -> Result<(), ElectionError> {
        let epoch = self.fence.authority().epoch();
        let (told, ended) = oneshot::channel();
        let resignation = Resignation { to: to.cloned(), yields, told };
        // Before the fence ends, so that the renewal finds it.
        let wished = self.resigning.take().is_some_and(|task| task.send(resignation).is_ok());
        self.fence.end();
        if wished {
            ended.await.unwrap_or(Err(ElectionError::Closed))
        } else {
            Err(ElectionError::Deposed { epoch })
        }
    }
}

impl Etcd {
    /// Whether the term of this epoch ended by resignation, and none began since.
    async fn is_vacant(&self, epoch: Epoch) -> Result<bool, ElectionError> {
        let known = Known::read(self.client.range(self.keys.all()).await?);
        let (_, record) = known.leader(&self.keys)?;
        Ok(matches!(record, Some(Record::Vacant { epoch: last, .. }) if last == epoch))
    }
}

impl Drop for EtcdTerm {
    fn drop(&mut self) {
        self.fence.end();
    }
}
