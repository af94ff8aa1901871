//! The part that a master has among those of its cluster, and the request to hand over.

use core::time::Duration;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::BytesMut;
use mc_types::{Epoch, ErrorCode, Sequence};

use super::message::exchange;
use super::{BadField, CallContext, calls, message, reply};
use crate::ha::{
    DurabilityMode, ElectionOutage, FollowerStatus, HaReport, HaRole, HaStatus, SnapshotStatus,
};
use crate::method::Method;
use crate::proto::{self, ha_status_response as told};
use crate::refusal::Refusal;

/// Longest id of a member in bytes.
const MAX_MEMBER_ID: usize = 256;

/// Most characters of a version that are read.
const MAX_VERSION: usize = 64;

calls! {
    /// Returns which part this master has, and the state of its journal. A standby answers it to
    /// clients [for administration](crate::ClientConfig::administration).
    fn ha_status(&self) -> HaStatus {
        HaStatus
            "Refused with `NotSupported` by masters that do not know the call.",
        message(proto::HaStatusRequest {}),
        reply(status),
    }

    /// Asks the leader to hand over to the member with the id `to`, or to the one that has most of
    /// its journal. Returns when it has begun to; [`ha_status`](Self::ha_status) says how far it is.
    fn hand_over(&self, to: Option<&str>) -> () {
        HandOver
            "Refused with `UnavailableInCurrentMode` by a master that is alone, with \
             `UnavailableInCurrentStatus` by one that does not lead.",
        message(proto::HandOverRequest { member_id: to.unwrap_or_default().into() }),
        reply(|_: &proto::HandOverResponse| Ok(())),
    }
}

