//! The transports that are measured.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mc_tls::{ClientAuth, ClientTls, ServerTls, TlsFiles};
use mc_transport::tcp::{TcpConfig, TcpTls, TcpTransport};
use mc_transport::{DynTransport, ShmConfig, ShmTransport};
use mc_transport_quic::{QuicConfig, QuicTransport};
use serde::{Deserialize, Serialize};

use crate::error::BenchError;

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    /// Plain TCP.
    Tcp,
    /// TCP with TLS 1.3.
    Tls,
    /// Memory that both processes map.
    Shm,
    /// QUIC.
    Quic,
}

impl Kind {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Tls => "tls",
            Self::Shm => "shm",
            Self::Quic => "quic",
        }
    }

    /// A node that owns memory. To be called on a runtime.
    pub(super) async fn owner(self, files: &Files) -> Result<Box<dyn DynTransport>, BenchError> {
        let here = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Ok(match self {
            Self::Tcp => Box::new(tcp(TcpConfig::listening(here)).await?),
            Self::Tls => {
                let mut config = TcpConfig::listening(here);
                config.tls = Some(TcpTls::new(files.client()).server(files.server()?));
                Box::new(tcp(config).await?)
            }
            Self::Shm => Box::new(shm(ShmConfig::default()).await?),
            Self::Quic => Box::new(quic(QuicConfig::listening(here, files.server()?)).await?),
        })
    }

    /// A node that reaches for it.
    pub(super) async fn peer(self, files: &Files) -> Result<Box<dyn DynTransport>, BenchError> {
        Ok(match self {
            Self::Tcp => Box::new(tcp(TcpConfig::default()).await?),
            Self::Tls => {
                let mut config = TcpConfig::default();
                config.tls = Some(TcpTls::new(files.client()));
                Box::new(tcp(config).await?)
            }
            Self::Shm => Box::new(shm(ShmConfig::default()).await?),
            Self::Quic => Box::new(quic(QuicConfig::connecting(files.client())).await?),
        })
    }
}

async fn tcp(config: TcpConfig) -> Result<TcpTransport, BenchError> {
    TcpTransport::start(config).await.map_err(|error| BenchError::start("TCP")(error.into()))
}

async fn shm(config: ShmConfig) -> Result<ShmTransport, BenchError> {
    ShmTransport::start(config).await.map_err(|error| BenchError::start("shm")(error.into()))
}

async fn quic(config: QuicConfig) -> Result<QuicTransport, BenchError> {
    QuicTransport::start(config).await.map_err(|error| BenchError::start("QUIC")(error.into()))
}

/// A certificate for this host, and the authority behind it, in a folder that both
/// processes read.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Files {
    folder: PathBuf,
}

impl Files {
    /// Makes them.
    pub(super) fn make(folder: &Path) -> Result<Self, BenchError> {
        let failed = |error: rcgen::Error| BenchError::start("certificates")(error.into());
        let authority_key = rcgen::KeyPair::generate().map_err(failed)?;
        let mut authority = rcgen::CertificateParams::default();
        authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let authority_file = authority.self_signed(&authority_key).map_err(failed)?;
        let issuer = rcgen::Issuer::new(authority, authority_key);
        let key = rcgen::KeyPair::generate().map_err(failed)?;
        let names = vec!["127.0.0.1".to_owned()];
        let node = rcgen::CertificateParams::new(names).map_err(failed)?;
        let node = node.signed_by(&key, &issuer).map_err(failed)?;
        std::fs::write(folder.join("ca.pem"), authority_file.pem())?;
        std::fs::write(folder.join("node.pem"), node.pem())?;
        std::fs::write(folder.join("node.key"), key.serialize_pem())?;
        Ok(Self { folder: folder.to_owned() })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn server(&self) -> Result<Arc<ServerTls>, BenchError> {
        let files = TlsFiles::new(self.path("node.pem"), self.path("node.key"))
            .client_ca(self.path("ca.pem"), ClientAuth::Required);
        let server = ServerTls::load(files);
        server.map(Arc::new).map_err(|error| BenchError::start("TLS")(error.into()))
    }

    fn client(&self) -> ClientTls {
        ClientTls::new(self.path("ca.pem")).identity(self.path("node.pem"), self.path("node.key"))
    }
}
