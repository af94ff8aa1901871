//! The result of the replay, as a table and as JSON.

use std::fmt;
use std::time::Duration;

use mc_types::ByteSize;
use serde::Serialize;

use mc_cli::Latencies;

use crate::tally::Tally;
use crate::tier::{TierKind, TierUse};

/// A byte count in the units of data rates.
const GIGA: f64 = 1e9;

/// The parameters of the replay.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Setting {
    pub(crate) block_bytes: u64,
    pub(crate) capacity_bytes: u64,
    pub(crate) nodes: u64,
    pub(crate) replicas: u32,
    pub(crate) workers: u32,
    /// The tier below memory; JSON's null without one.
    pub(crate) tier: Option<TierKind>,
}

/// Figures of a replay that workers do not count.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    /// See [`Trace::infinite_hits`](crate::trace::Trace::infinite_hits).
    pub(crate) infinite_hits: u64,
    pub(crate) evictions: u64,
    pub(crate) tier: TierUse,
    pub(crate) elapsed: Duration,
}

/// The result. Its JSON has these fields, the setting's among them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Report {
    pub(crate) requests: u64,
    /// Blocks of all requests.
    pub(crate) blocks: u64,
    /// Blocks read as part of a cached prefix, by all blocks.
    pub(crate) prefix_hit_rate: f64,
    /// The same for a memory that forgets nothing, as the trace alone tells: a block is a hit if it and
    /// all blocks before it in its request are in earlier requests.
    pub(crate) infinite_hit_rate: f64,
    /// Hits by those of that memory; 1 where there are none to be had.
    ///
    /// Several workers serve neighbouring requests at a time. A block that one worker is still putting
    /// when another looks it up is a hit of the infinite memory, which serves one request after the
    /// other, and a miss here: with more workers the ratio says a little too little, and with one it is
    /// exact. It can exceed 1 where a later request overtakes an earlier one that shares its prefix, and
    /// on a running cluster that has blocks from before.
    pub(crate) hit_ratio: f64,
    /// Bytes of the blocks stored; each counts once, however many replicas it has.
    pub(crate) bytes_put: u64,
    pub(crate) bytes_got: u64,
    /// 10^9 bytes put and got, by second.
    pub(crate) gbps: f64,
    pub(crate) get_p50_us: u64,
    pub(crate) get_p99_us: u64,
    pub(crate) put_p50_us: u64,
    pub(crate) put_p99_us: u64,
    pub(crate) lookup_p50_us: u64,
    pub(crate) lookup_p99_us: u64,
    /// Blocks that the cluster evicted meanwhile.
    pub(crate) evictions: u64,
    pub(crate) wrong_bytes: u64,
    pub(crate) seconds: f64,
    pub(crate) hit_blocks: u64,
    /// See [`infinite_hit_rate`](Self::infinite_hit_rate).
    pub(crate) infinite_hit_blocks: u64,
    /// See [`TierUse`].
    pub(crate) tier_bytes_got: u64,
    pub(crate) tier_failures: u64,
    pub(crate) vanished_blocks: u64,
    pub(crate) stored_blocks: u64,
    pub(crate) existing_blocks: u64,
    pub(crate) refused_blocks: u64,
    pub(crate) lookups: u64,
    pub(crate) gets: u64,
    pub(crate) puts: u64,
    #[serde(flatten)]
    pub(crate) setting: Setting,
}

