//! The thread that tells the master that this client lives, and keeps its segments
//! mounted.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use mc_meta::ClientStatus;
use mc_rpc::{ClientConfig, MasterClient};
use mc_types::ClientId;
use tokio::sync::oneshot;
use tracing::{info, warn};

use super::Core;
use super::segments::{MountFailure, Segments};

/// What a heartbeat needs.
#[derive(Clone, Debug)]
pub(super) struct Pulse {
    /// Where the master is.
    pub(super) master: String,
    /// How to connect to it.
    pub(super) rpc: ClientConfig,
    /// How often to say so.
    pub(super) interval: Duration,
}

/// A thread with a runtime and a connection of its own, so that no amount of
/// traffic keeps a living client from saying that it lives.
#[derive(Debug)]
pub(super) struct Heartbeat {
    stop: oneshot::Sender<()>,
    stopped: oneshot::Receiver<()>,
}

impl Heartbeat {
    fn start(pulse: Pulse, client: ClientId, segments: Arc<Segments>) -> io::Result<Self> {
        let (stop, stop_asked) = oneshot::channel();
        let (on_stopped, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new().name("mc-heartbeat".into()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = beat(&pulse, client, &segments) => {}
                    // Also when the client was dropped without a shutdown.
                    _ = stop_asked => {}
                }
            });
            // Nobody listens when the client was just dropped.
            let _ = on_stopped.send(());
        })?;
        Ok(Self { stop, stopped })
    }

    pub(super) async fn stop(self) {
        // Both fail only if the thread is gone already.
        let _ = self.stop.send(());
        let _ = self.stopped.await;
    }
}

impl Core {
    /// Starts the heartbeat unless it runs, or the client is closed.
    pub(super) fn start_heartbeat(&self) -> io::Result<()> {
        let mut heartbeat = self.heartbeat.lock();
        // Whoever closes it stops the heartbeat after that.
        if heartbeat.is_none() && self.admission.question().is_ok() {
            let segments = Arc::clone(&self.segments);
            *heartbeat = Some(Heartbeat::start(self.settings.pulse.clone(), self.id, segments)?);
        }
        Ok(())
    }
}

/// Pings for ever, attaches segments again when the master does not count on them, and
/// lets those go whose time has come.
async fn beat(pulse: &Pulse, client: ClientId, segments: &Segments) {
    // Connects with the first ping.
    let master = MasterClient::lazy(&pulse.master, pulse.rpc.clone());
    let mut timer = tokio::time::interval(pulse.interval);
    timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut silent = false;
    loop {
        tokio::select! {
            _ = timer.tick() => {}
            () = segments.departure() => {
                segments.depart(&master, client).await;
                continue;
            }
        }
        match beat_once(&master, client, segments).await {
            Ok(()) if silent => {
                silent = false;
                info!(master = %pulse.master, "heartbeat is back");
            }
            Ok(()) => {}
            Err(error) => {
                if !silent {
                    warn!(master = %pulse.master, %error, "no heartbeat; trying on");
                }
                silent = true;
            }
        }
    }
}

async fn beat_once(
    master: &MasterClient,
    client: ClientId,
    segments: &Segments,
) -> Result<(), MountFailure> {
    if master.ping(client).await?.status == ClientStatus::NeedRemount {
        segments.detached();
    }
    segments.attach(master, client).await
}
