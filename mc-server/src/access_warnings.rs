//! Warnings of access lists that protect less than they seem to.

use std::sync::Arc;

use mc_rpc::{Authenticate, Caller, Presented, Refusal, Role};
use parking_lot::Mutex;
use tracing::warn;

/// The gaps that an access list leaves open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Openings {
    /// The list names tenants, which this master does not keep apart.
    tenants_are_together: bool,
    /// A client without a credential is an administrator.
    anonymous_is_admin: bool,
}

/// Knows the callers as the authenticator inside does, and warns once of each opening, when the
/// list first has it: at the start, or when it was read again.
#[derive(Debug)]
pub(crate) struct WarnsOfOpenings {
    inner: Arc<dyn Authenticate>,
    keeps_tenants_apart: bool,
    told: Mutex<Openings>,
}

impl WarnsOfOpenings {
    /// Warns of nothing yet.
    pub(crate) fn new(inner: Arc<dyn Authenticate>, keeps_tenants_apart: bool) -> Self {
        Self { inner, keeps_tenants_apart, told: Mutex::default() }
    }

    /// Warns of what the list leaves open and did not before.
    pub(crate) fn warn(&self) {
        let now = Openings {
            tenants_are_together: !self.keeps_tenants_apart && self.inner.names_tenants(),
            anonymous_is_admin: self.inner.anonymous_role() == Some(Role::Admin),
        };
        let told = std::mem::replace(&mut *self.told.lock(), now);
        if now.tenants_are_together && !told.tenants_are_together {
            warn!(
                "the access list names tenants, but this master does not keep them apart: each \
                 caller can read, list and remove the objects of every tenant; enable multi-tenancy"
            );
        }
        if now.anonymous_is_admin && !told.anonymous_is_admin {
            warn!(
                "the access list makes anonymous an administrator: every client that reaches the port may do \
                 everything; give administrators a token, a certificate or a user of their own"
            );
        }
    }
}

impl Authenticate for WarnsOfOpenings {
    fn identify(&self, presented: &Presented<'_>) -> Result<Arc<Caller>, Refusal> {
        self.inner.identify(presented)
    }

    fn names_tenants(&self) -> bool {
        self.inner.names_tenants()
    }

    fn anonymous_role(&self) -> Option<Role> {
        self.inner.anonymous_role()
    }

    fn refresh(&self) {
        self.inner.refresh();
        self.warn();
    }
}
