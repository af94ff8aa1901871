//! Callers and their permissions.

use core::fmt;
use core::str::FromStr;
use std::borrow::Cow;

use mc_meta::TenantId;
use thiserror::Error;

/// The rights of a caller. Each role includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Role {
    /// Finds objects and reads them.
    Reader,
    /// Stores and removes objects too.
    Writer,
    /// Contributes memory or disks, and does the work that the master gives to those
    /// who do.
    Node,
    /// Looks after the cluster: quotas, drains, what concerns every tenant.
    Admin,
}

impl Role {
    /// Every role, from the one that may do least.
    pub const ALL: [Self; 4] = [Self::Reader, Self::Writer, Self::Node, Self::Admin];

    /// The role's name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Reader => "reader",
            Self::Writer => "writer",
            Self::Node => "node",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A text is no role's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the roles are reader, writer, node and admin")]
pub struct UnknownRole;

impl FromStr for Role {
    type Err = UnknownRole;

    fn from_str(name: &str) -> Result<Self, UnknownRole> {
        Self::ALL.into_iter().find(|role| role.as_str() == name).ok_or(UnknownRole)
    }
}

/// The caller of a request, as its credential identifies it, or as the absence of one does where
/// none is required.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    name: Cow<'static, str>,
    role: Role,
    tenant: TenantId,
}

impl Caller {
    /// The caller of a server that requires no credential: it may do everything, as the
    /// default tenant.
    pub const ANYBODY: Self =
        Self { name: Cow::Borrowed("anybody"), role: Role::Admin, tenant: TenantId::DEFAULT };

    /// Returns whether this is [`ANYBODY`](Self::ANYBODY), for any tenant.
    pub(crate) fn is_anybody(&self) -> bool {
        self.role == Self::ANYBODY.role && self.name == Self::ANYBODY.name
    }

    /// Returns a caller with this role and this name, which shows in logs.
    #[must_use]
    pub fn new(name: impl Into<Cow<'static, str>>, role: Role) -> Self {
        Self { name: name.into(), role, tenant: TenantId::DEFAULT }
    }

    /// The same, acting for this tenant: keys are those that it knows.
    #[must_use]
    pub fn of_tenant(mut self, tenant: TenantId) -> Self {
        self.tenant = tenant;
        self
    }

    /// Returns its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns its role.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role
    }

    /// Returns the tenant that its objects belong to.
    #[must_use]
    pub fn tenant(&self) -> &TenantId {
        &self.tenant
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_have_names_and_an_order() {
        for role in Role::ALL {
            assert_eq!(role.as_str().parse(), Ok(role));
        }
        assert_eq!("root".parse::<Role>(), Err(UnknownRole));
        assert!(Role::ALL.is_sorted());
    }
}
