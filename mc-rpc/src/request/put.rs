//! The requests of a put: its start, its end, its revocation, and their batches. Those of
//! an upsert have the same fields.

use core::time::Duration;

use bytes::BytesMut;
use mc_meta::{
    LateWrites, MAX_AVOIDED_SEGMENTS, MAX_GROUP_NAME_LEN, MAX_NAMED_SEGMENTS, MAX_REPLICAS,
    MAX_SLICES, PutEnd, PutHandle, PutStart, ReplicateConfig, SoftPinAction,
};
use mc_ticket::PutToken;
use mc_types::{
    Checksum, ClientId, Generation, InfoTooLong, KeyRef, MAX_BLOCK_HASH, MAX_MODEL_NAME,
    MAX_TOKEN_IDS, MediaType, ObjectKey, SegmentId, StoreEventInfo,
};

use super::{Items, client, key, missing_key, no_client, segment_name, write_key};
use crate::refusal::Refusal;
use crate::wire::{
    Field, Fields, put_bytes, put_fixed32s, put_fixed64, put_item_bytes, put_message,
    put_present_u64, put_u64, put_varints,
};

/// Room for one item of a batch beside its key: most take less.
const ITEM_ROOM: usize = 32;

/// Bytes of a segment's id.
const ID_LEN: usize = 16;

fn parse_config(message: &[u8], config: &mut ReplicateConfig) -> Result<(), Refusal> {
    let (mut with_soft_pin, mut soft_pin_ttl) = (false, None);
    let mut fields = Fields::new(message);
    while let Some(field) = fields.next()? {
        match field.number {
            1 => {
                let replica_num = field.u32()?.max(1);
                if replica_num as usize > MAX_REPLICAS {
                    return Err(Refusal::invalid(format!(
                        "replica_num is {replica_num}; choose between 1 and {MAX_REPLICAS}"
                    )));
                }
                config.replica_num = replica_num;
            }
            2 => with_soft_pin = field.bool()?,
            // The field of Mooncake holds one name, which comes first.
            3 => add_segment(field, "preferred_segment", 0, &mut config.preferred_segments)?,
            4 => {
                let last = config.preferred_segments.len();
                add_segment(field, "preferred_segments", last, &mut config.preferred_segments)?;
            }
            5 => {
                let last = config.excluded_segments.len();
                add_segment(field, "excluded_segments", last, &mut config.excluded_segments)?;
            }
            6 => config.with_hard_pin = field.bool()?,
            7 => config.group = Some(group(field)?),
            8 if field.bytes()?.is_empty() => config.parent = None,
            8 => config.parent = Some(key(field, "parent")?.to_owned()),
            9 => config.medium = Some(medium(field)?),
            10 => soft_pin_ttl = Some(Duration::from_millis(field.u64()?)),
            11 => config.avoided_segments = avoided(field)?,
            _ => {}
        }
    }
    config.soft_pin = match (with_soft_pin, soft_pin_ttl) {
        (false, None) => SoftPinAction::Preserve,
        (true, ttl) => SoftPinAction::Enable { ttl },
        (false, Some(Duration::ZERO)) => SoftPinAction::Disable,
        (false, Some(ttl)) => {
            let message = format!(
                "soft_pin_ttl_ms asks for {ttl:?} without with_soft_pin; set that, too, or ask for 0"
            );
            return Err(Refusal::invalid(message));
        }
    };
    Ok(())
}

fn medium(field: Field<'_>) -> Result<MediaType, Refusal> {
    let number = field.i32()?;
    let known = u8::try_from(number).ok().and_then(MediaType::from_number);
    known.ok_or_else(|| {
        Refusal::invalid(format!("medium is {number}; this master knows 0 dram, 1 ssd, 2 vram"))
    })
}

