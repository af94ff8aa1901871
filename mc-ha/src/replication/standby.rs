//! A standby's side of the stream.

use core::convert::Infallible;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, BufReader, BufWriter};
use tokio::time::timeout;

use super::applier::{Applier, Job};
use super::frame::{Frame, ReplicationError};

/// How long a leader may be silent: it sends a beat several times a second.
const SILENCE: Duration = Duration::from_secs(3);

/// How long a leader may take to begin, and until the first part of a snapshot that is taken for
/// this standby.
const BEGIN: Duration = Duration::from_secs(150);

/// Follows the leader at the other end of this stream: what it sends is kept by `applier`, and
/// acknowledged when it is durable. `id` is this standby's among the members. Ends with the stream,
/// and may be dropped at any time.
///
/// # Errors
/// [`ReplicationError`]: how it ended.
pub async fn follow(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin,
    id: &str,
    applier: &Applier,
) -> Result<Infallible, ReplicationError> {
    let (input, output) = tokio::io::split(stream);
    let (mut input, mut output) =
        (BufReader::with_capacity(1 << 18, input), BufWriter::new(output));
    let mut state = applier.state();
    let position = state.borrow().durable;
    Frame::Hello { id: id.to_owned(), position }.write(&mut output).await?;
    output.flush().await?;
    let start = timeout(BEGIN, Frame::read(&mut input)).await;
    let Frame::Start(start) = start.map_err(|_| ReplicationError::Silent)?? else {
        return Err(ReplicationError::Protocol("something before its start"));
    };
    let stream = state.borrow().stream + 1;
    applier.jobs().send(Job::Begin(start)).await.map_err(|_| ReplicationError::Ended)?;
    let receive = async {
        let mut patience = if start.with_snapshot { BEGIN } else { SILENCE };
        loop {
            let frame = timeout(patience, Frame::read(&mut input)).await;
            match frame.map_err(|_| ReplicationError::Silent)?? {
                Frame::Batch(batch) => {
                    let sent = applier.jobs().send(Job::Batch(batch)).await;
                    sent.map_err(|_| ReplicationError::Ended)?;
                    patience = SILENCE;
                }
                Frame::Beat(_) => {}
                _ => return Err(ReplicationError::Protocol("what only a standby sends")),
            }
        }
    };
    let acknowledge = async {
        let mut told = None;
        loop {
            let now = state.borrow_and_update().clone();
            if now.stream >= stream {
                if let Some(failure) = now.failure {
                    return Err(ReplicationError::Applier(failure));
                }
                if told != Some(now.durable) {
                    Frame::Acknowledged(now.durable).write(&mut output).await?;
                    output.flush().await?;
                    told = Some(now.durable);
                }
            }
            state.changed().await.map_err(|_| ReplicationError::Ended)?;
        }
    };
    tokio::select! {
        biased;
        ended = receive => ended,
        ended = acknowledge => ended,
    }
}
