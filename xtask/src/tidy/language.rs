//! Rates of the language of comments, by crate: words that stand in place of a noun.

use std::{collections::BTreeMap, fmt::Write as _};

use regex::Regex;

use super::{
    rust::{RustFile, TextKind},
    terms::whole_words,
};

/// Columns that a line with a comment may have, as code after rustfmt.
const COLUMNS_MAX: usize = 100;

/// Questions in place of a noun, and pronouns, each with its column in the table.
const WORDS: [(&str, &str); 3] =
    [("what", "what"), ("it, they, them", "it|they|them"), ("other, another", "other|another")];

/// First words of lines that begin without a noun.
const BEGINNINGS: &str = r"(?i)^(?:what|why|whether|it)\b";

/// Comments of a crate.
#[derive(Default)]
struct Comments {
    text: String,
    words: usize,
    lines: usize,
    /// Lines that begin with one of [`BEGINNINGS`].
    beginnings: usize,
    /// Lines of more than [`COLUMNS_MAX`] columns.
    wide: usize,
}

impl Comments {
    fn add(&mut self, comment: &str, beginnings: &Regex) {
        for line in comment.lines() {
            let line = line.trim().trim_start_matches(['/', '!', '*']).trim();
            let words = line.split_whitespace().filter(|word| word.contains(char::is_alphabetic));
            let words = words.count();
            self.lines += usize::from(words > 0);
            self.words += words;
            self.beginnings += usize::from(beginnings.is_match(line));
            self.text.push_str(line);
            self.text.push('\n');
        }
    }

    #[allow(clippy::cast_precision_loss, reason = "counts of words are small")]
    fn row(&self, krate: &str) -> Result<String, regex::Error> {
        let mut row = format!("| {krate} | {} |", self.words);
        for (_, words) in WORDS {
            let found = whole_words(words)?.find_iter(&self.text).count();
            let rate = found as f64 * 1000.0 / self.words.max(1) as f64;
            // Writing to a String cannot fail.
            let _ = write!(row, " {rate:.1} |");
        }
        let beginnings = self.beginnings as f64 * 100.0 / self.lines.max(1) as f64;
        let _ = write!(row, " {beginnings:.1} % | {} |", self.wide);
        Ok(row)
    }
}

/// Table of the rates of each crate: words for each 1,000 of comments, lines that begin without a
/// noun, and wide lines.
///
/// # Errors
///
/// If a pattern is not a regular expression.
pub(super) fn table(rust: &[RustFile]) -> Result<String, regex::Error> {
    let beginnings = Regex::new(BEGINNINGS)?;
    let mut crates: BTreeMap<&str, Comments> = BTreeMap::new();
    for file in rust {
        let comments = crates.entry(file.krate()).or_default();
        comments.wide += file.wide_comments(COLUMNS_MAX);
        for text in file.texts.iter().filter(|text| text.kind == TextKind::Comment) {
            comments.add(&text.content, &beginnings);
        }
    }
    let names = WORDS.map(|(name, _)| name).join(" | ");
    let mut table = format!(
        "| comments of | words | {names} (per 1,000 words) | lines that begin with What, Why, Whether or It \
         | lines of more than {COLUMNS_MAX} columns |\n|---|---|---|---|---|---|---|\n"
    );
    for (krate, comments) in crates {
        table.push_str(&comments.row(krate)?);
        table.push('\n');
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_beginnings_are_counted_once_per_line() {
        let mut comments = Comments::default();
        let beginnings = Regex::new(BEGINNINGS).unwrap();
        comments.add("/// What it writes.", &beginnings);
        comments.add("//! Items of another crate.", &beginnings);
        assert_eq!((comments.words, comments.lines, comments.beginnings), (7, 2, 1));
        let row = comments.row("crates/api").unwrap();
        assert_eq!(row, "| crates/api | 7 | 142.9 | 142.9 | 142.9 | 50.0 % | 0 |");
    }
}
