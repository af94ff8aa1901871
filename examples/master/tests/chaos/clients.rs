//! Clients that put, get, remove and upsert, and write down what they saw.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use mc_history::{Action, Moment, Operation, Outcome, ValueId};
use mc_store::{ByteSize, Client, ClientBuilder, GetError, PutOutcome};
use mc_testkit::{Random, content};
use mc_types::ErrorCode;

use crate::LIMIT;

/// Keys that all clients share.
pub(crate) const KEYS: u32 = 48;

/// The longest value.
const LONGEST: usize = 20_000;

/// Time between a client's operations.
const PACE: Duration = Duration::from_millis(8);

/// The observations of all clients.
#[derive(Default)]
pub(crate) struct Record {
    operations: Mutex<Vec<Operation>>,
    /// Causes of failed operations, and how often they came.
    failures: Mutex<BTreeMap<String, u64>>,
    /// Bytes that were wrong.
    faults: Mutex<Vec<String>>,
}

impl Record {
    pub(crate) fn operations(&self) -> Vec<Operation> {
        self.operations.lock().unwrap().clone()
    }

    pub(crate) fn failures(&self) -> BTreeMap<String, u64> {
        self.failures.lock().unwrap().clone()
    }

    /// Bytes that were wrong, and how.
    pub(crate) fn faults(&self) -> Vec<String> {
        self.faults.lock().unwrap().clone()
    }

    /// Returns whether a put or upsert that began after this was acknowledged.
    pub(crate) fn has_written_since(&self, moment: Duration) -> bool {
        let moment = Moment::from(moment);
        let operations = self.operations.lock().unwrap();
        let is_it = |it: &&Operation| {
            it.action.written().is_some() && it.outcome == Outcome::Done && it.begin >= moment
        };
        operations.iter().rev().take(2000).any(|it| is_it(&it))
    }

    fn failed(&self, call: &str, code: ErrorCode) {
        *self.failures.lock().unwrap().entry(format!("{call} {code:?}")).or_default() += 1;
    }
}

/// A client of the masters at these addresses.
fn builder(masters: &str) -> ClientBuilder {
    let mut rpc = mc_rpc::ClientConfig::default();
    rpc.call_timeout = Duration::from_secs(4);
    rpc.connect_timeout = Duration::from_millis(700);
    Client::builder().master(masters).rpc(rpc)
}

/// Joins the cluster as soon as there is a leader.
pub(crate) async fn join(masters: &str, segment: ByteSize) -> Client {
    let began = Instant::now();
    loop {
        let contributes = segment.as_u64() > 0;
        let builder = builder(masters).listen(([127, 0, 0, 1], 0).into()).segment_size(segment);
        // Half of a node's memory is for others.
        let buffer = ByteSize::mib(if contributes { 0 } else { 16 });
        match builder.local_buffer(buffer).connect().await {
            Ok(client) => return client,
            Err(error) => assert!(began.elapsed() < LIMIT, "cannot join: {error}"),
        }
    }
}

/// One client that uses the store.
pub(crate) struct Worker {
    pub(crate) number: u32,
    pub(crate) client: Client,
    pub(crate) random: Random,
    pub(crate) record: Arc<Record>,
    pub(crate) began: Instant,
    /// Values that it has put.
    pub(crate) versions: AtomicU32,
}

impl Worker {
    /// Works until it is stopped, then reads every key.
    pub(crate) async fn work(mut self, stop: Arc<AtomicBool>) -> Self {
        let mut timer = tokio::time::interval(PACE);
        timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while !stop.load(Ordering::Relaxed) {
            timer.tick().await;
            let key = self.random.below(KEYS as usize) as u32;
            match self.random.below(100) {
                0..25 => self.write(key, false).await,
                25..45 => self.write(key, true).await,
                45..52 => self.remove(key).await,
                _ => _ = self.get(key).await,
            }
        }
        self
    }

