//! The checks, each a line when it is passed.

use std::io::{self, Write};

use bytes::Bytes;
use mc_store::{ErrorCode, GetError, GetInto, Memory, Put, PutOutcome};
use mc_types::{ByteSize, SplitMix64};

use crate::error::CheckError;
use crate::installation::{Installation, Reader};

/// Bytes of values: nearly nothing, a page, no round number, and the size of large blocks.
const SIZES: [usize; 5] = [1, 4096, 100_003, 1 << 20, 16 << 20];

/// Values put and got at once, and the bytes of each.
const BATCH: usize = 100;
const BATCH_VALUE: usize = 4096;

/// Makes all checks and says how many there were.
///
/// # Errors
/// [`CheckError`] that names the first that failed.
pub(crate) async fn run(installation: &Installation) -> Result<u32, CheckError> {
    let mut passed = 0;
    let mut pass = |what: String| {
        passed += 1;
        // Progress that cannot be shown is no reason to stop.
        let _ = writeln!(io::stderr(), "ok  {what}");
    };
    pass(the_master_answers(installation).await?);
    pass(the_segment_is_mounted(installation).await?);
    for reader in &installation.readers {
        pass(values_come_back(installation, reader).await?);
    }
    pass(batches_come_back(installation).await?);
    pass(a_key_keeps_its_value(installation).await?);
    pass(what_is_removed_is_gone(installation).await?);
    Ok(passed)
}

async fn the_master_answers(installation: &Installation) -> Result<String, CheckError> {
    let asking = "asking the master for its totals";
    let report = installation.owner.cluster_report().await;
    let report = report.map_err(CheckError::call(asking))?;
    let own = usize::from(installation.segment_name().is_some());
    let others = report.segments.len().saturating_sub(own);
    Ok(format!("the master at {} answers: {others} other segments", installation.master))
}

async fn the_segment_is_mounted(installation: &Installation) -> Result<String, CheckError> {
    let looking = "looking for the own segment";
    let report = installation.owner.cluster_report().await;
    let report = report.map_err(CheckError::call(looking))?;
    let Some(name) = installation.segment_name() else {
        let usable = report.segments.iter().filter(|segment| segment.is_usable());
        let size = ByteSize::bytes(usable.map(|segment| segment.size).sum());
        if size == ByteSize::bytes(0) {
            let found = "there is none; start a node with mc-node, or contribute memory";
            return Err(CheckError::unexpected("looking for segments that take objects", found));
        }
        return Ok(format!("no segment of its own: the nodes' segments have {size}"));
    };
    let own = report.segments.iter().find(|segment| *segment.name == *name);
    let own = own.ok_or_else(|| {
        CheckError::unexpected(looking, format!("the master does not know '{name}'"))
    })?;
    let size = ByteSize::bytes(own.size);
    Ok(format!("a segment of {size} is mounted, reached at {}", own.endpoint))
}

/// Bytes that no other seed has.
fn value(seed: u64, len: usize) -> Vec<u8> {
    let mut random = SplitMix64::new(seed);
    let words = (0..len.div_ceil(8)).flat_map(|_| random.next_u64().to_le_bytes());
    words.take(len).collect()
}

fn same(what: &'static str, found: &[u8], right: &[u8]) -> Result<(), CheckError> {
    if found == right {
        return Ok(());
    }
    let place = found.iter().zip(right).position(|(found, right)| found != right);
    Err(CheckError::unexpected(
        what,
        match place {
            Some(place) => format!("byte {place} of {} is wrong", right.len()),
            None => format!("{} bytes in place of {}", found.len(), right.len()),
        },
    ))
}

/// Puts by the reader into the owner's memory, and gets in both ways.
async fn values_come_back(
    installation: &Installation,
    reader: &Reader,
) -> Result<String, CheckError> {
    let client = &reader.client;
    let target = Memory::allocate(SIZES[SIZES.len() - 1])?;
    for (seed, size) in (0..).zip(SIZES) {
        let right = value(seed, size);
        let key = installation.key(&format!("{}-{size}", reader.carrier));
        let put = client.put_with(&key, right.clone(), &installation.here()).await;
        stored("putting a value", put.map_err(CheckError::put("putting a value"))?)?;
        is_here(installation, &key).await?;
        let getting = "getting a value";
        let found = client.get(&key).await.map_err(CheckError::get(getting))?;
        same(getting, &found, &right)?;
        let getting = "getting a value into own memory";
        let len = client.get_into(&key, &target.whole()).await;
        let len = len.map_err(CheckError::get(getting))?;
        let found = usize::try_from(len).ok().and_then(|len| target.slice(0, len));
        let found = found.ok_or_else(|| {
            CheckError::unexpected(getting, format!("{len} bytes in place of {size}"))
        })?;
        same(getting, &found.to_vec(), &right)?;
        let removed = client.remove(&key, true).await;
        removed.map_err(CheckError::call("removing a value"))?;
    }
    Ok(format!("values of 1 byte to 16 MB are put there and got over {}", reader.carrier))
}

