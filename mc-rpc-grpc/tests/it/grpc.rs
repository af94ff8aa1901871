//! The calls over gRPC, on the port of the native protocol, with a client that others wrote.

use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use http::uri::PathAndQuery;
use mc_rpc::proto::{
    BatchExistKeyRequest, BatchExistKeyResponse, BatchGetReplicaListRequest,
    BatchGetReplicaListResponse, ExistKeyRequest, ExistKeyResponse, GetReplicaListRequest,
    GetReplicaListResponse, MountSegmentRequest, MountSegmentResponse, PutEndRequest,
    PutEndResponse, PutStartRequest, PutStartResponse, RemoveRequest, RemoveResponse,
    StoreEventInfo, VerifiedSpan,
};
use mc_rpc::{ServerConfig, ServerHandle};
use mc_types::ErrorCode;
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Response, Status, Streaming};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_prost::ProstCodec;
use tonic_reflection::pb::{v1, v1alpha};
use tonic_types::StatusExt;

use crate::common::{DEADLINE, ME, connect, key, master, segment, serve};

const MIB: u64 = 1 << 20;

async fn dial(server: &ServerHandle) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{}", server.local_addr())).unwrap();
    endpoint.connect().await.unwrap()
}

async fn call_at<Q, A>(channel: &Channel, path: &str, request: Request<Q>) -> Result<A, Status>
where
    Q: prost::Message + Send + Sync + 'static,
    A: prost::Message + Default + Send + Sync + 'static,
{
    let mut client = tonic::client::Grpc::new(channel.clone());
    client.ready().await.unwrap();
    let path = PathAndQuery::from_str(path).unwrap();
    let answered = client.unary(request, path, ProstCodec::<Q, A>::default()).await;
    answered.map(Response::into_inner)
}

async fn call<Q, A>(channel: &Channel, method: &str, request: Q) -> Result<A, Status>
where
    Q: prost::Message + Send + Sync + 'static,
    A: prost::Message + Default + Send + Sync + 'static,
{
    let path = format!("/mc.store.v1.MasterService/{method}");
    call_at(channel, &path, Request::new(request)).await
}

fn mount(number: u8) -> MountSegmentRequest {
    let spec = segment(number, 64 * MIB);
    MountSegmentRequest {
        buffer: spec.base,
        size: spec.size,
        segment_name: spec.name.to_string(),
        segment_id: spec.id.to_bytes().to_vec(),
        client_id: ME.to_bytes().to_vec(),
        endpoint: spec.endpoint.as_str().to_owned(),
        remote_key: spec.remote_key.to_bytes().to_vec(),
        ticket_key: vec![number; 16],
        ..Default::default()
    }
}

fn put_start(name: &str) -> PutStartRequest {
    PutStartRequest {
        key: name.to_owned(),
        value_length: 4096,
        client_id: ME.to_bytes().to_vec(),
        ..PutStartRequest::default()
    }
}

async fn exists(channel: &Channel, name: &str) -> Result<bool, Status> {
    let request = ExistKeyRequest { key: name.to_owned(), ..Default::default() };
    let answer: ExistKeyResponse = call(channel, "ExistKey", request).await?;
    Ok(answer.exists)
}

