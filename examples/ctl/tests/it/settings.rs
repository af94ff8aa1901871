//! Settings of the programs: from a file, variables and flags, printed, checked and read again.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use mc_testkit::{Finished, Input, Program, Signal, binary, eventually_blocking};
use serde_json::Value;

use crate::support::{DEADLINE, Master, Node, ctl, page, run};

/// A file of settings in a directory of its own, which the first part keeps.
fn file(name: &str, text: &str) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join(name);
    fs::write(&path, text).expect("a file");
    (dir, path)
}

fn flag(path: &Path) -> String {
    format!("--config_path={}", path.display())
}

fn run_in(name: &str, args: &[&str], variables: &[(&str, &str)]) -> Finished {
    let mut command = Command::new(binary(name));
    command.args(args).envs(variables.iter().copied());
    Program::start(DEADLINE, &mut command, Input::None).finish()
}

/// Each setting with its value, and where that comes from.
fn printed(name: &str, args: &[&str], variables: &[(&str, &str)]) -> BTreeMap<String, String> {
    let args = [args, &["--print_config", "--json"]].concat();
    let ended = run_in(name, &args, variables).assert_ok();
    let line = |line: &str| {
        let line: Value = serde_json::from_str(line).expect("JSON in each line");
        let text = |field: &str| line[field].as_str().unwrap_or_default().to_owned();
        let shown = [text("value"), text("from"), text("at")].join(" ");
        (text("name"), shown.trim_end().to_owned())
    };
    ended.text().lines().map(line).collect()
}

#[test]
fn the_master_s_settings_are_printed_with_their_sources() {
    let text = "rpc_port = 1\neviction_ratio = 0.2\nmetrics_port = 3\nclient_live_ttl_sec = 60\n";
    let (_dir, path) = file("master.toml", text);
    let at = path.display();
    let variables = [
        ("MC_MASTER_METRICS_PORT", "4"),
        ("MC_MASTER_RPC_PORT", "5"),
        ("MC_YLT_LOG_LEVEL", "debug"),
    ];
    let settings = printed("mc-master", &[&flag(&path), "--port=6"], &variables);
    for (name, expected) in [
        ("rpc_port", "6 flag".to_owned()),
        ("metrics_port", "4 variable MC_MASTER_METRICS_PORT".into()),
        ("eviction_ratio", format!("0.2 file {at}:2")),
        ("client_ttl", format!("60 file {at}:4")),
        ("log_level", "debug variable MC_YLT_LOG_LEVEL".into()),
        ("eviction_high_watermark_ratio", "0.95 default".into()),
        ("rpc_max_connections", "16384 default".into()),
        ("config_path", format!("{at} flag")),
    ] {
        assert_eq!(settings[name], expected, "{name}");
    }
    let table = run("mc-master", &["--print_config"]).assert_ok();
    assert_eq!(table.text().lines().count(), settings.len() + 1);
    assert!(table.text().starts_with("SETTING "), "{}", table.text());
}

#[test]
fn the_node_s_settings_are_printed_with_their_sources() {
    let text = "master_server_addr: h:1\nglobal_segment_size: 1GB\nport: 7\nput_wait_ms: 5\n\
                local_hostname: localhost\nenable_offload: true\nssd_offload_path: /ssd\n\
                metadata_server: http://user:s3cret@h/\n";
    let (_dir, path) = file("node.yaml", text);
    let at = path.display().to_string();
    let variables = [
        ("MOONCAKE_CONFIG_PATH", &*at),
        ("MC_STORE_PUT_WAIT_MS", "6"),
        ("MOONCAKE_GLOBAL_SEGMENT_SIZE", "2GB"),
        ("MC_NODE_THREADS", "3"),
    ];
    let settings = printed("mc-node", &["--global_segment_size=3GB"], &variables);
    for (name, expected) in [
        ("master_server_address", format!("h:1 file {at}:1")),
        ("global_segment_size", "3GB flag".into()),
        ("port", format!("7 file {at}:3")),
        ("put_wait_ms", "6 variable MC_STORE_PUT_WAIT_MS".into()),
        ("threads", "3 variable MC_NODE_THREADS".into()),
        ("enable_offload", format!("true file {at}:6")),
        ("metadata_server", format!("http://***@h/ file {at}:8")),
        ("rpc_timeout_ms", "10000 default".into()),
        ("config_path", format!("{at} variable MOONCAKE_CONFIG_PATH")),
    ] {
        assert_eq!(settings[name], expected, "{name}");
    }
    let none = printed("mc-node", &[], &[]);
    assert_eq!(none["master_server_address"], "localhost:50051 default");
    assert_eq!(none["global_segment_size"], "4GB default");
}

