//! From a plan that fails to the smallest one found that fails.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::plan::{Fault, Plan};
use crate::run::{Report, run};

/// Lines of a history that are kept of a failure.
const LINES: usize = 60;

/// A failure, made small.
#[derive(Debug)]
#[non_exhaustive]
pub struct Shrunk {
    /// The smallest plan found that fails.
    pub plan: Plan,
    /// The report of that simulation.
    pub report: Report,
    /// The last lines of its history, with the effects of the master.
    pub last_lines: Vec<String>,
    /// Simulations that were tried.
    pub tries: u32,
}

/// Makes a plan that fails smaller, for as long as it fails and `limit` lasts: less time, fewer
/// faults, shorter ones, fewer nodes.
///
/// # Errors
/// None, but for those of a writer that cannot fail.
pub fn shrink(plan: &Plan, limit: Duration) -> io::Result<Shrunk> {
    let mut shrinking = Shrinking { best: plan.clone(), tries: 0, end: Instant::now() + limit };
    shrinking.less_time()?;
    shrinking.fewer_faults()?;
    shrinking.fewer_nodes()?;
    shrinking.fewer_faults()?;
    shrinking.shorter_faults()?;
    let Shrinking { mut best, tries, .. } = shrinking;
    best.shows_effects = true;
    let tail = Tail::default();
    let report = run(&best, Some(Box::new(tail.clone())))?;
    best.shows_effects = plan.shows_effects;
    Ok(Shrunk { plan: best, report, last_lines: tail.lines(), tries })
}

struct Shrinking {
    best: Plan,
    tries: u32,
    end: Instant,
}

impl Shrinking {
    /// Takes a plan if it fails as well.
    fn takes(&mut self, plan: Plan) -> io::Result<bool> {
        if Instant::now() >= self.end {
            return Ok(false);
        }
        self.tries += 1;
        let fails = !run(&plan, None)?.violations.is_empty();
        if fails {
            self.best = plan;
        }
        Ok(fails)
    }

    /// Ends the load right after the violation, if it was found before its end.
    fn less_time(&mut self) -> io::Result<()> {
        let found = run(&self.best, None)?.virtual_time + Duration::from_millis(1);
        if found < self.best.time {
            let mut plan = self.best.clone();
            plan.time = found;
            plan.faults.retain(|fault| fault.at < found);
            self.takes(plan)?;
        }
        Ok(())
    }

    /// Leaves out parts of the faults, large ones at first.
    fn fewer_faults(&mut self) -> io::Result<()> {
        let mut part = self.best.faults.len().div_ceil(2);
        while part > 0 {
            let mut from = 0;
            while from < self.best.faults.len() {
                let mut plan = self.best.clone();
                let to = (from + part).min(plan.faults.len());
                plan.faults.drain(from..to);
                if !self.takes(plan)? {
                    from += part;
                }
            }
            part /= 2;
        }
        Ok(())
    }

    /// Halves the nodes.
    fn fewer_nodes(&mut self) -> io::Result<()> {
        while self.best.nodes > 1 {
            let mut plan = self.best.clone();
            plan.nodes = plan.nodes.div_ceil(2);
            let is_there = |fault: &Fault| {
                fault.what.nodes().into_iter().flatten().all(|node| node < plan.nodes)
            };
            plan.faults.retain(is_there);
            if !self.takes(plan)? {
                break;
            }
        }
        Ok(())
    }

    fn shorter_faults(&mut self) -> io::Result<()> {
        for at in 0..self.best.faults.len() {
            loop {
                let mut plan = self.best.clone();
                let lasts = &mut plan.faults[at].lasts;
                *lasts = Duration::from_millis(lasts.as_millis() as u64 / 2);
                if *lasts < Duration::from_millis(10) || !self.takes(plan)? {
                    break;
                }
            }
        }
        Ok(())
    }
}

/// Keeps the last lines that are written to it. Clones keep the same ones.
#[derive(Clone, Default)]
struct Tail(Arc<Mutex<VecDeque<String>>>);

impl Tail {
    fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

/// A line is written as a whole.
impl io::Write for Tail {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == LINES {
            lines.pop_front();
        }
        lines.push_back(String::from_utf8_lossy(line).trim_end().to_owned());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
