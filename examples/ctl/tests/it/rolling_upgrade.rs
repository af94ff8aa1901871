//! An upgrade of three masters and three nodes by the commands of docs/deploy.md, while applications put and
//! get. The programs here stand for the new version.
//!
//! The long form repeats it with other sizes and moments:
//!
//! ```sh
//! UPGRADE_SECONDS=600 cargo test -p mc-ctl --test it rolling_upgrade:: -- --nocapture
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use mc_store::{Client, GetError, PutOutcome};
use mc_testkit::{
    EtcdCluster, Input, Program, Random, Signal, binary, content, eventually_blocking,
};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::support::{Cluster, DEADLINE, Node, ctl, free_port, start};

/// How long an application asks again for an object that it knows to be there, and how often.
const RETRY: Duration = Duration::from_secs(10);
const AGAIN: Duration = Duration::from_millis(20);

/// The pauses of an application between its gets and between its puts.
const GET_PAUSE: Duration = Duration::from_millis(5);
const PUT_PAUSE: Duration = Duration::from_millis(15);

const APPLICATIONS: usize = 2;
const READERS: usize = 2;
/// Objects that are there before the upgrade.
const BEFORE: usize = 200;
/// Gets between two steps, at least.
const GETS: usize = 100;
/// Starts of the last node that are killed before it is up.
const KILLS: usize = 4;

/// The sizes of objects and segments.
#[derive(Clone, Copy)]
struct Sizes {
    largest: usize,
    segment: &'static str,
    /// Bytes that are put at the most: nothing is to be evicted.
    most: usize,
}

const SMALL: Sizes = Sizes { largest: 20_000, segment: "64MB", most: 80 << 20 };
const LARGE: Sizes = Sizes { largest: 1 << 20, segment: "512MB", most: 700 << 20 };

#[test]
fn an_upgrade_by_the_documented_steps_loses_nothing_and_returns_no_other_bytes() {
    if !EtcdCluster::is_installed() {
        return;
    }
    let mut random = Random::seeded("UPGRADE_SEED");
    let wished = std::env::var("UPGRADE_SECONDS").ok();
    let seconds = wished.map_or(0, |seconds| seconds.parse().expect("a number of seconds"));
    let began = Instant::now();
    upgrade(&mut random, SMALL);
    while began.elapsed() < Duration::from_secs(seconds) {
        let sizes = [SMALL, LARGE][random.below(2)];
        upgrade(&mut random, sizes);
    }
}

fn upgrade(random: &mut Random, sizes: Sizes) {
    let steps = Steps::of_the_page();
    let mut installed = Installation::start(sizes);
    let load = Load::start(&installed.all, sizes);
    eventually_blocking(DEADLINE, "objects to lose", || load.lock().stored.len() >= BEFORE);
    installed.upgrade_masters(&steps.masters, &load);
    for (node, how) in [How::Ended, How::Killed, How::KilledInTheTakeOver].into_iter().enumerate() {
        installed.upgrade_node(node, how, &steps.node, &load, random);
    }
    load.finish();
    for file in &installed.files {
        let mapped = fs::read_to_string("/proc/self/maps").expect("Linux");
        assert!(!mapped.contains(&*file.to_string_lossy()), "a reader has mapped a segment");
    }
}

/// The commands of an upgrade, as an operator pastes them.
struct Steps {
    masters: Vec<String>,
    /// Of each node.
    node: Vec<String>,
}

impl Steps {
    fn of_the_page() -> Self {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/deploy.md");
        let page = fs::read_to_string(page).expect("the page");
        let (_, section) = page.split_once("\n## Upgrades\n").expect("the section");
        let (section, _) = section.split_once("\n## ").expect("a next section");
        let blocks = section.split("```sh\n").skip(1).map(|rest| rest.split("```").next());
        let commands = |block: &str| -> Vec<String> {
            let lines = block.lines().map(|line| line.split(" #").next().unwrap_or(line).trim());
            lines.filter(|line| !line.is_empty()).map(str::to_owned).collect()
        };
        let mut blocks = blocks.flatten().map(commands);
        let mut with = |command: &str| {
            let block = blocks.find(|block| block.iter().any(|line| line == command));
            block.unwrap_or_else(|| panic!("no block has {command}"))
        };
        Self {
            masters: with("systemctl restart mc-master"),
            node: with("systemctl restart mc-node"),
        }
    }
}

/// The way in which a node ends.
#[derive(Clone, Copy, Debug)]
enum How {
    Ended,
    Killed,
    KilledInTheTakeOver,
}

