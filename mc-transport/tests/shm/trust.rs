//! Peers that are let in, and claims that are believed.

use std::os::unix::fs::MetadataExt;

use mc_transport::shm::{ShmListen, StartError};
use mc_transport::{Access, ConnectError, NodeSecret, ShmConfig, ShmTransport, Transport};
use mc_types::Endpoint;

use super::*;

fn named(name: &str) -> ShmConfig {
    let mut config = ShmConfig::default();
    config.listen = ShmListen::Abstract(name.to_owned());
    config
}

#[tokio::test]
async fn only_the_peer_that_gave_the_secret_is_believed() {
    let _alone = alone().await;
    let (owner, client) = (owner().await, client(ShmConfig::default()).await);
    let at = owner.endpoint().unwrap();
    let proven = client.connect_proven(at, owner.secret()).await.unwrap();
    let sent = NodeSecret::from_bytes(owner.secret().to_bytes());
    let again = client.connect_proven(at, sent).await.unwrap();
    assert!(Arc::ptr_eq(&proven, &again));
    let unproven = client.connect(at).await.unwrap();
    assert!(!Arc::ptr_eq(&proven, &unproven), "it did not prove anything");
    let wrong = client.connect_proven(at, client.secret()).await;
    assert!(matches!(wrong, Err(ConnectError::Impostor { .. })), "{wrong:?}");
    assert!(!wrong.unwrap_err().is_retryable());
    eventually(DEADLINE, "refused connections end", || owner.stats().connections == 2).await;
}

#[tokio::test]
async fn an_owner_may_demand_proof() {
    let _alone = alone().await;
    let mut config = ShmConfig::default();
    config.require_proof = true;
    let owner = ShmTransport::start(config).await.unwrap();
    let client = client(ShmConfig::default()).await;
    let at = owner.endpoint().unwrap();
    let refused = client.connect(at).await;
    assert!(matches!(refused, Err(ConnectError::NotAdmitted { .. })), "{refused:?}");
    assert!(client.connect_proven(at, owner.secret()).await.is_ok());
}

#[tokio::test]
async fn names_are_taken_once() {
    let _alone = alone().await;
    let name = format!("mc-test-{}", std::process::id());
    let first = ShmTransport::start(named(&name)).await.unwrap();
    assert_eq!(first.endpoint().unwrap().as_str(), format!("shm://@{name}"));
    let second = ShmTransport::start(named(&name)).await;
    assert!(matches!(second, Err(StartError::NameInUse { .. })), "{second:?}");
    first.shutdown().await;
    assert!(ShmTransport::start(named(&name)).await.is_ok(), "it was given back");
    for bad in ["", "two words", &"x".repeat(108), "nul\0", "tab\t"] {
        let refused = ShmTransport::start(named(bad)).await;
        assert!(matches!(refused, Err(StartError::BadName { .. })), "{bad:?} {refused:?}");
    }
    let client = client(ShmConfig::default()).await;
    for bad in ["relative/path", "@", "10.0.0.7:1"] {
        let refused = client.connect(&Endpoint::new("shm", bad).unwrap()).await;
        assert!(matches!(refused, Err(ConnectError::BadAddress { .. })), "{refused:?}");
    }
    let gone = client.connect(first.endpoint().unwrap()).await;
    assert!(matches!(gone, Err(ConnectError::Unreachable { .. })), "{gone:?}");
}

#[tokio::test]
async fn a_path_is_open_to_the_users_that_are_admitted() {
    let _alone = alone().await;
    let directory = std::env::temp_dir().join(format!("mc-shm-trust-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let path = directory.join("socket");
    for (users, mode) in [(vec![], 0o600), (vec![65_534], 0o666)] {
        let mut config = ShmConfig::default();
        config.listen = ShmListen::Path(path.clone());
        config.allow_users = users;
        let owner = ShmTransport::start(config.clone()).await.unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, mode);
        let taken = ShmTransport::start(config).await;
        assert!(matches!(taken, Err(StartError::NameInUse { .. })), "{taken:?}");
        let region = owner.register(&owner.allocate(10).unwrap(), Access::Read).unwrap();
        let client = client(ShmConfig::default()).await;
        let link = link_to(&client, &owner).await;
        assert!(one(&*link, read_of(region.key(), 10)).await.is_ok());
        owner.shutdown().await;
        assert!(!path.exists(), "the name is given back");
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

#[tokio::test]
async fn connections_have_a_limit() {
    let _alone = alone().await;
    let mut config = ShmConfig::default();
    config.max_connections = 2;
    let owner = ShmTransport::start(config).await.unwrap();
    let at = owner.endpoint().unwrap();
    let heap = Memory::allocate(10).unwrap();
    let region = owner.register(&heap, Access::Read).unwrap();
    let first = client(ShmConfig::default()).await;
    let second = client(ShmConfig::default()).await;
    let third = client(ShmConfig::default()).await;
    let (link, other) = (first.connect(at).await.unwrap(), second.connect(at).await.unwrap());
    // Until a peer has mapped something, it makes room for others.
    let shared = owner.register(&owner.allocate(10).unwrap(), Access::Read).unwrap();
    for link in [&link, &other] {
        assert!(one(&**link, read_of(shared.key(), 10)).await.is_ok());
    }
    let busy = third.connect(at).await;
    assert!(matches!(busy, Err(ConnectError::Busy { .. })), "{busy:?}");
    assert_eq!(owner.stats().refused_connections, 1);
    let no_stream = one(&*link, read_of(region.key(), 10)).await;
    assert!(is_lost(&no_stream), "a stream needs a place, too: {no_stream:?}");
    assert!(link.is_healthy());
    drop(other);
    second.shutdown().await;
    eventually(DEADLINE, "a place is free", || owner.stats().connections == 1).await;
    assert!(one(&*link, read_of(region.key(), 10)).await.is_ok());
}
