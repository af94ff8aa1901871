//! Segments that clients could not reach.

use std::collections::BTreeMap;

use mc_meta::{Beat, ClientStatus, ReportOutcome};

use super::*;

/// A master with the usual time to live, and nodes with one segment each, all heard of at 0.
fn nodes(count: u128, size: u64) -> Master {
    let mut config = MasterConfig::default();
    config.shards = 4;
    let master = Master::new(config, 1).unwrap().with_secret(SECRET);
    for number in 0..count {
        master.mount_segment(at(0), node(number), segment(number, size)).unwrap();
    }
    master
}

fn node(number: u128) -> ClientId {
    ClientId::from_u128(1000 + number)
}

fn unreachable(master: &Master, now: Time, source: u64, number: u128) -> ReportOutcome {
    master.report_unreachable(now, source, SegmentId::from_u128(number))
}

/// The segments that are suspect.
fn suspects(master: &Master) -> Vec<u128> {
    let segments = master.report().segments;
    let suspects = segments.iter().filter(|segment| segment.is_suspect);
    let mut numbers: Vec<u128> = suspects.map(|segment| segment.spec.id.as_u128()).collect();
    numbers.sort_unstable();
    assert_eq!(numbers.len() as u64, master.report().totals.suspicion_suspects);
    numbers
}

const CUT_OFF: Beat = Beat { is_cut_off: true, is_unproven: false, segments: 0, promotes: false };

#[test]
fn nothing_is_placed_where_two_sources_found_nobody_until_the_node_is_heard_of() {
    let master = nodes(2, 100);
    assert_eq!(unreachable(&master, at(100), 1, 0), ReportOutcome::Noted);
    unreachable(&master, at(100), 1, 0);
    assert!(suspects(&master).is_empty(), "one source says it twice");
    unreachable(&master, at(100), 2, 0);
    assert_eq!(suspects(&master), [0]);
    // Evicting from a live segment is better than room in a suspect one.
    for name in ["a", "b", "c"] {
        let grant = put(&master, at(100), name, 60).unwrap();
        assert_eq!(grant.placements[0].segment.spec().id, SegmentId::from_u128(1));
    }
    assert_eq!(master.report().totals.objects, 1);
    master.ping(at(900), node(0));
    assert!(suspects(&master).is_empty());
    let two = ReplicateConfig::default().replicas(2);
    assert_eq!(put_as(&master, at(900), "d", 30, &two).unwrap().placements.len(), 2);
    let totals = master.report().totals;
    assert_eq!(
        (totals.suspicion_reports, totals.suspicion_suspected, totals.suspicion_cleared),
        (3, 1, 1)
    );
}

#[test]
fn one_source_is_believed_when_the_heartbeat_is_late() {
    let master = nodes(3, 100);
    unreachable(&master, at(1000), 1, 0);
    master.tick(at(1499));
    assert!(suspects(&master).is_empty());
    master.tick(at(1500));
    assert_eq!(suspects(&master), [0]);
    // Late already.
    master.ping(at(1600), node(2));
    unreachable(&master, at(1700), 1, 1);
    unreachable(&master, at(1700), 1, 2);
    assert_eq!(suspects(&master), [0, 1]);
    // Its time is over in the end, and it comes back with what it holds.
    master.ping(at(9000), node(1));
    master.ping(at(9000), node(2));
    master.tick(at(10_001));
    assert!(suspects(&master).is_empty());
    master.reattach_segment(at(11_000), node(0), &segment(0, 100)).unwrap();
    let three = ReplicateConfig::default().replicas(3);
    assert_eq!(put_as(&master, at(11_000), "a", 10, &three).unwrap().placements.len(), 3);
}

#[test]
fn a_liar_shuts_out_nobody_whose_heartbeat_is_on_time() {
    let master = nodes(300, 100);
    for second in 0..60 {
        for tenth in 0..10 {
            let now = at(second * 1000 + tenth * 100);
            for number in 0..300 {
                if number % 10 == u128::from(tenth) {
                    master.ping(now, node(number));
                }
                unreachable(&master, now, 1, number);
            }
            master.tick(now);
            assert!(suspects(&master).is_empty(), "at {now}");
        }
    }
    let totals = master.report().totals;
    assert!(totals.suspicion_reports - totals.suspicion_dropped < 1000, "{totals:?}");
}

