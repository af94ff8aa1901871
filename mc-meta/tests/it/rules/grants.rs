//! Grants: space for a time, and a token that is needed to end it.

use mc_meta::{PromotionConfig, TransferFinishError};

use super::offload::with_disks;
use super::promotion::{begun, with_one_on_disk};
use super::recovery::{export, rebuild_with};
use super::*;

const RELEASE: Duration = Duration::from_secs(600);

/// The same handle with a wrong token.
fn guessed(put: PutHandle) -> PutHandle {
    PutHandle { token: PutToken::from_u64(put.token.as_u64().wrapping_add(1)), ..put }
}

fn guessed_transfer(transfer: TransferHandle) -> TransferHandle {
    TransferHandle {
        token: PutToken::from_u64(transfer.token.as_u64().wrapping_add(1)),
        ..transfer
    }
}

#[test]
fn a_grants_space_is_its_own_for_exactly_the_time_that_it_names() {
    let master = master(&[100, 100]);
    let config = ReplicateConfig::default().prefer("segment-0").exclude("segment-1");
    let grant = start_as(&master, secs(1), "a", 60, &config).unwrap();
    assert_eq!(grant.time_left, RELEASE);
    let until = secs(1) + grant.time_left;
    let just_before = at(until.as_millis() - 1);
    while master.tick(just_before) {}
    assert!(start_as(&master, just_before, "b", 60, &config).is_err());
    // Without a tick.
    let next = start_as(&master, until, "b", 60, &config).unwrap();
    assert_eq!(next.placements[0].extent, grant.placements[0].extent);
    assert!(end(&master, until, "a", grant.handle.generation).is_err());
}

#[test]
fn a_grant_that_gives_way_keeps_its_space_for_the_time_that_it_names() {
    let mut config = settings();
    config.put_start_discard_timeout = Duration::from_secs(10);
    let master = master_with(config, &[100]);
    let grant = start(&master, at(0), "a", 60).unwrap();
    let until = at(0) + grant.time_left;
    start(&master, secs(20), "a", 40).unwrap();
    assert!(start(&master, at(until.as_millis() - 1), "b", 60).is_err());
    start(&master, until, "b", 60).unwrap();
}

#[test]
fn every_grant_of_memory_names_its_time() {
    let master = master(&[100, 100, 100]);
    let there = ReplicateConfig::default().prefer("segment-0");
    for name in ["a", "b"] {
        put_as(&master, at(0), name, 30, &there).unwrap();
    }
    let config = ReplicateConfig::default();
    let upsert = PutStart { key: key("c"), slice_lengths: &[30], config: &config };
    assert_eq!(master.upsert_start(at(0), WRITER, &upsert).unwrap().time_left, RELEASE);
    let copy = master.copy_start(secs(1), WRITER, key("a"), "segment-0", &["segment-1"]).unwrap();
    let moved = master.move_start(secs(1), WRITER, key("b"), "segment-0", "segment-2").unwrap();
    assert_eq!((copy.time_left, moved.time_left), (RELEASE, RELEASE));
    let used = master.report().totals.used;
    master.tick(at(601_000 - 1));
    assert_eq!(master.report().totals.used, used - 30, "the upsert's time is up");
    master.tick(secs(601));
    assert_eq!((master.report().totals.used, master.report().totals.transfers), (used - 90, 0));
}

#[test]
fn a_way_back_into_memory_names_its_time_and_ends_by_its_token() {
    let mut config = with_disks(false);
    config.promotion = Some(PromotionConfig::default());
    let (master, generation) = with_one_on_disk(config);
    let grant = begun(&master, secs(2), generation);
    assert_eq!(grant.time_left, RELEASE);
    let success =
        |handle| master.notify_promotion_success(secs(3), NODE, key("a"), generation, handle);
    assert!(success(guessed_transfer(grant.handle)).is_err());
    // Nor by that of the put, which its writer knows.
    let put = handle(generation);
    assert!(success(transfer_of(put)).is_err());
    let list = master.get_replica_list(secs(3), key("a")).unwrap();
    assert!(list.placements.is_empty(), "an unwritten replica is not readable");
    success(grant.handle).unwrap();
}

