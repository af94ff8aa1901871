//! The clients of the checks.

use mc_cli::{MemberArgs, MemberError};
use mc_store::{ByteSize, Client, ClientBuilder, Protocol, ReplicateConfig};

use crate::error::CheckError;

/// A client with memory, and two clients that reach the memory by different transports.
pub(crate) struct Installation {
    /// The master's address.
    pub(crate) master: String,
    /// Contributes the memory.
    pub(crate) owner: Client,
    /// Clients that reach the memory as a process of this host, and as another host.
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
        let near = Reader::join("shared memory", args.client()?).await?;
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

    /// Returns a config that prefers the memory of this process.
    pub(crate) fn here(&self) -> ReplicateConfig {
        ReplicateConfig::default().prefer(self.segment_name())
    }

    /// Returns the name of the owner's segment.
    pub(crate) fn segment_name(&self) -> &str {
        self.owner.segment_name().expect("the owner contributes memory")
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
