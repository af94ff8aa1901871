//! A thin client is an object store as any other.

use std::sync::Arc;

use mc_store::conformance;

use crate::support::Host;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dummy_client() {
    let host = Host::start().await;
    let app = Arc::new(host.app().await);
    conformance::run_all(async || Arc::clone(&app)).await;
    drop(app);
    host.until_idle().await;
}