#[test]
fn files_that_cannot_be_are_refused_by_both_programs() {
    let deep = format!("{{\"x\": {}", "[".repeat(9));
    for program in ["mc-master", "mc-node"] {
        for (name, text, says) in [
            ("a.toml", "thread = 1\n", "a.toml:1: "),
            ("a.yaml", "\nenable_offloat: true\n", "a.yaml:2: "),
            ("a.yaml", "\nenable_offloat: true\n", "did you mean enable_offload?"),
            ("a.json", "{\"enable_offload\": true,\n\"enable_offload\": true}", "a.json:2: "),
            ("a.toml", "enable_offload = true\nenable_offload = true", "a.toml:2: "),
            ("a.toml", "log_format = 'xml'", "write text or json"),
            ("a.yaml", "enable_offload: perhaps", "a.yaml:1: "),
            ("a.json", &deep, "more than 8 lists and tables"),
            ("a.txt", "", "named .toml, .yaml, .yml or .json"),
            ("a.yaml", &"#".repeat((1 << 20) + 1), "1048576"),
        ] {
            let (_dir, path) = file(name, text);
            let flag = flag(&path);
            for more in [&[][..], &["--check_config"], &["--print_config"]] {
                let args = [&[&*flag], more].concat();
                run(program, &args).assert_refused(2, says);
            }
        }
        run_in(program, &[], &[("MC_YLT_LOG_LEVEL", "loud")])
            .assert_refused(2, "the variable MC_YLT_LOG_LEVEL: ");
    }
    let (_dir, path) = file("a.yaml", "eviction_ratio: 7\n");
    run("mc-master", &[&flag(&path)]).assert_refused(2, "--eviction_ratio: '7' is refused");
    let (_dir, path) = file("a.yaml", "put_wait_ms: soon\n");
    run("mc-node", &[&flag(&path)]).assert_refused(2, "a number of milliseconds");
}

#[test]
fn a_check_reads_what_the_settings_name_and_starts_nothing() {
    let (dir, access) = file("access.list", "uid:0 admin\n");
    let access = format!("--access_file={}", access.display());
    let shared = dir.path().join("shared");
    let root = format!("--root_fs_dir={}", shared.display());
    run("mc-master", &["--check_config", &access, &root]).assert_ok();
    assert!(!shared.exists(), "nothing is made");
    for (flags, says) in [
        (&["--access_file=/nowhere"][..], "--access_file"),
        (&["--tls_cert=/nowhere.pem", "--tls_key=/nowhere.key"], "/nowhere.pem"),
        (&["--enable_ha"], "--enable_ha needs --etcd_endpoints"),
        (&["--ha_token_file=/nowhere"], "--ha_token_file"),
        (&["--ha_tls_ca=/nowhere"], "--ha_tls_ca"),
        (&["--enable_c2c", "--c2c_config_file=/nowhere"], "/nowhere"),
        (&["--offload_on_evict"], "has no effect without --enable_offload"),
        (&["--put_start_discard_timeout_sec=9", "--put_start_release_timeout_sec=8"], "discard"),
    ] {
        run("mc-master", &[&["--check_config"], flags].concat()).assert_refused(2, says);
    }
    // The master that it names need not be there.
    let size = "--global_segment_size=16MB";
    run("mc-node", &["--check_config", size, "--master=127.0.0.1:1"]).assert_ok();
    let (_dir, token) = file("token", "two words\n");
    let token = format!("--token_file={}", token.display());
    for (flags, says) in [
        (&["--token_file=/nowhere"][..], "token_file: "),
        (&[&*token], "token_file: "),
        (&["--tls_ca=/nowhere"], "/nowhere"),
        (&["--tls_cert=/a", "--tls_key=/b"], "--tls_cert needs --tls_ca"),
        (
            &["--transfer_tls_ca=/a", "--transfer_tls_cert=/b", "--transfer_tls_key=/c"],
            "transfer_tls_ca",
        ),
        (&["--enable_offload"], "--ssd_offload_path"),
        (&["--global_segment_size=100TB"], "contribute less"),
    ] {
        run("mc-node", &[&["--check_config", size], flags].concat()).assert_refused(2, says);
    }
}

