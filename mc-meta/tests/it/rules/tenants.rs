//! Tenants: whose a key is, what each may have, and who gives room.

use std::collections::BTreeMap;

use mc_meta::{
    ConfigError, DefaultQuota, ListCursor, Pattern, PolicyError, PromotionConfig,
    PromotionStartError, QuotaError, QuotaMode, SharedTierConfig, TenantId, TenantUsage,
    TransferError, unscoped,
};
use mc_types::ErrorCode;

use super::recovery::{Journal, export, rebuild_with};
use super::*;

const QUOTAS: [(&str, u64); 2] = [("a", 400), ("b", 400)];

fn with_tenants() -> MasterConfig {
    let mut config = settings();
    config.multi_tenant = true;
    config.default_tenant_quota = DefaultQuota::Denied;
    config
}

/// A master with tenants that have these quotas.
fn shared_by(quotas: &[(&str, u64)], sizes: &[u64]) -> Master {
    let master = master_with(with_tenants(), sizes);
    for (name, bytes) in quotas {
        master.set_tenant_quota(at(0), &tenant(name), *bytes).unwrap();
    }
    master
}

fn usage(master: &Master, name: &str) -> TenantUsage {
    assert_eq!(master.tenant_quotas().unwrap().mismatches, 0);
    master.tenant_quota(&tenant(name)).unwrap()
}

fn charged(master: &Master, name: &str) -> u64 {
    usage(master, name).charged
}

fn exceeded(name: &str, charged: u64, effective: u64, wanted: u64) -> PutStartError {
    PutStartError::QuotaExceeded { tenant: tenant(name), charged, effective, wanted }
}

#[test]
fn without_tenants_there_is_one_and_nothing_is_limited() {
    let master = master(&[1000]);
    let stored = master.scoped(&tenant("a"), key("k")).unwrap();
    assert_eq!(stored.as_ref().as_str(), "k");
    put(&master, at(0), "k", 1000).unwrap();
    assert_eq!(master.set_tenant_quota(at(0), &tenant("a"), 1), Err(PolicyError::Off));
    assert_eq!(master.delete_tenant_quota(at(0), &tenant("a")), Err(PolicyError::Off));
    assert_eq!(PolicyError::Off.code(), ErrorCode::UnavailableInCurrentMode);
    assert!(master.tenant_quotas().is_none() && master.tenant_quota(&tenant("a")).is_none());
    let page = master.list_tenant_keys(&tenant("a"), "", ListCursor::default(), 10);
    assert_eq!(page.keys[0].key.as_ref().as_str(), "k");
    assert_eq!(master.remove_all_of(at(1), &tenant("a"), false).removed, 1);
}

#[test]
fn who_has_no_quota_puts_nothing() {
    let master = shared_by(&[("a", 400)], &[1000]);
    for name in ["default", "b"] {
        let refused = start(&master, at(0), &of(name, "k"), 1).unwrap_err();
        assert_eq!(refused, PutStartError::TenantNotRegistered { tenant: tenant(name) });
        assert_eq!(refused.code(), ErrorCode::TenantNotRegistered);
        assert!(!refused.is_retryable());
    }
    // A refused request registers no tenant.
    let report = master.tenant_quotas().unwrap();
    assert_eq!(report.tenants.len(), 1);
    assert_eq!(report.unregistered, 2);
    put(&master, at(0), &of("a", "k"), 1).unwrap();
}

#[test]
fn who_has_no_quota_has_the_default_one() {
    let with = |default| {
        let mut config = with_tenants();
        config.default_tenant_quota = default;
        master_with(config, &[1000])
    };
    let unlimited = with(DefaultQuota::Unlimited);
    put(&unlimited, at(0), &of("a", "k"), 1000).unwrap();
    let limited = with(DefaultQuota::Bytes(100));
    assert_eq!(usage(&limited, "a").effective, 100, "before it has anything");
    put(&limited, at(0), &of("a", "k"), 100).unwrap();
    put(&limited, at(0), &of("default", "k"), 100).unwrap();
    assert_eq!(start(&limited, at(1), &of("b", "k"), 101).unwrap_err(), exceeded("b", 0, 100, 101));
    // It makes room out of its own, as with a quota of its own.
    put(&limited, at(1), &of("a", "l"), 60).unwrap();
    assert!(!has(&limited, &of("a", "k")) && has(&limited, &of("default", "k")));
    // A quota takes its place, is not scaled down for it, and gives it back.
    limited.set_tenant_quota(at(2), &tenant("a"), 1000).unwrap();
    assert_eq!(usage(&limited, "a").effective, 1000);
    limited.delete_tenant_quota(at(3), &tenant("a")).unwrap();
    assert_eq!((usage(&limited, "a").requested, usage(&limited, "a").effective), (None, 100));
    assert_eq!(charged(&limited, "a"), 60);

    for bytes in [0, u64::MAX] {
        let mut config = with_tenants();
        config.default_tenant_quota = DefaultQuota::Bytes(bytes);
        let refused = Master::new(config, 1).unwrap_err();
        assert_eq!(refused, ConfigError::DefaultQuota { bytes });
    }
}

