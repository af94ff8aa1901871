//! Every tier does what the suite wants.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use mc_tier::{DirectoryTier, FaultyTier, MemoryTier, SyncPolicy, conformance};

#[test]
fn a_tier_in_memory() {
    let mut tier = MemoryTier::new();
    conformance::run(&mut |is_new| {
        if is_new {
            tier = MemoryTier::new();
        }
        Box::new(tier.clone())
    });
}

#[test]
fn a_tier_without_faults_that_could_have_some() {
    let mut tier = MemoryTier::new();
    conformance::run(&mut |is_new| {
        if is_new {
            tier = MemoryTier::new();
        }
        Box::new(FaultyTier::new(tier.clone(), 1))
    });
}

#[test]
fn a_tier_in_a_directory() {
    for sync in [SyncPolicy::None, SyncPolicy::Data, SyncPolicy::DataAndDirectory] {
        let mut root = tempfile::tempdir().unwrap();
        conformance::run(&mut |is_new| {
            if is_new {
                root = tempfile::tempdir().unwrap();
            }
            Box::new(DirectoryTier::open(root.path(), "cluster", sync).unwrap())
        });
    }
}
