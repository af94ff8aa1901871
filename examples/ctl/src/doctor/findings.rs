//! The findings: what is well, what may become a fault, and what is one.

use mc_cli::visible;
use serde_json::json;

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    Ok,
    /// A state that may be meant, or becomes a fault.
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

/// The state of one thing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) level: Level,
    /// The subject, in a word or two.
    pub(super) about: &'static str,
    /// The state of it.
    pub(super) found: String,
    /// The remedy; empty for what is well.
    pub(super) advice: String,
}

/// All findings, in the order in which they were made.
#[derive(Debug, Default)]
pub(super) struct Findings(pub(super) Vec<Finding>);

impl Findings {
    pub(super) fn ok(&mut self, about: &'static str, found: impl Into<String>) {
        self.add(Level::Ok, about, found, "");
    }

    pub(super) fn warn(
        &mut self,
        about: &'static str,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) {
        self.add(Level::Warn, about, found, advice);
    }

    pub(super) fn fault(
        &mut self,
        about: &'static str,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) {
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

    pub(super) fn worst(&self) -> Level {
        self.0.iter().map(|finding| finding.level).max().unwrap_or(Level::Ok)
    }

    pub(super) fn text(&self) -> String {
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

    pub(super) fn lines(&self) -> String {
        let line = |Finding { level, about, found, advice }: &Finding| {
            let level = level.as_str();
            let line = json!({ "level": level, "about": about, "found": found, "advice": advice });
            line.to_string() + "\n"
        };
        self.0.iter().map(line).collect()
    }
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
