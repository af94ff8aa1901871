//! The threads of a client, a master or an engine.

use std::io;
use std::ops::Deref;

use tokio::runtime::{Builder, Runtime};

const STARTED: &str = "only threads that have started are used";

/// A runtime. Dropped, it ends in the background: the last user may be a thread of the runtime, and
/// a thread may still be resolving a host name. The default has no threads, and cannot be used.
#[derive(Debug, Default)]
pub(crate) struct Threads(Option<Runtime>);

impl Threads {
    /// Starts `count` threads.
    pub(crate) fn start(count: usize, name: &str) -> io::Result<Self> {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(count).thread_name(name).enable_all();
        Ok(Self(Some(builder.build()?)))
    }

    /// Returns the runtime.
    pub(crate) fn into_runtime(mut self) -> Runtime {
        self.0.take().expect(STARTED)
    }
}

impl Deref for Threads {
    type Target = Runtime;

    fn deref(&self) -> &Runtime {
        self.0.as_ref().expect(STARTED)
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