/// Three masters and three nodes.
struct Installation {
    cluster: Cluster,
    /// The masters' addresses.
    all: String,
    masters: Vec<Program>,
    nodes: Vec<Option<Node>>,
    files: Vec<PathBuf>,
    ports: Vec<u16>,
    size: &'static str,
    _directory: tempfile::TempDir,
}

impl Installation {
    fn start(sizes: Sizes) -> Self {
        let mut cluster = Cluster::new(3);
        // As on the page: nothing is set but what it names.
        cluster.flags.clear();
        let all = cluster.all();
        let mut masters = vec![cluster.start(0)];
        cluster.wait_until_leads(0);
        let waits = |more: &[&str]| ctl(&all, &[&["ha", "wait", "--timeout=100ms"], more].concat());
        // The two that are not there yet; until they are, another test may have their ports.
        assert_eq!(waits(&[]).code, Some(1));
        waits(&["nobody"]).assert_refused(1, "nobody is no member that answers");
        waits(&["m0"]).assert_ok();
        let at = format!("etcd://{}", cluster.etcd.endpoints()[0]);
        ctl(&at, &["ha", "wait"]).assert_refused(1, "name the members");
        masters.extend([cluster.start(1), cluster.start(2)]);
        ctl(&at, &["ha", "wait", "m0", "m1", "m2", "--timeout=30s"]).assert_ok();

        let directory = tempfile::Builder::new().prefix("mc-upgrade-").tempdir_in("/dev/shm");
        let directory = directory.expect("a directory in memory");
        let path = |node: usize| directory.path().join(format!("segment-{node}"));
        let files = (0..3).map(path).collect();
        let ports = (0..3).map(|_| free_port()).collect();
        let mut installed = Self {
            cluster,
            all,
            masters,
            nodes: Vec::new(),
            files,
            ports,
            size: sizes.segment,
            _directory: directory,
        };
        installed.nodes = (0..3).map(|node| Some(installed.start_node(node))).collect();
        installed
    }

    fn node_flags(&self, node: usize) -> [String; 2] {
        [format!("--segment_file={}", self.files[node].display()), "--keep_segment".into()]
    }

    fn start_node(&self, node: usize) -> Node {
        let flags = self.node_flags(node);
        let (name, port) = (format!("node-{node}"), self.ports[node]);
        Node::start_with(&self.all, &name, port, self.size, &[&flags[0], &flags[1]])
    }

    /// Starts a node without waiting for anything.
    fn launch_node(&self, node: usize) -> Program {
        let [file, keep] = self.node_flags(node);
        let flags = [
            format!("--segment_name=node-{node}"),
            format!("--data_port={}", self.ports[node]),
            format!("--master_server_address={}", self.all),
            format!("--global_segment_size={}", self.size),
            file,
            keep,
        ];
        let flags = flags.iter().map(|flag| &**flag);
        start(
            "mc-node",
            &["--host=127.0.0.1", "--port=0"].into_iter().chain(flags).collect::<Vec<_>>(),
        )
    }

    /// Runs a command of the page.
    fn run(&self, command: &str) {
        let words: Vec<&str> = command.split_whitespace().collect();
        let mut program = Command::new(binary(words[0]));
        program.args(&words[1..]).env("MOONCAKE_MASTER", &self.all);
        let said = Program::start(DEADLINE, &mut program, Input::None).finish().assert_ok();
        println!("$ {command}\n{}", said.text().trim_end());
    }

    /// Runs the commands for the masters: the standbys are restarted first, and the leader last.
    fn upgrade_masters(&mut self, commands: &[String], load: &Load) {
        let leader = (0..3).find(|&member| self.cluster.leads(member)).expect("one leads");
        let mut order = (0..3).filter(|&member| member != leader).chain([leader]);
        for command in commands {
            match &**command {
                "systemctl restart mc-master" => {
                    let member = order.next().expect("three masters");
                    // The former leader goes while nodes still attach themselves to the next one.
                    if member != leader {
                        load.step("a standby");
                    }
                    self.masters[member].signal(Signal::TERM);
                    eventually_blocking(DEADLINE, "its end", || !self.masters[member].is_running());
                    self.masters[member] = self.cluster.start(member);
                }
                other if other.starts_with("mc-ctl ") => {
                    if other.contains("hand-over") {
                        load.step("the hand-over, and the former leader");
                    }
                    self.run(other);
                    load.some_gets();
                }
                other => assert!(other.starts_with("export "), "{other}"),
            }
        }
        assert_eq!(order.next(), None, "a master was not restarted");
        assert!(!self.cluster.leads(leader), "it handed over");
    }

