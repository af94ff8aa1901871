//! Events.

use std::fmt::Debug;
use std::sync::Arc;

use mc_types::StoreEventInfo;

use crate::pack::Packer;

/// Size limit of an event: [`Event::size`] and its packed bytes. A larger one is dropped.
pub const MAX_EVENT_BYTES: usize = 256 << 10;

/// Memory of an event beside its strings and lists.
const FIXED_SIZE: usize = 64;
/// Memory of a string beside its characters.
const STRING_SIZE: usize = 24;

/// The kind of storage that holds a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Medium {
    /// The memory of a node.
    Memory,
    /// A shared file system.
    SharedFile,
    /// A disk of a node.
    LocalDisk,
}

impl Medium {
    /// Its name in the encoding `s4`.
    #[must_use]
    pub const fn kind(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::SharedFile => "disk",
            Self::LocalDisk => "local_disk",
        }
    }
}

/// Where a copy of an object is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replica {
    /// The kind of storage.
    pub medium: Medium,
    /// The address of the node, or the path of the file.
    pub location: String,
}

/// An object was stored for the first time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockStoreEvent {
    /// The object's key.
    pub key: String,
    /// Where its replicas are.
    pub replicas: Vec<Replica>,
    /// The metadata that came with the put.
    pub store_event_info: StoreEventInfo,
    /// The tenant; an empty one is published as `default`.
    pub tenant: String,
    /// The object's group; empty for an object without one.
    pub group: String,
}

impl BlockStoreEvent {
    /// One more event for each medium of the replicas but the fastest, which is the one that this
    /// event names in encodings that tell media apart.
    pub fn on_other_media(&self) -> impl Iterator<Item = Event> {
        let first = fastest(&self.replicas);
        let others = [Medium::Memory, Medium::SharedFile, Medium::LocalDisk].into_iter();
        others.filter(move |medium| Some(*medium) != first).filter_map(|medium| {
            let on_it = self.replicas.iter().filter(|replica| replica.medium == medium);
            let replicas: Vec<_> = on_it.cloned().collect();
            (!replicas.is_empty()).then(|| Event::MediumStored(Self { replicas, ..self.clone() }))
        })
    }
}

/// The replicas of an object changed, by a copy, a move or an eviction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockUpdateEvent {
    /// The object's key.
    pub key: String,
    /// Where all its replicas are now.
    pub replicas: Vec<Replica>,
    /// The tenant; an empty one is `default`.
    pub tenant: String,
}

/// Why an object is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RemovalReason {
    /// A client or an administrator removed it.
    Removed,
    /// The object was evicted to make room.
    Evicted,
    /// Its last segment is gone.
    SegmentLost,
    /// Another value was put in its place.
    Replaced,
    /// All that was left of it was on disks, and went.
    DiskLost,
    /// Its time after it was first read was over.
    Expired,
    /// Its last replica had bytes that were not put there.
    Damaged,
}

impl RemovalReason {
    const ALL: [Self; 7] = [
        Self::Removed,
        Self::Evicted,
        Self::SegmentLost,
        Self::Replaced,
        Self::DiskLost,
        Self::Expired,
        Self::Damaged,
    ];

    /// Its name in messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Removed => "removed",
            Self::Evicted => "evicted",
            Self::SegmentLost => "segment_lost",
            Self::Replaced => "replaced",
            Self::DiskLost => "disk_lost",
            Self::Expired => "expired",
            Self::Damaged => "damaged",
        }
    }

    /// The reason of this name; `None` for one that this version does not know.
    pub(crate) fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.name() == name)
    }
}

/// An object was removed or evicted, with all its replicas.
///
/// The encoding `s4` has no such event and publishes a [`BlockUpdateEvent`] without replicas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockRemovedEvent {
    /// The object's key.
    pub key: String,
    /// The storage that held it, if known.
    pub medium: Option<Medium>,
    /// The hash from the [`StoreEventInfo`] of its put, without which vLLM's encodings do not
    /// publish the event.
    pub block_hash: String,
    /// The tenant; an empty one is published as `default`.
    pub tenant: String,
    /// The object's group; empty for an object without one.
    pub group: String,
    /// Why it is gone, if known. Only endpoints with
    /// [`removal_reasons`](crate::EndpointConfig::removal_reasons) publish it.
    pub reason: Option<RemovalReason>,
}

