//! The program's output.

use std::io::{self, Write as _};

use mc_sim::{Report, Shrunk, Soak};
use serde_json::json;

/// Violations of a simulation that are printed.
const SHOWN: usize = 10;

pub(crate) fn print_report(report: &Report, as_json: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if as_json {
        return writeln!(out, "{}", report_json(report));
    }
    writeln!(
        out,
        "seed {}: {} nodes, {:.1} virtual minutes in {:.1} s of CPU time ({:.0} node-hours per CPU-hour)",
        report.seed,
        report.nodes,
        report.virtual_time.as_secs_f64() / 60.0,
        report.cpu_time.as_secs_f64(),
        report.speed(),
    )?;
    writeln!(out, "{}: {} acknowledged changes undone", report.promise, report.undone)?;
    writeln!(
        out,
        "history {} of {} lines, {} operations:",
        report.digest, report.lines, report.operations
    )?;
    for (answer, count) in &report.answers {
        writeln!(out, "{count:>10} {answer}")?;
    }
    print_violations(&mut out, report)
}

fn print_violations(out: &mut impl io::Write, report: &Report) -> io::Result<()> {
    if report.violations.is_empty() {
        return writeln!(out, "no violations");
    }
    for violation in report.violations.iter().take(SHOWN) {
        writeln!(out, "violation: {violation}")?;
    }
    if report.violations.len() > SHOWN {
        writeln!(out, "and {} more", report.violations.len() - SHOWN)?;
    }
    Ok(())
}

fn report_json(report: &Report) -> serde_json::Value {
    json!({
        "seed": report.seed,
        "masters": report.promise,
        "nodes": report.nodes,
        "virtual_seconds": report.virtual_time.as_secs_f64(),
        "cpu_seconds": report.cpu_time.as_secs_f64(),
        "node_hours_per_cpu_hour": report.speed(),
        "operations": report.operations,
        "answers": report.answers,
        "undone": report.undone,
        "digest": report.digest.to_string(),
        "lines": report.lines,
        "violations": report.violations,
    })
}

/// Prints one simulation of a soak.
pub(crate) fn print_soaked(report: &Report, as_json: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if as_json {
        return writeln!(out, "{}", report_json(report));
    }
    let verdict = if report.violations.is_empty() { "passed" } else { "FAILED" };
    writeln!(
        out,
        "seed {}: {verdict}, {}, {} operations, {} undone, history {}",
        report.seed, report.promise, report.operations, report.undone, report.digest
    )?;
    report.violations.iter().take(SHOWN).try_for_each(|it| writeln!(out, "violation: {it}"))
}

pub(crate) fn print_soak(soak: &Soak, as_json: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let speed = soak.node_hours / (soak.cpu_time.as_secs_f64() / 3600.0).max(1e-9);
    if as_json {
        let failed: Vec<u64> = soak.failed.iter().map(|plan| plan.seed).collect();
        let summary = json!({
            "simulations": soak.simulations,
            "operations": soak.operations,
            "node_hours": soak.node_hours,
            "cpu_seconds": soak.cpu_time.as_secs_f64(),
            "node_hours_per_cpu_hour": speed,
            "failed_seeds": failed,
            "is_cut_short": soak.is_cut_short,
        });
        return writeln!(out, "{summary}");
    }
    writeln!(
        out,
        "{} simulations, {} operations, {:.0} node-hours in {:.0} s of CPU time ({speed:.0} node-hours \
         per CPU-hour), {} failed{}",
        soak.simulations,
        soak.operations,
        soak.node_hours,
        soak.cpu_time.as_secs_f64(),
        soak.failed.len(),
        if soak.is_cut_short { "; time was up before the last seed" } else { "" },
    )
}

/// Prints a failure that was made small.
pub(crate) fn print_failure(shrunk: &Shrunk, as_json: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let plan = serde_json::to_value(&shrunk.plan)?;
    if as_json {
        let failure = json!({
            "shrunk": plan,
            "violations": shrunk.report.violations,
            "last_lines": shrunk.last_lines,
            "tries": shrunk.tries,
        });
        return writeln!(out, "{failure}");
    }
    writeln!(
        out,
        "\nthe smallest plan of {} that fails (mc-sim run --plan FILE):",
        shrunk.tries + 1
    )?;
    writeln!(out, "{plan}\n\nthe end of its history:")?;
    for line in &shrunk.last_lines {
        writeln!(out, "{line}")?;
    }
    print_violations(&mut out, &shrunk.report)
}
