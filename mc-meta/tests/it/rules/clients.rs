//! Mounting, unmounting, liveness.

use core::time::Duration;

use mc_meta::{
    Beat, ClientStatus, GetError, Master, MountError, Mounted, PutFinishError, PutStartError,
    Removal, ReplicateConfig, SegmentSpec, UnmountError,
};
use mc_types::{ClientId, SegmentId};

use super::*;

#[test]
fn a_client_whose_last_segment_was_taken_over_mounts_again() {
    let master = master(&[100]);
    master
        .mount_segment(
            at(5),
            STRANGER,
            SegmentSpec { id: SegmentId::from_u128(77), ..segment(0, 100) },
        )
        .unwrap();
    assert_eq!(master.ping(at(6), NODE).status, ClientStatus::NeedRemount);
    assert_eq!(master.ping(at(6), STRANGER).status, ClientStatus::Ok);
    assert_eq!(master.report().totals.clients, 1);
}

#[test]
fn a_late_mount_call_takes_nothing_back_from_a_ping() {
    let mut config = settings();
    config.client_ttl = Duration::from_secs(10);
    let master = master_with(config, &[100]);
    master.ping(secs(9), NODE);
    // The same mount again, by a thread that read the clock earlier.
    master.mount_segment(secs(1), NODE, segment(0, 100)).unwrap();
    master.tick(secs(15));
    assert_eq!(master.report().totals.clients, 1);
}

#[test]
fn equal_seeds_and_commands_give_equal_answers() {
    let run = || {
        let mut config = settings();
        config.client_ttl = Duration::from_secs(10);
        let master = Master::new(config, 9).unwrap().with_secret(SECRET);
        for number in 0..20 {
            let client = ClientId::from_u128(number / 2);
            master.mount_segment(at(0), client, segment(number, 1000)).unwrap();
        }
        // Three clients stay silent and take their segments with them.
        for client in 3..10 {
            master.ping(secs(9), ClientId::from_u128(client));
        }
        master.tick(secs(11));
        let placed = |n: u32| {
            let grant = put(&master, secs(11), &format!("key-{n}"), 10).unwrap();
            (grant.handle.generation, grant.placements[0].segment.spec().id)
        };
        (0..50).map(placed).collect::<Vec<_>>()
    };
    let first = run();
    assert!((0..8).all(|_| run() == first));
}

#[test]
fn mounting_the_same_again_is_harmless() {
    let master = master(&[100]);
    put(&master, at(0), "a", 10).unwrap();
    let view = master.ping(at(0), NODE).view;
    master.mount_segment(at(1), NODE, segment(0, 100)).unwrap();
    assert!(has(&master, "a"));
    assert_eq!(master.ping(at(1), NODE).view, view);
    assert_eq!(master.report().segments.len(), 1);
}

#[test]
fn a_mounted_id_or_name_is_not_given_away() {
    let master = master(&[100]);
    let taken = MountError::AlreadyExists { name: "segment-0".into() };
    let other_id = SegmentId::from_u128(77);
    let elsewhere: mc_types::Endpoint = "mem://elsewhere".parse().unwrap();
    for (client, spec) in [
        (STRANGER, segment(0, 100)),
        (NODE, segment(0, 101)),
        (NODE, SegmentSpec { endpoint: elsewhere.clone(), ..segment(0, 100) }),
        (NODE, SegmentSpec { id: other_id, endpoint: elsewhere, ..segment(0, 100) }),
    ] {
        assert_eq!(master.mount_segment(at(0), client, spec), Err(taken.clone()));
    }
    assert_eq!(master.report().totals.capacity, 100);
}

#[test]
fn malformed_segments_are_refused() {
    let master = master(&[]);
    let named = |name: String| SegmentSpec { name: name.into(), ..segment(0, 1) };
    let longest = mc_meta::MAX_SEGMENT_NAME_LEN;
    let bad = |len| MountError::BadName { len, max: longest };
    assert_eq!(master.mount_segment(at(0), NODE, named(String::new())), Err(bad(0)));
    let long = "x".repeat(longest + 1);
    assert_eq!(master.mount_segment(at(0), NODE, named(long)), Err(bad(longest + 1)));
    assert_eq!(master.mount_segment(at(0), NODE, segment(0, 0)), Err(MountError::ZeroSize));
    assert_eq!(master.mount_segment(at(0), NODE, named("x".repeat(longest))), Ok(Mounted::New));
}

