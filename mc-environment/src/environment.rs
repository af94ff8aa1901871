//! The trait of an environment, and the result of work that it runs.

use std::any::Any;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::sync::oneshot;

use crate::boot_time::BootClock;
use crate::network::ClientEnvironment;

/// Work that an environment runs until it ends.
pub type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The world that a client or a master lives in: [`System`](crate::System), unless `ClientBuilder::environment`
/// of `mc-store` or `MasterBuilder::environment` of `mc-server` names another one.
///
/// A client takes the time from [`clock`](Self::clock) and from [`tokio::time`], runs its tasks on
/// the Tokio runtime that it was connected in, and its transports are those that
/// `ClientBuilder::node` names. Everything else that would make one
/// run differ from the next comes from here.
///
/// # Simulation
/// So the production client runs on virtual time, in one process, on a simulated network:
///
/// * on a current-thread runtime whose clock is paused (`tokio`'s feature `test-util`), which jumps
///   to the next timer when every task waits;
/// * with an environment whose clock follows [`tokio::time::Instant`], whose randomness comes from a
///   seed, and which runs heartbeat and ticks as tasks and blocking work where it is called;
/// * with `NodeConfig::only` of `mc-transport` and a simulated transport, such as
///   `MemFabric` behind delays and failures;
/// * with a master in such an environment that is handed the streams which
///   [`to_master`](Self::to_master) connects
///   (`MasterBuilder::start_over_streams`);
/// * with several such masters, whose metadata is in memory (`JournalConfig::threads` is 1), which
///   elect a leader in an `mc_ha::election::memory::MemoryCluster`. One is killed by
///   cutting its election off, breaking its streams, aborting what its environment runs apart, and
///   dropping it.
///
/// Then one seed gives one history. `mc-sim` in `examples/sim` is such a simulation. What the application
/// asks for beside that, it gets from the system: pages over HTTP, credentials and certificates in
/// files, memory from a file. A thread of the system populates pages of memory beyond 2 MiB ahead of
/// their use; it changes no byte, and no task waits for it.
///
/// ```
/// use std::io;
/// use std::net::{IpAddr, Ipv4Addr};
/// use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
/// use std::sync::{Arc, OnceLock};
/// use std::time::Duration;
///
/// use mc_environment::{BootClock, ClientEnvironment, Environment, TimeSource, Work};
/// use tokio::time::Instant;
///
/// /// Virtual time, where the runtime's clock is paused.
/// struct Virtual;
///
/// impl TimeSource for Virtual {
///     fn now(&self) -> Duration {
///         static START: OnceLock<Instant> = OnceLock::new();
///         START.get_or_init(Instant::now).elapsed()
///     }
/// }
///
/// #[derive(Debug)]
/// struct Simulated {
///     seed: AtomicU64,
///     network: Arc<dyn ClientEnvironment>,
/// }
///
/// impl Environment for Simulated {
///     fn clock(&self) -> BootClock {
///         BootClock::of(&Virtual)
///     }
///
///     fn random(&self, bytes: &mut [u8]) -> io::Result<()> {
///         for byte in bytes {
///             let step = |seed: u64| seed.wrapping_mul(6364136223846793005).wrapping_add(1);
///             *byte = (step(self.seed.fetch_update(Relaxed, Relaxed, |s| Some(step(s)))
///                 .unwrap_or_default()) >> 56) as u8;
///         }
///         Ok(())
///     }
///
///     fn spawn_apart(&self, _: &str, work: Work) -> io::Result<()> {
///         tokio::spawn(work);
///         Ok(())
///     }
///
///     fn run_blocking(&self, work: Box<dyn FnOnce() + Send>) {
///         work();
///     }
///
///     fn address_towards(&self, _: &str) -> io::Result<IpAddr> {
///         Ok(Ipv4Addr::new(10, 0, 0, 1).into())
///     }
///
///     fn to_master(&self) -> Option<Arc<dyn ClientEnvironment>> {
///         Some(Arc::clone(&self.network))
///     }
/// }
///
/// # fn f(network: Arc<dyn ClientEnvironment>) {
/// let environment: Arc<dyn Environment> = Arc::new(Simulated { seed: AtomicU64::new(7), network });
/// # }
/// ```
pub trait Environment: fmt::Debug + Send + Sync + 'static {
    /// Returns the clock that leases, grants and tickets are measured with. Asked for once, when a
    /// client is described or a master starts.
    fn clock(&self) -> BootClock;

    /// Fills `bytes` with random ones, for the ids of clients and segments, for the keys that
    /// tickets are signed with, and for a master's seed and secrets. In a cluster whose members do
    /// not all trust each other they must be unpredictable.
    ///
    /// # Errors
    /// When there is no randomness; the client or the master does not start then, or the client
    /// mounts no segment.
    fn random(&self, bytes: &mut [u8]) -> io::Result<()>;

    /// Runs `work` until it ends: the heartbeat of a client with segments; the ticks of a master, and
    /// what reads and writes its journal, which blocks meanwhile. No amount of other work may keep it
    /// waiting, or the master takes the client for dead, or nothing expires in time; so the system's
    /// environment gives it a thread of this name and a runtime of its own.
    ///
    /// # Errors
    /// When it cannot be started.
    fn spawn_apart(&self, name: &str, work: Work) -> io::Result<()>;

    /// Returns whether a thread may block until work that runs apart has ended, as one does that drops a
    /// master whose journal is still to be written. Not where both run on one thread, which is the
    /// default.
    fn may_block(&self) -> bool {
        false
    }

    /// Runs `work`, which takes up to seconds (it populates memory, or adds up long values), now or
    /// later, where it holds up no task. It may be dropped without being run when the runtime ends.
    /// It does not panic.
    fn run_blocking(&self, work: Box<dyn FnOnce() + Send>);

    /// Runs `work`, which computes for up to minutes, now or later, where it holds up no task and
    /// gives way to all else that this host does. As [`run_blocking`](Self::run_blocking), which it
    /// is unless an environment knows better.
    fn run_in_background(&self, work: Box<dyn FnOnce() + Send>) {
        self.run_blocking(work);
    }

    /// Returns how many processors work in the background may take, at least 1: one less than there
    /// are, so that others find one that is free.
    fn spare_processors(&self) -> usize {
        1
    }

    /// Returns the address of this host from which the master is reached that has answered at
    /// `master`, one of the addresses of `ClientBuilder::master` or the leader's that a resolver found:
    /// peers are told it when the client listens on every address.
    ///
    /// # Errors
    /// When the master's name cannot be resolved, or there is no way to it.
    fn address_towards(&self, master: &str) -> io::Result<IpAddr>;

    /// Returns what connects to the master, and draws the random numbers of the connection; `None`
    /// for the system's sockets and randomness.
    fn to_master(&self) -> Option<Arc<dyn ClientEnvironment>>;
}

