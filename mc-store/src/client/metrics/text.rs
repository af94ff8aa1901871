//! A client's figures as text: for Prometheus, for a log line, for a person.

use std::fmt::Write as _;
use std::ops::RangeInclusive;

use mc_http::MetricKind::{Counter, Gauge, Histogram};
use mc_http::MetricsText;
use mc_types::ByteSize;

use super::{ClientMetrics, ClientOperation, LatencyHistogram, OperationMetrics, TierMetrics};

/// The limits of the buckets of operations: 2 to the power of these, in microseconds.
const LIMITS: RangeInclusive<u32> = 2..=25;

/// The limits of the buckets of calls of the master.
const RPC_LIMITS: RangeInclusive<u32> = 0..=26;

impl ClientMetrics {
    /// Returns the figures in Prometheus' text format, version 0.0.4, with Mooncake's names where it has
    /// them; latencies are in microseconds.
    #[must_use]
    pub fn prometheus(&self) -> String {
        let mut page =
            MetricsText::with_labels(self.labels.iter().map(|(name, value)| (name, value)));
        self.totals(&mut page);
        self.served(&mut page);
        self.connections(&mut page);
        self.transfers(&mut page);
        self.operations(&mut page);
        self.hot_cache(&mut page);
        if let Some(shared) = &self.shared_tier {
            tier(&mut page, "shared_tier", shared);
        }
        if let Some(disk) = &self.local_disk {
            tier(&mut page, "own_disk", disk);
        }
        self.tiers_missing(&mut page);
        self.peer_disks(&mut page);
        self.reports(&mut page);
        self.cut_off(&mut page);
        #[cfg(feature = "c2c")]
        self.conversions(&mut page);
        self.calls(&mut page);
        page.into_string()
    }

    /// The figures in one line, for a log or a person.
    #[must_use]
    pub fn summary(&self) -> String {
        let (read, written) = self.bytes();
        let size = ByteSize::bytes;
        let mut text = format!("read {}, written {}", size(read), size(written));
        if self.served.reads + self.served.writes != 0 {
            let (read, written) = (self.served.read_bytes, self.served.written_bytes);
            let _ = write!(text, ", served {} read and {} written", size(read), size(written));
        }
        for of in &self.operations {
            let name = of.operation.as_str();
            let _ = write!(text, "; {name} {} ({} objects", of.calls(), of.objects);
            if of.operation.is_read() || of.operation.is_write() {
                let _ = write!(text, ", {}", size(of.bytes));
            }
            if of.absent != 0 {
                let _ = write!(text, ", {} absent", of.absent);
            }
            if of.failed() != 0 {
                let _ = write!(text, ", {} failed", of.failed());
            }
            text.push(')');
            let quantile = |part| of.latency.quantile(part);
            if let (Some(median), Some(slow)) = (quantile(0.5), quantile(0.99)) {
                let _ = write!(text, " p50 {median:.0?} p99 {slow:.0?}");
            }
        }
        #[cfg(feature = "c2c")]
        if let Some(c2c) = &self.c2c {
            let skipped: u64 = c2c.skipped.iter().map(|(_, count)| count).sum();
            let (waiting, speed) = (c2c.queued, c2c.gflops());
            let _ = write!(
                text,
                "; c2c {} converted, {skipped} skipped, {waiting} waiting, {speed:.1} GFLOP/s",
                c2c.converted
            );
        }
        text
    }

    /// Bytes read and written, whatever way they took.
    fn bytes(&self) -> (u64, u64) {
        let sum = |(read, written), of: &super::PathMetrics| (read + of.read, written + of.written);
        self.paths.iter().fold((0, 0), sum)
    }

    fn totals(&self, page: &mut MetricsText) {
        let (read, written) = self.bytes();
        for (name, help, value) in [
            ("mooncake_transfer_read_bytes", "Bytes read from segments", read),
            ("mooncake_transfer_write_bytes", "Bytes written to segments", written),
        ] {
            page.metric(name, Counter, help);
            page.sample(name, &[], value);
        }
        let name = "mooncake_client_tasks_total";
        page.metric(name, Counter, "Copies and moves that were done for the master, or failed");
        for (outcome, value) in [("success", self.tasks_done), ("failed", self.tasks_failed)] {
            page.sample(name, &[("outcome", outcome)], value);
        }
        let name = "mooncake_client_path_bytes_total";
        page.metric(name, Counter, "Bytes by the way that they took");
        for of in &self.paths {
            for (direction, value) in [("read", of.read), ("write", of.written)] {
                let labels = [("path", of.path.as_str()), ("direction", direction)];
                page.sample(name, &labels, value);
            }
        }
    }

