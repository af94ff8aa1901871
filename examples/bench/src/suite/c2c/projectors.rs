//! Weights that no model was trained for. How long a conversion takes does not depend on them.

use mc_c2c::{Part, Projector, WeightsError, read_projector, read_projector_bin};
use safetensors::tensor::{Dtype, TensorView};

use crate::error::BenchError;

const HEADS: usize = 8;

fn wrong(error: impl Into<WeightsError>) -> BenchError {
    BenchError::wrong("making weights", error.into().to_string())
}

/// A `projector.bin`.
pub(super) fn bin(layers: usize, dim: usize) -> Vec<u8> {
    let header = [layers, dim, dim, dim].map(|number| (number as i32).to_le_bytes());
    let weights = layers * (2 + 2 * 3 * (dim * dim + dim));
    let mut file = header.concat();
    file.extend((0..weights).flat_map(|number| weight(number).to_le_bytes()));
    file
}

pub(super) fn simplified(layers: usize, dim: usize) -> Result<Projector, BenchError> {
    let file = bin(layers, dim);
    Ok(read_projector_bin(&file[..], file.len() as u64).map_err(wrong)?.into())
}

/// With the blocks that C2C's published projectors have.
pub(super) fn full(layers: usize, dim: usize) -> Result<Projector, BenchError> {
    let bytes = |count: usize| -> Vec<u8> {
        (0..count).flat_map(|number| weight(number).to_le_bytes()).collect()
    };
    let (wide, square, line, heads) =
        (bytes(2 * dim * dim), bytes(dim * dim), bytes(dim), bytes(HEADS * dim));
    let open = 1f32.to_le_bytes();
    let mut tensors = Vec::new();
    let mut add = |name: String, shape: Vec<usize>, bytes| {
        TensorView::new(Dtype::F32, shape, bytes).map(|view| tensors.push((name, view)))
    };
    let mut module = |layer: usize, part: Part| {
        let name = |tensor: &str| format!("layers.{layer}.{part}.{tensor}");
        add(name("in.weight"), vec![dim, 2 * dim], &wide)?;
        add(name("in.bias"), vec![dim], &line)?;
        for branch in ["mlp1", "proj_mlp2", "scalar_mlp2"] {
            add(name(&format!("{branch}.0.norm.weight")), vec![dim], &line)?;
            add(name(&format!("{branch}.0.w1.weight")), vec![dim, dim], &square)?;
            add(name(&format!("{branch}.0.w2.weight")), vec![dim, dim], &square)?;
        }
        add(name("proj_out.weight"), vec![dim, dim], &square)?;
        add(name("proj_out.bias"), vec![dim], &line)?;
        add(name("scalar_head.weight"), vec![HEADS, dim], &heads)?;
        add(name("scalar_head.bias"), vec![HEADS], &line[..4 * HEADS])?;
        add(name("gate_logit"), Vec::new(), &open)
    };
    let all = (0..layers).flat_map(|layer| Part::ALL.map(|part| (layer, part)));
    let map: Vec<_> = (0..layers).map(|layer| format!("{layer}:{layer}:{layer}")).collect();
    let properties = [
        ("format", "kv-projector"),
        ("version", "1"),
        ("variant", "c2c"),
        ("activation", "gelu_erf"),
        ("gate", "hard"),
        ("source_layers", &layers.to_string()),
        ("target_layers", &layers.to_string()),
        ("source_kv_heads", &HEADS.to_string()),
        ("target_kv_heads", &HEADS.to_string()),
        ("layer_map", &map.join(",")),
    ];
    let properties = properties.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    for (layer, part) in all {
        module(layer, part).map_err(wrong)?;
    }
    let file = safetensors::serialize(tensors, Some(properties));
    Ok(read_projector(&file.map_err(wrong)?).map_err(wrong)?.0)
}

/// Small weights of both signs.
fn weight(number: usize) -> f32 {
    ((number % 37) as f32 - 18.0) / 600.0
}
