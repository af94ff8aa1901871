//! The calls: a file for each family holds both of its sides, the clients' methods and the
//! master's answers.
//!
//! A new call is an entry in the `.proto`, a line in the table of [`method`](crate::method), and here a
//! description in `calls!` and a method of [`CallContext`]. prost writes and reads its messages.
//! Those of every put and get are written and read by hand, without copies, in
//! [`request`](crate::request), [`reply`](crate::reply) and [`answer`](crate::answer).

mod c2c;
mod disks;
mod drains;
mod failures;
mod files;
mod ha;
mod key_batches;
mod leases;
mod message;
mod objects;
mod patterns;
mod promotion;
mod puts;
mod reads;
mod removal;
mod report;
mod segments;
mod storage;
mod tasks;
mod tenants;
mod transfers;
mod upserts;

use bytes::BytesMut;
use mc_meta::ScopedKey;

use crate::check::{
    BadField, at_most, client_id, count, endpoint, extent, id, key, medium, millis, missing,
    object_key, optional_id, page_limit, segment_name, segment_names, tenant, tenant_key,
    tenant_name, texts,
};
use crate::method::{Method, table};
use crate::refusal::Refusal;
use crate::request::{DEFAULT_PAGE, MAX_BATCH};
use crate::service::context::CallContext;
use message::{fit, message, reply};
#[cfg(test)]
pub(crate) use patterns::read_replica_page;

pub use disks::{FoundItem, LocalDiskDeletions, LocalDisks, OffloadItem, OffloadJob, TierJob};
pub use drains::{DrainJob, DrainJobs};
pub use failures::{Failure, MAX_FAILURES, Reported};
pub use files::TierEviction;
pub(crate) use ha::answer_standby;
pub use message::RequestMessage;
pub use objects::{ObjectDescription, ObjectExplanation, ReplicaDescription};
pub use patterns::ReplicaPage;
pub use promotion::PromotionGrant;
pub use puts::PutRevokeItem;
pub use removal::RemovedAll;
pub use report::{ClusterReport, Connections, MAX_LISTED_CONNECTIONS, SegmentReport};
pub use storage::{FileJobs, FileOutcome, StorageConfig};
pub use tasks::{FetchedTasks, Task, TaskReport, Tasks};
pub use tenants::TenantQuotas;
pub use transfers::TransferGrant;

macro_rules! answers {
    ($($(#[$doc:meta])* $name:ident = $number:literal: $role:ident, $repeat:ident, $pace:ident
        => $kind:ident $answer:ident;)*) => {
        impl CallContext<'_> {
            /// Answers the call; the caller's role has been checked.
            pub(crate) fn answer(self, method: Method, out: &mut BytesMut) -> Result<(), Refusal> {
                match method { $(Method::$name => self.$kind(out, Self::$answer),)* }
            }
        }
    };
}
table!(answers);

impl CallContext<'_> {
    /// The object that a request names by its key and its tenant, as the master stores its key.
    fn stored<'k>(&self, key: &'k str, tenant: &str) -> Result<ScopedKey<'k>, Refusal> {
        self.scoped_of(&tenant_key(key, tenant)?)
    }
}

/// Those of `items` that go into a page of at most `limit` items, and whether more follow.
/// `told` says of the first ones that they were in the pages before; `fit` are as many as have
/// room in the answer.
fn page_of<T>(
    items: &[T],
    told: impl FnMut(&T) -> bool,
    (limit, fit): (usize, usize),
) -> (&[T], bool) {
    let rest = &items[items.partition_point(told)..];
    let page = &rest[..rest.len().min(limit).min(fit)];
    (page, page.len() < rest.len())
}

/// Where the page after this one begins: after its last item, if `more` follow.
fn next_after<T, K>(
    page: &[T],
    more: bool,
    key: impl FnOnce(&T) -> K,
    field: &'static str,
) -> Result<Option<K>, BadField> {
    match page.last() {
        // The next page would be this one again, for ever.
        None if more => Err(missing(field)),
        last => Ok(last.filter(|_| more).map(key)),
    }
}

/// Makes a method of every client of each call that is described: its documentation, its
/// arguments and what it answers; then its method, with the refusals that callers may expect,
/// what writes its request, and what reads the answer.
macro_rules! calls {
    ($(
        $(#[$doc:meta])*
        fn $name:ident(&self $(, $argument:ident: $type:ty)*) -> $answer:ty {
            $method:ident $($refused:literal)?,
            $write:expr,
            $read:expr,
        }
    )*) => {
        impl $crate::MasterClient {
            $(
                $(#[$doc])*
                #[doc = ""]
                #[doc = "# Errors"]
                $(#[doc = $refused])?
                #[doc = "Fails with an [`RpcError`](crate::RpcError) that names the cause."]
                pub async fn $name(
                    &self
                    $(, $argument: $type)*
                ) -> Result<$answer, $crate::RpcError> {
                    self.call($crate::Method::$method, $write, $read).await
                }
            )*
        }

        impl $crate::blocking::MasterClient {
            $(
                $(#[$doc])*
                #[doc = ""]
                #[doc = "# Errors"]
                $(#[doc = $refused])?
                #[doc = "Fails with an [`RpcError`](crate::RpcError) that names the cause."]
                pub fn $name(
                    &self
                    $(, $argument: $type)*
                ) -> Result<$answer, $crate::RpcError> {
                    self.call($crate::Method::$method, $write, $read)
                }
            )*
        }
    };
}
use calls;
