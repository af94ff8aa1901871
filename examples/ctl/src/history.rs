//! `history`: what the master counted in the last hour.

use std::process::ExitCode;
use std::time::Duration;

use mc_cli::{duration, minute_json, table};
use mc_meta::Totals;
use mc_rpc::Minute;
use mc_store::Client;
use mc_types::ByteSize;

use crate::error::CtlError;
use crate::text::print;

/// Minutes in a row for people.
const ROW: usize = 5;

pub(crate) async fn history(client: &Client, json: bool) -> Result<ExitCode, CtlError> {
    let minutes = client.master().history().await?;
    let text = match json {
        true => minutes.iter().map(|minute| minute_json(minute).to_string() + "\n").collect(),
        false => human(&minutes),
    };
    print(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// The minutes of a row, as one.
fn row(name: String, minutes: &[Minute]) -> [String; 9] {
    let sum = |of: fn(&Totals) -> u64| minutes.iter().map(|minute| of(&minute.totals)).sum::<u64>();
    let found = sum(|it| it.get_hits) + sum(|it| it.exist_hits);
    let asked = found + sum(|it| it.get_misses) + sum(|it| it.exist_misses);
    let percent = match asked {
        0 => String::new(),
        asked => format!("{:.1} %", 100.0 * found as f64 / asked as f64),
    };
    [
        name,
        asked.to_string(),
        percent,
        sum(|it| it.put_starts).to_string(),
        sum(|it| it.evicted_objects).to_string(),
        ByteSize::bytes(sum(|it| it.evicted_bytes)).to_string(),
        sum(|it| it.removed_objects).to_string(),
        sum(|it| it.expired_objects).to_string(),
        sum(|it| it.put_start_no_room).to_string(),
    ]
}

fn human(minutes: &[Minute]) -> String {
    // The youngest row is whole, and the oldest may be shorter.
    let rows = minutes.rchunks(ROW).rev().map(|some| {
        let last = some.last().map_or(Duration::ZERO, |minute| minute.ago);
        row(if last.is_zero() { "now".into() } else { format!("{} ago", duration(last)) }, some)
    });
    let all: Duration = minutes.iter().map(|minute| minute.lasted).sum();
    let mut rows: Vec<[String; 9]> = rows.collect();
    rows.push(row(format!("all {}", duration(all)), minutes));
    let heads = [
        "UNTIL", ">LOOKUPS", ">FOUND", ">PUTS", ">EVICTED", ">BYTES", ">REMOVED", ">EXPIRED",
        ">NO ROOM",
    ];
    table(heads, &rows)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mc_rpc::History;
    use mc_types::Time;

    use super::*;

    #[test]
    fn minutes_are_told_five_by_five_and_together() {
        let (history, mut totals) = (Arc::new(History::default()), Totals::default());
        let at = |seconds| Time::ORIGIN + Duration::from_secs(seconds);
        for second in (0..=12 * 60).step_by(60) {
            history.note(at(second), || totals);
            totals.get_hits += 3;
            totals.exist_misses += 1;
            totals.evicted_objects += 2;
            totals.evicted_bytes += 1 << 20;
        }
        let text = human(&history.minutes(at(12 * 60 + 30), &totals));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 5, "{text}");
        let fields = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let last = fields(lines[4]).join(" ");
        assert!(
            last.starts_with("all 12") && last.contains(" 52 75.0 % 0 26 13.00 MB 0 0 0"),
            "{last}"
        );
        assert!(fields(lines[3]).join(" ").starts_with("now 20 75.0 % 0 10 5.00 MB"), "{text}");
    }
}
