//! Callers that give up after a while, and use their memory for something else then.

use std::time::{Duration, Instant};

use bytes::Bytes;
use mc_store::{Client, GetError, Memory, PutError, ReplicateConfig};
use mc_testkit::Random;
use tokio::time::timeout;

use crate::{Counts, millis};

/// The byte that memory with another use is filled with: no value consists of it.
const ANOTHER_USE: u8 = 0xdd;

/// Longer than bytes are late: a link stalls for less, and no process is stopped for longer.
const LATE: Duration = Duration::from_secs(8);

/// Memory that has another use, until it is looked at.
#[derive(Default)]
pub(crate) struct GivenBack(Vec<(Memory, Instant)>);

impl GivenBack {
    /// Uses the memory for something else from now on.
    fn take(&mut self, memory: Memory) {
        memory.whole().copy_from(0, &vec![ANOTHER_USE; memory.len()]).unwrap();
        self.0.push((memory, Instant::now()));
    }

    /// Looks at memory to which no late bytes can come any more, or at `all`.
    pub(crate) fn check(&mut self, counts: &mut Counts, all: bool) {
        self.0.retain(|(memory, since)| {
            let is_due = all || since.elapsed() > LATE;
            if is_due && memory.whole().to_vec().iter().any(|&byte| byte != ANOTHER_USE) {
                *counts.entry("WRITTEN LATE".to_owned()).or_default() += 1;
                eprintln!("bytes came into memory that was given back, {} of it", memory.len());
            }
            !is_due
        });
    }
}

/// A while in which most calls end where nothing is stopped, or one in which few do: some give up while
/// bytes are on their way.
fn patience(random: &mut Random) -> Duration {
    match random.below(16) {
        0 => millis(random, 0, 3),
        _ => millis(random, 100, 2000),
    }
}

fn memory_of(value: &[u8]) -> Memory {
    let memory = Memory::allocate(value.len()).unwrap();
    memory.whole().copy_from(0, value).unwrap();
    memory
}

/// Puts or replaces; what came of it.
pub(crate) async fn put(
    client: &Client,
    key: &str,
    value: &Bytes,
    random: &mut Random,
    given_back: &mut GivenBack,
) -> &'static str {
    let memory = memory_of(value);
    let (whole, config) = (memory.whole(), ReplicateConfig::default());
    let replaces = random.below(2) == 0;
    let put = async {
        match replaces {
            true => client.upsert_from(key, &whole, &config).await,
            false => client.put_from(key, &whole, &config).await.map(drop),
        }
    };
    let outcome = timeout(patience(random), put).await;
    match outcome {
        Err(_) => {
            given_back.take(memory);
            "put given up"
        }
        Ok(Ok(())) => "put in time",
        Ok(Err(PutError::MemoryChanged)) => "CHANGED without a reason",
        Ok(Err(_)) => "put failed",
    }
}

/// Reads a value of this length; the value, if it came in time.
pub(crate) async fn get(
    client: &Client,
    key: &str,
    len: usize,
    random: &mut Random,
    given_back: &mut GivenBack,
) -> Option<Result<Vec<u8>, GetError>> {
    let memory = Memory::allocate(len).unwrap();
    let whole = memory.whole();
    let outcome = timeout(patience(random), client.get_into(key, &whole)).await;
    if outcome.is_err() {
        given_back.take(memory);
    }
    outcome.ok().map(|read| read.map(|_| whole.to_vec()))
}
