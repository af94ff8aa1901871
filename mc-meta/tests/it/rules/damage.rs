//! Replicas that readers report as damaged.

use mc_meta::{
    DamageReport, KeyEventKind, ReplicaCheck, ReplicaPlace, ReportOutcome, SharedTierConfig,
    Verdict,
};
use mc_types::{Checksum, Extent};

use super::offload::{OTHER as OTHER_NODE, with_disk, with_disks, write_all};
use super::*;

const READER: u64 = 1;
const OTHER: u64 = 2;

fn put_summed(master: &Master, now: Time, name: &str, config: &ReplicateConfig) -> PutGrant {
    let grant = start_as(master, now, name, 10, config).unwrap();
    let checksums = [Checksum::from_crc32c(7)];
    let (key, handle) = (key(name), grant.handle);
    master
        .put_end(now, WRITER, &PutEnd { checksums: &checksums, ..PutEnd::new(key, handle) })
        .unwrap();
    grant
}

fn place_of(grant: &PutGrant, nth: usize) -> ReplicaPlace {
    let placement = &grant.placements[nth];
    ReplicaPlace::Memory { segment: placement.segment.spec().id, extent: placement.extent }
}

fn report(
    master: &Master,
    now: Time,
    source: u64,
    name: &str,
    generation: Generation,
    place: ReplicaPlace,
) -> ReportOutcome {
    master.report_damage(now, source, &DamageReport { key: key(name), generation, place })
}

/// The one check that the replica's owner is asked to do.
fn asked(master: &Master, now: Time) -> ReplicaCheck {
    let mut checks = master.checks_for(now, NODE);
    assert_eq!(checks.len(), 1);
    checks.remove(0)
}

#[test]
fn a_damaged_object_goes_when_its_owner_has_looked_and_the_next_put_works() {
    let removals = Recorder::default();
    let master = master(&[100]).with_sink(removals.clone());
    let grant = put_summed(&master, at(0), "a", &ReplicateConfig::default());
    master.get_replica_list(at(0), key("a")).unwrap();
    let place = place_of(&grant, 0);
    let generation = grant.handle.generation;
    assert_eq!(report(&master, at(10), READER, "a", generation, place), ReportOutcome::Noted);
    assert!(has(&master, "a"), "one reader's word");
    let check = asked(&master, at(20));
    let segment = check.segment.unwrap();
    assert_eq!(ReplicaPlace::Memory { segment, extent: check.extent }, place);
    assert_eq!(check.slices.as_slice()[0].checksum, Some(Checksum::from_crc32c(7)));
    assert!(master.checks_for(at(30), NODE).is_empty(), "asked already");
    // A client cannot answer for another owner.
    master.checked(at(30), STRANGER, check.id, Verdict::Damaged);
    assert!(has(&master, "a"));
    master.checked(at(30), NODE, check.id, Verdict::Damaged);
    assert_eq!(removals.removals(Removal::Damaged), ["a"]);
    let what = KeyEventKind::Removed { generation, cause: Removal::Damaged };
    assert_eq!(master.explain(at(30), key("a")).history[0].kind, what);
    // Readers under lease may still be reading there.
    assert_eq!(master.report().totals.used, 10);
    let next = put_summed(&master, at(40), "a", &ReplicateConfig::default());
    assert!(!next.placements[0].extent.overlaps(grant.placements[0].extent));
    master.tick(secs(6));
    assert_eq!(master.report().totals.used, 10);
    let totals = master.report().totals;
    assert_eq!((totals.damage_reports, totals.damage_confirmed, totals.damage_removed), (1, 1, 1));
    assert_eq!((totals.damage_denied, totals.damage_dropped), (0, 0));
}

