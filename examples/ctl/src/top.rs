//! `top`: what the cluster does, look by look.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use mc_cli::{table, visible};
use mc_rpc::{ClusterReport, SegmentReport};
use mc_store::Client;
use mc_types::ByteSize;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::args;
use crate::error::CtlError;
use crate::stat::{Pool, segment_state};
use crate::text::print_while_read;

/// Segments that are shown, the fullest first.
const SHOWN: usize = 20;

/// Clears a terminal.
const CLEAR: &str = "\x1b[H\x1b[2J";

pub(crate) async fn top(client: &Client, top: &args::Top) -> Result<ExitCode, CtlError> {
    let clears = !top.json && std::io::stdout().is_terminal();
    let mut timer = tokio::time::interval(top.interval.max(Duration::from_millis(100)));
    timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    timer.tick().await; // at once
    let mut before = (Instant::now(), client.cluster_report().await?);
    let mut left = top.count.unwrap_or(u64::MAX);
    while left > 0 {
        tokio::select! {
            biased;
            _ = tokio::signal::ctrl_c() => break,
            _ = timer.tick() => {}
        }
        let now = (Instant::now(), client.cluster_report().await?);
        let seen = Seen::between(&before.1, &now.1, now.0 - before.0);
        let text = match (top.json, clears) {
            (true, _) => seen.json(&now.1).to_string() + "\n",
            (false, true) => CLEAR.to_owned() + &seen.text(&now.1),
            (false, false) => seen.text(&now.1) + "\n",
        };
        if !print_while_read(text.as_bytes())? {
            break;
        }
        before = now;
        left -= 1;
    }
    Ok(ExitCode::SUCCESS)
}

/// The commands of a master between two looks, a second.
struct Seen {
    gets: f64,
    get_hits: Option<f64>,
    exists: f64,
    exist_hits: Option<f64>,
    puts: f64,
    refused: f64,
    evicted: f64,
    evicted_bytes: f64,
    removed: f64,
}

impl Seen {
    fn between(before: &ClusterReport, now: &ClusterReport, time: Duration) -> Self {
        let (before, now) = (&before.totals, &now.totals);
        let seconds = time.as_secs_f64().max(1e-3);
        // A master that began anew counts from zero.
        let more = |before: u64, now: u64| now.checked_sub(before).unwrap_or(now) as f64;
        let rate = |before, now| more(before, now) / seconds;
        let part = |hits: f64, misses: f64| (hits + misses > 0.0).then(|| hits / (hits + misses));
        let (get_hits, get_misses) =
            (rate(before.get_hits, now.get_hits), rate(before.get_misses, now.get_misses));
        let (exist_hits, exist_misses) =
            (rate(before.exist_hits, now.exist_hits), rate(before.exist_misses, now.exist_misses));
        Self {
            gets: get_hits + get_misses,
            get_hits: part(get_hits, get_misses),
            exists: exist_hits + exist_misses,
            exist_hits: part(exist_hits, exist_misses),
            puts: rate(before.put_ends, now.put_ends),
            refused: rate(before.put_start_no_room, now.put_start_no_room),
            evicted: rate(before.evicted_objects, now.evicted_objects),
            evicted_bytes: rate(before.evicted_bytes, now.evicted_bytes),
            removed: rate(before.removed_objects, now.removed_objects),
        }
    }

