//! Tickets: an extent, a direction and a time, signed.

use core::fmt;

use mc_types::{Extent, RemoteKey, Time};
use siphasher::sip128::SipHasher24;

use crate::Purpose;

/// The secret that a node shares with its master, drawn at random for each mount of a
/// segment. `Debug` shows none of it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TicketKey([u8; 16]);

/// Names one run of a master's clock. Times of two runs cannot be compared, so a ticket
/// of one is worthless in the other. Drawn at random when the clock starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClockEpoch(u64);

/// The direction that a ticket allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rights {
    /// Reading the extent.
    Read = 1,
    /// Writing the extent.
    Write = 2,
}

/// A capability for one extent of one region, in one direction, until a time.
///
/// The region, the direction and the clock's epoch are part of the signature and not of
/// the ticket: the node knows them from elsewhere. `Debug` does not show the tag.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Ticket {
    /// The bytes that it opens, counted from the region's first.
    pub extent: Extent,
    /// When it ends, on the master's clock.
    pub until: Time,
    /// The keyed hash over everything that it allows.
    pub tag: [u8; 16],
}

impl TicketKey {
    /// Takes 16 bytes, drawn at random by the node.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The key's bytes, for the wire between node and master.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0
    }

    /// Signs a ticket for `extent` of `region` that ends at `until`.
    #[must_use]
    pub fn sign(
        &self,
        epoch: ClockEpoch,
        region: RemoteKey,
        extent: Extent,
        rights: Rights,
        until: Time,
    ) -> Ticket {
        Ticket { extent, until, tag: self.tag(epoch, region, extent, rights, until) }
    }

    /// Returns whether `ticket` was signed with this key for these rights in this region, in this
    /// epoch. Whether it has ended is for the caller to compare.
    #[must_use]
    pub fn verify(
        &self,
        epoch: ClockEpoch,
        region: RemoteKey,
        ticket: &Ticket,
        rights: Rights,
    ) -> bool {
        let expected = self.tag(epoch, region, ticket.extent, rights, ticket.until);
        // One comparison of 128 bits, which takes the same time wherever they differ.
        u128::from_le_bytes(expected) == u128::from_le_bytes(ticket.tag)
    }

    fn tag(
        &self,
        epoch: ClockEpoch,
        region: RemoteKey,
        extent: Extent,
        rights: Rights,
        until: Time,
    ) -> [u8; 16] {
        let mut message = [0; 50];
        message[0..16].copy_from_slice(&region.to_bytes());
        message[16..24].copy_from_slice(&epoch.0.to_le_bytes());
        message[24..32].copy_from_slice(&extent.offset().to_le_bytes());
        message[32..40].copy_from_slice(&extent.len().to_le_bytes());
        message[40..48].copy_from_slice(&until.as_millis().to_le_bytes());
        message[48] = rights as u8;
        message[49] = Purpose::Ticket as u8;
        SipHasher24::new_with_key(&self.0).hash(&message).as_u128().to_le_bytes()
    }
}

impl fmt::Debug for TicketKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TicketKey(..)")
    }
}

impl ClockEpoch {
    /// The epoch with this number, drawn at random.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The epoch's number, for the wire.
    #[must_use]
    pub const fn as_u64(self) -> u64 {
        self.0
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket")
            .field("extent", &self.extent)
            .field("until", &self.until)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn extent(offset: u64, len: u64) -> Extent {
        Extent::new(offset, len).unwrap()
    }

    #[test]
    fn the_signature_is_stable() {
        let key = TicketKey::from_bytes(core::array::from_fn(|n| n as u8));
        let region = RemoteKey::from_bytes(*b"0123456789abcdef");
        let until = Time::from_millis(1_000);
        let ticket = key.sign(ClockEpoch::new(7), region, extent(4096, 512), Rights::Read, until);
        let tag = ticket.tag.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(tag, GOLDEN, "nodes and masters of other versions would refuse each other");
    }

    const GOLDEN: &str = "54d37ad4ec0b8031f7c23edb9e7bac7f";

    #[test]
    fn nothing_shows_secrets() {
        let key = TicketKey::from_bytes([0xab; 16]);
        let region = RemoteKey::from_bytes([1; 16]);
        let ticket =
            key.sign(ClockEpoch::new(1), region, extent(0, 1), Rights::Write, Time::ORIGIN);
        let text = format!("{key:?} {ticket:?}");
        assert!(!text.contains("ab") && !text.contains("171") && !text.contains("tag"), "{text}");
    }

    proptest! {
        #[test]
        fn a_ticket_opens_what_it_was_signed_for_and_nothing_else(
            key: [u8; 16], epoch: u64, region: [u8; 16], offset in 0..u64::MAX / 2,
            len in 0..u64::MAX / 2, until: u64, bit in 0_u32..128,
        ) {
            let key = TicketKey::from_bytes(key);
            let (epoch, region) = (ClockEpoch::new(epoch), RemoteKey::from_bytes(region));
            let until = Time::from_millis(until);
            let ticket = key.sign(epoch, region, extent(offset, len), Rights::Write, until);
            prop_assert!(key.verify(epoch, region, &ticket, Rights::Write));
            prop_assert!(!key.verify(epoch, region, &ticket, Rights::Read));
            let later = Time::from_millis(until.as_millis() ^ 1);
            let flipped = (u128::from_le_bytes(ticket.tag) ^ 1 << bit).to_le_bytes();
            for forged in [
                Ticket { extent: extent(offset ^ 1, len), ..ticket },
                Ticket { extent: extent(offset, len ^ 1), ..ticket },
                Ticket { until: later, ..ticket },
                Ticket { tag: flipped, ..ticket },
            ] {
                prop_assert!(!key.verify(epoch, region, &forged, Rights::Write));
            }
            let mut other = region.to_bytes();
            other[3] ^= 1;
            prop_assert!(!key.verify(epoch, RemoteKey::from_bytes(other), &ticket, Rights::Write));
            let other = ClockEpoch::new(epoch.as_u64() ^ 1);
            prop_assert!(!key.verify(other, region, &ticket, Rights::Write));
        }
    }
}
