//! The table of the master's metrics: name, kind, unit, name for Prometheus, and help stand here and nowhere else.
//!
//! A new metric is a line of [`Totals`] and the place that counts it. The report, its message, the metrics page,
//! `mc-ctl stat` and Python follow from the table.

/// How a metric changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// Grows, and begins at zero with the master.
    Counter,
    /// Rises and falls: the value of now.
    Gauge,
}

/// The unit of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricUnit {
    /// Bytes.
    Bytes,
    /// Clients.
    Clients,
    /// Drain jobs.
    Jobs,
    /// Keys.
    Keys,
    /// Objects.
    Objects,
    /// Replicas of objects.
    Replicas,
    /// Reports of clients.
    Reports,
    /// Segments.
    Segments,
    /// Copy and move tasks.
    Tasks,
}

/// The description of one of the master's [`Totals`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Its name: that of the field.
    pub name: &'static str,
    /// Whether it is a counter.
    pub kind: MetricKind,
    /// The unit of its value.
    pub unit: MetricUnit,
    /// Its name for Prometheus; `None` when the metrics page does not have it as it is.
    pub prometheus: Option<&'static str>,
    /// Its meaning, in sentences.
    pub help: &'static str,
}

macro_rules! totals {
    ($($name:ident: $kind:ident, $unit:ident, $prometheus:literal, $help:literal;)*) => {
        /// The totals of a master, and what a part of it counts: those fields that are the part's.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Totals {
            $(#[doc = $help] pub $name: u64,)*
        }

        impl Totals {
            /// The description of each, in the order of the fields.
            pub const METRICS: &'static [Metric] = &[$(Metric {
                name: stringify!($name),
                kind: MetricKind::$kind,
                unit: MetricUnit::$unit,
                prometheus: if $prometheus.is_empty() { None } else { Some($prometheus) },
                help: $help,
            }),*];

            /// Returns each metric with its value.
            pub fn values(&self) -> impl Iterator<Item = (&'static Metric, u64)> {
                Self::METRICS.iter().zip([$(self.$name),*])
            }

            /// Sets the metric of this name. Returns whether there is one.
            pub fn set(&mut self, name: &str, value: u64) -> bool {
                match name {
                    $(stringify!($name) => self.$name = value,)*
                    _ => return false,
                }
                true
            }

            /// Adds what another part has counted.
            pub(crate) fn add(&mut self, other: &Self) {
                $(self.$name = self.$name.saturating_add(other.$name);)*
            }
        }
    };
}

