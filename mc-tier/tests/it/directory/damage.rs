//! Files that are not what was written.

use std::fs;
use std::path::PathBuf;

use mc_tier::{Damage, DirectoryTier, ObjectId, Tier, TierError};

use super::common::{files, id, object, scan_all, with_object};

/// Two objects, of which the file of the first is at the returned path.
fn two() -> (tempfile::TempDir, DirectoryTier, [ObjectId; 2], PathBuf) {
    let (root, tier, damaged) = with_object();
    let file = files(&tier).remove(0);
    let whole = id("another key");
    tier.put(&whole, &object(&whole, 5000)).unwrap();
    (root, tier, [damaged, whole], file)
}

/// Only the damaged object suffers, until it is put again.
fn is_told_and_healed(tier: &DirectoryTier, [damaged, whole]: &[ObjectId; 2]) -> Damage {
    let found = match tier.get(damaged) {
        Err(TierError::Damaged { source, path }) => {
            assert!(path.starts_with(tier.directory()), "{path:?}");
            source
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(tier.get(whole).unwrap(), Some(object(whole, 5000)));
    tier.put(damaged, &object(damaged, 5000)).unwrap();
    assert_eq!(tier.get(damaged).unwrap(), Some(object(damaged, 5000)));
    found
}

#[test]
fn no_flipped_bit_is_returned() {
    let (_root, tier, id) = with_object();
    let file = files(&tier).remove(0);
    let original = fs::read(&file).unwrap();
    // All of the header and of the first slice, and samples of the rest.
    for byte in (0..120).chain((120..original.len()).step_by(97)) {
        let mut bytes = original.clone();
        bytes[byte] ^= 1 << (byte % 8);
        fs::write(&file, bytes).unwrap();
        let read = tier.get(&id);
        let is_told = matches!(read, Err(TierError::Damaged { .. } | TierError::Newer { .. }));
        assert!(is_told, "byte {byte}: {read:?}");
    }
}

#[test]
fn a_flipped_bit_disturbs_no_other_object_and_no_other_slice() {
    let (_root, tier, ids, file) = two();
    let mut bytes = fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&file, bytes).unwrap();
    assert_eq!(scan_all(&tier).objects.len(), 2, "a scan does not read the bytes");
    let first = tier.get_range(&ids[0], 0..10).unwrap().unwrap();
    assert_eq!(first, object(&ids[0], 5000).slices()[0].bytes());
    assert!(matches!(tier.get_range(&ids[0], 9..11), Err(TierError::Damaged { .. })));
    let damage = is_told_and_healed(&tier, &ids);
    assert!(matches!(damage, Damage::Slice { index: 1, .. }), "{damage:?}");
}

#[test]
fn a_file_that_was_cut_or_is_too_long_is_told() {
    let (_root, tier, ids, file) = two();
    let whole = fs::read(&file).unwrap();
    for len in [0, 1, 23, 24, 60, 100, whole.len() - 1] {
        fs::write(&file, &whole[..len]).unwrap();
        let page = scan_all(&tier);
        assert_eq!((page.objects.len(), page.unreadable.len()), (1, 1), "{len} bytes");
        is_told_and_healed(&tier, &ids);
    }
    fs::write(&file, [&whole[..], &[0]].concat()).unwrap();
    let found = whole.len() as u64 + 1;
    let expected = Damage::Length { expected: found - 1, found };
    assert_eq!(is_told_and_healed(&tier, &ids), expected);
}

/// A length that a disk made up must not be allocated.
#[test]
fn a_huge_file_is_not_read() {
    let (_root, tier, ids, file) = two();
    let file = fs::OpenOptions::new().write(true).open(file).unwrap();
    file.set_len(1 << 40).unwrap();
    assert!(matches!(is_told_and_healed(&tier, &ids), Damage::Length { .. }));
}

#[test]
fn a_file_under_the_name_of_another_object_is_told() {
    let (_root, tier, ids, file) = two();
    let other = files(&tier).into_iter().find(|path| *path != file).unwrap();
    fs::copy(other, file).unwrap();
    assert_eq!(scan_all(&tier).unreadable.len(), 1);
    let found = ids[1].clone();
    assert_eq!(is_told_and_healed(&tier, &ids), Damage::OtherObject { found });
}

#[test]
fn a_file_of_a_newer_version_is_told() {
    let (_root, tier, id) = with_object();
    let file = files(&tier).remove(0);
    let mut bytes = fs::read(&file).unwrap();
    bytes[4] = 2;
    fs::write(file, bytes).unwrap();
    let read = tier.get(&id);
    assert!(matches!(read, Err(TierError::Newer { found: 2, known: 1, .. })), "{read:?}");
}

#[test]
fn what_is_no_regular_file_is_told_and_stops_nobody() {
    let (root, tier, ids, file) = two();
    let told = |what: &str| {
        let read = tier.get(&ids[0]);
        assert!(matches!(read, Err(TierError::File { .. })), "{what}: {read:?}");
        let page = scan_all(&tier);
        assert_eq!((page.objects.len(), page.unreadable.len()), (1, 1), "{what}");
        assert_eq!(tier.get(&ids[1]).unwrap(), Some(object(&ids[1], 5000)), "{what}");
    };
    fs::remove_file(&file).unwrap();
    let pipe = std::process::Command::new("mkfifo").arg(&file).status();
    assert!(pipe.unwrap().success());
    told("a pipe");
    fs::remove_file(&file).unwrap();
    fs::write(root.path().join("secret"), "secret").unwrap();
    std::os::unix::fs::symlink(root.path().join("secret"), &file).unwrap();
    told("a link");
    tier.put(&ids[0], &object(&ids[0], 5000)).unwrap();
    assert_eq!(fs::read(root.path().join("secret")).unwrap(), b"secret");
    assert_eq!(tier.get(&ids[0]).unwrap(), Some(object(&ids[0], 5000)));
}

#[test]
fn files_of_others_are_left_alone() {
    let (_root, tier, id) = with_object();
    let file = files(&tier).remove(0);
    let other = file.with_file_name("README");
    fs::write(&other, "of an administrator").unwrap();
    fs::write(tier.directory().join("notes"), "too").unwrap();
    let page = scan_all(&tier);
    assert_eq!((page.objects.len(), page.unreadable.len()), (1, 0));
    assert_eq!(tier.usage().unwrap().objects, 1);
    assert!(tier.remove(&id).unwrap());
    assert!(other.exists());
}
