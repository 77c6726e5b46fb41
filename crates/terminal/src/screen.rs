//! Redraws lines in place on a terminal; prints changed lines otherwise.

use std::io::{self, Write as _};

use console::Term;

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
    /// and overwrites them, so that nothing flickers; lines beyond its height are left out.
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
        let fitting = usize::from(height).saturating_sub(1);
        let lines: Vec<String> = lines.into_iter().take(fitting).collect();
        let up = match self.shown.len() {
            0 => String::new(),
            shown => format!("\x1b[{shown}A"),
        };
        // Erases the rest of the previous line.
        let overwritten: Vec<String> =
            lines.iter().map(|line| format!("\r{line}\x1b[K\n")).collect();
        let text = format!("{up}{}\x1b[J", overwritten.concat());
        self.term.write_all(text.as_bytes())?;
        self.term.flush()?;
        self.shown = lines;
        Ok(())
    }
}
