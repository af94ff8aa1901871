//! Transfers.

use mc_transport::Access;
use pyo3::prelude::*;

use crate::engine::TransferEngine;
use crate::engine::batches::Progress;
use crate::engine::error::{EngineError, code_of, value_or};
use crate::engine::transfer::Pair;
use crate::engine::values::{TransferNotify, TransferOpcode};
use crate::error::OK;
use crate::items::Items;
use crate::store::arguments::Size;

/// The number that an asynchronous transfer returns where it was not submitted.
const NOT_SUBMITTED: u64 = 0;

impl From<TransferOpcode> for Access {
    fn from(opcode: TransferOpcode) -> Self {
        match opcode {
            TransferOpcode::Read => Self::Read,
            TransferOpcode::Write => Self::Write,
        }
    }
}

fn pair(buffer: Size, peer_buffer_address: Size, length: Size) -> Pair {
    Pair { local: buffer.0, remote: peer_buffer_address.0 as u64, len: length.0 }
}

fn one(buffer: Size, peer_buffer_address: Size, length: Size) -> Result<Vec<Pair>, EngineError> {
    Ok(vec![pair(buffer, peer_buffer_address, length)])
}

fn pairs(
    buffers: Items<Size>,
    peer_buffer_addresses: Items<Size>,
    lengths: Items<Size>,
) -> Result<Vec<Pair>, EngineError> {
    let counts = [buffers.len(), peer_buffer_addresses.len(), lengths.len()];
    if counts != [counts[0]; 3] {
        return Err(EngineError::LengthsDiffer { counts: counts.into() });
    }
    let triples = buffers.into_iter().zip(peer_buffer_addresses).zip(lengths);
    Ok(triples.map(|((local, remote), len)| pair(local, remote, len)).collect())
}

/// The numbers of transfers.
fn numbers(batch_ids: Items<Size>) -> Vec<u64> {
    batch_ids.into_iter().map(|id| id.0 as u64).collect()
}

impl TransferEngine {
    fn transfer(
        &self,
        py: Python<'_>,
        session: &str,
        access: Access,
        pairs: Result<Vec<Pair>, EngineError>,
        notify: Option<TransferNotify>,
    ) -> PyResult<i32> {
        let notify = notify.map(Into::into);
        match pairs {
            Ok(pairs) => self.code(py, |engine| engine.transfer(session, access, &pairs, notify)),
            Err(error) => Ok(error.logged()),
        }
    }

    fn submit(
        &self,
        py: Python<'_>,
        session: &str,
        access: Access,
        pairs: Result<Vec<Pair>, EngineError>,
    ) -> PyResult<u64> {
        let submitted = match pairs {
            Ok(pairs) => self.with(py, |engine| engine.submit(session, access, &pairs))?,
            Err(error) => Err(error),
        };
        Ok(value_or(submitted, NOT_SUBMITTED))
    }

    fn progress(&self, id: u64) -> PyResult<Progress> {
        Ok(self.started()?.map_or(Progress::Failed, |engine| engine.progress(id)))
    }
}

