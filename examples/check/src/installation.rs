//! The clients of the checks.

use mc_cli::{MemberArgs, MemberError};
use mc_store::{ByteSize, Client, ClientBuilder, Protocol, ReplicateConfig};

use crate::error::CheckError;

/// A client with memory, and two clients that reach the memory by different transports. Without memory of
/// the client's own, they reach that of the cluster's nodes.
pub(crate) struct Installation {
    /// The master's address.
    pub(crate) master: String,
    /// Contributes the memory, if any.
    pub(crate) owner: Client,
    /// Clients that reach memory as a process of its host where they are on one, and as another host.
    pub(crate) readers: [Reader; 2],
    /// Distinguishes the keys of this run from all others.
    prefix: String,
}

/// A client without memory.
pub(crate) struct Reader {
    pub(crate) client: Client,
    /// The transport of the client's reads and writes.
    pub(crate) carrier: &'static str,
}

impl Installation {
    pub(crate) async fn join(args: &MemberArgs) -> Result<Self, CheckError> {
        let owner = args.client()?.connect().await.map_err(CheckError::Join)?;
        let prefix = format!("check/{}", owner.id());
        let carrier = match owner.segment_name() {
            Some(_) => "shared memory",
            None => "the fastest path to each node",
        };
        let near = Reader::join(carrier, args.client()?).await?;
        let settings = args.settings()?;
        let mut node = settings.node_config().map_err(MemberError::from)?;
        node.disable_shared_memory();
        let carrier = if settings.protocol == Some(Protocol::Quic) { "QUIC" } else { "TCP" };
        let distant = Reader::join(carrier, args.client()?.node(node)).await?;
        let master = settings.master.unwrap_or_default();
        Ok(Self { master, owner, readers: [near, distant], prefix })
    }

    /// Returns this run's key for `name`.
    pub(crate) fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.prefix)
    }

    /// Returns a config that prefers the memory of this process, if it has any.
    pub(crate) fn here(&self) -> ReplicateConfig {
        let config = ReplicateConfig::default();
        match self.segment_name() {
            Some(name) => config.prefer(name),
            None => config,
        }
    }

    /// Returns the name of the owner's segment; `None` when it contributes none.
    pub(crate) fn segment_name(&self) -> Option<&str> {
        self.owner.segment_name()
    }

    pub(crate) async fn leave(self) {
        for reader in self.readers {
            reader.client.shutdown().await;
        }
        self.owner.shutdown().await;
    }
}

impl Reader {
    async fn join(carrier: &'static str, builder: ClientBuilder) -> Result<Self, CheckError> {
        let client = builder.segment_size(ByteSize::bytes(0)).connect().await;
        let client = client.map_err(|source| CheckError::JoinReader { carrier, source })?;
        Ok(Self { client, carrier })
    }
}
