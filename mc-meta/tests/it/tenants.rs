//! Tenants on many threads, and what room within a quota costs.

use core::time::Duration;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use mc_meta::{Master, MasterConfig, PutEnd, PutStart, ReplicateConfig, TenantId};
use mc_types::{ClientId, KeyRef, Time};

use crate::common::segment;

const NODE: ClientId = ClientId::from_u128(100);

fn at(millis: u64) -> Time {
    Time::from_millis(millis)
}

fn tenant(name: &str) -> TenantId {
    TenantId::new(name).unwrap()
}

/// A master with tenants, and two segments that hold this much together.
fn master(size: u64, shards: usize) -> Master {
    let mut config = MasterConfig::default();
    config.shards = shards;
    config.multi_tenant = true;
    config.client_ttl = Duration::from_secs(1 << 40);
    config.lease_ttl = Duration::from_millis(1);
    let master = Master::new(config, 1).unwrap();
    for number in 0..2 {
        master.mount_segment(at(0), NODE, segment(number, size / 2)).unwrap();
    }
    master
}

/// Whether the object of this tenant was put.
fn put(master: &Master, now: Time, name: &str, key: &str, len: u64) -> bool {
    let stored = tenant(name).scoped(KeyRef::new(key).unwrap()).unwrap();
    let (key, config) = (stored.as_ref(), ReplicateConfig::default());
    let start = PutStart { key, slice_lengths: &[len], config: &config };
    let Ok(grant) = master.put_start(now, NODE, &start) else { return false };
    let end = PutEnd::new(key, grant.handle);
    master.put_end(now, NODE, &end).is_ok()
}

fn evictions(master: &Master) -> (u64, u64) {
    let report = master.report();
    (report.totals.evicted_objects, report.totals.eviction_offers)
}

#[test]
fn room_within_a_quota_costs_its_victims_however_many_objects_others_have() {
    const OTHERS: u64 = 30_000;
    let master = master(1 << 20, 16);
    master.set_tenant_quota(at(0), &tenant("large"), OTHERS).unwrap();
    master.set_tenant_quota(at(0), &tenant("small"), 100).unwrap();
    for n in 0..OTHERS {
        assert!(put(&master, at(n), "large", &n.to_string(), 1));
    }
    for n in 0..100 {
        assert!(put(&master, at(OTHERS + n), "small", &n.to_string(), 1));
    }
    assert_eq!(evictions(&master), (0, 0));
    for n in 100..5100 {
        assert!(put(&master, at(OTHERS + n), "small", &n.to_string(), 1));
    }
    let (evicted, offers) = evictions(&master);
    assert_eq!(evicted, 5000);
    assert!(offers < 2 * evicted, "{offers} looked at");
    let small = master.tenant_quota(&tenant("small")).unwrap();
    assert_eq!((small.charged, small.objects, small.evicted_bytes), (100, 100, 5000));
    assert_eq!(master.tenant_quota(&tenant("large")).unwrap().charged, OTHERS);
}

#[test]
fn what_is_read_is_looked_at_once_for_each_time() {
    let master = master(1 << 20, 1);
    master.set_tenant_quota(at(0), &tenant("a"), 2000).unwrap();
    for n in 0..2000 {
        assert!(put(&master, at(0), "a", &n.to_string(), 1));
    }
    // All but one are being read, so the search for a victim meets many protected objects.
    for n in 0..1999 {
        let text = n.to_string();
        let stored = tenant("a").scoped(KeyRef::new(&text).unwrap()).unwrap();
        assert!(master.exist(at(1), stored.as_ref()));
    }
    for n in 0..50 {
        let _ = put(&master, at(1), "a", &format!("new-{n}"), 1);
    }
    let (evicted, offers) = evictions(&master);
    assert!(offers <= 2000 + evicted, "{offers} looked at, {evicted} taken");
}

#[test]
fn no_quota_is_exceeded_whoever_else_charges_it() {
    const QUOTAS: [(&str, u64); 2] = [("a", 3000), ("b", 5000)];
    let master = &master(20_000, 8);
    for (name, bytes) in QUOTAS {
        master.set_tenant_quota(at(0), &tenant(name), bytes).unwrap();
    }
    let over = AtomicBool::new(false);
    let over = &over;
    thread::scope(|scope| {
        let watcher = scope.spawn(move || {
            while !over.load(Ordering::Acquire) {
                for (name, bytes) in QUOTAS {
                    let usage = master.tenant_quota(&tenant(name)).unwrap();
                    assert!(usage.charged <= bytes, "{usage:?}");
                }
            }
        });
        let threads = (0..4u64).map(|thread| {
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(thread);
                for n in 0..10_000 {
                    let (name, _) = QUOTAS[random.usize(..2)];
                    let text = random.u64(..200).to_string();
                    let stored = tenant(name).scoped(KeyRef::new(&text).unwrap()).unwrap();
                    match random.u8(..8) {
                        0 => {
                            let _ = master.remove(at(n), stored.as_ref(), true);
                        }
                        1 => {
                            master.exist(at(n), stored.as_ref());
                        }
                        2 => {
                            let config = ReplicateConfig::default().replicas(2);
                            let start = PutStart {
                                key: stored.as_ref(),
                                slice_lengths: &[random.u64(1..200)],
                                config: &config,
                            };
                            let _ = master.upsert_start(at(n), NODE, &start);
                        }
                        _ => {
                            put(master, at(n), name, &text, random.u64(1..200));
                        }
                    }
                }
            })
        });
        let threads: Vec<_> = threads.collect();
        let results: Vec<_> = threads.into_iter().map(thread::ScopedJoinHandle::join).collect();
        over.store(true, Ordering::Release);
        watcher.join().unwrap();
        assert!(results.iter().all(Result::is_ok));
    });
    // Nothing is left of anything in the end.
    let end = at(10_000_000);
    while master.tick(end) {}
    for (name, _) in QUOTAS {
        master.remove_all_of(end, &tenant(name), true);
    }
    let report = master.tenant_quotas().unwrap();
    assert_eq!(report.mismatches, 0);
    assert!(report.tenants.iter().all(|row| (row.charged, row.objects) == (0, 0)), "{report:?}");
    assert_eq!(master.report().totals.used, 0);
}
