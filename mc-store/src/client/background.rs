//! Tasks in the application's runtime, which end with the client.

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

/// The background tasks of a client.
#[derive(Debug)]
pub(super) struct Background {
    tasks: Mutex<JoinSet<()>>,
    /// Where the client was connected: its sockets belong to this runtime.
    pub(super) runtime: Handle,
}

impl Background {
    /// No tasks yet, in the current runtime.
    pub(super) fn new() -> Self {
        Self { tasks: Mutex::default(), runtime: Handle::current() }
    }

    /// Spawns a task that ends with the client, if not before.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn_on(task, &self.runtime);
    }

    /// Ends all tasks.
    pub(super) async fn shutdown(&self) {
        let mut tasks = std::mem::take(&mut *self.tasks.lock());
        tasks.shutdown().await;
    }
}