fn group(field: Field<'_>) -> Result<Box<str>, Refusal> {
    let name = field.text()?;
    if !(1..=MAX_GROUP_NAME_LEN).contains(&name.len()) {
        return Err(Refusal::invalid(format!(
            "group has {} bytes; a group's name has 1 to {MAX_GROUP_NAME_LEN}",
            name.len()
        )));
    }
    Ok(name.into())
}

fn add_segment(
    field: Field<'_>,
    what: &'static str,
    at: usize,
    names: &mut Vec<Box<str>>,
) -> Result<(), Refusal> {
    let name = segment_name(field, what)?;
    if name.is_empty() {
        return Ok(());
    }
    if names.len() == MAX_NAMED_SEGMENTS {
        let message = format!("{what} has more than {MAX_NAMED_SEGMENTS} names");
        return Err(Refusal::invalid(message));
    }
    names.insert(at, name.into());
    Ok(())
}

fn avoided(field: Field<'_>) -> Result<Vec<SegmentId>, Refusal> {
    let bytes = field.bytes()?;
    let (ids, rest) = bytes.as_chunks::<ID_LEN>();
    if !rest.is_empty() || ids.len() > MAX_AVOIDED_SEGMENTS {
        return Err(Refusal::invalid(format!(
            "avoided_segments has {} bytes; it holds ids of {ID_LEN} bytes, at most \
             {MAX_AVOIDED_SEGMENTS}",
            bytes.len()
        )));
    }
    Ok(ids.iter().map(|id| SegmentId::from_bytes(*id)).collect())
}

fn write_config(out: &mut BytesMut, number: u32, config: &ReplicateConfig) {
    put_message(out, number, |out| {
        // The master takes 0 for 1, so that 1 costs nothing.
        put_u64(out, 1, if config.replica_num == 1 { 0 } else { config.replica_num.into() });
        let (with_soft_pin, ttl) = match config.soft_pin {
            SoftPinAction::Preserve => (false, None),
            SoftPinAction::Enable { ttl } => (true, ttl),
            SoftPinAction::Disable => (false, Some(Duration::ZERO)),
        };
        put_u64(out, 2, with_soft_pin.into());
        for name in &config.preferred_segments {
            put_item_bytes(out, 4, name.as_bytes());
        }
        for name in &config.excluded_segments {
            put_item_bytes(out, 5, name.as_bytes());
        }
        put_u64(out, 6, config.with_hard_pin.into());
        if let Some(group) = &config.group {
            put_item_bytes(out, 7, group.as_bytes());
        }
        if let Some(parent) = &config.parent {
            put_bytes(out, 8, parent.as_str().as_bytes());
        }
        if let Some(medium) = config.medium {
            put_present_u64(out, 9, medium.number().into());
        }
        if let Some(ttl) = ttl {
            // Rounded up: less than a millisecond is a pin, too.
            let millis = ttl.as_nanos().div_ceil(1_000_000);
            put_present_u64(out, 10, u64::try_from(millis).unwrap_or(u64::MAX));
        }
        if !config.avoided_segments.is_empty() {
            let ids: Vec<[u8; ID_LEN]> =
                config.avoided_segments.iter().map(|id| id.to_bytes()).collect();
            put_bytes(out, 11, ids.as_flattened());
        }
    });
}

fn is_default(config: &ReplicateConfig) -> bool {
    *config == ReplicateConfig::default()
}

/// An object's key and the lengths of its slices. The lengths are kept in a
/// buffer that the items of a batch share.
#[derive(Debug, Default)]
struct Shape<'a> {
    key: Option<KeyRef<'a>>,
    value_length: u64,
}

impl<'a> Shape<'a> {
    fn key(&mut self, field: Field<'a>) -> Result<(), Refusal> {
        self.key = Some(key(field, "key")?);
        Ok(())
    }

    fn value_length(&mut self, field: Field<'a>) -> Result<(), Refusal> {
        self.value_length = field.u64()?;
        if self.value_length > i64::MAX as u64 {
            return Err(Refusal::invalid("value_length is negative"));
        }
        Ok(())
    }

