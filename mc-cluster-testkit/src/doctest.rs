//! The cluster that examples in documentation run with.

use std::error::Error;

use mc_store::{ByteSize, Client};
use tokio::runtime::Builder;

use crate::{Cluster, node};

type Outcome = Result<(), Box<dyn Error>>;

/// Runs an example with the address of a master.
pub fn with_master<F: Future<Output = Outcome>>(example: impl FnOnce(String) -> F) {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let cluster = Cluster::start(&[]).await;
        example(cluster.address()).await.expect("the example works");
        cluster.master.shutdown().await;
    });
}

/// Runs an example with a client that contributes 4 MiB under the name `node`.
pub fn with_client<F: Future<Output = Outcome>>(example: impl FnOnce(Client) -> F) {
    with_master(|master| async move {
        let builder = node(&master).segment_name("node").segment_size(ByteSize::mib(4));
        let client = builder.connect().await?;
        example(client.clone()).await?;
        client.shutdown().await;
        Ok(())
    });
}
