//! The accounts behind [`Quotas`](crate::tenant::quota::Quotas).

use core::fmt;
use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::tenant::below::{TierAccount, TierBelow, TierQuotas};
use crate::tenant::id::TenantId;
use crate::tenant::quota::{
    DefaultQuota, MAX_QUOTA, MAX_TENANTS, PolicyError, QuotaError, QuotaMode, QuotaReport,
    TenantUsage, UNLIMITED,
};
use crate::vocabulary::lock::{RwLock, rank};

/// Accounts that are made at a time.
const CHUNK: usize = 256;

/// The number under which an object's tenant is kept with it. It names that tenant for
/// as long as anything is charged to it, and may then be given to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantSlot(u16);

impl TenantSlot {
    /// The default tenant's, which never changes.
    pub const DEFAULT: Self = Self(0);

    const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The quota of a tenant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Policy {
    /// Bytes of memory; zero for the default.
    pub(crate) requested: u64,
    pub(crate) mode: QuotaMode,
    pub(crate) below: TierQuotas,
}

impl Policy {
    const NONE: Self = Self { requested: 0, mode: QuotaMode::Evict, below: TierQuotas::NONE };
}

/// Accounts and whose they are.
///
/// An account changes hands only under the directory's lock for writing and while
/// nothing is charged to it. So one that is found by name stays that tenant's until the
/// lock for reading is let go, and one that something is charged to needs no lock.
pub(crate) struct Ledger {
    /// Bytes that a tenant without a policy may have; zero keeps it from writing.
    default: u64,
    directory: RwLock<Directory, { rank::ACCOUNTS }>,
    accounts: Accounts,
    unregistered: AtomicU64,
    mismatches: AtomicU64,
    /// Whether a tenant may have more than its quota. Set under the directory's lock for
    /// writing, where quotas shrink, and taken back under the one for reading.
    over: AtomicBool,
    /// Whether a tenant was given a quota below memory.
    limits_below: AtomicBool,
}

/// The tenants of the accounts. Ordered, so that reports and the order of slots are.
struct Directory {
    slots: BTreeMap<TenantId, TenantSlot>,
    /// The tenant that had each slot last.
    names: Vec<TenantId>,
    /// Slots without a tenant.
    vacant: Vec<TenantSlot>,
    capacity: u64,
}

impl Ledger {
    pub(crate) fn new(default: DefaultQuota) -> Self {
        let default = match default {
            DefaultQuota::Unlimited => UNLIMITED,
            DefaultQuota::Bytes(bytes) => bytes,
            DefaultQuota::Denied => 0,
        };
        let accounts = Accounts((0..MAX_TENANTS / CHUNK).map(|_| OnceLock::new()).collect());
        accounts.make(TenantSlot::DEFAULT).reset(default);
        Self {
            default,
            directory: RwLock::new(Directory {
                slots: BTreeMap::from([(TenantId::DEFAULT, TenantSlot::DEFAULT)]),
                names: vec![TenantId::DEFAULT],
                vacant: Vec::new(),
                capacity: 0,
            }),
            accounts,
            unregistered: AtomicU64::new(0),
            mismatches: AtomicU64::new(0),
            over: AtomicBool::new(false),
            limits_below: AtomicBool::new(false),
        }
    }

    pub(crate) fn set_capacity(&self, bytes: u64) {
        let mut directory = self.directory.write();
        if directory.capacity != bytes {
            directory.capacity = bytes;
            self.scale(&directory);
        }
    }

    pub(crate) fn set_policy(&self, tenant: &TenantId, policy: Policy) -> Result<(), PolicyError> {
        let mut directory = self.directory.write();
        let slot = self.open(&mut directory, tenant)?;
        self.accounts.make(slot).set_policy(policy);
        if policy.below != TierQuotas::NONE {
            self.limits_below.store(true, Ordering::Relaxed);
        }
        self.scale(&directory);
        Ok(())
    }