    fn peer_disks(&self, page: &mut MetricsText) {
        let help =
            "Reads of peers' disks without an answer in time, or left out since others had none";
        let name = "mooncake_client_peer_disk_unanswered_reads_total";
        page.metric(name, Counter, help);
        for (outcome, value) in [
            ("timed_out", self.peer_disk_timed_out_reads),
            ("skipped", self.peer_disk_skipped_reads),
        ] {
            page.sample(name, &[("outcome", outcome)], value);
        }
    }

    /// Operations of peers on this client's segments.
    fn served(&self, page: &mut MetricsText) {
        let served = &self.served;
        let name = "mooncake_client_served_operations_total";
        let help =
            "Reads and writes of this node's segments carried out for peers and its own check";
        page.metric(name, Counter, help);
        for (direction, value) in [("read", served.reads), ("write", served.writes)] {
            page.sample(name, &[("direction", direction)], value);
        }
        let name = "mooncake_client_served_bytes_total";
        page.metric(name, Counter, "Bytes of these reads and writes");
        for (direction, value) in [("read", served.read_bytes), ("write", served.written_bytes)] {
            page.sample(name, &[("direction", direction)], value);
        }
    }

    /// Connections of peers.
    fn connections(&self, page: &mut MetricsText) {
        let ways = || self.connections.iter().map(|(path, of)| (path.as_str(), of));
        let name = "mooncake_client_peer_connections";
        page.metric(name, Gauge, "Connections of peers that are open");
        for (path, of) in ways() {
            page.sample(name, &[("path", path)], of.open as u64);
        }
        let name = "mooncake_client_peer_connections_refused_total";
        let help = "Connections of peers refused because all places were taken by others at work";
        page.metric(name, Counter, help);
        for (path, of) in ways() {
            page.sample(name, &[("path", path)], of.refused);
        }
        let name = "mooncake_client_peer_connections_yielded_total";
        let help = "Idle connections of peers closed because others needed their places";
        page.metric(name, Counter, help);
        for (path, of) in ways() {
            page.sample(name, &[("path", path)], of.yielded);
        }
    }

    fn hot_cache(&self, page: &mut MetricsText) {
        let name = "mooncake_client_hot_cache_total";
        page.metric(name, Counter, "Objects looked for in the client's own cache");
        for (outcome, value) in [("hit", self.hot_cache.0), ("miss", self.hot_cache.1)] {
            page.sample(name, &[("outcome", outcome)], value);
        }
    }

    fn reports(&self, page: &mut MetricsText) {
        let name = "mooncake_client_damaged_reads_total";
        page.metric(name, Counter, "Reads of replicas whose bytes were not those that were put");
        page.sample(name, &[], self.reports.damaged);
        let name = "mooncake_client_unreachable_total";
        let help = "Reads and writes of objects to which a segment's node gave no answer";
        page.metric(name, Counter, help);
        page.sample(name, &[], self.reports.unreachable);
        let name = "mooncake_client_moved_on_total";
        let help = "Reads that went on at another replica because a node took longer than usual";
        page.metric(name, Counter, help);
        page.sample(name, &[], self.reports.moved_on);
        let name = "mooncake_client_few_replicas_total";
        let help = "Puts that got fewer replicas than they asked for";
        page.metric(name, Counter, help);
        page.sample(name, &[], self.reports.few_replicas);
        let name = "mooncake_client_not_preferred_total";
        let help = "Puts of which no replica is in a segment that they prefer";
        page.metric(name, Counter, help);
        page.sample(name, &[], self.reports.not_preferred);
        let name = "mooncake_client_reports_total";
        page.metric(name, Counter, "Reports of what could not be read, by what became of them");
        for (outcome, value) in [("sent", self.reports.sent), ("lost", self.reports.lost)] {
            page.sample(name, &[("outcome", outcome)], value);
        }
    }

    fn cut_off(&self, page: &mut MetricsText) {
        let name = "mooncake_client_is_cut_off";
        let help = "1 while peers reach no segment of this client, by its own check";
        page.metric(name, Gauge, help);
        page.sample(name, &[], u64::from(self.is_cut_off));
    }

