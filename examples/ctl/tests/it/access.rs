//! The callers that a master with an access list admits.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use mc_rpc::frame::{ClientPreface, DEFAULT_MAX_PAYLOAD, Hello, SERVER_PREFACE_LEN, ServerPreface};
use mc_testkit::{Finished, Program, Signal, eventually_blocking};
use mc_types::ErrorCode;
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};

use crate::support::{DEADLINE, Master, ctl, run, start};

/// Returns the master's answer to a client with this token and tenant: a cause, or that it is
/// admitted.
fn knock(mut stream: impl Read + Write, token: &str, tenant: &str) -> Result<(), ErrorCode> {
    let token = token.as_bytes().into();
    let hello = Hello { token, tenant: tenant.into(), ..Hello::default() };
    let preface = ClientPreface::with(DEFAULT_MAX_PAYLOAD, &hello);
    stream.write_all(&preface).expect("a master that listens");
    let mut answer = [0; SERVER_PREFACE_LEN];
    stream.read_exact(&mut answer).expect("an answer");
    match ServerPreface::parse(&answer).expect("a master").status {
        0 => Ok(()),
        cause => Err(ErrorCode::from_code(cause).expect("a known cause")),
    }
}

#[test]
fn those_on_the_list_get_in_and_a_new_list_holds_without_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let (list, socket) = (dir.path().join("access.list"), dir.path().join("master.sock"));
    let uid = fs::metadata(dir.path()).unwrap().uid();
    fs::write(&list, format!("token:the-token-of-team-a writer team-a\nuid:{uid} admin\n"))
        .unwrap();
    let access = format!("--access_file={}", list.display());
    let rpc_socket = format!("--rpc_socket={}", socket.display());
    let master = Master::start(0, &[&access, &rpc_socket]);
    let tcp = |token, tenant| knock(TcpStream::connect(&master.address).unwrap(), token, tenant);
    let unix = |token, tenant| knock(UnixStream::connect(&socket).unwrap(), token, tenant);

    assert_eq!(tcp("the-token-of-team-a", ""), Ok(()));
    assert_eq!(tcp("the-token-of-team-a", "team-b"), Err(ErrorCode::PermissionDenied));
    assert_eq!(tcp("the-token-of-team-b", ""), Err(ErrorCode::Unauthenticated));
    assert_eq!(tcp("", ""), Err(ErrorCode::Unauthenticated));
    ctl(&master.address, &["stat"]).assert_refused(1, "token");
    assert_eq!(unix("", ""), Ok(()));
    assert_eq!(unix("", "team-b"), Ok(()));
    assert_eq!(unix("the-token-of-team-b", ""), Err(ErrorCode::Unauthenticated));

    // A list that cannot be read changes nothing; the next one does.
    fs::write(&list, "token:the-token-of-team-b owner\n").unwrap();
    master.program.wait_err(|line| line.contains("keeping the previous one").then_some(()));
    assert_eq!(tcp("the-token-of-team-a", ""), Ok(()));
    fs::write(&list, "token:the-token-of-team-b writer\n").unwrap();
    eventually_blocking(DEADLINE, "the new list", || tcp("the-token-of-team-b", "").ok());
    assert_eq!(tcp("the-token-of-team-a", ""), Err(ErrorCode::Unauthenticated));
    assert_eq!(unix("", ""), Err(ErrorCode::Unauthenticated));

    let ended = master.program.end_by(Signal::TERM);
    assert_eq!(ended.code, Some(0));
    assert!(!ended.err.contains("the-token-of"), "{}", ended.err);
    assert!(!socket.exists());
}

