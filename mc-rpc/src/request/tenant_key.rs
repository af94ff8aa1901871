//! Keys of whatever tenant, as those name them who work for every tenant.

use bytes::BytesMut;
use mc_meta::TenantId;
use mc_types::KeyRef;

use super::{key, missing_key, write_key};
use crate::error::Refusal;
use crate::wire::{Field, put_bytes};

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

    pub(super) fn write(&self, out: &mut BytesMut, tenant_number: u32) {
        write_key(out, self.key);
        if let Some(tenant) = &self.tenant {
            put_bytes(out, tenant_number, tenant.as_str().as_bytes());
        }
    }
}

impl<'a> From<KeyRef<'a>> for TenantKey<'a> {
    /// A key of the caller's own tenant.
    fn from(key: KeyRef<'a>) -> Self {
        Self { tenant: None, key }
    }
}

/// A key and its tenant as they arrive.
#[derive(Debug, Default)]
pub(super) struct TenantKeyParts<'a> {
    tenant: Option<TenantId>,
    key: Option<KeyRef<'a>>,
}

impl<'a> TenantKeyParts<'a> {
    pub(super) fn key(&mut self, field: Field<'a>) -> Result<(), Refusal> {
        self.key = Some(key(field, "key")?);
        Ok(())
    }

    pub(super) fn tenant(&mut self, field: Field<'a>) -> Result<(), Refusal> {
        let name = field.text()?;
        self.tenant = if name.is_empty() { None } else { Some(tenant(name)?) };
        Ok(())
    }

    pub(super) fn finish(self) -> Result<TenantKey<'a>, Refusal> {
        Ok(TenantKey { tenant: self.tenant, key: self.key.ok_or_else(missing_key)? })
    }
}

pub(super) fn tenant(name: &str) -> Result<TenantId, Refusal> {
    TenantId::new(name).map_err(|error| Refusal::invalid(format!("tenant_id: {error}")))
}
