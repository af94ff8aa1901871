//! Projectors from named tensors, wherever those come from.

use crate::dtype::are_finite;
use crate::error::WeightsError;
use crate::fuser::{Block, Fuser, LayerMap, Module};
use crate::matrix::{Linear, Matrix};
use crate::shape::Part;
use crate::simplified::{Network, Simplified};

/// Limit on the layers of a model.
pub const MAX_LAYERS: usize = 1024;
/// Limit on the elements of a row.
pub const MAX_DIM: usize = 65_536;
/// Limit on the blocks of one branch.
const MAX_BLOCKS: usize = 64;

/// Tensors by the names that they have in a container, such as `layers.0.key.in.weight`.
pub(crate) trait TensorSource {
    /// A failure of the source, or what is wrong with a tensor.
    type Error: From<WeightsError>;

    /// Returns whether there is such a tensor.
    fn has(&self, name: &str) -> Result<bool, Self::Error>;

    /// A tensor's shape and its elements in order.
    fn read(&self, name: &str) -> Result<(Vec<usize>, Vec<f32>), Self::Error>;

    /// The tensor's name for errors.
    fn describe(&self, name: &str) -> String;
}

/// Builds projectors from the tensors of a source.
pub(crate) struct Reader<S> {
    pub(crate) tensors: S,
}

impl<S: TensorSource> Reader<S> {
    /// A projector of the first `layers` layers.
    pub(crate) fn simplified(&self, layers: usize) -> Result<Simplified, S::Error> {
        let network = |layer: usize, part: Part, dims: Option<[usize; 3]>| {
            let name = |tensor: &str| format!("layers.{layer}.{part}.{tensor}");
            let (hidden, source) = match dims {
                Some([source, hidden, _]) => (Some(hidden), Some(source)),
                None => (None, None),
            };
            let input = self.linear(&name("in"), hidden, source)?;
            let hidden = input.matrix.outputs();
            Ok::<_, S::Error>(Network {
                gate_logit: self.scalar(&name("gate_logit"))?,
                hidden: self.linear(&name("mlp1"), Some(hidden), Some(hidden))?,
                output: self.linear(&name("proj_out"), dims.map(|dims| dims[2]), Some(hidden))?,
                input,
            })
        };
        let first = network(0, Part::Key, None)?;
        let dims = Some([
            first.input.matrix.inputs(),
            first.input.matrix.outputs(),
            first.output.matrix.outputs(),
        ]);
        let layers = (0..layers)
            .map(|layer| Ok([network(layer, Part::Key, dims)?, network(layer, Part::Value, dims)?]))
            .collect::<Result<_, S::Error>>()?;
        Ok(Simplified { layers })
    }

    /// A projector of as many modules as the map names, for a target model with so many KV heads.
    pub(crate) fn fuser(&self, map: Vec<LayerMap>, heads: usize) -> Result<Fuser, S::Error> {
        let modules = map.iter().map(|map| map.module).max().map_or(0, |last| last + 1);
        let mut dims = None;
        let modules: Vec<[Module; 2]> = (0..modules)
            .map(|number| {
                let key = self.module(number, Part::Key, heads, dims)?;
                let of_this = Some([
                    key.input.matrix.inputs(),
                    key.input.matrix.outputs(),
                    key.output.matrix.outputs(),
                ]);
                let value = self.module(number, Part::Value, heads, of_this)?;
                dims = dims.or(of_this);
                Ok([key, value])
            })
            .collect::<Result<_, S::Error>>()?;
        let [both, _, target_dim] = dims.unwrap_or_default();
        let has_source = both > target_dim && target_dim.is_multiple_of(heads);
        if !has_source {
            return Err(self.wrong_shape(
                "layers.0.key.in.weight",
                vec![both],
                vec![target_dim + 1],
            ));
        }
        Ok(Fuser { modules, map, source_dim: both - target_dim, target_heads: heads })
    }

