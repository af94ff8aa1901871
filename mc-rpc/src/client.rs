//! The client's side: the master's commands as methods.

mod config;
mod connection;
mod link;

use std::sync::Arc;

use bytes::BytesMut;
use mc_meta::{KeyPage, ListCursor, Pong, PutEnd, PutStart, ReplicateConfig, SegmentSpec};
use mc_types::{ClientId, Generation, KeyRef, SegmentId};

use crate::answer::{self, Answer, ClusterReport, Items, ObjectDescription, PutGrant, ReplicaList};
use crate::error::{Refusal, RpcError};
use crate::method::Method;
use crate::request::{
    self, BatchPutFinishRequest, BatchPutStartRequest, PutFinishRequest, PutStartRequest,
};

pub use config::ClientConfig;
use link::Link;

/// The master, seen from a client: one connection, on which many calls are
/// under way at a time.
///
/// Cloning is cheap, and clones share the connection. A connection that is lost
/// is made again by the next call; calls that were under way fail with
/// [`RpcError::ConnectionLost`], because nobody can tell whether they were
/// executed.
///
/// Every method ends after [`ClientConfig::call_timeout`] at the latest.
/// Dropping its future gives the answer up; the call may be executed all the
/// same.
///
/// # Panics
/// Its futures panic outside a tokio runtime with I/O and time. The connection
/// lives in the runtime that made it and is lost when that ends.
#[derive(Clone, Debug)]
pub struct MasterClient {
    link: Arc<Link>,
}

/// One object of [`MasterClient::batch_put_start`].
#[derive(Clone, Copy, Debug)]
pub struct PutStartItem<'a> {
    /// The object's key.
    pub key: KeyRef<'a>,
    /// Lengths of its slices in bytes; the object is their concatenation.
    pub slice_lengths: &'a [u64],
}

/// One object of [`MasterClient::batch_put_revoke`].
#[derive(Clone, Copy, Debug)]
pub struct PutRevokeItem<'a> {
    /// The object's key.
    pub key: KeyRef<'a>,
    /// The put, as [`PutGrant::generation`] named it; `None` for whatever put of
    /// the client is open.
    pub generation: Option<Generation>,
}

impl MasterClient {
    /// Connects to the master at `addr` (`host:port`).
    ///
    /// # Errors
    /// [`RpcError::Unreachable`] when nobody answers there,
    /// [`RpcError::NotAMaster`] when somebody else does.
    pub async fn connect(addr: &str, config: ClientConfig) -> Result<Self, RpcError> {
        let client = Self::lazy(addr, config);
        client.link.connection().await?;
        Ok(client)
    }

    /// A client that connects on its first call.
    #[must_use]
    pub fn lazy(addr: &str, config: ClientConfig) -> Self {
        Self { link: Arc::new(Link::new(addr.into(), config)) }
    }

    /// The master's address, as given.
    #[must_use]
    pub fn addr(&self) -> &str {
        self.link.addr()
    }

    async fn call<T>(
        &self,
        method: Method,
        write: impl FnOnce(&mut BytesMut),
        read: impl FnOnce(&[u8]) -> Answer<T>,
    ) -> Result<T, RpcError> {
        let answer = self.link.call(method, write).await?;
        match read(&answer) {
            Ok(answer) => answer.map_err(RpcError::Refused),
            Err(reason) => Err(RpcError::Malformed {
                addr: Arc::clone(self.link.shared_addr()),
                method,
                reason,
            }),
        }
    }

    /// Where to read an object. The master keeps it there for
    /// [`ReplicaList::lease`].
    ///
    /// # Errors
    /// Refused with `ObjectNotFound` or `ReplicaIsNotReady`; or any other
    /// [`RpcError`].
    pub async fn get_replica_list(&self, key: KeyRef<'_>) -> Result<ReplicaList, RpcError> {
        let write = |out: &mut BytesMut| request::write_key(out, key);
        self.call(Method::GetReplicaList, write, answer::read_replica_list).await
    }

    /// Space to write an object into.
    ///
    /// # Errors
    /// Refused with the codes of [`mc_meta::PutStartError`]; or any other
    /// [`RpcError`].
    pub async fn put_start(
        &self,
        client: ClientId,
        put: &PutStart<'_>,
    ) -> Result<PutGrant, RpcError> {
        let len = total(put.slice_lengths);
        let write = |out: &mut BytesMut| PutStartRequest::write(out, client, put);
        self.call(Method::PutStart, write, |message| answer::read_grant(message, len)).await
    }

    /// Says that every replica of an object is written; it can be read from
    /// then on.
    ///
    /// # Errors
    /// Refused with the codes of [`mc_meta::PutFinishError`]; or any other
    /// [`RpcError`].
    pub async fn put_end(&self, client: ClientId, end: &PutEnd<'_>) -> Result<(), RpcError> {
        let write = |out: &mut BytesMut| PutFinishRequest::write(out, client, end);
        self.call(Method::PutEnd, write, answer::read_done).await
    }

