//! Measures the protocol against a master with one object: round trips one at a
//! time, calls under way together, batches. Client and server run in one
//! process on two runtimes; pin it (`taskset -c 0`) to compare numbers.
//!
//! `cargo run --release -p mc-rpc --example round_trips`; with `-- leader` the server answers in a
//! term, whose end it looks for before each write.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use mc_meta::{Master, MasterConfig, PutEnd, PutStart, ReplicateConfig, SegmentSpec};
use mc_rpc::frame::HEADER_LEN;
use mc_rpc::{
    Authority, ClientConfig, MasterClient, MasterService, PutStartItem, RpcError, Server,
    ServerConfig, SystemClock, Term, blocking,
};
use mc_types::{ClientId, Endpoint, Epoch, KeyRef, RemoteKey, SegmentId};
use tokio::runtime::{Builder, Runtime};

type Failure = Box<dyn Error + Send + Sync>;

const ME: ClientId = ClientId::from_u128(1);
const RUN: Duration = Duration::from_secs(2);
const KEY: &str = "model-a/layer-00/block-000000000000000017";

/// A lease by the clock.
#[derive(Debug)]
struct Lease(Instant);

impl Authority for Lease {
    fn may_answer(&self) -> bool {
        Instant::now() < self.0
    }
}

fn runtime() -> std::io::Result<Runtime> {
    Builder::new_multi_thread().worker_threads(1).enable_all().build()
}

fn main() -> Result<(), Failure> {
    let (servers, clients) = (runtime()?, runtime()?);
    let master = Arc::new(Master::new(MasterConfig::default(), 3)?);
    let service = MasterService::new(master, SystemClock::new());
    let server = servers.block_on(async {
        let mut config = ServerConfig::default();
        if std::env::args().any(|word| word == "leader") {
            let authority = Arc::new(Lease(Instant::now() + Duration::from_secs(3600)));
            config.term = Some(Term { epoch: Epoch::new(1), authority });
        }
        let server = Server::bind("127.0.0.1:0", service, config).await?;
        Ok::<_, mc_rpc::BindError>(server.spawn())
    })?;
    let addr = server.local_addr().to_string();
    let measured = clients.block_on(clients.spawn(measure(addr.clone())));
    bare_sockets()?;
    without_runtime(&addr)?;
    let measured = measured?;
    servers.block_on(server.shutdown());
    measured
}

async fn measure(addr: String) -> Result<(), Failure> {
    let client = MasterClient::connect(&addr, ClientConfig::default()).await?;
    let key = KeyRef::new(KEY)?;
    let spec = SegmentSpec {
        id: SegmentId::from_u128(1),
        name: "node-1".into(),
        base: 0,
        size: 64 << 30,
        endpoint: Endpoint::new("tcp", "10.0.0.1:50052")?,
        remote_key: RemoteKey::from_bytes([1; 16]),
        ticket_key: None,
        medium: mc_types::MediaType::Dram,
    };
    client.mount_segment(ME, &spec).await?;
    let config = ReplicateConfig::default();
    let put = PutStart { key, slice_lengths: &[65_536], config: &config };
    let grant = client.put_start(ME, &put).await?;
    let end = PutEnd::new(key, grant.handle);
    client.put_end(ME, &end).await?;

    for question in [Question::Exist, Question::GetReplicaList] {
        one_at_a_time(question, &client).await?;
        for in_flight in [16, 64, 512] {
            together(question, in_flight, &client).await?;
        }
    }
    batches(&client).await?;
    idle(&addr).await
}

#[derive(Clone, Copy, Debug)]
enum Question {
    Exist,
    GetReplicaList,
}

impl Question {
    async fn ask(self, client: &MasterClient, key: KeyRef<'_>) -> Result<(), RpcError> {
        match self {
            Self::Exist => client.exist(key).await.map(drop),
            Self::GetReplicaList => client.get_replica_list(key).await.map(drop),
        }
    }
}

async fn one_at_a_time(question: Question, client: &MasterClient) -> Result<(), Failure> {
    let mut latencies = Histogram::<u64>::new(3)?;
    let (begin, key) = (Instant::now(), KeyRef::new(KEY)?);
    while begin.elapsed() < RUN {
        let start = Instant::now();
        question.ask(client, key).await?;
        latencies.record(start.elapsed().as_nanos() as u64)?;
    }
    tell(&format!("{question:?}, one at a time"), &latencies);
    Ok(())
}

/// Measures two threads that send each other as many bytes as a call does.
fn bare_sockets() -> Result<(), Failure> {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let mut near = std::net::TcpStream::connect(listener.local_addr()?)?;
    let (mut far, _) = listener.accept()?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    let (question, mut answer) = ([0; HEADER_LEN + 2 + KEY.len()], [0_u8; HEADER_LEN + 2]);
    let answering = std::thread::spawn(move || {
        let answer = [0; HEADER_LEN + 2];
        let mut question = [0; HEADER_LEN + 2 + KEY.len()];
        while far.read_exact(&mut question).is_ok() && far.write_all(&answer).is_ok() {}
    });
    let mut latencies = Histogram::<u64>::new(3)?;
    let begin = Instant::now();
    while begin.elapsed() < RUN {
        let start = Instant::now();
        near.write_all(&question)?;
        near.read_exact(&mut answer)?;
        latencies.record(start.elapsed().as_nanos() as u64)?;
    }
    drop(near);
    answering.join().map_err(|_| "the other thread panicked")?;
    tell("bare sockets, one at a time", &latencies);
    Ok(())
}

