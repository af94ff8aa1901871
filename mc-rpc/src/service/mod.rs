//! The service behind a server: calls in, answers out, without I/O.
//!
//! A file for each family of calls; each call is a method of [`CallContext`].

mod clock;
pub(crate) mod context;
mod durability;
mod history;
mod node_loads;
mod owners;

use std::net::IpAddr;
use std::sync::Arc;

use bytes::BytesMut;
use mc_meta::{Master, ReadProgress, Receipt};
use mc_ticket::ClockEpoch;
use mc_trace::TraceContext;
use mc_types::{ClientId, ErrorCode};

use crate::c2c::C2cSettings;
use crate::caller::Caller;
use crate::ha::HaReport;
use crate::method::{Method, Repeat};
use crate::refusal::{Completion, Refusal};
use crate::reply::Signer;
use crate::server::OpenConnections;
use crate::storage::StorageSettings;
use context::CallContext;
use owners::Owners;

pub use clock::{Clock, SystemClock};
pub(crate) use durability::JournalEnded;
pub use durability::{DurableSequence, DurableWatch};
pub use history::{History, Minute};
pub use node_loads::{NodeLoads, NodeReport};

/// One call as it reached a server.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The requested method.
    pub method: Method,
    /// The method's request message.
    pub payload: &'a [u8],
    /// Most bytes that the caller accepts as an answer.
    pub max_reply: usize,
    /// The caller. The server has checked its identity, not its rights.
    pub caller: &'a Caller,
    /// The host that it comes from, where the connection tells: an IPv4 address, or the first
    /// 64 bits of an IPv6 address.
    pub from: Option<IpAddr>,
    /// The caller's report of its reads, those of this call included.
    pub reads: Option<ReadProgress>,
    /// The trace that it belongs to.
    pub trace: Option<TraceContext>,
    /// The connections of the server that it came to.
    pub connections: Option<&'a OpenConnections>,
}

impl<'a> Call<'a> {
    /// A call of which nothing else is known than what it says.
    #[must_use]
    pub const fn new(
        method: Method,
        payload: &'a [u8],
        max_reply: usize,
        caller: &'a Caller,
    ) -> Self {
        let (from, reads, trace, connections) = (None, None, None, None);
        Self { method, payload, max_reply, caller, from, reads, trace, connections }
    }
}

/// Answers calls. A server runs short calls on the thread that reads the
/// socket, so an implementation never waits.
pub trait Service: Send + Sync + 'static {
    /// Answers `call` by appending the method's response message to `out`, and
    /// at most [`Call::max_reply`] bytes of it; a longer answer is replaced by a
    /// refusal. What was in `out` before stays. Returns when the answer may be sent: the
    /// server holds one that waits, and goes on with other calls meanwhile.
    ///
    /// # Errors
    /// The [`Refusal`] that the caller gets instead of an answer; whatever was
    /// appended to `out` is dropped then. The server holds one that
    /// [waits](Refusal::held_until), too.
    fn call(&self, call: Call<'_>, out: &mut BytesMut) -> Result<Completion, Refusal>;

    /// Asked before each connection for calls is taken: a service that answers only
    /// administrators, as a standby does, refuses it. The gRPC health service says `NOT_SERVING`
    /// then.
    ///
    /// # Errors
    /// The [`Refusal`] that the client gets.
    fn takes_calls(&self) -> Result<(), Refusal> {
        Ok(())
    }

    /// Tells what [`Completion::After`] waits for. Asked once by each connection; without it such
    /// answers leave at once.
    fn durability(&self) -> Option<DurableWatch> {
        None
    }
}

impl<S: Service + ?Sized> Service for Arc<S> {
    fn call(&self, call: Call<'_>, out: &mut BytesMut) -> Result<Completion, Refusal> {
        (**self).call(call, out)
    }

    fn takes_calls(&self) -> Result<(), Refusal> {
        (**self).takes_calls()
    }