#[test]
fn a_key_of_two_tenants_is_two_objects() {
    let master = shared_by(&QUOTAS, &[1000]);
    put(&master, at(0), &of("a", "k"), 100).unwrap();
    assert!(!has(&master, &of("b", "k")));
    put(&master, at(0), &of("b", "k"), 50).unwrap();
    assert_eq!((charged(&master, "a"), charged(&master, "b")), (100, 50));
    master.remove(at(1), key(&of("a", "k")), false).unwrap();
    assert!(has(&master, &of("b", "k")));
    assert_eq!((charged(&master, "a"), charged(&master, "b")), (0, 50));
}

#[test]
fn a_quota_holds_over_all_shards() {
    let mut config = with_tenants();
    config.shards = 64;
    config.lease_ttl = Duration::from_secs(1000);
    let master = master_with(config, &[1000]);
    master.set_tenant_quota(at(0), &tenant("a"), 10).unwrap();
    for n in 0..10 {
        let stored = of("a", &n.to_string());
        put(&master, at(0), &stored, 1).unwrap();
        assert!(master.exist(at(0), key(&stored)));
    }
    assert_eq!(put(&master, at(0), &of("a", "x"), 1).unwrap_err(), exceeded("a", 10, 10, 1));
}

#[test]
fn a_put_is_charged_for_each_replica_it_gets() {
    let master = shared_by(&QUOTAS, &[300, 300]);
    let three = ReplicateConfig::default().replicas(3);
    let grant = start_as(&master, at(0), &of("a", "k"), 100, &three).unwrap();
    assert_eq!(grant.placements.len(), 2);
    assert_eq!(charged(&master, "a"), 200);
    assert_eq!(usage(&master, "a").objects, 1);
    end(&master, at(0), &of("a", "k"), grant.handle.generation).unwrap();
    assert_eq!(charged(&master, "a"), 200);
}

#[test]
fn a_revoked_put_is_refunded() {
    let master = shared_by(&QUOTAS, &[1000]);
    start(&master, at(0), &of("a", "k"), 100).unwrap();
    assert_eq!(charged(&master, "a"), 100);
    master
        .put_revoke(at(1), WRITER, key(&of("a", "k")), newest_put(&master), LateWrites::Impossible)
        .unwrap();
    assert_eq!((charged(&master, "a"), usage(&master, "a").objects), (0, 0));
}

#[test]
fn a_discarded_put_is_charged_until_its_space_is_given_out() {
    let master = shared_by(&QUOTAS, &[1000]);
    start(&master, at(0), &of("a", "k"), 100).unwrap();
    // The next put of the key takes its place after a while.
    put(&master, secs(31), &of("a", "k"), 50).unwrap();
    assert_eq!((charged(&master, "a"), usage(&master, "a").objects), (150, 1));
    master.tick(secs(600));
    assert_eq!(charged(&master, "a"), 50);
}

#[test]
fn a_put_that_is_given_up_for_its_age_is_refunded() {
    let master = shared_by(&QUOTAS, &[1000]);
    start(&master, at(0), &of("a", "k"), 100).unwrap();
    master.tick(secs(600));
    assert_eq!((charged(&master, "a"), usage(&master, "a").objects), (0, 0));
}

#[test]
fn what_goes_with_its_segment_is_refunded() {
    let master = shared_by(&QUOTAS, &[500, 500]);
    let two = ReplicateConfig::default().replicas(2);
    put_as(&master, at(0), &of("a", "k"), 100, &two).unwrap();
    master.unmount_segment(at(1), NODE, SegmentId::from_u128(0)).unwrap();
    master.tick(at(2));
    assert_eq!((charged(&master, "a"), usage(&master, "a").objects), (100, 1));
    master.unmount_segment(at(3), NODE, SegmentId::from_u128(1)).unwrap();
    master.tick(at(4));
    assert_eq!((charged(&master, "a"), usage(&master, "a").objects), (0, 0));
}

