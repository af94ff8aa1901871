//! Which objects lose their memory when it is needed for others, and how.
//!
//! [`order`]: the eviction order of one shard and what protects an object in it. [`reclaim`]: the
//! periodic round down to the watermark, over all shards. [`room`]: room for one put, where it is
//! made at the least cost. [`group`]: objects that go together or not at all. [`tenant_order`]: the
//! order among one tenant's objects, for tenants above their quota.

pub(crate) mod group;
pub(crate) mod order;
pub(crate) mod reclaim;
pub(crate) mod room;
pub(crate) mod tenant_order;
