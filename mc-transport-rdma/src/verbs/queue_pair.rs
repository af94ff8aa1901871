//! Queue pairs of the reliable connected service.

use std::mem;
use std::ptr::NonNull;
use std::sync::Arc;

use mc_transport::backend::nonce;
use rdma_sys::{
    ibv_access_flags, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask as mask, ibv_qp_init_attr,
    ibv_qp_state, ibv_qp_type,
};

use super::{CompletionQueue, Marks, Path, VerbsError};

/// How long a peer's queue pair may be unready, by the code of the specification: 0.64 ms. Peers
/// post no receives, since all operations are one-sided, so this is never used.
const RECEIVER_NOT_READY: u8 = 12;

/// When a request that is not acknowledged counts as failed.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Timing {
    /// The time until a packet is sent again, by the code of the specification: 4.096 µs times two
    /// to this power.
    pub(in super::super) timeout: u8,
    /// How often it is sent again. At most 6: software devices take 7 for "for ever".
    pub(in super::super) retries: u8,
}

/// A queue pair. Dropping it destroys it: from then on neither it nor its peer's requests touch
/// memory through it.
pub(in super::super) struct QueuePair {
    pair: NonNull<ibv_qp>,
    completions: Arc<CompletionQueue>,
    max_inline: usize,
}

// SAFETY: as for `Device`.
unsafe impl Send for QueuePair {}
// SAFETY: as for `Device`.
unsafe impl Sync for QueuePair {}

impl QueuePair {
    /// A queue pair for `depth` requests of at most `pieces` pieces of memory, which reports to
    /// `completions`. It carries nothing before it was [connected](Self::connect).
    ///
    /// # Errors
    /// [`VerbsError::Failed`], when the device has no room for another, too.
    pub(in super::super) fn new(
        completions: &Arc<CompletionQueue>,
        depth: u32,
        pieces: u32,
        inline: u32,
    ) -> Result<Self, VerbsError> {
        let device = &completions.device;
        let mut last = None;
        // Devices that send less inline say so by refusing.
        let tries = if inline == 0 { 1 } else { 3 };
        for inline in [inline, inline / 2, 0].into_iter().skip(3 - tries) {
            // SAFETY: all zeros are valid for a structure of numbers and pointers.
            let mut wanted: ibv_qp_init_attr = unsafe { mem::zeroed() };
            wanted.send_cq = completions.raw();
            wanted.recv_cq = completions.raw();
            wanted.qp_type = ibv_qp_type::IBV_QPT_RC;
            wanted.cap.max_send_wr = depth;
            wanted.cap.max_recv_wr = 1;
            wanted.cap.max_send_sge = pieces;
            wanted.cap.max_recv_sge = 1;
            wanted.cap.max_inline_data = inline;
            // SAFETY: the domain and the completion queue live as long as the pair, which holds
            // them.
            let pair =
                unsafe { (device.library.ibv_create_qp)(device.domain.as_ptr(), &raw mut wanted) };
            match device.made("ibv_create_qp", pair) {
                Ok(pair) => {
                    return Ok(Self {
                        pair,
                        completions: Arc::clone(completions),
                        max_inline: wanted.cap.max_inline_data as usize,
                    });
                }
                Err(error) => last = Some(error),
            }
        }
        Err(last.expect("the loop runs at least once"))
    }

    /// The number by which peers name it.
    pub(in super::super) fn number(&self) -> u32 {
        // SAFETY: the pair lives, and its number never changes.
        unsafe { (*self.pair.as_ptr()).qp_num }
    }

    /// A random number for the first packet: 24 bits, so that packets of an earlier connection with
    /// the same numbers are unlikely.
    ///
    /// # Errors
    /// [`VerbsError::Failed`] when the system gives no random bytes.
    pub(in super::super) fn random_packet_number(&self) -> Result<u32, VerbsError> {
        let bits = nonce().map_err(|error| self.completions.device.failed("getrandom", error))?;
        Ok(u32::from_le_bytes([bits[0], bits[1], bits[2], 0]))
    }

