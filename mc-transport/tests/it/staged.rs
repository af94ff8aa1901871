//! Regions over memory that is reached through stages, as a GPU's is: the right bytes over every
//! transport, devices that fail or hang, and peers that are slow.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use mc_testkit::eventually;
use mc_ticket::{ClockEpoch, Rights, TicketKey};
use mc_tls::{ClientTls, ServerTls, TlsFiles};
use mc_transport::{
    Access, BootTime, DynTransport, Link, MasterClock, Memory, MemorySlice, Node, NodeConfig,
    Operation, Outcome, Region, RegionTable, RegisterError, RemoteSpan, StagedMemory, Staging,
    TcpConfig, TcpTls, TcpTransport, Tickets, TransferError,
};
use mc_transport_quic::{QuicConfig, QuicTransport};
use mc_types::{Endpoint, Extent, Time};
use parking_lot::{Condvar, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::certificates::Authority;
use crate::tcp_wire::WELCOME;

/// Long enough for a loaded machine; nothing waits for it when all is well.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// Bytes of a stage.
const PART: usize = 64 << 10;

/// A device that is memory of the host, and fails or hangs when it is told to.
#[derive(Clone)]
pub(crate) struct Device(Arc<State>);

pub(crate) struct State {
    memory: Memory,
    /// Copies that still succeed.
    sound: AtomicUsize,
    hangs: Mutex<bool>,
    goes_on: Condvar,
    begun: AtomicUsize,
    running: AtomicUsize,
    most: AtomicUsize,
}

impl Device {
    pub(crate) fn new(len: usize) -> Self {
        Self(Arc::new(State {
            memory: Memory::allocate(len).unwrap(),
            sound: AtomicUsize::new(usize::MAX),
            hangs: Mutex::new(false),
            goes_on: Condvar::new(),
            begun: AtomicUsize::new(0),
            running: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
        }))
    }

    fn staging(&self, stages: usize) -> Staging {
        let stages = std::iter::repeat_with(|| Memory::allocate(PART).unwrap()).take(stages);
        Staging::new(self.clone(), stages.collect())
    }

    fn hang(&self, hangs: bool) {
        *self.0.hangs.lock() = hangs;
        self.0.goes_on.notify_all();
    }

    fn fails_after(&self, copies: usize) {
        self.0.sound.store(copies, Ordering::Relaxed);
    }

    pub(crate) fn begun(&self) -> usize {
        self.0.begun.load(Ordering::Relaxed)
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.0.memory.whole().to_vec()
    }

    fn copy(&self, from: &MemorySlice, to: &MemorySlice) -> io::Result<()> {
        self.0.begun.fetch_add(1, Ordering::Relaxed);
        let running = self.0.running.fetch_add(1, Ordering::Relaxed) + 1;
        self.0.most.fetch_max(running, Ordering::Relaxed);
        self.0.goes_on.wait_while(&mut self.0.hangs.lock(), |hangs| *hangs);
        self.0.running.fetch_sub(1, Ordering::Relaxed);
        let less = |sound: usize| sound.checked_sub(1);
        let sound = self.0.sound.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        sound.map_err(|_| io::Error::other("the device has fallen off the bus"))?;
        from.copy_to_slice(to).map_err(io::Error::other)
    }
}

impl StagedMemory for Device {
    fn size(&self) -> usize {
        self.0.memory.len()
    }

    fn read(&self, at: usize, into: &MemorySlice) -> io::Result<()> {
        self.copy(&self.0.memory.slice(at, into.len()).unwrap(), into)
    }

    fn write(&self, at: usize, from: &MemorySlice) -> io::Result<()> {
        self.copy(from, &self.0.memory.slice(at, from.len()).unwrap())
    }
}

/// How peers reach the owner.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    Tcp,
    Tls,
    Quic,
    /// A node of this host that shares memory.
    Node,
}

const WAYS: [Way; 4] = [Way::Tcp, Way::Tls, Way::Quic, Way::Node];

