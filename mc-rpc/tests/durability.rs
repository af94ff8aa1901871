//! Answers leave when what they say is durable: journals that are late, out of step, or never done.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use common::raw::Raw;
use common::{DEADLINE, ME, connect, connect_with, key, segment};
use mc_meta::{Effect, EffectSink, Master, MasterConfig, PutEnd, PutStart, ReplicateConfig};
use mc_rpc::frame::{FrameHeader, Hello, Kind, TOKEN_LEN};
use mc_rpc::proto::{PutStartRequest, RemoveByRegexRequest};
use mc_rpc::{
    ClientConfig, DurableSequence, MasterService, Method, PutStartItem, Server, ServerConfig,
    ServerHandle, SystemClock,
};
use mc_testkit::eventually;
use mc_types::{ErrorCode, Sequence, Time};
use prost::Message;
use tokio::time::timeout;

/// A journal that has heard of effects, and makes durable what the test says.
#[derive(Clone, Default)]
struct Journal(Arc<AtomicU64>);

impl EffectSink for Journal {
    fn emit(&self, sequence: Sequence, _: Time, _: &Effect<'_>) {
        self.0.store(sequence.as_u64(), Ordering::SeqCst);
    }
}

impl Journal {
    fn heard(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    /// Waits until it has heard of so many effects.
    async fn hears(&self, effects: u64) {
        let what = format!("{effects} effects are heard of");
        eventually(DEADLINE, what, || self.heard() >= effects).await;
    }
}

struct World {
    journal: Journal,
    durable: DurableSequence,
    server: ServerHandle,
}

impl World {
    /// A master with one segment, whose mounting is durable as the first effect.
    async fn new(config: ServerConfig) -> Self {
        let (journal, durable) = (Journal::default(), DurableSequence::new());
        let master = Master::new(MasterConfig::default(), 11).unwrap().with_sink(journal.clone());
        let service = MasterService::new(Arc::new(master), SystemClock::new());
        let service = service.with_durability(durable.watch());
        let server = Server::bind("127.0.0.1:0", service, config).await.unwrap().spawn();
        durable.advance(Sequence::new(1));
        let client = connect(&server).await;
        client.mount_segment(ME, &segment(1, 64 << 20)).await.unwrap();
        Self { journal, durable, server }
    }