impl dyn Environment {
    /// Returns 128 random bits.
    ///
    /// # Errors
    /// When there is no randomness.
    pub fn random_u128(&self) -> io::Result<u128> {
        let mut bytes = [0; 16];
        self.random(&mut bytes)?;
        Ok(u128::from_ne_bytes(bytes))
    }

    /// Has `work` run where it holds up no task.
    pub fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Blocking<T> {
        Blocking::of(work, |work| self.run_blocking(work))
    }

    /// Has `work` run where it gives way to all else.
    pub fn in_background<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Blocking<T> {
        Blocking::of(work, |work| self.run_in_background(work))
    }
}

/// The result of work that may block, or what it panicked with; `None` when it was dropped because
/// the runtime ends.
#[derive(Debug)]
pub struct Blocking<T>(oneshot::Receiver<Result<T, Box<dyn Any + Send>>>);

impl<T: Send + 'static> Blocking<T> {
    fn of(
        work: impl FnOnce() -> T + Send + 'static,
        run: impl FnOnce(Box<dyn FnOnce() + Send>),
    ) -> Self {
        let (done, result) = oneshot::channel();
        run(Box::new(move || {
            // The task that waited for it may be gone.
            let _ = done.send(catch_unwind(AssertUnwindSafe(work)));
        }));
        Self(result)
    }

    /// Returns the result. Waits for ever when the runtime ends.
    ///
    /// # Panics
    /// With what the work panicked with.
    pub async fn completed(self) -> T {
        match self.await {
            Some(Ok(result)) => result,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None => std::future::pending().await,
        }
    }
}

impl<T> Future for Blocking<T> {
    type Output = Option<Result<T, Box<dyn Any + Send>>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx).map(Result::ok)
    }
}