#[test]
fn what_everybody_can_see_of_a_put_does_not_end_it() {
    let master = master(&[100]);
    let put = start(&master, at(0), "a", 60).unwrap().handle;
    // An administrator sees whose put it is, and which.
    let seen = master.describe(at(0), key("a")).unwrap();
    assert_eq!((seen.owner, seen.generation), (WRITER, put.generation));
    let stranger = guessed(PutHandle { generation: seen.generation, ..put });
    let refused = Err(PutFinishError::IllegalClient);
    let end = PutEnd::new(key("a"), stranger);
    assert_eq!(master.put_end(at(1), seen.owner, &end), refused);
    assert_eq!(master.put_end(at(1), seen.owner, &end), refused);
    for late in [LateWrites::Possible, LateWrites::Impossible] {
        assert_eq!(master.put_revoke(at(1), seen.owner, key("a"), stranger, late), refused);
        assert_eq!(master.memory_put_revoke(at(1), seen.owner, key("a"), stranger, late), refused);
    }
    assert!(!has(&master, "a"));
    assert_eq!((master.report().totals.used, master.report().totals.processing), (60, 1));
}

#[test]
fn a_stranger_makes_no_unwritten_file_readable() {
    let mut config = settings();
    config.shared_tier = Some(mc_meta::SharedTierConfig::default());
    let master = master_with(config, &[100]);
    let put = put(&master, at(0), "a", 60).unwrap().handle;
    let refused = Err(PutFinishError::IllegalClient);
    assert_eq!(master.file_put_end(at(1), WRITER, key("a"), guessed(put)), refused);
    assert_eq!(master.file_put_revoke(at(1), WRITER, key("a"), guessed(put)), refused);
    assert!(master.get_replica_list(at(1), key("a")).unwrap().file.is_none());
    master.file_put_end(at(1), WRITER, key("a"), put).unwrap();
}

#[test]
fn a_stranger_ends_no_copy_and_no_move() {
    let master = master(&[100, 100]);
    let there = ReplicateConfig::default().prefer("segment-0");
    for name in ["a", "b"] {
        put_as(&master, at(0), name, 30, &there).unwrap();
    }
    let copy = master.copy_start(at(0), WRITER, key("a"), "segment-0", &["segment-1"]).unwrap();
    let moved = master.move_start(at(0), WRITER, key("b"), "segment-0", "segment-1").unwrap();
    let (copy, moved) = (guessed_transfer(copy.handle), guessed_transfer(moved.handle));
    let (now, late) = (at(1), LateWrites::Impossible);
    for refused in [
        master.copy_end(now, WRITER, key("a"), copy),
        master.copy_revoke(now, WRITER, key("a"), copy, late),
        master.move_end(now, WRITER, key("b"), moved),
        master.move_revoke(now, WRITER, key("b"), moved, late),
    ] {
        assert_eq!(refused, Err(TransferFinishError::IllegalClient));
    }
    assert_eq!((master.report().totals.used, master.report().totals.transfers), (120, 2));
}

#[test]
fn tokens_outlive_a_restart_with_their_secret_only() {
    let former = master(&[100]);
    let put = start(&former, at(0), "a", 60).unwrap().handle;
    let records = export(&former, at(0));
    let finish = |master: &Master| {
        master.mount_segment(at(1), NODE, segment(0, 100)).unwrap();
        let end = PutEnd::new(key("a"), put);
        master.put_end(at(1), WRITER, &end)
    };
    let (same, _) = rebuild_with(settings(), &records, at(1));
    assert_eq!(finish(&same), Ok(()));
    let mut rebuild = mc_meta::Rebuild::new(settings(), 1).unwrap();
    records.iter().for_each(|record| rebuild.apply(record));
    let other = rebuild.finish(at(1)).unwrap().master;
    assert_eq!(finish(&other), Err(PutFinishError::IllegalClient));
}

#[test]
fn nothing_shows_a_token() {
    let master = master(&[100]);
    let grant = start(&master, at(0), "a", 60).unwrap();
    let token = grant.handle.token.as_u64();
    let info = master.describe(at(0), key("a")).unwrap();
    for text in [format!("{grant:?}"), format!("{info:?}"), format!("{:?}", master.report())] {
        assert!(!text.contains(&token.to_string()) && !text.contains(&format!("{token:x}")));
    }
}