/// An authority, and a certificate with its key for each name, in files.
pub(crate) fn certify(dir: &Path, names: &[(&str, Option<ExtendedKeyUsagePurpose>)]) {
    let write = |name: String, text: String| fs::write(dir.join(name), text).expect("a file");
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("a key");
    write("ca.pem".into(), params.self_signed(&key).expect("a certificate").pem());
    let authority = Issuer::new(params, key);
    for (name, usage) in names {
        let mut params = CertificateParams::new([(*name).to_owned()]).expect("a name");
        params.extended_key_usages = usage.iter().cloned().collect();
        let key = KeyPair::generate().expect("a key");
        write(format!("{name}.pem"), params.signed_by(&key, &authority).expect("signed").pem());
        write(format!("{name}.key"), key.serialize_pem());
    }
}

#[test]
fn bytes_travel_over_quic_under_certificates() {
    let dir = tempfile::tempdir().unwrap();
    certify(dir.path(), &[("127.0.0.1", None)]);
    let flag = |flag: &str, file: &str| format!("--{flag}={}", dir.path().join(file).display());
    let files = [
        flag("transfer_tls_ca", "ca.pem"),
        flag("transfer_tls_cert", "127.0.0.1.pem"),
        flag("transfer_tls_key", "127.0.0.1.key"),
    ];
    let master = Master::start(0, &[]);
    let mut args = vec![
        "--global_segment_size=1MB".to_owned(),
        "--host=127.0.0.1".to_owned(),
        "--port=0".to_owned(),
        "--protocol=quic".to_owned(),
        format!("--master_server_address={}", master.address),
    ];
    args.extend(files.iter().cloned());
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let node = start("mc-node", &args);
    node.wait_out(|line| line.contains("quic://127.0.0.1:").then_some(()));
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    let with = |args: &[&str]| ctl(&master.address, &[&files, args].concat());
    with(&["put", "k", "v"]).assert_ok();
    assert_eq!(with(&["get", "k"]).assert_ok().out, b"v");
    ctl(&master.address, &["get", "k"]).assert_refused(1, "speaks TLS only");
    with(&["get", "k", "--transfer_tls_key=/no/such"]).assert_refused(2, "/no/such");
}

#[test]
fn a_cluster_where_everybody_is_known() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let client = Some(ExtendedKeyUsagePurpose::ClientAuth);
    let server = ("localhost", Some(ExtendedKeyUsagePurpose::ServerAuth));
    certify(dir.path(), &[server, ("node-7", client.clone()), ("stranger", client)]);
    certify(other.path(), &[]);
    let flag = |flag: &str, file: &str| format!("--{flag}={}", dir.path().join(file).display());
    let file = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
    file("access.list", "token:the-token-of-team-a writer team-a\ncert:node-7 node\n");
    file("good.token", "the-token-of-team-a\n");
    file("wrong.token", "the-token-of-team-b\n");
    let master = Master::start(
        0,
        &[
            &flag("tls_cert", "localhost.pem"),
            &flag("tls_key", "localhost.key"),
            &flag("tls_client_ca", "ca.pem"),
            &flag("access_file", "access.list"),
        ],
    );
    let at = format!("localhost:{}", master.port());
    let ca = flag("tls_ca", "ca.pem");
    let node = |name: &str| {
        [
            "--global_segment_size=1MB".to_owned(),
            "--host=127.0.0.1".to_owned(),
            "--port=0".to_owned(),
            format!("--master_server_address={at}"),
            ca.clone(),
            flag("tls_cert", &format!("{name}.pem")),
            flag("tls_key", &format!("{name}.key")),
        ]
    };
    let stranger = node("stranger");
    let stranger: Vec<&str> = stranger.iter().map(String::as_str).collect();
    run("mc-node", &stranger).assert_refused(1, "does not know the client certificate");
    let known = node("node-7");
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    let node = start("mc-node", &known);
    node.wait_out(|line| line.starts_with("Mooncake client ready").then_some(()));

    let good = flag("token_file", "good.token");
    let team_a = |args: &[&str]| ctl(&at, &[&[&*ca, &*good], args].concat());
    team_a(&["put", "k", "v"]).assert_ok();
    assert_eq!(team_a(&["get", "k", "--tenant=team-a"]).assert_ok().out, b"v");
    team_a(&["get", "k", "--tenant=team-b"]).assert_refused(1, "acts for the tenant team-a");
    team_a(&["stat"]).assert_refused(1, "is for the role admin");
    // A writer may not see the segments, and puts files all the same.
    file("value", "of a file");
    team_a(&["put", "f", &flag("file", "value")]).assert_ok();
    let copy = dir.path().join("copy");
    team_a(&["get", "f", &format!("--output={}", copy.display())]).assert_ok();
    assert_eq!(fs::read(copy).unwrap(), b"of a file");

    let wrong = flag("token_file", "wrong.token");
    ctl(&at, &["stat", &ca, &wrong]).assert_refused(1, "does not know the token");
    ctl(&at, &["stat", &ca]).assert_refused(1, "a token or a client certificate");
    ctl(&at, &["stat", &ca, "--token_file=/no/such/file"]).assert_refused(1, "/no/such/file");
    ctl(&at, &["stat", "--tls_ca=/no/such/file"]).assert_refused(1, "/no/such/file");
    ctl(&at, &["stat", &ca, "--tls_key=a"]).assert_refused(2, "--tls_cert");
    let ip = format!("127.0.0.1:{}", master.port());
    ctl(&ip, &["get", "k", &ca, &good]).assert_refused(1, "not valid for name");
    ctl(&ip, &["get", "k", &ca, &good, "--tls_server_name=localhost"]).assert_ok();
    let other = format!("--tls_ca={}", other.path().join("ca.pem").display());
    ctl(&at, &["get", "k", &other, &good]).assert_refused(1, "certificate");
    ctl(&at, &["get", "k"]).assert_refused(1, "speaks TLS only");

    assert_eq!(node.end_by(Signal::TERM).code, Some(0));
    let ended = master.program.end_by(Signal::TERM);
    assert!(ended.code == Some(0) && !ended.err.contains("the-token-of"), "{}", ended.err);
}

