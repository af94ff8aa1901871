//! Access lists through real connections: the callers that are admitted, and the objects that they
//! see.

use std::sync::Arc;
use std::time::Instant;

use bytes::BytesMut;
use mc_meta::{Master, MasterConfig};
use mc_rpc::frame::{self, Hello, Kind};
use mc_rpc::{
    Access, AccessFile, Authenticate, ClientConfig, MasterClient, MasterService, Method, Refusal,
    RpcError, Server, ServerConfig, ServerHandle, SystemClock, Token, blocking, proto,
};
use mc_testkit::eventually_async;
use mc_types::{ClientId, ErrorCode, Time};
use prost::Message;

use crate::common::raw::Raw;
use crate::common::{DEADLINE, master, segment};

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

async fn connect(server: &ServerHandle, token: &str, tenant: &str) -> Result<Raw, Refusal> {
    let (token, tenant) = (token.as_bytes().into(), tenant.into());
    let hello = Hello { token, tenant, ..Hello::default() };
    Raw::connect_as(server, &hello).await
}

async fn ask<T: Message + Default>(
    raw: &mut Raw,
    method: Method,
    request: &impl Message,
) -> Result<T, Refusal> {
    let mut out = BytesMut::new();
    frame::append_frame(&mut out, 1, method.number(), Kind::Request, |out| request.encode(out))
        .unwrap();
    raw.send(&out).await;
    let (header, payload) = raw.frame().await.expect("an answer");
    match header.kind {
        Kind::Reply => Ok(T::decode(&payload[..]).unwrap()),
        _ => Err(frame::parse_refusal(&payload)),
    }
}

async fn put(raw: &mut Raw, key: &str) -> Result<(), Refusal> {
    let client_id = vec![7; 16];
    let start = proto::PutStartRequest {
        key: key.into(),
        value_length: 64,
        client_id: client_id.clone(),
        ..Default::default()
    };
    let grant: proto::PutStartResponse = ask(raw, Method::PutStart, &start).await?;
    let end = proto::PutEndRequest {
        key: key.into(),
        client_id,
        generation: Some(grant.generation),
        put_token: grant.put_token,
        ..Default::default()
    };
    ask::<proto::PutEndResponse>(raw, Method::PutEnd, &end).await?;
    Ok(())
}

async fn exists(raw: &mut Raw, key: &str) -> bool {
    let request = proto::ExistKeyRequest { key: key.into(), ..Default::default() };
    ask::<proto::ExistKeyResponse>(raw, Method::ExistKey, &request).await.unwrap().exists
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
        let refusal = connect(&server, token, tenant).await.err().unwrap();
        assert_eq!(refusal.code, code, "{refusal}");
        assert!(token.is_empty() || !refusal.message.contains(token), "{refusal}");
    }
    assert!(connect(&server, "team-a-0123456789abcdef", "team-a").await.is_ok());
    assert!(connect(&server, "admin-0123456789abcdef", "team-b").await.is_ok());
    assert_eq!(server.metrics().turned_away, 4);
    server.shutdown().await;
}