#[test]
fn a_tenant_makes_room_within_its_quota_out_of_its_own() {
    let recorder = Recorder::default();
    let master =
        Master::new(with_tenants(), 1).unwrap().with_secret(SECRET).with_sink(recorder.clone());
    master.mount_segment(at(0), NODE, segment(0, 1000)).unwrap();
    for (name, bytes) in QUOTAS {
        master.set_tenant_quota(at(0), &tenant(name), bytes).unwrap();
    }
    for n in 0..4 {
        put(&master, at(n), &of("b", &n.to_string()), 100).unwrap();
        put(&master, at(n), &of("a", &n.to_string()), 100).unwrap();
    }
    // The one read last is not the one that was put last.
    assert!(master.exist(at(10), key(&of("a", "0"))));
    put(&master, secs(60), &of("a", "4"), 150).unwrap();
    assert_eq!(recorder.removals(Removal::Evicted), [of("a", "1"), of("a", "2")]);
    assert_eq!((charged(&master, "a"), charged(&master, "b")), (350, 400));
    assert_eq!(usage(&master, "a").evicted_bytes, 200);
    assert_eq!(usage(&master, "b").evicted_bytes, 0);
}

#[test]
fn a_quota_that_refuses_evicts_nothing_for_a_put_beyond_it() {
    let (recorder, journal) = (Recorder::default(), Journal::default());
    let master = Master::new(with_tenants(), 1).unwrap().with_secret(SECRET);
    let master = master.with_sink(recorder.clone()).with_sink(journal.clone());
    master.mount_segment(at(0), NODE, segment(0, 1000)).unwrap();
    for name in ["a", "b"] {
        let mode = if name == "a" { QuotaMode::Refuse } else { QuotaMode::Evict };
        master.set_tenant_quota_with(at(0), &tenant(name), 400, mode).unwrap();
    }
    for n in 0..4 {
        put(&master, at(n), &of("a", &n.to_string()), 100).unwrap();
        put(&master, at(n), &of("b", &n.to_string()), 100).unwrap();
    }
    let refused = put(&master, secs(60), &of("a", "4"), 100).unwrap_err();
    assert_eq!(refused.code(), ErrorCode::TenantQuotaExceeded);
    let first = of("a", "0");
    let upsert =
        PutStart { key: key(&first), slice_lengths: &[200], config: &ReplicateConfig::default() };
    let refused = master.upsert_start(secs(60), WRITER, &upsert).unwrap_err();
    assert_eq!(refused.code(), ErrorCode::TenantQuotaExceeded);
    assert!(recorder.removals(Removal::Evicted).is_empty());
    assert_eq!((charged(&master, "a"), usage(&master, "a").evicted_bytes), (400, 0));
    assert_eq!(usage(&master, "a").mode, QuotaMode::Refuse);
    // The other tenant's quota evicts.
    put(&master, secs(60), &of("b", "4"), 100).unwrap();
    assert_eq!(recorder.removals(Removal::Evicted), [of("b", "0")]);
    // What is removed makes room.
    master.remove(secs(61), key(&of("a", "0")), true).unwrap();
    put(&master, secs(61), &of("a", "4"), 100).unwrap();

    // A master that is rebuilt knows the mode, from the journal or from a snapshot.
    let modes = |master: &Master| ["a", "b"].map(|name| usage(master, name).mode);
    for records in [journal.records(), export(&master, secs(61))] {
        let (rebuilt, _) = rebuild_with(with_tenants(), &records, secs(62));
        assert_eq!(modes(&rebuilt), [QuotaMode::Refuse, QuotaMode::Evict]);
    }
    // Setting all quotas at once keeps modes, setting one anew does not.
    let both = BTreeMap::from(["a", "b"].map(|name| (tenant(name), 500)));
    master.replace_tenant_quotas(secs(62), &both).unwrap();
    assert_eq!(modes(&master), [QuotaMode::Refuse, QuotaMode::Evict]);
    master.set_tenant_quota(secs(62), &tenant("a"), 500).unwrap();
    assert_eq!(modes(&master), [QuotaMode::Evict; 2]);
    put(&master, secs(62), &of("a", "5"), 500).unwrap();
}

#[test]
fn what_is_leased_stays_and_the_put_is_refused_until_then() {
    let master = shared_by(&QUOTAS, &[1000]);
    put(&master, at(0), &of("b", "cold"), 100).unwrap();
    put(&master, at(0), &of("a", "k"), 400).unwrap();
    assert!(master.exist(at(1), key(&of("a", "k"))));
    let refused = start(&master, at(2), &of("a", "l"), 100).unwrap_err();
    assert_eq!(refused, exceeded("a", 400, 400, 100));
    assert_eq!(refused.code(), ErrorCode::TenantQuotaExceeded);
    assert!(refused.is_retryable());
    put(&master, secs(6), &of("a", "l"), 100).unwrap();
    assert!(!has(&master, &of("a", "k")) && has(&master, &of("b", "cold")));
}

