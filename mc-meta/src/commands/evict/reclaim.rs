//! Taking space back: eviction, deadlines, lost segments.

use std::sync::atomic::Ordering;

use mc_types::Time;

use crate::effect::emit::unseen;
use crate::eviction::choice::{Aim, Evicted};
use crate::eviction::common::{Entry, List, UPCOMING};
use crate::eviction::{Class, Pool};
use crate::master::Master;
use crate::shard::Shard;
use crate::tenant::ledger::TenantSlot;
use crate::vocabulary::hash::mix;
use crate::vocabulary::slot::ObjectSlot;

/// Shards compared when a victim of one tenant is wanted, and of which some objects whose protection
/// has ended are readmitted before a victim is chosen. The coldest object of the coldest of
/// a few random shards is close to the coldest of all, and a fixed number keeps
/// the cost of a victim independent of the number of shards.
const SAMPLE: usize = 8;

/// Objects readmitted in a shard before a victim is chosen.
const READMISSIONS: usize = 8;

/// The most that one tick gives back in one shard before it unlocks it.
const TICK_BATCH: usize = 512;

/// Slots that one tick looks at for what has lost its segments, in all shards.
const TICK_SLOTS: u32 = 8192;

/// Objects whose protection has ended that one tick puts back, in all shards.
const TICK_READMISSIONS: usize = 1024;

/// Soft pins whose lapse one tick notes.
const TICK_LAPSES: usize = 4096;

/// Victims that one tick takes for the watermark, so that it ends within a millisecond. What is left over is
/// for the next tick.
const TICK_VICTIMS: u64 = 512;

impl Master {
    /// Does what is due: gives up silent clients, unfinished puts, transfers, tasks and
    /// ways to disks and back, ends leases, forgets objects whose segments and disks are
    /// gone, and evicts above the high watermark.
    ///
    /// Costs O(due), bounded for each call; `true` when work is left over and the
    /// next tick should follow at once. Otherwise ten calls a second are plenty.
    pub fn tick(&self, now: Time) -> bool {
        // No caller waits for its effects, but reads that see them do: the sinks learn that it has ended.
        unseen(|| self.receipt(|_| self.tick_once(now)).value)
    }

    fn tick_once(&self, now: Time) -> bool {
        self.expire_clients(now);
        let emit = self.emit(now);
        let mut more = self.expire_offloads(now) | self.expire_promotions(now);
        more |= self.reclaim_unfinished(now).1;
        self.release_read(now);
        more |= self.expire_tasks(now);
        self.run_checks(now);
        self.run_doubts(now);
        more |= self.run_drain_jobs(now);
        let (mut slots, mut readmissions) = (TICK_SLOTS, TICK_READMISSIONS);
        for shard in self.shards() {
            let mut shard = shard.lock();
            more |= shard.sweep_step(&mut slots, emit);
            readmissions -= shard.readmit_due(now, readmissions);
        }
        more |= readmissions == 0;
        more |= self.lapse_pins(now, TICK_LAPSES) == TICK_LAPSES;
        more | self.evict_above_watermark(now)
    }

    /// Takes back the space of unfinished puts that are too old, and of objects that go
    /// because they were read. Says how many they were, and whether some are left because
    /// they are too many for one time. Looks at no shard when nothing is due.
    pub(crate) fn reclaim_unfinished(&self, now: Time) -> (usize, bool) {
        if now.as_millis() < self.next_release.load(Ordering::Relaxed) {
            return (0, false);
        }
        // A put that begins meanwhile either sees this or is seen below, since it
        // enters its deadline while it holds its shard's lock.
        self.next_release.store(u64::MAX, Ordering::Relaxed);
        let grants = self.config.grant_time();
        let (mut puts, mut more) = (0, false);
        for shard in self.shards() {
            let mut shard = shard.lock();
            let reclaimed = shard.reclaim_unfinished(grants, TICK_BATCH, self.emit(now));
            puts += reclaimed;
            if let Some(due) = shard.next_release(grants) {
                self.release_not_before(due);
                more |= due <= now;
            }
        }
        (puts, more)
    }

    /// Gives the space back that was kept for readers, as far as all of them are done. Says how
    /// often. Looks at no shard when there can be none.
    pub(crate) fn release_read(&self, now: Time) -> usize {
        let Some(quiet) = self.readers.quiet(now) else { return 0 };
        self.readers.recount();
        let emit = self.emit(now);
        self.shards().iter().map(|shard| shard.lock().release_read(quiet, TICK_BATCH, emit)).sum()
    }

    /// Evicts above this part of all memory from now on, down to `high - ratio`, in place of the settings
    /// that the master began with. Both are in `0.0..=1.0`; values outside are clamped. The next tick sees them.
    ///
    /// They are no part of what is recorded: a master that takes over has its own.
    pub fn set_watermark(&self, high: f64, ratio: f64) {
        self.watermark.set(high, ratio);
    }

