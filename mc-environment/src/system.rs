//! The environment that the operating system and Tokio are.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _, UdpSocket};
use std::sync::Arc;

use crate::boot_time::BootClock;
use crate::environment::{Environment, Work};
use crate::network::ClientEnvironment;

/// The priority of work that gives way to others, as `nice` counts: a tenth of a processor that
/// another thread wants. Not less, because a thread that maps memory locks the mappings of the whole
/// process, and all others wait for one that gets no processor then.
#[cfg(target_os = "linux")]
const LOW_PRIORITY: i32 = 10;

/// The system's clock, randomness, threads and network: the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct System;

impl Environment for System {
    fn clock(&self) -> BootClock {
        BootClock::SYSTEM
    }

    fn random(&self, bytes: &mut [u8]) -> io::Result<()> {
        getrandom::fill(bytes).map_err(io::Error::other)
    }

    fn spawn_apart(&self, name: &str, work: Work) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = std::thread::Builder::new().name(name.into());
        thread.spawn(move || runtime.block_on(work)).map(drop)
    }

    fn may_block(&self) -> bool {
        true
    }

    fn run_blocking(&self, work: Box<dyn FnOnce() + Send>) {
        drop(tokio::task::spawn_blocking(work));
    }

    /// A thread of its own, because its priority is never raised again.
    fn run_in_background(&self, work: Box<dyn FnOnce() + Send>) {
        let give_way = || {
            // On Linux each thread has its own priority; elsewhere, or where setting it fails, the usual one stays.
            #[cfg(target_os = "linux")]
            let _ = rustix::process::setpriority_process(None, LOW_PRIORITY);
        };
        let thread = std::thread::Builder::new().name("mc-background".into());
        // Without a thread the work is dropped, as at the runtime's end.
        let _ = thread.spawn(move || {
            give_way();
            work();
        });
    }

    fn spare_processors(&self) -> usize {
        std::thread::available_parallelism().map_or(1, |all| (all.get() - 1).max(1))
    }

    /// Connecting a datagram socket sends nothing; it only asks for the route.
    fn address_towards(&self, master: &str) -> io::Result<IpAddr> {
        let target = master.to_socket_addrs()?.next().ok_or(io::ErrorKind::NotFound)?;
        let any: SocketAddr = match target {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = UdpSocket::bind(any)?;
        socket.connect(target)?;
        Ok(socket.local_addr()?.ip())
    }

    fn to_master(&self) -> Option<Arc<dyn ClientEnvironment>> {
        None
    }
}