#[test]
fn more_than_the_whole_quota_is_refused_and_costs_nobody_anything() {
    let master = shared_by(&QUOTAS, &[1000]);
    put(&master, at(0), &of("a", "k"), 100).unwrap();
    let refused = start(&master, at(1), &of("a", "l"), 401).unwrap_err();
    assert_eq!(refused, exceeded("a", 100, 400, 401));
    assert!(!refused.is_retryable());
    assert!(has(&master, &of("a", "k")));
}

#[test]
fn soft_pinned_objects_of_a_tenant_go_last_and_hard_pinned_ones_never() {
    let master = shared_by(&[("a", 300)], &[1000]);
    let pinned = ReplicateConfig::default().soft_pin();
    put_as(&master, at(0), &of("a", "hard"), 100, &ReplicateConfig::default().hard_pin()).unwrap();
    put_as(&master, at(0), &of("a", "soft"), 100, &pinned).unwrap();
    put(&master, at(1), &of("a", "plain"), 100).unwrap();
    put(&master, at(2), &of("a", "next"), 100).unwrap();
    assert!(has(&master, &of("a", "soft")) && !has(&master, &of("a", "plain")));
    put(&master, at(3), &of("a", "large"), 200).unwrap();
    assert!(!has(&master, &of("a", "soft")) && has(&master, &of("a", "hard")));
    assert_eq!(
        start(&master, at(4), &of("a", "all"), 300).unwrap_err(),
        exceeded("a", 100, 300, 300)
    );
}

#[test]
fn a_soft_pin_that_has_lapsed_protects_nobody() {
    let master = shared_by(&[("a", 200)], &[1000]);
    put_as(&master, at(0), &of("a", "soft"), 100, &ReplicateConfig::default().soft_pin()).unwrap();
    put(&master, secs(1799), &of("a", "plain"), 100).unwrap();
    put(&master, secs(1801), &of("a", "next"), 100).unwrap();
    assert!(has(&master, &of("a", "plain")) && !has(&master, &of("a", "soft")));
}

#[test]
fn no_segment_at_all_is_no_matter_of_quotas() {
    let master = shared_by(&QUOTAS, &[]);
    let refused = start(&master, at(0), &of("a", "k"), 1).unwrap_err();
    assert_eq!(refused, PutStartError::TooFewSegments { mounted: 0 });
    master.mount_segment(at(0), NODE, segment(0, 100)).unwrap();
    let refused = start(&master, at(0), &of("a", "k"), 101).unwrap_err();
    assert_eq!(refused, PutStartError::TooLarge { len: 101, largest_object: 100 });
    let refused = start(&master, at(0), &of("a", "k"), 51).unwrap_err();
    assert_eq!(refused, exceeded("a", 0, 50, 51));
    let refused = start(&master, at(0), &of("c", "k"), 51).unwrap_err();
    assert_eq!(refused, PutStartError::TenantNotRegistered { tenant: tenant("c") });
}

#[test]
fn what_is_within_the_quota_makes_room_out_of_everybodys() {
    let master = shared_by(&[("a", 500), ("b", 500)], &[500, 500]);
    let two = ReplicateConfig::default().replicas(2);
    for n in 0..2 {
        put_as(&master, at(n), &of("b", &n.to_string()), 100, &two).unwrap();
        put_as(&master, at(n), &of("a", &n.to_string()), 100, &two).unwrap();
    }
    // Both are within their quotas; one segment alone is too small for all of this.
    let only = ReplicateConfig::default().exclude("segment-1");
    put_as(&master, at(5), &of("a", "x"), 100, &only).unwrap();
    put_as(&master, at(6), &of("b", "x"), 100, &only).unwrap();
    assert!(!has(&master, &of("b", "0")));
    assert_eq!((charged(&master, "a"), charged(&master, "b")), (500, 300));
}

#[test]
fn who_has_more_than_its_quota_gives_room_first() {
    let mut config = with_tenants();
    config.eviction_high_watermark_ratio = 0.5;
    config.eviction_ratio = 0.0;
    let master = master_with(config, &[1000]);
    for name in ["a", "b"] {
        master.set_tenant_quota(at(0), &tenant(name), 500).unwrap();
    }
    for n in 0..4 {
        put(&master, at(n), &of("a", &n.to_string()), 100).unwrap();
    }
    for n in 4..8 {
        put(&master, at(n), &of("b", &n.to_string()), 100).unwrap();
    }
    // The older objects are a's; b loses its own because it has too many.
    master.set_tenant_quota(at(10), &tenant("b"), 200).unwrap();
    assert_eq!(charged(&master, "b"), 400, "nothing goes for the quota alone");
    assert!(usage(&master, "b").is_over_quota());
    while master.tick(at(20)) {}
    assert_eq!((charged(&master, "a"), charged(&master, "b")), (300, 200));
}

