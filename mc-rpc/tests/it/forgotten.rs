//! A call that was executed is never executed again, however much others have the server
//! remember.

use bytes::{BufMut, BytesMut};
use mc_meta::{PutEnd, PutStart, ReplicateConfig};
use mc_rpc::frame::{self, Hello, Kind};
use mc_rpc::{MasterClient, Method, ServerConfig, ServerHandle};
use mc_types::ErrorCode;

use crate::common::raw::Raw;
use crate::common::{ME, connect, key, master, segment, serve};

const KEYS: usize = 4000;

async fn session(server: &ServerHandle, session: u128) -> Raw {
    Raw::connect_as(server, &Hello { session, ..Hello::default() }).await.unwrap()
}

fn tracked(id: u64, method: Method, token: u64, payload: &[u8]) -> BytesMut {
    let mut out = BytesMut::new();
    let fill = |out: &mut BytesMut| {
        out.put_slice(payload);
        Ok::<(), ()>(())
    };
    frame::append_request(&mut out, id, method.number(), Some(token), None, fill).unwrap();
    out
}

fn names() -> Vec<String> {
    (0..KEYS).map(|n| format!("key-{n}")).collect()
}

/// The keys as the message of `BatchRemove`.
fn all_keys() -> Vec<u8> {
    let key = |name: String| [&[0x0a, name.len() as u8], name.as_bytes()].concat();
    names().into_iter().flat_map(key).collect()
}

async fn put_all(client: &MasterClient) {
    let config = ReplicateConfig::default();
    for name in names() {
        let start = PutStart { key: key(&name), slice_lengths: &[16], config: &config };
        let handle = client.put_start(ME, &start).await.unwrap().handle;
        let end = PutEnd::new(key(&name), handle);
        client.put_end(ME, &end).await.unwrap();
    }
}

/// Another session makes calls with answers of more than 64 MiB: `BatchRemove` of keys that are
/// not there is refused key by key.
async fn load(server: &ServerHandle) {
    let mut raw = session(server, 2).await;
    let absent: Vec<u8> = b"\x0a\x01x".repeat(20_000);
    let mut bytes = 0;
    for token in 1.. {
        raw.send(&tracked(token, Method::BatchRemove, token, &absent)).await;
        bytes += raw.reply().await.1.len();
        if bytes > 80 << 20 {
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_comes_again_removes_nothing_that_was_put_in_between() {
    let master = master();
    let server = serve(&master, ServerConfig::default()).await;
    let client = connect(&server).await;
    client.mount_segment(ME, &segment(1, 1 << 30)).await.unwrap();
    put_all(&client).await;
    let mut raw = session(&server, 1).await;
    raw.send(&tracked(1, Method::BatchRemove, 1, &all_keys())).await;
    let removed = raw.reply().await.1;
    assert_eq!(master.report().totals.objects, 0);
    // The answer is lost, and values are put under the same keys.
    drop(raw);
    put_all(&client).await;
    load(&server).await;
    // This session asks for little, so that its answers are not those that make room.
    let mut raw = session(&server, 1).await;
    for token in 2..100 {
        raw.send(&tracked(token, Method::Remove, token, b"\x0a\x06absent")).await;
        assert_eq!(raw.refusal().await.1.code, ErrorCode::ObjectNotFound);
    }
    raw.send(&tracked(500, Method::BatchRemove, 1, &all_keys())).await;
    let (header, payload) = raw.frame().await.unwrap();
    let keys = master.report().totals.objects;
    assert_eq!(keys, KEYS as u64, "{} values put in between are gone", KEYS as u64 - keys);
    assert_eq!((header.kind, payload), (Kind::Reply, removed));
    // What the busy session had to give up itself is refused, and not executed.
    let mut busy = session(&server, 2).await;
    busy.send(&tracked(1, Method::BatchRemove, 1, &all_keys())).await;
    let (_, refusal) = busy.refusal().await;
    assert_eq!((refusal.code, refusal.is_retryable()), (ErrorCode::AnswerNotKept, false));
    assert!(refusal.message.contains("may have been executed"), "{refusal}");
    assert_eq!(master.report().totals.objects, KEYS as u64);
    server.shutdown().await;
}
