//! The network between hosts, and the processes on them.

use std::collections::BTreeMap;
use std::fmt;
use std::future::pending;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mc_rpc::{ByteStream, ClientEnvironment, Connecting, Streams};
use mc_transport::LinkId;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};

use super::random::Random;
use super::stream::{Wire, wire};

/// How bad the network is. Chances are of a million.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weather {
    /// The longest delay of a message that is not lost.
    pub delay: Duration,
    /// A message is lost and sent again, after 200 ms as with TCP.
    pub loss: u32,
    /// A connection breaks when it is used.
    pub breaks: u32,
    /// Bytes that were under way when their connection was lost arrive later all the same, up to
    /// [`late_by`](Self::late_by) later, if the connection's receiver has not ended it.
    pub late: u32,
    /// See [`late`](Self::late).
    pub late_by: Duration,
}

impl Weather {
    /// A network that delivers everything at once.
    pub const FAIR: Self =
        Self { delay: Duration::ZERO, loss: 0, breaks: 0, late: 0, late_by: Duration::ZERO };
}

/// How much longer a lost message takes, as with TCP.
const RETRANSMISSION: Duration = Duration::from_millis(200);

/// A time in which nothing passes from some hosts to others. `None` stands for all hosts. Messages
/// that are sent meanwhile arrive afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The sender.
    pub from: Option<Ipv4Addr>,
    /// The receiver.
    pub to: Option<Ipv4Addr>,
    /// The end.
    pub until: Instant,
}

/// The network that connects all hosts.
pub struct Network {
    random: Random,
    state: Mutex<State>,
}

struct State {
    weather: Weather,
    cuts: Vec<Cut>,
    /// The masters that listen, by address.
    listeners: BTreeMap<String, (Process, Streams)>,
    next_port: u16,
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network").finish_non_exhaustive()
    }
}

