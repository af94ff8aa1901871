//! Who gets in, when the master asks.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;

use mc_rpc::frame::{ClientPreface, DEFAULT_MAX_PAYLOAD, Hello, SERVER_PREFACE_LEN, ServerPreface};
use mc_types::ErrorCode;

use crate::support::{Master, ctl, eventually, run};

/// What a master answers to somebody who says this: a cause, or that they are in.
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
    master.program.wait_err(|line| line.contains("cannot be used").then_some(()));
    assert_eq!(tcp("the-token-of-team-a", ""), Ok(()));
    fs::write(&list, "token:the-token-of-team-b writer\n").unwrap();
    eventually("the new list", || tcp("the-token-of-team-b", "").ok());
    assert_eq!(tcp("the-token-of-team-a", ""), Err(ErrorCode::Unauthenticated));
    assert_eq!(unix("", ""), Err(ErrorCode::Unauthenticated));

    let ended = master.program.end_by("TERM");
    assert_eq!(ended.code, Some(0));
    assert!(!ended.err.contains("the-token-of"), "{}", ended.err);
    assert!(!socket.exists());
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
    master(&[&list("")]).assert_refused(1, "names nobody");
    master(&[&list("anonymous reader\ntoken:short writer\n")])
        .assert_refused(1, "line 2: the token has fewer than 16 characters");
    let refused = master(&[&list("the-secret-token-itself writer\n")]);
    assert!(!refused.assert_refused(1, "line 1").err.contains("secret"));
    let taken = format!("--rpc_socket={text}");
    master(&[&taken]).assert_refused(1, "choose another path");
}
