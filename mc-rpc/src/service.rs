//! What stands behind a server: calls in, answers out, without I/O.

use std::sync::Arc;
use std::time::Instant;

use bytes::BytesMut;
use mc_meta::{Master, ReplicaList};
use mc_types::{ErrorCode, KeyRef, Time};

use crate::error::Refusal;
use crate::method::Method;
use crate::reply::{self, BatchReply};
use crate::request::{
    self, BatchPutFinishRequest, BatchPutStartRequest, Items, ListKeysRequest, PutFinishRequest,
    PutStartRequest, SegmentName,
};

/// One call as it reached a server.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// What is asked for.
    pub method: Method,
    /// The method's request message.
    pub payload: &'a [u8],
    /// Most bytes that the caller accepts as an answer.
    pub max_reply: usize,
}

/// Answers calls. A server runs short calls on the thread that reads the
/// socket, so an implementation never waits.
pub trait Service: Send + Sync + 'static {
    /// Answers `call` by appending the method's response message to `out`, and
    /// at most [`Call::max_reply`] bytes of it; a longer answer is replaced by a
    /// refusal. What was in `out` before stays.
    ///
    /// # Errors
    /// The [`Refusal`] that the caller gets instead of an answer; whatever was
    /// appended to `out` is dropped then.
    fn call(&self, call: Call<'_>, out: &mut BytesMut) -> Result<(), Refusal>;
}

impl<S: Service + ?Sized> Service for Arc<S> {
    fn call(&self, call: Call<'_>, out: &mut BytesMut) -> Result<(), Refusal> {
        (**self).call(call, out)
    }
}

/// Tells the time to a state machine that has no clock of its own.
pub trait Clock: Send + Sync + 'static {
    /// The time now; never goes back.
    fn now(&self) -> Time;
}

/// The system's monotonic clock; its origin is when it was made.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    origin: Instant,
}