impl Network {
    /// A network without hosts.
    #[must_use]
    pub fn new(weather: Weather, random: Random) -> Arc<Self> {
        let listeners = BTreeMap::new();
        let state = State { weather, cuts: Vec::new(), listeners, next_port: 1024 };
        Arc::new(Self { random, state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How bad the network is now.
    #[must_use]
    pub fn weather(&self) -> Weather {
        self.state().weather
    }

    /// Changes how bad the network is.
    pub fn set_weather(&self, weather: Weather) {
        self.state().weather = weather;
    }

    /// Cuts hosts off from others.
    pub fn cut(&self, cut: Cut) {
        self.state().cuts.push(cut);
    }

    /// Lets `process` accept connections at `address`, which are handed to `streams`.
    pub fn listen(&self, address: &str, process: &Process, streams: Streams) {
        self.state().listeners.insert(address.to_owned(), (process.clone(), streams));
    }

    pub(super) fn random(&self) -> &Random {
        &self.random
    }

    /// Returns when a message arrives that is sent now.
    pub(super) fn arrival(&self, from: &Process, to: &Process) -> Instant {
        let now = Instant::now();
        let mut state = self.state();
        let weather = state.weather;
        state.cuts.retain(|cut| cut.until > now);
        let is_on = |side: Option<Ipv4Addr>, host| side.is_none_or(|side| side == host);
        let stops = |cut: &&Cut| is_on(cut.from, from.host()) && is_on(cut.to, to.host());
        let cut = state.cuts.iter().filter(stops).map(|cut| cut.until).max();
        drop(state);
        let longest = weather.delay.as_millis() as u64;
        let mut delay = if longest > 0 { self.random.below(longest + 1) } else { 0 };
        for process in [from, to] {
            let slowness = process.slowness().as_millis() as u64;
            if slowness > 0 {
                delay += self.random.below(slowness + 1);
            }
        }
        let mut arrives = from.runs_at(now).max(cut.unwrap_or(now)) + Duration::from_millis(delay);
        if self.random.chance(weather.loss) {
            arrives += RETRANSMISSION;
        }
        arrives
    }

    /// Returns whether a connection that is used now breaks.
    pub(super) fn breaks(&self) -> bool {
        let breaks = self.weather().breaks;
        self.random.chance(breaks)
    }

    /// Returns how much later bytes arrive whose connection was lost; `None` if never.
    pub(super) fn late_by(&self) -> Option<Duration> {
        let weather = self.weather();
        let longest = weather.late_by.as_millis() as u64;
        let is_late = longest > 0 && self.random.chance(weather.late);
        // Mostly by little: what a sender does right after the loss is to be met, too.
        let longest = |random: &Random| (longest >> (4 * random.below(4))).max(1);
        is_late.then(|| Duration::from_millis(1 + self.random.below(longest(&self.random))))
    }

    async fn connect(
        self: Arc<Self>,
        from: Process,
        address: String,
    ) -> io::Result<Box<dyn ByteStream>> {
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        let listener = self.state().listeners.get(&address).cloned();
        let (to, streams) = listener.ok_or_else(refused)?;
        sleep_until(self.arrival(&from, &to)).await;
        match to.ended() {
            None => {}
            Some(Ending::Killed) => return Err(refused()),
            Some(Ending::PowerLost) => pending().await,
        }
        let ends = wire(&self, [&from, &to]);
        let [own, peer] = ends;
        let port = {
            let mut state = self.state();
            state.next_port = state.next_port.checked_add(1).unwrap_or(1024);
            state.next_port
        };
        streams.hand_in(peer, SocketAddr::from((from.host(), port)))?;
        sleep_until(self.arrival(&to, &from)).await;
        Ok(Box::new(own))
    }
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The process was killed. The system of its host closes its connections.
    Killed,
    /// Its host lost power. Nothing there answers any more.
    PowerLost,
}

/// A process on a host: what can be killed, paused and slowed down. Clones are the same process.
///
/// While it is paused no byte leaves or reaches it. Its timers go on: a simulation does not test
/// code that runs long after its timer was due, real processes that are stopped do.
///
/// One that has ended neither sends nor receives, whatever its remaining tasks do.
#[derive(Clone)]
pub struct Process(Arc<Inner>);

struct Inner {
    host: Ipv4Addr,
    state: Mutex<ProcessState>,
}

#[derive(Default)]
struct ProcessState {
    ended: Option<Ending>,
    paused_until: Option<Instant>,
    slowness: Duration,
    disk_delay: Duration,
    disk_hangs_until: Option<Instant>,
    wires: Vec<std::sync::Weak<Mutex<Wire>>>,
    tasks: Vec<AbortHandle>,
    /// Links of peers that it has ended.
    fenced: Vec<LinkId>,
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Process").field(&self.0.host).finish()
    }
}

impl Process {
    /// A process on this host.
    #[must_use]
    pub fn new(host: Ipv4Addr) -> Self {
        Self(Arc::new(Inner { host, state: Mutex::default() }))
    }

    fn state(&self) -> MutexGuard<'_, ProcessState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The address of the host that the process runs on.
    #[must_use]
    pub fn host(&self) -> Ipv4Addr {
        self.0.host
    }

    /// How it ended, if it has.
    #[must_use]
    pub fn ended(&self) -> Option<Ending> {
        self.state().ended
    }

    /// Ends it: its apart tasks are aborted, and its connections go as `ending` says. What it sent
    /// before is still under way.
    pub fn end(&self, network: &Network, ending: Ending) {
        let mut state = self.state();
        if state.ended.replace(ending).is_some() {
            return;
        }
        let (wires, tasks) = (std::mem::take(&mut state.wires), std::mem::take(&mut state.tasks));
        drop(state);
        tasks.iter().for_each(AbortHandle::abort);
        for wire in wires.iter().filter_map(std::sync::Weak::upgrade) {
            let mut wire = wire.lock().unwrap_or_else(PoisonError::into_inner);
            wire.process_ended(network, self, ending);
        }
    }

    /// Pauses it until this moment.
    pub fn pause(&self, until: Instant) {
        self.state().paused_until = Some(until);
    }

    /// Returns the first moment from `now` on at which it runs.
    pub(super) fn runs_at(&self, now: Instant) -> Instant {
        self.state().paused_until.map_or(now, |until| until.max(now))
    }

    /// The longest additional delay of each of its messages.
    #[must_use]
    pub fn slowness(&self) -> Duration {
        self.state().slowness
    }

    /// Makes it slow: each message to it and from it takes up to so much longer.
    pub fn set_slowness(&self, slowness: Duration) {
        self.state().slowness = slowness;
    }

    /// The longest additional time of each access to its disk.
    pub(super) fn disk_delay(&self) -> Duration {
        self.state().disk_delay
    }

    /// Makes its disk slow: each access takes up to so much longer.
    pub fn set_disk_delay(&self, delay: Duration) {
        self.state().disk_delay = delay;
    }

    /// Makes its disk hang until this moment.
    pub fn hang_disk(&self, until: Instant) {
        self.state().disk_hangs_until = Some(until);
    }

    /// Until when its disk hangs, if it does.
    pub(super) fn disk_hangs_until(&self, now: Instant) -> Option<Instant> {
        self.state().disk_hangs_until.filter(|until| now < *until)
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Ends a task with the process.
    pub(super) fn owns(&self, task: AbortHandle) {
        let mut state = self.state();
        if state.ended.is_some() {
            task.abort();
        } else {
            state.tasks.retain(|task| !task.is_finished());
            state.tasks.push(task);
        }
    }

    pub(super) fn has_end_of(&self, wire: &Arc<Mutex<Wire>>) {
        let mut state = self.state();
        if state.wires.len() == state.wires.capacity() {
            state.wires.retain(|wire| wire.strong_count() > 0);
        }
        state.wires.push(Arc::downgrade(wire));
    }

    /// Lets nothing of this link of a peer in any more.
    pub(super) fn fence(&self, link: LinkId) {
        self.state().fenced.push(link);
    }

    pub(super) fn has_fenced(&self, link: LinkId) -> bool {
        self.state().fenced.contains(&link)
    }
}

/// How a process's calls get to the masters.
#[derive(Debug)]
pub(super) struct ToMasters {
    pub(super) network: Arc<Network>,
    pub(super) process: Process,
    pub(super) random: Random,
}

impl ClientEnvironment for ToMasters {
    fn connect<'a>(&'a self, address: &'a str) -> Connecting<'a> {
        let network = Arc::clone(&self.network);
        Box::pin(network.connect(self.process.clone(), address.to_owned()))
    }

    fn random(&self, bytes: &mut [u8]) -> io::Result<()> {
        self.random.fill(bytes);
        Ok(())
    }
}
