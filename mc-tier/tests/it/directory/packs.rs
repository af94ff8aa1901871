//! Objects that were put together share a file.

use std::fs;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use bytes::Bytes;
use mc_testkit::content;
use mc_tier::pack_file::{PackIndex, PackedObject};
use mc_tier::{Damage, DirectoryTier, ObjectBytes, ObjectId, SliceBytes, Tier, TierError};
use mc_types::{ByteSize, Generation, ObjectKey};

use super::common::{files, open, scan_all};

/// Objects of a run.
fn run(number: u64, count: u64) -> Vec<(ObjectId, ObjectBytes)> {
    run_of(number, count, 5000)
}

/// The same, of so many bytes each.
fn run_of(number: u64, count: u64, len: usize) -> Vec<(ObjectId, ObjectBytes)> {
    let object = |place: u64| {
        let key = format!("key-{number}-{place}");
        let generation = Generation::in_run(number, place as u32);
        let bytes = Bytes::from(content(&key, len));
        let id = ObjectId::new("", ObjectKey::new(key).unwrap(), generation).unwrap();
        (id, ObjectBytes::new(vec![SliceBytes::new(bytes)]).unwrap())
    };
    (1..=count).map(object).collect()
}

fn is_there(tier: &DirectoryTier, (id, object): &(ObjectId, ObjectBytes)) -> bool {
    let found = tier.get(id).unwrap();
    assert!(found.is_none() || found.as_ref() == Some(object), "{id} has other bytes");
    assert_eq!(tier.stat(id).unwrap().is_some(), found.is_some());
    found.is_some()
}

fn only_file(tier: &DirectoryTier) -> PathBuf {
    let files = files(tier);
    assert_eq!(files.len(), 1, "{files:?}");
    files.into_iter().next().unwrap()
}

#[test]
fn a_thousand_objects_are_one_file() {
    let root = tempfile::tempdir().unwrap();
    let tier = open(root.path());
    let objects = run(0x1234_5678, 1000);
    tier.put_many(&objects).unwrap();
    let file = only_file(&tier);
    assert_eq!(tier.path_of(&objects[7].0), file);
    assert_ne!(DirectoryTier::path_in(tier.directory(), &objects[7].0), file);
    assert!(file.ends_with("78/p,00012345678"), "{}", file.display());
    let bytes = Bytes::from(fs::read(&file).unwrap());
    let len = PackIndex::len_of(&bytes).unwrap();
    let index = PackIndex::parse(bytes.slice(..len), 0x1234_5678, bytes.len() as u64).unwrap();
    let PackedObject { object, at } = index.object(7).unwrap();
    assert_eq!(*object.id(), objects[7].0);
    assert_eq!(bytes[at as usize..][..5000], objects[7].1.slices()[0].bytes()[..]);
    // Another process, whose pages end within the pack.
    let other = open(root.path());
    assert!(objects.iter().all(|object| is_there(&other, object)));
    let page = other.scan(None, NonZeroUsize::new(999).unwrap()).unwrap();
    assert_eq!(page.objects.len(), 999);
    let page = other.scan(page.next.as_ref(), NonZeroUsize::new(999).unwrap()).unwrap();
    assert_eq!((page.objects.len(), page.next), (1, None));
}

#[test]
fn few_objects_and_long_ones_have_files_of_their_own() {
    let root = tempfile::tempdir().unwrap();
    let tier = open(root.path());
    tier.put_many(&run(1, 3)).unwrap();
    assert_eq!(files(&tier).len(), 3);
    let mut long = run(2, 5);
    let bytes = Bytes::from(content("long", (8 << 20) + 1));
    long[2].1 = ObjectBytes::new(vec![SliceBytes::new(bytes)]).unwrap();
    tier.put_many(&long).unwrap();
    assert_eq!(files(&tier).len(), 5);
    assert!(long.iter().all(|object| is_there(&tier, object)));
}

/// Other clients see the removal, also after a restart; the bytes go when half of the objects have.
#[test]
fn what_is_removed_stays_removed() {
    let root = tempfile::tempdir().unwrap();
    let tier = open(root.path());
    let objects = run(1, 100);
    tier.put_many(&objects).unwrap();
    let file = only_file(&tier);
    let (len, age) = {
        let found = fs::metadata(&file).unwrap();
        (found.len(), found.modified().unwrap())
    };
    let ids = |objects: &[(ObjectId, ObjectBytes)]| -> Vec<ObjectId> {
        objects.iter().map(|(id, _)| id.clone()).collect()
    };
    let (kept, removed) = objects.split_at(40);
    // Some are named twice.
    assert_eq!(tier.remove_many(&ids(&[&removed[..30], &removed[..5]].concat())).unwrap(), 30);
    assert_eq!(tier.remove_many(&ids(&removed[..30])).unwrap(), 0);
    let found = fs::metadata(&file).unwrap();
    assert_eq!((found.len(), found.modified().unwrap()), (len, age), "it is as old as its objects");

    let other = open(root.path());
    assert!(removed[..30].iter().all(|object| !is_there(&other, object)));
    assert!(removed[30..].iter().all(|object| is_there(&other, object)));
    assert_eq!(scan_all(&other).objects.len(), 70);
    assert_eq!(other.usage().unwrap().objects, 70);
    assert!(!other.wants_clean_up());
    assert_eq!(other.clean_up().unwrap(), 0, "most are there");
    assert_eq!(other.remove_many(&ids(&removed[30..])).unwrap(), 30);
    assert!(other.wants_clean_up());
    assert_eq!(other.clean_up().unwrap(), 1);
    assert!(!other.wants_clean_up());
    assert!(other.usage().unwrap().bytes < len / 2);
    assert_eq!(fs::metadata(&file).unwrap().modified().unwrap(), age, "as old as its objects");
    // The first has read the index of the pack that was replaced.
    for tier in [&tier, &other] {
        assert!(kept.iter().all(|object| is_there(tier, object)));
        assert_eq!(scan_all(tier).objects.len(), 40);
    }
    assert_eq!(tier.remove_many(&ids(kept)).unwrap(), 40);
    assert!(files(&tier).is_empty());
    assert!(objects.iter().all(|object| !is_there(&other, object)));
}

