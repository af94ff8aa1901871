//! The clients that callers use.

use mc_meta::{PutEnd, PutStart, ReplicateConfig};
use mc_rpc::{
    ClientConfig, MasterClient, PutGrant, PutStartItem, Refusal, ReplicaList, RpcError, blocking,
};
use mc_types::{ClientId, KeyRef};

/// Which client calls are made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum StubKind {
    /// The one for threads that wait for each answer.
    Blocking,
    /// The one for tasks, which has many calls on one connection.
    Async,
}

impl StubKind {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Blocking => "blocking",
            Self::Async => "async",
        }
    }

    pub(super) async fn connect(self, master: &str, over: Over) -> Result<Stub, RpcError> {
        self.connect_to(master, over.config()).await
    }

    pub(super) async fn connect_to(
        self,
        master: &str,
        config: ClientConfig,
    ) -> Result<Stub, RpcError> {
        Ok(match self {
            Self::Blocking => Stub::Blocking(blocking::MasterClient::connect(master, config)?),
            Self::Async => Stub::Async(MasterClient::connect(master, config).await?),
        })
    }
}

/// The transport of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Over {
    /// As between hosts.
    Tcp,
    /// The Unix socket that clients of the master's host find.
    Unix,
}

impl Over {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Unix => "unix",
        }
    }

    pub(super) fn config(self) -> ClientConfig {
        let mut config = ClientConfig::default();
        config.local_socket = self == Self::Unix;
        config
    }
}

/// A connected client.
#[derive(Clone, Debug)]
pub(super) enum Stub {
    Blocking(blocking::MasterClient),
    Async(MasterClient),
}

macro_rules! forward {
    ($(fn $name:ident($($argument:ident: $type:ty),*) -> $answer:ty;)*) => {
        impl Stub {
            $(
                /// As the client's. The blocking client blocks the thread.
                pub(super) async fn $name(&self, $($argument: $type),*) -> Result<$answer, RpcError> {
                    match self {
                        Self::Blocking(client) => client.$name($($argument),*),
                        Self::Async(client) => client.$name($($argument),*).await,
                    }
                }
            )*
        }
    };
}

forward! {
    fn exist(key: KeyRef<'_>) -> bool;
    fn get_replica_list(key: KeyRef<'_>) -> ReplicaList;
    fn put_start(client: ClientId, put: &PutStart<'_>) -> PutGrant;
    fn put_end(client: ClientId, end: &PutEnd<'_>) -> ();
    fn batch_exist(keys: &[KeyRef<'_>]) -> Vec<Result<bool, Refusal>>;
    fn batch_get_replica_list(keys: &[KeyRef<'_>]) -> Vec<Result<ReplicaList, Refusal>>;
    fn batch_put_start(
        client: ClientId,
        config: &ReplicateConfig,
        puts: &[PutStartItem<'_>]
    ) -> Vec<Result<PutGrant, Refusal>>;
    fn batch_put_end(client: ClientId, puts: &[PutEnd<'_>]) -> Vec<Result<(), Refusal>>;
}
