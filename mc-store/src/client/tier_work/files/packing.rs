//! Gathering objects that are written as one file.
//!
//! The master gives puts of this client that begin within a second generations of one run. Their files would be
//! many small ones: they are gathered until the run is over, and written as a pack.

use std::collections::VecDeque;
use std::time::Duration;

use mc_tier::pack_file::{LEAST, MAX_PACKED_LEN, MOST};
use tokio::time::Instant;

use crate::client::tiers::shared::Job;

/// How long objects of a run are waited for after the first of them: puts begin within a second.
const LINGER: Duration = Duration::from_millis(1200);

/// How long they are waited for when there are objects of a later run.
const AFTER_NEXT: Duration = Duration::from_millis(100);

/// Bytes with which a pack is written at once: the master ends a run that would have more.
const FULL: u64 = 64 << 20;

/// Runs that are remembered when their packs are written. A run has one pack.
const WRITTEN: usize = 64;

/// Packs that are gathered at a time; a master begins a run when the one before is over.
const PACKS: usize = 16;

/// The packs that are gathered.
#[derive(Debug, Default)]
pub(super) struct Packing {
    /// In the order of their first objects.
    open: Vec<Gathering>,
    /// The runs whose packs were written last.
    written: VecDeque<u64>,
}

#[derive(Debug)]
struct Gathering {
    run: u64,
    jobs: Vec<Job>,
    bytes: u64,
    ends_at: Instant,
}

impl Packing {
    /// Returns whether an object may share a file.
    fn takes((_, pending): &Job) -> bool {
        pending.handle.generation.run().is_some() && pending.len() <= MAX_PACKED_LEN.as_u64()
    }

    /// Gathers an object. Returns it when it does not share a file, or comes too late for that.
    pub(super) fn add(&mut self, job: Job, now: Instant) -> Option<Job> {
        let run = job.1.handle.generation.run().filter(|_| Self::takes(&job));
        let Some(run) = run.filter(|run| !self.written.contains(run)) else { return Some(job) };
        let len = job.1.len();
        let open = &mut self.open;
        let gathering = match open.iter_mut().position(|it| it.run == run) {
            Some(at) => &mut open[at],
            None => {
                for before in &mut *open {
                    before.ends_at = before.ends_at.min(now + AFTER_NEXT);
                }
                if open.len() >= PACKS {
                    open[0].ends_at = now;
                }
                let ends_at = now + LINGER;
                open.push(Gathering { run, jobs: Vec::new(), bytes: 0, ends_at });
                open.last_mut().expect("it was pushed")
            }
        };
        gathering.jobs.push(job);
        gathering.bytes += len;
        if gathering.bytes >= FULL || gathering.jobs.len() >= MOST {
            gathering.ends_at = now;
        }
        None
    }

    /// When the next pack is to be written.
    pub(super) fn next_end(&self) -> Option<Instant> {
        self.open.iter().map(|gathering| gathering.ends_at).min()
    }

    /// The packs that are to be written now: with `is_over` all. What is too little for a pack is in several.
    pub(super) fn take(&mut self, now: Instant, is_over: bool) -> Vec<Vec<Job>> {
        let mut packs = Vec::new();
        for gathering in self.open.extract_if(.., |it| is_over || it.ends_at <= now) {
            if gathering.jobs.len() < LEAST {
                packs.extend(gathering.jobs.into_iter().map(|job| vec![job]));
                continue;
            }
            packs.push(gathering.jobs);
            if self.written.len() == WRITTEN {
                self.written.pop_front();
            }
            self.written.push_back(gathering.run);
        }
        packs
    }
}

#[cfg(test)]
mod tests {
    use mc_meta::{PutHandle, PutToken};
    use mc_tier::SliceInfo;
    use mc_types::{Checksum, Extent, Generation, ObjectKey, RemoteKey};

    use super::*;
    use crate::client::tiers::shared::Pending;

    fn job(run: u64, place: u32, len: u64) -> Job {
        let generation = Generation::in_run(run, place);
        let slices = Box::from([SliceInfo { len, checksum: Checksum::from_crc32c(0) }]);
        let handle = PutHandle { generation, token: PutToken::from_u64(0) };
        let replica =
            (RemoteKey::from_bytes([0; 16]), Extent::new(0, len).expect("a length of a test"));
        let key = ObjectKey::new(format!("{run}-{place}")).expect("a key of a test");
        let until = mc_transport::BootTime::now();
        (u64::from(place), Pending { key, handle, slices, replica, until, bytes: None })
    }

    fn lengths(packs: &[Vec<Job>]) -> Vec<usize> {
        packs.iter().map(Vec::len).collect()
    }

    #[test]
    fn a_run_is_written_when_it_is_full_or_over() {
        let (begun, mut packing) = (Instant::now(), Packing::default());
        let at = |millis| begun + Duration::from_millis(millis);
        assert_eq!(packing.next_end(), None);
        let add = |packing: &mut Packing, job: Job, now| assert!(packing.add(job, now).is_none());
        (1..=10).for_each(|place| add(&mut packing, job(1, place, 1000), at(place.into())));
        assert_eq!(packing.next_end(), Some(at(1) + LINGER));
        assert!(packing.take(at(1200), false).is_empty());
        assert_eq!(lengths(&packing.take(at(1201), false)), [10]);
        // The one before ends soon, and what is late for it has a file of its own: there is one pack of a run.
        (1..=3).for_each(|place| add(&mut packing, job(2, place, 1000), at(2000)));
        add(&mut packing, job(3, 1, 1000), at(2100));
        assert_eq!(packing.next_end(), Some(at(2100) + AFTER_NEXT));
        add(&mut packing, job(2, 4, 1000), at(2150));
        assert_eq!(lengths(&packing.take(at(2200), false)), [4]);
        assert!(packing.add(job(2, 5, 1000), at(2210)).is_some());
        assert_eq!(lengths(&packing.take(at(2210), true)), [1]);
        // What was too little for a pack did not make one.
        add(&mut packing, job(3, 2, 1000), at(2220));
        assert_eq!(lengths(&packing.take(at(2220), true)), [1]);
        // Full, and not before.
        (1..8).for_each(|place| add(&mut packing, job(4, place, 8 << 20), at(2300)));
        add(&mut packing, job(4, 8, (8 << 20) - 1), at(2300));
        assert!(packing.take(at(2300), false).is_empty());
        add(&mut packing, job(4, 9, 1), at(2300));
        assert_eq!(lengths(&packing.take(at(2300), false)), [9]);
        let all = MOST as u32;
        (1..=all).for_each(|place| add(&mut packing, job(5, place, 1), at(2400)));
        assert_eq!(lengths(&packing.take(at(2400), false)), [MOST]);
        assert_eq!(packing.next_end(), None);
    }

    #[test]
    fn a_master_that_begins_run_after_run_makes_nobody_keep_all() {
        let (now, mut packing) = (Instant::now(), Packing::default());
        for run in 1..1000 {
            (1..=4).for_each(|place| assert!(packing.add(job(run, place, 10), now).is_none()));
            packing.take(now, false);
            assert!(packing.open.len() <= PACKS && packing.written.len() <= WRITTEN);
        }
    }

    #[test]
    fn long_objects_and_those_of_no_run_share_no_file() {
        assert!(Packing::takes(&job(1, 1, MAX_PACKED_LEN.as_u64())));
        assert!(!Packing::takes(&job(1, 1, MAX_PACKED_LEN.as_u64() + 1)));
        assert!(!Packing::takes(&job(0, 7, 10)));
    }
}
