//! How objects are to be stored, as callers describe it.

use std::collections::BTreeMap;

use mc_store::{Put, PutMode, ReplicateConfig as Native};
use pyo3::prelude::*;

use super::arguments::{Flag, Items, Medium, Size};
use super::backend::Backend;
use super::enumerations::{ObjectDataType, SoftPinAction};
use crate::error::Failure;

/// How an object is to be stored: in how many replicas, where, and how firmly.
///
/// Every field can be given to the constructor by name, and read and set afterwards; a name
/// that is none raises AttributeError or TypeError.
///
/// replica_num: replicas in memory, 1 without it. Best effort: an object gets as many as there
///     are segments with room, and at least one.
/// with_soft_pin: prefer to keep the object while it is in use. The same as soft_pin_action =
///     SoftPinAction.ENABLE.
/// soft_pin_action: whether to pin softly; PRESERVE, the default, leaves with_soft_pin alone.
/// soft_pin_ttl_ms: 0 pins nothing; the master decides how long other pins last.
/// with_hard_pin: never evict the object.
/// preferred_segments, preferred_segment: names of segments to try first, in this order.
/// media_type: "dram", "ssd" or "vram", in any case: all replicas lie in segments of this medium, and
///     the put fails when there is none. None, the default: in DRAM, as long as there is any.
/// group_ids: one for each key of the call; objects of one group are evicted together or not at
///     all. An empty one is no group.
/// prefer_alloc_in_same_node, data_type: hints that are kept here and change nothing.
///     Mooncake refuses the first for put, put_parts and put_batch, and so does this.
/// nof_replica_num, dfs_replica_num, preferred_nof_segments: kinds of storage that do not exist
///     here; a put that asks for them is refused.
#[pyclass(module = "mc_store.mooncake.store", get_all, set_all)]
#[derive(Clone, Debug)]
pub(crate) struct ReplicateConfig {
    replica_num: Size,
    nof_replica_num: Size,
    dfs_replica_num: Size,
    soft_pin_action: SoftPinAction,
    soft_pin_ttl_ms: Option<Size>,
    with_soft_pin: Flag,
    with_hard_pin: Flag,
    preferred_segments: Items<String>,
    preferred_segment: String,
    preferred_nof_segments: Items<String>,
    prefer_alloc_in_same_node: Flag,
    data_type: ObjectDataType,
    media_type: Option<Medium>,
    group_ids: Option<Items<String>>,
}

#[pymethods]
impl ReplicateConfig {
    #[new]
    #[pyo3(signature = (
        *,
        replica_num = Size(1),
        nof_replica_num = Size(0),
        dfs_replica_num = Size(0),
        soft_pin_action = SoftPinAction::PRESERVE,
        soft_pin_ttl_ms = None,
        with_soft_pin = Flag(false),
        with_hard_pin = Flag(false),
        preferred_segments = Items::default(),
        preferred_segment = String::new(),
        preferred_nof_segments = Items::default(),
        prefer_alloc_in_same_node = Flag(false),
        data_type = ObjectDataType::UNKNOWN,
        media_type = None,
        group_ids = None,
    ))]
    #[pyo3(text_signature = "(*, replica_num=1, nof_replica_num=0, dfs_replica_num=0, \
        soft_pin_action=..., soft_pin_ttl_ms=None, with_soft_pin=False, \
        with_hard_pin=False, preferred_segments=[], preferred_segment='', \
        preferred_nof_segments=[], prefer_alloc_in_same_node=False, \
        data_type=..., media_type=None, group_ids=None)")]
    #[allow(clippy::too_many_arguments, reason = "they have names where they are passed")]
    fn new(
        replica_num: Size,
        nof_replica_num: Size,
        dfs_replica_num: Size,
        soft_pin_action: SoftPinAction,
        soft_pin_ttl_ms: Option<Size>,
        with_soft_pin: Flag,
        with_hard_pin: Flag,
        preferred_segments: Items<String>,
        preferred_segment: String,
        preferred_nof_segments: Items<String>,
        prefer_alloc_in_same_node: Flag,
        data_type: ObjectDataType,
        media_type: Option<Medium>,
        group_ids: Option<Items<String>>,
    ) -> Self {
        Self {
            replica_num,
            nof_replica_num,
            dfs_replica_num,
            soft_pin_action,
            soft_pin_ttl_ms,
            with_soft_pin,
            with_hard_pin,
            preferred_segments,
            preferred_segment,
            preferred_nof_segments,
            prefer_alloc_in_same_node,
            data_type,
            media_type,
            group_ids,
        }
    }

    fn __repr__(&self) -> String {
        let number = |Size(number): Size| number;
        format!(
            "ReplicateConfig(replica_num={}, nof_replica_num={}, dfs_replica_num={}, \
             soft_pin_action={:?}, soft_pin_ttl_ms={}, with_soft_pin={}, with_hard_pin={}, \
             preferred_segments={:?}, preferred_segment={:?}, preferred_nof_segments={:?}, \
             prefer_alloc_in_same_node={}, data_type={:?}, media_type={}, group_ids={})",
            number(self.replica_num),
            number(self.nof_replica_num),
            number(self.dfs_replica_num),
            self.soft_pin_action,
            self.soft_pin_ttl_ms.map_or_else(|| "None".into(), |Size(ttl)| ttl.to_string()),
            self.with_soft_pin,
            self.with_hard_pin,
            self.preferred_segments,
            self.preferred_segment,
            self.preferred_nof_segments,
            self.prefer_alloc_in_same_node,
            self.data_type,
            self.media_type.map_or_else(|| "None".into(), |Medium(medium)| format!("'{medium}'")),
            self.group_ids.as_ref().map_or_else(|| "None".into(), |ids| format!("{ids:?}")),
        )
    }

    fn __copy__(&self) -> Self {
        self.clone()
    }

    fn __deepcopy__(&self, _memo: &Bound<'_, PyAny>) -> Self {
        self.clone()
    }
}

