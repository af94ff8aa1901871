//! Reports of what clients could not read or reach.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use bytes::BytesMut;
use mc_meta::{DamageReport, ReportOutcome};

use super::Turn;
use crate::answer::Reported;
use crate::error::Refusal;
use crate::reply;
use crate::request::{Failure, ReportedFailure, parse_failures};

impl Turn<'_> {
    pub(super) fn report_failures(self, out: &mut BytesMut) -> Result<(), Refusal> {
        let (_, failures) = parse_failures(self.payload)?;
        let mut reported = Reported::default();
        for failure in &failures {
            let outcome = match failure {
                ReportedFailure::Known(failure) => self.report(failure)?,
                ReportedFailure::Unknown => ReportOutcome::Stale,
            };
            *match outcome {
                ReportOutcome::Limited => &mut reported.limited,
                ReportOutcome::Stale => &mut reported.stale,
                _ => &mut reported.noted,
            } += 1;
        }
        reply::write_reported(out, reported);
        Ok(())
    }

    fn report(&self, failure: &Failure<'_>) -> Result<ReportOutcome, Refusal> {
        match failure {
            Failure::Damaged { object, generation, place } => {
                let key = self.scoped_of(object)?;
                let (key, generation, place) = (key.as_ref(), *generation, *place);
                let report = DamageReport { key, generation, place };
                Ok(self.master.report_damage(self.now, self.source(), &report))
            }
            Failure::Unreachable { segment } => {
                Ok(self.master.report_unreachable(self.now, self.source(), *segment))
            }
        }
    }

    /// The reporter: its credential and its host, because a client chooses its id itself.
    fn source(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.caller.name().hash(&mut hasher);
        self.from.hash(&mut hasher);
        hasher.finish()
    }
}
