//! Space for one put: placed, charged to its tenant, and made where there is none.

use std::sync::atomic::Ordering;

use mc_alloc::Label;
use mc_types::{ClientId, KeyRef, Time};

use crate::commands::error::PutStartError;
use crate::commands::put::validate;
use crate::commands::reply::PutGrant;
use crate::effect::emit::Emit;
use crate::eviction::choice::Evicted;
use crate::master::{Attempt, Master, count};
use crate::shard::Shard;
use crate::side_tables::history::KeyEventKind;
use crate::space::place::{NoRoom, PlacementRequest};
use crate::space::replica::Replicas;
use crate::tenant::below::TierBelow;
use crate::tenant::ledger::TenantSlot;
use crate::tenant::quota::{Charge, QuotaError, QuotaMode};
use crate::vocabulary::hash::HashedKey;
use crate::vocabulary::request::{PutStart, ReplicateConfig};

/// Rounds of evicting before a put is refused. One is enough, unless other puts take the
/// room that it made.
const MAX_ROUNDS: u32 = 16;

/// The steps taken so far to make room for one put.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pressure {
    rounds: u32,
}

impl Pressure {
    /// Returns whether there may be another round.
    const fn is_bearable(self) -> bool {
        self.rounds < MAX_ROUNDS
    }

    const fn count(&mut self) {
        self.rounds += 1;
    }
}

/// Why a put has not begun.
pub(crate) enum NotBegun {
    /// The put may begin when room was made.
    NoRoom(NoRoom),
    Refused(PutStartError),
}

impl From<NoRoom> for NotBegun {
    fn from(no_room: NoRoom) -> Self {
        Self::NoRoom(no_room)
    }
}

impl From<PutStartError> for NotBegun {
    fn from(error: PutStartError) -> Self {
        Self::Refused(error)
    }
}

impl Master {
    /// Begins a put with `begin`, which is given the locked shard of its key, the key and the
    /// object's length, and is called again each time that room was made.
    ///
    /// # Errors
    /// [`PutStartError`]; a refusal for lack of space is counted and remembered for the key.
    pub(crate) fn begin_with_room(
        &self,
        now: Time,
        put: &PutStart<'_>,
        attempt: Attempt,
        mut begin: impl FnMut(&mut Shard, HashedKey<'_>, u64, Emit<'_>) -> Result<PutGrant, NotBegun>,
    ) -> Result<PutGrant, PutStartError> {
        let len = validate(put, self.config.max_soft_pin_ttl).map_err(PutStartError::Invalid)?;
        let key = self.hashed(put.key);
        let emit = self.emit(now);
        let mut pressure = Pressure::default();
        loop {
            let begun = begin(&mut self.shard_of(key), key, len, emit);
            // The shard is unlocked here: making room locks others.
            let no_room = match begun {
                Ok(grant) => return Ok(grant),
                Err(NotBegun::Refused(error)) => return Err(error),
                Err(NotBegun::NoRoom(no_room)) => no_room,
            };
            if let Some(error) = self.make_room_for(len, put.config, no_room, &mut pressure, now) {
                self.counters.no_room(attempt);
                let what = KeyEventKind::Refused { code: error.code() };
                self.shard_of(key).remember(key.hash, now, what);
                return Err(error);
            }
        }
    }

    /// Takes space for up to `config.replica_num` replicas of `len` bytes of the object that
    /// `label` stands for.
    ///
    /// # Errors
    /// [`NoRoom`] when there is no room for a single one.
    pub(crate) fn place(
        &self,
        len: u64,
        config: &ReplicateConfig,
        writer: ClientId,
        label: Option<Label>,
    ) -> Result<Replicas, NoRoom> {
        let turn = self.placements.fetch_add(1, Ordering::Relaxed);
        let seed = self.draw();
        let (strategy, own) = (self.config.allocation_strategy, self.own_strategy());
        let demand = PlacementRequest { len, config, writer, label, strategy, own, turn, seed };
        self.segments.read().place(&demand)
    }

