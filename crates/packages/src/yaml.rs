//! YAML as KUDO parses it: YAML 1.1 of Go's `gopkg.in/yaml.v2`, converted to JSON by
//! `sigs.k8s.io/yaml`. For packages, parameter files and rendered manifests.
//!
//! `yes` is a boolean, `010` is 8, and the last of two equal keys wins. Only the first document is
//! parsed.
//!
//! Known differences: a tab may precede a key, and a lone `-` in `[-]` is an error.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "any other event begins a value, and any other value is a scalar"
)]

mod scalar;

use std::{collections::BTreeMap, iter::Peekable};

use granit_parser::{Event, Parser, ScalarStyle, ScanError, Span, StrInput, Tag};
use serde_json::{Map, Value};

pub use scalar::text;

/// Maximum nesting of lists and maps.
const MAX_DEPTH: usize = 100;
/// Maximum number of values in a document, with aliases expanded.
const MAX_VALUES: usize = 250_000;
/// Maximum number of bytes of strings in a document, with aliases expanded.
const MAX_BYTES: usize = 16 << 20;

/// Number of values and bytes of strings that may still be read, with aliases expanded.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    values_left: usize,
    bytes_left: usize,
    values: usize,
    bytes: usize,
}

impl Limits {
    /// Creates limits for one document, or for several together.
    #[must_use]
    pub const fn new(values: usize, bytes: usize) -> Self {
        Self { values_left: values, bytes_left: bytes, values, bytes }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self::new(MAX_VALUES, MAX_BYTES)
    }
}

/// Error of parsing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct Error {
    /// Line, from 1.
    pub line: usize,
    /// Description of the error.
    pub reason: String,
}

impl Error {
    fn new(line: usize, reason: impl Into<String>) -> Self {
        Self { line, reason: reason.into() }
    }
}

impl From<ScanError> for Error {
    fn from(error: ScanError) -> Self {
        Self::new(error.marker().line(), error.to_string())
    }
}

/// Parses the first document of a text; null if the text is empty. YAML integers become JSON
/// integers.
///
/// # Errors
///
/// [`Error`] with the line, if the text is not YAML, cannot be JSON, or exceeds a limit.
pub fn read(source: &str) -> Result<Value, Error> {
    read_within(source, &mut Limits::default())
}

/// Like [`read`], within limits for several documents together.
///
/// # Errors
///
/// As [`read`].
pub fn read_within(source: &str, limits: &mut Limits) -> Result<Value, Error> {
    let mut reader = Reader {
        events: Parser::new_from_str(source).peekable(),
        anchors: BTreeMap::new(),
        limits: *limits,
        deepest: 0,
        line: 1,
    };
    let document = reader.document();
    *limits = reader.limits;
    document
}

type Events<'a> = Peekable<Parser<'a, StrInput<'a>>>;

struct Reader<'a> {
    events: Events<'a>,
    anchors: BTreeMap<usize, Anchored>,
    limits: Limits,
    /// Deepest nesting since the last reset.
    deepest: usize,
    line: usize,
}

/// Value of an anchor.
struct Anchored {
    value: Value,
    size: Size,
}

/// Use of the limits by a value.
#[derive(Clone, Copy)]
struct Size {
    values: usize,
    bytes: usize,
    /// Levels of nesting.
    height: usize,
}

/// Key of a map.
enum Key {
    Name(String),
    /// `<<`: merges the entries of the value into the map.
    Merge,
}

impl<'a> Reader<'a> {
    fn document(&mut self) -> Result<Value, Error> {
        loop {
            match self.next()? {
                Event::StreamStart | Event::DocumentStart(..) | Event::Comment(..) => {}
                Event::StreamEnd | Event::DocumentEnd => return Ok(Value::Null),
                event => return self.value(event, 0),
            }
        }
    }

    fn next(&mut self) -> Result<Event<'a>, Error> {
        loop {
            let Some(next) = self.events.next() else { return Ok(Event::StreamEnd) };
            let (event, span): (Event<'a>, Span) = next?;
            self.line = span.start.line();
            if !matches!(event, Event::Comment(..)) {
                return Ok(event);
            }
        }
    }

    fn error(&self, reason: impl Into<String>) -> Error {
        Error::new(self.line, reason)
    }

    /// Checks and spends the limits for values and their bytes, at a depth.
    fn count(&mut self, values: usize, bytes: usize, depth: usize) -> Result<(), Error> {
        let Limits { values: most, bytes: longest, .. } = self.limits;
        let left = self.limits.values_left.checked_sub(values);
        self.limits.values_left =
            left.ok_or_else(|| self.error(format!("exceeds the limit of {most} values")))?;
        let left = self.limits.bytes_left.checked_sub(bytes);
        self.limits.bytes_left =
            left.ok_or_else(|| self.error(format!("exceeds the limit of {} MiB", longest >> 20)))?;
        if depth > MAX_DEPTH {
            return Err(self.error("exceeds the limit of 100 nested values"));
        }
        self.deepest = self.deepest.max(depth);
        Ok(())
    }

