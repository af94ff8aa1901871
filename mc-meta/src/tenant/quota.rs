//! How many bytes each tenant may have and has.

use core::{fmt, mem};
use std::collections::BTreeMap;

use mc_types::{ByteSize, ErrorCode, KeyRef};
use thiserror::Error;

use crate::tenant::below::{TierAccount, TierBelow, TierQuotas, TierUsage};
use crate::tenant::id::{TenantId, unscoped};
use crate::tenant::ledger::{Ledger, Policy, TenantSlot};

/// Most tenants that can be charged at a time.
pub const MAX_TENANTS: usize = 1 << 16;

/// Most bytes that a tenant can be given: what Mooncake's counters hold.
pub const MAX_QUOTA: u64 = i64::MAX as u64;

/// Stands for no limit where a tenant's usage says how many bytes it may have.
pub const UNLIMITED: u64 = u64::MAX;

/// The quota of a tenant that has none of its own.
///
/// It is a limit for each such tenant and not a promise: the quotas that tenants have of
/// their own are not scaled down for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum DefaultQuota {
    /// As much as there is room for.
    #[default]
    Unlimited,
    /// So many bytes, between 1 and [`MAX_QUOTA`].
    Bytes(u64),
    /// Nothing: it puts when it has been given a quota.
    Denied,
}

/// The treatment of a put that exceeds its tenant's quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum QuotaMode {
    /// Objects of the tenant are evicted to make room for it.
    #[default]
    Evict,
    /// The put is refused, and nothing is evicted for it: objects stay until they are removed, or the
    /// whole pool needs room.
    Refuse,
}

/// Quotas of tenants and their current usage.
///
/// Off, everything belongs to the default tenant, nothing is counted or limited, and
/// each call costs one branch. On, a tenant may write as much as its policy says: the
/// requested quotas, all scaled down alike when they add up to more than the capacity
/// that can be allocated. Tenants without a policy have the [`DefaultQuota`].
///
/// A charge is refused rather than allowed past the effective quota, whatever other
/// threads charge. The sum charged is the sum of what is kept and not yet refunded.
/// What exists stays when a quota shrinks below it; only more is refused.
///
/// Charging by name and changing a policy take a lock for reading and for writing. All
/// else is atomic counters. No call waits for anything else.
#[derive(Default)]
pub struct Quotas(Option<Box<Ledger>>);

impl Quotas {
    /// Without tenants.
    #[must_use]
    pub const fn off() -> Self {
        Self(None)
    }

    /// With tenants, and a capacity of zero until [`set_capacity`](Self::set_capacity).
    #[must_use]
    pub fn on(default: DefaultQuota) -> Self {
        Self(Some(Box::new(Ledger::new(default))))
    }

