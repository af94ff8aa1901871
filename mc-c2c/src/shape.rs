//! The shapes of objects.

use core::fmt;

use serde::Deserialize;

use crate::dtype::Dtype;
use crate::error::ConvertError;

/// Keys or values: each is an object of its own, with weights of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// The keys, as the model caches them: after the rotary embedding.
    Key,
    /// The values.
    Value,
}

impl Part {
    /// Both, in the order of their weights.
    pub const ALL: [Self; 2] = [Self::Key, Self::Value];

    /// Its name in weight files.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Key => "key",
            Self::Value => "value",
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The order of an object's rows. A row is one token in one layer: all heads, one after the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layout {
    /// `[tokens][layers][dim]`: all layers of a token together.
    #[default]
    PageFirst,
    /// `[layers][tokens][dim]`: all tokens of a layer together.
    LayerFirst,
}

/// The shape of a model's KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ModelShape {
    /// Number of layers.
    pub layers: usize,
    /// KV heads of a layer.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
}

impl ModelShape {
    /// Returns the format of its objects in this type and order.
    #[must_use]
    pub const fn format(&self, dtype: Dtype, layout: Layout) -> KvFormat {
        KvFormat { layers: self.layers, dim: self.kv_heads * self.head_dim, dtype, layout }
    }
}

/// The format of an object's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvFormat {
    /// Layers of the model.
    pub layers: usize,
    /// Elements of a row: KV heads × head dimension.
    pub dim: usize,
    /// The type of the elements.
    pub dtype: Dtype,
    /// The order of the rows.
    pub layout: Layout,
}

impl KvFormat {
    /// A page-first format of bf16.
    #[must_use]
    pub const fn bf16(layers: usize, dim: usize) -> Self {
        Self { layers, dim, dtype: Dtype::Bf16, layout: Layout::PageFirst }
    }

    /// Bytes of a row.
    pub(crate) const fn row(&self) -> usize {
        self.dim * self.dtype.size()
    }

    /// Bytes of all layers of one token.
    #[must_use]
    pub const fn token_bytes(&self) -> usize {
        self.layers * self.row()
    }

    /// Bytes of an object of this many tokens; `None` when they do not fit in memory.
    #[must_use]
    pub const fn bytes(&self, tokens: usize) -> Option<usize> {
        tokens.checked_mul(self.token_bytes())
    }

    /// Returns how many tokens an object of this length has.
    ///
    /// # Errors
    /// [`ConvertError::Length`] when it is empty or not a whole number of tokens.
    pub const fn tokens(&self, len: usize) -> Result<usize, ConvertError> {
        let token_bytes = self.token_bytes();
        if token_bytes == 0 || len == 0 || !len.is_multiple_of(token_bytes) {
            return Err(ConvertError::Length { len, token_bytes });
        }
        Ok(len / token_bytes)
    }

    /// Where the row of a token in a layer begins, in an object of `tokens`.
    pub(crate) const fn offset(&self, tokens: usize, token: usize, layer: usize) -> usize {
        let row = match self.layout {
            Layout::PageFirst => token * self.layers + layer,
            Layout::LayerFirst => layer * tokens + token,
        };
        row * self.row()
    }
}
