//! RDMA as a shortcut of a node.

use std::sync::Arc;

use bytes::Bytes;
use mc_testkit::{eventually, eventually_async};
use mc_transport::{
    Access, Link as _, Memory, Node, NodeConfig, NodeLink, Operation, Region, RemoteSpan,
    TcpConfig, Transport as _,
};
use mc_transport_rdma::{RdmaConfig, RdmaTransport};
use mc_types::Extent;

use crate::rig::{DEADLINE, alone, owning, reaching};

async fn node(listens: bool, rdma: Option<RdmaConfig>) -> Node {
    let tcp = match listens {
        true => TcpConfig::listening("127.0.0.1:0".parse().unwrap()),
        false => TcpConfig::default(),
    };
    let mut config = NodeConfig::new(tcp);
    config.disable_shared_memory();
    if let Some(rdma) = rdma {
        config.add_shortcut(rdma);
    }
    Node::start(config).await.unwrap()
}

fn rdma_of(node: &Node) -> Option<&RdmaTransport> {
    node.shortcut()
}

/// The link to `owner`, once it takes RDMA.
async fn rdma_link(peer: &Node, owner: &Node) -> Arc<NodeLink> {
    eventually_async(DEADLINE, "RDMA between two nodes", async || {
        let link = peer.connect(owner.endpoint().unwrap()).await.unwrap();
        if link.scheme() == "rdma" { Ok(link) } else { Err(link.scheme()) }
    })
    .await
}

fn span(region: &Region, offset: u64, len: u64) -> RemoteSpan {
    RemoteSpan::new(region.key(), Extent::new(offset, len).unwrap())
}

async fn writes_and_reads(link: &NodeLink, region: &Region, text: &'static [u8]) {
    let there = span(region, 10, text.len() as u64);
    let back = Memory::allocate(text.len()).unwrap();
    let write = Operation::write(Bytes::from_static(text), there).checksummed();
    let written = link.submit(vec![write]).await.remove(0).unwrap();
    let read = Operation::read(there, back.whole()).checksummed();
    let read = link.submit(vec![read]).await.remove(0).unwrap();
    assert_eq!(back.whole().to_vec(), text);
    assert_eq!(written.checksum, read.checksum);
}

#[tokio::test]
async fn bytes_go_by_rdma_where_both_sides_have_it() {
    let Some(_alone) = alone() else { return };
    let owner = node(true, Some(owning())).await;
    let peer = node(false, Some(reaching())).await;
    assert!(rdma_of(&owner).is_some() && rdma_of(&peer).is_some());
    let memory = owner.allocate(8 << 20).unwrap();
    let region = owner.register(&memory, Access::ReadWrite).unwrap();
    let link = rdma_link(&peer, &owner).await;
    writes_and_reads(&link, &region, b"over queue pairs").await;
    // A region that was not there when the link was made.
    let second = owner.register(&memory, Access::ReadWrite).unwrap();
    writes_and_reads(&link, &second, b"under another key").await;
    assert_eq!(link.scheme(), "rdma");
    let old = span(&second, 0, 1);
    second.withdraw().await;
    let refused =
        link.submit(vec![Operation::write(Bytes::from_static(b"x"), old)]).await.remove(0);
    assert!(matches!(refused, Err(mc_transport::TransferError::KeyRefused)), "{refused:?}");
    writes_and_reads(&link, &region, b"and the first goes on").await;
    owner.shutdown().await;
    peer.shutdown().await;
}

#[tokio::test]
async fn bytes_go_by_tcp_where_one_side_has_no_rdma() {
    let Some(_alone) = alone() else { return };
    for (ours, theirs) in [(None, Some(reaching())), (Some(owning()), None)] {
        let (owner, peer) = (node(true, ours).await, node(false, theirs).await);
        let memory = owner.allocate(4096).unwrap();
        let region = owner.register(&memory, Access::ReadWrite).unwrap();
        let link = peer.connect(owner.endpoint().unwrap()).await.unwrap();
        assert_eq!(link.scheme(), "tcp");
        writes_and_reads(&link, &region, b"over a stream").await;
    }
}

#[tokio::test]
async fn a_device_that_does_not_exist_leaves_tcp() {
    let Some(_alone) = alone() else { return };
    let mut config = RdmaConfig::default();
    config.devices = vec!["mlx5_77".to_owned()];
    let owner = node(true, Some(config)).await;
    assert!(rdma_of(&owner).is_none());
    let peer = node(false, Some(reaching())).await;
    let memory = owner.allocate(4096).unwrap();
    let region = owner.register(&memory, Access::ReadWrite).unwrap();
    let link = peer.connect(owner.endpoint().unwrap()).await.unwrap();
    writes_and_reads(&link, &region, b"all the same").await;
}

#[tokio::test]
async fn bytes_go_by_tcp_once_the_peer_has_no_rdma_any_more() {
    let Some(_alone) = alone() else { return };
    let owner = node(true, Some(owning())).await;
    let peer = node(false, Some(reaching())).await;
    let memory = owner.allocate(1 << 20).unwrap();
    let region = owner.register(&memory, Access::ReadWrite).unwrap();
    let link = rdma_link(&peer, &owner).await;
    writes_and_reads(&link, &region, b"first by RDMA").await;
    rdma_of(&owner).unwrap().shutdown().await;
    eventually(DEADLINE, "the loss of the queue pairs shows", || link.scheme() != "rdma").await;
    writes_and_reads(&link, &region, b"then by TCP").await;
}
