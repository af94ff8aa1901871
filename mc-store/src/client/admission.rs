//! Whether a client makes requests: what it is for, and whether it is closed.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::Unusable;

/// What a client does for the cluster; see [`Client::role`](super::Client::role).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClientRole {
    /// It contributes memory and makes requests.
    Both,
    /// It makes requests and contributes nothing: its segment has the size 0.
    PureClient,
    /// It contributes memory and makes no requests: its local buffer was given the
    /// size 0. Its requests are refused with
    /// [`InvalidParams`](crate::ErrorCode::InvalidParams).
    PureServer,
}

impl ClientRole {
    /// Whether it makes requests.
    #[must_use]
    pub const fn makes_requests(self) -> bool {
        !matches!(self, Self::PureServer)
    }

    /// Whether it keeps objects of others.
    #[must_use]
    pub const fn contributes(self) -> bool {
        !matches!(self, Self::PureClient)
    }
}

/// Lets requests pass, or says why it does not.
#[derive(Debug)]
pub(super) struct Admission {
    role: ClientRole,
    closed: AtomicBool,
}

impl Admission {
    pub(super) const fn new(role: ClientRole) -> Self {
        Self { role, closed: AtomicBool::new(false) }
    }

    pub(super) const fn role(&self) -> ClientRole {
        self.role
    }

    /// Lets nothing pass from now on.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// Whether a question about the cluster, which any role may ask, passes.
    pub(super) fn question(&self) -> Result<(), Unusable> {
        if self.closed.load(Ordering::Acquire) { Err(Unusable::Closed) } else { Ok(()) }
    }

    /// Whether a request about objects passes.
    pub(super) fn request(&self) -> Result<(), Unusable> {
        self.question()?;
        if self.role.makes_requests() { Ok(()) } else { Err(Unusable::PureServer) }
    }
}
