//! Mooncake's simplification of C2C: one small network for each layer and part, of the source alone.

use crate::math::{gelu_tanh, sigmoid};
use crate::matrix::Linear;
use crate::shape::Part;

/// A simplified projector: for each of its layers, keys and values, two hidden layers, an output and
/// a gate. It has no use for the target model's own cache, and its text quality is lower than that
/// of the trained [`Fuser`](crate::Fuser) whose weights it has a part of.
///
/// Its layers belong to the last layers of the source model.
#[derive(Clone, Debug, PartialEq)]
pub struct Simplified {
    pub(crate) layers: Vec<[Network; 2]>,
}

/// The network of one layer and part.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Network {
    pub(crate) gate_logit: f32,
    pub(crate) input: Linear,
    pub(crate) hidden: Linear,
    pub(crate) output: Linear,
}

impl Simplified {
    /// The number of its layers, which is the target model's.
    #[must_use]
    pub fn layers(&self) -> usize {
        self.layers.len()
    }

    /// Elements of a row of the source model.
    #[must_use]
    pub fn source_dim(&self) -> usize {
        self.layers[0][0].input.matrix.inputs()
    }

    /// Elements of a row of the target model.
    #[must_use]
    pub fn target_dim(&self) -> usize {
        self.layers[0][0].output.matrix.outputs()
    }

    /// Elements between the matrices.
    #[must_use]
    pub fn hidden_dim(&self) -> usize {
        self.layers[0][0].hidden.matrix.outputs()
    }

    pub(crate) fn network(&self, layer: usize, part: Part) -> &Network {
        &self.layers[layer][part as usize]
    }
}

impl Network {
    /// Converts rows of the source. `a` and `b` have the hidden dimension for each row.
    pub(crate) fn run(&self, source: &[f32], a: &mut [f32], b: &mut [f32], out: &mut [f32]) {
        self.input.apply(source, a);
        gelu_tanh(a);
        self.hidden.apply(a, b);
        gelu_tanh(b);
        self.output.apply(b, out);
        let gate = sigmoid(self.gate_logit);
        for value in out {
            *value *= gate;
        }
    }
}
