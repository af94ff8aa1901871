//! Once a leader's term is over, no byte of an answer leaves: not of what it had prepared, not over
//! gRPC, and not when its process was stopped meanwhile.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mc_meta::{Effect, EffectSink, Master, MasterConfig};
use mc_rpc::frame::{FrameHeader, Hello, Kind, Welcome};
use mc_rpc::proto::{ExistKeyRequest, PutStartRequest};
use mc_rpc::{
    Authority, DurableSequence, MasterClient, MasterService, Method, Server, ServerConfig,
    ServerHandle, SystemClock, Term,
};
use mc_testkit::{Input, Program, eventually, role};
use mc_types::{Epoch, ErrorCode, Sequence, Time};
use prost::Message;
use tokio::io::AsyncReadExt;

use crate::common::leader::leader;
use crate::common::raw::Raw;
use crate::common::{DEADLINE, ME, connect, key, master, segment, serve, spawn_with_grpc};

fn request(id: u64, method: Method, message: &impl Message) -> Vec<u8> {
    let payload = message.encode_to_vec();
    let payload_len = payload.len() as u32;
    let header =
        FrameHeader { payload_len, ..FrameHeader::new(id, method.number(), Kind::Request) };
    [&header.encode()[..], &payload].concat()
}

fn exist(id: u64) -> Vec<u8> {
    request(id, Method::ExistKey, &ExistKeyRequest { key: "k".into(), ..Default::default() })
}

#[tokio::test]
async fn a_leader_names_its_term() {
    let (config, _switch) = leader(7);
    let server = serve(&master(), config).await;
    let mut raw = Raw::unshaken(&server).await;
    let hello = Hello { send_times: true, ..Hello::default() };
    raw.send(&mc_rpc::frame::ClientPreface::with(1 << 20, &hello)).await;
    let welcome = Welcome::parse(&raw.preface().await.1).unwrap();
    assert_eq!(welcome.epoch, Some(Epoch::new(7)));
    assert_ne!(welcome.incarnation, 0);
    raw.send(&exist(1)).await;
    assert_eq!(raw.reply().await.0, 1);
}

#[tokio::test]
async fn a_former_leader_answers_nobody() {
    let (config, switch) = leader(7);
    let server = serve(&master(), config).await;
    let mut raw = Raw::connect(&server).await;
    raw.send(&exist(1)).await;
    raw.reply().await;
    switch.end();
    raw.send(&exist(2)).await;
    raw.assert_closed().await;
    let refusal = Raw::connect_as(&server, &Hello::default()).await.err().unwrap();
    assert_eq!(refusal.code, ErrorCode::UnavailableInCurrentStatus);
    assert!(refusal.message.contains("no longer leads"), "{refusal}");
    // And goes at once: it has nothing to say to those that are connected.
    let begun = Instant::now();
    server.shutdown().await;
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
}

struct Silent;

