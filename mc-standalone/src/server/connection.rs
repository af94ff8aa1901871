//! One thin client: its handshake, its calls, and what is left when it goes.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mc_places::{Seat, Stage};
use mc_transport::backend::nonce;
use mc_types::ErrorCode;
use tokio::net::UnixStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::budget::{Room, Share};
use super::core::{Core, Figures};
use super::memories::Memories;
use super::operations::execute;
use crate::socket::{Broken, Frame, Incoming, Outgoing};
use crate::wire::{
    Admission, Admitted, Call, DUMMY, Failure, Hello, MAGIC, MAX_FRAME, MAX_FRAME_OF_STRANGER,
    Reply, Request, Response, SERVER, VERSION, Verdict, Welcome, decode, encode,
};

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum End {
    #[error(transparent)]
    Broken(#[from] Broken),
    #[error("the handshake took more than {0:?}")]
    TimedOut(Duration),
    #[error("the peer does not speak this protocol")]
    NotADummy,
    #[error("the peer was told that it is not served: {0:?}")]
    Refused(Verdict),
    #[error("the peer sent a request that this version does not define")]
    Malformed,
    #[error("the system gave no random bytes")]
    NoRandomness,
    #[error("the server ends")]
    Stopping,
}

/// A thin client that was admitted.
struct Session {
    stream: UnixStream,
    outgoing: Outgoing,
    memories: Memories,
    /// For its requests and their answers.
    share: Arc<Share>,
    figures: Arc<Figures>,
}

/// Tells a peer why it is not served, before it has said anything.
pub(super) fn turn_away(stream: UnixStream, verdict: Verdict) {
    // A new socket's buffer has room for these few bytes.
    let refusal = encode(&refusal(verdict)).expect("a refusal is short");
    let _ = stream.into_std().and_then(|mut stream| stream.write_all(&refusal));
}

/// Serves one thin client, a process of `user`, until it leaves or breaks the protocol, and until the last of
/// its calls has ended.
pub(super) async fn serve(core: &Arc<Core>, stream: UnixStream, user: u32, seat: &Seat) -> End {
    let mut incoming = Incoming::new(MAX_FRAME_OF_STRANGER);
    let session = Arc::new(Session {
        stream,
        outgoing: Outgoing::default(),
        memories: Memories::new(&core.limits, &core.figures),
        share: core.budget.share(user),
        figures: Arc::clone(&core.figures),
    });
    let mut stopping = core.stopping.clone();
    let patience = core.limits.patience;
    let admitted = tokio::select! {
        admitted = timeout(patience, session.admit(core, &mut incoming, seat)) => admitted,
        _ = stopping.wait_for(|&stop| stop) => return End::Stopping,
    };
    let id = match admitted {
        Ok(Ok(id)) => id,
        Ok(Err(end)) => return end,
        Err(_) => return End::TimedOut(patience),
    };
    incoming.set_max_frame(MAX_FRAME);

    let mut calls = JoinSet::new();
    let end = tokio::select! {
        end = session.take_calls(core, &mut incoming, &mut calls) => end,
        broken = session.outgoing.drive(&session.stream, patience) => broken.into(),
        _ = stopping.wait_for(|&stop| stop) => End::Stopping,
    };
    if matches!(end, End::Stopping) {
        // Answers of calls that are running are still wanted.
        tokio::select! {
            () = finished(&mut calls) => {}
            _ = session.outgoing.drive(&session.stream, patience) => {}
        }
    }
    // A read that is dropped could write on unnoticed, into memory that a later session
    // uses again; so calls run to their ends, without a receiver for their answers.
    session.outgoing.close();
    session.memories.clear();
    finished(&mut calls).await;
    if let Some(settled) = core.sessions.lock().remove(&id) {
        settled.close();
    }
    end
}

async fn finished(calls: &mut JoinSet<()>) {
    while calls.join_next().await.is_some() {}
}

impl Session {
    /// The handshake; gives the session's number.
    async fn admit(&self, core: &Core, incoming: &mut Incoming, seat: &Seat) -> Result<u64, End> {
        let hello = incoming.frame(&self.stream).await?;
        let hello: Hello = decode(hello).ok_or(End::NotADummy)?;
        if hello.magic != MAGIC {
            return Err(End::NotADummy);
        }
        if hello.version != VERSION {
            return Err(self.refuse(Verdict::UnknownVersion).await);
        }
        if let Some(previous) = hello.previous
            && !settled(core, previous).await
        {
            return Err(self.refuse(Verdict::Unsettled).await);
        }
        let nonce = nonce().map_err(|_| End::NoRandomness)?;
        let session = core.next_session.fetch_add(1, Ordering::Relaxed);
        let proof = core.secret.proof(SERVER, &hello.nonce, &nonce);
        let max_calls = core.limits.calls;
        let verdict = Verdict::Welcome;
        let welcome = Welcome { verdict, version: VERSION, nonce, proof, max_calls, session };
        self.say(&welcome).await?;
        let admission = incoming.frame(&self.stream).await?;
        let Admission { proof } = decode(admission).ok_or(End::NotADummy)?;
        if !core.secret.is_proven(DUMMY, &hello.nonce, &nonce, &proof) {
            self.say(&Admitted { verdict: Verdict::NotProven }).await?;
            return Err(End::Refused(Verdict::NotProven));
        }
        // From now on it yields its place to no other connection.
        seat.place().reached(Stage::Proved);
        seat.place().set_busy(true);
        core.sessions.lock().insert(session, Arc::new(Semaphore::new(0)));
        self.say(&Admitted { verdict: Verdict::Welcome }).await?;
        Ok(session)
    }

    async fn refuse(&self, verdict: Verdict) -> End {
        let said = self.say(&refusal(verdict)).await;
        said.map_or_else(End::from, |()| End::Refused(verdict))
    }

    /// Sends a message of the handshake.
    async fn say(&self, message: &impl serde::Serialize) -> Result<(), Broken> {
        let frame = Frame::new(encode(message).expect("messages of the handshake are short"));
        self.send(frame);
        self.outgoing.flush(&self.stream).await
    }

    fn send(&self, frame: Frame) {
        self.outgoing.push(&self.stream, frame);
    }

    /// Starts what the thin client asks, as much at once as it may.
    async fn take_calls(
        self: &Arc<Self>,
        core: &Core,
        incoming: &mut Incoming,
        calls: &mut JoinSet<()>,
    ) -> End {
        let places = Arc::new(Semaphore::new(core.limits.calls as usize));
        loop {
            while calls.try_join_next().is_some() {}
            // A thin client that takes no answers is not read any more.
            let place = places.clone().acquire_owned().await.expect("never closed");
            let (len, request) = match incoming.frame(&self.stream).await {
                Ok(frame) => (frame.len(), decode::<Request<'static>>(frame)),
                Err(broken) => return broken.into(),
            };
            let Some(Request { id, call }) = request else { return End::Malformed };
            // A thin client that takes no answers leaves them here, and they can be a
            // thousand times as long as what they answer.
            let room = self.share.take((len + call.answer_len()) as u64).await;
            let held = CallShare { _place: place, room };
            let answer = Answer { session: Arc::clone(self), id, held: Some(held) };
            match call {
                Call::Register { memory, len } => {
                    let descriptor = incoming.descriptor();
                    let registered = self.memories.register(memory, len, descriptor);
                    answer.give(registered.map(|()| Reply::Done));
                }
                Call::Unregister { memory } => {
                    answer.give(self.memories.unregister(memory).map(|()| Reply::Done));
                }
                call => {
                    let client = core.client.clone();
                    calls.spawn(async move {
                        let running = Running::new(&answer.session.figures);
                        let outcome = execute(&client, &answer.session.memories, call).await;
                        drop(running);
                        answer.give(outcome);
                    });
                }
            }
        }
    }
}

/// Waits until every call of an earlier session has ended.
async fn settled(core: &Core, previous: u64) -> bool {
    let session = core.sessions.lock().get(&previous).cloned();
    let Some(session) = session else { return true };
    // Half of what the handshake may take.
    let ended = timeout(core.limits.patience / 2, session.acquire());
    ended.await.is_ok() // closed, never acquired
}

fn refusal(verdict: Verdict) -> Welcome {
    let (nonce, proof) = ([0; 16], [0; 32]);
    Welcome { verdict, version: VERSION, nonce, proof, max_calls: 0, session: 0 }
}

/// Counts a call while it runs.
struct Running(Arc<Figures>);

impl Running {
    fn new(figures: &Arc<Figures>) -> Self {
        figures.calls.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(figures))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.calls.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The answer that a call is due. One that is dropped says that the call went wrong.
struct Answer {
    session: Arc<Session>,
    id: u64,
    /// The call's share, which is free for another call when the answer is sent.
    held: Option<CallShare>,
}

/// A call's share of what calls may take.
struct CallShare {
    _place: OwnedSemaphorePermit,
    room: Room,
}

impl Answer {
    fn give(mut self, outcome: Result<Reply, Failure>) {
        self.send(outcome);
    }

    fn send(&mut self, outcome: Result<Reply, Failure>) {
        let Some(mut held) = self.held.take() else { return };
        let bytes = encode(&Response { id: self.id, outcome });
        let bytes = bytes.or_else(|_| {
            let failure = Failure::new(ErrorCode::Internal, "the answer is too long", false);
            encode(&Response { id: self.id, outcome: Err(failure) })
        });
        let bytes = bytes.expect("a failure's text has a limit");
        // The largest answer was reckoned with; other calls may have the rest.
        held.room.shrink_to(bytes.len() as u64);
        let frame = Frame::new(bytes);
        self.session.send(frame.holding(held));
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        let text = "the call ended without an outcome; the node agent's log says more";
        self.send(Err(Failure::new(ErrorCode::Internal, text, true)));
    }
}
