//! Calls of those who contribute memory.

use bytes::BytesMut;
use mc_types::{ErrorCode, SegmentId};

use super::Turn;
use crate::error::Refusal;
use crate::reply;
use crate::request::{self, PingRequest, SegmentName};

impl Turn<'_> {
    pub(super) fn mount_segment(self, out: &mut BytesMut) -> Result<(), Refusal> {
        let (client, spec) = request::parse_mount(self.payload)?;
        self.master.mount_segment(self.now, client, spec)?;
        reply::write_mounted(out, self.signer);
        Ok(())
    }

    pub(super) fn remount_segment(self, out: &mut BytesMut) -> Result<(), Refusal> {
        let (client, spec) = request::parse_mount(self.payload)?;
        self.master.reattach_segment(self.now, client, &spec)?;
        reply::write_mounted(out, self.signer);
        Ok(())
    }

    pub(super) fn unmount_segment(self, _: &mut BytesMut) -> Result<(), Refusal> {
        let (client, segment) = request::parse_unmount(self.payload)?;
        let id = self.segment_id(&segment)?;
        Ok(self.master.unmount_segment(self.now, client, id)?)
    }

    pub(super) fn graceful_unmount_segment(self, _: &mut BytesMut) -> Result<(), Refusal> {
        let (client, segment, grace) = request::parse_graceful_unmount(self.payload)?;
        let id = self.segment_id(&segment)?;
        Ok(self.master.graceful_unmount_segment(self.now, client, id, grace)?)
    }

    fn segment_id(self, segment: &SegmentName<'_>) -> Result<SegmentId, Refusal> {
        match segment {
            SegmentName::Id(id) => Ok(*id),
            SegmentName::Name(name) => {
                let segments = self.master.report().segments;
                let named = segments.iter().find(|segment| *segment.spec.name == **name);
                named.map(|segment| segment.spec.id).ok_or_else(|| {
                    Refusal::new(
                        ErrorCode::SegmentNotFound,
                        format!("no segment named {name:?} is mounted"),
                    )
                })
            }
        }
    }

    pub(super) fn batch_query_ip(self, out: &mut BytesMut) -> Result<(), Refusal> {
        let clients = request::parse_client_ids(self.payload)?;
        reply::write_hosts(out, &self.master.batch_query_ip(&clients));
        Ok(())
    }

    pub(super) fn ping(self, out: &mut BytesMut) -> Result<(), Refusal> {
        let PingRequest { client, is_cut_off, takes_checks, outcomes } =
            PingRequest::parse(self.payload)?;
        for (check, verdict) in outcomes {
            self.master.checked(self.now, client, check, verdict);
        }
        let pong = match is_cut_off {
            true => self.master.ping_cut_off(self.now, client),
            false => self.master.ping(self.now, client),
        };
        let checks = match takes_checks {
            true => self.master.checks_for(self.now, client),
            false => Vec::new(),
        };
        reply::write_pong(out, pong, &checks, self.signer);
        Ok(())
    }
}