    /// The dimensions are those of the input, between, and of the output.
    fn module(
        &self,
        number: usize,
        part: Part,
        heads: usize,
        dims: Option<[usize; 3]>,
    ) -> Result<Module, S::Error> {
        let name = |tensor: &str| format!("layers.{number}.{part}.{tensor}");
        let input = self.linear(&name("in"), dims.map(|dims| dims[1]), dims.map(|dims| dims[0]))?;
        let hidden = input.matrix.outputs();
        Ok(Module {
            shared: self.blocks(&name("mlp1"), hidden)?,
            projection: self.blocks(&name("proj_mlp2"), hidden)?,
            output: self.linear(&name("proj_out"), dims.map(|dims| dims[2]), Some(hidden))?,
            scalar: self.blocks(&name("scalar_mlp2"), hidden)?,
            head: self.linear(&name("scalar_head"), Some(heads), Some(hidden))?,
            gate_logit: self.scalar(&name("gate_logit"))?,
            input,
        })
    }

    /// The blocks of a branch, as many as there are.
    fn blocks(&self, branch: &str, hidden: usize) -> Result<Vec<Block>, S::Error> {
        let name = |number: usize, tensor: &str| format!("{branch}.{number}.{tensor}.weight");
        let mut blocks = Vec::new();
        for number in 0..MAX_BLOCKS {
            if !self.tensors.has(&name(number, "norm"))? {
                break;
            }
            let w1 = self.matrix(&name(number, "w1"), None, Some(hidden))?;
            let w2 = self.matrix(&name(number, "w2"), Some(hidden), Some(w1.outputs()))?;
            let norm = self.vector(&name(number, "norm"), hidden)?;
            blocks.push(Block { norm, w1, w2 });
        }
        Ok(blocks)
    }

    fn linear(
        &self,
        name: &str,
        outputs: Option<usize>,
        inputs: Option<usize>,
    ) -> Result<Linear, S::Error> {
        let matrix = self.matrix(&format!("{name}.weight"), outputs, inputs)?;
        let bias = self.vector(&format!("{name}.bias"), matrix.outputs())?;
        Ok(Linear { matrix, bias })
    }

    fn matrix(
        &self,
        name: &str,
        outputs: Option<usize>,
        inputs: Option<usize>,
    ) -> Result<Matrix, S::Error> {
        let (shape, weights) = self.weights(name)?;
        let fits = |given: usize, expected: Option<usize>| {
            (1..=MAX_DIM).contains(&given) && expected.is_none_or(|expected| given == expected)
        };
        match shape[..] {
            [rows, columns] if fits(rows, outputs) && fits(columns, inputs) => {
                Ok(Matrix::transposed(&weights, columns))
            }
            _ => {
                let expected = vec![outputs.unwrap_or(MAX_DIM), inputs.unwrap_or(MAX_DIM)];
                Err(self.wrong_shape(name, shape, expected))
            }
        }
    }

    fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>, S::Error> {
        let (shape, weights) = self.weights(name)?;
        if shape == [len] {
            return Ok(weights);
        }
        Err(self.wrong_shape(name, shape, vec![len]))
    }

    fn scalar(&self, name: &str) -> Result<f32, S::Error> {
        let (shape, weights) = self.weights(name)?;
        match weights[..] {
            [scalar] => Ok(scalar),
            _ => Err(self.wrong_shape(name, shape, Vec::new())),
        }
    }

    fn weights(&self, name: &str) -> Result<(Vec<usize>, Vec<f32>), S::Error> {
        let (shape, weights) = self.tensors.read(name)?;
        if are_finite(&weights) {
            return Ok((shape, weights));
        }
        Err(WeightsError::NotFinite { tensor: self.tensors.describe(name) }.into())
    }

    fn wrong_shape(&self, name: &str, shape: Vec<usize>, expected: Vec<usize>) -> S::Error {
        WeightsError::Shape { tensor: self.tensors.describe(name), shape, expected }.into()
    }
}
