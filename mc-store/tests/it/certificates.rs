//! Certificates for tests, made when they run.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;

use mc_store::{ClientBuilder, ClientConfig, Master};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tempfile::TempDir;

/// An authority, and a certificate of it for this host, in files.
pub(crate) fn certificates(name: &str) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: String| fs::write(dir.path().join(name), text).unwrap();
    let mut params = CertificateParams::default();
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    write("ca.pem", params.self_signed(&key).unwrap().pem());
    let authority = Issuer::new(params, key);
    let node = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    let key = KeyPair::generate().unwrap();
    write("node.pem", node.signed_by(&key, &authority).unwrap().pem());
    write("node.key", key.serialize_pem());
    dir
}

/// A client with these settings, and with the certificates in a directory if there is one.
pub(crate) fn client_under(master: &Master, settings: &str, files: Option<&Path>) -> ClientBuilder {
    let tls = files.map_or(String::new(), |dir| {
        let at = |key: &str, file: &str| format!("{key} = '{}'\n", dir.join(file).display());
        at("transfer_tls_ca", "ca.pem")
            + &at("transfer_tls_cert", "node.pem")
            + &at("transfer_tls_key", "node.key")
    });
    let master = master.local_addr();
    let text = format!("master = '{master}'\nheartbeat_interval_ms = 20\n{settings}{tls}");
    ClientBuilder::from_config(&ClientConfig::from_toml(&text).unwrap()).unwrap()
}
