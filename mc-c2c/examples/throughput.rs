//! How much of the speed of plain matrix products a conversion has: one thread, one part.
//!
//! ```sh
//! cargo run --release -p mc-c2c --example throughput -- [TOKENS] [LAYERS] [DIM]
//! ```

use std::error::Error;
use std::time::{Duration, Instant};

use gemm::Parallelism;
use mc_c2c::{Converter, KvFormat, Part, Projector, read_projector, read_projector_bin};
use safetensors::tensor::{Dtype, TensorView};

const ROUNDS: usize = 3;

fn main() -> Result<(), Box<dyn Error>> {
    let mut numbers = std::env::args().skip(1).map(|argument| argument.parse::<usize>());
    let mut number = |default: usize| numbers.next().unwrap_or(Ok(default));
    let (tokens, layers, dim) = (number(512)?, number(28)?, number(1024)?);
    let format = KvFormat::bf16(layers, dim);
    let object = vec![0x3c; format.bytes(tokens).ok_or("too many tokens")?];
    for (name, projector, products) in [
        ("simplified", simplified(layers, dim)?, 3),
        // in (twice as wide), three blocks of two, out; the heads are little.
        ("full", full(layers, dim)?, 9),
    ] {
        let own = matches!(projector, Projector::Full(_)).then_some(&object[..]);
        let converter = Converter::new(projector, format, format)?;
        let mut out = vec![0; object.len()];
        let (mut ours, mut plain) = (Duration::MAX, Duration::MAX);
        for _ in 0..ROUNDS {
            let begin = Instant::now();
            converter.convert(Part::Key, &object, own, &mut out)?;
            ours = ours.min(begin.elapsed());
            plain = plain.min(multiply(tokens, dim, layers * products));
        }
        let flop = 2.0 * (tokens * dim * dim * layers * products) as f64;
        println!(
            "{name}: {:.1} GFLOP/s, plain products {:.1}, ratio {:.3}",
            flop / ours.as_secs_f64() / 1e9,
            flop / plain.as_secs_f64() / 1e9,
            plain.as_secs_f64() / ours.as_secs_f64(),
        );
    }
    Ok(())
}

/// The time for so many plain products by weights that are not in the cache.
fn multiply(tokens: usize, dim: usize, products: usize) -> Duration {
    let (rows, mut out) = (vec![0.5f32; tokens * dim], vec![0f32; tokens * dim]);
    let weights = vec![0.01f32; dim * dim * products];
    let stride = dim as isize;
    let begin = Instant::now();
    for weights in weights.chunks(dim * dim) {
        // SAFETY: three matrices of `tokens × dim`, `tokens × dim` and `dim × dim` elements, row by
        // row; the output is borrowed mutably and overlaps none.
        unsafe {
            gemm::gemm(
                tokens,
                dim,
                dim,
                out.as_mut_ptr(),
                1,
                stride,
                false,
                rows.as_ptr(),
                1,
                stride,
                weights.as_ptr(),
                1,
                stride,
                0.0,
                1.0,
                false,
                false,
                false,
                Parallelism::None,
            );
        }
    }
    std::hint::black_box(&out);
    begin.elapsed()
}

fn simplified(layers: usize, dim: usize) -> Result<Projector, Box<dyn Error>> {
    let numbers = [layers, dim, dim, dim];
    let mut file: Vec<u8> =
        numbers.iter().flat_map(|number| (*number as i32).to_le_bytes()).collect();
    let weights = layers * (2 + 2 * 3 * (dim * dim + dim));
    file.extend((0..weights).flat_map(|number| weight(number).to_le_bytes()));
    Ok(read_projector_bin(&file[..], file.len() as u64)?.into())
}

fn full(layers: usize, dim: usize) -> Result<Projector, Box<dyn Error>> {
    let bytes = |count: usize| -> Vec<u8> {
        (0..count).flat_map(|number| weight(number).to_le_bytes()).collect()
    };
    let (wide, square, line, heads) =
        (bytes(2 * dim * dim), bytes(dim * dim), bytes(dim), bytes(8 * dim));
    let open = 1f32.to_le_bytes();
    let mut tensors = Vec::new();
    let mut add = |name: String, shape: Vec<usize>, bytes| {
        TensorView::new(Dtype::F32, shape, bytes).map(|view| tensors.push((name, view)))
    };
    for layer in 0..layers {
        for part in Part::ALL {
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
            add(name("scalar_head.weight"), vec![8, dim], &heads)?;
            add(name("scalar_head.bias"), vec![8], &line[..32])?;
            add(name("gate_logit"), Vec::new(), &open)?;
        }
    }
    let map: Vec<_> = (0..layers).map(|layer| format!("{layer}:{layer}:{layer}")).collect();
    let properties = [
        ("format", "kv-projector"),
        ("version", "1"),
        ("variant", "c2c"),
        ("activation", "gelu_erf"),
        ("gate", "hard"),
        ("source_layers", &layers.to_string()),
        ("target_layers", &layers.to_string()),
        ("source_kv_heads", "8"),
        ("target_kv_heads", "8"),
        ("layer_map", &map.join(",")),
    ];
    let properties = properties.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    Ok(read_projector(&safetensors::serialize(tensors, Some(properties))?)?.0)
}

/// Small weights of both signs.
fn weight(number: usize) -> f32 {
    ((number % 37) as f32 - 18.0) / 600.0
}