#[tokio::test]
async fn a_tenant_sees_its_own_objects_only() {
    let server = serve(&with_tenants(), Access::parse(LIST).unwrap()).await;
    let mut a = connect(&server, "team-a-0123456789abcdef", "").await.unwrap();
    let mut b = connect(&server, "team-b-0123456789abcdef", "").await.unwrap();
    put(&mut a, "k").await.unwrap();
    assert!(exists(&mut a, "k").await);
    assert!(!exists(&mut b, "k").await);
    put(&mut b, "k").await.unwrap();
    // Neither can reach the other's by naming it as the master stores it.
    assert!(!exists(&mut b, "\0team-a\0k").await);

    let mut reader = connect(&server, "reader-0123456789abcdef", "").await.unwrap();
    assert!(exists(&mut reader, "k").await);
    let refusal = put(&mut reader, "other").await.unwrap_err();
    assert_eq!(refusal.code, ErrorCode::PermissionDenied);
    assert!(refusal.message.contains("writer"), "{refusal}");

    let everything = proto::RemoveAllRequest { force: true };
    let removed = ask::<proto::RemoveAllResponse>(&mut a, Method::RemoveAll, &everything).await;
    assert_eq!(removed.unwrap().removed, 1);
    assert!(!exists(&mut reader, "k").await);
    assert!(exists(&mut b, "k").await);
    let report = ask::<proto::ClusterReportResponse>(
        &mut a,
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
    assert!(connect(&server, old, "").await.is_ok());
    std::fs::write(&path, "token:another-0123456789abcdef reader").unwrap();
    let is_refused = async || connect(&server, old, "").await.is_err();
    eventually_async(DEADLINE, "the old token is refused", is_refused).await;
    assert!(connect(&server, "another-0123456789abcdef", "").await.is_ok());
    server.shutdown().await;
}

/// A client that was denied and asks again, which keeps connections as long as it can.
struct Denied {
    _folder: tempfile::TempDir,
    path: std::path::PathBuf,
    server: ServerHandle,
}

impl Denied {
    const TOKEN: &str = "node-0123456789abcdef";

    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("access");
        std::fs::write(&path, format!("token:{} reader", Self::TOKEN)).unwrap();
        let server = serve(&master(), AccessFile::load(&path).unwrap()).await;
        Self { _folder: folder, path, server }
    }

    fn client(&self) -> (String, ClientConfig) {
        let mut config = ClientConfig::default();
        config.token = Some(Token::new(Self::TOKEN).unwrap());
        (self.server.local_addr().to_string(), config)
    }

    fn mend(&self) {
        std::fs::write(&self.path, format!("token:{} node", Self::TOKEN)).unwrap();
    }
}

fn is_denied(answer: Result<(), RpcError>) -> bool {
    answer.is_err_and(|error| error.code() == ErrorCode::PermissionDenied)
}

/// Fails when a client has made more connections than its back-off allows in this time.
fn assert_rare(connections: u64, since: Instant) {
    let most = 3 + since.elapsed().as_millis() / 250;
    assert!(u128::from(connections) <= most, "{connections}, and at most {most}");
}

#[tokio::test]
async fn a_client_that_was_denied_has_the_role_of_a_mended_list_soon() {
    let denied = Denied::start().await;
    let (addr, mut config) = denied.client();
    config.connections = 2;
    let client = MasterClient::connect(&addr, config).await.unwrap();
    let me = ClientId::from_u128(7);
    let mount = async || client.mount_segment(me, &segment(1, 1 << 20)).await.map(drop);
    let begun = Instant::now();
    for _ in 0..500 {
        assert!(is_denied(mount().await));
        // What the role allows goes on.
        client.ping(me).await.unwrap();
    }
    assert_rare(client.metrics().connections_made, begun);
    denied.mend();
    eventually_async(DEADLINE, "the client has the role node", mount).await;
    let made = client.metrics().connections_made;
    client.ping(me).await.unwrap();
    assert_eq!(client.metrics().connections_made, made, "and keeps its connections");
    denied.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocking_client_that_was_denied_has_the_role_of_a_mended_list_soon() {
    let denied = Denied::start().await;
    let (addr, config) = denied.client();
    let client = blocking::MasterClient::lazy(&addr, config);
    let me = ClientId::from_u128(7);
    let made = client.clone();
    let begun = Instant::now();
    let mount = move || client.mount_segment(me, &segment(1, 1 << 20)).map(drop);
    let mount = tokio::task::spawn_blocking(move || {
        for _ in 0..500 {
            assert!(is_denied(mount()));
        }
        mount
    });
    let mount = Arc::new(mount.await.unwrap());
    assert_rare(made.metrics().connections_made, begun);
    denied.mend();
    let mount = async || {
        let mount = Arc::clone(&mount);
        tokio::task::spawn_blocking(move || mount()).await.unwrap()
    };
    eventually_async(DEADLINE, "the client has the role node", mount).await;
    denied.server.shutdown().await;
}
