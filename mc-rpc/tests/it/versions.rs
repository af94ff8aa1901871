//! Sides of different versions get along: clients that know nothing of terms with masters that have
//! them, and the other way round.

use std::io::Write;
use std::thread;

use mc_rpc::{ClientConfig, MasterClient, blocking};
use mc_types::ErrorCode;
use prost::Message;

use crate::common::fake::{greet, listen};
use crate::common::leader::leader;
use crate::common::raw::Raw;
use crate::common::{key, master, serve};

/// The message `Welcome` as it was before there were terms.
#[derive(Clone, PartialEq, Message)]
struct OldWelcome {
    #[prost(string, tag = "1")]
    local_socket: String,
    #[prost(string, tag = "2")]
    seen_as: String,
    #[prost(bool, tag = "3")]
    send_times: bool,
}

/// A preface of version 2 with a hello of so many bytes.
fn preface(hello: &[u8]) -> Vec<u8> {
    let mut bytes = b"\xa7MCRPC\r\n\x02\0".to_vec();
    bytes.extend((hello.len() as u16).to_le_bytes());
    bytes.extend(b"\0\0\0\x01");
    bytes.extend(hello);
    bytes
}

/// `ExistKey` of the key `k`, and the answer that it does not exist.
const EXIST: &[u8] = b"\x03\0\0\0\x02\x01\0\0\0\0\0\0\x07\0\0\0\0\0\0\0\x0a\x01k";

#[tokio::test]
async fn an_older_client_asks_a_leader() {
    let server = serve(&master(), leader(1 << 40).0).await;
    let session = b"\x0a\x10sixteen bytes it";
    let asks_more = [&session[..], b"\x20\x01\x28\x01"].concat();
    for (hello, has_welcome) in [(&b""[..], false), (session, false), (&asks_more, true)] {
        let mut raw = Raw::unshaken(&server).await;
        raw.send(&preface(hello)).await;
        let (server, words) = raw.preface().await;
        assert_eq!((server.status, !words.is_empty()), (0, has_welcome), "{hello:?}");
        if has_welcome {
            // It skips what it does not know.
            let welcome = OldWelcome::decode(&words[..]).unwrap();
            assert!(welcome.send_times && welcome.local_socket.is_empty());
        }
        raw.send(EXIST).await;
        assert_eq!(raw.reply().await, (0x102, Vec::new()));
    }
}

#[tokio::test]
async fn a_hello_of_a_younger_client_is_read_as_far_as_it_is_known() {
    let server = serve(&master(), leader(2).0).await;
    let mut raw = Raw::unshaken(&server).await;
    // A field of a later version.
    raw.send(&preface(b"\x28\x01\x7a\x03new")).await;
    assert_eq!(raw.preface().await.0.status, 0);
    raw.send(EXIST).await;
    assert_eq!(raw.reply().await.0, 0x102);
    // What it wants in place of calls cannot be left out.
    let mut raw = Raw::unshaken(&server).await;
    raw.send(&preface(b"\x30\x63")).await;
    let (server, words) = raw.preface().await;
    assert_eq!(server.status, ErrorCode::NotSupported.code());
    assert!(String::from_utf8(words).unwrap().contains("purpose 99"));
}

#[tokio::test]
async fn a_client_asks_an_older_master() {
    let old = OldWelcome { send_times: true, ..OldWelcome::default() }.encode_to_vec();
    for welcome in [Vec::new(), old] {
        let (listener, addr) = listen();
        let fake = thread::spawn(move || {
            for _ in 0..2 {
                let mut fake = greet(&listener);
                let mut answer = b"\xa7MCRPC\r\n\x02\0".to_vec();
                answer.extend((welcome.len() as u16).to_le_bytes());
                answer.extend(b"\0\0\0\0\0\0\x10\0\0\x10\0\0");
                answer.extend(&welcome);
                fake.stream.write_all(&answer).unwrap();
                let request = fake.answer(b"\x10\x01");
                assert_eq!(request.header.timed, !welcome.is_empty());
                assert!(!request.header.moved);
            }
        });
        let config = ClientConfig::default();
        assert!(MasterClient::lazy(&addr, config.clone()).exist(key("k")).await.unwrap());
        let waits = blocking::MasterClient::lazy(&addr, config);
        let asked = tokio::task::spawn_blocking(move || waits.exist(key("k")));
        assert!(asked.await.unwrap().unwrap());
        fake.join().unwrap();
    }
}
