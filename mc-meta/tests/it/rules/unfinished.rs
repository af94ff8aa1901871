//! Puts whose writers vanish: preempted after one time-out, reclaimed after another.

use core::time::Duration;

use mc_meta::{Master, PutFinishError, PutStartError, ReplicateConfig};

use super::recovery::{remount_all, restart};
use super::*;

const DISCARD: u64 = 30;
const RELEASE: u64 = 600;

#[test]
fn an_unfinished_put_blocks_its_key_until_the_discard_time_out() {
    let master = master(&[100]);
    let first = start(&master, secs(1), "a", 40).unwrap();
    let age = Duration::from_millis(29_999);
    let error = start(&master, at(30_999), "a", 40).unwrap_err();
    assert_eq!(error, PutStartError::InProgress { age });
    assert!(error.is_retryable());
    let second = start(&master, secs(1 + DISCARD), "a", 40).unwrap();
    assert_ne!(first.handle.generation, second.handle.generation);
    // Its writer may still be writing, so the space is not used again.
    let overlaps = first.placements[0].extent.overlaps(second.placements[0].extent);
    assert!(!overlaps);
    let report = master.report();
    assert_eq!(
        (report.totals.used, report.totals.objects, report.totals.puts_discarded),
        (80, 1, 1)
    );
    // The first writer is told that it came too late, the second one is not.
    let late = end(&master, secs(32), "a", first.handle.generation);
    assert_eq!(late, Err(PutFinishError::NotOpen));
    end(&master, secs(32), "a", second.handle.generation).unwrap();
    let list = master.get_replica_list(secs(32), key("a")).unwrap();
    assert_eq!(list.generation, second.handle.generation);
}

#[test]
fn a_put_of_a_former_master_begins_anew_for_its_own_client() {
    let former = master(&[100]);
    let lost = start(&former, secs(1), "a", 40).unwrap();
    let master = restart(&former, secs(2));
    remount_all(&master, secs(2));
    let config = ReplicateConfig::default();
    let put = PutStart { key: key("a"), slice_lengths: &[40], config: &config };
    let in_progress = PutStartError::InProgress { age: Duration::ZERO };
    assert_eq!(master.put_start(secs(2), WRITER, &put).unwrap_err(), in_progress);
    assert_eq!(master.put_start_anew(secs(2), STRANGER, &put).unwrap_err(), in_progress);
    let grant = master.put_start_anew(secs(2), WRITER, &put).unwrap();
    // A client that is wrong about its put may still be writing.
    assert!(!lost.placements[0].extent.overlaps(grant.placements[0].extent));
    assert_eq!((master.report().totals.used, master.report().totals.puts_discarded), (80, 1));
    let late = end(&master, secs(3), "a", lost.handle.generation);
    assert_eq!(late, Err(PutFinishError::NotOpen));
    end(&master, secs(3), "a", grant.handle.generation).unwrap();
    let error = master.put_start_anew(secs(3), WRITER, &put).unwrap_err();
    assert_eq!(error, PutStartError::AlreadyExists);
    master.tick(secs(2 + RELEASE));
    assert_eq!(master.report().totals.used, 40);
}

#[test]
fn a_put_whose_grant_may_be_on_its_way_is_not_begun_anew() {
    let former = master(&[100]);
    let master = restart(&former, secs(1));
    remount_all(&master, secs(1));
    let grant = start(&master, secs(1), "a", 40).unwrap();
    let config = ReplicateConfig::default();
    let put = PutStart { key: key("a"), slice_lengths: &[40], config: &config };
    let error = master.put_start_anew(secs(2), WRITER, &put).unwrap_err();
    assert_eq!(error, PutStartError::InProgress { age: Duration::from_secs(1) });
    end(&master, secs(2), "a", grant.handle.generation).unwrap();
}

#[test]
fn a_slow_put_that_nobody_preempts_may_end() {
    let master = master(&[100]);
    let grant = start(&master, secs(1), "a", 40).unwrap();
    master.tick(secs(RELEASE));
    end(&master, secs(RELEASE), "a", grant.handle.generation).unwrap();
    master.tick(secs(10 * RELEASE));
    assert!(has(&master, "a"));
}

#[test]
fn the_space_of_an_unfinished_put_comes_back_after_the_release_time_out() {
    let master = master(&[100]);
    let grant = start(&master, secs(1), "a", 100).unwrap();
    master.tick(at(RELEASE * 1000 + 999));
    assert_eq!(master.report().totals.used, 100);
    master.tick(secs(RELEASE + 1));
    assert_eq!((master.report().totals.used, master.report().totals.objects), (0, 0));
    assert_eq!(master.report().totals.puts_discarded, 1);
    let late = end(&master, secs(RELEASE + 1), "a", grant.handle.generation);
    assert_eq!(late, Err(PutFinishError::NotFound));
}

#[test]
fn each_preempted_put_is_released_by_its_own_time() {
    let master = master(&[100]);
    start(&master, secs(0), "early", 10).unwrap();
    start(&master, secs(100), "late", 10).unwrap();
    // Preempted in the other order.
    start(&master, secs(200), "late", 10).unwrap();
    start(&master, secs(500), "early", 10).unwrap();
    assert_eq!(master.report().totals.used, 40);
    master.tick(secs(RELEASE));
    assert_eq!(master.report().totals.used, 30);
    master.tick(secs(100 + RELEASE));
    assert_eq!(master.report().totals.used, 20);
}

#[test]
fn space_that_is_due_goes_before_objects() {
    let master = master(&[100]);
    start(&master, secs(0), "open", 30).unwrap();
    start(&master, secs(0), "preempted", 30).unwrap();
    start(&master, secs(DISCARD), "preempted", 10).unwrap();
    put(&master, secs(DISCARD), "object", 30).unwrap();
    // Without a tick.
    put(&master, secs(RELEASE), "new", 60).unwrap();
    assert!(has(&master, "object"));
    assert_eq!(master.report().totals.evicted_objects, 0);
}

#[test]
fn a_preemption_that_finds_no_room_discards_all_the_same() {
    let master = master(&[100]);
    start(&master, secs(0), "a", 60).unwrap();
    assert_eq!(
        start(&master, secs(DISCARD), "a", 60).unwrap_err(),
        PutStartError::Full { len: 60 }
    );
    // The key is free for a smaller put.
    put(&master, secs(DISCARD), "a", 40).unwrap();
}

#[test]
fn many_unfinished_puts_come_back_over_several_ticks() {
    let master = master(&[10_000]);
    for n in 0..10_000 {
        start(&master, secs(0), &format!("{n}"), 1).unwrap();
    }
    let mut ticks = 1;
    while master.tick(secs(RELEASE)) {
        ticks += 1;
    }
    assert!(ticks > 1, "no single tick holds a shard for all of them");
    assert_eq!(master.report().totals.used, 0);
}

#[test]
fn a_revoked_put_gives_its_space_back_at_once() {
    let master: Master = master(&[100, 100]);
    let config = ReplicateConfig::default().replicas(2);
    let grant = start_as(&master, at(0), "a", 100, &config).unwrap();
    master.put_revoke(at(1), WRITER, key("a"), grant.handle, LateWrites::Impossible).unwrap();
    assert_eq!(master.report().totals.used, 0);
    put_as(&master, at(1), "a", 100, &config).unwrap();
    let again = master.put_revoke(at(1), WRITER, key("a"), grant.handle, LateWrites::Impossible);
    assert_eq!(again, Err(PutFinishError::NotOpen));
}
