//! Puts that may have been begun without their callers' knowing.
//!
//! When every answer to a call that begins puts is lost until the call's time is over, the
//! master may keep their keys for puts that no client can end: their handles came with the
//! answers. So a thread sends the call again, in the same session and with the same token. The
//! master repeats its answer, or executes the call now if it never arrived, and what it grants
//! is revoked at once.
//!
//! Upserts are not settled: one that is begun keeps no other from replacing it, and sending it
//! again could take an object's space that was stored meanwhile.

use core::mem;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Instant;

use bytes::BytesMut;
use mc_meta::{LateWrites, PutHandle};
use mc_types::{ClientId, ObjectKey};
use parking_lot::Mutex;

use super::MasterClient;
use super::pool::Pool;
use crate::answer::{Answer, read_all_done, read_grant, read_grants};
use crate::client::backoff::backoff;
use crate::client::call::{Call, may_be_executed};
use crate::client::dial::may_pass;
use crate::client::request::{KNOWN_FOR, message_of};
use crate::error::RpcError;
use crate::frame::FrameHeader;
use crate::method::Method;
use crate::refusal::Refusal;
use crate::request::{BatchPutFinishRequest, BatchPutStartRequest, PutStartRequest};

/// Most calls that wait to be settled.
pub(in crate::client) const MAX_CALLS: usize = 256;

/// Most bytes of those calls.
const MAX_BYTES: usize = 4 << 20;

/// A call that was sent, and whose caller has stopped waiting for its answer.
pub(in crate::client) struct Lost {
    pub(in crate::client) method: Method,
    pub(in crate::client) header: FrameHeader,
    pub(in crate::client) frame: BytesMut,
    /// When it was first sent.
    pub(in crate::client) begun: Instant,
    /// The incarnation of the server that it was sent to.
    pub(in crate::client) first_server: u64,
}

/// The calls of a client that wait to be settled.
#[derive(Default)]
pub(super) struct Settling(Mutex<State>);

#[derive(Default)]
struct State {
    calls: VecDeque<Lost>,
    bytes: usize,
    /// Whether a thread works on them.
    is_under_way: bool,
}

impl Settling {
    /// Takes one more call, unless there are too many; says whether it needs a thread.
    fn push(&self, lost: Lost) -> bool {
        let mut state = self.0.lock();
        let bytes = state.bytes + lost.frame.len();
        if state.calls.len() == MAX_CALLS || bytes > MAX_BYTES {
            return false;
        }
        state.bytes = bytes;
        state.calls.push_back(lost);
        !mem::replace(&mut state.is_under_way, true)
    }

    fn pop(&self) -> Option<Lost> {
        let mut state = self.0.lock();
        let lost = state.calls.pop_front();
        match &lost {
            Some(lost) => state.bytes -= lost.frame.len(),
            None => state.is_under_way = false,
        }
        lost
    }
}

impl MasterClient {
    /// Has a thread find out what a call began, and give that up. Beyond what is kept, and
    /// without a thread, such puts wait for the master's own time-out.
    pub(in crate::client) fn settle(&self, lost: Lost) {
        if self.pool.settling.push(lost) {
            let pool = Arc::downgrade(&self.pool);
            let thread = thread::Builder::new().name("mc-rpc settle".into());
            if thread.spawn(move || settle_all(&pool)).is_err() {
                while self.pool.settling.pop().is_some() {}
            }
        }
    }
}

/// Ends when nothing is left, or with the client.
fn settle_all(pool: &Weak<Pool>) {
    while let Some(lost) = pool.upgrade().and_then(|pool| pool.settling.pop()) {
        if let Ok(asked) = Asked::parse(&lost) {
            settle_one(pool, lost, &asked);
        }
    }
}

