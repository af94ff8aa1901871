//! Calls about the client and its cluster.

use std::collections::HashMap;
use std::time::Duration;

use super::{calls, questions};
use crate::client::arguments::{Seconds, Size, Texts};
use crate::client::failure::{Done, Failure, Outcome};
use crate::client::reports::Report;
use mc_store::{
    ClientId, ClientMetrics, ClientRole, ClusterReport, DrainReport, MountedSegment, SegmentId,
    SegmentOptions,
};

calls! {
    /// Contributes a segment, one more when there are some already. The client must have been
    /// given a segment or an address to ``listen`` when it was connected.
    ///
    /// :param size: Its size, in bytes or as text.
    /// :param name: The name by which puts can prefer it; the address where it is served by
    ///     default.
    /// :returns: Its id.
    #[pyo3(signature = (size, *, name=None))]
    example {
        ///
        /// >>> segment = store.mount_segment("8MB", name="second")
        /// >>> [segment.name for segment in store.segments()][1:]
        /// ['second']
        /// >>> store.unmount_segment(segment)
    }
    fn mount_segment(size: Size, name: Option<String>) -> String = move |client| async move {
        let mut options = SegmentOptions::new(size.0);
        if let Some(name) = name {
            options = options.name(name);
        }
        Ok(client.mount_segment(options).await?.to_string())
    };

    /// Takes a segment back, and with it the objects that are nowhere else.
    ///
    /// :param grace: For how many seconds what it holds can still be read. Nothing new is put
    ///     there from now on; it goes by itself then.
    /// :raises NotFound: when none of this client's segments has the id.
    #[pyo3(signature = (segment_id, *, grace=Seconds(Duration::ZERO)), text_signature = "($self, segment_id, *, grace=0.0)")]
    fn unmount_segment(segment_id: String, grace: Seconds) -> Done = move |client| async move {
        Ok(Done::from(client.unmount_segment(segment(&segment_id)?, grace.0).await?))
    };

    /// Moves what this client's segments hold to others, so that nothing is lost when it closes.
    /// Nothing new is put there from now on; objects stay readable throughout. Takes the length
    /// of a lease at least, unless there is nothing to move.
    ///
    /// :param targets: Names of the segments to move to; any others by default.
    /// :param timeout: Seconds after which the drain is called off.
    /// :returns: A :class:`~mc_store.reports.DrainReport`, which says whether it is complete.
    #[pyo3(signature = (targets=Texts::default(), *, timeout=Seconds(DRAIN)), text_signature = "($self, targets=(), *, timeout=60.0)")]
    fn drain(targets: Texts, timeout: Seconds) -> Report<DrainReport> = move |client| async move {
        Ok(Report(client.drain(&targets.refs(), timeout.0).await?))
    };

    /// Asks the master for a sign of life, and says how many seconds the answer took.
    #[pyo3(signature = ())]
    example {
        ///
        /// >>> store.ping() < 10
        /// True
    }
    fn ping() -> f64 = |client| async move { Ok(client.ping().await?.as_secs_f64()) };

    /// The cluster's totals and segments, a :class:`~mc_store.reports.ClusterReport`.
    #[pyo3(signature = ())]
    example {
        ///
        /// >>> store["a"] = b"1"
        /// >>> report = store.cluster_report()
        /// >>> report.objects, len(report.segments)
        /// (1, 1)
    }
    fn cluster_report() -> Report<ClusterReport> = |client| async move {
        Ok(Report(client.cluster_report().await?))
    };

    /// The hosts that serve the segments of clients: for each id the addresses or names. Clients
    /// that contribute nothing, or that are away, are left out.
    #[pyo3(signature = (client_ids))]
    example {
        ///
        /// >>> store.hosts([store.id])[store.id]
        /// ['127.0.0.1']
    }
    fn hosts(client_ids: Texts) -> HashMap<String, Vec<String>> = |client| async move {
        let ids = client_ids.0.iter().map(|id| client_id(id)).collect::<Outcome<Vec<_>>>()?;
        let texts = |hosts: Vec<Box<str>>| hosts.into_iter().map(String::from).collect();
        let hosts = client.hosts(&ids).await?.into_iter();
        Ok(hosts.map(|(id, hosts)| (id.to_string(), texts(hosts))).collect())
    };
}

questions! {
    /// The segments that this client contributes, oldest first:
    /// :class:`~mc_store.reports.Segment`.
    example {
        ///
        /// >>> [segment.size for segment in store.segments()]
        /// [67108864]
    }
    fn segments() -> Vec<Report<MountedSegment>> = |client| {
        client.segments().into_iter().map(Report).collect()
    };

    /// What this client has counted: calls, objects, bytes, latencies, failures. A
    /// :class:`~mc_store.reports.Metrics`.
    example {
        ///
        /// >>> "a" in store
        /// False
        /// >>> store.metrics().operations["exist"].calls
        /// 1
    }
    fn metrics() -> Report<ClientMetrics> = |client| Report(client.metrics());

    /// What this client has counted, in the text format of Prometheus.
    fn metrics_text() -> String = |client| client.metrics().prometheus();

    /// The identity that the master knows this client by, a UUID.
    #[getter]
    fn id() -> String = |client| client.id().to_string();

    /// Where the master is, as it was given: what other clients need to join the cluster.
    #[getter]
    fn master_addr() -> String = |client| client.master().addr().to_owned();

    /// What this client does for the cluster: ``client`` when it only makes requests, ``server``
    /// when it only contributes memory, ``both``.
    #[getter]
    fn role() -> &'static str = |client| match client.role() {
        ClientRole::PureClient => "client",
        ClientRole::PureServer => "server",
        _ => "both",
    };

    /// Where other clients reach this client's segments; ``None`` when it accepts none.
    #[getter]
    fn endpoint() -> Option<String> = |client| client.endpoint().map(|endpoint| endpoint.to_string());

    /// The name of the segment that this client began with; ``None`` when it began without.
    #[getter]
    fn segment_name() -> Option<String> = |client| client.segment_name().map(str::to_owned);

    /// Where this client's pages are, as ``"address:port"``: ``/health``, ``/metrics``,
    /// ``/metrics/summary``. ``None`` when it has none.
    #[getter]
    fn http_addr() -> Option<String> = |client| client.http_addr().map(|address| address.to_string());
}

/// How long a drain may take.
const DRAIN: Duration = Duration::from_secs(60);

fn segment(text: &str) -> Outcome<SegmentId> {
    text.parse()
        .map_err(|_| Failure::invalid(format!("{text:?} is no id of a segment; it is a UUID")))
}

fn client_id(text: &str) -> Outcome<ClientId> {
    text.parse()
        .map_err(|_| Failure::invalid(format!("{text:?} is no id of a client; it is a UUID")))
}