#[tokio::test]
async fn an_object_lives_its_life() {
    let server = serve(&master(), ServerConfig::default()).await;
    let channel = dial(&server).await;
    let mounted: MountSegmentResponse = call(&channel, "MountSegment", mount(1)).await.unwrap();
    assert_eq!(mounted.status_code, 0);

    assert!(!exists(&channel, "block").await.unwrap());
    let grant: PutStartResponse = call(&channel, "PutStart", put_start("block")).await.unwrap();
    let handle = &grant.replica_list[0].handles[0];
    let (spec, size) = (segment(1, 0), 4096);
    assert_eq!((&*handle.segment_name, handle.size), (&*spec.name, size));
    assert_eq!(handle.remote_key, spec.remote_key.to_bytes());
    let end = PutEndRequest {
        key: "block".to_owned(),
        client_id: ME.to_bytes().to_vec(),
        generation: Some(grant.generation),
        slice_checksums: vec![0x1234_5678],
        put_token: grant.put_token,
        event_info: Some(StoreEventInfo { block_hash: "1".repeat(256), ..Default::default() }),
        ..Default::default()
    };
    let long = StoreEventInfo { block_hash: "1".repeat(257), ..Default::default() };
    let long = PutEndRequest { event_info: Some(long), ..end.clone() };
    let refused = call::<_, PutEndResponse>(&channel, "PutEnd", long).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("block_hash has length 257"), "{refused}");
    // The token of a put is told to who began it alone.
    let guess = PutEndRequest { put_token: grant.put_token ^ 1, ..end.clone() };
    let refused = call::<_, PutEndResponse>(&channel, "PutEnd", guess).await;
    assert_eq!(refused.unwrap_err().code(), Code::PermissionDenied);
    let _: PutEndResponse = call(&channel, "PutEnd", end).await.unwrap();

    let list = GetReplicaListRequest { key: "block".to_owned(), ranges: vec![8, 9, 5000, 6000] };
    let list: GetReplicaListResponse = call(&channel, "GetReplicaList", list).await.unwrap();
    assert_eq!(list.generation, grant.generation);
    assert_eq!(list.replica_list[0].handles[0].buffer, handle.buffer);
    assert_eq!((handle.ticket.len(), list.replica_list[0].handles[0].ticket.len()), (24, 24));
    assert_ne!(list.replica_list[0].handles[0].ticket, handle.ticket);
    let span = VerifiedSpan { end: 4096, tail: 0x1234_5678, ..VerifiedSpan::default() };
    assert_eq!(list.spans, [span, VerifiedSpan::default()]);
    assert_eq!(list.slices[0].checksum, Some(0x1234_5678));
    assert!(list.lease_ttl_ms > 0);

    let keys = ["block", "absent", ""].map(str::to_owned).to_vec();
    let batch = BatchExistKeyRequest { keys, ..Default::default() };
    let batch: BatchExistKeyResponse = call(&channel, "BatchExistKey", batch).await.unwrap();
    assert_eq!(batch.exists, [true, false, false]);
    assert_eq!(batch.refusals[0].status_code, ErrorCode::InvalidKey.code());

    // The native protocol on the same port knows the same objects.
    let native = connect(&server).await;
    assert!(native.exist(key("block")).await.unwrap());
    native.remove(key("block"), true).await.unwrap();
    assert!(!exists(&channel, "block").await.unwrap());
    server.shutdown().await;
}

#[tokio::test]
async fn refusals_say_their_cause_in_details() {
    let server = serve(&master(), ServerConfig::default()).await;
    let channel = dial(&server).await;
    let remove = RemoveRequest { key: "absent".to_owned(), force: false };
    let refused = call::<_, RemoveResponse>(&channel, "Remove", remove).await.unwrap_err();
    assert_eq!(refused.code(), Code::NotFound);
    assert!(refused.message().contains("no such object"), "{refused}");
    let details = refused.get_error_details();
    let info = details.error_info().unwrap();
    assert_eq!((&*info.reason, &*info.domain), ("OBJECT_NOT_FOUND", "mc.store.v1"));
    assert_eq!(info.metadata["code"], "-704");
    assert!(details.retry_info().is_none());

    let _: MountSegmentResponse = call(&channel, "MountSegment", mount(1)).await.unwrap();
    let _: PutStartResponse = call(&channel, "PutStart", put_start("k")).await.unwrap();
    let again = call::<_, PutStartResponse>(&channel, "PutStart", put_start("k")).await;
    let refused = again.unwrap_err();
    assert_eq!(refused.code(), Code::Aborted);
    assert!(refused.get_error_details().retry_info().is_some());
    server.shutdown().await;
}