    fn advance(&self, to: u64) {
        self.durable.advance(Sequence::new(to));
    }
}

/// Settings of a client whose calls share a connection and are made once.
fn once() -> ClientConfig {
    let mut config = ClientConfig::default();
    config.connections = 1;
    config.connections_max = 1;
    config.retry = false;
    config
}

/// Settings of a server that holds answers for a short time.
fn impatient() -> ServerConfig {
    let mut config = ServerConfig::default();
    config.stall_timeout = Duration::from_millis(300);
    config
}

/// Asserts that this does not end by itself for a while.
async fn waits<T>(future: &mut (impl Future<Output = T> + Unpin)) {
    assert!(timeout(Duration::from_millis(50), future).await.is_err(), "it did not wait");
}

fn put_start<'a>(name: &'a str, config: &'a ReplicateConfig) -> PutStart<'a> {
    PutStart { key: key(name), slice_lengths: &[4096], config }
}

/// The frame of a put's beginning; with a token when it is tracked.
fn frame(id: u64, name: &str, token: Option<u64>) -> Vec<u8> {
    let request = PutStartRequest {
        key: name.to_owned(),
        value_length: 4096,
        client_id: ME.to_bytes().to_vec(),
        slice_lengths: vec![4096],
        ..PutStartRequest::default()
    };
    let payload = request.encode_to_vec();
    let mut header = FrameHeader::new(id, Method::PutStart.number(), Kind::Request);
    header.tracked = token.is_some();
    header.payload_len = (payload.len() + token.map_or(0, |_| TOKEN_LEN)) as u32;
    let mut bytes = header.encode().to_vec();
    bytes.extend(token.map(u64::to_le_bytes).into_iter().flatten());
    bytes.extend(payload);
    bytes
}

#[tokio::test]
async fn an_answer_waits_until_it_is_durable_and_holds_up_no_other() {
    let world = World::new(ServerConfig::default()).await;
    let client = connect_with(&world.server, once()).await;
    let config = ReplicateConfig::default();
    let put = put_start("a", &config);
    let mut begin = Box::pin(client.put_start(ME, &put));
    waits(&mut begin).await;
    // A read on the same connection, and a call that changes nothing.
    assert!(!client.exist(key("a")).await.unwrap());
    assert_eq!(
        client.remove(key("none"), false).await.unwrap_err().code(),
        ErrorCode::ObjectNotFound
    );
    waits(&mut begin).await;
    world.advance(world.journal.heard());
    let grant = timeout(DEADLINE, begin).await.unwrap().unwrap();
    let end = PutEnd::new(key("a"), grant.handle);
    let mut ended = Box::pin(client.put_end(ME, &end));
    waits(&mut ended).await;
    world.advance(world.journal.heard());
    timeout(DEADLINE, ended).await.unwrap().unwrap();
    // What is durable already is answered at once.
    world.advance(1000);
    timeout(DEADLINE, client.remove(key("a"), true)).await.unwrap().unwrap();
    assert_eq!(world.server.metrics().not_durable, 0);
    world.server.shutdown().await;
}

#[tokio::test]
async fn answers_leave_in_the_order_in_which_they_become_durable() {
    let world = World::new(ServerConfig::default()).await;
    let mut raw = Raw::connect(&world.server).await;
    for (id, name) in [(1, "a"), (2, "b"), (3, "c")] {
        raw.send(&frame(id, name, None)).await;
    }
    world.journal.hears(4).await;
    world.advance(3);
    assert_eq!((raw.reply().await.0, raw.reply().await.0), (1, 2));
    // A writer that ends late takes nothing back, and gives nothing free.
    world.advance(2);
    raw.send(&frame(4, "d", None)).await;
    world.journal.hears(5).await;
    waits(&mut Box::pin(raw.frame())).await;
    world.advance(5);
    assert_eq!((raw.reply().await.0, raw.reply().await.0), (3, 4));
    world.server.shutdown().await;
}

#[tokio::test]
async fn nothing_is_begun_while_the_journal_cannot_be_written() {
    let world = World::new(ServerConfig::default()).await;
    world.advance(1000);
    let client = connect_with(&world.server, once()).await;
    let config = ReplicateConfig::default();
    let grant = client.put_start(ME, &put_start("a", &config)).await.unwrap();
    let heard = world.journal.heard();
    world.durable.suspend(&"no room on the disk");
    let refusals = [
        client.put_start(ME, &put_start("b", &config)).await.unwrap_err(),
        client.remove(key("a"), true).await.unwrap_err(),
    ];
    for refused in refusals {
        assert_eq!(refused.code(), ErrorCode::UnavailableInCurrentStatus, "{refused}");
        assert!(refused.to_string().contains("no room on the disk"), "{refused}");
    }
    assert_eq!(world.journal.heard(), heard, "nothing was executed");
    // What was begun may end, and reads go on.
    client.put_end(ME, &PutEnd::new(key("a"), grant.handle)).await.unwrap();
    assert!(client.exist(key("a")).await.unwrap());
    world.durable.resume();
    client.put_start(ME, &put_start("b", &config)).await.unwrap();
    world.server.shutdown().await;
}

#[tokio::test]
async fn a_call_that_does_not_become_durable_is_refused_in_time() {
    let world = World::new(impatient()).await;
    let mut raw = Raw::connect(&world.server).await;
    raw.send(&frame(1, "a", None)).await;
    let (id, refusal) = raw.refusal().await;
    assert_eq!((id, refusal.code), (1, ErrorCode::AnswerNotKept));
    assert!(refusal.message.contains("its journal has not kept it for 300ms"), "{refusal}");
    assert_eq!(world.server.metrics().not_durable, 1);
    // The connection goes on.
    raw.send(&frame(2, "b", None)).await;
    world.journal.hears(3).await;
    world.advance(3);
    assert_eq!(raw.reply().await.0, 2);
    world.server.shutdown().await;
}

#[tokio::test]
async fn a_client_takes_such_a_call_for_executed_and_keeps_its_connection() {
    let world = World::new(impatient()).await;
    let client = connect_with(&world.server, ClientConfig::default()).await;
    let refused = client.mount_segment(ME, &segment(2, 1 << 20)).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::AnswerNotKept, "{refused}");
    assert_eq!(client.metrics().connections_made, 1);
    assert_eq!(world.server.metrics().not_durable, 1);
    assert_eq!(world.journal.heard(), 2, "it was executed once");
    world.server.shutdown().await;
}

