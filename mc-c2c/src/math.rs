//! Functions of elements and rows. Those of whole buffers run with the processor's widest vectors.

use pulp::Arch;

/// Runs `body`, which must be inlined, with the vectors that this processor has.
macro_rules! vectorized {
    ($body:expr) => {
        Arch::new().dispatch(
            #[inline(always)]
            || $body,
        )
    };
}

/// GELU by a rational approximation of tanh: the activation of simplified projectors, whose results
/// equal Mooncake's to the last bit only with this one.
pub(crate) fn gelu_tanh(values: &mut [f32]) {
    vectorized!({
        for value in &mut *values {
            let v = *value;
            let x = (0.797_884_6 * (v + 0.044_715 * v * v * v)).clamp(-3.0, 3.0);
            let square = x * x;
            let tanh = x * (27.0 + square) / (27.0 + 9.0 * square);
            *value = 0.5 * v * (1.0 + tanh);
        }
    });
}

/// GELU by the error function, as PyTorch's default.
pub(crate) fn gelu_erf(values: &mut [f32]) {
    vectorized!({
        for value in &mut *values {
            *value = 0.5 * *value * (1.0 + erf(*value * core::f32::consts::FRAC_1_SQRT_2));
        }
    });
}

/// The error function, wrong by at most 5e-7. A rational approximation without exponential, which
/// vectorizes; its coefficients are those that XLA and Eigen use.
#[inline(always)]
fn erf(x: f32) -> f32 {
    const ABOVE: [f32; 7] = [
        -2.726_142_3e-10,
        2.770_681_4e-8,
        -2.101_024e-6,
        -5.692_506_4e-5,
        -7.349_906_3e-4,
        -2.954_6e-3,
        -1.609_603_3e-2,
    ];
    const BELOW: [f32; 5] =
        [-1.456_607_2e-5, -2.133_740_6e-4, -1.682_827e-3, -7.373_329_2e-3, -1.426_473_9e-2];
    // In `f32` it is 1 from here on.
    if x.abs() >= 4.0 {
        return 1.0f32.copysign(x);
    }
    let square = x * x;
    let polynomial =
        |coefficients: &[f32]| coefficients.iter().fold(0.0, |sum, c| sum * square + c);
    x * polynomial(&ABOVE) / polynomial(&BELOW)
}

/// The logistic function.
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + libm::expf(-x))
}

/// Divides each row by its root mean square and multiplies it by `weights`.
pub(crate) fn rms_norm(rows: &[f32], weights: &[f32], out: &mut [f32]) {
    const EPSILON: f32 = 1e-6;
    let width = weights.len();
    vectorized!({
        for (row, out) in rows.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
            // Sixteen sums at once: a single one would be added in order.
            let (chunks, rest) = row.as_chunks::<16>();
            let mut sums = [0.0f32; 16];
            for chunk in chunks {
                for (sum, value) in sums.iter_mut().zip(chunk) {
                    *sum += value * value;
                }
            }
            let sum = sums.iter().sum::<f32>() + rest.iter().map(|v| v * v).sum::<f32>();
            let scale = 1.0 / (sum / width as f32 + EPSILON).sqrt();
            for ((out, value), weight) in out.iter_mut().zip(row).zip(weights) {
                *out = value * scale * weight;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_function_is_close_enough_everywhere() {
        for step in 0..=60_000u16 {
            for x in [f32::from(step) / 1e4, -f32::from(step) / 1e4] {
                let wrong = (f64::from(erf(x)) - libm::erf(f64::from(x))).abs();
                assert!(wrong < 5e-7, "{x}: {wrong}");
            }
        }
    }

    #[test]
    fn activations_keep_their_limits() {
        for gelu in [gelu_tanh, gelu_erf] {
            let mut values = [0.0, 1e4, -1e4, 1.0, -1.0];
            gelu(&mut values);
            assert_eq!((values[0], values[1]), (0.0, 1e4));
            assert_eq!(values[2], 0.0);
            assert!(
                (values[3] - 0.8413).abs() < 0.02 && (values[4] + 0.1587).abs() < 0.02,
                "{values:?}"
            );
        }
        assert_eq!(sigmoid(0.0), 0.5);
        assert_eq!((sigmoid(-1e4), sigmoid(1e4)), (0.0, 1.0));
    }

    #[test]
    fn a_normed_row_has_mean_square_one() {
        let row: Vec<f32> = (0u8..37).map(|n| f32::from(n) - 9.0).collect();
        let mut out = vec![0.0; 37];
        rms_norm(&row, &[2.0; 37], &mut out);
        let mean = out.iter().map(|v| v * v).sum::<f32>() / 37.0;
        assert!((mean - 4.0).abs() < 1e-4, "{mean}");
    }
}
