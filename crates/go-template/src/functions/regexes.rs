//! Regular expressions in Go's syntax (RE2), which differs from that of the crate `regex` in its
//! classes and escapes.

use std::time::{Duration, Instant};

use regex::{Regex, RegexBuilder};
use regex_automata::{nfa::thompson::NFA, util::syntax};

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
            let expression = match compile(call) {
                Ok(expression) => Some(expression),
                Err(Failure::Invalid { .. }) => None,
                Err(failure) => return Err(failure),
            };
            let text = subject(call, 1)?;
            let Some(expression) = expression else { return Ok(Value::Bool(false)) };
            expression.charge(call, &text)?;
            Ok(Value::Bool(expression.regex.is_match(&text)))
        }),
        "regexFind" => fixed(TWO, |call| {
            let expression = compile(call)?;
            let text = subject(call, 1)?;
            expression.charge(call, &text)?;
            let found = expression.regex.find(&text).map_or("", |found| found.as_str());
            call.make(found)
        }),
        "regexFindAll" => fixed(WITH_COUNT, |call| {
            let expression = compile(call)?;
            let text = subject(call, 1)?;
            let limit = usize::try_from(call.int(2)).unwrap_or(usize::MAX);
            let mut texts = Vec::new();
            let mut searches = Searches::start(call, &expression, &text)?;
            for found in expression.regex.find_iter(&text).take(limit) {
                searches.count(call)?;
                texts.push(Text::from(found.as_str()));
            }
            if texts.is_empty() {
                return Ok(call.heap.nil_list(Element::Text));
            }
            call.heap.texts(texts)
        }),
        "regexReplaceAll" => fixed(THREE, |call| replace(call, &Replacement::Expanded)),
        "regexReplaceAllLiteral" => fixed(THREE, |call| replace(call, &Replacement::Literal)),
        "regexSplit" => fixed(WITH_COUNT, |call| {
            let expression = compile(call)?;
            let text = subject(call, 1)?;
            let count = call.int(2);
            match split(call, &expression, &text, count)? {
                Some(parts) => call.heap.texts(parts),
                None => Ok(call.heap.nil_list(Element::Text)),
            }
        }),
        _ => return None,
    })
}

/// Compiled expression.
struct Expression {
    regex: Regex,
    /// Number of states, which a search may visit at each byte of the text.
    states: usize,
}

/// Number of visits of states that cost one step.
const VISITS_PER_STEP: usize = 1 << 8;

impl Expression {
    /// Spends the steps of one search through the text.
    fn charge(&self, call: &mut Call<'_>, text: &str) -> Result<(), Failure> {
        call.heap.step(text.len().saturating_mul(self.states) / VISITS_PER_STEP)
    }
}

/// Time of the searches of one call that costs nothing.
const FREE: Duration = Duration::from_millis(100);
/// Number of steps that each millisecond costs from then on.
const STEPS_PER_MILLISECOND: usize = 1_000;

/// Searches for all matches in a text. Usually all searches together read the text once, which is
/// charged at the start. But each search may read the text to its end, also for a short match, and
/// the crate does not report the length: searches that take longer than [`FREE`] are charged by
/// their time.
struct Searches {
    started: Instant,
    /// Milliseconds that have been charged.
    charged: usize,
}

impl Searches {
    fn start(call: &mut Call<'_>, expression: &Expression, text: &str) -> Result<Self, Failure> {
        expression.charge(call, text)?;
        Ok(Self { started: Instant::now(), charged: 0 })
    }

    /// Spends the steps of a search that has found a match.
    fn count(&mut self, call: &mut Call<'_>) -> Result<(), Failure> {
        call.heap.step(1)?;
        let over = self.started.elapsed().saturating_sub(FREE).as_millis();
        let over = usize::try_from(over).unwrap_or(usize::MAX);
        let steps = over.saturating_sub(self.charged).saturating_mul(STEPS_PER_MILLISECOND);
        self.charged = over;
        call.heap.step(steps)
    }
}

/// How matches are replaced.
enum Replacement {
    /// `$1` or `${name}` stands for a group.
    Expanded,
    Literal,
}

/// Replaces all matches in a text.
fn replace(call: &mut Call<'_>, how: &Replacement) -> Result<Value, Failure> {
    let expression = compile(call)?;
    let text = subject(call, 1)?;
    let replacement = subject(call, 2)?;
    let references = match how {
        Replacement::Expanded => replacement.matches('$').count(),
        Replacement::Literal => 0,
    };
    let mut searches = Searches::start(call, &expression, &text)?;
    let mut replaced = String::new();
    let mut end = 0;
    for groups in expression.regex.captures_iter(&text) {
        searches.count(call)?;
        // The whole match always exists.
        let Some(found) = groups.get(0) else { continue };
        let longest = replacement.len() + references * found.len();
        call.heap.check_length(replaced.len() + found.start() - end + longest)?;
        replaced.push_str(&text[end..found.start()]);
        match how {
            Replacement::Expanded => groups.expand(&replacement, &mut replaced),
            Replacement::Literal => replaced.push_str(&replacement),
        }
        end = found.end();
    }
    call.heap.check_length(replaced.len() + text.len() - end)?;
    replaced.push_str(&text[end..]);
    call.make(replaced)
}

/// Returns an argument as UTF-8.
fn subject(call: &Call<'_>, index: usize) -> Result<String, Failure> {
    let text = call.text(index).bytes().to_vec();
    String::from_utf8(text).map_err(|_| Failure::Unsupported("a regular expression on binary data"))
}

/// Maximum length of an expression in bytes; each brace is searched for its end.
const PATTERN_MAX: usize = 8 << 10;

fn compile(call: &mut Call<'_>) -> Result<Expression, Failure> {
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
    let regex = builder.size_limit(SIZE).octal(true).build().map_err(|_| invalid(&pattern))?;
    let syntax = syntax::Config::new().octal(true);
    let automaton = NFA::compiler().syntax(syntax).build(&translated);
    let states = automaton.map_err(|_| invalid(&pattern))?.states().len();
    Ok(Expression { regex, states })
}

fn invalid(pattern: &Text) -> Failure {
    Failure::invalid("regular expression", pattern.bytes())
}

/// Splits a text at matches into at most `count` parts, as Go's `Regexp.Split` does.
fn split(
    call: &mut Call<'_>,
    expression: &Expression,
    text: &str,
    count: i64,
) -> Result<Option<Vec<Text>>, Failure> {
    if count == 0 {
        return Ok(None);
    }
    if !expression.regex.as_str().is_empty() && text.is_empty() {
        return Ok(Some(vec![Text::from("")]));
    }
    let mut searches = Searches::start(call, expression, text)?;
    let limit = usize::try_from(count).unwrap_or(usize::MAX);
    let mut parts = Vec::new();
    let mut start = 0;
    let mut end = 0;
    for found in expression.regex.find_iter(text).take(limit) {
        searches.count(call)?;
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
    Ok(Some(parts))
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
