//! One call while it is answered.

use std::net::IpAddr;

use bytes::BytesMut;
use mc_meta::{Master, ReadProgress, Reading, ScopedKey, TenantId};
use mc_types::{ErrorCode, KeyRef, Time};

use crate::c2c::C2cSettings;
use crate::caller::{Caller, Role};
use crate::ha::HaReport;
use crate::refusal::Refusal;
use crate::reply::Signer;
use crate::request::TenantKey;
use crate::server::OpenConnections;
use crate::service::{History, NodeLoads};
use crate::storage::StorageSettings;

/// One call while it is answered. Its methods append the answer to what they are given.
#[derive(Clone, Copy)]
pub(crate) struct CallContext<'a> {
    pub(crate) master: &'a Master,
    pub(crate) now: Time,
    pub(crate) signer: Signer,
    pub(crate) tenant: &'a TenantId,
    pub(crate) role: Role,
    pub(crate) caller: &'a Caller,
    pub(crate) from: Option<IpAddr>,
    pub(crate) c2c: Option<&'a C2cSettings>,
    pub(crate) storage: &'a StorageSettings,
    pub(crate) ha: Option<&'a dyn HaReport>,
    pub(crate) history: &'a History,
    pub(crate) loads: &'a NodeLoads,
    pub(crate) connections: Option<&'a OpenConnections>,
    pub(crate) payload: &'a [u8],
    /// Most bytes that the answer may have.
    pub(crate) max_reply: usize,
    /// The caller's report of its reads.
    pub(crate) reads: Option<&'a ReadProgress>,
}

impl CallContext<'_> {
    /// Answers a call whose messages are read and written by hand.
    pub(crate) fn hot(
        self,
        out: &mut BytesMut,
        answer: impl FnOnce(Self, &mut BytesMut) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        answer(self, out)
    }

    /// How many jobs a caller is handed that asks for `wanted`, of which 0 is `most`, when one takes up
    /// to `ceiling` bytes. What is handed out and does not fit into the answer would belong to no client
    /// until its time is up.
    pub(crate) fn jobs_to_hand_out(&self, wanted: u32, most: usize, ceiling: usize) -> usize {
        let wanted = if wanted == 0 { most } else { most.min(wanted as usize) };
        wanted.min(self.max_reply / ceiling)
    }

    /// The caller's reads.
    pub(crate) fn reading(&self) -> Reading<'_> {
        self.master.reading(self.now, self.reads)
    }

    /// The key as the master stores it, which every command takes.
    pub(crate) fn scoped<'k>(&self, key: KeyRef<'k>) -> Result<ScopedKey<'k>, Refusal> {
        Ok(self.master.scoped(self.tenant, key)?)
    }

    /// The same for a key that may be another tenant's.
    pub(crate) fn scoped_of<'k>(&self, object: &TenantKey<'k>) -> Result<ScopedKey<'k>, Refusal> {
        match &object.tenant {
            None => self.scoped(object.key),
            Some(tenant) if tenant == self.tenant || self.role >= Role::Node => {
                Ok(self.master.scoped(tenant, object.key)?)
            }
            Some(tenant) => Err(Refusal::new(
                ErrorCode::PermissionDenied,
                format!(
                    "tenant_id is {tenant}, the caller acts for {}; the role {} may name others",
                    self.tenant,
                    Role::Node
                ),
            )),
        }
    }
}