#[test]
fn quotas_that_exceed_what_there_is_are_scaled_alike() {
    let master = shared_by(&[("a", 300), ("b", 100), ("c", 400)], &[400]);
    let effective = |master: &Master| ["a", "b", "c"].map(|name| usage(master, name).effective);
    assert_eq!(effective(&master), [150, 50, 200]);
    master.mount_segment(at(1), NODE, segment(1, 400)).unwrap();
    assert_eq!(effective(&master), [300, 100, 400]);
    assert_eq!(master.tenant_quotas().unwrap().capacity, 800);
    master.unmount_segment(at(2), NODE, SegmentId::from_u128(0)).unwrap();
    assert_eq!(effective(&master), [150, 50, 200]);
}

#[test]
fn segments_that_are_away_for_a_moment_still_count() {
    let mut config = with_tenants();
    config.client_ttl = Duration::from_secs(10);
    let master = master_with(config, &[1000]);
    master.set_tenant_quota(at(0), &tenant("a"), 1000).unwrap();
    put(&master, at(0), &of("a", "k"), 600).unwrap();
    master.tick(secs(11));
    assert_eq!(master.tenant_quotas().unwrap().capacity, 1000);
    master.mount_segment(secs(12), NODE, segment(0, 1000)).unwrap();
    assert!(has(&master, &of("a", "k")));
    assert_eq!(charged(&master, "a"), 600);
    // When they are discarded they do not.
    master.tick(secs(23));
    master.tick(secs(700));
    assert_eq!(master.tenant_quotas().unwrap().capacity, 0);
    assert_eq!(charged(&master, "a"), 0);
}

#[test]
fn a_quota_is_deleted_only_when_nothing_is_left() {
    let master = shared_by(&QUOTAS, &[1000]);
    start(&master, at(0), &of("a", "k"), 100).unwrap();
    let refused = master.delete_tenant_quota(at(1), &tenant("a")).unwrap_err();
    assert_eq!(refused, PolicyError::NotEmpty { tenant: tenant("a"), charged: 100, objects: 1 });
    assert_eq!(refused.code(), ErrorCode::TenantNotEmpty);
    master
        .put_revoke(at(2), WRITER, key(&of("a", "k")), newest_put(&master), LateWrites::Impossible)
        .unwrap();
    master.delete_tenant_quota(at(3), &tenant("a")).unwrap();
    let refused = master.delete_tenant_quota(at(4), &tenant("a")).unwrap_err();
    assert_eq!(refused, PolicyError::NotRegistered { tenant: tenant("a") });
    assert!(start(&master, at(5), &of("a", "k"), 100).is_err());
    let refused = master.set_tenant_quota(at(6), &tenant("a"), 0).unwrap_err();
    assert_eq!(refused, PolicyError::OutOfRange { requested: 0 });
}

#[test]
fn a_tenant_that_loses_its_quota_keeps_what_it_has_and_can_clean_up() {
    let master = shared_by(&QUOTAS, &[1000]);
    put(&master, at(0), &of("a", "k"), 100).unwrap();
    put(&master, at(0), &of("a", "l"), 100).unwrap();
    master.replace_tenant_quotas(at(1), &BTreeMap::from([(tenant("c"), 50)])).unwrap();
    assert!(master.get_replica_list(at(2), key(&of("a", "k"))).is_ok());
    assert!(start(&master, at(2), &of("a", "m"), 1).is_err());
    put(&master, at(2), &of("c", "k"), 50).unwrap();
    assert_eq!(usage(&master, "a").requested, None);
    assert!(master.tenant_quota(&tenant("b")).is_none(), "it had nothing");
    master.remove(at(3), key(&of("a", "l")), false).unwrap();
    assert_eq!(master.remove_all_of(at(3), &tenant("a"), true).removed, 1);
    // What readers may still be using is charged until their leases end.
    assert_eq!(charged(&master, "a"), 100);
    master.tick(at(5002));
    assert!(master.tenant_quota(&tenant("a")).is_none());
    assert!(has(&master, &of("c", "k")));
}

