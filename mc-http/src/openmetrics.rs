//! OpenMetrics' text format, version 1.0.0, of a page in Prometheus' format. It differs in the names of counters,
//! in the limits of buckets, in what help texts escape, and in its last line.

use std::fmt::Write as _;

/// The type of such a page.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The type without its parameters, as clients accept it.
const MEDIA_TYPE: &str = "application/openmetrics-text";

/// The end of a counter's samples, which its name in `TYPE` and `HELP` has not.
const TOTAL: &str = "_total";

/// Returns whether a client that accepts these types wants OpenMetrics rather than Prometheus' format.
pub(crate) fn is_wanted(accept: &str) -> bool {
    let weight = |wanted: &str| {
        let ranges = accept.split(',').filter_map(|range| {
            let mut parts = range.split(';').map(str::trim);
            let name = parts.next()?;
            let quality = parts.find_map(|part| part.strip_prefix("q="));
            (name == wanted).then(|| quality.map_or(1.0, |q| q.parse::<f64>().unwrap_or(0.0)))
        });
        ranges.fold(0.0, f64::max)
    };
    let wanted = weight(MEDIA_TYPE);
    wanted > 0.0 && wanted >= weight("text/plain")
}

/// The page in OpenMetrics' format. The text is that of a [`MetricsText`](crate::MetricsText): `HELP` and `TYPE` of
/// a metric, in this order, stand before its samples.
pub(crate) fn from_prometheus(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + text.len() / 16);
    let mut help = "";
    // Writing to a string cannot fail.
    for line in text.lines() {
        if let Some(told) = line.strip_prefix("# HELP ") {
            help = told.split_once(' ').map_or("", |(_, help)| help);
        } else if let Some(told) = line.strip_prefix("# TYPE ") {
            let (name, kind) = told.split_once(' ').unwrap_or((told, "unknown"));
            // Only what ends as counters do is one.
            let (name, kind) = match (kind, name.strip_suffix(TOTAL)) {
                ("counter", Some(name)) => (name, kind),
                ("counter", None) => (name, "unknown"),
                _ => (name, kind),
            };
            let help = help.replace('"', "\\\"");
            let _ = writeln!(out, "# TYPE {name} {kind}\n# HELP {name} {help}");
        } else {
            match line
                .split_once("le=\"")
                .and_then(|(head, rest)| Some((head, rest.split_once('"')?)))
            {
                Some((head, (limit, rest))) if head.contains("_bucket{") => {
                    let _ = writeln!(out, "{head}le=\"{}\"{rest}", as_float(limit));
                }
                _ => {
                    out.push_str(line);
                    out.push('\n');
                }
            }
        }
    }
    out + "# EOF\n"
}

/// A whole number as OpenMetrics writes a number that may have a fraction.
fn as_float(text: &str) -> String {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.into();
    }
    if text.len() <= 6 {
        return format!("{text}.0");
    }
    let mantissa = text.trim_end_matches('0');
    let (first, rest) = mantissa.split_at(1.min(mantissa.len()));
    let rest = if rest.is_empty() { String::new() } else { format!(".{rest}") };
    format!("{first}{rest}e+{:02}", text.len() - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_told_in_the_other_format() {
        let page = "# HELP a_total As \"it\" is\n# TYPE a_total counter\na_total{x=\"le=\\\"4\"} 1\n\
                    # HELP old_ Old\n# TYPE old_ counter\nold_ 2\n\
                    # HELP h Times\n# TYPE h histogram\nh_bucket{a=\"b\",le=\"4\"} 1\nh_bucket{le=\"2500000\"} 1\n\
                    h_bucket{le=\"+Inf\"} 1\nh_count 1\n# HELP g G\n# TYPE g gauge\ng 0.5\n";
        let told = "# TYPE a counter\n# HELP a As \\\"it\\\" is\na_total{x=\"le=\\\"4\"} 1\n\
                    # TYPE old_ unknown\n# HELP old_ Old\nold_ 2\n\
                    # TYPE h histogram\n# HELP h Times\nh_bucket{a=\"b\",le=\"4.0\"} 1\nh_bucket{le=\"2.5e+06\"} 1\n\
                    h_bucket{le=\"+Inf\"} 1\nh_count 1\n# TYPE g gauge\n# HELP g G\ng 0.5\n# EOF\n";
        assert_eq!(from_prometheus(page), told);
    }

    #[test]
    fn limits_are_written_as_numbers_with_fractions() {
        for (limit, told) in [
            ("0", "0.0"),
            ("999999", "999999.0"),
            ("1000000", "1e+06"),
            ("4194304", "4.194304e+06"),
            ("10000000000", "1e+10"),
            ("+Inf", "+Inf"),
            ("0.25", "0.25"),
        ] {
            assert_eq!(as_float(limit), told);
        }
    }

    #[test]
    fn the_format_that_is_preferred_is_told() {
        for (accept, wanted) in [
            ("", false),
            ("*/*", false),
            ("text/plain", false),
            ("application/openmetrics-text; version=1.0.0", true),
            (
                "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3",
                true,
            ),
            ("application/openmetrics-text;q=0.2, text/plain;q=0.3", false),
            ("application/openmetrics-text;q=0", false),
            ("application/openmetrics-text;q=x", false),
        ] {
            assert_eq!(is_wanted(accept), wanted, "{accept}");
        }
    }
}
