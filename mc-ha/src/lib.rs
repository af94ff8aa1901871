#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod election;
#[cfg(feature = "etcd")]
pub mod etcd;