#[test]
fn a_copy_needs_quota_for_what_it_adds() {
    let master = shared_by(&[("a", 250)], &[1000, 1000]);
    let only = ReplicateConfig::default().exclude("segment-1");
    put_as(&master, at(0), &of("a", "k"), 100, &only).unwrap();
    put_as(&master, at(0), &of("a", "l"), 100, &only).unwrap();
    let stored = of("a", "k");
    let copy = || master.copy_start(at(1), WRITER, key(&stored), "segment-0", &["segment-1"]);
    let refused = copy().unwrap_err();
    assert_eq!(
        refused,
        TransferError::Quota(QuotaError::Exceeded {
            tenant: tenant("a"),
            charged: 200,
            effective: 250,
            requested: 250,
            wanted: 100
        })
    );
    assert_eq!(refused.code(), ErrorCode::TenantQuotaExceeded);
    assert!(refused.is_retryable());
    assert_eq!(master.report().totals.used, 200, "what was taken for it is given back");
    master.set_tenant_quota(at(1), &tenant("a"), 300).unwrap();
    copy().unwrap();
    assert_eq!(charged(&master, "a"), 300);
    master
        .copy_revoke(at(2), WRITER, key(&stored), newest_transfer(&master), LateWrites::Impossible)
        .unwrap();
    assert_eq!(charged(&master, "a"), 200);
    copy().unwrap();
    master.copy_end(at(3), WRITER, key(&stored), newest_transfer(&master)).unwrap();
    assert_eq!(charged(&master, "a"), 300);
    master.remove(at(4), key(&stored), false).unwrap();
    assert_eq!(charged(&master, "a"), 100);
}

#[test]
fn a_move_is_charged_for_both_places_until_one_is_free() {
    let master = shared_by(&QUOTAS, &[1000, 1000]);
    let only = ReplicateConfig::default().exclude("segment-1");
    put_as(&master, at(0), &of("a", "k"), 100, &only).unwrap();
    let stored = of("a", "k");
    master.get_replica_list(at(1), key(&stored)).unwrap();
    master.move_start(at(1), WRITER, key(&stored), "segment-0", "segment-1").unwrap();
    assert_eq!(charged(&master, "a"), 200);
    master.move_end(at(2), WRITER, key(&stored), newest_transfer(&master)).unwrap();
    // A reader may still be using the old space.
    assert_eq!(charged(&master, "a"), 200);
    master.tick(secs(6));
    assert_eq!((charged(&master, "a"), usage(&master, "a").objects), (100, 1));
}

#[test]
fn an_upsert_is_charged_beside_what_it_replaces() {
    let master = shared_by(&QUOTAS, &[1000]);
    let stored = of("a", "k");
    put(&master, at(0), &stored, 100).unwrap();
    let config = ReplicateConfig::default();
    let upsert = |now, len| {
        let put = PutStart { key: key(&stored), slice_lengths: &[len], config: &config };
        master.upsert_start(now, WRITER, &put)
    };
    upsert(at(1), 150).unwrap();
    assert_eq!((charged(&master, "a"), usage(&master, "a").objects), (250, 2));
    master
        .put_revoke(at(2), WRITER, key(&stored), newest_put(&master), LateWrites::Impossible)
        .unwrap();
    assert_eq!((charged(&master, "a"), usage(&master, "a").objects), (100, 1));
    master.get_replica_list(at(3), key(&stored)).unwrap();
    let generation = upsert(at(4), 150).unwrap().handle.generation;
    end(&master, at(5), &stored, generation).unwrap();
    // A client may be reading the old value.
    assert_eq!((charged(&master, "a"), usage(&master, "a").objects), (250, 1));
    master.tick(secs(6));
    assert_eq!(charged(&master, "a"), 150);
    upsert(secs(7), 50).unwrap();
    upsert(secs(8), 50).unwrap();
    assert_eq!(charged(&master, "a"), 250, "the first one's writer may still be writing");
    master.tick(secs(608));
    assert_eq!(charged(&master, "a"), 150);
}

#[test]
fn an_upsert_without_quota_left_is_written_in_the_old_ones_place() {
    let master = shared_by(&[("a", 150)], &[1000]);
    let stored = of("a", "k");
    put(&master, at(0), &stored, 100).unwrap();
    let config = ReplicateConfig::default();
    let put = PutStart { key: key(&stored), slice_lengths: &[100], config: &config };
    let grant = master.upsert_start(at(1), WRITER, &put).unwrap();
    assert_eq!((charged(&master, "a"), usage(&master, "a").objects), (100, 1));
    end(&master, at(2), &stored, grant.handle.generation).unwrap();
    assert!(has(&master, &stored));
    assert_eq!((charged(&master, "a"), usage(&master, "a").objects), (100, 1));
    // Of another length it cannot be, and takes the place of what is evicted.
    let put = PutStart { slice_lengths: &[150], ..put };
    master.upsert_start(at(3), WRITER, &put).unwrap();
    assert_eq!((charged(&master, "a"), usage(&master, "a").objects), (150, 1));
}

