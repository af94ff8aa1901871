//! A subscriber with its connections.

use mc_types::BoxFuture;
use std::io::{self, ErrorKind};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use super::follow::{Action, Follower, Update};
use crate::error::SubscribeError;
use crate::zmq::{Messages, PeerSocket, Sender};

/// Time limit for each message of an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Messages of each connection that are read ahead, and updates that wait to be taken.
const READ_AHEAD: usize = 4;
/// Pauses before connecting again: the first, and the longest.
const RECONNECT_PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// Settings of a subscriber.
#[derive(Clone, Debug)]
pub struct SubscriberConfig {
    /// The publisher's endpoint: `tcp://HOST:PORT` or `ipc://PATH`. Its encoding must be `s4`.
    pub endpoint: String,
    /// The publisher's replay endpoint.
    pub replay_endpoint: String,
    /// Only messages whose topic begins with this.
    pub topic: String,
    /// A silence after which the subscriber asks whether it misses something.
    pub check_interval: Duration,
    /// The most bytes of a message's frame.
    pub max_message_bytes: usize,
    /// The most bytes of messages that are kept while those ahead of them are asked for.
    pub max_waiting_bytes: usize,
}

impl Default for SubscriberConfig {
    fn default() -> Self {
        Self {
            endpoint: "tcp://127.0.0.1:19997".into(),
            replay_endpoint: "tcp://127.0.0.1:19998".into(),
            topic: String::new(),
            check_interval: Duration::from_secs(2),
            max_message_bytes: 16 << 20,
            max_waiting_bytes: 16 << 20,
        }
    }
}

/// Follows a publisher: starts with a snapshot, closes gaps, and connects again when a connection
/// ends.
///
/// A caller that takes updates too slowly makes the publisher skip messages, which are asked for later;
/// nothing gathers here. Dropping the subscriber closes its connections.
///
/// ```no_run
/// use mc_events::subscribe::{EventSubscriber, Index, SubscriberConfig, Update};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut events = EventSubscriber::connect(SubscriberConfig::default()).await?;
/// let mut index = Index::new(1 << 30);
/// loop {
///     let update = events.next().await?;
///     if let Update::Current { .. } = update {
///         println!("key_001 is at {:?}", index.replicas("key_001"));
///     }
///     index.apply(update)?;
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct EventSubscriber {
    updates: mpsc::Receiver<Result<Update, SubscribeError>>,
    task: JoinHandle<()>,
}

impl EventSubscriber {
    /// Connects to the publisher, on the runtime that this is called on.
    ///
    /// # Errors
    /// An endpoint is wrong, or no publisher answers there.
    pub fn connect(config: SubscriberConfig) -> BoxFuture<'static, Result<Self, SubscribeError>> {
        Box::pin(async move {
            let session = Session::open(&config).await?;
            let (sender, updates) = mpsc::channel(READ_AHEAD);
            let task = tokio::spawn(async move {
                if let Err(End::Failed(error)) = follow(&config, session, &sender).await {
                    // The receiver may be gone.
                    let _ = sender.send(Err(error)).await;
                }
            });
            Ok(Self { updates, task })
        })
    }

    /// Waits for the next update.
    ///
    /// # Errors
    /// The publisher cannot be followed. Connections that end are not errors.
    ///
    /// # Cancellation
    /// Dropping the future loses nothing.
    pub async fn next(&mut self) -> Result<Update, SubscribeError> {
        self.updates.recv().await.unwrap_or(Err(SubscribeError::Ended))
    }
}

impl Drop for EventSubscriber {
    fn drop(&mut self) {
        self.task.abort();
    }
}

type Updates = mpsc::Sender<Result<Update, SubscribeError>>;

/// Why following ends.
enum End {
    /// Connecting again helps.
    Lost(io::Error),
    Failed(SubscribeError),
    /// The receiver of updates is gone.
    Unwanted,
}

impl From<SubscribeError> for End {
    fn from(error: SubscribeError) -> Self {
        Self::Failed(error)
    }
}

impl From<io::Error> for End {
    fn from(source: io::Error) -> Self {
        match source.kind() {
            ErrorKind::InvalidData => SubscribeError::Protocol { source }.into(),
            _ => Self::Lost(source),
        }
    }
}

