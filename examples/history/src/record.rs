//! A random workload through clients of the store, and its log.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use mc_history::{Answer, Call, LogWriter, ValueId, now};
use mc_store::{ByteSize, Client, GetError, NodeConfig, PutError, PutOutcome, StartError};
use mc_transport::tcp::TcpConfig;
use mc_types::ErrorCode;
use tokio::runtime::Handle;

use crate::args::Record;
use crate::value::{SHORTEST, SHORTEST_RANGE, identify, value};

/// How much longer than the shortest one a value may be.
const SPREAD: usize = 14_000;

/// How long one call to the master may take: masters that are stopped are waited for no longer.
const CALL_TIMEOUT: Duration = Duration::from_secs(4);

/// A workload that cannot be recorded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum RecordError {
    #[error("cannot write the log {path}", path = .path.display())]
    Log { path: PathBuf, source: io::Error },
    #[error("cannot start the worker threads")]
    Runtime(#[source] io::Error),
    #[error("cannot join the cluster of {master}")]
    Join { master: String, source: StartError },
}

/// Records as the flags say, with clients up to the number `last`.
pub(crate) fn record(args: &Record, last: u32) -> Result<(), RecordError> {
    let failed = |source| RecordError::Log { path: args.output.clone(), source };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(RecordError::Runtime)?;
    let mut clients = Vec::new();
    for _ in args.first_client..=last {
        clients.push(runtime.block_on(Box::pin(join(args)))?);
    }
    let mut log = LogWriter::create(&args.output).map_err(failed)?;
    for key in 0..args.keys {
        log.name(key, &name(key)).map_err(failed)?;
    }
    println!("recording");
    let (log, until) = (Mutex::new(log), Instant::now() + Duration::from_secs(args.seconds));
    let recorded: io::Result<u64> = std::thread::scope(|scope| {
        let threads: Vec<_> = (args.first_client..=last)
            .zip(&clients)
            .map(|(number, client)| {
                let mut random = fastrand::Rng::with_seed(args.seed);
                // So that no two clients do the same.
                (0..=number % 1024).for_each(|_| random = random.fork());
                let (log, runtime) = (&log, runtime.handle());
                let worker = Worker { args, number, client, random, log, runtime, versions: 0 };
                scope.spawn(move || worker.work(until))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a worker does not panic")).sum()
    });
    let recorded = recorded.map_err(failed)?;
    runtime.block_on(async {
        for client in &clients {
            client.shutdown().await;
        }
    });
    runtime.shutdown_background();
    println!("{recorded} operations recorded");
    Ok(())
}

async fn join(args: &Record) -> Result<Client, RecordError> {
    let mut rpc = mc_rpc::ClientConfig::default();
    rpc.call_timeout = CALL_TIMEOUT;
    let mut node = NodeConfig::new(TcpConfig::default());
    if !args.shared_memory {
        node.shm = None;
    }
    let client = Client::builder()
        .master(&args.master)
        .rpc(rpc)
        .node(node)
        .segment_size(ByteSize::bytes(0))
        .local_buffer(ByteSize::mib(4));
    client
        .connect()
        .await
        .map_err(|source| RecordError::Join { master: args.master.clone(), source })
}

/// The name of a key in the store.
fn name(key: u32) -> String {
    format!("history/{key}")
}

/// One client. It writes the log between its calls, on a thread of its own.
struct Worker<'a> {
    args: &'a Record,
    number: u32,
    client: &'a Client,
    random: fastrand::Rng,
    log: &'a Mutex<LogWriter<File>>,
    runtime: &'a Handle,
    /// Values that it has written.
    versions: u32,
}

impl Worker<'_> {
    /// Works until this moment, and returns how many operations it has recorded.
    fn work(mut self, until: Instant) -> io::Result<u64> {
        let mut count = 0;
        while Instant::now() < until {
            self.operate()?;
            count += 1;
            std::thread::sleep(self.args.pause);
        }
        Ok(count)
    }

    fn operate(&mut self) -> io::Result<()> {
        let key = self.random.u32(0..self.args.keys);
        let value = ValueId { writer: self.number, version: self.versions };
        let call = match self.random.u32(0..100) {
            0..18 => Call::Put(value),
            18..32 => Call::Upsert(value),
            32..58 => Call::Get,
            58..72 => Call::GetRange,
            72..86 => Call::Exist,
            _ => Call::Remove,
        };
        if matches!(call, Call::Put(_) | Call::Upsert(_)) {
            self.versions += 1;
        }
        let id = self.log().begin(self.number, key, call, now())?;
        let answer = self.call(key, call);
        let end = now();
        self.log().end(id, answer, end)
    }

    fn log(&self) -> std::sync::MutexGuard<'_, LogWriter<File>> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn call(&mut self, key: u32, call: Call) -> Answer {
        let (client, runtime, name) = (self.client, self.runtime, name(key));
        match call {
            Call::Put(id) => {
                let bytes = self.value(key, id);
                match runtime.block_on(client.put(&name, bytes)) {
                    Ok(PutOutcome::Stored) => Answer::Done,
                    Ok(PutOutcome::Existing) => Answer::Existing,
                    // Its own attempt may be what is pending.
                    Ok(PutOutcome::Pending) => Answer::Unknown,
                    Err(error) => unless_refused(&error),
                }
            }
            Call::Upsert(id) => {
                let bytes = self.value(key, id);
                match runtime.block_on(client.upsert(&name, bytes)) {
                    Ok(()) => Answer::Done,
                    Err(error) => unless_refused(&error),
                }
            }
            Call::Get => match runtime.block_on(client.get(&name)) {
                Ok(bytes) => match identify(key, &bytes, 0) {
                    Some(part) if part.len == bytes.len() => Answer::Found(part.id),
                    _ => wrong(&name, &bytes, 0),
                },
                Err(error) => unless_missed(&error),
            },
            Call::GetRange => {
                let begin = self.random.usize(0..SHORTEST / 2);
                let end = begin + self.random.usize(SHORTEST_RANGE..SHORTEST);
                let range = begin as u64..end as u64;
                match runtime.block_on(client.get_range(&name, range)) {
                    Ok(bytes) => match identify(key, &bytes, begin) {
                        Some(part) if begin + bytes.len() == end.min(part.len) => {
                            Answer::Found(part.id)
                        }
                        _ => wrong(&name, &bytes, begin),
                    },
                    Err(error) => unless_missed(&error),
                }
            }
            Call::Exist => match runtime.block_on(client.exist(&name)) {
                Ok(exists) => Answer::Exist(exists),
                Err(_) => Answer::Unknown,
            },
            Call::Remove => {
                let force = self.random.bool();
                match runtime.block_on(client.remove(&name, force)).map_err(|it| it.code()) {
                    Ok(()) => Answer::Done,
                    Err(ErrorCode::ObjectNotFound) => Answer::Absent,
                    Err(
                        ErrorCode::ObjectHasLease
                        | ErrorCode::ReplicaIsNotReady
                        | ErrorCode::ObjectHasReplicationTask,
                    ) => Answer::Refused,
                    Err(_) => Answer::Unknown,
                }
            }
        }
    }

    fn value(&mut self, key: u32, id: ValueId) -> Vec<u8> {
        value(key, id, SHORTEST + self.random.usize(0..SPREAD))
    }
}

/// Only the start of a put is refused when there is no space: nothing was written.
fn unless_refused(error: &PutError) -> Answer {
    match error.code() {
        ErrorCode::Full
        | ErrorCode::Fragmented
        | ErrorCode::TooFewSegments
        | ErrorCode::AllLeased => Answer::Refused,
        _ => Answer::Unknown,
    }
}

fn unless_missed(error: &GetError) -> Answer {
    if matches!(error, GetError::NotFound) { Answer::Missed } else { Answer::Unknown }
}

/// Tells what the log has no room for.
fn wrong(name: &str, bytes: &[u8], offset: usize) -> Answer {
    let begin = bytes.get(..64).unwrap_or(bytes);
    tracing::error!(key = name, len = bytes.len(), offset, ?begin, "wrong bytes");
    Answer::WrongBytes
}
