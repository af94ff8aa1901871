//! Objects that are sealed with the keys of their tenants.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mc_tier::{
    Damage, DirectoryTier, KeySource, KeysError, LogSettings, LogTier, MemoryBackend, MemoryTier,
    ObjectBytes, ObjectId, SealedTier, SliceBytes, SourceError, SyncPolicy, Tier, TierError,
    TierKeys, conformance,
};
use mc_types::{ByteSize, Generation, ObjectKey, SplitMix64};

use crate::object_store::server;

const ONE: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
const TWO: &str = "10112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

fn keys(list: &str) -> Arc<TierKeys> {
    Arc::new(TierKeys::parse(list).unwrap())
}

fn of_all() -> Arc<TierKeys> {
    keys(&format!("* {ONE}"))
}

fn id(tenant: &str, key: &str) -> ObjectId {
    ObjectId::new(tenant, ObjectKey::new(key).unwrap(), Generation::new(7)).unwrap()
}

fn object(seed: u64, lengths: &[usize]) -> ObjectBytes {
    let mut random = SplitMix64::new(seed);
    let slice = |len: &usize| {
        SliceBytes::new((0..*len).map(|_| random.next_u64() as u8).collect::<Bytes>())
    };
    ObjectBytes::new(lengths.iter().map(slice).collect()).unwrap()
}

/// An object whose bytes are easy to find.
fn readable(lengths: &[usize]) -> ObjectBytes {
    let slices = lengths.iter().map(|len| SliceBytes::new(b"secret".repeat(*len).into()));
    ObjectBytes::new(slices.collect()).unwrap()
}

fn joined(object: &ObjectBytes) -> Vec<u8> {
    object.slices().iter().flat_map(|slice| slice.bytes()).copied().collect()
}

fn is_damaged<T>(result: &Result<T, TierError>) -> bool {
    matches!(result, Err(TierError::Damaged { source: Damage::Seal, .. }))
}

#[test]
fn sealed_tiers_do_what_every_tier_does() {
    let mut memory = MemoryTier::new();
    conformance::run(&mut |is_new| {
        if is_new {
            memory = MemoryTier::new();
        }
        Box::new(SealedTier::new(Arc::new(memory.clone()), of_all()))
    });
    let mut backend = MemoryBackend::new(ByteSize::mib(33));
    let mut settings = LogSettings::default();
    settings.segment_len = ByteSize::mib(4);
    conformance::run(&mut |is_new| {
        if is_new {
            backend = MemoryBackend::new(ByteSize::mib(33));
        }
        let log = LogTier::open(backend.clone(), settings).unwrap();
        Box::new(SealedTier::new(Arc::new(log), of_all()))
    });
    let mut root = tempfile::tempdir().unwrap();
    conformance::run(&mut |is_new| {
        if is_new {
            root = tempfile::tempdir().unwrap();
        }
        let directory = DirectoryTier::open(root.path(), "cluster", SyncPolicy::None).unwrap();
        Box::new(SealedTier::new(Arc::new(directory), of_all()))
    });
    // Without a key of the suite's tenants.
    let mut memory = MemoryTier::new();
    conformance::run(&mut |is_new| {
        if is_new {
            memory = MemoryTier::new();
        }
        Box::new(SealedTier::new(Arc::new(memory.clone()), keys(&format!("another {ONE}"))))
    });
}

fn files_below(directory: &Path, found: &mut Vec<Vec<u8>>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files_below(&path, found),
            false => found.push(fs::read(path).unwrap()),
        }
    }
}

