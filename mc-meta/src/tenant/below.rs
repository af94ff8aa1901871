//! Quotas of tenants below memory and their usage: on the clients' local disks, and in files of the
//! shared tier.
//!
//! These quotas refuse no put: what is beyond one is not written there. So they are not scaled to
//! what there is, and an object that is found there is counted however much its tenant has.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::tenant::ledger::TenantSlot;
use crate::tenant::quota::{Quotas, UNLIMITED};

/// Bytes that a tenant may have below memory; `None` where it has no quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierQuotas {
    /// On the clients' local disks, an object on two of them counted twice.
    pub disks: Option<u64>,
    /// In files of the shared tier.
    pub files: Option<u64>,
}

impl TierQuotas {
    /// No quota below memory.
    pub const NONE: Self = Self { disks: None, files: None };
}

/// The quota of a tenant on one tier below memory, and its usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierUsage {
    /// Bytes that it may have; [`UNLIMITED`] without a quota.
    pub limit: u64,
    /// Bytes that it has, those being written included.
    pub bytes: u64,
    /// Objects that were not written there because of the quota.
    pub refused: u64,
}

impl TierUsage {
    /// The usage of a tenant without a quota that has nothing there.
    pub const NONE: Self = Self { limit: UNLIMITED, bytes: 0, refused: 0 };

    /// The quota.
    #[must_use]
    pub const fn quota(&self) -> Option<u64> {
        if self.limit == UNLIMITED { None } else { Some(self.limit) }
    }
}

impl Default for TierUsage {
    fn default() -> Self {
        Self::NONE
    }
}

/// A tier below memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TierBelow {
    /// The clients' local disks.
    Disks,
    /// Files of the shared tier.
    Files,
}

/// The counters of one tenant on one tier.
#[derive(Debug)]
pub(crate) struct TierAccount {
    limit: AtomicU64,
    bytes: AtomicU64,
    refused: AtomicU64,
}

impl Default for TierAccount {
    fn default() -> Self {
        Self {
            limit: AtomicU64::new(UNLIMITED),
            bytes: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }
}

impl TierAccount {
    pub(crate) fn limit_to(&self, quota: Option<u64>) {
        self.limit.store(quota.unwrap_or(UNLIMITED), Ordering::Relaxed);
    }

    pub(crate) fn quota(&self) -> Option<u64> {
        self.usage().quota()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) == 0
    }

    /// Prepares an empty account without a quota for another tenant.
    pub(crate) fn reset(&self) {
        self.refused.store(0, Ordering::Relaxed);
    }

    pub(crate) fn usage(&self) -> TierUsage {
        let [limit, bytes, refused] =
            [&self.limit, &self.bytes, &self.refused].map(|it| it.load(Ordering::Relaxed));
        TierUsage { limit, bytes, refused }
    }

    fn take(&self, len: u64) -> bool {
        let limit = self.limit.load(Ordering::Relaxed);
        let more = |bytes: u64| bytes.checked_add(len).filter(|sum| *sum <= limit);
        self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }
}

impl Quotas {
    /// Takes room within the tenant's quota of a tier; false when there is none.
    pub(crate) fn take_below(&self, tier: TierBelow, tenant: TenantSlot, len: u64) -> bool {
        self.below(tier, tenant).is_none_or(|account| account.take(len))
    }

    /// Counts what is on a tier already, however much that is.
    pub(crate) fn add_below(&self, tier: TierBelow, tenant: TenantSlot, len: u64) {
        if let Some(account) = self.below(tier, tenant) {
            // Wraps where clients claim more than there can be, and is exact again without that.
            account.bytes.fetch_add(len, Ordering::Relaxed);
        }
    }

    /// Gives back what was taken or added.
    pub(crate) fn give_back_below(&self, tier: TierBelow, tenant: TenantSlot, len: u64) {
        if let Some(account) = self.below(tier, tenant)
            && account.bytes.fetch_sub(len, Ordering::Relaxed) < len
        {
            self.note_mismatch();
        }
    }

    /// Returns whether the tenant could have `len` bytes on a tier if it had nothing else there, and
    /// has too much there.
    pub(crate) fn lacks_below(&self, tier: TierBelow, tenant: TenantSlot, len: u64) -> bool {
        self.below(tier, tenant).is_some_and(|account| {
            let TierUsage { limit, bytes, .. } = account.usage();
            len <= limit && bytes > limit - len
        })
    }

    /// Counts an object that is not written to a tier because of its tenant's quota.
    pub(crate) fn refuse_below(&self, tier: TierBelow, tenant: TenantSlot) {
        if let Some(account) = self.below(tier, tenant) {
            account.refused.fetch_add(1, Ordering::Relaxed);
        }
    }
}
