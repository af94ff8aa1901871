//! Clients on the master's host find its local socket, and no client is sent to another one.

use std::io::{ErrorKind, Write};
use std::net::SocketAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{self, UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use mc_rpc::frame::{self, Hello, SOCKET_NAME_PREFIX, ServerPreface, Welcome};
use mc_rpc::{ClientConfig, MasterClient, ServerConfig, ServerHandle, blocking};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::common::fake;
use crate::common::raw::Raw;
use crate::common::{connect, connect_with, key, master, serve};

fn preface() -> ServerPreface {
    ServerPreface {
        version: frame::VERSION,
        message_len: 0,
        status: 0,
        max_payload: 1 << 20,
        max_in_flight: 16,
    }
}

fn blocking(addr: &str) -> blocking::MasterClient {
    blocking::MasterClient::connect(addr, ClientConfig::default()).unwrap()
}

/// A name that no other test has.
fn name() -> String {
    static LAST: AtomicUsize = AtomicUsize::new(0);
    let number = LAST.fetch_add(1, Ordering::Relaxed);
    format!("{SOCKET_NAME_PREFIX}test-{}-{number}", std::process::id())
}

fn listen_at(name: &str) -> UnixListener {
    UnixListener::bind_addr(&net::SocketAddr::from_abstract_name(name).unwrap()).unwrap()
}

/// Reads the server's welcome to a client that asks for a shorter way.
async fn welcome(server: &ServerHandle, hello: &Hello) -> Vec<u8> {
    let mut raw = Raw::unshaken(server).await;
    raw.send(&frame::ClientPreface::with(1 << 20, hello)).await;
    let (preface, words) = raw.preface().await;
    assert_eq!(preface.status, 0);
    words
}

#[tokio::test]
async fn a_server_tells_those_who_ask_and_answers_there() {
    let server = serve(&master(), ServerConfig::default()).await;
    assert!(welcome(&server, &Hello::default()).await.is_empty(), "no socket was requested");
    let asking = Hello { local: true, ..Hello::default() };
    let words = welcome(&server, &asking).await;
    let name = Welcome::parse(&words).unwrap().local_socket;
    assert!(name.starts_with(SOCKET_NAME_PREFIX), "{name}");
    let address = net::SocketAddr::from_abstract_name(&*name).unwrap();
    let stream = UnixStream::connect_addr(&address).unwrap();
    stream.set_nonblocking(true).unwrap();
    let mut raw = Raw::over(tokio::net::UnixStream::from_std(stream).unwrap());
    raw.greet(&asking).await.unwrap();
    server.shutdown().await;
    let gone = UnixStream::connect_addr(&address).unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::ConnectionRefused);
}

#[tokio::test]
async fn a_server_may_keep_it_to_itself() {
    let mut config = ServerConfig::default();
    config.local_socket = false;
    let server = serve(&master(), config).await;
    let asking = Hello { local: true, ..Hello::default() };
    let words = welcome(&server, &asking).await;
    assert!(Welcome::parse(&words).unwrap().local_socket.is_empty());
    assert!(!connect(&server).await.exist(key("a")).await.unwrap());
    assert_eq!(server.metrics().accepted, 2);
}

#[tokio::test]
async fn both_clients_go_where_they_are_told() {
    // The second of the two connections is the one that stays.
    let server = serve(&master(), ServerConfig::default()).await;
    let client = connect(&server).await;
    assert!(!client.exist(key("a")).await.unwrap());
    assert_eq!(server.metrics().accepted, 2);
    let addr = server.local_addr().to_string();
    tokio::task::spawn_blocking(move || {
        let client = blocking(&addr);
        assert!(!client.exist(key("a")).unwrap());
        assert_eq!(client.metrics().connections_made, 1);
    })
    .await
    .unwrap();
    assert_eq!(server.metrics().accepted, 4);
    assert_eq!(client.metrics().connections_made, 1);

    let mut config = ClientConfig::default();
    config.local_socket = false;
    assert!(!connect_with(&server, config).await.exist(key("a")).await.unwrap());
    assert_eq!(server.metrics().accepted, 5);
}