    pub(crate) fn replace_policies(
        &self,
        policies: &BTreeMap<TenantId, u64>,
    ) -> Result<(), PolicyError> {
        let mut directory = self.directory.write();
        let others = directory.slots.iter().filter(|(tenant, _)| !policies.contains_key(*tenant));
        let kept = others.filter(|(tenant, slot)| {
            tenant.is_default() || self.accounts.get(**slot).is_some_and(|a| !a.is_empty())
        });
        if kept.count() + policies.len() > MAX_TENANTS {
            return Err(PolicyError::TooManyTenants);
        }
        for (tenant, slot) in &directory.slots {
            if !policies.contains_key(tenant) {
                self.accounts.make(*slot).set_policy(Policy::NONE);
            }
        }
        self.vacate(&mut directory);
        for (tenant, requested) in policies {
            let slot = self.open(&mut directory, tenant)?;
            let account = self.accounts.make(slot);
            account.set_policy(Policy { requested: *requested, ..account.policy() });
        }
        self.scale(&directory);
        Ok(())
    }

    pub(crate) fn delete_policy(&self, tenant: &TenantId) -> Result<(), PolicyError> {
        let mut directory = self.directory.write();
        let account = directory.slots.get(tenant).and_then(|slot| self.accounts.get(*slot));
        let Some(account) = account.filter(|account| account.has_policy()) else {
            return Err(PolicyError::NotRegistered { tenant: tenant.clone() });
        };
        // With a default quota the tenant continues under that one.
        if self.default == 0 && !account.is_empty() {
            return Err(PolicyError::NotEmpty {
                tenant: tenant.clone(),
                charged: get(&account.charged),
                objects: get(&account.objects),
            });
        }
        account.set_policy(Policy::NONE);
        self.vacate(&mut directory);
        self.scale(&directory);
        Ok(())
    }

    /// Charges a new object.
    pub(crate) fn charge_object(&self, tenant: &str, bytes: u64) -> Result<TenantSlot, QuotaError> {
        // A text that is no tenant's name finds nothing either.
        let name = || TenantId::new(tenant).unwrap_or_default();
        let charge = |slot| {
            let account = self.accounts.make(slot);
            self.admit(account, bytes, name)?;
            count(&account.objects, 1);
            Ok(slot)
        };
        let directory = self.directory.read();
        if let Some(slot) = directory.slots.get(tenant) {
            return charge(*slot);
        }
        drop(directory);
        if self.default > 0 {
            let mut directory = self.directory.write();
            // A tenant for which no account is left is one without a quota.
            if let Ok(slot) = self.open(&mut directory, &name()) {
                return charge(slot);
            }
        }
        count(&self.unregistered, 1);
        Err(QuotaError::NotRegistered { tenant: name() })
    }

    /// Charges bytes for an object that is charged already.
    pub(crate) fn charge_bytes(&self, slot: TenantSlot, bytes: u64) -> Result<(), QuotaError> {
        let name = || self.directory.read().names.get(slot.index()).cloned().unwrap_or_default();
        match self.accounts.get(slot) {
            Some(account) => self.admit(account, bytes, name),
            None => Err(QuotaError::NotRegistered { tenant: name() }),
        }
    }

    fn admit(
        &self,
        account: &Account,
        bytes: u64,
        tenant: impl FnOnce() -> TenantId,
    ) -> Result<(), QuotaError> {
        let requested = self.given(account);
        if requested == 0 {
            count(&self.unregistered, 1);
            return Err(QuotaError::NotRegistered { tenant: tenant() });
        }
        let effective = get(&account.effective);
        // Without a limit the counters still hold no more than a quota may be.
        let limit = effective.min(MAX_QUOTA);
        let more = |charged: u64| charged.checked_add(bytes).filter(|sum| *sum <= limit);
        let refused = |charged| {
            count(&account.rejected, 1);
            QuotaError::Exceeded { tenant: tenant(), charged, effective, requested, wanted: bytes }
        };
        update(&account.charged, more).map_err(refused)
    }

