//! Decoders. What they allocate is proportional to their input.

use mc_types::StoreEventInfo;
use rmp::{Marker, decode};

use crate::error::Malformed;
use crate::event::{
    BlockRemovedEvent, BlockStoreEvent, BlockUpdateEvent, Event, Medium, RemovalReason,
    RemoveAllEvent, Replica,
};
use crate::replay::{INFO, MAX_CURSOR, SNAPSHOT};

/// Decodes a batch in the encoding `s4`. A removed object is an [`Event::Removed`] where the endpoint
/// tells the [reasons](RemovalReason) of removals, and else an update without replicas.
///
/// Events of other types, replicas of unknown kinds and additional fields are left out.
///
/// # Errors
/// The payload is not such a batch.
pub fn decode_batch(payload: &[u8]) -> Result<Vec<Event>, Malformed> {
    let mut rest = Unpacker { rest: payload };
    let fields = rest.array_of_at_least(2)?;
    // The time.
    rest.skip(1)?;
    let mut events = Vec::new();
    for _ in 0..rest.array_of_at_least(0)? {
        events.extend(rest.event()?);
    }
    rest.skip(fields - 2)?;
    rest.end()?;
    Ok(events)
}

/// The answer to `INFO`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// The number that differs from every other start's.
    pub incarnation: u64,
    /// The name of the endpoint's encoding.
    pub encoding: String,
    /// The number of the oldest message that a replay has.
    pub oldest: u64,
    /// The number that the next message gets.
    pub next: u64,
    /// Whether pages of a snapshot are served.
    pub snapshot: bool,
    /// Whether [`Between`](crate::replay::ReplayRequest::Between) is answered.
    pub ranges: bool,
}

impl Info {
    /// Decodes the frames of the answer, without a delimiter.
    ///
    /// # Errors
    /// They are not such an answer, or a value is missing.
    pub fn decode<F: AsRef<[u8]>>(frames: &[F]) -> Result<Self, Malformed> {
        const WRONG: Malformed = Malformed { what: "a wrong answer to INFO" };
        let [name, map] = frames else { return Err(WRONG) };
        if name.as_ref() != INFO {
            return Err(WRONG);
        }
        let mut rest = Unpacker { rest: map.as_ref() };
        let (mut incarnation, mut encoding, mut oldest, mut next) = (None, None, None, None);
        let (mut snapshot, mut ranges) = (None, false);
        for _ in 0..decode::read_map_len(&mut rest.rest).map_err(|_| WRONG)? {
            match rest.str()? {
                "incarnation" => incarnation = Some(rest.uint()?),
                "encoding" => encoding = Some(rest.str()?),
                "oldest" => oldest = Some(rest.uint()?),
                "next" => next = Some(rest.uint()?),
                "snapshot" => {
                    snapshot = Some(decode::read_bool(&mut rest.rest).map_err(|_| WRONG)?);
                }
                "ranges" => ranges = decode::read_bool(&mut rest.rest).map_err(|_| WRONG)?,
                _ => rest.skip(1)?,
            }
        }
        rest.end()?;
        Ok(Self {
            incarnation: incarnation.ok_or(WRONG)?,
            encoding: encoding.ok_or(WRONG)?.into(),
            oldest: oldest.ok_or(WRONG)?,
            next: next.ok_or(WRONG)?,
            snapshot: snapshot.ok_or(WRONG)?,
            ranges,
        })
    }
}

/// A page of a snapshot.
#[derive(Clone, Debug)]
pub struct Page {
    /// The publisher's incarnation.
    pub incarnation: u64,
    /// The number of the first message that the page may lack.
    pub number: u64,
    /// Where the next page begins; empty after the last.
    pub cursor: Vec<u8>,
    /// The objects, as they would be published.
    pub objects: Vec<Event>,
}