#[tokio::test]
async fn a_journal_that_has_ended_makes_nothing_durable() {
    let World { journal, durable, server } = World::new(ServerConfig::default()).await;
    let mut raw = Raw::connect(&server).await;
    raw.send(&frame(1, "a", None)).await;
    journal.hears(2).await;
    drop(durable);
    let refused = |(id, refusal): (u64, mc_rpc::Refusal)| {
        assert_eq!(refusal.code, ErrorCode::AnswerNotKept, "{refusal}");
        assert!(refusal.message.contains("its journal has ended"), "{refusal}");
        id
    };
    assert_eq!(refused(raw.refusal().await), 1);
    raw.send(&frame(2, "b", None)).await;
    assert_eq!(refused(raw.refusal().await), 2);
    server.shutdown().await;
}

#[tokio::test]
async fn the_second_attempt_waits_as_the_first_did() {
    let world = World::new(ServerConfig::default()).await;
    let hello = Hello { session: 7, ..Hello::default() };
    let mut first = Raw::connect_as(&world.server, &hello).await.unwrap();
    first.send(&frame(1, "a", Some(1))).await;
    world.journal.hears(2).await;
    drop(first);
    let mut second = Raw::connect_as(&world.server, &hello).await.unwrap();
    second.send(&frame(5, "a", Some(1))).await;
    waits(&mut Box::pin(second.frame())).await;
    assert_eq!(world.server.metrics().repeated, 1);
    world.advance(2);
    assert_eq!(second.reply().await.0, 5);
    assert_eq!(world.journal.heard(), 2, "executed once");
    world.server.shutdown().await;
}

#[tokio::test]
async fn a_call_that_takes_long_waits_beside_the_others() {
    let world = World::new(ServerConfig::default()).await;
    let client = connect_with(&world.server, once()).await;
    // Large enough to run beside the connection.
    let names: Vec<String> = (0..1000).map(|number| format!("{number:0>100}")).collect();
    let (config, lengths) = (ReplicateConfig::default(), [1]);
    let items: Vec<_> = names.iter().map(|name| PutStartItem::new(key(name), &lengths)).collect();
    let mut begin = Box::pin(client.batch_put_start(ME, &config, &items));
    waits(&mut begin).await;
    world.journal.hears(1001).await;
    assert!(!client.exist(key("a")).await.unwrap());
    world.advance(1000);
    waits(&mut begin).await;
    world.advance(1001);
    let grants = timeout(DEADLINE, begin).await.unwrap().unwrap();
    assert!(grants.iter().all(Result::is_ok));
    world.server.shutdown().await;
}

/// A journal that stands still does not make the master's memory grow: calls wait in the socket.
#[tokio::test]
async fn a_connection_holds_no_more_answers_than_calls_in_flight() {
    let mut config = ServerConfig::default();
    config.max_in_flight = 3;
    let world = World::new(config).await;
    let mut raw = Raw::connect(&world.server).await;
    let mut calls = BytesMut::new();
    for id in 1..=8 {
        calls.extend_from_slice(&frame(id, &format!("k{id}"), None));
    }
    raw.send(&calls).await;
    world.journal.hears(4).await;
    waits(&mut Box::pin(raw.frame())).await;
    assert_eq!(world.journal.heard(), 4, "three puts, and the segment");
    // Another connection is not held up.
    assert!(!connect(&world.server).await.exist(key("none")).await.unwrap());
    world.advance(1000);
    for id in 1..=8 {
        assert_eq!(raw.reply().await.0, id);
    }
    world.server.shutdown().await;
}

