//! Redraws lines in place on a terminal; prints changed lines otherwise.

use std::io::{self, Write as _};

use console::Term;

use crate::color::colored;

/// Output that shows the present state.
pub struct Screen {
    term: Term,
    shown: Vec<String>,
}

impl Screen {
    /// Returns the standard output.
    #[must_use]
    pub fn stdout() -> Self {
        Self { term: Term::stdout(), shown: Vec::new() }
    }

    /// Returns true if lines are redrawn in place.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        self.term.is_term()
    }

    /// Maximum number of characters in a line; unlimited unless the output is a terminal.
    #[must_use]
    pub fn width(&self) -> usize {
        self.term.size_checked().map_or(usize::MAX, |(_, width)| usize::from(width))
    }

    /// Shows these lines instead of those shown before. On a terminal, one write moves the cursor up
    /// and overwrites them, so that nothing flickers; the last line has the number of those beyond
    /// its height.
    ///
    /// # Errors
    ///
    /// If the output is closed.
    pub fn show(&mut self, lines: Vec<String>) -> io::Result<()> {
        if lines == self.shown {
            return Ok(());
        }
        let Some((height, _)) = self.term.size_checked() else {
            let new: Vec<&String> =
                lines.iter().filter(|line| !self.shown.contains(line)).collect();
            let mut output = io::stdout().lock();
            for line in new {
                writeln!(output, "{line}")?;
            }
            output.flush()?;
            self.shown = lines;
            return Ok(());
        };
        let lines = within(lines, usize::from(height).saturating_sub(1));
        let up = match self.shown.len() {
            0 => String::new(),
            shown => format!("\x1b[{shown}A"),
        };
        // Erases the rest of the previous line.
        let overwritten: Vec<String> =
            lines.iter().map(|line| format!("\r{}\x1b[K\n", colored(line))).collect();
        let text = format!("{up}{}\x1b[J", overwritten.concat());
        self.term.write_all(text.as_bytes())?;
        self.term.flush()?;
        self.shown = lines;
        Ok(())
    }
}

/// The first lines, and the number of those that do not fit.
fn within(mut lines: Vec<String>, height: usize) -> Vec<String> {
    let surplus = lines.len().saturating_sub(height);
    if surplus > 0 && height > 0 {
        lines.truncate(height - 1);
        lines.push(format!("(+{} lines)", surplus + 1));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_beyond_the_height_are_counted() {
        let lines = |count: usize| (0..count).map(|n| n.to_string()).collect::<Vec<_>>();
        assert_eq!(within(lines(3), 3), lines(3));
        assert_eq!(within(lines(5), 3), ["0", "1", "(+3 lines)"]);
    }
}
