//! The task that keeps the connection to the node agent, and makes a new one when it is
//! lost.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use mc_transport::backend::nonce;
use tokio::sync::oneshot;
use tracing::{info, warn};

use super::dial::{Dialed, dial};
use super::shared::Shared;
use crate::error::DummyError;

/// The first pause before a new attempt to connect; each is twice the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Tells what became of the first attempt to connect.
pub(super) type OnFirst = oneshot::Sender<Result<(), DummyError>>;

/// Keeps a connection for ever, unless the first attempt to make one fails.
pub(super) async fn keep(shared: Arc<Shared>, on_first: OnFirst) {
    let mut keeper =
        Keeper { shared, previous: None, on_first: Some(on_first), pause: FIRST_PAUSE };
    let mut silent = false;
    loop {
        let error = keeper.connection().await;
        if let Some(on_first) = keeper.on_first.take() {
            // The receiver is gone when the attempt was cancelled.
            let _ = on_first.send(Err(error));
            return;
        }
        silent &= keeper.pause > FIRST_PAUSE;
        if !silent {
            warn!(%error, "lost the node agent; reconnecting");
            silent = true;
        }
        // Those that lost the same node agent need not come back at the same moment.
        tokio::time::sleep(keeper.pause.mul_f32(0.5 + fraction())).await;
        keeper.pause = (keeper.pause * 2).min(LONGEST_PAUSE);
    }
}

struct Keeper {
    shared: Arc<Shared>,
    /// The session before, whose calls the node agent may be working on.
    previous: Option<u64>,
    on_first: Option<OnFirst>,
    pause: Duration,
}

impl Keeper {
    /// Makes a connection and keeps it until it ends; tells why there is none any more.
    async fn connection(&mut self) -> DummyError {
        let shared = Arc::clone(&self.shared);
        let Dialed { session, mut incoming, number } =
            match dial(&shared.settings, self.previous).await {
                Ok(dialed) => dialed,
                Err(error) => {
                    shared.away(error.clone(), Vec::new());
                    return error;
                }
            };
        self.previous = Some(number);
        let session = Arc::new(session);
        let mut driven = pin!(session.drive(&mut incoming));
        let error = tokio::select! {
            error = &mut driven => error,
            adopted = shared.adopt(&session) => match adopted {
                Ok(()) => {
                    self.connected();
                    driven.await
                }
                Err(error) => error,
            },
        };
        let held = session.end(&error);
        shared.away(error.clone(), held);
        error
    }

    fn connected(&mut self) {
        self.pause = FIRST_PAUSE;
        match self.on_first.take() {
            // The receiver is gone when the attempt was cancelled.
            Some(on_first) => drop(on_first.send(Ok(()))),
            None => {
                info!(address = %self.shared.settings.address, "connected to the node agent again");
            }
        }
    }
}

/// A random number from 0 to 1; half where the system has no randomness.
fn fraction() -> f32 {
    let byte = nonce().map_or(128, |bits| bits[0]);
    f32::from(byte) / 255.0
}