    fn slice_lengths(field: Field<'a>, lengths: &mut Vec<u64>) -> Result<(), Refusal> {
        field.each_varint(|length| {
            if lengths.len() == MAX_SLICES {
                return Err(Refusal::invalid(format!(
                    "slice_lengths has more than {MAX_SLICES} slices"
                )));
            }
            lengths.push(length);
            Ok(())
        })
    }

    fn finish(self, lengths: &mut Vec<u64>) -> Result<KeyRef<'a>, Refusal> {
        if lengths.is_empty() {
            lengths.push(self.value_length);
        } else if self.value_length != 0 {
            let sum = lengths.iter().try_fold(0u64, |sum, length| sum.checked_add(*length));
            if sum != Some(self.value_length) {
                return Err(Refusal::invalid(format!(
                    "value_length is {}, slice_lengths add up to another length",
                    self.value_length
                )));
            }
        }
        self.key.ok_or_else(missing_key)
    }
}

/// `PutStartRequest` and `UpsertStartRequest`.
#[derive(Debug)]
pub(crate) struct PutStartRequest<'a> {
    pub(crate) client: ClientId,
    pub(crate) key: KeyRef<'a>,
    pub(crate) slice_lengths: Vec<u64>,
    pub(crate) config: ReplicateConfig,
    pub(crate) repeated: Repeated,
}

/// A client's earlier attempts to begin a put.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Repeated {
    /// Whether it was refused before and waits.
    pub(crate) again: bool,
    /// See [`PutStartItem::may_be_begun`].
    pub(crate) may_be_begun: bool,
}

impl<'a> PutStartRequest<'a> {
    pub(crate) fn parse(payload: &'a [u8]) -> Result<Self, Refusal> {
        let (mut fields, mut shape, mut who) = (Fields::new(payload), Shape::default(), None);
        let (mut slice_lengths, mut config) = (Vec::new(), ReplicateConfig::default());
        let mut repeated = Repeated::default();
        while let Some(field) = fields.next()? {
            match field.number {
                1 => shape.key(field)?,
                2 => shape.value_length(field)?,
                3 => parse_config(field.bytes()?, &mut config)?,
                4 => Shape::slice_lengths(field, &mut slice_lengths)?,
                5 => who = Some(client(field)?),
                6 => repeated.again = field.bool()?,
                7 => repeated.may_be_begun = field.bool()?,
                _ => {}
            }
        }
        let key = shape.finish(&mut slice_lengths)?;
        Ok(Self { client: who.ok_or_else(no_client)?, key, slice_lengths, config, repeated })
    }

    pub(crate) fn command(&self) -> PutStart<'_> {
        PutStart { key: self.key, slice_lengths: &self.slice_lengths, config: &self.config }
    }

    pub(crate) fn write(out: &mut BytesMut, client: ClientId, put: &PutStart<'_>) {
        write_key(out, put.key);
        write_lengths(out, put.slice_lengths, 4);
        if !is_default(put.config) {
            write_config(out, 3, put.config);
        }
        put_bytes(out, 5, &client.to_bytes());
    }
}

/// One slice goes as the object's length, which is shorter.
fn write_lengths(out: &mut BytesMut, lengths: &[u64], number: u32) {
    match lengths {
        [length] if *length <= i64::MAX as u64 => put_u64(out, 2, *length),
        lengths => put_varints(out, number, lengths.iter().copied()),
    }
}

/// One object of [`MasterClient::batch_put_start`](crate::MasterClient::batch_put_start).
#[derive(Clone, Copy, Debug)]
pub struct PutStartItem<'a> {
    /// The object's key.
    pub key: KeyRef<'a>,
    /// Lengths of its slices in bytes; the object is their concatenation.
    pub slice_lengths: &'a [u64],
    /// Whether it was refused for lack of space before and waits: the master counts a refusal
    /// as a retry then.
    pub again: bool,
    /// Whether a former master may have begun it, and the answer was lost. The master then gives up
    /// the client's unfinished put of the key at once, if a former master began that; otherwise the
    /// put is refused with [`PutInProgress`](mc_types::ErrorCode::PutInProgress) until that one's
    /// time is over. Only for a client that has no other put of the key under way. An older master
    /// ignores it.
    pub may_be_begun: bool,
    /// The key of the object that this one continues, such as the block before it in a prompt. `None`:
    /// the object before it in the call; for the first one,
    /// [`ReplicateConfig::parent`](mc_meta::ReplicateConfig::parent).
    pub parent: Option<KeyRef<'a>>,
}

