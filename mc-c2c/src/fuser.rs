//! The trained projector of C2C (thu-nics/C2C): source and target caches into a new target cache.

use crate::math::{gelu_erf, rms_norm, sigmoid};
use crate::matrix::{Linear, Matrix};
use crate::shape::Part;

/// A full C2C projector: one module for each mapped layer of the target model, from the source's
/// and the target's rows of the same token to the target's new row. Layers of the target that are
/// not mapped stay as they are.
#[derive(Clone, Debug, PartialEq)]
pub struct Fuser {
    pub(crate) modules: Vec<[Module; 2]>,
    pub(crate) map: Vec<LayerMap>,
    pub(crate) source_dim: usize,
    pub(crate) target_heads: usize,
}

/// The layers that a module of a [`Fuser`] connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LayerMap {
    /// The target model's layer, which gets the result.
    pub target: usize,
    /// The source model's layer.
    pub source: usize,
    /// The module.
    pub module: usize,
}

/// The weights of one part of a module.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Module {
    /// Source and target, side by side.
    pub(crate) input: Linear,
    pub(crate) shared: Vec<Block>,
    pub(crate) projection: Vec<Block>,
    pub(crate) output: Linear,
    pub(crate) scalar: Vec<Block>,
    /// A weight for each head.
    pub(crate) head: Linear,
    pub(crate) gate_logit: f32,
}

/// A residual block: `x + w2 · GELU(w1 · norm(x))`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Block {
    pub(crate) norm: Vec<f32>,
    pub(crate) w1: Matrix,
    pub(crate) w2: Matrix,
}

impl Fuser {
    /// The layers that it connects.
    #[must_use]
    pub fn map(&self) -> &[LayerMap] {
        &self.map
    }

    /// Elements of a row of the source model.
    #[must_use]
    pub const fn source_dim(&self) -> usize {
        self.source_dim
    }

    /// Elements of a row of the target model.
    #[must_use]
    pub fn target_dim(&self) -> usize {
        self.modules[0][0].output.matrix.outputs()
    }

    /// Elements of the rows between the first and the last matrix.
    #[must_use]
    pub fn hidden_dim(&self) -> usize {
        self.modules[0][0].output.matrix.inputs()
    }

    /// The largest number of elements inside a block.
    pub(crate) fn widest_block(&self) -> usize {
        let blocks = |module: &Module| {
            let all = module.shared.iter().chain(&module.projection).chain(&module.scalar);
            all.map(|block| block.w1.outputs()).max().unwrap_or(1)
        };
        self.modules.iter().flatten().map(blocks).max().unwrap_or(1)
    }

    pub(crate) fn module(&self, map: LayerMap, part: Part) -> &Module {
        &self.modules[map.module][part as usize]
    }
}

/// Buffers for some rows, which a thread uses again and again.
pub(crate) struct Scratch<'a> {
    /// The hidden dimension for each row.
    pub(crate) shared: &'a mut [f32],
    /// The same.
    pub(crate) own: &'a mut [f32],
    /// The same.
    pub(crate) normed: &'a mut [f32],
    /// The widest block for each row.
    pub(crate) inner: &'a mut [f32],
    /// The target's heads for each row.
    pub(crate) heads: &'a mut [f32],
}

impl Module {
    /// Returns whether the gate is open: otherwise the target's rows stay.
    pub(crate) fn is_open(&self) -> bool {
        self.gate_logit > 0.0
    }

    /// Converts rows into `out`.
    pub(crate) fn run(
        &self,
        source: &[f32],
        target: &[f32],
        scratch: Scratch<'_>,
        out: &mut [f32],
    ) {
        let Scratch { shared, own, normed, inner, heads } = scratch;
        self.input.apply_to_both(source, target, shared);
        self.shared.iter().for_each(|block| block.run(shared, normed, inner));
        own.copy_from_slice(shared);
        self.projection.iter().for_each(|block| block.run(own, normed, inner));
        self.output.apply(own, out);
        // The other branch may overwrite what both began with.
        self.scalar.iter().for_each(|block| block.run(shared, normed, inner));
        self.head.apply(shared, heads);
        let head_dim = out.len() / heads.len();
        for ((out, target), head) in
            out.chunks_exact_mut(head_dim).zip(target.chunks_exact(head_dim)).zip(heads)
        {
            let weight = sigmoid(*head);
            for (out, target) in out.iter_mut().zip(target) {
                *out = target + weight * *out;
            }
        }
    }
}

impl Block {
    fn run(&self, rows: &mut [f32], normed: &mut [f32], inner: &mut [f32]) {
        let count = rows.len() / self.norm.len();
        let inner = &mut inner[..count * self.w1.outputs()];
        rms_norm(rows, &self.norm, normed);
        inner.fill(0.0);
        self.w1.add_product(0..self.w1.inputs(), normed, inner);
        gelu_erf(inner);
        self.w2.add_product(0..self.w2.inputs(), inner, rows);
    }
}
