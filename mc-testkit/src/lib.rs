#![doc = include_str!("../README.md")]

#[cfg(feature = "etcd")]
mod etcd;
mod metrics_page;
mod port;
#[cfg(target_os = "linux")]
mod preload;
mod program;
pub mod python;
mod random;
#[cfg(feature = "relay")]
mod relay;
pub mod role;
#[cfg(feature = "s3")]
mod seaweed;
#[cfg(target_os = "linux")]
mod two_addresses;
mod wait;

#[cfg(feature = "etcd")]
pub use etcd::EtcdCluster;
pub use metrics_page::metrics_differences;
pub use port::free_port;
#[cfg(target_os = "linux")]
pub use preload::preload;
pub use program::{Finished, Input, Program, Signal, binary};
pub use random::{Random, content, seed};
#[cfg(feature = "relay")]
pub use relay::{Flow, Relay};
#[cfg(feature = "s3")]
pub use seaweed::SeaweedFs;
#[cfg(target_os = "linux")]
pub use two_addresses::{SilentAddress, TWO_ADDRESSES, where_a_name_has_two_addresses};
pub use wait::{Check, eventually, eventually_async, eventually_blocking};
