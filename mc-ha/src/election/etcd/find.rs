//! The leader of a cluster, for clients, which are no members.

use mc_types::BoxFuture;
use std::sync::Arc;
use std::thread;

use tokio::runtime::Builder;
use tokio::sync::oneshot;

use super::super::error::ElectionError;
use super::super::member::Leader;
use super::keys::Keys;
use super::watcher::Known;
use crate::etcd::{Client, EtcdConfig};

/// Looks up the leader of a cluster; `None` when it has none now. For a few seconds after its death
/// it may still be the old one. Works on every runtime: the lookup
/// runs on a thread of its own.
///
/// # Errors
/// [`ElectionError`] when etcd cannot be asked.
pub fn find_leader<'a>(
    config: &'a EtcdConfig,
) -> BoxFuture<'a, Result<Option<Leader>, ElectionError>> {
    Box::pin(async move { start(config.clone())?.await.unwrap_or(Err(ElectionError::Closed)) })
}

/// Looks up the leader as [`find_leader`], and blocks the thread meanwhile: at most for the request
/// timeout times the number of endpoints. Works with and without a runtime on the thread.
///
/// # Errors
/// As [`find_leader`].
pub fn find_leader_blocking(config: &EtcdConfig) -> Result<Option<Leader>, ElectionError> {
    // `blocking_recv` of a channel panics on a thread that runs async tasks.
    thread::scope(|scope| {
        let found =
            thread::Builder::new().name("find-leader".into()).spawn_scoped(scope, || run(config));
        found.map_err(thread_error)?.join().unwrap_or(Err(ElectionError::Closed))
    })
}

type Found = Result<Option<Leader>, ElectionError>;

fn start(config: EtcdConfig) -> Result<oneshot::Receiver<Found>, ElectionError> {
    let (found, finding) = oneshot::channel();
    // Nobody may wait for it any more.
    let run = move || drop(found.send(run(&config)));
    thread::Builder::new().name("find-leader".into()).spawn(run).map_err(thread_error)?;
    Ok(finding)
}

fn run(config: &EtcdConfig) -> Found {
    let runtime = Builder::new_current_thread().enable_all().build().map_err(thread_error)?;
    runtime.block_on(async {
        let (client, keys) = (Client::new(config)?, Keys::new(config.prefix()));
        let view = Known::read(client.range(keys.all()).await?).view(&keys);
        // The record of a leader that has died stays until another one takes over.
        let leader =
            view.leader.as_ref().filter(|leader| view.member(leader.member.id()).is_some());
        Ok(leader.cloned())
    })
}

fn thread_error(source: std::io::Error) -> ElectionError {
    ElectionError::Thread { source: Arc::new(source) }
}
