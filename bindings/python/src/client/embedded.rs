//! A master in this process.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use mc_store::{Master, MasterConfig};
use tokio::sync::oneshot;

use super::failure::{Failure, Outcome};
use crate::threads::Threads;

/// Time limit for the master's tasks to end.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// A master and the thread that serves it.
#[derive(Debug)]
pub(super) struct Embedded {
    /// Taken when the master ends.
    master: Option<Master>,
    threads: Threads,
    address: SocketAddr,
}

impl Embedded {
    /// Starts a master at a free port of the loopback address.
    pub(super) fn start(lease: Option<Duration>) -> Outcome<Self> {
        let mut config = MasterConfig::default();
        if let Some(lease) = lease {
            config.lease_ttl = lease;
        }
        let threads = Threads::start(1, "mc-master")
            .map_err(|error| Failure::system("cannot start the threads of the master", &error))?;
        let master = threads.block_on(Master::builder().config(config).start())?;
        let address = master.local_addr();
        Ok(Self { master: Some(master), threads, address })
    }

    /// Returns the master's address.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends the master and waits until its address is free. Calls of other clients fail.
    pub(super) async fn end(mut self) {
        let (ended, end) = oneshot::channel();
        let wait = move || {
            drop(self.master.take());
            std::mem::take(&mut self.threads).into_runtime().shutdown_timeout(SHUTDOWN_TIMEOUT);
            // Fails if the caller has stopped waiting.
            let _ = ended.send(());
        };
        // If no thread starts, dropping the closure ends the master, a little later.
        drop(thread::Builder::new().name("mc-leave".into()).spawn(wait));
        // Fails if no thread was started.
        let _ = end.await;
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        if let Some(master) = self.master.take() {
            // Without waiting: this thread may be running async tasks.
            self.threads.spawn(master.shutdown());
        }
    }
}
