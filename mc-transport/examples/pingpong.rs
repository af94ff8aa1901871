//! Measures one-sided reads and writes over TCP on loopback, beside a raw
//! ping-pong of the same sizes.
//!
//! Two processes, so that both can be pinned:
//!
//! ```text
//! taskset -c 0 cargo run --release --example pingpong -- serve 127.0.0.1:7000
//! taskset -c 0 cargo run --release --example pingpong -- measure 127.0.0.1:7000
//! ```
//!
//! Prints medians in microseconds and GB/s (10^9 bytes per second).

use std::error::Error;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use mc_transport::{
    Access, Link, Memory, Operation, RemoteSpan, TcpConfig, TcpTransport, Transport,
};
use mc_types::{Endpoint, Extent, RemoteKey};
use socket2::SockRef;

/// Bytes of the region: larger than the caches, so that copies are honest.
const REGION: usize = 256 << 20;

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [role, address] = &arguments[..] else {
        return Err("usage: pingpong serve|measure ADDRESS".into());
    };
    let address: SocketAddr = address.parse()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match role.as_str() {
        "serve" => runtime.block_on(serve(address)),
        "measure" => measure(&runtime, address),
        _ => Err("the role is serve or measure".into()),
    }
}

/// The port after the transport's hands out the key and echoes raw bytes.
fn side_door(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip(), address.port() + 1)
}

async fn serve(address: SocketAddr) -> Outcome {
    let transport = TcpTransport::start(TcpConfig::listening(address)).await?;
    let memory = Memory::allocate(REGION)?;
    memory.whole().copy_from(0, &vec![7; REGION])?;
    let region = transport.register(&memory, Access::ReadWrite)?;
    let key = region.key().to_bytes();
    let listener = TcpListener::bind(side_door(address))?;
    let echo = tokio::task::spawn_blocking(move || answer_raw(&listener, key));
    echo.await??;
    Ok(())
}

/// Serves one client: its key, then raw requests of a length, until it leaves.
fn answer_raw(listener: &TcpListener, key: [u8; 16]) -> std::io::Result<()> {
    let (mut stream, _) = listener.accept()?;
    tune(&stream)?;
    stream.write_all(&key)?;
    let payload = vec![7; 16 << 20];
    let mut request = [0; 40];
    while stream.read_exact(&mut request).is_ok() {
        let len = u64::from_le_bytes(request[32..].try_into().expect("eight bytes"));
        stream.write_all(&payload[..(len as usize).min(payload.len())])?;
    }
    Ok(())
}

fn tune(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    SockRef::from(stream).set_tcp_congestion(b"cubic")
}

fn measure(runtime: &tokio::runtime::Runtime, address: SocketAddr) -> Outcome {
    let mut raw = TcpStream::connect(side_door(address))?;
    tune(&raw)?;
    let mut key = [0; 16];
    raw.read_exact(&mut key)?;
    let key = RemoteKey::from_bytes(key);
    let transport = runtime.block_on(TcpTransport::start(TcpConfig::default()))?;
    let endpoint = Endpoint::new("tcp", &address.to_string())?;
    let link = runtime.block_on(transport.connect(&endpoint))?;
    let memory = Memory::allocate(16 << 20)?;
    memory.whole().copy_from(0, &vec![9; 16 << 20])?;
    let mut buffer = vec![9; 16 << 20];
    println!("{:>9} {:>22} {:>22} {:>22}", "bytes", "raw read", "read", "write");
    for len in [4 << 10, 64 << 10, 1 << 20, 16 << 20] {
        let rounds = (2_000_000_000 / len).clamp(60, 20_000);
        let mut raw_read = |_| {
            let mut request = [0; 40];
            request[32..].copy_from_slice(&(len as u64).to_le_bytes());
            raw.write_all(&request)?;
            Ok(raw.read_exact(&mut buffer[..len])?)
        };
        let raw_time = median(rounds, &mut raw_read)?;
        let mut one = |index: usize, write: bool| {
            let offset = (index * len) % (REGION - len + 1);
            let span = RemoteSpan::new(key, Extent::new(offset as u64, len as u64).expect("small"));
            let local = memory.slice(0, len).expect("the memory holds the largest size");
            let operation =
                if write { Operation::write(local, span) } else { Operation::read(span, local) };
            runtime.block_on(submit(&*link, operation))
        };
        let read_time = median(rounds, &mut |index| one(index, false))?;
        let write_time = median(rounds, &mut |index| one(index, true))?;
        let show = |time: Duration| {
            let micros = time.as_secs_f64() * 1e6;
            format!("{micros:.1} us {:.2} GB/s", len as f64 / micros / 1e3)
        };
        let times = [raw_time, read_time, write_time].map(show);
        println!("{len:>9} {:>22} {:>22} {:>22}", times[0], times[1], times[2]);
    }
    batches(runtime, &*link, key, &memory)
}

async fn submit(link: &dyn Link, operation: Operation) -> Outcome {
    Ok(link.submit(vec![operation]).await.remove(0)?)
}

fn median(rounds: usize, once: &mut dyn FnMut(usize) -> Outcome) -> Outcome<Duration> {
    let mut times = Vec::with_capacity(rounds);
    for index in 0..rounds + rounds / 10 {
        let start = Instant::now();
        once(index)?;
        times.push(start.elapsed());
    }
    // The first tenth warms caches and windows up.
    let times = &mut times[rounds / 10..];
    times.sort_unstable();
    Ok(times[times.len() / 2])
}

/// Batches of 1000 operations of 4 KiB.
fn batches(
    runtime: &tokio::runtime::Runtime,
    link: &dyn Link,
    key: RemoteKey,
    memory: &Memory,
) -> Outcome {
    for write in [false, true] {
        let mut once = |_| {
            let batch = (0..1000).map(|index| {
                let extent = Extent::new(index * 4096, 4096).expect("small");
                let span = RemoteSpan::new(key, extent);
                let local = memory.slice(index as usize * 4096, 4096).expect("it has 16 MiB");
                if write { Operation::write(local, span) } else { Operation::read(span, local) }
            });
            let results = runtime.block_on(link.submit(batch.collect()));
            results.into_iter().collect::<Result<(), _>>()?;
            Ok(())
        };
        let time = median(300, &mut once)?.as_secs_f64();
        let name = if write { "writes" } else { "reads" };
        let rate = 1e3 / time / 1e3;
        println!(
            "1000 {name} of 4 KiB: {:.0} us, {rate:.0} k/s, {:.2} GB/s",
            time * 1e6,
            4.096e-3 / time
        );
    }
    Ok(())
}
