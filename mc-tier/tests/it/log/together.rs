//! Changes at once.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mc_tier::{LogTier, MemoryBackend, StorageBackend, Tier};

use super::common::{copy, id, is_there, medium, object, open, other, put, settings};

/// A medium that stops a write when it is told to.
#[derive(Debug)]
struct Gate {
    medium: MemoryBackend,
    is_armed: AtomicBool,
    reached: (Sender<()>, Mutex<Receiver<()>>),
    opened: (Sender<()>, Mutex<Receiver<()>>),
    syncs: AtomicUsize,
}

impl Gate {
    fn new() -> Self {
        let pair = || {
            let (sender, receiver) = channel();
            (sender, Mutex::new(receiver))
        };
        Self {
            medium: medium(8),
            is_armed: AtomicBool::new(false),
            reached: pair(),
            opened: pair(),
            syncs: AtomicUsize::new(0),
        }
    }

    /// Calls `between` while the next write, which is one of `write`, has not begun.
    fn stop(&self, write: impl FnOnce() + Send, between: impl FnOnce()) {
        self.is_armed.store(true, SeqCst);
        std::thread::scope(|scope| {
            let writing = scope.spawn(write);
            self.reached.1.lock().unwrap().recv_timeout(Duration::from_secs(60)).unwrap();
            between();
            self.opened.0.send(()).unwrap();
            writing.join().unwrap();
        });
    }
}

impl StorageBackend for Gate {
    fn len(&self) -> u64 {
        self.medium.len()
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.medium.read(offset, buffer)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if self.is_armed.swap(false, SeqCst) {
            self.reached.0.send(()).unwrap();
            self.opened.1.lock().unwrap().recv().unwrap();
        }
        self.medium.write(offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.syncs.fetch_add(1, SeqCst);
        std::thread::sleep(Duration::from_millis(1));
        Ok(())
    }

    fn path(&self) -> &Path {
        self.medium.path()
    }
}

#[test]
fn a_put_does_not_wait_for_the_writes_of_another() {
    let gate = Arc::new(Gate::new());
    let tier = open(Arc::clone(&gate));
    put(&tier, 0);
    gate.stop(
        || put(&tier, 1),
        || {
            put(&tier, 2);
            assert!(is_there(&tier, 2) && !is_there(&tier, 1));
            assert!(tier.remove(&id(0)).unwrap());
            // What a killed process had not written is a gap.
            let killed = open(copy(&gate.medium));
            assert_eq!(killed.recovery().damaged, 0);
            assert!(!is_there(&killed, 0) && !is_there(&killed, 1) && is_there(&killed, 2));
            put(&killed, 1);
            assert!(is_there(&killed, 1));
        },
    );
    for tier in [tier, open(copy(&gate.medium))] {
        assert!(!is_there(&tier, 0) && is_there(&tier, 1) && is_there(&tier, 2));
    }
}

/// The one with the later place counts: now, and when the log is opened again.
#[test]
fn of_two_puts_of_an_object_one_counts() {
    for is_removed in [false, true] {
        let gate = Arc::new(Gate::new());
        let tier = open(Arc::clone(&gate));
        put(&tier, 0);
        gate.stop(
            || put(&tier, 1),
            || {
                tier.put(&id(1), &other(1)).unwrap();
                if is_removed {
                    assert!(tier.remove(&id(1)).unwrap());
                }
            },
        );
        let expected = if is_removed { object(1) } else { other(1) };
        for tier in [tier, open(copy(&gate.medium))] {
            assert_eq!(tier.get(&id(1)).unwrap(), Some(expected.clone()), "{is_removed}");
            assert_eq!(tier.usage().unwrap().objects, 2);
        }
    }
}

/// The segment with the place of a put that is writing is not freed by compactions.
#[test]
fn a_put_that_takes_long_keeps_its_place() {
    let gate = Arc::new(Gate::new());
    let tier = open(Arc::clone(&gate));
    put(&tier, 0);
    let puts = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        gate.stop(
            || put(&tier, 1),
            || {
                // More than fit without a compaction.
                scope.spawn(|| {
                    for number in 0..200 {
                        put(&tier, 2 + number % 6);
                        puts.fetch_add(1, SeqCst);
                    }
                });
                while puts.load(SeqCst) < 40 {
                    std::thread::yield_now();
                }
                assert!(!is_there(&tier, 1));
            },
        );
    });
    for tier in [tier, open(copy(&gate.medium))] {
        assert!((0..8).all(|number| is_there(&tier, number)));
    }
}

#[test]
fn changes_at_once_share_their_syncs() {
    let gate = Arc::new(Gate::new());
    let mut settings = settings();
    settings.sync_each_change = true;
    let tier = LogTier::open(Arc::clone(&gate), settings).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let tier = &tier;
            scope.spawn(move || (0..50).for_each(|_| put(tier, thread)));
        }
    });
    let syncs = gate.syncs.load(SeqCst);
    assert!((50..300).contains(&syncs), "{syncs} for 400 puts");
}
