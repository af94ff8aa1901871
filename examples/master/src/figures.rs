//! The master's figures as text: for Prometheus, for a log line, for a person.

mod tenants;

use std::fmt::Write as _;
use std::time::Duration;

use mc_events::EventStats;
use mc_http::MetricKind::{Counter, Gauge};
use mc_http::{MetricKind, MetricsText};
use mc_meta::{SegmentInfo, SegmentStatus, Totals};
use mc_rpc::ServerMetrics;
use mc_server::{MasterReport, TickerState};
use mc_types::ByteSize;

pub(crate) use self::tenants::tenants;

/// `report` in Prometheus' text format, version 0.0.4. Figures that the reference
/// system has too carry its names.
pub(crate) fn prometheus(report: &MasterReport) -> MetricsText {
    let pool = Pool::of(report);
    let mut text = MetricsText::default();
    for (name, help, value) in [
        (
            "master_allocated_bytes",
            "Bytes allocated in segments that take new objects",
            pool.usable.used,
        ),
        (
            "master_total_capacity_bytes",
            "Bytes in segments that take new objects",
            pool.usable.size,
        ),
        (
            "master_unusable_allocated_bytes",
            "Bytes allocated in segments that take no new objects: draining, away, suspect",
            pool.unusable.used,
        ),
        (
            "master_unusable_capacity_bytes",
            "Bytes in segments that take no new objects",
            pool.unusable.size,
        ),
    ] {
        metric(&mut text, name, Gauge, help);
        text.sample(name, &[], value);
    }
    // A tier without a limit has no number.
    if let Some(capacity) = report.files_capacity {
        let name = "master_total_file_capacity_bytes";
        metric(&mut text, name, Gauge, "Bytes that the shared tier has room for");
        text.sample(name, &[], capacity);
    }
    totals(&mut text, &report.totals);
    segments(&mut text, report);
    text
}

/// Appends how time passes for the master, in the same format.
pub(crate) fn ticker(text: &mut MetricsText, ticker: &TickerState) {
    for (name, kind, help, value) in [
        ("master_ticks_total", Counter, "Complete ticks of the master's own work", ticker.ticks),
        ("master_tick_panics_total", Counter, "Ticks that panicked", ticker.panics),
        (
            "master_seconds_since_tick",
            Gauge,
            "Whole seconds since the last complete tick; 0 while all is well",
            ticker.since_last.as_secs(),
        ),
    ] {
        metric(text, name, kind, help);
        text.sample(name, &[], value);
    }
}

/// Appends what the publisher of KV events counts, in the same format.
pub(crate) fn events(text: &mut MetricsText, stats: &EventStats) {
    let lag = u64::try_from(stats.lag.as_micros()).unwrap_or(u64::MAX);
    for (name, kind, help, value) in [
        (
            "published_total",
            Counter,
            "Events handed to the sockets of all endpoints",
            stats.published,
        ),
        ("dropped_total", Counter, "Events dropped; subscribers see a gap", stats.dropped),
        ("batches_total", Counter, "Messages sent", stats.batches),
        ("bytes_total", Counter, "Bytes of messages sent", stats.bytes),
        ("retries_total", Counter, "Attempts to send that failed", stats.retries),
        (
            "skipped_messages_total",
            Counter,
            "Messages that a subscriber missed because too many waited for it",
            stats.skipped,
        ),
        ("ignored_requests_total", Counter, "Requests not understood", stats.ignored_requests),
        ("queued", Gauge, "Events that wait to be published", stats.queued as u64),
        ("subscribers", Gauge, "Connected subscribers", stats.subscribers as u64),
        ("waiting_bytes", Gauge, "Bytes that wait for subscribers", stats.waiting_bytes as u64),
        ("lag_microseconds", Gauge, "Time that the last message's first event waited", lag),
    ] {
        let name = format!("master_kv_events_{name}");
        metric(text, &name, kind, help);
        text.sample(&name, &[], value);
    }
}