#[test]
fn a_takeover_loses_what_the_old_owner_held() {
    let master = master(&[100, 100]);
    let both = ReplicateConfig::default().replicas(2);
    put_as(&master, at(0), "both", 10, &both).unwrap();
    put_as(&master, at(0), "one", 10, &ReplicateConfig::default().prefer("segment-0")).unwrap();
    let again = SegmentSpec { id: SegmentId::from_u128(77), ..segment(0, 100) };
    master.mount_segment(at(1), STRANGER, again).unwrap();
    assert!(!has(&master, "one"));
    let list = master.get_replica_list(at(1), key("both")).unwrap();
    assert_eq!(list.placements.len(), 1);
    assert_eq!(list.placements[0].segment.spec().name, "segment-1".into());
    // NODE still has the other segment.
    assert_eq!(master.ping(at(1), NODE).status, ClientStatus::Ok);
}

#[test]
fn unmounting_is_for_the_owner() {
    let master = master(&[100]);
    let id = SegmentId::from_u128(0);
    let unmount = |client, id| master.unmount_segment(at(1), client, id);
    assert_eq!(unmount(STRANGER, id), Err(UnmountError::IllegalClient));
    assert_eq!(unmount(NODE, SegmentId::from_u128(9)), Err(UnmountError::NotFound));
    assert_eq!(unmount(NODE, id), Ok(()));
    assert_eq!(unmount(NODE, id), Err(UnmountError::NotFound));
    assert_eq!(master.ping(at(2), NODE).status, ClientStatus::NeedRemount);
}

#[test]
fn a_lease_does_not_keep_a_segment_that_goes() {
    let master = master(&[100]);
    put(&master, at(0), "a", 10).unwrap();
    master.get_replica_list(at(0), key("a")).unwrap();
    master.unmount_segment(at(1), NODE, SegmentId::from_u128(0)).unwrap();
    assert_eq!(master.get_replica_list(at(1), key("a")).unwrap_err(), GetError::NotFound);
}

#[test]
fn an_open_put_outlives_the_loss_of_one_of_its_replicas() {
    let master = master(&[100, 100]);
    let grant = start_as(&master, at(0), "a", 10, &ReplicateConfig::default().replicas(2)).unwrap();
    master.unmount_segment(at(1), NODE, SegmentId::from_u128(0)).unwrap();
    end(&master, at(2), "a", grant.handle.generation).unwrap();
    let list = master.get_replica_list(at(2), key("a")).unwrap();
    assert_eq!(list.placements.len(), 1);
    assert!(list.placements[0].segment.status().is_readable());
    // The other one goes, too: nothing is left to end.
    let grant = start(&master, at(2), "b", 10).unwrap();
    master.unmount_segment(at(3), NODE, SegmentId::from_u128(1)).unwrap();
    assert_eq!(end(&master, at(3), "b", grant.handle.generation), Err(PutFinishError::NotFound));
}

#[test]
fn a_silent_client_is_suspended_and_comes_back_with_what_it_holds() {
    let mut config = settings();
    config.client_ttl = Duration::from_secs(10);
    let master = master_with(config, &[100]);
    put(&master, at(0), "a", 10).unwrap();
    master.ping(secs(1), NODE);
    master.tick(secs(11));
    assert!(has(&master, "a"), "silent for no longer than the TTL");
    master.tick(at(11_001));
    assert!(!has(&master, "a"));
    assert_eq!(master.get_replica_list(secs(12), key("a")).unwrap_err(), GetError::NotReady);
    assert_eq!(master.ping(secs(12), NODE).status, ClientStatus::NeedRemount);
    assert_eq!(master.report().totals.expired_clients, 1);
    assert_eq!(master.report().totals.capacity, 0);
    let no_room = put(&master, secs(12), "b", 1).unwrap_err();
    assert!(matches!(no_room, PutStartError::TooFewSegments { .. }), "{no_room}");
    let back = master.remount_segments(secs(12), NODE, [segment(0, 100), segment(1, 50)]);
    assert_eq!(back, [Ok(Mounted::Reattached), Ok(Mounted::New)]);
    assert_eq!(master.ping(secs(12), NODE).status, ClientStatus::Ok);
    assert!(has(&master, "a"));
    assert_eq!(master.report().totals.used, 10);
    assert_eq!(master.mount_segment(secs(12), NODE, segment(0, 100)), Ok(Mounted::Already));
}

