//! `pin` and `unpin`: which objects go last when room is needed.

use std::process::ExitCode;
use std::time::Duration;

use mc_cli::visible;
use mc_rpc::RpcError;
use mc_store::Client;
use mc_types::ObjectKey;

use crate::args;
use crate::error::CtlError;
use crate::list;
use crate::text::print;

/// Most reasons that are told.
const MOST: usize = 3;

pub(crate) async fn pin(client: &Client, pin: &args::Pin) -> Result<ExitCode, CtlError> {
    change(client, &pin.which, Change::Pin(pin.ttl)).await
}

pub(crate) async fn unpin(client: &Client, unpin: &args::Unpin) -> Result<ExitCode, CtlError> {
    change(client, &unpin.which, Change::Unpin).await
}

#[derive(Clone, Copy)]
enum Change {
    Pin(Option<Duration>),
    Unpin,
}

impl Change {
    const fn done(self) -> &'static str {
        match self {
            Self::Pin(_) => "pinned",
            Self::Unpin => "unpinned",
        }
    }

    async fn make(self, client: &Client, key: &ObjectKey) -> Result<(), RpcError> {
        match self {
            Self::Pin(ttl) => client.master().pin(key.as_ref(), ttl).await,
            Self::Unpin => client.master().unpin(key.as_ref()).await,
        }
    }
}

async fn change(
    client: &Client,
    which: &args::Pinned,
    change: Change,
) -> Result<ExitCode, CtlError> {
    let keys = match &which.prefix {
        Some(prefix) => list::keys(client, prefix).await?,
        None => which.keys.iter().map(|key| valid(key)).collect::<Result<_, _>>()?,
    };
    let (mut failed, mut reasons) = (0, Vec::new());
    for key in &keys {
        match change.make(client, key).await {
            Ok(()) => {}
            // Nothing is said by it of one key more than of another.
            Err(error) if !matches!(error, RpcError::Refused(_)) => return Err(error.into()),
            Err(error) => {
                failed += 1;
                if reasons.len() < MOST {
                    reasons.push(format!("{}: {error}", visible(key.as_str())));
                }
            }
        }
    }
    let done = change.done();
    print(format!("{done} {} objects\n", keys.len() - failed).as_bytes())?;
    if failed == 0 {
        return Ok(ExitCode::SUCCESS);
    }
    let reasons = reasons.join("; ");
    Err(CtlError::NotPinned { done, failed, asked: keys.len(), reasons })
}

fn valid(key: &str) -> Result<ObjectKey, CtlError> {
    ObjectKey::new(key).map_err(|source| CtlError::BadKey { key: key.to_owned(), source })
}