async fn follow(
    config: &SubscriberConfig,
    mut session: Session,
    updates: &Updates,
) -> Result<(), End> {
    let mut follower = Follower::new(config.max_waiting_bytes);
    loop {
        let Err(end) = session.follow(config, &mut follower, updates).await;
        let End::Lost(error) = end else { return Err(end) };
        send(updates, Update::Lost(error)).await?;
        let (mut pause, longest) = RECONNECT_PAUSES;
        session = loop {
            tokio::time::sleep(pause).await;
            match Session::open(config).await {
                Ok(session) => break session,
                Err(_) if updates.is_closed() => return Err(End::Unwanted),
                Err(_) => pause = longest.min(2 * pause),
            }
        };
    }
}

async fn send(updates: &Updates, update: Update) -> Result<(), End> {
    updates.send(Ok(update)).await.map_err(|_| End::Unwanted)
}

/// The two connections to a publisher. When one ends, both are opened anew.
struct Session {
    events: PeerSocket,
    replay: PeerSocket,
}

impl Session {
    async fn open(config: &SubscriberConfig) -> Result<Self, SubscribeError> {
        let SubscriberConfig { endpoint, replay_endpoint, topic, max_message_bytes, .. } = config;
        let events = PeerSocket::subscribe(endpoint, topic, *max_message_bytes).await?;
        let replay = PeerSocket::dealer(replay_endpoint, *max_message_bytes).await?;
        Ok(Self { events, replay })
    }

    async fn follow(
        self,
        config: &SubscriberConfig,
        follower: &mut Follower,
        updates: &Updates,
    ) -> Result<std::convert::Infallible, End> {
        let (messages_in, messages) = mpsc::channel(READ_AHEAD);
        let (answers_in, answers) = mpsc::channel(READ_AHEAD);
        let Self { mut events, mut replay } = self;
        let inputs = Inputs { messages, answers, check_interval: config.check_interval };
        tokio::select! {
            error = read(&mut events.messages, &messages_in) => Err(error.into()),
            error = read(&mut replay.messages, &answers_in) => Err(error.into()),
            ended = inputs.drive(follower, &mut replay.sender, updates) => ended,
        }
    }
}

async fn read(messages: &mut Messages, into: &mpsc::Sender<Vec<Vec<u8>>>) -> io::Error {
    loop {
        match messages.next().await {
            Ok(frames) => _ = into.send(frames).await,
            Err(error) => return error,
        }
    }
}

struct Inputs {
    messages: mpsc::Receiver<Vec<Vec<u8>>>,
    answers: mpsc::Receiver<Vec<Vec<u8>>>,
    check_interval: Duration,
}

impl Inputs {
    async fn drive(
        mut self,
        follower: &mut Follower,
        replay: &mut Sender,
        updates: &Updates,
    ) -> Result<std::convert::Infallible, End> {
        let mut action = follower.connected();
        let mut deadline = Instant::now() + ANSWER_TIMEOUT;
        loop {
            match action {
                Action::Wait => {}
                Action::Ask(request) => replay.send(&request).await?,
                Action::Reconnect(error) => return Err(End::Lost(error)),
            }
            for update in follower.updates() {
                send(updates, update).await?;
            }
            action = tokio::select! {
                // Time is only up when nothing has come.
                biased;
                Some(frames) = self.answers.recv() => {
                    deadline = Instant::now() + ANSWER_TIMEOUT;
                    follower.answer(&frames)?
                }
                Some(frames) = self.messages.recv() => follower.message(&frames)?,
                () = sleep_until(deadline) => {
                    if !follower.is_current() {
                        let problem = "the publisher does not answer";
                        return Err(End::Lost(io::Error::new(ErrorKind::TimedOut, problem)));
                    }
                    deadline = Instant::now() + ANSWER_TIMEOUT;
                    follower.silence()
                }
            };
            if follower.is_current() {
                deadline = Instant::now() + self.check_interval;
            } else if matches!(action, Action::Ask(_)) {
                deadline = Instant::now() + ANSWER_TIMEOUT;
            }
        }
    }
}
