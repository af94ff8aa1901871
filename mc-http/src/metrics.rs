//! Prometheus' text format.

use std::fmt::{Display, Write as _};

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// A number that only grows.
    Counter,
    /// A number that goes up and down.
    Gauge,
    /// Numbers of observations, in buckets.
    Histogram,
}

impl MetricKind {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// A page of metrics in Prometheus' text format, version 0.0.4, under way.
///
/// The samples of a metric follow its [`metric`](Self::metric). Names and labels' names are written
/// as they are; labels' values may contain anything.
///
/// ```
/// use mc_http::{MetricKind, MetricsText};
///
/// let mut page = MetricsText::default();
/// page.metric("requests_total", MetricKind::Counter, "Requests answered");
/// page.sample("requests_total", &[("method", "Get")], 7);
/// let lines = [
///     "# HELP requests_total Requests answered\n",
///     "# TYPE requests_total counter\n",
///     "requests_total{method=\"Get\"} 7\n",
/// ];
/// assert_eq!(page.into_string(), lines.concat());
/// ```
#[derive(Clone, Debug, Default)]
pub struct MetricsText {
    text: String,
    /// Every sample's, as they are written.
    labels: String,
}

impl MetricsText {
    /// A page whose samples all carry these labels, before their own.
    pub fn with_labels<N: AsRef<str>, V: AsRef<str>>(
        labels: impl IntoIterator<Item = (N, V)>,
    ) -> Self {
        let mut page = Self::default();
        for (name, value) in labels {
            append_label(&mut page.labels, name.as_ref(), value.as_ref());
        }
        page
    }

    /// Begins a metric. `help` is one line.
    pub fn metric(&mut self, name: &str, kind: MetricKind, help: &str) {
        let kind = kind.as_str();
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// Appends one sample.
    pub fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.text.push_str(name);
        let mut all = self.labels.clone();
        for (name, value) in labels {
            append_label(&mut all, name, value);
        }
        if !all.is_empty() {
            let _ = write!(self.text, "{{{all}}}");
        }
        let _ = writeln!(self.text, " {value}");
    }

    /// Appends the buckets of a histogram and the number of all observations. A bucket is its
    /// upper limit and how many observations did not exceed it.
    pub fn buckets(
        &mut self,
        name: &str,
        labels: &[(&str, &str)],
        buckets: impl IntoIterator<Item = (u128, u64)>,
        count: u64,
    ) {
        let bucket = format!("{name}_bucket");
        let mut with_limit = |limit: &str, observations| {
            let mut labels = labels.to_vec();
            labels.push(("le", limit));
            self.sample(&bucket, &labels, observations);
        };
        for (limit, observations) in buckets {
            with_limit(&limit.to_string(), observations);
        }
        with_limit("+Inf", count);
        self.sample(&format!("{name}_count"), labels, count);
    }

    /// Returns the page.
    #[must_use]
    pub fn into_string(self) -> String {
        self.text
    }
}

/// Appends a label, with the comma before it.
fn append_label(text: &mut String, name: &str, value: &str) {
    if !text.is_empty() {
        text.push(',');
    }
    let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let _ = write!(text, "{name}=\"{value}\"");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_labels_are_escaped() {
        let mut page = MetricsText::with_labels([("a", "\\")]);
        page.sample("x", &[("b", "\"\n")], 1);
        assert_eq!(page.into_string(), "x{a=\"\\\\\",b=\"\\\"\\n\"} 1\n");
    }

    #[test]
    fn the_last_bucket_has_everything() {
        let mut page = MetricsText::default();
        page.buckets("x", &[("a", "b")], [(4, 1)], 3);
        let expected =
            "x_bucket{a=\"b\",le=\"4\"} 1\nx_bucket{a=\"b\",le=\"+Inf\"} 3\nx_count{a=\"b\"} 3\n";
        assert_eq!(page.into_string(), expected);
    }
}
