//! The requests of a trace, for all applications of a cluster.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use mc_replay::trace::{Trace, TraceError};

/// Most blocks of a prompt that are asked for.
const BLOCKS: usize = 32;

/// Gives each request to one application, and begins again after the last.
#[derive(Debug)]
pub(crate) struct Requests {
    trace: &'static Trace,
    next: AtomicUsize,
}

impl Requests {
    /// The conversation trace, from a request on that follows from `seed`.
    pub(crate) fn new(seed: u64) -> Self {
        static TRACE: OnceLock<Result<Trace, TraceError>> = OnceLock::new();
        let trace = TRACE.get_or_init(|| Trace::builtin(None));
        let trace = trace.as_ref().expect("the trace is as it was built");
        let first = seed as usize % trace.requests().len();
        Self { trace, next: AtomicUsize::new(first) }
    }

    /// The blocks of the next request.
    pub(crate) fn next(&self) -> Vec<u32> {
        let requests = self.trace.requests();
        let request = &requests[self.next.fetch_add(1, Relaxed) % requests.len()];
        // The published ids are small.
        request.blocks.iter().take(BLOCKS).map(|block| block.0 as u32).collect()
    }
}