/// An owner of staged memory.
pub(crate) struct Owner {
    way: Way,
    authority: Authority,
    pub(crate) transport: Arc<dyn DynTransport>,
    pub(crate) region: Region,
}

impl Owner {
    async fn start(way: Way, memory: &Staging, tickets: Option<Tickets>) -> Self {
        let mut config = TcpConfig::listening("127.0.0.1:0".parse().unwrap());
        config.stall_timeout = Duration::from_secs(5);
        Self::with(way, config, memory, tickets).await
    }

    pub(crate) async fn with(
        way: Way,
        mut tcp: TcpConfig,
        memory: &Staging,
        tickets: Option<Tickets>,
    ) -> Self {
        let (authority, table, access) = (Authority::new(), RegionTable::new(), Access::ReadWrite);
        if let Way::Node = way {
            let node = Node::start(NodeConfig::new(tcp)).await.unwrap();
            let region = node.register_staged(memory, access, tickets).unwrap();
            let span = RemoteSpan::new(region.key(), Extent::new(0, 1).unwrap());
            let one = Memory::allocate(1).unwrap();
            let own = node.copy_own(&Operation::read(span, one.whole()));
            assert!(own.is_none(), "the owner goes through the stages, too");
            return Self { way, authority, transport: Arc::new(node), region };
        }
        let region = table.register_staged(memory, access, tickets).unwrap();
        let (cert, key) = authority.issue("server", &["127.0.0.1"]);
        let server = Arc::new(ServerTls::load(TlsFiles::new(cert, key)).unwrap());
        let transport: Arc<dyn DynTransport> = match way {
            Way::Quic => {
                let mut config = QuicConfig::listening(tcp.listen.unwrap(), server);
                config.allow_anonymous_clients = true;
                config.stall_timeout = tcp.stall_timeout;
                Arc::new(QuicTransport::start_with(config, table).await.unwrap())
            }
            _ => {
                if let Way::Tls = way {
                    tcp.tls = Some(TcpTls::new(ClientTls::new(authority.ca())).server(server));
                }
                Arc::new(TcpTransport::start_with(tcp, table).await.unwrap())
            }
        };
        Self { way, authority, transport, region }
    }

    /// A new peer, and its link.
    pub(crate) async fn peer(&self) -> (Arc<dyn DynTransport>, Arc<dyn Link>) {
        self.peer_by(self.transport.endpoint().unwrap()).await
    }

    /// The same, by another way to this owner.
    pub(crate) async fn peer_by(
        &self,
        endpoint: &Endpoint,
    ) -> (Arc<dyn DynTransport>, Arc<dyn Link>) {
        let (tls, mut tcp) = (ClientTls::new(self.authority.ca()), TcpConfig::default());
        let peer: Arc<dyn DynTransport> = match self.way {
            Way::Quic => Arc::new(QuicTransport::start(QuicConfig::connecting(tls)).await.unwrap()),
            Way::Node => Arc::new(Node::start(NodeConfig::new(tcp)).await.unwrap()),
            Way::Tcp | Way::Tls => {
                tcp.tls = matches!(self.way, Way::Tls).then(|| TcpTls::new(tls));
                Arc::new(TcpTransport::start(tcp).await.unwrap())
            }
        };
        let link = peer.connect(endpoint).await.unwrap();
        (peer, link)
    }

    pub(crate) fn span(&self, at: usize, len: usize) -> RemoteSpan {
        RemoteSpan::new(self.region.key(), Extent::new(at as u64, len as u64).unwrap())
    }

    pub(crate) async fn read(
        &self,
        link: &dyn Link,
        at: usize,
        len: usize,
    ) -> Result<Vec<u8>, TransferError> {
        let target = Memory::allocate(len).unwrap();
        one(link, Operation::read(self.span(at, len), target.whole())).await?;
        Ok(target.whole().to_vec())
    }