    /// Returns whether there are tenants.
    #[must_use]
    pub const fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// The tenant that a request is charged to: without tenants, the default one.
    #[must_use]
    pub const fn acting<'a>(&self, tenant: &'a TenantId) -> &'a TenantId {
        if self.is_on() { tenant } else { &TenantId::DEFAULT }
    }

    /// Sets the number of bytes there are to allocate. Takes time in the number of tenants.
    pub fn set_capacity(&self, bytes: u64) {
        if let Some(ledger) = &self.0 {
            ledger.set_capacity(bytes);
        }
    }

    /// Gives a tenant a quota, or another one. Takes time in the number of tenants.
    ///
    /// # Errors
    /// [`PolicyError`]; nothing is changed then.
    pub fn set_policy(&self, tenant: &TenantId, requested: u64) -> Result<(), PolicyError> {
        self.set_policy_with(tenant, requested, QuotaMode::Evict)
    }

    /// [`set_policy`](Self::set_policy), and what becomes of puts beyond the quota.
    ///
    /// # Errors
    /// [`PolicyError`]; nothing is changed then.
    pub fn set_policy_with(
        &self,
        tenant: &TenantId,
        requested: u64,
        mode: QuotaMode,
    ) -> Result<(), PolicyError> {
        self.set_policy_below(tenant, Some(requested), mode, TierQuotas::NONE)
    }

    /// [`set_policy_with`](Self::set_policy_with), and the quotas below memory. Without a quota of
    /// memory the tenant has the [`DefaultQuota`] there.
    ///
    /// # Errors
    /// [`PolicyError`]; nothing is changed then.
    pub fn set_policy_below(
        &self,
        tenant: &TenantId,
        requested: Option<u64>,
        mode: QuotaMode,
        below: TierQuotas,
    ) -> Result<(), PolicyError> {
        let ledger = self.ledger()?;
        if requested.is_some() || below == TierQuotas::NONE {
            check(requested.unwrap_or(0))?;
        }
        ledger.set_policy(tenant, Policy { requested: requested.unwrap_or(0), mode, below })
    }

    /// Makes these the only policies. A tenant that loses its own keeps what it has, and
    /// has the [`DefaultQuota`] from then on; one that has a policy still keeps its mode and its
    /// quotas below memory.
    ///
    /// # Errors
    /// [`PolicyError`]; nothing is changed then.
    pub fn replace_policies(&self, policies: &BTreeMap<TenantId, u64>) -> Result<(), PolicyError> {
        let ledger = self.ledger()?;
        policies.values().try_for_each(|requested| check(*requested))?;
        ledger.replace_policies(policies)
    }

    /// Takes a tenant's policy away. Takes time in the number of tenants.
    ///
    /// # Errors
    /// [`PolicyError`]: there is no policy, or the tenant still has something and there is
    /// no default quota.
    pub fn delete_policy(&self, tenant: &TenantId) -> Result<(), PolicyError> {
        self.ledger()?.delete_policy(tenant)
    }

    /// Charges a new object of `bytes`. The charge is taken back when what is returned
    /// is dropped, unless it is [kept](Charge::keep).
    ///
    /// # Errors
    /// [`QuotaError`] when the tenant may not write, or not so much.
    pub fn charge(&self, tenant: &TenantId, bytes: u64) -> Result<Charge<'_>, QuotaError> {
        let Some(ledger) = &self.0 else { return Ok(Charge::free()) };
        let slot = ledger.charge_object(tenant.as_str(), bytes)?;
        Ok(Charge { ledger: Some(ledger), slot, bytes, objects: 1 })
    }

    /// [Charges](Self::charge) the owner of a stored key.
    pub(crate) fn charge_owner(
        &self,
        stored: KeyRef<'_>,
        bytes: u64,
    ) -> Result<Charge<'_>, QuotaError> {
        let Some(ledger) = &self.0 else { return Ok(Charge::free()) };
        let slot = ledger.charge_object(unscoped(stored).0, bytes)?;
        Ok(Charge { ledger: Some(ledger), slot, bytes, objects: 1 })
    }

    /// Charges `bytes` more for an object that is charged already, such as for another
    /// replica. The object must not go meanwhile.
    ///
    /// # Errors
    /// [`QuotaError`] when the tenant has no policy any more, or would have too much.
    pub fn charge_more(&self, slot: TenantSlot, bytes: u64) -> Result<Charge<'_>, QuotaError> {
        let Some(ledger) = &self.0 else { return Ok(Charge::free()) };
        ledger.charge_bytes(slot, bytes)?;
        Ok(Charge { ledger: Some(ledger), slot, bytes, objects: 0 })
    }

    /// Notes that `bytes` of an object are free again while the object stays.
    pub fn refund(&self, slot: TenantSlot, bytes: u64) {
        if let Some(ledger) = &self.0 {
            ledger.give_back(slot, bytes, 0);
        }
    }

    /// Notes that an object is gone with the last `bytes` that were charged for it.
    pub fn release(&self, slot: TenantSlot, bytes: u64) {
        if let Some(ledger) = &self.0 {
            ledger.give_back(slot, bytes, 1);
        }
    }

    /// Counts bytes of a tenant that were evicted. They are not refunded by this.
    pub fn evicted(&self, slot: TenantSlot, bytes: u64) {
        if let Some(ledger) = &self.0 {
            ledger.evicted(slot, bytes);
        }
    }

    /// The counters of a tenant on a tier below memory; `None` without tenants.
    pub(super) fn below(&self, tier: TierBelow, tenant: TenantSlot) -> Option<&TierAccount> {
        self.0.as_ref()?.below(tier, tenant)
    }

    /// Counts a refund of more than was charged.
    pub(super) fn note_mismatch(&self) {
        if let Some(ledger) = &self.0 {
            ledger.note_mismatch();
        }
    }

    /// Returns whether a tenant has, or had, a quota below memory.
    pub(crate) fn limits_below(&self) -> bool {
        self.0.as_ref().is_some_and(|ledger| ledger.limits_below())
    }

    /// Where objects of the tenant that owns a stored key are charged, if anything can be.
    pub(crate) fn owner_slot(&self, stored: KeyRef<'_>) -> Option<TenantSlot> {
        self.0.as_ref()?.slot_named(unscoped(stored).0)
    }

    /// Where objects of the tenant are charged, if anything can be.
    pub(crate) fn slot(&self, tenant: &TenantId) -> Option<TenantSlot> {
        self.0.as_ref()?.slot(tenant)
    }

    /// The treatment of puts beyond the tenant's quota.
    pub(crate) fn mode(&self, slot: TenantSlot) -> QuotaMode {
        self.0.as_ref().map_or(QuotaMode::Evict, |ledger| ledger.mode(slot))
    }

    /// The tenant that exceeds its quota by most, because that has shrunk, and by how
    /// many bytes.
    pub(crate) fn over_quota(&self) -> Option<(TenantSlot, u64)> {
        self.0.as_ref()?.over_quota()
    }

    /// Bytes of the tenant that go as soon as they are on a disk.
    pub(crate) fn leaving(&self, slot: TenantSlot) -> u64 {
        self.0.as_ref().map_or(0, |ledger| ledger.leaving(slot))
    }

    /// Notes that `bytes` of an object go as soon as it is on a disk.
    pub(crate) fn leaves(&self, slot: TenantSlot, bytes: u64) {
        if let Some(ledger) = &self.0 {
            ledger.leaves(slot, bytes);
        }
    }

    /// Notes that these bytes are gone, or do not go.
    pub(crate) fn leaves_no_more(&self, slot: TenantSlot, bytes: u64) {
        if let Some(ledger) = &self.0 {
            ledger.leaves_no_more(slot, bytes);
        }
    }

    /// Counts objects that a tenant asked for: those that could be read and those that could not.
    pub(crate) fn looked_up(&self, tenant: &TenantId, found: u64, missed: u64) {
        if let Some(ledger) = &self.0 {
            ledger.looked_up(tenant, found, missed);
        }
    }

    /// Charges an object that existed before this ledger did, as a restart finds it in
    /// the journal: above the quota if need be, and for a tenant without a policy too,
    /// which then can only shrink.
    ///
    /// # Errors
    /// [`PolicyError`] when there are too many tenants or bytes.
    pub fn restore(&self, tenant: &TenantId, bytes: u64) -> Result<TenantSlot, PolicyError> {
        self.0.as_ref().map_or(Ok(TenantSlot::DEFAULT), |ledger| ledger.restore(tenant, bytes))
    }

    /// One tenant's row of the [report](Self::report); `None` when it has neither a
    /// policy nor objects and there is no default quota.
    #[must_use]
    pub fn usage(&self, tenant: &TenantId) -> Option<TenantUsage> {
        self.0.as_ref()?.usage(tenant)
    }

    /// The quotas and usage of all tenants, by name; `None` without tenants. Takes time
    /// in the number of tenants.
    #[must_use]
    pub fn report(&self) -> Option<QuotaReport> {
        Some(self.0.as_ref()?.report())
    }

    fn ledger(&self) -> Result<&Ledger, PolicyError> {
        self.0.as_deref().ok_or(PolicyError::Off)
    }
}