#[test]
fn only_what_was_suspended_is_attached_again() {
    let mut config = settings();
    config.client_ttl = Duration::from_secs(10);
    let master = master_with(config, &[]);
    let back = |now, client, spec: &SegmentSpec| master.reattach_segment(now, client, spec);
    let own = segment(0, 100);
    assert_eq!(back(at(0), NODE, &own), Err(MountError::NotFound), "never mounted");
    assert_eq!(master.report().segments.len(), 0);
    assert_eq!(master.ping(at(0), NODE).status, ClientStatus::NeedRemount);

    master.mount_segment(at(0), NODE, own.clone()).unwrap();
    put(&master, at(0), "a", 10).unwrap();
    master.tick(secs(11));
    assert!(!has(&master, "a"));
    let other_key = RemoteKey::from_bytes([99; 16]);
    let other_id = SegmentId::from_u128(77);
    for (client, spec) in [
        (STRANGER, own.clone()),
        (NODE, SegmentSpec { id: other_id, ..own.clone() }),
        (NODE, SegmentSpec { size: 99, ..own.clone() }),
        (NODE, SegmentSpec { base: 99, ..own.clone() }),
        (NODE, SegmentSpec { name: "other".into(), ..own.clone() }),
        (NODE, SegmentSpec { remote_key: other_key, ..own.clone() }),
        (NODE, SegmentSpec { endpoint: "mem://elsewhere".parse().unwrap(), ..own.clone() }),
    ] {
        assert_eq!(back(secs(12), client, &spec), Err(MountError::NotFound), "{spec:?}");
    }
    assert!(!has(&master, "a"));
    assert_eq!(master.ping(secs(12), NODE).status, ClientStatus::NeedRemount);

    for _ in 0..2 {
        assert_eq!(back(secs(12), NODE, &own), Ok(()));
        assert!(has(&master, "a"));
        assert_eq!(master.ping(secs(12), NODE).status, ClientStatus::Ok);
    }
    // Heard of at 12 s, so it is silent for too long only after 22 s.
    master.tick(secs(22));
    assert!(has(&master, "a"));
    master.unmount_segment(secs(23), NODE, own.id).unwrap();
    assert_eq!(back(secs(23), NODE, &own), Err(MountError::NotFound), "unmounted");
}

#[test]
fn who_stays_away_too_long_comes_back_empty() {
    let mut config = settings();
    config.client_ttl = Duration::from_secs(10);
    config.client_return_timeout = Duration::from_secs(60);
    let master = master_with(config, &[100]);
    put(&master, at(0), "a", 10).unwrap();
    master.tick(secs(11));
    master.tick(at(70_999));
    assert_eq!(master.report().segments.len(), 1);
    while master.tick(secs(72)) {}
    assert_eq!(master.report().segments.len(), 0);
    assert_eq!(master.report().totals.objects, 0);
    assert_eq!(master.mount_segment(secs(73), NODE, segment(0, 100)), Ok(Mounted::New));
    assert_eq!(put(&master, secs(73), "a", 100).unwrap().placements[0].extent.len(), 100);
}

