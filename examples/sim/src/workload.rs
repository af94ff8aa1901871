//! The applications on a node.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use mc_cluster_testkit::simulation::{Ledger, Random};
use mc_history::{Outcome, ValueId};
use mc_meta::{ReplicateConfig, SoftPinAction};
use mc_store::{CallError, Client, GetError, PutError, PutOutcome};
use mc_types::ErrorCode;
use tokio::time::{sleep, timeout};

use crate::content::{NoValue, value, value_of};
use crate::history::{Answer, Begun, Call, History};
use crate::requests::Requests;
use crate::world::tells_reads;

/// The longest value.
const LONGEST: u64 = 16 << 10;

/// No operation takes longer, whatever goes wrong: beyond the longest fault and all time limits.
const LONGEST_OPERATION: Duration = Duration::from_secs(300);

/// How long exist and get protect an object.
pub(crate) const LEASE: Duration = Duration::from_secs(5);

/// The parts of one application of a node.
pub(crate) struct Application {
    pub(crate) node: u32,
    pub(crate) client: Client,
    pub(crate) random: Random,
    pub(crate) history: Arc<History>,
    pub(crate) ledger: Arc<Ledger>,
    /// Counts the values of the node.
    pub(crate) versions: Arc<AtomicU32>,
    pub(crate) keys: u32,
    pub(crate) nodes: u32,
    pub(crate) pace: Duration,
    /// The requests of a trace, in place of random operations.
    pub(crate) requests: Option<Arc<Requests>>,
}

/// Keys that are put with a hard pin, of each hundred.
const PINNED_OF_100: u32 = 4;

pub(crate) fn key_name(key: u32) -> String {
    if key % 100 < PINNED_OF_100 { format!("pinned-{key}") } else { format!("key-{key}") }
}

/// The number of the key with this name.
pub(crate) fn key_number(name: &str) -> Option<u32> {
    name.rsplit_once('-')?.1.parse().ok()
}

/// The key of a block of a trace.
fn block_name(block: u32) -> String {
    format!("block-{block}")
}

const fn is_pinned(key: u32) -> bool {
    key % 100 < PINNED_OF_100
}

impl Application {
    /// Works until it is aborted.
    pub(crate) async fn work(self) {
        let longest = 2 * self.pace.as_millis() as u64;
        loop {
            sleep(Duration::from_millis(self.random.below(longest.max(1)) + 1)).await;
            match &self.requests {
                None => {
                    if timeout(LONGEST_OPERATION, self.act()).await.is_err() {
                        self.history.violates(format_args!(
                            "an operation of node {} takes longer than {LONGEST_OPERATION:?}",
                            self.node
                        ));
                    }
                }
                Some(requests) => {
                    let blocks = requests.next();
                    self.serve(&blocks).await;
                    // As much as single operations would have taken.
                    sleep(self.pace * blocks.len() as u32).await;
                }
            }
        }
    }

    /// Serves a prompt: reads the blocks that are there, and puts the others.
    async fn serve(&self, blocks: &[u32]) {
        let names: Vec<String> = blocks.iter().map(|block| block_name(*block)).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let there = self.client.longest_prefix(&names).await.unwrap_or(0);
        if there > 0 {
            let begun = blocks[..there].iter();
            let begun: Vec<_> =
                begun.map(|key| self.history.begin(self.node, *key, Call::Get)).collect();
            let got = self.client.batch_get(&names[..there]).await;
            for (((key, name), begun), got) in blocks.iter().zip(&names).zip(begun).zip(got) {
                self.got(*key, name, 0, begun, got.as_deref());
            }
        }
        for (key, name) in blocks.iter().zip(&names).skip(there) {
            self.put(*key, name, ReplicateConfig::default()).await;
        }
    }

    /// A key: half of the time one of a few.
    fn key(&self) -> u32 {
        let keys = u64::from(self.keys);
        let some = if self.random.below(2) == 0 { keys } else { (keys / 16).max(1) };
        self.random.below(some) as u32
    }

