//! Errors.

use std::io;

use thiserror::Error;

use crate::dtype::Dtype;

/// A conversion fails; no output is to be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum ConvertError {
    /// The object is empty or has no whole number of tokens.
    #[error(
        "an object of {len} bytes is not a whole number of tokens of {token_bytes} bytes; check the \
         model's layers, heads and element type"
    )]
    Length {
        len: usize,
        /// Bytes of a token in all layers.
        token_bytes: usize,
    },
    /// Two objects have different numbers of tokens.
    #[error(
        "the source has {source_tokens} tokens and the target {target_tokens}; give the same tokens of both"
    )]
    Tokens {
        /// Tokens of the source model's object.
        source_tokens: usize,
        /// Tokens of the target model's object.
        target_tokens: usize,
    },
    /// The output's buffer has another length than the result.
    #[error("the output takes {expected} bytes, and the buffer has {len}")]
    Output { expected: usize, len: usize },
    /// The projector was trained for rows of another width.
    #[error(
        "the {side} model has rows of {given} elements, and the projector {expected}; take the projector of this pair"
    )]
    Dim {
        /// Source or target.
        side: &'static str,
        /// The dimension of the format.
        given: usize,
        /// The dimension of the weights.
        expected: usize,
    },
    /// The projector needs layers that a model does not have.
    #[error(
        "the projector needs {expected} layers of the {side} model, which has {given}; take the projector of this pair"
    )]
    Layers {
        /// Source or target.
        side: &'static str,
        /// The layers of the format.
        given: usize,
        /// The number of layers that the weights are for.
        expected: usize,
    },
    /// The full projector needs what the target model computed for the same tokens.
    #[error("this projector needs the target model's own object of the same tokens; give it")]
    NeedsTarget,
    /// The simplified projector does not use the target model's object.
    #[error("this projector does not use the target model's object; leave it out")]
    NoTarget,
    /// An input has an infinite or undefined element.
    #[error("the {side} object has an infinite or undefined element in layer {layer}")]
    NotFinite {
        /// Source or target.
        side: &'static str,
        layer: usize,
    },
    /// A result is too large for the output's type.
    #[error("a result in layer {layer} does not fit {dtype}; take a type with a larger range")]
    Overflow { layer: usize, dtype: Dtype },
}

/// A file of weights cannot be used.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum WeightsError {
    /// The file cannot be read or written.
    #[error("the weights cannot be read or written")]
    Io(#[from] io::Error),
    /// A number in the header is out of range.
    #[error("{name} is {value}, and 1 to {max} are possible; this is not a file of weights")]
    Header { name: &'static str, value: i64, max: usize },
    /// The file has another length than its header says.
    #[error("the file has {len} bytes, and its header says {expected}; get it again")]
    Length {
        len: u64,
        /// The length by the header.
        expected: u64,
    },
    /// A weight is infinite or not a number.
    #[error("{tensor} has an infinite or undefined weight; get the file again")]
    NotFinite { tensor: String },
    /// The container is malformed.
    #[error("the file is no container of safetensors")]
    Container(#[from] safetensors::SafeTensorError),
    /// A property is missing or wrong.
    #[error("the property {name} is {value:?}, and {expected} is needed")]
    Metadata {
        name: &'static str,
        /// Its value; empty when it is missing.
        value: String,
        expected: &'static str,
    },
    /// A tensor is missing.
    #[error("the tensor {tensor} is missing")]
    Missing { tensor: String },
    /// A tensor has another shape than its neighbours need.
    #[error("the tensor {tensor} has the shape {shape:?}, and {expected:?} is needed")]
    Shape {
        tensor: String,
        shape: Vec<usize>,
        /// The shape that fits.
        expected: Vec<usize>,
    },
    /// A tensor has a type that weights do not have.
    #[error("the tensor {tensor} has elements of type {dtype}; convert it to fp32, bf16 or fp16")]
    TensorType { tensor: String, dtype: String },
    /// A layer is mapped to one that there is not.
    #[error("the layer map has {target}→{source_layer}, beyond the models' layers; check the map")]
    Map {
        /// The target model's layer.
        target: usize,
        /// The source model's layer.
        source_layer: usize,
    },
}