#[test]
fn flags_and_files_that_make_no_sense() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let master = |flags: &[&str]| {
        let free = ["--rpc_address=127.0.0.1", "--rpc_port=0", "--metrics_port=0"];
        run("mc-master", &[&free, flags].concat())
    };
    master(&["--tls_cert=a.pem"]).assert_refused(2, "--tls_key");
    master(&["--tls_key=a.key"]).assert_refused(2, "--tls_cert");
    master(&["--tls_client_ca=ca.pem"]).assert_refused(2, "--tls_cert");
    master(&["--tls_cert=/no/such/file", "--tls_key=a"]).assert_refused(1, "/no/such/file");
    let text = file("text", "no certificate");
    let tls = [format!("--tls_cert={text}"), format!("--tls_key={text}")];
    master(&[&tls[0], &tls[1]]).assert_refused(1, "no certificate is in");
    master(&["--access_file=/no/such/file"]).assert_refused(1, "/no/such/file");
    let list = |text: &str| format!("--access_file={}", file("access.list", text));
    master(&[&list("")]).assert_refused(1, "has no entries");
    master(&[&list("anonymous reader\ntoken:short writer\n")])
        .assert_refused(1, "line 2: the token has fewer than 16 characters");
    let refused = master(&[&list("the-secret-token-itself writer\n")]);
    assert!(!refused.assert_refused(1, "line 1").err.contains("secret"));
    let taken = format!("--rpc_socket={text}");
    master(&[&taken]).assert_refused(1, "choose another path");
}

/// A master that asks for tokens, a node, and `mc-ctl` as the owner of a token.
struct Teams {
    _dir: tempfile::TempDir,
    master: Master,
    _node: Program,
    token_files: [String; 3],
}

