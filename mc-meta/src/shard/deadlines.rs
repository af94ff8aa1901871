//! Deadlines of one shard: unfinished puts, files and transfers, objects that go because they were read,
//! space that is kept; and the sweep for what lost its segments.

use std::sync::atomic::Ordering;

use mc_types::Time;

use crate::effect::emit::Emit;
use crate::shard::Shard;
use crate::side_tables::readers::Quiet;
use crate::vocabulary::grant::GrantTime;
use crate::vocabulary::removal::Removal;
use crate::vocabulary::slot::ObjectSlot;

/// The cost, to a sweep, of an object that has lost something, in slots that are looked at in vain.
const LOSS: u32 = 16;

impl Shard {
    /// Gives back the space that is due, and gives up puts and files whose grants have ended; at most `limit` of both. Says how many.
    pub(crate) fn reclaim_unfinished(
        &mut self,
        grants: GrantTime,
        limit: usize,
        emit: Emit<'_>,
    ) -> usize {
        let mut reclaimed = 0;
        while reclaimed < limit
            && let Some(space) = self.retained.pop_due(emit.now)
        {
            self.free(space, emit);
            reclaimed += 1;
        }
        while reclaimed < limit
            && let Some((begun, slot)) = self.oldest_open()
            && grants.end(begun) <= emit.now
        {
            // Counts puts that were too old, not those that lost their segments.
            self.totals.puts_discarded += u64::from(self.give_up_put(slot, None, emit));
            reclaimed += 1;
        }
        while reclaimed < limit
            && let Some((begun, slot)) = self.sides.files.oldest()
            && grants.end(begun) <= emit.now
        {
            self.give_up_file(slot, emit);
            reclaimed += 1;
        }
        reclaimed += self.expire_transfers(limit - reclaimed, emit);
        reclaimed + self.expire_due(limit - reclaimed, emit)
    }

    /// When the oldest unfinished put began, and where it is.
    fn oldest_open(&self) -> Option<(Time, ObjectSlot)> {
        let (_, slot) = self.open.oldest()?;
        let begun = self.objects.get(slot)?.begun_at()?;
        Some((begun, slot))
    }

    /// When the next space is due, if there is any.
    pub(crate) fn next_release(&self, grants: GrantTime) -> Option<Time> {
        let retained = self.retained.next_due();
        let open = self.oldest_open().map(|(begun, _)| grants.end(begun));
        let file = self.sides.files.oldest().map(|(begun, _)| grants.end(begun));
        let others = [
            open,
            file,
            self.oldest_transfer().map(|(_, transfer)| transfer.due),
            self.sides.expiring.next_due(),
        ];
        retained.into_iter().chain(others.into_iter().flatten()).min()
    }

    /// Asks [`sweep_step`](Self::sweep_step) to look at every object again.
    pub(crate) fn start_sweep(&mut self) {
        self.sweep = Some(0);
    }

    /// Asks [`sweep_step`](Self::sweep_step) to drop files that were not seen in this round of comparisons.
    pub(crate) fn start_settling_files(&mut self, round: bool) {
        if self.files_seen_in.replace(round).is_none() {
            self.config.books.files.settling.fetch_add(1, Ordering::Relaxed);
        }
        self.start_sweep();
    }

    /// Looks at slots for objects that lost their segments or files until `budget` is used up, of which one that
    /// has costs several; true when more are to be looked at.
    pub(crate) fn sweep_step(&mut self, budget: &mut u32, emit: Emit<'_>) -> bool {
        let Some(from) = self.sweep else { return false };
        let mut to = from;
        while to < self.objects.end() && *budget > 0 {
            let slot = ObjectSlot::new(to);
            let mut cost = 1;
            if self.object(slot).is_some_and(|object| !object.is_whole()) {
                self.lose_dead(slot, emit);
                cost = LOSS;
            }
            if let Some(round) = self.files_seen_in
                && self.object(slot).is_some_and(|object| object.has_unseen_file(round))
            {
                self.give_up_file(slot, emit);
                cost = LOSS;
            }
            to += 1;
            *budget = budget.saturating_sub(cost);
        }
        self.sweep = (to < self.objects.end()).then_some(to);
        if self.sweep.is_none() && self.files_seen_in.take().is_some() {
            self.config.books.files.settling.fetch_sub(1, Ordering::Relaxed);
        }
        self.sweep.is_some()
    }

    /// Releases space that no client reads any more; at most `limit` times.
    pub(crate) fn release_read(&mut self, quiet: Quiet, limit: usize, emit: Emit<'_>) -> usize {
        let mut released = 0;
        while released < limit
            && let Some(space) = self.retained.pop_quiet(quiet)
        {
            self.free(space, emit);
            released += 1;
        }
        if let Some(read) = self.retained.oldest_read() {
            self.config.readers.stays(read);
        }
        released
    }

    /// Ends a transfer whose client writes no more, or has had its time.
    pub(crate) fn give_up_transfer(&mut self, slot: ObjectSlot, emit: Emit<'_>) {
        if let Some(transfer) = self.close_transfer(slot) {
            self.emit_transfer(slot, emit);
            self.give_back(self.tenant(slot), transfer.targets);
        }
    }

    /// Gives up to `limit` transfers up whose time is up; says how many.
    fn expire_transfers(&mut self, limit: usize, emit: Emit<'_>) -> usize {
        let mut expired = 0;
        while expired < limit
            && let Some((slot, transfer)) = self.oldest_transfer()
            && transfer.due <= emit.now
        {
            self.give_up_transfer(slot, emit);
            expired += 1;
        }
        expired
    }

    /// Takes out an object whose time is over. Who reads it may do so until the lease
    /// ends.
    pub(crate) fn expire(&mut self, slot: ObjectSlot, emit: Emit<'_>) {
        self.retire(slot, Removal::Expired, emit);
        self.totals_mut().expired_objects += 1;
    }

    /// Takes out up to `limit` objects whose time is over; says how many entries were
    /// looked at.
    fn expire_due(&mut self, limit: usize, emit: Emit<'_>) -> usize {
        let mut looked_at = 0;
        while looked_at < limit
            && let Some(expired) = self.next_expired(emit.now)
        {
            looked_at += 1;
            if let Some(slot) = expired {
                self.expire(slot, emit);
            }
        }
        looked_at
    }
}