/// Appends what the server of calls counts, in the same format.
pub(crate) fn rpc(text: &mut MetricsText, server: &ServerMetrics) {
    let name = "master_rpc_connections";
    metric(text, name, Gauge, "Connections for calls that are open");
    text.sample(name, &[], server.connections);
    for (name, help, value) in [
        ("accepted_connections", "Connections taken", server.accepted),
        (
            "turned_away_connections",
            "Connections refused: too many, or without a known credential",
            server.turned_away,
        ),
        (
            "yielded_connections",
            "Idle connections that made room for others, or idled for too long",
            server.yielded,
        ),
        (
            "closed_for_cause_connections",
            "Connections closed because the peer broke the protocol",
            server.closed_for_cause,
        ),
        ("expired_calls", "Calls that waited longer than their caller wanted", server.expired),
        ("cancelled_calls", "Calls cancelled before they were executed", server.cancelled),
        ("repeated_calls", "Second attempts that got the first answer", server.repeated),
        (
            "not_durable_calls",
            "Calls executed and then refused: their effects did not become durable in time",
            server.not_durable,
        ),
        ("received_bytes", "Bytes that came in calls", server.bytes_in),
        ("sent_bytes", "Bytes that went out in answers", server.bytes_out),
    ] {
        let name = format!("master_rpc_{name}_total");
        metric(text, &name, Counter, help);
        text.sample(&name, &[], value);
    }
    metric(text, "master_rpc_calls_total", Counter, "Calls answered, refusals included");
    for of in &server.calls {
        text.sample("master_rpc_calls_total", &[("method", &of.method.to_string())], of.calls);
    }
    metric(text, "master_rpc_refused_total", Counter, "Calls refused as a whole");
    for of in &server.calls {
        text.sample("master_rpc_refused_total", &[("method", &of.method.to_string())], of.refused);
    }
}

/// The totals that have a name for Prometheus, and two sums that Mooncake's dashboards ask for.
fn totals(text: &mut MetricsText, totals: &Totals) {
    for (total, value) in totals.values() {
        let Some(name) = total.prometheus else { continue };
        let kind = match total.kind {
            mc_meta::MetricKind::Counter => Counter,
            mc_meta::MetricKind::Gauge => Gauge,
        };
        text.metric(name, kind, total.help);
        text.sample(name, &[], value);
    }
    for (name, help, value) in [
        ("total_get_nums_", "Objects asked for by get", totals.get_hits + totals.get_misses),
        (
            "master_exist_key_items_total",
            "Keys asked about by exist",
            totals.exist_hits + totals.exist_misses,
        ),
    ] {
        metric(text, name, Counter, help);
        text.sample(name, &[], value);
    }
}

/// All samples of one metric stand together, as the format wants it.
fn segments(text: &mut MetricsText, report: &MasterReport) {
    let name = "segment_allocated_bytes";
    metric(text, name, Gauge, "Bytes allocated in the segment");
    for segment in &report.segments {
        text.sample(name, &[("segment", &segment.spec.name)], segment.used);
    }
    let name = "segment_total_capacity_bytes";
    metric(text, name, Gauge, "Bytes in the segment");
    for segment in &report.segments {
        text.sample(name, &[("segment", &segment.spec.name)], segment.spec.size);
    }
    let name = "segment_status";
    metric(text, name, Gauge, "1 with the status that the segment has");
    for segment in &report.segments {
        let status = segment.status.to_string();
        text.sample(name, &[("segment", &segment.spec.name), ("status", &status)], 1);
    }
    let name = "segment_suspect";
    metric(text, name, Gauge, "1 if clients cannot reach the segment, else 0");
    for segment in &report.segments {
        let is_suspect = u8::from(segment.is_suspect);
        text.sample(name, &[("segment", &segment.spec.name)], is_suspect);
    }
}

/// Bytes of some segments.
#[derive(Default)]
pub(crate) struct Share {
    pub(crate) size: u64,
    pub(crate) used: u64,
}

/// The segments' bytes: where new objects are put, and elsewhere.
#[derive(Default)]
pub(crate) struct Pool {
    pub(crate) usable: Share,
    pub(crate) unusable: Share,
}

impl Pool {
    pub(crate) fn of(report: &MasterReport) -> Self {
        let mut pool = Self::default();
        for segment in &report.segments {
            let is_usable = segment.status.is_allocatable() && !segment.is_suspect;
            let share = if is_usable { &mut pool.usable } else { &mut pool.unusable };
            share.size = share.size.saturating_add(segment.spec.size);
            share.used = share.used.saturating_add(segment.used);
        }
        pool
    }
}

fn metric(text: &mut MetricsText, name: &str, kind: MetricKind, help: &str) {
    text.metric(name, kind, &format!("{help}."));
}

/// One line about `report`, counted from the start of the master.
pub(crate) fn summary(report: &MasterReport) -> String {
    format!(
        "{} | Requests: PutStart={} PutEnd={} PutRevoke={} Get={}/{} Exist={}/{} Del={} | {}",
        storage(report),
        report.totals.put_starts,
        report.totals.put_ends,
        report.totals.put_revokes,
        report.totals.get_hits,
        report.totals.get_hits + report.totals.get_misses,
        report.totals.exist_hits,
        report.totals.exist_hits + report.totals.exist_misses,
        report.totals.removed_objects,
        reclaim(report),
    )
}

