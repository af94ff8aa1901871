//! A server that goes away.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use mc_testkit::{Relay, SeaweedFs, eventually_blocking};
use mc_tier::{ObjectBytes, ObjectStoreTier, Tier, TierError};
use tokio::runtime::Runtime;

use super::common::{MIB, id, object};
use super::damage::Client;
use super::server::{LIMIT, SECRET, open_at, settings, shared, start};

/// A server, and a way to it that counts the bytes.
fn behind_a_relay() -> Option<(SeaweedFs, Relay, Runtime)> {
    let server = start()?;
    server.make_bucket("bucket");
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let relay = runtime.block_on(Relay::between(any, server.s3(), 4)).unwrap();
    Some((server, relay, runtime))
}

fn is_unavailable<T: std::fmt::Debug>(result: Result<T, TierError>) {
    match result {
        Err(error @ TierError::Unavailable { .. }) => assert!(error.is_retryable()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_server_that_is_killed_in_the_middle_of_a_put_keeps_the_object_before() {
    let Some((mut server, relay, _runtime)) = behind_a_relay() else { return };
    let tier = open_at(relay.address(), "bucket", "admin", SECRET).unwrap();
    let (id, before) = (id("key"), object("before", 20 * MIB));
    tier.put(&id, &before).unwrap();
    let passed = relay.passed();
    let put = std::thread::spawn({
        let (tier, id) = (tier.clone(), id.clone());
        move || tier.put(&id, &object("after", 64 * MIB))
    });
    eventually_blocking(LIMIT, "a part of the bytes", || relay.passed() > passed + 20 * MIB as u64);
    server.kill();
    is_unavailable(put.join().unwrap());
    is_unavailable(tier.get(&id));
    is_unavailable(tier.usage());
    server.restart();
    let read = tier.get(&id).unwrap();
    assert!(read == Some(before), "the put that failed changed nothing");
    // The process lives on, and so does the tier.
    tier.put(&id, &object("after", 20 * MIB)).unwrap();
    assert!(tier.get(&id).unwrap() == Some(object("after", 20 * MIB)));
}

#[test]
fn a_server_that_is_killed_in_the_middle_of_a_get_costs_no_more_than_the_get() {
    let Some((mut server, relay, _runtime)) = behind_a_relay() else { return };
    let tier = open_at(relay.address(), "bucket", "admin", SECRET).unwrap();
    let (id, long) = (id("key"), object("long", 64 * MIB));
    tier.put(&id, &long).unwrap();
    let passed = relay.passed();
    let get = |tier: &ObjectStoreTier| {
        let (tier, id) = (tier.clone(), id.clone());
        std::thread::spawn(move || -> Result<Option<ObjectBytes>, TierError> { tier.get(&id) })
    };
    let lost = get(&tier);
    eventually_blocking(LIMIT, "a part of the bytes", || relay.passed() > passed + 10 * MIB as u64);
    server.kill();
    is_unavailable(lost.join().unwrap());
    server.restart();
    assert!(tier.get(&id).unwrap() == Some(long));
}

#[test]
fn a_server_that_stands_still_is_given_up_in_time() {
    let Some((_server, relay, _runtime)) = behind_a_relay() else { return };
    let mut settings = settings(relay.address(), "admin", SECRET);
    settings.s3.request_timeout = Duration::from_millis(500);
    settings.s3.retry_for = Duration::from_secs(1);
    let tier = ObjectStoreTier::open("s3://bucket", &settings).unwrap();
    tier.put(&id("key"), &object("key", 100)).unwrap();
    relay.pause();
    let begin = Instant::now();
    is_unavailable(tier.get(&id("key")));
    let waited = begin.elapsed();
    assert!(waited < Duration::from_secs(20), "{waited:?}");
    is_unavailable(tier.put(&id("key"), &object("other", 100)));
    relay.resume();
    let read = tier.get(&id("key")).unwrap();
    assert!([Some(object("key", 100)), Some(object("other", 100))].contains(&read));
}

/// A proxy that closes each connection over which a client sends `text`.
fn without(text: &'static [u8], server: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // Ends with the test's process; the connections end with the client or the server.
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(server) = TcpStream::connect(server) else { continue };
            let (mut from, mut to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
            std::thread::spawn(move || std::io::copy(&mut from, &mut to));
            std::thread::spawn(move || forward_without(text, client, server));
        }
    });
    address
}

fn forward_without(text: &[u8], mut client: TcpStream, mut server: TcpStream) {
    let mut chunk = vec![0; 64 << 10];
    while let Ok(len @ 1..) = client.read(&mut chunk) {
        let has_text = chunk[..len].windows(text.len()).any(|window| window == text);
        if has_text || server.write_all(&chunk[..len]).is_err() {
            break;
        }
    }
    let _ = (client.shutdown(Shutdown::Both), server.shutdown(Shutdown::Both));
}

#[test]
fn a_put_that_fails_aborts_its_upload() {
    let Some(server) = shared() else { return };
    server.make_bucket("aborted");
    let proxy = without(b"partNumber=3&", server.s3());
    let tier = open_at(proxy, "aborted", "admin", SECRET).unwrap();
    is_unavailable(tier.put(&id("key"), &object("key", 64 * MIB)));
    assert_eq!(server.incomplete_uploads("aborted"), 0);
    assert_eq!(tier.get(&id("key")).unwrap(), None);
    // Of two parts it is not the third that is missing.
    tier.put(&id("key"), &object("key", 12 * MIB)).unwrap();
    assert!(tier.get(&id("key")).unwrap() == Some(object("key", 12 * MIB)));
}

/// An upload without an abort, of which the test above finds none, is found here.
#[test]
fn an_upload_that_nobody_aborts_is_counted() {
    use object_store::ObjectStoreExt as _;
    let Some(server) = shared() else { return };
    server.make_bucket("left");
    let client = Client::new(&server, "left");
    let mut upload = client.run(client.store.put_multipart(&"left".into())).unwrap();
    client.run(upload.put_part(vec![0; 100].into())).unwrap();
    assert_eq!(server.incomplete_uploads("left"), 1);
}

#[test]
fn nobody_who_listens_is_told() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    is_unavailable(open_at(free, "bucket", "admin", SECRET));
}
