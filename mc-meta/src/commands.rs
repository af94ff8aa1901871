//! The commands of a master, a folder for each family: `impl Master` stands here alone.
//!
//! A command locks one shard, changes its objects by the functions of [`Shard`](crate::shard::Shard), and tells
//! the sinks by [`Emit`](crate::effect::emit::Emit). Shared steps of one family are `impl Shard` blocks beside
//! its commands.

pub(crate) mod batch;
pub(crate) mod clients;
pub(crate) mod error;
pub(crate) mod evict;
pub(crate) mod export;
pub(crate) mod health;
pub(crate) mod protection;
pub(crate) mod put;
pub(crate) mod query;
pub(crate) mod read;
pub(crate) mod receipt;
pub(crate) mod remove;
pub(crate) mod reply;
pub(crate) mod tenant;
pub(crate) mod tier;
pub(crate) mod transfer;