    async fn write(&mut self, key: u32, upsert: bool) {
        let version = self.versions.fetch_add(1, Ordering::Relaxed);
        let id = ValueId { writer: self.number, version };
        let value = value(key, id, 100 + self.random.below(LONGEST));
        let begin = self.began.elapsed();
        // It may be acknowledged only once: it is on record before it can be read.
        let (call, name) = (if upsert { "upsert" } else { "put" }, name(key));
        let written = if upsert {
            self.client.upsert(&name, value).await.map(|()| PutOutcome::Stored)
        } else {
            self.client.put(&name, value).await
        };
        let outcome = match written {
            Ok(PutOutcome::Stored) => Outcome::Done,
            Ok(PutOutcome::Existing) => Outcome::Existing,
            Ok(PutOutcome::Pending) => Outcome::Unknown,
            Err(error) => {
                self.record.failed(call, error.code());
                Outcome::Unknown
            }
        };
        self.note(key, if upsert { Action::Upsert(id) } else { Action::Put(id) }, outcome, begin);
    }

    async fn remove(&self, key: u32) {
        let begin = self.began.elapsed();
        let outcome = match self.client.remove(&name(key), true).await {
            Ok(()) => Outcome::Done,
            Err(error) if error.code() == ErrorCode::ObjectNotFound => Outcome::Absent,
            Err(error) => {
                self.record.failed("remove", error.code());
                Outcome::Unknown
            }
        };
        self.note(key, Action::Remove, outcome, begin);
    }

    /// Returns whether the key was read, or known to be gone.
    pub(crate) async fn get(&self, key: u32) -> bool {
        let begin = self.began.elapsed();
        let action = match self.client.get(&name(key)).await {
            Ok(bytes) => match read(key, &bytes) {
                Ok(id) => Action::Found(id),
                Err(what) => {
                    self.record.faults.lock().unwrap().push(what);
                    Action::WrongBytes
                }
            },
            Err(GetError::NotFound) => Action::Missed,
            Err(error) => {
                self.record.failed("get", error.code());
                return false;
            }
        };
        self.note(key, action, Outcome::Done, begin);
        true
    }

    fn note(&self, key: u32, action: Action, outcome: Outcome, begin: Duration) {
        let (begin, end) = (begin.into(), self.began.elapsed().into());
        let operation = Operation { client: self.number, key, action, outcome, begin, end };
        self.record.operations.lock().unwrap().push(operation);
    }
}

fn name(key: u32) -> String {
    format!("chaos/{key}")
}

/// The bytes of a value, which tell whose they are; all of them differ from those of any other.
fn value(key: u32, ValueId { writer, version }: ValueId, len: usize) -> Bytes {
    let title = format!("{key} {writer} {version} {len}\n");
    let body = content(&title, len);
    [title.as_bytes(), &body].concat().into()
}

/// Returns the id of the value of this key that these bytes are.
fn read(key: u32, bytes: &[u8]) -> Result<ValueId, String> {
    let wrong = |what: &str| format!("{what} in {:?}…", bytes.escape_ascii().to_string().get(..60));
    let end = bytes.iter().position(|it| *it == b'\n').ok_or_else(|| wrong("no title"))?;
    let title = std::str::from_utf8(&bytes[..end]).map_err(|_| wrong("no text"))?;
    let numbers: Result<Vec<u32>, _> = title.split(' ').map(str::parse).collect();
    let Ok([its_key, writer, version, len]) = numbers.as_deref() else {
        return Err(wrong("no numbers"));
    };
    let id = ValueId { writer: *writer, version: *version };
    if *its_key != key {
        return Err(wrong("another key"));
    }
    if bytes != value(key, id, *len as usize) {
        return Err(wrong("other bytes"));
    }
    Ok(id)
}

mod tests {
    use super::*;

    #[test]
    fn a_value_is_known_by_all_its_bytes() {
        let id = ValueId { writer: 2, version: 3 };
        let good = value(7, id, 1000);
        assert_eq!(read(7, &good), Ok(id));
        assert!(read(8, &good).unwrap_err().contains("another key"));
        for at in [10, 500, good.len() - 1] {
            let mut torn = good.to_vec();
            torn[at] ^= 1;
            assert!(read(7, &torn).is_err());
        }
        assert!(read(7, &good[..good.len() - 1]).is_err());
        assert!(read(7, &[]).is_err());
    }
}
