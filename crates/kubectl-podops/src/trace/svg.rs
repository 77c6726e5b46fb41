//! A trace as a drawing: one row for each entry, with a point at its time in the column of its
//! lane.

use std::fmt::Write as _;

use jiff::Timestamp;

use super::{Entry, Lane, Trace};

/// Sizes, in pixels.
const ROW: usize = 22;
const HEAD: usize = 48;
const LANE: usize = 84;
const TIME: usize = 190;
const TEXT: usize = 900;

/// Color of the points of a lane.
const fn color(lane: Lane) -> &'static str {
    match lane {
        Lane::Pod => "#333333",
        Lane::Operation => "#1b6ac9",
        Lane::Condition => "#b45309",
        Lane::Container => "#2e7d32",
        Lane::Event => "#8e24aa",
    }
}

/// Draws a trace as an SVG document.
#[must_use]
pub fn svg(trace: &Trace) -> String {
    let lanes = TIME + LANE * Lane::ALL.len();
    let width = lanes + TEXT;
    let height = HEAD + ROW * trace.entries.len() + ROW;
    let mut drawing = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n\
         <text x=\"8\" y=\"18\" font-weight=\"bold\">{}</text>\n",
        escape(&trace.pod)
    );
    for (column, lane) in Lane::ALL.into_iter().enumerate() {
        let x = center(column);
        // Writing to a string does not fail.
        let _ = writeln!(
            drawing,
            "<text x=\"{x}\" y=\"36\" text-anchor=\"middle\" fill=\"{}\">{}</text>\n\
             <line x1=\"{x}\" y1=\"42\" x2=\"{x}\" y2=\"{height}\" stroke=\"#dddddd\"/>",
            color(lane),
            lane.as_str()
        );
    }
    let start = trace.entries.first().map(|entry| entry.at);
    for (row, entry) in trace.entries.iter().enumerate() {
        draw(&mut drawing, row, entry, start.unwrap_or(entry.at));
    }
    drawing.push_str("</svg>\n");
    drawing
}

/// Draws the row of an entry.
fn draw(drawing: &mut String, row: usize, entry: &Entry, start: Timestamp) {
    let Entry { at, lane, text, .. } = entry;
    let y = HEAD + ROW * row + ROW / 2;
    let column = Lane::ALL.iter().position(|known| known == lane).unwrap_or_default();
    let since_start = at.duration_since(start).as_secs_f64();
    let _ = writeln!(
        drawing,
        "<text x=\"8\" y=\"{baseline}\">{at:.3}</text>\n\
         <circle cx=\"{x}\" cy=\"{y}\" r=\"5\" fill=\"{color}\"><title>{since_start:.3} s</title></circle>\n\
         <text x=\"{left}\" y=\"{baseline}\">{text}</text>",
        baseline = y + 4,
        x = center(column),
        color = color(*lane),
        left = TIME + LANE * Lane::ALL.len() + 8,
        text = escape(text),
    );
}

/// Center of the column of a lane.
fn center(column: usize) -> usize {
    TIME + LANE * column + LANE / 2
}

/// Escapes text for XML.
fn escape(text: &str) -> String {
    let escaped = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    escaped.replace('"', "&quot;")
}