    /// Gives up a put and its space.
    ///
    /// # Errors
    /// Refused with the codes of [`mc_meta::PutFinishError`]; or any other
    /// [`RpcError`].
    pub async fn put_revoke(
        &self,
        client: ClientId,
        key: KeyRef<'_>,
        generation: Option<Generation>,
    ) -> Result<(), RpcError> {
        let end = PutEnd { key, generation, checksums: &[] };
        let write = |out: &mut BytesMut| PutFinishRequest::write(out, client, &end);
        self.call(Method::PutRevoke, write, answer::read_done).await
    }

    /// Removes an object; with `force` even while somebody may be reading it.
    ///
    /// # Errors
    /// Refused with the codes of [`mc_meta::RemoveError`]; or any other
    /// [`RpcError`].
    pub async fn remove(&self, key: KeyRef<'_>, force: bool) -> Result<(), RpcError> {
        let write = |out: &mut BytesMut| request::write_remove(out, key, force);
        self.call(Method::Remove, write, answer::read_done).await
    }

    /// Removes every object that nobody may be reading, with `force` the others
    /// too, and says how many that were.
    ///
    /// # Errors
    /// Any [`RpcError`].
    pub async fn remove_all(&self, force: bool) -> Result<u64, RpcError> {
        let write = |out: &mut BytesMut| request::write_remove_all(out, force);
        self.call(Method::RemoveAll, write, answer::read_count).await
    }

    /// Whether an object can be read; when it can, it gets a lease.
    ///
    /// # Errors
    /// Any [`RpcError`].
    pub async fn exist(&self, key: KeyRef<'_>) -> Result<bool, RpcError> {
        let write = |out: &mut BytesMut| request::write_key(out, key);
        self.call(Method::ExistKey, write, answer::read_exists).await
    }

    /// Contributes a segment.
    ///
    /// # Errors
    /// Refused with the codes of [`mc_meta::MountError`]; or any other
    /// [`RpcError`].
    pub async fn mount_segment(
        &self,
        client: ClientId,
        spec: &SegmentSpec,
    ) -> Result<(), RpcError> {
        let write = |out: &mut BytesMut| request::write_mount(out, client, spec);
        self.call(Method::MountSegment, write, answer::read_done).await
    }

    /// Attaches a segment that was mounted before again, with all that it holds.
    ///
    /// # Errors
    /// Refused with [`ErrorCode::SegmentNotFound`](mc_types::ErrorCode::SegmentNotFound)
    /// unless the master knows exactly this segment of `client`; or any other
    /// [`RpcError`].
    pub async fn remount_segment(
        &self,
        client: ClientId,
        spec: &SegmentSpec,
    ) -> Result<(), RpcError> {
        let write = |out: &mut BytesMut| request::write_mount(out, client, spec);
        self.call(Method::ReMountSegment, write, answer::read_done).await
    }

    /// Takes a segment back; the replicas in it are gone.
    ///
    /// # Errors
    /// Refused with the codes of [`mc_meta::UnmountError`]; or any other
    /// [`RpcError`].
    pub async fn unmount_segment(&self, client: ClientId, id: SegmentId) -> Result<(), RpcError> {
        let write = |out: &mut BytesMut| request::write_unmount(out, client, id);
        self.call(Method::UnmountSegment, write, answer::read_done).await
    }

    /// Says that `client` lives.
    ///
    /// # Errors
    /// Any [`RpcError`].
    pub async fn ping(&self, client: ClientId) -> Result<Pong, RpcError> {
        let write = |out: &mut BytesMut| request::write_ping(out, client);
        self.call(Method::Ping, write, answer::read_pong).await
    }

