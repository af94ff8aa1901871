//! A shared tier in a bucket of an object store that speaks S3.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mc_store::{Client, PutOutcome};
use mc_testkit::{
    Finished, Input, Program, SeaweedFs, Signal, binary, content, eventually_blocking,
};
use mc_tier::{ObjectStoreSettings, ObjectStoreTier, Tier as _};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::support::{DEADLINE, Master, page};

/// A server with the bucket `kv-cache`; `None` when it cannot be installed.
fn server() -> Option<SeaweedFs> {
    let server = SeaweedFs::start(env!("CARGO_TARGET_TMPDIR"))?;
    server.make_bucket("kv-cache");
    Some(server)
}

fn master(server: &SeaweedFs, flags: &[&str]) -> Master {
    let tier = format!("--shared_tier=s3://kv-cache/prod?endpoint=http://{}", server.s3());
    // Memory whose node is gone is gone soon.
    let common = [&*tier, "--cluster_id=one", "--client_ttl=2s", "--default_kv_lease_ttl=100"];
    Master::start(0, &[&common[..], flags].concat())
}

/// A user of a host, with files of AWS's tools at home and no variable but those that are needed.
struct User {
    home: TempDir,
}

impl User {
    fn with_secret(secret: &str) -> Self {
        let user = Self { home: tempfile::tempdir().unwrap() };
        std::fs::create_dir(user.home.path().join(".aws")).unwrap();
        user.set_secret(secret);
        user
    }

    fn set_secret(&self, secret: &str) {
        let profile = format!(
            "[default]\naws_access_key_id = nobody\naws_secret_access_key = nothing\n\n[kv]\n\
             aws_access_key_id = {}\naws_secret_access_key = {secret}\n",
            SeaweedFs::USER
        );
        std::fs::write(self.home.path().join(".aws/credentials"), profile).unwrap();
    }

    fn command(&self, name: &str, master: &Master) -> Command {
        let mut command = Command::new(binary(name));
        command.arg(format!("--master_server_address={}", master.address));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("AWS_") {
                command.env_remove(name);
            }
        }
        command.env("HOME", self.home.path()).env("AWS_PROFILE", "kv");
        command.env("AWS_ALLOW_HTTP", "true");
        command
    }

    fn ctl(&self, master: &Master, args: &[&str], input: &[u8]) -> Finished {
        let mut command = self.command("mc-ctl", master);
        let ended = Program::start(DEADLINE, command.args(args), Input::Bytes(input)).finish();
        assert_eq!(ended.code, Some(0), "{args:?}: {}", ended.err);
        ended
    }

    fn put(&self, master: &Master, key: &str, len: usize) {
        self.ctl(master, &["put", key], &content(key, len));
    }

    fn get(&self, master: &Master, key: &str, len: usize) {
        assert!(self.ctl(master, &["get", key], b"").out == content(key, len), "{key}");
    }

    /// Starts a node, and returns the URL of its pages.
    fn node(&self, master: &Master, name: &str) -> (Program, String) {
        let mut command = self.command("mc-node", master);
        command.env("MC_STORE_CLIENT_HTTP_HOST", "127.0.0.1").args([
            "--host=127.0.0.1",
            "--port=0",
            "--data_port=0",
            "--enable_http_server",
            "--http_port=0",
            "--global_segment_size=64MB",
            &format!("--segment_name={name}"),
        ]);
        let program = Program::start(DEADLINE, &mut command, Input::None);
        program.wait_out(|line| line.starts_with("Mooncake client ready").then_some(()));
        let url = program.wait_err(|line| {
            line[line.find("http://127")?..].strip_suffix("/metrics").map(str::to_owned)
        });
        (program, url)
    }
}

/// The objects of the cluster in the bucket.
fn bucket(server: &SeaweedFs) -> ObjectStoreTier {
    let variables = [
        ("AWS_ACCESS_KEY_ID", SeaweedFs::USER),
        ("AWS_SECRET_ACCESS_KEY", SeaweedFs::SECRET),
        ("AWS_ALLOW_HTTP", "true"),
    ];
    let mut settings = ObjectStoreSettings::default();
    settings.s3.variables =
        variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into_iter().collect();
    let url = format!("s3://kv-cache/prod/one?endpoint=http://{}", server.s3());
    ObjectStoreTier::open(&url, &settings).unwrap()
}

fn is_missing(node: &str) -> bool {
    let page = page(node, "/metrics");
    let name = "mooncake_client_is_shared_tier_missing ";
    let value = page.lines().find_map(|line| line.strip_prefix(name)).expect("the figure");
    value == "1"
}

fn file_of(user: &User, master: &Master, key: &str) -> serde_json::Value {
    let told = user.ctl(master, &["stat", "--json", key], b"");
    serde_json::from_slice::<serde_json::Value>(&told.out).unwrap()["file"].clone()
}

