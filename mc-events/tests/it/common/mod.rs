//! A ZeroMQ peer of a few lines, and what the tests publish.

use std::time::Duration;

use mc_events::{BlockStoreEvent, Encoding, EndpointConfig, EventSystem, PublisherConfig};
use mc_testkit::eventually_async;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// A SUB, REQ or DEALER socket with one connection.
pub(crate) struct Peer(pub(crate) TcpStream);

impl Peer {
    pub(crate) async fn connect(endpoint: &str, kind: &str) -> Self {
        let mut stream =
            TcpStream::connect(endpoint.strip_prefix("tcp://").unwrap()).await.unwrap();
        let mut hello = vec![0xFF, 0, 0, 0, 0, 0, 0, 0, 0, 0x7F, 3, 0, b'N', b'U', b'L', b'L'];
        hello.resize(64, 0);
        let ready = [b"\x05READY\x0bSocket-Type\0\0\0", &[kind.len() as u8][..], kind.as_bytes()];
        let ready = ready.concat();
        hello.extend_from_slice(&[4, ready.len() as u8]);
        hello.extend_from_slice(&ready);
        stream.write_all(&hello).await.unwrap();
        stream.read_exact(&mut [0; 64]).await.unwrap();
        let mut peer = Self(stream);
        peer.frame().await;
        peer
    }

    pub(crate) async fn subscribe(endpoint: &str, topic: &str) -> Self {
        let mut peer = Self::connect(endpoint, "SUB").await;
        peer.send(&[&[&[1], topic.as_bytes()].concat()]).await;
        peer
    }

    pub(crate) async fn send(&mut self, frames: &[&[u8]]) {
        let mut out = Vec::new();
        for (at, frame) in frames.iter().enumerate() {
            let more = u8::from(at + 1 < frames.len());
            out.push(more | 2);
            out.extend_from_slice(&(frame.len() as u64).to_be_bytes());
            out.extend_from_slice(frame);
        }
        self.0.write_all(&out).await.unwrap();
    }

    async fn frame(&mut self) -> (u8, Vec<u8>) {
        let flags = self.0.read_u8().await.unwrap();
        let len = match flags & 2 {
            0 => self.0.read_u8().await.unwrap().into(),
            _ => self.0.read_u64().await.unwrap(),
        };
        let mut body = vec![0; len as usize];
        self.0.read_exact(&mut body).await.unwrap();
        (flags, body)
    }

    pub(crate) async fn receive(&mut self) -> Vec<Vec<u8>> {
        let receive = async {
            let mut frames = Vec::new();
            loop {
                let (flags, body) = self.frame().await;
                frames.push(body);
                if flags & 1 == 0 {
                    return frames;
                }
            }
        };
        tokio::time::timeout(LIMIT, receive).await.expect("a message arrives")
    }

    /// The number of the next event message.
    pub(crate) async fn number(&mut self) -> u64 {
        number(&self.receive().await[1])
    }

    /// Asks a replay socket, without a delimiter, and returns numbers and payloads to the end.
    pub(crate) async fn replay(&mut self, start: u64) -> Vec<(u64, Vec<u8>)> {
        self.send(&[&start.to_be_bytes()]).await;
        let mut messages = Vec::new();
        loop {
            let mut frames = self.receive().await;
            if number(&frames[0]) == u64::MAX {
                assert_eq!(frames[1], b"");
                return messages;
            }
            messages.push((number(&frames[0]), frames.remove(1)));
        }
    }
}

pub(crate) fn number(frame: &[u8]) -> u64 {
    u64::from_be_bytes(frame.try_into().unwrap())
}

/// One endpoint and its replay endpoint on free ports.
pub(crate) fn config(encoding: Encoding) -> PublisherConfig {
    PublisherConfig {
        endpoint: "tcp://127.0.0.1:0".into(),
        replay_endpoint: "tcp://127.0.0.1:0".into(),
        topic: String::new(),
        encoding,
        ..PublisherConfig::default()
    }
}

pub(crate) fn more(encoding: Encoding, topic: &str) -> EndpointConfig {
    EndpointConfig {
        endpoint: "tcp://127.0.0.1:0".into(),
        replay_endpoint: "tcp://127.0.0.1:0".into(),
        topic: topic.into(),
        encoding,
        ..EndpointConfig::default()
    }
}

pub(crate) fn stored(key: impl Into<String>) -> BlockStoreEvent {
    BlockStoreEvent { key: key.into(), ..BlockStoreEvent::default() }
}

pub(crate) async fn subscribers(events: &EventSystem, count: usize) {
    let what = format!("{count} subscribers");
    eventually_async(LIMIT, what, async || events.stats().subscribers == count).await;
}

pub(crate) fn replay_endpoint(events: &EventSystem) -> &str {
    events.endpoints()[0].replay_endpoint.as_deref().unwrap()
}