fn settle_one(pool: &Weak<Pool>, mut lost: Lost, asked: &Asked) {
    let mut granted = None;
    for failures in 0.. {
        let Some(strong) = pool.upgrade() else { return };
        if lost.begun.elapsed() >= KNOWN_FOR {
            return;
        }
        let client = MasterClient { pool: strong };
        let error = match &granted {
            None => match client.send_again(&mut lost, asked) {
                Ok(grants) if grants.is_empty() => return,
                Ok(grants) => {
                    granted = Some(grants);
                    continue;
                }
                Err(error) => error,
            },
            Some(grants) => match client.revoke(asked.client, grants) {
                Ok(()) => return,
                Err(error) => error,
            },
        };
        let has_no_place = matches!(error, RpcError::NoFreeConnection { .. });
        if !may_be_executed(&error) && !may_pass(&error) && !has_no_place {
            return;
        }
        let wait = backoff(&client.pool.config, failures);
        // The client may end meanwhile.
        drop(client);
        thread::sleep(wait);
    }
}

impl MasterClient {
    fn send_again(&self, lost: &mut Lost, asked: &Asked) -> Result<Vec<Granted>, RpcError> {
        let (pool, now) = (&*self.pool, Instant::now());
        let of = (lost.method, lost.header, lost.begun);
        let first = lost.first_server;
        let mut call = Call::resume(&pool.config, pool.route.target(), of, first, now);
        let mut lease = pool.take(now, call.deadline)?;
        lease.outbox = mem::take(&mut lost.frame);
        let read = |answer: &[u8]| asked.granted(answer);
        let answer = self.send(&mut lease, &mut call, read);
        if answer.is_err() {
            lost.frame = mem::take(&mut lease.outbox);
        }
        lease.give_back();
        answer
    }

    fn revoke(&self, client: ClientId, grants: &[Granted]) -> Result<(), RpcError> {
        // No writer has learnt where to write.
        let late = LateWrites::Impossible;
        let revokes = grants.iter().map(|(key, handle)| (key.as_ref(), *handle, late));
        let write = |out: &mut BytesMut| BatchPutFinishRequest::write_revokes(out, client, revokes);
        let read = |message: &[u8]| read_all_done(message, grants.len());
        self.call(Method::BatchPutRevoke, write, read).map(drop)
    }
}

/// A put that was granted.
pub(in crate::client) type Granted = (ObjectKey, PutHandle);

/// The puts that a call asked for.
pub(in crate::client) struct Asked {
    pub(in crate::client) client: ClientId,
    is_batch: bool,
    /// Each object's key and length.
    puts: Vec<(ObjectKey, u64)>,
}

impl Asked {
    pub(in crate::client) fn parse(lost: &Lost) -> Result<Self, Refusal> {
        let (message, mut puts) = (message_of(&lost.frame), Vec::new());
        let mut put = |key: mc_types::KeyRef<'_>, lengths: &[u64]| {
            puts.push((key.to_owned(), lengths.iter().sum()));
        };
        let (client, is_batch) = match lost.method {
            Method::BatchPutStart => {
                let batch = BatchPutStartRequest::parse(message)?;
                let mut sound = Ok(());
                let parent = |key: mc_types::KeyRef<'_>| Ok(key.to_owned());
                batch.for_each(parent, |item| match item {
                    Ok((item, _)) => put(item.key, item.slice_lengths),
                    Err(refusal) => sound = Err(refusal),
                });
                sound?;
                (batch.client, true)
            }
            _ => {
                let start = PutStartRequest::parse(message)?;
                put(start.key, &start.slice_lengths);
                (start.client, false)
            }
        };
        Ok(Self { client, is_batch, puts })
    }

    pub(in crate::client) fn granted(&self, answer: &[u8]) -> Answer<Vec<Granted>> {
        let lengths = self.puts.iter().map(|(_, len)| *len);
        let answers = if self.is_batch {
            read_grants(answer, lengths)?
        } else {
            let [(_, len)] = self.puts[..] else { return Ok(Ok(Vec::new())) };
            read_grant(answer, len)?.map(|grant| vec![Ok(grant)])
        };
        Ok(answers.map(|answers| {
            let keys = self.puts.iter().map(|(key, _)| key);
            let granted = keys.zip(answers).filter_map(|(key, answer)| {
                let grant = answer.ok()?;
                Some((key.clone(), grant.handle))
            });
            granted.collect()
        }))
    }
}
