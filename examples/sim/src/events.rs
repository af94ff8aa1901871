//! A subscriber of the masters' events, and what it knows therefore.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mc_cluster_testkit::simulation::{Ledger, Random};
use mc_events::subscribe::{Index, Update, decode_batch};
use mc_events::{
    EventSocket, EventSystem, Message, PublisherConfig, SocketBusy, SocketStats, StartError,
};
use mc_store::EventPublisher;

use crate::history::History;

/// Memory of the index.
const INDEX: usize = 1 << 30;

/// Chance of a million that the socket is busy.
const BUSY: u32 = 20_000;

/// The subscriber of one master, and the socket that this master sends to.
pub(crate) struct Subscriber {
    state: Mutex<State>,
    history: Arc<History>,
    random: Random,
}

struct State {
    index: Index,
    next: Option<u64>,
    /// The publisher gave a message up, and the numbers show it.
    is_lost: bool,
}

impl Subscriber {
    /// Starts a publisher whose events a new subscriber gets.
    pub(crate) async fn start(
        history: &Arc<History>,
        random: &Random,
    ) -> Result<(Arc<Self>, EventPublisher), StartError> {
        let state = Mutex::new(State { index: Index::new(INDEX), next: None, is_lost: false });
        let subscriber =
            Arc::new(Self { state, history: Arc::clone(history), random: random.fork() });
        let endpoint = "tcp://127.0.0.1:1".to_owned();
        let config = PublisherConfig { endpoint, ..PublisherConfig::default() };
        let sockets = vec![Arc::clone(&subscriber) as Arc<dyn EventSocket>];
        let publisher = EventPublisher::start_with(config, sockets).await?;
        Ok((subscriber, publisher))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Compares what the subscriber knows with the ledger, once nothing is under way.
    pub(crate) fn compare(&self, system: &EventSystem, ledger: &Ledger) {
        let stats = system.stats();
        let state = self.state();
        if state.is_lost != (stats.dropped > 0) {
            self.history.violates(format_args!("{} dropped events show as no gap", stats.dropped));
        }
        if stats.queued == 0 && !state.is_lost && system.is_running() {
            ledger.compare_known(state.index.iter().map(|(key, _)| key));
        }
    }

    fn take(&self, message: &Message) {
        let mut state = self.state();
        let number = message.number();
        match state.next {
            Some(next) if number < next => {
                self.history.violates(format_args!("event message {number} came again"));
            }
            Some(next) => state.is_lost |= number > next,
            None => {}
        }
        state.next = Some(number + 1);
        match decode_batch(message.payload()) {
            Ok(events) => {
                let _ = state.index.apply(Update::Events(events));
            }
            Err(error) => {
                self.history.violates(format_args!("events cannot be decoded: {error}"));
            }
        }
    }
}

impl EventSocket for Subscriber {
    fn send(&self, message: &Message) -> Result<(), SocketBusy> {
        if self.random.chance(BUSY) {
            return Err(SocketBusy);
        }
        self.take(message);
        Ok(())
    }

    fn flush(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(std::future::ready(()))
    }

    fn close(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(std::future::ready(()))
    }

    fn stats(&self) -> SocketStats {
        SocketStats::default()
    }
}