fn check(requested: u64) -> Result<(), PolicyError> {
    if (1..=MAX_QUOTA).contains(&requested) {
        Ok(())
    } else {
        Err(PolicyError::OutOfRange { requested })
    }
}

impl fmt::Debug for Quotas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Quotas").field("is_on", &self.is_on()).finish_non_exhaustive()
    }
}

/// Bytes charged to a tenant for space that is being taken. Dropped, it takes itself
/// back, so no way out of a command leaks it.
#[must_use = "a charge that is dropped is taken back"]
#[derive(Debug)]
pub struct Charge<'a> {
    ledger: Option<&'a Ledger>,
    slot: TenantSlot,
    bytes: u64,
    objects: u64,
}

impl Charge<'_> {
    /// A charge that costs nothing, while there are no tenants.
    pub(crate) const fn free() -> Self {
        Self { ledger: None, slot: TenantSlot::DEFAULT, bytes: 0, objects: 0 }
    }

    /// Gives back what is above `bytes`: fewer replicas got space than were asked for.
    pub fn shrink_to(&mut self, bytes: u64) {
        let excess = self.bytes.saturating_sub(bytes);
        if let Some(ledger) = self.ledger
            && excess > 0
        {
            ledger.give_back(self.slot, excess, 0);
            self.bytes = bytes;
        }
    }

    /// To whom it is charged.
    pub(crate) const fn slot(&self) -> TenantSlot {
        self.slot
    }

    /// Makes the charge last until it is [refunded](Quotas::refund) or
    /// [released](Quotas::release), and says to whom.
    pub fn keep(mut self) -> TenantSlot {
        self.ledger = None;
        self.slot
    }
}