    fn tiers_missing(&self, page: &mut MetricsText) {
        let name = "mooncake_client_is_shared_tier_missing";
        page.metric(name, Gauge, "1 while this client cannot open the shared tier");
        page.sample(name, &[], u64::from(self.is_shared_tier_missing));
        let name = "mooncake_client_is_own_disk_missing";
        page.metric(name, Gauge, "1 while this client's local disk cannot be opened or takes long");
        page.sample(name, &[], u64::from(self.is_local_disk_missing));
    }

    #[cfg(feature = "c2c")]
    fn conversions(&self, page: &mut MetricsText) {
        let Some(c2c) = &self.c2c else { return };
        let name = "mooncake_client_c2c_queued";
        page.metric(name, Gauge, "Conversions of objects that wait or are under way");
        page.sample(name, &[], c2c.queued);
        let millis = u64::try_from(c2c.busy.as_millis()).unwrap_or(u64::MAX);
        for (name, help, value) in [
            ("converted", "Converted objects that were stored", c2c.converted),
            ("read_bytes", "Bytes of the objects that were converted", c2c.read_bytes),
            ("stored_bytes", "Bytes of converted objects", c2c.stored_bytes),
            ("flop", "Operations of conversions, without the cheap ones", c2c.flop),
            ("busy_milliseconds", "Time of threads that converted", millis),
        ] {
            let name = format!("mooncake_client_c2c_{name}_total");
            page.metric(&name, Counter, help);
            page.sample(&name, &[], value);
        }
        let name = "mooncake_client_c2c_skipped_total";
        page.metric(name, Counter, "Conversions that were not made, by cause");
        for (cause, count) in &c2c.skipped {
            page.sample(name, &[("cause", cause.as_str())], count);
        }
        let name = "mooncake_client_c2c_latency";
        let help = "Time from a put to that of its converted object, in microseconds";
        page.metric(name, Histogram, help);
        histogram(page, name, &[], LIMITS, &c2c.latency);
    }

    fn transfers(&self, page: &mut MetricsText) {
        use ClientOperation::{
            BatchGet, BatchGetInto, BatchPut, BatchUpsert, Get, GetInto, GetRange, Put, Upsert,
        };
        for (name, help, among) in [
            ("get", "Time of gets of one object", &[Get, GetInto, GetRange][..]),
            ("put", "Time of puts and upserts of one object", &[Put, Upsert]),
            ("batch_get", "Time of gets of many objects", &[BatchGet, BatchGetInto]),
            ("batch_put", "Time of puts and upserts of many objects", &[BatchPut, BatchUpsert]),
        ] {
            let of = self.operations.iter().filter(|of| among.contains(&of.operation));
            let latency = LatencyHistogram::sum(of.map(|of| &of.latency));
            let name = format!("mooncake_transfer_{name}_latency");
            page.metric(&name, Histogram, &format!("{help}, in microseconds"));
            histogram(page, &name, &[], LIMITS, &latency);
        }
    }

    fn operations(&self, page: &mut MetricsText) {
        let read = "mooncake_transfer_read_operation";
        let write = "mooncake_transfer_write_operation";
        let other = "mooncake_client_key_operation";
        let family = |of: ClientOperation| match of {
            of if of.is_read() => read,
            of if of.is_write() => write,
            _ => other,
        };
        for name in [read, write, other] {
            let own: Vec<&OperationMetrics> =
                self.operations.iter().filter(|of| family(of.operation) == name).collect();
            let help = "Calls that have ended";
            by_operation(page, &format!("{name}_count"), help, &own, OperationMetrics::calls);
            if name != other {
                let help = "Bytes of the objects read or stored";
                by_operation(page, &format!("{name}_bytes"), help, &own, |of| of.bytes);
            }
            let name = format!("{name}_latency");
            page.metric(&name, Histogram, "Time of the calls, in microseconds");
            for of in &own {
                histogram(page, &name, &[("op_name", of.operation.as_str())], LIMITS, &of.latency);
            }
        }
        let all: Vec<&OperationMetrics> = self.operations.iter().collect();
        let name = "mooncake_client_operation_objects_total";
        by_operation(page, name, "Objects that calls were about", &all, |of| of.objects);
        let name = "mooncake_client_lookups_total";
        page.metric(name, Counter, "Objects looked for, by whether they were there");
        for of in &self.operations {
            let Some((hits, misses)) = of.lookups() else { continue };
            for (outcome, value) in [("hit", hits), ("miss", misses)] {
                let labels = [("op_name", of.operation.as_str()), ("outcome", outcome)];
                page.sample(name, &labels, value);
            }
        }
        let name = "mooncake_client_operation_abandoned_total";
        by_operation(page, name, "Calls abandoned by their callers", &all, |of| of.abandoned);
        let name = "mooncake_client_operation_failures_total";
        page.metric(name, Counter, "Objects that failed, by cause");
        for of in &self.operations {
            for (code, count) in &of.failures {
                let labels = [("op_name", of.operation.as_str()), ("code", code.as_str())];
                page.sample(name, &labels, *count);
            }
        }
    }

