//! Objects on clients' local disks, after a restart of the master.

use mc_meta::{FoundError, FoundInTier, LocalDiskSpec};
use mc_types::LocalDiskId;

use super::*;
use crate::rules::offload::{OTHER, disk, read, with_disks, write_all};

/// A master with an object on the disk of `NODE` and in memory, two on the disk alone, and one that
/// was removed from there.
fn former(journal: &Journal) -> Master {
    let config = with_disks(false);
    let master = Master::new(config, 1).unwrap().with_secret(SECRET).with_sink(journal.clone());
    for number in 0..2 {
        master.mount_segment(at(0), NODE, segment(number, 1000)).unwrap();
    }
    master.mount_local_disk(at(0), NODE, disk(NODE), true).unwrap();
    for (name, place) in [
        ("both", "segment-1"),
        ("only", "segment-0"),
        ("lost", "segment-0"),
        ("removed", "segment-0"),
    ] {
        put_as(&master, at(0), name, 20, &ReplicateConfig::default().prefer(place)).unwrap();
    }
    write_all(&master, at(0));
    master.remove(at(0), key("removed"), true).unwrap();
    master.unmount_segment(at(0), NODE, SegmentId::from_u128(0)).unwrap();
    while master.tick(at(0)) {}
    assert_eq!(read(&master, at(0), "only"), Ok((false, 1)));
    assert_eq!(read(&master, at(0), "both"), Ok((true, 1)));
    master
}

fn generation(records: &[Record], name: &str) -> Generation {
    let of_key = |record: &Record| match record {
        Record::Object(object) if object.key.as_str() == name => Some(object.generation),
        Record::Removed { key, generation } if key.as_str() == name => Some(*generation),
        _ => None,
    };
    records.iter().find_map(of_key).unwrap()
}

fn found(master: &Master, name: &str, generation: Generation) -> Result<(), FoundError> {
    let (slices, address) = (one_slice(20), 64);
    let found = FoundInTier { key: key(name), generation, slices, address };
    master.report_local_disk(LATER, OTHER, &[found]).remove(0)
}

#[test]
fn a_disk_that_was_there_is_away_until_its_client_comes_back() {
    let journal = Journal::default();
    let former = former(&journal);
    let (told, exported) = (journal.records(), export(&former, LATER));
    let removed = generation(&told, "removed");
    for (records, parts) in [(&told, 1), (&exported, 1), (&told, 3), (&exported, 3)] {
        let Rebuilt { master, report, .. } =
            rebuild_in_parts(with_disks(false), records, LATER, parts);
        assert_eq!((report.objects, report.lost, report.dropped.total()), (3, 0, 0));
        remount_all(&master, LATER);
        let both = read(&master, LATER, "both");
        assert_eq!(both, Ok((true, 0)), "the disk is away, and the memory is not");
        for name in ["only", "lost"] {
            assert_eq!(read(&master, LATER, name), Err(GetError::NotReady));
        }
        assert!(master.local_disks().is_empty());
        // The next life knows as much.
        assert_eq!(state(&restart(&master, LATER), LATER), state(&former, LATER));

        // The node's next client has the disk.
        let spec = LocalDiskSpec { id: disk(NODE).id, ..disk(OTHER) };
        master.mount_local_disk(LATER, OTHER, spec, true).unwrap();
        for name in ["both", "only"] {
            assert_eq!(found(&master, name, generation(records, name)), Ok(()));
        }
        assert_eq!(found(&master, "removed", removed), Err(FoundError::OtherObject));
        assert_eq!(read(&master, LATER, "both"), Ok((true, 1)));
        let list = master.get_replica_list(LATER, key("only")).unwrap();
        let place = &list.local_disks[0];
        assert_eq!((place.client, place.extent.offset(), place.extent.len()), (OTHER, 64, 20));
        assert_eq!(read(&master, LATER, "lost"), Err(GetError::NotReady));
        master.local_disk_reported(OTHER).unwrap();
        while master.tick(LATER) {}
        assert_eq!(read(&master, LATER, "lost"), Err(GetError::NotFound));
        let told = &master.local_disks()[0];
        assert_eq!((told.objects, told.usage.used), (2, 40));
    }
}

#[test]
fn a_disk_that_does_not_come_back_is_forgotten() {
    let journal = Journal::default();
    let former = former(&journal);
    let events = Recorder::default();
    let master = restart(&former, LATER).with_sink(events.clone());
    let due = LATER + master.config().local_disk.unwrap().return_timeout;
    remount_all(&master, LATER);
    while master.tick(before(due)) {}
    assert_eq!(read(&master, before(due), "only"), Err(GetError::NotReady));
    while master.tick(due) {}
    for name in ["only", "lost"] {
        assert_eq!(read(&master, due, name), Err(GetError::NotFound));
    }
    assert_eq!(events.removals(Removal::DiskLost), ["only", "lost"]);
    assert_eq!(read(&master, due, "both"), Ok((true, 0)));
}

#[test]
fn without_disks_what_was_on_them_alone_is_lost() {
    let journal = Journal::default();
    former(&journal);
    let (master, report) = rebuild_with(settings(), &journal.records(), LATER);
    assert_eq!((report.objects, report.lost, report.dropped.total()), (1, 2, 0));
    remount_all(&master, LATER);
    assert_eq!(read(&master, LATER, "both"), Ok((true, 0)));
    assert_eq!(read(&master, LATER, "only"), Err(GetError::NotFound));
}

#[test]
fn records_say_on_which_disks_an_object_is() {
    let journal = Journal::default();
    let former = former(&journal);
    let ids = |records: &[Record], name: &str| {
        let of_key = |record: &Record| match record {
            Record::Object(object) if object.key.as_str() == name => {
                Some(object.local_disks.to_vec())
            }
            _ => None,
        };
        records.iter().rev().find_map(of_key).unwrap()
    };
    let (first, second) = (disk(NODE).id, LocalDiskId::from_u128(7));
    for name in ["both", "only"] {
        assert_eq!(ids(&journal.records(), name), [first]);
    }
    former
        .mount_local_disk(LATER, OTHER, LocalDiskSpec { id: second, ..disk(OTHER) }, true)
        .unwrap();
    found(&former, "both", generation(&journal.records(), "both")).unwrap();
    for records in [journal.records(), export(&former, LATER)] {
        assert_eq!(ids(&records, "both"), [first, second]);
    }
    former.unmount_local_disk(LATER, OTHER, true).unwrap();
    assert_eq!(ids(&export(&former, LATER), "both"), [first, second], "it may come back");
    former.unmount_local_disk(LATER, NODE, false).unwrap();
    assert_eq!(ids(&export(&former, LATER), "both"), [second]);
}
