//! Values in a GPU's memory. Needs a GPU, and says loudly where there is none.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::Write as _;

use mc_cluster_testkit::Cluster;
use mc_cuda::{Cuda, CudaDevice, CudaError};
use mc_store::{
    ByteSize, Client, ErrorCode, Master, MediaType, PutOutcome, ReplicateConfig, SegmentError,
    StartError, VramError, VramStage,
};

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
    let stored =
        node.put_from_vram("block", &from, 0..len, &mut stage, &config, None).await.unwrap();
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
    let refused =
        node.put_from_vram("long", &from, 0..17, &mut short, &config, None).await.unwrap_err();
    assert!(matches!(refused, VramError::TooLong { len: 17, room: 16 }), "{refused}");
    node.put_from_vram("short", &from, 1..17, &mut short, &config, None).await.unwrap();
    assert_eq!(node.get("short").await.unwrap(), value[1..17]);

    node.shutdown().await;
    cluster.master.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_segment_lives_in_a_gpu() {
    let has_gpu = gpu().is_some();
    let master = Master::builder().start().await.unwrap();
    let client = || Client::builder().master(master.local_addr().to_string());
    let node = client()
        .listen("127.0.0.1:0".parse().unwrap())
        .segment_size(ByteSize::mib(16))
        .segment_medium(MediaType::Vram);
    if has_gpu {
        let (node, app) = (node.connect().await.unwrap(), client().connect().await.unwrap());
        assert_eq!(node.segments()[0].medium, MediaType::Vram);
        let value: Vec<u8> = (0..3 << 20).map(|at: u32| (at * 7 % 251) as u8).collect();
        app.put("block", value.clone()).await.unwrap();
        for reader in [&node, &app] {
            assert_eq!(reader.get("block").await.unwrap(), value);
            assert_eq!(reader.get_range("block", 5..2 << 20).await.unwrap(), value[5..2 << 20]);
        }
        app.shutdown().await;
        node.shutdown().await;
    }
    let node = client()
        .listen("127.0.0.1:0".parse().unwrap())
        .segment_size(ByteSize::mib(16))
        .segment_medium(MediaType::Vram)
        .segment_device(1 << 20);
    let refused = node.connect().await.unwrap_err();
    let StartError::Segment(refused @ SegmentError::Gpu { source, .. }) = &refused else {
        panic!("{refused}")
    };
    assert!(refused.to_string().contains("segment_device"), "{refused}");
    let is_named = matches!(source, CudaError::NoDriver { .. } | CudaError::OldDriver { .. });
    assert!(is_named || matches!(source, CudaError::Failed { .. }), "{source}");
    assert!(has_gpu || source.to_string().contains("NVIDIA"), "{source}");
    master.shutdown().await;
}
