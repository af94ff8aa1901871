//! Whether a client makes requests: what it is for, and whether it is closed.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::Unusable;

/// A client's part in the cluster; see [`Client::role`](super::Client::role).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClientRole {
    /// The client contributes memory and makes requests.
    Both,
    /// The client makes requests and contributes nothing: it has no segment.
    PureClient,
    /// The client makes no requests, because its local buffer was given the size 0; they are
    /// refused with [`InvalidParams`](crate::ErrorCode::InvalidParams).
    PureServer,
}

/// Lets requests pass, or says why it does not.
#[derive(Debug)]
pub(super) struct Admission {
    makes_requests: bool,
    closed: AtomicBool,
}

impl Admission {
    pub(super) const fn new(makes_requests: bool) -> Self {
        Self { makes_requests, closed: AtomicBool::new(false) }
    }

    pub(super) const fn role(&self, contributes: bool) -> ClientRole {
        match (self.makes_requests, contributes) {
            (true, true) => ClientRole::Both,
            (true, false) => ClientRole::PureClient,
            (false, _) => ClientRole::PureServer,
        }
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
        if self.makes_requests { Ok(()) } else { Err(Unusable::PureServer) }
    }
}
