//! Space that may still be in use has no second owner: its users are writers whose puts
//! have ended without a value, and readers of objects that were removed by force.

use mc_lease::LONGEST_READ;
use mc_meta::{Pattern, ReadProgress, RemoveError, TenantId};

use super::offload::{OTHER, with_disks};
use super::promotion::{begun, with_one_on_disk};
use super::recovery::{Journal, rebuild_with};
use super::*;

const RELEASE: u64 = 600;
const POSSIBLE: LateWrites = LateWrites::Possible;
const IMPOSSIBLE: LateWrites = LateWrites::Impossible;

fn revoke(master: &Master, now: Time, name: &str, put: PutHandle, late: LateWrites) -> bool {
    master.put_revoke(now, WRITER, key(name), put, late).is_ok()
}

fn used(master: &Master) -> u64 {
    master.report().totals.used
}

#[test]
fn a_put_that_may_still_be_written_keeps_its_space_until_its_grant_ends() {
    let master = master(&[100]);
    let grant = start(&master, at(0), "a", 60).unwrap();
    assert!(revoke(&master, secs(1), "a", grant.handle, POSSIBLE));
    // The key is free at once.
    assert_eq!(master.report().totals.objects, 0);
    put(&master, secs(1), "a", 40).unwrap();
    master.remove(secs(1), key("a"), false).unwrap();
    let just_before = at(RELEASE * 1000 - 1);
    while master.tick(just_before) {}
    assert_eq!(used(&master), 60);
    let full = start(&master, just_before, "b", 60).unwrap_err();
    assert_eq!(full, PutStartError::Full { len: 60 });
    // Without a tick.
    start(&master, secs(RELEASE), "b", 60).unwrap();
}

#[test]
fn a_fence_gives_the_space_of_a_revoked_put_back_and_only_to_its_putter() {
    let master = master(&[100]);
    let put = start(&master, at(0), "a", 60).unwrap().handle;
    assert!(revoke(&master, secs(1), "a", put, POSSIBLE));
    assert!(revoke(&master, secs(1), "a", put, POSSIBLE), "repeating it is harmless");
    let guessed = PutHandle { token: PutToken::from_u64(put.token.as_u64() ^ 1), ..put };
    let stranger = |handle| master.put_revoke(secs(2), STRANGER, key("a"), handle, IMPOSSIBLE);
    assert!(stranger(put).is_err() && stranger(guessed).is_err());
    assert!(!revoke(&master, secs(2), "a", guessed, IMPOSSIBLE));
    assert_eq!(used(&master), 60);
    assert!(revoke(&master, secs(2), "a", put, IMPOSSIBLE));
    assert_eq!(used(&master), 0);
    // Others have the space and the key now, and a repetition does nothing to them.
    let other = start(&master, secs(3), "a", 60).unwrap().handle;
    assert!(!revoke(&master, secs(3), "a", put, IMPOSSIBLE));
    assert!(!revoke(&master, secs(3), "a", put, POSSIBLE));
    assert_eq!(used(&master), 60);
    end(&master, secs(3), "a", other.generation).unwrap();
    assert_eq!(master.report().totals.put_revokes, 1);
}

#[test]
fn an_upsert_that_may_still_be_written_keeps_its_space_and_the_old_value_stays() {
    let master = master(&[100]);
    let old = put(&master, at(0), "a", 40).unwrap().handle.generation;
    let config = ReplicateConfig::default();
    let upsert = PutStart { key: key("a"), slice_lengths: &[60], config: &config };
    let new = master.upsert_start(at(0), WRITER, &upsert).unwrap().handle;
    master.put_revoke(secs(1), WRITER, key("a"), new, POSSIBLE).unwrap();
    assert_eq!(master.get_replica_list(secs(1), key("a")).unwrap().generation, old);
    assert_eq!((used(&master), master.report().totals.processing), (100, 0));
    let revoked = PutRevoke { key: key("a"), handle: new, late: IMPOSSIBLE };
    assert_eq!(master.batch_put_revoke(secs(2), WRITER, &[revoked]), [Ok(())]);
    assert_eq!(used(&master), 40);
}