    fn evict_above_watermark(&self, now: Time) -> bool {
        let (used, capacity) = {
            let table = self.segments.read();
            (table.used(), table.capacity())
        };
        let excess = self.watermark.get().excess(used, capacity);
        // What one tick begins, the next ones end although they find less used than the watermark. They leave
        // the soft-pinned alone.
        let goes_on = self.is_evicting.load(Ordering::Relaxed);
        let (bytes, classes) = match excess {
            0 if !goes_on => return false,
            0 => (self.watermark.get().rest(used, capacity), &[Class::Ordinary][..]),
            excess => (excess, self.config.evictable()),
        };
        let evicted = self.evict_bytes(now, bytes, TICK_VICTIMS, classes);
        let is_left = evicted.objects > 0 && evicted.bytes < bytes;
        let is_cut = is_left && (evicted.objects >= TICK_VICTIMS || evicted.cut_short);
        self.is_evicting.store(is_cut, Ordering::Relaxed);
        is_left
    }

    /// Frees at least `bytes`, but evicts no more than about `victims` objects: the least recently
    /// used first, of the later classes only when there are none of the earlier. Less
    /// is freed when a bounded amount of work was not enough or nothing is left.
    ///
    /// A tenant that has more than it may, because its quota has shrunk, gives its
    /// excess up before others lose anything.
    fn evict_bytes(&self, now: Time, bytes: u64, victims: u64, classes: &[Class]) -> Evicted {
        // Some may be on their way out already, and go when they are on a disk.
        let bytes = bytes.saturating_sub(self.local.promised(now));
        if bytes == 0 {
            return Evicted { leased: 1, ..Evicted::default() };
        }
        let aim = Aim::Free { bytes, victims };
        let mut outcome = Evicted::default();
        if let Some((tenant, excess)) = self.quotas.over_quota() {
            let excess = excess.saturating_sub(self.quotas.leaving(tenant));
            let part = Aim::Free { bytes: bytes.min(excess), victims };
            outcome = self.evict_by_class(Some(tenant), now, part, classes);
        }
        if let Some(rest) = aim.after(&outcome) {
            outcome += self.evict_by_class(None, now, rest, classes);
        }
        outcome
    }

    /// Evicts at least `bytes` of this tenant's objects, if it can, those that were not used
    /// for the longest time first.
    pub(crate) fn evict_bytes_of_tenant(
        &self,
        tenant: TenantSlot,
        now: Time,
        bytes: u64,
    ) -> Evicted {
        let bytes = bytes.saturating_sub(self.quotas.leaving(tenant));
        self.evict_by_class(
            Some(tenant),
            now,
            Aim::Free { bytes, victims: u64::MAX },
            self.config.evictable(),
        )
    }

    /// Evicts objects of one tenant, or of all, in the order of these classes.
    fn evict_by_class(
        &self,
        tenant: Option<TenantSlot>,
        now: Time,
        aim: Aim<'_>,
        classes: &[Class],
    ) -> Evicted {
        let mut outcome = Evicted::default();
        for &class in classes {
            outcome += self.evict_pool(Pool { class, tenant }, now, aim);
            if outcome.objects > 0 || outcome.promised > 0 || outcome.cut_short {
                break;
            }
        }
        outcome
    }

    /// Evicts the coldest objects of a pool.
    pub(crate) fn evict_pool(&self, pool: Pool, now: Time, aim: Aim<'_>) -> Evicted {
        self.lapse_pins(now, READMISSIONS);
        match pool.tenant {
            Some(tenant) => self.evict_of_tenant(tenant, pool.class, now, aim),
            None => self.evict_class(pool.class, now, aim),
        }
    }

    fn evict_class(&self, class: Class, now: Time, aim: Aim<'_>) -> Evicted {
        let mut outcome = Evicted::default();
        self.sample(self.draw()).for_each(|at| _ = self.readmit_some(at, now));
        let mut offers = 0;
        while let Some(rest) = aim.after(&outcome) {
            let Some((list, first)) = self.first(class) else {
                // Those that were readmitted above may have been none although there are some.
                let readmitted = (0..self.shards().len()).map(|at| self.readmit_some(at, now));
                let readmitted: usize = readmitted.sum();
                if readmitted + self.lapse_pins(now, TICK_BATCH) == 0 {
                    break;
                }
                continue;
            };
            if offers == MAX_OFFERS {
                outcome.cut_short = true;
                break;
            }
            if offers % UPCOMING == 0
                && matches!((class, rest), (Class::Ordinary, Aim::Free { .. }))
            {
                self.fetch_upcoming();
            }
            offers += 1;
            let (at, slot) = self.order.place(first);
            outcome += self.shards()[at].lock().evict_first(list, slot, rest, self.emit(now));
            self.evict_condemned(now, &mut outcome);
        }
        outcome
    }

