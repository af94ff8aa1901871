//! Quotas of tenants below memory: no put is refused for them, and nothing is counted twice.

use mc_meta::{
    FoundInTier, GetError, PolicyError, QuotaMode, SharedTierConfig, TenantUsage, TierQuotas,
};

use super::offload::{disk, fetch, names, with_disks, write_all};
use super::recovery::{Journal, export, rebuild_with, remount_all};
use super::*;

/// When another master takes over.
const LATER: Time = Time::from_millis(40_000);

const DISKS_60: TierQuotas = TierQuotas { disks: Some(60), files: None };
const FILES_60: TierQuotas = TierQuotas { disks: None, files: Some(60) };

fn usage(master: &Master, name: &str) -> TenantUsage {
    assert_eq!(master.tenant_quotas().unwrap().mismatches, 0);
    master.tenant_quota(&tenant(name)).unwrap()
}

/// Bytes on disks and objects that are not there because of the quota.
fn on_disks(master: &Master, name: &str) -> (u64, u64) {
    let disks = usage(master, name).disks;
    (disks.bytes, disks.refused)
}

fn in_files(master: &Master, name: &str) -> (u64, u64) {
    let files = usage(master, name).files;
    (files.bytes, files.refused)
}

fn limit(master: &Master, name: &str, mode: QuotaMode, below: TierQuotas) {
    master.set_tenant_quotas(at(0), &tenant(name), None, mode, below).unwrap();
}

/// A master with a disk, or a tier of files, on which the tenant `a` has a quota.
fn with_disk(on_evict: bool, size: u64) -> Master {
    let mut config = with_disks(on_evict);
    config.multi_tenant = true;
    let master = offload::with_disk(config, size);
    limit(&master, "a", QuotaMode::Evict, DISKS_60);
    master
}

fn files_config() -> MasterConfig {
    let mut config = settings();
    config.multi_tenant = true;
    config.shared_tier = Some(SharedTierConfig::default());
    config
}

fn put_file(master: &Master, now: Time, name: &str, len: u64) -> bool {
    let grant = put(master, now, name, len).unwrap();
    if grant.file {
        master.file_put_end(now, WRITER, key(name), grant.handle).unwrap();
    }
    grant.file
}

/// The quota of a tenant on disks counts objects that are in memory, too.
#[test]
fn a_tenant_fills_no_more_of_the_disks_than_its_quota() {
    let master = with_disk(false, 1000);
    for name in ["1", "2", "3"] {
        put(&master, at(0), &of("a", name), 30).unwrap();
        put(&master, at(0), &of("b", name), 30).unwrap();
    }
    // What is to be written counts, so that no more of it is begun.
    assert_eq!((on_disks(&master, "a"), on_disks(&master, "b")), ((60, 1), (90, 0)));
    let jobs = fetch(&master, at(1));
    assert_eq!(names(&jobs).len(), 5);
    offload::notify(&master, at(1), &jobs, true).into_iter().for_each(Result::unwrap);
    assert_eq!((on_disks(&master, "a"), on_disks(&master, "b")), ((60, 1), (90, 0)));
    // Each way out gives it back: removal, an eviction by the client, an unmounted disk.
    master.remove(secs(60), key(&of("a", "1")), false).unwrap();
    assert_eq!(on_disks(&master, "a"), (30, 1));
    let kind = mc_meta::ReplicaKind::LocalDisk;
    master.evict_from_tier(secs(60), NODE, key(&of("a", "2")), None, kind).unwrap();
    assert_eq!(on_disks(&master, "a"), (0, 1));
    master.unmount_local_disk(secs(60), NODE, false).unwrap();
    while master.tick(secs(60)) {}
    assert_eq!(on_disks(&master, "b"), (0, 0));
}

#[test]
fn an_offload_that_fails_gives_its_room_back() {
    let master = with_disk(false, 1000);
    put(&master, at(0), &of("a", "1"), 40).unwrap();
    assert_eq!(on_disks(&master, "a"), (40, 0));
    let jobs = fetch(&master, at(0));
    offload::notify(&master, at(0), &jobs, false).into_iter().for_each(Result::unwrap);
    assert_eq!(on_disks(&master, "a"), (0, 0));
    // As does one that goes before it is written.
    put(&master, at(0), &of("a", "2"), 40).unwrap();
    master.remove(secs(60), key(&of("a", "2")), true).unwrap();
    assert_eq!(on_disks(&master, "a"), (0, 0));
}

