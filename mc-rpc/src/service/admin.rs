//! Calls that look at the state.

use bytes::BytesMut;

use super::Turn;
use crate::error::Refusal;
use crate::reply;
use crate::request::{self, ListKeysRequest};

impl Turn<'_> {
    pub(super) fn describe(self, out: &mut BytesMut) -> Result<(), Refusal> {
        let key = self.scoped(request::parse_key(self.payload)?)?;
        reply::write_object_info(out, &self.master.describe(self.now, key.as_ref())?);
        Ok(())
    }

    pub(super) fn explain(self, out: &mut BytesMut) -> Result<(), Refusal> {
        let key = self.scoped(request::parse_key(self.payload)?)?;
        reply::write_explanation(out, &self.master.explain(self.now, key.as_ref()));
        Ok(())
    }

    pub(super) fn list_keys(self, out: &mut BytesMut) -> Result<(), Refusal> {
        let ListKeysRequest { prefix, cursor, limit } = ListKeysRequest::parse(self.payload)?;
        let page = self.master.list_tenant_keys(self.tenant, prefix, cursor, limit);
        reply::write_key_page(out, &page);
        Ok(())
    }

    pub(super) fn cluster_report(self, out: &mut BytesMut) -> Result<(), Refusal> {
        reply::write_report(out, &self.master.report());
        Ok(())
    }
}
