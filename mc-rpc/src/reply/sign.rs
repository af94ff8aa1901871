//! Tickets, signed while an answer is written.

use core::time::Duration;

use bytes::BytesMut;
use mc_ticket::{ClockEpoch, Rights, TicketKey};
use mc_types::{Extent, RemoteKey, Time};

/// The master's clock at the time of an answer, by which its tickets end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Signer {
    pub(crate) epoch: ClockEpoch,
    pub(crate) now: Time,
}

impl Signer {
    /// For replicas that are kept for readers for as long as `lease`.
    pub(crate) fn reading(self, lease: Duration) -> Terms {
        Terms { epoch: self.epoch, rights: Rights::Read, until: self.now + lease }
    }

    /// For space that is granted to a writer for `time_left`.
    pub(crate) fn writing(self, time_left: Duration) -> Terms {
        Terms { epoch: self.epoch, rights: Rights::Write, until: self.now + time_left }
    }
}

/// The permission of an answer's tickets: the direction, and the time of its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    epoch: ClockEpoch,
    pub(super) rights: Rights,
    until: Time,
}

/// Bytes of a ticket on the wire: its end and its signature.
pub(crate) const TICKET_LEN: usize = 24;

impl Terms {
    /// Writes a ticket for `extent` of a region into the bytes field `number`, below 16; nothing
    /// when the region's key alone opens it.
    pub(super) fn put_ticket(
        self,
        out: &mut BytesMut,
        number: u8,
        (region, key): (RemoteKey, Option<&TicketKey>),
        extent: Extent,
    ) {
        let Some(key) = key else { return };
        let ticket = key.sign(self.epoch, region, extent, self.rights, self.until);
        // One copy of a known length, whose space is checked for once.
        let mut field = [0; 2 + TICKET_LEN];
        field[0] = number << 3 | 2;
        field[1] = TICKET_LEN as u8;
        field[2..10].copy_from_slice(&self.until.as_millis().to_le_bytes());
        field[10..].copy_from_slice(&ticket.tag);
        out.extend_from_slice(&field);
    }
}