    async fn act(&self) {
        let key = self.key();
        match self.random.below(100) {
            0..22 => self.put(key, &key_name(key), self.config(key)).await,
            22..30 => self.upsert(key).await,
            30..60 => self.get(key).await,
            60..72 => self.get_range(key).await,
            72..82 => self.exist(key).await,
            82..88 => self.remove(key, false).await,
            88..92 => self.remove(key, true).await,
            92..96 => self.copy_or_move(key).await,
            _ => self.get_many().await,
        }
    }

    fn value(&self, key: u32) -> (ValueId, bytes::Bytes) {
        let version = self.versions.fetch_add(1, Relaxed);
        let id = ValueId { writer: self.node, version };
        // Mostly short ones, and often as long as the value that they replace.
        let scale = self.random.below(9);
        let len = match self.random.below(3) {
            0 => 80 + u64::from(key) * 37 % 4096,
            _ => 80 + self.random.below((LONGEST >> (8 - scale)).max(64)),
        };
        (id, value(id, key, len as usize))
    }

    fn config(&self, key: u32) -> ReplicateConfig {
        let mut config = ReplicateConfig::default();
        config.replica_num = [1, 1, 1, 2, 2, 3][self.random.below(6) as usize];
        if self.random.below(8) == 0 {
            config.soft_pin = SoftPinAction::Enable { ttl: None };
        }
        if self.random.below(4) == 0 {
            let node = self.random.below(u64::from(self.nodes)) as u32;
            config.preferred_segments = vec![crate::world::segment_name(node).into()];
        }
        config.with_hard_pin = is_pinned(key);
        config
    }

    async fn put(&self, key: u32, name: &str, config: ReplicateConfig) {
        let (id, bytes) = self.value(key);
        let begun = self.history.begin(self.node, key, Call::Put(id));
        match self.client.put_with(name, bytes, &config).await {
            Ok(PutOutcome::Stored) => {
                self.ledger.acknowledged(name, begun.begin());
                begun.ends(Answer::Change(Outcome::Done), "");
            }
            Ok(PutOutcome::Existing) => begun.ends(Answer::Change(Outcome::Existing), ""),
            Ok(PutOutcome::Pending) => begun.ends(Answer::Change(Outcome::Refused), "pending"),
            Err(error) => {
                begun.ends(Answer::Change(of_put(&error)), format_args!("{:?}", error.code()));
            }
        }
    }

    async fn upsert(&self, key: u32) {
        let (id, bytes) = self.value(key);
        let config = self.config(key);
        let begun = self.history.begin(self.node, key, Call::Upsert(id));
        match self.client.upsert_with(&key_name(key), bytes, &config).await {
            Ok(()) => {
                self.ledger.acknowledged(&key_name(key), begun.begin());
                begun.ends(Answer::Change(Outcome::Done), "");
            }
            Err(error) => {
                begun.ends(Answer::Change(of_put(&error)), format_args!("{:?}", error.code()));
            }
        }
    }

    async fn get(&self, key: u32) {
        let begun = self.history.begin(self.node, key, Call::Get);
        let got = self.client.get(&key_name(key)).await;
        self.got(key, &key_name(key), 0, begun, got.as_deref());
    }

    async fn get_range(&self, key: u32) {
        let start = self.random.below(4096);
        let end = start + 80 + self.random.below(4096);
        let begun = self.history.begin(self.node, key, Call::Get);
        let got = self.client.get_range(&key_name(key), start..end).await;
        self.got(key, &key_name(key), start as usize, begun, got.as_deref());
    }

    async fn get_many(&self) {
        let keys: Vec<u32> = (0..1 + self.random.below(4)).map(|_| self.key()).collect();
        let begun: Vec<_> =
            keys.iter().map(|key| self.history.begin(self.node, *key, Call::Get)).collect();
        let names: Vec<String> = keys.iter().map(|key| key_name(*key)).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let got = self.client.batch_get(&names).await;
        for ((key, begun), got) in keys.into_iter().zip(begun).zip(got) {
            self.got(key, &key_name(key), 0, begun, got.as_deref());
        }
    }