    /// Runs the commands for a node.
    fn upgrade_node(
        &mut self,
        node: usize,
        how: How,
        commands: &[String],
        load: &Load,
        random: &mut Random,
    ) {
        for command in commands {
            match &**command {
                "systemctl restart mc-node" => {
                    let old = self.nodes[node].take().expect("it runs");
                    self.nodes[node] = Some(self.restart_node(node, old, how, load, random));
                    load.some_gets();
                }
                other if other.starts_with("mc-ctl ") => self.run(other),
                // The line that the start of a node waits for comes after the page.
                other => assert!(other.contains("/ready"), "{other}"),
            }
        }
    }

    fn restart_node(
        &self,
        node: usize,
        mut old: Node,
        how: How,
        load: &Load,
        random: &mut Random,
    ) -> Node {
        match how {
            How::Ended => {
                load.step("a node that is ended");
                let ended = old.program.end_by(Signal::TERM);
                assert_eq!(ended.code, Some(0), "{}", ended.err);
            }
            How::Killed => {
                load.step("a node that is killed");
                old.program.kill();
            }
            How::KilledInTheTakeOver => {
                load.step("a node that is killed in the take-over");
                old.program.kill();
                let mut asked = self.launch_node(node);
                // The master counts on it, and the process does not know it yet.
                asked.wait_err(|line| line.contains("mounted again").then_some(()));
                asked.kill();
                for _ in 0..KILLS {
                    let mut next = self.launch_node(node);
                    // A drawn moment of its start; nothing is waited for.
                    std::thread::sleep(Duration::from_millis(random.below(250) as u64));
                    next.kill();
                }
            }
        }
        let node = self.start_node(node);
        let words = "took the segment of the process before over";
        node.program.wait_err(|line| line.contains(words).then_some(()));
        node
    }
}

/// Applications that put objects and get those that are stored.
struct Load {
    runtime: Runtime,
    clients: Vec<Client>,
    tally: Arc<Mutex<Tally>>,
    stop: watch::Sender<bool>,
    tasks: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Tally {
    /// Keys of objects whose put was acknowledged.
    stored: Vec<String>,
    bytes: usize,
    failed_puts: usize,
    step: &'static str,
    by_step: BTreeMap<&'static str, Gets>,
    /// Gets that no retry answered.
    unanswered: Vec<(String, GetError)>,
    wrong: Vec<String>,
}

impl Tally {
    /// Counts a put, which has stored `stored` of so many bytes or has failed.
    fn put(&mut self, stored: Option<&String>, bytes: usize) {
        match stored {
            Some(key) => {
                self.bytes += bytes;
                self.stored.push(key.clone());
            }
            None => self.failed_puts += 1,
        }
    }
}

/// The gets of a step, by when they began.
#[derive(Default)]
struct Gets {
    count: usize,
    /// Those whose first attempt failed.
    failed: usize,
    longest: Duration,
}

impl Load {
    fn start(masters: &str, sizes: Sizes) -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let tally = Arc::new(Mutex::new(Tally { step: "before", ..Tally::default() }));
        let (stop, stops) = watch::channel(false);
        let connect = |_| runtime.block_on(Client::builder().master(masters).connect());
        let clients: Vec<_> =
            (0..APPLICATIONS).map(|number| connect(number).expect("a master that leads")).collect();
        let mut tasks = Vec::new();
        for (number, client) in clients.iter().enumerate() {
            let writer = write(number, client.clone(), Arc::clone(&tally), stops.clone(), sizes);
            tasks.push(runtime.spawn(writer));
            for reader in 0..READERS {
                let random = Random::new((number * READERS + reader) as u64);
                let (client, tally) = (client.clone(), Arc::clone(&tally));
                tasks.push(runtime.spawn(read(random, client, tally, stops.clone())));
            }
        }
        Self { runtime, clients, tally, stop, tasks }
    }

    fn lock(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().expect("no holder panics")
    }

    /// Gets count towards this step from now on.
    fn step(&self, step: &'static str) {
        self.lock().step = step;
    }

    /// Waits until the applications have read some more.
    fn some_gets(&self) {
        let gets = || self.lock().by_step.values().map(|step| step.count).sum::<usize>();
        let wanted = gets() + GETS;
        eventually_blocking(DEADLINE, "the applications go on", || gets() >= wanted);
    }

