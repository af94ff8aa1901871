//! A master that does not lead: it names the leader, answers administrators, and makes room at once
//! for the server of a leader at its port. And what masters tell of their part.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, UNIX_EPOCH};

use mc_rpc::{
    ClientConfig, DurabilityMode, ElectionOutage, FollowerStatus, HaReport, HaRole, HaStatus,
    MasterClient, MasterService, Refusal, RpcError, Server, ServerConfig, ServerHandle,
    SnapshotStatus, Standby, SystemClock, blocking,
};
use mc_types::{Epoch, ErrorCode, Sequence};

use crate::common::leader::leader;
use crate::common::{connect, key, master, serve, serve_at, spawn_with_grpc};

/// Reports this status, and keeps the member to hand over to.
#[derive(Debug)]
struct Report {
    status: HaStatus,
    handed: Mutex<Vec<Option<String>>>,
}

impl Report {
    fn new(status: HaStatus) -> Arc<Self> {
        Arc::new(Self { status, handed: Mutex::default() })
    }
}

impl HaReport for Report {
    fn ha_status(&self) -> HaStatus {
        self.status.clone()
    }

    fn hand_over(&self, to: Option<&str>) -> Result<(), Refusal> {
        if self.status.role != HaRole::Leader {
            let message = "this master does not lead";
            return Err(Refusal::new(ErrorCode::UnavailableInCurrentStatus, message));
        }
        self.handed.lock().unwrap().push(to.map(str::to_owned));
        Ok(())
    }
}

fn standby(leader: Option<&str>) -> HaStatus {
    let leader = leader.map(Into::into);
    HaStatus { role: HaRole::Standby, epoch: Some(Epoch::new(3)), leader, ..HaStatus::default() }
}

async fn serve_standby(addr: &str, status: HaStatus) -> ServerHandle {
    let service = Standby::new(Report::new(status));
    spawn_with_grpc(Server::bind(addr, service, ServerConfig::default()).await.unwrap())
}

/// For one attempt.
fn once() -> ClientConfig {
    let mut config = ClientConfig::default();
    config.retry = false;
    config
}

fn administration() -> ClientConfig {
    let mut config = once();
    config.administration = true;
    config
}

#[tokio::test]
async fn a_standby_names_the_leader_and_answers_administrators() {
    for (leader, words) in [
        (Some("10.0.0.1:50051"), "this master is a standby; the leader is 10.0.0.1:50051"),
        (None, "knows no leader now"),
    ] {
        let server = serve_standby("127.0.0.1:0", standby(leader)).await;
        let addr = server.local_addr().to_string();
        let refused = MasterClient::connect(&addr, once()).await.unwrap_err();
        assert_eq!(refused.code(), ErrorCode::UnavailableInCurrentStatus);
        assert!(refused.to_string().contains(words), "{refused}");

        let client = MasterClient::connect(&addr, administration()).await.unwrap();
        assert_eq!(client.ha_status().await.unwrap(), standby(leader));
        let refused = client.exist(key("k")).await.unwrap_err();
        assert_eq!(refused.code(), ErrorCode::UnavailableInCurrentStatus);
        assert!(refused.to_string().contains(words), "{refused}");
        let refused = client.hand_over(None).await.unwrap_err();
        assert!(refused.to_string().contains("does not lead"), "{refused}");
        let at = addr.clone();
        let told = tokio::task::spawn_blocking(move || {
            blocking::MasterClient::connect(&at, administration()).unwrap().ha_status().unwrap()
        });
        assert_eq!(told.await.unwrap(), standby(leader));
    }
}

/// Knows the leader; to find out more would take time.
#[derive(Debug)]
struct LeaderOnly;

impl HaReport for LeaderOnly {
    fn ha_status(&self) -> HaStatus {
        unreachable!("a refusal needs the leader alone")
    }

    fn leader(&self) -> Option<Box<str>> {
        Some("10.0.0.1:50051".into())
    }

    fn hand_over(&self, _: Option<&str>) -> Result<(), Refusal> {
        Ok(())
    }
}

#[tokio::test]
async fn a_refusal_of_a_standby_asks_for_the_leader_alone() {
    let service = Standby::new(Arc::new(LeaderOnly));
    let server = Server::bind("127.0.0.1:0", service, ServerConfig::default()).await.unwrap();
    let server = server.spawn();
    let addr = server.local_addr().to_string();
    let refused = MasterClient::connect(&addr, once()).await.unwrap_err();
    assert!(refused.to_string().contains("; the leader is 10.0.0.1:50051"), "{refused}");
}

