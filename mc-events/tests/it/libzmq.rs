//! The socket of libzmq.

use std::process::Command;
use std::sync::Arc;

use mc_events::{Encoding, EventSocket, EventSystem, LibzmqSocket, Parts, PublisherConfig};
use mc_testkit::{eventually_async, python};

use crate::common::{LIMIT, Peer, config, stored};

const PACKAGES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/requirements.txt");
/// The keys of RFC 26: the server's secret one, and its public one.
const SECRET: &str = "JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6";
const PUBLIC: &str = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7";

async fn start(hwm: usize, key: Option<&str>) -> (EventSystem, String) {
    let socket = Arc::new(LibzmqSocket::bind("tcp://127.0.0.1:*", hwm, key).unwrap());
    let endpoint = socket.endpoint().to_owned();
    let parts = Parts { sockets: vec![socket as Arc<dyn EventSocket>], ..Parts::default() };
    let config = PublisherConfig { replay_endpoint: String::new(), ..config(Encoding::S4) };
    (EventSystem::start_with(config, parts).await.unwrap(), endpoint)
}

#[tokio::test]
async fn a_slow_subscriber_sees_a_gap_and_the_last_message_is_sent_before_the_end() {
    let (events, endpoint) = start(3, None).await;
    let mut subscriber = Peer::subscribe(&endpoint, "").await;
    // libzmq does not tell when it has the subscription.
    let mut published = 0;
    let arrived = async {
        let mut first = [0];
        subscriber.0.peek(&mut first).await.unwrap();
    };
    let publish = async {
        loop {
            assert!(events.publish(stored("first")).await);
            published += 1;
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        () = arrived => {}
        () = publish => {}
    }
    // More than the system's buffers hold.
    for _ in 0..500 {
        assert!(events.publish(stored("k".repeat(200_000))).await);
        published += 1;
    }
    let reader = tokio::spawn(async move {
        let mut numbers = vec![subscriber.number().await];
        while numbers.last().is_some_and(|last| *last < published) {
            numbers.push(subscriber.number().await);
        }
        numbers
    });
    let reading = async || {
        assert!(events.publish(stored("later")).await);
        reader.is_finished()
    };
    eventually_async(LIMIT, "a message arrives after the gap", reading).await;
    let numbers = reader.await.unwrap();
    assert!(numbers.is_sorted_by(|before, after| before < after), "{numbers:?}");
    assert!(numbers.len() as u64 <= numbers.last().unwrap() - numbers[0], "the numbers show a gap");
    assert!(events.shutdown(LIMIT).await);
    let again = LibzmqSocket::bind(&endpoint, 1, None);
    assert!(again.is_ok(), "its port is free: {again:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn curve_lets_in_those_who_know_the_key() {
    const SCRIPT: &str = r#"
import sys, zmq
endpoint, key = sys.argv[1:]
context = zmq.Context()

def subscriber(server_key):
    socket = context.socket(zmq.SUB)
    socket.curve_publickey, socket.curve_secretkey = zmq.curve_keypair()
    socket.curve_serverkey = server_key
    socket.subscribe(b"")
    socket.connect(endpoint)
    return socket

stranger = subscriber(zmq.curve_keypair()[0])
plain = context.socket(zmq.SUB)
plain.subscribe(b"")
plain.connect(endpoint)
friend = subscriber(key.encode())
assert friend.poll(20000), "nothing arrives"
frames = friend.recv_multipart()
assert frames[0] == b"" and len(frames[1]) == 8 and b"BlockStoreEvent" in frames[2], frames
# They connected first and would have messages by now.
assert not plain.poll(0) and not stranger.poll(0)
context.destroy(linger=0)
"#;
    let (events, endpoint) = start(100, Some(SECRET)).await;
    let script = tokio::task::spawn_blocking(move || {
        let interpreter =
            python::environment(env!("CARGO_TARGET_TMPDIR"), "events-python", PACKAGES);
        let mut command = Command::new(interpreter);
        python::run("the subscriber", command.args(["-c", SCRIPT, &endpoint, PUBLIC]));
    });
    let ended = async || {
        assert!(events.publish(stored("a")).await);
        script.is_finished()
    };
    eventually_async(6 * LIMIT, "the subscriber has a message", ended).await;
    script.await.unwrap();
}

#[test]
fn wrong_endpoints_and_keys_are_reported() {
    for (endpoint, key, part) in [
        ("tcp://127.0.0.1:*", Some("short"), "set an option"),
        ("none://127.0.0.1:*", None, "bind"),
        ("a\0b", None, "bind"),
    ] {
        let error = LibzmqSocket::bind(endpoint, 1, key).unwrap_err().to_string();
        assert!(error.contains(part) && error.contains("check the endpoint"), "{error}");
    }
}