/// One line about `report`, with requests per second since `before`, `elapsed`
/// ago.
pub(crate) fn summary_since(
    before: &MasterReport,
    elapsed: Duration,
    report: &MasterReport,
) -> String {
    let rate = |now: u64, then: u64| {
        let seconds = elapsed.as_secs_f64().max(1e-3);
        format!("{:.1}", now.saturating_sub(then) as f64 / seconds)
    };
    format!(
        "{} | Requests per sec: PutStart={} PutEnd={} PutRevoke={} Get={}/{} Exist={}/{} Del={} | {}",
        storage(report),
        rate(report.totals.put_starts, before.totals.put_starts),
        rate(report.totals.put_ends, before.totals.put_ends),
        rate(report.totals.put_revokes, before.totals.put_revokes),
        rate(report.totals.get_hits, before.totals.get_hits),
        rate(
            report.totals.get_hits + report.totals.get_misses,
            before.totals.get_hits + before.totals.get_misses
        ),
        rate(report.totals.exist_hits, before.totals.exist_hits),
        rate(
            report.totals.exist_hits + report.totals.exist_misses,
            before.totals.exist_hits + before.totals.exist_misses
        ),
        rate(report.totals.removed_objects, before.totals.removed_objects),
        reclaim(report),
    )
}

fn storage(report: &MasterReport) -> String {
    let pool = Pool::of(report);
    let percent = 100.0 * pool.usable.used as f64 / pool.usable.size.max(1) as f64;
    let count =
        |is: &dyn Fn(&SegmentInfo) -> bool| report.segments.iter().filter(|s| is(s)).count();
    let suspended = count(&|segment| segment.status == SegmentStatus::Suspended);
    let mut states = format!("suspended: {suspended}");
    for status in SegmentStatus::ALL {
        let found = count(&|segment| segment.status == status);
        if found != 0 && !matches!(status, SegmentStatus::Ok | SegmentStatus::Suspended) {
            let _ = write!(states, ", {status}: {found}");
        }
    }
    let suspect = count(&|segment| segment.is_suspect);
    if suspect != 0 {
        let _ = write!(states, ", suspect: {suspect}");
    }
    format!(
        "Mem Storage: {} / {} ({percent:.1}%) | SSD Storage: {} | Keys: {} (soft-pinned: {}, \
         unfinished: {}) | Clients: {} | Segments: {} ({states})",
        ByteSize::bytes(pool.usable.used),
        ByteSize::bytes(pool.usable.size),
        below_memory(report),
        report.totals.objects,
        report.totals.soft_pinned,
        report.totals.processing,
        report.totals.clients,
        report.segments.len(),
    )
}

/// Bytes on the shared tier and on clients' local disks, and room for them.
fn below_memory(report: &MasterReport) -> String {
    let disks = &report.local_disks;
    let used = report.totals.files_used + disks.iter().map(|disk| disk.usage.used).sum::<u64>();
    let room = disks.iter().map(|disk| disk.usage.capacity).sum::<u64>();
    let room = match report.files_capacity {
        None => "infinite".to_owned(),
        Some(limit) => ByteSize::bytes(room.saturating_add(limit)).to_string(),
    };
    format!("{} / {room}", ByteSize::bytes(used))
}

