use std::ffi::OsString;

use mc_types::ByteSize;
use proptest::prelude::*;

use super::*;
use crate::compat::{CompatFlag, GLOG_FLAGS, Otherwise, switch, value};
use crate::refusal::Refusal;
use crate::server::ServerArgs;

#[derive(clap::Parser, Debug)]
#[command(name = "prog")]
struct Args {
    #[command(flatten)]
    _server: ServerArgs,
    #[arg(long = "rpc_port", alias = "port", default_value_t = 50051)]
    rpc_port: u16,
    /// How much [default: half of it].
    #[arg(long = "eviction_ratio")]
    ratio: Option<f64>,
    #[arg(long = "tls_cert", requires = "tls_key")]
    tls_cert: Option<String>,
    #[arg(long = "tls_key", requires = "tls_cert")]
    tls_key: Option<String>,
    #[arg(long = "enable_ha")]
    ha: bool,
    #[arg(long = "etcd_user", env = "TEST_ETCD_USER")]
    user: Option<String>,
    #[arg(long = "global_segment_size")]
    size: Option<ByteSize>,
}

const COMPAT: &[CompatFlag] = &[
    switch("enable_tape", &["false"], Otherwise::Refuse("use a disk")),
    value("ha_port", &["0"], Otherwise::Rename("rpc_port")),
];
const TABLES: &[&[CompatFlag]] = &[COMPAT, GLOG_FLAGS];
const MASTER: Program = Program {
    tables: TABLES,
    prefix: "MC_TEST_",
    variables: &[("enable_ha", "TEST_HA")],
    client: None,
};
const NODE: Program = Program {
    client: Some(ClientFlags { flags: &[], defaults: &[("global_segment_size", "4GB")] }),
    variables: &[("config_path", "TEST_FILE")],
    ..MASTER
};

/// A file in a directory that lasts as long as the first part.
fn file(name: &str, text: impl AsRef<[u8]>) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    std::fs::write(&path, text).unwrap();
    let path = path.display().to_string();
    (dir, path)
}

fn read(
    program: Program,
    path: &str,
    variables: &[(&str, &str)],
    flags: &[&str],
) -> Result<Configured<Args>, Refusal> {
    let config = format!("--config_path={path}");
    let args = ["prog", &config].into_iter().chain(flags.iter().copied());
    let lookup = |name: &str| {
        let found = variables.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| OsString::from(value))
    };
    program.read_with(args.map(OsString::from).collect(), lookup).map(|parsed| parsed.args)
}

fn refused(program: Program, path: &str, flags: &[&str]) -> String {
    let refusal = read(program, path, &[], flags).expect_err(path).to_string();
    assert!(!refusal.contains('\n'), "{refusal}");
    refusal
}

fn origin<P>(configured: &Configured<P>, name: &str) -> (String, Origin) {
    let it = configured.settings.iter().find(|it| it.name == name).expect(name);
    (it.value.clone(), it.origin.clone())
}

const YAML: &str =
    "# a master\nrpc_port: 7\neviction-ratio: 0.25 # much\nenable_ha: true\netcd_user: 'u'\n";

#[test]
fn a_flag_overrides_a_variable_which_overrides_the_file() {
    let (_dir, path) = file("a.yaml", YAML);
    let args = read(MASTER, &path, &[], &[]).unwrap().args;
    assert_eq!((args.rpc_port, args.ratio, args.ha), (7, Some(0.25), true));
    let variables =
        [("MC_TEST_RPC_PORT", "8"), ("TEST_HA", "off"), ("MC_TEST_EVICTION_RATIO", " ")];
    let all = read(MASTER, &path, &variables, &["--port=9"]).unwrap();
    assert_eq!((all.args.rpc_port, all.args.ratio, all.args.ha), (9, Some(0.25), false));
    assert_eq!(all.args.user.as_deref(), Some("u"));
    assert_eq!(origin(&all, "rpc_port"), ("9".into(), Origin::Flag));
    assert_eq!(origin(&all, "enable_ha"), ("off".into(), Origin::Variable("TEST_HA".into())));
    let place = |line| Origin::File(format!("{path}:{line}"));
    assert_eq!(origin(&all, "eviction_ratio"), ("0.25".into(), place(3)));
    assert_eq!(origin(&all, "etcd_user"), ("u".into(), place(5)));
    assert_eq!(origin(&all, "tls_cert"), (String::new(), Origin::Default));
    assert_eq!(origin(&all, "log_level"), ("info".into(), Origin::Default));
    let none = read(MASTER, "", &[], &[]).unwrap();
    assert_eq!(origin(&none, "eviction_ratio"), ("half of it".into(), Origin::Default));
    assert_eq!(origin(&none, "rpc_port"), ("50051".into(), Origin::Default));
}