impl EffectSink for Silent {
    fn emit(&self, _: Sequence, _: Time, _: &Effect<'_>) {}
}

/// A leader whose answers wait for a journal.
async fn with_journal(config: ServerConfig) -> (DurableSequence, ServerHandle) {
    let durable = DurableSequence::new();
    let master = Arc::new(Master::new(MasterConfig::default(), 11).unwrap().with_sink(Silent));
    let service = MasterService::new(master, SystemClock::new()).with_durability(durable.watch());
    let server = spawn_with_grpc(Server::bind("127.0.0.1:0", service, config).await.unwrap());
    durable.advance(Sequence::new(1));
    connect(&server).await.mount_segment(ME, &segment(1, 1 << 20)).await.unwrap();
    (durable, server)
}

fn put_start(id: u64) -> Vec<u8> {
    let message = PutStartRequest {
        key: "k".into(),
        value_length: 1,
        client_id: ME.to_bytes().to_vec(),
        slice_lengths: vec![1],
        ..PutStartRequest::default()
    };
    request(id, Method::PutStart, &message)
}

#[tokio::test]
async fn an_answer_that_waits_for_the_journal_is_not_sent_after_the_term() {
    let (config, switch) = leader(7);
    let (durable, server) = with_journal(config).await;
    let mut raw = Raw::connect(&server).await;
    raw.send(&put_start(1)).await;
    // One that does not wait overtakes it.
    raw.send(&exist(2)).await;
    assert_eq!(raw.reply().await.0, 2);
    switch.end();
    durable.advance(Sequence::new(u64::MAX));
    raw.assert_closed().await;
}

#[tokio::test]
async fn an_answer_that_the_socket_did_not_take_is_not_sent_after_the_term() {
    let (mut config, switch) = leader(7);
    config.max_unsent = 4 << 20;
    let server = serve(&master(), config).await;
    let mut raw = Raw::connect(&server).await;
    // Answers that the client does not read, until some stay with the server.
    let asked = mc_rpc::proto::BatchExistKeyRequest {
        keys: vec!["k".into(); 60_000],
        ..Default::default()
    };
    let frame = request(1, Method::BatchExistKey, &asked);
    let watch = server.watch();
    let executed = || watch.read().calls.iter().map(|of| of.calls).sum::<u64>();
    let mut sent = 0;
    let before = loop {
        raw.send(&frame).await;
        sent += 1;
        eventually(DEADLINE, "it is executed", || executed() >= sent).await;
        let out = watch.read().bytes_out;
        if out < sent * 60_000 {
            break out;
        }
    };
    // What the system has taken is all that comes.
    let stuck = || watch.read().bytes_out == before;
    assert!(stuck());
    switch.end();
    let mut arrived = Vec::new();
    drop(raw.stream.read_to_end(&mut arrived).await);
    assert!(stuck(), "{} more bytes", watch.read().bytes_out - before);
    assert!(arrived.len() as u64 <= before, "{} of {before} bytes", arrived.len());
}

/// A lease by the clock, which a thread prolongs as long as it has not run out.
#[derive(Debug)]
struct Lease(std::sync::Mutex<Instant>);

const LEASE: Duration = Duration::from_millis(400);

impl Authority for Lease {
    fn may_answer(&self) -> bool {
        Instant::now() < *self.0.lock().unwrap()
    }
}

/// The server's process; nothing in the test's own.
#[tokio::test]
async fn process() {
    if role::role().is_none() {
        return;
    }
    let lease = Arc::new(Lease(std::sync::Mutex::new(Instant::now() + LEASE)));
    let (mut config, _) = leader(7);
    let authority = Arc::clone(&lease) as Arc<dyn Authority>;
    config.term = Some(Term { epoch: Epoch::new(7), authority });
    let (durable, server) = with_journal(config).await;
    role::say(server.local_addr());
    let renewed = Arc::clone(&lease);
    std::thread::spawn(move || {
        while renewed.may_answer() {
            std::thread::sleep(LEASE / 20);
            let mut until = renewed.0.lock().unwrap();
            // Read once: the process may be stopped between any two lines.
            let now = Instant::now();
            if now < *until {
                *until = now + LEASE;
            }
        }
    });
    while let Some(line) = tokio::task::spawn_blocking(role::hear).await.unwrap() {
        if line == "durable" {
            durable.advance(Sequence::new(u64::MAX));
        }
        role::say(!lease.may_answer());
    }
}

/// As `kill -STOP` or a virtual machine that is paused do.
#[tokio::test]
async fn a_leader_that_stood_still_past_its_lease_sends_nothing_that_it_had_prepared() {
    let mut program =
        Program::start(DEADLINE, &mut role::command("terms::process", "server"), Input::Open);
    let addr = program.hear();
    let stream = tokio::net::TcpStream::connect(&addr).await.unwrap();
    let mut raw = Raw::over(stream);
    raw.greet(&Hello::default()).await.unwrap();
    raw.send(&put_start(1)).await;
    raw.send(&exist(2)).await;
    assert_eq!(raw.reply().await.0, 2);
    program.freeze();
    // A call that waits in its socket, and the word that the first is durable.
    raw.send(&exist(3)).await;
    program.tell("durable");
    let stopped = Instant::now();
    eventually(DEADLINE, "the lease is over", || stopped.elapsed() > 2 * LEASE).await;
    program.resume();
    raw.assert_closed().await;
    assert_eq!(program.hear(), "true", "its lease is over");
    let refused = MasterClient::connect(&addr, once()).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::UnavailableInCurrentStatus, "{refused}");
}

fn once() -> mc_rpc::ClientConfig {
    let mut config = mc_rpc::ClientConfig::default();
    config.retry = false;
    config
}

#[tokio::test]
async fn without_a_term_there_is_no_epoch_and_without_a_question_no_welcome() {
    let server = serve(&master(), ServerConfig::default()).await;
    let mut raw = Raw::unshaken(&server).await;
    let hello = Hello { send_times: true, ..Hello::default() };
    raw.send(&mc_rpc::frame::ClientPreface::with(1 << 20, &hello)).await;
    assert_eq!(Welcome::parse(&raw.preface().await.1).unwrap().epoch, None);
    // A client that asks for no welcome gets none, whatever there is to say.
    let (config, _switch) = leader(7);
    let leading = serve(&master(), config).await;
    for server in [&server, &leading] {
        let mut raw = Raw::unshaken(server).await;
        raw.send(&mc_rpc::frame::ClientPreface::with(1 << 20, &Hello::default())).await;
        assert_eq!(raw.preface().await.0.message_len, 0);
    }
    assert!(!connect(&leading).await.exist(key("k")).await.unwrap());
}

