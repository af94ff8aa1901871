//! The clients' own disks, known to the objects on them.

use std::sync::atomic::{AtomicBool, Ordering};

use mc_types::{ClientId, Endpoint};

/// One client's disk from when it is mounted until it or its client goes. One that
/// comes back is another one, on which nothing is until its client says what.
#[derive(Debug)]
pub(crate) struct LocalDisk {
    client: ClientId,
    endpoint: Endpoint,
    gone: AtomicBool,
}

impl LocalDisk {
    #[expect(dead_code, reason = "mounted by commands to come")]
    pub(crate) const fn new(client: ClientId, endpoint: Endpoint) -> Self {
        Self { client, endpoint, gone: AtomicBool::new(false) }
    }

    pub(crate) const fn client(&self) -> ClientId {
        self.client
    }

    pub(crate) const fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }
}