#[test]
fn a_variable_names_the_file_unless_a_flag_does() {
    let (_a, one) = file("a.toml", "rpc_port = 1");
    let (_b, other) = file("b.json", "{\"rpc_port\": 2}");
    let lookup = |name: &str| (name == "TEST_FILE").then(|| OsString::from(&one));
    let read = |flags: &[&str]| {
        let args = std::iter::once("prog").chain(flags.iter().copied());
        NODE.read_with::<Args>(args.map(OsString::from).collect(), lookup).unwrap().args
    };
    let by_variable = read(&[]);
    assert_eq!(by_variable.args.rpc_port, 1);
    assert_eq!(origin(&by_variable, "config_path").1, Origin::Variable("TEST_FILE".into()));
    let flag = format!("--config={other}");
    assert_eq!(read(&[&flag]).args.rpc_port, 2);
    assert_eq!(read(&["--config_path="]).args.rpc_port, 50051);
}

#[test]
fn all_formats_mean_the_same() {
    let toml = "rpc_port = 7\neviction-ratio = 0.25\nenable_ha = true\netcd_user = 'u'\n";
    let json =
        "{\"rpc_port\": 7,\n\"eviction-ratio\": 0.25, \"enable_ha\": true,\n\"etcd_user\": \"u\"}";
    for (name, text) in [("a.yml", YAML), ("a.json", json), ("a.toml", toml)] {
        let (_dir, path) = file(name, text);
        let args = read(MASTER, &path, &[], &[]).unwrap().args;
        assert_eq!((args.rpc_port, args.ratio, args.ha), (7, Some(0.25), true), "{name}");
        assert_eq!(args.user.as_deref(), Some("u"));
    }
}

#[test]
fn a_client_s_settings_are_the_program_s_too() {
    let text = "{\"master_server_addr\": \"h:1\", \"put_wait_ms\": 5, \"rpc_port\": 7,\n\
                \"device_name\": [\"a\", \"b\"], \"global_segment_size\": \"1GB\",\n\
                \"tls_cert\": \"c\", \"etcd_user\": \"\"}";
    let (_dir, path) = file("node.json", text);
    let variables = [("MC_STORE_PUT_WAIT_MS", " 6 "), ("MOONCAKE_GLOBAL_SEGMENT_SIZE", "2GB")];
    let all = read(NODE, &path, &variables, &["--global_segment_size=3GB"]).unwrap();
    assert_eq!(all.args.rpc_port, 7);
    assert_eq!(
        (all.args.size, all.client.global_segment_size),
        (Some(ByteSize::gib(3)), Some(ByteSize::gib(2)))
    );
    assert_eq!(all.client.master.as_deref(), Some("h:1"));
    assert_eq!(all.client.put_wait.map(|it| it.as_millis()), Some(6));
    assert_eq!(all.client.device_name, Some(vec!["a".to_owned(), "b".to_owned()]));
    assert_eq!(all.args.tls_cert, None, "the flag has no value");
    assert!(all.client.tls_cert.is_some());
    assert_eq!(origin(&all, "global_segment_size"), ("3GB".into(), Origin::Flag));
    assert_eq!(origin(&all, "master"), ("h:1".into(), Origin::File(format!("{path}:1"))));
    let variable = Origin::Variable("MC_STORE_PUT_WAIT_MS".into());
    assert_eq!(origin(&all, "put_wait_ms"), (" 6 ".into(), variable));
    assert_eq!(origin(&all, "rpc_timeout_ms"), ("10000".into(), Origin::Default));
    let none = read(NODE, "", &[], &[]).unwrap();
    assert_eq!(origin(&none, "global_segment_size"), ("4GB".into(), Origin::Default));
}

