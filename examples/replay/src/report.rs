//! The result of the replay, as a table and as JSON.

use std::fmt;
use std::time::Duration;

use mc_types::ByteSize;
use serde::Serialize;

use mc_cli::Latencies;

use crate::tally::Tally;

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
}

/// The result. Its JSON has these fields, the setting's among them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Report {
    pub(crate) requests: u64,
    /// Blocks of all requests.
    pub(crate) blocks: u64,
    /// Blocks read as part of a cached prefix, by all blocks.
    pub(crate) prefix_hit_rate: f64,
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
    pub(crate) fn new(setting: Setting, tally: &Tally, evictions: u64, elapsed: Duration) -> Self {
        let seconds = elapsed.as_secs_f64();
        let quantiles = |times: &Latencies| (times.quantile_us(0.5), times.quantile_us(0.99));
        let (get_p50_us, get_p99_us) = quantiles(&tally.get);
        let (put_p50_us, put_p99_us) = quantiles(&tally.put);
        let (lookup_p50_us, lookup_p99_us) = quantiles(&tally.lookup);
        Self {
            requests: tally.requests,
            blocks: tally.blocks,
            prefix_hit_rate: ratio(tally.hit_blocks as f64, tally.blocks as f64),
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
        let Setting { block_bytes, capacity_bytes, nodes, replicas, workers } = self.setting;
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
        let gigabytes = |bytes: u64| format!("{:.2} GB", bytes as f64 / GIGA);
        let put = format!("{} blocks", grouped(self.stored_blocks));
        row("bytes put", gigabytes(self.bytes_put), put)?;
        row("bytes got", gigabytes(self.bytes_got), none())?;
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

    const SETTING: Setting =
        Setting { block_bytes: 65_536, capacity_bytes: 1 << 31, nodes: 3, replicas: 1, workers: 4 };

    fn report() -> Report {
        let mut tally = Tally::new();
        tally.requests = 1200;
        tally.blocks = 4000;
        tally.hit_blocks = 1000;
        tally.bytes_put = 3_000_000_000;
        tally.bytes_got = 1_000_000_000;
        tally.get.record(Duration::from_micros(1500));
        Report::new(SETTING, &tally, 7, Duration::from_secs(2))
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
        ] {
            assert!(json[field].is_number(), "{field}");
        }
        assert_eq!(json["prefix_hit_rate"], 0.25);
        assert_eq!(json["gbps"], 2.0);
        assert_eq!(json["get_p50_us"], 1500);
        assert_eq!(json["put_p50_us"], 0);
        assert_eq!(json["block_bytes"], 65_536);
        assert!(!serde_json::to_string(&report()).unwrap().contains('\n'));
    }

    #[test]
    fn nothing_done_is_zero_and_no_nan() {
        let report = Report::new(SETTING, &Tally::new(), 0, Duration::ZERO);
        assert_eq!((report.prefix_hit_rate, report.gbps), (0.0, 0.0));
    }

    #[test]
    fn the_table_lines_up() {
        let table = report().to_string();
        for line in [
            "requests                   1,200  by 4 workers\n",
            "capacity                 2.00 GB  on 3 nodes\n",
            "prefix hit rate          25.00 %  1,000 blocks\n",
            "bytes put                3.00 GB  0 blocks\n",
            "get                            1  p50     1,500 us   p99     1,500 us\n",
            "wrong bytes                    0\n",
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
