//! The part of a trace that a server records.

use mc_memory::Access;
use mc_trace::{Kind, Span, TraceContext};

/// The requests of a peer that belong to a trace, one after the other. The span begins with the first that is
/// admitted: a stranger makes none.
pub(super) struct Traced {
    peer: TraceContext,
    /// How many requests are to come.
    left: u32,
    span: Span,
    operations: u64,
    refused: u64,
    bytes_read: u64,
    bytes_written: u64,
}

impl Traced {
    /// The next `count` requests belong to a span of the peer.
    pub(super) const fn new(peer: TraceContext, count: u32) -> Self {
        let (operations, refused, bytes_read, bytes_written) = (0, 0, 0, 0);
        let span = Span::NONE;
        Self { peer, left: count, span, operations, refused, bytes_read, bytes_written }
    }

    /// Notes the next request. It belongs to none once as many came as were announced.
    pub(super) fn request(&mut self, wanted: Access, len: u64, is_admitted: bool) {
        let Some(left) = self.left.checked_sub(1) else { return };
        self.left = left;
        if !is_admitted {
            self.refused += 1;
            return;
        }
        if self.operations == 0 {
            self.span = Span::remote("serve", Kind::Server, self.peer);
        }
        self.operations += 1;
        match wanted {
            Access::Write => self.bytes_written += len,
            _ => self.bytes_read += len,
        }
    }

    /// Returns whether no request of the trace is to come.
    pub(super) const fn is_over(&self) -> bool {
        self.left == 0
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        if self.span.is_recording() {
            self.span.set("mc.operations", self.operations);
            self.span.set("mc.refused", self.refused);
            self.span.set("mc.read.bytes", self.bytes_read);
            self.span.set("mc.written.bytes", self.bytes_written);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_behind_the_announced_requests_is_not_counted() {
        let peer = TraceContext::new(1, 2, true).expect("both are numbers");
        let mut traced = Traced::new(peer, 3);
        traced.request(Access::Read, 10, true);
        traced.request(Access::Write, 200, true);
        assert!(!traced.is_over());
        traced.request(Access::Read, 3_000, false);
        assert!(traced.is_over());
        traced.request(Access::Read, 40_000, true);
        assert_eq!((traced.operations, traced.refused), (2, 1));
        assert_eq!((traced.bytes_read, traced.bytes_written), (10, 200));
    }
}
