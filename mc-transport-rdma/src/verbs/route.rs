//! The way of a queue pair to its peer's, and how its packets are marked.

use std::mem;

use rdma_sys::{ibv_ah_attr, ibv_gid};

/// The first two bytes of a subnet's prefix that routers of InfiniBand forward: such a prefix also
/// carries the local identifier by which packets find the way to the subnet.
const ROUTED_PREFIX: [u8; 2] = [0xfe, 0xc0];

/// The address of one end of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct PathAddress {
    pub(in super::super) gid: [u8; 16],
    /// The LID of an InfiniBand port; zero on Ethernet.
    pub(in super::super) lid: u16,
}

/// The way of a queue pair to its peer's.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Path {
    /// This side's port.
    pub(in super::super) port: u8,
    /// This side's GID, by its index.
    pub(in super::super) gid_index: u8,
    /// This side's GID itself; zeros if there is none.
    pub(in super::super) gid: [u8; 16],
    pub(in super::super) is_infiniband: bool,
    /// The smaller MTU of both sides, by its number.
    pub(in super::super) mtu: u8,
    pub(in super::super) peer: PathAddress,
    /// The peer's queue pair.
    pub(in super::super) peer_number: u32,
    /// The number of the peer's first packet.
    pub(in super::super) peer_first: u32,
    /// The number of this side's first packet.
    pub(in super::super) first: u32,
    /// Reads that this side serves at the same time.
    pub(in super::super) reads_in: u8,
    /// Reads that this side may have under way.
    pub(in super::super) reads_out: u8,
}

/// The marks that a queue pair's packets carry, by which a network tells them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Marks {
    /// The traffic class of the global header: over IP its differentiated services and ECN bits.
    pub(in super::super) traffic_class: u8,
    /// Below 16: the virtual lane on InfiniBand, the priority of Ethernet frames with a VLAN.
    pub(in super::super) service_level: u8,
    /// The place of the partition in the port's table.
    pub(in super::super) pkey_index: u16,
    /// Routers that a packet may pass.
    pub(in super::super) hop_limit: u8,
}

impl Path {
    /// Returns whether packets carry a global header. Over Ethernet they always do. On InfiniBand
    /// they need one to get into another subnet, and are shorter without.
    fn is_global(&self) -> bool {
        if !self.is_infiniband {
            return true;
        }
        let (ours, theirs) = (&self.gid[..8], &self.peer.gid[..8]);
        // A side without a GID has said nothing of its subnet.
        self.gid != [0; 16] && self.peer.gid != [0; 16] && ours != theirs
    }

    /// Returns the local identifier that packets are sent to: the peer's, or that of the way to its
    /// subnet, which OpenSM puts in the third pair of bytes of the prefixes that it routes.
    fn destination(&self) -> u16 {
        let gid = &self.peer.gid;
        let way = u16::from_be_bytes([gid[4], gid[5]]);
        let is_routed = self.is_infiniband && self.is_global() && gid[..2] == ROUTED_PREFIX;
        if is_routed && way != 0 { way } else { self.peer.lid }
    }

    /// Returns the address that the queue pair's packets are sent to.
    pub(super) fn address(&self, marks: &Marks) -> ibv_ah_attr {
        // SAFETY: all zeros are valid for a structure of numbers.
        let mut to: ibv_ah_attr = unsafe { mem::zeroed() };
        to.port_num = self.port;
        to.dlid = self.destination();
        to.sl = marks.service_level;
        to.is_global = u8::from(self.is_global());
        to.grh.dgid = ibv_gid { raw: self.peer.gid };
        to.grh.sgid_index = self.gid_index;
        to.grh.hop_limit = marks.hop_limit;
        to.grh.traffic_class = marks.traffic_class;
        to
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARKS: Marks =
        Marks { traffic_class: 106, service_level: 3, pkey_index: 0, hop_limit: 17 };

    /// The address of a path between two GIDs.
    fn address(is_infiniband: bool, gid: [u8; 16], peer: [u8; 16]) -> ibv_ah_attr {
        let peer = PathAddress { gid: peer, lid: 9 };
        let path = Path {
            port: 2,
            gid_index: 3,
            gid,
            is_infiniband,
            mtu: 5,
            peer,
            peer_number: 1,
            peer_first: 1,
            first: 1,
            reads_in: 1,
            reads_out: 1,
        };
        path.address(&MARKS)
    }

    /// The GID of port `port` in the subnet with this prefix.
    fn gid(prefix: [u8; 8], port: u8) -> [u8; 16] {
        let mut gid = [0; 16];
        gid[..8].copy_from_slice(&prefix);
        gid[15] = port;
        gid
    }

    #[test]
    fn packets_carry_the_marks_and_a_global_header_over_ethernet() {
        for (ours, theirs) in [(1, 2), (1, 1)] {
            let to = address(false, gid([0; 8], ours), gid([0; 8], theirs));
            assert_eq!((to.port_num, to.dlid, to.sl, to.is_global), (2, 9, 3, 1));
            assert_eq!((to.grh.traffic_class, to.grh.hop_limit, to.grh.sgid_index), (106, 17, 3));
            // SAFETY: every form of a GID is 16 plain bytes.
            assert_eq!(unsafe { to.grh.dgid.raw }, gid([0; 8], theirs));
        }
    }

    #[test]
    fn infiniband_packets_carry_a_global_header_between_subnets_alone() {
        let local = [0xfe, 0x80, 0, 0, 0, 0, 0, 0];
        let to = address(true, gid(local, 1), gid(local, 2));
        assert_eq!((to.is_global, to.dlid, to.sl), (0, 9, 3));
        for nobody in [(gid(local, 1), [0; 16]), ([0; 16], gid(local, 1))] {
            assert_eq!(address(true, nobody.0, nobody.1).is_global, 0);
        }
        let to = address(true, gid(local, 1), gid([0x20, 1, 0, 0, 0, 0, 0, 7], 2));
        assert_eq!((to.is_global, to.dlid), (1, 9), "no prefix that names the way");
    }

    #[test]
    fn packets_for_a_routed_subnet_are_sent_the_way_that_its_prefix_names() {
        let [here, there] = [[0xfe, 0xc0, 0, 0, 0, 5, 0, 1], [0xfe, 0xc0, 0, 0, 0x12, 0x34, 0, 2]];
        let to = address(true, gid(here, 1), gid(there, 2));
        assert_eq!((to.is_global, to.dlid, to.grh.hop_limit), (1, 0x1234, 17));
        let to = address(true, gid(there, 1), gid(there, 2));
        assert_eq!((to.is_global, to.dlid), (0, 9), "one subnet");
        let unnamed = [0xfe, 0xc0, 0, 0, 0, 0, 0, 3];
        assert_eq!(address(true, gid(here, 1), gid(unnamed, 2)).dlid, 9);
    }
}
