//! A node's memory, and puts under way, when a master refuses a request.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use mc_cluster_testkit::{client, node};
use mc_meta::MasterConfig;
use mc_rpc::{
    Call, Completion, MasterService, Method, Refusal, Server, ServerConfig, ServerHandle, Service,
    SystemClock,
};
use mc_store::{ByteSize, ErrorCode, PutOutcome};
use mc_testkit::{eventually, eventually_async};
use parking_lot::Mutex;

/// Long enough for a loaded machine; a test that needs it has failed.
const DEADLINE: Duration = Duration::from_secs(20);

/// Later than any test ends: for the master, nobody has said a word for long.
const FAR: mc_types::Time = mc_types::Time::from_millis(u64::MAX / 2);

/// A master that refuses some calls.
struct Refusing {
    master: MasterService,
    calls: Mutex<Option<(&'static [Method], ErrorCode)>>,
    /// Calls that it has refused since the last [`refuse`](Self::refuse).
    refused: AtomicU64,
}

impl Refusing {
    fn refuse(&self, calls: &'static [Method], code: ErrorCode) {
        self.refused.store(0, Ordering::SeqCst);
        *self.calls.lock() = Some((calls, code));
    }

    fn refuse_nothing(&self) {
        *self.calls.lock() = None;
    }

    async fn has_refused(&self, calls: u64) {
        let has = || self.refused.load(Ordering::SeqCst) >= calls;
        eventually(DEADLINE, format!("{calls} calls are refused"), has).await;
    }
}

impl Service for Refusing {
    fn call(&self, call: Call<'_>, out: &mut BytesMut) -> Result<Completion, Refusal> {
        let refused = self.calls.lock().filter(|(calls, _)| calls.contains(&call.method));
        match refused {
            Some((_, code)) => {
                self.refused.fetch_add(1, Ordering::SeqCst);
                Err(Refusal::new(code, "the test has it refused"))
            }
            None => self.master.call(call, out),
        }
    }
}

async fn start(mut config: MasterConfig) -> (Arc<Refusing>, ServerHandle) {
    config.client_return_timeout = Duration::from_secs(3600);
    let master = Arc::new(mc_meta::Master::new(config, 7).unwrap());
    let master = MasterService::new(master, SystemClock::new());
    let (calls, refused) = (Mutex::default(), AtomicU64::default());
    let refusing = Arc::new(Refusing { master, calls, refused });
    let server = Server::bind("127.0.0.1:0", Arc::clone(&refusing), ServerConfig::default());
    (refusing, server.await.unwrap().spawn())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_segment_that_is_refused_for_now_keeps_what_it_holds() {
    let (master, server) = start(MasterConfig::default()).await;
    let address = server.local_addr();
    let node = node(&address).segment_size(ByteSize::mib(1)).connect().await.unwrap();
    let app = client(&address).connect().await.unwrap();
    app.put("k", "value").await.unwrap();
    let id = node.segments()[0].id;
    for code in [
        ErrorCode::PermissionDenied,
        ErrorCode::Unauthenticated,
        ErrorCode::UnavailableInCurrentStatus,
        ErrorCode::IllegalClient,
        ErrorCode::RpcTimeout,
        ErrorCode::OutcomeUnknown,
        ErrorCode::InvalidParams,
        ErrorCode::NotSupported,
        ErrorCode::Internal,
    ] {
        master.refuse(&[Method::ReMountSegment], code);
        // The node was cut off, as far as the master knows.
        master.master.master().tick(FAR);
        let away = app.get("k").await.unwrap_err();
        assert_eq!(away.code(), ErrorCode::ReplicaIsNotReady, "{away}");
        master.has_refused(2).await;
        assert_eq!(node.segments()[0].id, id, "{code:?}");
        master.refuse_nothing();
        let found = async || app.get("k").await;
        let found = eventually_async(DEADLINE, format!("the object after {code:?}"), found).await;
        assert_eq!(found, "value");
        assert_eq!(node.segments()[0].id, id, "{code:?}");
    }
    node.shutdown().await;
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_put_that_failed_is_revoked_as_soon_as_the_master_takes_that() {
    let mut config = MasterConfig::default();
    // Without a revocation the key is taken for longer than the test runs.
    config.put_start_discard_timeout = Duration::from_secs(3600);
    config.put_start_release_timeout = Duration::from_secs(7200);
    let (master, server) = start(config).await;
    let address = server.local_addr();
    let node = node(&address).segment_size(ByteSize::mib(1)).connect().await.unwrap();
    let (writer, other) = (client(&address), client(&address).put_wait(Duration::ZERO));
    let (writer, other) = (writer.connect().await.unwrap(), other.connect().await.unwrap());
    for code in [
        ErrorCode::UnavailableInCurrentStatus,
        ErrorCode::PermissionDenied,
        ErrorCode::OutcomeUnknown,
    ] {
        let key = format!("{code:?}");
        let ends =
            &[Method::PutEnd, Method::BatchPutEnd, Method::PutRevoke, Method::BatchPutRevoke];
        master.refuse(ends, code);
        let failed = writer.put(&key, "value").await.unwrap_err();
        assert_eq!(failed.code(), code, "{failed}");
        // The end, and more than one attempt to revoke.
        master.has_refused(3).await;
        master.refuse_nothing();
        let stored = async || match other.put(&key, "another").await.unwrap() {
            PutOutcome::Stored => Ok(()),
            outcome => Err(outcome),
        };
        eventually_async(DEADLINE, format!("the key is free after {code:?}"), stored).await;
        assert_eq!(other.get(&key).await.unwrap(), "another");
    }
    node.shutdown().await;
    server.shutdown().await;
}
