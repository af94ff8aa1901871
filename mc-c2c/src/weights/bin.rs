//! `projector.bin`, the format of Mooncake's converter: a header of four numbers, then the weights of
//! each layer; little-endian, without a name or a checksum.

use std::io::{self, Read, Write};

use super::reader::{MAX_DIM, MAX_LAYERS};
use crate::dtype::are_finite;
use crate::error::WeightsError;
use crate::matrix::{Linear, Matrix};
use crate::shape::Part;
use crate::simplified::{Network, Simplified};

const HEADER: u64 = 16;

/// Weights that are read or written at once.
const CHUNK: usize = 1024;

#[derive(Clone, Copy)]
struct Dims {
    layers: usize,
    source: usize,
    target: usize,
    hidden: usize,
}

impl Dims {
    /// The length of a file, which is below 2⁶³ with dimensions in range.
    const fn file_len(self) -> u64 {
        let Self { layers, source, target, hidden } = self;
        let (s, t, h) = (source as u64, target as u64, hidden as u64);
        let part = s * h + h + h * h + h + h * t + t;
        HEADER + layers as u64 * (8 + 2 * 4 * part)
    }
}

/// Reads a `projector.bin` of `len` bytes. Nothing is allocated before the header agrees with the
/// length.
///
/// # Errors
/// [`WeightsError`]: a number of the header is out of range, the length is not exactly that of the
/// header, a weight is not finite, or reading fails.
pub fn read_projector_bin(mut reader: impl Read, len: u64) -> Result<Simplified, WeightsError> {
    if len < HEADER {
        return Err(WeightsError::Length { len, expected: HEADER });
    }
    let mut number = |name, max| {
        let mut bytes = [0; 4];
        reader.read_exact(&mut bytes)?;
        let value = i32::from_le_bytes(bytes);
        match usize::try_from(value) {
            Ok(number) if (1..=max).contains(&number) => Ok(number),
            _ => Err(WeightsError::Header { name, value: value.into(), max }),
        }
    };
    let layers = number("num_layers", MAX_LAYERS)?;
    let source = number("src_dim", MAX_DIM)?;
    let target = number("tgt_dim", MAX_DIM)?;
    let hidden = number("hidden_dim", MAX_DIM)?;
    let dims = Dims { layers, source, target, hidden };
    if dims.file_len() != len {
        return Err(WeightsError::Length { len, expected: dims.file_len() });
    }
    let layers =
        (0..layers).map(|layer| read_layer(&mut reader, layer, dims)).collect::<Result<_, _>>()?;
    Ok(Simplified { layers })
}

fn read_layer(
    reader: &mut impl Read,
    layer: usize,
    dims: Dims,
) -> Result<[Network; 2], WeightsError> {
    let Dims { source, target, hidden, .. } = dims;
    let mut read = |name: &str, count: usize| {
        let tensor = || format!("layer {layer} {name}");
        read_weights(reader, count)?.ok_or_else(|| WeightsError::NotFinite { tensor: tensor() })
    };
    let gates = read("gates", 2)?;
    let mut network = |part: Part, gate_logit| {
        let mut linear = |name, inputs: usize, outputs: usize| {
            let matrix =
                Matrix::new(read(&format!("{part}_{name}_weight"), inputs * outputs)?, outputs);
            let bias = read(&format!("{part}_{name}_bias"), outputs)?;
            Ok::<_, WeightsError>(Linear { matrix, bias })
        };
        Ok::<_, WeightsError>(Network {
            gate_logit,
            input: linear("in", source, hidden)?,
            hidden: linear("mlp1", hidden, hidden)?,
            output: linear("proj", hidden, target)?,
        })
    };
    Ok([network(Part::Key, gates[0])?, network(Part::Value, gates[1])?])
}

/// `None` when one is not finite.
fn read_weights(reader: &mut impl Read, count: usize) -> io::Result<Option<Vec<f32>>> {
    let mut weights = Vec::with_capacity(count);
    let mut bytes = [0; 4 * CHUNK];
    while weights.len() < count {
        let chunk = &mut bytes[..4 * (count - weights.len()).min(CHUNK)];
        reader.read_exact(chunk)?;
        weights.extend(chunk.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)));
    }
    Ok(are_finite(&weights).then_some(weights))
}

/// Writes a `projector.bin`.
///
/// # Errors
/// Writing fails.
pub fn write_projector_bin(projector: &Simplified, mut writer: impl Write) -> io::Result<()> {
    let dims = [
        projector.layers(),
        projector.source_dim(),
        projector.target_dim(),
        projector.hidden_dim(),
    ];
    for dim in dims {
        let dim = i32::try_from(dim).map_err(io::Error::other)?;
        writer.write_all(&dim.to_le_bytes())?;
    }
    for layer in &projector.layers {
        write_weights(&mut writer, &[layer[0].gate_logit, layer[1].gate_logit])?;
        for network in layer {
            for Linear { matrix, bias } in [&network.input, &network.hidden, &network.output] {
                write_weights(&mut writer, matrix.weights())?;
                write_weights(&mut writer, bias)?;
            }
        }
    }
    writer.flush()
}

fn write_weights(writer: &mut impl Write, weights: &[f32]) -> io::Result<()> {
    for chunk in weights.chunks(CHUNK) {
        let bytes: Vec<u8> = chunk.iter().flat_map(|weight| weight.to_le_bytes()).collect();
        writer.write_all(&bytes)?;
    }
    Ok(())
}
