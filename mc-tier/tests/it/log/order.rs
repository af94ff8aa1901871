//! The order in which objects are evicted and listed, and what that costs.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use mc_tier::{
    LogTier, MemoryBackend, ObjectBytes, ObjectId, SliceBytes, StorageBackend, StoredObject, Tier,
    Watermarks,
};
use mc_types::{ByteSize, Generation, ObjectKey};

use super::common::{BLOCK, SEGMENT, id, is_there, medium, object, open, put, scan_all};

/// Counts reads and writes.
#[derive(Debug)]
struct Counting {
    medium: MemoryBackend,
    reads: AtomicUsize,
    writes: AtomicUsize,
}

impl Counting {
    fn new(medium: MemoryBackend) -> Arc<Self> {
        Arc::new(Self { medium, reads: AtomicUsize::new(0), writes: AtomicUsize::new(0) })
    }
}

impl StorageBackend for Counting {
    fn len(&self) -> u64 {
        self.medium.len()
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.reads.fetch_add(1, SeqCst);
        self.medium.read(offset, buffer)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.writes.fetch_add(1, SeqCst);
        self.medium.write(offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.medium.sync()
    }

    fn path(&self) -> &Path {
        self.medium.path()
    }
}

fn evict_to(tier: &LogTier, bytes: u64) -> Vec<ObjectId> {
    let low = ByteSize::bytes(bytes);
    let mut evicted = Vec::new();
    let removed = tier.evict(Watermarks { high: low, low }, &mut |id| evicted.push(id)).unwrap();
    assert_eq!(removed.objects, evicted.len() as u64);
    assert!(tier.usage().unwrap().bytes <= bytes);
    evicted
}

/// A master without a journal begins anew with a random generation, often a lower one.
#[test]
fn the_objects_that_were_written_first_are_evicted_whatever_their_generations() {
    let medium = medium(16);
    let tier = open(medium.clone());
    (100..140).rev().for_each(|number| put(&tier, number));
    // A later master's.
    (0..20).for_each(|number| put(&tier, number));
    let used = tier.usage().unwrap().bytes;
    let first = evict_to(&tier, used * 2 / 3);
    drop(tier);
    let tier = open(medium);
    let second = evict_to(&tier, used / 3);
    let evicted: Vec<_> = first.iter().chain(&second).collect();
    let order: Vec<_> = (100..140).rev().chain(0..20).map(id).collect();
    assert!(evicted.len() > 35 && first.len() > 15, "{} {}", first.len(), second.len());
    assert!(evicted.iter().zip(&order).all(|(evicted, id)| *evicted == id), "{evicted:?}");
    assert!((5..20).all(|number| is_there(&tier, number)));
    // One segment more than is wanted at the most: no more goes than has to.
    assert!(tier.usage().unwrap().bytes + 5 * BLOCK > used / 3);
}

/// Each of them had its table written, twice 4 KiB for one object.
#[test]
fn a_pass_over_many_objects_writes_each_table_once() {
    let counting = Counting::new(medium(16));
    let tier = open(Arc::clone(&counting));
    let ids: Vec<_> = (0..60).map(id).collect();
    (0..60).for_each(|number| put(&tier, number));
    let segments = (tier.usage().unwrap().bytes / SEGMENT.as_u64()) as usize + 2;
    let writes = || counting.writes.swap(0, SeqCst);
    writes();
    assert_eq!(tier.remove_many(&ids[..30]).unwrap(), 30);
    let removal = writes();
    assert!((1..=segments).contains(&removal), "{removal} writes for 30 removals");
    assert_eq!(tier.remove_many(&ids[..30]).unwrap(), 0);
    evict_to(&tier, 0);
    let eviction = writes();
    assert!((1..=segments).contains(&eviction), "{eviction} writes for 30 evictions");
    assert_eq!(tier.usage().unwrap().objects, 0);
}

/// A master takes the first that is reported.
#[test]
fn of_two_objects_of_one_key_the_one_of_the_higher_generation_is_listed_first() {
    let tier = open(medium(8));
    let of = |generation| {
        let key = ObjectKey::new("key").unwrap();
        ObjectId::new("tenant", key, Generation::new(generation)).unwrap()
    };
    [3, 300, 1, 70_000].into_iter().for_each(|of_one| tier.put(&of(of_one), &object(1)).unwrap());
    let listed = |object: &StoredObject| object.id().generation().as_u64();
    let page = scan_all(&tier);
    assert_eq!(page.objects.iter().map(listed).collect::<Vec<_>>(), [70_000, 300, 3, 1]);
    // A cursor continues in that order.
    let two = std::num::NonZeroUsize::new(2).unwrap();
    let page = tier.scan(None, two).unwrap();
    let next = tier.scan(page.next.as_ref(), two).unwrap();
    assert_eq!(next.objects.iter().map(listed).collect::<Vec<_>>(), [3, 1]);
}

/// A scan is the report of a node to a master that has forgotten its disk.
#[test]
fn a_scan_reads_no_object_of_one_slice() {
    let counting = Counting::new(medium(16));
    let medium = counting.medium.clone();
    let tier = open(Arc::clone(&counting));
    let one_slice = |number| {
        let bytes = object(number).slices()[1].bytes().clone();
        ObjectBytes::new(vec![SliceBytes::new(bytes)]).unwrap()
    };
    // More than there is room for, so that some move.
    for round in 0..8 {
        for number in 0..20 {
            tier.put(&id(number), &one_slice(number)).unwrap();
        }
        (20..25).for_each(|number| put(&tier, 5 * round + number));
        (20..24).for_each(|number| assert!(tier.remove(&id(5 * round + number)).unwrap()));
    }
    let expected: Vec<_> = (0..20)
        .map(|number| (id(number), one_slice(number)))
        .chain((0..8).map(|round| 5 * round + 24).map(|number| (id(number), object(number))))
        .map(|(id, object)| StoredObject::of(id, &object))
        .collect();
    let check = |tier: &LogTier, counting: &Counting, reads| {
        let before = counting.reads.load(SeqCst);
        let page = scan_all(tier);
        assert_eq!((page.unreadable.len(), counting.reads.load(SeqCst) - before), (0, reads));
        let mut objects = page.objects;
        objects.sort_by_key(|object| object.id().generation());
        assert_eq!(objects, expected);
    };
    check(&tier, &counting, 8);
    drop(tier);
    let counting = Counting::new(medium);
    let tier = open(Arc::clone(&counting));
    check(&tier, &counting, 8);
}