totals! {
    get_hits: Counter, Objects, "valid_get_nums_", "Reads that found the object.";
    get_misses: Counter, Objects, "", "Reads that did not find the object.";
    exist_hits: Counter, Keys, "master_exist_key_hits_total", "Keys asked about by exist or by a longest prefix that could be read.";
    exist_misses: Counter, Keys, "master_exist_key_misses_total", "Keys asked about that could not be read. A longest prefix asks no further than the first.";
    put_starts: Counter, Objects, "master_put_start_requests_total", "Puts that got space.";
    put_ends: Counter, Objects, "master_put_end_total", "Puts ended.";
    put_revokes: Counter, Objects, "master_put_revoke_total", "Puts revoked.";
    put_start_no_room: Counter, Objects, "master_put_start_alloc_failures_total", "Puts rejected: out of space. Each is counted once, however often it was tried again.";
    put_start_retries: Counter, Objects, "master_put_start_retries_total", "Further attempts of such puts that were rejected, too.";
    puts_discarded: Counter, Objects, "master_put_start_discard_cnt", "Unfinished puts discarded after their timeout.";
    removed_objects: Counter, Objects, "master_removed_key_count", "Objects removed on request.";
    evicted_objects: Counter, Objects, "master_evicted_key_count", "Objects evicted.";
    evicted_bytes: Counter, Bytes, "master_evicted_size_bytes", "Bytes of evicted objects, all replicas counted.";
    eviction_offers: Counter, Objects, "master_eviction_offers_total", "Objects looked at as victims, evicted or not: the work of eviction.";
    expired_objects: Counter, Objects, "master_expired_key_count", "Objects expired after they were read (--ttl_after_get).";
    expired_clients: Counter, Clients, "master_expired_clients_total", "Clients that timed out.";
    objects: Gauge, Objects, "master_key_count", "Objects, unfinished ones included.";
    processing: Gauge, Objects, "master_unfinished_key_count", "Objects whose put has not ended.";
    transfers: Gauge, Objects, "master_transfer_key_count", "Objects that are being copied or moved.";
    soft_pinned: Gauge, Objects, "master_soft_pin_key_count", "Soft-pinned objects; pins that expired since they were last looked at are included.";
    key_bytes: Gauge, Bytes, "master_key_text_bytes", "Bytes of the master's memory for the texts of the keys.";
    used: Gauge, Bytes, "", "Bytes allocated in all segments that can be read.";
    capacity: Gauge, Bytes, "", "Bytes in all segments that can be read.";
    clients: Gauge, Clients, "master_active_clients", "Clients with a mounted segment.";
    drain_jobs: Gauge, Jobs, "master_drain_job_count", "Drain jobs at work.";
    tasks_pending: Gauge, Tasks, "master_pending_task_count", "Tasks that wait for their clients.";
    tasks_processing: Gauge, Tasks, "master_processing_task_count", "Tasks that clients work on.";
    tasks_finished: Gauge, Tasks, "master_finished_task_count", "Ended tasks that can still be queried.";
    files_used: Gauge, Bytes, "master_allocated_file_size_bytes", "Bytes of the files on the shared tier, those being written included.";
    tier_only_objects: Gauge, Objects, "master_disk_only_key_count", "Objects that have nothing in memory.";
    files_unfinished: Gauge, Objects, "master_unfinished_file_count", "Files being written.";
    files_written: Counter, Objects, "master_file_put_end_total", "Files written to the shared tier.";
    files_no_room: Counter, Objects, "master_file_alloc_failures_total", "Puts planned without a file: the shared tier is full.";
    tier_evictions: Counter, Objects, "master_file_evicted_total", "Files and objects that clients deleted from disks to make room.";
    offload_queued: Counter, Objects, "master_offload_queued_total", "Objects queued to be written to a client's local disk.";
    offload_refused: Counter, Objects, "master_offload_refused_total", "Objects that no queue of a disk had room for.";
    offload_written: Counter, Objects, "master_offload_written_total", "Objects written to clients' local disks.";
    offload_written_bytes: Counter, Bytes, "master_offload_written_bytes_total", "Bytes of the objects written to clients' local disks.";
    offload_failed: Counter, Objects, "master_offload_failed_total", "Objects that a client could not write.";
    offload_given_up: Counter, Objects, "", "Objects that ended before they were written, other than by failure.";
    offload_filtered: Counter, Objects, "master_offload_filtered_total", "Objects not written when their puts ended or they were evicted, since they had not been used. Those whose puts ended may have been written later.";
    promotion_hits: Counter, Objects, "master_promotion_hits_total", "Reads of objects that were on disks only.";
    promotion_cold: Counter, Objects, "", "Reads of objects on disks only that had not been read often enough.";
    promotion_no_room: Counter, Objects, "", "Attempts to bring an object back for which memory had no room.";
    promotion_queue_full: Counter, Objects, "", "Attempts to bring an object back for which the queue had no room.";
    promotion_dropped: Counter, Objects, "", "Reads not counted: too many candidates, or a client that does not ask for its queue.";
    promotion_queued: Counter, Objects, "", "Objects queued to be brought back into memory.";
    promotion_exhausted: Counter, Objects, "", "Candidates that were dropped after too many attempts.";
    promotion_promoted: Counter, Objects, "master_promotion_promoted_total", "Objects brought back into memory.";
    promotion_promoted_bytes: Counter, Bytes, "master_promotion_promoted_bytes_total", "Bytes of the objects brought back into memory.";
    promotion_failed: Counter, Objects, "master_promotion_failed_total", "Objects that could not be brought back.";
    promotion_cancelled: Counter, Objects, "", "Queued objects that were not brought back: the object or the client has gone.";
    promotion_expired: Counter, Objects, "", "Queued objects whose time was up.";
    promotions_pending: Gauge, Objects, "", "Objects queued to come back into memory, or on their way.";
    promotion_candidates: Gauge, Objects, "", "Objects that wait for room to be queued to come back.";
    damage_reports: Counter, Reports, "master_damage_reports_total", "Reports of damaged replicas.";
    damage_dropped: Counter, Reports, "master_damage_reports_dropped_total", "Reports of replicas that are not there, or beyond the limits.";
    damage_denied: Counter, Replicas, "master_damage_denied_total", "Reported replicas that a second look found intact.";
    damage_confirmed: Counter, Replicas, "master_damage_confirmed_total", "Reported replicas that a second look found damaged.";
    damage_removed: Counter, Replicas, "master_damaged_replicas_removed_total", "Damaged replicas removed.";
    suspicion_reports: Counter, Reports, "master_unreachable_reports_total", "Reports that a segment cannot be reached.";
    suspicion_dropped: Counter, Reports, "master_unreachable_reports_dropped_total", "Reports of segments that take no new objects, or beyond the limits.";
    suspicion_suspected: Counter, Segments, "master_suspected_segments_total", "Segments that became suspect.";
    suspicion_declared: Counter, Segments, "master_cut_off_segments_total", "Segments whose own node said that its data path is dead.";
    suspicion_cleared: Counter, Segments, "master_cleared_doubts_total", "Doubts about segments that a heartbeat ended.";
    suspicion_suspects: Gauge, Segments, "master_suspect_segment_count", "Segments that clients cannot reach, since their nodes were last heard of.";
}

impl Totals {
    /// Counts objects that lost their memory, and bytes that this made free.
    pub(crate) const fn add_evicted(&mut self, objects: u64, bytes: u64) {
        self.evicted_objects += objects;
        self.evicted_bytes = self.evicted_bytes.saturating_add(bytes);
    }

    /// Counts a question whether an object can be read; hands its answer on.
    pub(crate) const fn asked(&mut self, exists: bool) -> bool {
        self.exist_hits += exists as u64;
        self.exist_misses += !exists as u64;
        exists
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_has_a_name_of_its_own_a_help_and_a_value() {
        let mut totals = Totals::default();
        for (number, metric) in (1..).zip(Totals::METRICS) {
            assert!(totals.set(metric.name, number), "{}", metric.name);
            assert!(metric.help.ends_with('.'), "{}", metric.help);
            let same = |other: &&Metric| {
                other.name == metric.name
                    || other.prometheus.is_some() && other.prometheus == metric.prometheus
            };
            assert_eq!(Totals::METRICS.iter().filter(same).count(), 1, "{}", metric.name);
        }
        assert!(totals.values().map(|(_, value)| value).eq(1..=Totals::METRICS.len() as u64));
        assert!(!totals.set("none", 1));
        let mut twice = totals;
        twice.add(&totals);
        assert!(twice.values().zip(totals.values()).all(|((_, two), (_, one))| two == 2 * one));
    }
}
