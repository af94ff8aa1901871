//! `PingRequest`: what a client says of itself when it says that it lives.

use bytes::BytesMut;
use mc_meta::{Beat, Verdict};
use mc_types::ClientId;
use prost::Message;

use super::{client, no_client, write_ping};
use crate::proto::check_outcome;
pub use crate::proto::{NodeLoad, PeerSpeed};
use crate::refusal::Refusal;
use crate::wire::{Fields, put_bytes, put_message, put_u64};

/// Most peers of whose speed one call tells.
pub const MAX_PEER_SPEEDS: usize = 16;

/// Most outcomes of checks in one call.
pub(crate) const MAX_OUTCOMES: usize = 64;

/// A client's heartbeat.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Heartbeat<'a> {
    client: ClientId,
    beat: Beat,
    takes_checks: bool,
    outcomes: &'a [(u64, Verdict)],
    load: Option<&'a NodeLoad>,
}

impl<'a> Heartbeat<'a> {
    /// Makes the heartbeat of a client.
    pub const fn new(client: ClientId) -> Self {
        let beat = Beat { is_cut_off: false, is_unproven: false, segments: 0, promotes: false };
        Self { client, beat, takes_checks: false, outcomes: &[], load: None }
    }

    /// Its own check finds that peers do not reach its segments.
    pub const fn cut_off(mut self) -> Self {
        self.beat.is_cut_off = true;
        self
    }

    /// The client has never had an answer from itself at the address that peers are told.
    pub const fn unproven(mut self) -> Self {
        self.beat.is_unproven = true;
        self
    }

    /// The client takes so many segments for mounted, without those that are being unmounted. When
    /// the master knows fewer, the answer says so.
    pub const fn segments(mut self, segments: usize) -> Self {
        self.beat.segments = segments;
        self
    }

    /// The client has no disk of its own, and brings objects that are in files alone back into
    /// memory when the answer says that [there is something to do](crate::Pong::disk_work).
    pub const fn promotes(mut self) -> Self {
        self.beat.promotes = true;
        self
    }

    /// The client checks replicas that it holds when the answer [asks](crate::Pong::checks), and
    /// reports the outcome in a later heartbeat.
    pub const fn takes_checks(mut self) -> Self {
        self.takes_checks = true;
        self
    }

    /// The results of checks, by their numbers. Of more than 64 the first are told.
    pub const fn outcomes(mut self, outcomes: &'a [(u64, Verdict)]) -> Self {
        self.outcomes = outcomes;
        self
    }

    /// The load of the client, and the speed of itself and others as it finds them. Of more than
    /// [`MAX_PEER_SPEEDS`] peers the master refuses all.
    pub const fn load(mut self, load: &'a NodeLoad) -> Self {
        self.load = Some(load);
        self
    }
}

/// `PingRequest`.
#[derive(Debug, PartialEq)]
pub(crate) struct PingRequest {
    pub(crate) client: ClientId,
    pub(crate) beat: Beat,
    pub(crate) takes_checks: bool,
    pub(crate) outcomes: Vec<(u64, Verdict)>,
    pub(crate) load: Option<NodeLoad>,
}

impl PingRequest {
    pub(crate) fn parse(payload: &[u8]) -> Result<Self, Refusal> {
        let mut fields = Fields::new(payload);
        let (mut who, mut beat, mut takes_checks) = (None, Beat::default(), false);
        let (mut outcomes, mut load) = (Vec::new(), None);
        while let Some(field) = fields.next()? {
            match field.number {
                1 => who = Some(client(field)?),
                2 => beat.is_cut_off = field.bool()?,
                3 => takes_checks = field.bool()?,
                4 if outcomes.len() == MAX_OUTCOMES => {
                    return Err(Refusal::invalid(format!(
                        "outcomes has more than {MAX_OUTCOMES} items; send them in several calls"
                    )));
                }
                4 => outcomes.push(parse_outcome(field.bytes()?)?),
                5 => beat.segments = field.u32()? as usize,
                6 => beat.is_unproven = field.bool()?,
                7 => beat.promotes = field.bool()?,
                8 => load = Some(parse_load(field.bytes()?)?),
                _ => {}
            }
        }
        Ok(Self { client: who.ok_or_else(no_client)?, beat, takes_checks, outcomes, load })
    }
}

fn parse_load(message: &[u8]) -> Result<NodeLoad, Refusal> {
    let load =
        NodeLoad::decode(message).map_err(|error| Refusal::invalid(format!("load: {error}")))?;
    if load.peers.len() > MAX_PEER_SPEEDS {
        let peers = load.peers.len();
        return Err(Refusal::invalid(format!(
            "load.peers has {peers} items, more than {MAX_PEER_SPEEDS}"
        )));
    }
    Ok(load)
}

/// `CheckOutcome`.
fn parse_outcome(message: &[u8]) -> Result<(u64, Verdict), Refusal> {
    let (mut fields, mut id, mut verdict) = (Fields::new(message), 0, 0);
    while let Some(field) = fields.next()? {
        match field.number {
            1 => id = field.u64()?,
            2 => verdict = field.i32()?,
            _ => {}
        }
    }
    let verdict = match check_outcome::Verdict::try_from(verdict) {
        Ok(check_outcome::Verdict::Intact) => Verdict::Intact,
        Ok(check_outcome::Verdict::Damaged) => Verdict::Damaged,
        // A word that this master does not know decides nothing.
        _ => Verdict::Unknown,
    };
    Ok((id, verdict))
}

pub(crate) fn write_heartbeat(out: &mut BytesMut, heartbeat: &Heartbeat<'_>) {
    write_ping(out, heartbeat.client);
    put_u64(out, 2, heartbeat.beat.is_cut_off.into());
    put_u64(out, 3, heartbeat.takes_checks.into());
    for &(id, verdict) in heartbeat.outcomes.iter().take(MAX_OUTCOMES) {
        let verdict = match verdict {
            Verdict::Intact => check_outcome::Verdict::Intact,
            Verdict::Damaged => check_outcome::Verdict::Damaged,
            _ => check_outcome::Verdict::Unknown,
        };
        put_message(out, 4, |out| {
            put_u64(out, 1, id);
            put_u64(out, 2, verdict as u64); // none is negative
        });
    }
    put_u64(out, 5, heartbeat.beat.segments as u64);
    put_u64(out, 6, heartbeat.beat.is_unproven.into());
    put_u64(out, 7, heartbeat.beat.promotes.into());
    if let Some(load) = heartbeat.load {
        put_bytes(out, 8, &load.encode_to_vec());
    }
}
