//! Slow readers of a region that is reached through stages.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use mc_testkit::{eventually, eventually_async};
use mc_transport::{
    Access, Link, Memory, MemorySlice, Operation, StagedMemory, Staging, Transport,
};
use mc_types::RemoteKey;
use tokio::task::JoinSet;

use super::nodes::{DEADLINE, connecting, listening, one, span, start};
use super::pki::Authority;
use super::raw;

const STAGE: usize = 1 << 20;

/// A device that is memory of the host, and counts its copies.
#[derive(Clone)]
struct Device(Memory, Arc<AtomicUsize>);

impl Device {
    fn begun(&self) -> usize {
        self.1.load(Ordering::Relaxed)
    }
}

impl StagedMemory for Device {
    fn size(&self) -> usize {
        self.0.len()
    }

    fn read(&self, at: usize, into: &MemorySlice) -> io::Result<()> {
        self.1.fetch_add(1, Ordering::Relaxed);
        let from = self.0.slice(at, into.len()).ok_or(io::ErrorKind::InvalidInput)?;
        from.copy_to_slice(into).map_err(io::Error::other)
    }

    fn write(&self, _: usize, _: &MemorySlice) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Bytes a second that this reader gets in about a second.
async fn rate(link: &dyn Link, key: RemoteKey) -> f64 {
    let into = Memory::allocate(2 * STAGE).unwrap();
    let (began, mut read) = (Instant::now(), 0);
    while began.elapsed() < Duration::from_secs(1) {
        let operation = Operation::read(span(key, 0, into.len() as u64), into.whole());
        one(link, operation).await.expect("it is never sent away");
        read += into.len();
    }
    read as f64 / began.elapsed().as_secs_f64()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_readers_hold_up_nobody_else() {
    const LEN: usize = 64 * STAGE;
    let (authority, device) =
        (Authority::new(), Device(Memory::allocate(LEN).unwrap(), Arc::default()));
    let stages = std::iter::repeat_with(|| Memory::allocate(STAGE).unwrap()).take(8);
    let staging = Staging::new(device.clone(), stages.collect());
    let server = start(listening(&authority)).await;
    let region = server.register_staged(&staging, Access::Read, None).unwrap();
    let client = start(connecting(&authority)).await;
    let link = client.connect(server.endpoint().unwrap()).await.unwrap();
    let alone = rate(&*link, region.key()).await;

    let mut slow = JoinSet::new();
    let before = device.begun();
    for _ in 0..8 {
        let connection = raw::client_limited(&authority, &server, |limits| {
            limits.stream_receive_window((16_u32 << 10).into());
        })
        .await;
        let request = raw::request(1, 7, region.key(), 0, LEN as u64);
        slow.spawn(async move {
            let mut pace = tokio::time::interval(Duration::from_millis(25));
            let mut some = vec![0; 16 << 10];
            loop {
                let Ok((mut send, mut receive)) = connection.open_bi().await else { return };
                let _ = send.write_all(&request).await;
                // 640 KB/s are progress enough for every time limit but those of the stages.
                while let Ok(Some(_)) = receive.read(&mut some).await {
                    pace.tick().await;
                }
            }
        });
    }
    let begun = || device.begun() >= before + 16;
    eventually(DEADLINE, "the slow readers hold stages", begun).await;
    eventually_async(DEADLINE, "half of the rate beside slow readers", async || {
        let beside = rate(&*link, region.key()).await;
        println!("alone {:.0} MB/s, beside {:.0} MB/s", alone / 1e6, beside / 1e6);
        beside >= alone / 2.0
    })
    .await;
    assert!(link.is_healthy());
    slow.abort_all();
    server.shutdown().await;
}