const fn number(epoch: Option<Epoch>) -> u64 {
    match epoch {
        Some(epoch) => epoch.as_u64(),
        None => 0,
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn status(answer: &proto::HaStatusResponse) -> Result<HaStatus, BadField> {
    let role = match answer.role() {
        told::Role::Alone => HaRole::Alone,
        told::Role::Leader => HaRole::Leader,
        told::Role::Standby => HaRole::Standby,
        told::Role::Recovering => HaRole::Recovering,
    };
    let durability = match answer.durability() {
        told::Durability::None => DurabilityMode::None,
        told::Durability::Async => DurabilityMode::Async,
        told::Durability::Sync => DurabilityMode::Sync,
    };
    let follower = |follower: &told::Follower| FollowerStatus {
        member: follower.member_id.as_str().into(),
        address: follower.address.as_str().into(),
        position: Sequence::new(follower.position),
        lag: follower.lag,
        behind_for: Duration::from_millis(follower.lag_ms),
    };
    let snapshot = |snapshot: &told::Snapshot| SnapshotStatus {
        position: Sequence::new(snapshot.position),
        age: Duration::from_millis(snapshot.age_ms),
    };
    let outage = |outage: &told::ElectionOutage| ElectionOutage {
        lasts: Duration::from_millis(outage.lasts_ms),
        cause: outage.cause.as_str().into(),
    };
    let known = |text: &String| (!text.is_empty()).then(|| text.as_str().into());
    let version: Box<str> = answer.version.chars().take(MAX_VERSION).collect();
    let clock = |ms| UNIX_EPOCH.checked_add(Duration::from_millis(ms));
    let present = |number: u64| Some(number).filter(|&number| number != 0);
    Ok(HaStatus {
        role,
        epoch: present(answer.epoch).map(Epoch::new),
        member: answer.member_id.as_str().into(),
        address: answer.address.as_str().into(),
        leader: known(&answer.leader_address),
        position: present(answer.position).map(Sequence::new),
        followers: answer.followers.iter().map(follower).collect(),
        in_sync: answer.in_sync.iter().map(|id| id.as_str().into()).collect(),
        snapshot: answer.snapshot.as_ref().map(snapshot),
        journal_bytes: answer.journal_bytes,
        snapshot_bytes: answer.snapshot_bytes,
        failed_snapshots: answer.failed_snapshots,
        notice: known(&answer.notice),
        durability,
        election_outage: answer.election_outage.as_ref().map(outage),
        waits_because: known(&answer.waits_because),
        version: Some(version).filter(|version| !version.is_empty()),
        clock: answer.clock_ms.and_then(clock),
    })
}

/// The answer of a master with this report.
fn answer(report: Option<&dyn HaReport>) -> proto::HaStatusResponse {
    let status = report.map_or_else(HaStatus::default, HaReport::ha_status);
    let role = match status.role {
        HaRole::Alone => told::Role::Alone,
        HaRole::Leader => told::Role::Leader,
        HaRole::Standby => told::Role::Standby,
        HaRole::Recovering => told::Role::Recovering,
    };
    let durability = match status.durability {
        DurabilityMode::None => told::Durability::None,
        DurabilityMode::Async => told::Durability::Async,
        DurabilityMode::Sync => told::Durability::Sync,
    };
    let follower = |follower: FollowerStatus| told::Follower {
        member_id: follower.member.into(),
        address: follower.address.into(),
        position: follower.position.as_u64(),
        lag: follower.lag,
        lag_ms: millis(follower.behind_for),
    };
    let snapshot = |snapshot: SnapshotStatus| told::Snapshot {
        position: snapshot.position.as_u64(),
        age_ms: millis(snapshot.age),
    };
    let clock = |clock: SystemTime| Some(millis(clock.duration_since(UNIX_EPOCH).ok()?));
    let outage = |outage: ElectionOutage| told::ElectionOutage {
        lasts_ms: millis(outage.lasts),
        cause: outage.cause.into(),
    };
    proto::HaStatusResponse {
        role: role.into(),
        epoch: number(status.epoch),
        member_id: status.member.into(),
        address: status.address.into(),
        leader_address: status.leader.map(Into::into).unwrap_or_default(),
        position: status.position.map_or(0, Sequence::as_u64),
        followers: status.followers.into_iter().map(follower).collect(),
        in_sync: status.in_sync.into_iter().map(Into::into).collect(),
        snapshot: status.snapshot.map(snapshot),
        journal_bytes: status.journal_bytes,
        snapshot_bytes: status.snapshot_bytes,
        failed_snapshots: status.failed_snapshots,
        notice: status.notice.map(Into::into).unwrap_or_default(),
        durability: durability.into(),
        election_outage: status.election_outage.map(outage),
        waits_because: status.waits_because.map(Into::into).unwrap_or_default(),
        version: status.version.map(Into::into).unwrap_or_default(),
        clock_ms: status.clock.and_then(clock),
        ..Default::default()
    }
}

/// Passes on that this master is to hand over.
fn pass_on(
    report: Option<&dyn HaReport>,
    request: &proto::HandOverRequest,
) -> Result<proto::HandOverResponse, Refusal> {
    let len = request.member_id.len();
    if len > MAX_MEMBER_ID {
        return Err(Refusal::invalid(format!(
            "member_id has {len} bytes; it has {MAX_MEMBER_ID} at most"
        )));
    }
    let Some(report) = report else {
        let message = "this master is alone: there is none to hand over to";
        return Err(Refusal::new(ErrorCode::UnavailableInCurrentMode, message));
    };
    report.hand_over(Some(&*request.member_id).filter(|id| !id.is_empty()))?;
    Ok(proto::HandOverResponse::default())
}

impl CallContext<'_> {
    pub(crate) fn ha_status(
        self,
        _: &proto::HaStatusRequest,
    ) -> Result<proto::HaStatusResponse, Refusal> {
        Ok(answer(self.ha))
    }

    pub(crate) fn hand_over(
        self,
        request: &proto::HandOverRequest,
    ) -> Result<proto::HandOverResponse, Refusal> {
        pass_on(self.ha, request)
    }
}

/// Appends what a standby answers to a call of this family; `None` for others.
pub(crate) fn answer_standby(
    report: &dyn HaReport,
    method: Method,
    payload: &[u8],
    out: &mut BytesMut,
) -> Option<Result<(), Refusal>> {
    let report = Some(report);
    Some(match method {
        Method::HaStatus => exchange(payload, out, |_: &proto::HaStatusRequest| Ok(answer(report))),
        Method::HandOver => exchange(payload, out, |request| pass_on(report, request)),
        _ => return None,
    })
}