#[tokio::test]
async fn a_shutdown_waits_for_what_becomes_durable_and_ends_without_the_rest() {
    let mut config = ServerConfig::default();
    config.drain_timeout = Duration::from_millis(500);
    for durable in [true, false] {
        let world = World::new(config.clone()).await;
        let mut raw = Raw::connect(&world.server).await;
        raw.send(&frame(1, "a", None)).await;
        world.journal.hears(2).await;
        let World { durable: sequence, server, .. } = world;
        let stopping = tokio::spawn(server.shutdown());
        assert_eq!(raw.frame().await.unwrap().0.kind, Kind::GoAway);
        if durable {
            sequence.advance(Sequence::new(2));
            assert_eq!(raw.reply().await.0, 1);
        }
        assert_eq!(raw.frame().await, None);
        timeout(DEADLINE, stopping).await.unwrap().unwrap();
    }
}

/// A call of administrators that changes nothing waits for nothing.
#[tokio::test]
async fn a_long_call_without_effects_is_answered_at_once() {
    let world = World::new(ServerConfig::default()).await;
    let mut raw = Raw::connect(&world.server).await;
    let payload =
        RemoveByRegexRequest { key_regex: "x.*".into(), ..Default::default() }.encode_to_vec();
    let mut header = FrameHeader::new(1, Method::RemoveByRegex.number(), Kind::Request);
    header.payload_len = payload.len() as u32;
    raw.send(&header.encode()).await;
    raw.send(&payload).await;
    assert_eq!(raw.reply().await.0, 1);
    world.server.shutdown().await;
}

#[cfg(feature = "grpc")]
mod grpc {
    use mc_rpc::proto::{PutStartResponse, RemoveRequest, RemoveResponse};
    use tonic::transport::{Channel, Endpoint};
    use tonic::{Code, Request, Response, Status};
    use tonic_prost::ProstCodec;

    use super::*;

    async fn dial(server: &ServerHandle) -> Channel {
        let endpoint = Endpoint::from_shared(format!("http://{}", server.local_addr())).unwrap();
        endpoint.connect().await.unwrap()
    }

    async fn call<Q, A>(channel: Channel, method: &str, request: Q) -> Result<A, Status>
    where
        Q: Message + Send + Sync + 'static,
        A: Message + Default + Send + Sync + 'static,
    {
        let mut client = tonic::client::Grpc::new(channel);
        client.ready().await.unwrap();
        let path = format!("/mc.store.v1.MasterService/{method}").parse().unwrap();
        let codec = ProstCodec::<Q, A>::default();
        client.unary(Request::new(request), path, codec).await.map(Response::into_inner)
    }

    fn begin(name: &str) -> PutStartRequest {
        PutStartRequest {
            key: name.to_owned(),
            value_length: 4096,
            client_id: ME.to_bytes().to_vec(),
            slice_lengths: vec![4096],
            ..PutStartRequest::default()
        }
    }

    #[tokio::test]
    async fn an_answer_waits_until_it_is_durable_and_holds_up_no_other() {
        let world = World::new(ServerConfig::default()).await;
        let channel = dial(&world.server).await;
        let begun = call::<_, PutStartResponse>(channel.clone(), "PutStart", begin("a"));
        let mut begun = Box::pin(begun);
        waits(&mut begun).await;
        let remove = RemoveRequest { key: "none".to_owned(), ..RemoveRequest::default() };
        let refused = call::<_, RemoveResponse>(channel, "Remove", remove).await.unwrap_err();
        assert_eq!(refused.code(), Code::NotFound);
        waits(&mut begun).await;
        world.advance(world.journal.heard());
        timeout(DEADLINE, begun).await.unwrap().unwrap();
        world.server.shutdown().await;
    }

    #[tokio::test]
    async fn a_call_that_does_not_become_durable_is_refused_in_time() {
        let world = World::new(impatient()).await;
        let channel = dial(&world.server).await;
        let refused = call::<_, PutStartResponse>(channel.clone(), "PutStart", begin("a")).await;
        assert_eq!(refused.unwrap_err().code(), Code::Aborted);
        assert_eq!(world.server.metrics().not_durable, 1);
        let World { durable, server, .. } = world;
        drop(durable);
        let refused = call::<_, PutStartResponse>(channel, "PutStart", begin("b")).await;
        let refused = refused.unwrap_err();
        assert!(refused.message().contains("its journal has ended"), "{refused}");
        server.shutdown().await;
    }
}
