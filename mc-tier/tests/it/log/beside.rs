//! Operations beside a compaction.

use std::cell::Cell;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use bytes::Bytes;
use mc_testkit::{Random, content};
use mc_tier::{LogTier, MemoryBackend, ObjectBytes, SliceBytes, StorageBackend, Tier};
use mc_types::ByteSize;
use parking_lot::Mutex;

use super::common::{BLOCK, copy, id, is_there, medium, open, other, put, settings};

/// The unit that a disk writes as a whole or not at all.
const SECTOR: usize = 512;

const LONG: Duration = Duration::from_secs(60);

thread_local! {
    /// The step of this thread's compaction at which it stops.
    static STOP_AT: Cell<Option<usize>> = const { Cell::new(None) };
    /// Whether this thread's compaction has begun: nothing else that it does reads.
    static HAS_READ: Cell<bool> = const { Cell::new(false) };
}

/// A medium on which a compaction stops at one of its steps without the lock: a read, a write of a record or a
/// sync.
#[derive(Debug)]
struct Steps {
    medium: MemoryBackend,
    durable: Arc<Durable>,
    reached: Sender<()>,
    go_on: Mutex<Receiver<()>>,
}

impl Steps {
    fn step(&self) {
        match STOP_AT.get() {
            Some(0) => {
                STOP_AT.set(None);
                self.reached.send(()).unwrap();
                self.go_on.lock().recv_timeout(LONG).unwrap();
            }
            Some(left) => STOP_AT.set(Some(left - 1)),
            None => {}
        }
    }
}