    pub(crate) async fn write(&self, link: &dyn Link, at: usize, bytes: Vec<u8>) -> Outcome {
        let span = self.span(at, bytes.len());
        one(link, Operation::write(Bytes::from(bytes), span)).await
    }
}

async fn one(link: &dyn Link, operation: Operation) -> Outcome {
    let outcomes = tokio::time::timeout(DEADLINE, link.submit(vec![operation]));
    outcomes.await.expect("in time").remove(0)
}

pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
}

/// Submits a write of `len` bytes of this value, whose first copy hangs.
fn hanging_write(
    device: &Device,
    link: &Arc<dyn Link>,
    span: RemoteSpan,
    value: u8,
) -> tokio::task::JoinHandle<Outcome> {
    device.hang(true);
    let (link, bytes) = (Arc::clone(link), vec![value; span.extent.len() as usize]);
    tokio::spawn(async move { one(&*link, Operation::write(Bytes::from(bytes), span)).await })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_are_right_over_every_transport() {
    for way in WAYS {
        let device = Device::new(8 * PART);
        let owner = Owner::start(way, &device.staging(2), None).await;
        let (_peer, link) = owner.peer().await;
        let mut expected = vec![0; 8 * PART];
        let lens = [0, 1, 100, PART / 4 - 1, PART - 1, PART, PART + 1, 3 * PART + 7];
        for (nth, len) in lens.into_iter().enumerate() {
            let at = nth * PART / 2 + 3;
            let bytes: Vec<u8> = pattern(len).iter().map(|byte| byte ^ nth as u8).collect();
            expected[at..at + len].copy_from_slice(&bytes);
            owner.write(&*link, at, bytes).await.unwrap();
            assert!(device.bytes() == expected, "{way:?} {len}");
            let read = owner.read(&*link, at, len).await.unwrap();
            assert!(read == expected[at..at + len], "{way:?} {len}");
        }
        // A batch of reads and writes, with checksums.
        let target = Memory::allocate(4 * PART).unwrap();
        let batch = (0..16).map(|nth| {
            let at = nth * PART / 4;
            let into = target.slice(at, PART / 4).unwrap();
            Operation::read(owner.span(at, PART / 4), into).checksummed()
        });
        for (nth, outcome) in link.submit(batch.collect()).await.into_iter().enumerate() {
            let at = nth * PART / 4;
            let sum = mc_transport::checksum(&expected[at..at + PART / 4]);
            assert_eq!(outcome.unwrap().checksum, Some(sum), "{way:?}");
        }
        for refused in [owner.span(8 * PART, 1), owner.span(1, 8 * PART)] {
            let len = refused.extent.len() as usize;
            let write = Operation::write(Bytes::from(vec![1; len]), refused);
            let refused = one(&*link, write).await;
            assert!(matches!(refused, Err(TransferError::OutOfBounds { .. })), "{refused:?}");
        }
        let views = link.view(owner.span(0, 1));
        assert!(matches!(views, Err(TransferError::Unsupported { .. })), "{views:?}");
        assert!(device.bytes() == expected, "{way:?}");
        owner.transport.shutdown().await;
    }
}

/// `cargo test --release -p mc-transport --test it -- --ignored --nocapture how_fast_a_device`
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures a rate, which needs a machine with nothing else to do; the command is above"]
async fn how_fast_a_device_of_1_ms_is_read() {
    const COUNT: usize = 512;
    struct Slow(Memory);
    impl StagedMemory for Slow {
        fn size(&self) -> usize {
            self.0.len()
        }

        fn read(&self, at: usize, into: &MemorySlice) -> io::Result<()> {
            std::thread::sleep(Duration::from_millis(1));
            let from = self.0.slice(at, into.len()).ok_or(io::ErrorKind::InvalidInput)?;
            from.copy_to_slice(into).map_err(io::Error::other)
        }

        fn write(&self, _: usize, _: &MemorySlice) -> io::Result<()> {
            Err(io::ErrorKind::PermissionDenied.into())
        }
    }
    let stages = std::iter::repeat_with(|| Memory::allocate(512 << 10).unwrap()).take(32);
    let staging = Staging::new(Slow(Memory::allocate(COUNT * PART).unwrap()), stages.collect());
    let owner = Owner::start(Way::Tcp, &staging, None).await;
    let (_peer, link) = owner.peer().await;
    let target = Memory::allocate(COUNT * PART).unwrap();
    for _ in 0..3 {
        let batch = (0..COUNT).map(|nth| {
            let into = target.slice(nth * PART, PART).unwrap();
            Operation::read(owner.span(nth * PART, PART), into)
        });
        let begun = std::time::Instant::now();
        assert!(link.submit(batch.collect()).await.iter().all(Result::is_ok));
        let rate = (COUNT * PART) as f64 / begun.elapsed().as_secs_f64() / 1e6;
        println!("64 KiB each with 1 ms: {rate:.0} MB/s");
    }
    owner.transport.shutdown().await;
}

/// Over one connection, whose server answers in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_of_a_slow_device_overlap() {
    const COUNT: usize = 12;
    for way in [Way::Tcp, Way::Tls] {
        let device = Device::new(COUNT * PART);
        let owner = Owner::start(way, &device.staging(32), None).await;
        let (_peer, link) = owner.peer().await;
        for at in (0..COUNT * PART).step_by(PART) {
            owner.write(&*link, at, pattern(at + PART)[at..].to_vec()).await.unwrap();
        }
        let (_peer, link) = owner.peer().await;
        let before = device.begun();
        device.hang(true);
        let target = Memory::allocate(COUNT * PART).unwrap();
        let batch = (0..COUNT).map(|nth| {
            let into = target.slice(nth * PART, PART).unwrap();
            Operation::read(owner.span(nth * PART, PART), into)
        });
        // By several callers, the last of which come later.
        let mut batch: Vec<Operation> = batch.collect();
        let later = batch.split_off(COUNT / 2);
        let mut reads = vec![link.submit(batch)];
        eventually(DEADLINE, "half to be under way", || device.begun() == before + COUNT / 2).await;
        reads.extend(later.into_iter().map(|read| link.submit(vec![read])));
        eventually(DEADLINE, "all to be under way", || device.begun() == before + COUNT).await;
        device.hang(false);
        for read in reads {
            for outcome in tokio::time::timeout(DEADLINE, read).await.unwrap() {
                outcome.unwrap();
            }
        }
        assert!(target.whole().to_vec() == pattern(COUNT * PART), "{way:?}");
        owner.transport.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_that_hangs_ends_its_reads_and_holds_up_no_memory() {
    for way in [Way::Tcp, Way::Tls] {
        let device = Device::new(4 * PART);
        let mut config = TcpConfig::listening("127.0.0.1:0".parse().unwrap());
        config.stall_timeout = Duration::from_secs(2);
        let owner = Owner::with(way, config, &device.staging(32), None).await;
        let memory = Memory::allocate(PART).unwrap();
        let region = owner.transport.register(&memory, Access::Read).unwrap();
        let (peer, link) = owner.peer().await;
        let apart = peer.connect_apart(owner.transport.endpoint().unwrap()).await.unwrap();
        device.hang(true);
        let target = Memory::allocate(4 * PART).unwrap();
        let batch = (0..4).map(|nth| {
            let into = target.slice(nth * PART, PART).unwrap();
            Operation::read(owner.span(nth * PART, PART), into)
        });
        let hanging = tokio::spawn(apart.submit(batch.collect()));
        eventually(DEADLINE, "a read to hang", || device.begun() > 0).await;
        let span = RemoteSpan::new(region.key(), Extent::new(0, PART as u64).unwrap());
        for _ in 0..100 {
            let into = Memory::allocate(PART).unwrap();
            one(&*link, Operation::read(span, into.whole())).await.unwrap();
        }
        assert!(!hanging.is_finished(), "{way:?}: memory was read meanwhile");
        for outcome in tokio::time::timeout(DEADLINE, hanging).await.unwrap().unwrap() {
            assert!(matches!(outcome, Err(TransferError::DeviceFailed)), "{way:?} {outcome:?}");
        }
        assert!(apart.is_healthy(), "{way:?}");
        device.hang(false);
        assert_eq!(owner.read(&*apart, 0, PART).await.unwrap().len(), PART);
        owner.transport.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_that_fails_costs_the_operation_only() {
    for way in WAYS {
        let device = Device::new(8 * PART);
        let owner = Owner::start(way, &device.staging(1), None).await;
        let (_peer, link) = owner.peer().await;
        owner.write(&*link, 0, pattern(4 * PART)).await.unwrap();
        for sound in [0, 1] {
            device.fails_after(sound);
            let failed = owner.write(&*link, 4 * PART, vec![9; 3 * PART]).await;
            assert!(matches!(failed, Err(TransferError::DeviceFailed)), "{way:?} {failed:?}");
        }
        device.fails_after(0);
        let failed = owner.read(&*link, 0, 4 * PART).await;
        assert!(matches!(failed, Err(TransferError::DeviceFailed)), "{way:?} {failed:?}");
        assert!(link.is_healthy(), "{way:?}");
        device.fails_after(usize::MAX);
        assert!(owner.read(&*link, 0, 4 * PART).await.unwrap() == pattern(4 * PART), "{way:?}");
        // What is half sent is broken off.
        device.fails_after(2);
        let failed = owner.read(&*link, 0, 4 * PART).await.unwrap_err();
        assert!(failed.is_retryable(), "{way:?} {failed}");
        device.fails_after(usize::MAX);
        let (_peer, link) = owner.peer().await;
        assert!(owner.read(&*link, 0, 4 * PART).await.unwrap() == pattern(4 * PART), "{way:?}");
        owner.transport.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_copy_of_an_ended_grant_is_never_on_top_of_a_later_one() {
    const LEN: usize = 3 * PART;
    for way in WAYS {
        let (device, clock) = (Device::new(LEN), Arc::new(MasterClock::new()));
        let (key, [now, later]) = (TicketKey::from_bytes([9; 16]), [7, 8].map(ClockEpoch::new));
        clock.observe(BootTime::now(), now, Time::from_millis(1_000));
        let tickets = Tickets { key, clock: Arc::clone(&clock) };
        let owner = Owner::start(way, &device.staging(2), Some(tickets)).await;
        let span = |epoch, until| {
            let (span, until) = (owner.span(0, LEN), Time::from_millis(until));
            let ticket = key.sign(epoch, span.key, span.extent, Rights::Write, until);
            span.with_ticket(Some(ticket))
        };
        let ((_one, first), (_two, second)) = (owner.peer().await, owner.peer().await);
        let refused = owner.write(&*first, 0, vec![1; 1]).await;
        assert!(matches!(refused, Err(TransferError::KeyRefused)), "{way:?} {refused:?}");
        let old = hanging_write(&device, &first, span(now, 60_000), 1);
        eventually(DEADLINE, "the first copy", || device.begun() == 1).await;
        clock.observe(BootTime::now(), later, Time::from_millis(90_000));
        let mut new = hanging_write(&device, &second, span(later, 900_000), 2);
        let early = tokio::time::timeout(Duration::from_millis(20), &mut new).await;
        assert!(early.is_err() && device.begun() == 1, "{way:?}: the second waits for the first");
        device.hang(false);
        let ended = old.await.unwrap();
        assert!(matches!(ended, Err(TransferError::GrantEnded)), "{way:?} {ended:?}");
        new.await.unwrap().unwrap();
        assert!(device.bytes() == vec![2; LEN], "{way:?}");
        assert_eq!(device.begun(), 4, "{way:?}: of the first write only what had begun");
        owner.transport.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_withdrawal_waits_for_copies_under_way() {
    for way in WAYS {
        let device = Device::new(3 * PART);
        let owner = Owner::start(way, &device.staging(2), None).await;
        let (_peer, link) = owner.peer().await;
        let write = hanging_write(&device, &link, owner.span(0, 3 * PART), 1);
        eventually(DEADLINE, "the first copy", || device.begun() == 1).await;
        let mut withdrawn = tokio::spawn(owner.region.withdraw());
        let early = tokio::time::timeout(Duration::from_millis(20), &mut withdrawn).await;
        assert!(early.is_err(), "{way:?}: a copy is under way");
        device.hang(false);
        withdrawn.await.unwrap();
        let (begun, bytes) = (device.begun(), device.bytes());
        let refused = write.await.unwrap().unwrap_err();
        assert!(matches!(refused, TransferError::KeyRefused), "{way:?} {refused}");
        assert_eq!((begun, device.bytes() == bytes), (1, true), "{way:?}: nothing came later");
        owner.transport.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fence_waits_for_copies_of_the_lost_link() {
    for way in WAYS {
        let device = Device::new(3 * PART);
        let owner = Owner::start(way, &device.staging(2), None).await;
        let ((lost, first), (_peer, second)) = (owner.peer().await, owner.peer().await);
        // Links over a stream of shared memory have their name with the first operation.
        owner.read(&*first, 0, 1).await.unwrap();
        let id = first.ids().pop().unwrap();
        let before = device.begun();
        let write = hanging_write(&device, &first, owner.span(0, 3 * PART), 1);
        eventually(DEADLINE, "the first copy", || device.begun() == before + 1).await;
        lost.shutdown().await;
        write.await.unwrap().unwrap_err();
        let fence = async move { second.fence(id).await.remove(0) };
        let mut fenced = tokio::spawn(fence);
        let early = tokio::time::timeout(Duration::from_millis(20), &mut fenced).await;
        assert!(early.is_err(), "{way:?}: a copy is under way");
        device.hang(false);
        fenced.await.unwrap().unwrap();
        // What had arrived may have been written, but before the fence was answered.
        let (begun, bytes) = (device.begun(), device.bytes());
        assert_eq!(device.0.running.load(Ordering::Relaxed), 0, "{way:?}");
        owner.transport.shutdown().await;
        assert!((device.begun(), device.bytes()) == (begun, bytes), "{way:?}: nothing came later");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_readers_share_a_few_stages() {
    for way in WAYS {
        let device = Device::new(8 * PART);
        let owner = Arc::new(Owner::start(way, &device.staging(3), None).await);
        let (_peer, link) = owner.peer().await;
        owner.write(&*link, 0, pattern(8 * PART)).await.unwrap();
        let readers = (0..64).map(|nth| {
            let owner = Arc::clone(&owner);
            tokio::spawn(async move {
                let (_peer, link) = owner.peer().await;
                let (at, len) = (nth * 1000, 4 * PART);
                let read = owner.read(&*link, at, len).await.unwrap();
                assert!(read == pattern(8 * PART)[at..at + len]);
            })
        });
        for reader in readers.collect::<Vec<_>>() {
            reader.await.unwrap();
        }
        let most = device.0.most.load(Ordering::Relaxed);
        assert!((1..=3).contains(&most), "{way:?} {most}");
        owner.transport.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_takes_its_bytes_too_slowly_does_not_keep_a_stage() {
    const LEN: usize = 64 << 20;
    let device = Device::new(LEN);
    let stages = vec![Memory::allocate(4 << 20).unwrap()];
    let mut config = TcpConfig::listening("127.0.0.1:0".parse().unwrap());
    config.stall_timeout = Duration::from_secs(2);
    let staging = Staging::new(device.clone(), stages);
    let owner = Owner::with(Way::Tcp, config, &staging, None).await;
    let address = owner.transport.endpoint().unwrap().address().to_owned();
    let mut slow = TcpStream::connect(address).await.unwrap();
    slow.write_all(WELCOME).await.unwrap();
    slow.read_exact(&mut [0; 16]).await.unwrap();
    let mut description = vec![0; slow.read_u32_le().await.unwrap() as usize];
    slow.read_exact(&mut description).await.unwrap();
    let mut request = [0; 40];
    request[0] = 1;
    request[8..24].copy_from_slice(&owner.region.key().to_bytes());
    request[32..40].copy_from_slice(&(LEN as u64).to_le_bytes());
    slow.write_all(&request).await.unwrap();

    let is_over = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&is_over);
    let trickle = tokio::spawn(async move {
        // Progress enough not to have stalled, and a part in 3 s.
        let mut some = vec![0; 70 << 10];
        let mut pace = tokio::time::interval(Duration::from_millis(50));
        let mut taken = 0;
        while !told.load(Ordering::Relaxed) {
            pace.tick().await;
            match slow.read(&mut some).await {
                Ok(0) | Err(_) => break,
                Ok(len) => taken += len,
            }
        }
        taken
    });
    eventually(DEADLINE, "the slow peer's first part", || device.begun() >= 1).await;
    let (_peer, link) = owner.peer().await;
    owner.read(&*link, 0, PART).await.unwrap();
    is_over.store(true, Ordering::Relaxed);
    assert!(trickle.await.unwrap() < LEN);
    owner.transport.shutdown().await;
}

#[tokio::test]
async fn a_node_that_was_shut_down_registers_nothing() {
    let staging = Device::new(PART).staging(1);
    let node = Node::start(NodeConfig::new(TcpConfig::default())).await.unwrap();
    node.shutdown().await;
    let refused = node.register_staged(&staging, Access::Read, None).unwrap_err();
    assert!(matches!(refused, RegisterError::Closed), "{refused}");
}

#[tokio::test]
async fn staged_memory_is_read_within_a_process() {
    let device = Device::new(2 * PART);
    let staging = device.staging(1);
    let own = Arc::new(mc_transport::MemFabric::new().transport("own").unwrap());
    let node = Node::start(NodeConfig::only(own)).await.unwrap();
    let refused = node.register_staged(&staging, Access::ReadWrite, None).unwrap_err();
    assert!(matches!(refused, RegisterError::NoStaging), "{refused}");
    let region = node.register_staged(&staging, Access::Read, None).unwrap();
    let link = node.connect(node.endpoint().unwrap()).await.unwrap();
    device.0.memory.whole().copy_from(0, &vec![7; 2 * PART]).unwrap();
    device.0.memory.whole().copy_from(3, b"the first bytes").unwrap();
    let into = [PART, 8].map(|len| Memory::allocate(len).unwrap());
    let pieces: Vec<MemorySlice> = into.iter().map(Memory::whole).collect();
    let span = |at, len| RemoteSpan::new(region.key(), Extent::new(at, len).unwrap());
    let read = Operation::read(span(3, PART as u64 + 8), pieces.clone()).checksummed();
    let done = link.submit(vec![read]).await.remove(0).unwrap();
    let bytes: Vec<u8> = pieces.iter().flat_map(MemorySlice::to_vec).collect();
    assert_eq!(bytes, device.bytes()[3..][..bytes.len()]);
    assert_eq!(done.checksum, Some(mc_transport::checksum(&bytes)));
    let write = Operation::write(Bytes::from_static(b"no"), span(0, 2));
    let refused = link.submit(vec![write]).await.remove(0).unwrap_err();
    assert!(matches!(refused, TransferError::AccessDenied { .. }), "{refused}");
    device.fails_after(0);
    let read = Operation::read(span(0, 8), into[1].whole());
    let refused = link.submit(vec![read]).await.remove(0).unwrap_err();
    assert!(matches!(refused, TransferError::DeviceFailed), "{refused}");
}