    /// Ends the applications, reads all that is stored, and shows and checks the figures.
    fn finish(self) {
        self.stop.send_replace(true);
        for task in self.tasks {
            self.runtime.block_on(task).expect("no application panics");
        }
        let mut tally = core::mem::take(&mut *self.tally.lock().expect("no holder panics"));
        let stored = core::mem::take(&mut tally.stored);
        let mut lost = 0;
        for key in &stored {
            match self.runtime.block_on(get(&self.clients[0], key)).found {
                Ok(found) if found == value(key) => {}
                Ok(_) => tally.wrong.push(key.clone()),
                Err(error) => {
                    println!("{key} is lost: {error}");
                    lost += 1;
                }
            }
        }
        for client in &self.clients {
            self.runtime.block_on(client.shutdown());
        }
        println!("{:40} {:>6} {:>6} {:>10}", "step", "gets", "failed", "longest");
        for (step, Gets { count, failed, longest }) in &tally.by_step {
            println!("{step:40} {count:6} {failed:6} {:7} ms", longest.as_millis());
        }
        let share = 1.0 - lost as f64 / stored.len() as f64;
        println!(
            "{} objects of {} bytes stored, {} puts failed; {} gets that no retry answered, {} with \
             other bytes; {share:.4} of the objects are there",
            stored.len(),
            tally.bytes,
            tally.failed_puts,
            tally.unanswered.len(),
            tally.wrong.len(),
        );
        assert!(tally.wrong.is_empty(), "{:?}", tally.wrong);
        assert!(tally.unanswered.is_empty(), "{:?}", tally.unanswered);
        assert!(share >= 0.99, "{lost} of {}", stored.len());
    }
}

/// The bytes of an object, of which every key has its own number.
fn value(key: &str) -> Vec<u8> {
    let len = key.rsplit_once('/').and_then(|(_, len)| len.parse().ok());
    content(key, len.expect("a length"))
}

/// Puts one object after the other, each until it is stored.
async fn write(
    number: usize,
    client: Client,
    tally: Arc<Mutex<Tally>>,
    stop: watch::Receiver<bool>,
    sizes: Sizes,
) {
    let mut random = Random::new(number as u64);
    for n in 0_u64.. {
        let key = format!("{number}/{n}/{}", 1 + random.below(sizes.largest));
        let bytes = value(&key);
        loop {
            if *stop.borrow() {
                return;
            }
            let put = client.put(&key, bytes.clone()).await;
            // What is there already was stored by the attempt before, whose answer was lost.
            let is_stored = put.is_ok_and(|outcome| outcome != PutOutcome::Pending);
            tally.lock().expect("no holder panics").put(is_stored.then_some(&key), bytes.len());
            if is_stored {
                break;
            }
            tokio::time::sleep(AGAIN).await;
        }
        tokio::time::sleep(PUT_PAUSE).await;
        while tally.lock().expect("no holder panics").bytes >= sizes.most {
            if stop.clone().wait_for(|stop| *stop).await.is_ok() {
                return;
            }
        }
    }
}

/// Gets stored objects.
async fn read(
    mut random: Random,
    client: Client,
    tally: Arc<Mutex<Tally>>,
    stop: watch::Receiver<bool>,
) {
    while !*stop.borrow() {
        tokio::time::sleep(GET_PAUSE).await;
        let (key, step) = {
            let tally = tally.lock().expect("no holder panics");
            if tally.stored.is_empty() {
                continue;
            }
            (tally.stored[random.below(tally.stored.len())].clone(), tally.step)
        };
        let got = get(&client, &key).await;
        let is_wrong = got.found.as_ref().is_ok_and(|found| *found != value(&key));
        let mut tally = tally.lock().expect("no holder panics");
        let gets = tally.by_step.entry(step).or_default();
        gets.count += 1;
        gets.failed += usize::from(got.is_retried);
        gets.longest = gets.longest.max(got.took);
        if is_wrong {
            tally.wrong.push(key);
        } else if let Err(error) = got.found {
            tally.unanswered.push((key, error));
        }
    }
}

struct Got {
    found: Result<bytes::Bytes, GetError>,
    is_retried: bool,
    took: Duration,
}

/// Gets an object that is there as an application does that would rather wait than compute it.
async fn get(client: &Client, key: &str) -> Got {
    let (begun, mut is_retried) = (Instant::now(), false);
    loop {
        let found = client.get(key).await;
        let took = begun.elapsed();
        if found.is_ok() || took >= RETRY {
            return Got { found, is_retried, took };
        }
        is_retried = true;
        tokio::time::sleep(AGAIN).await;
    }
}