impl<'a> PutStartItem<'a> {
    /// An object that was not refused before, and continues the one before it in the call.
    #[must_use]
    pub const fn new(key: KeyRef<'a>, slice_lengths: &'a [u64]) -> Self {
        Self { key, slice_lengths, again: false, may_be_begun: false, parent: None }
    }
}

/// `BatchPutStartRequest` and `BatchUpsertStartRequest`.
#[derive(Debug)]
pub(crate) struct BatchPutStartRequest<'a> {
    pub(crate) client: ClientId,
    pub(crate) config: ReplicateConfig,
    pub(crate) puts: Items<'a>,
}

impl<'a> BatchPutStartRequest<'a> {
    pub(crate) fn parse(payload: &'a [u8]) -> Result<Self, Refusal> {
        let (mut who, mut config) = (None, ReplicateConfig::default());
        let puts = Items::parse(payload, 3, "puts", |field| {
            match field.number {
                1 => who = Some(client(field)?),
                2 => parse_config(field.bytes()?, &mut config)?,
                _ => {}
            }
            Ok(())
        })?;
        Ok(Self { client: who.ok_or_else(no_client)?, config, puts })
    }

    /// Calls `each` for every put, in order, with the put and what is said of earlier attempts, or
    /// why it is none. `scoped` makes the keys of parents those of the caller's tenant;
    /// the one of the whole call is one already.
    pub(crate) fn for_each(
        &self,
        scoped: impl Fn(KeyRef<'_>) -> Result<ObjectKey, Refusal>,
        mut each: impl FnMut(Result<(PutStart<'_>, Repeated), Refusal>),
    ) {
        let mut lengths = Vec::new();
        let mut config = self.config.clone();
        let mut first = config.parent.take();
        for message in self.puts.messages() {
            lengths.clear();
            config.parent = first.take();
            let parsed =
                Self::parse_item(message, &mut lengths).and_then(|(key, repeated, parent)| {
                    if let Some(parent) = parent {
                        config.parent = Some(scoped(parent)?);
                    }
                    Ok((key, repeated))
                });
            each(parsed.map(|(key, repeated)| {
                (PutStart { key, slice_lengths: &lengths, config: &config }, repeated)
            }));
        }
    }

    fn parse_item<'m>(
        message: &'m [u8],
        lengths: &mut Vec<u64>,
    ) -> Result<(KeyRef<'m>, Repeated, Option<KeyRef<'m>>), Refusal> {
        let (mut fields, mut shape) = (Fields::new(message), Shape::default());
        let (mut repeated, mut parent) = (Repeated::default(), None);
        while let Some(field) = fields.next()? {
            match field.number {
                1 => shape.key(field)?,
                2 => shape.value_length(field)?,
                3 => Shape::slice_lengths(field, lengths)?,
                4 => repeated.again = field.bool()?,
                5 if field.bytes()?.is_empty() => parent = None,
                5 => parent = Some(key(field, "parent")?),
                6 => repeated.may_be_begun = field.bool()?,
                _ => {}
            }
        }
        Ok((shape.finish(lengths)?, repeated, parent))
    }

    pub(crate) fn write(
        out: &mut BytesMut,
        client: ClientId,
        config: &ReplicateConfig,
        puts: &[PutStartItem<'_>],
    ) {
        put_bytes(out, 1, &client.to_bytes());
        if !is_default(config) {
            write_config(out, 2, config);
        }
        out.reserve(puts.iter().map(|put| put.key.as_str().len() + ITEM_ROOM).sum());
        for put in puts {
            put_message(out, 3, |out| {
                write_key(out, put.key);
                write_lengths(out, put.slice_lengths, 3);
                put_u64(out, 4, put.again.into());
                if let Some(parent) = put.parent {
                    put_bytes(out, 5, parent.as_str().as_bytes());
                }
                put_u64(out, 6, put.may_be_begun.into());
            });
        }
    }
}

fn parse_checksums(field: Field<'_>, checksums: &mut Vec<Checksum>) -> Result<(), Refusal> {
    field.each_fixed32(|crc| {
        if checksums.len() == MAX_SLICES {
            return Err(Refusal::invalid(format!(
                "slice_checksums has more than {MAX_SLICES} values"
            )));
        }
        checksums.push(Checksum::from_crc32c(crc));
        Ok(())
    })
}

/// The checksums inside the slices. Their number is that of the request's bytes at most;
/// the master takes no more of them than the object's length allows.
fn parse_prefixes(field: Field<'_>, prefixes: &mut Vec<Checksum>) -> Result<(), Refusal> {
    if let Ok(packed) = field.bytes() {
        prefixes.reserve(packed.len() / 4);
    }
    field.each_fixed32(|crc| {
        prefixes.push(Checksum::from_crc32c(crc));
        Ok(())
    })
}

fn write_checksums(out: &mut BytesMut, number: u32, checksums: &[Checksum]) {
    put_fixed32s(out, number, checksums.iter().map(|checksum| checksum.as_u32()));
}

/// Adds the fields of `message` to `info`; a message that comes in several parts is their sum.
fn parse_event_info(message: &[u8], info: &mut StoreEventInfo) -> Result<(), Refusal> {
    let mut fields = Fields::new(message);
    while let Some(field) = fields.next()? {
        match field.number {
            1 => info.model_name = bounded_text(field, "model_name", MAX_MODEL_NAME)?.into(),
            2 => info.block_size = field.u32()?,
            3 => info.block_hash = bounded_text(field, "block_hash", MAX_BLOCK_HASH)?.into(),
            4 => {
                let hash = bounded_text(field, "parent_block_hash", MAX_BLOCK_HASH)?;
                info.parent_block_hash = hash.into();
            }
            5 => {
                let count = field.count_varints();
                check_length("token_ids", info.token_ids.len() + count, MAX_TOKEN_IDS)?;
                info.token_ids.reserve(count);
                // As every protobuf reader does, takes the low 32 bits.
                field.each_varint(|token| {
                    info.token_ids.push(token as u32);
                    Ok::<_, Refusal>(())
                })?;
            }
            _ => {}
        }
    }
    Ok(())
}

fn bounded_text<'a>(field: Field<'a>, name: &'static str, max: usize) -> Result<&'a str, Refusal> {
    check_length(name, field.bytes()?.len(), max)?;
    Ok(field.text()?)
}

fn check_length(field: &'static str, length: usize, max: usize) -> Result<(), Refusal> {
    match length > max {
        true => {
            Err(Refusal::invalid(format!("event_info: {}", InfoTooLong { field, length, max })))
        }
        false => Ok(()),
    }
}

fn write_event_info(out: &mut BytesMut, number: u32, info: &StoreEventInfo) {
    put_message(out, number, |out| {
        put_bytes(out, 1, info.model_name.as_bytes());
        put_u64(out, 2, info.block_size.into());
        put_bytes(out, 3, info.block_hash.as_bytes());
        put_bytes(out, 4, info.parent_block_hash.as_bytes());
        put_varints(out, 5, info.token_ids.iter().map(|token| u64::from(*token)));
    });
}

/// A put's generation and token as they arrive. Both are required: without a token the
/// handle is one that no put has.
#[derive(Debug, Default)]
pub(super) struct HandleParts {
    generation: Option<Generation>,
    token: u64,
}

impl HandleParts {
    pub(super) fn generation(&mut self, field: Field<'_>) -> Result<(), Refusal> {
        self.generation = Some(Generation::new(field.u64()?));
        Ok(())
    }

    pub(super) fn token(&mut self, field: Field<'_>) -> Result<(), Refusal> {
        self.token = field.fixed64()?;
        Ok(())
    }

    fn finish(self) -> Result<PutHandle, Refusal> {
        let missing = || Refusal::invalid("generation is missing; it says which put is meant");
        let generation = self.generation.ok_or_else(missing)?;
        Ok(PutHandle { generation, token: PutToken::from_u64(self.token) })
    }
}

pub(super) fn late_writes(field: Field<'_>) -> Result<LateWrites, Refusal> {
    Ok(if field.bool()? { LateWrites::Possible } else { LateWrites::Impossible })
}

pub(super) fn write_late_writes(out: &mut BytesMut, number: u32, late: LateWrites) {
    put_u64(out, number, u64::from(late == LateWrites::Possible));
}

/// `PutEndRequest`, `PutRevokeRequest`, the same of an upsert, and those that end or give
/// up a part of a put: their fields have the same numbers, and each lacks some.
#[derive(Debug)]
pub(crate) struct PutFinishRequest<'a> {
    pub(crate) client: ClientId,
    pub(crate) key: KeyRef<'a>,
    pub(crate) handle: PutHandle,
    pub(crate) checksums: Vec<Checksum>,
    pub(crate) prefixes: Vec<Checksum>,
    pub(crate) late: LateWrites,
    pub(crate) event_info: Option<StoreEventInfo>,
}

impl<'a> PutFinishRequest<'a> {
    pub(crate) fn parse(payload: &'a [u8]) -> Result<Self, Refusal> {
        let (mut fields, mut found, mut who) = (Fields::new(payload), None, None);
        let (mut handle, mut late) = (HandleParts::default(), LateWrites::Impossible);
        let (mut checksums, mut prefixes) = (Vec::new(), Vec::new());
        let mut event_info = None;
        while let Some(field) = fields.next()? {
            match field.number {
                1 => found = Some(key(field, "key")?),
                2 => who = Some(client(field)?),
                3 => handle.generation(field)?,
                4 => parse_checksums(field, &mut checksums)?,
                5 => handle.token(field)?,
                6 => parse_prefixes(field, &mut prefixes)?,
                7 => late = late_writes(field)?,
                8 => parse_event_info(field.bytes()?, event_info.get_or_insert_default())?,
                _ => {}
            }
        }
        let (key, client) = (found.ok_or_else(missing_key)?, who.ok_or_else(no_client)?);
        Ok(Self { client, key, handle: handle.finish()?, checksums, prefixes, late, event_info })
    }

    pub(crate) fn end(&self) -> PutEnd<'_> {
        let Self { key, handle, ref checksums, ref prefixes, ref event_info, .. } = *self;
        PutEnd { key, handle, checksums, prefixes, event_info: event_info.as_ref() }
    }

    pub(crate) fn write(out: &mut BytesMut, client: ClientId, end: &PutEnd<'_>) {
        write_key(out, end.key);
        put_bytes(out, 2, &client.to_bytes());
        put_present_u64(out, 3, end.handle.generation.as_u64());
        write_checksums(out, 4, end.checksums);
        put_fixed64(out, 5, end.handle.token.as_u64());
        write_checksums(out, 6, end.prefixes);
        if let Some(info) = end.event_info {
            write_event_info(out, 8, info);
        }
    }

    /// Writes a request that names a put, and whether it may still be written to.
    pub(crate) fn write_revoke(
        out: &mut BytesMut,
        client: ClientId,
        key: KeyRef<'_>,
        handle: PutHandle,
        late: LateWrites,
    ) {
        Self::write(out, client, &PutEnd::new(key, handle));
        write_late_writes(out, 7, late);
    }
}

/// `BatchPutEndRequest` and `BatchPutRevokeRequest`, and those of an upsert. The fields of
/// their items have the same numbers, and each lacks some.
#[derive(Debug)]
pub(crate) struct BatchPutFinishRequest<'a> {
    pub(crate) client: ClientId,
    pub(crate) puts: Items<'a>,
}

