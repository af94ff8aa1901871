//! Ports for programs that are started again where they were.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};

/// Ports that a process has before the next one's begin.
const PER_PROCESS: u32 = 16;

/// Returns a port of the loopback address that is free now. It is below those that the system gives
/// to connections, one of which could have it a moment later, and another one each time.
///
/// # Panics
/// When none of ten thousand is free.
#[must_use]
pub fn free_port() -> u16 {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    // Tests that run side by side are processes of neighbouring numbers.
    let own = std::process::id().wrapping_mul(PER_PROCESS) % 10_000;
    let first = own + CALLS.fetch_add(1, Ordering::Relaxed);
    let ports = (0..10_000).map(|n| 20_000 + (first + n) % 10_000);
    let mut ports = ports.map(|port| u16::try_from(port).expect("it is below 30,000"));
    ports.find(|&port| TcpListener::bind(("127.0.0.1", port)).is_ok()).expect("a port")
}