/// In a memory of 40 bytes one object of 30 is in memory, and the others on the disk.
#[test]
fn the_oldest_of_a_tenant_that_are_on_disks_alone_make_room_there() {
    for mode in [QuotaMode::Evict, QuotaMode::Refuse] {
        let master = with_disk(true, 40);
        limit(&master, "a", mode, DISKS_60);
        for (second, name) in (10..).step_by(10).zip(["1", "2", "3", "4", "5"]) {
            let name = of("a", name);
            // The put waits for the one before to be written, or to go.
            if start(&master, secs(second), &name, 30).is_err() {
                write_all(&master, secs(second));
                start(&master, secs(second), &name, 30).unwrap();
            }
            end(&master, secs(second), &name, newest(&master)).unwrap();
        }
        let there: Vec<&str> = ["1", "2", "3", "4", "5"]
            .into_iter()
            .filter(|name| master.get_replica_list(secs(60), key(&of("a", name))).is_ok())
            .collect();
        match mode {
            QuotaMode::Refuse => {
                assert_eq!(there, ["1", "2", "5"], "the rest went as if there were no disk");
                assert_eq!(on_disks(&master, "a"), (60, 2));
            }
            _ => {
                assert_eq!(there, ["3", "4", "5"]);
                assert_eq!(on_disks(&master, "a"), (60, 0));
                let deletions = master.local_disk_deletions(NODE, 9).objects;
                assert_eq!(names(&deletions), [of("a", "1"), of("a", "2")]);
            }
        }
    }
}

#[test]
fn beyond_the_quota_of_files_a_put_is_planned_without_one() {
    let master = master_with(files_config(), &[1000]);
    limit(&master, "a", QuotaMode::Evict, FILES_60);
    assert!(put_file(&master, at(0), &of("a", "1"), 30));
    assert!(put_file(&master, at(0), &of("a", "2"), 30));
    // Both are in memory, too: nothing of them is worth less than the new one.
    assert!(!put_file(&master, at(0), &of("a", "3"), 1));
    assert!(put_file(&master, at(0), &of("b", "1"), 300));
    assert_eq!((in_files(&master, "a"), in_files(&master, "b")), ((60, 1), (300, 0)));
    assert_eq!((master.report().totals.files_used, master.report().totals.files_no_room), (360, 0));
    master.remove(at(0), key(&of("a", "1")), false).unwrap();
    assert_eq!(in_files(&master, "a"), (30, 1));
    let grant = start(&master, at(0), &of("a", "4"), 30).unwrap();
    assert!(grant.file);
    assert_eq!(in_files(&master, "a"), (60, 1), "a file that is to be written counts");
    let (name, late) = (of("a", "4"), LateWrites::Impossible);
    master.put_revoke(at(0), WRITER, key(&name), grant.handle, late).unwrap();
    assert_eq!(in_files(&master, "a"), (30, 1));
}

#[test]
fn the_oldest_files_of_a_tenant_make_room_for_its_next() {
    let master = master_with(files_config(), &[30]);
    limit(&master, "a", QuotaMode::Evict, FILES_60);
    let names = ["1", "2", "3", "4"];
    for (second, name) in (10..).step_by(10).zip(names) {
        assert!(put_file(&master, secs(second), &of("a", name), 30), "{name}");
    }
    let there =
        names.map(|name| master.get_replica_list(secs(60), key(&of("a", name))).map(|_| ()));
    assert_eq!(there, [Err(GetError::NotFound), Err(GetError::NotFound), Ok(()), Ok(())]);
    assert_eq!(in_files(&master, "a"), (60, 0));
    // An upsert finds room as well.
    let name = of("a", "5");
    let config = ReplicateConfig::default();
    let put = PutStart { key: key(&name), slice_lengths: &[30], config: &config };
    assert!(master.upsert_start(secs(70), WRITER, &put).unwrap().file);
    assert_eq!(in_files(&master, "a"), (60, 0));
}