impl SystemClock {
    /// A clock that begins now.
    #[must_use]
    pub fn new() -> Self {
        Self { origin: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Time {
        Time::ORIGIN + self.origin.elapsed()
    }
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn now(&self) -> Time {
        (**self).now()
    }
}

/// `MasterService` of the `.proto`, answered by a [`Master`].
#[derive(Debug)]
pub struct MasterService<C = SystemClock> {
    master: Arc<Master>,
    clock: C,
}

impl<C: Clock> MasterService<C> {
    /// Answers from `master`, whose time `clock` tells.
    #[must_use]
    pub fn new(master: Arc<Master>, clock: C) -> Self {
        Self { master, clock }
    }

    /// The master behind it.
    #[must_use]
    pub fn master(&self) -> &Arc<Master> {
        &self.master
    }

    fn batch_get(&self, now: Time, call: Call<'_>, out: &mut BytesMut) -> Result<(), Refusal> {
        let keys = request::parse_keys(call.payload)?;
        let mut reply = BatchReply::new(out, 3, keys.len(), call.max_reply)?;
        let ask = |keys: &[KeyRef<'_>]| self.master.batch_get_replica_list(now, keys);
        in_bunches(keys, ask, |list| match list.and_then(|list| in_memory(list?)) {
            Ok(list) => reply.replica_list(&list),
            Err(refusal) => reply.refused(&refusal),
        });
        Ok(())
    }

    fn batch_exist(&self, now: Time, call: Call<'_>, out: &mut BytesMut) -> Result<(), Refusal> {
        let keys = request::parse_keys(call.payload)?;
        let mut reply = BatchReply::new(out, 2, keys.len(), call.max_reply)?;
        let ask = |keys: &[KeyRef<'_>]| self.master.batch_exist(now, keys);
        in_bunches(keys, ask, |exists| match exists {
            Ok(exists) => reply.exists(exists),
            Err(refusal) => reply.refused(&refusal),
        });
        Ok(())
    }

    fn batch_remove(&self, now: Time, call: Call<'_>, out: &mut BytesMut) -> Result<(), Refusal> {
        let (keys, force) = request::parse_batch_remove(call.payload)?;
        let mut reply = BatchReply::new(out, 2, keys.len(), call.max_reply)?;
        for key in keys.keys() {
            let removed = key.and_then(|key| Ok(self.master.remove(now, key, force)?));
            match removed {
                Ok(()) => reply.done(),
                Err(refusal) => reply.refused(&refusal),
            }
        }
        Ok(())
    }

    fn batch_put_start(
        &self,
        now: Time,
        call: Call<'_>,
        out: &mut BytesMut,
    ) -> Result<(), Refusal> {
        let batch = BatchPutStartRequest::parse(call.payload)?;
        let mut reply = BatchReply::new(out, 3, batch.puts.len(), call.max_reply)?;
        batch.for_each(|put| {
            // Asked before space is taken: a grant that cannot be told would
            // block its key until the put is discarded.
            if !reply.has_room_for_grant(batch.config.replica_num) {
                return reply.full();
            }
            let grant = put.and_then(|put| Ok(self.master.put_start(now, batch.client, &put)?));
            match grant {
                Ok(grant) => reply.grant(&grant),
                Err(refusal) => reply.refused(&refusal),
            }
        });
        Ok(())
    }

    fn batch_put_end(&self, now: Time, call: Call<'_>, out: &mut BytesMut) -> Result<(), Refusal> {
        let batch = BatchPutFinishRequest::parse(call.payload)?;
        let mut reply = BatchReply::new(out, 2, batch.puts.len(), call.max_reply)?;
        batch.for_each(|end| {
            let ended = end.and_then(|end| Ok(self.master.put_end(now, batch.client, &end)?));
            match ended {
                Ok(()) => reply.done(),
                Err(refusal) => reply.refused(&refusal),
            }
        });
        Ok(())
    }

    fn batch_put_revoke(
        &self,
        now: Time,
        call: Call<'_>,
        out: &mut BytesMut,
    ) -> Result<(), Refusal> {
        let batch = BatchPutFinishRequest::parse(call.payload)?;
        let mut reply = BatchReply::new(out, 2, batch.puts.len(), call.max_reply)?;
        batch.for_each(|put| {
            let revoked = put.and_then(|put| {
                Ok(self.master.put_revoke(now, batch.client, put.key, put.generation)?)
            });
            match revoked {
                Ok(()) => reply.done(),
                Err(refusal) => reply.refused(&refusal),
            }
        });
        Ok(())
    }

    fn longest_prefix(&self, now: Time, keys: Items<'_>) -> Result<usize, Refusal> {
        let keys = keys.keys().collect::<Result<Vec<KeyRef<'_>>, Refusal>>()?;
        Ok(self.master.longest_prefix(now, keys))
    }

    fn unmount(&self, now: Time, payload: &[u8]) -> Result<(), Refusal> {
        let (client, segment) = request::parse_unmount(payload)?;
        let id = match segment {
            SegmentName::Id(id) => id,
            SegmentName::Name(name) => {
                let segments = self.master.report().segments;
                let named = segments.iter().find(|segment| *segment.spec.name == *name);
                named.map(|segment| segment.spec.id).ok_or_else(|| {
                    Refusal::new(
                        ErrorCode::SegmentNotFound,
                        format!("no segment named {name:?} is mounted"),
                    )
                })?
            }
        };
        Ok(self.master.unmount_segment(now, client, id)?)
    }
}

/// Keys that the master is asked about at a time: enough for it to look many up under one
/// lock, few enough that their answers take little memory before they are written.
const BUNCH: usize = 1024;

/// Asks about keys, many at a time, and hands on the answer to each in their order; what
/// is no key is answered without asking.
fn in_bunches<'a, T>(
    keys: Items<'a>,
    ask: impl Fn(&[KeyRef<'a>]) -> Vec<T>,
    mut answered: impl FnMut(Result<T, Refusal>),
) {
    let mut keys = keys.keys();
    loop {
        let bunch: Vec<Result<KeyRef<'a>, Refusal>> = keys.by_ref().take(BUNCH).collect();
        if bunch.is_empty() {
            return;
        }
        let good: Vec<KeyRef<'a>> =
            bunch.iter().filter_map(|key| key.as_ref().ok().copied()).collect();
        let mut answers = ask(&good).into_iter();
        for key in bunch {
            answered(key.map(|_| answers.next().expect("the master answers for each key")));
        }
    }
}

/// The replicas in memory, which are all that the protocol tells of.
fn in_memory(list: ReplicaList) -> Result<ReplicaList, Refusal> {
    if list.placements.is_empty() {
        let message = "the object is on disks only, which this protocol does not tell of";
        return Err(Refusal::new(ErrorCode::ReplicaIsNotReady, message));
    }
    Ok(list)
}

impl<C: Clock> Service for MasterService<C> {
    fn call(&self, call: Call<'_>, out: &mut BytesMut) -> Result<(), Refusal> {
        let (now, master, payload) = (self.clock.now(), &*self.master, call.payload);
        match call.method {
            Method::GetReplicaList => {
                let list = master.get_replica_list(now, request::parse_key(payload)?)?;
                let list = in_memory(list)?;
                reply::write_replica_list(out, &list);
            }
            Method::PutStart => {
                let put = PutStartRequest::parse(payload)?;
                let (client, put) = (put.client, put.command());
                reply::write_grant(out, &master.put_start(now, client, &put)?);
            }
            Method::PutEnd => {
                let put = PutFinishRequest::parse(payload)?;
                master.put_end(now, put.client, &put.end())?;
            }
            Method::PutRevoke => {
                let put = PutFinishRequest::parse(payload)?;
                master.put_revoke(now, put.client, put.key, put.generation)?;
            }
            Method::Remove => {
                let (key, force) = request::parse_remove(payload)?;
                master.remove(now, key, force)?;
            }
            Method::RemoveAll => {
                let force = request::parse_remove_all(payload)?;
                reply::write_count(out, master.remove_all(now, force));
            }
            Method::ExistKey => {
                reply::write_exists(out, master.exist(now, request::parse_key(payload)?));
            }
            Method::MountSegment => {
                let (client, spec) = request::parse_mount(payload)?;
                master.mount_segment(now, client, spec)?;
            }
            Method::ReMountSegment => {
                let (client, spec) = request::parse_mount(payload)?;
                master.reattach_segment(now, client, &spec)?;
            }
            Method::UnmountSegment => self.unmount(now, payload)?,
            Method::Ping => reply::write_pong(out, master.ping(now, request::parse_ping(payload)?)),
            Method::LongestPrefix => {
                let length = self.longest_prefix(now, request::parse_keys(payload)?)?;
                reply::write_count(out, length as u64);
            }
            Method::BatchGetReplicaList => self.batch_get(now, call, out)?,
            Method::BatchPutStart => self.batch_put_start(now, call, out)?,
            Method::BatchPutEnd => self.batch_put_end(now, call, out)?,
            Method::BatchPutRevoke => self.batch_put_revoke(now, call, out)?,
            Method::BatchExistKey => self.batch_exist(now, call, out)?,
            Method::BatchRemove => self.batch_remove(now, call, out)?,
            Method::DescribeObject => {
                let info = master.describe(now, request::parse_key(payload)?)?;
                reply::write_object_info(out, &info);
            }
            Method::ListKeys => {
                let list = ListKeysRequest::parse(payload)?;
                let page = master.list_keys(list.prefix, list.cursor, list.limit);
                reply::write_key_page(out, &page);
            }
            Method::ClusterReport => reply::write_report(out, &master.report()),
        }
        Ok(())
    }
}
