//! A client and a master together: in one process, over real sockets and real files.

mod apart;
mod attachment;
mod bad_input;
mod blocking;
#[cfg(feature = "c2c")]
mod c2c;
#[cfg(all(feature = "config", feature = "quic"))]
mod certificates;
mod cluster;
mod common;
#[cfg(feature = "config")]
mod config;
mod damage;
mod data_path;
#[cfg(all(feature = "config", feature = "quic"))]
mod encrypted;
mod event_infos;
mod examples;
#[cfg(target_os = "linux")]
mod foreign_media;
#[cfg(unix)]
mod frozen;
mod given_up;
mod grey;
#[cfg(feature = "http")]
mod http;
#[cfg(target_os = "linux")]
mod hung_writes;
mod late_removals;
#[cfg(feature = "config")]
mod leaders;
mod lifecycle;
mod local_disk;
mod lost_answers;
mod metrics;
mod node_loads;
#[cfg(target_os = "linux")]
mod object_store;
mod one_put;
#[cfg(unix)]
mod own_address;
mod promoted_files;
mod reused_space;
#[cfg(feature = "encryption")]
mod sealed_tiers;
mod seam;
mod segments;
mod shared_tier;
mod slow_media;
#[cfg(all(feature = "config", feature = "quic"))]
mod staged;
mod takeover;
mod tasks;
mod terms;
mod unlisted_files;
mod unreachable;
mod verified;
mod vram;
