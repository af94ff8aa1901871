//! Objects join a group when their puts begin, and leave it when they go.

use std::borrow::Cow;
use std::sync::Arc;

use mc_types::{Generation, KeyRef};

use crate::master::Master;
use crate::object::group::{Group, Membership, join};
use crate::tenant::id::{TenantId, unscoped};

impl Master {
    /// The group that the put of this generation joins.
    pub(crate) fn join_group(&self, name: &str, generation: Generation, shard: u32) -> Membership {
        join(&self.groups, name, generation, shard)
    }

    /// Returns whether objects that are put into a group of this name now join this one.
    pub(crate) fn is_group(&self, name: &str, group: &Arc<Group>) -> bool {
        Arc::ptr_eq(&self.groups.lock().named(name), group)
    }

    /// The name under which a group of the key's tenant is kept, so that two tenants'
    /// groups of one name are two groups.
    pub(crate) fn scoped_group<'n>(&self, key: KeyRef<'_>, name: &'n str) -> Cow<'n, str> {
        if !self.quotas.is_on() {
            return Cow::Borrowed(name);
        }
        let tenant = TenantId::new(unscoped(key).0).unwrap_or_default();
        // A group's name is a key's text, too, and shorter than any limit of keys.
        let scoped = KeyRef::new(name).ok().and_then(|name| tenant.scoped(name).ok());
        scoped.map_or(Cow::Borrowed(name), |name| name.as_ref().as_str().to_owned().into())
    }
}
