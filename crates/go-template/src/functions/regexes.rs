//! Regular expressions in Go's syntax (RE2), which differs from that of the crate `regex` in its
//! classes and escapes.

use regex::{NoExpand, Regex, RegexBuilder};

use super::signature::fixed;
use crate::{
    calls::{Call, Function, Type},
    error::Failure,
    text::{Text, is_digits},
    value::{Element, Value},
};

/// Maximum size of a compiled expression in bytes.
const SIZE: usize = 1 << 20;
/// Largest repetition count in Go.
const MOST_REPETITIONS: u32 = 1000;

/// Named ASCII classes.
const CLASSES: [&str; 14] = [
    "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print", "punct",
    "space", "upper", "word", "xdigit",
];

const TWO: &[Type] = &[Type::Text, Type::Text];
const THREE: &[Type] = &[Type::Text, Type::Text, Type::Text];
const WITH_COUNT: &[Type] = &[Type::Text, Type::Text, Type::Int];

pub(super) fn find(name: &str) -> Option<Function> {
    Some(match name {
        "regexMatch" => fixed(TWO, |call| {
            // Sprig ignores the error of an invalid expression.
            let regex = match compile(call) {
                Ok(regex) => Some(regex),
                Err(Failure::Invalid { .. }) => None,
                Err(failure) => return Err(failure),
            };
            let text = subject(call, 1)?;
            Ok(Value::Bool(regex.is_some_and(|regex| regex.is_match(&text))))
        }),
        "regexFind" => fixed(TWO, |call| {
            let regex = compile(call)?;
            let text = subject(call, 1)?;
            let found = regex.find(&text).map_or("", |found| found.as_str());
            call.make(found)
        }),
        "regexFindAll" => fixed(WITH_COUNT, |call| {
            let regex = compile(call)?;
            let text = subject(call, 1)?;
            let limit = usize::try_from(call.int(2)).unwrap_or(usize::MAX);
            let found = regex.find_iter(&text).take(limit);
            let found: Vec<Text> = found.map(|found| Text::from(found.as_str())).collect();
            if found.is_empty() {
                return Ok(call.heap.nil_list(Element::Text));
            }
            call.heap.texts(found)
        }),
        "regexReplaceAll" => fixed(THREE, |call| {
            let regex = compile(call)?;
            let text = subject(call, 1)?;
            let replacement = subject(call, 2)?;
            let longest = longest_expansion(&regex, &text, &replacement);
            call.heap.reserve(longest)?;
            call.make(regex.replace_all(&text, &replacement).into_owned())
        }),
        "regexReplaceAllLiteral" => fixed(THREE, |call| {
            let regex = compile(call)?;
            let text = subject(call, 1)?;
            let replacement = subject(call, 2)?;
            let count = regex.find_iter(&text).count();
            call.heap.reserve(count.saturating_mul(replacement.len()))?;
            call.make(regex.replace_all(&text, NoExpand(&replacement)).into_owned())
        }),
        "regexSplit" => fixed(WITH_COUNT, |call| {
            let regex = compile(call)?;
            let text = subject(call, 1)?;
            let count = call.int(2);
            match split(&regex, &text, count) {
                Some(parts) => call.heap.texts(parts),
                None => Ok(call.heap.nil_list(Element::Text)),
            }
        }),
        _ => return None,
    })
}

/// Returns an argument as UTF-8.
fn subject(call: &Call<'_>, index: usize) -> Result<String, Failure> {
    let text = call.text(index).bytes().to_vec();
    String::from_utf8(text).map_err(|_| Failure::Unsupported("a regular expression on binary data"))
}

/// Maximum length of an expression in bytes; each brace is searched for its end.
const PATTERN_MAX: usize = 8 << 10;

