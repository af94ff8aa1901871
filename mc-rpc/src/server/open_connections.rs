//! The connections of a server, as an operator asks for them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::peer::Peer;
use crate::caller::{Caller, Role};

/// A connection that is open, and who is at its other end.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionReport {
    /// Where it comes from: the host and port, or the user of a process of the master's host.
    pub peer: Box<str>,
    /// The software at the other end with its version, such as `mc-node/0.1.0`, as it says itself. Empty for an
    /// older one, and over gRPC.
    pub software: Box<str>,
    /// The name of the caller. Empty over gRPC, where each call has one.
    pub caller: Box<str>,
    /// Its role; `None` over gRPC.
    pub role: Option<Role>,
    /// The tenant that it acts for; empty for the default one.
    pub tenant: Box<str>,
    /// What travels over it.
    pub kind: ConnectionKind,
    /// The time since it was made.
    pub age: Duration,
}

/// What travels over a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionKind {
    /// Calls of the native protocol.
    Calls,
    /// Calls over gRPC.
    Grpc,
    /// The journal, to another master.
    Journal,
}

impl ConnectionKind {
    /// A word for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Calls => "calls",
            Self::Grpc => "grpc",
            Self::Journal => "journal",
        }
    }
}

/// The connections of a server that are open. Clones are of the same server.
#[derive(Clone, Default)]
pub struct OpenConnections(Arc<Mutex<Known>>);

#[derive(Default)]
struct Known {
    /// The younger ones have greater numbers.
    open: BTreeMap<u64, Open>,
    next: u64,
}

/// A connection with as little memory as it needs: there may be many.
pub(super) struct Open {
    pub(super) peer: Peer,
    pub(super) software: Box<str>,
    pub(super) caller: Option<Arc<Caller>>,
    pub(super) kind: ConnectionKind,
    pub(super) since: Instant,
}

impl fmt::Debug for OpenConnections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OpenConnections").field(&self.count()).finish()
    }
}

impl OpenConnections {
    /// The number of connections that have shaken hands.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.lock().open.len()
    }

    /// The oldest connections that are open, `most` of them at the most.
    #[must_use]
    pub fn list(&self, most: usize) -> Vec<ConnectionReport> {
        let now = Instant::now();
        self.0.lock().open.values().take(most).map(|open| open.report(now)).collect()
    }

    /// Lists this connection until what is returned is dropped.
    pub(super) fn enter(&self, open: Open) -> Entered {
        let mut known = self.0.lock();
        let number = known.next;
        known.next += 1;
        known.open.insert(number, open);
        Entered { connections: self.clone(), number }
    }
}

/// A connection that is listed.
pub(super) struct Entered {
    connections: OpenConnections,
    number: u64,
}

impl Drop for Entered {
    fn drop(&mut self) {
        // What it holds is freed without the lock.
        let left = self.connections.0.lock().open.remove(&self.number);
        drop(left);
    }
}

impl Open {
    fn report(&self, now: Instant) -> ConnectionReport {
        let caller = self.caller.as_deref();
        ConnectionReport {
            peer: self.peer.to_string().into(),
            software: self.software.clone(),
            caller: caller.map_or_else(Box::default, |caller| caller.name().into()),
            role: caller.map(Caller::role),
            tenant: caller.map_or_else(Box::default, |caller| caller.tenant().as_str().into()),
            kind: self.kind,
            age: now.saturating_duration_since(self.since),
        }
    }
}