#[test]
fn clearing_replicas_refunds_them() {
    let master = shared_by(&QUOTAS, &[500, 500]);
    let two = ReplicateConfig::default().replicas(2);
    let stored = of("a", "k");
    put_as(&master, at(0), &stored, 100, &two).unwrap();
    let keys = [key(&stored)];
    assert_eq!(master.batch_replica_clear(at(1), WRITER, &keys, Some("segment-0")).len(), 1);
    assert_eq!((charged(&master, "a"), usage(&master, "a").objects), (100, 1));
    assert_eq!(master.batch_replica_clear(at(1), WRITER, &keys, None).len(), 1);
    assert_eq!((charged(&master, "a"), usage(&master, "a").objects), (0, 0));
}

#[test]
fn what_lies_on_a_disk_only_is_charged_nothing_and_still_there() {
    let mut config = with_tenants();
    config.shared_tier = Some(SharedTierConfig::default());
    let master = master_with(config, &[1000]);
    master.set_tenant_quota(at(0), &tenant("a"), 100).unwrap();
    let stored = of("a", "k");
    put(&master, at(0), &stored, 100).unwrap();
    master.file_put_end(at(1), WRITER, key(&stored), newest_put(&master)).unwrap();
    put(&master, at(2), &of("a", "l"), 60).unwrap();
    assert_eq!((charged(&master, "a"), usage(&master, "a").objects), (60, 2));
    assert!(has(&master, &stored), "its file is there");
    master.remove(at(3), key(&of("a", "l")), true).unwrap();
    let refused = master.delete_tenant_quota(at(3), &tenant("a")).unwrap_err();
    assert_eq!(refused, PolicyError::NotEmpty { tenant: tenant("a"), charged: 0, objects: 1 });
    // A new value needs memory again.
    let config = ReplicateConfig::default();
    let put = PutStart { key: key(&stored), slice_lengths: &[50], config: &config };
    let grant = master.upsert_start(at(4), WRITER, &put).unwrap();
    assert_eq!((charged(&master, "a"), usage(&master, "a").objects), (50, 2));
    end(&master, at(5), &stored, grant.handle.generation).unwrap();
    assert_eq!((charged(&master, "a"), usage(&master, "a").objects), (50, 1));
}

#[test]
fn what_comes_back_from_a_disk_is_charged_from_the_moment_it_is_granted_memory() {
    let mut config = offload::with_disks(false);
    config.multi_tenant = true;
    config.default_tenant_quota = DefaultQuota::Denied;
    config.promotion = Some(PromotionConfig::default());
    config.eviction_high_watermark_ratio = 1.0;
    let master = offload::with_disk(config, 1000);
    master.set_tenant_quota(at(0), &TenantId::DEFAULT, 100).unwrap();
    let generation = put(&master, at(0), "k", 60).unwrap().handle.generation;
    offload::write_all(&master, at(0));
    put(&master, at(1), "l", 50).unwrap();
    assert_eq!((charged(&master, "default"), usage(&master, "default").objects), (50, 2));
    let grant = |now: Time| {
        for _ in 0..3 {
            offload::read(&master, now, "k").unwrap();
        }
        assert_eq!(master.promotion_heartbeat(now, NODE).len(), 1);
        master.promotion_alloc_start(now, NODE, key("k"), generation, 60, &[])
    };
    assert_eq!(grant(at(2)).unwrap_err(), PromotionStartError::NoRoom { len: 60 });
    assert_eq!(charged(&master, "default"), 50);
    master.set_tenant_quota(at(3), &TenantId::DEFAULT, 200).unwrap();
    let failed = Some(grant(secs(60)).unwrap().handle);
    assert_eq!(charged(&master, "default"), 110);
    let late = LateWrites::Impossible;
    master.notify_promotion_failure(secs(60), NODE, key("k"), generation, failed, late).unwrap();
    assert_eq!(charged(&master, "default"), 50);
    let done = grant(secs(120)).unwrap().handle;
    master.notify_promotion_success(secs(120), NODE, key("k"), generation, done).unwrap();
    assert_eq!((charged(&master, "default"), usage(&master, "default").objects), (110, 2));
    master.remove(secs(200), key("k"), true).unwrap();
    assert_eq!((charged(&master, "default"), usage(&master, "default").objects), (50, 1));
}

#[test]
fn groups_of_one_name_are_one_for_each_tenant() {
    let master = shared_by(&QUOTAS, &[1000]);
    let grouped = ReplicateConfig::default().group("g");
    for (name, object) in [("a", "1"), ("a", "2"), ("b", "1")] {
        put_as(&master, at(0), &of(name, object), 200, &grouped).unwrap();
    }
    // The other tenant's reader protects its own tenant's objects only.
    assert!(master.exist(at(1), key(&of("b", "1"))));
    put(&master, at(2), &of("a", "3"), 100).unwrap();
    assert!(!has(&master, &of("a", "1")) && !has(&master, &of("a", "2")));
    assert!(has(&master, &of("b", "1")));
    let stored = of("b", "1");
    let put = PutStart { key: key(&stored), slice_lengths: &[50], config: &grouped };
    assert!(master.upsert_start(at(3), WRITER, &put).is_ok(), "it is in the group it names");
}

