//! Streams over which standbys get the leader's journal: who gets one, and how it ends.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::thread;

use mc_rpc::frame::{Hello, Purpose};
use mc_rpc::{
    ByteStream, Caller, ClientConfig, HaReport, HaStatus, JournalStream, Presented, Refusal, Role,
    RpcError, Server, ServerConfig, Standby, TakeStream, Taking, Token,
};
use mc_testkit::eventually;
use mc_types::{Epoch, ErrorCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use crate::common::fake::{accept, accept_timed, listen};
use crate::common::leader::{Switch, leader};
use crate::common::{DEADLINE, connect, master, serve};

/// Sends back what arrives.
#[derive(Debug, Default)]
struct Echo {
    peers: Mutex<Vec<Option<SocketAddr>>>,
}

impl TakeStream for Echo {
    fn take<'a>(&'a self, mut stream: Box<dyn ByteStream>, peer: Option<SocketAddr>) -> Taking<'a> {
        self.peers.lock().unwrap().push(peer);
        Box::pin(async move {
            let mut buffer = [0; 4096];
            while let Ok(len @ 1..) = stream.read(&mut buffer).await {
                if stream.write_all(&buffer[..len]).await.is_err() || stream.flush().await.is_err()
                {
                    return;
                }
            }
        })
    }
}

fn journal_leader(epoch: u64) -> (ServerConfig, Switch, Arc<Echo>) {
    let (mut config, switch) = leader(epoch);
    let echo = Arc::new(Echo::default());
    config.upgrade = Some(Arc::clone(&echo) as Arc<dyn TakeStream>);
    (config, switch, echo)
}

async fn echoes(stream: &mut JournalStream) {
    let mut back = [0; 5];
    // Bytes that are no frame, and are all of the stream's own.
    stream.stream.write_all(b"\xff\xff\xff\xff\0").await.unwrap();
    stream.stream.flush().await.unwrap();
    timeout(DEADLINE, stream.stream.read_exact(&mut back)).await.unwrap().unwrap();
    assert_eq!(&back, b"\xff\xff\xff\xff\0");
}

async fn ends(stream: &mut JournalStream) {
    let read = timeout(DEADLINE, stream.stream.read(&mut [0; 8])).await.unwrap();
    assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
}

#[tokio::test]
async fn a_leader_hands_its_streams_on() {
    let (config, _switch, echo) = journal_leader(5);
    let server = serve(&master(), config).await;
    let addr = server.local_addr().to_string();
    let mut stream = JournalStream::connect(&addr, ClientConfig::default()).await.unwrap();
    assert_eq!((stream.epoch, &*stream.addr), (Some(Epoch::new(5)), &*addr));
    echoes(&mut stream).await;
    assert!(matches!(echo.peers.lock().unwrap()[..], [Some(peer)] if peer.ip().is_loopback()));
    // One connection of the server, beside those with calls.
    assert_eq!(server.metrics().connections, 1);
    let client = connect(&server).await;
    assert_eq!(server.metrics().connections, 2);
    drop((stream, client));
    let gone = || server.metrics().connections == 0;
    eventually(DEADLINE, "both are gone", gone).await;

    let mut stream = JournalStream::connect(&addr, ClientConfig::default()).await.unwrap();
    echoes(&mut stream).await;
    server.shutdown().await;
    ends(&mut stream).await;
}

/// Takes a token for the role of this name.
#[derive(Debug)]
struct Roles;

impl mc_rpc::Authenticate for Roles {
    fn identify(&self, presented: &Presented<'_>) -> Result<Arc<Caller>, Refusal> {
        let name = presented.token.and_then(|token| std::str::from_utf8(token).ok());
        let role: Option<Role> = name.and_then(|name| name.parse().ok());
        let role =
            role.ok_or_else(|| Refusal::new(ErrorCode::Unauthenticated, "name your role"))?;
        Ok(Arc::new(Caller::new("standby", role)))
    }
}

async fn refusal(addr: &str, config: ClientConfig) -> RpcError {
    JournalStream::connect(addr, config).await.unwrap_err()
}

#[tokio::test]
async fn only_administrators_get_one() {
    let (mut config, _switch, echo) = journal_leader(5);
    config.authenticator = Some(Arc::new(Roles));
    let server = serve(&master(), config).await;
    let addr = server.local_addr().to_string();
    for role in Role::ALL {
        let mut config = ClientConfig::default();
        config.token = Some(Token::new(role.as_str()).unwrap());
        match JournalStream::connect(&addr, config).await {
            Ok(mut stream) => {
                assert_eq!(role, Role::Admin);
                echoes(&mut stream).await;
            }
            Err(error) => {
                assert_ne!(role, Role::Admin, "{error}");
                assert_eq!(error.code(), ErrorCode::PermissionDenied, "{error}");
            }
        }
    }
    let error = refusal(&addr, ClientConfig::default()).await;
    assert_eq!(error.code(), ErrorCode::Unauthenticated, "{error}");
    assert_eq!(echo.peers.lock().unwrap().len(), 1);
}

#[derive(Debug)]
struct Nothing;

impl HaReport for Nothing {
    fn ha_status(&self) -> HaStatus {
        HaStatus::default()
    }

    fn hand_over(&self, _: Option<&str>) -> Result<(), Refusal> {
        Ok(())
    }
}

#[tokio::test]
async fn a_master_that_does_not_lead_has_none() {
    let alone = serve(&master(), ServerConfig::default()).await;
    let error = refusal(&alone.local_addr().to_string(), ClientConfig::default()).await;
    assert_eq!(error.code(), ErrorCode::UnavailableInCurrentMode, "{error}");

    let (config, switch, _) = journal_leader(5);
    let former = serve(&master(), config).await;
    switch.end();
    let mut config = ServerConfig::default();
    config.upgrade = Some(Arc::new(Echo::default()));
    let standby = Standby::new(Arc::new(Nothing));
    let standby = Server::bind("127.0.0.1:0", standby, config).await.unwrap().spawn();
    for server in [&former, &standby] {
        let error = refusal(&server.local_addr().to_string(), ClientConfig::default()).await;
        assert_eq!(error.code(), ErrorCode::UnavailableInCurrentStatus, "{error}");
    }
    // The one of several that leads.
    let (config, _switch, _) = journal_leader(6);
    let server = serve(&master(), config).await;
    let all = [&former, &standby, &server].map(|server| server.local_addr().to_string());
    let mut stream = JournalStream::connect(&all.join(";"), ClientConfig::default()).await.unwrap();
    assert_eq!((stream.epoch, &*stream.addr), (Some(Epoch::new(6)), &*all[2]));
    echoes(&mut stream).await;
}

#[tokio::test]
async fn an_older_master_has_none() {
    for is_timed in [false, true] {
        let (listener, addr) = listen();
        let fake = thread::spawn(move || {
            let mut fake = if is_timed { accept_timed(&listener) } else { accept(&listener) };
            let Hello { purpose, session, .. } = fake.hello;
            assert_eq!((purpose, session), (Purpose::Journal, 0));
            fake.closed();
        });
        let error = refusal(&addr, ClientConfig::default()).await;
        assert_eq!(error.code(), ErrorCode::NotSupported, "{error}");
        fake.join().unwrap();
    }
}
