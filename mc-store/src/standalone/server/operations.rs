//! What calls do: one method of the real client each.

use mc_transport::Source;
use mc_types::ErrorCode;

use super::memories::Memories;
use crate::standalone::wire::{Call, Failure, Keys, Object, Outcome, PutCall, Reply};
use crate::{CallError, Client, GetError, GetInto, Put, PutError, PutOutcome};

/// Does what `call` asks. Calls about memory are not done here.
pub(super) async fn execute(
    client: &Client,
    memories: &Memories,
    call: Call<'static>,
) -> Result<Reply, Failure> {
    match call {
        Call::Register { .. } | Call::Unregister { .. } => {
            Err(Failure::new(ErrorCode::NotSupported, "memory is registered in order", false))
        }
        Call::Put(put) => put_objects(client, memories, &put).await,
        Call::Get { gets } => get_objects(client, memories, &gets).await,
        Call::Exist(keys) => Ok(Reply::Flags(client.batch_exist(&keys.as_strs()).await?)),
        Call::LongestPrefix(keys) => {
            Ok(Reply::Count(client.longest_prefix(&keys.as_strs()).await? as u64))
        }
        Call::Remove { keys, force } => remove(client, &keys, force).await,
        Call::RemoveAll { force } => Ok(Reply::Count(client.remove_all(force).await?)),
    }
}

async fn put_objects(
    client: &Client,
    memories: &Memories,
    call: &PutCall<'static>,
) -> Result<Reply, Failure> {
    let config = call.config.decoded()?;
    let slices = memories.resolve(&call.puts)?;
    let puts = call.puts.iter().zip(slices).map(|(object, slices)| Put {
        key: &object.key,
        slices: slices.into_iter().map(Source::from).collect(),
    });
    let outcomes = client.batch_put(puts.collect(), &config).await;
    Ok(Reply::Put(outcomes.into_iter().map(|outcome| Ok(outcome?.into())).collect()))
}

async fn get_objects(
    client: &Client,
    memories: &Memories,
    gets: &[Object<'static>],
) -> Result<Reply, Failure> {
    let targets = memories.resolve(gets)?;
    let gets = gets.iter().zip(targets).map(|(object, into)| GetInto::scattered(&object.key, into));
    let lengths = client.batch_get_into(gets.collect()).await;
    Ok(Reply::Lengths(lengths.into_iter().map(|length| Ok(length?)).collect()))
}

async fn remove(client: &Client, keys: &Keys<'static>, force: bool) -> Result<Reply, Failure> {
    let removed = client.batch_remove(&keys.as_strs(), force).await?;
    Ok(Reply::Each(removed.into_iter().map(|outcome| outcome.map_err(Failure::from)).collect()))
}

impl From<PutOutcome> for Outcome {
    fn from(outcome: PutOutcome) -> Self {
        match outcome {
            PutOutcome::Stored => Self::Stored,
            PutOutcome::Existing => Self::Existing,
            PutOutcome::Pending => Self::Pending,
        }
    }
}

impl From<PutError> for Failure {
    fn from(error: PutError) -> Self {
        match error {
            PutError::Refused(refusal) => refusal.into(),
            error => Self::new(error.code(), chain(&error), error.is_retryable()),
        }
    }
}

impl From<GetError> for Failure {
    fn from(error: GetError) -> Self {
        let mut failure = Self::new(error.code(), chain(&error), error.is_retryable());
        if let GetError::BufferTooSmall { needed, .. } = error {
            failure.needed = Some(needed);
        }
        failure
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Rpc(mc_rpc::RpcError::Refused(refusal)) => refusal.into(),
            error => Self::new(error.code(), chain(&error), error.is_retryable()),
        }
    }
}

/// An error and its causes, for a process that gets no more than the text.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        // Transparent errors say what their cause says.
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}
