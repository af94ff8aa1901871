//! Segments that clients contribute, and the heartbeat of these clients.

use core::time::Duration;

use bytes::BytesMut;
use mc_meta::SegmentSpec;
use mc_ticket::{ClockEpoch, TicketKey};
use mc_types::{ClientId, Endpoint, ErrorCode, MAX_OTHER_ENDPOINTS, RemoteKey, SegmentId, Time};

use super::{
    BadField, CallContext, MAX_BATCH, at_most, calls, client_id, endpoint, id, medium, message,
    millis, optional_id, reply, segment_name,
};
use crate::answer::{ClockReading, Pong, read_done, read_pong};
use crate::proto::{self, IpAddressList};
use crate::refusal::Refusal;
use crate::reply::write_pong;
use crate::request::{Heartbeat, PingRequest, write_heartbeat, write_ping};

calls! {
    /// Contributes a segment, and reads the master's clock.
    fn mount_segment(&self, client: ClientId, spec: &SegmentSpec) -> ClockReading {
        MountSegment "Refused with the codes of [`mc_meta::MountError`].",
        message(mount(client, spec)),
        reply(|answer: &proto::MountSegmentResponse| Ok(clock(answer))),
    }

    /// Attaches a segment that was mounted before again, with all that it holds, and reads
    /// the master's clock.
    fn remount_segment(&self, client: ClientId, spec: &SegmentSpec) -> ClockReading {
        ReMountSegment
            "Refused with [`ErrorCode::SegmentNotFound`](mc_types::ErrorCode::SegmentNotFound) \
             unless the master knows exactly this segment of `client`.",
        message(mount(client, spec)),
        reply(|answer: &proto::MountSegmentResponse| Ok(clock(answer))),
    }

    /// Takes a segment back; the replicas in it are gone.
    fn unmount_segment(&self, client: ClientId, id: SegmentId) -> () {
        UnmountSegment "Refused with the codes of [`mc_meta::UnmountError`].",
        message(unmount(client, id, Duration::ZERO)),
        read_done,
    }

    /// Takes no new objects into a segment from now on, and takes it back when `grace` has
    /// passed; until then what it holds can be read, and moved elsewhere. Asking again
    /// changes nothing.
    fn graceful_unmount_segment(&self, client: ClientId, id: SegmentId, grace: Duration) -> () {
        GracefulUnmountSegment "Refused with the codes of [`mc_meta::UnmountError`].",
        message(unmount(client, id, grace)),
        read_done,
    }

    /// Returns the hosts that serve the segments of each of `clients`, in their order:
    /// addresses or names, each once. Clients of which nothing is mounted, or that are away,
    /// are left out.
    fn batch_query_ip(&self, clients: &[ClientId]) -> Vec<(ClientId, Vec<Box<str>>)> {
        BatchQueryIp "Refused with `InvalidParams` beyond [`MAX_BATCH`](crate::MAX_BATCH) clients.",
        message(proto::BatchQueryIpRequest {
            client_ids: clients.iter().map(|client| client.to_bytes().into()).collect(),
        }),
        reply(|answer: &proto::BatchQueryIpResponse| {
            let hosts = clients.iter().filter_map(|&client| {
                let list = answer.client_ip_map.get(&hex(client))?;
                Some((client, list.ip_addresses.iter().map(|host| host.as_str().into()).collect()))
            });
            Ok(hosts.collect())
        }),
    }

    /// Tells the master that `client` lives, and reads the master's clock.
    fn ping(&self, client: ClientId) -> Pong {
        Ping,
        |out: &mut BytesMut| write_ping(out, client),
        read_pong,
    }

    /// [`ping`](Self::ping) of a client that says more of itself than that it lives.
    fn heartbeat(&self, beat: &Heartbeat<'_>) -> Pong {
        Ping,
        |out: &mut BytesMut| write_heartbeat(out, beat),
        read_pong,
    }
}

/// The message of both ways to contribute a segment.
fn mount(client: ClientId, spec: &SegmentSpec) -> proto::MountSegmentRequest {
    proto::MountSegmentRequest {
        buffer: spec.base,
        size: spec.size,
        segment_name: spec.name.to_string(),
        segment_id: spec.id.to_bytes().into(),
        client_id: client.to_bytes().into(),
        endpoint: spec.endpoint.as_str().into(),
        remote_key: spec.remote_key.to_bytes().into(),
        ticket_key: spec.ticket_key.as_ref().map(|key| key.to_bytes().into()).unwrap_or_default(),
        other_endpoints: spec.endpoint.others().iter().map(Endpoint::to_string).collect(),
        medium: spec.medium.number().into(),
    }
}

/// The message of both ways to take a segment back.
fn unmount(
    client: ClientId,
    id: SegmentId,
    grace: Duration,
) -> proto::GracefulUnmountSegmentRequest {
    proto::GracefulUnmountSegmentRequest {
        segment_name: String::new(),
        segment_id: id.to_bytes().into(),
        client_id: client.to_bytes().into(),
        grace_ms: millis(grace),
    }
}

