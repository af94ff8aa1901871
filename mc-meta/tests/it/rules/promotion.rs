//! Objects that come back from disks into memory.

use mc_meta::{
    Beat, Effect, EffectSink, Master, PromotionConfig, PromotionError, PromotionGrant,
    PromotionStartError, Record, SharedTierConfig, TierJob,
};
use mc_types::{Generation, SegmentId, Sequence, Time};

use super::offload::{OTHER, disk, names, read, with_disk, with_disks, write_all};
use super::*;

fn promoting() -> MasterConfig {
    let mut config = with_disks(false);
    let mut promotion = PromotionConfig::default();
    promotion.max_per_heartbeat = 10;
    config.promotion = Some(promotion);
    config.eviction_high_watermark_ratio = 1.0;
    config
}

/// A master with an object of 60 bytes on its disk only, and 40 bytes of 100 in use.
pub(crate) fn with_one_on_disk(config: MasterConfig) -> (Master, Generation) {
    let master = with_disk(config, 100);
    let generation = put(&master, at(0), "a", 60).unwrap().handle.generation;
    write_all(&master, at(0));
    put(&master, at(1), "b", 80).unwrap();
    write_all(&master, at(1));
    master.remove(at(1), key("b"), true).unwrap();
    put(&master, at(1), "c", 40).unwrap();
    write_all(&master, at(1));
    assert_eq!(read(&master, at(1), "a"), Ok((false, 1)));
    (master, generation)
}

fn fetch(master: &Master, now: Time) -> Vec<TierJob> {
    master.promotion_heartbeat(now, NODE)
}

fn begin(
    master: &Master,
    now: Time,
    generation: Generation,
    len: u64,
) -> Result<PromotionGrant, PromotionStartError> {
    master.promotion_alloc_start(now, NODE, key("a"), generation, len, &[])
}

/// Reads the object until it is to be brought back, and gives its space.
pub(crate) fn begun(master: &Master, now: Time, generation: Generation) -> PromotionGrant {
    read(master, now, "a").unwrap();
    assert_eq!(names(&fetch(master, now)), ["a"]);
    begin(master, now, generation, 60).unwrap()
}

fn ended(master: &Master, now: Time, generation: Generation) -> Result<(), PromotionError> {
    master.notify_promotion_success(now, NODE, key("a"), generation, newest_transfer(master))
}

#[test]
fn without_the_setting_nothing_comes_back() {
    let (master, _) = with_one_on_disk(with_disks(false));
    for _ in 0..10 {
        read(&master, at(2), "a").unwrap();
    }
    assert!(fetch(&master, at(2)).is_empty());
    assert_eq!(master.report().totals.promotion_hits, 0);
}

#[test]
fn an_object_read_often_enough_comes_back_and_is_evicted_again() {
    let (master, generation) = with_one_on_disk(promoting());
    assert!(fetch(&master, at(2)).is_empty(), "read once");
    let space = begun(&master, at(2), generation).placement;
    assert_eq!((space.segment.client(), space.extent.len()), (NODE, 60));
    assert_eq!((master.report().totals.used, read(&master, at(3), "a")), (100, Ok((false, 1))));
    ended(&master, at(4), generation).unwrap();
    let list = master.get_replica_list(at(4), key("a")).unwrap();
    assert_eq!((list.placements[0].extent, list.generation), (space.extent, generation));
    assert_eq!(master.report().totals.tier_only_objects, 0);
    assert_eq!(ended(&master, at(4), generation), Err(PromotionError::NoTask));
    // It is a victim like any other.
    put(&master, secs(10), "d", 100).unwrap();
    assert_eq!(read(&master, secs(10), "a"), Ok((false, 1)));
    assert_eq!(master.report().totals.promotion_promoted_bytes, 60);
}

#[test]
fn reads_from_memory_bring_nothing_back() {
    let (master, _) = with_one_on_disk(promoting());
    for _ in 0..10 {
        read(&master, at(2), "c").unwrap();
        assert!(master.exist(at(2), key("a")), "asking is no reading");
    }
    assert!(fetch(&master, at(2)).is_empty());
}

#[test]
fn what_is_on_its_way_is_queued_once() {
    let (master, generation) = with_one_on_disk(promoting());
    (0..5).for_each(|_| assert!(read(&master, at(2), "a").is_ok()));
    assert_eq!(master.report().totals.promotions_pending, 1);
    assert_eq!(fetch(&master, at(2)).len(), 1);
    read(&master, at(2), "a").unwrap();
    assert!(fetch(&master, at(2)).is_empty());
    assert!(master.promotion_heartbeat(at(2), OTHER).is_empty());
    let again = PromotionStartError::Task(PromotionError::AlreadyBegun);
    begin(&master, at(2), generation, 60).unwrap();
    assert_eq!(begin(&master, at(2), generation, 60).unwrap_err(), again);
}