    /// How many of the first keys exist, up to the first that does not. Grants
    /// no lease.
    ///
    /// # Errors
    /// Refused with `InvalidParams` beyond [`MAX_BATCH`](crate::MAX_BATCH) keys;
    /// or any other [`RpcError`].
    pub async fn longest_prefix(&self, keys: &[KeyRef<'_>]) -> Result<usize, RpcError> {
        let write = |out: &mut BytesMut| request::write_keys(out, keys);
        let asked = keys.len() as u64;
        let length = self.call(Method::LongestPrefix, write, |message| {
            Ok(answer::read_count(message)?.map(|length| length.min(asked)))
        });
        Ok(length.await? as usize) // at most `asked`
    }

    /// [`get_replica_list`](Self::get_replica_list) of many keys; the answers
    /// are in the order of the keys.
    ///
    /// # Errors
    /// Refused with `InvalidParams` beyond [`MAX_BATCH`](crate::MAX_BATCH) keys;
    /// or any other [`RpcError`]. What concerns one key is in its item.
    pub async fn batch_get_replica_list(
        &self,
        keys: &[KeyRef<'_>],
    ) -> Result<Vec<Result<ReplicaList, Refusal>>, RpcError> {
        let write = |out: &mut BytesMut| request::write_keys(out, keys);
        let read = |message: &[u8]| answer::read_replica_lists(message, keys.len());
        self.call(Method::BatchGetReplicaList, write, read).await
    }

    /// [`put_start`](Self::put_start) of many objects.
    ///
    /// # Errors
    /// As [`batch_get_replica_list`](Self::batch_get_replica_list).
    pub async fn batch_put_start(
        &self,
        client: ClientId,
        config: &ReplicateConfig,
        puts: &[PutStartItem<'_>],
    ) -> Result<Vec<Result<PutGrant, Refusal>>, RpcError> {
        let lengths: Vec<u64> = puts.iter().map(|put| total(put.slice_lengths)).collect();
        let write = |out: &mut BytesMut| {
            let puts = puts.iter().map(|put| (put.key, put.slice_lengths));
            BatchPutStartRequest::write(out, client, config, puts);
        };
        let read = |message: &[u8]| answer::read_grants(message, &lengths);
        self.call(Method::BatchPutStart, write, read).await
    }

    /// [`put_end`](Self::put_end) of many objects.
    ///
    /// # Errors
    /// As [`batch_get_replica_list`](Self::batch_get_replica_list).
    pub async fn batch_put_end(
        &self,
        client: ClientId,
        puts: &[PutEnd<'_>],
    ) -> Result<Vec<Result<(), Refusal>>, RpcError> {
        let write = |out: &mut BytesMut| {
            BatchPutFinishRequest::write(out, client, puts.iter().copied());
        };
        self.all_done(Method::BatchPutEnd, puts.len(), write).await
    }

    /// [`put_revoke`](Self::put_revoke) of many objects.
    ///
    /// # Errors
    /// As [`batch_get_replica_list`](Self::batch_get_replica_list).
    pub async fn batch_put_revoke(
        &self,
        client: ClientId,
        puts: &[PutRevokeItem<'_>],
    ) -> Result<Vec<Result<(), Refusal>>, RpcError> {
        let write = |out: &mut BytesMut| {
            let puts = puts.iter().map(|put| PutEnd {
                key: put.key,
                generation: put.generation,
                checksums: &[],
            });
            BatchPutFinishRequest::write(out, client, puts);
        };
        self.all_done(Method::BatchPutRevoke, puts.len(), write).await
    }

    /// [`exist`](Self::exist) of many keys.
    ///
    /// # Errors
    /// As [`batch_get_replica_list`](Self::batch_get_replica_list).
    pub async fn batch_exist(
        &self,
        keys: &[KeyRef<'_>],
    ) -> Result<Vec<Result<bool, Refusal>>, RpcError> {
        let write = |out: &mut BytesMut| request::write_keys(out, keys);
        let read = |message: &[u8]| answer::read_all_exist(message, keys.len());
        self.call(Method::BatchExistKey, write, read).await
    }

    /// [`remove`](Self::remove) of many keys.
    ///
    /// # Errors
    /// As [`batch_get_replica_list`](Self::batch_get_replica_list).
    pub async fn batch_remove(
        &self,
        keys: &[KeyRef<'_>],
        force: bool,
    ) -> Result<Vec<Result<(), Refusal>>, RpcError> {
        let write = |out: &mut BytesMut| request::write_batch_remove(out, keys, force);
        self.all_done(Method::BatchRemove, keys.len(), write).await
    }

    async fn all_done(
        &self,
        method: Method,
        asked: usize,
        write: impl FnOnce(&mut BytesMut),
    ) -> Result<Items<()>, RpcError> {
        self.call(method, write, |message| answer::read_all_done(message, asked)).await
    }

    /// Everything known of one object; grants no lease.
    ///
    /// # Errors
    /// Refused with `ObjectNotFound`; or any other [`RpcError`].
    pub async fn describe(&self, key: KeyRef<'_>) -> Result<ObjectDescription, RpcError> {
        let write = |out: &mut BytesMut| request::write_key(out, key);
        self.call(Method::DescribeObject, write, answer::read_object).await
    }

    /// At most `limit` keys that begin with `prefix`, from `cursor` on; 0 lets
    /// the master choose how many.
    ///
    /// # Errors
    /// Refused with `InvalidParams` beyond [`MAX_PAGE`](crate::MAX_PAGE) keys; or
    /// any other [`RpcError`].
    pub async fn list_keys(
        &self,
        prefix: &str,
        cursor: ListCursor,
        limit: usize,
    ) -> Result<KeyPage, RpcError> {
        let write =
            |out: &mut BytesMut| request::ListKeysRequest::write(out, prefix, cursor, limit);
        self.call(Method::ListKeys, write, answer::read_key_page).await
    }

    /// The master's totals and its segments.
    ///
    /// # Errors
    /// Any [`RpcError`].
    pub async fn cluster_report(&self) -> Result<ClusterReport, RpcError> {
        self.call(Method::ClusterReport, |_| (), answer::read_report).await
    }
}

/// The object's length; a sum that does not fit is refused by the master.
fn total(lengths: &[u64]) -> u64 {
    lengths.iter().fold(0, |sum, length| sum.saturating_add(*length))
}
