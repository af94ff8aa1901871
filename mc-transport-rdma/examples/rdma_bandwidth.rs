//! Measures the bandwidth of one-sided writes and reads over RDMA, in the way of perftest's
//! `ib_write_bw` and `ib_read_bw`: operations of one size, a fixed number of them in flight.
//!
//! ```text
//! cargo run --release --features rdma --example rdma_bandwidth -- 1048576 4 200
//! ```
//!
//! The arguments are the bytes of an operation, the operations in flight and the operations of
//! each direction. The owner of the memory is another transport of the same process; with
//! `--processes` it is a process of its own. `--devices OWNER,PEER` names the devices of the two.
//!
//! Prints `WRITE` and `READ`, each with MiB per second.

use std::error::Error;

#[cfg(target_os = "linux")]
fn main() -> Result<(), Box<dyn Error>> {
    linux::main()
}

#[cfg(not(target_os = "linux"))]
fn main() -> Result<(), Box<dyn Error>> {
    Err("RDMA needs Linux".into())
}

#[cfg(target_os = "linux")]
mod linux {
    use std::error::Error;
    use std::io::{BufRead as _, BufReader, Read as _};
    use std::process::{Child, Command, Stdio};
    use std::sync::Arc;
    use std::time::Instant;

    use mc_transport::{Access, Link as _, Memory, Operation, Region, RemoteSpan, Transport as _};
    use mc_transport_rdma::{RdmaConfig, RdmaLink, RdmaTransport};
    use mc_types::{Endpoint, Extent, RemoteKey};

    type Outcome<T = ()> = Result<T, Box<dyn Error>>;

    const USAGE: &str = "usage: rdma_bandwidth SIZE IN_FLIGHT COUNT [--processes] \
                         [--devices OWNER,PEER]";

    /// The arguments of a measurement.
    #[derive(Clone, Debug, Default)]
    struct Arguments {
        size: usize,
        in_flight: usize,
        count: usize,
        processes: bool,
        /// Serve another process of this program.
        serve: bool,
        owner_devices: Vec<String>,
        peer_devices: Vec<String>,
    }

    impl Arguments {
        fn parse(mut from: impl Iterator<Item = String>) -> Outcome<Self> {
            let mut number = || -> Outcome<usize> { Ok(from.next().ok_or(USAGE)?.parse()?) };
            let (size, in_flight, count) = (number()?, number()?, number()?);
            let mut all = Self { size, in_flight, count, ..Self::default() };
            while let Some(flag) = from.next() {
                match flag.as_str() {
                    "--processes" => all.processes = true,
                    "--serve" => all.serve = true,
                    "--devices" => {
                        let names = from.next().ok_or(USAGE)?;
                        let (owner, peer) = names.split_once(',').ok_or(USAGE)?;
                        all.owner_devices = vec![owner.to_owned()];
                        all.peer_devices = vec![peer.to_owned()];
                    }
                    _ => return Err(USAGE.into()),
                }
            }
            let is_sound = all.size > 0 && all.in_flight > 0 && all.count > 0;
            if is_sound { Ok(all) } else { Err(USAGE.into()) }
        }
    }

    pub(super) fn main() -> Outcome {
        let arguments = Arguments::parse(std::env::args().skip(1))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            if arguments.serve {
                let (owner, region) = serve(&arguments).await?;
                let endpoint = owner.endpoint().ok_or("the owner listens")?;
                println!("{endpoint} {}", u128::from_le_bytes(region.key().to_bytes()));
                // Until the other process closes the pipe.
                let end = || std::io::stdin().read(&mut [0]);
                tokio::task::spawn_blocking(end).await??;
                Ok(())
            } else if arguments.processes {
                let mut owner = Owner::start()?;
                let (endpoint, key) = owner.address()?;
                measure(&arguments, &endpoint, key).await
            } else {
                let (owner, region) = serve(&arguments).await?;
                let endpoint = owner.endpoint().ok_or("the owner listens")?;
                measure(&arguments, endpoint, region.key()).await
            }
        })
    }

    /// The other process. Dropping it ends it.
    struct Owner(Child);

    impl Owner {
        fn start() -> Outcome<Self> {
            let mut command = Command::new(std::env::current_exe()?);
            command.args(std::env::args().skip(1)).arg("--serve");
            Ok(Self(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?))
        }

        fn address(&mut self) -> Outcome<(Endpoint, RemoteKey)> {
            let mut line = String::new();
            let out = self.0.stdout.as_mut().ok_or("the pipe is open")?;
            BufReader::new(out).read_line(&mut line)?;
            let (endpoint, key) = line.trim().split_once(' ').ok_or("the owner did not start")?;
            let key = RemoteKey::from_bytes(key.parse::<u128>()?.to_le_bytes());
            Ok((endpoint.parse()?, key))
        }
    }

    impl Drop for Owner {
        fn drop(&mut self) {
            drop(self.0.stdin.take());
            let _ = self.0.wait();
        }
    }

    /// The owner of the memory.
    async fn serve(arguments: &Arguments) -> Outcome<(RdmaTransport, Region)> {
        let mut config = RdmaConfig::listening("127.0.0.1:0".parse()?);
        config.devices = arguments.owner_devices.clone();
        let owner = RdmaTransport::start(config).await?;
        let memory = Memory::allocate(arguments.size * arguments.in_flight)?;
        let region = owner.register(&memory, Access::ReadWrite)?;
        Ok((owner, region))
    }

    async fn measure(arguments: &Arguments, endpoint: &Endpoint, key: RemoteKey) -> Outcome {
        let mut config = RdmaConfig::default();
        config.devices = arguments.peer_devices.clone();
        let peer = RdmaTransport::start(config).await?;
        let link = peer.connect(endpoint).await?;
        let memory = Memory::allocate(arguments.size * arguments.in_flight)?;
        for (name, is_write) in [("WRITE", true), ("READ", false)] {
            // Asks for the region's keys and registers the local memory.
            run(arguments, arguments.in_flight, &link, &memory, key, is_write).await?;
            let begun = Instant::now();
            run(arguments, arguments.count, &link, &memory, key, is_write).await?;
            let bytes = (arguments.size * arguments.count) as f64;
            println!("{name} {:.1}", bytes / f64::from(1 << 20) / begun.elapsed().as_secs_f64());
        }
        Ok(())
    }

    /// Carries out `count` operations, `in_flight` of them at the same time.
    async fn run(
        arguments: &Arguments,
        count: usize,
        link: &Arc<RdmaLink>,
        memory: &Memory,
        key: RemoteKey,
        is_write: bool,
    ) -> Outcome {
        let (size, in_flight) = (arguments.size, arguments.in_flight);
        let mut tasks = Vec::new();
        for place in 0..in_flight {
            let local = memory.slice(place * size, size).ok_or("the place lies in the memory")?;
            let extent = Extent::new((place * size) as u64, size as u64).ok_or("too large")?;
            let (span, link) = (RemoteSpan::new(key, extent), Arc::clone(link));
            let share = count / in_flight + usize::from(place < count % in_flight);
            tasks.push(tokio::spawn(async move {
                for _ in 0..share {
                    let operation = match is_write {
                        true => Operation::write(local.clone(), span),
                        false => Operation::read(span, local.clone()),
                    };
                    link.submit(vec![operation]).await.remove(0)?;
                }
                Ok::<(), mc_transport::TransferError>(())
            }));
        }
        for task in tasks {
            task.await??;
        }
        Ok(())
    }
}