    fn calls(&self, page: &mut MetricsText) {
        let name = "mooncake_client_rpc_count";
        page.metric(name, Counter, "Calls of the master that have ended");
        for of in &self.rpc.methods {
            page.sample(name, &[("rpc_name", &of.method.to_string())], of.calls);
        }
        let name = "mooncake_client_rpc_failures_total";
        page.metric(name, Counter, "Calls of the master that failed or were refused");
        for of in &self.rpc.methods {
            page.sample(name, &[("rpc_name", &of.method.to_string())], of.failures);
        }
        let name = "mooncake_client_rpc_latency";
        page.metric(name, Histogram, "Time of the calls of the master, in microseconds");
        for of in &self.rpc.methods {
            let method = of.method.to_string();
            let labels = [("rpc_name", &*method)];
            histogram(page, name, &labels, RPC_LIMITS, &of.latencies);
        }
        for (name, help, value) in [
            ("made", "Connections made to the master", self.rpc.connections_made),
            ("lost", "Connections to the master that broke", self.rpc.connections_lost),
        ] {
            let name = format!("mooncake_client_rpc_connections_{name}_total");
            page.metric(&name, Counter, help);
            page.sample(&name, &[], value);
        }
    }
}

/// The figures of a tier below memory.
fn tier(page: &mut MetricsText, tier: &str, of: &TierMetrics) {
    let name = format!("mooncake_client_{tier}_waiting");
    page.metric(&name, Gauge, "Objects that wait to be written or are being written");
    page.sample(&name, &[], of.waiting);
    for (name, help, value) in [
        ("read_bytes", "Bytes read", of.read_bytes),
        ("written_bytes", "Bytes written", of.written_bytes),
        ("missing", "Reads of objects that were not there", of.missing),
        ("failed_reads", "Reads that failed, or found damaged bytes", of.failed_reads),
        ("timed_out_reads", "Reads that the tier did not answer in time", of.timed_out_reads),
        ("skipped_reads", "Reads not tried, since the tier does not answer", of.skipped_reads),
        ("failed_writes", "Writes that failed", of.failed_writes),
        ("dropped", "Objects not written because too many waited", of.dropped),
        ("no_room", "Objects not written because the medium has no room", of.no_room),
        ("late", "Objects not written because they waited too long", of.late),
        ("deleted", "Objects deleted because they were removed", of.deleted),
        ("evicted", "Objects deleted to make room", of.evicted),
    ] {
        let name = format!("mooncake_client_{tier}_{name}_total");
        page.metric(&name, Counter, help);
        page.sample(&name, &[], value);
    }
    for (direction, latency) in [("read", &of.reads), ("write", &of.writes)] {
        let name = format!("mooncake_client_{tier}_{direction}_latency");
        page.metric(&name, Histogram, "Time of reads or writes of objects, in microseconds");
        histogram(page, &name, &[], LIMITS, latency);
    }
}

fn by_operation(
    page: &mut MetricsText,
    name: &str,
    help: &str,
    of: &[&OperationMetrics],
    value: impl Fn(&OperationMetrics) -> u64,
) {
    page.metric(name, Counter, help);
    for of in of {
        page.sample(name, &[("op_name", of.operation.as_str())], value(of));
    }
}