    fn durability(&self) -> Option<DurableWatch> {
        (**self).durability()
    }
}

/// `MasterService` of the `.proto`, answered by a [`Master`].
///
/// Every call is refused whose [role](Method::role) its caller does not have, and every
/// key is one of the caller's tenant. The id of a client that contributes memory is its
/// caller's: only administrators call with it beside it.
#[derive(Debug)]
pub struct MasterService<C = SystemClock> {
    master: Arc<Master>,
    clock: C,
    epoch: ClockEpoch,
    owners: Owners,
    durable: Option<DurableWatch>,
    c2c: Option<C2cSettings>,
    storage: StorageSettings,
    ha: Option<Arc<dyn HaReport>>,
    history: Arc<History>,
    loads: Arc<NodeLoads>,
}

impl<C: Clock> MasterService<C> {
    /// Answers from `master`, whose time `clock` tells. The clock's epoch is drawn here: a
    /// master has one service, and clones of its [`Arc`] share it.
    ///
    /// # Panics
    /// When the operating system gives no random numbers.
    #[must_use]
    pub fn new(master: Arc<Master>, clock: C) -> Self {
        let mut number = [0; 8];
        getrandom::fill(&mut number).expect("the system gives random numbers");
        let epoch = ClockEpoch::new(u64::from_le_bytes(number));
        Self {
            master,
            clock,
            epoch,
            owners: Owners::default(),
            durable: None,
            c2c: None,
            storage: StorageSettings::default(),
            ha: None,
            history: Arc::default(),
            loads: Arc::default(),
        }
    }

    /// Takes this epoch instead of one drawn at random: for simulations, in which the same
    /// calls have the same answers.
    #[must_use]
    pub fn with_clock_epoch(mut self, epoch: ClockEpoch) -> Self {
        self.epoch = epoch;
        self
    }

    /// Holds every answer until the changes that it shows or made are durable: those of the call
    /// itself, and those of other calls that it saw. So no client learns of a change that is undone
    /// when another master takes over: a get waits for the put that it found, "no such object" for the
    /// removal, and "the object exists already" for the other put. Mostly they are durable long before, and
    /// the answer leaves at once. Calls that look for no object, as pings and reports, wait for their own
    /// changes alone. `watch` is that of the journal, which the master has as a sink
    /// ([`mc_meta::Master::with_sink`], [`mc_meta::Receipt`]).
    ///
    /// An answer that is not durable within [`ServerConfig::stall_timeout`](crate::ServerConfig)
    /// is replaced by a refusal ([`ErrorCode::AnswerNotKept`]), and while the journal says that it
    /// [cannot be written](DurableSequence::suspend), calls that grant space, remove or begin
    /// something else are refused at once ([`ErrorCode::UnavailableInCurrentStatus`]). Refusals that
    /// say nothing of the objects (a role that the caller lacks, a malformed request) are not held.
    #[must_use]
    pub fn with_durability(mut self, watch: DurableWatch) -> Self {
        self.durable = Some(watch);
        self
    }

    /// Has clients convert objects by these rules.
    #[must_use]
    pub fn with_c2c(mut self, settings: C2cSettings) -> Self {
        self.c2c = Some(settings);
        self
    }

    /// Tells clients where to keep files of objects. The master
    /// [plans](mc_meta::MasterConfig::shared_tier) such files.
    #[must_use]
    pub fn with_storage(mut self, settings: StorageSettings) -> Self {
        self.storage = settings;
        self
    }

    /// Answers `History` by this, which the master's owner [notes](History::note) in. Without, the last hour is one
    /// that has just begun.
    #[must_use]
    pub fn with_history(mut self, history: Arc<History>) -> Self {
        self.history = history;
        self
    }

    /// The load of nodes, as they say it.
    #[must_use]
    pub fn loads(&self) -> &Arc<NodeLoads> {
        &self.loads
    }