/// All objects of all tenants were removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoveAllEvent;

/// An event of your own. Endpoints with the encoding [`S4`](crate::Encoding::S4) publish it, the
/// others have no form for it.
pub trait KvEvent: Debug + Send + Sync {
    /// The name of the event's type.
    fn type_tag(&self) -> &str;

    /// Writes one MessagePack value: an array that begins with the type tag.
    fn pack(&self, packer: &mut Packer<'_>);

    /// The tenant that the event belongs to. Without one, only endpoints for all tenants publish
    /// the event.
    fn tenant(&self) -> Option<&str> {
        None
    }

    /// The memory that the event holds while it is queued, in bytes.
    fn size(&self) -> usize {
        256
    }
}

/// An event for [`EventSystem::publish`](crate::EventSystem::publish).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// An object was stored.
    Store(BlockStoreEvent),
    /// The replicas of an object changed.
    Update(BlockUpdateEvent),
    /// An object was removed.
    Removed(BlockRemovedEvent),
    /// A stored object has a replica on one more medium, that of `replicas`. For encodings that tell
    /// media apart; `s4` has [`Update`](Self::Update).
    MediumStored(BlockStoreEvent),
    /// A stored object has no replica on this medium any more, but on others. For encodings that
    /// tell media apart; `s4` has [`Update`](Self::Update).
    MediumRemoved(BlockRemovedEvent),
    /// All objects were removed.
    RemoveAll(RemoveAllEvent),
    /// An event of your own.
    Custom(Arc<dyn KvEvent>),
}

impl Event {
    fn as_kv_event(&self) -> &dyn KvEvent {
        match self {
            Self::Store(event) | Self::MediumStored(event) => event,
            Self::Update(event) => event,
            Self::Removed(event) | Self::MediumRemoved(event) => event,
            Self::RemoveAll(event) => event,
            Self::Custom(event) => &**event,
        }
    }

    /// The memory that the event holds, in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.as_kv_event().size()
    }

    /// Whether an endpoint for `tenant` alone publishes the event.
    pub(crate) fn concerns(&self, tenant: &str) -> bool {
        matches!(self, Self::RemoveAll(_)) || self.as_kv_event().tenant() == Some(tenant)
    }

    /// Writes the event in the encoding `s4`.
    pub(crate) fn pack(&self, packer: &mut Packer<'_>) {
        self.as_kv_event().pack(packer);
    }

    /// Its [`size`](Self::size), if the event is small enough to be published.
    pub(crate) fn size_if_it_fits(&self) -> Option<usize> {
        let info = match self {
            Self::Store(event) | Self::MediumStored(event) => event.store_event_info.check(),
            _ => Ok(()),
        };
        info.ok().map(|()| self.size()).filter(|size| *size <= MAX_EVENT_BYTES)
    }
}

impl From<BlockStoreEvent> for Event {
    fn from(event: BlockStoreEvent) -> Self {
        Self::Store(event)
    }
}

impl From<BlockUpdateEvent> for Event {
    fn from(event: BlockUpdateEvent) -> Self {
        Self::Update(event)
    }
}

impl From<BlockRemovedEvent> for Event {
    fn from(event: BlockRemovedEvent) -> Self {
        Self::Removed(event)
    }
}

impl From<RemoveAllEvent> for Event {
    fn from(event: RemoveAllEvent) -> Self {
        Self::RemoveAll(event)
    }
}

impl From<Arc<dyn KvEvent>> for Event {
    fn from(event: Arc<dyn KvEvent>) -> Self {
        Self::Custom(event)
    }
}