/// Defines methods that transfer: `$work` of the engine, the interpreter and the session of the peer.
/// Each has the argument `transport_hint` of Mooncake, which has no effect.
macro_rules! transfers {
    ($(
        $(#[$doc:meta])*
        fn $name:ident(
            $($argument:ident: $type:ident $(<$of:ty>)? $(= $default:tt)?),*
        ) -> $answer:ty = |$engine:ident, $py:ident, $session:ident| $work:expr;
    )*) => {
        #[pymethods]
        #[allow(clippy::too_many_arguments, reason = "Mooncake's")]
        impl TransferEngine {$(
            $(#[$doc])*
            #[pyo3(signature = (target_hostname, $($argument $(= $default)?,)* transport_hint = ""))]
            fn $name(
                &self,
                $py: Python<'_>,
                target_hostname: &str,
                $($argument: $type $(<$of>)?,)*
                transport_hint: &str,
            ) -> PyResult<$answer> {
                let _ = transport_hint;
                let ($engine, $session) = (self, target_hostname);
                $work
            }
        )*}
    };
}

transfers! {
    /// transfer_sync_write(self, target_hostname: str, buffer: int, peer_buffer_address: int, length:
    /// int, transport_hint: str = '') -> int
    ///
    /// Writes the length bytes at buffer to peer_buffer_address of the peer whose session is
    /// target_hostname. The bytes must be registered on both sides. transport_hint has no effect.
    /// Returns 0 when the peer has all bytes, otherwise a negative number: then it may have some.
    fn transfer_sync_write(buffer: Size, peer_buffer_address: Size, length: Size) -> i32 = |engine, py, peer| {
        engine.transfer(py, peer, Access::Write, one(buffer, peer_buffer_address, length), None)
    };

    /// transfer_sync_read(self, target_hostname: str, buffer: int, peer_buffer_address: int, length:
    /// int, transport_hint: str = '') -> int
    ///
    /// As transfer_sync_write, in the other direction. After a failure the content of the bytes at
    /// buffer is unspecified.
    fn transfer_sync_read(buffer: Size, peer_buffer_address: Size, length: Size) -> i32 = |engine, py, peer| {
        engine.transfer(py, peer, Access::Read, one(buffer, peer_buffer_address, length), None)
    };

    /// transfer_sync(self, target_hostname: str, buffer: int, peer_buffer_address: int, length: int,
    /// opcode: TransferOpcode, notify: TransferNotify | None = None, transport_hint: str = '') ->
    /// int
    ///
    /// Writes or reads. Then the peer gets notify, if that is given; when it cannot be delivered,
    /// the call has failed.
    fn transfer_sync(
        buffer: Size, peer_buffer_address: Size, length: Size,
        opcode: TransferOpcode, notify: Option<TransferNotify> = None
    ) -> i32 = |engine, py, peer| {
        engine.transfer(py, peer, opcode.into(), one(buffer, peer_buffer_address, length), notify)
    };

    /// batch_transfer_sync_write(self, target_hostname: str, buffers: list[int],
    /// peer_buffer_addresses: list[int], lengths: list[int], transport_hint: str = '') -> int
    ///
    /// Several writes to one peer. Returns 0 when all have succeeded, otherwise a negative number.
    fn batch_transfer_sync_write(
        buffers: Items<Size>, peer_buffer_addresses: Items<Size>, lengths: Items<Size>
    ) -> i32 = |engine, py, peer| {
        engine.transfer(py, peer, Access::Write, pairs(buffers, peer_buffer_addresses, lengths), None)
    };

    /// batch_transfer_sync_read(self, target_hostname: str, buffers: list[int],
    /// peer_buffer_addresses: list[int], lengths: list[int], transport_hint: str = '') -> int
    ///
    /// Several reads from one peer. Returns 0 when all have succeeded, otherwise a negative number.
    fn batch_transfer_sync_read(
        buffers: Items<Size>, peer_buffer_addresses: Items<Size>, lengths: Items<Size>
    ) -> i32 = |engine, py, peer| {
        engine.transfer(py, peer, Access::Read, pairs(buffers, peer_buffer_addresses, lengths), None)
    };

    /// batch_transfer_sync(self, target_hostname: str, buffers: list[int], peer_buffer_addresses:
    /// list[int], lengths: list[int], opcode: TransferOpcode, notify: TransferNotify | None = None,
    /// transport_hint: str = '') -> int
    ///
    /// Several writes, or reads, as transfer_sync; the peer gets notify after all of them.
    fn batch_transfer_sync(
        buffers: Items<Size>, peer_buffer_addresses: Items<Size>, lengths: Items<Size>,
        opcode: TransferOpcode, notify: Option<TransferNotify> = None
    ) -> i32 = |engine, py, peer| {
        engine.transfer(py, peer, opcode.into(), pairs(buffers, peer_buffer_addresses, lengths), notify)
    };

    /// transfer_submit_write(self, target_hostname: str, buffer: int, peer_buffer_address: int,
    /// length: int, transport_hint: str = '') -> int
    ///
    /// Starts a write and returns its number for transfer_check_status; 0 when it cannot start. The
    /// bytes at buffer must not change before it has ended.
    fn transfer_submit_write(buffer: Size, peer_buffer_address: Size, length: Size) -> u64 = |engine, py, peer| {
        engine.submit(py, peer, Access::Write, one(buffer, peer_buffer_address, length))
    };

    /// batch_transfer_async_write(self, target_hostname: str, buffers: list[int],
    /// peer_buffer_addresses: list[int], lengths: list[int], transport_hint: str = '') -> int
    ///
    /// Starts several writes to one peer and returns their common number; 0 when they cannot start.
    /// The bytes must not change before they have ended. The state of the last 65536 transfers is
    /// kept.
    fn batch_transfer_async_write(
        buffers: Items<Size>, peer_buffer_addresses: Items<Size>, lengths: Items<Size>
    ) -> u64 = |engine, py, peer| {
        engine.submit(py, peer, Access::Write, pairs(buffers, peer_buffer_addresses, lengths))
    };

    /// batch_transfer_async_read(self, target_hostname: str, buffers: list[int],
    /// peer_buffer_addresses: list[int], lengths: list[int], transport_hint: str = '') -> int
    ///
    /// As batch_transfer_async_write, in the other direction.
    fn batch_transfer_async_read(
        buffers: Items<Size>, peer_buffer_addresses: Items<Size>, lengths: Items<Size>
    ) -> u64 = |engine, py, peer| {
        engine.submit(py, peer, Access::Read, pairs(buffers, peer_buffer_addresses, lengths))
    };

    /// batch_transfer_async(self, target_hostname: str, buffers: list[int], peer_buffer_addresses:
    /// list[int], lengths: list[int], opcode: TransferOpcode, transport_hint: str = '') -> int
    ///
    /// As batch_transfer_async_write, in the direction of opcode.
    fn batch_transfer_async(
        buffers: Items<Size>, peer_buffer_addresses: Items<Size>, lengths: Items<Size>,
        opcode: TransferOpcode
    ) -> u64 = |engine, py, peer| {
        engine.submit(py, peer, opcode.into(), pairs(buffers, peer_buffer_addresses, lengths))
    };
}

#[pymethods]
impl TransferEngine {
    /// transfer_check_status(self, batch_id: int) -> int
    ///
    /// Returns 1 when the transfer has succeeded, 0 while it is under way, -1 when it has failed or
    /// is unknown, -2 when it took too long. Does not wait.
    fn transfer_check_status(&self, batch_id: i128) -> PyResult<i32> {
        // A caller may ask for the failure number of a submission.
        Ok(match self.progress(u64::try_from(batch_id).unwrap_or(NOT_SUBMITTED))? {
            Progress::Done => 1,
            Progress::UnderWay => 0,
            Progress::Failed => -1,
            Progress::TimedOut => -2,
        })
    }

    /// get_batch_transfer_status(self, batch_ids: list[int]) -> int
    ///
    /// Waits until the transfers have ended, and forgets them. Returns 0 when all have succeeded,
    /// otherwise -1.
    fn get_batch_transfer_status(&self, py: Python<'_>, batch_ids: Items<Size>) -> PyResult<i32> {
        match self.with(py, |engine| engine.wait_for(&numbers(batch_ids)))? {
            Ok(true) => Ok(OK),
            Ok(false) => Ok(-1),
            Err(error) => Ok(code_of(Err(error))),
        }
    }

    /// batch_transfer_poll(self, batch_ids: list[int]) -> list[int]
    ///
    /// Returns the state of each transfer: 0 when it has succeeded, 1 while it is under way, -1 when
    /// it has failed or is unknown. Does not wait.
    fn batch_transfer_poll(&self, batch_ids: Items<Size>) -> PyResult<Vec<i32>> {
        let state = |id: u64| {
            Ok(match self.progress(id)? {
                Progress::Done => OK,
                Progress::UnderWay => 1,
                Progress::Failed | Progress::TimedOut => -1,
            })
        };
        numbers(batch_ids).into_iter().map(state).collect()
    }

    /// batch_transfer_free(self, batch_ids: list[int]) -> None
    ///
    /// Forgets transfers. Those that have not ended go on.
    fn batch_transfer_free(&self, batch_ids: Items<Size>) -> PyResult<()> {
        if let Some(engine) = self.started()? {
            engine.forget(&numbers(batch_ids));
        }
        Ok(())
    }

    /// batch_transfer_write_on_cuda(self, target_hostname: str, buffers: list[int],
    /// peer_buffer_addresses: list[int], lengths: list[int], stream_ptr: int = 0, transport_hint: str
    /// = '') -> None
    ///
    /// Raises RuntimeError: this engine does not transfer memory of GPUs.
    #[pyo3(signature = (target_hostname, buffers, peer_buffer_addresses, lengths,
        stream_ptr = Size(0), transport_hint = ""))]
    #[pyo3(text_signature = "($self, target_hostname, buffers, peer_buffer_addresses, lengths, \
        stream_ptr=0, transport_hint='')")]
    #[allow(clippy::too_many_arguments, clippy::unused_self, reason = "a method of Mooncake's")]
    fn batch_transfer_write_on_cuda(
        &self,
        target_hostname: &str,
        buffers: Items<Size>,
        peer_buffer_addresses: Items<Size>,
        lengths: Items<Size>,
        stream_ptr: Size,
        transport_hint: &str,
    ) -> PyResult<()> {
        let _ = (target_hostname, buffers, peer_buffer_addresses, lengths, stream_ptr);
        let _ = transport_hint;
        Err(pyo3::exceptions::PyRuntimeError::new_err(
            "this engine does not transfer memory of GPUs; copy it to memory of the host and use \
             batch_transfer_sync_write",
        ))
    }
}
