//! The marks of packets, and settings that no port fits.

use std::io::Read as _;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use mc_transport::Operation;
use mc_transport_rdma::{RdmaConfig, RdmaTransport};
use socket2::{Domain, Protocol, Socket, Type};

use crate::rig::{DEADLINE, Rig, alone, filled, one, owning, reaching, text};

/// The number of every protocol above Ethernet, `ETH_P_ALL`.
const EVERY_PROTOCOL: u16 = 3;

/// The UDP port of RoCE v2.
const ROCE: [u8; 2] = 4791_u16.to_be_bytes();

/// The marks of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Marks {
    from: Ipv4Addr,
    traffic_class: u8,
}

/// The packets of this host, those that leave and those that come.
struct Packets(Socket);

impl Packets {
    fn listen() -> Self {
        let every = Protocol::from(i32::from(EVERY_PROTOCOL.to_be()));
        let socket = Socket::new(Domain::PACKET, Type::DGRAM, Some(every)).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        Self(socket)
    }

    /// Returns the marks of the next RoCE packet of `from`.
    fn next(&mut self, from: Ipv4Addr) -> Marks {
        let deadline = Instant::now() + DEADLINE;
        let mut packet = [0; 64];
        while Instant::now() < deadline {
            if self.0.read(&mut packet).is_err() {
                continue;
            }
            let [version, traffic_class, ..] = packet;
            let is_roce = version == 0x45 && packet[9] == 17 && packet[22..24] == ROCE;
            let sender = Ipv4Addr::new(packet[12], packet[13], packet[14], packet[15]);
            if is_roce && sender == from {
                return Marks { from, traffic_class };
            }
        }
        panic!("no RoCE packet of {from} was seen");
    }
}

/// The address of a device of the guest's cable.
fn address(device: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, device, 1)
}

#[tokio::test]
async fn packets_carry_the_marks_that_the_settings_of_their_side_name() {
    let Some(_alone) = alone() else { return };
    for (ours, theirs) in [(0, 0), (0x68, 0xB8)] {
        let (mut owner, mut peer) = (owning(), reaching());
        (owner.traffic_class, peer.traffic_class) = (ours, theirs);
        peer.service_level = 3;
        // The first that names an IPv4 address, which is the one that is chosen, too.
        peer.gid_index = Some(1);
        let rig = Rig::with(1 << 20, owner, peer).await;
        let mut packets = Packets::listen();
        // Few packets: those that the socket has no room for are dropped.
        let write = Operation::write(filled(7, 4096).whole(), rig.span(0, 4096));
        one(&rig.link, write).await.unwrap();
        let sent = packets.next(address(1));
        let answered = packets.next(address(0));
        assert_eq!(sent, Marks { from: address(1), traffic_class: theirs });
        assert_eq!(answered, Marks { from: address(0), traffic_class: ours });
        rig.shutdown().await;
    }
}

/// Memory is registered with relaxed ordering and without.
#[tokio::test]
async fn bytes_come_in_any_ordering() {
    let Some(_alone) = alone() else { return };
    for relaxed in [true, false] {
        let (mut owner, mut peer) = (owning(), reaching());
        (owner.relaxed_ordering, peer.relaxed_ordering) = (relaxed, relaxed);
        let rig = Rig::with(1 << 20, owner, peer).await;
        let local = filled(7, 1 << 20);
        one(&rig.link, Operation::write(local.whole(), rig.span(0, 1 << 20))).await.unwrap();
        assert_eq!(rig.memory.whole().to_vec(), local.whole().to_vec());
        rig.shutdown().await;
    }
}

#[tokio::test]
async fn settings_that_no_port_fits_are_refused_with_the_reason() {
    let Some(_alone) = alone() else { return };
    let refused = async |change: fn(&mut RdmaConfig)| {
        let mut config = owning();
        change(&mut config);
        text(&RdmaTransport::start(config).await.unwrap_err())
    };
    let said = refused(|config| config.service_level = 16).await;
    assert!(said.contains("service level is 16; it must be from 0 to 15"), "{said}");
    let said = refused(|config| config.gid_index = Some(200)).await;
    assert!(said.contains("has a GID at index 200"), "{said}");
    let said = refused(|config| config.pkey_index = u16::MAX).await;
    assert!(said.contains("partition keys, so that none is at index 65535"), "{said}");
}