fn stored(what: &'static str, outcome: PutOutcome) -> Result<(), CheckError> {
    match outcome {
        PutOutcome::Stored => Ok(()),
        other => Err(CheckError::unexpected(what, format!("{other:?} for a new key"))),
    }
}

/// Returns whether the value lies where it was preferred to be.
async fn is_here(installation: &Installation, key: &str) -> Result<(), CheckError> {
    let looking = "looking where a value is";
    let description = installation.owner.describe(key).await;
    let description = description.map_err(CheckError::call(looking))?;
    let Some(own) = installation.segment_name() else { return Ok(()) };
    match description.replicas.as_slice() {
        [replica] if *replica.segment_name == *own => Ok(()),
        replicas => {
            let names: Vec<&str> = replicas.iter().map(|replica| &*replica.segment_name).collect();
            let found = format!("in '{}' in place of '{own}'", names.join("', '"));
            Err(CheckError::unexpected(looking, found))
        }
    }
}

async fn batches_come_back(installation: &Installation) -> Result<String, CheckError> {
    let [Reader { client, .. }, _] = &installation.readers;
    let keys: Vec<String> = (0..BATCH).map(|n| installation.key(&format!("batch-{n}"))).collect();
    let names: Vec<&str> = keys.iter().map(String::as_str).collect();
    let right: Vec<Bytes> = (0..).take(BATCH).map(|seed| value(seed, BATCH_VALUE).into()).collect();
    let putting = "putting many values at once";
    let puts = names.iter().zip(&right).map(|(key, value)| Put::new(key, value.clone())).collect();
    for outcome in client.batch_put(puts, &installation.here()).await {
        stored(putting, outcome.map_err(CheckError::put(putting))?)?;
    }
    let finding = "asking for many values";
    let there = client.batch_exist(&names).await.map_err(CheckError::call(finding))?;
    if there != [true; BATCH] {
        return Err(CheckError::unexpected(finding, "not all are there"));
    }
    let prefix = client.longest_prefix(&names).await.map_err(CheckError::call(finding))?;
    if prefix != BATCH {
        return Err(CheckError::unexpected(finding, format!("a prefix of {prefix}")));
    }
    let getting = "getting many values at once";
    for (found, right) in client.batch_get(&names).await.into_iter().zip(&right) {
        same(getting, &found.map_err(CheckError::get(getting))?, right)?;
    }
    let target = Memory::allocate(BATCH * BATCH_VALUE)?;
    let part = |n| target.slice(n * BATCH_VALUE, BATCH_VALUE).expect("room for the whole batch");
    let gets = names.iter().enumerate().map(|(n, key)| GetInto::new(key, part(n))).collect();
    for (n, len) in client.batch_get_into(gets).await.into_iter().enumerate() {
        len.map_err(CheckError::get(getting))?;
        same(getting, &part(n).to_vec(), &right[n])?;
    }
    let removing = "removing many values at once";
    let removed = client.batch_remove(&names, true).await;
    for outcome in removed.map_err(CheckError::call(removing))? {
        outcome.map_err(|refusal| CheckError::unexpected(removing, refusal.to_string()))?;
    }
    Ok(format!("{BATCH} values at once are put, found and got"))
}

async fn a_key_keeps_its_value(installation: &Installation) -> Result<String, CheckError> {
    let [Reader { client, .. }, _] = &installation.readers;
    let key = installation.key("kept");
    let putting = "putting a key again";
    let first = client.put_with(&key, value(1, 100), &installation.here()).await;
    stored(putting, first.map_err(CheckError::put(putting))?)?;
    let second = client.put_with(&key, value(2, 100), &installation.here()).await;
    let second = second.map_err(CheckError::put(putting))?;
    if second != PutOutcome::Existing {
        return Err(CheckError::unexpected(putting, format!("{second:?}")));
    }
    let found = client.get(&key).await.map_err(CheckError::get(putting))?;
    same(putting, &found, &value(1, 100))?;
    let removed = client.remove(&key, true).await;
    removed.map_err(CheckError::call("removing a value"))?;
    Ok("a key that is put again keeps its value".into())
}

async fn what_is_removed_is_gone(installation: &Installation) -> Result<String, CheckError> {
    let [Reader { client, .. }, _] = &installation.readers;
    let key = installation.key("removed");
    let removing = "removing a value";
    let put = client.put_with(&key, value(1, 100), &installation.here()).await;
    stored(removing, put.map_err(CheckError::put(removing))?)?;
    client.remove(&key, true).await.map_err(CheckError::call(removing))?;
    if client.exist(&key).await.map_err(CheckError::call(removing))? {
        return Err(CheckError::unexpected(removing, "it is still there"));
    }
    match client.get(&key).await {
        Err(GetError::NotFound) => {}
        Err(source) => return Err(CheckError::Get { what: removing, source }),
        Ok(_) => return Err(CheckError::unexpected(removing, "it can still be got")),
    }
    match client.remove(&key, true).await {
        Err(error) if error.code() == ErrorCode::ObjectNotFound => {}
        Err(source) => return Err(CheckError::Call { what: removing, source }),
        Ok(()) => return Err(CheckError::unexpected(removing, "it could be removed twice")),
    }
    Ok("what is removed is gone".into())
}
