//! Measures one-sided reads and writes on loopback, over TCP or QUIC, beside a raw
//! ping-pong of the same sizes over TCP.
//!
//! Two processes, so that both can be pinned:
//!
//! ```text
//! taskset -c 0 cargo run --release --example pingpong -- serve 127.0.0.1:7000
//! taskset -c 0 cargo run --release --example pingpong -- measure 127.0.0.1:7000
//! ```
//!
//! `--tls DIRECTORY` behind both, with the feature `tls`, encrypts: the server puts its
//! certificate there, and the other side trusts it. `--quic DIRECTORY`, with the same
//! feature, does the same over QUIC.
//!
//! Prints medians in microseconds and GB/s (10^9 bytes per second).

use std::error::Error;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
#[cfg(feature = "tls")]
use std::sync::Arc;
use std::time::{Duration, Instant};

use mc_transport::{
    Access, DynTransport, Link, Memory, Operation, RemoteSpan, TcpConfig, TcpTransport,
};
use mc_types::{Endpoint, Extent, RemoteKey};
use socket2::SockRef;

/// Bytes of one operation.
const SIZES: [usize; 4] = [4 << 10, 64 << 10, 1 << 20, 16 << 20];

/// Bytes of the region: larger than the caches, so that copies are honest.
const REGION: usize = 256 << 20;

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (role, address, over) = match &arguments[..] {
        [role, address] => (role, address, Over::Tcp),
        [role, address, flag, dir] if flag == "--tls" => (role, address, Over::Tls(dir.as_ref())),
        [role, address, flag, dir] if flag == "--quic" => (role, address, Over::Quic(dir.as_ref())),
        _ => return Err("usage: pingpong serve|measure ADDRESS [--tls|--quic DIRECTORY]".into()),
    };
    let address: SocketAddr = address.parse()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match role.as_str() {
        "serve" => runtime.block_on(serve(address, over)),
        "measure" => measure(&runtime, address, over),
        _ => Err("the role is serve or measure".into()),
    }
}

/// The port after the transport's hands out the key and echoes raw bytes.
fn side_door(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip(), address.port() + 1)
}

/// The transport that is measured, with its certificate.
#[derive(Clone, Copy)]
enum Over<'a> {
    Tcp,
    Tls(&'a Path),
    Quic(&'a Path),
}

impl Over<'_> {
    fn scheme(self) -> &'static str {
        match self {
            Self::Tcp | Self::Tls(_) => "tcp",
            Self::Quic(_) => "quic",
        }
    }

    /// A node that listens at `address`, or one that connects to it.
    async fn node(self, listen: bool, address: SocketAddr) -> Outcome<Box<dyn DynTransport>> {
        let tcp = if listen { TcpConfig::listening(address) } else { TcpConfig::default() };
        match self {
            Self::Tcp => Ok(Box::new(TcpTransport::start(tcp).await?)),
            Self::Tls(directory) => tls(tcp, directory).await,
            Self::Quic(directory) => quic(listen.then_some(address), directory).await,
        }
    }
}

#[cfg(feature = "tls")]
async fn tls(mut config: TcpConfig, directory: &Path) -> Outcome<Box<dyn DynTransport>> {
    let mut settings = mc_transport::TcpTls::new(trusting(directory));
    if let Some(address) = config.listen {
        settings = settings.server(certified(directory, address)?);
    }
    config.tls = Some(settings);
    Ok(Box::new(TcpTransport::start(config).await?))
}

#[cfg(not(feature = "tls"))]
async fn tls(_: TcpConfig, _: &Path) -> Outcome<Box<dyn DynTransport>> {
    Err("build it with --features tls".into())
}

