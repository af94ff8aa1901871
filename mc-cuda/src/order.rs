//! Order between copies and the work of other streams.

/// A stream of an engine, in the primary context of the GPU that copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineStream(pub(crate) u64);

impl EngineStream {
    /// Names a stream by its `CUstream`, such as PyTorch's `Stream.cuda_stream`; 0 is the legacy stream.
    ///
    /// # Safety
    /// It is a stream of the primary context of the GPU that copies, and not destroyed before the call that
    /// it is passed to has returned. If it is to be signalled, not before [`Pending::queued`] has returned.
    ///
    /// [`Pending::queued`]: crate::Pending::queued
    #[must_use]
    pub const unsafe fn new(handle: u64) -> Self {
        Self(handle)
    }
}

/// An event of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineEvent(pub(crate) u64);

impl EngineEvent {
    /// Names an event by its `CUevent`.
    ///
    /// # Safety
    /// It is an event of this process, and neither destroyed nor recorded again before
    /// [`Pending::queued`](crate::Pending::queued) has returned.
    #[must_use]
    pub const unsafe fn new(handle: u64) -> Self {
        Self(handle)
    }
}

/// When a copy may begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// At once: nothing that is queued on the GPU touches the bytes.
    #[default]
    Now,
    /// After everything that the stream was given before the call.
    After(EngineStream),
    /// After the event, as it was recorded last.
    AfterEvent(EngineEvent),
}