#[test]
fn a_pack_that_is_there_is_not_replaced_by_a_put() {
    let root = tempfile::tempdir().unwrap();
    let tier = open(root.path());
    let objects = run(1, 20);
    tier.put_many(&objects[..10]).unwrap();
    // As of a master that gives generations of one run to several clients.
    open(root.path()).put_many(&objects[5..]).unwrap();
    assert_eq!(files(&tier).len(), 11);
    assert!(objects.iter().all(|object| is_there(&tier, object)));
}

#[test]
fn the_oldest_pack_is_evicted_as_a_whole() {
    let root = tempfile::tempdir().unwrap();
    let tier = open(root.path());
    let [old, young] = [run(2, 50), run(1, 50)];
    tier.put_many(&old).unwrap();
    let file = fs::File::open(only_file(&tier)).unwrap();
    file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    tier.put_many(&young).unwrap();
    tier.remove(&old[3].0).unwrap();
    let used = tier.usage().unwrap().bytes;
    let mut evicted = Vec::new();
    let limits =
        mc_tier::Watermarks { high: ByteSize::bytes(used - 1), low: ByteSize::bytes(used - 1) };
    let removed = tier.evict(limits, &mut |id| evicted.push(id)).unwrap();
    assert_eq!((evicted.len(), removed.objects), (49, 49));
    assert!(evicted.iter().all(|id| old.iter().any(|(old, _)| old == id)));
    assert!(old.iter().all(|object| !is_there(&tier, object)));
    assert!(young.iter().all(|object| is_there(&tier, object)));
}

#[test]
fn no_damage_of_a_pack_is_returned_as_bytes() {
    let root = tempfile::tempdir().unwrap();
    let objects = run(1, 6);
    open(root.path()).put_many(&objects).unwrap();
    let file = only_file(&open(root.path()));
    let whole = fs::read(&file).unwrap();
    let index_len = PackIndex::len_of(&whole).unwrap();
    let read_all = || {
        let tier = open(root.path());
        let get = |(id, object): &(ObjectId, ObjectBytes)| match tier.get(id) {
            Ok(Some(found)) => {
                assert!(found == *object, "wrong bytes of {id}");
                true
            }
            Ok(None) => true,
            Err(TierError::Damaged { .. } | TierError::Newer { .. }) => false,
            Err(error) => panic!("{error}"),
        };
        objects.iter().map(get).filter(|is_good| !is_good).count()
    };
    assert_eq!(read_all(), 0);
    // The bytes behind the checksum say what was removed.
    for at in (0..index_len - objects.len()).step_by(3) {
        let mut flipped = whole.clone();
        flipped[at] ^= 1 << (at % 8);
        fs::write(&file, flipped).unwrap();
        assert_eq!(read_all(), objects.len(), "byte {at}");
    }
    for at in (index_len..whole.len()).step_by(1201) {
        let mut flipped = whole.clone();
        flipped[at] ^= 0x10;
        fs::write(&file, flipped).unwrap();
        assert_eq!(read_all(), 1, "byte {at}");
    }
    for len in [0, 3, 24, index_len - 1, index_len, whole.len() - 1] {
        fs::write(&file, &whole[..len]).unwrap();
        assert_eq!(read_all(), objects.len(), "{len} bytes");
    }
    fs::write(&file, [&whole[..], b"x"].concat()).unwrap();
    assert_eq!(read_all(), objects.len());
    // The pack of another run.
    let other = file.parent().unwrap().parent().unwrap().join("01/p,00000000101");
    fs::write(&other, &whole).unwrap();
    fs::write(&file, &whole).unwrap();
    let page = scan_all(&open(root.path()));
    assert_eq!((page.objects.len(), page.unreadable.len()), (6, 1));
    let is_index =
        |error: &TierError| matches!(error, TierError::Damaged { source: Damage::Index, .. });
    assert!(is_index(&page.unreadable[0]), "{:?}", page.unreadable);
}

/// A reader, one that removes, and one that cleans up.
#[test]
fn packs_are_read_while_they_are_written_anew() {
    let root = tempfile::tempdir().unwrap();
    // More than a reader keeps.
    let objects: Vec<_> = (1..=8).flat_map(|number| run_of(number, 64, 80_000)).collect();
    open(root.path()).put_many(&objects).unwrap();
    let (kept, removed): (Vec<_>, Vec<_>) =
        objects.into_iter().partition(|(id, _)| id.generation().place_in_run() % 3 == 0);
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = || {
            let tier = open(root.path());
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                assert!(kept.iter().all(|object| is_there(&tier, object)));
            }
            assert!(kept.iter().all(|object| is_there(&tier, object)));
        };
        let readers = [scope.spawn(reader), scope.spawn(reader)];
        let tier = open(root.path());
        for (id, _) in &removed {
            assert!(tier.remove(id).unwrap());
            tier.clean_up().unwrap();
        }
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        assert_eq!(tier.usage().unwrap().objects, kept.len() as u64);
    });
    assert_eq!(scan_all(&open(root.path())).objects.len(), kept.len());
}