mod grpc {
    use std::str::FromStr;

    use super::*;
    use http::uri::PathAndQuery;
    use mc_rpc::proto::ExistKeyResponse;
    use tonic::transport::{Channel, Endpoint};
    use tonic::{Code, Request, Response, Status};
    use tonic_health::pb::HealthCheckRequest;
    use tonic_health::pb::health_check_response::ServingStatus;
    use tonic_health::pb::health_client::HealthClient;
    use tonic_prost::ProstCodec;

    async fn serve_with_grpc(config: ServerConfig) -> ServerHandle {
        let service = MasterService::new(master(), SystemClock::new());
        spawn_with_grpc(Server::bind("127.0.0.1:0", service, config).await.unwrap())
    }

    async fn dial(server: &ServerHandle) -> Channel {
        let endpoint = Endpoint::from_shared(format!("http://{}", server.local_addr())).unwrap();
        endpoint.connect().await.unwrap()
    }

    async fn exist(channel: &Channel) -> Result<Response<ExistKeyResponse>, Status> {
        let mut client = tonic::client::Grpc::new(channel.clone());
        client.ready().await.map_err(|lost| Status::unavailable(lost.to_string()))?;
        let path = PathAndQuery::from_str("/mc.store.v1.MasterService/ExistKey").unwrap();
        let request = Request::new(ExistKeyRequest { key: "k".into(), ..Default::default() });
        client.unary(request, path, ProstCodec::default()).await
    }

    async fn health(channel: &Channel) -> Result<ServingStatus, Status> {
        let request = HealthCheckRequest { service: String::new() };
        let answer = HealthClient::new(channel.clone()).check(request).await?;
        Ok(answer.into_inner().status())
    }

    #[tokio::test]
    async fn a_former_leader_says_over_grpc_only_that_it_does_not_serve() {
        let (config, switch) = leader(7);
        let server = serve_with_grpc(config).await;
        let (calls, watched) = (dial(&server).await, dial(&server).await);
        let answer = exist(&calls).await.unwrap();
        assert_eq!(answer.metadata().get("mc-epoch").unwrap(), "7");
        assert_eq!(health(&watched).await.unwrap(), ServingStatus::Serving);
        switch.end();
        assert_eq!(health(&watched).await.unwrap(), ServingStatus::NotServing);
        // The connection over which a call was answered is closed. Where it was already, before this
        // call, tonic has opened another, over which the refusal is told.
        let lost = exist(&calls).await.unwrap_err();
        let told = lost.message().contains("no longer leads");
        assert_eq!(told, lost.code() == Code::FailedPrecondition, "{lost}");
        let fresh = dial(&server).await;
        let refused = exist(&fresh).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
        assert!(refused.message().contains("no longer leads"), "{refused}");
        assert_eq!(health(&fresh).await.unwrap(), ServingStatus::NotServing);
    }

    #[tokio::test]
    async fn an_answer_over_grpc_that_waits_for_the_journal_is_not_sent_after_the_term() {
        let (config, switch) = leader(7);
        let (durable, server) = with_journal(config).await;
        let channel = dial(&server).await;
        let mut client = tonic::client::Grpc::new(channel);
        client.ready().await.unwrap();
        let path = PathAndQuery::from_str("/mc.store.v1.MasterService/PutStart").unwrap();
        let message = PutStartRequest {
            key: "k".into(),
            value_length: 1,
            client_id: ME.to_bytes().to_vec(),
            ..PutStartRequest::default()
        };
        let codec = ProstCodec::<_, mc_rpc::proto::PutStartResponse>::default();
        let mut call = std::pin::pin!(client.unary(Request::new(message), path, codec));
        let watch = server.watch();
        let executed = || {
            let calls = watch.read().calls;
            calls.iter().any(|of| of.method == Method::PutStart && of.calls == 1)
        };
        tokio::select! {
            answer = &mut call => panic!("it is not durable: {answer:?}"),
            () = eventually(DEADLINE, "the put is begun", executed) => {}
        }
        switch.end();
        durable.advance(Sequence::new(u64::MAX));
        call.await.unwrap_err();
    }
}