#[test]
fn a_key_whose_holder_is_away_can_be_put_elsewhere() {
    let mut config = settings();
    config.client_ttl = Duration::from_secs(10);
    let master = master_with(config, &[100]);
    put(&master, at(0), "a", 10).unwrap();
    master.tick(secs(11));
    master.mount_segment(secs(11), STRANGER, segment(7, 100)).unwrap();
    let grant = put(&master, secs(11), "a", 20).unwrap();
    assert_eq!(grant.placements[0].segment.spec().id, SegmentId::from_u128(7));
    // The old value does not come back with its holder.
    master.mount_segment(secs(12), NODE, segment(0, 100)).unwrap();
    let list = master.get_replica_list(secs(12), key("a")).unwrap();
    assert_eq!((list.placements.len(), list.slices.total_len()), (1, 20));
    assert_eq!(master.report().totals.used, 20);
}

#[test]
fn a_value_that_is_away_outlives_puts_that_do_not_end() {
    let mut config = settings();
    config.client_ttl = Duration::from_secs(10);
    let master = master_with(config, &[100]);
    put(&master, at(0), "a", 10).unwrap();
    master.tick(secs(11));
    let nowhere = start(&master, secs(11), "a", 20).unwrap_err();
    assert!(matches!(nowhere, PutStartError::TooFewSegments { .. }), "{nowhere}");
    master.mount_segment(secs(11), STRANGER, segment(7, 100)).unwrap();
    let grant = start(&master, secs(11), "a", 20).unwrap();
    let again = start(&master, secs(12), "a", 20).unwrap_err();
    assert_eq!(again, PutStartError::InProgress { age: Duration::from_secs(1) });
    master.put_revoke(secs(12), WRITER, key("a"), grant.handle, LateWrites::Impossible).unwrap();
    // A put that its client does not end is discarded in its time.
    start(&master, secs(12), "a", 20).unwrap();
    let left = secs(12) + settings().put_start_discard_timeout;
    master.ping(secs(20), STRANGER);
    start(&master, left, "a", 20).unwrap();
    master.mount_segment(left, NODE, segment(0, 100)).unwrap();
    assert_eq!(master.get_replica_list(left, key("a")).unwrap().slices.total_len(), 10);
}

#[test]
fn a_graceful_unmount_is_readable_until_its_time() {
    let master = master(&[100]);
    put(&master, at(0), "a", 10).unwrap();
    let (id, grace) = (SegmentId::from_u128(0), Duration::from_secs(30));
    let leave = |client| master.graceful_unmount_segment(at(0), client, id, grace);
    assert_eq!(leave(STRANGER), Err(UnmountError::IllegalClient));
    assert_eq!(leave(NODE), Ok(()));
    assert_eq!(leave(NODE), Ok(()));
    assert!(has(&master, "a"));
    assert!(matches!(put(&master, at(1), "b", 1), Err(PutStartError::TooFewSegments { .. })));
    assert_eq!(master.mount_segment(at(1), NODE, segment(0, 100)), Err(MountError::Leaving));
    master.tick(at(29_999));
    assert!(has(&master, "a"));
    while master.tick(secs(30)) {}
    assert!(!has(&master, "a"));
    assert_eq!(master.report().totals.objects, 0);
    assert_eq!(leave(NODE), Err(UnmountError::NotFound));
}

#[test]
fn a_segment_that_was_mounted_anew_is_bound_by_no_old_deadline() {
    let mut config = settings();
    config.client_ttl = Duration::from_secs(10);
    let master = master_with(config, &[100, 100]);
    let id = SegmentId::from_u128(0);
    let leave = |now, grace| {
        let grace = Duration::from_secs(grace);
        assert_eq!(master.graceful_unmount_segment(secs(now), NODE, id, grace), Ok(()));
    };
    let mount = |now, outcome| {
        assert_eq!(master.mount_segment(secs(now), NODE, segment(0, 100)), Ok(outcome));
    };
    let pass = |now| {
        master.ping(secs(now), NODE);
        while master.tick(secs(now)) {}
        master.report().segments.len()
    };
    // Gone and mounted again; then suspended and back, which leaves its time as it was.
    leave(0, 30);
    master.unmount_segment(at(0), NODE, id).unwrap();
    mount(0, Mounted::New);
    leave(0, 40);
    master.tick(secs(11));
    mount(12, Mounted::Reattached);
    leave(12, 60);
    assert_eq!([30, 39, 40].map(pass), [2, 2, 1]);
}