fn compile(call: &mut Call<'_>) -> Result<Regex, Failure> {
    let pattern = call.text(0);
    if pattern.bytes().len() > PATTERN_MAX {
        return Err(Failure::Limit("the length of a regular expression"));
    }
    // Compiling costs more than most functions.
    call.heap.step(10 + pattern.bytes().len())?;
    let text = std::str::from_utf8(pattern.bytes()).map_err(|_| invalid(&pattern))?;
    // Unicode tables would add hundreds of kilobytes to every operator.
    if text.contains(r"\p") || text.contains(r"\P") {
        return Err(Failure::Unsupported("a Unicode class in a regular expression"));
    }
    let translated = translate(text).ok_or_else(|| invalid(&pattern))?;
    let mut builder = RegexBuilder::new(&translated);
    builder.size_limit(SIZE).octal(true).build().map_err(|_| invalid(&pattern))
}

fn invalid(pattern: &Text) -> Failure {
    Failure::invalid("regular expression", pattern.bytes())
}

/// Returns an upper bound for the total length of the replacements.
fn longest_expansion(regex: &Regex, text: &str, replacement: &str) -> usize {
    let references = replacement.matches('$').count();
    let lengths = regex.find_iter(text).map(|found| replacement.len() + references * found.len());
    lengths.fold(0, usize::saturating_add)
}

/// Splits a text at matches into at most `count` parts, as Go's `Regexp.Split` does.
fn split(regex: &Regex, text: &str, count: i64) -> Option<Vec<Text>> {
    if count == 0 {
        return None;
    }
    if !regex.as_str().is_empty() && text.is_empty() {
        return Some(vec![Text::from("")]);
    }
    let limit = usize::try_from(count).unwrap_or(usize::MAX);
    let mut parts = Vec::new();
    let mut start = 0;
    let mut end = 0;
    for found in regex.find_iter(text).take(limit) {
        if count > 0 && parts.len() + 1 == limit {
            break;
        }
        end = found.start();
        if found.end() != 0 {
            parts.push(Text::from(&text[start..end]));
        }
        start = found.end();
    }
    if end != text.len() {
        parts.push(Text::from(&text[start..]));
    }
    Some(parts)
}

/// Syntax before a character: Go does not permit to repeat a repetition.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    Repetition,
    LazyRepetition,
    Other,
}

/// Translates an expression; `None` if the syntax is invalid in Go.
fn translate(pattern: &str) -> Option<String> {
    let mut out = String::new();
    let mut characters = pattern.chars().peekable();
    let mut before = Before::Other;
    while let Some(character) = characters.next() {
        let last = std::mem::replace(&mut before, Before::Other);
        match character {
            '\\' => escape(characters.next()?, false, &mut characters, &mut out)?,
            '[' => class(&mut characters, &mut out)?,
            // The crate checks counted repetitions; other braces are literal in Go.
            '{' => {
                let rest: String = characters.clone().take_while(|c| *c != '}').collect();
                let closes = characters.clone().any(|c| c == '}');
                let is_count = closes && is_repetition(&rest)?;
                if is_count && last != Before::Other {
                    return None;
                }
                out.push_str(if is_count { "{" } else { r"\{" });
            }
            '}' => {
                let opens = out
                    .rfind('{')
                    .is_some_and(|open| !out[..open].ends_with('\\') && !out[open..].contains('}'));
                out.push_str(if opens { "}" } else { r"\}" });
                before = if opens { Before::Repetition } else { Before::Other };
            }
            '*' | '+' | '?' => {
                before = match last {
                    Before::Other => Before::Repetition,
                    Before::Repetition if character == '?' => Before::LazyRepetition,
                    Before::Repetition | Before::LazyRepetition => return None,
                };
                out.push(character);
            }
            // Groups and flags that Go lacks are invalid.
            '(' if characters.peek() == Some(&'?') => {
                let rest: String = characters.clone().skip(1).collect();
                if !is_group(&rest) {
                    return None;
                }
                out.push('(');
            }
            character => out.push(character),
        }
    }
    Some(out)
}