impl ReplicateConfig {
    /// What it means for a call that stores `count` objects.
    pub(super) fn plan(&self, count: usize) -> Result<Plan, Failure> {
        if self.nof_replica_num.0 > 0 || self.dfs_replica_num.0 > 0 {
            return Err(Failure::refuse(
                "nof_replica_num and dfs_replica_num ask for storage that does not exist here",
            ));
        }
        let Ok(replicas) = u32::try_from(self.replica_num.0) else {
            return Err(Failure::refuse(format_args!("{} replicas", self.replica_num.0)));
        };
        let mut config = Native::default().replicas(replicas);
        config.with_soft_pin = self.pins_softly();
        config.with_hard_pin = self.with_hard_pin.0;
        let preferred = [&self.preferred_segment].into_iter().filter(|name| !name.is_empty());
        let preferred = preferred.chain(self.preferred_segments.iter());
        config.preferred_segments = preferred.map(|name| name.as_str().into()).collect();
        config.medium = self.media_type.map(|Medium(medium)| medium);
        let groups = self.group_ids.as_deref().unwrap_or_default();
        if !groups.is_empty() && groups.len() != count {
            return Err(Failure::refuse(format_args!(
                "{} group_ids for {count} keys; give one for each",
                groups.len()
            )));
        }
        Ok(Plan { config, groups: groups.to_vec() })
    }

    /// Whether Mooncake refuses it for calls that take values, not addresses.
    pub(super) fn is_only_for_addresses(&self) -> bool {
        self.prefer_alloc_in_same_node.0
    }

    fn pins_softly(&self) -> bool {
        let pins = match self.soft_pin_action {
            SoftPinAction::PRESERVE => self.with_soft_pin.0,
            SoftPinAction::ENABLE => true,
            SoftPinAction::DISABLE => false,
        };
        pins && self.soft_pin_ttl_ms != Some(Size(0))
    }
}

/// How the objects of one call are stored.
#[derive(Debug, Default)]
pub(super) struct Plan {
    config: Native,
    /// One for each object, or none.
    groups: Vec<String>,
}

impl Plan {
    /// Stores the objects, those of each group in one batch. `places` says where the objects
    /// were among those that the plan was made for.
    pub(super) fn store(
        &self,
        backend: &Backend,
        puts: Vec<Put<'_>>,
        places: &[usize],
        mode: PutMode,
    ) -> Vec<Result<(), Failure>> {
        if self.groups.is_empty() {
            return backend.store_all(puts, &self.config, mode);
        }
        let mut outcomes = vec![Err(Failure::INTERNAL); puts.len()];
        let mut groups: BTreeMap<&str, Vec<(usize, Put<'_>)>> = BTreeMap::new();
        for (at, (put, &place)) in puts.into_iter().zip(places).enumerate() {
            groups.entry(&self.groups[place]).or_default().push((at, put));
        }
        for (group, members) in groups {
            let mut config = self.config.clone();
            config.group = Some(group).filter(|name| !name.is_empty()).map(Into::into);
            let (at, puts): (Vec<_>, Vec<_>) = members.into_iter().unzip();
            for (at, outcome) in at.into_iter().zip(backend.store_all(puts, &config, mode)) {
                outcomes[at] = outcome;
            }
        }
        outcomes
    }
}
