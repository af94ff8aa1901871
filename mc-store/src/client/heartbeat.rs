//! The heartbeat: tells the master that this client lives, keeps its segments mounted, and receives
//! the tasks that wait for it.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
#[cfg(any(feature = "http", feature = "tls"))]
use std::time::Duration;

use mc_environment::Environment;
use mc_meta::ClientStatus;
use mc_rpc::{MasterClient, RpcError};
use mc_transport::{BootClock, BootTime};
use mc_types::ClientId;
use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tracing::{info, warn};

use super::checks::Checks;
use super::master_link::MasterLink;
use super::own_load::OwnLoad;
use super::segments::Segments;
use super::self_check::SelfCheck;
use super::settings::{Pulse, Settings};

/// How often files of certificates are looked at.
#[cfg(feature = "tls")]
const RENEWAL: Duration = Duration::from_secs(10);

/// When the master was last heard of.
#[derive(Debug)]
pub(super) struct Heard {
    origin: BootTime,
    /// Milliseconds since then.
    last: AtomicU64,
    /// Whether there is something to do for the local disk, or else to bring back from files, if it says
    /// that.
    disk_work: watch::Sender<Option<bool>>,
    /// Whether the client has no disk of its own and brings files back.
    promotes: AtomicBool,
}

impl Heard {
    /// Begins with an answer that has just arrived.
    pub(super) fn now(clock: BootClock) -> Self {
        let disk_work = watch::Sender::new(None);
        let promotes = AtomicBool::new(false);
        Self { origin: clock.now(), last: AtomicU64::new(0), disk_work, promotes }
    }

    fn again(&self) {
        self.last.store(self.millis(), Ordering::Relaxed);
    }

    /// The master is told from now on whether the client has no disk of its own and brings files back.
    pub(super) fn set_promotes(&self, promotes: bool) {
        self.promotes.store(promotes, Ordering::Relaxed);
    }

    /// Whether the master says that there is something to do for the local disk, or of a client that
    /// [promotes](Self::set_promotes) to bring back from files; `None` as long as it does not say it.
    pub(super) fn disk_work(&self) -> watch::Receiver<Option<bool>> {
        self.disk_work.subscribe()
    }

    /// How long ago that was.
    #[cfg(feature = "http")]
    pub(super) fn ago(&self) -> Duration {
        Duration::from_millis(self.millis().saturating_sub(self.last.load(Ordering::Relaxed)))
    }

    /// The current moment on the client's clock.
    fn moment(&self) -> BootTime {
        self.origin.clock().now()
    }

    fn millis(&self) -> u64 {
        u64::try_from(self.moment().since(self.origin).as_millis()).unwrap_or(u64::MAX)
    }
}

/// The heartbeat of a client from when it has something to tell, and the news from the master.
#[derive(Debug)]
pub(super) struct Liveness {
    heartbeat: Mutex<Option<Heartbeat>>,
    pub(super) heard: Arc<Heard>,
}

impl Liveness {
    /// No heartbeat yet, and an answer that has just arrived.
    pub(super) fn new(clock: BootClock) -> Self {
        Self { heartbeat: Mutex::default(), heard: Arc::new(Heard::now(clock)) }
    }

    /// Starts the heartbeat, and `work`, which is told how many tasks wait, unless they run or the client is
    /// closed.
    pub(super) fn start<W: Future<Output = ()> + Send + 'static>(
        &self,
        link: &MasterLink,
        settings: &Settings,
        segments: &Arc<Segments>,
        load: OwnLoad,
        work: impl FnOnce(watch::Receiver<usize>) -> W,
    ) -> io::Result<()> {
        let mut heartbeat = self.heartbeat.lock();
        // The call that closes it stops the heartbeat after that.
        if heartbeat.is_none() && link.question().is_ok() {
            let (segments, heard) = (Arc::clone(segments), Arc::clone(&self.heard));
            let (environment, pulse) = (&*settings.environment, settings.pulse.clone());
            let started =
                Heartbeat::start(environment, pulse, link.id, segments, heard, load, work)?;
            *heartbeat = Some(started);
        }
        Ok(())
    }

    /// Stops the heartbeat, if it runs.
    pub(super) async fn stop(&self) {
        // Taken out first: no lock is held while the thread is waited for.
        let heartbeat = self.heartbeat.lock().take();
        if let Some(heartbeat) = heartbeat {
            heartbeat.stop().await;
        }
    }
}

/// Sends heartbeats over a connection of its own and, in the system's environment, on a thread with
/// a runtime, so that no amount of traffic keeps the master from hearing of a living client.
#[derive(Debug)]
struct Heartbeat {
    stop: oneshot::Sender<()>,
    stopped: oneshot::Receiver<()>,
    tasks: JoinHandle<()>,
}