#[test]
fn a_put_that_gave_way_can_be_fenced_as_well() {
    let master = master(&[100]);
    let first = start(&master, at(0), "a", 60).unwrap().handle;
    let config = ReplicateConfig::default();
    let upsert = PutStart { key: key("a"), slice_lengths: &[40], config: &config };
    let second = master.upsert_start(at(0), WRITER, &upsert).unwrap().handle;
    assert_eq!(used(&master), 100);
    assert!(revoke(&master, secs(1), "a", first, IMPOSSIBLE));
    assert_eq!((used(&master), master.report().totals.processing), (40, 1));
    end(&master, secs(1), "a", second.generation).unwrap();
}

#[test]
fn copies_and_moves_that_may_still_be_written_keep_their_targets() {
    for moves in [false, true] {
        let master = master(&[100, 100]);
        put_as(&master, at(0), "a", 60, &ReplicateConfig::default().prefer("segment-0")).unwrap();
        let (from, to) = ("segment-0", "segment-1");
        let begin = |now| match moves {
            false => master.copy_start(now, WRITER, key("a"), from, &[to]),
            true => master.move_start(now, WRITER, key("a"), from, to),
        };
        let give_up = |now, client, handle, late| match moves {
            false => master.copy_revoke(now, client, key("a"), handle, late),
            true => master.move_revoke(now, client, key("a"), handle, late),
        };
        let first = begin(at(0)).unwrap().handle;
        give_up(secs(1), WRITER, first, POSSIBLE).unwrap();
        assert_eq!((used(&master), master.report().totals.transfers), (120, 0));
        assert!(begin(secs(1)).is_err(), "the target has no room");
        assert!(give_up(secs(1), STRANGER, first, IMPOSSIBLE).is_err());
        assert_eq!(used(&master), 120);
        // It ends with a fence, or with its grant.
        give_up(secs(2), WRITER, first, IMPOSSIBLE).unwrap();
        assert_eq!(used(&master), 60);
        assert!(give_up(secs(2), WRITER, first, IMPOSSIBLE).is_err());
        let second = begin(secs(10)).unwrap().handle;
        give_up(secs(11), WRITER, second, POSSIBLE).unwrap();
        assert!(begin(at((10 + RELEASE) * 1000 - 1)).is_err());
        begin(secs(10 + RELEASE)).unwrap();
    }
}

#[test]
fn the_memory_of_a_put_with_a_file_is_kept_as_well() {
    let mut config = settings();
    config.shared_tier = Some(mc_meta::SharedTierConfig::default());
    let master = master_with(config, &[100]);
    let put = start(&master, at(0), "a", 60).unwrap().handle;
    let revoke = |late| master.memory_put_revoke(at(0), WRITER, key("a"), put, late);
    revoke(POSSIBLE).unwrap();
    assert_eq!((used(&master), master.report().totals.objects), (60, 1));
    revoke(IMPOSSIBLE).unwrap();
    assert_eq!((used(&master), master.report().totals.objects), (0, 1));
    master.file_put_end(at(1), WRITER, key("a"), put).unwrap();
    // One whose file is written already stays, without its memory.
    let put = start(&master, at(2), "b", 60).unwrap().handle;
    master.file_put_end(at(2), WRITER, key("b"), put).unwrap();
    master.put_revoke(at(2), WRITER, key("b"), put, POSSIBLE).unwrap();
    assert!(has(&master, "b"));
    assert_eq!(used(&master), 60);
    master.put_revoke(at(3), WRITER, key("b"), put, IMPOSSIBLE).unwrap();
    assert!(has(&master, "b"));
    assert_eq!(used(&master), 0);
}

#[test]
fn a_way_back_into_memory_that_failed_keeps_its_space_as_well() {
    let mut config = with_disks(false);
    config.promotion = Some(mc_meta::PromotionConfig::default());
    let (master, generation) = with_one_on_disk(config);
    let grant = begun(&master, secs(2), generation);
    let before = used(&master);
    let fail = |client, handle, late| {
        master.notify_promotion_failure(secs(3), client, key("a"), generation, handle, late)
    };
    let guessed = PutToken::from_u64(grant.handle.token.as_u64() ^ 1);
    let guessed = TransferHandle { token: guessed, ..grant.handle };
    assert!(fail(NODE, None, IMPOSSIBLE).is_err(), "it has space, so it has a handle");
    assert!(fail(NODE, Some(guessed), IMPOSSIBLE).is_err());
    fail(NODE, Some(grant.handle), POSSIBLE).unwrap();
    assert_eq!(used(&master), before);
    let _ = fail(OTHER, Some(grant.handle), IMPOSSIBLE);
    let _ = fail(NODE, Some(guessed), IMPOSSIBLE);
    assert_eq!(used(&master), before);
    fail(NODE, Some(grant.handle), IMPOSSIBLE).unwrap();
    assert_eq!(used(&master), before - 60);
}