/// The name under which a tenant is published.
pub(crate) fn tenant_name(tenant: &str) -> &str {
    if tenant.is_empty() { "default" } else { tenant }
}

/// The medium that is named where there is room for one.
pub(crate) fn fastest(replicas: &[Replica]) -> Option<Medium> {
    let in_memory = replicas.iter().find(|replica| replica.medium == Medium::Memory);
    in_memory.or(replicas.first()).map(|replica| replica.medium)
}

fn pack_replicas(packer: &mut Packer<'_>, replicas: &[Replica]) {
    packer.array(replicas.len());
    for replica in replicas {
        packer.array(2).str(replica.medium.kind()).str(&replica.location);
    }
}

/// The strings of the metadata; a packed token has up to 5 bytes.
fn info_size(info: &StoreEventInfo) -> usize {
    let strings = [&info.model_name, &info.block_hash, &info.parent_block_hash];
    strings.map(String::len).iter().sum::<usize>() + 5 * info.token_ids.len()
}

fn replicas_size(replicas: &[Replica]) -> usize {
    replicas.iter().map(|replica| STRING_SIZE + 8 + replica.location.len()).sum()
}

impl KvEvent for BlockStoreEvent {
    fn type_tag(&self) -> &'static str {
        "BlockStoreEvent"
    }

    fn pack(&self, packer: &mut Packer<'_>) {
        packer.array(8).str(self.type_tag()).str(&self.key);
        pack_replicas(packer, &self.replicas);
        let info = &self.store_event_info;
        packer.str(&info.model_name).uint(info.block_size.into());
        packer.str(&info.block_hash).str(&info.parent_block_hash);
        packer.uints(info.token_ids.iter().map(|&token| token.into()));
    }

    fn tenant(&self) -> Option<&str> {
        Some(tenant_name(&self.tenant))
    }

    fn size(&self) -> usize {
        let strings = self.key.len() + self.tenant.len() + self.group.len();
        FIXED_SIZE
            + 6 * STRING_SIZE
            + strings
            + replicas_size(&self.replicas)
            + info_size(&self.store_event_info)
    }
}

impl KvEvent for BlockUpdateEvent {
    fn type_tag(&self) -> &'static str {
        "BlockUpdateEvent"
    }

    fn pack(&self, packer: &mut Packer<'_>) {
        packer.array(3).str(self.type_tag()).str(&self.key);
        pack_replicas(packer, &self.replicas);
    }

    fn tenant(&self) -> Option<&str> {
        Some(tenant_name(&self.tenant))
    }

    fn size(&self) -> usize {
        let strings = self.key.len() + self.tenant.len();
        FIXED_SIZE + 2 * STRING_SIZE + strings + replicas_size(&self.replicas)
    }
}

impl BlockRemovedEvent {
    /// Writes the event in the encoding `s4`, with a reason as its last element.
    pub(crate) fn pack_with(&self, reason: Option<RemovalReason>, packer: &mut Packer<'_>) {
        let fields = 3 + usize::from(reason.is_some());
        packer.array(fields).str(self.type_tag()).str(&self.key).array(0);
        if let Some(reason) = reason {
            packer.str(reason.name());
        }
    }
}

impl KvEvent for BlockRemovedEvent {
    fn type_tag(&self) -> &'static str {
        "BlockUpdateEvent"
    }

    fn pack(&self, packer: &mut Packer<'_>) {
        self.pack_with(None, packer);
    }

    fn tenant(&self) -> Option<&str> {
        Some(tenant_name(&self.tenant))
    }

    fn size(&self) -> usize {
        let strings = self.key.len() + self.tenant.len() + self.group.len();
        FIXED_SIZE + 4 * STRING_SIZE + strings + self.block_hash.len()
    }
}

impl KvEvent for RemoveAllEvent {
    fn type_tag(&self) -> &'static str {
        "RemoveAllEvent"
    }

    fn pack(&self, packer: &mut Packer<'_>) {
        packer.array(1).str(self.type_tag());
    }

    fn size(&self) -> usize {
        FIXED_SIZE
    }
}
