//! Values in a GPU's memory. Needs a GPU, and says loudly where there is none.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::Write as _;

use mc_cluster_testkit::Cluster;
use mc_store::{ByteSize, ErrorCode, PutOutcome, ReplicateConfig, VramError, VramStage};
use mc_transport::cuda::{Cuda, CudaDevice};

/// The first GPU; `None`, and a line that no test runner hides, when there is none.
fn gpu() -> Option<CudaDevice> {
    match Cuda::load().and_then(|cuda| cuda.device(0)) {
        Ok(device) => Some(device),
        Err(error) => {
            let text = "##### SKIPPED: values in the memory of a GPU were not tested";
            let mut uncaptured = std::io::stderr();
            writeln!(uncaptured, "{text}: {error} #####").unwrap();
            None
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_travel_between_peers_and_a_gpu() {
    let Some(device) = gpu() else { return };
    let cluster = Cluster::start(&[ByteSize::mib(16)]).await;
    let node = &cluster.nodes[0];

    let len = 3 << 20;
    let value: Vec<u8> = (0..len).map(|at| (at * 7 % 251) as u8).collect();
    let (from, into) = (device.allocate(len).unwrap(), device.allocate(len + 10).unwrap());
    let host = device.pinned(len).unwrap();
    host.whole().copy_from(0, &value).unwrap();
    from.write(0, &host.whole()).unwrap();

    let (mut stage, config) = (VramStage::new(&device, len).unwrap(), ReplicateConfig::default());
    let stored = node.put_from_vram("block", &from, 0..len, &mut stage, &config).await.unwrap();
    assert_eq!(stored, PutOutcome::Stored);
    assert_eq!(node.get("block").await.unwrap(), value);
    let got = node.get_into_vram("block", &into, 10, &mut stage).await.unwrap();
    assert_eq!(got, len as u64);
    into.read(10, &host.whole()).unwrap();
    assert_eq!(host.whole().to_vec(), value);

    // A failure costs nothing but the call.
    let missing = node.get_into_vram("missing", &into, 0, &mut stage).await.unwrap_err();
    assert_eq!(missing.code(), ErrorCode::ObjectNotFound);
    let mut short = VramStage::new(&device, 16).unwrap();
    let refused = node.put_from_vram("long", &from, 0..17, &mut short, &config).await.unwrap_err();
    assert!(matches!(refused, VramError::TooLong { len: 17, room: 16 }), "{refused}");
    node.put_from_vram("short", &from, 1..17, &mut short, &config).await.unwrap();
    assert_eq!(node.get("short").await.unwrap(), value[1..17]);

    node.shutdown().await;
    cluster.master.shutdown().await;
}