fn clock(answer: &proto::MountSegmentResponse) -> ClockReading {
    let now = Time::from_millis(answer.master_time_ms);
    ClockReading { epoch: ClockEpoch::new(answer.clock_epoch), now }
}

/// A client's id as the keys of a map of clients say it.
fn hex(client: ClientId) -> String {
    format!("{:032x}", client.as_u128())
}

impl CallContext<'_> {
    pub(crate) fn mount_segment(
        self,
        request: &proto::MountSegmentRequest,
    ) -> Result<proto::MountSegmentResponse, Refusal> {
        let (client, spec) = mounted(request)?;
        self.master.mount_segment(self.now, client, spec)?;
        Ok(self.clock())
    }

    pub(crate) fn remount_segment(
        self,
        request: &proto::MountSegmentRequest,
    ) -> Result<proto::MountSegmentResponse, Refusal> {
        let (client, spec) = mounted(request)?;
        self.master.reattach_segment(self.now, client, &spec)?;
        Ok(self.clock())
    }

    fn clock(&self) -> proto::MountSegmentResponse {
        proto::MountSegmentResponse {
            clock_epoch: self.signer.epoch.as_u64(),
            master_time_ms: self.now.as_millis(),
            ..Default::default()
        }
    }

    pub(crate) fn unmount_segment(
        self,
        request: &proto::GracefulUnmountSegmentRequest,
    ) -> Result<(), Refusal> {
        let client = client_id(&request.client_id)?;
        Ok(self.master.unmount_segment(self.now, client, self.segment_id(request)?)?)
    }

    pub(crate) fn graceful_unmount_segment(
        self,
        request: &proto::GracefulUnmountSegmentRequest,
    ) -> Result<(), Refusal> {
        let (client, id) = (client_id(&request.client_id)?, self.segment_id(request)?);
        let grace = Duration::from_millis(request.grace_ms);
        Ok(self.master.graceful_unmount_segment(self.now, client, id, grace)?)
    }

    /// The segment that the request names by its id, or else by its name.
    fn segment_id(
        &self,
        request: &proto::GracefulUnmountSegmentRequest,
    ) -> Result<SegmentId, Refusal> {
        let name = segment_name(&request.segment_name, "segment_name")?;
        let id = optional_id(&request.segment_id, "segment_id", SegmentId::from_bytes)?;
        if let Some(id) = id {
            return Ok(id);
        }
        if name.is_empty() {
            return Err(Refusal::invalid("neither segment_id nor segment_name is given"));
        }
        let segments = self.master.report().segments;
        let named = segments.iter().find(|segment| *segment.spec.name == *name);
        named.map(|segment| segment.spec.id).ok_or_else(|| {
            let message = format!("no segment named {name:?} is mounted");
            Refusal::new(ErrorCode::SegmentNotFound, message)
        })
    }

    pub(crate) fn batch_query_ip(
        self,
        request: &proto::BatchQueryIpRequest,
    ) -> Result<proto::BatchQueryIpResponse, Refusal> {
        let ids = at_most(&request.client_ids, MAX_BATCH, "client_ids")?;
        let clients = ids.iter().map(|bytes| id(bytes, "client_ids", ClientId::from_bytes));
        let clients = clients.collect::<Result<Vec<_>, _>>()?;
        let hosts = self.master.batch_query_ip(&clients).into_iter().map(|(client, hosts)| {
            let ip_addresses = hosts.into_iter().map(String::from).collect();
            (hex(client), IpAddressList { ip_addresses })
        });
        Ok(proto::BatchQueryIpResponse { client_ip_map: hosts.collect(), ..Default::default() })
    }

    pub(crate) fn ping(self, out: &mut BytesMut) -> Result<(), Refusal> {
        let PingRequest { client, beat, takes_checks, outcomes, load } =
            PingRequest::parse(self.payload)?;
        for (check, verdict) in outcomes {
            self.master.checked(self.now, client, check, verdict);
        }
        if let Some(load) = load {
            self.loads.note(self.now, client, load);
        }
        let pong = self.master.beat(self.now, client, beat);
        let checks = match takes_checks {
            true => self.master.checks_for(self.now, client),
            false => Vec::new(),
        };
        write_pong(out, pong, &checks, self.signer);
        Ok(())
    }
}

fn mounted(request: &proto::MountSegmentRequest) -> Result<(ClientId, SegmentSpec), BadField> {
    let others = request.other_endpoints.iter().take(MAX_OTHER_ENDPOINTS);
    let others = others.map(|other| endpoint(other)).collect::<Result<Vec<_>, _>>()?;
    let spec = SegmentSpec {
        id: id(&request.segment_id, "segment_id", SegmentId::from_bytes)?,
        name: segment_name(&request.segment_name, "segment_name")?.into(),
        base: request.buffer,
        size: request.size,
        endpoint: endpoint(&request.endpoint)?.with_others(others),
        remote_key: id(&request.remote_key, "remote_key", RemoteKey::from_bytes)?,
        ticket_key: optional_id(&request.ticket_key, "ticket_key", TicketKey::from_bytes)?,
        medium: medium(request.medium)?,
    };
    Ok((client_id(&request.client_id)?, spec))
}
