//! Certificates for tests, made when they run.

use std::fs;
use std::path::PathBuf;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use tempfile::TempDir;

/// An authority whose certificates lie in a directory.
pub(crate) struct Authority {
    dir: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

/// Where a certificate and its key are.
pub(crate) type Files = (PathBuf, PathBuf);

impl Authority {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // Each has a name of its own; two of the same name would pass for one.
        let name = dir.path().display().to_string();
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        fs::write(dir.path().join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        Self { dir, issuer: Issuer::new(params, key) }
    }

    pub(crate) fn ca(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    /// Writes a certificate for these names into `file`.
    pub(crate) fn issue(&self, file: &str, names: &[&str]) -> Files {
        self.issue_until(file, names, 2999)
    }

    pub(crate) fn issue_until(&self, file: &str, names: &[&str], year: i32) -> Files {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(year, 1, 1);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let at = |end: &str| self.dir.path().join(format!("{file}{end}"));
        fs::write(at(".pem"), certificate.pem()).unwrap();
        fs::write(at(".key"), key.serialize_pem()).unwrap();
        (at(".pem"), at(".key"))
    }
}