#[test]
fn nothing_of_an_object_is_on_the_medium_in_clear() {
    let root = tempfile::tempdir().unwrap();
    let directory = DirectoryTier::open(root.path(), "cluster", SyncPolicy::None).unwrap();
    let tier = SealedTier::new(Arc::new(directory), keys(&format!("a {ONE}")));
    tier.put(&id("a", "k"), &readable(&[10, 20_000, 3])).unwrap();
    tier.put(&id("a", "other"), &readable(&[10, 20_000, 3])).unwrap();
    let mut files = Vec::new();
    files_below(root.path(), &mut files);
    let has_clear = |file: &Vec<u8>| file.windows(6).any(|part| part == b"secret");
    assert_eq!(files.len(), 2);
    assert!(!files.iter().any(has_clear));
    // Not even that two objects are the same.
    let [one, other] = [0, 1].map(|file| files[file].rchunks_exact(32).nth(100).unwrap());
    assert_ne!(one, other);
    tier.put(&id("b", "k"), &readable(&[10])).unwrap();
    let mut files = Vec::new();
    files_below(root.path(), &mut files);
    assert_eq!(files.iter().filter(|file| has_clear(file)).count(), 1, "of a tenant without a key");
}

#[test]
fn ranges_are_those_of_the_object() {
    let tier = SealedTier::new(Arc::new(MemoryTier::new()), of_all());
    for (number, lengths) in
        [&[1][..], &[65_536], &[65_537, 10], &[300, 400_000, 7]].into_iter().enumerate()
    {
        let (id, object) = (id("a", &number.to_string()), object(number as u64, lengths));
        tier.put(&id, &object).unwrap();
        let whole = joined(&object);
        let edges = [0, 1, 65_535, 65_536, 65_537, 131_072, 262_144, 262_145, 400_306, whole.len()];
        for start in edges {
            for end in edges.into_iter().filter(|end| start < *end && *end <= whole.len()) {
                let part = tier.get_unverified(&id, start as u64..end as u64).unwrap().unwrap();
                assert!(part == whole[start..end], "{start} to {end} of {}", whole.len());
            }
        }
        let beyond = tier.get_unverified(&id, 0..whole.len() as u64 + 1);
        assert!(matches!(beyond, Err(TierError::Range { len, .. }) if len == whole.len() as u64));
    }
}

#[test]
fn every_changed_bit_is_found() {
    let memory = MemoryTier::new();
    let tier = SealedTier::new(Arc::new(memory.clone()), of_all());
    let id = id("a", "k");
    tier.put(&id, &object(1, &[50, 9])).unwrap();
    let stored_id = memory.scan(None, 1.try_into().unwrap()).unwrap().objects[0].id().clone();
    let stored = memory.get(&stored_id).unwrap().unwrap();
    let lengths: Vec<usize> = stored.slices().iter().map(|slice| slice.bytes().len()).collect();
    let put = |bytes: Vec<u8>| {
        let mut bytes = Bytes::from(bytes);
        let slices = lengths.iter().map(|len| SliceBytes::new(bytes.split_to(*len)));
        memory.put(&stored_id, &ObjectBytes::new(slices.collect()).unwrap()).unwrap();
    };
    let bytes = joined(&stored);
    for bit in 0..bytes.len() * 8 {
        let mut changed = bytes.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        put(changed);
        let error = tier.get(&id).unwrap_err();
        // The name of another key is that of none.
        let is_name = (8..16).contains(&(bit / 8));
        let is_no_key = matches!(error, TierError::NoKey { .. });
        assert!(is_no_key == is_name && (is_no_key || is_damaged::<()>(&Err(error))), "bit {bit}");
        assert!(tier.get_unverified(&id, 3..4).is_err(), "bit {bit}");
    }
    put(bytes);
    assert_eq!(tier.get(&id).unwrap(), Some(object(1, &[50, 9])));
}

