//! The handlers of calls: one method of the node agent each.

use std::sync::Arc;

use mc_meta::ListCursor;
use mc_store::{CallError, Client, GetError, GetInto, Put, PutError, PutOutcome, Stat};
use mc_transport::Source;
use mc_types::{Checksum, ErrorCode, Generation, TaskId};

use super::memories::Memories;
use crate::wire::{Call, Failure, Keys, MAX_OBJECTS, NewObject, Outcome, PutCall, Reply, Wanted};

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
        Call::Put(put) => put_objects(client, memories, put).await,
        Call::Get { gets } => get_objects(client, memories, &gets).await,
        Call::Exist(keys) => Ok(Reply::Flags(client.batch_exist(&keys.as_strs()).await?)),
        Call::Probe(keys) => Ok(Reply::Flags(client.batch_probe(&keys.as_strs()).await?)),
        Call::LongestPrefix(keys) => {
            Ok(Reply::Count(client.longest_prefix(&keys.as_strs()).await? as u64))
        }
        Call::Remove { keys, force } => remove(client, &keys, force).await,
        Call::RemoveGenerations { keys, generations } => {
            remove_generations(client, &keys, &generations).await
        }
        Call::RemoveAll { force } => Ok(Reply::Count(client.remove_all(force).await?)),
        Call::RemoveByRegex { pattern, force } => {
            Ok(Reply::Count(client.remove_by_regex(&pattern, force).await?))
        }
        Call::Stat(keys) => {
            let stats = client.batch_stat(&keys.as_strs()).await?.into_iter();
            let numbers = |stat: Stat| (stat.len, stat.generation.as_u64());
            Ok(Reply::Stats(stats.map(|stat| Ok(stat.map(numbers)?)).collect()))
        }
        Call::Find { pattern, cursor, limit } => find(client, &pattern, cursor, limit).await,
        Call::Describe { key } => {
            Ok(Reply::Described(Box::new(client.describe(&key).await?.into())))
        }
        Call::Copy { key, targets } => {
            let targets: Vec<&str> = targets.iter().map(|target| &**target).collect();
            Ok(Reply::Task(client.copy_to(&key, &targets).await?.to_bytes()))
        }
        Call::Move { key, source, target } => {
            Ok(Reply::Task(client.move_to(&key, &source, &target).await?.to_bytes()))
        }
        Call::Task { id } => {
            let report = client.task(TaskId::from_bytes(id)).await?;
            Ok(Reply::Reported(Box::new(report.into())))
        }
    }
}

async fn put_objects(
    client: &Client,
    memories: &Memories,
    call: PutCall<'static>,
) -> Result<Reply, Failure> {
    let config = call.config.decoded()?;
    let slices = memories.resolve(call.puts.iter().map(|put| &put.object))?;
    let rest = |put: NewObject<'static>| (put.object, (put.checksums, put.event_info));
    let (objects, rest): (Vec<_>, Vec<_>) = call.puts.into_iter().map(rest).unzip();
    let puts = objects.iter().zip(slices).zip(rest).map(|((object, slices), (sums, info))| Put {
        checksums: Some(sums.into_iter().map(|sum| sum.map(Checksum::from_crc32c)).collect()),
        event_info: info.map(|info| Arc::new(info.into())),
        ..Put::of_slices(&object.key, slices.into_iter().map(Source::from).collect())
    });
    if call.upsert {
        let outcomes = client.batch_upsert(puts.collect(), &config).await;
        let stored = outcomes.into_iter().map(|outcome| Ok(outcome.map(|()| Outcome::Stored)?));
        return Ok(Reply::Put(stored.collect()));
    }
    let outcomes = client.batch_put(puts.collect(), &config).await;
    Ok(Reply::Put(outcomes.into_iter().map(|outcome| Ok(outcome?.into())).collect()))
}

async fn get_objects(
    client: &Client,
    memories: &Memories,
    gets: &[Wanted<'static>],
) -> Result<Reply, Failure> {
    let targets = memories.resolve(gets.iter().map(|get| &get.object))?;
    let gets = gets.iter().zip(targets).map(|(wanted, into)| GetInto {
        key: &wanted.object.key,
        into,
        range: wanted.range.map(|(begin, end)| begin..end),
        generation: wanted.generation.map(Generation::new),
    });
    let lengths = client.batch_get_into(gets.collect()).await;
    Ok(Reply::Lengths(lengths.into_iter().map(|length| Ok(length?)).collect()))
}

/// One page, which may be empty although more follow.
async fn find(client: &Client, pattern: &str, cursor: u64, limit: u32) -> Result<Reply, Failure> {
    let limit = (limit as usize).min(MAX_OBJECTS);
    let page = client.find_page(pattern, ListCursor::from_u64(cursor), limit).await?;
    let keys = page.objects.into_iter().map(|(key, _)| key.as_str().to_owned());
    Ok(Reply::Keys { keys: keys.collect(), next: page.next.map(ListCursor::to_u64) })
}

async fn remove(client: &Client, keys: &Keys<'static>, force: bool) -> Result<Reply, Failure> {
    let removed = client.batch_remove(&keys.as_strs(), force).await?;
    Ok(Reply::Each(removed.into_iter().map(|outcome| outcome.map_err(Failure::from)).collect()))
}

async fn remove_generations(
    client: &Client,
    keys: &Keys<'static>,
    generations: &[u64],
) -> Result<Reply, Failure> {
    let keys = keys.as_strs();
    if keys.len() != generations.len() {
        let text = "there are not as many generations as keys";
        return Err(Failure::new(ErrorCode::InvalidParams, text, false));
    }
    let generations = generations.iter().copied().map(Generation::new);
    let named: Vec<(&str, Generation)> = keys.into_iter().zip(generations).collect();
    let removed = client.batch_remove_generations(&named).await?;
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