#[test]
fn a_segment_that_came_back_outlives_the_time_it_had_to_come_back() {
    let mut config = settings();
    config.client_ttl = Duration::from_secs(2);
    config.client_return_timeout = Duration::from_secs(5);
    let back: [fn(&Master); 2] = [
        |master| master.reattach_segment(secs(4), NODE, &segment(0, 100)).unwrap(),
        |master| {
            let mounted = master.mount_segment(secs(4), NODE, segment(0, 100));
            assert_eq!(mounted, Ok(Mounted::Reattached));
        },
    ];
    for bring_back in back {
        let former = master_with(config.clone(), &[100]);
        put(&former, at(0), "a", 10).unwrap();
        // One that was away, and one that was rebuilt while its client was away.
        for master in [recovery::restart(&former, secs(3)), former] {
            master.tick(secs(3));
            assert!(!has(&master, "a"));
            bring_back(&master);
            assert!(has(&master, "a"));
            for second in 5..60 {
                assert_eq!(master.ping(secs(second), NODE).status, ClientStatus::Ok);
                while master.tick(secs(second)) {}
                assert!(has(&master, "a"), "gone at {second} s");
            }
        }
    }
}

#[test]
fn a_segment_that_is_being_unmounted_keeps_its_time_while_its_client_is_away() {
    let mut config = settings();
    config.client_ttl = Duration::from_secs(2);
    config.client_return_timeout = Duration::from_secs(5);
    let master = master_with(config, &[100]);
    put(&master, at(0), "a", 10).unwrap();
    let grace = Duration::from_secs(30);
    master.graceful_unmount_segment(at(0), NODE, SegmentId::from_u128(0), grace).unwrap();
    master.tick(secs(3));
    assert!(!has(&master, "a"));
    master.reattach_segment(secs(4), NODE, &segment(0, 100)).unwrap();
    let full = put(&master, secs(4), "b", 10).unwrap_err();
    assert!(matches!(full, PutStartError::TooFewSegments { .. }), "{full}");
    for second in 5..30 {
        master.ping(secs(second), NODE);
        while master.tick(secs(second)) {}
        assert!(has(&master, "a"), "gone at {second} s");
    }
    while master.tick(secs(30)) {}
    assert_eq!(master.report().segments.len(), 0);
}

#[test]
fn what_a_client_does_not_bring_back_goes_in_its_time() {
    let mut config = settings();
    config.client_ttl = Duration::from_secs(10);
    config.client_return_timeout = Duration::from_secs(60);
    let master = master_with(config, &[100, 100]);
    put_as(&master, at(0), "a", 10, &ReplicateConfig::default().prefer("segment-1")).unwrap();
    master.tick(secs(11));
    master.mount_segment(secs(12), NODE, segment(0, 100)).unwrap();
    for now in 13..71 {
        master.ping(secs(now), NODE);
        master.tick(secs(now));
    }
    assert_eq!(master.report().segments.len(), 2);
    while master.tick(secs(71)) {}
    let report = master.report();
    assert_eq!((report.segments.len(), report.totals.objects, report.totals.clients), (1, 0, 1));
}

#[test]
fn a_segment_goes_at_its_time_also_when_a_client_is_looked_at_then() {
    let mut config = settings();
    config.client_ttl = Duration::from_secs(10);
    let master = master_with(config, &[100]);
    let id = SegmentId::from_u128(0);
    master.graceful_unmount_segment(at(0), NODE, id, Duration::from_secs(10)).unwrap();
    master.tick(secs(10));
    assert_eq!(master.report().segments.len(), 0);
}

