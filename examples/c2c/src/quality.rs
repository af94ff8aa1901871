//! `quality`: how close converted objects come to those of the target model.

use std::error::Error;
use std::path::Path;
use std::thread;

use half::{bf16, f16};
use mc_c2c::{Converter, Dtype, KvFormat, Layout, Part, Projector};
use mc_cli::UsageError;
use serde_json::{Value, json};

use crate::args::Quality;
use crate::error::ToolError;
use crate::{files, text};

pub(crate) fn quality(args: &Quality) -> Result<(), Box<dyn Error>> {
    let (samples, targets, expected) =
        (args.sources.len(), args.targets.len(), args.expected.len());
    if targets != samples || (expected != 0 && expected != samples) {
        return Err(UsageError::new(format!(
            "{samples} --source, {targets} --target and {expected} --expected are no samples; give one \
             target, and one expected object or none, for each source"
        ))
        .into());
    }
    let (projector, identity) = files::load(&args.weights, &args.models)?;
    let [source_dim, _, target_dim] = projector.shape();
    let layers = match (&identity, args.models.source_layers) {
        (Some(identity), _) => (identity.source_layers, identity.target_layers),
        (None, Some(source_layers)) => (source_layers, projector.modules()),
        (None, None) => {
            return Err(UsageError::new(
                "a projector.bin does not say the layers of the source model; add --source_layers",
            )
            .into());
        }
    };
    let (dtype, layout): (Dtype, Layout) = (args.dtype.into(), args.layout.into());
    let source_format = KvFormat { layers: layers.0, dim: source_dim, dtype, layout };
    let target_format = KvFormat { layers: layers.1, dim: target_dim, dtype, layout };
    let needs_target = matches!(projector, Projector::Full(_));
    let part: Part = args.part.into();
    let mut sources = vec![None; layers.1];
    let skipped = layers.0.saturating_sub(layers.1);
    match &projector {
        Projector::Full(fuser) => {
            fuser.map().iter().for_each(|map| sources[map.target] = Some(map.source));
        }
        Projector::Simplified(_) => {
            sources.iter_mut().enumerate().for_each(|(at, source)| *source = Some(skipped + at));
        }
    }
    let threads = thread::available_parallelism()?;
    let converter = Converter::new(projector, source_format, target_format)
        .map_err(|source| ToolError::Convert { path: args.weights.clone(), source })?
        .rounding(args.rounding.into())
        .threads(threads);

    let mut report: Vec<Layer> = sources.into_iter().map(Layer::of_source).collect();
    for (at, source_path) in args.sources.iter().enumerate() {
        let (source, target) = (files::read(source_path)?, files::read(&args.targets[at])?);
        let refused = |source| ToolError::Convert { path: source_path.clone(), source };
        let mut out = vec![0; converter.output_len(source.len()).map_err(refused)?];
        let own = needs_target.then_some(&target[..]);
        converter.convert(part, &source, own, &mut out).map_err(refused)?;
        let expected_path = args.expected.get(at).unwrap_or(&args.targets[at]);
        let expected = match args.expected.get(at) {
            Some(path) => files::read(path)?,
            None => target,
        };
        if expected.len() != out.len() {
            return Err(UsageError::new(format!(
                "{expected_path:?} has {} bytes, and the result {}; give the object of the same tokens",
                expected.len(),
                out.len()
            ))
            .into());
        }
        let rows = |format: KvFormat, object: &[u8], path: &Path| {
            let values = values(format.dtype, object);
            let path = path.to_owned();
            let is_finite = values.iter().all(|value| value.is_finite());
            is_finite.then_some(Rows { format, values }).ok_or(ToolError::NotFinite { path })
        };
        let out = rows(target_format, &out, source_path)?;
        let expected = rows(target_format, &expected, expected_path)?;
        let source = rows(source_format, &source, source_path)?;
        let tokens = expected.tokens();
        for (layer, report) in report.iter_mut().enumerate() {
            for token in 0..tokens {
                let wanted = expected.row(token, layer);
                report.converted.add(out.row(token, layer), wanted);
                if let (Some(from), true) = (report.source, source_dim == target_dim) {
                    report.unconverted.add(source.row(token, from), wanted);
                }
            }
        }
    }
    let shown =
        if args.json { json_of(part, &report).to_string() + "\n" } else { text_of(&report) };
    Ok(text::print(&shown)?)
}

/// The elements of an object.
struct Rows {
    format: KvFormat,
    values: Vec<f32>,
}

impl Rows {
    fn tokens(&self) -> usize {
        self.values.len() / (self.format.layers * self.format.dim)
    }

    fn row(&self, token: usize, layer: usize) -> &[f32] {
        let row = match self.format.layout {
            Layout::PageFirst => token * self.format.layers + layer,
            Layout::LayerFirst => layer * self.tokens() + token,
        };
        &self.values[row * self.format.dim..][..self.format.dim]
    }
}

