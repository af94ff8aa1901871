//! The options of sockets that carry bulk.

use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tracing::debug;

/// A peer that vanished is noticed after about a minute of silence, also when
/// nothing is being transferred.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(30);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(10);
const KEEPALIVE_RETRIES: u32 = 3;

/// Prepares a connected socket. Options are wishes: a system that refuses one
/// gives a slower connection, not a broken one.
pub fn tune(stream: &TcpStream, congestion_control: Option<&str>) {
    let socket = SockRef::from(stream);
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_AFTER)
        .with_interval(KEEPALIVE_EVERY)
        .with_retries(KEEPALIVE_RETRIES);
    let mut wishes = vec![
        ("TCP_NODELAY", socket.set_tcp_nodelay(true)),
        ("SO_KEEPALIVE", socket.set_tcp_keepalive(&keepalive)),
    ];
    #[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
    if let Some(algorithm) = congestion_control {
        wishes.push(("TCP_CONGESTION", socket.set_tcp_congestion(algorithm.as_bytes())));
    }
    #[cfg(target_vendor = "apple")]
    wishes.push(("SO_NOSIGPIPE", socket.set_nosigpipe(true)));
    #[cfg(not(any(target_os = "linux", target_os = "android", target_os = "freebsd")))]
    let _ = congestion_control;
    for (option, outcome) in wishes {
        if let Err(error) = outcome {
            debug!(option, %error, "a socket option was refused");
        }
    }
}
