//! Lexer of templates.

use super::{
    error::{AtLine, Failure},
    text::run_length,
};

const OPEN: &str = "{{";
const CLOSE: &str = "}}";

/// Kind of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Open,
    Close,
    Space,
    Assign,
    Declare,
    Pipe,
    LeftParenthesis,
    RightParenthesis,
    Comma,
    /// Character outside of the grammar.
    Other,
    Bool,
    Character,
    Number,
    Quoted,
    RawQuoted,
    Identifier,
    Field,
    Variable,
    Dot,
    Nil,
    Block,
    Break,
    Continue,
    Define,
    Else,
    End,
    If,
    Range,
    Template,
    With,
    EndOfText,
}

/// Token with its line, from 1.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token<'a> {
    pub(super) kind: Kind,
    pub(super) text: &'a str,
    pub(super) line: usize,
}

/// Returns the tokens of a template; the last is [`Kind::EndOfText`].
pub(super) fn tokens(text: &str) -> Result<Vec<Token<'_>>, AtLine> {
    let mut lexer = Lexer { text, position: 0, line: 1, depth: 0, tokens: Vec::new() };
    lexer.template()?;
    Ok(lexer.tokens)
}

struct Lexer<'a> {
    text: &'a str,
    position: usize,
    line: usize,
    /// Number of open parentheses.
    depth: usize,
    tokens: Vec<Token<'a>>,
}

impl<'a> Lexer<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.position..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    /// Emits the next `length` bytes as a token.
    fn emit(&mut self, kind: Kind, length: usize) {
        let text = &self.rest()[..length];
        self.tokens.push(Token { kind, text, line: self.line });
        self.skip(length);
    }

    fn skip(&mut self, length: usize) {
        self.line += self.rest()[..length].matches('\n').count();
        self.position += length;
    }

    fn error<T>(&self, message: impl Into<String>) -> Result<T, AtLine> {
        Err((self.line, Failure::Syntax(message.into())))
    }

    fn template(&mut self) -> Result<(), AtLine> {
        while let Some(length) = self.rest().find(OPEN) {
            let text = &self.rest()[..length];
            let after = &self.rest()[length + OPEN.len()..];
            let trims = starts_with_left_marker(after);
            let kept = if trims { text.trim_end_matches(is_space).len() } else { length };
            if kept > 0 {
                self.emit(Kind::Text, kept);
            }
            self.skip(length - kept);
            let marker = if trims { 2 } else { 0 };
            if after[marker..].starts_with("/*") {
                self.skip(OPEN.len() + marker);
                self.comment()?;
            } else {
                self.emit(Kind::Open, OPEN.len());
                self.skip(marker);
                self.action()?;
            }
        }
        let length = self.rest().len();
        if length > 0 {
            self.emit(Kind::Text, length);
        }
        self.emit(Kind::EndOfText, 0);
        Ok(())
    }

    fn comment(&mut self) -> Result<(), AtLine> {
        let Some(end) = self.rest()[2..].find("*/") else {
            return self.error("a comment does not end");
        };
        self.skip(end + 4);
        let Some(close) = self.close() else {
            return self.error("a comment is followed by something else than }}");
        };
        self.skip_close(close);
        Ok(())
    }

    /// Returns the kind of the action's end at the current position, if any.
    fn close(&self) -> Option<Close> {
        let rest = self.rest();
        let mut characters = rest.chars();
        let trimmed = characters.next().is_some_and(is_space)
            && characters.next() == Some('-')
            && rest[2..].starts_with(CLOSE);
        if trimmed {
            Some(Close::Trimming)
        } else {
            rest.starts_with(CLOSE).then_some(Close::Plain)
        }
    }

    fn skip_close(&mut self, close: Close) {
        match close {
            Close::Plain => self.skip(CLOSE.len()),
            Close::Trimming => {
                self.skip(2 + CLOSE.len());
                self.skip(run_length(self.rest(), is_space));
            }
        }
    }

    fn action(&mut self) -> Result<(), AtLine> {
        self.depth = 0;
        loop {
            if let Some(close) = self.close() {
                if self.depth > 0 {
                    return self.error("a parenthesis is not closed");
                }
                let text = CLOSE;
                let line = self.line;
                self.skip_close(close);
                self.tokens.push(Token { kind: Kind::Close, text, line });
                return Ok(());
            }
            self.token()?;
        }
    }

    fn token(&mut self) -> Result<(), AtLine> {
        let Some(first) = self.peek() else {
            return self.error("an action does not end with }}");
        };
        match first {
            first if is_space(first) => self.space(),
            '=' => self.emit(Kind::Assign, 1),
            ':' if self.rest().starts_with(":=") => self.emit(Kind::Declare, 2),
            ':' => return self.error("expected :="),
            '|' => self.emit(Kind::Pipe, 1),
            '"' => return self.quoted('"', Kind::Quoted),
            '\'' => return self.quoted('\'', Kind::Character),
            '`' => return self.raw_quoted(),
            '$' => return self.name(Kind::Variable),
            '.' if !self.rest()[1..].starts_with(|c: char| c.is_ascii_digit()) => {
                return self.name(Kind::Field);
            }
            '.' | '+' | '-' | '0'..='9' => return self.number(),
            first if is_alphanumeric(first) => return self.name(Kind::Identifier),
            '(' => {
                self.depth += 1;
                self.emit(Kind::LeftParenthesis, 1);
            }
            ')' if self.depth == 0 => return self.error("a parenthesis is not opened"),
            ')' => {
                self.depth -= 1;
                self.emit(Kind::RightParenthesis, 1);
            }
            ',' => self.emit(Kind::Comma, 1),
            first if first.is_ascii_graphic() => self.emit(Kind::Other, 1),
            first => return self.error(format!("unexpected character {first:?} in an action")),
        }
        Ok(())
    }

    fn space(&mut self) {
        let rest = self.rest();
        let mut length = run_length(rest, is_space);
        // The last space may belong to " -}}".
        if rest[length..].starts_with("-}}") {
            length -= 1;
        }
        if length > 0 {
            self.emit(Kind::Space, length);
        }
    }

    fn quoted(&mut self, quote: char, kind: Kind) -> Result<(), AtLine> {
        let mut escaped = false;
        for (index, character) in self.rest().char_indices().skip(1) {
            match character {
                '\n' => break,
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                character if character == quote => {
                    self.emit(kind, index + 1);
                    return Ok(());
                }
                _ => {}
            }
        }
        self.error("a quoted text does not end")
    }

    fn raw_quoted(&mut self) -> Result<(), AtLine> {
        let Some(end) = self.rest()[1..].find('`') else {
            return self.error("a raw quoted text does not end");
        };
        self.emit(Kind::RawQuoted, end + 2);
        Ok(())
    }

    /// Reads an identifier, a keyword, a field with its dot, or a variable with its `$`.
    fn name(&mut self, kind: Kind) -> Result<(), AtLine> {
        let rest = self.rest();
        let prefix = usize::from(kind != Kind::Identifier);
        let length = prefix + run_length(&rest[prefix..], is_alphanumeric);
        if !ends_word(&rest[length..]) {
            let character = rest[length..].chars().next().unwrap_or_default();
            return self.error(format!("unexpected character {character:?} after a name"));
        }
        let kind = match (kind, &rest[..length]) {
            (Kind::Field, ".") => Kind::Dot,
            (Kind::Identifier, word) => keyword(word),
            (kind, _) => kind,
        };
        self.emit(kind, length);
        Ok(())
    }

    fn number(&mut self) -> Result<(), AtLine> {
        let length = number_length(self.rest());
        let next = self.rest()[length..].chars().next();
        if next.is_some_and(is_alphanumeric) {
            return self.error(format!("bad number after {}", &self.rest()[..length]));
        }
        if next.is_some_and(|next| next == '+' || next == '-') {
            return self.error("complex numbers are not supported");
        }
        self.emit(Kind::Number, length);
        Ok(())
    }
}

