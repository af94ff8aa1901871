//! A name with two addresses of this host, of which the first swallows packets.
//!
//! The name is known in a mount namespace alone, where a test's own program runs again: see
//! [`role`](crate::role).

use std::net::{SocketAddr, SocketAddrV4, TcpListener, ToSocketAddrs, UdpSocket};
use std::os::fd::OwnedFd;
use std::process::Command;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, listen, socket_with};

use crate::role;

/// The name.
pub const TWO_ADDRESSES: &str = "two.test";

/// The file in which the name is looked up.
const HOSTS: &str = "127.0.0.2 two.test\n127.0.0.1 two.test localhost\n";

/// Mounts the file that it reads over `/etc/hosts`, and runs the rest.
const IN_MOUNTS: &str = "hosts=$(mktemp) && printf '%s' \"$0\" > \"$hosts\" \
     && mount --bind \"$hosts\" /etc/hosts && rm \"$hosts\" && exec \"$@\"";

/// The command that runs the test `player` where [`TWO_ADDRESSES`] has its addresses; `None` where
/// nothing can be mounted.
#[must_use]
pub fn where_a_name_has_two_addresses(player: &str, role: &str) -> Option<Command> {
    let unshared = |as_user: bool| {
        let mut command = Command::new("unshare");
        if as_user {
            command.args(["--user", "--map-root-user"]);
        }
        command.args(["--mount", "--", "sh", "-c", IN_MOUNTS, HOSTS]);
        command
    };
    let works = |as_user: &bool| {
        let output = unshared(*as_user).arg("true").output();
        output.is_ok_and(|output| output.status.success())
    };
    let as_user = [false, true].into_iter().find(works)?;
    Some(role::launched_by(unshared(as_user), player, role))
}

/// The first address of [`TWO_ADDRESSES`] at some port, where nothing is answered, over TCP and UDP,
/// as long as this lives.
#[derive(Debug)]
pub struct SilentAddress {
    address: SocketAddr,
    other: SocketAddr,
    _kept: (Vec<OwnedFd>, UdpSocket),
}

impl SilentAddress {
    /// Takes a port.
    ///
    /// # Panics
    /// Outside of the mounts, or when the system refuses a socket.
    #[must_use]
    pub fn take() -> Self {
        loop {
            let port = crate::free_port();
            let found = (TWO_ADDRESSES, port).to_socket_addrs().expect("the name has addresses");
            let found: Vec<_> = found.collect();
            let [address, other] = found[..] else { panic!("two addresses, not {found:?}") };
            let SocketAddr::V4(silent) = address else { panic!("{address} is of IPv4") };
            if TcpListener::bind(other).is_err() {
                continue;
            }
            let Some(kept) = fill(silent) else { continue };
            let Ok(udp) = UdpSocket::bind(address) else { continue };
            return Self { address, other, _kept: (kept, udp) };
        }
    }

    /// The address that is silent.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The other address of the name, at the same port, where a server may listen.
    #[must_use]
    pub fn other(&self) -> SocketAddr {
        self.other
    }

    /// The name and the port.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{TWO_ADDRESSES}:{}", self.address.port())
    }
}

/// Listens, and lets so many connections wait that the system drops the packets of others.
fn fill(address: SocketAddrV4) -> Option<Vec<OwnedFd>> {
    let new = |flags| {
        socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).expect("a socket")
    };
    let listener = new(SocketFlags::CLOEXEC);
    bind(&listener, &address).ok()?;
    listen(&listener, 0).expect("it can listen");
    let mut kept = vec![listener];
    // The queue takes one more than it is told.
    for _ in 0..4 {
        let waiting = new(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK);
        match connect(&waiting, &address) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => panic!("connecting to a full queue: {error}"),
        }
        kept.push(waiting);
    }
    Some(kept)
}
