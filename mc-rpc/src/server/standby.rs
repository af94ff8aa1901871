//! The server of a master that does not lead.

use std::sync::Arc;

use bytes::BytesMut;

use crate::calls::answer_standby;
use crate::ha::{HaReport, standby_refusal};
use crate::refusal::{Completion, Refusal};
use crate::service::{Call, Service, check_role};

/// The service of a master that does not lead: its [`Server`](crate::Server) refuses connections
/// for calls and names the leader, and answers `HaStatus` to administrators. The gRPC health
/// service says `NOT_SERVING`.
///
/// ```
/// use std::sync::Arc;
/// use mc_rpc::{ClientConfig, HaReport, HaRole, HaStatus, MasterClient, Refusal, Server};
/// use mc_rpc::{ServerConfig, Standby};
///
/// #[derive(Debug)]
/// struct Report;
///
/// impl HaReport for Report {
///     fn ha_status(&self) -> HaStatus {
///         let leader = Some("10.0.0.1:50051".into());
///         HaStatus { role: HaRole::Standby, leader, ..HaStatus::default() }
///     }
///
///     fn hand_over(&self, _: Option<&str>) -> Result<(), Refusal> {
///         Ok(())
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let standby = Standby::new(Arc::new(Report));
/// let server = Server::bind("127.0.0.1:0", standby, ServerConfig::default()).await?.spawn();
/// let mut config = ClientConfig::default();
/// config.administration = true;
/// let client = MasterClient::connect(&server.local_addr().to_string(), config).await?;
/// assert_eq!(client.ha_status().await?.role, HaRole::Standby);
/// // At once, for the leader's server at the same port.
/// server.close().await;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Standby {
    report: Arc<dyn HaReport>,
}

impl Standby {
    /// Returns the service of the standby that this report is about.
    #[must_use]
    pub fn new(report: Arc<dyn HaReport>) -> Self {
        Self { report }
    }

    fn refusal(&self) -> Refusal {
        standby_refusal(self.report.leader().as_deref())
    }
}

impl Service for Standby {
    fn call(&self, call: Call<'_>, out: &mut BytesMut) -> Result<Completion, Refusal> {
        check_role(call.method, call.caller)?;
        let answered = answer_standby(&*self.report, call.method, call.payload, out);
        answered.unwrap_or_else(|| Err(self.refusal())).map(|()| Completion::Now)
    }

    fn takes_calls(&self) -> Result<(), Refusal> {
        Err(self.refusal())
    }
}