#[test]
fn what_lost_its_segment_before_its_group_was_evicted_was_lost() {
    let events = Recorder::default();
    let master = Master::new(settings(), 1).unwrap().with_secret(SECRET).with_sink(events.clone());
    for number in 0..2 {
        master.mount_segment(at(0), NODE, segment(number, 100)).unwrap();
    }
    let on =
        |number: u32| ReplicateConfig::default().group("g").prefer(format!("segment-{number}"));
    put_as(&master, at(0), "evicted", 10, &on(1)).unwrap();
    put_as(&master, at(1), "lost", 10, &on(0)).unwrap();
    master.unmount_segment(at(2), NODE, SegmentId::from_u128(0)).unwrap();
    put(&master, at(2), "new", 100).unwrap();
    assert_eq!(events.removals(Removal::Evicted), ["evicted"]);
    assert_eq!(events.removals(Removal::SegmentLost), ["lost"]);
    assert_eq!(master.report().totals.evicted_objects, 1);
}

#[test]
fn several_segments_of_one_client_come_and_go_by_themselves() {
    let master = master(&[100, 200]);
    let view = master.ping(at(0), NODE).view;
    master.unmount_segment(at(0), NODE, SegmentId::from_u128(0)).unwrap();
    let pong = master.ping(at(0), NODE);
    assert_eq!(pong.status, ClientStatus::Ok);
    assert_ne!(pong.view, view);
    assert_eq!(master.report().totals.capacity, 200);
}

#[test]
fn what_was_lost_with_its_segment_is_neither_evicted_nor_removed() {
    let mut config = settings();
    config.shards = 4;
    let events = Recorder::default();
    let master = Master::new(config, 1).unwrap().with_secret(SECRET).with_sink(events.clone());
    for number in 0..2 {
        master.mount_segment(at(0), NODE, segment(number, 100)).unwrap();
    }
    let on = |number: u32| ReplicateConfig::default().prefer(format!("segment-{number}"));
    for n in 0..10 {
        put_as(&master, at(0), &format!("lost-{n}"), 10, &on(0)).unwrap();
        put_as(&master, at(0), &format!("kept-{n}"), 10, &on(1)).unwrap();
    }
    master.unmount_segment(at(1), NODE, SegmentId::from_u128(0)).unwrap();
    // Nothing has looked at the lost ones yet when room is wanted for ten.
    put(&master, at(1), "new", 100).unwrap();
    assert_eq!(master.report().totals.evicted_objects, 10);
    assert_eq!(master.report().totals.evicted_bytes, 100);
    assert_eq!(master.remove_all(at(1), true), 1);
    let lost = events.removals(Removal::SegmentLost);
    assert!(lost.len() == 10 && lost.iter().all(|key| key.starts_with("lost-")), "{lost:?}");
}

#[test]
fn the_hosts_of_clients_are_told_once_each() {
    let master = Master::new(settings(), 1).unwrap().with_secret(SECRET);
    let mount = |client, number, endpoint: &str| {
        let mut spec = segment(number, 100);
        spec.endpoint = endpoint.parse().unwrap();
        master.mount_segment(at(0), client, spec).unwrap();
    };
    for (number, endpoint) in (0..).zip([
        "tcp://10.0.0.7:50052",
        "tcp://node-3.rack-1:1",
        "tcp://10.0.0.7:50053",
        "tcp://[fe80::1]:50052",
        "mem://plain",
    ]) {
        mount(NODE, number, endpoint);
    }
    mount(WRITER, 9, "tcp://10.0.0.9:1");
    let asked = [STRANGER, NODE, WRITER, NODE];
    let answers = master.batch_query_ip(&asked);
    let [(first, hosts), (second, other)] = &answers[..] else { panic!("{answers:?}") };
    assert_eq!((*first, *second), (NODE, WRITER));
    let hosts: Vec<&str> = hosts.iter().map(|host| &**host).collect();
    assert_eq!(hosts, ["10.0.0.7", "node-3.rack-1", "fe80::1", "plain"]);
    assert_eq!(other[..], ["10.0.0.9".into()]);
    master.unmount_segment(at(0), WRITER, SegmentId::from_u128(9)).unwrap();
    assert_eq!(master.batch_query_ip(&[WRITER]), []);
    assert_eq!(master.batch_query_ip(&[]), []);
}

