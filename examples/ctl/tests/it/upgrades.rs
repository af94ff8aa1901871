//! Nodes whose memory is for the next process: it takes the segment over with all objects, or begins
//! empty and says why. No client reads anything else.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};

use mc_store::{ByteSize, Client, ErrorCode, Memory, SegmentError, SegmentOptions, StartError};
use mc_testkit::{
    Finished, Input, Program, Random, Signal, binary, content, eventually_blocking, preload,
};
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::access::certify;
use crate::end_to_end::{library_client, segment_names};
use crate::hung_disk::SHIM;
use crate::support::{DEADLINE, Master, Node, ctl, free_port, run, start};

const OBJECTS: usize = 200;
const SIZE: &str = "64MB";
/// Tasks that put, and what they put before each kill.
const WRITERS: usize = 4;
const PUTS: usize = 24;
const TAKEN_OVER: &str = "took the segment of the process before over";

/// A host with a file for the memory of a node.
struct Host {
    directory: tempfile::TempDir,
    port: u16,
}

impl Host {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().expect("a directory"), port: free_port() }
    }

    fn record(&self) -> PathBuf {
        self.directory.path().join("segment.life")
    }

    fn flags(&self) -> [String; 2] {
        let file = self.directory.path().join("segment");
        [format!("--segment_file={}", file.display()), "--keep_segment".into()]
    }

    /// Starts the node `a` on this host and waits until it is ready.
    fn start(&self, master: &str) -> Node {
        self.start_as(master, "a", self.port, SIZE)
    }

    fn start_as(&self, master: &str, name: &str, port: u16, size: &str) -> Node {
        let flags = self.flags();
        Node::start_with(master, name, port, size, &[&flags[0], &flags[1]])
    }

    /// All flags of the node `a`.
    fn all_flags(&self, master: &str) -> Vec<String> {
        let [file, keep] = self.flags();
        let [host, port, name] = ["--host=127.0.0.1", "--port=0", "--segment_name=a"];
        let data_port = format!("--data_port={}", self.port);
        let master = format!("--master_server_address={master}");
        let size = format!("--global_segment_size={SIZE}");
        vec![host.into(), port.into(), name.into(), file, keep, data_port, master, size]
    }

    /// Starts the node `a` without waiting for anything.
    fn launch(&self, master: &str) -> Program {
        let flags = self.all_flags(master);
        start("mc-node", &flags.iter().map(|flag| &**flag).collect::<Vec<_>>())
    }

    /// Starts the node `a` in a mount namespace where this was done, without waiting for anything.
    fn launch_after(&self, master: &str, mount: &str) -> Program {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &format!("{mount} && exec \"$@\""), "sh"]);
        command.arg(binary("mc-node")).args(self.all_flags(master));
        Program::start(DEADLINE, &mut command, Input::None)
    }
}

/// An application that is connected all along.
struct Application {
    runtime: Runtime,
    client: Client,
}

impl Application {
    fn connect(master: &str) -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let client = library_client(&runtime, master);
        Self { runtime, client }
    }

    fn put(&self, key: &str) {
        eventually_blocking(DEADLINE, format_args!("{key} is put"), || {
            self.runtime.block_on(self.client.put(key, value(key)))
        });
    }

    fn put_all(&self) {
        (0..OBJECTS).for_each(|n| self.put(&format!("object/{n}")));
    }

    /// Reads an object that is there, once it can be reached.
    fn read(&self, key: &str) {
        let found = eventually_blocking(DEADLINE, format_args!("{key} is back"), || {
            self.runtime.block_on(self.client.get(key))
        });
        assert!(found == value(key), "{key} has other bytes");
    }

    fn read_all(&self) {
        (0..OBJECTS).for_each(|n| self.read(&format!("object/{n}")));
    }

    /// Waits until an object is gone; its bytes or others are not read from now on.
    fn await_loss(&self, key: &str) {
        eventually_blocking(DEADLINE, format_args!("{key} is gone"), || {
            match self.runtime.block_on(self.client.get(key)) {
                Ok(found) => panic!("{} bytes of {key} are read", found.len()),
                Err(error) if error.code() == ErrorCode::ObjectNotFound => Ok(()),
                Err(error) => Err(error),
            }
        });
    }
}

