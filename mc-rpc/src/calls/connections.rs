//! The connections of a master.

use core::time::Duration;

use super::{BadField, CallContext, at_most, calls, count, fit, message, millis, reply};
use crate::proto::{self, connection};
use crate::refusal::Refusal;
use crate::server::{ConnectionKind, ConnectionReport};

/// Most connections in an answer.
pub const MAX_LISTED_CONNECTIONS: usize = 100_000;

/// Bytes kept for the number of connections that are left out.
const LEFT_OUT: usize = 8;

/// The connections of a master that are open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Connections {
    /// The connections, the oldest first.
    pub connections: Vec<ConnectionReport>,
    /// Connections that did not fit into the answer.
    pub left_out: u32,
}

calls! {
    /// Returns the connections of this master that are open, the oldest first, and `most` at the most.
    fn connections(&self, most: usize) -> Connections {
        Connections
            "Refused with `NotSupported` by masters that do not know the call.",
        message(proto::ConnectionsRequest { most: count(most) }),
        reply(Connections::from_proto),
    }
}

impl CallContext<'_> {
    pub(crate) fn connections(
        self,
        request: &proto::ConnectionsRequest,
    ) -> Result<proto::ConnectionsResponse, Refusal> {
        // A service without a server has none.
        let Some(open) = self.connections else { return Ok(proto::ConnectionsResponse::default()) };
        let most = (request.most as usize).min(MAX_LISTED_CONNECTIONS);
        let room = self.max_reply.saturating_sub(LEFT_OUT);
        let connections = fit(open.list(most).into_iter().map(to_proto), room);
        let left_out = count(open.count().saturating_sub(connections.len()));
        Ok(proto::ConnectionsResponse { connections, left_out, ..Default::default() })
    }
}

fn to_proto(open: ConnectionReport) -> proto::Connection {
    let kind = match open.kind {
        ConnectionKind::Calls => connection::Kind::Calls,
        ConnectionKind::Grpc => connection::Kind::Grpc,
        ConnectionKind::Journal => connection::Kind::Journal,
    };
    proto::Connection {
        peer: open.peer.into(),
        software: open.software.into(),
        caller: open.caller.into(),
        role: open.role.map_or_else(String::new, |role| role.as_str().into()),
        tenant: open.tenant.into(),
        kind: kind.into(),
        age_ms: millis(open.age),
    }
}

fn from_proto(open: &proto::Connection) -> ConnectionReport {
    let kind = match open.kind() {
        connection::Kind::Calls => ConnectionKind::Calls,
        connection::Kind::Grpc => ConnectionKind::Grpc,
        connection::Kind::Journal => ConnectionKind::Journal,
    };
    ConnectionReport {
        peer: open.peer.as_str().into(),
        software: open.software.as_str().into(),
        caller: open.caller.as_str().into(),
        role: open.role.parse().ok(),
        tenant: open.tenant.as_str().into(),
        kind,
        age: Duration::from_millis(open.age_ms),
    }
}

impl Connections {
    fn from_proto(answer: &proto::ConnectionsResponse) -> Result<Self, BadField> {
        at_most(&answer.connections, MAX_LISTED_CONNECTIONS, "connections")?;
        let connections = answer.connections.iter().map(from_proto).collect();
        Ok(Self { connections, left_out: answer.left_out })
    }
}
