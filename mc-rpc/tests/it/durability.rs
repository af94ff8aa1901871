//! Answers leave when what they say is durable, also what they say of changes of other calls: journals
//! that are late, out of step, or never done.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use mc_meta::{
    ClientStatus, Effect, EffectSink, ListCursor, Master, MasterConfig, PutEnd, PutStart,
    ReplicateConfig,
};
use mc_rpc::frame::{FrameHeader, Hello, Kind, TOKEN_LEN};
use mc_rpc::proto::{PutStartRequest, RemoveByRegexRequest};
use mc_rpc::{
    ClientConfig, DurableSequence, MasterService, Method, PutStartItem, RpcError, Server,
    ServerConfig, ServerHandle, SystemClock,
};
use mc_testkit::eventually;
use mc_types::{ErrorCode, Sequence, Time};
use prost::Message;
use tokio::time::timeout;

use crate::common::raw::Raw;
use crate::common::{DEADLINE, ME, connect, connect_with, key, segment, spawn_with_grpc};

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
    master: Arc<Master>,
    journal: Journal,
    durable: DurableSequence,
    server: ServerHandle,
}

impl World {
    /// A master with one segment, whose mounting is durable as the first effect.
    async fn new(config: ServerConfig) -> Self {
        let (journal, durable) = (Journal::default(), DurableSequence::new());
        let master = Master::new(MasterConfig::default(), 11).unwrap().with_sink(journal.clone());
        let master = Arc::new(master);
        let service = MasterService::new(Arc::clone(&master), SystemClock::new());
        let service = service.with_durability(durable.watch());
        let server = Server::bind("127.0.0.1:0", service, config).await.unwrap();
        let server = spawn_with_grpc(server);
        durable.advance(Sequence::new(1));
        let client = connect(&server).await;
        client.mount_segment(ME, &segment(1, 64 << 20)).await.unwrap();
        Self { master, journal, durable, server }
    }

    fn advance(&self, to: u64) {
        self.durable.advance(Sequence::new(to));
    }

    /// Another client's put, without a call that waits for its answer.
    fn put(&self, name: &str) {
        let (now, config) = (Time::ORIGIN, ReplicateConfig::default());
        let grant = self.master.put_start(now, ME, &put_start(name, &config)).unwrap();
        self.master.put_end(now, ME, &PutEnd::new(key(name), grant.handle)).unwrap();
    }

    /// Another client's removal, without a call that waits for its answer.
    fn remove(&self, name: &str) {
        self.master.remove(Time::ORIGIN, key(name), true).unwrap();
    }