#[tokio::test]
async fn what_is_not_there_is_said_by_name() {
    let server = serve(&master(), ServerConfig::default()).await;
    let channel = dial(&server).await;
    for path in [
        "/mc.store.v1.MasterService/Explode",
        "/mc.store.v1.MasterService/",
        "/mc.store.v1.MasterService/existkey",
        "/mc.store.v2.MasterService/ExistKey",
        "/",
    ] {
        let request = Request::new(ExistKeyRequest::default());
        let refused = call_at::<_, ExistKeyResponse>(&channel, path, request).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unimplemented, "{path}");
        assert!(refused.message().contains("has no"), "{refused}");
    }
    assert!(!exists(&channel, "k").await.unwrap());
    server.shutdown().await;
}

#[tokio::test]
async fn bad_messages_cost_one_call() {
    let mut config = ServerConfig::default();
    config.max_payload = 64 << 10;
    let server = serve(&master(), config).await;
    let channel = dial(&server).await;

    let refused = exists(&channel, "").await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("key is empty"), "{refused}");
    // `GetReplicaListResponse.status_code` is a number where the request has its key.
    let other = GetReplicaListResponse { status_code: 5, ..Default::default() };
    let refused = call::<_, ExistKeyResponse>(&channel, "ExistKey", other).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("field 1 has another type"), "{refused}");

    let large = BatchExistKeyRequest { keys: vec!["k".repeat(1000); 1000], ..Default::default() };
    let refused = call::<_, BatchExistKeyResponse>(&channel, "BatchExistKey", large).await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(refused.message().contains("the limit is 65536"), "{refused}");
    assert!(!exists(&channel, "k").await.unwrap());
    server.shutdown().await;
}

#[tokio::test]
async fn metadata_that_makes_no_sense_is_refused() {
    let server = serve(&master(), ServerConfig::default()).await;
    let channel = dial(&server).await;
    for (name, value, code) in [
        ("grpc-timeout", "soon", Code::InvalidArgument),
        ("mc-max-reply", "10", Code::InvalidArgument),
        ("authorization", "Basic eHg6eXk=", Code::Unauthenticated),
    ] {
        let mut request =
            Request::new(ExistKeyRequest { key: "k".to_owned(), ..Default::default() });
        request.metadata_mut().insert(name, value.parse().unwrap());
        let path = "/mc.store.v1.MasterService/ExistKey";
        let refused = call_at::<_, ExistKeyResponse>(&channel, path, request).await.unwrap_err();
        assert_eq!(refused.code(), code, "{refused}");
        assert!(refused.message().contains(name), "{refused}");
    }
    let mut request = Request::new(ExistKeyRequest { key: "k".to_owned(), ..Default::default() });
    request.metadata_mut().insert("mc-tenant", "no/name".parse().unwrap());
    let path = "/mc.store.v1.MasterService/ExistKey";
    let refused = call_at::<_, ExistKeyResponse>(&channel, path, request).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    server.shutdown().await;
}

#[tokio::test]
async fn a_call_after_its_deadline_is_not_executed() {
    let master = master();
    let server = serve(&master, ServerConfig::default()).await;
    let channel = dial(&server).await;
    let mut request = Request::new(mount(1));
    request.metadata_mut().insert("grpc-timeout", "0n".parse().unwrap());
    let path = "/mc.store.v1.MasterService/MountSegment";
    let refused = call_at::<_, MountSegmentResponse>(&channel, path, request).await.unwrap_err();
    // The client's own clock may come before the server's answer.
    assert!(matches!(refused.code(), Code::DeadlineExceeded | Code::Cancelled), "{refused}");
    assert_eq!(master.report().segments.len(), 0);

    let mut request = Request::new(mount(1));
    request.set_timeout(DEADLINE);
    let _: MountSegmentResponse = call_at(&channel, path, request).await.unwrap();
    assert_eq!(master.report().segments.len(), 1);
    server.shutdown().await;
}