impl Heartbeat {
    /// Starts a heartbeat of `client`, and `work`, which is told how many tasks wait for it.
    fn start<W: Future<Output = ()> + Send + 'static>(
        environment: &dyn Environment,
        pulse: Pulse,
        client: ClientId,
        segments: Arc<Segments>,
        heard: Arc<Heard>,
        load: OwnLoad,
        work: impl FnOnce(watch::Receiver<usize>) -> W,
    ) -> io::Result<Self> {
        let (stop, stop_asked) = oneshot::channel();
        let (on_stopped, stopped) = oneshot::channel();
        let (waiting, told) = watch::channel(0);
        let beating = async move {
            tokio::select! {
                biased;
                // Also when the client was dropped without a shutdown.
                _ = stop_asked => {}
                () = beat(&pulse, client, &segments, &waiting, &heard, load) => {}
            }
            drop(waiting);
            // There is no receiver when the client was just dropped.
            let _ = on_stopped.send(());
        };
        environment.spawn_apart("mc-heartbeat", Box::pin(beating))?;
        let tasks = tokio::spawn(work(told));
        Ok(Self { stop, stopped, tasks })
    }

    async fn stop(self) {
        // Both fail only if the heartbeat is gone already.
        let _ = self.stop.send(());
        let _ = self.stopped.await;
        // It ends by itself when the heartbeat does, in bounded time.
        let _ = self.tasks.await;
    }
}

/// Pings for ever, attaches segments again when the master does not count on them, and
/// lets those go whose time has come.
async fn beat(
    pulse: &Pulse,
    client: ClientId,
    segments: &Segments,
    waiting: &watch::Sender<usize>,
    heard: &Heard,
    load: OwnLoad,
) {
    // Connects with the first ping.
    let master = MasterClient::lazy(&pulse.master, pulse.rpc.clone());
    let mut timer = tokio::time::interval(pulse.interval);
    timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (mut silent, mut checks) = (false, Checks::default());
    let mut own = Own { check: SelfCheck::new(pulse.peers.clone()), load };
    let mut renewing = pin!(renew(pulse, segments.environment()));
    loop {
        tokio::select! {
            biased;
            _ = timer.tick() => {}
            () = &mut renewing => {}
            // What was found is told at once.
            () = checks.ended() => {}
            () = own.check.changed(segments) => {}
            () = segments.departure() => {
                segments.depart(&master, client).await;
                continue;
            }
        }
        match beat_once(&master, client, segments, waiting, heard, &mut checks, &mut own).await {
            Ok(()) if silent => {
                silent = false;
                info!(master = %pulse.master, "heartbeats succeed again");
            }
            Ok(()) => {}
            Err(error) => {
                if !silent {
                    warn!(master = %pulse.master, %error, "heartbeat failed; retrying");
                }
                silent = true;
            }
        }
    }
}

/// Looks for ever whether files of certificates were renewed.
#[cfg(feature = "tls")]
async fn renew(pulse: &Pulse, environment: &dyn Environment) {
    if pulse.certificates.is_empty() {
        return std::future::pending().await;
    }
    let mut timer = tokio::time::interval(RENEWAL);
    loop {
        timer.tick().await;
        let certificates = pulse.certificates.clone();
        // Reads files.
        let checked = environment.blocking(move || {
            for files in &certificates {
                let _ = files.check();
            }
        });
        // What changed and cannot be used was logged.
        let _ = checked.await;
    }
}

#[cfg(not(feature = "tls"))]
async fn renew(_: &Pulse, _: &dyn Environment) {
    std::future::pending::<()>().await;
}

/// The looks of this client at itself.
struct Own {
    check: SelfCheck,
    load: OwnLoad,
}

async fn beat_once(
    master: &MasterClient,
    client: ClientId,
    segments: &Segments,
    waiting: &watch::Sender<usize>,
    heard: &Heard,
    checks: &mut Checks,
    own: &mut Own,
) -> Result<(), RpcError> {
    let asked = heard.moment();
    let beat = mc_rpc::Heartbeat::new(client).outcomes(checks.outcomes());
    let beat = beat.segments(segments.attached());
    let beat = if checks.is_idle() { beat.takes_checks() } else { beat };
    let beat = if segments.is_cut_off() { beat.cut_off() } else { beat };
    let beat = if segments.is_unproven() { beat.unproven() } else { beat };
    let beat = if heard.promotes.load(Ordering::Relaxed) { beat.promotes() } else { beat };
    let load = own.load.due(&own.check);
    let beat = load.as_ref().map_or(beat, |load| beat.load(load));
    let pong = master.heartbeat(&beat).await?;
    heard.again();
    heard.disk_work.send_replace(pong.disk_work);
    checks.told();
    checks.begin(segments, pong.checks);
    segments.observe(asked, pong.clock);
    own.check.begin(segments, pong.clock);
    if pong.tasks > 0 {
        waiting.send_replace(pong.tasks);
    }
    if pong.status == ClientStatus::NeedRemount {
        segments.detached();
    }
    segments.attach(master, client).await;
    Ok(())
}