#[test]
fn a_node_that_finds_itself_cut_off_takes_no_objects_until_it_is_well() {
    let master = nodes(3, 100);
    master.mount_segment(at(0), node(0), segment(10, 100)).unwrap();
    // Without any report, and with both of its segments; said again with each heartbeat.
    for tenth in 1..5 {
        assert_eq!(master.beat(at(tenth * 100), node(0), CUT_OFF).status, ClientStatus::Ok);
        assert_eq!(suspects(&master), [0, 10]);
    }
    for name in ["a", "b", "c"] {
        let grant = put(&master, at(500), name, 60).unwrap();
        assert!([1, 2].contains(&grant.placements[0].segment.spec().id.as_u128()));
    }
    // Those who report it are right, however often the node is well and cut off again.
    for second in 1..100 {
        unreachable(&master, at(second * 1000), 1, 0);
        master.beat(at(second * 1000 + 100), node(0), CUT_OFF);
        assert_eq!(suspects(&master), [0, 10]);
        master.tick(at(second * 1000 + 200));
        for number in 0..3 {
            master.ping(at(second * 1000 + 300), node(number));
        }
        assert!(suspects(&master).is_empty());
    }
    let totals = master.report().totals;
    assert_eq!(
        (totals.suspicion_declared, totals.suspicion_suspected, totals.suspicion_dropped),
        (198, 198, 0)
    );
    // A segment that is mounted meanwhile is doubted with the next heartbeat, and one that
    // others found silent before is its node's word from then on.
    master.beat(at(100_000), node(0), CUT_OFF);
    master.mount_segment(at(100_000), node(0), segment(11, 100)).unwrap();
    unreachable(&master, at(100_000), 1, 1);
    unreachable(&master, at(100_000), 2, 1);
    assert_eq!(suspects(&master), [0, 1, 10]);
    master.beat(at(100_100), node(0), CUT_OFF);
    master.beat(at(100_100), node(1), CUT_OFF);
    assert_eq!(suspects(&master), [0, 1, 10, 11]);
    // The last one stays, and is doubted as soon as there is another.
    master.beat(at(100_200), node(2), CUT_OFF);
    assert_eq!(suspects(&master), [0, 1, 10, 11]);
    put(&master, at(100_200), "d", 10).unwrap();
    master.ping(at(100_300), node(1));
    master.tick(at(100_300));
    assert_eq!(suspects(&master), [0, 2, 10, 11]);
    // A report by an unknown client does not count.
    assert_eq!(master.beat(at(100_300), node(77), CUT_OFF).status, ClientStatus::NeedRemount);
    assert_eq!(master.report().totals.suspicion_suspects, 4);
}

#[test]
fn the_last_segment_is_never_shut_out() {
    let master = nodes(2, 100);
    for number in 0..2 {
        for source in 1..4 {
            unreachable(&master, at(100), source, number);
        }
    }
    assert_eq!(suspects(&master), [0]);
    put(&master, at(100), "a", 10).unwrap();
    // When it goes, a suspect one is better than none.
    master.unmount_segment(at(100), node(1), SegmentId::from_u128(1)).unwrap();
    master.tick(at(120));
    assert!(suspects(&master).is_empty());
    put(&master, at(120), "b", 10).unwrap();
}

#[test]
fn replicas_in_suspect_segments_are_told_last() {
    let master = nodes(3, 1000);
    let three = ReplicateConfig::default().replicas(3);
    for n in 0..8 {
        put_as(&master, at(0), &format!("k{n}"), 10, &three).unwrap();
    }
    for source in 1..3 {
        unreachable(&master, at(0), source, 1);
    }
    for n in 0..8 {
        let list = master.get_replica_list(at(0), key(&format!("k{n}"))).unwrap();
        let ids: Vec<u128> =
            list.placements.iter().map(|at| at.segment.spec().id.as_u128()).collect();
        assert_eq!((ids.len(), ids[2], list.suspects), (3, 1, 1), "{ids:?}");
    }
}

#[test]
fn segments_that_take_no_objects_are_not_doubted() {
    let master = nodes(3, 100);
    let (now, grace) = (at(0), Duration::from_secs(60));
    master.graceful_unmount_segment(now, node(0), SegmentId::from_u128(0), grace).unwrap();
    assert_eq!(unreachable(&master, now, 1, 0), ReportOutcome::Stale);
    assert_eq!(unreachable(&master, now, 1, 77), ReportOutcome::Stale);
    // One that is suspect may leave, and be taken out.
    for number in 1..3 {
        unreachable(&master, now, 1, number);
        unreachable(&master, now, 2, number);
    }
    assert_eq!(suspects(&master), [1]);
    master.graceful_unmount_segment(now, node(1), SegmentId::from_u128(1), grace).unwrap();
    master.tick(at(20));
    assert!(suspects(&master).is_empty());
    master.unmount_segment(at(20), node(1), SegmentId::from_u128(1)).unwrap();
    assert_eq!(put(&master, at(20), "a", 10).unwrap().placements.len(), 1);
}