impl Report {
    pub(crate) fn new(setting: Setting, tally: &Tally, totals: Totals) -> Self {
        let Totals { infinite_hits, evictions, tier, elapsed } = totals;
        let seconds = elapsed.as_secs_f64();
        let quantiles = |times: &Latencies| (times.quantile_us(0.5), times.quantile_us(0.99));
        let (get_p50_us, get_p99_us) = quantiles(&tally.get);
        let (put_p50_us, put_p99_us) = quantiles(&tally.put);
        let (lookup_p50_us, lookup_p99_us) = quantiles(&tally.lookup);
        Self {
            requests: tally.requests,
            blocks: tally.blocks,
            prefix_hit_rate: ratio(tally.hit_blocks as f64, tally.blocks as f64),
            infinite_hit_rate: ratio(infinite_hits as f64, tally.blocks as f64),
            hit_ratio: match infinite_hits {
                0 => 1.0,
                hits => tally.hit_blocks as f64 / hits as f64,
            },
            bytes_put: tally.bytes_put,
            bytes_got: tally.bytes_got,
            gbps: ratio((tally.bytes_put + tally.bytes_got) as f64 / GIGA, seconds),
            get_p50_us,
            get_p99_us,
            put_p50_us,
            put_p99_us,
            lookup_p50_us,
            lookup_p99_us,
            evictions,
            wrong_bytes: tally.wrong_bytes,
            seconds,
            hit_blocks: tally.hit_blocks,
            infinite_hit_blocks: infinite_hits,
            tier_bytes_got: tier.bytes_got,
            tier_failures: tier.failures,
            vanished_blocks: tally.vanished_blocks,
            stored_blocks: tally.stored_blocks,
            existing_blocks: tally.existing_blocks,
            refused_blocks: tally.refused_blocks,
            lookups: tally.lookup.count(),
            gets: tally.get.count(),
            puts: tally.put.count(),
            setting,
        }
    }
}

/// Zero by zero is zero: nothing happened.
fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Setting { block_bytes, capacity_bytes, nodes, replicas, workers, tier } = self.setting;
        let [block, capacity] = [block_bytes, capacity_bytes].map(ByteSize::bytes);
        let mut row = |name: &str, value: String, note: String| {
            writeln!(f, "{}", format!("{name:<18}{value:>14}  {note}").trim_end())
        };
        let none = String::new;
        row("requests", grouped(self.requests), format!("by {workers} workers"))?;
        row("blocks", grouped(self.blocks), format!("of {block}, {replicas} replica(s) each"))?;
        row("capacity", capacity.to_string(), format!("on {nodes} nodes"))?;
        row(
            "prefix hit rate",
            format!("{:.2} %", self.prefix_hit_rate * 100.0),
            format!("{} blocks", grouped(self.hit_blocks)),
        )?;
        row(
            "infinite memory",
            format!("{:.2} %", self.infinite_hit_rate * 100.0),
            format!(
                "{} blocks; hit ratio {:.4}",
                grouped(self.infinite_hit_blocks),
                self.hit_ratio
            ),
        )?;
        let gigabytes = |bytes: u64| format!("{:.2} GB", bytes as f64 / GIGA);
        let put = format!("{} blocks", grouped(self.stored_blocks));
        row("bytes put", gigabytes(self.bytes_put), put)?;
        row("bytes got", gigabytes(self.bytes_got), none())?;
        if let Some(tier) = tier {
            let got = gigabytes(self.tier_bytes_got);
            row("bytes from tier", got, format!("{}, part of the bytes got", tier.as_str()))?;
            let note = "reads and writes, blocks missing or without room".into();
            row("tier failures", grouped(self.tier_failures), note)?;
        }
        row(
            "throughput",
            format!("{:.2} GB/s", self.gbps),
            "put and got, content made and checked".into(),
        )?;
        for (name, calls, p50, p99) in [
            ("lookup", self.lookups, self.lookup_p50_us, self.lookup_p99_us),
            ("get", self.gets, self.get_p50_us, self.get_p99_us),
            ("put", self.puts, self.put_p50_us, self.put_p99_us),
        ] {
            let times = format!("p50 {:>9} us   p99 {:>9} us", grouped(p50), grouped(p99));
            row(name, grouped(calls), times)?;
        }
        row("evictions", grouped(self.evictions), "blocks".into())?;
        row(
            "vanished",
            grouped(self.vanished_blocks),
            "blocks gone between lookup and get".into(),
        )?;
        row(
            "already there",
            grouped(self.existing_blocks),
            "blocks put behind a gap or by another worker".into(),
        )?;
        row("refused", grouped(self.refused_blocks), "blocks not put: out of space".into())?;
        row("wrong bytes", grouped(self.wrong_bytes), none())?;
        row("seconds", format!("{:.2}", self.seconds), none())
    }
}