fn value(key: &str) -> Vec<u8> {
    content(key, 100 + key.len() * 2_000)
}

fn await_line(program: &Program, words: &str) {
    program.wait_err(|line| line.contains(words).then_some(()));
}

/// Ends a node, which says why its segment began empty exactly once.
fn assert_began_empty(node: Node, reason: &str) {
    await_line(&node.program, "begins empty");
    let Finished { code, err, .. } = node.program.end_by(Signal::TERM);
    assert_eq!(code, Some(0), "{err}");
    let mut reasons = err.lines().filter(|line| line.contains("begins empty"));
    let line = reasons.next().expect("a line");
    assert!(line.contains(reason) && reasons.next().is_none(), "{reason}: {err}");
}

#[test]
fn a_node_that_was_killed_or_ended_comes_back_with_all_objects() {
    let (master, host) = (Master::start(0, &[]), Host::new());
    let mut node = host.start(&master.address);
    let application = Application::connect(&master.address);
    application.put_all();
    for signal in [Signal::KILL, Signal::TERM, Signal::TERM] {
        let ended = node.program.end_by(signal);
        assert_eq!(ended.code, (signal == Signal::TERM).then_some(0), "{}", ended.err);
        assert_eq!(segment_names(&master.address), ["a"], "the master is not told to forget it");
        node = host.start(&master.address);
        await_line(&node.program, TAKEN_OVER);
        application.read_all();
        Application::connect(&master.address).read_all();
        application.put("object/more");
        application.read("object/more");
        let removed = application.client.remove("object/more", true);
        application.runtime.block_on(removed).expect("it is there");
    }
}

#[test]
fn a_segment_of_another_size_name_or_port_begins_empty() {
    let (master, host) = (Master::start(0, &[]), Host::new());
    let at = &*master.address;
    let application = Application::connect(at);
    let other_port = free_port();
    for (name, port, size, reason) in [
        ("a", host.port, "32MB", "its size was 64.00 MB and is 32.00 MB"),
        ("b", host.port, SIZE, "its name was \"a\" and is \"b\""),
        // The master leaves the name to its owner at the other port.
        ("c", other_port, SIZE, "are told tcp://127.0.0.1:"),
    ] {
        let mut node = host.start(at);
        application.put("before");
        node.program.kill();
        assert_began_empty(host.start_as(at, name, port, size), reason);
        // The next one would take that segment over.
        fs::remove_file(host.record()).expect("the record of the new segment");
        assert_began_empty(host.start(at), "no record");
        fs::remove_file(host.record()).expect("the record of the new segment");
        application.await_loss("before");
    }
}

#[test]
fn a_second_process_waits_for_the_end_of_the_first() {
    let (master, host) = (Master::start(0, &[]), Host::new());
    let mut first = host.start(&master.address);
    let application = Application::connect(&master.address);
    application.put_all();
    let second = host.launch(&master.address);
    await_line(&second, "waiting for the end of the process that has the segment file");
    application.read_all();
    first.program.kill();
    await_line(&second, TAKEN_OVER);
    application.read_all();
}

#[test]
fn a_master_that_has_forgotten_the_segment_gets_an_empty_one() {
    let (mut master, host) = (Master::start(free_port(), &[]), Host::new());
    let mut node = host.start(&master.address);
    let application = Application::connect(&master.address);
    application.put_all();
    node.program.kill();
    master.program.kill();
    let master = Master::start(master.port(), &[]);
    let mut node = host.start(&master.address);
    await_line(&node.program, "mounting it anew, empty");
    application.await_loss("object/0");
    application.put_all();
    application.read_all();
    // That is a life that the next process can take over.
    node.program.kill();
    let node = host.start(&master.address);
    await_line(&node.program, TAKEN_OVER);
    application.read_all();
}

