//! Puts that may have been begun without their callers' knowing, of a client that lives in an
//! environment of its own: a task does for it what a thread does otherwise, see
//! `blocking::settle`.

use std::sync::{Arc, Weak};

use bytes::BytesMut;
use mc_meta::LateWrites;
use mc_types::ClientId;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep};

use super::backoff::backoff;
use super::blocking::{Asked, Granted, Lost};
use super::call::may_be_executed;
use super::dial::may_pass;
use super::link::Link;
use super::request::KNOWN_FOR;
use crate::answer::read_all_done;
use crate::error::RpcError;
use crate::method::Method;
use crate::request::BatchPutFinishRequest;

/// Finds out what a call began and gives that up; ends when that is done, when the master has
/// forgotten the call, or with the client. `_place` is one of a bounded number.
pub(super) async fn settle(link: Weak<Link>, mut lost: Lost, _place: OwnedSemaphorePermit) {
    let Ok(asked) = Asked::parse(&lost) else { return };
    let mut granted = None;
    for failures in 0.. {
        let Some(link) = link.upgrade() else { return };
        if Instant::now().into_std().saturating_duration_since(lost.begun) >= KNOWN_FOR {
            return;
        }
        let error = match &granted {
            None => match link.send_again(&mut lost, |answer| asked.granted(answer)).await {
                Ok(grants) if grants.is_empty() => return,
                Ok(grants) => {
                    granted = Some(grants);
                    continue;
                }
                Err(error) => error,
            },
            Some(grants) => match revoke(&link, asked.client, grants).await {
                Ok(()) => return,
                Err(error) => error,
            },
        };
        if !may_be_executed(&error) && !may_pass(&error) {
            return;
        }
        let wait = backoff(link.config(), failures);
        // The client may end meanwhile.
        drop(link);
        sleep(wait).await;
    }
}

async fn revoke(link: &Arc<Link>, client: ClientId, grants: &[Granted]) -> Result<(), RpcError> {
    // No writer has learnt where to write.
    let late = LateWrites::Impossible;
    let revokes = grants.iter().map(|(key, handle)| (key.as_ref(), *handle, late));
    let write = |out: &mut BytesMut| BatchPutFinishRequest::write_revokes(out, client, revokes);
    let read = |message: &[u8]| read_all_done(message, grants.len());
    link.call(Method::BatchPutRevoke, write, read).await.map(drop)
}