#[cfg(feature = "tls")]
async fn quic(listen: Option<SocketAddr>, directory: &Path) -> Outcome<Box<dyn DynTransport>> {
    use mc_transport_quic::{QuicConfig, QuicTransport};

    let mut config = match listen {
        Some(address) => QuicConfig::listening(address, certified(directory, address)?),
        None => QuicConfig::connecting(trusting(directory)),
    };
    // The certificates of clients take part in the handshake only.
    config.allow_anonymous_clients = true;
    Ok(Box::new(QuicTransport::start(config).await?))
}

#[cfg(not(feature = "tls"))]
async fn quic(_: Option<SocketAddr>, _: &Path) -> Outcome<Box<dyn DynTransport>> {
    Err("build it with --features tls".into())
}

/// A new certificate for `address`, which is put in `directory`.
#[cfg(feature = "tls")]
fn certified(directory: &Path, address: SocketAddr) -> Outcome<Arc<mc_tls::ServerTls>> {
    let (cert, key) = (directory.join("cert.pem"), directory.join("key.pem"));
    let made = rcgen::generate_simple_self_signed([address.ip().to_string()])?;
    std::fs::write(&cert, made.cert.pem())?;
    std::fs::write(&key, made.signing_key.serialize_pem())?;
    Ok(Arc::new(mc_tls::ServerTls::load(mc_tls::TlsFiles::new(cert, key))?))
}

/// Trusts the certificate in `directory`.
#[cfg(feature = "tls")]
fn trusting(directory: &Path) -> mc_tls::ClientTls {
    mc_tls::ClientTls::new(directory.join("cert.pem"))
}

async fn serve(address: SocketAddr, over: Over<'_>) -> Outcome {
    let listener = TcpListener::bind(side_door(address))?;
    let transport = over.node(true, address).await?;
    let memory = Memory::allocate(REGION)?;
    memory.whole().copy_from(0, &vec![7; REGION])?;
    let region = transport.register(&memory, Access::ReadWrite)?;
    let key = region.key().to_bytes();
    let echo = tokio::task::spawn_blocking(move || answer_raw(&listener, key));
    echo.await??;
    Ok(())
}

/// Serves one client: its key, then reads of an offset and a length, until it
/// leaves.
fn answer_raw(listener: &TcpListener, key: [u8; 16]) -> std::io::Result<()> {
    let (mut stream, _) = listener.accept()?;
    tune(&stream)?;
    stream.write_all(&key)?;
    let payload = vec![7; REGION];
    let mut request = [0; 40];
    while stream.read_exact(&mut request).is_ok() {
        let field = |at: usize| {
            u64::from_le_bytes(request[at..at + 8].try_into().expect("eight bytes")) as usize
        };
        let (offset, len) = (field(24), field(32));
        stream.write_all(&payload[offset..offset + len])?;
    }
    Ok(())
}

fn tune(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    SockRef::from(stream).set_tcp_congestion(b"cubic")
}

fn measure(runtime: &tokio::runtime::Runtime, address: SocketAddr, over: Over<'_>) -> Outcome {
    let mut raw = TcpStream::connect(side_door(address))?;
    tune(&raw)?;
    let mut key = [0; 16];
    raw.read_exact(&mut key)?;
    let key = RemoteKey::from_bytes(key);
    let mut local = vec![9; 16 << 20];
    let mut raw_times = Vec::new();
    for len in SIZES {
        raw_times.push(median(len, |offset| {
            let mut request = [0; 40];
            request[24..32].copy_from_slice(&(offset as u64).to_le_bytes());
            request[32..].copy_from_slice(&(len as u64).to_le_bytes());
            raw.write_all(&request)?;
            Ok(raw.read_exact(&mut local[..len])?)
        })?);
    }
    runtime.block_on(measure_links(address, over, key, &raw_times))
}