    /// Takes charges back. More than there are is a defect of the caller's: the counter
    /// that would go below zero stays as it is, and that is counted.
    pub(crate) fn give_back(&self, slot: TenantSlot, bytes: u64, objects: u64) {
        let Some(account) = self.accounts.get(slot) else {
            count(&self.mismatches, 1);
            return;
        };
        let given = update(&account.charged, |charged| charged.checked_sub(bytes)).is_ok();
        // Last: while an object is counted the account stays this tenant's.
        if !given || update(&account.objects, |count| count.checked_sub(objects)).is_err() {
            count(&self.mismatches, 1);
        }
    }

    pub(crate) fn note_mismatch(&self) {
        count(&self.mismatches, 1);
    }

    pub(crate) fn below(&self, tier: TierBelow, slot: TenantSlot) -> Option<&TierAccount> {
        let account = self.accounts.get(slot)?;
        Some(match tier {
            TierBelow::Disks => &account.disks,
            TierBelow::Files => &account.files,
        })
    }

    pub(crate) fn limits_below(&self) -> bool {
        self.limits_below.load(Ordering::Relaxed)
    }

    pub(crate) fn slot_named(&self, tenant: &str) -> Option<TenantSlot> {
        self.directory.read().slots.get(tenant).copied()
    }

    pub(crate) fn mode(&self, slot: TenantSlot) -> QuotaMode {
        self.accounts.get(slot).map_or(QuotaMode::Evict, Account::mode)
    }

    /// Bytes of the tenant that go as soon as they are on a disk.
    pub(crate) fn leaving(&self, slot: TenantSlot) -> u64 {
        self.accounts.get(slot).map_or(0, |account| get(&account.leaving))
    }

    pub(crate) fn leaves(&self, slot: TenantSlot, bytes: u64) {
        if let Some(account) = self.accounts.get(slot) {
            count(&account.leaving, bytes);
        }
    }

    pub(crate) fn leaves_no_more(&self, slot: TenantSlot, bytes: u64) {
        if let Some(account) = self.accounts.get(slot) {
            let kept = update(&account.leaving, |leaving| leaving.checked_sub(bytes));
            debug_assert!(kept.is_ok(), "only what was to leave does so no more");
        }
    }

    /// Counts objects that a tenant asked for, if it has an account.
    pub(crate) fn looked_up(&self, tenant: &TenantId, found: u64, missed: u64) {
        let directory = self.directory.read();
        let slot = directory.slots.get(tenant);
        if let Some(account) = slot.and_then(|slot| self.accounts.get(*slot)) {
            count(&account.found, found);
            count(&account.missed, missed);
        }
    }

    pub(crate) fn evicted(&self, slot: TenantSlot, bytes: u64) {
        if let Some(account) = self.accounts.get(slot) {
            count(&account.evicted_bytes, bytes);
        }
    }

    pub(crate) fn restore(&self, tenant: &TenantId, bytes: u64) -> Result<TenantSlot, PolicyError> {
        let mut directory = self.directory.write();
        let slot = self.open(&mut directory, tenant)?;
        let account = self.accounts.make(slot);
        let more = |charged: u64| charged.checked_add(bytes).filter(|sum| *sum <= MAX_QUOTA);
        update(&account.charged, more)
            .map_err(|_| PolicyError::TooManyBytes { tenant: tenant.clone() })?;
        count(&account.objects, 1);
        self.note_over(account);
        Ok(slot)
    }

    /// The slot of a tenant that has a policy or something charged.
    pub(crate) fn slot(&self, tenant: &TenantId) -> Option<TenantSlot> {
        self.directory.read().slots.get(tenant).copied()
    }

    /// The tenant that exceeds its quota by most, and by how many bytes. Takes time in
    /// the number of tenants, but only while there may be one.
    pub(crate) fn over_quota(&self) -> Option<(TenantSlot, u64)> {
        if !self.over.load(Ordering::Relaxed) {
            return None;
        }
        let directory = self.directory.read();
        let excess = |slot: &TenantSlot| {
            let account = self.accounts.get(*slot)?;
            get(&account.charged).checked_sub(get(&account.effective)).filter(|over| *over > 0)
        };
        let over = directory.slots.values().filter_map(|slot| Some((*slot, excess(slot)?)));
        let most = over.max_by_key(|(_, excess)| *excess);
        if most.is_none() {
            self.over.store(false, Ordering::Relaxed);
        }
        most
    }