fn histogram(
    page: &mut MetricsText,
    name: &str,
    labels: &[(&str, &str)],
    limits: RangeInclusive<u32>,
    latency: &LatencyHistogram,
) {
    let buckets = limits.map(|limit| (1_u128 << limit, latency.within_micros(limit)));
    page.buckets(name, labels, buckets, latency.count());
    let micros = u64::try_from(latency.total().as_micros()).unwrap_or(u64::MAX);
    page.sample(&format!("{name}_sum"), labels, micros);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use mc_types::ErrorCode;

    use super::super::DataPath;
    use super::super::{Direction, Metrics};
    use super::*;

    fn counted() -> ClientMetrics {
        let metrics = Metrics::new(true);
        metrics.start(ClientOperation::Get).ended([Ok(4096)]);
        metrics.start(ClientOperation::BatchPut).ended([Ok(10), Err(ErrorCode::Full)]);
        metrics.start(ClientOperation::Exist).ended([Ok(0)]);
        metrics.moved(DataPath::SharedMemory, Direction::Read, 4096);
        metrics.read()
    }

    #[test]
    fn the_page_has_the_names_of_the_reference() {
        let mut metrics = counted();
        metrics.labels = vec![("cluster_id".into(), "a\"b".into())];
        let page = metrics.prometheus();
        for line in [
            "# TYPE mooncake_transfer_read_bytes counter",
            r#"mooncake_transfer_read_bytes{cluster_id="a\"b"} 4096"#,
            r#"mooncake_transfer_get_latency_count{cluster_id="a\"b"} 1"#,
            r#"mooncake_transfer_batch_put_latency_bucket{cluster_id="a\"b",le="+Inf"} 1"#,
            r#"mooncake_transfer_read_operation_bytes{cluster_id="a\"b",op_name="get"} 4096"#,
            r#"mooncake_client_operation_failures_total{cluster_id="a\"b",op_name="batch_put",code="FULL"} 1"#,
            r#"mooncake_client_key_operation_count{cluster_id="a\"b",op_name="exist"} 1"#,
        ] {
            assert!(page.lines().any(|found| found == line), "no {line} in\n{page}");
        }
    }

    #[test]
    fn the_document_lists_every_metric() {
        let mut metrics = counted();
        metrics.shared_tier = Some(TierMetrics::default());
        metrics.local_disk = Some(TierMetrics::default());
        #[cfg(feature = "c2c")]
        {
            metrics.c2c = Some(super::super::C2cMetrics {
                queued: 0,
                converted: 0,
                read_bytes: 0,
                stored_bytes: 0,
                skipped: Vec::new(),
                latency: LatencyHistogram::default(),
                flop: 0,
                busy: Duration::ZERO,
            });
        }
        let document = include_str!("../../../../docs/metrics.md");
        let page = metrics.prometheus();
        let differences = mc_testkit::metrics_differences(&page, document, "Clients and nodes");
        // Without the feature `c2c` a page has fewer.
        let differences = differences
            .iter()
            .filter(|line| cfg!(feature = "c2c") || !line.contains("`mooncake_client_c2c_"));
        assert_eq!(differences.collect::<Vec<_>>(), Vec::<&String>::new(), "\n{page}");
    }

    #[test]
    fn every_line_is_a_comment_or_a_sample_and_no_series_comes_twice() {
        let page = counted().prometheus();
        let mut seen = std::collections::HashSet::new();
        for line in page.lines().filter(|line| !line.starts_with("# ")) {
            let (series, value) = line.rsplit_once(' ').expect("a series and its value");
            assert!(value.parse::<u64>().is_ok(), "{line}");
            assert!(seen.insert(series), "{series} is there twice");
        }
    }

    #[test]
    fn the_buckets_of_a_histogram_add_up() {
        let page = counted().prometheus();
        let prefix = "mooncake_transfer_get_latency_bucket{le=";
        let found: Vec<u64> = page
            .lines()
            .filter(|line| line.starts_with(prefix))
            .map(|line| line.rsplit_once(' ').unwrap().1.parse().unwrap())
            .collect();
        assert_eq!(found.len(), LIMITS.count() + 1);
        assert!(found.is_sorted() && found.last() == Some(&1), "{found:?}");
    }

    #[test]
    fn the_summary_is_one_line() {
        let summary = counted().summary();
        assert!(
            summary.starts_with("read 4.00 KB, written 0 B; batch_put 1 (2 objects"),
            "{summary}"
        );
        assert!(summary.contains("1 failed") && summary.contains("exist 1 (1 objects)"));
        assert_eq!(summary.lines().count(), 1);
        let none = LatencyHistogram::default();
        assert_eq!((none.quantile(0.5), none.total()), (None, Duration::ZERO));
    }
}
