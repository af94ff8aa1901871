//! Counters of the workers.

use mc_cli::Latencies;

use crate::tier::TierUse;

/// The counts of one worker, or of several together.
#[derive(Clone, Debug)]
pub(crate) struct Tally {
    pub(crate) requests: u64,
    pub(crate) blocks: u64,
    /// Blocks of the prefixes that were read: they need not be computed.
    pub(crate) hit_blocks: u64,
    /// Blocks that the lookup had promised and the get no longer found.
    pub(crate) vanished_blocks: u64,
    pub(crate) stored_blocks: u64,
    /// Puts of blocks that were there behind a gap, or that another worker had put
    /// or was putting.
    pub(crate) existing_blocks: u64,
    /// Puts refused for lack of space.
    pub(crate) refused_blocks: u64,
    pub(crate) bytes_got: u64,
    pub(crate) bytes_put: u64,
    pub(crate) wrong_bytes: u64,
    /// The shared tier, as the workers used it.
    pub(crate) tier: TierUse,
    pub(crate) lookup: Latencies,
    pub(crate) get: Latencies,
    pub(crate) put: Latencies,
}

impl Tally {
    pub(crate) fn new() -> Self {
        Self {
            requests: 0,
            blocks: 0,
            hit_blocks: 0,
            vanished_blocks: 0,
            stored_blocks: 0,
            existing_blocks: 0,
            refused_blocks: 0,
            bytes_got: 0,
            bytes_put: 0,
            wrong_bytes: 0,
            tier: TierUse::default(),
            lookup: Latencies::default(),
            get: Latencies::default(),
            put: Latencies::default(),
        }
    }

    /// Adds the counts of another worker.
    pub(crate) fn merge(&mut self, other: &Self) {
        // Taken apart, so that a new field cannot be forgotten.
        let Self {
            requests,
            blocks,
            hit_blocks,
            vanished_blocks,
            stored_blocks,
            existing_blocks,
            refused_blocks,
            bytes_got,
            bytes_put,
            wrong_bytes,
            tier,
            lookup,
            get,
            put,
        } = other;
        self.requests += requests;
        self.blocks += blocks;
        self.hit_blocks += hit_blocks;
        self.vanished_blocks += vanished_blocks;
        self.stored_blocks += stored_blocks;
        self.existing_blocks += existing_blocks;
        self.refused_blocks += refused_blocks;
        self.bytes_got += bytes_got;
        self.bytes_put += bytes_put;
        self.wrong_bytes += wrong_bytes;
        self.tier += *tier;
        self.lookup.merge(lookup);
        self.get.merge(get);
        self.put.merge(put);
    }
}
