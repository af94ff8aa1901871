//! The check of a node's own data path: it reads a little of its memory the way that peers do,
//! at the address that they are told, and its heartbeat says when that fails.

use std::collections::VecDeque;
use std::future::pending;
use std::time::Duration;

use mc_rpc::ClockReading;
use mc_transport::{Link as _, Memory, Node, NodeConfig, Operation, RemoteSpan, Transport as _};
use mc_types::Endpoint;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tracing::{info, warn};

use super::segments::Segments;
use crate::error::PeerError;

/// How long an answer may take. One that does not come is asked for once more over a new
/// connection: a process that was stopped for a while finds its time over when it goes on.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The time from the beginning of a check to the next one, at least.
const PAUSE: Duration = Duration::from_millis(900);

/// Checks over one connection, before another one is made: new peers have to connect, too.
const USES: u32 = 10;

/// Checks whose times are remembered.
const ANSWERS: usize = 15;

/// Checks the data path, again and again, beside the heartbeat, which never waits for it.
#[derive(Debug)]
pub(super) struct SelfCheck {
    /// How peers connect; `None` when there are none.
    config: Option<NodeConfig>,
    /// The transport of the last check, and the number of checks that used it.
    transport: Option<Node>,
    uses: u32,
    running: Option<JoinHandle<Looked>>,
    begun: Option<Instant>,
    /// Where the last check looked.
    endpoint: Option<Endpoint>,
    /// Some check had an answer. Where none ever had, as with an address that only others can
    /// reach, checks say nothing about peers.
    has_worked: bool,
    has_warned: bool,
    /// How long the last answers took; [`TIMEOUT`] for one that did not come.
    answers: VecDeque<Duration>,
}

/// The transport to use again after an answer and how long that took, or the reason why there was none.
type Looked = Result<(Node, Option<Duration>), String>;

impl SelfCheck {
    pub(super) const fn new(config: Option<NodeConfig>) -> Self {
        let (transport, uses, running, begun) = (None, 0, None, None);
        let (endpoint, has_worked, has_warned) = (None, false, false);
        let answers = VecDeque::new();
        Self { config, transport, uses, running, begun, endpoint, has_worked, has_warned, answers }
    }

    /// How long the last answers took: the middle one, and the longest; `None` before the first.
    pub(super) fn answers(&self) -> Option<(Duration, Duration)> {
        let mut answers: Vec<Duration> = self.answers.iter().copied().collect();
        answers.sort_unstable();
        Some((*answers.get(answers.len() / 2)?, *answers.last()?))
    }

    fn took(&mut self, time: Duration) {
        if self.answers.len() == ANSWERS {
            self.answers.pop_front();
        }
        self.answers.push_back(time);
    }

    /// Begins a check, unless one is under way or was a moment ago. The master's clock was at
    /// `clock` just now.
    pub(super) fn begin(&mut self, segments: &Segments, clock: ClockReading) {
        let is_early = self.begun.is_some_and(|begun| begun.elapsed() < PAUSE);
        let Some(config) = self.config.as_ref().filter(|_| self.running.is_none() && !is_early)
        else {
            return;
        };
        let Some((endpoint, sample)) = segments.sample(clock) else {
            segments.set_cut_off(false);
            return;
        };
        if self.uses >= USES {
            (self.transport, self.uses) = (None, 0);
        }
        let (config, transport) = (config.clone(), self.transport.take());
        self.begun = Some(Instant::now());
        self.endpoint = Some(endpoint.clone());
        self.running = Some(tokio::spawn(async move {
            match look_in_time(&config, transport, &endpoint, sample).await {
                Ok(looked) => Ok(looked),
                Err(_) => look_in_time(&config, None, &endpoint, sample).await,
            }
        }));
    }

    /// Waits until a check finds something else than the one before. The master is told then.
    ///
    /// # Cancellation
    /// Nothing is lost.
    pub(super) async fn changed(&mut self, segments: &Segments) {
        loop {
            let Some(running) = &mut self.running else { return pending().await };
            // It fails when the runtime ends, and the heartbeat with it.
            let looked = running.await.unwrap_or_else(|error| Err(error.to_string()));
            self.running = None;
            if self.take(looked, segments) {
                return;
            }
        }
    }

    /// Takes note of what a check came to; true when that is news.
    fn take(&mut self, looked: Looked, segments: &Segments) -> bool {
        let was = (segments.is_cut_off(), segments.is_unproven());
        let (was_cut_off, _) = was;
        match &looked {
            Ok((_, took)) => took.iter().for_each(|time| self.took(*time)),
            Err(_) if self.has_worked => self.took(TIMEOUT),
            Err(_) => {}
        }
        let endpoint = self.endpoint.as_ref().map(tracing::field::display);
        let is_cut_off = match looked {
            Ok((transport, _)) => {
                (self.transport, self.uses) = (Some(transport), self.uses + 1);
                self.has_worked = true;
                if was_cut_off {
                    info!("this node reaches its own data port again");
                }
                false
            }
            Err(error) => {
                self.uses = 0;
                if self.has_worked && !was_cut_off {
                    warn!(
                        endpoint,
                        error,
                        "this node does not reach its own data port at the address that peers \
                         are told; nothing new is put here until it does"
                    );
                } else if !self.has_worked && !self.has_warned {
                    self.has_warned = true;
                    warn!(
                        endpoint,
                        error,
                        "this node does not reach its own data port at the address that peers \
                         are told; if they do not either, nothing is put here: set another \
                         address with --host, local_hostname or the builder's advertise"
                    );
                }
                self.has_worked
            }
        };
        segments.set_cut_off(is_cut_off);
        segments.set_unproven(!self.has_worked);
        was != (is_cut_off, !self.has_worked)
    }
}

async fn look_in_time(
    config: &NodeConfig,
    transport: Option<Node>,
    endpoint: &Endpoint,
    sample: RemoteSpan,
) -> Looked {
    let looked = timeout(TIMEOUT, look(config, transport, endpoint, sample)).await;
    looked.unwrap_or_else(|_| Err(format!("no answer within {TIMEOUT:?}")))
}

/// Reads `sample` at `endpoint`. A refusal is an answer too.
async fn look(
    config: &NodeConfig,
    transport: Option<Node>,
    endpoint: &Endpoint,
    sample: RemoteSpan,
) -> Looked {
    let transport = match transport {
        Some(transport) => transport,
        None => Node::start(config.clone()).await.map_err(|error| error.to_string())?,
    };
    let mut took = None;
    let failure = match transport.connect(endpoint).await {
        Err(error) => Some(PeerError::Connect(error)),
        Ok(link) => {
            let len = usize::try_from(sample.extent.len()).unwrap_or(usize::MAX);
            // Without memory nothing is learned about the way.
            let Ok(memory) = Memory::allocate(len) else { return Ok((transport, None)) };
            let asked = Instant::now();
            let outcome =
                link.submit(vec![Operation::read(sample, memory.whole())]).await.remove(0);
            took = Some(asked.elapsed());
            let endpoint = endpoint.clone();
            outcome.err().map(|source| PeerError::Transfer { endpoint, source })
        }
    };
    match failure.filter(PeerError::is_silence) {
        None => Ok((transport, took)),
        Some(PeerError::Connect(error)) => Err(error.to_string()),
        Some(error) => Err(error.to_string()),
    }
}
