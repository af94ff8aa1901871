//! Upserts: the old value is readable until the new one is, and nothing else ever is.

use core::time::Duration;

use mc_meta::{
    EvictionBlocker, GetError, ListCursor, RemoveError, ReplicaList, SoftPinAction,
    TransferFinishError,
};
use mc_types::Checksum;

use super::*;

const RELEASE: u64 = 600;

fn upsert_as(
    master: &Master,
    now: Time,
    client: ClientId,
    name: &str,
    len: u64,
    config: &ReplicateConfig,
) -> Result<PutGrant, PutStartError> {
    master.upsert_start(now, client, &PutStart { key: key(name), slice_lengths: &[len], config })
}

fn upsert(master: &Master, now: Time, name: &str, len: u64) -> Result<PutGrant, PutStartError> {
    upsert_as(master, now, WRITER, name, len, &ReplicateConfig::default())
}

fn list(master: &Master, now: Time, name: &str) -> Result<ReplicaList, GetError> {
    master.get_replica_list(now, key(name))
}

/// Every effect on objects, as text.
#[derive(Clone, Default)]
struct Diary(Arc<Mutex<Vec<String>>>);

impl Diary {
    fn lines(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

impl EffectSink for Diary {
    fn emit(&self, _: Sequence, _: Time, effect: &Effect<'_>) {
        self.0.lock().unwrap().push(match effect {
            Effect::Began { object } => format!("began {} {}", object.key().as_str(), object.len()),
            Effect::Stored { object, .. } => {
                format!("stored {} {}", object.key().as_str(), object.len())
            }
            Effect::Removed { key, cause, .. } => format!("removed {} {cause:?}", key.as_str()),
            Effect::Abandoned { key, .. } => format!("abandoned {}", key.as_str()),
            _ => return,
        });
    }
}

#[test]
fn an_upsert_of_a_new_key_is_a_put() {
    let master = master(&[100]);
    let grant = upsert(&master, at(0), "a", 40).unwrap();
    assert_eq!(list(&master, at(0), "a").unwrap_err(), GetError::NotReady);
    end(&master, at(0), "a", grant.handle.generation).unwrap();
    assert_eq!(list(&master, at(0), "a").unwrap().generation, grant.handle.generation);
}

#[test]
fn the_old_value_is_read_until_the_new_one_is_written() {
    let diary = Diary::default();
    let master = master(&[100]).with_sink(diary.clone());
    let old = put(&master, at(0), "a", 40).unwrap();
    let new = upsert_as(&master, at(1), STRANGER, "a", 30, &ReplicateConfig::default()).unwrap();
    assert!(!old.placements[0].extent.overlaps(new.placements[0].extent));
    assert_eq!(list(&master, at(2), "a").unwrap().generation, old.handle.generation);
    let finish = PutEnd::new(key("a"), new.handle);
    master.put_end(at(3), STRANGER, &finish).unwrap();
    let now = list(&master, at(3), "a").unwrap();
    assert_eq!((now.generation, now.slices.total_len()), (new.handle.generation, 30));
    assert_eq!(now.placements[0].extent, new.placements[0].extent);
    assert_eq!(
        diary.lines(),
        ["began a 40", "stored a 40", "began a 30", "removed a Replaced", "stored a 30"]
    );
    assert_eq!(master.describe(at(3), key("a")).unwrap().owner, STRANGER);
    // Ending it again is harmless, and the first writer's put is over.
    assert_eq!(master.put_end(at(3), STRANGER, &finish), Ok(()));
    assert_eq!(end(&master, at(3), "a", old.handle.generation), Err(PutFinishError::IllegalClient));
    assert_eq!(master.report().totals.objects, 1);
}

#[test]
fn whoever_reads_the_old_value_may_do_so_until_the_lease_ends() {
    let master = master(&[100]);
    put(&master, at(0), "a", 40).unwrap();
    list(&master, secs(1), "a").unwrap();
    let new = upsert(&master, secs(2), "a", 40).unwrap();
    end(&master, secs(2), "a", new.handle.generation).unwrap();
    assert_eq!(master.report().totals.used, 80);
    master.tick(at(5_999));
    assert_eq!(master.report().totals.used, 80);
    master.tick(secs(6));
    assert_eq!(master.report().totals.used, 40);
    // Without a reader it goes at once.
    let newer = upsert(&master, secs(20), "a", 40).unwrap();
    assert_eq!(master.report().totals.used, 80);
    end(&master, secs(20), "a", newer.handle.generation).unwrap();
    assert_eq!(master.report().totals.used, 40);
}

#[test]
fn without_room_a_value_of_the_same_length_is_written_in_its_place() {
    let diary = Diary::default();
    let master = master(&[100]).with_sink(diary.clone());
    let old = put(&master, at(0), "a", 60).unwrap();
    put(&master, at(0), "b", 40).unwrap();
    let new = upsert(&master, at(1), "a", 60).unwrap();
    assert_eq!(new.placements[0].extent, old.placements[0].extent);
    assert_ne!(new.handle.generation, old.handle.generation);
    assert_eq!(list(&master, at(1), "a").unwrap_err(), GetError::NotReady);
    assert!(has(&master, "b"), "nothing was evicted");
    end(&master, at(2), "a", new.handle.generation).unwrap();
    assert_eq!(list(&master, at(2), "a").unwrap().generation, new.handle.generation);
    assert_eq!(
        diary.lines()[4..],
        ["removed a Replaced".to_owned(), "began a 60".into(), "stored a 60".into()]
    );
    // Revoked, it is lost.
    let third = upsert(&master, secs(10), "a", 60).unwrap();
    master.put_revoke(secs(10), WRITER, key("a"), third.handle, LateWrites::Impossible).unwrap();
    assert_eq!(list(&master, secs(10), "a").unwrap_err(), GetError::NotFound);
    assert_eq!(master.report().totals.used, 40);
}

#[test]
fn nothing_is_written_over_a_value_that_somebody_reads() {
    let master = master(&[100]);
    let old = put(&master, at(0), "a", 60).unwrap();
    put(&master, at(0), "b", 40).unwrap();
    list(&master, at(0), "a").unwrap();
    // There is room once "b" is gone, but not in one piece of 60.
    let error = upsert(&master, at(1), "a", 60).unwrap_err();
    assert_eq!(error, PutStartError::AllLeased { len: 60 });
    assert_eq!(list(&master, at(1), "a").unwrap().generation, old.handle.generation);
}

#[test]
fn nothing_is_written_over_a_value_of_another_shape_or_place() {
    let wide = ReplicateConfig::default().replicas(2);
    let elsewhere = ReplicateConfig::default().exclude("segment-0");
    let plain = ReplicateConfig::default();
    for (had, wanted, len) in
        [(&plain, &plain, 59), (&plain, &plain, 61), (&wide, &plain, 60), (&plain, &elsewhere, 60)]
    {
        let master = master(&[100, 100]);
        put_as(&master, at(0), "a", 60, &had.clone().prefer("segment-0")).unwrap();
        for (name, number) in [("b", 0), ("c", 1)] {
            let there = ReplicateConfig::default().prefer(format!("segment-{number}"));
            start_as(&master, at(0), name, if number == 0 { 40 } else { 30 }, &there).unwrap();
        }
        if had != &wide {
            start(&master, at(0), "d", 70).unwrap();
        }
        let result = upsert_as(&master, at(1), WRITER, "a", len, wanted);
        // The old value is all that could be evicted, and goes only if that is of use.
        let is_of_use = len <= 60 && wanted != &elsewhere;
        assert_eq!(!has(&master, "a"), is_of_use, "{had:?} {wanted:?} {len}");
        assert_eq!(result.is_ok(), is_of_use, "{result:?}");
    }
}

#[test]
fn a_value_with_fewer_replicas_than_wanted_is_as_good_as_the_cluster_offers() {
    let master = master(&[100]);
    put(&master, at(0), "a", 100).unwrap();
    let wide = ReplicateConfig::default().replicas(3);
    let grant = upsert_as(&master, at(1), WRITER, "a", 100, &wide).unwrap();
    end(&master, at(1), "a", grant.handle.generation).unwrap();
    assert_eq!(master.report().totals.evicted_objects, 0);
}

#[test]
fn an_upsert_evicts_when_it_must() {
    let master = master(&[100]);
    put(&master, at(0), "cold", 50).unwrap();
    put(&master, at(1), "a", 50).unwrap();
    let grant = upsert(&master, at(2), "a", 40).unwrap();
    assert!(!has(&master, "cold") && has(&master, "a"));
    end(&master, at(2), "a", grant.handle.generation).unwrap();
    assert_eq!(master.report().totals.used, 40);
    // The old value itself goes if nothing else is left.
    let larger = upsert(&master, at(3), "a", 90).unwrap();
    assert!(!has(&master, "a"));
    end(&master, at(3), "a", larger.handle.generation).unwrap();
    let impossible = upsert(&master, at(4), "a", 101).unwrap_err();
    assert_eq!(impossible, PutStartError::TooLarge { len: 101, largest_object: 100 });
    assert!(has(&master, "a"), "a refusal leaves the value as it is");
}

#[test]
fn an_unfinished_put_gives_way_at_once() {
    let diary = Diary::default();
    let master = master(&[100]).with_sink(diary.clone());
    let first = start(&master, secs(1), "a", 30).unwrap();
    let second = upsert(&master, secs(2), "a", 30).unwrap();
    assert!(!first.placements[0].extent.overlaps(second.placements[0].extent));
    assert_eq!(end(&master, secs(2), "a", first.handle.generation), Err(PutFinishError::NotOpen));
    // The next one, by another client.
    let config = ReplicateConfig::default();
    upsert_as(&master, secs(3), STRANGER, "a", 30, &config).unwrap();
    let late = end(&master, secs(3), "a", second.handle.generation);
    assert_eq!(late, Err(PutFinishError::IllegalClient));
    assert_eq!(
        diary.lines(),
        ["began a 30", "abandoned a", "began a 30", "abandoned a", "began a 30"]
    );
    let report = master.report();
    assert_eq!(
        (report.totals.used, report.totals.objects, report.totals.puts_discarded),
        (90, 1, 2)
    );
    master.tick(secs(1 + RELEASE));
    assert_eq!(master.report().totals.used, 60);
    master.tick(secs(2 + RELEASE));
    assert_eq!(master.report().totals.used, 30);
}

#[test]
fn a_pending_replacement_gives_way_to_the_next() {
    let diary = Diary::default();
    let master = master(&[100]).with_sink(diary.clone());
    put(&master, secs(0), "a", 20).unwrap();
    let first = upsert(&master, secs(1), "a", 20).unwrap();
    let second = upsert(&master, secs(2), "a", 20).unwrap();
    assert_eq!((master.report().totals.used, master.report().totals.objects), (60, 1));
    assert_eq!(end(&master, secs(2), "a", first.handle.generation), Err(PutFinishError::NotOpen));
    // Its space is kept, because its writer may still be writing.
    assert_eq!(master.report().totals.used, 60);
    end(&master, secs(2), "a", second.handle.generation).unwrap();
    assert_eq!(list(&master, secs(2), "a").unwrap().generation, second.handle.generation);
    assert_eq!(diary.lines()[3..5], ["abandoned a".to_owned(), "began a 20".into()]);
    master.tick(secs(1 + RELEASE));
    assert_eq!(master.report().totals.used, 20);
}

#[test]
fn a_revoked_replacement_leaves_the_old_value() {
    let master = master(&[100]);
    let old = put(&master, at(0), "a", 40).unwrap();
    let new = upsert(&master, at(1), "a", 40).unwrap().handle;
    let late = LateWrites::Impossible;
    let theirs = master.put_revoke(at(1), STRANGER, key("a"), new, late);
    assert_eq!(theirs, Err(PutFinishError::IllegalClient));
    master.put_revoke(at(1), WRITER, key("a"), new, late).unwrap();
    assert_eq!(list(&master, at(1), "a").unwrap().generation, old.handle.generation);
    assert_eq!((master.report().totals.used, master.report().totals.processing), (40, 0));
}

#[test]
fn a_replacement_that_times_out_leaves_the_old_value() {
    let master = master(&[100]);
    let old = put(&master, secs(0), "a", 40).unwrap();
    let new = upsert(&master, secs(1), "a", 40).unwrap();
    assert_eq!(start(&master, secs(100), "a", 40).unwrap_err(), PutStartError::AlreadyExists);
    master.tick(at((1 + RELEASE) * 1000 - 1));
    assert_eq!(master.report().totals.used, 80);
    master.tick(secs(1 + RELEASE));
    assert_eq!((master.report().totals.used, master.report().totals.puts_discarded), (40, 1));
    let late = end(&master, secs(1 + RELEASE), "a", new.handle.generation);
    assert_eq!(late, Err(PutFinishError::NotOpen));
    assert_eq!(list(&master, secs(1 + RELEASE), "a").unwrap().generation, old.handle.generation);
}

#[test]
fn an_upsert_is_ended_by_its_client_alone() {
    let master = master(&[100]);
    put(&master, at(0), "a", 20).unwrap();
    let config = ReplicateConfig::default();
    let new = upsert_as(&master, at(0), STRANGER, "a", 20, &config).unwrap();
    let named = PutEnd::new(key("a"), new.handle);
    assert_eq!(master.put_end(at(0), WRITER, &named), Err(PutFinishError::IllegalClient));
    assert_eq!(master.put_end(at(0), NODE, &named), Err(PutFinishError::IllegalClient));
    master.put_end(at(0), STRANGER, &named).unwrap();
    assert_eq!(list(&master, at(0), "a").unwrap().generation, new.handle.generation);
}

#[test]
fn a_removal_takes_the_old_value_and_the_upsert_goes_on() {
    let master = master(&[100]);
    put(&master, at(0), "a", 20).unwrap();
    let new = upsert(&master, at(0), "a", 30).unwrap();
    master.remove(at(0), key("a"), false).unwrap();
    assert_eq!(list(&master, at(0), "a").unwrap_err(), GetError::NotReady);
    assert_eq!(master.remove(at(0), key("a"), true), Err(RemoveError::NotReady));
    assert_eq!((master.report().totals.objects, master.report().totals.used), (1, 30));
    end(&master, at(0), "a", new.handle.generation).unwrap();
    assert_eq!(list(&master, at(0), "a").unwrap().generation, new.handle.generation);
    // Everything at once does the same.
    let newer = upsert(&master, secs(10), "a", 10).unwrap();
    assert_eq!(master.remove_all(secs(10), true), 1);
    end(&master, secs(10), "a", newer.handle.generation).unwrap();
    assert_eq!((master.report().totals.objects, master.report().totals.used), (1, 10));
}

#[test]
fn the_key_of_an_evicted_value_goes_to_its_replacement() {
    let master = master(&[100]);
    put(&master, at(0), "a", 40).unwrap();
    let new = upsert(&master, at(0), "a", 50).unwrap();
    put(&master, at(1), "b", 40).unwrap();
    assert_eq!(list(&master, at(1), "a").unwrap_err(), GetError::NotReady);
    let age = Duration::from_millis(1);
    assert_eq!(start(&master, at(1), "a", 1).unwrap_err(), PutStartError::InProgress { age });
    end(&master, at(2), "a", new.handle.generation).unwrap();
    assert_eq!(list(&master, at(2), "a").unwrap().generation, new.handle.generation);
}

#[test]
fn either_value_may_lose_its_segment() {
    let on = |number: u32| ReplicateConfig::default().prefer(format!("segment-{number}"));
    for lost in [0, 1] {
        let master = master(&[100, 100]);
        let old = put_as(&master, at(0), "a", 10, &on(0)).unwrap();
        let new = upsert_as(&master, at(0), WRITER, "a", 10, &on(1)).unwrap();
        master.unmount_segment(at(0), NODE, SegmentId::from_u128(lost)).unwrap();
        if lost == 0 {
            assert_eq!(list(&master, at(0), "a").unwrap_err(), GetError::NotReady);
            end(&master, at(0), "a", new.handle.generation).unwrap();
            assert_eq!(list(&master, at(0), "a").unwrap().generation, new.handle.generation);
        } else {
            assert_eq!(
                end(&master, at(0), "a", new.handle.generation),
                Err(PutFinishError::NotOpen)
            );
            assert_eq!(list(&master, at(0), "a").unwrap().generation, old.handle.generation);
        }
        while master.tick(at(1)) {}
        assert_eq!((master.report().totals.objects, master.report().totals.used), (1, 10));
        assert_eq!(master.report().totals.processing, 0);
    }
}

#[test]
fn a_value_whose_holder_is_away_is_replaced_when_the_new_one_is_written() {
    let mut config = settings();
    config.client_ttl = Duration::from_secs(10);
    let master = Master::new(config, 1).unwrap().with_secret(SECRET);
    let on = |number: u32| ReplicateConfig::default().prefer(format!("segment-{number}"));
    master.mount_segment(at(0), STRANGER, segment(0, 100)).unwrap();
    master.mount_segment(at(0), NODE, segment(1, 100)).unwrap();
    put_as(&master, at(0), "a", 10, &on(0)).unwrap();
    // One that is being replaced when its holder vanishes.
    put_as(&master, at(0), "b", 10, &on(0)).unwrap();
    let pending = upsert_as(&master, at(0), WRITER, "b", 10, &on(1)).unwrap();
    master.ping(secs(9), NODE);
    master.tick(secs(11));
    let in_vain = upsert(&master, secs(11), "a", 20).unwrap();
    let new = upsert(&master, secs(11), "a", 20).unwrap();
    assert!(end(&master, secs(11), "a", in_vain.handle.generation).is_err());
    assert_eq!(list(&master, secs(11), "a").unwrap_err(), GetError::NotReady);
    end(&master, secs(11), "a", new.handle.generation).unwrap();
    assert_eq!(list(&master, secs(11), "a").unwrap().generation, new.handle.generation);
    // A put of the other key meets the upsert.
    let age = Duration::from_secs(11);
    assert_eq!(start(&master, secs(11), "b", 1).unwrap_err(), PutStartError::InProgress { age });
    end(&master, secs(11), "b", pending.handle.generation).unwrap();
    assert!(has(&master, "b"));
}

#[test]
fn pins_are_inherited() {
    let mut config = settings();
    config.allow_evict_soft_pinned_objects = false;
    let master = master_with(config, &[100]);
    let renew = |name, config: &ReplicateConfig| {
        let grant = upsert_as(&master, at(1), WRITER, name, 20, config).unwrap();
        end(&master, at(1), name, grant.handle.generation).unwrap();
    };
    let plain = ReplicateConfig::default();
    put_as(&master, at(0), "soft", 20, &plain.clone().soft_pin()).unwrap();
    put_as(&master, at(0), "hard", 20, &plain.clone().hard_pin()).unwrap();
    put(&master, at(0), "late", 20).unwrap();
    renew("soft", &plain);
    renew("hard", &plain);
    renew("late", &plain.clone().hard_pin());
    assert!(master.describe(at(1), key("soft")).unwrap().soft_pinned);
    assert_eq!(start(&master, at(2), "x", 60).unwrap_err(), PutStartError::Full { len: 60 });
    // A put may say otherwise.
    let pin_left = |seconds| {
        let explained = master.explain(secs(seconds), key("soft"));
        explained.kept_by.iter().find_map(|blocker| match blocker {
            EvictionBlocker::SoftPin { remaining } => Some(remaining.as_secs()),
            _ => None,
        })
    };
    renew("soft", &plain.clone().soft_pin_for(Duration::from_secs(60)));
    assert_eq!(pin_left(2), Some(58));
    renew("soft", &plain);
    assert_eq!(pin_left(2), Some(58), "the duration is inherited with the pin");
    let mut none = plain.clone();
    none.soft_pin = SoftPinAction::Disable;
    renew("soft", &none);
    assert_eq!(pin_left(2), None);
    renew("soft", &plain.clone().soft_pin());
    // A soft pin that has lapsed is not.
    let now = secs(31 * 60);
    let grant = upsert(&master, now, "soft", 20).unwrap();
    end(&master, now, "soft", grant.handle.generation).unwrap();
    assert!(!master.describe(now, key("soft")).unwrap().soft_pinned);
    put(&master, now, "x", 60).unwrap();
    assert!(has(&master, "hard") && has(&master, "late") && !has(&master, "soft"));
}

#[test]
fn a_group_is_kept_and_not_changed() {
    let master = master(&[100]);
    let group = |name: &str| ReplicateConfig::default().group(name);
    put_as(&master, at(0), "a", 20, &group("g")).unwrap();
    put_as(&master, at(0), "b", 20, &group("g")).unwrap();
    put(&master, at(5), "alone", 20).unwrap();
    for (name, other) in [("a", "h"), ("alone", "g")] {
        let error = upsert_as(&master, at(6), WRITER, name, 20, &group(other)).unwrap_err();
        assert_eq!(error, PutStartError::OtherGroup);
        assert!(!error.is_retryable() && has(&master, name));
    }
    let new = upsert_as(&master, at(6), WRITER, "a", 20, &group("g")).unwrap();
    // The unfinished member holds the others.
    put(&master, at(7), "w", 20).unwrap();
    put(&master, at(7), "x", 20).unwrap();
    assert!(has(&master, "b") && !has(&master, "alone"));
    end(&master, at(8), "a", new.handle.generation).unwrap();
    let newer = upsert(&master, at(8), "a", 20).unwrap();
    end(&master, at(8), "a", newer.handle.generation).unwrap();
    master.remove(at(9), key("x"), false).unwrap();
    master.remove(at(9), key("w"), false).unwrap();
    put(&master, at(9), "y", 81).unwrap();
    assert!(!has(&master, "a") && !has(&master, "b"), "they go together");
    // One that was never finished belongs to no group.
    master.remove(at(10), key("y"), false).unwrap();
    start_as(&master, at(10), "c", 10, &group("g")).unwrap();
    upsert_as(&master, at(10), WRITER, "c", 10, &group("h")).unwrap();
}

#[test]
fn a_member_of_a_group_is_written_in_its_place() {
    let master = master(&[100]);
    let group = ReplicateConfig::default().group("g");
    put_as(&master, at(0), "a", 50, &group).unwrap();
    put_as(&master, at(0), "b", 50, &group).unwrap();
    let new = upsert(&master, at(1), "a", 50).unwrap();
    let held = start(&master, at(2), "x", 50).unwrap_err();
    assert_eq!(held, PutStartError::AllLeased { len: 50 });
    end(&master, at(3), "a", new.handle.generation).unwrap();
    put(&master, secs(60), "x", 50).unwrap();
    assert!(!has(&master, "a") && !has(&master, "b"));
}

#[test]
fn slices_and_checksums_are_those_of_the_new_value() {
    let master = master(&[60]);
    let config = ReplicateConfig::default();
    let sum = Checksum::from_crc32c;
    let grant = start(&master, at(0), "a", 40).unwrap();
    let finish = |generation, checksums: &[Checksum]| {
        let put = PutEnd { checksums, ..PutEnd::new(key("a"), handle(generation)) };
        master.put_end(at(0), WRITER, &put)
    };
    finish(grant.handle.generation, &[sum(1)]).unwrap();
    // In place, since there is no room for both.
    let lens = [30, 10];
    let again = PutStart { key: key("a"), slice_lengths: &lens, config: &config };
    let grant = master.upsert_start(at(0), WRITER, &again).unwrap();
    let refused = PutFinishError::ChecksumCount { given: 1, slices: 2 };
    assert_eq!(finish(grant.handle.generation, &[sum(1)]), Err(refused));
    finish(grant.handle.generation, &[]).unwrap();
    let slices = list(&master, at(0), "a").unwrap().slices;
    let slices: Vec<_> = slices.as_slice().iter().map(|s| (s.len, s.checksum)).collect();
    assert_eq!(slices, [(30, None), (10, None)]);
}

#[test]
fn a_key_under_replacement_is_listed_once() {
    let master = master(&[100]);
    put(&master, at(0), "a", 40).unwrap();
    upsert(&master, at(0), "a", 30).unwrap();
    let page = master.list_keys("", ListCursor::default(), 10);
    let keys: Vec<_> = page.keys.iter().map(|info| (info.len, info.replicas)).collect();
    assert_eq!(keys, [(40, 1)]);
    let report = master.report();
    assert_eq!((report.totals.objects, report.totals.processing), (1, 1));
}

#[test]
fn a_batch_answers_for_each_key_in_order() {
    let master = master(&[100]);
    let config = ReplicateConfig::default();
    let put = |name, len| PutStart { key: key(name), slice_lengths: len, config: &config };
    let puts = [put("a", &[10]), put("b", &[0]), put("a", &[20]), put("c", &[500])];
    let grants = puts.each_ref().map(|put| master.upsert_start(at(0), WRITER, put));
    let granted: Vec<bool> = grants.iter().map(Result::is_ok).collect();
    assert_eq!(granted, [true, false, true, false]);
    let named = |at: usize| grants[at].as_ref().unwrap().handle;
    let end = |at| PutEnd::new(key("a"), named(at));
    let ends = master.batch_put_end(at(0), WRITER, &[end(0), end(2)]);
    assert_eq!(ends, [Err(PutFinishError::NotOpen), Ok(())]);
    let again = master.upsert_start(at(0), WRITER, &puts[0]).unwrap();
    let (handle, late) = (again.handle, LateWrites::Impossible);
    let other = PutHandle { token: PutToken::from_u64(7), ..handle };
    let revoked = [("a", handle), ("b", other)];
    let revoked = revoked.map(|(name, handle)| PutRevoke { key: key(name), handle, late });
    let revoked = master.batch_put_revoke(at(0), WRITER, &revoked);
    assert_eq!(revoked, [Ok(()), Err(PutFinishError::NotFound)]);
    assert_eq!(list(&master, at(0), "a").unwrap().slices.total_len(), 20);
}

#[test]
fn a_copy_of_the_old_value_is_over_with_it() {
    let master = master(&[100, 100]);
    let here = ReplicateConfig::default().prefer("segment-0");
    put_as(&master, at(0), "a", 60, &here).unwrap();
    let copy = master.copy_start(at(0), NODE, key("a"), "segment-0", &["segment-1"]).unwrap();
    // There is no room but where the old value lies, and that is being read.
    let [b, c] = ["b", "c"].map(|name| start(&master, at(0), name, 40).unwrap().handle);
    let full = upsert_as(&master, at(1), WRITER, "a", 60, &here).unwrap_err();
    assert_eq!(full, PutStartError::AllLeased { len: 60 });
    for (name, put) in [("b", b), ("c", c)] {
        master.put_revoke(at(1), WRITER, key(name), put, LateWrites::Impossible).unwrap();
    }
    let new = upsert_as(&master, at(1), WRITER, "a", 40, &here).unwrap();
    end(&master, at(2), "a", new.handle.generation).unwrap();
    let late = master.copy_end(at(2), NODE, key("a"), copy.handle);
    assert_eq!(late, Err(TransferFinishError::NotOpen));
    let placements = list(&master, at(2), "a").unwrap().placements;
    assert_eq!((placements.len(), placements[0].extent.len()), (1, 40));
    // The copy may still be writing.
    assert_eq!(master.report().totals.used, 100);
    master.tick(secs(RELEASE));
    assert_eq!(master.report().totals.used, 40);
}