fn reclaim(report: &MasterReport) -> String {
    format!(
        "Evicted: {} keys, {} | No room: {} | Discarded: {} | Expired: {} keys | \
         Expired clients: {}",
        report.totals.evicted_objects,
        ByteSize::bytes(report.totals.evicted_bytes),
        report.totals.put_start_no_room,
        report.totals.puts_discarded,
        report.totals.expired_objects,
        report.totals.expired_clients,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use mc_meta::{Master, MasterConfig, SegmentSpec};
    use mc_types::{ClientId, RemoteKey, SegmentId, Time};
    use proptest::prelude::*;

    fn report_of_segment(name: &str) -> MasterReport {
        let master = Master::new(MasterConfig::default(), 1).unwrap();
        let spec = SegmentSpec {
            id: SegmentId::from_u128(1),
            name: name.into(),
            base: 0,
            size: 1 << 20,
            endpoint: "tcp://127.0.0.1:1".parse().unwrap(),
            remote_key: RemoteKey::from_bytes([1; 16]),
            ticket_key: None,
            medium: mc_types::MediaType::Dram,
        };
        master.mount_segment(Time::ORIGIN, ClientId::from_u128(1), spec).unwrap();
        master.report()
    }

    #[test]
    fn summaries_are_one_line_that_names_the_figures() {
        let report = report_of_segment("a\nb");
        let line = summary(&report);
        assert!(
            line.starts_with(
                "Mem Storage: 0 B / 1.00 MB (0.0%) | SSD Storage: 0 B / 0 B | Keys: 0 "
            ),
            "{line}"
        );
        assert!(line.contains("Clients: 1 | Segments: 1 (suspended: 0)"), "{line}");
        let mut later = report.clone();
        later.totals.put_starts += 25;
        let line = summary_since(&report, Duration::from_secs(10), &later);
        assert!(line.contains("PutStart=2.5 PutEnd=0.0"), "{line}");
        // A counter that went back would be a bug, not a reason to fall over.
        summary_since(&later, Duration::ZERO, &report);
    }

    #[test]
    fn a_suspended_segment_is_counted_and_told() {
        let mut report = report_of_segment("a");
        let told = |report: &MasterReport, status: &str| {
            let sample = format!("\nsegment_status{{segment=\"a\",status=\"{status}\"}} 1\n");
            prometheus(report).into_string().contains(&sample)
        };
        assert!(told(&report, "ok") && !told(&report, "suspended"));
        report.segments[0].status = SegmentStatus::Suspended;
        assert!(told(&report, "suspended") && !told(&report, "ok"));
        assert!(summary(&report).contains("Segments: 1 (suspended: 1)"));
    }

    #[test]
    fn only_segments_that_take_objects_are_capacity() {
        let mut report = report_of_segment("a");
        let capacity = |report: &MasterReport| {
            let text = prometheus(report).into_string();
            ["master_total_capacity_bytes", "master_unusable_capacity_bytes"].map(|name| {
                let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
                line.unwrap().parse::<u64>().unwrap()
            })
        };
        assert_eq!(capacity(&report), [1 << 20, 0]);
        report.segments[0].is_suspect = true;
        assert_eq!(capacity(&report), [0, 1 << 20]);
        assert!(summary(&report).contains("(suspended: 0, suspect: 1)"), "{}", summary(&report));
        report.segments[0].is_suspect = false;
        for status in SegmentStatus::ALL {
            report.segments[0].status = status;
            let expected = if status == SegmentStatus::Ok { [1 << 20, 0] } else { [0, 1 << 20] };
            assert_eq!(capacity(&report), expected, "{status}");
        }
        report.segments[0].status = SegmentStatus::Draining;
        assert!(summary(&report).starts_with("Mem Storage: 0 B / 0 B (0.0%)"));
        assert!(summary(&report).contains("(suspended: 0, draining: 1)"));
    }

    #[test]
    fn the_shared_tier_has_a_capacity_or_no_limit() {
        let mut report = MasterReport::default();
        let capacity = |report: &MasterReport| {
            let text = prometheus(report).into_string();
            let line = text.lines().find(|line| line.starts_with("master_total_file_capacity"));
            line.map(str::to_owned)
        };
        assert_eq!(capacity(&report), None);
        report.files_capacity = Some(4096);
        assert_eq!(capacity(&report).unwrap(), "master_total_file_capacity_bytes 4096");
    }

    #[test]
    fn no_metric_is_told_twice() {
        let mut report = report_of_segment("a");
        report.files_capacity = Some(1);
        let mut text = prometheus(&report);
        rpc(&mut text, &ServerMetrics::default());
        let text = text.into_string();
        let mut names: Vec<&str> =
            text.lines().filter(|line| line.starts_with("# TYPE ")).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup_by_key(|line| line.split(' ').nth(2).expect("a name"));
        assert_eq!(names.len(), all);
    }

    proptest! {
        /// Whatever a segment is called, every line stays a comment or a sample.
        #[test]
        fn every_line_is_a_comment_or_a_sample(name in "[ -~\n\t\"\\\\é]{1,40}") {
            let text = prometheus(&report_of_segment(&name)).into_string();
            for line in text.lines() {
                let sample = line.rsplit_once(' ').is_some_and(|(_, value)| value.parse::<u64>().is_ok());
                prop_assert!(line.starts_with("# ") || sample, "{line:?}");
            }
            prop_assert!(text.contains("\nmaster_total_capacity_bytes 1048576\n"));
            let label = name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let sample = format!("\nsegment_total_capacity_bytes{{segment=\"{label}\"}} 1048576\n");
            prop_assert!(text.contains(&sample));
        }
    }
}
