//! Weights as matrices, and their products.

use core::ops::Range;

use gemm_common::Parallelism;
use gemm_f32::gemm::f32::get_gemm_fn;

/// Sets `out` to `rows` × `weights`, both row by row, with `width` elements in a row of `weights` and of
/// `out`: the product that conversions consist of, on one thread. Their speed is measured against it.
///
/// # Panics
/// When the sizes do not fit, or one is 0.
pub fn multiply(rows: &[f32], weights: &[f32], width: usize, out: &mut [f32]) {
    product(false, rows, weights, width, out);
}

/// Sets `out` to the product, or adds the product to it.
fn product(add: bool, rows: &[f32], weights: &[f32], width: usize, out: &mut [f32]) {
    let (count, depth) = (out.len() / width, weights.len() / width);
    assert_eq!(weights.len(), depth * width, "whole rows of the weights");
    assert_eq!(out.len(), count * width, "whole rows of the output");
    assert_eq!(rows.len(), count * depth, "as many rows as the output has");
    let stride = |elements: usize| isize::try_from(elements).expect("a slice is no longer");
    let multiply = get_gemm_fn();
    // It wants columns: the transposes, the other way round.
    // SAFETY: the pointers are to `count × width`, `count × depth` and `depth × width` elements that
    // lie row by row, as asserted, and that the borrows keep alive; `out` overlaps none of the
    // others, because it is borrowed mutably. The function is one that this CPU has the instructions for.
    unsafe {
        multiply(
            width,
            count,
            depth,
            out.as_mut_ptr(),
            stride(width),
            1,
            add,
            weights.as_ptr(),
            stride(width),
            1,
            rows.as_ptr(),
            stride(depth),
            1,
            1.0,
            1.0,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}

/// A matrix of weights, `[inputs][outputs]` row by row. Files with `[outputs][inputs]` are transposed
/// when they are read: a product with few tokens takes half the time then.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Matrix {
    weights: Vec<f32>,
    outputs: usize,
}

impl Matrix {
    /// A matrix of these weights, input after input.
    ///
    /// # Panics
    /// When the number of weights is no multiple of `outputs`, which is not 0.
    pub(crate) fn new(weights: Vec<f32>, outputs: usize) -> Self {
        assert!(weights.len().is_multiple_of(outputs), "whole rows of {outputs}");
        Self { weights, outputs }
    }

    /// A matrix of the weights of its transpose.
    pub(crate) fn transposed(weights: &[f32], inputs: usize) -> Self {
        let outputs = weights.len() / inputs;
        let mut own = vec![0.0; weights.len()];
        for (output, row) in weights.chunks_exact(inputs).enumerate() {
            for (input, weight) in row.iter().enumerate() {
                own[input * outputs + output] = *weight;
            }
        }
        Self::new(own, outputs)
    }

    pub(crate) fn inputs(&self) -> usize {
        self.weights.len() / self.outputs
    }

    pub(crate) const fn outputs(&self) -> usize {
        self.outputs
    }

    /// Input after input.
    pub(crate) fn weights(&self) -> &[f32] {
        &self.weights
    }

    /// Adds `rows` × the weights of these inputs to `out`. `rows` has one row of `inputs.len()`
    /// elements for each row of `out`.
    ///
    /// # Panics
    /// When the sizes do not fit.
    pub(crate) fn add_product(&self, inputs: Range<usize>, rows: &[f32], out: &mut [f32]) {
        let weights = &self.weights[inputs.start * self.outputs..inputs.end * self.outputs];
        product(true, rows, weights, self.outputs, out);
    }
}

/// A matrix and what is added to each row of a product.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Linear {
    pub(crate) matrix: Matrix,
    pub(crate) bias: Vec<f32>,
}

impl Linear {
    /// `out` = `rows` × the matrix + bias.
    pub(crate) fn apply(&self, rows: &[f32], out: &mut [f32]) {
        self.fill_bias(out);
        self.matrix.add_product(0..self.matrix.inputs(), rows, out);
    }

    /// `out` = `first` and `second`, side by side, × the matrix + bias.
    pub(crate) fn apply_to_both(&self, first: &[f32], second: &[f32], out: &mut [f32]) {
        self.fill_bias(out);
        let count = out.len() / self.matrix.outputs;
        let split = first.len() / count;
        self.matrix.add_product(0..split, first, out);
        self.matrix.add_product(split..self.matrix.inputs(), second, out);
    }

    fn fill_bias(&self, out: &mut [f32]) {
        for row in out.chunks_exact_mut(self.bias.len()) {
            row.copy_from_slice(&self.bias);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_those_of_the_definition() {
        let matrix = Matrix::new((0u8..12).map(f32::from).collect(), 4);
        assert_eq!((matrix.inputs(), matrix.outputs()), (3, 4));
        let linear = Linear { matrix, bias: vec![1.0, 0.0, 0.0, -1.0] };
        let rows = [1.0, 2.0, 3.0, 0.0, -1.0, 0.5];
        let mut out = [f32::NAN; 8];
        linear.apply(&rows, &mut out);
        assert_eq!(out, [33.0, 38.0, 44.0, 49.0, 1.0, -0.5, -1.0, -2.5]);
        let mut both = [f32::NAN; 8];
        linear.apply_to_both(&[1.0, 0.0], &[2.0, 3.0, -1.0, 0.5], &mut both);
        assert_eq!(both, out);
    }

    #[test]
    fn a_transpose_has_its_weights_in_the_other_order() {
        let matrix = Matrix::transposed(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 3);
        assert_eq!(matrix.weights(), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
        assert_eq!((matrix.inputs(), matrix.outputs()), (3, 2));
    }
}