    /// Answers `HaStatus` and `HandOver` by this report. Without one this master says that it is
    /// alone.
    #[must_use]
    pub fn with_ha(mut self, report: Arc<dyn HaReport>) -> Self {
        self.ha = Some(report);
        self
    }

    /// Names the run of the clock by which the tickets of this service end.
    #[must_use]
    pub fn clock_epoch(&self) -> ClockEpoch {
        self.epoch
    }

    /// The master behind it.
    #[must_use]
    pub fn master(&self) -> &Arc<Master> {
        &self.master
    }
}

/// Refuses a call that the caller's role does not allow.
pub(crate) fn check_role(method: Method, caller: &Caller) -> Result<(), Refusal> {
    if caller.role() >= method.role() {
        return Ok(());
    }
    let (needed, name, role) = (method.role(), caller.name(), caller.role());
    let message = format!("{method} is for the role {needed} and above, {name} has {role}");
    Err(Refusal::new(ErrorCode::PermissionDenied, message))
}

impl<C: Clock> Service for MasterService<C> {
    fn call(&self, call: Call<'_>, out: &mut BytesMut) -> Result<Completion, Refusal> {
        let Some(durable) = &self.durable else {
            return self.execute(call, out).map(|()| Completion::Now);
        };
        if call.method.repeat() == Repeat::Once {
            durable.check()?;
        }
        let Receipt { value, sequence } = self.master.receipt(|_| self.execute(call, out));
        // Most reads show changes that are durable already.
        match (sequence.filter(|sequence| !durable.is_durable(*sequence)), value) {
            (None, value) => value.map(|()| Completion::Now),
            (Some(sequence), Ok(())) => Ok(Completion::After(sequence)),
            (Some(sequence), Err(refusal)) => Err(refusal.held_until(sequence)),
        }
    }

    fn durability(&self) -> Option<DurableWatch> {
        self.durable.clone()
    }
}

impl<C: Clock> MasterService<C> {
    /// Answers a call, if its caller may make it.
    fn execute(&self, call: Call<'_>, out: &mut BytesMut) -> Result<(), Refusal> {
        let Call { method, payload, caller, .. } = call;
        check_role(method, caller)?;
        match owners::client(method, payload, caller)? {
            Some(client) => self.answer_as(client, call, out),
            None => self.answer(call, out),
        }
    }

    /// Answers an authenticated caller that acts for this client.
    fn answer_as(
        &self,
        client: ClientId,
        call: Call<'_>,
        out: &mut BytesMut,
    ) -> Result<(), Refusal> {
        self.owners.check(client, call.caller, &self.master)?;
        let claim = if owners::contributes(call.method) {
            Some(self.owners.claim(client, call.caller, &self.master)?)
        } else {
            None
        };
        let answered = self.answer(call, out);
        let (claimed, done) = (claim.is_some(), answered.is_ok());
        drop(claim);
        if (claimed && !done) || (done && owners::withdraws(call.method)) {
            self.owners.release(client, &self.master);
        }
        answered
    }

    fn answer(&self, call: Call<'_>, out: &mut BytesMut) -> Result<(), Refusal> {
        let Call { method, payload, max_reply, caller, from, reads, connections, .. } = call;
        let (master, tenant) = (&*self.master, caller.tenant());
        let (now, role) = (self.clock.now(), caller.role());
        let signer = Signer { epoch: self.epoch, now };
        if let Some(said) = reads.as_ref().filter(|_| !method.reads()) {
            master.note_reads(said);
        }
        let context = CallContext {
            master,
            now,
            signer,
            tenant,
            role,
            caller,
            from,
            c2c: self.c2c.as_ref(),
            storage: &self.storage,
            ha: self.ha.as_deref(),
            history: &self.history,
            loads: &self.loads,
            connections,
            payload,
            max_reply,
            reads: reads.as_ref(),
        };
        context.answer(method, out)
    }
}