#[test]
fn refusals_name_the_file_and_the_line() {
    for (name, text, line, says) in [
        (
            "a.yaml",
            "rpc_port: 1\nrpc_prot: 2\n",
            2,
            "prog has no setting rpc_prot; did you mean rpc_port?",
        ),
        ("a.yaml", "rpc_port: 1\nzzz: 2\n", 2, "prog has no setting zzz"),
        (
            "a.yaml",
            "\nrpc_port: many\n",
            2,
            "--rpc_port: 'many' is refused: expected a whole number",
        ),
        ("a.toml", "\nrpc_port = 65536\n", 2, "--rpc_port: '65536' is refused"),
        (
            "a.toml",
            "enable_ha = true\nrpc_port = true\n",
            2,
            "--rpc_port: 'true' is refused: expected a whole",
        ),
        (
            "a.json",
            "{\n\"enable_ha\": 7}",
            2,
            "--enable_ha: '7' is refused: expected true or false",
        ),
        ("a.yaml", "rpc_port: 1\nenable_tape: true\n", 2, "use a disk"),
        ("a.yaml", "rpc_port: 1\n\nrpc-port: 2\n", 3, "in line 1 already"),
        (
            "a.yaml",
            "rpc_port: 1\nport: 2\n",
            2,
            "rpc_port and port are one setting, and have the values 1 and 2",
        ),
        ("a.toml", "rpc_port = 1\nrpc_port = 2\n", 2, "duplicate key"),
        ("a.json", "{\"rpc_port\": 1,\n \"rpc_port\": 2}", 2, "in line 1 already"),
        ("a.yaml", "config_path: b.yaml\n", 1, "cannot name another"),
        ("a.yaml", "config: b.yaml\n", 1, "cannot name another"),
        ("a.yaml", "print_config: true\n", 1, "for the command line only"),
        ("a.yaml", "9: 1\n", 1, "no name of a setting"),
        ("a.yaml", "log_level: loud\n", 1, "'loud' is no level"),
        ("a.json", "{\"rpc_port\": 1,\n \"x\": {\"rpc_port\": 2}}", 2, "the value of x is a table"),
        ("a.json", "{\"rpc_port\": 1,\n \"x\": [[[[[[[[[[1]]]]]]]]]]}", 2, "more than 8 lists"),
        ("a.toml", "rpc_port = 1\n[more]\nx = 1\n", 2, "the value of more is a table"),
    ] {
        let (_dir, path) = file(name, text);
        let refusal = refused(MASTER, &path, &[]);
        assert!(refusal.starts_with(&format!("{path}:{line}: ")), "{text}: {refusal}");
        assert!(refusal.contains(says), "{refusal}");
    }
    // The same setting with the same value under two names is no mistake.
    let (_dir, path) = file("a.yaml", "rpc_port: 1\nport: 1\n");
    assert_eq!(read(MASTER, &path, &[], &[]).unwrap().args.rpc_port, 1);
    // Not the file's fault.
    let refusal = refused(MASTER, &path, &["--eviction_ratio=soon"]);
    assert!(refusal.starts_with("--eviction_ratio: 'soon'"), "{refusal}");
}

#[test]
fn a_client_s_settings_are_refused_with_their_place() {
    for (text, line, says) in [
        (
            "put_wait_ms: soon\n",
            1,
            "put_wait_ms = \"soon\" is refused: it must be a number of milliseconds",
        ),
        ("\nsegment_medium: tape\n", 2, "it must be dram, ssd or vram"),
        ("\npu_wait_ms: 7\n", 2, "prog has no setting pu_wait_ms; did you mean put_wait_ms?"),
        ("master: a\nmaster_server_address: b\n", 2, "are one setting"),
    ] {
        let (_dir, path) = file("a.yaml", text);
        let refusal = refused(NODE, &path, &[]);
        assert!(refusal.starts_with(&format!("{path}:{line}: ")), "{text}: {refusal}");
        assert!(refusal.contains(says), "{refusal}");
    }
    for (program, variable, value, says) in [
        (NODE, "MC_STORE_PUT_WAIT_MS", "soon", "put_wait_ms = \"soon\" is refused"),
        (NODE, "MC_TEST_RPC_PORT", "soon", "--rpc_port: 'soon' is refused"),
        (MASTER, "MC_TEST_RPC_PORT", "-1", "--rpc_port: '-1' is refused"),
        (MASTER, "MC_LOG", "loud", "'loud' is no level"),
        (MASTER, "MC_LOG_FORMAT", "xml", "write text or json"),
    ] {
        let refusal = read(program, "", &[(variable, value)], &[]).unwrap_err().to_string();
        assert!(refusal.starts_with(&format!("the variable {variable}: ")), "{refusal}");
        assert!(refusal.contains(says), "{refusal}");
    }
}

#[test]
fn flags_that_go_together_may_stand_in_both_places() {
    let (_dir, path) = file("a.yaml", "tls_cert: a.pem\nenable_tape: true\n");
    assert!(read(MASTER, &path, &[], &["--tls_key=a.key", "--noenable_tape"]).is_ok());
    assert!(refused(MASTER, &path, &["--noenable_tape"]).contains("tls_key"));
    let help = read(MASTER, "/nowhere.yaml", &[], &["--help"]).unwrap_err().to_string();
    assert!(help.contains("--config_path"), "{help}");
    let (_dir, path) = file("a.yaml", "ha_port: 4\n");
    let renamed = read(MASTER, &path, &[], &[]).unwrap();
    assert_eq!(origin(&renamed, "rpc_port"), ("4".into(), Origin::File(format!("{path}:1"))));
    let again = read(MASTER, &path, &[], &["--ha_port=0"]).unwrap();
    assert_eq!(origin(&again, "rpc_port"), ("50051".into(), Origin::Default));
}