impl Teams {
    fn start(flags: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let file = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs::write(&path, text).expect("a file");
            path.display().to_string()
        };
        let list = "token:the-token-of-team-a writer team-a\n\
                    token:the-token-of-team-b writer team-b\n\
                    token:the-token-of-admins admin\n";
        let list = format!("--access_file={}", file("access.list", list));
        let token_files = ["team-a", "team-b", "admins"].map(|name| {
            let path = file(name, &format!("the-token-of-{name}\n"));
            format!("--token_file={path}")
        });
        let master = Master::start(0, &[&[&*list], flags].concat());
        let at = format!("--master_server_address={}", master.address);
        let node = ["--global_segment_size=4MB", "--host=127.0.0.1", "--port=0"];
        let node = start("mc-node", &[&node[..], &[&at, &token_files[2]]].concat());
        node.wait_out(|line| line.starts_with("Mooncake client ready").then_some(()));
        Self { _dir: dir, master, _node: node, token_files }
    }

    fn as_who(&self, who: usize, args: &[&str]) -> Finished {
        ctl(&self.master.address, &[args, &[&self.token_files[who]]].concat())
    }

    fn a(&self, args: &[&str]) -> Finished {
        self.as_who(0, args)
    }

    fn b(&self, args: &[&str]) -> Finished {
        self.as_who(1, args)
    }

    fn admin(&self, args: &[&str]) -> Finished {
        self.as_who(2, args)
    }
}

#[test]
fn a_list_with_tenants_keeps_them_apart_and_puts_work_at_once() {
    let teams = Teams::start(&[]);
    teams.a(&["put", "secret", "of team a"]).assert_ok();
    assert_eq!(teams.a(&["get", "secret"]).assert_ok().out, b"of team a");
    // Not by its name, its prefix, or as the master stores it.
    teams.b(&["get", "secret"]).assert_refused(1, "secret");
    assert_eq!(teams.b(&["exist", "secret"]).code, Some(1));
    assert_eq!(teams.b(&["ls", "--json"]).assert_ok().text(), "");
    teams.b(&["remove", "secret", "--force"]).assert_refused(1, "not removed");
    teams.b(&["stat", "secret"]).assert_refused(1, "no object");
    teams.b(&["stat"]).assert_refused(1, "is for the role admin");
    teams.b(&["get", "secret", "--tenant=team-a"]).assert_refused(1, "acts for the tenant team-b");
    // Not by a pattern, and not with everything that there is.
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (seen, removed) = runtime.block_on(async {
        let mut rpc = mc_rpc::ClientConfig::default();
        rpc.token = Some(mc_rpc::Token::new("the-token-of-team-b").unwrap());
        let address = teams.master.address.clone();
        let client = mc_store::Client::builder().master(address).rpc(rpc).connect().await.unwrap();
        let seen = client.find(".*", 10).await.unwrap().len();
        (seen, client.remove_by_regex(".*", true).await.unwrap())
    });
    assert_eq!((seen, removed), (0, 0));
    teams.b(&["put", "secret", "of team b"]).assert_ok();
    teams.b(&["remove-all", "--force"]).assert_ok();
    assert_eq!(teams.a(&["get", "secret"]).assert_ok().out, b"of team a");

    // An administrator sees and sets what each may have.
    let line = teams.admin(&["quota", "show", "team-a", "--json"]).assert_ok();
    assert!(line.text().contains("\"quota\":null") && line.text().contains("\"limit\":null"));
    teams.admin(&["quota", "set", "team-a", "64KB"]).assert_ok();
    let table = teams.admin(&["quota", "show"]).assert_ok();
    assert!(table.text().contains("64.0 KB") || table.text().contains("64.00 KB"), "{table:?}");
    let large = "x".repeat(70_000);
    teams.a(&["put", "large", &large]).assert_refused(1, "quota");
    teams.b(&["put", "large", &large]).assert_ok();
    // With the mode that refuses, what is there stays.
    teams.admin(&["quota", "set", "team-a", "64KB", "--refuse"]).assert_ok();
    teams
        .admin(&["quota", "set", "team-a", "none", "--refuse"])
        .assert_refused(1, "nothing to refuse");
    let line = teams.admin(&["quota", "show", "team-a", "--json"]).assert_ok();
    assert!(line.text().contains("\"refuses\":true"), "{}", line.text());
    let half = "x".repeat(40 << 10);
    teams.a(&["put", "first", &half]).assert_ok();
    teams.a(&["put", "second", &half]).assert_refused(1, "quota");
    let line = teams.admin(&["quota", "show", "team-a", "--json"]).assert_ok();
    assert!(line.text().contains("\"evicted_bytes\":0"), "{}", line.text());
    teams.admin(&["quota", "set", "team-a", "64KB"]).assert_ok();
    teams.a(&["put", "second", &half]).assert_ok();
    teams.admin(&["quota", "unset", "team-a"]).assert_ok();
    teams.a(&["put", "large", &large]).assert_ok();

    teams.b(&["quota", "show"]).assert_refused(1, "is for the role admin");
    teams.b(&["quota", "set", "team-b", "1GB"]).assert_refused(1, "is for the role admin");
    teams.admin(&["quota", "unset", "team-b"]).assert_refused(1, "has no quota");
    teams.admin(&["quota", "set", "team-b", "0"]).assert_refused(1, "a quota of 0 bytes");
    for wrong in [&["set", "no/name", "1KB"][..], &["set", "team-b", "much"], &["set", "team-b"]] {
        teams.admin(&[&["quota"], wrong].concat()).assert_refused(2, "");
    }
    let ended = teams.master.program.end_by(Signal::TERM);
    assert!(!ended.err.contains("keep them apart"), "{}", ended.err);
}