#[test]
fn a_node_that_never_reached_itself_is_left_where_one_client_does_not_reach_it_either() {
    const UNPROVEN: Beat =
        Beat { is_cut_off: false, is_unproven: true, segments: 0, promotes: false };
    let master = nodes(3, 100);
    let beat = |now: u64| {
        master.beat(at(now), node(0), UNPROVEN);
        for number in 1..3 {
            master.ping(at(now), node(number));
        }
        master.tick(at(now));
    };
    // Its own word alone takes nothing from it: others may reach it.
    beat(100);
    assert!(suspects(&master).is_empty());
    unreachable(&master, at(200), 1, 0);
    unreachable(&master, at(200), 1, 1);
    for second in 1..60 {
        beat(second * 1000);
        assert_eq!(suspects(&master), [0], "for a minute, and its heartbeat ends nothing");
    }
    // Then it is tried again, and one failure is enough again.
    beat(60_200);
    assert!(suspects(&master).is_empty());
    assert_eq!(unreachable(&master, at(60_300), 1, 0), ReportOutcome::Noted);
    assert_eq!(suspects(&master), [0]);
    // Once it has reached itself it is believed as any other.
    master.ping(at(61_000), node(0));
    assert!(suspects(&master).is_empty());
    unreachable(&master, at(61_100), 2, 0);
    assert!(suspects(&master).is_empty());
    // A client without memory says nothing that counts.
    master.beat(at(61_100), node(77), UNPROVEN);
    assert_eq!(master.report().totals.suspicion_suspects, 0);
}

/// How long an older client does without a peer that it could not reach.
const AVOIDED: u64 = 5000;

/// A writer, as the production client is: places a put anew that failed, without the segments
/// that it could not reach lately.
#[derive(Default)]
struct Writer {
    source: u64,
    /// The segments that it could not reach, and when.
    avoided: BTreeMap<u128, u64>,
    /// Whether it asks its peers again in the background, avoids segments by their ids and places
    /// a put anew as long as failures are quick. An older client does not.
    is_new: bool,
}

impl Writer {
    /// How often a put is placed.
    fn placements(&self) -> usize {
        if self.is_new { 64 } else { 4 }
    }

    /// The settings of the next put, with the segments that it avoids.
    fn config(&self, avoids: bool) -> ReplicateConfig {
        let config = ReplicateConfig::default();
        let avoided = self.avoided.keys().filter(|_| avoids);
        if self.is_new {
            avoided.fold(config, |config, &number| config.avoid(SegmentId::from_u128(number)))
        } else {
            let named = avoided.take(mc_meta::MAX_NAMED_SEGMENTS);
            named.fold(config, |config, number| config.exclude(format!("segment-{number}")))
        }
    }

    /// Whether the put succeeded.
    fn put(
        &mut self,
        master: &Master,
        now: u64,
        name: &str,
        dead: impl Fn(u128) -> bool,
        tells: bool,
    ) -> bool {
        if !self.is_new {
            self.avoided.retain(|_, since| now - *since < AVOIDED);
        }
        let mut avoids = true;
        let mut placed = 0;
        while placed < self.placements() {
            let grant = match start_as(master, at(now), name, 64 << 10, &self.config(avoids)) {
                Ok(grant) => grant,
                Err(_) if avoids => {
                    avoids = false;
                    continue;
                }
                Err(_) => return false,
            };
            let number = grant.placements[0].segment.spec().id.as_u128();
            if !dead(number) {
                end(master, at(now), name, grant.handle.generation).unwrap();
                return true;
            }
            placed += 1;
            self.avoided.insert(number, now);
            if tells {
                unreachable(master, at(now), self.source, number);
            }
            let (key, late) = (key(name), LateWrites::Impossible);
            master.put_revoke(at(now), WRITER, key, grant.handle, late).unwrap();
        }
        false
    }
}

/// Kills some nodes of a cluster that is full, and says which share of the puts failed in each
/// of the seconds until their time is over.
fn failed_after_a_crash(count: u128, killed: u128, hosts: u64, tells: bool) -> Vec<f64> {
    let master = nodes(count, 1 << 20);
    let mut writers: Vec<Writer> =
        (0..20).map(|n| Writer { source: n % hosts, ..Writer::default() }).collect();
    let mut puts = 0;
    let mut run = |seconds: core::ops::Range<u64>, dead: &dyn Fn(u128) -> bool| {
        let mut failed = Vec::new();
        for second in seconds {
            let mut lost = 0;
            for step in 0..50 {
                let now = second * 1000 + step * 20;
                let alive = (0..count).filter(|number| !dead(*number));
                for number in alive.filter(|number| number % 50 == u128::from(step)) {
                    master.ping(at(now), node(number));
                }
                for writer in &mut writers {
                    puts += 1;
                    lost += u32::from(!writer.put(&master, now, &format!("k{puts}"), dead, tells));
                }
                master.tick(at(now));
            }
            failed.push(f64::from(lost) / 1000.0);
        }
        failed
    };
    // Full, and evicting.
    assert_eq!(run(0..8, &|_| false), [0.0; 8]);
    run(8..17, &|number| number < killed)
}

