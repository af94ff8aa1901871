//! One connection to the node agent, and the calls that are under way on it.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mc_transport::Memory;
use parking_lot::Mutex;
use tokio::net::UnixStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::error::DummyError;
use crate::socket::{Broken, Frame, Incoming, Outgoing};
use crate::wire::{Call, Failure, Reply, Response, TooLong, decode, encode};

/// How long a node agent may take no requests while there are some. Calls have time-outs
/// of their own; this only finds a socket that will never move again.
const PATIENCE: Duration = Duration::from_secs(60);

/// A connection behind its handshake.
pub(super) struct Session {
    address: Arc<str>,
    stream: UnixStream,
    outgoing: Outgoing,
    calls: Mutex<Calls>,
    next_id: AtomicU64,
    /// Calls that the node agent lets be open.
    places: Arc<Semaphore>,
}

#[derive(Default)]
struct Calls {
    open: HashMap<u64, Open>,
    /// Why there will be no more answers.
    ended: Option<DummyError>,
}

/// A call that has no answer yet.
struct Open {
    answer: oneshot::Sender<Result<Reply, DummyError>>,
    /// Memory that the node agent may still access, also when no call waits for it any more.
    held: Vec<Memory>,
    _place: OwnedSemaphorePermit,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Session {
    pub(super) fn new(address: Arc<str>, stream: UnixStream, max_calls: u32) -> Self {
        Self {
            address,
            stream,
            outgoing: Outgoing::default(),
            calls: Mutex::default(),
            next_id: AtomicU64::new(1),
            places: Arc::new(Semaphore::new(max_calls.clamp(1, 1 << 20) as usize)),
        }
    }

    /// Makes a call and waits for its answer. `held` is not dropped before the node agent
    /// has answered or is known to be gone.
    pub(super) async fn call(
        &self,
        call: &Call<'_>,
        held: Vec<Memory>,
    ) -> Result<Reply, DummyError> {
        self.call_with(call, held, |frame| frame).await
    }

    /// As [`call`](Self::call), with something beside the frame.
    pub(super) async fn call_with(
        &self,
        call: &Call<'_>,
        held: Vec<Memory>,
        complete: impl FnOnce(Frame) -> Frame,
    ) -> Result<Reply, DummyError> {
        let place = Arc::clone(&self.places).acquire_owned().await.expect("never closed");
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let bytes = encode_call(id, call)?;
        let (answer, answered) = oneshot::channel();
        {
            let mut calls = self.calls.lock();
            if let Some(error) = &calls.ended {
                return Err(error.clone());
            }
            calls.open.insert(id, Open { answer, held, _place: place });
        }
        self.outgoing.push(&self.stream, complete(Frame::new(bytes)));
        answered.await.unwrap_or_else(|_| Err(self.gone(io::ErrorKind::ConnectionAborted.into())))
    }

    /// Carries requests and answers until the connection ends; tells why.
    pub(super) async fn drive(&self, incoming: &mut Incoming) -> DummyError {
        let broken = tokio::select! {
            broken = self.take_answers(incoming) => broken,
            broken = self.outgoing.drive(&self.stream, PATIENCE) => broken,
        };
        self.gone(match broken {
            Broken::Io(error) => error,
            broken => io::Error::new(io::ErrorKind::ConnectionAborted, broken),
        })
    }

    async fn take_answers(&self, incoming: &mut Incoming) -> Broken {
        loop {
            let response = match incoming.frame(&self.stream).await {
                Ok(frame) => decode::<Response>(frame),
                Err(broken) => return broken,
            };
            let Some(Response { id, outcome }) = response else {
                let text = "the node agent sent what is no answer";
                return Broken::Io(io::Error::new(io::ErrorKind::InvalidData, text));
            };
            let open = self.calls.lock().open.remove(&id);
            if let Some(open) = open {
                drop(open.held);
                // A caller that abandoned the call does not want to know.
                let _ = open.answer.send(outcome.map_err(DummyError::from));
            }
        }
    }

    /// Fails all calls, and gives what they held.
    pub(super) fn end(&self, error: &DummyError) -> Vec<Memory> {
        self.outgoing.close();
        let open = {
            let mut calls = self.calls.lock();
            calls.ended = Some(error.clone());
            std::mem::take(&mut calls.open)
        };
        let mut held = Vec::new();
        for call in open.into_values() {
            held.extend(call.held);
            let _ = call.answer.send(Err(error.clone()));
        }
        held
    }

    fn gone(&self, source: io::Error) -> DummyError {
        let address = Arc::clone(&self.address);
        DummyError::RealClientGone { address, source: Arc::new(source) }
    }
}

/// A request in a frame.
fn encode_call(id: u64, call: &Call<'_>) -> Result<Vec<u8>, DummyError> {
    // A tuple is encoded as a `Request`, which would own the call.
    encode(&(id, call)).map_err(|TooLong { len }| {
        let text = format!("a call of {len} bytes is too long; name fewer or shorter segments");
        Failure::invalid(text).into()
    })
}
