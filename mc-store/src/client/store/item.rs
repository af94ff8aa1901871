//! An object on its way to the peers, and the checksums of its bytes.

use std::sync::{Arc, OnceLock};

use mc_meta::{PutEnd, PutHandle};
use mc_rpc::ReplicaLocation;
use mc_transport::{BootTime, CHECKPOINT, Operation, RemoteSpan, SliceSums, Source, Transferred};
use mc_types::{Checksum, ErrorCode, ObjectKey, StoreEventInfo};
use smallvec::SmallVec;

use crate::client::data::{Holder, Job, Patience};
use crate::client::put::{Put, PutOutcome, checksums_of};
use crate::error::PutError;

/// An object on its way.
pub(super) struct Item {
    pub(super) key: ObjectKey,
    pub(super) slices: Vec<Source>,
    pub(super) lengths: SmallVec<[u64; 1]>,
    pub(super) event_info: Option<Arc<StoreEventInfo>>,
    /// The checksums at the call of those slices whose bytes their owner can change; empty when
    /// there are none.
    at_call: Vec<Option<Checksum>>,
    /// The slices' checksums and prefixes, once they are known.
    sums: Option<Sums>,
    outcome: Arc<OnceLock<Result<PutOutcome, PutError>>>,
    pub(super) placements: u32,
    /// Whether it was refused for lack of space, which the master has counted.
    pub(super) was_refused: bool,
    /// Whether a former master may have begun it, without an answer: no client can end that put. The one
    /// that leads gives it up when it is asked to; until then it keeps the key.
    pub(super) may_be_begun: bool,
}

impl Item {
    /// Takes the checksums of bytes that can change: they are to be stored as they are now.
    ///
    /// # Errors
    /// [`PutError::Key`], [`PutError::EventInfo`].
    pub(super) fn new(put: Put<'_>) -> Result<Self, PutError> {
        put.check_info()?;
        let Put { key, mut slices, checksums, event_info } = put;
        let given = checksums.filter(|given| given.len() == slices.len());
        let mut at_call = given.unwrap_or_else(|| checksums_of(&slices));
        // An object has none; a caller's parts may happen to be empty.
        if slices.iter().any(Source::is_empty) {
            let mut is_empty = slices.iter().map(Source::is_empty);
            at_call.retain(|_| !is_empty.next().unwrap_or_default());
            slices.retain(|slice| !slice.is_empty());
        }
        if at_call.iter().all(Option::is_none) {
            at_call.clear();
        }
        Ok(Self {
            key: ObjectKey::new(key)?,
            lengths: slices.iter().map(|slice| slice.len() as u64).collect(),
            at_call,
            slices,
            event_info,
            sums: None,
            outcome: Arc::default(),
            placements: 0,
            was_refused: false,
            may_be_begun: false,
        })
    }

    /// Whether it has no outcome yet.
    pub(super) fn is_open(&self) -> bool {
        self.outcome.get().is_none()
    }

    /// Whether it is stored.
    #[cfg(feature = "c2c")]
    pub(super) fn is_stored(&self) -> bool {
        matches!(self.outcome.get(), Some(Ok(PutOutcome::Stored)))
    }

    /// Gives it an outcome, unless it has one: its caller may know that already.
    pub(super) fn end(&self, outcome: Result<PutOutcome, PutError>) {
        let _ = self.outcome.set(outcome);
    }

    /// Returns the result that its caller waits for.
    pub(super) fn awaited(&self) -> Awaited {
        Awaited { len: self.lengths.iter().sum(), outcome: Arc::clone(&self.outcome) }
    }

    /// Takes note of the checksums of bytes that were written; `false` when these are not the bytes
    /// of the call.
    pub(super) fn is_written(&mut self, done: Transferred) -> bool {
        let taken = Sums::taken(done);
        let is_unchanged = taken.as_ref().is_none_or(|taken| self.agrees(taken));
        self.sums = self.sums.take().or(taken);
        is_unchanged
    }

