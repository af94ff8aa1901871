//! `doctor`: what is wrong with this host or with the cluster, and what to do.

mod cluster;
mod host;

use std::process::ExitCode;

use mc_cli::visible;
use mc_rpc::ClientConfig;
use mc_store::NodeConfig;
use serde_json::json;

use crate::args::Doctor;
use crate::error::CtlError;
use crate::text::print;

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Ok,
    /// It may be as it should, or becomes a fault.
    Warn,
    Fault,
}

impl Level {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fault => "fault",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Finding {
    level: Level,
    /// What was looked at, in a word or two.
    about: &'static str,
    /// What was seen.
    found: String,
    /// What to do; empty for what is well.
    advice: String,
}

/// What was looked at, in order.
#[derive(Debug, Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn ok(&mut self, about: &'static str, found: impl Into<String>) {
        self.add(Level::Ok, about, found, "");
    }

    fn warn(&mut self, about: &'static str, found: impl Into<String>, advice: impl Into<String>) {
        self.add(Level::Warn, about, found, advice);
    }

    fn fault(&mut self, about: &'static str, found: impl Into<String>, advice: impl Into<String>) {
        self.add(Level::Fault, about, found, advice);
    }

    fn add(
        &mut self,
        level: Level,
        about: &'static str,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) {
        self.0.push(Finding { level, about, found: found.into(), advice: advice.into() });
    }

    fn worst(&self) -> Level {
        self.0.iter().map(|finding| finding.level).max().unwrap_or(Level::Ok)
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for Finding { level, about, found, advice } in &self.0 {
            text += &format!("{:<6} {about}: {}\n", level.as_str(), visible(found));
            if !advice.is_empty() {
                text += &format!("       {advice}\n");
            }
        }
        let count = |level| self.0.iter().filter(|finding| finding.level == level).count();
        text + &format!("{} faults, {} warnings\n", count(Level::Fault), count(Level::Warn))
    }

    fn lines(&self) -> String {
        let line = |Finding { level, about, found, advice }: &Finding| {
            let level = level.as_str();
            let line = json!({ "level": level, "about": about, "found": found, "advice": advice });
            line.to_string() + "\n"
        };
        self.0.iter().map(line).collect()
    }
}

/// Looks at this host and at the cluster of a master, which need not answer.
pub(crate) async fn doctor(
    master: &str,
    rpc: ClientConfig,
    node: NodeConfig,
    doctor: &Doctor,
) -> Result<ExitCode, CtlError> {
    let mut findings = Findings::default();
    host::look(&mut findings);
    cluster::look(&mut findings, master, rpc, node, doctor).await;
    let text = if doctor.json { findings.lines() } else { findings.text() };
    print(text.as_bytes())?;
    Ok(if findings.worst() < Level::Fault { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_told_with_what_to_do() {
        let mut findings = Findings::default();
        assert_eq!(findings.worst(), Level::Ok);
        findings.ok("memory", "8 GB");
        findings.warn("pool", "96 % full", "add a node");
        assert_eq!(findings.worst(), Level::Warn);
        findings.fault("master", "does not\nanswer", "start it");
        assert_eq!(findings.worst(), Level::Fault);
        let text = "ok     memory: 8 GB\nwarn   pool: 96 % full\n       add a node\n\
                    fault  master: does not\\nanswer\n       start it\n1 faults, 1 warnings\n";
        assert_eq!(findings.text(), text);
        let lines = findings.lines();
        let last: serde_json::Value = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
        assert_eq!((&last["level"], &last["advice"]), (&"fault".into(), &"start it".into()));
    }
}
