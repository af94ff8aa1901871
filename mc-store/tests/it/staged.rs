//! Segments over memory that is copied through stages, as a GPU's is, played by a device that is
//! memory of the host.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mc_store::{
    Client, ClientBuilder, ErrorCode, GetError, Master, MasterConfig, MediaType, PeerError,
    PutError, ReplicateConfig, SegmentOptions, TaskId, TaskStatus,
};
use mc_transport::{Memory, MemorySlice, StagedMemory, Staging, TransferError};

use crate::certificates::{certificates, client_under};
use crate::common::holders;

const DEADLINE: Duration = Duration::from_secs(20);

const SIZE: usize = 16 << 20;

#[derive(Clone)]
struct Device {
    memory: Memory,
    fails: Arc<AtomicBool>,
}

impl Device {
    fn new() -> Self {
        Self { memory: Memory::allocate(SIZE).unwrap(), fails: Arc::default() }
    }

    fn segment(&self) -> SegmentOptions {
        let stages = std::iter::repeat_with(|| Memory::allocate(256 << 10).unwrap());
        SegmentOptions::staged(Staging::new(self.clone(), stages.take(2).collect())).name("gpu")
    }

    fn copy(&self, from: &MemorySlice, to: &MemorySlice) -> io::Result<()> {
        if self.fails.load(Ordering::Relaxed) {
            return Err(io::Error::other("the device has fallen off the bus"));
        }
        from.copy_to_slice(to).map_err(io::Error::other)
    }

    fn fail(&self, fails: bool) {
        self.fails.store(fails, Ordering::Relaxed);
    }

    fn holds(&self, value: &[u8]) -> bool {
        self.memory.whole().to_vec().windows(value.len()).any(|window| window == value)
    }
}

impl StagedMemory for Device {
    fn size(&self) -> usize {
        self.memory.len()
    }

    fn read(&self, at: usize, into: &MemorySlice) -> io::Result<()> {
        self.copy(&self.memory.slice(at, into.len()).unwrap(), into)
    }

    fn write(&self, at: usize, from: &MemorySlice) -> io::Result<()> {
        self.copy(from, &self.memory.slice(at, from.len()).unwrap())
    }
}

/// A client of this protocol, which accepts peers and has its bytes sent also within this host
/// when it has certificates.
fn client(master: &Master, protocol: &str, files: Option<&Path>) -> ClientBuilder {
    let is_shared = files.is_none();
    let settings =
        format!("listen = '127.0.0.1:0'\nprotocol = '{protocol}'\nshared_memory = {is_shared}\n");
    client_under(master, &settings, files)
}

struct Cluster {
    master: Master,
    device: Device,
    gpu: Client,
    ram: Client,
    app: Client,
}

impl Cluster {
    /// A node with a segment in the device, one with a segment in DRAM, and an application.
    async fn start(protocol: &str, files: Option<&Path>) -> Self {
        let mut config = MasterConfig::default();
        config.lease_ttl = Duration::from_millis(100);
        config.tasks.max_retry_attempts = 2;
        let master = Master::builder().config(config).seed(7).start().await.unwrap();
        let of = || client(&master, protocol, files);
        let (device, gpu) = (Device::new(), of().connect().await.unwrap());
        gpu.mount_segment(device.segment()).await.unwrap();
        let ram = of().segment_size(mc_store::ByteSize::mib(16)).segment_name("ram");
        let (ram, app) = (ram.connect().await.unwrap(), of().connect().await.unwrap());
        Self { master, device, gpu, ram, app }
    }

    async fn ended(&self, task: TaskId) -> (TaskStatus, String) {
        let report = self.app.wait_for_task(task, DEADLINE).await.unwrap();
        (report.status, report.outcome.into())
    }

    async fn end(self) {
        for client in [self.app, self.ram, self.gpu] {
            client.shutdown().await;
        }
        self.master.shutdown().await;
    }
}

fn in_vram() -> ReplicateConfig {
    ReplicateConfig::default().medium(MediaType::Vram)
}