#[test]
fn a_node_and_a_master_with_metadata_that_are_both_killed_come_back_with_all_objects() {
    let (host, directory) = (Host::new(), tempfile::tempdir().expect("a directory"));
    let metadata = format!("--metadata_dir={}", directory.path().join("metadata").display());
    let flags = [&*metadata, "--durability=sync"];
    let mut master = Master::start(free_port(), &flags);
    let mut node = host.start(&master.address);
    let application = Application::connect(&master.address);
    application.put_all();
    node.program.kill();
    master.program.kill();
    let master = Master::start(master.port(), &flags);
    let node = host.start(&master.address);
    await_line(&node.program, TAKEN_OVER);
    application.read_all();
    Application::connect(&master.address).read_all();
}

#[test]
fn a_record_that_cannot_be_trusted_is_forgotten() {
    let (master, host) = (Master::start(0, &[]), Host::new());
    let application = Application::connect(&master.address);
    let edit = |from: &str, to: &str| {
        let text = fs::read_to_string(host.record()).expect("a record");
        let line = text.lines().find(|line| line.starts_with(from)).expect("such a line");
        fs::write(host.record(), text.replace(line, to)).expect("the record");
    };
    let damage: [(&dyn Fn(), &str); 4] = [
        (
            &|| fs::set_permissions(host.record(), fs::Permissions::from_mode(0o644)).unwrap(),
            "mode 600",
        ),
        (&|| fs::write(host.record(), [0xff_u8; 500]).unwrap(), "damaged"),
        (&|| edit("boot ", "boot 00000000-0000-0000-0000-000000000000"), "started again"),
        (&|| edit("inode ", "inode 1"), "the file is another one"),
    ];
    for (damage, reason) in damage {
        let mut node = host.start(&master.address);
        application.put("before");
        node.program.kill();
        damage();
        assert_began_empty(host.start(&master.address), reason);
        let taken_over = host.start(&master.address);
        await_line(&taken_over.program, TAKEN_OVER);
        application.await_loss("before");
    }
    // Another key opens nothing: the master compares all of it.
    let mut node = host.start(&master.address);
    application.put("before");
    node.program.kill();
    edit("remote_key ", "remote_key 00112233445566778899aabbccddeeff");
    let node = host.start(&master.address);
    await_line(&node.program, "mounting it anew, empty");
    application.await_loss("before");
}

#[test]
fn a_node_that_does_not_keep_its_segment_any_more_leaves_no_record() {
    let (master, host) = (Master::start(0, &[]), Host::new());
    let application = Application::connect(&master.address);
    let mut node = host.start(&master.address);
    application.put("before");
    node.program.kill();
    let [file, _] = host.flags();
    let node = Node::start_with(&master.address, "a", host.port, SIZE, &[&file]);
    assert!(!host.record().exists());
    application.await_loss("before");
    assert_eq!(node.program.end_by(Signal::TERM).code, Some(0));
    assert!(segment_names(&master.address).is_empty(), "it is given back");
}

/// Whether this process may mount; prints a line when it may not.
fn may_mount() -> bool {
    let tried = Command::new("unshare").args(["--mount", "true"]).status();
    let may = tried.is_ok_and(|status| status.success());
    if !may {
        eprintln!("left out: mount namespaces need root and the program unshare");
    }
    may
}

#[test]
fn a_record_that_cannot_be_written_is_written_when_its_directory_takes_it_again() {
    let (master, host) = (Master::start(0, &[]), Host::new());
    let shim = tempfile::tempdir().expect("a directory");
    let (library, breaks) = (shim.path().join("hang.so"), shim.path().join("breaks"));
    preload(&library, SHIM);
    let environment = [
        ("LD_PRELOAD", library.into_os_string()),
        ("MC_HANG_UNDER", host.record().into_os_string()),
        ("MC_HANG_WHILE", breaks.clone().into_os_string()),
    ];
    let application = Application::connect(&master.address);
    let [file, keep] = host.flags();
    let flags = [&*file, &keep];
    // ENOSPC, EROFS, and no answer at all.
    for error in ["28", "30", ""] {
        fs::write(&breaks, error).expect("room");
        let (at, port) = (&*master.address, host.port);
        let mut node = Node::start_in(at, "a", port, SIZE, &flags, &environment);
        await_line(&node.program, "the next process will find no segment to take over");
        application.put("before");
        application.read("before");
        if !error.is_empty() {
            let left = fs::read_dir(host.directory.path()).expect("a directory").count();
            assert_eq!(left, 1, "a part of a record takes room");
        }
        fs::remove_file(&breaks).expect("it is there");
        await_line(&node.program, "the segment is kept for the next process after all");
        node.program.kill();
        let mut node = host.start(at);
        await_line(&node.program, TAKEN_OVER);
        application.read("before");
        node.program.kill();
        fs::remove_file(host.record()).expect("a record");
        assert_began_empty(host.start(at), "no record");
        fs::remove_file(host.record()).expect("a record");
        application.await_loss("before");
    }
}

