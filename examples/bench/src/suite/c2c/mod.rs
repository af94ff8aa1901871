//! Conversion between models: its speed beside plain matrix products, and what it costs puts.

mod projectors;
mod puts;

use std::io::Write;
use std::time::{Duration, Instant};

use mc_c2c::{Converter, KvFormat, Part, Projector, multiply};

use crate::error::BenchError;
use crate::figure::{Figure, Report};
use crate::scale::Scale;

/// Elements of a row of both models, and between.
const DIM: usize = 1024;

/// Tokens of an object.
const TOKENS: usize = 512;

/// Prints the suite's figures.
pub(crate) fn run<W: Write>(scale: Scale, report: &mut Report<W>) -> Result<(), BenchError> {
    let (layers, rounds) = (scale.pick(28, 28, 1), scale.pick(9, 3, 1));
    let tokens = scale.pick(TOKENS, TOKENS, 16);
    let simplified = projectors::simplified(layers, DIM)?;
    ratio("simplified", simplified, (layers, 3), (tokens, rounds), report)?;
    let full = projectors::full(layers, DIM)?;
    // in (twice as wide), three blocks of two products, out; the heads are little.
    ratio("full", full, (layers, 9), (tokens, rounds), report)?;
    puts::run(scale, report)
}

/// Prints how much of the speed of plain products a conversion on one thread has, from bytes to
/// bytes.
fn ratio<W: Write>(
    variant: &'static str,
    projector: Projector,
    (layers, products): (usize, usize),
    (tokens, rounds): (usize, usize),
    report: &mut Report<W>,
) -> Result<(), BenchError> {
    let format = KvFormat::bf16(layers, DIM);
    let wrong = |error: mc_c2c::ConvertError| BenchError::wrong("converting", error.to_string());
    let object = vec![0x3c; tokens * format.token_bytes()];
    let own = matches!(projector, Projector::Full(_)).then_some(&object[..]);
    let converter = Converter::new(projector, format, format).map_err(wrong)?;
    let mut out = vec![0; object.len()];
    let (mut ours, mut plain, mut ratios) = (Duration::MAX, Duration::MAX, Vec::new());
    for _ in 0..rounds {
        let begin = Instant::now();
        converter.convert(Part::Key, &object, own, &mut out).map_err(wrong)?;
        let took = begin.elapsed();
        let limit = plain_products(tokens, layers * products);
        ratios.push(limit.as_secs_f64() / took.as_secs_f64());
        (ours, plain) = (ours.min(took), plain.min(limit));
    }
    ratios.sort_by(f64::total_cmp);
    let flop = 2.0 * (tokens * DIM * DIM * layers * products) as f64;
    let gflops = |took: Duration| flop / took.as_secs_f64() / 1e9;
    let with = |figure: Figure| {
        let figure = figure.with("tokens", tokens).with("layers", layers).with("dim", DIM);
        figure.with("variant", variant)
    };
    let limit = Figure::new("plain_gflops", gflops(plain), "GFLOP/s");
    report.add(with(limit))?;
    let own = Figure::new("convert_gflops", gflops(ours), "GFLOP/s");
    report.add(with(own).versus("plain products", gflops(plain)))?;
    let name = if variant == "full" { "full_ratio" } else { "simplified_ratio" };
    report.add(with(Figure::new(name, ratios[ratios.len() / 2], "ratio")))
}

/// The time of so many products by weights that are not in the cache.
fn plain_products(tokens: usize, products: usize) -> Duration {
    let (rows, mut out) = (vec![0.5; tokens * DIM], vec![0.0; tokens * DIM]);
    let weights = vec![0.01; DIM * DIM * products];
    let begin = Instant::now();
    for weights in weights.chunks(DIM * DIM) {
        multiply(&rows, weights, DIM, &mut out);
    }
    std::hint::black_box(&out);
    begin.elapsed()
}