#[test]
fn an_object_in_the_place_of_another_is_found() {
    let memory = MemoryTier::new();
    let tier = SealedTier::new(Arc::new(memory.clone()), of_all());
    for key in ["one", "two"] {
        tier.put(&id("a", key), &object(1, &[100_000])).unwrap();
    }
    let ids = memory.scan(None, 2.try_into().unwrap()).unwrap().objects;
    let one = memory.get(ids[0].id()).unwrap().unwrap();
    memory.put(ids[1].id(), &one).unwrap();
    assert_eq!(tier.get(&id("a", "one")).unwrap(), Some(object(1, &[100_000])));
    assert!(is_damaged(&tier.get(&id("a", "two"))));
    assert!(is_damaged(&tier.get_unverified(&id("a", "two"), 70_000..70_001)));
    // Chunks of one object in another order.
    let bytes = joined(&one);
    let (first, second) = (&bytes[40..40 + 65_552], &bytes[40 + 65_552..]);
    let swapped = [&bytes[..40], second, first].concat();
    let swapped = ObjectBytes::new(vec![SliceBytes::new(swapped.into())]).unwrap();
    memory.put(ids[0].id(), &swapped).unwrap();
    assert!(is_damaged(&tier.get(&id("a", "one"))));
    // A shorter one.
    let cut =
        ObjectBytes::new(vec![SliceBytes::new(Bytes::copy_from_slice(&bytes[..40 + 65_552]))]);
    memory.put(ids[0].id(), &cut.unwrap()).unwrap();
    assert!(is_damaged(&tier.get(&id("a", "one"))));
}

#[test]
fn keys_can_be_replaced_and_objects_in_clear_be_read() {
    let memory: Arc<dyn Tier> = Arc::new(MemoryTier::new());
    let with = |list: &str| SealedTier::new(Arc::clone(&memory), keys(list));
    let [first, second] = [format!("a {ONE}"), format!("a {TWO}\na {ONE}")];
    let only_new = format!("a {TWO}");
    let object = object(1, &[70_000, 5]);
    with(&format!("b {ONE}")).put(&id("a", "clear"), &object).unwrap();
    with(&first).put(&id("a", "old"), &object).unwrap();
    with(&second).put(&id("a", "new"), &object).unwrap();
    for key in ["clear", "old", "new"] {
        let tier = with(&second);
        assert_eq!(tier.get(&id("a", key)).unwrap().as_ref(), Some(&object), "{key}");
        let found = tier.get_many(&[id("a", key), id("a", "none")]);
        assert!(matches!(&found[..], [Ok(Some(found)), Ok(None)] if *found == object), "{key}");
        let range = tier.get_range(&id("a", key), 65_000..70_002).unwrap().unwrap();
        assert_eq!(range, joined(&object)[65_000..70_002]);
    }
    let gone = with(&only_new).get(&id("a", "old"));
    assert!(matches!(gone, Err(TierError::NoKey { .. })), "{gone:?}");
    let gone = with(&only_new).get_unverified(&id("a", "old"), 0..5).unwrap_err().to_string();
    assert!(gone.contains("tenant \"a\" is sealed with the key"), "{gone}");
    // Without any of its keys they are listed as they are, and removed.
    let none = with(&format!("b {TWO}"));
    let mut listed = none.scan(None, 10.try_into().unwrap()).unwrap().objects;
    listed.sort_by(|one, two| one.id().cmp(two.id()));
    let told: Vec<_> = listed
        .iter()
        .map(|it| (it.id().key().as_str(), it.object_len(), it.has_checksums()))
        .collect();
    assert_eq!(told, [("clear", 70_005, true), ("new", 70_005, false), ("old", 70_005, false)]);
    assert!(none.remove(&id("a", "new")).unwrap());
    assert_eq!(none.remove_many(&[id("a", "clear"), id("a", "old")]).unwrap(), 2);
    assert_eq!(memory.usage().unwrap().objects, 0);
    assert!(!none.remove(&id("a", "old")).unwrap());
}

#[test]
fn objects_of_a_bucket_are_sealed_and_removed_by_all() {
    let Some(server) = server::shared() else { return };
    server.make_bucket("sealed");
    let bucket: Arc<dyn Tier> = Arc::new(server::open(&server, "sealed/objects"));
    let with_key = SealedTier::new(Arc::clone(&bucket), keys(&format!("a {ONE}")));
    let without = SealedTier::new(Arc::clone(&bucket), Arc::default());
    let ids: Vec<ObjectId> = (0..5).map(|number| id("a", &number.to_string())).collect();
    for id in &ids[1..] {
        with_key.put(id, &readable(&[30_000, 3])).unwrap();
    }
    without.put(&ids[0], &readable(&[30_000, 3])).unwrap();
    for id in &ids {
        assert_eq!(with_key.get(id).unwrap(), Some(readable(&[30_000, 3])));
        let range = with_key.get_unverified(id, 170_000..170_010).unwrap().unwrap();
        assert_eq!(range, joined(&readable(&[30_000]))[170_000..170_010]);
    }
    assert!(matches!(without.get(&ids[1]), Err(TierError::NoKey { .. })));
    assert_eq!(without.usage().unwrap().objects, 5);
    assert_eq!(without.remove_many(&ids).unwrap(), 5);
    assert_eq!(bucket.usage().unwrap().objects, 0);
}