#[test]
fn a_record_that_is_read_only_is_enough_for_a_take_over_and_for_no_new_life() {
    if !may_mount() {
        return;
    }
    let (mut master, host) = (Master::start(free_port(), &[]), Host::new());
    let mut node = host.start(&master.address);
    let application = Application::connect(&master.address);
    application.put_all();
    node.program.kill();
    let record = host.record().display().to_string();
    let read_only = format!("mount --bind {record} {record} && mount -o remount,bind,ro {record}");
    let mut node = host.launch_after(&master.address, &read_only);
    await_line(&node, TAKEN_OVER);
    application.read_all();
    node.kill();
    // A master that does not know the segment grants the memory anew, of which the record tells otherwise.
    master.program.kill();
    let master = Master::start(master.port(), &[]);
    let refused = host.launch_after(&master.address, &read_only).finish();
    assert_eq!(refused.code, Some(1), "{}", refused.err);
    let reason = format!("cannot remove {record}, which tells of the file's bytes of before");
    assert!(refused.err.contains(&reason), "{}", refused.err);
    let node = host.start(&master.address);
    await_line(&node.program, "mounting it anew, empty");
}

#[test]
fn a_segment_on_hugetlbfs_is_refused_in_one_line() {
    if !may_mount() {
        return;
    }
    let kinds = fs::read_to_string("/proc/filesystems").expect("Linux");
    if !kinds.contains("hugetlbfs") {
        eprintln!("left out: this kernel has no hugetlbfs");
        return;
    }
    let host = Host::new();
    let mount = format!("mount -t hugetlbfs none {}", host.directory.path().display());
    let refused = host.launch_after("127.0.0.1:1", &mount).finish();
    refused.assert_refused(1, "hugetlbfs has no files to write");
}

#[test]
fn a_segment_that_peers_reach_over_quic_comes_back_with_all_objects() {
    let (master, host) = (Master::start(0, &[]), Host::new());
    let files = tempfile::tempdir().expect("a directory");
    certify(files.path(), &[("127.0.0.1", None)]);
    let file = |flag: &str, file: &str| format!("--{flag}={}", files.path().join(file).display());
    let tls = [
        file("transfer_tls_ca", "ca.pem"),
        file("transfer_tls_cert", "127.0.0.1.pem"),
        file("transfer_tls_key", "127.0.0.1.key"),
    ];
    let tls = tls.each_ref().map(|flag| &**flag);
    let launch = || {
        let mut flags = host.all_flags(&master.address);
        flags.push("--protocol=quic".into());
        let flags: Vec<&str> = flags.iter().map(|flag| &**flag).chain(tls).collect();
        let node = start("mc-node", &flags);
        node.wait_out(|line| line.contains("quic://127.0.0.1:").then_some(()));
        node
    };
    let with = |args: &[&str]| ctl(&master.address, &[&tls[..], args].concat());
    let mut node = launch();
    with(&["put", "k", "the value"]).assert_ok();
    for signal in [Signal::KILL, Signal::TERM] {
        node.end_by(signal);
        node = launch();
        await_line(&node, TAKEN_OVER);
        assert_eq!(with(&["get", "k"]).assert_ok().out, b"the value");
    }
}

