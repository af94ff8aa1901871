//! Who gets in, and whose objects they see, through real connections.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::sync::Arc;

use bytes::BytesMut;
use common::{PATIENCE, master, segment};
use mc_meta::{Master, MasterConfig};
use mc_rpc::frame::{self, ClientPreface, HEADER_LEN, Hello, Kind, ServerPreface};
use mc_rpc::{
    Access, AccessFile, Authenticate, MasterService, Method, Refusal, Server, ServerConfig,
    ServerHandle, SystemClock, proto,
};
use mc_types::{ClientId, ErrorCode, Time};
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

const LIST: &str = "
    token:admin-0123456789abcdef    admin
    token:team-a-0123456789abcdef   writer  team-a
    token:team-b-0123456789abcdef   writer  team-b
    token:reader-0123456789abcdef   reader  team-a
";

async fn serve(master: &Arc<Master>, authenticator: impl Authenticate) -> ServerHandle {
    let mut config = ServerConfig::default();
    config.authenticator = Some(Arc::new(authenticator));
    let service = MasterService::new(Arc::clone(master), SystemClock::new());
    Server::bind("127.0.0.1:0", service, config).await.unwrap().spawn()
}

struct Raw(TcpStream);

impl Raw {
    async fn connect(server: &ServerHandle, token: &str, tenant: &str) -> Result<Self, Refusal> {
        let mut stream = TcpStream::connect(server.local_addr()).await.unwrap();
        let hello = Hello { session: 0, token: token.as_bytes().into(), tenant: tenant.into() };
        stream.write_all(&ClientPreface::with(16 << 20, &hello)).await.unwrap();
        let mut answer = [0; frame::SERVER_PREFACE_LEN];
        timeout(PATIENCE, stream.read_exact(&mut answer)).await.unwrap().unwrap();
        let answer = ServerPreface::parse(&answer).unwrap();
        let mut words = vec![0; answer.message_len.into()];
        stream.read_exact(&mut words).await.unwrap();
        answer.refusal(&words).map_or(Ok(Self(stream)), Err)
    }

    async fn ask<T: Message + Default>(
        &mut self,
        method: Method,
        request: &impl Message,
    ) -> Result<T, Refusal> {
        let mut out = BytesMut::new();
        frame::append_frame(&mut out, 1, method.number(), Kind::Request, |out| request.encode(out))
            .unwrap();
        self.0.write_all(&out).await.unwrap();
        let mut arrived = BytesMut::new();
        loop {
            if let Some((header, payload)) = frame::first_frame(&arrived, u32::MAX).unwrap() {
                assert_eq!(arrived.len(), HEADER_LEN + payload.len());
                return match header.kind {
                    Kind::Reply => Ok(T::decode(payload).unwrap()),
                    _ => Err(frame::parse_refusal(payload)),
                };
            }
            let read = timeout(PATIENCE, self.0.read_buf(&mut arrived)).await.unwrap().unwrap();
            assert_ne!(read, 0, "closed");
        }
    }

    async fn put(&mut self, key: &str) -> Result<(), Refusal> {
        let client_id = vec![7; 16];
        let start = proto::PutStartRequest {
            key: key.into(),
            value_length: 64,
            client_id: client_id.clone(),
            ..Default::default()
        };
        self.ask::<proto::PutStartResponse>(Method::PutStart, &start).await?;
        let end = proto::PutEndRequest { key: key.into(), client_id, ..Default::default() };
        self.ask::<proto::PutEndResponse>(Method::PutEnd, &end).await?;
        Ok(())
    }

    async fn exists(&mut self, key: &str) -> bool {
        let request = proto::ExistKeyRequest { key: key.into() };
        let answer = self.ask::<proto::ExistKeyResponse>(Method::ExistKey, &request).await;
        answer.unwrap().exists
    }
}

fn with_tenants() -> Arc<Master> {
    let mut config = MasterConfig::default();
    config.multi_tenant = true;
    let master = Arc::new(Master::new(config, 3).unwrap());
    let mounted = master.mount_segment(Time::ORIGIN, ClientId::from_u128(9), segment(1, 1 << 20));
    mounted.unwrap();
    for tenant in ["team-a", "team-b"] {
        master.set_tenant_quota(Time::ORIGIN, &tenant.parse().unwrap(), 1 << 18).unwrap();
    }
    master
}

#[tokio::test]
async fn only_those_who_are_known_get_in() {
    let server = serve(&master(), Access::parse(LIST).unwrap()).await;
    for (token, tenant, code) in [
        ("", "", ErrorCode::Unauthenticated),
        ("team-a-0123456789abcdeX", "", ErrorCode::Unauthenticated),
        ("team-a-0123456789abcdef", "team-b", ErrorCode::PermissionDenied),
        ("admin-0123456789abcdef", "no/name", ErrorCode::InvalidParams),
    ] {
        let refusal = Raw::connect(&server, token, tenant).await.err().unwrap();
        assert_eq!(refusal.code, code, "{refusal}");
        assert!(token.is_empty() || !refusal.message.contains(token), "{refusal}");
    }
    assert!(Raw::connect(&server, "team-a-0123456789abcdef", "team-a").await.is_ok());
    assert!(Raw::connect(&server, "admin-0123456789abcdef", "team-b").await.is_ok());
    assert_eq!(server.metrics().turned_away, 4);
    server.shutdown().await;
}

#[tokio::test]
async fn a_tenant_sees_its_own_objects_only() {
    let server = serve(&with_tenants(), Access::parse(LIST).unwrap()).await;
    let mut a = Raw::connect(&server, "team-a-0123456789abcdef", "").await.unwrap();
    let mut b = Raw::connect(&server, "team-b-0123456789abcdef", "").await.unwrap();
    a.put("k").await.unwrap();
    assert!(a.exists("k").await);
    assert!(!b.exists("k").await);
    b.put("k").await.unwrap();
    // Neither can reach the other's by naming it as the master stores it.
    assert!(!b.exists("\0team-a\0k").await);

    let mut reader = Raw::connect(&server, "reader-0123456789abcdef", "").await.unwrap();
    assert!(reader.exists("k").await);
    let refusal = reader.put("other").await.unwrap_err();
    assert_eq!(refusal.code, ErrorCode::PermissionDenied);
    assert!(refusal.message.contains("writer"), "{refusal}");

    let everything = proto::RemoveAllRequest { force: true };
    let removed = a.ask::<proto::RemoveAllResponse>(Method::RemoveAll, &everything).await;
    assert_eq!(removed.unwrap().removed, 1);
    assert!(!reader.exists("k").await);
    assert!(b.exists("k").await);
    let report = a.ask::<proto::ClusterReportResponse>(
        Method::ClusterReport,
        &proto::ClusterReportRequest {},
    );
    assert_eq!(report.await.unwrap_err().code, ErrorCode::PermissionDenied);
    server.shutdown().await;
}

#[tokio::test]
async fn a_list_that_changes_holds_without_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("access");
    std::fs::write(&path, LIST).unwrap();
    let server = serve(&master(), AccessFile::load(&path).unwrap()).await;
    let old = "reader-0123456789abcdef";
    assert!(Raw::connect(&server, old, "").await.is_ok());
    std::fs::write(&path, "token:another-0123456789abcdef reader").unwrap();
    let begin = std::time::Instant::now();
    while Raw::connect(&server, old, "").await.is_ok() {
        assert!(begin.elapsed() < PATIENCE);
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert!(Raw::connect(&server, "another-0123456789abcdef", "").await.is_ok());
    server.shutdown().await;
}