async fn measure_links(
    address: SocketAddr,
    over: Over<'_>,
    key: RemoteKey,
    raw_times: &[Duration],
) -> Outcome {
    let transport = over.node(false, address).await?;
    let link = transport.connect(&Endpoint::new(over.scheme(), &address.to_string())?).await?;
    let memory = Memory::allocate(16 << 20)?;
    memory.whole().copy_from(0, &vec![9; 16 << 20])?;
    println!("{:>9} {:>22} {:>22} {:>22}", "bytes", "raw read", "read", "write");
    for (len, raw_time) in SIZES.into_iter().zip(raw_times) {
        let local = memory.slice(0, len).expect("the memory holds the largest size");
        let mut times = [*raw_time, Duration::ZERO, Duration::ZERO];
        for (write, time) in [false, true].into_iter().zip(&mut times[1..]) {
            let mut samples = Samples::new(len);
            while let Some(offset) = samples.next_offset() {
                let extent = Extent::new(offset as u64, len as u64).expect("it is in the region");
                let span = RemoteSpan::new(key, extent);
                let operation = match write {
                    true => Operation::write(local.clone(), span),
                    false => Operation::read(span, local.clone()),
                };
                let start = Instant::now();
                link.submit(vec![operation]).await.remove(0)?;
                samples.add(start.elapsed());
            }
            *time = samples.median();
        }
        let show = |time: Duration| {
            let micros = time.as_secs_f64() * 1e6;
            format!("{micros:.1} us {:.2} GB/s", len as f64 / micros / 1e3)
        };
        let times = times.map(show);
        println!("{len:>9} {:>22} {:>22} {:>22}", times[0], times[1], times[2]);
    }
    batches(&*link, key, &memory).await
}

/// Durations of one kind of operation, at offsets that pass through the region.
struct Samples {
    len: usize,
    rounds: usize,
    begun: usize,
    times: Vec<Duration>,
}

impl Samples {
    fn new(len: usize) -> Self {
        let rounds = (2_000_000_000 / len).clamp(60, 20_000);
        Self { len, rounds, begun: 0, times: Vec::with_capacity(rounds + rounds / 10) }
    }

    fn next_offset(&mut self) -> Option<usize> {
        let index = self.begun;
        self.begun += 1;
        (index < self.rounds + self.rounds / 10).then(|| index * self.len % REGION)
    }

    fn add(&mut self, time: Duration) {
        self.times.push(time);
    }

    /// The median after the first tenth, which warms caches and windows up.
    fn median(self) -> Duration {
        let mut times = self.times;
        let times = &mut times[self.rounds / 10..];
        times.sort_unstable();
        times[times.len() / 2]
    }
}

fn median(len: usize, mut once: impl FnMut(usize) -> Outcome) -> Outcome<Duration> {
    let mut samples = Samples::new(len);
    while let Some(offset) = samples.next_offset() {
        let start = Instant::now();
        once(offset)?;
        samples.add(start.elapsed());
    }
    Ok(samples.median())
}

/// Batches of 1000 operations of 4 KiB.
async fn batches(link: &dyn Link, key: RemoteKey, memory: &Memory) -> Outcome {
    for write in [false, true] {
        let mut samples = Samples::new(1000 * 4096);
        while samples.next_offset().is_some() {
            let batch = (0..1000).map(|index| {
                let extent = Extent::new(index * 4096, 4096).expect("it is in the region");
                let span = RemoteSpan::new(key, extent);
                let local = memory.slice(index as usize * 4096, 4096).expect("it has 16 MiB");
                if write { Operation::write(local, span) } else { Operation::read(span, local) }
            });
            let batch = batch.collect();
            let start = Instant::now();
            link.submit(batch).await.into_iter().collect::<Result<Vec<_>, _>>()?;
            samples.add(start.elapsed());
        }
        let time = samples.median().as_secs_f64();
        let name = if write { "writes" } else { "reads" };
        let (micros, rate, speed) = (time * 1e6, 1.0 / time, 4.096e-3 / time);
        println!("1000 {name} of 4 KiB: {micros:.0} us, {rate:.0} k/s, {speed:.2} GB/s");
    }
    Ok(())
}
