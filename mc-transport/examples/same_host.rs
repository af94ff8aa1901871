//! Measures reads, writes and views between two processes of one host that share
//! memory, beside a plain copy inside one process.
//!
//! ```text
//! cargo run --release --example same_host
//! ```
//!
//! The owner is this program again, in a process of its own. Prints medians in
//! microseconds and GB/s (10^9 bytes per second).

#[cfg(target_os = "linux")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    linux::main()
}

#[cfg(not(target_os = "linux"))]
fn main() {
    eprintln!("shared memory between processes needs Linux");
}

#[cfg(target_os = "linux")]
mod linux {
    use std::error::Error;
    use std::io::{BufRead, BufReader, Read};
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use mc_transport::{
        Access, Link, Memory, Operation, RemoteSpan, ShmConfig, ShmLink, ShmTransport, Transport,
    };
    use mc_types::{Endpoint, Extent, RemoteKey};

    /// Bytes of one operation.
    const SIZES: [usize; 4] = [4 << 10, 64 << 10, 1 << 20, 16 << 20];

    /// Bytes of the region: larger than the caches, so that copies are honest.
    const REGION: usize = 256 << 20;

    type Outcome<T = ()> = Result<T, Box<dyn Error>>;

    pub(super) fn main() -> Outcome {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        if std::env::args().nth(1).as_deref() == Some("own") {
            return runtime.block_on(own());
        }
        let mut owner = Command::new(std::env::current_exe()?);
        owner.arg("own").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut owner = owner.spawn()?;
        let mut words = String::new();
        let said = owner.stdout.take().ok_or("the owner has an output")?;
        BufReader::new(said).read_line(&mut words)?;
        let (endpoint, key) = words.trim().split_once(' ').ok_or("the owner did not start")?;
        let key = RemoteKey::from_bytes(u128::from_str_radix(key, 16)?.to_le_bytes());
        let outcome = runtime.block_on(measure(&endpoint.parse()?, key));
        // It ends when its input is closed.
        drop(owner.stdin.take());
        owner.wait()?;
        outcome
    }

    /// Owns the region until the measuring process is done.
    async fn own() -> Outcome {
        let transport = ShmTransport::start(ShmConfig::default()).await?;
        let memory = transport.allocate(REGION)?;
        memory.whole().copy_from(0, &vec![7; REGION])?;
        let region = transport.register(&memory, Access::ReadWrite)?;
        let key = u128::from_le_bytes(region.key().to_bytes());
        println!("{} {key:032x}", transport.endpoint().ok_or("it listens")?);
        tokio::task::spawn_blocking(|| std::io::stdin().read(&mut [0])).await??;
        Ok(())
    }

    async fn measure(endpoint: &Endpoint, key: RemoteKey) -> Outcome {
        let transport = ShmTransport::start(ShmConfig::default()).await?;
        let link = transport.connect(endpoint).await?;
        let local = Memory::allocate(16 << 20)?;
        local.whole().copy_from(0, &vec![9; 16 << 20])?;
        let begun = Instant::now();
        one(&link, Operation::read(span(key, 0, 0), Vec::new())).await?;
        println!("opening the region: {:?}", begun.elapsed());
        // Of the same kind: the system may give private memory larger pages.
        let plain = transport.allocate(REGION)?;
        plain.whole().copy_from(0, &vec![7; REGION])?;
        println!("{:>9} {:>22} {:>22} {:>22}", "bytes", "plain copy", "read", "write");
        for len in SIZES {
            let target = local.slice(0, len).ok_or("the memory holds the largest size")?;
            let mut times = [(); 3].map(|()| Vec::new());
            let rounds = (4_000_000_000 / len).clamp(200, 50_000);
            for round in 0..rounds {
                let offset = round * len % REGION;
                let source = plain.slice(offset, len).ok_or("the region is as large")?;
                let start = Instant::now();
                source.copy_to_slice(&target)?;
                times[0].push(start.elapsed());
                let remote = span(key, offset as u64, len as u64);
                let start = Instant::now();
                one(&link, Operation::read(remote, target.clone())).await?;
                times[1].push(start.elapsed());
                let start = Instant::now();
                one(&link, Operation::write(target.clone(), remote)).await?;
                times[2].push(start.elapsed());
            }
            let shown = times.map(|times| {
                let micros = median(times).as_secs_f64() * 1e6;
                format!("{micros:.2} us {:.2} GB/s", len as f64 / micros / 1e3)
            });
            println!("{len:>9} {:>22} {:>22} {:>22}", shown[0], shown[1], shown[2]);
        }
        batches(&link, key, &local).await?;
        let mut times = Vec::new();
        for round in 0..50_000_u64 {
            let start = Instant::now();
            let view = link.view(span(key, round * 4096 % (REGION as u64), 4096))?;
            std::hint::black_box(view.is_current());
            times.push(start.elapsed());
        }
        println!("a view: {:?}", median(times));
        Ok(())
    }

    /// Batches of 1000 operations of 4 KiB.
    async fn batches(link: &ShmLink, key: RemoteKey, local: &Memory) -> Outcome {
        let mut times = Vec::new();
        for _ in 0..500 {
            let read = |index: usize| {
                let target = local.slice(index * 4096, 4096)?;
                Some(Operation::read(span(key, index as u64 * 4096, 4096), target))
            };
            let batch = (0..1000).map(read).collect::<Option<_>>().ok_or("it has 16 MiB")?;
            let start = Instant::now();
            link.submit(batch).await.into_iter().collect::<Result<Vec<_>, _>>()?;
            times.push(start.elapsed());
        }
        println!("1000 reads of 4 KiB: {:?}", median(times));
        Ok(())
    }

    async fn one(link: &ShmLink, operation: Operation) -> Outcome {
        link.submit(vec![operation]).await.remove(0)?;
        Ok(())
    }

    fn span(key: RemoteKey, offset: u64, len: u64) -> RemoteSpan {
        RemoteSpan::new(key, Extent::new(offset, len).expect("it is in the region"))
    }

    /// The median after the first tenth, which warms caches and mappings up.
    fn median(mut times: Vec<Duration>) -> Duration {
        times.drain(..times.len() / 10);
        times.sort_unstable();
        times[times.len() / 2]
    }
}