impl<'a> BatchPutFinishRequest<'a> {
    pub(crate) fn parse(payload: &'a [u8]) -> Result<Self, Refusal> {
        let mut who = None;
        let puts = Items::parse(payload, 2, "puts", |field| {
            if field.number == 1 {
                who = Some(client(field)?);
            }
            Ok(())
        })?;
        Ok(Self { client: who.ok_or_else(no_client)?, puts })
    }

    /// Calls `each` for every put, in order, with the put or why it is none, and whether
    /// it may still be written to.
    pub(crate) fn for_each(&self, mut each: impl FnMut(Result<(PutEnd<'_>, LateWrites), Refusal>)) {
        let (mut checksums, mut prefixes) = (Vec::new(), Vec::new());
        for message in self.puts.messages() {
            checksums.clear();
            prefixes.clear();
            match Self::parse_item(message, &mut checksums, &mut prefixes) {
                Ok((key, handle, late, info)) => {
                    let (checksums, prefixes) = (&checksums, &prefixes);
                    let event_info = info.as_ref();
                    each(Ok((PutEnd { key, handle, checksums, prefixes, event_info }, late)));
                }
                Err(refusal) => each(Err(refusal)),
            }
        }
    }

    fn parse_item<'m>(
        message: &'m [u8],
        checksums: &mut Vec<Checksum>,
        prefixes: &mut Vec<Checksum>,
    ) -> Result<(KeyRef<'m>, PutHandle, LateWrites, Option<StoreEventInfo>), Refusal> {
        let (mut fields, mut found, mut info) = (Fields::new(message), None, None);
        let (mut handle, mut late) = (HandleParts::default(), LateWrites::Impossible);
        while let Some(field) = fields.next()? {
            match field.number {
                1 => found = Some(key(field, "key")?),
                2 => handle.generation(field)?,
                3 => parse_checksums(field, checksums)?,
                4 => handle.token(field)?,
                5 => parse_prefixes(field, prefixes)?,
                6 => late = late_writes(field)?,
                7 => parse_event_info(field.bytes()?, info.get_or_insert_default())?,
                _ => {}
            }
        }
        Ok((found.ok_or_else(missing_key)?, handle.finish()?, late, info))
    }

    pub(crate) fn write<'k>(
        out: &mut BytesMut,
        client: ClientId,
        puts: impl IntoIterator<Item = PutEnd<'k>, IntoIter: Clone>,
    ) {
        put_bytes(out, 1, &client.to_bytes());
        let puts = puts.into_iter();
        out.reserve(puts.clone().map(|put| put.key.as_str().len() + ITEM_ROOM).sum());
        for put in puts {
            put_message(out, 2, |out| Self::write_item(out, &put));
        }
    }

    fn write_item(out: &mut BytesMut, put: &PutEnd<'_>) {
        write_key(out, put.key);
        put_present_u64(out, 2, put.handle.generation.as_u64());
        write_checksums(out, 3, put.checksums);
        put_fixed64(out, 4, put.handle.token.as_u64());
        write_checksums(out, 5, put.prefixes);
        if let Some(info) = put.event_info {
            write_event_info(out, 7, info);
        }
    }

    pub(crate) fn write_revokes<'k>(
        out: &mut BytesMut,
        client: ClientId,
        puts: impl IntoIterator<Item = (KeyRef<'k>, PutHandle, LateWrites)>,
    ) {
        put_bytes(out, 1, &client.to_bytes());
        for (key, handle, late) in puts {
            put_message(out, 2, |out| {
                Self::write_item(out, &PutEnd::new(key, handle));
                write_late_writes(out, 6, late);
            });
        }
    }
}
