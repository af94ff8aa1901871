//! Flags of `mooncake_master` without a function of their own here.

use mc_cli::compat::Otherwise::{Ignore, Refuse, Rename, Warn};
use mc_cli::compat::{CompatFlag, GLOG_FLAGS, switch, value};

/// All of them.
pub(crate) const TABLES: &[&[CompatFlag]] = &[FLAGS, GLOG_FLAGS];

/// By section of Mooncake's list of flags: the name, the values that change nothing, and what any other
/// value means.
const FLAGS: &[CompatFlag] = &[
    // Calls.
    value("rpc_conn_timeout_seconds", &["0"], Rename("rpc_idle_timeout")),
    switch("rpc_enable_tcp_no_delay", &["true"], Warn("calls are never delayed")),
    // Memory of the program.
    switch(
        "use_mmap_arena_allocator",
        &["false"],
        Refuse(
            "this program has no arena of its own; for huge pages of the nodes set \
                 MC_STORE_USE_HUGEPAGE=1 in their environment",
        ),
    ),
    value("mmap_arena_pool_size", &[], Ignore),
    // Eviction and placement.
    value(
        "tenant_eviction_high_watermark_ratio",
        &["0.9", "0.90", "0"],
        Warn(
            "it has no effect: a put beyond its tenant's quota evicts objects of the same tenant, or is \
             refused; see mc-ctl quota set",
        ),
    ),
    value("nof_eviction_ratio", &[], Ignore),
    value("nof_eviction_high_watermark_ratio", &[], Ignore),
    switch(
        "enable_cxl",
        &["false"],
        Refuse(
            "there is no pool of CXL memory; a node can serve a device file as its memory: \
                 mc-node --segment_file=/dev/dax0.0",
        ),
    ),
    value("cxl_path", &[], Ignore),
    value("cxl_size", &[], Ignore),
    // Storage below memory, and copies made for reads.
    value("offload_cap_ratio", &[], Ignore),
    value(
        "dynamic_replication_mode",
        &["off"],
        Refuse(
            "objects get no further replicas for being read often; put them with several, or \
                 copy them with a copy task",
        ),
    ),
    value("dynamic_replication_heat_window_seconds", &[], Ignore),
    value("dynamic_replication_admission_qps_threshold", &[], Ignore),
    value("dynamic_replication_max_memory_replicas", &[], Ignore),
    // Availability. Standbys always follow the leader's journal, which is Mooncake's oplog.
    value(
        "ha_backend_type",
        &["etcd", ""],
        Refuse("masters elect their leader in etcd: --ha_backend_type=etcd"),
    ),
    value("ha_backend_connstring", &[""], Rename("etcd_endpoints")),
    value("pod_name", &[], Ignore),
    value("pod_namespace", &[], Ignore),
    switch("enable_oplog", &[], Ignore),
    switch("enable_oplog_snapshot", &[], Ignore),
    switch("weight_management_oplog_capability_confirmed", &[], Ignore),
    value("oplog_poll_interval_ms", &[], Ignore),
    value("oplog_batch_max_entries", &[], Ignore),
    value("batch_oplog_retry_timeout_sec", &[], Ignore),
    switch("enable_snapshot", &["false"], Refuse(SNAPSHOTS)),
    switch("enable_snapshot_restore", &["false"], Refuse(SNAPSHOTS)),
    value("snapshot_interval_seconds", &[], Ignore),
    value("snapshot_child_timeout_seconds", &[], Ignore),
    value("snapshot_retention_count", &[], Ignore),
    value("snapshot_chunk_object_count", &[], Ignore),
    value("snapshot_object_store_type", &[], Ignore),
    value("snapshot_payload_store_type", &[], Ignore),
    value("snapshot_payload_backend_type", &[], Ignore),
    value("snapshot_catalog_store_type", &[], Ignore),
    value("snapshot_catalog_backend_type", &[], Ignore),
    value("snapshot_catalog_store_connstring", &[], Ignore),
    value("snapshot_catalog_backend_connstring", &[], Ignore),
    value("snapshot_backup_dir", &[], Ignore),
    // The metadata server.
    switch(
        "enable_metadata_cleanup_on_timeout",
        &["false"],
        Refuse(
            "the metadata server keeps the values of a client that timed out until they are \
                 deleted or written again; leave the flag out",
        ),
    ),
    // NVMe over fabrics: there is no such pool, so that nothing is to be looked after.
    value("nof_heartbeat_interval_sec", &[], Ignore),
    value("nof_heartbeat_probe_timeout_ms", &[], Ignore),
    value("nof_heartbeat_failures_threshold", &[], Ignore),
    // KV events. Without the first one the others mean nothing.
    switch(
        "enable_kv_events",
        &["false"],
        Refuse(
            "write --enable_kv_event_publish --kv_event_publisher_encoding=mooncake, with the \
                 endpoint in --kv_event_publisher_endpoint and the name of this store in \
                 --kv_event_publisher_backend_id",
        ),
    ),
    value("kv_events_bind_endpoint", &[], Ignore),
    value("kv_events_backend_id", &[], Ignore),
    switch("kv_events_emit_legacy_compat", &[], Ignore),
    switch("kv_events_emit_object_key", &[], Ignore),
    value("kv_events_queue_capacity", &[], Ignore),
    value("kv_events_model_name", &[], Ignore),
    value("kv_events_tenant_id", &[], Ignore),
    value("kv_events_additional_salt", &[], Ignore),
    value("kv_events_lora_name", &[], Ignore),
    value("kv_events_block_size", &[], Ignore),
    value("kv_events_dp_rank", &[], Ignore),
    // Quotas of tenants.
    value("tenant_quota_connector_type", &[], Ignore),
    value(
        "tenant_quota_connector_uri",
        &[""],
        Refuse(
            "quotas are not read from a file or etcd; set them with mc-ctl quota set, or all at \
                 once with --default_tenant_quota",
        ),
    ),
];

const SNAPSHOTS: &str = "write --metadata_dir=DIR in place of the flags for snapshots: the metadata is \
    then kept in a journal with snapshots, and read when the master starts";

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory as _;

    use super::*;
    use crate::args::Args;

    #[test]
    fn every_name_is_there_once_and_is_no_flag_of_this_program() {
        let mut own = Args::command();
        own.build();
        let own: BTreeSet<String> = own
            .get_arguments()
            .flat_map(|arg| {
                let aliases = arg.get_all_aliases().unwrap_or_default();
                arg.get_long().into_iter().chain(aliases).map(str::to_owned).collect::<Vec<_>>()
            })
            .collect();
        let mut names = BTreeSet::new();
        for flag in TABLES.iter().copied().flatten() {
            assert!(names.insert(flag.name()), "{} is there twice", flag.name());
            assert!(!own.contains(flag.name()), "{} is a flag of this program", flag.name());
        }
    }
}