#[test]
fn the_default_quota_holds_for_who_has_none() {
    let teams = Teams::start(&["--default_tenant_quota=64KB"]);
    let large = "x".repeat(70_000);
    teams.a(&["put", "large", &large]).assert_refused(1, "quota");
    teams.a(&["put", "small", "v"]).assert_ok();
    teams.admin(&["quota", "set", "team-a", "1MB"]).assert_ok();
    teams.a(&["put", "large", &large]).assert_ok();
    run("mc-master", &["--default_tenant_quota=0"]).assert_refused(2, "unlimited, or none");
}

/// No put fails for them.
#[test]
fn quotas_below_memory_are_set_and_hold() {
    let dir = tempfile::tempdir().unwrap();
    let teams = Teams::start(&[&format!("--root_fs_dir={}", dir.path().display())]);
    teams.admin(&["quota", "set", "team-a", "default", "--files=64KB", "--disks=1GB"]).assert_ok();
    let (small, large) = ("x".repeat(60_000), "x".repeat(70_000));
    teams.a(&["put", "large", &large]).assert_ok();
    teams.a(&["put", "small", &small]).assert_ok();
    teams.b(&["put", "large", &large]).assert_ok();
    assert_eq!(teams.a(&["get", "large"]).assert_ok().out, large.as_bytes());
    let shown =
        |tenant| teams.admin(&["quota", "show", tenant, "--json"]).assert_ok().text().to_owned();
    let line = shown("team-a");
    let files = "\"files\":{\"quota\":65536,\"refused\":1,\"used\":60000}";
    let disks = "\"disks\":{\"quota\":1073741824,\"refused\":0,\"used\":0}";
    assert!(line.contains(files) && line.contains(disks), "{line}");
    assert!(line.contains("\"quota\":null"), "of memory it has the default: {line}");
    let line = shown("team-b");
    assert!(line.contains("\"files\":{\"quota\":null,\"refused\":0,\"used\":70000}"), "{line}");
    let table = teams.admin(&["quota", "show"]).assert_ok();
    assert!(table.text().contains(" of 64"), "{table:?}");

    for none in [&["none", "--files=1KB"][..], &["default"]] {
        let set = [&["quota", "set", "team-a"], none].concat();
        teams.admin(&set).assert_refused(1, "none");
    }
    teams.admin(&["quota", "unset", "team-a"]).assert_ok();
    assert!(!shown("team-a").contains("65536"));
}

