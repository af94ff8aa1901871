//! One seed's worth of randomness, virtual time, and the environment of a client made of both.

use std::cell::Cell;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mc_rpc::ClientEnvironment;
use mc_store::{Environment, Work};
use mc_transport::{BootClock, TimeSource};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::network::{Network, ToMaster};

/// A sequence of random numbers . Clones draw from the same one.
#[derive(Clone, Debug)]
pub(crate) struct Random(Arc<Mutex<mc_testkit::Random>>);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(mc_testkit::Random::new(seed))))
    }

    pub(crate) fn next(&self) -> u64 {
        self.0.lock().unwrap().next_u64()
    }

    /// A sequence of its own.
    pub(crate) fn fork(&self) -> Self {
        Self::new(self.next())
    }

    /// A number below `bound`.
    pub(crate) fn below(&self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Whether something happens that has this chance in a thousand.
    pub(crate) fn chance(&self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }

    pub(crate) fn fill(&self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next().to_le_bytes()[..chunk.len()]);
        }
    }

    pub(crate) fn bytes(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        self.fill(&mut bytes);
        bytes
    }
}

thread_local! {
    /// When the simulation on this thread began.
    static BEGUN: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// The time on the paused clock of the runtime, counted from [`begin`](Self::begin).
#[derive(Clone, Copy, Debug)]
pub(crate) struct VirtualClock;

impl VirtualClock {
    /// Begins anew at zero.
    pub(crate) fn begin() {
        BEGUN.set(Some(Instant::now()));
    }

    pub(crate) fn elapsed() -> Duration {
        BEGUN.get().expect("the simulation has begun").elapsed()
    }
}

impl TimeSource for VirtualClock {
    fn now(&self) -> Duration {
        Self::elapsed()
    }
}

/// What a client, or the master, takes from outside.
#[derive(Debug)]
pub(crate) struct Simulated {
    random: Random,
    host: Ipv4Addr,
    to_master: Option<Arc<ToMaster>>,
    apart: Mutex<Vec<AbortHandle>>,
}

impl Simulated {
    pub(crate) fn new(network: &Arc<Network>, host: Ipv4Addr, random: &Random) -> Self {
        let to_master = ToMaster::new(Arc::clone(network), host, random.fork());
        let to_master = Some(Arc::new(to_master));
        Self { random: random.fork(), host, to_master, apart: Mutex::default() }
    }

    /// The master's, which calls nobody.
    pub(crate) fn of_master(random: &Random) -> Self {
        let host = Ipv4Addr::UNSPECIFIED;
        Self { random: random.fork(), host, to_master: None, apart: Mutex::default() }
    }

    /// Ends what runs apart, in the middle of what it does: its process was killed.
    pub(crate) fn kill(&self) {
        self.apart.lock().unwrap().drain(..).for_each(|task| task.abort());
    }
}

impl Environment for Simulated {
    fn clock(&self) -> BootClock {
        BootClock::of(&VirtualClock)
    }

    fn random(&self, bytes: &mut [u8]) -> io::Result<()> {
        self.random.fill(bytes);
        Ok(())
    }

    fn spawn_apart(&self, _: &str, work: Work) -> io::Result<()> {
        self.apart.lock().unwrap().push(tokio::spawn(work).abort_handle());
        Ok(())
    }

    fn run_blocking(&self, work: Box<dyn FnOnce() + Send>) {
        work();
    }

    fn address_towards(&self, _: &str) -> io::Result<IpAddr> {
        Ok(self.host.into())
    }

    fn to_master(&self) -> Option<Arc<dyn ClientEnvironment>> {
        self.to_master.clone().map(|network| network as _)
    }
}
