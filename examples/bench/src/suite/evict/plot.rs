//! Hit rates over capacity, as a picture.

use std::fmt::Write as _;

use mc_evict::PolicyKind;

use super::{CAPACITIES, Hits};

/// A chart's area for lines, and the space around it for words.
const WIDTH: f64 = 220.0;
const HEIGHT: f64 = 150.0;
const LEFT: f64 = 40.0;
const TOP: f64 = 30.0;
const STEP: (f64, f64) = (WIDTH + LEFT + 20.0, HEIGHT + TOP + 40.0);
const COLUMNS: usize = 4;

const ADAPTIVE: &str = "#d62728";
const OPTIMAL: &str = "#000000";

/// A chart for each trace with its hits, and a legend.
pub(super) fn draw(charts: &[(&str, &Vec<Hits>)]) -> String {
    let rows = charts.len().div_ceil(COLUMNS);
    let (width, height) = (STEP.0 * COLUMNS as f64, STEP.1 * rows as f64 + 40.0);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n"
    );
    for (at, (name, hits)) in charts.iter().enumerate() {
        let (x, y) = (STEP.0 * (at % COLUMNS) as f64 + LEFT, STEP.1 * (at / COLUMNS) as f64 + TOP);
        let _ = writeln!(svg, "<g transform=\"translate({x},{y})\">");
        chart(&mut svg, name, hits);
        svg.push_str("</g>\n");
    }
    let _ = writeln!(svg, "<g transform=\"translate({LEFT},{})\">", STEP.1 * rows as f64 + 10.0);
    for (at, (name, color)) in lines().enumerate() {
        let x = at as f64 * 120.0;
        let _ = writeln!(
            svg,
            "<line x1=\"{x}\" y1=\"0\" x2=\"{}\" y2=\"0\" stroke=\"{color}\" stroke-width=\"2\"/>\
             <text x=\"{}\" y=\"4\">{name}</text>",
            x + 20.0,
            x + 26.0,
        );
    }
    svg.push_str("</g>\n</svg>\n");
    svg
}

/// The name and the colour of each line.
fn lines() -> impl Iterator<Item = (&'static str, &'static str)> {
    let colors = ["#1f77b4", "#17becf", "#2ca02c", "#bcbd22", "#9467bd", "#8c564b"];
    let mut others = colors.into_iter().cycle();
    let kinds = PolicyKind::ALL.iter().map(move |kind| match kind {
        PolicyKind::Adaptive => (kind.as_str(), ADAPTIVE),
        _ => (kind.as_str(), others.next().unwrap_or(OPTIMAL)),
    });
    kinds.chain([("optimal", OPTIMAL)])
}

fn chart(svg: &mut String, name: &str, hits: &[Hits]) {
    let most = hits.iter().map(|hits| hits.optimal).fold(0.01, f64::max);
    let values = |line: usize| {
        hits.iter().map(move |hits| hits.by_kind.get(line).copied().unwrap_or(hits.optimal))
    };
    let _ = writeln!(
        svg,
        "<text x=\"0\" y=\"-8\" font-weight=\"bold\">{}</text>\
         <path d=\"M0,0V{HEIGHT}H{WIDTH}\" fill=\"none\" stroke=\"#888888\"/>",
        escaped(name),
    );
    for (at, capacity) in CAPACITIES.iter().enumerate() {
        let label = format!("{} %", capacity * 100.0);
        let (x, y) = (place(at), HEIGHT + 14.0);
        let _ = writeln!(svg, "<text x=\"{x}\" y=\"{y}\" text-anchor=\"middle\">{label}</text>");
    }
    for part in [0.0, 0.5, 1.0] {
        let (y, label) = (HEIGHT * (1.0 - part) + 4.0, format!("{:.2}", most * part));
        let _ = writeln!(svg, "<text x=\"-4\" y=\"{y}\" text-anchor=\"end\">{label}</text>");
    }
    for (line, (_, color)) in lines().enumerate() {
        let points = values(line).enumerate();
        let points: Vec<String> = points
            .map(|(at, value)| format!("{:.1},{:.1}", place(at), HEIGHT * (1.0 - value / most)))
            .collect();
        let stroke = if color == ADAPTIVE { 2.5 } else { 1.2 };
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"{stroke}\"/>",
            points.join(" "),
        );
    }
}

/// Where a capacity is: each is about twice the one before, and they stand side by side.
fn place(at: usize) -> f64 {
    WIDTH * (at as f64 + 0.5) / CAPACITIES.len() as f64
}

/// A name without what means something else in XML.
fn escaped(name: &str) -> String {
    name.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_has_a_line_for_each_policy_and_for_the_optimum() {
        let hits = vec![Hits { by_kind: vec![0.5; PolicyKind::ALL.len()], optimal: 1.0 }; 6];
        let svg = draw(&[("a<b", &hits)]);
        assert_eq!(svg.matches("<polyline").count(), PolicyKind::ALL.len() + 1);
        assert!(svg.contains("a&lt;b") && !svg.contains("a<b"));
        // Half of the height.
        assert!(svg.contains(&format!("{:.1},{:.1}", place(0), HEIGHT / 2.0)), "{svg}");
    }
}