#[test]
fn a_node_starts_with_a_file() {
    let master = Master::start(0, &[]);
    let text = format!(
        "master = '{}'\nglobal_segment_size = '16MB'\nhost = '127.0.0.1'\nport = 0\n\
         segment_name = 'of the file'\nlocal_hostname = 'other'\n",
        master.address
    );
    let (_dir, path) = file("node.toml", &text);
    let mut command = Command::new(binary("mc-node"));
    command.arg(flag(&path)).env("MC_STORE_SEGMENT_NAME", "of the variable");
    let node = Program::start(DEADLINE, &mut command, Input::None);
    node.wait_out(|line| {
        line.contains("segment of the variable, 16.00 MB at tcp://127.0.0.1:").then_some(())
    });
    ctl(&master.address, &["put", "k", "v"]).assert_ok();
    assert_eq!(node.end_by(Signal::TERM).code, Some(0));
}

#[test]
fn a_master_reads_its_settings_again_while_calls_go_on() {
    let (_dir, path) = file("master.yaml", "eviction_high_watermark_ratio: 1.0\nlog_level: info\n");
    let lease = "--default_kv_lease_ttl=1ms";
    let master = Master::start(0, &[&flag(&path), lease]);
    let _node = Node::start(&master.address, "a", 0, "1MB");
    let value = "v".repeat(10 << 10);
    let put = |key: &str| ctl(&master.address, &["put", key, &value]).assert_ok();
    for n in 0..60 {
        put(&format!("k{n}"));
    }
    let keys = || {
        let page = page(&master.metrics, "/metrics");
        let line = page.lines().find(|line| line.starts_with("master_key_count "));
        line.expect("a count")
            .split(' ')
            .nth(1)
            .expect("a number")
            .parse::<u64>()
            .expect("a number")
    };
    assert_eq!(keys(), 60);
    let said =
        |words: &str| master.program.wait_err(|line| line.contains(words).then(|| line.to_owned()));
    // A file that is refused changes nothing, and the log says why.
    fs::write(&path, "eviction_high_watermark_ratio: 0.2\nlog_level: loud\n").unwrap();
    master.program.signal(Signal::HUP);
    let fault = said("SIGHUP: all settings stay as they are");
    assert!(fault.contains("master.yaml:2: ") && fault.contains("'loud'"), "{fault}");
    put("still");
    assert_eq!(keys(), 61);
    // One that needs a restart, too.
    let text = "eviction_high_watermark_ratio: 0.2\neviction_ratio: 0.1\nlog_level: debug\nrpc_port: 9\n\
                client_ttl: 77\n";
    fs::write(&path, text).unwrap();
    master.program.signal(Signal::HUP);
    let taken = said("SIGHUP: settings read again: ");
    for setting in ["eviction_high_watermark_ratio=0.2", "eviction_ratio=0.1", "log_level=debug"] {
        assert!(taken.contains(setting), "{taken}");
    }
    let restart = said("SIGHUP: needs a restart: ");
    assert!(restart.trim_end().ends_with("needs a restart: client_ttl"), "{restart}");
    eventually_blocking(DEADLINE, "the lower watermark evicts", || keys() < 30);
    put("after");
    ctl(&master.address, &["get", "after"]).assert_ok();
    assert_eq!(master.program.end_by(Signal::TERM).code, Some(0));
}

#[test]
fn a_node_reads_its_settings_again() {
    let master = Master::start(0, &[]);
    let (_dir, path) = file("node.json", "{\"log_level\": \"warn\"}");
    let node = Node::start_with(&master.address, "a", 0, "1MB", &[&flag(&path)]);
    fs::write(&path, "{\"log_level\": \"info\", \"put_wait_ms\": 7, \"token_file\": \"/nowhere\"}")
        .unwrap();
    node.program.signal(Signal::HUP);
    node.program.wait_err(|line| {
        let is_refused = line.contains("SIGHUP: all settings stay as they are: token_file: ");
        is_refused.then_some(())
    });
    fs::write(&path, "{\"log_level\": \"info\", \"put_wait_ms\": 7}").unwrap();
    node.program.signal(Signal::HUP);
    // A line at the level that holds from now on.
    node.program
        .wait_err(|line| line.contains("settings read again: log_level=info").then_some(()));
    node.program.wait_err(|line| line.ends_with("needs a restart: put_wait_ms").then_some(()));
    ctl(&master.address, &["put", "k", "v"]).assert_ok();
    assert_eq!(node.program.end_by(Signal::TERM).code, Some(0));
}