#[test]
fn a_client_that_keeps_its_segment_has_no_other_one() {
    let (master, host) = (Master::start(0, &[]), Host::new());
    let runtime = Runtime::new().expect("a runtime");
    let memory = || Memory::options().file(host.directory.path().join("segment"));
    let builder = || {
        let at = ([127, 0, 0, 1], host.port).into();
        let builder = Client::builder().master(&*master.address).listen(at);
        builder.segment_size(ByteSize::mib(8)).segment_memory(memory())
    };
    let client = runtime.block_on(builder().keep_segment(true).connect()).expect("a master");
    let more = client.mount_segment(SegmentOptions::new(ByteSize::mib(8)));
    let refused = runtime.block_on(more).expect_err("it is kept alone");
    assert!(matches!(refused, SegmentError::KeptAlone), "{refused}");
    // The file is for no one else meanwhile, kept or not.
    let other = builder().listen(([127, 0, 0, 1], 0).into()).connect();
    let refused = runtime.block_on(other).expect_err("the file is in use");
    let StartError::Memory { source, .. } = refused else { panic!("{refused:?}") };
    assert!(source.to_string().contains("is in use"), "{source}");
    runtime.block_on(client.shutdown());
}

/// Puts an object for each permit, under keys of its own, and notes those that are stored.
struct Writers {
    permits: Arc<Semaphore>,
    stored: Arc<Mutex<Vec<String>>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Writers {
    fn start(application: &Application) -> Self {
        let (permits, stored) = (Arc::new(Semaphore::new(0)), Arc::<Mutex<Vec<_>>>::default());
        let write = |writer: usize| {
            let (permits, stored) = (Arc::clone(&permits), Arc::clone(&stored));
            let client = application.client.clone();
            application.runtime.spawn(async move {
                for n in 0_u64.. {
                    let Ok(permit) = permits.acquire().await else { break };
                    permit.forget();
                    let key = format!("{writer}/{n}");
                    if client.put(&key, value(&key)).await.is_ok() {
                        stored.lock().expect("no holder panics").push(key);
                    }
                }
            })
        };
        let tasks = (0..WRITERS).map(write).collect();
        Self { permits, stored, tasks }
    }

    fn stored(&self) -> Vec<String> {
        self.stored.lock().expect("no holder panics").clone()
    }

    fn stop(self, application: &Application) -> Vec<String> {
        self.permits.close();
        for task in self.tasks {
            application.runtime.block_on(task).expect("no writer panics");
        }
        core::mem::take(&mut self.stored.lock().expect("no holder panics"))
    }
}

#[test]
fn a_node_that_is_killed_during_puts_loses_none_that_was_stored_and_returns_no_other_bytes() {
    let mut random = Random::seeded("UPGRADE_SEED");
    let (master, host) = (Master::start(0, &[]), Host::new());
    let mut node = host.start(&master.address);
    let application = Application::connect(&master.address);
    let writers = Writers::start(&application);
    for round in 0..20 {
        let enough = writers.stored().len() + 1 + random.below(PUTS / 2);
        writers.permits.add_permits(PUTS);
        let what = format!("round {round}: {enough} objects are stored");
        eventually_blocking(DEADLINE, what, || writers.stored().len() >= enough);
        node.program.kill();
        node = host.start(&master.address);
        await_line(&node.program, TAKEN_OVER);
        let stored = writers.stored();
        application.read(&stored[random.below(stored.len())]);
    }
    let stored = writers.stop(&application);
    stored.iter().for_each(|key| application.read(key));
    // Those whose put was cut off are not there, or are whole.
    for key in (0..WRITERS).flat_map(|writer| (0..20 * PUTS).map(move |n| format!("{writer}/{n}")))
    {
        if let Ok(found) = application.runtime.block_on(application.client.get(&key)) {
            assert!(found == value(&key), "{key} has other bytes");
        }
    }
}

#[test]
fn what_cannot_be_kept_is_refused_in_one_line() {
    let host = Host::new();
    let [file, keep] = host.flags();
    let refused = |flags: &[&str], reason: &str| {
        let common = ["--host=127.0.0.1", "--port=0", "--master=127.0.0.1:1", &keep];
        run("mc-node", &[&common[..], flags].concat()).assert_refused(1, reason);
    };
    let port = format!("--data_port={}", host.port);
    refused(&[&port], "keep_segment needs segment_file");
    refused(&[&file], "keep_segment needs the same port");
    refused(&[&file, &port, "--global_segment_size=0"], "needs a segment whose memory is a file");
    refused(&[&file, &port, "--drain_timeout=1s"], "leave one of them out");
    assert_eq!(fs::read_dir(host.directory.path()).unwrap().count(), 0, "no file is made");
}