#[test]
fn the_longest_object_of_a_log_fits_sealed() {
    let mut settings = LogSettings::default();
    settings.segment_len = ByteSize::mib(4);
    let log = LogTier::open(MemoryBackend::new(ByteSize::mib(33)), settings).unwrap();
    let longest = log.max_object_len();
    let tier = SealedTier::new(Arc::new(log), of_all());
    assert!(tier.max_object_len() < longest && tier.max_object_len() > longest - 2048);
    let at_most = object(1, &[tier.max_object_len() as usize - 4096]);
    tier.put(&id("a", "k"), &at_most).unwrap();
    assert_eq!(tier.get(&id("a", "k")).unwrap(), Some(at_most));
}

#[test]
fn a_file_is_read_again_when_it_has_changed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("keys");
    let missing = TierKeys::open(KeySource::File(path.clone())).unwrap_err();
    assert!(missing.to_string().contains("cannot read the file of keys"), "{missing}");
    fs::write(&path, format!("a {ONE}")).unwrap();
    let file = Arc::new(TierKeys::open(path.to_str().unwrap().parse().unwrap()).unwrap());
    let memory: Arc<dyn Tier> = Arc::new(MemoryTier::new());
    let tier = SealedTier::new(Arc::clone(&memory), Arc::clone(&file));
    tier.put(&id("a", "old"), &readable(&[3])).unwrap();
    fs::write(&path, format!("a {TWO}\na {ONE}\n")).unwrap();
    file.refresh().unwrap();
    tier.put(&id("a", "new"), &readable(&[3])).unwrap();
    let only_new = SealedTier::new(Arc::clone(&memory), keys(&format!("a {TWO}")));
    assert_eq!(only_new.get(&id("a", "new")).unwrap(), Some(readable(&[3])));
    assert!(only_new.get(&id("a", "old")).is_err());
    // A list that is wrong is not used.
    fs::write(&path, "a 12").unwrap();
    assert!(matches!(file.refresh(), Err(KeysError::Line { number: 1, .. })));
    fs::remove_file(&path).unwrap();
    assert!(matches!(file.refresh(), Err(KeysError::Source { .. })));
    assert_eq!(tier.get(&id("a", "old")).unwrap(), Some(readable(&[3])));
}

#[test]
fn a_program_may_print_the_keys() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("keys");
    let program = |text: &str| {
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        TierKeys::open(format!("exec:{}", path.display()).parse().unwrap())
    };
    let keys = Arc::new(program(&format!("echo 'a {ONE}'")).unwrap());
    let tier = SealedTier::new(Arc::new(MemoryTier::new()), keys);
    tier.put(&id("a", "k"), &readable(&[3])).unwrap();
    assert_eq!(tier.get(&id("a", "k")).unwrap(), Some(readable(&[3])));
    let source = |failed: Result<TierKeys, KeysError>| match failed {
        Err(KeysError::Source { source }) => *source,
        other => panic!("{other:?}"),
    };
    assert!(matches!(source(program("exit 3")), SourceError::Failed { .. }));
    assert!(matches!(source(program("cat /dev/zero")), SourceError::Program { .. }));
    assert!(matches!(program("echo a"), Err(KeysError::Line { .. })));
    let missing = TierKeys::open("exec:/there/is/none".parse().unwrap());
    assert!(matches!(source(missing), SourceError::Program { .. }));
    let begun = Instant::now();
    assert!(matches!(source(program("exec sleep 600")), SourceError::TooLong { .. }));
    assert!(begun.elapsed() < Duration::from_secs(60));
}
