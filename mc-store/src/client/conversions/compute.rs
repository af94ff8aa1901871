//! The conversion of one object.

use mc_c2c::{ConvertError, Converter, Part};
use mc_transport::{BufferPool, Memory, MemoryError};
use tokio::time::Instant;

use super::Conversions;

impl Conversions {
    /// Converts one object into memory of the pool, or of its own when that has no room.
    pub(in crate::client) fn compute(
        &self,
        converter: &Converter,
        part: Part,
        (source, target): (&[u8], Option<&[u8]>),
        scratch: &mut Vec<u8>,
        pool: &BufferPool,
    ) -> Result<Memory, Failure> {
        let begun = Instant::now();
        scratch.resize(converter.output_len(source.len())?, 0);
        converter.convert(part, source, target, scratch)?;
        let flop =
            converter.tokens(source.len())? as u64 * converter.projector().flop_per_token(part);
        self.counts.computed(flop, begun.elapsed());
        let memory =
            pool.take(scratch.len()).map_or_else(|| Memory::allocate(scratch.len()), Ok)?;
        memory.whole().copy_from(0, scratch).expect("own memory of this length is written");
        Ok(memory)
    }
}

/// Why one object is not converted.
#[derive(Debug)]
pub(in crate::client) enum Failure {
    Convert(ConvertError),
    Memory(MemoryError),
}

impl From<ConvertError> for Failure {
    fn from(error: ConvertError) -> Self {
        Self::Convert(error)
    }
}

impl From<MemoryError> for Failure {
    fn from(error: MemoryError) -> Self {
        Self::Memory(error)
    }
}