#[test]
fn what_is_found_counts_beyond_the_quota() {
    let former = with_disk(false, 1000);
    limit(&former, "a", QuotaMode::Evict, TierQuotas { disks: Some(1000), files: None });
    let mut puts = Vec::new();
    for name in ["1", "2", "3"] {
        let grant = put(&former, at(0), &of("a", name), 30).unwrap();
        puts.push((of("a", name), grant.handle.generation));
    }
    // Another master, which has never heard of them.
    let mut config = with_disks(false);
    config.multi_tenant = true;
    let master = Master::new(config, 77).unwrap().with_secret(SECRET);
    master.mount_local_disk(at(0), NODE, disk(NODE), true).unwrap();
    limit(&master, "a", QuotaMode::Evict, DISKS_60);
    for (name, generation) in &puts {
        let (slices, generation) = (one_slice(30), *generation);
        let found = FoundInTier { key: key(name), generation, slices, address: 0 };
        assert_eq!(master.report_local_disk(at(0), NODE, &[found]), [Ok(())]);
    }
    assert_eq!(on_disks(&master, "a"), (90, 0));
    assert!(has(&master, &puts[2].0));
}

#[test]
fn quotas_below_memory_and_what_is_charged_outlast_a_restart() {
    let mut config = with_disks(false);
    (config.multi_tenant, config.shared_tier) = (true, Some(SharedTierConfig::default()));
    let journal = Journal::default();
    let former =
        Master::new(config.clone(), 1).unwrap().with_secret(SECRET).with_sink(journal.clone());
    former.mount_segment(at(0), NODE, segment(0, 1000)).unwrap();
    former.mount_local_disk(at(0), NODE, disk(NODE), true).unwrap();
    limit(&former, "a", QuotaMode::Refuse, DISKS_60);
    let both = TierQuotas { disks: Some(0), files: Some(50) };
    former.set_tenant_quotas(at(0), &tenant("b"), Some(500), QuotaMode::Evict, both).unwrap();
    limit(&former, "gone", QuotaMode::Evict, FILES_60);
    former.delete_tenant_quota(at(0), &tenant("gone")).unwrap();
    for name in ["a", "b"] {
        put_file(&former, at(0), &of(name, "x"), 40);
    }
    write_all(&former, at(0));
    let before = former.tenant_quotas().unwrap();
    let charged = |name| {
        let row = usage(&former, name);
        (row.disks.bytes, row.files.bytes)
    };
    assert_eq!((charged("a"), charged("b")), ((40, 40), (0, 40)));
    for records in [export(&former, LATER), journal.records()] {
        let (master, report) = rebuild_with(config.clone(), &records, LATER);
        assert_eq!(report.dropped.total(), 0);
        remount_all(&master, LATER);
        let after = master.tenant_quotas().unwrap();
        let rows = |report: &mc_meta::QuotaReport| {
            let rows = report.tenants.iter().cloned();
            let row = |mut row: TenantUsage| {
                row.disks.refused = 0;
                row
            };
            rows.map(row).collect::<Vec<_>>()
        };
        assert_eq!(rows(&after), rows(&before));
        assert_eq!(usage(&master, "b").disks.limit, 0);
        master.remove_all(LATER, true);
        while master.tick(LATER + settings().lease_ttl) {}
        for name in ["a", "b"] {
            assert_eq!((on_disks(&master, name).0, in_files(&master, name).0), (0, 0));
        }
    }
}

#[test]
fn quotas_below_memory_are_set_and_taken_away_with_the_others() {
    let master = with_disk(false, 1000);
    assert_eq!(usage(&master, "a").below(), DISKS_60);
    assert_eq!(usage(&master, "a").requested, None, "of memory it has the default");
    // Replacing all keeps it, setting one anew does not.
    let all = [(tenant("a"), 500)].into();
    master.replace_tenant_quotas(at(0), &all).unwrap();
    assert_eq!((usage(&master, "a").below(), usage(&master, "a").requested), (DISKS_60, Some(500)));
    master.set_tenant_quota(at(0), &tenant("a"), 400).unwrap();
    assert_eq!(usage(&master, "a").below(), TierQuotas::NONE);
    limit(&master, "a", QuotaMode::Evict, FILES_60);
    master.delete_tenant_quota(at(0), &tenant("a")).unwrap();
    let gone = PolicyError::NotRegistered { tenant: tenant("a") };
    assert_eq!(master.delete_tenant_quota(at(0), &tenant("a")), Err(gone));
    // A quota of nothing at all is none.
    let none =
        master.set_tenant_quotas(at(0), &tenant("a"), None, QuotaMode::Evict, TierQuotas::NONE);
    assert_eq!(none, Err(PolicyError::OutOfRange { requested: 0 }));
}