/// End of an action.
#[derive(Clone, Copy)]
enum Close {
    /// `}}`
    Plain,
    /// ` -}}`
    Trimming,
}

/// Returns the length of a possible number, which [`super::parser`] parses.
fn number_length(text: &str) -> usize {
    let mut position = usize::from(matches!(byte_at(text, 0), b'+' | b'-'));
    let mut digits = "0123456789_";
    if byte_at(text, position) == b'0' {
        position += 1;
        digits = match byte_at(text, position) {
            b'x' | b'X' => "0123456789abcdefABCDEF_",
            b'o' | b'O' => "01234567_",
            b'b' | b'B' => "01_",
            _ => digits,
        };
        position += usize::from(digits.len() != 11);
    }
    position = behind_digits(text, position, digits);
    if byte_at(text, position) == b'.' {
        position = behind_digits(text, position + 1, digits);
    }
    let is_exponent = match byte_at(text, position) {
        b'e' | b'E' => digits.len() == 11,
        b'p' | b'P' => digits.len() == 23,
        _ => false,
    };
    if is_exponent {
        position += 1;
        position += usize::from(matches!(byte_at(text, position), b'+' | b'-'));
        position = behind_digits(text, position, "0123456789_");
    }
    position + usize::from(byte_at(text, position) == b'i')
}

fn byte_at(text: &str, position: usize) -> u8 {
    text.as_bytes().get(position).copied().unwrap_or(0)
}

/// Returns the position after a run of digits.
fn behind_digits(text: &str, start: usize, digits: &str) -> usize {
    start + run_length(&text[start..], |digit| digits.contains(digit))
}

fn starts_with_left_marker(text: &str) -> bool {
    text.starts_with('-') && text[1..].starts_with(is_space)
}

fn is_space(character: char) -> bool {
    matches!(character, ' ' | '\t' | '\r' | '\n')
}

fn is_alphanumeric(character: char) -> bool {
    character == '_' || character.is_alphanumeric()
}

/// Returns true if a name may end before this text.
fn ends_word(text: &str) -> bool {
    let Some(next) = text.chars().next() else { return true };
    is_space(next) || matches!(next, '.' | ',' | '|' | ':' | ')' | '(') || text.starts_with(CLOSE)
}

fn keyword(word: &str) -> Kind {
    match word {
        "true" | "false" => Kind::Bool,
        "block" => Kind::Block,
        "break" => Kind::Break,
        "continue" => Kind::Continue,
        "define" => Kind::Define,
        "else" => Kind::Else,
        "end" => Kind::End,
        "if" => Kind::If,
        "nil" => Kind::Nil,
        "range" => Kind::Range,
        "template" => Kind::Template,
        "with" => Kind::With,
        _ => Kind::Identifier,
    }
}