#[tokio::test]
async fn everything_that_a_master_reports_is_told() {
    let status = HaStatus {
        role: HaRole::Leader,
        epoch: Some(Epoch::new(9)),
        member: "m1".into(),
        address: "10.0.0.1:50051".into(),
        leader: Some("10.0.0.1:50051".into()),
        position: Some(Sequence::new(1000)),
        followers: vec![FollowerStatus {
            member: "m2".into(),
            address: "10.0.0.2:50051".into(),
            position: Sequence::new(990),
            lag: 10,
            behind_for: Duration::from_millis(20),
        }],
        in_sync: vec!["m1".into(), "m2".into()],
        snapshot: Some(SnapshotStatus {
            position: Sequence::new(500),
            age: Duration::from_secs(60),
        }),
        journal_bytes: 1 << 40,
        snapshot_bytes: 5,
        failed_snapshots: 6,
        notice: Some("the disk is slow".into()),
        durability: DurabilityMode::Sync,
        election_outage: Some(ElectionOutage {
            lasts: Duration::from_secs(3),
            cause: "no quorum".into(),
        }),
        waits_because: Some("the journal of m2 reaches further".into()),
        version: Some("0.1.0".into()),
        clock: Some(UNIX_EPOCH + Duration::from_millis(1_700_000_000_123)),
    };
    let report = Report::new(status.clone());
    let service = MasterService::new(master(), SystemClock::new())
        .with_ha(Arc::clone(&report) as Arc<dyn HaReport>);
    let server = Server::bind("127.0.0.1:0", service, leader(9).0).await.unwrap().spawn();
    let client = connect(&server).await;
    assert_eq!(client.ha_status().await.unwrap(), status);
    client.hand_over(Some("m2")).await.unwrap();
    client.hand_over(None).await.unwrap();
    assert_eq!(*report.handed.lock().unwrap(), [Some("m2".to_owned()), None]);
    for (role, durability) in [
        (HaRole::Recovering, DurabilityMode::Async),
        (HaRole::Standby, DurabilityMode::None),
        (HaRole::Alone, DurabilityMode::None),
    ] {
        let status = HaStatus { role, durability, ..HaStatus::default() };
        let server = serve_standby("127.0.0.1:0", status.clone()).await;
        let addr = server.local_addr().to_string();
        let client = MasterClient::connect(&addr, administration()).await.unwrap();
        assert_eq!(client.ha_status().await.unwrap(), status);
    }
}

#[tokio::test]
async fn a_master_without_a_report_is_alone() {
    let server = serve(&master(), ServerConfig::default()).await;
    let client = connect(&server).await;
    assert_eq!(client.ha_status().await.unwrap(), HaStatus::default());
    let refused = client.hand_over(None).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::UnavailableInCurrentMode, "{refused}");
    let client = MasterClient::connect(&server.local_addr().to_string(), administration()).await;
    assert!(!client.unwrap().exist(key("k")).await.unwrap(), "a leader takes it as any other");
}

#[tokio::test]
async fn standby_and_leader_take_turns_at_one_port() {
    let mut standing = serve_standby("127.0.0.1:0", standby(None)).await;
    let addr = standing.local_addr().to_string();
    let mut config = ClientConfig::default();
    config.local_socket = false;
    let mut old = None;
    for turn in 0..5 {
        let admin = MasterClient::connect(&addr, administration()).await.unwrap();
        assert_eq!(admin.ha_status().await.unwrap().role, HaRole::Standby);
        let begun = Instant::now();
        standing.close().await;
        let leading = serve_at(&addr, &master(), leader(turn + 1).0).await;
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(2), "{took:?}");
        let client = MasterClient::connect(&addr, config.clone()).await.unwrap();
        assert!(!client.exist(key("k")).await.unwrap());
        // With a connection open, and one that waits to be taken.
        let waiting = std::net::TcpStream::connect(&addr).unwrap();
        let begun = Instant::now();
        leading.close().await;
        standing = serve_standby(&addr, standby(None)).await;
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(2), "{took:?}");
        old = Some((client, waiting));
    }
    // A client of the leader does not take the standby for it.
    let (client, _) = old.unwrap();
    let mut refused = std::pin::pin!(client.exist(key("k")));
    let early = tokio::time::timeout(Duration::from_millis(300), &mut refused).await;
    assert!(!matches!(early, Ok(Ok(_))), "{early:?}");
    // In good order it goes as well, and soon.
    let begun = Instant::now();
    standing.shutdown().await;
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    let refused = MasterClient::connect(&addr, once()).await.unwrap_err();
    assert!(matches!(refused, RpcError::Unreachable { .. }), "{refused}");
}

#[tokio::test]
async fn a_standby_does_not_serve_over_grpc() {
    use std::str::FromStr;

    use mc_rpc::proto::{
        ExistKeyRequest, ExistKeyResponse, HaStatusRequest, HaStatusResponse, ha_status_response,
    };
    use tonic::transport::Endpoint;
    use tonic_health::pb::HealthCheckRequest;
    use tonic_health::pb::health_check_response::ServingStatus;
    use tonic_health::pb::health_client::HealthClient;
    use tonic_prost::ProstCodec;

    let server = serve_standby("127.0.0.1:0", standby(Some("a:1"))).await;
    let endpoint = Endpoint::from_shared(format!("http://{}", server.local_addr())).unwrap();
    let channel = endpoint.connect().await.unwrap();
    let request = HealthCheckRequest { service: String::new() };
    let health = HealthClient::new(channel.clone()).check(request).await.unwrap();
    assert_eq!(health.into_inner().status(), ServingStatus::NotServing);

    let path =
        |name| http::uri::PathAndQuery::from_str(&format!("/mc.store.v1.MasterService/{name}"));
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.unwrap();
    let codec = ProstCodec::<_, HaStatusResponse>::default();
    let request = tonic::Request::new(HaStatusRequest {});
    let told = client.unary(request, path("HaStatus").unwrap(), codec).await.unwrap().into_inner();
    assert_eq!(told.role(), ha_status_response::Role::Standby);
    client.ready().await.unwrap();
    let codec = ProstCodec::<_, ExistKeyResponse>::default();
    let request = tonic::Request::new(ExistKeyRequest { key: "k".into(), ..Default::default() });
    let refused = client.unary(request, path("ExistKey").unwrap(), codec).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::FailedPrecondition);
    assert!(refused.message().contains("the leader is a:1"), "{refused}");
}