    /// Takes space as [`place`](Self::place) does, and charges the owner of the key for
    /// it. As many replicas must be within the quota as are asked for and could be
    /// placed, though fewer may find room.
    ///
    /// # Errors
    /// [`NoRoom`] when there is no room for a single replica. That the object could not
    /// even be placed in empty segments goes before the quota, which no segments make
    /// zero.
    pub(crate) fn place_charged(
        &self,
        key: KeyRef<'_>,
        len: u64,
        config: &ReplicateConfig,
        writer: ClientId,
        label: Option<Label>,
    ) -> Result<(Replicas, Charge<'_>), NoRoom> {
        let mut charge = if self.quotas.is_on() {
            let segments = self.segments.read().could_place(len, config)?;
            let replicas = u64::from(config.replica_num).min(segments as u64);
            let charge = self.quotas.charge_owner(key, len.saturating_mul(replicas));
            charge.map_err(NoRoom::Quota)?
        } else {
            Charge::free()
        };
        let replicas = self.place(len, config, writer, label)?;
        charge.shrink_to(replicas.bytes());
        Ok((replicas, charge))
    }

    /// Takes room for a file, if there is a tier of files and it has some, and its tenant's quota, too.
    pub(crate) fn plan_file(&self, len: u64, tenant: TenantSlot) -> bool {
        if self.config.shared_tier.is_none() {
            return false;
        }
        if !self.files.bytes.take(len) {
            count(&self.counters.files_no_room, 1);
            return false;
        }
        let is_within = self.quotas.take_below(TierBelow::Files, tenant, len);
        if !is_within {
            self.files.bytes.give_back(len);
            self.quotas.refuse_below(TierBelow::Files, tenant);
        }
        is_within
    }

    /// Has files of a key's owner make room for one of `len` bytes within its quota of files, if it has
    /// one. To be called before anything of the shard is looked at: objects may go.
    pub(crate) fn make_room_for_file(
        &self,
        shard: &mut Shard,
        key: KeyRef<'_>,
        len: u64,
        emit: Emit<'_>,
    ) {
        if self.config.shared_tier.is_some()
            && self.quotas.limits_below()
            && let Some(tenant) = self.quotas.owner_slot(key)
        {
            shard.make_room_below(TierBelow::Files, tenant, len, emit);
        }
    }

    /// Takes space back for an object of `len` bytes; an error when none is left to
    /// take.
    fn make_room_for(
        &self,
        len: u64,
        config: &ReplicateConfig,
        no_room: NoRoom,
        pressure: &mut Pressure,
        now: Time,
    ) -> Option<PutStartError> {
        let best_free = match no_room {
            NoRoom::NoSegments { mounted } => {
                return Some(PutStartError::TooFewSegments { mounted });
            }
            NoRoom::NoMedium { medium, mounted } => {
                return Some(PutStartError::NoMedium { medium, mounted });
            }
            NoRoom::TooLarge { largest_object } => {
                return Some(PutStartError::TooLarge { len, largest_object });
            }
            NoRoom::NotNow { best_free } => best_free,
            NoRoom::Quota(refused) => return self.make_room_within(refused, pressure, now),
        };
        // What no client can use goes before what a client may want.
        if self.reclaim_unfinished(now).0 + self.release_read(now) > 0 {
            return None;
        }
        let evicted = match pressure.is_bearable() {
            true => self.evict_to_fit(now, len, config),
            false => Evicted::default(),
        };
        pressure.count();
        if evicted.objects > 0 {
            return None;
        }
        Some(if evicted.leased > 0 || self.any_leased() {
            PutStartError::AllLeased { len }
        } else if best_free >= len {
            PutStartError::Fragmented { len, free: best_free }
        } else {
            PutStartError::Full { len }
        })
    }

    /// Takes space back from a tenant whose quota stands in the way of a put; an error
    /// when that does not help.
    fn make_room_within(
        &self,
        refused: QuotaError,
        pressure: &mut Pressure,
        now: Time,
    ) -> Option<PutStartError> {
        let (tenant, missing) = match &refused {
            QuotaError::Exceeded { tenant, charged, effective, wanted, .. }
                if wanted <= effective =>
            {
                (tenant, charged.saturating_add(*wanted).saturating_sub(*effective))
            }
            _ => return Some(refused.into()),
        };
        // What no client can use goes before what a client may want.
        if self.reclaim_unfinished(now).0 + self.release_read(now) > 0 {
            return None;
        }
        // What goes is the tenant's own, and no more than what its quota lacks.
        let may = pressure.is_bearable();
        let evicted = match self.quotas.slot(tenant) {
            Some(slot) if self.quotas.mode(slot) == QuotaMode::Refuse => {
                return Some(refused.into());
            }
            Some(slot) if may => self.evict_bytes_of_tenant(slot, now, missing),
            _ => Evicted::default(),
        };
        pressure.count();
        (evicted.objects == 0).then(|| refused.into())
    }
}