#[test]
fn of_two_replicas_the_damaged_one_goes() {
    let removals = Recorder::default();
    let master = master(&[100, 100]).with_sink(removals.clone());
    let grant = put_summed(&master, at(0), "a", &ReplicateConfig::default().replicas(2));
    let generation = grant.handle.generation;
    report(&master, at(0), READER, "a", generation, place_of(&grant, 1));
    master.checked(at(0), NODE, asked(&master, at(0)).id, Verdict::Damaged);
    let list = master.get_replica_list(at(0), key("a")).unwrap();
    assert_eq!((list.placements.len(), list.generation), (1, generation));
    assert_eq!(list.placements[0].extent, grant.placements[0].extent);
    assert_eq!(list.placements[0].segment.spec().id, grant.placements[0].segment.spec().id);
    assert!(removals.removals(Removal::Damaged).is_empty());
    assert_eq!(master.report().totals.used, 10);
}

#[test]
fn a_liar_deletes_nothing_and_is_limited() {
    let master = master(&[100_000]);
    let objects: Vec<_> = (0..1000)
        .map(|n| {
            let name = format!("k{n}");
            let grant = put_summed(&master, at(0), &name, &ReplicateConfig::default());
            (name, grant)
        })
        .collect();
    let lie = |source, now| {
        let told = objects.iter().map(|(name, grant)| {
            report(&master, now, source, name, grant.handle.generation, place_of(grant, 0))
        });
        told.filter(|outcome| *outcome == ReportOutcome::Noted).count()
    };
    assert_eq!(lie(READER, at(0)), 64);
    let mut looks = 0;
    for second in 0..60 {
        loop {
            let checks = master.checks_for(secs(second), NODE);
            if checks.is_empty() {
                break;
            }
            looks += checks.len();
            for check in checks {
                master.checked(secs(second), NODE, check.id, Verdict::Intact);
            }
        }
        lie(READER, secs(second));
        master.tick(secs(second));
    }
    assert_eq!(looks, 64, "owners stop checking for a reporter that is always wrong");
    assert_eq!((master.report().totals.objects, master.report().totals.damage_denied), (1000, 64));
    // Others are believed all the same.
    assert_eq!(lie(OTHER, secs(60)), 64);
}

#[test]
fn reports_of_what_is_not_there_any_more_are_ignored() {
    let master = master(&[100, 100]);
    let first = put_summed(&master, at(0), "a", &ReplicateConfig::default());
    master.remove(at(0), key("a"), true).unwrap();
    let grant = put_summed(&master, at(0), "a", &ReplicateConfig::default());
    put(&master, at(0), "unverified", 10).unwrap();
    let (generation, place) = (grant.handle.generation, place_of(&grant, 0));
    let elsewhere = ReplicaPlace::Memory {
        segment: SegmentId::from_u128(9),
        extent: Extent::new(0, 10).unwrap(),
    };
    let unverified = newest(&master);
    for (name, generation, place) in [
        ("a", first.handle.generation, place),
        ("a", generation, elsewhere),
        ("a", generation, ReplicaPlace::File),
        ("a", generation, ReplicaPlace::LocalDisk(NODE)),
        ("b", generation, place),
        ("unverified", unverified, place),
    ] {
        let outcome = report(&master, at(0), READER, name, generation, place);
        assert_eq!(outcome, ReportOutcome::Stale, "{name} {place:?}");
    }
    assert!(master.checks_for(at(0), NODE).is_empty());
    // What was replaced between the question and the answer stays.
    report(&master, at(0), READER, "a", generation, place);
    let check = asked(&master, at(0));
    master.remove(at(0), key("a"), true).unwrap();
    put_summed(&master, at(0), "a", &ReplicateConfig::default());
    master.checked(at(0), NODE, check.id, Verdict::Damaged);
    assert!(has(&master, "a"));
    assert_eq!(master.report().totals.damage_removed, 0);
}