    /// Takes the checksums, if they were not taken on the way; `false` when these are not the bytes
    /// of the call.
    pub(super) fn add_up(&mut self) -> bool {
        if self.sums.is_some() {
            return true;
        }
        let sums = Sums::Slices(Arc::new(SliceSums::of(&self.slices)));
        let is_unchanged = self.agrees(&sums);
        self.sums = Some(sums);
        is_unchanged
    }

    fn agrees(&self, sums: &Sums) -> bool {
        let (checksums, _) = sums.as_slices();
        self.at_call.iter().zip(checksums).all(|(at_call, sum)| at_call.is_none_or(|it| it == *sum))
    }

    /// The checksums of the slices, once they are known.
    pub(super) fn checksums(&self) -> Option<&[Checksum]> {
        self.sums.as_ref().map(|sums| sums.as_slices().0)
    }

    /// Whether its only checksum is that of all its bytes.
    fn has_one_sum(&self) -> bool {
        matches!(self.lengths[..], [len] if len <= CHECKPOINT)
    }

    /// Returns the end of the put, which makes the object readable, once it is added up and
    /// written.
    pub(super) fn put_end(&self, handle: PutHandle) -> PutEnd<'_> {
        let sums = self.sums.as_ref().expect("what was written is added up");
        let (checksums, prefixes) = sums.as_slices();
        let event_info = self.event_info.as_deref();
        PutEnd { key: self.key.as_ref(), handle, checksums, prefixes, event_info }
    }

    /// Writes a replica, and reads the bytes until `until` at most. The checksums of the first are
    /// taken on the way; those of each, where the bytes can change.
    pub(super) fn job(&self, nth: usize, replica: &ReplicaLocation, until: BootTime) -> Job {
        let to = RemoteSpan::new(replica.segment.remote_key, replica.extent)
            .with_ticket(replica.ticket)
            .until(until);
        let operation = match self.slices.as_slice() {
            [slice] => Operation::write(slice.clone(), to),
            slices => Operation::write(slices.to_vec(), to),
        };
        let is_summed = !self.at_call.is_empty() || (nth == 0 && self.sums.is_none());
        let operation = match is_summed {
            true if self.has_one_sum() => operation.checksummed(),
            true => operation.checkpointed(),
            false => operation,
        };
        let holder = Holder::Segment(Arc::clone(&replica.segment));
        Job { holder, operation, patience: Patience::Whole }
    }
}

/// The outcome of an item, which another task may be working on.
pub(super) struct Awaited {
    len: u64,
    outcome: Arc<OnceLock<Result<PutOutcome, PutError>>>,
}

impl Awaited {
    /// The outcome; `late`, for good, if there is none yet.
    pub(super) fn take(&self, late: impl FnOnce() -> PutError) -> Result<PutOutcome, PutError> {
        self.outcome.get_or_init(|| Err(late())).clone()
    }

    /// The bytes that were stored, or why none were, for the metrics.
    pub(super) fn tally(&self) -> Result<u64, ErrorCode> {
        match self.outcome.get() {
            Some(Ok(PutOutcome::Stored)) => Ok(self.len),
            Some(Ok(_)) => Ok(0),
            Some(Err(error)) => Err(error.code()),
            None => Err(ErrorCode::Internal),
        }
    }
}

/// Checksums of an object's slices, and their prefixes.
enum Sums {
    /// Of an object with one slice that has no prefixes.
    Whole(Checksum),
    Slices(Arc<SliceSums>),
}

impl Sums {
    /// Those that were taken while the bytes moved, if any.
    fn taken(done: Transferred) -> Option<Self> {
        done.checksum.map(Self::Whole).or(done.slices.map(Self::Slices))
    }

    fn as_slices(&self) -> (&[Checksum], &[Checksum]) {
        match self {
            Self::Whole(checksum) => (std::slice::from_ref(checksum), &[]),
            Self::Slices(sums) => (&sums.checksums, &sums.prefixes),
        }
    }
}