#[test]
fn kept_space_is_charged_to_its_tenant() {
    let mut config = settings();
    config.multi_tenant = true;
    let master = master_with(config, &[1000]);
    let tenant = TenantId::new("a").unwrap();
    master.set_tenant_quota(at(0), &tenant, 100).unwrap();
    let stored = |text| tenant.scoped(key(text)).unwrap().as_ref().as_str().to_owned();
    let name = stored("k");
    let charged = || master.tenant_quota(&tenant).unwrap().charged;
    let put = start(&master, at(0), &name, 60).unwrap().handle;
    assert!(revoke(&master, at(1), &name, put, POSSIBLE));
    assert_eq!(charged(), 60);
    assert!(start(&master, at(1), &stored("l"), 60).is_err());
    assert!(revoke(&master, at(2), &name, put, IMPOSSIBLE));
    assert_eq!((charged(), master.tenant_quotas().unwrap().mismatches), (0, 0));
    let put = start(&master, at(3), &name, 60).unwrap().handle;
    assert!(revoke(&master, at(4), &name, put, POSSIBLE));
    master.tick(at(3 + RELEASE * 1000));
    assert_eq!((charged(), master.tenant_quotas().unwrap().mismatches), (0, 0));
}

/// Space that is kept, and given back, in words.
#[derive(Clone, Default)]
struct Diary(Arc<Mutex<Vec<String>>>);

impl EffectSink for Diary {
    fn emit(&self, _: Sequence, _: Time, effect: &Effect<'_>) {
        self.0.lock().unwrap().push(match effect {
            Effect::SpaceKept { space, left } => {
                format!("kept {} for {left:?}", space.placements()[0].extent.len())
            }
            Effect::SpaceFreed { space } => format!("freed {}", space.placements()[0].extent.len()),
            Effect::Abandoned { key, .. } => format!("abandoned {key}"),
            Effect::Removed { key, .. } => format!("removed {key}"),
            _ => return,
        });
    }
}

#[test]
fn sinks_hear_of_kept_space_before_it_belongs_to_nobody() {
    let diary = Diary::default();
    let master = master(&[100]).with_sink(diary.clone());
    let put_a = start(&master, at(0), "a", 60).unwrap().handle;
    assert!(revoke(&master, secs(1), "a", put_a, POSSIBLE));
    assert!(revoke(&master, secs(2), "a", put_a, IMPOSSIBLE));
    put(&master, secs(3), "b", 40).unwrap();
    master.get_replica_list(secs(3), key("b")).unwrap();
    master.remove(secs(4), key("b"), true).unwrap();
    master.tick(secs(8));
    let told = diary.0.lock().unwrap().clone();
    let expected =
        ["kept 60 for 599s", "abandoned a", "freed 60", "kept 40 for 4s", "removed b", "freed 40"];
    assert_eq!(told, expected);
}

#[test]
fn a_restarted_master_keeps_the_space_too() {
    let journal = Journal::default();
    let former = Master::new(settings(), 1).unwrap().with_secret(SECRET).with_sink(journal.clone());
    former.mount_segment(at(0), NODE, segment(0, 100)).unwrap();
    let handle = start(&former, at(0), "a", 60).unwrap().handle;
    assert!(revoke(&former, secs(1), "a", handle, POSSIBLE));
    put(&former, secs(1), "b", 30).unwrap();
    former.get_replica_list(secs(1), key("b")).unwrap();
    former.remove(secs(1), key("b"), true).unwrap();
    let (master, report) = rebuild_with(settings(), &journal.records(), secs(2));
    assert_eq!((report.kept_bytes, report.objects), (90, 0));
    master.mount_segment(secs(2), NODE, segment(0, 100)).unwrap();
    // Kept for as long as was left when it was told.
    master.tick(secs(2 + 5));
    assert_eq!(used(&master), 60);
    assert!(start(&master, at((2 + RELEASE - 1) * 1000 - 1), "c", 60).is_err());
    start(&master, secs(2 + RELEASE - 1), "c", 60).unwrap();
}

