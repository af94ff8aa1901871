//! The store's programs as an operator runs them: real processes, real sockets,
//! real signals.

mod access;
mod admin_pages;
mod bad_input;
mod buckets;
mod changes;
mod collectors;
mod connections;
mod dashboard;
mod disks;
#[cfg(target_os = "linux")]
mod doctor;
mod end_to_end;
mod etcd_away;
mod histories;
#[cfg(target_os = "linux")]
mod hung_disk;
mod kept;
mod late_writes;
mod leaders;
#[cfg(target_os = "linux")]
mod memory;
mod mooncake;
mod names;
mod pages;
mod restart;
#[cfg(target_os = "linux")]
mod rolling_upgrade;
mod scrape;
mod sealed;
mod settings;
#[cfg(target_os = "linux")]
mod standalone;
mod strangers;
mod support;
mod traces;
#[cfg(target_os = "linux")]
mod two_families;
mod unread_log;
#[cfg(target_os = "linux")]
mod upgrades;
mod verbs;
mod watching;
