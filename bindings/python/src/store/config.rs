//! Mooncake's `ReplicateConfig`.

use std::collections::BTreeMap;
use std::time::Duration;

use mc_store::{MAX_REPLICAS, Put, PutMode, ReplicateConfig as Native, SoftPinAction as Pin};
use pyo3::prelude::*;

use super::arguments::{Flag, Items, Medium, Size};
use super::backend::Backend;
use super::enumerations::{ObjectDataType, SoftPinAction};
use super::events::EventInfos;
use super::records::{Repr as _, record};
use crate::error::Failure;
use crate::repeats;

record! {
    "(*, replica_num=1, nof_replica_num=0, dfs_replica_num=0, soft_pin_action=..., \
     soft_pin_ttl_ms=None, with_soft_pin=False, with_hard_pin=False, preferred_segments=[], \
     preferred_segment='', preferred_nof_segments=[], prefer_alloc_in_same_node=False, \
     data_type=..., media_type=None, group_ids=None)";
    /// Options of a put: the number of replicas, their segments, and protection from eviction.
    ///
    /// Every field is a keyword argument of the constructor and an attribute; other names raise
    /// TypeError or AttributeError.
    ///
    /// replica_num: the number of replicas in memory, by default 1. An object gets fewer, but at
    ///     least one, when fewer segments have space.
    /// with_soft_pin: evict other objects first while this object is in use. The same as
    ///     soft_pin_action = SoftPinAction.ENABLE.
    /// soft_pin_action: ENABLE and DISABLE override with_soft_pin; PRESERVE, the default, does not.
    /// soft_pin_ttl_ms: the duration of the soft pin, by default the master's; 0 means none. Only with
    ///     ENABLE or with_soft_pin, and at most the master's maximum (--max_kv_soft_pin_ttl, 24 hours).
    /// with_hard_pin: never evict the object.
    /// preferred_segments, preferred_segment: names of segments to try first, in this order.
    /// media_type: "dram", "ssd" or "vram", in any case: the medium of the segments for all replicas; the
    ///     put fails when there is none. None, the default, means DRAM, as long as there is any.
    /// group_ids: one group for each key of the call; objects of a group are evicted together or not
    ///     at all. An empty string means no group.
    /// prefer_alloc_in_same_node, data_type: hints without effect. As in Mooncake, put, put_parts and
    ///     put_batch reject prefer_alloc_in_same_node.
    /// dfs_replica_num: 0 or 1. Whether an object gets a file on the shared tier the master decides
    ///     (--root_fs_dir), for all objects alike; 1 fails with -1601 when this client has no such files.
    /// nof_replica_num, preferred_nof_segments: a kind of storage that mc-store does not have; a put that
    ///     requests nof replicas is rejected.
    #[pyclass(module = "mc_store.mooncake.store", get_all, set_all)]
    #[derive(Clone, Debug)]
    ReplicateConfig(*) {
        replica_num: Size = Size(1),
        nof_replica_num: Size = Size(0),
        dfs_replica_num: Size = Size(0),
        soft_pin_action: SoftPinAction = SoftPinAction::PRESERVE,
        soft_pin_ttl_ms: Option<Size> = None,
        with_soft_pin: Flag = Flag(false),
        with_hard_pin: Flag = Flag(false),
        preferred_segments: Items<String> = Items::default(),
        preferred_segment: String = String::new(),
        preferred_nof_segments: Items<String> = Items::default(),
        prefer_alloc_in_same_node: Flag = Flag(false),
        data_type: ObjectDataType = ObjectDataType::UNKNOWN,
        media_type: Option<Medium> = None,
        group_ids: Option<Items<String>> = None,
    }
}

#[pymethods]
impl ReplicateConfig {
    fn __copy__(&self) -> Self {
        self.clone()
    }

    fn __deepcopy__(&self, _memo: &Bound<'_, PyAny>) -> Self {
        self.clone()
    }
}

impl ReplicateConfig {
    /// Converts the options for a call that stores `count` objects.
    pub(super) fn plan(&self, count: usize) -> Result<Plan, Failure> {
        if self.nof_replica_num.0 > 0 {
            return Err(Failure::refuse(
                "nof_replica_num must be 0: this storage is not supported",
            ));
        }
        if self.dfs_replica_num.0 > 1 {
            return Err(Failure::refuse("dfs_replica_num must be 0 or 1: an object has one file"));
        }
        if self.replica_num.0 == 0 {
            return Err(Failure::refuse("replica_num must be at least 1"));
        }
        // An object gets as many replicas as there are segments anyway.
        let replicas = self.replica_num.0.min(MAX_REPLICAS) as u32;
        let mut config = Native::default().replicas(replicas);
        config.soft_pin = self.soft_pin()?;
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
        let wants_file = self.dfs_replica_num.0 > 0;
        Ok(Plan { config, groups: groups.to_vec(), infos: EventInfos::default(), wants_file })
    }

    /// Returns whether Mooncake rejects the options for calls that take values, not addresses.
    pub(super) fn is_only_for_addresses(&self) -> bool {
        self.prefer_alloc_in_same_node.0
    }

    fn soft_pin(&self) -> Result<Pin, Failure> {
        let ttl = self.soft_pin_ttl_ms.map(|Size(millis)| Duration::from_millis(millis as u64));
        let pin = match (self.soft_pin_action, self.with_soft_pin.0) {
            (SoftPinAction::ENABLE, _) | (SoftPinAction::PRESERVE, true) => Pin::Enable { ttl },
            (SoftPinAction::PRESERVE, false) => Pin::Preserve,
            (SoftPinAction::DISABLE, _) => Pin::Disable,
        };
        match pin {
            Pin::Preserve | Pin::Disable if ttl.is_some() => Err(Failure::refuse(
                "soft_pin_ttl_ms is only for soft_pin_action = SoftPinAction.ENABLE",
            )),
            pin => Ok(pin),
        }
    }
}

/// The options for the objects of one call.
#[derive(Debug, Default)]
pub(super) struct Plan {
    config: Native,
    /// One group for each object, or empty.
    groups: Vec<String>,
    infos: EventInfos,
    /// Whether the objects must get files.
    wants_file: bool,
}

impl Plan {
    /// The plan, with descriptions of the objects that it was made for.
    pub(super) fn with_infos(self, infos: EventInfos) -> Self {
        Self { infos, ..self }
    }

    /// Stores the objects, those of each group in one batch. `places` has each object's index among
    /// the objects that the plan was made for.
    pub(super) fn store(
        &self,
        backend: &Backend,
        mut puts: Vec<Put<'_>>,
        places: &[usize],
        mode: PutMode,
    ) -> Vec<Result<(), Failure>> {
        if self.wants_file && !backend.may_keep_files() {
            repeats::warn(
                None,
                "dfs_replica_num=1: this cluster keeps no files; start the master with --root_fs_dir"
                    .into(),
            );
            return vec![Err(Failure::NO_FILES); puts.len()];
        }
        for (put, &place) in puts.iter_mut().zip(places) {
            put.event_info = self.infos.of(place);
        }
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
