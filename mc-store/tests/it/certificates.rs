//! Certificates for tests, made when they run.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;

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