#[test]
fn keys_are_listed_and_matched_as_their_tenant_knows_them() {
    let master = shared_by(&[("a", 400), ("b", 400), ("default", 100)], &[1000]);
    for (name, object) in
        [("a", "x1"), ("a", "y"), ("b", "x2"), ("default", "x3"), ("default", "\0a\0x4")]
    {
        put(&master, at(0), &of(name, object), 10).unwrap();
    }
    let listed = |name: &str, prefix: &str| {
        let page = master.list_tenant_keys(&tenant(name), prefix, ListCursor::default(), 100);
        let mut keys: Vec<_> =
            page.keys.iter().map(|info| info.key.as_ref().as_str().to_owned()).collect();
        keys.sort_unstable();
        keys
    };
    assert_eq!(listed("a", ""), ["x1", "y"]);
    assert_eq!(listed("a", "x"), ["x1"]);
    assert_eq!(listed("default", ""), ["\0a\0x4", "x3"]);
    assert_eq!(listed("c", ""), Vec::<String>::new());
    let all = master.list_keys("", ListCursor::default(), 100);
    assert_eq!(all.keys.len(), 5);
    assert!(all.keys.iter().any(|info| unscoped(info.key.as_ref()) == ("b", "x2")));

    let pattern = Pattern::new("^x").unwrap();
    let found = |name: &str| {
        let tenant = tenant(name);
        let cursor = ListCursor::default();
        master.get_tenant_replica_list_by_regex(at(1), &tenant, &pattern, cursor, 9).objects
    };
    assert_eq!(found("a").len(), 1);
    assert_eq!(found("b")[0].0.as_ref().as_str(), "x2");
    assert_eq!(master.remove_by_regex_of(secs(10), &tenant("a"), &pattern, false), 1);
    assert_eq!(listed("a", ""), ["y"]);
    assert_eq!(master.remove_all_of(secs(10), &tenant("default"), false).removed, 2);
    assert_eq!((listed("a", ""), listed("b", "")), (vec!["y".into()], vec!["x2".into()]));
}

#[test]
fn changes_of_quotas_are_told() {
    type Told = Vec<(String, Option<u64>)>;
    #[derive(Clone, Default)]
    struct Policies(Arc<Mutex<Told>>);
    impl EffectSink for Policies {
        fn emit(&self, _: Sequence, _: Time, effect: &Effect<'_>) {
            if let Effect::TenantPolicy { tenant, requested, .. } = effect {
                self.0.lock().unwrap().push((tenant.to_string(), *requested));
            }
        }
    }
    let policies = Policies::default();
    let master =
        Master::new(with_tenants(), 1).unwrap().with_secret(SECRET).with_sink(policies.clone());
    let told = || std::mem::take(&mut *policies.0.lock().unwrap());
    master.set_tenant_quota(at(0), &tenant("a"), 5).unwrap();
    assert!(master.set_tenant_quota(at(0), &tenant("b"), u64::MAX).is_err());
    assert_eq!(told(), [("a".into(), Some(5))]);
    master.replace_tenant_quotas(at(0), &BTreeMap::from([(tenant("c"), 7)])).unwrap();
    assert_eq!(told(), [("a".into(), None), ("c".into(), Some(7))]);
    master.delete_tenant_quota(at(0), &tenant("c")).unwrap();
    assert_eq!(told(), [("c".into(), None)]);
}

/// The objects are in other slots than in the order of their last use.
#[test]
fn a_rebuilt_master_evicts_a_tenants_objects_by_their_last_use() {
    let master = shared_by(&[("a", 30)], &[100]);
    for (second, name) in (0..).zip(["gone", "1", "2"]) {
        put(&master, secs(second), &of("a", name), 10).unwrap();
    }
    master.remove(secs(3), key(&of("a", "gone")), false).unwrap();
    put(&master, secs(4), &of("a", "3"), 10).unwrap();

    let events = Recorder::default();
    let again = recovery::restart(&master, secs(5)).with_sink(events.clone());
    again.mount_segment(secs(5), NODE, segment(0, 100)).unwrap();
    for name in ["4", "5", "6"] {
        put(&again, secs(100), &of("a", name), 10).unwrap();
    }
    let order = ["1", "2", "3"].map(|name| of("a", name));
    assert_eq!(events.removals(Removal::Evicted), order);
}