#[test]
fn where_the_owner_does_not_answer_a_second_source_counts() {
    let master = master(&[100, 100]);
    let grant = put_summed(&master, at(0), "a", &ReplicateConfig::default());
    let (generation, place) = (grant.handle.generation, place_of(&grant, 0));
    for now in [0, 1, 2] {
        report(&master, at(now), READER, "a", generation, place);
    }
    report(&master, at(3), OTHER, "a", generation, place);
    master.tick(secs(4));
    assert!(has(&master, "a"), "the owner may still answer");
    master.tick(secs(5));
    assert!(!has(&master, "a"));

    // One source alone is forgotten in the end, however often it says so.
    let grant = put_summed(&master, secs(10), "b", &ReplicateConfig::default());
    let (generation, place) = (grant.handle.generation, place_of(&grant, 0));
    for second in 10..70 {
        report(&master, secs(second), READER, "b", generation, place);
        master.tick(secs(second));
    }
    assert!(has(&master, "b"));
}

#[test]
fn a_damaged_file_goes_when_two_sources_say_so() {
    let removals = Recorder::default();
    let mut config = settings();
    config.shared_tier = Some(SharedTierConfig::default());
    let master = master_with(config, &[100]).with_sink(removals.clone());
    let grant = put_summed(&master, at(0), "a", &ReplicateConfig::default());
    let generation = grant.handle.generation;
    master.file_put_end(at(0), WRITER, key("a"), grant.handle).unwrap();
    let file = ReplicaPlace::File;
    assert_eq!(report(&master, at(0), READER, "a", generation, file), ReportOutcome::Noted);
    assert!(master.checks_for(at(0), NODE).is_empty(), "no client has it");
    assert_eq!(report(&master, at(0), OTHER, "a", generation, file), ReportOutcome::Confirmed);
    let list = master.get_replica_list(at(0), key("a")).unwrap();
    assert_eq!((list.placements.len(), list.file), (1, None));
    report(&master, at(0), READER, "a", generation, place_of(&grant, 0));
    master.checked(at(0), NODE, asked(&master, at(0)).id, Verdict::Damaged);
    assert_eq!(removals.removals(Removal::Damaged), ["a"]);
}

#[test]
fn one_reader_is_enough_to_have_the_owner_look_at_its_disk() {
    let removals = Recorder::default();
    let master = with_disk(with_disks(false), 100).with_sink(removals.clone());
    let generation = put_summed(&master, at(0), "a", &ReplicateConfig::default()).handle.generation;
    write_all(&master, at(0));
    let place = ReplicaPlace::LocalDisk(NODE);
    let there = || master.get_replica_list(at(1), key("a")).unwrap().local_disks;
    let extent = there()[0].extent;
    for verdict in [Verdict::Intact, Verdict::Damaged] {
        assert_eq!(report(&master, at(1), READER, "a", generation, place), ReportOutcome::Noted);
        let check = asked(&master, at(1));
        assert_eq!((check.segment, check.extent), (None, extent));
        assert_eq!(there().len(), 1, "one reader's word");
        master.checked(at(2), OTHER_NODE, check.id, Verdict::Damaged);
        assert_eq!(there().len(), 1, "it is no disk of that client");
        master.checked(at(2), NODE, check.id, verdict);
    }
    assert!(there().is_empty());
    assert!(removals.removals(Removal::Damaged).is_empty(), "it is in memory still");
}

#[test]
fn what_is_being_copied_goes_when_that_is_over() {
    let master = master(&[100, 100]);
    let prefer = ReplicateConfig::default().prefer("segment-0");
    let grant = put_summed(&master, at(0), "a", &prefer);
    let (generation, place) = (grant.handle.generation, place_of(&grant, 0));
    let copy = master.copy_start(at(0), NODE, key("a"), "segment-0", &["segment-1"]).unwrap();
    report(&master, at(0), READER, "a", generation, place);
    master.checked(at(0), NODE, asked(&master, at(0)).id, Verdict::Damaged);
    master.tick(at(1));
    assert!(has(&master, "a"));
    master.copy_revoke(at(1), NODE, key("a"), copy.handle, LateWrites::Impossible).unwrap();
    master.tick(at(2));
    assert!(!has(&master, "a"));
    let totals = master.report().totals;
    assert_eq!((totals.damage_confirmed, totals.damage_removed), (1, 1));
}