fn is_device_failure(error: &PeerError) -> bool {
    matches!(error, PeerError::Transfer { source: TransferError::DeviceFailed, .. })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_live_in_a_device() {
    let files = certificates("ours");
    for (protocol, files) in
        [("tcp", None), ("tcp", Some(files.path())), ("quic", Some(files.path()))]
    {
        let cluster = Cluster::start(protocol, files).await;
        let (app, gpu) = (&cluster.app, &cluster.gpu);
        let segments = gpu.segments();
        assert_eq!((segments.len(), segments[0].medium), (1, MediaType::Vram));
        let value = mc_testkit::content("k", 3_000_001);
        // The node itself takes the same way as others.
        for (key, writer) in [("theirs", app), ("own", gpu)] {
            writer.put_with(key, value.clone(), &in_vram()).await.unwrap();
            assert_eq!(holders(&cluster.app, key).await, ["gpu"]);
            for reader in [app, gpu] {
                assert!(reader.get(key).await.unwrap() == value, "{protocol} {key}");
                let part = reader.get_range(key, 70_000..2_000_000).await.unwrap();
                assert!(part == value[70_000..2_000_000], "{protocol} {key}");
            }
        }
        assert!(cluster.device.holds(&value[..4096]));

        // Out of the device and into it, by the holder.
        let task = app.move_to("own", "gpu", "ram").await.unwrap();
        let ended = cluster.ended(task).await;
        assert_eq!(ended.0, TaskStatus::Success, "{protocol} {}", ended.1);
        assert_eq!(holders(&cluster.app, "own").await, ["ram"]);
        let other = mc_testkit::content("ram", 700_000);
        app.put_with("ram", other.clone(), &ReplicateConfig::default().prefer("ram"))
            .await
            .unwrap();
        let task = app.move_to("ram", "ram", "gpu").await.unwrap();
        let ended = cluster.ended(task).await;
        assert_eq!(ended.0, TaskStatus::Success, "{protocol} {}", ended.1);
        assert_eq!(holders(&cluster.app, "ram").await, ["gpu"]);
        assert!(app.get("ram").await.unwrap() == other, "{protocol}");

        // What only the device has moves away, and the segment can go and come back.
        let report = gpu.drain(&["ram"], DEADLINE).await.unwrap();
        assert!(report.complete, "{protocol} {report:?}");
        let id = gpu.segments()[0].id;
        gpu.unmount_segment(id, Duration::ZERO).await.unwrap();
        for key in ["theirs", "own"] {
            assert!(app.get(key).await.unwrap() == value, "{protocol} {key}");
        }
        assert!(app.get("ram").await.unwrap() == other, "{protocol}");
        gpu.mount_segment(cluster.device.segment()).await.unwrap();
        app.put_with("again", value.clone(), &in_vram()).await.unwrap();
        assert!(app.get("again").await.unwrap() == value, "{protocol}");
        cluster.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_that_fails_is_no_damage() {
    let cluster = Cluster::start("tcp", None).await;
    let (app, value) = (&cluster.app, mc_testkit::content("k", 700_000));
    app.put_with("alone", value.clone(), &in_vram()).await.unwrap();
    app.put_with("twice", value.clone(), &in_vram()).await.unwrap();
    let task = app.copy_to("twice", &["ram"]).await.unwrap();
    assert_eq!(cluster.ended(task).await.0, TaskStatus::Success);

    cluster.device.fail(true);
    let failed = app.get("alone").await.unwrap_err();
    assert!(matches!(&failed, GetError::Peer(error) if is_device_failure(error)), "{failed}");
    assert!(app.get("twice").await.unwrap() == value, "there is another replica");
    let failed = app.put_with("new", value.clone(), &in_vram()).await.unwrap_err();
    assert!(matches!(&failed, PutError::Peer(error) if is_device_failure(error)), "{failed}");
    assert_eq!(failed.code(), ErrorCode::TransferFail);
    let task = app.copy_to("alone", &["ram"]).await.unwrap();
    let (status, outcome) = cluster.ended(task).await;
    assert!(status == TaskStatus::Failed && outcome.contains("off the bus"), "{outcome}");

    cluster.device.fail(false);
    assert_eq!(app.metrics().reports.damaged, 0);
    assert_eq!(holders(&cluster.app, "alone").await, ["gpu"]);
    assert!(app.get("alone").await.unwrap() == value);
    app.put_with("new", value.clone(), &in_vram()).await.unwrap();
    assert!(app.get("new").await.unwrap() == value);
    cluster.end().await;
}