    /// Bytes that a write may carry inside of its request.
    pub(in super::super) fn max_inline(&self) -> usize {
        self.max_inline
    }

    pub(super) fn raw(&self) -> *mut ibv_qp {
        self.pair.as_ptr()
    }

    pub(super) fn completions(&self) -> &CompletionQueue {
        &self.completions
    }

    /// Connects the pair to the peer's: it serves the peer, and carries requests.
    ///
    /// # Errors
    /// [`VerbsError::Failed`]; the pair is of no use then.
    pub(in super::super) fn connect(
        &self,
        path: &Path,
        marks: &Marks,
        timing: Timing,
    ) -> Result<(), VerbsError> {
        // SAFETY: all zeros are valid for a structure of numbers.
        let mut to: ibv_qp_attr = unsafe { mem::zeroed() };
        to.qp_state = ibv_qp_state::IBV_QPS_INIT;
        to.port_num = path.port;
        to.pkey_index = marks.pkey_index;
        let access = ibv_access_flags::IBV_ACCESS_REMOTE_READ
            | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE
            | ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;
        to.qp_access_flags = access.0;
        let set = mask::IBV_QP_STATE
            | mask::IBV_QP_PKEY_INDEX
            | mask::IBV_QP_PORT
            | mask::IBV_QP_ACCESS_FLAGS;
        self.modify(&mut to, set, "ibv_modify_qp to INIT")?;

        // SAFETY: as above.
        let mut to: ibv_qp_attr = unsafe { mem::zeroed() };
        to.qp_state = ibv_qp_state::IBV_QPS_RTR;
        to.path_mtu = u32::from(path.mtu);
        to.dest_qp_num = path.peer_number;
        to.rq_psn = path.peer_first;
        to.max_dest_rd_atomic = path.reads_in;
        to.min_rnr_timer = RECEIVER_NOT_READY;
        to.ah_attr = path.address(marks);
        let set = mask::IBV_QP_STATE
            | mask::IBV_QP_AV
            | mask::IBV_QP_PATH_MTU
            | mask::IBV_QP_DEST_QPN
            | mask::IBV_QP_RQ_PSN
            | mask::IBV_QP_MAX_DEST_RD_ATOMIC
            | mask::IBV_QP_MIN_RNR_TIMER;
        self.modify(&mut to, set, "ibv_modify_qp to RTR")?;

        // SAFETY: as above.
        let mut to: ibv_qp_attr = unsafe { mem::zeroed() };
        to.qp_state = ibv_qp_state::IBV_QPS_RTS;
        to.timeout = timing.timeout;
        to.retry_cnt = timing.retries.min(6);
        to.rnr_retry = timing.retries.min(6);
        to.sq_psn = path.first;
        to.max_rd_atomic = path.reads_out;
        let set = mask::IBV_QP_STATE
            | mask::IBV_QP_TIMEOUT
            | mask::IBV_QP_RETRY_CNT
            | mask::IBV_QP_RNR_RETRY
            | mask::IBV_QP_SQ_PSN
            | mask::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(&mut to, set, "ibv_modify_qp to RTS")
    }

    fn modify(
        &self,
        to: &mut ibv_qp_attr,
        set: mask,
        call: &'static str,
    ) -> Result<(), VerbsError> {
        let device = &self.completions.device;
        // SAFETY: the pair lives; the call reads the fields that the mask names.
        let done =
            unsafe { (device.library.ibv_modify_qp)(self.pair.as_ptr(), to, set.0.cast_signed()) };
        device.check(call, done)
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        let device = &self.completions.device;
        // SAFETY: this is the pair's only destruction.
        let done = unsafe { (device.library.ibv_destroy_qp)(self.pair.as_ptr()) };
        if done != 0 {
            let error = std::io::Error::from_raw_os_error(done.saturating_abs());
            tracing::error!(device = %device.name(), %error, "a queue pair was not destroyed");
        }
    }
}
