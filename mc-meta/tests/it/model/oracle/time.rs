//! Deadlines that expire as time passes.

use super::Oracle;
use super::journal::Event;

impl Oracle {
    pub(crate) fn tick(&mut self) {
        let mut more = true;
        for round in 0.. {
            if !more {
                break;
            }
            assert!(round < 100, "ticks come to an end");
            more = self.master.tick(self.now);
            let mut events = self.take_events();
            let expired = self.expire();
            assert!(events.len() >= expired.len(), "{expired:?} are due, not only {events:?}");
            let rest = events.split_off(expired.len());
            assert_eq!(events, expired);
            // Losses of these very segments may have been told already.
            let rest: Vec<Event> = rest
                .into_iter()
                .filter(|event| !self.is_loss(event) && !self.is_known(event))
                .collect();
            self.note_held();
            self.settle();
            self.follow_tick(&rest, more);
            self.note_held();
        }
        assert!(self.lost.is_empty(), "told of every lost object: {:?}", self.lost);
        assert!(self.is_reclaimed(), "space that is due is back");
    }

    fn follow_tick(&mut self, events: &[Event], more: bool) {
        // Space comes back before eviction is considered.
        let is_victim = |event: &Event| matches!(event, Event::Removed { .. });
        let first = events.iter().position(is_victim).unwrap_or(events.len());
        let (reclaimed, evicted) = events.split_at(first);
        self.follow_reclaimed(reclaimed);
        let (used, capacity) = (self.used_allocatable(), self.capacity_allocatable());
        let part = |ratio: f64| (capacity as f64 * ratio + 0.5) as u64;
        let high = self.config.eviction_high_watermark_ratio;
        let low = part((high - self.config.eviction_ratio).max(0.0));
        let high = part(high);
        assert!(evicted.is_empty() || used > high, "evicted below the watermark");
        self.follow_evicted(evicted, &mut |oracle, key, victims| {
            assert!(oracle.used_allocatable() > low, "more evicted than was to be");
            oracle.check_pins(key, victims);
            oracle.check_order(key, victims);
        });
        if !more && used > high && self.used_allocatable() > low && self.is_on_time() {
            let left = self.objects.values().filter(|object| self.would_go(object));
            assert_eq!(left.count(), 0, "stopped too early above the watermark");
        }
    }
}
