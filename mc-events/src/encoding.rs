//! The payload of a message in each encoding.

use crate::event::{
    BlockRemovedEvent, BlockStoreEvent, Event, Medium, RemovalReason, fastest, tenant_name,
};
use crate::pack::Packer;

/// The key of a removal's reason, where events are maps.
const REASON: &str = "removal_reason";

/// The form in which an endpoint publishes. `docs/events.md` has the bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Encoding {
    /// The event manual of Mooncake: arrays, seconds.
    #[default]
    S4,
    /// Mooncake's RFC 1527: maps, milliseconds.
    Mooncake {
        /// The name of this store; subscribers tell several stores apart by it.
        backend_id: String,
    },
    /// vLLM 0.24 and newer: maps, seconds. Only stores that carry a
    /// [`StoreEventInfo`](crate::StoreEventInfo) with hash, size and tokens.
    Vllm,
    /// vLLM before 0.24: arrays, seconds.
    VllmPositional,
}

impl Encoding {
    /// Its name in answers and documents.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::S4 => "s4",
            Self::Mooncake { .. } => "mooncake",
            Self::Vllm => "vllm",
            Self::VllmPositional => "vllm-positional",
        }
    }

    /// The number of the first message.
    pub(crate) const fn first_number(&self) -> u64 {
        if matches!(self, Self::Mooncake { .. }) { 1 } else { 0 }
    }

    /// Writes an event and returns whether this encoding has a form for it.
    pub(crate) fn pack(&self, event: &Event, at: Stamp, packer: &mut Packer<'_>) -> bool {
        match self {
            Self::S4 => {
                match event {
                    Event::MediumStored(_) | Event::MediumRemoved(_) => return false,
                    Event::Removed(removed) => removed.pack_with(at.reason_of(event), packer),
                    _ => event.pack(packer),
                }
                true
            }
            Self::Mooncake { backend_id } => pack_mooncake(event, backend_id, at, packer),
            Self::Vllm | Self::VllmPositional => {
                pack_vllm(event, at, *self == Self::Vllm, packer).is_some()
            }
        }
    }

    /// Writes what precedes the events of a batch.
    pub(crate) fn pack_head(&self, micros: u64, events: usize, packer: &mut Packer<'_>) {
        match self {
            Self::S4 => packer.array(2).float(seconds(micros)),
            Self::Mooncake { .. } => packer.array(3).uint(micros / 1_000),
            Self::Vllm | Self::VllmPositional => packer.array(3).float(seconds(micros)),
        }
        .array(events);
    }

    /// Writes what follows the events of a batch: the data-parallel rank.
    pub(crate) fn pack_tail(&self, packer: &mut Packer<'_>) {
        if *self != Self::S4 {
            packer.uint(0);
        }
    }
}

/// The fields that an event gets when it is published.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stamp {
    /// The batch's time, since 1970.
    pub(crate) micros: u64,
    /// The event's number, in the encoding `mooncake`.
    pub(crate) event_id: u64,
    /// Whether removals tell their reasons.
    pub(crate) removal_reasons: bool,
}

impl Stamp {
    /// The reason to write for an event; `None` for those that are no removals, and where none is
    /// known or wanted.
    fn reason_of(self, event: &Event) -> Option<RemovalReason> {
        match event {
            Event::Removed(event) | Event::MediumRemoved(event) => {
                event.reason.filter(|_| self.removal_reasons)
            }
            _ => None,
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "exact until the year 2255")]
fn seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}

fn pack_mooncake(event: &Event, backend: &str, at: Stamp, packer: &mut Packer<'_>) -> bool {
    let (pairs, event_type, kind, tenant, medium) = match event {
        Event::Store(event) | Event::MediumStored(event) => {
            (18, "stored", "BlockStored", &*event.tenant, fastest(&event.replicas))
        }
        Event::Removed(event) | Event::MediumRemoved(event) => {
            (16, "removed", "BlockRemoved", &*event.tenant, event.medium)
        }
        Event::RemoveAll(_) => (12, "cleared", "AllBlocksCleared", "", None),
        Event::Update(_) | Event::Custom(_) => return false,
    };
    let reason = at.reason_of(event);
    packer.map(pairs + usize::from(reason.is_some()));
    packer.str("event_id").uint(at.event_id);
    packer.str("timestamp").uint(at.micros / 1_000);
    packer.str("event_type").str(event_type);
    packer.str("type").str(kind);
    for absent in ["model_name", "block_size", "additional_salt", "lora_name"] {
        packer.str(absent).nil();
    }
    packer.str("tenant_id").str(tenant_name(tenant));
    packer.str("backend_id").str(backend);
    let object = match event {
        Event::Store(BlockStoreEvent { key, group, .. })
        | Event::MediumStored(BlockStoreEvent { key, group, .. })
        | Event::Removed(BlockRemovedEvent { key, group, .. })
        | Event::MediumRemoved(BlockRemovedEvent { key, group, .. }) => {
            packer.str("group_id").str_or_nil(group);
            Some(key)
        }
        _ => None,
    };
    packer.str("medium");
    match medium {
        Some(Medium::Memory) => packer.str("cpu"),
        Some(Medium::SharedFile | Medium::LocalDisk) => packer.str("disk"),
        None => packer.nil(),
    };
    packer.str("dp_rank").uint(0);
    let Some(key) = object else { return true };
    packer.str("object_key").str(key);
    packer.str("seq_hashes").uints(whole_number(key).as_slice().iter().copied());
    packer.str("base_block_idx");
    if matches!(event, Event::Store(_) | Event::MediumStored(_)) {
        packer.uint(0).str("parent_hash").nil().str("token_ids").nil();
    } else {
        packer.nil();
    }
    if let Some(reason) = reason {
        packer.str(REASON).str(reason.name());
    }
    true
}