impl Drop for Charge<'_> {
    fn drop(&mut self) {
        if let Some(ledger) = self.ledger {
            ledger.give_back(self.slot, mem::take(&mut self.bytes), mem::take(&mut self.objects));
        }
    }
}

/// The quota and usage of one tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantUsage {
    /// The tenant.
    pub tenant: TenantId,
    /// Bytes that its policy gives it; `None` without a policy.
    pub requested: Option<u64>,
    /// The treatment of puts beyond its quota.
    pub mode: QuotaMode,
    /// Bytes that it may have, given what the others were promised; without a policy, those
    /// of the [`DefaultQuota`], [`UNLIMITED`] when there is no limit.
    pub effective: u64,
    /// Bytes charged.
    pub charged: u64,
    /// Objects charged, those whose put is under way included.
    pub objects: u64,
    /// Charges refused.
    pub rejected: u64,
    /// Bytes evicted.
    pub evicted_bytes: u64,
    /// On the clients' local disks.
    pub disks: TierUsage,
    /// In files of the shared tier.
    pub files: TierUsage,
    /// Objects that it asked for and that could be read, counted from its first object or quota.
    pub found: u64,
    /// Objects that it asked for and that could not.
    pub missed: u64,
}

impl TenantUsage {
    /// A tenant that has neither a policy nor objects.
    pub(crate) const fn new(tenant: TenantId, effective: u64) -> Self {
        let (charged, objects, rejected, evicted_bytes) = (0, 0, 0, 0);
        let (requested, mode) = (None, QuotaMode::Evict);
        let (disks, files) = (TierUsage::NONE, TierUsage::NONE);
        Self {
            tenant,
            requested,
            mode,
            effective,
            charged,
            objects,
            rejected,
            evicted_bytes,
            disks,
            files,
            found: 0,
            missed: 0,
        }
    }

    /// Its quotas below memory.
    #[must_use]
    pub const fn below(&self) -> TierQuotas {
        TierQuotas { disks: self.disks.quota(), files: self.files.quota() }
    }

    /// Returns whether it has a quota of its own, of whatever tier.
    #[must_use]
    pub const fn has_policy(&self) -> bool {
        self.requested.is_some() || self.disks.quota().is_some() || self.files.quota().is_some()
    }

    /// Returns whether it has more than it may, because its quota has shrunk.
    #[must_use]
    pub const fn is_over_quota(&self) -> bool {
        self.charged > self.effective
    }
}

/// The quotas and usage of all tenants.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QuotaReport {
    /// Bytes that can be allocated.
    pub capacity: u64,
    /// Bytes that all policies give, at most `u64::MAX`.
    pub requested: u64,
    /// Bytes that all tenants with a policy may have.
    pub effective: u64,
    /// Charges refused to tenants without a policy, where there is no default quota.
    pub unregistered: u64,
    /// Refunds of more than was charged, which changed nothing. Anything but zero is a
    /// defect.
    pub mismatches: u64,
    /// The tenants that have a policy or objects, by name.
    pub tenants: Vec<TenantUsage>,
}