#[test]
fn above_the_watermark_nothing_is_queued_until_there_is_room() {
    let mut config = promoting();
    config.eviction_high_watermark_ratio = 0.95;
    let (master, _) = with_one_on_disk(config);
    put(&master, at(2), "d", 60).unwrap();
    read(&master, at(2), "a").unwrap();
    let report = master.report();
    assert_eq!((report.totals.promotions_pending, report.totals.promotion_candidates), (0, 1));
    master.remove(at(3), key("d"), true).unwrap();
    master.tick(at(100));
    assert_eq!(names(&fetch(&master, at(100))), ["a"]);
}

#[test]
fn space_is_for_the_client_that_was_told_and_for_what_it_was_told() {
    let (master, generation) = with_one_on_disk(promoting());
    let no_task = PromotionStartError::Task(PromotionError::NoTask);
    assert_eq!(begin(&master, at(2), generation, 60).unwrap_err(), no_task);
    read(&master, at(2), "a").unwrap();
    assert_eq!(begin(&master, at(2), generation, 60).unwrap_err(), no_task, "not fetched");
    fetch(&master, at(2));
    let wrong = PromotionError::WrongLength { given: 61, len: 60 };
    assert_eq!(begin(&master, at(2), generation, 61).unwrap_err(), wrong.into());
    let stranger = master.promotion_alloc_start(at(2), OTHER, key("a"), generation, 60, &[]);
    assert_eq!(stranger.unwrap_err(), PromotionError::IllegalClient.into());
    let other = Generation::new(generation.as_u64() + 1);
    assert_eq!(begin(&master, at(2), other, 60).unwrap_err(), PromotionStartError::NotFound);
    assert_eq!(ended(&master, at(2), generation), Err(PromotionError::NoTask));
    begin(&master, at(2), generation, 60).unwrap();
}

#[test]
fn the_segment_that_is_preferred_is_tried_first() {
    let (master, generation) = with_one_on_disk(promoting());
    for number in 1..5 {
        master.mount_segment(at(2), OTHER, segment(number, 100)).unwrap();
    }
    read(&master, at(2), "a").unwrap();
    fetch(&master, at(2));
    let preferred = ["segment-3"];
    let space = master.promotion_alloc_start(at(2), NODE, key("a"), generation, 60, &preferred);
    assert_eq!(&*space.unwrap().placement.segment.spec().name, "segment-3");
}

#[test]
fn without_room_the_object_stays_on_its_disk() {
    let (master, generation) = with_one_on_disk(promoting());
    read(&master, at(2), "a").unwrap();
    fetch(&master, at(2));
    put(&master, at(2), "d", 60).unwrap();
    let no_room = PromotionStartError::NoRoom { len: 60 };
    assert_eq!(begin(&master, at(2), generation, 60).unwrap_err(), no_room);
    assert!(has(&master, "d"), "nothing is evicted for it");
    assert_eq!(read(&master, at(2), "a"), Ok((false, 1)));
    let failed = master.notify_promotion_failure(
        at(2),
        NODE,
        key("a"),
        generation,
        None,
        LateWrites::Impossible,
    );
    failed.unwrap();
}

#[test]
fn a_failure_gives_the_space_back_at_once_and_may_be_told_twice() {
    let (master, generation) = with_one_on_disk(promoting());
    let handle = Some(begun(&master, at(2), generation).handle);
    let fail = |client| {
        let late = LateWrites::Impossible;
        master.notify_promotion_failure(at(2), client, key("a"), generation, handle, late)
    };
    assert_eq!(fail(OTHER), Err(PromotionError::IllegalClient));
    assert_eq!(fail(NODE), Ok(()));
    assert_eq!(fail(NODE), Ok(()));
    assert_eq!((master.report().totals.used, master.report().totals.promotion_failed), (40, 1));
    assert_eq!(ended(&master, at(2), generation), Err(PromotionError::NoTask));
    // Another read tries again.
    begun(&master, at(3), generation);
}