/// Returns nothing, and writes nothing, if vLLM has no form for the event.
fn pack_vllm(event: &Event, at: Stamp, maps: bool, packer: &mut Packer<'_>) -> Option<()> {
    let medium_name = |medium| match medium {
        Some(Medium::Memory) => "CPU",
        Some(Medium::SharedFile | Medium::LocalDisk) => "DISK",
        None => "",
    };
    let begin = |packer: &mut Packer<'_>, fields, kind| {
        if maps {
            packer.map(fields).str("type").str(kind);
        } else {
            packer.array(fields).str(kind);
        }
    };
    let name = |packer: &mut Packer<'_>, name| {
        if maps {
            packer.str(name);
        }
    };
    match event {
        Event::Store(event) | Event::MediumStored(event) => {
            let BlockStoreEvent { replicas, store_event_info: info, .. } = event;
            let hash = BlockHash::parse(&info.block_hash)?;
            let parent = match &*info.parent_block_hash {
                "" => None,
                parent => Some(BlockHash::parse(parent)?),
            };
            if info.block_size == 0 || info.token_ids.is_empty() {
                return None;
            }
            begin(packer, 8, "BlockStored");
            name(packer, "block_hashes");
            hash.pack(packer.array(1));
            name(packer, "parent_block_hash");
            match parent {
                Some(parent) => parent.pack(packer),
                None => _ = packer.nil(),
            }
            name(packer, "token_ids");
            packer.uints(info.token_ids.iter().map(|&token| token.into()));
            name(packer, "block_size");
            packer.uint(info.block_size.into());
            name(packer, "lora_id");
            packer.nil();
            name(packer, "medium");
            packer.str_or_nil(medium_name(fastest(replicas)));
            name(packer, "lora_name");
            packer.nil();
        }
        Event::Removed(removed) | Event::MediumRemoved(removed) => {
            let BlockRemovedEvent { medium, block_hash, .. } = removed;
            let hash = BlockHash::parse(block_hash)?;
            // Decoders of arrays may count the elements.
            let reason = at.reason_of(event).filter(|_| maps);
            begin(packer, 3 + usize::from(reason.is_some()), "BlockRemoved");
            name(packer, "block_hashes");
            hash.pack(packer.array(1));
            name(packer, "medium");
            packer.str_or_nil(medium_name(*medium));
            if let Some(reason) = reason {
                packer.str(REASON).str(reason.name());
            }
        }
        Event::RemoveAll(_) => begin(packer, 1, "AllBlocksCleared"),
        Event::Update(_) | Event::Custom(_) => return None,
    }
    Some(())
}

/// A hash as vLLM has it: a number, or the 32 bytes of a SHA-256.
enum BlockHash {
    Number(u64),
    Digest([u8; 32]),
}

impl BlockHash {
    fn parse(text: &str) -> Option<Self> {
        if let Some(number) = whole_number(text) {
            return Some(Self::Number(number));
        }
        let hex = text.strip_prefix("0x").unwrap_or(text).as_bytes();
        let mut digest = [0; 32];
        if hex.len() != 2 * digest.len() {
            return None;
        }
        for (byte, pair) in digest.iter_mut().zip(hex.chunks(2)) {
            let [high, low] = [pair[0], pair[1]].map(|digit| char::from(digit).to_digit(16));
            *byte = u8::try_from(high? << 4 | low?).ok()?;
        }
        Some(Self::Digest(digest))
    }

    fn pack(&self, packer: &mut Packer<'_>) {
        match self {
            Self::Number(number) => packer.uint(*number),
            Self::Digest(digest) => packer.bin(digest),
        };
    }
}

/// The number that a text is, decimal or hexadecimal with `0x`.
fn whole_number(text: &str) -> Option<u64> {
    let (digits, radix) = match text.strip_prefix("0x") {
        Some(hex) => (hex, 16),
        None => (text, 10),
    };
    // The parser would take a sign.
    if !digits.starts_with(|first: char| first.is_ascii_hexdigit()) {
        return None;
    }
    u64::from_str_radix(digits, radix).ok()
}