/// The blocking client.
fn without_runtime(addr: &str) -> Result<(), Failure> {
    let client = blocking::MasterClient::connect(addr, ClientConfig::default())?;
    let (mut latencies, key) = (Histogram::<u64>::new(3)?, KeyRef::new(KEY)?);
    let begin = Instant::now();
    while begin.elapsed() < RUN {
        let start = Instant::now();
        client.exist(key)?;
        latencies.record(start.elapsed().as_nanos() as u64)?;
    }
    tell("Exist by the blocking client, one at a time", &latencies);
    Ok(())
}

fn tell(what: &str, latencies: &Histogram<u64>) {
    let us = |quantile| latencies.value_at_quantile(quantile) as f64 / 1000.0;
    println!("{what}: p50 {:.1} us, p99 {:.1} us", us(0.5), us(0.99));
}

async fn together(
    question: Question,
    in_flight: usize,
    client: &MasterClient,
) -> Result<(), Failure> {
    let begin = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..in_flight {
        let client = client.clone();
        tasks.spawn(async move {
            let (mut calls, key) = (0u64, KeyRef::new(KEY).expect("a fixed good key"));
            while begin.elapsed() < RUN {
                question.ask(&client, key).await?;
                calls += 1;
            }
            Ok::<_, RpcError>(calls)
        });
    }
    let mut calls = 0;
    while let Some(done) = tasks.join_next().await {
        calls += done??;
    }
    let per_s = calls as f64 / begin.elapsed().as_secs_f64();
    println!("{question:?}, {in_flight} under way: {:.0} k/s", per_s / 1000.0);
    Ok(())
}

async fn batches(client: &MasterClient) -> Result<(), Failure> {
    let names: Vec<String> = (0..1000).map(|i| format!("{KEY}-{i:08}")).collect();
    let keys: Vec<KeyRef<'_>> =
        names.iter().map(|name| KeyRef::new(name)).collect::<Result<_, _>>()?;
    let items: Vec<_> = keys.iter().map(|&key| PutStartItem::new(key, &[65_536])).collect();
    let (config, begin, mut puts) = (ReplicateConfig::default(), Instant::now(), 0);
    while begin.elapsed() < RUN {
        client.batch_remove(&keys, true).await?;
        let grants = client.batch_put_start(ME, &config, &items).await?;
        let ends = grants.iter().zip(&keys).filter_map(|(grant, &key)| {
            let handle = grant.as_ref().ok()?.handle;
            Some(PutEnd::new(key, handle))
        });
        client.batch_put_end(ME, &ends.collect::<Vec<_>>()).await?;
        puts += keys.len();
    }
    let per_s = puts as f64 / begin.elapsed().as_secs_f64();
    println!("remove, put_start and put_end in batches of 1000: {:.0} k objects/s", per_s / 1000.0);

    let (begin, mut got) = (Instant::now(), 0);
    while begin.elapsed() < RUN {
        got += client.batch_get_replica_list(&keys).await?.iter().flatten().count();
    }
    let per_s = got as f64 / begin.elapsed().as_secs_f64();
    println!("get_replica_list in batches of 1000: {:.0} k keys/s", per_s / 1000.0);

    let (begin, mut asked) = (Instant::now(), 0);
    while begin.elapsed() < RUN {
        asked += client.batch_exist(&keys).await?.len();
    }
    let per_s = asked as f64 / begin.elapsed().as_secs_f64();
    println!("exist in batches of 1000: {:.0} k keys/s", per_s / 1000.0);
    Ok(())
}

/// Resident memory of the server's side of idle connections: plain sockets that
/// have shaken hands.
async fn idle(addr: &str) -> Result<(), Failure> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    const CONNECTIONS: usize = 400;
    let preface = mc_rpc::frame::ClientPreface::with(1 << 24, &mc_rpc::frame::Hello::default());
    let mut open = Vec::with_capacity(CONNECTIONS);
    let before = resident()?;
    for _ in 0..CONNECTIONS {
        let mut stream = tokio::net::TcpStream::connect(addr).await?;
        stream.write_all(&preface).await?;
        stream.read_exact(&mut [0; mc_rpc::frame::SERVER_PREFACE_LEN]).await?;
        open.push(stream);
    }
    let bytes = resident()?.saturating_sub(before) / CONNECTIONS as u64;
    println!("an idle connection: {bytes} bytes resident, both ends");
    Ok(())
}

fn resident() -> std::io::Result<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    Ok(pages.unwrap_or(0) * 4096)
}