impl Page {
    /// Decodes the frames of the answer, without a delimiter.
    ///
    /// # Errors
    /// They are not a page in the encoding `s4`.
    pub fn decode<F: AsRef<[u8]>>(frames: &[F]) -> Result<Self, Malformed> {
        const WRONG: Malformed = Malformed { what: "a wrong page of a snapshot" };
        let [name, incarnation, number, cursor, objects] = frames else { return Err(WRONG) };
        if name.as_ref() != SNAPSHOT || cursor.as_ref().len() > MAX_CURSOR {
            return Err(WRONG);
        }
        Ok(Self {
            incarnation: number_of(incarnation.as_ref()).ok_or(WRONG)?,
            number: number_of(number.as_ref()).ok_or(WRONG)?,
            cursor: cursor.as_ref().into(),
            objects: decode_batch(objects.as_ref())?,
        })
    }
}

/// The number in a frame of 8 bytes.
pub(super) fn number_of(frame: &[u8]) -> Option<u64> {
    frame.try_into().ok().map(u64::from_be_bytes)
}

/// MessagePack that is not read yet.
struct Unpacker<'a> {
    rest: &'a [u8],
}

const fn wrong(what: &'static str) -> Malformed {
    Malformed { what }
}

impl<'a> Unpacker<'a> {
    fn array_of_at_least(&mut self, fields: u32) -> Result<u32, Malformed> {
        let len = decode::read_array_len(&mut self.rest).ok().filter(|len| *len >= fields);
        len.ok_or(wrong("something else where an array belongs"))
    }