    /// Parses the value that begins with this event.
    fn value(&mut self, event: Event<'a>, depth: usize) -> Result<Value, Error> {
        let Some(id) = event.anchor_id() else { return self.unanchored(event, depth) };
        let values = self.limits.values_left;
        let bytes = self.limits.bytes_left;
        let around = std::mem::replace(&mut self.deepest, depth);
        let value = self.unanchored(event, depth)?;
        let size = Size {
            values: values - self.limits.values_left,
            bytes: bytes - self.limits.bytes_left,
            height: self.deepest - depth,
        };
        self.deepest = self.deepest.max(around);
        // The value is in memory twice.
        self.count(size.values, size.bytes, depth)?;
        self.anchors.insert(id, Anchored { value: value.clone(), size });
        Ok(value)
    }

    fn unanchored(&mut self, event: Event<'a>, depth: usize) -> Result<Value, Error> {
        match event {
            Event::Scalar(text, style, _, tag) => {
                self.count(1, text.len(), depth)?;
                self.scalar(&text, style, tag.as_deref())
            }
            Event::SequenceStart(..) => {
                self.count(1, 0, depth)?;
                self.list(depth)
            }
            Event::MappingStart(..) => {
                self.count(1, 0, depth)?;
                self.map(depth)
            }
            Event::Alias(id) => {
                let missing = |reader: &Self| reader.error("an anchor's value contains itself");
                let size = self.anchors.get(&id).map(|known| known.size);
                let Size { values, bytes, height } = size.ok_or_else(|| missing(self))?;
                self.count(values, bytes, depth + height)?;
                let known = self.anchors.get(&id).map(|known| known.value.clone());
                known.ok_or_else(|| missing(self))
            }
            _ => Err(self.error("a value is missing")),
        }
    }

    fn scalar(&self, text: &str, style: ScalarStyle, tag: Option<&Tag>) -> Result<Value, Error> {
        let resolved = scalar::resolve(text, style == ScalarStyle::Plain, tag);
        resolved.map_err(|error| self.error(error.to_string()))
    }

    fn list(&mut self, depth: usize) -> Result<Value, Error> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                Event::SequenceEnd => return Ok(Value::Array(items)),
                event => items.push(self.value(event, depth + 1)?),
            }
        }
    }

    fn map(&mut self, depth: usize) -> Result<Value, Error> {
        let mut entries = Map::new();
        loop {
            let key = match self.next()? {
                Event::MappingEnd => return Ok(Value::Object(entries)),
                event => self.key(event, depth)?,
            };
            let event = self.next()?;
            let value = self.value(event, depth + 1)?;
            match key {
                Key::Name(name) => drop(entries.insert(name, value)),
                Key::Merge => self.merge(&mut entries, value)?,
            }
        }
    }

    fn key(&mut self, event: Event<'a>, depth: usize) -> Result<Key, Error> {
        if let Event::Scalar(text, style, _, tag) = &event {
            let is_merge = match tag {
                None => *style == ScalarStyle::Plain,
                Some(tag) => tag.is_yaml_core_schema_tag("merge"),
            };
            if text == "<<" && is_merge {
                return Ok(Key::Merge);
            }
            if let (ScalarStyle::Plain, None, Some(name)) = (style, tag, scalar::infinite_key(text))
            {
                return Ok(Key::Name(name.to_owned()));
            }
        }
        let value = self.value(event, depth + 1)?;
        scalar::key(&value).map(Key::Name).ok_or_else(|| self.error("a key is no text or number"))
    }

    /// Adds the entries of a map, or of a list of maps, the first of which takes precedence.
    fn merge(&self, entries: &mut Map<String, Value>, value: Value) -> Result<(), Error> {
        let maps = match value {
            Value::Array(maps) => maps,
            value => vec![value],
        };
        for map in maps.into_iter().rev() {
            let Value::Object(map) = map else {
                return Err(self.error("map merge requires map or sequence of maps as the value"));
            };
            entries.extend(map);
        }
        Ok(())
    }
}

/// Splits rendered text into documents, at `---` at the start of a line, as KUDO does. Blank
/// documents are omitted.
#[must_use]
pub fn documents(text: &str) -> Vec<&str> {
    text.split("\n---").filter(|part| !part.trim().is_empty()).collect()
}
