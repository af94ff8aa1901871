//! A cluster on virtual time, in one thread: hosts, clocks and a network that a test controls.
//!
//! The client, the master, their protocols and their tasks are those of production. What a
//! simulation replaces is what they take from outside: the clock ([`HostClock`]), randomness
//! ([`Random`]), threads and addresses ([`SimulatedHost`]), the connections to masters
//! ([`Network`]) and the memory of peers ([`SimulatedTransport`]). A [`Ledger`] receives the
//! master's effects and every write to a segment, and finds space with two owners.
//!
//! Everything runs on one current-thread runtime of Tokio whose clock is paused and jumps from
//! timer to timer ([`run_simulated`]). Then one seed gives one history. Timers of Tokio have a
//! resolution of a millisecond, so all delays are whole milliseconds.
//!
//! The network is made here and not by `turmoil`: that gives each host a runtime of its own and
//! lets time pass in fixed steps for all of them, which costs too much for a thousand hosts.

mod clock;
mod disk;
mod host;
mod journal;
mod landing;
mod ledger;
mod network;
mod random;
mod stream;
mod transport;

pub use clock::{HostClock, begin_time, virtual_time};
pub use disk::SimulatedDisk;
pub use host::SimulatedHost;
pub use journal::SimulatedJournal;
pub use ledger::{Beginning, Ledger, LedgerSink, Life, Owner, Undone};
pub use network::{Cut, Ending, Network, Process, Weather};
pub use random::Random;
pub use transport::{Fabric, SimulatedTransport};

/// Runs `simulation` on a runtime of its own whose clock is paused and begins at zero.
pub fn run_simulated<T>(simulation: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().expect("a runtime");
    runtime.block_on(async {
        begin_time();
        simulation.await
    })
}