    fn text(&self, report: &ClusterReport) -> String {
        let size = ByteSize::bytes;
        let pool = Pool::of(report).usable;
        let totals = &report.totals;
        let hits = |part: Option<f64>| match part {
            None => String::new(),
            Some(part) => format!(" ({:.1} % found)", 100.0 * part),
        };
        let lines = [
            (
                "memory",
                format!(
                    "{} of {} used ({:.1} %) {}",
                    size(pool.used),
                    size(pool.size),
                    100.0 * pool.filled(),
                    bar(pool.filled(), 30)
                ),
            ),
            (
                "objects",
                format!(
                    "{} ({} soft-pinned, {} unfinished)",
                    totals.objects, totals.soft_pinned, totals.processing
                ),
            ),
            ("gets", format!("{:.0} a second{}", self.gets, hits(self.get_hits))),
            ("exists", format!("{:.0} a second{}", self.exists, hits(self.exist_hits))),
            (
                "puts",
                format!("{:.0} a second, {:.1} refused for lack of space", self.puts, self.refused),
            ),
            (
                "gone",
                format!(
                    "{:.1} a second evicted ({}), {:.1} removed",
                    self.evicted,
                    size(self.evicted_bytes as u64),
                    self.removed
                ),
            ),
        ];
        let text: String =
            lines.iter().map(|(name, value)| format!("{name:<8} {value}\n")).collect();
        text + "\n" + &fullest(report)
    }

    fn json(&self, report: &ClusterReport) -> Value {
        let pool = Pool::of(report).usable;
        json!({
            "used": pool.used,
            "capacity": pool.size,
            "objects": report.totals.objects,
            "unfinished": report.totals.processing,
            "gets_per_s": self.gets,
            "get_hit_rate": self.get_hits,
            "exists_per_s": self.exists,
            "exist_hit_rate": self.exist_hits,
            "puts_per_s": self.puts,
            "refused_per_s": self.refused,
            "evicted_per_s": self.evicted,
            "evicted_bytes_per_s": self.evicted_bytes,
            "removed_per_s": self.removed,
        })
    }
}

/// The segments that are fullest.
fn fullest(report: &ClusterReport) -> String {
    let filled = |segment: &SegmentReport| match segment.size {
        0 => 0.0,
        size => segment.used as f64 / size as f64,
    };
    let mut segments: Vec<&SegmentReport> = report.segments.iter().collect();
    segments.sort_by(|one, other| {
        filled(other).total_cmp(&filled(one)).then_with(|| one.name.cmp(&other.name))
    });
    let rows: Vec<[String; 6]> = segments
        .iter()
        .take(SHOWN)
        .map(|segment| {
            [
                visible(&segment.name),
                segment_state(segment).into(),
                ByteSize::bytes(segment.used).to_string(),
                format!("{:.1} %", 100.0 * filled(segment)),
                bar(filled(segment), 20),
                ByteSize::bytes(segment.largest_free).to_string(),
            ]
        })
        .collect();
    let more = match segments.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!("and {more} more\n"),
    };
    table(["SEGMENT", "STATE", ">USED", ">FULL", "", ">LARGEST FREE"], &rows) + &more
}

/// A part of the whole as a bar of so many letters.
fn bar(part: f64, width: usize) -> String {
    let filled = (part.clamp(0.0, 1.0) * width as f64).round() as usize;
    "#".repeat(filled) + &".".repeat(width - filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_between_two_looks() {
        let mut before = ClusterReport::default();
        before.totals.get_hits = 100;
        before.totals.put_ends = 50;
        let mut now = before.clone();
        now.totals.get_hits = 130;
        now.totals.get_misses = 10;
        now.totals.put_ends = 60;
        let seen = Seen::between(&before, &now, Duration::from_secs(2));
        assert_eq!((seen.gets, seen.get_hits, seen.puts), (20.0, Some(0.75), 5.0));
        assert_eq!(seen.exist_hits, None, "nothing was asked");
        let text = seen.text(&now);
        assert!(text.contains("gets     20 a second (75.0 % found)\n"), "{text}");
        // A master that began anew.
        let seen = Seen::between(&now, &before, Duration::from_secs(1));
        assert_eq!(seen.puts, 50.0);
        assert_eq!(seen.json(&before)["gets_per_s"], 100.0);
    }

    #[test]
    fn bars_are_as_long_as_they_should() {
        let bars = [0.0, 0.5, 1.0, 7.0, f64::NAN].map(|part| bar(part, 4));
        assert_eq!(bars, ["....", "##..", "####", "####", "...."]);
    }
}