#[tokio::test]
async fn answers_are_as_large_as_the_caller_says() {
    let server = serve(&master(), ServerConfig::default()).await;
    let channel = dial(&server).await;
    let keys: Vec<String> = (0..20_000).map(|i| format!("{i:0>300}")).collect();
    let path = "/mc.store.v1.MasterService/BatchGetReplicaList";
    // 20,000 refusals of 32 bytes do not fit into 64 KiB.
    let mut request =
        Request::new(BatchGetReplicaListRequest { keys: keys.clone(), reads: vec![] });
    request.metadata_mut().insert("mc-max-reply", "65536".parse().unwrap());
    let refused = call_at::<_, BatchGetReplicaListResponse>(&channel, path, request).await;
    assert_eq!(refused.unwrap_err().code(), Code::InvalidArgument);
    let request = Request::new(BatchGetReplicaListRequest { keys, reads: vec![] });
    let answer: BatchGetReplicaListResponse = call_at(&channel, path, request).await.unwrap();
    assert_eq!(answer.items.len(), 20_000);
    server.shutdown().await;
}

async fn next_status(
    watch: &mut Streaming<tonic_health::pb::HealthCheckResponse>,
) -> ServingStatus {
    let answer = timeout(DEADLINE, watch.message()).await.unwrap().unwrap().unwrap();
    answer.status()
}

#[tokio::test]
async fn health_is_asked_and_watched() {
    let server = serve(&master(), ServerConfig::default()).await;
    let mut client = HealthClient::new(dial(&server).await);
    for service in ["", "mc.store.v1.MasterService"] {
        let request = HealthCheckRequest { service: service.to_owned() };
        let answer = client.check(request).await.unwrap().into_inner();
        assert_eq!(answer.status(), ServingStatus::Serving);
    }
    let other = HealthCheckRequest { service: "other".to_owned() };
    assert_eq!(client.check(other.clone()).await.unwrap_err().code(), Code::NotFound);
    let mut unknown = client.watch(other).await.unwrap().into_inner();
    assert_eq!(next_status(&mut unknown).await, ServingStatus::ServiceUnknown);

    let mut watch = client.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    assert_eq!(next_status(&mut watch).await, ServingStatus::Serving);
    // Neither an open watch nor an idle connection holds up the shutdown.
    let _idle = dial(&server).await;
    let begin = std::time::Instant::now();
    let (shutdown, ()) = tokio::join!(server.shutdown(), async {
        assert_eq!(next_status(&mut watch).await, ServingStatus::NotServing);
        assert!(timeout(DEADLINE, watch.message()).await.unwrap().unwrap().is_none());
    });
    let () = shutdown;
    assert!(begin.elapsed() < ServerConfig::default().drain_timeout, "{:?}", begin.elapsed());
}

#[derive(Debug)]
struct Switch(AtomicBool);