    fn note_over(&self, account: &Account) {
        if get(&account.charged) > get(&account.effective) {
            self.over.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn usage(&self, tenant: &TenantId) -> Option<TenantUsage> {
        let directory = self.directory.read();
        let row = directory.slots.get(tenant).and_then(|slot| self.row(tenant, *slot));
        // Under a default quota every tenant may begin at any time.
        let newcomer = || TenantUsage::new(tenant.clone(), self.default);
        row.or_else(|| (self.default > 0).then(newcomer))
    }

    pub(crate) fn report(&self) -> QuotaReport {
        let directory = self.directory.read();
        let rows = directory.slots.iter().filter_map(|(tenant, slot)| self.row(tenant, *slot));
        let tenants: Vec<TenantUsage> = rows.collect();
        let sum = |of: fn(&TenantUsage) -> u64| {
            tenants.iter().fold(0, |sum: u64, row| sum.saturating_add(of(row)))
        };
        QuotaReport {
            capacity: directory.capacity,
            requested: sum(|row| row.requested.unwrap_or(0)),
            effective: sum(|row| row.requested.map_or(0, |_| row.effective)),
            unregistered: get(&self.unregistered),
            mismatches: get(&self.mismatches),
            tenants,
        }
    }

    fn row(&self, tenant: &TenantId, slot: TenantSlot) -> Option<TenantUsage> {
        let account = self.accounts.get(slot)?;
        (account.has_policy() || !account.is_empty()).then(|| TenantUsage {
            tenant: tenant.clone(),
            requested: Some(get(&account.requested)).filter(|requested| *requested > 0),
            mode: account.mode(),
            effective: get(&account.effective),
            charged: get(&account.charged),
            objects: get(&account.objects),
            rejected: get(&account.rejected),
            evicted_bytes: get(&account.evicted_bytes),
            disks: account.disks.usage(),
            files: account.files.usage(),
            found: get(&account.found),
            missed: get(&account.missed),
        })
    }

    /// The tenant's slot, a new one if it has none.
    fn open(
        &self,
        directory: &mut Directory,
        tenant: &TenantId,
    ) -> Result<TenantSlot, PolicyError> {
        if let Some(slot) = directory.slots.get(tenant) {
            return Ok(*slot);
        }
        if directory.vacant.is_empty() && directory.names.len() == MAX_TENANTS {
            self.vacate(directory);
        }
        let slot = match directory.vacant.pop() {
            Some(slot) => {
                directory.names[slot.index()] = tenant.clone();
                slot
            }
            None => {
                let unused = directory.names.len();
                let slot = u16::try_from(unused).map_err(|_| PolicyError::TooManyTenants)?;
                directory.names.push(tenant.clone());
                TenantSlot(slot)
            }
        };
        self.accounts.make(slot).reset(self.default);
        directory.slots.insert(tenant.clone(), slot);
        Ok(slot)
    }

    /// Gives up the accounts of tenants that have neither a policy nor objects.
    fn vacate(&self, directory: &mut Directory) {
        let Directory { slots, vacant, .. } = directory;
        slots.retain(|tenant, slot| {
            let account = self.accounts.make(*slot);
            let stays = tenant.is_default() || account.has_policy() || !account.is_empty();
            if !stays {
                vacant.push(*slot);
            }
            stays
        });
    }

    /// Bytes that the tenant's policy gives it, or the default.
    fn given(&self, account: &Account) -> u64 {
        let requested = get(&account.requested);
        if requested > 0 { requested } else { self.default }
    }

    /// Works out what each tenant may have. When the policies give more than there is,
    /// each counts for the same part of what it gives. The default is a limit and
    /// promises nothing, so that it neither counts nor shrinks.
    fn scale(&self, directory: &Directory) {
        let accounts = || directory.slots.values().map(|slot| self.accounts.make(*slot));
        let capacity = u128::from(directory.capacity);
        let sum: u128 = accounts().map(|account| u128::from(get(&account.requested))).sum();
        for account in accounts() {
            let requested = get(&account.requested);
            let effective = if requested == 0 {
                self.default
            } else if sum <= capacity {
                requested
            } else {
                let scaled = u128::from(requested) * capacity / sum;
                u64::try_from(scaled).expect("capacity is less than the sum here")
            };
            set(&account.effective, effective);
            self.note_over(account);
        }
    }
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ledger").finish_non_exhaustive()
    }
}

/// Accounts by slot, made in chunks and never moved, so that they are found without a
/// lock.
struct Accounts(Box<[OnceLock<Box<[Account]>>]>);

impl Accounts {
    /// The account, if its chunk has been made.
    fn get(&self, slot: TenantSlot) -> Option<&Account> {
        self.0.get(slot.index() / CHUNK)?.get()?.get(slot.index() % CHUNK)
    }

