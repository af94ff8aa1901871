//! The masters of a cluster, for clients, which are no members.

use std::sync::Arc;
use std::thread;

use mc_types::BoxFuture;
use tokio::runtime::Builder;
use tokio::sync::oneshot;

use super::super::error::ElectionError;
use super::super::member::{Leader, Member};
use super::keys::Keys;
use super::watcher::Known;
use crate::etcd::messages::RangeRequest;
use crate::etcd::{Client, EtcdConfig};

/// The masters of a cluster as they are recorded in etcd.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Masters {
    /// The leader; `None` when there is none now. For a few seconds after its death it may still be
    /// the old one.
    pub leader: Option<Leader>,
    /// The masters whose registration is alive, the leader among them, by their ids.
    pub members: Vec<Member>,
}

/// Looks up the masters of one cluster, as often as it is asked, over one connection.
///
/// Reads what one member of etcd knows, which may be behind the others, and costs etcd's leader
/// nothing. Belongs to the runtime in which it was made.
#[derive(Debug)]
pub struct MasterLookup {
    client: Client,
    keys: Keys,
}

impl MasterLookup {
    /// A lookup that connects to etcd when it is used. Reads the files of TLS. Must be called in a
    /// runtime.
    ///
    /// # Errors
    /// [`ElectionError::Tls`].
    pub fn new(config: &EtcdConfig) -> Result<Self, ElectionError> {
        Ok(Self { client: Client::new(config)?, keys: Keys::new(config.prefix()) })
    }

    /// Looks up the masters. Takes at most the request timeout for each endpoint.
    ///
    /// # Errors
    /// [`ElectionError`] when etcd cannot be asked.
    pub async fn find(&self) -> Result<Masters, ElectionError> {
        let all = RangeRequest { serializable: true, ..self.keys.all() };
        let view = Known::read(self.client.range(all).await?).view(&self.keys);
        // The record of a leader that has died stays until another one takes over.
        let is_alive = |leader: &Leader| view.member(leader.member.id()).is_some();
        Ok(Masters {
            leader: view.leader.clone().filter(is_alive),
            members: view.members.into_iter().map(|status| status.member).collect(),
        })
    }
}

/// Looks up the leader of a cluster once; `None` when it has none now. Works on every runtime: the
/// lookup runs on a thread of its own. A [`MasterLookup`] is for those who ask again.
///
/// # Errors
/// [`ElectionError`] when etcd cannot be asked.
pub fn find_leader<'a>(
    config: &'a EtcdConfig,
) -> BoxFuture<'a, Result<Option<Leader>, ElectionError>> {
    Box::pin(async move { start(config.clone())?.await.unwrap_or(Err(ElectionError::Closed)) })
}

type FoundLeader = Result<Option<Leader>, ElectionError>;

fn start(config: EtcdConfig) -> Result<oneshot::Receiver<FoundLeader>, ElectionError> {
    let (found, finding) = oneshot::channel();
    // The caller may have stopped waiting.
    let run = move || drop(found.send(run(&config)));
    thread::Builder::new().name("find-leader".into()).spawn(run).map_err(thread_error)?;
    Ok(finding)
}

fn run(config: &EtcdConfig) -> FoundLeader {
    let runtime = Builder::new_current_thread().enable_all().build().map_err(thread_error)?;
    runtime.block_on(async { Ok(MasterLookup::new(config)?.find().await?.leader) })
}

fn thread_error(source: std::io::Error) -> ElectionError {
    ElectionError::Thread { source: Arc::new(source) }
}