impl mc_rpc::Liveness for Switch {
    fn is_well(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

#[tokio::test]
async fn a_master_that_is_not_well_does_not_serve() {
    let alive = Arc::new(Switch(AtomicBool::new(true)));
    let mut config = ServerConfig::default();
    config.liveness = Some(alive.clone());
    let server = serve(&master(), config).await;
    let mut client = HealthClient::new(dial(&server).await);
    let mut watch = client.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    for is_well in [true, false, true, false] {
        let expected = if is_well { ServingStatus::Serving } else { ServingStatus::NotServing };
        alive.0.store(is_well, Ordering::Relaxed);
        let asked = client.check(HealthCheckRequest::default()).await.unwrap().into_inner();
        assert_eq!(asked.status(), expected);
        assert_eq!(next_status(&mut watch).await, expected);
    }
    let other = HealthCheckRequest { service: "other".to_owned() };
    let mut unknown = client.watch(other).await.unwrap().into_inner();
    assert_eq!(next_status(&mut unknown).await, ServingStatus::ServiceUnknown);
    // Those who watch are not told the same again; for them it just ends.
    let ((), end) = tokio::join!(server.shutdown(), timeout(DEADLINE, watch.message()));
    assert!(end.unwrap().unwrap().is_none());
}

#[tokio::test]
async fn a_shutdown_answers_what_is_under_way() {
    let server = serve(&master(), ServerConfig::default()).await;
    let channel = dial(&server).await;
    let keys: Vec<String> = (0..60_000).map(|i| format!("a rather long key {i}")).collect();
    let asked = tokio::spawn({
        let channel = channel.clone();
        async move {
            let request = BatchExistKeyRequest { keys, ..Default::default() };
            call::<_, BatchExistKeyResponse>(&channel, "BatchExistKey", request).await
        }
    });
    // Once this is answered the large call is open, too: streams open in order.
    tokio::task::yield_now().await;
    assert!(!exists(&channel, "k").await.unwrap());
    server.shutdown().await;
    assert_eq!(asked.await.unwrap().unwrap().exists.len(), 60_000);
    assert!(exists(&channel, "k").await.is_err());
}

#[tokio::test]
async fn reflection_tells_what_there_is() {
    use v1::server_reflection_request::MessageRequest;
    use v1::server_reflection_response::MessageResponse;

    let server = serve(&master(), ServerConfig::default()).await;
    let mut client = v1::server_reflection_client::ServerReflectionClient::new(dial(&server).await);
    let ask = |question| v1::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(question),
    };
    let questions = vec![
        ask(MessageRequest::ListServices(String::new())),
        ask(MessageRequest::FileContainingSymbol("mc.store.v1.PutStartRequest".to_owned())),
        ask(MessageRequest::FileContainingSymbol("mc.store.v1.Nothing".to_owned())),
    ];
    let mut answers =
        client.server_reflection_info(stream::iter(questions)).await.unwrap().into_inner();
    let services = match answers.message().await.unwrap().unwrap().message_response.unwrap() {
        MessageResponse::ListServicesResponse(list) => list.service,
        other => panic!("{other:?}"),
    };
    for name in ["mc.store.v1.MasterService", "grpc.health.v1.Health"] {
        assert!(services.iter().any(|service| service.name == name), "{services:?}");
    }
    let files = match answers.message().await.unwrap().unwrap().message_response.unwrap() {
        MessageResponse::FileDescriptorResponse(files) => files.file_descriptor_proto,
        other => panic!("{other:?}"),
    };
    let text = String::from_utf8_lossy(&files[0]).into_owned();
    for part in ["PutStartRequest", "slice_lengths", "Asks for space for an object."] {
        assert!(text.contains(part), "{part}");
    }
    assert_eq!(answers.message().await.unwrap_err().code(), Code::NotFound);

    let mut client =
        v1alpha::server_reflection_client::ServerReflectionClient::new(dial(&server).await);
    let question = v1alpha::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(v1alpha::server_reflection_request::MessageRequest::ListServices(
            String::new(),
        )),
    };
    let mut answers =
        client.server_reflection_info(stream::iter([question])).await.unwrap().into_inner();
    assert!(answers.message().await.unwrap().is_some());
    server.shutdown().await;
}

#[tokio::test]
async fn an_open_reflection_stream_does_not_hold_up_the_shutdown() {
    let server = serve(&master(), ServerConfig::default()).await;
    let mut client = v1::server_reflection_client::ServerReflectionClient::new(dial(&server).await);
    let question = v1::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(v1::server_reflection_request::MessageRequest::ListServices(
            String::new(),
        )),
    };
    let questions = stream::iter([question]).chain(stream::pending());
    let mut answers = client.server_reflection_info(questions).await.unwrap().into_inner();
    assert!(answers.message().await.unwrap().is_some());
    let begin = std::time::Instant::now();
    server.shutdown().await;
    assert!(begin.elapsed() < Duration::from_secs(4), "{:?}", begin.elapsed());
}