/// Why a tenant is not charged, so gets no space.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum QuotaError {
    /// The tenant has no policy.
    #[error("tenant {tenant} has no quota, so it may not write; set one")]
    NotRegistered {
        /// The tenant.
        tenant: TenantId,
    },
    /// The tenant would have more than it may.
    #[error(
        "tenant {tenant} has {} and wants {} more; it may have {} of the {} in its policy",
        ByteSize::bytes(*.charged), ByteSize::bytes(*.wanted),
        ByteSize::bytes(*.effective), ByteSize::bytes(*.requested)
    )]
    Exceeded {
        /// The tenant.
        tenant: TenantId,
        /// Bytes charged to it.
        charged: u64,
        /// Bytes that it may have.
        effective: u64,
        /// Bytes that its policy gives it.
        requested: u64,
        /// Bytes that it wants beside those charged.
        wanted: u64,
    },
}

impl QuotaError {
    /// The cause's number.
    #[must_use]
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::NotRegistered { .. } => ErrorCode::TenantNotRegistered,
            Self::Exceeded { .. } => ErrorCode::TenantQuotaExceeded,
        }
    }

    /// Returns whether the same call may succeed later without an administrator's help: the
    /// tenant's objects are removed or evicted.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::Exceeded { effective, wanted, .. } if *wanted <= *effective)
    }
}

/// Why a policy is not changed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// There are no tenants.
    #[error("this master runs without tenants; start it with tenants enabled")]
    Off,
    /// The quota is zero or above the limit.
    #[error("a quota of {requested} bytes; choose between 1 and {MAX_QUOTA}")]
    OutOfRange {
        /// The bytes given.
        requested: u64,
    },
    /// The tenant has no policy.
    #[error("tenant {tenant} has no quota")]
    NotRegistered {
        /// The tenant.
        tenant: TenantId,
    },
    /// The tenant still has something.
    #[error("tenant {tenant} still has {objects} objects and {charged} bytes; remove them first")]
    NotEmpty {
        /// The tenant.
        tenant: TenantId,
        /// Bytes charged to it.
        charged: u64,
        /// Objects charged to it.
        objects: u64,
    },
    /// No account is left.
    #[error("there are {MAX_TENANTS} tenants with a quota or objects, which is the limit")]
    TooManyTenants,
    /// The tenant's bytes do not fit in 63 bits.
    #[error("the bytes of tenant {tenant} overflow when added")]
    TooManyBytes {
        /// The tenant.
        tenant: TenantId,
    },
}