#[tokio::test]
async fn one_place_is_enough_to_go_there() {
    // The connection that asks has made no call, and yields its place to the one that stays.
    let mut config = ServerConfig::default();
    config.max_connections = 1;
    let server = serve(&master(), config).await;
    assert!(!connect(&server).await.exist(key("a")).await.unwrap());
    let metrics = server.metrics();
    assert_eq!((metrics.turned_away, metrics.yielded), (0, 1));
}

#[tokio::test]
async fn a_proxy_is_not_got_round() {
    let server = serve(&master(), ServerConfig::default()).await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    let (behind, passed) = (server.local_addr(), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&passed);
    let proxy = tokio::spawn(async move {
        loop {
            let (near, _) = listener.accept().await.unwrap();
            tokio::spawn(pass(near, behind, Arc::clone(&count)));
        }
    });
    let client = MasterClient::connect(&addr, ClientConfig::default()).await.unwrap();
    let before = passed.load(Ordering::Relaxed);
    assert!(!client.exist(key("a")).await.unwrap());
    assert!(passed.load(Ordering::Relaxed) > before, "the call went another way");
    assert_eq!(server.metrics().accepted, 1);
    let client = tokio::task::spawn_blocking(move || {
        let client = blocking(&addr);
        assert!(!client.exist(key("a")).unwrap());
        client
    });
    drop(client.await.unwrap());
    assert_eq!(server.metrics().accepted, 2);
    proxy.abort();
}

/// Passes bytes on between a client and the server behind, and counts those of the client.
async fn pass(near: TcpStream, behind: SocketAddr, count: Arc<AtomicUsize>) {
    let (mut from, mut to) = near.into_split();
    let (mut answers, mut calls) = TcpStream::connect(behind).await.unwrap().into_split();
    let back = tokio::spawn(async move { tokio::io::copy(&mut answers, &mut to).await });
    let mut bytes = vec![0; 4096];
    while let Ok(read @ 1..) = from.read(&mut bytes).await {
        count.fetch_add(read, Ordering::Relaxed);
        calls.write_all(&bytes[..read]).await.unwrap();
    }
    drop(calls);
    let _ = back.await;
}

/// A master whose welcome names this socket answers one call at the place where it is asked.
fn answers_over_tcp(name: &str, seen_as: impl FnOnce(SocketAddr) -> Option<SocketAddr>) {
    let (listener, addr) = fake::listen();
    thread::scope(|scope| {
        let client = scope.spawn(|| blocking(&addr).exist(key("a")).unwrap());
        let mut fake = fake::greet(&listener);
        assert!(fake.hello.local);
        let seen_as = seen_as(fake.stream.peer_addr().unwrap());
        let message = Welcome { local_socket: name.into(), seen_as, ..Welcome::default() }.encode();
        let mut bytes = preface();
        bytes.message_len = message.len() as u16;
        fake.stream.write_all(&bytes.encode()).unwrap();
        fake.stream.write_all(&message).unwrap();
        fake.answer(b"");
        assert!(!client.join().unwrap());
    });
}

#[test]
fn an_offer_that_leads_nowhere_does_no_harm() {
    answers_over_tcp(&name(), Some);
}

#[test]
fn nobody_is_sent_to_a_socket_of_somebody_else() {
    let foreign = format!("test-of-mc-rpc-{}", std::process::id());
    let listener = listen_at(&foreign);
    listener.set_nonblocking(true).unwrap();
    answers_over_tcp(&foreign, Some);
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn who_is_seen_as_another_does_not_go() {
    let name = name();
    let listener = listen_at(&name);
    listener.set_nonblocking(true).unwrap();
    answers_over_tcp(&name, |_| None);
    answers_over_tcp(&name, |seen| Some(SocketAddr::new(seen.ip(), seen.port() ^ 1)));
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn who_does_not_shake_hands_there_is_left_alone() {
    let name = name();
    let listener = listen_at(&name);
    thread::scope(|scope| {
        // Takes the connection and closes it.
        scope.spawn(|| drop(listener.accept().unwrap()));
        answers_over_tcp(&name, Some);
    });
}