    fn make(&self, slot: TenantSlot) -> &Account {
        let chunk = self.0[slot.index() / CHUNK]
            .get_or_init(|| (0..CHUNK).map(|_| Account::default()).collect());
        &chunk[slot.index() % CHUNK]
    }
}

/// One tenant's counters. Alone in its cache lines.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Account {
    /// Zero without a policy.
    requested: AtomicU64,
    /// Whether puts beyond the quota are refused, and evict nothing.
    refuses: AtomicBool,
    effective: AtomicU64,
    charged: AtomicU64,
    /// Objects that are charged, those whose put is under way included.
    objects: AtomicU64,
    rejected: AtomicU64,
    evicted_bytes: AtomicU64,
    /// Bytes of objects that go as soon as they are on a disk.
    leaving: AtomicU64,
    /// On the clients' local disks.
    disks: TierAccount,
    /// In files of the shared tier.
    files: TierAccount,
    /// Objects that the tenant asked for: those that could be read, and those that could not.
    found: AtomicU64,
    missed: AtomicU64,
}

impl Account {
    fn has_policy(&self) -> bool {
        let Policy { requested, below, .. } = self.policy();
        requested > 0 || below != TierQuotas::NONE
    }

    fn policy(&self) -> Policy {
        let below = TierQuotas { disks: self.disks.quota(), files: self.files.quota() };
        Policy { requested: get(&self.requested), mode: self.mode(), below }
    }

    fn mode(&self) -> QuotaMode {
        match self.refuses.load(Ordering::Relaxed) {
            true => QuotaMode::Refuse,
            false => QuotaMode::Evict,
        }
    }

    fn set_policy(&self, Policy { requested, mode, below }: Policy) {
        set(&self.requested, requested);
        self.refuses.store(mode == QuotaMode::Refuse, Ordering::Relaxed);
        self.disks.limit_to(below.disks);
        self.files.limit_to(below.files);
    }

    fn is_empty(&self) -> bool {
        get(&self.objects) == 0
            && get(&self.charged) == 0
            && self.disks.is_empty()
            && self.files.is_empty()
    }

    /// Prepares an empty account without a policy for another tenant.
    fn reset(&self, effective: u64) {
        set(&self.effective, effective);
        for counter in [&self.rejected, &self.evicted_bytes, &self.found, &self.missed] {
            set(counter, 0);
        }
        self.disks.reset();
        self.files.reset();
    }
}

// Nothing else is ordered by these counters; where the order of calls matters, the
// directory's lock makes it.

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn set(counter: &AtomicU64, value: u64) {
    counter.store(value, Ordering::Relaxed);
}

fn count(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

/// Changes a counter; the error is its value when `change` refuses.
fn update(counter: &AtomicU64, change: impl FnMut(u64) -> Option<u64>) -> Result<(), u64> {
    counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change).map(drop)
}