impl PolicyError {
    /// The cause's number.
    #[must_use]
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::Off => ErrorCode::UnavailableInCurrentMode,
            Self::OutOfRange { .. } | Self::TooManyTenants | Self::TooManyBytes { .. } => {
                ErrorCode::InvalidParams
            }
            Self::NotRegistered { .. } => ErrorCode::TenantNotRegistered,
            Self::NotEmpty { .. } => ErrorCode::TenantNotEmpty,
        }
    }

    /// Returns whether the same call may succeed later: the tenant's objects go.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::NotEmpty { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> TenantId {
        TenantId::new(name).unwrap()
    }

    fn with_policies(capacity: u64, policies: &[(&str, u64)]) -> Quotas {
        let quotas = Quotas::on(DefaultQuota::Denied);
        quotas.set_capacity(capacity);
        for (name, requested) in policies {
            quotas.set_policy(&tenant(name), *requested).unwrap();
        }
        quotas
    }

    fn charged(quotas: &Quotas, name: &str) -> u64 {
        quotas.usage(&tenant(name)).unwrap().charged
    }

    #[test]
    fn off_means_one_tenant_without_limits() {
        let quotas = Quotas::off();
        let slot = quotas.charge(&tenant("a"), u64::MAX).unwrap().keep();
        assert_eq!(slot, TenantSlot::DEFAULT);
        assert_eq!(quotas.charge_more(slot, u64::MAX).unwrap().keep(), slot);
        quotas.release(slot, 1);
        assert_eq!(quotas.acting(&tenant("a")), &TenantId::DEFAULT);
        assert_eq!(quotas.set_policy(&tenant("a"), 1), Err(PolicyError::Off));
        assert_eq!(PolicyError::Off.code(), ErrorCode::UnavailableInCurrentMode);
        assert_eq!(quotas.report(), None);
    }

    #[test]
    fn nobody_writes_without_a_policy() {
        let quotas = with_policies(100, &[]);
        for name in ["a", "default"] {
            let refused = quotas.charge(&tenant(name), 0).unwrap_err();
            assert_eq!(refused, QuotaError::NotRegistered { tenant: tenant(name) });
            assert_eq!(refused.code(), ErrorCode::TenantNotRegistered);
        }
        let report = quotas.report().unwrap();
        assert_eq!((report.tenants.len(), report.unregistered), (0, 2));
    }

    #[test]
    fn the_limit_is_exact() {
        let quotas = with_policies(100, &[("a", 10)]);
        let kept = quotas.charge(&tenant("a"), 7).unwrap().keep();
        let refused = quotas.charge(&tenant("a"), 4).unwrap_err();
        assert_eq!(
            refused,
            QuotaError::Exceeded {
                tenant: tenant("a"),
                charged: 7,
                effective: 10,
                requested: 10,
                wanted: 4
            }
        );
        assert_eq!(refused.code(), ErrorCode::TenantQuotaExceeded);
        assert!(refused.is_retryable());
        assert!(!quotas.charge(&tenant("a"), u64::MAX).unwrap_err().is_retryable());
        assert_eq!(quotas.charge_more(kept, 3).unwrap().keep(), kept);
        assert!(quotas.charge_more(kept, 1).is_err());
        quotas.evicted(kept, 10);
        quotas.release(kept, 10);
        let usage = quotas.usage(&tenant("a")).unwrap();
        assert_eq!((usage.charged, usage.objects, usage.rejected), (0, 0, 3));
        assert_eq!(usage.evicted_bytes, 10);
    }

    #[test]
    fn a_charge_that_is_not_kept_takes_itself_back() {
        let quotas = with_policies(100, &[("a", 10)]);
        let mut charge = quotas.charge(&tenant("a"), 10).unwrap();
        charge.shrink_to(4);
        charge.shrink_to(8);
        assert_eq!(charged(&quotas, "a"), 4);
        let slot = charge.keep();
        drop(quotas.charge(&tenant("a"), 6).unwrap());
        drop(quotas.charge_more(slot, 6).unwrap());
        let usage = quotas.usage(&tenant("a")).unwrap();
        assert_eq!((usage.charged, usage.objects), (4, 1));
    }

    #[test]
    fn quotas_shrink_alike_when_there_is_too_little() {
        let quotas = with_policies(1000, &[("a", 300), ("b", 100)]);
        let effective = |name| quotas.usage(&tenant(name)).unwrap().effective;
        assert_eq!((effective("a"), effective("b")), (300, 100));
        let slot = quotas.charge(&tenant("a"), 300).unwrap().keep();
        quotas.set_capacity(200);
        assert_eq!((effective("a"), effective("b")), (150, 50));
        assert!(quotas.usage(&tenant("a")).unwrap().is_over_quota());
        assert!(quotas.charge(&tenant("a"), 1).is_err());
        quotas.refund(slot, 151);
        assert_eq!(quotas.charge(&tenant("a"), 1).unwrap().keep(), slot);
        quotas.set_policy(&tenant("b"), MAX_QUOTA).unwrap();
        assert_eq!((effective("a"), effective("b")), (0, 199));
    }

    #[test]
    fn a_policy_stays_while_its_tenant_has_something() {
        let quotas = with_policies(100, &[("a", 10)]);
        let slot = quotas.charge(&tenant("a"), 0).unwrap().keep();
        let refused = quotas.delete_policy(&tenant("a")).unwrap_err();
        assert_eq!(refused, PolicyError::NotEmpty { tenant: tenant("a"), charged: 0, objects: 1 });
        assert_eq!(refused.code(), ErrorCode::TenantNotEmpty);
        quotas.release(slot, 0);
        assert_eq!(quotas.delete_policy(&tenant("a")), Ok(()));
        let gone = PolicyError::NotRegistered { tenant: tenant("a") };
        assert_eq!(quotas.delete_policy(&tenant("a")), Err(gone));
        for requested in [0, MAX_QUOTA + 1] {
            let refused = quotas.set_policy(&tenant("a"), requested).unwrap_err();
            assert_eq!(refused, PolicyError::OutOfRange { requested });
        }
    }

    #[test]
    fn who_loses_the_policy_keeps_what_there_is() {
        let quotas = with_policies(100, &[("a", 10), ("b", 10)]);
        let slot = quotas.charge(&tenant("a"), 5).unwrap().keep();
        let policies = BTreeMap::from([(tenant("c"), 7)]);
        quotas.replace_policies(&policies).unwrap();
        assert!(quotas.charge(&tenant("a"), 1).is_err());
        assert!(quotas.charge_more(slot, 1).is_err());
        let names = |quotas: &Quotas| -> Vec<String> {
            let tenants = quotas.report().unwrap().tenants;
            tenants.iter().map(|row| row.tenant.to_string()).collect()
        };
        assert_eq!(names(&quotas), ["a", "c"]);
        quotas.release(slot, 5);
        assert_eq!(names(&quotas), ["c"]);
        let restored = quotas.restore(&tenant("d"), 50).unwrap();
        assert!(quotas.charge(&tenant("d"), 1).is_err());
        assert_eq!(names(&quotas), ["c", "d"]);
        quotas.release(restored, 50);
        let full = quotas.restore(&tenant("d"), MAX_QUOTA).unwrap();
        let refused = quotas.restore(&tenant("d"), 1).unwrap_err();
        assert_eq!(refused, PolicyError::TooManyBytes { tenant: tenant("d") });
        quotas.release(full, MAX_QUOTA);
    }

    #[test]
    fn refunds_of_what_was_not_charged_change_nothing() {
        let quotas = with_policies(100, &[("a", 10)]);
        let slot = quotas.charge(&tenant("a"), 5).unwrap().keep();
        quotas.refund(slot, 6);
        assert_eq!(charged(&quotas, "a"), 5);
        assert_eq!(quotas.report().unwrap().mismatches, 1);
    }

    #[test]
    fn accounts_of_tenants_that_left_are_used_again() {
        let quotas = with_policies(u64::MAX, &[]);
        let half = |at: usize| -> BTreeMap<TenantId, u64> {
            let ids = at..at + MAX_TENANTS / 2;
            ids.map(|id| (tenant(&format!("t{id}")), 1)).collect()
        };
        let kept: Vec<TenantSlot> = {
            let policies = half(0);
            quotas.replace_policies(&policies).unwrap();
            policies.keys().map(|id| quotas.charge(id, 1).unwrap().keep()).collect()
        };
        // Those of the first half stay for what they have, and the default one always.
        assert_eq!(quotas.replace_policies(&half(100_000)), Err(PolicyError::TooManyTenants));
        assert_eq!(quotas.report().unwrap().requested, MAX_TENANTS as u64 / 2);
        quotas.release(kept[0], 1);
        assert_eq!(quotas.replace_policies(&half(100_000)), Ok(()));
        assert_eq!(quotas.set_policy(&tenant("late"), 1), Err(PolicyError::TooManyTenants));
        quotas.release(kept[1], 1);
        assert_eq!(quotas.set_policy(&tenant("late"), 1), Ok(()));
        let slot = quotas.charge(&tenant("late"), 1).unwrap().keep();
        assert_eq!(slot, kept[1], "the only account that was free");
        assert_eq!(quotas.report().unwrap().mismatches, 0);
    }

    #[test]
    fn threads_together_never_pass_a_limit() {
        let quotas = with_policies(u64::MAX, &[("a", 1000), ("b", 500)]);
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let quotas = &quotas;
                scope.spawn(move || {
                    let mut random = fastrand::Rng::with_seed(thread);
                    let mut kept = Vec::new();
                    for _ in 0..5000 {
                        let (name, limit) = [("a", 1000), ("b", 500)][random.usize(..2)];
                        let bytes = random.u64(1..200);
                        if let Ok(charge) = quotas.charge(&tenant(name), bytes) {
                            assert!(charged(quotas, name) <= limit);
                            if random.bool() {
                                kept.push((charge.keep(), bytes));
                            }
                        }
                        if kept.len() > 10 {
                            let (slot, bytes) = kept.swap_remove(random.usize(..kept.len()));
                            quotas.release(slot, bytes);
                        }
                    }
                    for (slot, bytes) in kept {
                        quotas.release(slot, bytes);
                    }
                });
            }
        });
        let report = quotas.report().unwrap();
        assert_eq!(report.mismatches, 0);
        assert!(report.tenants.iter().all(|row| (row.charged, row.objects) == (0, 0)));
        assert!(report.tenants.iter().all(|row| row.rejected > 0), "the limits were reached");
    }
}