#[test]
fn puts_find_the_living_when_a_third_of_the_nodes_is_killed() {
    for (count, killed, hosts) in [(300, 100, 20), (300, 100, 1), (85, 45, 20)] {
        let before = failed_after_a_crash(count, killed, hosts, false);
        let after = failed_after_a_crash(count, killed, hosts, true);
        eprintln!(
            "{killed} of {count} killed, writers on {hosts} hosts: {before:?}, told {after:?}"
        );
        // One host alone is believed when heartbeats are late, which takes a second and a half.
        let at_first = if hosts > 1 { 0.02 } else { 0.2 };
        assert!(after[..2].iter().all(|share| *share <= at_first), "{after:?}");
        assert!(before[2] > 0.2, "the cluster is not full: {before:?}");
        assert!(after[2..].iter().all(|share| *share == 0.0), "{after:?}");
    }
}

/// The share of puts that fail, in each second, at a client that alone cannot reach `dead` nodes
/// with free room: their heartbeats are on time, so that the master believes the nodes.
fn failed_at_one_client(live: u128, dead: u128, is_new: bool) -> Vec<f64> {
    const FIRST_DEAD: u128 = 100_000;
    let master = nodes(live, 1 << 20);
    let mut writer = Writer { source: 1, is_new, ..Writer::default() };
    let is_dead = |number: u128| number >= FIRST_DEAD;
    for n in 0..live * 20 {
        assert!(writer.put(&master, 0, &format!("before/{n}"), is_dead, true));
    }
    for number in FIRST_DEAD..FIRST_DEAD + dead {
        let owner = ClientId::from_u128(1_000_000 + number);
        master.mount_segment(at(0), owner, segment(number, 1 << 20)).unwrap();
    }
    let mut failed = Vec::new();
    for second in 0..12 {
        let mut lost = 0;
        for step in 0..50 {
            let now = second * 1000 + step * 20;
            for number in 0..live {
                master.ping(at(now), node(number));
            }
            for number in FIRST_DEAD..FIRST_DEAD + dead {
                master.ping(at(now), ClientId::from_u128(1_000_000 + number));
            }
            let name = format!("{second}/{step}");
            lost += u32::from(!writer.put(&master, now, &name, is_dead, true));
            master.tick(at(now));
        }
        failed.push(f64::from(lost) / 50.0);
    }
    assert_eq!(master.report().totals.suspicion_suspected, 0, "one source takes no node away");
    failed
}

#[test]
fn one_client_finds_the_living_among_any_number_that_it_cannot_reach() {
    for dead in [30, 45, 500] {
        let older = failed_at_one_client(40, dead, false);
        let newer = failed_at_one_client(40, dead, true);
        eprintln!("40 full, {dead} with room out of reach: older client {older:?}, {newer:?}");
        // Those that are met at first cost attempts; 64 of them, one put.
        let at_first = dead as f64 / 64.0 / 50.0;
        assert!(newer[0] <= at_first, "{newer:?}");
        assert!(newer[1..].iter().all(|share| *share == 0.0), "{newer:?}");
        assert!(dead < 45 || older[1] > 0.2, "nothing tells the two apart: {older:?}");
    }
}

#[test]
fn what_a_put_avoids_is_left_out_as_what_it_excludes() {
    let master = nodes(3, 100);
    let id = |number| SegmentId::from_u128(number);
    let avoiding = ReplicateConfig::default().avoid(id(0)).avoid(id(2)).avoid(id(77));
    // Also when room has to be made, and when the segment is preferred.
    let avoiding = avoiding.prefer("segment-2");
    for name in ["a", "b", "c"] {
        let grant = put_as(&master, at(100), name, 60, &avoiding).unwrap();
        assert_eq!(grant.placements[0].segment.spec().id, id(1));
    }
    assert_eq!(master.report().totals.objects, 1);
    let error = start_as(&master, at(100), "d", 10, &avoiding.clone().avoid(id(1))).unwrap_err();
    assert!(error.to_string().contains("excluded"), "{error}");
    let mut too_many = ReplicateConfig::default();
    too_many.avoided_segments = vec![id(1); mc_meta::MAX_AVOIDED_SEGMENTS + 1];
    let error = start_as(&master, at(100), "e", 10, &too_many).unwrap_err();
    assert!(error.to_string().contains("4097 segments avoided"), "{error}");
}