#[test]
fn what_was_removed_by_force_keeps_its_space_until_its_readers_are_done() {
    let by_key = |master: &Master| u64::from(master.remove(secs(1), key("a"), true).is_ok());
    let by_regex =
        |master: &Master| master.remove_by_regex(secs(1), &Pattern::new("^a").unwrap(), true);
    let all = |master: &Master| master.remove_all(secs(1), true);
    let all_of = |master: &Master| master.remove_all_of(secs(1), &TenantId::DEFAULT, true).removed;
    let ways: [&dyn Fn(&Master) -> u64; 4] = [&by_key, &by_regex, &all, &all_of];
    for remove in ways {
        let master = master(&[100]);
        put(&master, at(0), "a", 60).unwrap();
        let list = master.get_replica_list(secs(1), key("a")).unwrap();
        assert_eq!(remove(&master), 1);
        // Hidden at once.
        assert!(!has(&master, "a"));
        assert!(master.renew_lease(secs(1), key("a"), list.generation).is_err());
        put(&master, secs(2), "a", 20).unwrap();
        let until = secs(1) + list.lease;
        let just_before = at(until.as_millis() - 1);
        while master.tick(just_before) {}
        assert_eq!(used(&master), 80);
        let waits = start(&master, just_before, "b", 60).unwrap_err();
        assert!(waits == PutStartError::AllLeased { len: 60 } && waits.is_retryable());
        let again = start(&master, until, "b", 60).unwrap();
        assert_eq!(again.placements[0].extent, list.placements[0].extent);
    }
}

#[test]
fn who_asked_whether_it_is_there_keeps_no_space_of_what_is_removed_by_force() {
    let master = master(&[100]);
    put(&master, at(0), "a", 60).unwrap();
    assert!(master.exist(at(1), key("a")));
    assert_eq!(master.batch_exist(at(2), &[key("a")]), [true]);
    assert!(matches!(
        master.remove(at(2), key("a"), false).unwrap_err(),
        RemoveError::Leased { .. }
    ));
    master.remove(at(2), key("a"), true).unwrap();
    put(&master, at(2), "b", 60).unwrap();
}

#[test]
fn a_long_lease_keeps_the_space_of_what_is_removed_no_longer_than_a_read_may_last() {
    let lease = Duration::from_secs(999_999);
    let mut config = settings();
    config.lease_ttl = lease;
    let master = master_with(config, &[100]);
    put(&master, at(0), "a", 60).unwrap();
    let list = master.get_replica_list(secs(1), key("a")).unwrap();
    assert_eq!(list.lease, LONGEST_READ);
    // Longer than that it is protected against others, and is not read for it.
    assert!(master.exist(secs(3), key("a")));
    let left = master.remove(secs(4), key("a"), false).unwrap_err();
    assert_eq!(left, RemoveError::Leased { remaining: lease - Duration::from_secs(1) });
    master.remove(secs(4), key("a"), true).unwrap();
    let until = secs(1) + LONGEST_READ;
    let just_before = at(until.as_millis() - 1);
    let waits = start(&master, just_before, "b", 60).unwrap_err();
    assert_eq!(waits, PutStartError::AllLeased { len: 60 });
    start(&master, until, "b", 60).unwrap();
}

#[test]
fn without_a_lease_space_comes_back_at_once() {
    let master = master(&[100]);
    put(&master, at(0), "a", 60).unwrap();
    master.remove(at(0), key("a"), true).unwrap();
    put(&master, at(0), "a", 60).unwrap();
    assert_eq!(master.remove_all(at(0), true), 1);
    assert_eq!(used(&master), 0);
}

/// The progress of its reads that a client reports.
fn said(reader: u128, begun: u64, over: u64) -> Option<ReadProgress> {
    Some(ReadProgress { reader, begun, over })
}