#[test]
fn objects_are_read_from_a_bucket_when_their_memory_is_gone() {
    let Some(server) = server() else { return };
    let (user, objects) = (User::with_secret(SeaweedFs::SECRET), bucket(&server));
    let master = master(&server, &["--quota_bytes=1GB"]);
    let (node, pages) = user.node(&master, "first");
    assert!(!is_missing(&pages));
    for (key, len) in [("a", 1), ("b", 100_000), ("c", 20 << 20)] {
        user.put(&master, key, len);
    }
    eventually_blocking(DEADLINE, "the objects are in the bucket", || {
        objects.usage().unwrap().objects == 3
    });
    eventually_blocking(DEADLINE, "the master knows", || {
        file_of(&user, &master, "c") == "complete"
    });
    node.end_by(Signal::TERM);
    // No memory is left: another process reads what the first has written.
    for (key, len) in [("a", 1), ("b", 100_000), ("c", 20 << 20)] {
        user.get(&master, key, len);
    }
    // The next node deletes what is removed.
    let (_node, _) = user.node(&master, "second");
    user.ctl(&master, &["remove", "b"], b"");
    eventually_blocking(DEADLINE, "the removed object is deleted from the bucket", || {
        objects.usage().unwrap().objects == 2
    });
    user.get(&master, "a", 1);
}

#[test]
fn a_bucket_with_a_quota_loses_what_was_stored_first() {
    let Some(server) = server() else { return };
    let (user, objects) = (User::with_secret(SeaweedFs::SECRET), bucket(&server));
    let master = master(&server, &["--quota_bytes=10MB"]);
    let (_node, _) = user.node(&master, "node");
    let put = |numbers: std::ops::Range<u32>| {
        numbers.for_each(|number| user.put(&master, &format!("k{number}"), 1_000_000));
    };
    put(0..3);
    eventually_blocking(DEADLINE, "the first object is in the bucket", || {
        file_of(&user, &master, "k0") == "complete"
    });
    put(3..16);
    eventually_blocking(DEADLINE, "the first object is evicted", || {
        file_of(&user, &master, "k0").is_null()
    });
    let used = objects.usage().unwrap();
    assert!((1..=10).contains(&used.objects) && used.bytes < 10 << 20, "{used:?}");
    user.get(&master, "k0", 1_000_000);
}

#[test]
fn a_wrong_secret_costs_files_and_nothing_else_until_it_is_right() {
    let Some(server) = server() else { return };
    let (user, objects) = (User::with_secret("a-wrong-hunter2"), bucket(&server));
    let master = master(&server, &[]);
    let (node, pages) = user.node(&master, "node");
    let told =
        node.wait_err(|line| line.contains("shared tier cannot be used").then(|| line.to_owned()));
    assert!(told.contains("s3://kv-cache/prod/one") && !told.contains("hunter2"), "{told}");
    assert!(is_missing(&pages));
    user.put(&master, "before", 100_000);
    user.get(&master, "before", 100_000);
    user.set_secret(SeaweedFs::SECRET);
    eventually_blocking(DEADLINE, "the node tries again", || !is_missing(&pages));
    user.put(&master, "after", 100_000);
    eventually_blocking(DEADLINE, "the object is in the bucket", || {
        objects.usage().unwrap().objects == 1
    });
    user.get(&master, "before", 100_000);
    let logged = node.end_by(Signal::TERM).err;
    assert!(logged.contains("used from now on") && !logged.contains("hunter2"), "{logged}");
}

#[test]
fn a_server_that_goes_away_costs_files_and_nothing_else() {
    const LEN: usize = 100_000;
    let Some(mut server) = server() else { return };
    let (user, objects) = (User::with_secret(SeaweedFs::SECRET), bucket(&server));
    let master = master(&server, &[]);
    let (node, pages) = user.node(&master, "node");
    let runtime = Runtime::new().unwrap();
    let client = Client::builder().master(&master.address).shared_tier(Arc::new(objects.clone()));
    let client = runtime.block_on(client.connect()).unwrap();
    let put = |prefix: &str| {
        for number in 0..30 {
            let key = format!("{prefix}/{number}");
            let put = runtime.block_on(client.put(&key, content(&key, LEN)));
            assert!(matches!(put, Ok(PutOutcome::Stored)), "{key}: {put:?}");
        }
    };
    let get = |prefix: &str| {
        for number in 0..30 {
            let key = format!("{prefix}/{number}");
            assert!(runtime.block_on(client.get(&key)).unwrap() == content(&key, LEN), "{key}");
        }
    };
    put("before");
    assert!(runtime.block_on(client.flush_files(DEADLINE)));
    assert_eq!(objects.usage().unwrap().objects, 30);
    server.kill();
    let begun = Instant::now();
    put("meanwhile");
    get("before");
    get("meanwhile");
    // Far less than the timeout of one request, of which there would be 90.
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    // Who starts meanwhile has memory as well.
    user.put(&master, "a program", LEN);
    user.get(&master, "a program", LEN);
    server.restart();
    assert!(runtime.block_on(client.flush_files(DEADLINE * 2)));
    put("after");
    assert!(runtime.block_on(client.flush_files(DEADLINE)));
    assert!(objects.usage().unwrap().objects >= 60);
    assert!(!is_missing(&pages));
    node.end_by(Signal::TERM);
    get("before");
    get("after");
    runtime.block_on(client.shutdown());
}
