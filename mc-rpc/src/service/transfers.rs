//! Calls of those who copy and move replicas.

use bytes::BytesMut;
use mc_meta::{LateWrites, Master, ScopedKey, TransferFinishError, TransferHandle, TransferKind};
use mc_types::{ClientId, KeyRef, Time};

use super::Turn;
use crate::error::Refusal;
use crate::reply;
use crate::request::{TransferFinishRequest, TransferStartRequest};

/// One of the master's two ways to end a copy or a move.
type End =
    fn(&Master, Time, ClientId, KeyRef<'_>, TransferHandle) -> Result<(), TransferFinishError>;

/// One of its two ways to give one up.
type Revoke = fn(
    &Master,
    Time,
    ClientId,
    KeyRef<'_>,
    TransferHandle,
    LateWrites,
) -> Result<(), TransferFinishError>;

impl Turn<'_> {
    pub(super) fn copy_start(self, out: &mut BytesMut) -> Result<(), Refusal> {
        let start = TransferStartRequest::parse(self.payload, TransferKind::Copy)?;
        let (key, source) = (self.scoped_of(&start.object)?, start.source);
        let (now, client, key) = (self.now, start.client, ScopedKey::as_ref(&key));
        let grant = self.master.copy_start(now, client, key, source, &start.targets)?;
        reply::write_transfer(out, &grant, self.signer);
        Ok(())
    }

    pub(super) fn move_start(self, out: &mut BytesMut) -> Result<(), Refusal> {
        let start = TransferStartRequest::parse(self.payload, TransferKind::Move)?;
        let (key, source, target) = (self.scoped_of(&start.object)?, start.source, start.target()?);
        let (now, client, key) = (self.now, start.client, ScopedKey::as_ref(&key));
        let grant = self.master.move_start(now, client, key, source, target)?;
        reply::write_transfer(out, &grant, self.signer);
        Ok(())
    }

    pub(super) fn copy_end(self) -> Result<(), Refusal> {
        self.end_transfer(Master::copy_end)
    }

    pub(super) fn copy_revoke(self) -> Result<(), Refusal> {
        self.revoke_transfer(Master::copy_revoke)
    }

    pub(super) fn move_end(self) -> Result<(), Refusal> {
        self.end_transfer(Master::move_end)
    }

    pub(super) fn move_revoke(self) -> Result<(), Refusal> {
        self.revoke_transfer(Master::move_revoke)
    }

    fn end_transfer(self, end: End) -> Result<(), Refusal> {
        let TransferFinishRequest { client, object, handle, .. } =
            TransferFinishRequest::parse(self.payload)?;
        let key = self.scoped_of(&object)?;
        Ok(end(self.master, self.now, client, key.as_ref(), handle)?)
    }

    fn revoke_transfer(self, revoke: Revoke) -> Result<(), Refusal> {
        let TransferFinishRequest { client, object, handle, late } =
            TransferFinishRequest::parse(self.payload)?;
        let key = self.scoped_of(&object)?;
        Ok(revoke(self.master, self.now, client, key.as_ref(), handle, late)?)
    }
}
