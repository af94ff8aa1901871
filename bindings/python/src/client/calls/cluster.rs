//! Calls about the client and its cluster.

use std::collections::HashMap;
use std::time::Duration;

use super::{calls, questions};
use crate::client::arguments::{Seconds, Size, Texts, id};
use crate::client::failure::{Done, Outcome};
use crate::client::reports::Report;
use mc_store::{
    ClientId, ClientMetrics, ClientRole, ClusterReport, DrainReport, MountedSegment, SegmentOptions,
};

calls! {
    /// Contributes another segment. The client must have been connected with a segment, or with
    /// an address to ``listen`` at.
    ///
    /// :param size: The segment's size, in bytes or as ``"8MB"``.
    /// :param name: The name by which puts can prefer the segment; by default the address that
    ///     serves it.
    /// :returns: The segment's id.
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

    /// Unmounts a segment. Objects without a replica elsewhere are lost.
    ///
    /// :param grace: Seconds for which objects can still be read from the segment. No new objects
    ///     are placed there, and the segment is unmounted at the end of this time.
    /// :raises NotFound: when none of this client's segments has the id.
    #[pyo3(signature = (segment_id, *, grace=Seconds(Duration::ZERO)), text_signature = "($self, segment_id, *, grace=0.0)")]
    fn unmount_segment(segment_id: String, grace: Seconds) -> Done = move |client| async move {
        Ok(Done::from(client.unmount_segment(id(&segment_id, "segment")?, grace.0).await?))
    };

    /// Moves the objects in this client's segments to other segments, so that closing the client
    /// loses nothing. No new objects are placed in the drained segments; objects stay readable
    /// throughout. Takes at least the duration of a lease, unless there is nothing to move.
    ///
    /// :param targets: Names of the segments to move to; any other segments by default.
    /// :param timeout: Seconds after which the drain is cancelled.
    /// :returns: A :class:`~mc_store.reports.DrainReport`.
    #[pyo3(signature = (targets=Texts::default(), *, timeout=Seconds(DRAIN_TIMEOUT)), text_signature = "($self, targets=(), *, timeout=60.0)")]
    fn drain(targets: Texts, timeout: Seconds) -> Report<DrainReport> = move |client| async move {
        Ok(Report(client.drain(&targets.refs(), timeout.0).await?))
    };

    /// Pings the master and returns the round-trip time in seconds.
    #[pyo3(signature = ())]
    example {
        ///
        /// >>> store.ping() < 10
        /// True
    }
    fn ping() -> f64 = |client| async move { Ok(client.ping().await?.as_secs_f64()) };

    /// Returns the cluster's totals and segments as a :class:`~mc_store.reports.ClusterReport`.
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

    /// Returns the hosts that serve the segments of clients: a list of addresses or names for each
    /// id. Omits clients without a segment and clients that are away.
    #[pyo3(signature = (client_ids))]
    example {
        ///
        /// >>> store.hosts([store.id])[store.id]
        /// ['127.0.0.1']
    }
    fn hosts(client_ids: Texts) -> HashMap<String, Vec<String>> = |client| async move {
        let ids = client_ids.0.iter().map(|text| id(text, "client"));
        let ids = ids.collect::<Outcome<Vec<ClientId>>>()?;
        let texts = |hosts: Vec<Box<str>>| hosts.into_iter().map(String::from).collect();
        let hosts = client.hosts(&ids).await?.into_iter();
        Ok(hosts.map(|(id, hosts)| (id.to_string(), texts(hosts))).collect())
    };
}

questions! {
    /// Returns the segments that this client contributes, oldest first:
    /// :class:`~mc_store.reports.Segment`.
    example {
        ///
        /// >>> [segment.size for segment in store.segments()]
        /// [67108864]
    }
    fn segments() -> Vec<Report<MountedSegment>> = |client| {
        client.segments().into_iter().map(Report).collect()
    };

    /// Returns this client's metrics: calls, objects, bytes, latencies, failures. A
    /// :class:`~mc_store.reports.Metrics`.
    example {
        ///
        /// >>> "a" in store
        /// False
        /// >>> store.metrics().operations["exist"].calls
        /// 1
    }
    fn metrics() -> Report<ClientMetrics> = |client| Report(client.metrics());

    /// Returns this client's metrics in the text format of Prometheus.
    fn metrics_text() -> String = |client| client.metrics().prometheus();

    /// The client's id at the master, a UUID.
    #[getter]
    fn id() -> String = |client| client.id().to_string();

    /// The master's address as it was given, with which other clients can join the cluster.
    #[getter]
    fn master_addr() -> String = |client| client.master().addr().to_owned();

    /// The client's role in the cluster: ``client`` when it only makes requests, ``server`` when it
    /// only contributes memory, otherwise ``both``.
    #[getter]
    fn role() -> &'static str = |client| match client.role() {
        ClientRole::PureClient => "client",
        ClientRole::PureServer => "server",
        _ => "both",
    };

    /// The endpoint where other clients reach this client's segments; ``None`` when it serves none.
    #[getter]
    fn endpoint() -> Option<String> = |client| client.endpoint().map(|endpoint| endpoint.to_string());

    /// The name of the segment that this client was connected with; ``None`` without a segment.
    #[getter]
    fn segment_name() -> Option<String> = |client| client.segment_name().map(str::to_owned);

    /// The address of this client's HTTP pages, as ``"address:port"``: ``/health``, ``/metrics``,
    /// ``/metrics/summary``. ``None`` when the client serves no pages.
    #[getter]
    fn http_addr() -> Option<String> = |client| client.http_addr().map(|address| address.to_string());
}

/// The default time limit of a drain.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(60);