#[test]
fn space_that_a_client_may_still_write_to_is_kept_from_others() {
    for go in [
        |master: &Master| master.remove(at(3), key("a"), true).unwrap(),
        |master: &Master| master.unmount_local_disk(at(3), NODE, false).unwrap(),
    ] {
        let (master, generation) = with_one_on_disk(promoting());
        begun(&master, secs(1), generation);
        go(&master);
        while master.tick(secs(2)) {}
        assert_eq!(ended(&master, secs(2), generation), Err(PromotionError::NoTask));
        assert_eq!(master.report().totals.used, 100);
        master.tick(secs(601));
        assert_eq!(
            (master.report().totals.used, master.report().totals.promotions_pending),
            (40, 0)
        );
        assert!(!has(&master, "a"));
    }
}

#[test]
fn a_client_that_is_not_heard_of_has_its_time() {
    let (master, generation) = with_one_on_disk(promoting());
    begun(&master, secs(1), generation);
    while master.tick(secs(700)) {}
    assert_eq!((master.report().totals.used, master.report().totals.promotion_expired), (40, 1));
    assert_eq!(ended(&master, secs(700), generation), Err(PromotionError::NoTask));
    assert_eq!(read(&master, secs(700), "a"), Ok((false, 1)));
}

#[test]
fn space_that_went_with_its_segment_is_of_no_use() {
    let (master, generation) = with_one_on_disk(promoting());
    begun(&master, at(2), generation);
    master.unmount_segment(at(2), NODE, SegmentId::from_u128(0)).unwrap();
    assert_eq!(ended(&master, at(3), generation), Err(PromotionError::NoTask));
    assert_eq!(read(&master, at(3), "a"), Ok((false, 1)));
}

#[test]
fn a_file_is_brought_back_by_a_client_that_contributes_memory() {
    let mut config = settings();
    config.shared_tier = Some(SharedTierConfig::default());
    config.promotion = Some(PromotionConfig::default());
    let master = master_with(config, &[100]);
    for name in ["a", "b"] {
        let grant = put(&master, at(0), name, 60).unwrap();
        master.file_put_end(at(0), WRITER, key(name), grant.handle).unwrap();
    }
    master.remove(at(0), key("b"), true).unwrap();
    (0..2).for_each(|_| assert!(read(&master, at(1), "a").is_ok()));
    assert!(fetch(&master, at(1)).is_empty(), "nobody has said that it brings files back");
    let says_so = Beat { promotes: true, ..Beat::default() };
    assert!(!master.beat(at(1), NODE, says_so).disk_work);
    assert!(!master.beat(at(1), OTHER, says_so).disk_work, "it contributes nothing");
    (0..2).for_each(|_| assert!(read(&master, at(1), "a").is_ok()));
    assert!(master.beat(at(1), NODE, says_so).disk_work);
    assert_eq!(master.report().totals.promotions_pending, 1);
    let jobs = fetch(&master, at(1));
    assert_eq!(names(&jobs), ["a"]);
    assert!(!master.beat(at(1), NODE, says_so).disk_work);
    begin(&master, at(1), jobs[0].generation, 60).unwrap();
    ended(&master, at(1), jobs[0].generation).unwrap();
    let list = master.get_replica_list(at(1), key("a")).unwrap();
    assert_eq!((list.placements.len(), list.file.is_some()), (1, true));
}

/// Keeps what is reserved for objects.
#[derive(Clone, Default)]
struct Reserved(Arc<Mutex<Vec<(usize, usize)>>>);

impl EffectSink for Reserved {
    fn emit(&self, _: Sequence, _: Time, effect: &Effect<'_>) {
        if let Effect::Changed { .. } | Effect::Transferring { .. } = effect
            && let Some(Record::Object(record)) = Record::from_effect(effect)
        {
            self.0.lock().unwrap().push((record.replicas.len(), record.reserved.len()));
        }
    }
}

#[test]
fn a_journal_knows_of_the_space_that_is_written_to() {
    let mut config = promoting();
    config.shared_tier = Some(SharedTierConfig::default());
    let told = Reserved::default();
    let master = Master::new(config, 1).unwrap().with_secret(SECRET).with_sink(told.clone());
    master.mount_segment(at(0), NODE, segment(0, 100)).unwrap();
    master.mount_local_disk(at(0), NODE, disk(NODE), true).unwrap();
    let generation = put(&master, at(0), "a", 60).unwrap().handle.generation;
    write_all(&master, at(0));
    put(&master, at(1), "b", 60).unwrap();
    master.remove(at(1), key("b"), true).unwrap();
    read(&master, at(1), "a").unwrap();
    begun(&master, at(2), generation);
    ended(&master, at(2), generation).unwrap();
    // Written, evicted, given space, back.
    assert_eq!(*told.0.lock().unwrap(), [(1, 0), (0, 0), (0, 1), (1, 0)]);
}
