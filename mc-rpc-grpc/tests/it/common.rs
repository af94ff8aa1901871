//! A real master behind a real server, which answers over gRPC too.

use std::sync::Arc;
use std::time::Duration;

use mc_meta::{Master, MasterConfig, SegmentSpec};
use mc_rpc::{
    ClientConfig, MasterClient, MasterService, Server, ServerConfig, ServerHandle, SystemClock,
};
use mc_rpc_grpc::Grpc;
use mc_types::{ClientId, Endpoint, KeyRef, RemoteKey, SegmentId};

/// How long anything may take before a test gives up.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

pub(crate) const ME: ClientId = ClientId::from_u128(0xc11e47);

pub(crate) fn key(text: &str) -> KeyRef<'_> {
    KeyRef::new(text).unwrap()
}

pub(crate) fn segment(number: u8, size: u64) -> SegmentSpec {
    SegmentSpec {
        id: SegmentId::from_u128(0x5e9_0000 + u128::from(number)),
        name: format!("node-{number}").into(),
        base: 0x7f00_0000_0000,
        size,
        endpoint: Endpoint::new("tcp", &format!("10.0.0.{number}:50052")).unwrap(),
        remote_key: RemoteKey::from_bytes([number; 16]),
        ticket_key: None,
        medium: mc_types::MediaType::Dram,
    }
}

pub(crate) fn master() -> Arc<Master> {
    Arc::new(Master::new(MasterConfig::default(), 11).unwrap())
}

pub(crate) async fn serve(master: &Arc<Master>, config: ServerConfig) -> ServerHandle {
    let service = MasterService::new(Arc::clone(master), SystemClock::new());
    let server = Server::bind("127.0.0.1:0", service, config).await.unwrap();
    server.with_guest(Arc::new(Grpc::new())).spawn()
}

pub(crate) async fn connect(server: &ServerHandle) -> MasterClient {
    MasterClient::connect(&server.local_addr().to_string(), ClientConfig::default()).await.unwrap()
}
