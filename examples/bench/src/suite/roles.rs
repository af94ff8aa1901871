//! The roles that a process of this program can have for a suite.

use serde::Deserialize;

use crate::error::BenchError;
use crate::suite::{alloc, meta, store, tier, transport};

/// The role of a process. Its variants have the names of [`Task::ROLE`](crate::process::Task::ROLE).
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Role {
    /// Measures the memory of an allocator, alone in its process.
    AllocMemory(alloc::MemoryTask),
    /// Measures the memory of a master's objects, alone in its process.
    MetaMemory(meta::MemoryTask),
    /// Serves a region over a transport, and a raw socket beside it.
    Region(transport::RegionTask),
    /// Is a master.
    Master(store::MasterTask),
    /// Contributes a segment to a cluster.
    Node(store::NodeTask),
    /// Passes bytes on between two processes, slowly for some.
    Relay(store::RelayTask),
    /// Fills a log.
    TierFill(tier::Fill),
    /// Opens a log that was filled.
    TierReopen(tier::Reopen),
}

impl Role {
    /// Plays the role; returns when it is over.
    pub(crate) fn play(&self) -> Result<(), BenchError> {
        match self {
            Self::AllocMemory(task) => alloc::measure_memory(task),
            Self::MetaMemory(task) => meta::measure_memory(task),
            Self::Region(task) => transport::serve_region(task),
            Self::Master(task) => store::serve_master(task),
            Self::Node(task) => store::serve_node(task),
            Self::Relay(task) => store::serve_relay(task),
            Self::TierFill(task) => tier::fill(&task.0),
            Self::TierReopen(task) => tier::reopen(&task.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process;

    #[test]
    fn roles_survive_the_command_line() {
        let task = alloc::MemoryTask { live: 7, fragmented: true };
        let text = process::role(&task).unwrap();
        assert!(matches!(
            serde_json::from_str(&text).unwrap(),
            Role::AllocMemory(alloc::MemoryTask { live: 7, fragmented: true })
        ));
        let text = process::role(&meta::MemoryTask { keys: 7 }).unwrap();
        assert!(matches!(
            serde_json::from_str(&text).unwrap(),
            Role::MetaMemory(meta::MemoryTask { keys: 7 })
        ));
    }
}
