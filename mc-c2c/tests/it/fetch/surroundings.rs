//! Disks that are full, proxies and certificates.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use mc_c2c::fetch::{FetchError, Fetcher};
use mc_testkit::{Input, Program, content, role};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::server::{Content, Reply, Server};
use super::{Cache, DEADLINE, assert_is};

/// The command that runs another in mounts of its own, as root.
fn unshare(as_user: bool) -> Command {
    let mut unshare = Command::new("unshare");
    if as_user {
        unshare.args(["--user", "--map-root-user"]);
    }
    unshare.args(["--mount", "--"]);
    unshare
}

#[test]
fn a_full_disk_is_an_error_and_freed_again() {
    const PLAYER: &str = "fetch::surroundings::a_full_disk_is_an_error_and_freed_again";
    if let Some(directory) = role::role() {
        on_a_small_disk(Path::new(&directory));
        return role::say("done");
    }
    let dir = tempfile::tempdir().unwrap();
    let mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs"];
    let works = |as_user: &bool| {
        let output = unshare(*as_user).args(mount).arg(dir.path()).output();
        output.is_ok_and(|output| output.status.success())
    };
    let Some(as_user) = [false, true].into_iter().find(works) else {
        eprintln!("NOT RUN: a full disk, because no small one can be mounted here");
        return;
    };
    let directory = dir.path().to_str().unwrap();
    let mut command = role::launched_by(unshare(as_user), PLAYER, directory);
    let mut program = Program::start(DEADLINE, &mut command, Input::None);
    assert_eq!(program.hear(), "done");
}

fn on_a_small_disk(directory: &Path) {
    let mount = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"])
        .arg(directory)
        .status();
    assert!(mount.unwrap().success());
    let (small, large) = (content("small", 20_000), content("large", 1 << 20));
    let (small, large) = (Content::new(small, "one"), Content::new(large, "two"));
    let bytes = small.bytes.to_vec();
    let server = Server::start(move |request, _| match request.path.as_str() {
        "/small" => small.reply(request),
        "/chunked" => {
            let mut body = format!("{:x}\r\n", large.bytes.len()).into_bytes();
            body.extend(&*large.bytes);
            Reply::ok([&body[..], b"\r\n0\r\n\r\n"].concat()).header("Transfer-Encoding: chunked")
        }
        _ => large.reply(request),
    });
    let fetcher = Fetcher::new(directory.join("cache"));
    for path in ["/large", "/chunked", "/large"] {
        let refusal = fetcher.projector(&server.url(path), None, |_, _| {}).unwrap_err();
        assert!(matches!(refusal, FetchError::DiskFull { .. }), "{refusal}");
        assert!(refusal.to_string().contains(directory.to_str().unwrap()), "{refusal}");
        assert_eq!(fs::read_dir(directory.join("cache")).unwrap().count(), 0);
    }
    // There is room for what fits.
    assert_is(&fetcher.projector(&server.url("/small"), None, |_, _| {}).unwrap(), &bytes);
}

#[test]
fn a_cache_that_is_no_directory_is_named() {
    let server = Server::of(Content::new(b"x".to_vec(), "one"));
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "x").unwrap();
    let fetcher = Fetcher::new(file.join("cache"));
    let refusal = fetcher.projector(&server.url("/x"), None, |_, _| {}).unwrap_err();
    assert!(matches!(refusal, FetchError::Io { .. }), "{refusal}");
    assert!(refusal.to_string().contains(file.to_str().unwrap()), "{refusal}");
    assert_eq!(server.requests(), 0);
}

#[test]
fn a_proxy_of_the_environment_is_for_other_hosts() {
    const PLAYER: &str = "fetch::surroundings::a_proxy_of_the_environment_is_for_other_hosts";
    if let Some(url) = role::role() {
        let cache = Cache::new();
        cache.fetch(&url).unwrap();
        // A name that is not looked up here, but by the proxy.
        let other = cache.fetch("http://other.invalid/x").unwrap_err();
        return role::say(other);
    }
    let server = Server::of(Content::new(b"x".to_vec(), "one"));
    let proxy = Server::start(|_, _| Reply::status(418));
    let mut command = role::command(PLAYER, &server.url("/x"));
    for name in ["NO_PROXY", "no_proxy", "HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"] {
        command.env_remove(name);
    }
    command.env_remove("all_proxy").env("ALL_PROXY", proxy.url(""));
    let mut program = Program::start(DEADLINE, &mut command, Input::None);
    let refusal = program.hear();
    assert!(refusal.contains("http://other.invalid/x"), "{refusal}");
    assert_eq!(server.requests(), 1);
    assert!(proxy.log().iter().all(|request| request.path.starts_with("other.invalid:80")));
    assert!(proxy.requests() >= 1);
}

/// Makes an authority for a trusted server: the server's settings, and the authority's PEM file.
fn authority(directory: &Path) -> Arc<ServerConfig> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    fs::write(directory.join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(["localhost".to_owned()]).unwrap();
    let certificate = params.signed_by(&key, &issuer).unwrap();
    let chain = vec![CertificateDer::from(certificate.der().to_vec())];
    let key = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config =
        ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    Arc::new(config.unwrap().with_no_client_auth().with_single_cert(chain, key).unwrap())
}

#[test]
fn https_needs_a_trusted_certificate_and_stays_https() {
    let dir = tempfile::tempdir().unwrap();
    let config = authority(dir.path());
    let bytes = content("some", 100_000);
    let plain = Server::of(Content::new(bytes.clone(), "one"));
    let (file, downgrade) = (Content::new(bytes.clone(), "one"), plain.url("/x?secret"));
    let server = Server::wrapped(
        move |request, _| match request.path.as_str() {
            "/down" => Reply::redirect(&downgrade),
            _ => file.reply(request),
        },
        move |stream| {
            let connection = ServerConnection::new(Arc::clone(&config));
            Ok(StreamOwned::new(connection.map_err(std::io::Error::other)?, stream))
        },
    );
    let url = |path: &str| format!("https://localhost:{}{path}", server.port());
    let cache = Cache::new();
    let refusal = cache.fetch(&url("/x")).unwrap_err();
    assert!(matches!(refusal, FetchError::Network { .. }) && !refusal.is_retryable(), "{refusal}");
    assert_eq!(server.requests(), 0);

    let fetcher = cache.fetcher().authorities(dir.path().join("ca.pem"));
    assert_is(&fetcher.projector(&url("/x"), None, |_, _| {}).unwrap(), &bytes);
    let refusal = fetcher.projector(&url("/down"), None, |_, _| {}).unwrap_err();
    assert!(matches!(refusal, FetchError::Downgrade { .. }), "{refusal}");
    assert!(!refusal.to_string().contains("secret"), "{refusal}");
    assert_eq!(plain.requests(), 0);

    let empty = dir.path().join("empty.pem");
    fs::write(&empty, "no certificate").unwrap();
    let refusal = fetcher.authorities(empty).projector(&url("/y"), None, |_, _| {}).unwrap_err();
    assert!(matches!(refusal, FetchError::Authorities { .. }), "{refusal}");
}