impl StorageBackend for Steps {
    fn len(&self) -> u64 {
        self.medium.len()
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        HAS_READ.set(true);
        self.step();
        self.medium.read(offset, buffer)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if HAS_READ.get() && bytes.starts_with(b"MCTR") {
            self.step();
        }
        let sectors = bytes.chunks(SECTOR).zip((offset..).step_by(SECTOR));
        self.durable.written.lock().extend(sectors.map(|(bytes, offset)| (offset, bytes.to_vec())));
        self.medium.write(offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.step();
        let mut written = self.durable.written.lock();
        written.drain(..).try_for_each(|(offset, bytes)| self.durable.medium.write(offset, &bytes))
    }

    fn path(&self) -> &Path {
        self.medium.path()
    }
}

/// The state of a medium after a loss of power.
#[derive(Debug)]
struct Durable {
    /// The bytes as of the last sync.
    medium: MemoryBackend,
    /// The sectors that were written since: any part of them is lost.
    written: Mutex<Vec<(u64, Vec<u8>)>>,
}

impl Durable {
    fn lose_power(&self, random: &mut Random) -> MemoryBackend {
        let left = copy(&self.medium);
        for (offset, bytes) in &*self.written.lock() {
            if random.below(2) == 0 {
                left.write(*offset, bytes).unwrap();
            }
        }
        left
    }
}

/// Objects that stay, of which one lies in each segment that a compaction may take.
const KEPT: usize = 12;

/// Puts objects, and others over them, until the log has few segments without any.
fn prepare(tier: &LogTier) {
    for number in 0..KEPT {
        put(tier, number);
        (100..103).for_each(|other| put(tier, other));
    }
}

/// Puts until this thread's compaction is over. Returns whether it came to its stop.
fn compact(tier: &LogTier, stop_at: usize) -> bool {
    HAS_READ.set(false);
    STOP_AT.set(Some(stop_at));
    for round in 0..1000 {
        put(tier, 100 + round % 3);
        if HAS_READ.get() {
            return STOP_AT.replace(None).is_none();
        }
    }
    panic!("no put has compacted a segment");
}

/// At whatever step a compaction is: others are served, nothing that was removed comes back, nothing else goes,
/// and the same is true of the log that a killed process leaves.
#[test]
fn a_compaction_that_stands_still_keeps_nobody_and_loses_nothing() {
    for step in 0.. {
        let (reached, is_reached) = channel();
        let (goes, go_on) = channel();
        let durable = Arc::new(Durable { medium: medium(8), written: Mutex::default() });
        let steps = Steps {
            medium: medium(8),
            durable: Arc::clone(&durable),
            reached,
            go_on: Mutex::new(go_on),
        };
        let memory = steps.medium.clone();
        let tier = open(Arc::new(steps));
        prepare(&tier);
        tier.sync().unwrap();
        let there = |tier: &LogTier| -> Vec<_> {
            (0..KEPT).filter(|number| number % 2 == 0 && is_there(tier, *number)).collect()
        };
        let all: Vec<_> = (0..KEPT).step_by(2).collect();
        let check = |tier: &LogTier, when: &str| {
            assert_eq!(there(tier), all, "{when} step {step}");
            for number in (1..KEPT).step_by(4) {
                assert!(!is_there(tier, number), "{when} step {step}: {number} was removed");
            }
            for number in (3..KEPT).step_by(4) {
                let found = tier.get(&id(number)).unwrap();
                assert!(found == Some(other(number)), "{when} step {step}: {number} was replaced");
            }
            assert!(is_there(tier, 40), "{when} step {step}");
        };
        let changed = AtomicBool::new(false);
        let stopped = std::thread::scope(|scope| {
            let compaction = scope.spawn(|| compact(&tier, step));
            while !compaction.is_finished() {
                if is_reached.recv_timeout(Duration::from_millis(1)).is_err() {
                    continue;
                }
                let beside = scope.spawn(|| {
                    (1..KEPT).step_by(4).for_each(|n| assert!(tier.remove(&id(n)).unwrap()));
                    (3..KEPT).step_by(4).for_each(|n| tier.put(&id(n), &other(n)).unwrap());
                    put(&tier, 40);
                    assert!(tier.usage().unwrap().objects >= all.len() as u64);
                    check(&tier, "at");
                    check(&open(copy(&memory)), "killed at");
                    let mut random = Random::seeded("MC_TIER_LOG_SEED");
                    for _ in 0..20 {
                        let tier = open(durable.lose_power(&mut random));
                        assert_eq!(there(&tier), all, "without power at step {step}");
                    }
                    changed.store(true, SeqCst);
                });
                let begun = Instant::now();
                while !beside.is_finished() && begun.elapsed() < LONG / 2 {
                    std::thread::yield_now();
                }
                let is_served = beside.is_finished();
                goes.send(()).unwrap();
                assert!(is_served, "others wait for a compaction that is at step {step}");
                beside.join().unwrap();
            }
            compaction.join().unwrap()
        });
        if !stopped {
            assert!(step > 4, "a compaction of {step} steps");
            return;
        }
        assert!(changed.into_inner());
        for tier in [tier, open(copy(&memory))] {
            check(&tier, "after");
        }
    }
}

/// A medium on which each operation takes a millisecond.
#[derive(Debug)]
struct Slow(MemoryBackend);

fn wait() {
    std::thread::sleep(Duration::from_millis(1));
}

impl StorageBackend for Slow {
    fn len(&self) -> u64 {
        self.0.len()
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        HAS_READ.set(true);
        wait();
        self.0.read(offset, buffer)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        wait();
        self.0.write(offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        wait();
        self.0.sync()
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

/// Before, they waited for the whole compaction. A busy machine may let one of them wait once.
#[test]
fn others_take_their_own_time_while_a_segment_is_compacted() {
    const TRIES: usize = 5;
    for attempt in 1..=TRIES {
        let Some((compaction, most)) = longest_beside_a_compaction() else {
            assert!(attempt < TRIES, "one of the others has compacted every time");
            continue;
        };
        let [put, removal, usage, get] = most;
        println!(
            "compaction {compaction:?}; put {put:?}, removal {removal:?}, usage {usage:?}, get {get:?}"
        );
        assert!(compaction > Duration::from_millis(150), "{compaction:?}");
        if most.iter().all(|most| *most * 3 < compaction) {
            return;
        }
        assert!(attempt < TRIES, "{most:?} of {compaction:?}, {TRIES} times");
    }
}

/// How long a compaction took, and the longest put, removal, question for the usage and get beside it; `None` when
/// it was one of those puts that had to compact.
fn longest_beside_a_compaction() -> Option<(Duration, [Duration; 4])> {
    let segment = ByteSize::mib(4);
    let mut settings = settings();
    settings.segment_len = segment;
    let len = ByteSize::bytes(BLOCK + 6 * segment.as_u64());
    let memory = MemoryBackend::new(len);
    let tier = LogTier::open(memory.clone(), settings).unwrap();
    let bytes = Bytes::from(content("slow", 6000));
    let object = ObjectBytes::new(vec![SliceBytes::new(bytes)]).unwrap();
    let put = |tier: &LogTier, number| tier.put(&id(number), &object).unwrap();
    // A fifth of each segment is dead, and two segments are free.
    let records = segment.as_u64() as usize / 8192 - 3;
    let mut last = 0;
    while tier.usage().unwrap().bytes < 39 * segment.as_u64() / 10 {
        put(&tier, last);
        last += 1;
    }
    let dead: Vec<_> = (0..last).step_by(5).map(id).collect();
    tier.remove_many(&dead).unwrap();
    drop(tier);
    // Each operation is slow from here on.
    let tier = LogTier::open(Slow(memory), settings).unwrap();
    let is_over = AtomicBool::new(false);
    let mut most = [Duration::ZERO; 4];
    let compaction = std::thread::scope(|scope| {
        let compacts = scope.spawn(|| {
            for number in 0..2 * records {
                HAS_READ.set(false);
                let begun = Instant::now();
                put(&tier, last + number % 100);
                if HAS_READ.get() {
                    is_over.store(true, SeqCst);
                    return Some(begun.elapsed());
                }
            }
            is_over.store(true, SeqCst);
            None
        });
        let mut time = |what: usize, call: &dyn Fn()| {
            HAS_READ.set(false);
            let begun = Instant::now();
            call();
            // A put that has compacted a segment itself is not one of the others.
            let is_other = what > 0 || !HAS_READ.get();
            if is_other && !is_over.load(SeqCst) {
                most[what] = most[what].max(begun.elapsed());
            }
        };
        for number in (1..last).filter(|number| number % 5 > 0) {
            if compacts.is_finished() {
                break;
            }
            time(0, &|| put(&tier, last + 100));
            time(1, &|| assert!(tier.remove(&id(number)).unwrap()));
            time(2, &|| assert!(tier.usage().unwrap().objects > 0));
            time(3, &|| drop(tier.get(&id(last + 100)).unwrap()));
        }
        compacts.join().unwrap()
    });
    compaction.map(|compaction| (compaction, most))
}