#[test]
fn who_says_that_a_read_is_over_gives_its_space_back() {
    let master = master(&[100]);
    put(&master, at(0), "a", 60).unwrap();
    master.reading(secs(1), said(1, 1, 0).as_ref()).get_replica_list(key("a")).unwrap();
    let both = [key("a")];
    let other = master.reading(secs(1), said(2, 5, 4).as_ref()).batch_get_replica_list(&both);
    assert!(other[0].is_ok());
    master.remove(secs(1), key("a"), true).unwrap();
    let all_leased = PutStartError::AllLeased { len: 60 };
    assert_eq!(start(&master, secs(1), "b", 60).unwrap_err(), all_leased);
    // A third one reads something else later.
    put(&master, at(1500), "c", 10).unwrap();
    master.reading(at(1500), said(3, 1, 0).as_ref()).get_replica_list(key("c")).unwrap();
    master.note_reads(&said(1, 1, 1).unwrap());
    master.tick(at(1500));
    assert_eq!(start(&master, at(1500), "b", 60).unwrap_err(), all_leased, "one reads it");
    assert_eq!(used(&master), 70);
    // With its next read, of something else.
    assert!(master.reading(secs(2), said(2, 6, 5).as_ref()).get_replica_list(key("d")).is_err());
    start(&master, secs(2), "b", 60).unwrap();
}

#[test]
fn space_comes_back_by_a_tick_when_its_readers_are_done() {
    let master = master(&[100]);
    put(&master, at(0), "a", 60).unwrap();
    master.reading(at(1), said(1, 1, 0).as_ref()).get_replica_list(key("a")).unwrap();
    master.remove(at(1), key("a"), true).unwrap();
    master.tick(at(2));
    assert_eq!(used(&master), 60);
    master.note_reads(&said(1, 1, 1).unwrap());
    master.tick(at(3));
    assert_eq!(used(&master), 0);
}

#[test]
fn one_reader_that_says_nothing_keeps_space_for_the_whole_time_of_a_read() {
    let master = master(&[100]);
    put(&master, at(0), "a", 60).unwrap();
    let list = master.get_replica_list(at(1), key("a")).unwrap();
    master.reading(at(2), said(1, 1, 0).as_ref()).get_replica_list(key("a")).unwrap();
    master.note_reads(&said(1, 1, 1).unwrap());
    master.remove(at(3), key("a"), true).unwrap();
    let end = at(2) + list.lease;
    while master.tick(at(end.as_millis() - 1)) {}
    assert_eq!(used(&master), 60);
    start(&master, end, "b", 60).unwrap();
}

#[test]
fn a_value_that_is_replaced_in_a_loop_needs_room_for_two() {
    let master = master(&[100]);
    put(&master, at(0), "a", 40).unwrap();
    for turn in 1..50 {
        let now = at(turn);
        let reading = master.reading(now, said(1, turn, turn - 1).as_ref());
        reading.get_replica_list(key("a")).unwrap();
        master.note_reads(&said(1, turn, turn).unwrap());
        let config = ReplicateConfig::default();
        let put = PutStart { key: key("a"), slice_lengths: &[40], config: &config };
        let grant = master.upsert_start(now, WRITER, &put).unwrap();
        end(&master, now, "a", grant.handle.generation).unwrap();
    }
}

#[test]
fn the_readers_of_a_former_master_keep_space_for_the_whole_time_of_a_read() {
    let journal = Journal::default();
    let former = Master::new(settings(), 1).unwrap().with_secret(SECRET).with_sink(journal.clone());
    former.mount_segment(at(0), NODE, segment(0, 100)).unwrap();
    put(&former, at(1), "a", 60).unwrap();
    former.reading(at(1), said(1, 1, 0).as_ref()).get_replica_list(key("a")).unwrap();
    let (master, _) = rebuild_with(settings(), &journal.records(), secs(2));
    master.mount_segment(secs(2), NODE, segment(0, 100)).unwrap();
    master.remove(secs(2), key("a"), true).unwrap();
    // It says so of its reads here alone.
    master.note_reads(&said(1, 1, 1).unwrap());
    while master.tick(at(6999)) {}
    assert_eq!(used(&master), 60);
    start(&master, secs(7), "b", 60).unwrap();
}
