//! Lines that fit into a terminal.

use textwrap::{Options, wrap};

/// Indent of continuation lines.
const INDENT: &str = "      ";

/// Returns the lines with those that are longer than `width` characters wrapped.
#[must_use]
pub fn fit(lines: impl IntoIterator<Item = String>, width: usize) -> Vec<String> {
    let options = Options::new(width).subsequent_indent(INDENT);
    let wrapped = |line: String| -> Vec<String> {
        wrap(&line, &options).into_iter().map(Into::into).collect()
    };
    lines.into_iter().flat_map(wrapped).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_line_is_continued_with_an_indent() {
        let lines = ["short  one", "  ├─ ✖ web-1  PreCheck  waits for the rule budget/tenth"];
        let expected = [
            "short  one",
            "  ├─ ✖ web-1  PreCheck",
            "      waits for the rule",
            "      budget/tenth",
        ];
        assert_eq!(fit(lines.map(str::to_owned), 25), expected);
        assert_eq!(fit(lines.map(str::to_owned), usize::MAX), lines);
    }
}
