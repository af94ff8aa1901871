#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod content;
mod events;
mod history;
mod masters;
mod plan;
mod requests;
mod run;
mod shrink;
mod soak;
mod workload;
mod world;

pub use history::Digest;
pub use plan::{
    Durability, Fault, Load, MasterKind, Plan, PlanError, QUIET, Replication, Roughness, What,
};
pub use run::{Report, node_hours, run};
pub use shrink::{Shrunk, shrink};
pub use soak::{Soak, soak};