    /// Has the processor fetch what evicting the next few ordinary objects needs, for all of them at a time.
    fn fetch_upcoming(&self) {
        let upcoming = self.order.lock().upcoming();
        let touch_all = |touch: fn(&Shard, ObjectSlot) -> u32| {
            let places = upcoming.iter().map(|entry| self.order.place(*entry));
            places.fold(0, |touched, (at, slot)| touched ^ touch(&self.shards()[at].lock(), slot))
        };
        // What an object leads to is known when that is there; nothing needs what was read.
        core::hint::black_box(touch_all(Shard::touch_object));
        core::hint::black_box(touch_all(Shard::touch_entry));
    }

    /// The object of a class that goes first.
    fn first(&self, class: Class) -> Option<(List, Entry)> {
        let (one, other) = match class {
            Class::Ordinary => (List::Main, List::Lapsed),
            Class::SoftPinned => (List::Pinned, List::Timed),
        };
        let firsts = {
            let mut lists = self.order.lock();
            (lists.first(one), lists.first(other))
        };
        let touched = |entry| {
            let (at, slot) = self.order.place(entry);
            self.shards()[at].lock().last_touched(slot)
        };
        match firsts {
            (first, None) => Some((one, first?)),
            (Some(first), Some(second)) if touched(first) < touched(second) => Some((one, first)),
            (_, Some(second)) => Some((other, second)),
        }
    }

    /// Readmits a few objects of a shard whose protection has ended.
    fn readmit_some(&self, at: usize, now: Time) -> usize {
        self.shards()[at].lock().readmit_due(now, READMISSIONS)
    }

    /// Puts up to `limit` objects whose soft pin of the master's duration has lapsed among the ordinary;
    /// returns their number.
    fn lapse_pins(&self, now: Time, limit: usize) -> usize {
        for done in 0..limit {
            let first = self.order.lock().first(List::Pinned);
            let Some((at, slot)) = first.map(|first| self.order.place(first)) else { return done };
            if !self.shards()[at].lock().lapse_pin(slot, now) {
                return done;
            }
        }
        limit
    }

    fn evict_of_tenant(
        &self,
        tenant: TenantSlot,
        class: Class,
        now: Time,
        aim: Aim<'_>,
    ) -> Evicted {
        let mut outcome = Evicted::default();
        let draw = self.draw();
        let mut turn = 0;
        while let Some(rest) = aim.after(&outcome) {
            if turn == MAX_TURNS {
                outcome.cut_short = true;
                break;
            }
            let Some(at) = self.coldest_shard(tenant, class, now, mix(draw ^ turn)) else { break };
            turn += 1;
            let mut shard = self.shards()[at].lock();
            let more = shard.evict_of_tenant(tenant, class, rest.share(), self.emit(now));
            drop(shard);
            // What is left there is for the next turn.
            outcome += Evicted { cut_short: false, ..more };
            self.evict_condemned(now, &mut outcome);
        }
        outcome
    }

    /// Takes out the members of condemned groups.
    pub(crate) fn evict_condemned(&self, now: Time, outcome: &mut Evicted) {
        for (generation, member) in core::mem::take(&mut outcome.condemned) {
            let Some(shard) = self.shards().get(member.shard as usize) else { continue };
            *outcome += shard.lock().evict_group_member(generation, member.slot, self.emit(now));
        }
    }

    /// The shard of a sample in which a tenant has the object that was not used for the longest time;
    /// of all shards, when it has none in the sample.
    fn coldest_shard(
        &self,
        tenant: TenantSlot,
        class: Class,
        now: Time,
        draw: u64,
    ) -> Option<usize> {
        let peek = |at: usize| {
            let mut shard = self.shards()[at].lock();
            // A few are enough, unless none of them is still there.
            while shard.readmit_due(now, READMISSIONS) == READMISSIONS
                && shard.coldest_of(tenant, class).is_none()
            {}
            let slot = shard.coldest_of(tenant, class)?;
            shard.last_touched(slot).map(|touched| (touched, at))
        };
        let sampled = self.sample(draw).filter_map(peek).min();
        // The sample may have had none although there is one.
        sampled.or_else(|| (0..self.shards().len()).find_map(peek)).map(|(_, at)| at)
    }

    /// The numbers of a few shards drawn at random, or of all if they are few.
    fn sample(&self, draw: u64) -> impl Iterator<Item = usize> {
        let shards = self.shards().len();
        (0..shards.min(SAMPLE))
            .map(move |n| if shards <= SAMPLE { n } else { mix(draw ^ n as u64) as usize % shards })
    }

    /// Returns whether anything waits for its lease to end before it can be evicted, or gives its
    /// space back when its lease ends.
    pub(crate) fn any_leased(&self) -> bool {
        self.shards().iter().any(|shard| {
            let shard = shard.lock();
            shard.any_leased() || shard.retained().has_for_readers()
        })
    }

    pub(crate) fn start_sweep(&self) {
        for shard in self.shards() {
            shard.lock().start_sweep();
        }
    }
}

/// Objects looked at in one eviction, or shards visited for one of a tenant's. More work than this
/// is left to the next round, so that no single command pauses for long.
const MAX_OFFERS: usize = 1 << 16;
const MAX_TURNS: u64 = 1024;