/// `1234567` as `1,234,567`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTING: Setting = Setting {
        block_bytes: 65_536,
        capacity_bytes: 1 << 31,
        nodes: 3,
        replicas: 1,
        workers: 4,
        tier: None,
    };

    fn report() -> Report {
        let mut tally = Tally::new();
        tally.requests = 1200;
        tally.blocks = 4000;
        tally.hit_blocks = 1000;
        tally.bytes_put = 3_000_000_000;
        tally.bytes_got = 1_000_000_000;
        tally.get.record(Duration::from_micros(1500));
        let tier = TierUse { bytes_got: 500_000_000, failures: 2 };
        let elapsed = Duration::from_secs(2);
        Report::new(SETTING, &tally, Totals { infinite_hits: 1250, evictions: 7, tier, elapsed })
    }

    #[test]
    fn json_has_the_published_fields() {
        let json = serde_json::to_value(report()).unwrap();
        for field in [
            "requests",
            "blocks",
            "prefix_hit_rate",
            "bytes_put",
            "bytes_got",
            "gbps",
            "get_p50_us",
            "get_p99_us",
            "put_p50_us",
            "put_p99_us",
            "lookup_p50_us",
            "lookup_p99_us",
            "evictions",
            "wrong_bytes",
            "seconds",
            "infinite_hit_rate",
            "hit_ratio",
            "infinite_hit_blocks",
            "tier_bytes_got",
            "tier_failures",
        ] {
            assert!(json[field].is_number(), "{field}");
        }
        assert_eq!(json["prefix_hit_rate"], 0.25);
        assert_eq!((&json["infinite_hit_rate"], &json["hit_ratio"]), (&0.3125.into(), &0.8.into()));
        assert!(json["tier"].is_null(), "{json}");
        assert_eq!(json["gbps"], 2.0);
        assert_eq!(json["get_p50_us"], 1500);
        assert_eq!(json["put_p50_us"], 0);
        assert_eq!(json["block_bytes"], 65_536);
        assert!(!serde_json::to_string(&report()).unwrap().contains('\n'));
    }

    #[test]
    fn nothing_done_is_zero_and_no_nan() {
        let report = Report::new(SETTING, &Tally::new(), Totals::default());
        assert_eq!((report.prefix_hit_rate, report.gbps), (0.0, 0.0));
        assert_eq!((report.infinite_hit_rate, report.hit_ratio), (0.0, 1.0));
    }

    #[test]
    fn the_table_lines_up() {
        let table = report().to_string();
        for line in [
            "requests                   1,200  by 4 workers\n",
            "capacity                 2.00 GB  on 3 nodes\n",
            "prefix hit rate          25.00 %  1,000 blocks\n",
            "infinite memory          31.25 %  1,250 blocks; hit ratio 0.8000\n",
            "bytes put                3.00 GB  0 blocks\n",
            "get                            1  p50     1,500 us   p99     1,500 us\n",
            "wrong bytes                    0\n",
        ] {
            assert!(table.contains(line), "{line}{table}");
        }
        assert!(!table.contains("tier"), "{table}");
    }

    #[test]
    fn a_tier_has_rows_of_its_own() {
        let mut report = report();
        report.setting.tier = Some(TierKind::Ssd);
        assert_eq!(serde_json::to_value(&report).unwrap()["tier"], "ssd");
        let table = report.to_string();
        for line in [
            "bytes from tier          0.50 GB  ssd, part of the bytes got\n",
            "tier failures                  2  reads and writes, blocks missing or without room\n",
        ] {
            assert!(table.contains(line), "{line}{table}");
        }
    }

    #[test]
    fn numbers_are_grouped() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(grouped(number), text);
        }
    }
}