#[test]
fn tenants_that_are_not_kept_apart_are_warned_of() {
    let teams = Teams::start(&["--enable_multi_tenants=false"]);
    // Clients are warned, too.
    let put = teams.a(&["put", "secret", "of team a"]);
    assert!(put.code == Some(0) && put.err.contains("--enable_multi_tenants"), "{}", put.err);
    assert_eq!(teams.b(&["get", "secret"]).out, b"of team a");
    let ended = teams.master.program.end_by(Signal::TERM);
    let warned = |line: &&str| line.contains("WARN") && line.contains("keep them apart");
    assert_eq!(ended.err.lines().filter(warned).count(), 1, "{}", ended.err);
}

#[test]
fn a_tenant_that_the_master_does_not_keep_apart_is_warned_of() {
    let master = Master::start(0, &[]);
    let warned = |flags: &[&str]| {
        let done = ctl(&master.address, &[flags, &["ls"]].concat());
        assert_eq!(done.code, Some(0), "{}", done.err);
        done.err.contains("--enable_multi_tenants")
    };
    assert!(warned(&["--tenant=team-a"]));
    assert!(!warned(&[]) && !warned(&["--tenant=default"]));
}

#[test]
fn a_list_that_first_names_tenants_when_it_is_read_again_is_warned_of() {
    let dir = tempfile::tempdir().unwrap();
    let list = dir.path().join("access.list");
    let tenants = "token:the-token-of-team-a writer team-a\n";
    let nobody = "token:the-token-of-admins admin\n";
    fs::write(&list, nobody).unwrap();
    let access = format!("--access_file={}", list.display());
    let master = Master::start(0, &[&access, "--enable_multi_tenants=false"]);
    let reads = |text: &str, count: usize| {
        fs::write(&list, text).unwrap();
        let is_read = |line: &str| line.contains(&format!("it names {count} "));
        master.program.wait_err(|line| is_read(line).then_some(()));
    };
    reads(tenants, 1);
    let warned = |line: &str| line.contains("WARN") && line.contains("keep them apart");
    master.program.wait_err(|line| warned(line).then_some(()));
    // As long as it does so nothing is said again.
    reads(&format!("{nobody}{tenants}"), 2);
    reads(&format!("{nobody}{tenants}anonymous reader\n"), 3);
    let ended = master.program.end_by(Signal::TERM);
    assert_eq!(ended.err.lines().filter(|line| warned(line)).count(), 1, "{}", ended.err);
}

#[test]
fn anonymous_administrators_are_warned_of_at_the_start_and_when_the_list_is_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let list = dir.path().join("access.list");
    let access = format!("--access_file={}", list.display());
    let warned = |line: &str| line.contains("WARN") && line.contains("anonymous an administrator");
    fs::write(&list, "anonymous admin\n").unwrap();
    let ended = Master::start(0, &[&access]).program.end_by(Signal::TERM);
    assert_eq!(ended.err.lines().filter(|line| warned(line)).count(), 1, "{}", ended.err);

    fs::write(&list, "anonymous reader\n").unwrap();
    let master = Master::start(0, &[&access]);
    fs::write(&list, "anonymous admin\n").unwrap();
    master.program.wait_err(|line| warned(line).then_some(()));
    let ended = master.program.end_by(Signal::TERM);
    assert_eq!(ended.err.lines().filter(|line| warned(line)).count(), 1, "{}", ended.err);
}

#[test]
fn limits_that_evict_everything_or_nothing_are_warned_of() {
    for flag in ["--eviction_high_watermark_ratio=0", "--eviction_ratio=0"] {
        let ended = Master::start(0, &[flag]).program.end_by(Signal::TERM);
        let warnings: Vec<&str> = ended.err.lines().filter(|line| line.contains("WARN")).collect();
        assert!(warnings.len() == 1 && warnings[0].contains(flag), "{}", ended.err);
    }
    let ended = Master::start(0, &[]).program.end_by(Signal::TERM);
    assert!(!ended.err.contains("WARN"), "{}", ended.err);
}