    fn bytes(&mut self, len: u32) -> Result<&'a [u8], Malformed> {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let (bytes, rest) = self.rest.split_at_checked(len).ok_or(wrong("a value cut short"))?;
        self.rest = rest;
        Ok(bytes)
    }

    fn str(&mut self) -> Result<&'a str, Malformed> {
        const WRONG: Malformed = wrong("something else where text belongs");
        let len = decode::read_str_len(&mut self.rest).map_err(|_| WRONG)?;
        std::str::from_utf8(self.bytes(len)?).map_err(|_| WRONG)
    }

    fn uint<T: TryFrom<u64>>(&mut self) -> Result<T, Malformed> {
        const WRONG: Malformed = wrong("something else where a whole number belongs");
        let number: u64 = decode::read_int(&mut self.rest).map_err(|_| WRONG)?;
        number.try_into().map_err(|_| WRONG)
    }

    fn event(&mut self) -> Result<Option<Event>, Malformed> {
        let fields = self.array_of_at_least(1)?;
        let tag = self.str()?;
        let (event, known) = match tag {
            "BlockStoreEvent" if fields >= 8 => (Some(self.store()?.into()), 8),
            "BlockUpdateEvent" if fields >= 3 => {
                let (key, replicas) = (self.str()?.into(), self.replicas()?);
                let reason = if replicas.is_empty() && fields > 3 { self.reason() } else { None };
                match reason {
                    Some(_) => {
                        (Some(BlockRemovedEvent { key, reason, ..Default::default() }.into()), 4)
                    }
                    None => {
                        (Some(BlockUpdateEvent { key, replicas, ..Default::default() }.into()), 3)
                    }
                }
            }
            "RemoveAllEvent" => (Some(RemoveAllEvent.into()), 1),
            "BlockStoreEvent" | "BlockUpdateEvent" => return Err(wrong("an event without fields")),
            _ => (None, 1),
        };
        self.skip(fields - known)?;
        Ok(event)
    }

    fn store(&mut self) -> Result<BlockStoreEvent, Malformed> {
        let (key, replicas) = (self.str()?.into(), self.replicas()?);
        let mut info = StoreEventInfo {
            model_name: self.str()?.into(),
            block_size: self.uint()?,
            block_hash: self.str()?.into(),
            parent_block_hash: self.str()?.into(),
            ..StoreEventInfo::default()
        };
        for _ in 0..self.array_of_at_least(0)? {
            info.token_ids.push(self.uint()?);
        }
        Ok(BlockStoreEvent { key, replicas, store_event_info: info, ..Default::default() })
    }

    fn replicas(&mut self) -> Result<Vec<Replica>, Malformed> {
        let mut replicas = Vec::new();
        for _ in 0..self.array_of_at_least(0)? {
            let fields = self.array_of_at_least(2)?;
            let (kind, location) = (self.str()?, self.str()?);
            self.skip(fields - 2)?;
            let media = [Medium::Memory, Medium::SharedFile, Medium::LocalDisk];
            if let Some(medium) = media.into_iter().find(|medium| medium.kind() == kind) {
                replicas.push(Replica { medium, location: location.into() });
            }
        }
        Ok(replicas)
    }

    /// Takes the next value if it is the name of a reason.
    fn reason(&mut self) -> Option<RemovalReason> {
        let mut ahead = Unpacker { rest: self.rest };
        let reason = RemovalReason::of_name(ahead.str().ok()?)?;
        self.rest = ahead.rest;
        Some(reason)
    }

    /// Passes over values, with what is in them.
    fn skip(&mut self, values: u32) -> Result<(), Malformed> {
        let mut left = u64::from(values);
        // Each turn takes a byte at least.
        while left > 0 {
            left -= 1;
            let marker = decode::read_marker(&mut self.rest);
            let marker = marker.map_err(|_| wrong("a batch cut short"))?;
            let len = match marker {
                Marker::FixArray(len) => {
                    left += u64::from(len);
                    0
                }
                Marker::FixMap(len) => {
                    left += 2 * u64::from(len);
                    0
                }
                Marker::Array16 | Marker::Map16 | Marker::Array32 | Marker::Map32 => {
                    let wide = matches!(marker, Marker::Array32 | Marker::Map32);
                    let len = u64::from(self.length(if wide { 4 } else { 2 })?);
                    let pairs = matches!(marker, Marker::Map16 | Marker::Map32);
                    left += if pairs { 2 * len } else { len };
                    0
                }
                Marker::FixStr(len) => len.into(),
                Marker::Str8 | Marker::Bin8 => self.length(1)?,
                Marker::Str16 | Marker::Bin16 => self.length(2)?,
                Marker::Str32 | Marker::Bin32 => self.length(4)?,
                Marker::Ext8 => self.length(1)?.saturating_add(1),
                Marker::Ext16 => self.length(2)?.saturating_add(1),
                Marker::Ext32 => self.length(4)?.saturating_add(1),
                Marker::U8 | Marker::I8 => 1,
                Marker::U16 | Marker::I16 | Marker::FixExt1 => 2,
                Marker::FixExt2 => 3,
                Marker::U32 | Marker::I32 | Marker::F32 => 4,
                Marker::FixExt4 => 5,
                Marker::U64 | Marker::I64 | Marker::F64 => 8,
                Marker::FixExt8 => 9,
                Marker::FixExt16 => 17,
                _ => 0,
            };
            self.bytes(len)?;
        }
        Ok(())
    }

    /// A length of some bytes.
    fn length(&mut self, bytes: u32) -> Result<u32, Malformed> {
        let bytes = self.bytes(bytes)?;
        Ok(bytes.iter().fold(0, |len, byte| len << 8 | u32::from(*byte)))
    }

    fn end(&self) -> Result<(), Malformed> {
        if self.rest.is_empty() { Ok(()) } else { Err(wrong("more than a message has")) }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use proptest::prelude::*;

    use super::*;
    use crate::pack::Packer;

    fn event() -> impl Strategy<Value = Event> {
        let media = [Medium::Memory, Medium::SharedFile, Medium::LocalDisk].map(Just);
        let [memory, disk, local] = media;
        let replica = (prop_oneof![memory, disk, local], ".{0,40}")
            .prop_map(|(medium, location)| Replica { medium, location });
        let replicas = prop::collection::vec(replica, 0..20);
        let tokens = prop::collection::vec(any::<u32>(), 0..20);
        let info =
            (".{0,40}", any::<u32>(), tokens).prop_map(|(name, size, token_ids)| StoreEventInfo {
                model_name: name.clone(),
                block_size: size,
                block_hash: name.clone(),
                parent_block_hash: name,
                token_ids,
            });
        prop_oneof![
            (".{0,300}", replicas.clone(), info).prop_map(|(key, replicas, store_event_info)| {
                BlockStoreEvent { key, replicas, store_event_info, ..Default::default() }.into()
            }),
            (".{0,300}", replicas).prop_map(|(key, replicas)| {
                BlockUpdateEvent { key, replicas, ..Default::default() }.into()
            }),
            Just(RemoveAllEvent.into()),
        ]
    }

    fn batch(events: &[Event]) -> Vec<u8> {
        let mut payload = Vec::new();
        let mut packer = Packer::new(&mut payload);
        packer.array(2).float(0.5).array(events.len());
        events.iter().for_each(|event| event.pack(&mut packer));
        payload
    }

    proptest! {
        #[test]
        fn a_batch_is_decoded_as_it_was_encoded(events in prop::collection::vec(event(), 0..20)) {
            let payload = batch(&events);
            prop_assert_eq!(format!("{:?}", decode_batch(&payload)), format!("{:?}", Ok::<_, ()>(events)));
            // Of a long one not at every byte: the time grows with the square of its length.
            for len in (0..payload.len()).step_by(1 + payload.len() / 256) {
                prop_assert!(decode_batch(&payload[..len]).is_err());
            }
        }
    }

    #[test]
    fn what_is_not_known_is_left_out() {
        let mut payload = Vec::new();
        let mut packer = Packer::new(&mut payload);
        packer.array(3).float(0.5).array(2);
        packer.array(3).str("Yours").map(1).str("a").bin(b"b");
        packer.array(2).uint(1 << 40).bool(true);
        packer.array(4).str("BlockUpdateEvent").str("k").array(2);
        packer.array(2).str("tape").str("shelf").array(3).str("disk").str("path").nil();
        packer.float(1.0).uint(0);
        let events = decode_batch(&payload).unwrap();
        let [Event::Update(update)] = &events[..] else { panic!("{events:?}") };
        assert_eq!(
            update.replicas,
            [Replica { medium: Medium::SharedFile, location: "path".into() }]
        );
    }

    #[test]
    fn a_removal_with_its_reason_is_decoded_and_an_unknown_reason_is_left_out() {
        let mut payload = Vec::new();
        let mut packer = Packer::new(&mut payload);
        packer.array(2).float(0.5).array(4);
        for reason in ["evicted", "of a later version"] {
            packer.array(4).str("BlockUpdateEvent").str("k").array(0).str(reason);
        }
        packer.array(4).str("BlockUpdateEvent").str("k").array(0).uint(7);
        // It is there, so nothing removed it.
        packer.array(4).str("BlockUpdateEvent").str("k").array(1);
        packer.array(2).str("disk").str("path").str("evicted");
        let events = decode_batch(&payload).unwrap();
        let [Event::Removed(removed), Event::Update(a), Event::Update(b), Event::Update(c)] =
            &events[..]
        else {
            panic!("{events:?}")
        };
        assert_eq!(removed.reason, Some(RemovalReason::Evicted));
        assert!(a.replicas.is_empty() && b.replicas.is_empty() && c.replicas.len() == 1);
    }

    #[test]
    fn made_up_lengths_allocate_nothing() {
        let store = b"\x92\xc0\x91\x98\xafBlockStoreEvent";
        for tail in [&b"\xdb\xff\xff\xff\xff"[..], b"\xa1k\xdd\xff\xff\xff\xff"] {
            assert!(decode_batch(&[store, tail].concat()).is_err());
        }
        assert!(decode_batch(b"\xdd\xff\xff\xff\xff\xc0\x90").is_err());
        assert!(decode_batch(&[b"\x92", &[0x91; 10_000][..]].concat()).is_err(), "deep");
    }
}