/// Returns true if the braces contain a repetition; `None` if the count is too large for Go.
fn is_repetition(text: &str) -> Option<bool> {
    let (least, most) = text.split_once(',').unwrap_or((text, ""));
    if least.is_empty() || !is_digits(least) || !is_digits(most) {
        return Some(false);
    }
    let bounds = [least, most].into_iter().filter(|bound| !bound.is_empty());
    let mut numbers = bounds.map(str::parse::<u32>);
    let is_small = numbers.all(|number| number.is_ok_and(|number| number <= MOST_REPETITIONS));
    is_small.then_some(true)
}

/// Returns true if the text after `(?` begins a group of Go's syntax.
fn is_group(rest: &str) -> bool {
    let flags = rest.trim_start_matches(|c| "imsU-".contains(c));
    rest.starts_with("P<") || rest.starts_with('<') || flags.starts_with([':', ')'])
}

type Characters<'a> = std::iter::Peekable<std::str::Chars<'a>>;

/// Translates the escape after a backslash; `None` if it is invalid in Go.
fn escape(
    character: char,
    in_class: bool,
    characters: &mut Characters<'_>,
    out: &mut String,
) -> Option<()> {
    let class = match character {
        'd' => r"0-9",
        'w' => r"0-9A-Za-z_",
        's' => r"\t\n\x0C\r ",
        'D' => r"[^0-9]",
        'W' => r"[^0-9A-Za-z_]",
        'S' => r"[^\t\n\x0C\r ]",
        _ => "",
    };
    if !class.is_empty() {
        let is_bare = character.is_lowercase() && !in_class;
        if is_bare {
            out.extend(["[", class, "]"]);
        } else {
            out.push_str(class);
        }
        return Some(());
    }
    match character {
        'b' | 'B' if !in_class => {
            out.push_str(if character == 'b' { r"(?-u:\b)" } else { r"(?-u:\B)" });
        }
        'A' | 'z' if !in_class => out.extend(['\\', character]),
        'a' | 'f' | 'n' | 'r' | 't' | 'v' | 'x' => out.extend(['\\', character]),
        'Q' if !in_class => {
            let rest: String = characters.clone().collect();
            let literal = rest.split(r"\E").next().unwrap_or_default();
            out.push_str(&regex::escape(literal));
            let skipped = literal.chars().count() + 2;
            for _ in 0..skipped {
                characters.next();
            }
        }
        '0'..='7' => {
            // A single digit other than 0 would be a backreference.
            let next_is_octal = characters.peek().is_some_and(|c| ('0'..='7').contains(c));
            if character != '0' && !next_is_octal {
                return None;
            }
            out.extend(['\\', character]);
        }
        character if character.is_ascii_punctuation() => {
            out.push_str(&regex::escape(&character.to_string()));
            if in_class && !out.ends_with(&format!(r"\{character}")) {
                out.pop();
                out.extend(['\\', character]);
            }
        }
        _ => return None,
    }
    Some(())
}

/// Translates a character class after its `[`.
fn class(characters: &mut Characters<'_>, out: &mut String) -> Option<()> {
    out.push('[');
    if characters.next_if_eq(&'^').is_some() {
        out.push('^');
    }
    let mut is_first = true;
    loop {
        let character = characters.next()?;
        match character {
            ']' if !is_first => {
                out.push(']');
                return Some(());
            }
            '[' if characters.peek() == Some(&':') => {
                let rest: String = characters.clone().collect();
                match rest.find(":]") {
                    Some(end) if !CLASSES.contains(&rest[1..end].trim_start_matches('^')) => {
                        return None;
                    }
                    Some(end) => {
                        out.push('[');
                        out.push_str(&rest[..end + 2]);
                        for _ in 0..rest[..end + 2].chars().count() {
                            characters.next();
                        }
                    }
                    None => out.push_str(r"\["),
                }
            }
            '\\' => escape(characters.next()?, true, characters, out)?,
            ']' | '[' | '&' | '~' | '#' => out.extend(['\\', character]),
            character => out.push(character),
        }
        is_first = false;
    }
}
