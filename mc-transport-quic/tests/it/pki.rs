//! Certificates for one test.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mc_tls::{ClientAuth, ClientTls, ServerTls, TlsFiles};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use tempfile::TempDir;

static NEXT: AtomicUsize = AtomicUsize::new(0);

/// An authority whose certificates lie in a directory.
pub(crate) struct Authority {
    dir: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// One with a name of its own.
    pub(crate) fn new() -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self::named(&format!("authority {number}"))
    }

    pub(crate) fn named(name: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        fs::write(dir.path().join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        Self { dir, issuer: Issuer::new(params, key) }
    }

    pub(crate) fn ca(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    /// Writes the certificate and key of a node of these names.
    pub(crate) fn issue(&self, file: &str, names: &[&str], expired: bool) -> (PathBuf, PathBuf) {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        if expired {
            params.not_before = date_time_ymd(2020, 1, 1);
            params.not_after = date_time_ymd(2020, 1, 2);
        }
        let key = KeyPair::generate().unwrap();
        let at = |end: &str| self.dir.path().join(format!("{file}.{end}"));
        fs::write(at("pem"), params.signed_by(&key, &self.issuer).unwrap().pem()).unwrap();
        fs::write(at("key"), key.serialize_pem()).unwrap();
        (at("pem"), at("key"))
    }

    /// A server on this host that demands certificates of this authority.
    pub(crate) fn server(&self) -> Arc<ServerTls> {
        let (cert, key) = self.issue("server", &["localhost", "127.0.0.1", "::1"], false);
        let files = TlsFiles::new(cert, key).client_ca(self.ca(), ClientAuth::Required);
        ServerTls::load(files).unwrap().into()
    }

    /// A client that trusts this authority, with a certificate of it.
    pub(crate) fn client(&self) -> ClientTls {
        let (cert, key) = self.issue("client", &["client.example"], false);
        ClientTls::new(self.ca()).identity(cert, key)
    }
}