    /// A world in which an object is put and durable, one was removed and one put, and that is not
    /// durable.
    async fn with_changes(config: ServerConfig) -> Self {
        let world = Self::new(config).await;
        world.put("old");
        world.put("gone");
        world.advance(world.journal.heard());
        world.put("new");
        world.remove("gone");
        world
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
    let World { journal, durable, server, .. } = World::new(ServerConfig::default()).await;
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

/// Asserts that this is answered although the journal stands still.
async fn at_once<T>(answer: impl Future<Output = Result<T, RpcError>>) -> T {
    timeout(Duration::from_secs(10), answer).await.expect("it waits for nothing").unwrap()
}

#[tokio::test]
async fn what_a_read_shows_is_durable() {
    let world = World::with_changes(ServerConfig::default()).await;
    let client = connect_with(&world.server, once()).await;
    let (new, gone, both) = ([key("new")], [key("gone")], [key("old"), key("gone")]);
    let mut found = Box::pin(client.get_replica_list(new[0]));
    let mut exists = Box::pin(client.exist(new[0]));
    let mut missing = Box::pin(client.get_replica_list(gone[0]));
    let mut misses = Box::pin(client.exist(gone[0]));
    let mut found_many = Box::pin(client.batch_get_replica_list(&both));
    let mut exist_many = Box::pin(client.batch_exist(&both));
    let mut prefix = Box::pin(client.longest_prefix(&both));
    let mut described = Box::pin(client.describe(gone[0]));
    let mut listed = Box::pin(client.list_keys("", ListCursor::default(), 10));
    waits(&mut found).await;
    waits(&mut exists).await;
    waits(&mut missing).await;
    waits(&mut misses).await;
    waits(&mut found_many).await;
    waits(&mut exist_many).await;
    waits(&mut prefix).await;
    waits(&mut described).await;
    waits(&mut listed).await;
    // Calls for other objects are not held up, on the same connection.
    let old = [key("old"), key("none")];
    at_once(client.get_replica_list(old[0])).await;
    assert!(at_once(client.exist(old[0])).await);
    assert!(!at_once(client.exist(old[1])).await);
    assert_eq!(at_once(client.batch_get_replica_list(&old)).await.len(), 2);
    assert_eq!(at_once(client.longest_prefix(&old)).await, 1);
    assert_eq!(at_once(client.ping(ME)).await.status, ClientStatus::Ok);
    at_once(client.cluster_report()).await;
    world.advance(world.journal.heard());
    at_once(found).await;
    assert!(at_once(exists).await && !at_once(misses).await);
    let refused = [missing.await.map(drop).unwrap_err(), described.await.map(drop).unwrap_err()];
    assert!(refused.iter().all(|refused| refused.code() == ErrorCode::ObjectNotFound));
    let found_many = at_once(found_many).await;
    assert!(found_many[0].is_ok() && found_many[1].is_err());
    assert_eq!(at_once(exist_many).await, [Ok(true), Ok(false)]);
    assert_eq!(at_once(prefix).await, 1);
    assert_eq!(at_once(listed).await.keys.len(), 2);
    assert_eq!(world.server.metrics().not_durable, 0);
    world.server.shutdown().await;
}

#[tokio::test]
async fn a_refusal_waits_for_what_it_is_the_result_of() {
    let world = World::with_changes(ServerConfig::default()).await;
    let client = connect_with(&world.server, once()).await;
    let config = ReplicateConfig::default();
    let (put, gone, lengths) = (put_start("new", &config), [key("gone")], [4096]);
    let puts = [PutStartItem::new(key("new"), &lengths)];
    let mut remove = Box::pin(client.remove(gone[0], false));
    let mut removes = Box::pin(client.batch_remove(&gone, false));
    let mut begin = Box::pin(client.put_start(ME, &put));
    let mut begins = Box::pin(client.batch_put_start(ME, &config, &puts));
    waits(&mut remove).await;
    waits(&mut removes).await;
    waits(&mut begin).await;
    waits(&mut begins).await;
    let refused = |refused: RpcError| refused.code();
    // What is refused for another reason is refused at once.
    let old = timeout(DEADLINE, client.put_start(ME, &put_start("old", &config))).await.unwrap();
    assert_eq!(refused(old.unwrap_err()), ErrorCode::ObjectAlreadyExists);
    let none = timeout(DEADLINE, client.remove(key("none"), true)).await.unwrap();
    assert_eq!(refused(none.unwrap_err()), ErrorCode::ObjectNotFound);
    world.advance(world.journal.heard());
    assert_eq!(refused(remove.await.unwrap_err()), ErrorCode::ObjectNotFound);
    assert_eq!(at_once(removes).await[0].as_ref().unwrap_err().code, ErrorCode::ObjectNotFound);
    assert_eq!(refused(begin.await.unwrap_err()), ErrorCode::ObjectAlreadyExists);
    let begins = at_once(begins).await;
    assert_eq!(begins[0].as_ref().unwrap_err().code, ErrorCode::ObjectAlreadyExists);
    world.server.shutdown().await;
}

#[tokio::test]
async fn a_segment_that_is_mounted_already_is_durable_when_that_is_said() {
    let world = World::new(ServerConfig::default()).await;
    let client = connect_with(&world.server, once()).await;
    let other = segment(2, 1 << 20);
    let mut first = Box::pin(client.mount_segment(ME, &other));
    waits(&mut first).await;
    let mut second = Box::pin(client.mount_segment(ME, &other));
    waits(&mut second).await;
    at_once(client.mount_segment(ME, &segment(1, 64 << 20))).await;
    world.advance(world.journal.heard());
    at_once(first).await;
    at_once(second).await;
    world.server.shutdown().await;
}

#[tokio::test]
async fn what_a_read_shows_and_is_not_durable_in_time_is_not_told() {
    let world = World::with_changes(impatient()).await;
    let client = connect_with(&world.server, once()).await;
    let refusals = [
        client.get_replica_list(key("new")).await.map(drop).unwrap_err(),
        client.exist(key("gone")).await.map(drop).unwrap_err(),
        client.remove(key("gone"), true).await.unwrap_err(),
    ];
    for refused in &refusals {
        assert_eq!(refused.code(), ErrorCode::AnswerNotKept, "{refused}");
        let message = refused.to_string();
        assert!(message.contains("its journal has not kept it for 300ms"), "{message}");
        assert!(!message.contains("executed"), "{message}");
    }
    assert_eq!(world.server.metrics().not_durable, 3);
    // The journal has ended, and nothing will be durable.
    let World { durable, server, .. } = world;
    let mut last = Box::pin(client.exist(key("gone")));
    waits(&mut last).await;
    drop(durable);
    let refused = last.await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::AnswerNotKept, "{refused}");
    assert!(refused.to_string().contains("its journal has ended"), "{refused}");
    let refused = client.get_replica_list(key("new")).await.unwrap_err();
    assert!(refused.to_string().contains("its journal has ended"), "{refused}");
    at_once(client.get_replica_list(key("old"))).await;
    server.shutdown().await;
}

#[tokio::test]
async fn the_second_attempt_waits_for_a_refusal_as_the_first_did() {
    let world = World::with_changes(ServerConfig::default()).await;
    let hello = Hello { session: 7, ..Hello::default() };
    let mut first = Raw::connect_as(&world.server, &hello).await.unwrap();
    first.send(&frame(1, "new", Some(1))).await;
    waits(&mut Box::pin(first.frame())).await;
    drop(first);
    let mut second = Raw::connect_as(&world.server, &hello).await.unwrap();
    second.send(&frame(5, "new", Some(1))).await;
    waits(&mut Box::pin(second.frame())).await;
    assert_eq!(world.server.metrics().repeated, 1);
    world.advance(world.journal.heard());
    let (id, refusal) = second.refusal().await;
    assert_eq!((id, refusal.code), (5, ErrorCode::ObjectAlreadyExists));
    world.server.shutdown().await;
}

mod grpc {
    use mc_rpc::proto::{
        GetReplicaListRequest, GetReplicaListResponse, PutStartResponse, RemoveRequest,
        RemoveResponse,
    };
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

