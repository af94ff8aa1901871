//! Protection of objects: leases of reads that take longer than one lasts, and pins.

use core::time::Duration;

use bytes::BytesMut;
use mc_types::{Generation, KeyRef};

use super::{CallContext, calls, key, message, millis, reply as read};
use crate::proto;
use crate::refusal::Refusal;
use crate::reply::{self, PlacedReply};
use crate::request::{BatchRenewRequest, parse_renew};

calls! {
    /// Keeps an object in preference to others for `ttl` from now on, or for as long as the master's settings
    /// say: as if its put had asked for a soft pin just now. It counts as a use of the object.
    fn pin(&self, key: KeyRef<'_>, ttl: Option<Duration>) -> () {
        PinObject
            "Refused with the codes of [`mc_meta::PinError`], and with `NotSupported` by masters that do not \
             know the call.",
        message(proto::PinObjectRequest {
            key: key.as_str().into(),
            soft_pin_ttl_ms: ttl.map(millis),
            unpin: false,
        }),
        read(|_: &proto::PinObjectResponse| Ok(())),
    }

    /// Takes the pins from an object, those that keep it for ever too.
    fn unpin(&self, key: KeyRef<'_>) -> () {
        PinObject "As [`pin`](Self::pin).",
        message(proto::PinObjectRequest {
            key: key.as_str().into(),
            soft_pin_ttl_ms: None,
            unpin: true,
        }),
        read(|_: &proto::PinObjectResponse| Ok(())),
    }
}

impl CallContext<'_> {
    pub(crate) fn pin_object(
        self,
        request: &proto::PinObjectRequest,
    ) -> Result<proto::PinObjectResponse, Refusal> {
        let key = self.scoped(key(&request.key, "key")?)?;
        match (request.unpin, request.soft_pin_ttl_ms) {
            (true, Some(_)) => {
                return Err(Refusal::invalid(
                    "a pin that is taken has no soft_pin_ttl_ms".to_owned(),
                ));
            }
            (true, None) => self.master.unpin(self.now, key.as_ref())?,
            (false, ttl) => {
                self.master.pin(self.now, key.as_ref(), ttl.map(Duration::from_millis))?;
            }
        }
        Ok(proto::PinObjectResponse::default())
    }

    pub(crate) fn renew_lease(self, out: &mut BytesMut) -> Result<(), Refusal> {
        let (key, generation) = parse_renew(self.payload)?;
        reply::write_renewal(out, &self.renew(key, generation)?, self.signer);
        Ok(())
    }

    pub(crate) fn batch_renew_lease(self, out: &mut BytesMut) -> Result<(), Refusal> {
        let batch = BatchRenewRequest::parse(self.payload)?;
        let (reads, max_reply) = (batch.reads.len(), self.max_reply);
        let mut reply = PlacedReply::new(out, [3, 2], reads, max_reply, self.signer)?;
        batch.for_each(|read| {
            match read.and_then(|(key, generation)| self.renew(key, generation)) {
                Ok(renewed) => reply.renewed(&renewed),
                Err(refusal) => reply.refused(&refusal),
            }
        });
        Ok(())
    }

    fn renew(self, key: KeyRef<'_>, generation: Generation) -> Result<mc_meta::Renewed, Refusal> {
        let key = self.scoped(key)?;
        Ok(self.reading().renew_lease(key.as_ref(), generation)?)
    }
}