#[test]
fn a_client_contributes_from_its_first_segment_to_its_last() {
    let mut config = settings();
    config.client_ttl = Duration::from_secs(10);
    config.client_return_timeout = Duration::from_secs(10);
    let master = master_with(config, &[100, 100]);
    assert!(master.contributes(NODE) && !master.contributes(STRANGER));
    master.unmount_segment(at(0), NODE, SegmentId::from_u128(0)).unwrap();
    assert!(master.contributes(NODE));
    // What is away may come back.
    master.tick(secs(11));
    assert!(master.contributes(NODE));
    master.tick(secs(30));
    assert!(!master.contributes(NODE));
}

#[test]
fn who_is_away_has_no_host() {
    let mut config = settings();
    config.client_ttl = Duration::from_secs(10);
    let master = master_with(config, &[100]);
    master.tick(secs(11));
    assert_eq!(master.batch_query_ip(&[NODE]), []);
    master.mount_segment(secs(12), NODE, segment(0, 100)).unwrap();
    assert_eq!(master.batch_query_ip(&[NODE]).len(), 1);
}

#[test]
fn a_new_value_leaves_the_one_that_is_away_to_its_readers() {
    for upsert in [false, true] {
        let mut config = settings();
        config.client_ttl = Duration::from_secs(1);
        let master = master_with(config, &[100]);
        put(&master, at(0), "a", 100).unwrap();
        let lease = master.get_replica_list(at(500), key("a")).unwrap().lease;
        master.mount_segment(at(1000), STRANGER, segment(1, 100)).unwrap();
        master.tick(at(1500));
        assert_eq!(master.get_replica_list(at(1500), key("a")).unwrap_err(), GetError::NotReady);
        if upsert {
            let config = ReplicateConfig::default();
            let put = PutStart { key: key("a"), slice_lengths: &[10], config: &config };
            let grant = master.upsert_start(at(1500), WRITER, &put).unwrap();
            let end = PutEnd::new(key("a"), grant.handle);
            master.put_end(at(1500), WRITER, &end).unwrap();
        } else {
            put(&master, at(1500), "a", 10).unwrap();
        }
        master.mount_segment(at(1600), NODE, segment(0, 100)).unwrap();
        let there = ReplicateConfig::default().exclude("segment-1");
        let end = at(500) + lease;
        assert!(start_as(&master, at(end.as_millis() - 1), "b", 100, &there).is_err());
        start_as(&master, end, "b", 100, &there).unwrap();
    }
}

#[test]
fn a_client_is_told_of_segments_that_the_master_does_not_know() {
    let mut config = settings();
    config.client_ttl = Duration::from_secs(10);
    let master = Master::new(config, 1).unwrap().with_secret(SECRET);
    let status =
        |now, segments| master.beat(now, NODE, Beat { segments, ..Beat::default() }).status;
    // After a restart of the master, of which the client has not heard.
    master.mount_segment(at(0), NODE, segment(1, 100)).unwrap();
    assert_eq!(status(at(0), 1), ClientStatus::Ok);
    assert_eq!(status(at(0), 2), ClientStatus::NeedRemount);
    master.mount_segment(at(0), NODE, segment(0, 100)).unwrap();
    assert_eq!(status(at(0), 2), ClientStatus::Ok);
    // Fewer are known to a client that does not know yet that a mount was carried out.
    assert_eq!(status(at(0), 1), ClientStatus::Ok);
    while master.tick(secs(11)) {}
    master.reattach_segment(secs(11), NODE, &segment(0, 100)).unwrap();
    assert_eq!(status(secs(11), 2), ClientStatus::NeedRemount);
    let id = SegmentId::from_u128(0);
    master.graceful_unmount_segment(secs(11), NODE, id, Duration::from_secs(60)).unwrap();
    assert_eq!(status(secs(11), 1), ClientStatus::NeedRemount);
    master.reattach_segment(secs(11), NODE, &segment(1, 100)).unwrap();
    assert_eq!(status(secs(11), 1), ClientStatus::Ok);
}
