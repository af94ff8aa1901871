//! Files of weights.
//!
//! [`bin`]: Mooncake's `projector.bin`. [`container`]: safetensors that describe themselves.
//! [`reader`]: projectors from named tensors.

pub(crate) mod bin;
pub(crate) mod container;
pub(crate) mod reader;

use std::fs::File;
use std::io::{BufReader, Read as _, Seek as _};
use std::path::Path;

use crate::convert::Projector;
use crate::error::WeightsError;
use bin::read_projector_bin;
use container::{Identity, read_projector};

/// Reads a file of weights of either format: ours if it begins as safetensors do, `projector.bin`
/// otherwise, which does not say which models it is for.
///
/// # Errors
/// [`WeightsError`]: it cannot be read, or is not such a file.
pub fn read_weights(path: &Path) -> Result<(Projector, Option<Identity>), WeightsError> {
    let mut file = File::open(path)?;
    let len = file.metadata()?.len();
    let mut start = [0; 9];
    let begins_with_json = file.read_exact(&mut start).is_ok() && start[8] == b'{';
    // The length of the JSON. In a `projector.bin` the number of layers is there, and the source's
    // dimension as its upper half, which is not zero.
    let header_len = u64::from_le_bytes(*start.first_chunk().expect("nine bytes have eight"));
    file.rewind()?;
    if begins_with_json && u32::try_from(header_len).is_ok() {
        let mut bytes = Vec::new();
        file.take(len).read_to_end(&mut bytes)?;
        let (projector, identity) = read_projector(&bytes)?;
        return Ok((projector, Some(identity)));
    }
    Ok((read_projector_bin(BufReader::new(file), len)?.into(), None))
}
