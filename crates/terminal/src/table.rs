//! Tables: columns separated by tabs; cells are padded with spaces to the width of the column.

use std::fmt;

/// Rows of cells; the first row has the column names. A cell may have several lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Returns an empty table with these columns.
    #[must_use]
    pub fn new(columns: &[&str]) -> Self {
        Self { rows: vec![columns.iter().map(|name| (*name).to_owned()).collect()] }
    }

    /// Adds a row.
    pub fn add(&mut self, row: Vec<String>) {
        self.rows.push(row);
    }

    /// Returns the number of rows, without the header.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len() - 1
    }

    /// Returns true if there are no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the width of each column.
    fn widths(&self) -> Vec<usize> {
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.flat_map(|cell| cell.lines()).map(|line| line.chars().count()).max()
        };
        let columns = self.rows.first().map_or(0, Vec::len);
        (0..columns).map(|column| width(column).unwrap_or(0)).collect()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths = self.widths();
        for row in &self.rows {
            let height = row.iter().map(|cell| cell.lines().count()).max().unwrap_or(0).max(1);
            for line in 0..height {
                let cells: Vec<String> = row
                    .iter()
                    .zip(&widths)
                    .map(|(cell, width)| {
                        let text = cell.lines().nth(line).unwrap_or_default();
                        format!("{text:<width$}")
                    })
                    .collect();
                writeln!(f, "{}", cells.join("\t"))?;
            }
        }
        Ok(())
    }
}

/// Wraps a text at spaces into lines of at most `width` characters; longer words are not split.
#[must_use]
pub fn wrapped(text: &str, width: usize) -> String {
    let mut lines: Vec<String> = Vec::new();
    for paragraph in text.trim_end().lines() {
        let mut line = String::new();
        for word in paragraph.split(' ') {
            let needed =
                line.chars().count() + usize::from(!line.is_empty()) + word.chars().count();
            if !line.is_empty() && needed > width {
                lines.push(std::mem::take(&mut line));
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
        lines.push(line);
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_padded_and_joined_by_tabs() {
        let mut table = Table::new(&["Name", "Default", "Required", "Immutable"]);
        table.add(["cpus", "0.25", "true", "false"].map(ToOwned::to_owned).to_vec());
        table.add(["memory", "1Gi", "true", "false"].map(ToOwned::to_owned).to_vec());
        let expected = "Name  \tDefault\tRequired\tImmutable\n\
                        cpus  \t0.25   \ttrue    \tfalse    \n\
                        memory\t1Gi    \ttrue    \tfalse    \n";
        assert_eq!(table.to_string(), expected);
    }

    #[test]
    fn wide_texts_have_several_lines() {
        assert_eq!(wrapped("a few words here", 6), "a few\nwords\nhere");
        assert_eq!(wrapped("unbreakable", 4), "unbreakable");
        let mut table = Table::new(&["A", "B"]);
        table.add(vec!["x\ny".to_owned(), "z".to_owned()]);
        assert_eq!(table.to_string(), "A\tB\nx\tz\ny\t \n");
    }
}