fn values(dtype: Dtype, object: &[u8]) -> Vec<f32> {
    match dtype {
        Dtype::Bf16 => {
            object.as_chunks().0.iter().map(|bytes| bf16::from_le_bytes(*bytes).to_f32()).collect()
        }
        Dtype::F16 => {
            object.as_chunks().0.iter().map(|bytes| f16::from_le_bytes(*bytes).to_f32()).collect()
        }
        Dtype::F32 => object.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
    }
}

/// A layer of the target model.
struct Layer {
    /// The layer that it is made from, if any.
    source: Option<usize>,
    converted: Closeness,
    /// How close the source's rows are as they are, where they have the same dimension.
    unconverted: Closeness,
}

impl Layer {
    fn of_source(source: Option<usize>) -> Self {
        Self { source, converted: Closeness::default(), unconverted: Closeness::default() }
    }
}

/// How close rows are to others.
#[derive(Default)]
struct Closeness {
    rows: usize,
    cosines: f64,
    least: f64,
    /// Sums of squares: of the differences, and of what should be.
    difference: f64,
    wanted: f64,
}

impl Closeness {
    fn add(&mut self, row: &[f32], wanted: &[f32]) {
        let [mut product, mut square, mut wanted_square, mut difference] = [0.0; 4];
        for (a, b) in row.iter().zip(wanted).map(|(a, b)| (f64::from(*a), f64::from(*b))) {
            product += a * b;
            square += a * a;
            wanted_square += b * b;
            difference += (a - b) * (a - b);
        }
        // Rows of zeros have no direction: they are alike, and unlike all others.
        let cosine = match (square == 0.0, wanted_square == 0.0) {
            (true, true) => 1.0,
            (false, false) => product / (square.sqrt() * wanted_square.sqrt()),
            _ => 0.0,
        };
        self.least = if self.rows == 0 { cosine } else { self.least.min(cosine) };
        self.rows += 1;
        self.cosines += cosine;
        self.difference += difference;
        self.wanted += wanted_square;
    }

    /// Mean and least cosine, and the relative error; `None` without rows.
    fn figures(&self) -> Option<[f64; 3]> {
        // Nothing at all should be there: an error is as large as it is.
        let error = match self.wanted {
            0.0 => self.difference.sqrt(),
            wanted => (self.difference / wanted).sqrt(),
        };
        (self.rows > 0).then(|| [self.cosines / self.rows as f64, self.least, error])
    }
}

fn text_of(report: &[Layer]) -> String {
    let row = |(layer, of): (usize, &Layer)| {
        let cells = |closeness: &Closeness| match closeness.figures() {
            Some(figures) => figures.map(|figure| format!("{figure:.4}")),
            None => [const { String::new() }; 3].map(|_| "–".to_owned()),
        };
        let source = of.source.map_or_else(|| "–".to_owned(), |source| source.to_string());
        let [mean, least, error] = cells(&of.converted);
        let [plain_mean, plain_least, plain_error] = cells(&of.unconverted);
        [layer.to_string(), source, mean, least, error, plain_mean, plain_least, plain_error]
    };
    let rows: Vec<_> = report.iter().enumerate().map(row).collect();
    let heading =
        [">LAYER", ">SOURCE", ">COSINE", ">MIN", ">ERROR", ">UNCONVERTED COSINE", ">MIN", ">ERROR"];
    mc_cli::table(heading, &rows)
}

fn json_of(part: Part, report: &[Layer]) -> Value {
    let figures = |closeness: &Closeness| {
        closeness.figures().map(|[mean, least, error]| {
            json!({ "cosine_mean": mean, "cosine_min": least, "relative_l2": error })
        })
    };
    let layer = |(layer, of): (usize, &Layer)| {
        json!({
            "layer": layer, "source": of.source,
            "converted": figures(&of.converted), "unconverted": figures(&of.unconverted),
        })
    };
    let layers: Vec<_> = report.iter().enumerate().map(layer).collect();
    let tokens = report.first().map_or(0, |layer| layer.converted.rows);
    json!({ "part": part.as_str(), "tokens": tokens, "layers": layers })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closeness_is_that_of_the_definitions() {
        let mut closeness = Closeness::default();
        assert!(closeness.figures().is_none());
        closeness.add(&[2.0, 0.0], &[1.0, 0.0]);
        assert_eq!(closeness.figures(), Some([1.0, 1.0, 1.0]));
        closeness.add(&[0.0, 3.0], &[3.0, 0.0]);
        let [mean, least, error] = closeness.figures().expect("two rows");
        assert_eq!((mean, least), (0.5, 0.0));
        assert!((error - (19f64 / 10.0).sqrt()).abs() < 1e-12);
        let mut zeros = Closeness::default();
        zeros.add(&[0.0], &[0.0]);
        assert_eq!(zeros.figures(), Some([1.0, 1.0, 0.0]));
        zeros.add(&[2.0], &[0.0]);
        assert_eq!(zeros.figures(), Some([0.5, 0.0, 2.0]));
    }
}
