//! Every kind of replica at once, in random order: whatever happens, the books agree.

use mc_meta::{
    FoundInTier, LocalDiskConfig, LocalDiskSpec, Master, OffloadOutcome, PromotionConfig,
    ReplicaKind, SharedTierConfig, TierJob,
};
use mc_types::{Generation, LocalDiskId, RemoteKey, SegmentId, Time};

use super::*;

const NODES: [ClientId; 3] =
    [ClientId::from_u128(100), ClientId::from_u128(101), ClientId::from_u128(102)];
const KEYS: u64 = 12;
const SEGMENT: u64 = 300;
const TIER: u64 = 800;

/// How often what happened.
type Counts = [u64; 12];

struct World {
    master: Arc<Master>,
    random: fastrand::Rng,
    now: Time,
    /// Puts that may be open, and whose files may be.
    puts: Vec<(String, Generation)>,
    offloads: Vec<(ClientId, TierJob)>,
    /// With the space that was granted, if any was.
    promotions: Vec<(ClientId, TierJob, Option<TransferHandle>)>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut config = settings();
        config.shards = random.usize(1..4);
        config.client_ttl = Duration::from_secs([20, 1 << 40][random.usize(0..2)]);
        config.client_return_timeout = Duration::from_secs(random.u64(0..2) * 60);
        if random.u8(0..4) > 0 {
            config.shared_tier = Some(SharedTierConfig::with_capacity(TIER));
        }
        let mut disks = LocalDiskConfig::default();
        (disks.on_evict, disks.force_evict) = (random.bool(), random.bool());
        disks.offload.queue_limit = random.usize(1..5);
        config.local_disk = Some(disks);
        config.promotion = Some(PromotionConfig::default());
        config.eviction_high_watermark_ratio = 0.7 + 0.3 * random.f64();
        Self::of(Arc::new(Master::new(config, seed).unwrap().with_secret(SECRET)), random)
    }

    fn of(master: Arc<Master>, random: fastrand::Rng) -> Self {
        let (puts, offloads, promotions) = (Vec::new(), Vec::new(), Vec::new());
        Self { master, random, now: at(0), puts, offloads, promotions }
    }

    fn key(&mut self) -> String {
        self.random.u64(0..KEYS).to_string()
    }

    fn node(&mut self) -> ClientId {
        NODES[self.random.usize(0..NODES.len())]
    }

    fn late_writes(&mut self) -> LateWrites {
        if self.random.bool() { LateWrites::Possible } else { LateWrites::Impossible }
    }

    fn some_put(&mut self) -> Option<(String, Generation)> {
        let at = self.random.usize(0..self.puts.len().max(1));
        self.puts.get(at).cloned()
    }

    fn mount(&mut self) {
        let node = self.node();
        let number = node.as_u128() - 100;
        let _ = self.master.mount_segment(self.now, node, segment(number, SEGMENT));
        let spec = LocalDiskSpec {
            id: LocalDiskId::from_u128(node.as_u128()),
            endpoint: format!("tcp://10.0.0.{number}:1").parse().unwrap(),
            remote_key: RemoteKey::from_bytes([1; 16]),
            ticket_key: None,
        };
        let enabled = self.random.u8(0..8) > 0;
        self.master.mount_local_disk(self.now, node, spec, enabled).unwrap();
    }

    fn put(&mut self) {
        let (name, len) = (self.key(), self.random.u64(1..=SEGMENT));
        let mut config = ReplicateConfig::default().replicas(self.random.u32(1..3));
        if self.random.u8(0..8) == 0 {
            config = config.soft_pin();
        }
        if self.random.u8(0..4) == 0 {
            config = config.group(self.random.u8(0..2).to_string());
        }
        let put = PutStart { key: key(&name), slice_lengths: &[len], config: &config };
        let grant = if self.random.bool() {
            self.master.put_start(self.now, WRITER, &put)
        } else {
            self.master.upsert_start(self.now, WRITER, &put)
        };
        if let Ok(grant) = grant {
            if self.random.u8(0..4) > 0 {
                let _ = end(&self.master, self.now, &name, grant.handle.generation);
            }
            self.puts.push((name, grant.handle.generation));
        }
    }

    fn finish(&mut self) {
        let Some((name, put)) = self.some_put() else { return };
        let late = self.late_writes();
        let (master, now, key, put) = (&self.master, self.now, key(&name), handle(put));
        let _ = match self.random.u8(0..6) {
            0 | 1 => master.file_put_end(now, WRITER, key, put),
            2 => master.file_put_revoke(now, WRITER, key, put),
            3 => master.put_revoke(now, WRITER, key, put, late),
            4 => master.memory_put_revoke(now, WRITER, key, put, late),
            _ => end(master, now, &name, put.generation),
        };
    }

    fn offload(&mut self) {
        let node = self.node();
        let (enabled, max) = (self.random.u8(0..10) > 0, self.random.usize(0..4));
        if let Ok(jobs) = self.master.offload_heartbeat(self.now, node, enabled, max) {
            self.offloads.extend(jobs.into_iter().map(|job| (node, job.job)));
        }
        if !self.offloads.is_empty() && self.random.bool() {
            let at = self.random.usize(0..self.offloads.len());
            let (node, job) = self.offloads.swap_remove(at);
            let (key, written) = (job.key.as_ref(), self.random.u8(0..4) > 0);
            let address = self.random.u64(0..1 << 40);
            let outcome = OffloadOutcome {
                key,
                generation: job.generation,
                written,
                too_long: false,
                address,
            };
            let _ = self.master.notify_offload(self.now, node, &[outcome]);
        }
    }

    fn promote(&mut self) {
        let node = self.node();
        let jobs = self.master.promotion_heartbeat(self.now, node);
        self.promotions.extend(jobs.into_iter().map(|job| (node, job, None)));
        if self.promotions.is_empty() {
            return;
        }
        let at = self.random.usize(0..self.promotions.len());
        let late = self.late_writes();
        let (node, job, handle) = self.promotions[at].clone();
        let (master, now, key, put) = (&self.master, self.now, job.key.as_ref(), job.generation);
        match self.random.u8(0..5) {
            0 | 1 => {
                let granted = master.promotion_alloc_start(now, node, key, put, job.len, &[]);
                if let Ok(grant) = granted {
                    self.promotions[at].2 = Some(grant.handle);
                }
            }
            2 | 3 => {
                if let Some(handle) = handle {
                    let _ = master.notify_promotion_success(now, node, key, put, handle);
                }
            }
            _ => {
                let _ = master.notify_promotion_failure(now, node, key, put, handle, late);
                if late == LateWrites::Impossible {
                    self.promotions.swap_remove(at);
                }
            }
        }
    }

    fn lose(&mut self) {
        let (node, name, put) = (self.node(), self.key(), self.some_put());
        let (master, now, key) = (&self.master, self.now, key(&name));
        match self.random.u8(0..12) {
            0 => drop(master.unmount_local_disk(now, node, self.random.bool())),
            1 => {
                let id = SegmentId::from_u128(node.as_u128() - 100);
                let _ = master.unmount_segment(now, node, id);
            }
            2 => drop(master.remove_all(now, self.random.bool())),
            3 | 4 => drop(master.evict_from_tier(now, node, key, None, ReplicaKind::SharedFile)),
            5 | 6 => drop(master.evict_from_tier(now, node, key, None, ReplicaKind::LocalDisk)),
            7 | 8 => {
                let Some((name, generation)) = put else { return };
                let key = KeyRef::new(&name).unwrap();
                let slices = one_slice(self.random.u64(1..=SEGMENT));
                let found = FoundInTier { key, generation, slices, address: 0 };
                let _ = master.report_local_disk(now, node, &[found]);
            }
            9 => drop(master.batch_replica_clear(now, WRITER, &[key], Some("segment-0"))),
            _ => drop(master.remove(now, key, self.random.bool())),
        }
    }

    fn step(&mut self) {
        let millis = [0, 1, 50, 50, 4_000, 4_000, 40_000, 700_000][self.random.usize(0..8)];
        if self.random.u8(0..3) == 0 {
            self.now = self.now + Duration::from_millis(millis);
        }
        match self.random.u8(0..20) {
            0 => self.mount(),
            1..=5 => self.put(),
            6..=8 => self.finish(),
            9..=11 => self.offload(),
            12..=13 => self.promote(),
            14 => self.lose(),
            15 => drop(self.master.tick(self.now)),
            16 => {
                for node in NODES {
                    let _ = self.master.ping(self.now, node);
                }
            }
            _ => {
                let name = self.key();
                let _ = self.master.get_replica_list(self.now, key(&name));
            }
        }
    }

    fn check(&self) {
        let report = self.master.report();
        assert!(report.totals.files_used <= TIER, "{report:?}");
        assert!(report.totals.tier_only_objects <= report.totals.objects, "{report:?}");
        let mut on_disks = 0;
        for number in 0..KEYS {
            let Ok(list) = self.master.describe(self.now, key(&number.to_string())) else {
                continue;
            };
            on_disks += list.local_disks.len() as u64;
        }
        let known: u64 = report.local_disks.iter().map(|disk| disk.objects).sum();
        assert!(on_disks <= known, "{on_disks} of {known}");
        for disk in &report.local_disks {
            assert_eq!(disk.usage.used == 0, disk.objects == 0, "{disk:?}");
        }
    }

    /// When everything is gone nothing is left.
    fn end(mut self) -> Counts {
        self.now = self.now + Duration::from_secs(5_000);
        for _ in 0..3 {
            while self.master.tick(self.now) {}
            self.master.remove_all(self.now, true);
            self.now = self.now + Duration::from_secs(5_000);
        }
        for node in NODES {
            self.master.unmount_local_disk(self.now, node, false).unwrap();
        }
        while self.master.tick(self.now) {}
        let report = self.master.report();
        assert_eq!(
            (report.totals.objects, report.totals.used, report.totals.files_used),
            (0, 0, 0),
            "{report:?}"
        );
        let left = (
            report.totals.tier_only_objects,
            report.totals.files_unfinished,
            report.totals.promotions_pending,
        );
        assert_eq!(left, (0, 0, 0), "{report:?}");
        // Nothing is promised, so that a full segment makes room at once.
        self.master.mount_segment(self.now, NODES[0], segment(9, 100)).unwrap();
        put(&self.master, self.now, "a", 100).unwrap();
        put(&self.master, self.now, "b", 100).unwrap();
        [
            report.totals.files_written,
            report.totals.files_no_room,
            report.totals.tier_evictions,
            report.totals.evicted_objects,
            report.totals.offload_written,
            report.totals.offload_failed,
            report.totals.offload_refused,
            report.totals.offload_given_up,
            report.totals.promotion_promoted,
            report.totals.promotion_failed,
            report.totals.promotion_cancelled,
            report.totals.promotion_expired,
        ]
    }
}

#[test]
fn the_books_agree_whatever_happens() {
    let first = fastrand::u64(..);
    let mut counts = Counts::default();
    for seed in (0..300).chain((0..100).map(|n| first.wrapping_add(n))) {
        let run = std::panic::catch_unwind(|| {
            let mut world = World::new(seed);
            NODES.iter().for_each(|_| world.mount());
            for step in 0..1000 {
                world.step();
                if step % 20 == 0 {
                    world.check();
                }
            }
            world.end()
        });
        let run = run.unwrap_or_else(|_| panic!("with seed {seed}"));
        counts.iter_mut().zip(run).for_each(|(sum, count)| *sum += count);
    }
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
}

#[test]
fn the_books_agree_when_many_threads_write_them() {
    for seed in 0..20 {
        let mut world = World::new(seed);
        NODES.iter().for_each(|_| world.mount());
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let master = Arc::clone(&world.master);
                let random = fastrand::Rng::with_seed(seed ^ (thread << 32));
                scope.spawn(move || {
                    let mut world = World::of(master, random);
                    (0..1000).for_each(|_| world.step());
                });
            }
        });
        world.now = secs(1_000_000_000);
        world.end();
    }
}