    fn get(name: &str) -> GetReplicaListRequest {
        GetReplicaListRequest { key: name.to_owned(), ..GetReplicaListRequest::default() }
    }

    #[tokio::test]
    async fn what_a_reply_shows_is_durable() {
        let world = World::with_changes(ServerConfig::default()).await;
        let channel = dial(&world.server).await;
        let found =
            call::<_, GetReplicaListResponse>(channel.clone(), "GetReplicaList", get("new"));
        let gone =
            call::<_, GetReplicaListResponse>(channel.clone(), "GetReplicaList", get("gone"));
        let (mut found, mut gone) = (Box::pin(found), Box::pin(gone));
        let remove = RemoveRequest { key: "gone".to_owned(), ..RemoveRequest::default() };
        let mut remove = Box::pin(call::<_, RemoveResponse>(channel.clone(), "Remove", remove));
        waits(&mut found).await;
        waits(&mut gone).await;
        waits(&mut remove).await;
        let old = call::<_, GetReplicaListResponse>(channel.clone(), "GetReplicaList", get("old"));
        timeout(DEADLINE, old).await.unwrap().unwrap();
        world.advance(world.journal.heard());
        timeout(DEADLINE, found).await.unwrap().unwrap();
        assert_eq!(gone.await.unwrap_err().code(), Code::NotFound);
        assert_eq!(remove.await.unwrap_err().code(), Code::NotFound);
        assert_eq!(world.server.metrics().not_durable, 0);
        world.server.shutdown().await;
    }

    #[tokio::test]
    async fn a_refusal_that_does_not_become_durable_is_replaced() {
        let world = World::with_changes(impatient()).await;
        let channel = dial(&world.server).await;
        let gone = call::<_, GetReplicaListResponse>(channel, "GetReplicaList", get("gone"));
        let refused = gone.await.unwrap_err();
        assert_eq!(refused.code(), Code::Aborted);
        assert!(refused.message().contains("its journal has not kept it"), "{refused}");
        assert_eq!(world.server.metrics().not_durable, 1);
        world.server.shutdown().await;
    }
}
