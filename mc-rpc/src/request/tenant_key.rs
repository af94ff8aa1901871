//! Keys of whatever tenant, as those name them who work for every tenant.

use mc_meta::TenantId;
use mc_types::KeyRef;

/// The key of an object, and whose it is: the caller's own, as a [`KeyRef`] alone says, or
/// a tenant's that is named. Naming another tenant than one's own takes the role
/// [`Node`](crate::Role::Node): nodes hold the bytes of every tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantKey<'a> {
    pub(crate) tenant: Option<TenantId>,
    pub(crate) key: KeyRef<'a>,
}

impl<'a> TenantKey<'a> {
    /// A key of this tenant.
    #[must_use]
    pub fn of(tenant: &TenantId, key: KeyRef<'a>) -> Self {
        Self { tenant: Some(tenant.clone()), key }
    }
}

impl<'a> From<KeyRef<'a>> for TenantKey<'a> {
    /// A key of the caller's own tenant.
    fn from(key: KeyRef<'a>) -> Self {
        Self { tenant: None, key }
    }
}
