//! Calls to a master, client and server on one thread, over a socket of the loopback device.

use std::error::Error;
use std::hint::black_box;
use std::sync::Arc;

use mc_meta::{PutEnd, ReplicateConfig};
use mc_rpc::{
    ClientConfig, MasterClient, MasterService, PutStartItem, Server, ServerConfig, SystemClock,
};
use tokio::runtime::Runtime;

use crate::keys::Keys;
use crate::metadata::{LIVE, OBJECT, WRITER, drawn, filled};
use crate::{Done, profiled_path};

/// A client and its master, on the one thread whose instructions are counted.
struct Cluster {
    runtime: Runtime,
    client: MasterClient,
    keys: Keys,
}

impl Cluster {
    fn start(more: u64) -> Result<Self, Box<dyn Error>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (master, keys) = filled(more)?;
        let service = MasterService::new(Arc::new(master), SystemClock::new());
        let client = runtime.block_on(async {
            let server =
                Server::bind("127.0.0.1:0", service, ServerConfig::default()).await?.spawn();
            let mut config = ClientConfig::default();
            config.local_socket = false;
            let client = MasterClient::connect(&server.local_addr().to_string(), config).await?;
            // It serves as long as this process runs.
            std::mem::forget(server);
            Ok::<_, Box<dyn Error>>(client)
        })?;
        Ok(Self { runtime, client, keys })
    }
}

pub(crate) fn exist(operations: u64) -> Done {
    let Cluster { runtime, client, keys } = Cluster::start(0)?;
    let mut random = fastrand::Rng::with_seed(1);
    profiled_path(&mut || {
        runtime.block_on(async {
            for _ in 0..operations {
                black_box(client.exist(keys.at(random.u64(..LIVE))?).await?);
            }
            Ok(())
        })
    })
}

pub(crate) fn get(operations: u64) -> Done {
    let Cluster { runtime, client, keys } = Cluster::start(0)?;
    let mut random = fastrand::Rng::with_seed(1);
    profiled_path(&mut || {
        runtime.block_on(async {
            for _ in 0..operations {
                black_box(client.get_replica_list(keys.at(random.u64(..LIVE))?).await?);
            }
            Ok(())
        })
    })
}

pub(crate) fn batch_exist(operations: u64, len: usize) -> Done {
    let Cluster { runtime, client, keys } = Cluster::start(0)?;
    let batches = drawn(&keys, operations, len)?;
    profiled_path(&mut || {
        runtime.block_on(async {
            for batch in &batches {
                black_box(client.batch_exist(batch).await?);
            }
            Ok(())
        })
    })
}

pub(crate) fn batch_get(operations: u64, len: usize) -> Done {
    let Cluster { runtime, client, keys } = Cluster::start(0)?;
    let batches = drawn(&keys, operations, len)?;
    profiled_path(&mut || {
        runtime.block_on(async {
            for batch in &batches {
                for list in client.batch_get_replica_list(batch).await? {
                    black_box(list?);
                }
            }
            Ok(())
        })
    })
}

pub(crate) fn batch_put(operations: u64, len: usize) -> Done {
    let Cluster { runtime, client, .. } = Cluster::start(operations)?;
    let keys = Keys::new(1, operations);
    let batches = keys.batches(len)?;
    let config = ReplicateConfig::default();
    profiled_path(&mut || {
        runtime.block_on(async {
            for batch in &batches {
                let puts: Vec<_> =
                    batch.iter().map(|key| PutStartItem::new(*key, &[OBJECT])).collect();
                let grants = client.batch_put_start(WRITER, &config, &puts).await?;
                let mut ends = Vec::with_capacity(batch.len());
                for (key, grant) in batch.iter().zip(grants) {
                    ends.push(PutEnd::new(*key, grant?.handle));
                }
                for ended in client.batch_put_end(WRITER, &ends).await? {
                    ended?;
                }
            }
            Ok(())
        })
    })
}
