//! The environment that a simulated host gives a client or a master.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use mc_rpc::ClientEnvironment;
use mc_store::{Environment, Work};
use mc_transport::BootClock;
use tokio::time::{Instant, sleep, sleep_until};

use super::network::{Network, Process, ToMasters};
use super::random::Random;

/// The environment of one process on a simulated host.
pub struct SimulatedHost {
    process: Process,
    clock: BootClock,
    random: Random,
    /// The longest time that work which blocks takes, such as that of a disk.
    blocking: Duration,
    to_masters: Arc<ToMasters>,
}

impl fmt::Debug for SimulatedHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimulatedHost").field("process", &self.process).finish_non_exhaustive()
    }
}

impl SimulatedHost {
    /// The environment of `process`. Work that blocks takes up to `blocking`; with zero it runs
    /// where it is asked for.
    #[must_use]
    pub fn new(
        network: &Arc<Network>,
        process: &Process,
        clock: BootClock,
        random: &Random,
        blocking: Duration,
    ) -> Self {
        let network = Arc::clone(network);
        let to_masters = ToMasters { network, process: process.clone(), random: random.fork() };
        Self {
            process: process.clone(),
            clock,
            random: random.fork(),
            blocking,
            to_masters: Arc::new(to_masters),
        }
    }
}

impl Environment for SimulatedHost {
    fn clock(&self) -> BootClock {
        self.clock
    }

    fn random(&self, bytes: &mut [u8]) -> io::Result<()> {
        self.random.fill(bytes);
        Ok(())
    }

    fn spawn_apart(&self, _: &str, work: Work) -> io::Result<()> {
        self.process.owns(tokio::spawn(work).abort_handle());
        Ok(())
    }

    fn run_blocking(&self, work: Box<dyn FnOnce() + Send>) {
        let longest = self.blocking.as_millis() as u64;
        if longest == 0 {
            return work();
        }
        let longest = longest + self.process.disk_delay().as_millis() as u64;
        let delay = Duration::from_millis(self.random.below(longest + 1));
        let process = self.process.clone();
        let task = tokio::spawn(async move {
            sleep(delay).await;
            while let Some(until) = process.disk_hangs_until(Instant::now()) {
                sleep_until(until).await;
            }
            work();
        });
        self.process.owns(task.abort_handle());
    }

    fn address_towards(&self, _: &str) -> io::Result<IpAddr> {
        Ok(self.process.host().into())
    }

    fn to_master(&self) -> Option<Arc<dyn ClientEnvironment>> {
        Some(Arc::clone(&self.to_masters) as _)
    }
}