    /// Checks what a get returned.
    fn got(&self, key: u32, name: &str, start: usize, begun: Begun, got: Result<&[u8], &GetError>) {
        let since = begun.begin();
        match got {
            Ok(bytes) => match value_of(key, start, bytes) {
                Ok(id) => {
                    if tells_reads(self.node) {
                        // It is over; that its bytes were right is checked above.
                        self.ledger.protect(name, since, LEASE);
                    } else {
                        self.ledger.reads(name, since, LEASE);
                    }
                    begun.ends(Answer::Found(id), "");
                }
                Err(NoValue::Short) => begun.ends(Answer::Failed, "too short to tell"),
                Err(wrong) => {
                    self.history.violates(format_args!("k{key} has wrong bytes: {wrong}"));
                    begun.ends(Answer::Failed, "wrong bytes");
                }
            },
            Err(GetError::NotFound) if self.ledger.is_spoiled(name, since) => {
                begun.ends(Answer::Failed, "its removal was undone after its files had gone");
            }
            Err(GetError::NotFound) => begun.ends(Answer::Missed, ""),
            Err(GetError::ChecksumMismatch { .. }) if self.ledger.has_damaged_disks() => {
                begun.ends(Answer::Failed, "destroyed on disk");
            }
            Err(GetError::ChecksumMismatch { .. }) if self.ledger.is_spoiled(name, since) => {
                begun.ends(Answer::Failed, "its removal was undone after others had its space");
            }
            Err(GetError::ChecksumMismatch { endpoint }) => {
                self.history.violates(format_args!("k{key} is destroyed at {endpoint}"));
                begun.ends(Answer::Failed, "destroyed");
            }
            Err(error) => begun.ends(Answer::Failed, format_args!("{:?}", error.code())),
        }
    }

    async fn exist(&self, key: u32) {
        let begun = self.history.begin(self.node, key, Call::Exist);
        let since = begun.begin();
        match self.client.exist(&key_name(key)).await {
            Ok(true) => {
                self.ledger.protect(&key_name(key), since, LEASE);
                begun.ends(Answer::Exists(true), "");
            }
            Ok(false) => begun.ends(Answer::Exists(false), ""),
            Err(error) => begun.ends(Answer::Failed, format_args!("{:?}", error.code())),
        }
    }

    async fn remove(&self, key: u32, force: bool) {
        let name = key_name(key);
        let protected = self.ledger.removes(&name);
        let begun = self.history.begin(self.node, key, Call::Remove);
        match self.client.remove(&name, force).await {
            Ok(()) => {
                self.ledger.removed(&name, begun.begin(), force, protected);
                begun.ends(Answer::Change(Outcome::Done), if force { "force" } else { "" });
            }
            Err(error) => {
                begun.ends(Answer::Change(of_call(&error)), format_args!("{:?}", error.code()));
            }
        }
    }

    async fn copy_or_move(&self, key: u32) {
        let node = |random: &Random| random.below(u64::from(self.nodes)) as u32;
        let to = crate::world::segment_name(node(&self.random));
        let (what, task) = if self.random.below(2) == 0 {
            ("copy", self.client.copy_to(&key_name(key), &[&to]).await)
        } else {
            let from = crate::world::segment_name(node(&self.random));
            ("move", self.client.move_to(&key_name(key), &from, &to).await)
        };
        let outcome = task.map(|_| ()).map_err(|error| error.code());
        self.history.say(
            format_args!("n{}", self.node),
            format_args!("{what} k{key} to {to}: {outcome:?}"),
        );
    }
}

/// Returns the outcome of a put that failed.
pub(crate) fn of_put(error: &PutError) -> Outcome {
    match error {
        // The master keeps no part of what it refuses at the start. What it refuses at the end was
        // granted, and the attempt before may have ended the put.
        PutError::Refused(refusal) if is_for_want_of_room(refusal.code) => Outcome::Refused,
        _ => Outcome::Unknown,
    }
}

fn is_for_want_of_room(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::Full | ErrorCode::Fragmented | ErrorCode::TooFewSegments | ErrorCode::AllLeased
    )
}

fn of_call(error: &CallError) -> Outcome {
    match error.code() {
        ErrorCode::ObjectNotFound => Outcome::Absent,
        ErrorCode::ObjectHasLease => Outcome::Refused,
        _ => Outcome::Unknown,
    }
}
