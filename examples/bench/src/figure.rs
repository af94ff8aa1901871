//! The figures that suites measure, and how they are printed.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::{Map, Value};

use crate::error::BenchError;

/// One number, with all that is needed to know what it means.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figure {
    pub(crate) suite: &'static str,
    pub(crate) name: &'static str,
    pub(crate) value: f64,
    pub(crate) unit: &'static str,
    pub(crate) params: Map<String, Value>,
    /// The rival or the limit that was measured in the same run. It has a figure
    /// of its own, so the JSON form does not repeat it.
    #[serde(skip)]
    pub(crate) versus: Option<Versus>,
}

/// The competitor or limit that a figure is compared with.
#[derive(Clone, Debug)]
pub(crate) struct Versus {
    name: &'static str,
    value: f64,
}

impl Figure {
    pub(crate) fn new(name: &'static str, value: f64, unit: &'static str) -> Self {
        Self { suite: "", name, value, unit, params: Map::new(), versus: None }
    }

    /// Adds a parameter under which the figure was measured.
    pub(crate) fn with(mut self, param: &str, value: impl Into<Value>) -> Self {
        self.params.insert(param.to_owned(), value.into());
        self
    }

    /// Shows the figure beside what it is to be judged by.
    pub(crate) fn versus(mut self, name: &'static str, value: f64) -> Self {
        self.versus = Some(Versus { name, value });
        self
    }

    /// [`versus`](Self::versus), where there is something to compare with.
    pub(crate) fn maybe_versus(self, name: &'static str, value: Option<f64>) -> Self {
        match value {
            Some(value) => self.versus(name, value),
            None => self,
        }
    }

    fn columns(&self) -> [String; 5] {
        let params = self.params.iter().map(|(name, value)| match value {
            Value::String(text) => format!("{name}={text}"),
            value => format!("{name}={value}"),
        });
        let versus = self.versus.as_ref().map_or_else(String::new, |versus| {
            let ratio = self.value / versus.value;
            format!("{:.3} x {} ({})", ratio, versus.name, number(versus.value))
        });
        [
            self.name.to_owned(),
            number(self.value),
            self.unit.to_owned(),
            params.collect::<Vec<_>>().join(" "),
            versus,
        ]
    }
}

/// Where figures go: JSON lines at once, or a table when a suite is complete.
pub(crate) struct Report<W> {
    out: W,
    json: bool,
    suite: &'static str,
    rows: Vec<Figure>,
}

impl<W: Write> Report<W> {
    pub(crate) fn new(out: W, json: bool) -> Self {
        Self { out, json, suite: "", rows: Vec::new() }
    }

    /// The figures that follow belong to `suite`.
    pub(crate) fn begin(&mut self, suite: &'static str) {
        self.suite = suite;
    }

    /// Takes one figure.
    ///
    /// # Errors
    /// When the value is no number, which means that nothing was measured, and
    /// when the output is closed.
    pub(crate) fn add(&mut self, mut figure: Figure) -> Result<(), BenchError> {
        if !figure.value.is_finite() {
            return Err(BenchError::NothingMeasured { figure: figure.name });
        }
        figure.suite = self.suite;
        figure.value = rounded(figure.value);
        if self.json {
            let line = serde_json::to_string(&figure).map_err(io::Error::from)?;
            writeln!(self.out, "{line}")?;
            self.out.flush()?;
        } else {
            self.rows.push(figure);
        }
        Ok(())
    }

    /// Prints what the suite measured, as a table.
    pub(crate) fn end(&mut self) -> Result<(), BenchError> {
        let rows: Vec<[String; 5]> = self.rows.drain(..).map(|row| row.columns()).collect();
        if self.json || rows.is_empty() {
            return Ok(());
        }
        let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
        let widths = [0, 1, 2, 3].map(width);
        writeln!(self.out, "{}", self.suite)?;
        for [name, value, unit, params, versus] in &rows {
            let line = format!(
                "  {name:<0$}  {value:>1$}  {unit:<2$}  {params:<3$}  {versus}",
                widths[0], widths[1], widths[2], widths[3],
            );
            writeln!(self.out, "{}", line.trim_end())?;
        }
        self.out.flush()?;
        Ok(())
    }
}

/// Six significant digits: more than any run repeats.
fn rounded(value: f64) -> f64 {
    if value == 0.0 {
        return 0.0;
    }
    let digits = 5 - value.abs().log10().floor() as i32;
    let scale = 10_f64.powi(digits);
    let rounded = (value * scale).round() / scale;
    // A scale beyond the range of a float has nothing left to round.
    if rounded.is_finite() { rounded } else { value }
}

/// A value for the eye: thousands are set apart, and small ones keep their digits.
fn number(value: f64) -> String {
    let magnitude = value.abs();
    if magnitude >= 1000.0 {
        let digits = format!("{magnitude:.0}");
        let mut text = String::new();
        for (at, digit) in digits.chars().enumerate() {
            if at > 0 && (digits.len() - at) % 3 == 0 {
                text.push(' ');
            }
            text.push(digit);
        }
        if value < 0.0 { format!("-{text}") } else { text }
    } else if magnitude >= 10.0 || value == 0.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.4}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(json: bool) -> String {
        let mut out = Vec::new();
        let mut report = Report::new(&mut out, json);
        report.begin("alloc");
        let ours = Figure::new("uniform_ns", 1234.5678, "ns").with("impl", "ours");
        report.add(ours.versus("offset-allocator", 2469.1356)).unwrap();
        report.add(Figure::new("scale_ratio", 1.5, "ratio").with("live", 1000)).unwrap();
        report.end().unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn json_has_five_members_per_line() {
        assert_eq!(
            printed(true),
            "{\"suite\":\"alloc\",\"name\":\"uniform_ns\",\"value\":1234.57,\"unit\":\"ns\",\
             \"params\":{\"impl\":\"ours\"}}\n\
             {\"suite\":\"alloc\",\"name\":\"scale_ratio\",\"value\":1.5,\"unit\":\"ratio\",\
             \"params\":{\"live\":1000}}\n"
        );
    }

    #[test]
    fn the_table_is_aligned_and_shows_ratios() {
        assert_eq!(
            printed(false),
            "alloc\n  \
             uniform_ns    1 235  ns     impl=ours  0.500 x offset-allocator (2 469)\n  \
             scale_ratio  1.5000  ratio  live=1000\n"
        );
    }

    #[test]
    fn what_is_no_number_was_not_measured() {
        let mut report = Report::new(Vec::new(), true);
        assert!(report.add(Figure::new("x", f64::NAN, "ns")).is_err());
        assert!(report.add(Figure::new("x", 1.0 / 0.0, "ns")).is_err());
    }

    #[test]
    fn numbers_keep_what_matters() {
        assert_eq!(number(1_234_567.8), "1 234 568");
        assert_eq!(number(12.34), "12.3");
        assert_eq!(number(0.0), "0.0");
        assert_eq!(number(0.998_31), "0.9983");
        assert_eq!(rounded(0.123_456_78), 0.123_457);
        assert_eq!(rounded(f64::MIN_POSITIVE), f64::MIN_POSITIVE);
    }
}