#[test]
fn files_that_are_none_are_refused() {
    let (dir, path) = file("a.ini", "");
    assert!(refused(MASTER, &path, &[]).contains(".toml, .yaml, .yml or .json"));
    let missing = dir.path().join("b.yaml").display().to_string();
    assert!(refused(MASTER, &missing, &[]).contains("b.yaml"));
    let (_dir, path) = file("a.yaml", vec![b'#'; (1 << 20) + 1]);
    assert!(refused(MASTER, &path, &[]).starts_with("--config_path: "));
    let (_dir, path) = file("a.yaml", b"rpc_port: 1\n# \xff\n");
    assert!(refused(MASTER, &path, &[]).ends_with(":2: the line is not text in UTF-8"));
    let many: String = (0..=1000).map(|number| format!("x{number}: 1\n")).collect();
    let (_dir, path) = file("a.yaml", many);
    assert!(refused(MASTER, &path, &[]).contains("more than 1000 settings"));
    assert!(read(MASTER, "", &[], &[]).is_ok());
}

#[test]
fn the_settings_are_printed_and_not_started_with() {
    let (_dir, path) = file("a.yaml", "rpc_port: 7\n");
    let print = |flags: &[&str]| {
        let answer = read(MASTER, &path, &[("MC_LOG", "debug")], flags).unwrap_err();
        let Refusal::Answered { text } = answer else { panic!("{answer}") };
        text
    };
    let table = print(&["--print_config", "--enable_ha"]);
    let row = |name: &str| {
        let row = table.lines().find(|line| line.split(' ').next() == Some(name)).expect(name);
        row.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(row("SETTING"), "SETTING VALUE FROM");
    assert_eq!(row("rpc_port"), format!("rpc_port 7 file {path}:1"));
    assert_eq!(row("log_level"), "log_level debug variable MC_LOG");
    assert_eq!(row("enable_ha"), "enable_ha true flag");
    assert_eq!(row("log_format"), "log_format text default");
    assert!(!table.contains("print_config") && !table.contains("help"), "{table}");
    let json = print(&["--print-config", "--json"]);
    assert_eq!(json.lines().count() + 1, table.lines().count());
    let line = json.lines().find(|line| line.contains("\"rpc_port\"")).unwrap();
    let value: serde_json::Value = serde_json::from_str(line).unwrap();
    assert_eq!(value["at"], format!("{path}:1"));
    assert!(read(MASTER, &path, &[], &["--print_config=false"]).is_ok());
    assert!(refused(MASTER, &path, &["--json"]).contains("print_config"));
}

#[test]
fn a_reload_finds_what_has_changed() {
    let (_dir, path) = file("a.yaml", "rpc_port: 7\neviction_ratio: 0.1\n");
    let args: Vec<OsString> =
        ["prog", &format!("--config_path={path}"), "--enable_ha"].map(Into::into).into();
    let first = MASTER.read::<Args>(args.clone()).unwrap().args;
    let mut reloader = Reloader::<Args>::new(MASTER, args, first.settings);
    let names = |changed: &[Effective]| -> Vec<String> {
        changed.iter().map(|it| format!("{}={}", it.name, it.value)).collect()
    };
    let live = &["eviction_ratio"];
    let same = reloader.read(live).unwrap();
    assert!(same.changed.is_empty() && same.needs_restart.is_empty());
    std::fs::write(&path, "rpc_port: 8\nenable_ha: false\neviction_ratio: 0.2\n").unwrap();
    for _ in 0..2 {
        let read = reloader.read(live).unwrap();
        assert_eq!(names(&read.changed), ["eviction_ratio=0.2"], "not applied yet");
        assert_eq!(read.needs_restart, ["rpc_port"], "the flag still counts for enable_ha");
    }
    let changed = reloader.read(live).unwrap().changed;
    reloader.apply(&changed);
    let again = reloader.read(live).unwrap();
    assert!(again.changed.is_empty());
    assert_eq!(again.needs_restart, ["rpc_port"], "it still does");
    std::fs::write(&path, "eviction_ratio: much\n").unwrap();
    assert!(reloader.read(live).unwrap_err().to_string().contains("a.yaml:1"));
}

proptest! {
    #[test]
    fn no_file_panics(text in "[a-z_:=\\[\\]{}\",'#\\\\ \t\né0-9.-]{0,80}", kind in 0usize..3) {
        let (_dir, path) = file(["a.yaml", "a.json", "a.toml"][kind], text);
        for program in [MASTER, NODE] {
            if let Err(refusal) = read(program, &path, &[], &[]) {
                let refusal = refusal.to_string();
                prop_assert!(!refusal.contains('\n') && refusal.starts_with(&path), "{refusal}");
            }
        }
    }
}
