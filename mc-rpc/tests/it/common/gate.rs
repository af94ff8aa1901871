//! A service whose long calls wait for a test.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use bytes::{BufMut, BytesMut};
use mc_rpc::{Call, Completion, Method, Refusal, Server, ServerConfig, ServerHandle, Service};
use mc_testkit::eventually;

use super::DEADLINE;

/// A service whose `ListKeys` waits until the test lets it, and which answers every call
/// with how many calls of its method have been executed.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
    entered: AtomicUsize,
    executed: Mutex<HashMap<Method, u8>>,
}

impl Gate {
    pub(crate) fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.opened.notify_all();
    }

    pub(crate) async fn entered(&self, calls: usize) {
        let entered = || self.entered.load(Ordering::SeqCst) >= calls;
        eventually(DEADLINE, "they are entered", entered).await;
    }
}

impl Service for Gate {
    fn call(&self, call: Call<'_>, out: &mut BytesMut) -> Result<Completion, Refusal> {
        if call.method == Method::ListKeys {
            self.entered.fetch_add(1, Ordering::SeqCst);
            let shut = self.open.lock().unwrap();
            let wait = self.opened.wait_timeout_while(shut, DEADLINE, |open| !*open);
            drop(wait.unwrap());
        }
        let mut executed = self.executed.lock().unwrap();
        let count = executed.entry(call.method).or_default();
        *count += 1;
        out.put_u8(*count);
        Ok(Completion::Now)
    }
}

pub(crate) async fn gated(config: ServerConfig) -> (Arc<Gate>, ServerHandle) {
    let gate = Arc::new(Gate::default());
    let server = Server::bind("127.0.0.1:0", Arc::clone(&gate), config).await.unwrap();
    (gate, server.spawn())
}
