//! A master, nodes and recorders, all of them programs.

use std::collections::HashSet;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::Command;

use mc_history::Moment;
use mc_testkit::{Input, Program, Random, binary};

use crate::LIMIT;

pub(crate) const NODES: usize = 3;
pub(crate) const RECORDERS: usize = 3;

/// Bytes at the end of a log in which a write is looked for.
const TAIL: u64 = 256 << 10;

/// Clients of one recorder.
const CLIENTS: usize = 2;

pub(crate) struct Cluster {
    dir: PathBuf,
    master: Option<Program>,
    address: String,
    nodes: Vec<Option<Program>>,
    recorders: Vec<Recorder>,
    /// Logs of recorders that were killed.
    done: Vec<PathBuf>,
    /// Nodes and recorders that were started, which have different names.
    started: usize,
}

struct Recorder {
    program: Program,
    log: PathBuf,
}

impl Cluster {
    /// Starts all programs, with files in this directory.
    pub(crate) fn start(dir: &Path) -> Self {
        let mut cluster = Self {
            dir: dir.to_owned(),
            master: None,
            address: "127.0.0.1:0".to_owned(),
            nodes: (0..NODES).map(|_| None).collect(),
            recorders: Vec::new(),
            done: Vec::new(),
            started: 0,
        };
        cluster.start_master();
        (0..NODES).for_each(|node| cluster.start_node(node));
        let mut random = Random::new(0);
        for _ in 0..RECORDERS {
            let recorder = cluster.recorder_of(&mut random);
            cluster.recorders.push(recorder);
        }
        cluster
    }

    /// The master's address.
    pub(crate) fn address(&self) -> String {
        self.address.clone()
    }

    pub(crate) fn master(&self) -> &Program {
        self.master.as_ref().expect("it runs")
    }

    pub(crate) fn node(&self, node: usize) -> &Program {
        self.nodes[node].as_ref().expect("it runs")
    }

    pub(crate) fn recorder(&self, recorder: usize) -> &Program {
        &self.recorders[recorder].program
    }

    /// Starts the master, at the address that it had before, if it had one.
    pub(crate) fn start_master(&mut self) {
        let mut command = Command::new(binary("mc-master"));
        let port = self.address.rsplit_once(':').expect("host:port").1;
        command.args([
            "--rpc_address=127.0.0.1",
            &format!("--rpc_port={port}"),
            "--metrics_host=127.0.0.1",
            "--metrics_port=0",
            "--enable_metric_reporting=false",
            "--rpc_thread_num=2",
            "--durability=sync",
            // So that recovery begins with snapshots, too.
            "--snapshot_bytes=1MiB",
            "--default_kv_lease_ttl=300",
            "--client_ttl=2",
            "--client_return_timeout=60",
            "--put_start_discard_timeout_sec=2",
            "--put_start_release_timeout_sec=6",
            &format!("--metadata_dir={}", self.dir.join("journal").display()),
        ]);
        let master = Program::start(LIMIT, &mut command, Input::None);
        let listening = "Master service listening on ";
        self.address = master.wait_out(|line| line.strip_prefix(listening).map(str::to_owned));
        self.master = Some(master);
    }

    pub(crate) fn kill_master(&mut self) {
        self.master.take().expect("it runs").kill();
    }

    /// Starts a node with a name of its own, and waits until its segment is mounted.
    pub(crate) fn start_node(&mut self, node: usize) {
        self.started += 1;
        let mut command = Command::new(binary("mc-node"));
        command.args([
            "--host=127.0.0.1",
            "--port=0",
            "--data_port=0",
            &format!("--master_server_address={}", self.address),
            &format!("--segment_name=node-{}", self.started),
            "--global_segment_size=64MB",
            "--threads=2",
        ]);
        let program = Program::start(LIMIT, &mut command, Input::None);
        program.wait_out(|line| line.starts_with("Mooncake client ready").then_some(()));
        self.nodes[node] = Some(program);
    }

    /// Kills a node, and returns when its memory is gone.
    pub(crate) fn kill_node(&mut self, node: usize) {
        self.nodes[node].take().expect("it runs").kill();
    }

    /// Starts a recorder in the place of one that was killed, with clients that are new.
    pub(crate) fn start_recorder(&mut self, recorder: usize, random: &mut Random) {
        let new = self.recorder_of(random);
        let old = std::mem::replace(&mut self.recorders[recorder], new);
        self.done.push(old.log);
    }

    fn recorder_of(&mut self, random: &mut Random) -> Recorder {
        self.started += 1;
        let log = self.dir.join(format!("recorder-{}.log", self.started));
        let mut command = Command::new(env!("CARGO_BIN_EXE_mc-history"));
        command.arg("record").arg("--output").arg(&log).args([
            &format!("--master={}", self.address),
            &format!("--clients={CLIENTS}"),
            &format!("--first_client={}", self.started * CLIENTS),
            &format!("--seed={}", random.next_u64()),
            "--keys=16",
            // Until it is killed.
            "--seconds=1000000",
        ]);
        let program = Program::start(LIMIT, &mut command, Input::None);
        program.wait_out(|line| (line == "recording").then_some(()));
        Recorder { program, log }
    }

    pub(crate) fn kill_recorder(&mut self, recorder: usize) {
        self.recorders[recorder].program.kill();
    }

    /// No program ends by itself.
    #[track_caller]
    pub(crate) fn assert_all_run(&mut self) {
        assert!(self.master.as_mut().expect("it was started").is_running(), "the master ended");
        for node in self.nodes.iter_mut().flatten() {
            assert!(node.is_running(), "a node ended");
        }
        for recorder in &mut self.recorders {
            assert!(recorder.program.is_running(), "a recorder ended");
        }
    }

    /// Returns whether a put or upsert that began after this was acknowledged.
    pub(crate) fn has_written_since(&self, moment: Moment) -> bool {
        self.recorders.iter().any(|recorder| has_written_since(&recorder.log, moment))
    }

    /// The logs of all recorders.
    pub(crate) fn logs(&self) -> Vec<PathBuf> {
        let running = self.recorders.iter().map(|recorder| recorder.log.clone());
        self.done.iter().cloned().chain(running).collect()
    }

    /// Kills all programs, and returns the logs of the recorders.
    pub(crate) fn end(self) -> Vec<PathBuf> {
        self.logs()
    }
}

/// Whether the end of a log, which is still written, has a write that began after this and is done.
fn has_written_since(log: &Path, moment: Moment) -> bool {
    let mut file = File::open(log).expect("a log");
    let len = file.metadata().expect("a file").len();
    file.seek(SeekFrom::Start(len.saturating_sub(TAIL))).expect("a file");
    let mut tail = Vec::new();
    file.read_to_end(&mut tail).expect("a file");
    let mut begun = HashSet::new();
    // The first line and the last one may be parts of lines.
    for line in tail.split(|byte| *byte == b'\n') {
        let Ok(line) = serde_json::from_slice::<serde_json::Value>(line) else { continue };
        let is_write = line["call"]["put"].is_array() || line["call"]["upsert"].is_array();
        if is_write && line["at"].as_u64().is_some_and(|at| at > moment.as_nanos()) {
            begun.insert(line["id"].as_u64());
        }
        if line["answer"] == "done" && begun.contains(&line["id"].as_u64()) {
            return true;
        }
    }
    false
}
