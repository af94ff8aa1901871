//! Reports of what clients could not read or reach.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use mc_meta::{DamageReport, ReplicaPlace, ReportOutcome};
use mc_types::{ClientId, Generation, SegmentId};

use super::{
    CallContext, at_most, calls, client_id, extent, id, message, optional_id, reply, tenant_key,
    tenant_name,
};
use crate::proto::{self, failure::Kind};
use crate::refusal::Refusal;
use crate::request::TenantKey;

/// Most failures in one call.
pub const MAX_FAILURES: usize = 256;

/// Something that a client could not read or reach.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure<'a> {
    /// The bytes of a replica are not those that were put.
    Damaged {
        /// The object.
        object: TenantKey<'a>,
        /// The put that was read.
        generation: Generation,
        /// The replica.
        place: ReplicaPlace,
    },
    /// A segment could not be reached, or gave no answer.
    Unreachable {
        /// The segment.
        segment: SegmentId,
    },
}

/// The outcomes of the failures of a report, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reported {
    /// Reports that wait for a confirmation, or had it.
    pub noted: u64,
    /// Reports of what is no longer there, or has no checksum.
    pub stale: u64,
    /// Reports beyond the reporter's credit, or beyond what the master keeps.
    pub limited: u64,
}

calls! {
    /// Reports replicas that are damaged and segments that could not be reached, at most
    /// [`MAX_FAILURES`](crate::MAX_FAILURES) at a time. The master has them confirmed before it
    /// does anything.
    fn report_failures(&self, client: ClientId, failures: &[Failure<'_>]) -> Reported {
        ReportFailures
            "Refused with `InvalidParams` beyond that many failures, and with `NotSupported` by \
             masters that do not know the call.",
        message(proto::ReportFailuresRequest {
            client_id: client.to_bytes().into(),
            failures: failures.iter().map(proto::Failure::from).collect(),
        }),
        reply(|answer: &proto::ReportFailuresResponse| {
            let &proto::ReportFailuresResponse { noted, stale, limited, .. } = answer;
            Ok(Reported { noted, stale, limited })
        }),
    }
}

impl CallContext<'_> {
    pub(crate) fn report_failures(
        self,
        request: &proto::ReportFailuresRequest,
    ) -> Result<proto::ReportFailuresResponse, Refusal> {
        client_id(&request.client_id)?;
        let failures = at_most(&request.failures, MAX_FAILURES, "failures")?;
        // All of them are sound before any is taken.
        let failures = failures.iter().map(parse_failure).collect::<Result<Vec<_>, _>>()?;
        let mut answer = proto::ReportFailuresResponse::default();
        for failure in failures {
            let outcome = match failure {
                Some(failure) => self.report(&failure)?,
                None => ReportOutcome::Stale,
            };
            *match outcome {
                ReportOutcome::Limited => &mut answer.limited,
                ReportOutcome::Stale => &mut answer.stale,
                _ => &mut answer.noted,
            } += 1;
        }
        Ok(answer)
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

/// A failure, unless it is of a kind that this master does not know.
fn parse_failure(message: &proto::Failure) -> Result<Option<Failure<'_>>, Refusal> {
    Ok(match message.kind() {
        Kind::Damaged => {
            let extent = extent(message.offset, message.length)?;
            let segment = optional_id(&message.segment_id, "segment_id", SegmentId::from_bytes)?;
            let disk =
                optional_id(&message.disk_client_id, "disk_client_id", ClientId::from_bytes)?;
            let place = match (segment, disk) {
                (Some(segment), _) => ReplicaPlace::Memory { segment, extent },
                (None, Some(client)) => ReplicaPlace::LocalDisk(client),
                (None, None) => ReplicaPlace::File,
            };
            let object = tenant_key(&message.key, &message.tenant_id)?;
            let generation = Generation::new(message.generation);
            Some(Failure::Damaged { object, generation, place })
        }
        Kind::Unreachable => {
            let segment = id(&message.segment_id, "segment_id", SegmentId::from_bytes)?;
            Some(Failure::Unreachable { segment })
        }
        Kind::Undefined => None,
    })
}

impl From<&Failure<'_>> for proto::Failure {
    fn from(failure: &Failure<'_>) -> Self {
        let mut message = Self::default();
        match failure {
            Failure::Damaged { object, generation, place } => {
                message.set_kind(Kind::Damaged);
                message.key = object.key.as_str().into();
                message.tenant_id = tenant_name(object);
                message.generation = generation.as_u64();
                match place {
                    ReplicaPlace::Memory { segment, extent } => {
                        message.segment_id = segment.to_bytes().into();
                        (message.offset, message.length) = (extent.offset(), extent.len());
                    }
                    ReplicaPlace::File => {}
                    ReplicaPlace::LocalDisk(client) => {
                        message.disk_client_id = client.to_bytes().into();
                    }
                }
            }
            Failure::Unreachable { segment } => {
                message.set_kind(Kind::Unreachable);
                message.segment_id = segment.to_bytes().into();
            }
        }
        message
    }
}

#[cfg(test)]
mod tests {
    use mc_types::{Extent, KeyRef};

    use super::*;

    #[test]
    fn a_failure_is_read_as_it_was_written() {
        let memory = |offset, len| {
            let extent = Extent::new(offset, len).unwrap();
            ReplicaPlace::Memory { segment: SegmentId::from_u128(7), extent }
        };
        let object = TenantKey::from(KeyRef::new("k").unwrap());
        let blue = TenantKey::of(&"blue".parse().unwrap(), KeyRef::new("é").unwrap());
        let damaged = |object: &TenantKey<'static>, generation, place| {
            let generation = Generation::new(generation);
            Failure::Damaged { object: object.clone(), generation, place }
        };
        for failure in [
            damaged(&object, 0, memory(0, 10)),
            damaged(&object, u64::MAX, memory(u64::MAX - 1, 1)),
            damaged(&object, 3, ReplicaPlace::File),
            damaged(&object, 3, ReplicaPlace::LocalDisk(ClientId::from_u128(5))),
            damaged(&blue, 1, memory(1, 2)),
            Failure::Unreachable { segment: SegmentId::from_u128(9) },
        ] {
            let message = proto::Failure::from(&failure);
            assert_eq!(parse_failure(&message), Ok(Some(failure)));
        }
    }
}
