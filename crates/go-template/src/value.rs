//! Values of templates, with their Go types.

pub(super) mod compare;
pub(super) mod convert;
pub(super) mod json;
pub(super) mod print;
pub(super) mod yaml;

use std::{collections::BTreeMap, rc::Rc};

use super::{
    environment::{Limits, MAX_DEPTH, STEPS},
    error::Failure,
    text::Text,
    time::Time,
    version::Version,
};

/// Value. Lists and maps are stored in a [`Heap`].
#[derive(Clone, Debug)]
pub(super) enum Value {
    Nil,
    Bool(bool),
    Integer { value: i64, kind: IntegerType },
    Float(f64),
    Text(Text),
    List(List),
    Map(Map),
    Time(Time),
    Version(Rc<Version>),
}

/// Go type of an integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IntegerType {
    /// `int`, of literals and counts.
    Int,
    /// `int64`, of arithmetic.
    Int64,
    /// `uint8`, of an indexed text.
    Byte,
}

/// Go type of a list's elements, or of a map's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Element {
    Any,
    Text,
    Int,
}

/// Slice of a list in a [`Heap`]; slices of one list share its elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    cells: usize,
    start: usize,
    end: usize,
    pub(super) element: Element,
    /// True for Go's nil slice, which is `null` in JSON.
    pub(super) is_nil: bool,
}

impl List {
    pub(super) fn len(self) -> usize {
        self.end - self.start
    }
}

/// Map in a [`Heap`]; copies of the value share its entries.
#[derive(Clone, Copy, Debug)]
pub(super) struct Map {
    cells: usize,
    pub(super) element: Element,
    /// True for Go's nil map, in which no entry can be set.
    pub(super) is_nil: bool,
}

impl Value {
    pub(super) fn int(value: i64) -> Self {
        Self::Integer { value, kind: IntegerType::Int }
    }

    pub(super) fn int64(value: i64) -> Self {
        Self::Integer { value, kind: IntegerType::Int64 }
    }

    pub(super) fn text(text: impl Into<Text>) -> Self {
        Self::Text(text.into())
    }

    /// Returns the name of the Go type.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Self::Nil => "<nil>",
            Self::Bool(_) => "bool",
            Self::Integer { kind: IntegerType::Int, .. } => "int",
            Self::Integer { kind: IntegerType::Int64, .. } => "int64",
            Self::Integer { kind: IntegerType::Byte, .. } => "uint8",
            Self::Float(_) => "float64",
            Self::Text(_) => "string",
            Self::List(List { element: Element::Any, .. }) => "[]interface {}",
            Self::List(List { element: Element::Text, .. }) => "[]string",
            Self::List(List { element: Element::Int, .. }) => "[]int",
            Self::Map(Map { element: Element::Text, .. }) => "map[string]string",
            Self::Map(_) => "map[string]interface {}",
            Self::Time(_) => "time.Time",
            Self::Version(_) => "*semver.Version",
        }
    }

    /// Returns the name of the Go kind.
    pub(super) fn kind_name(&self) -> &'static str {
        match self {
            Self::Nil => "invalid",
            Self::Bool(_) | Self::Integer { .. } | Self::Float(_) | Self::Text(_) => {
                self.type_name()
            }
            Self::List(_) => "slice",
            Self::Map(_) => "map",
            Self::Time(_) => "struct",
            Self::Version(_) => "ptr",
        }
    }
}

/// Lists and maps of one rendering, and the rest of its limits. Values are freed only at the end,
/// because maps may contain themselves.
#[derive(Debug)]
pub(super) struct Heap {
    lists: Vec<Vec<Value>>,
    maps: Vec<BTreeMap<Text, Value>>,
    limits: Limits,
}

impl Heap {
    pub(super) fn new(limits: Limits) -> Self {
        Self { lists: Vec::new(), maps: Vec::new(), limits }
    }

    /// Spends steps of the rendering.
    pub(super) fn step(&mut self, count: usize) -> Result<(), Failure> {
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        self.limits.steps = self.limits.steps.checked_sub(count).ok_or(Failure::Limit(STEPS))?;
        Ok(())
    }

    /// Returns the number of steps left.
    pub(super) fn steps_left(&self) -> u64 {
        self.limits.steps
    }

    /// Spends the steps of reading arguments: the bytes of strings and of strings in lists, and the
    /// elements of lists.
    pub(super) fn charge(&mut self, arguments: &[Value]) -> Result<(), Failure> {
        let mut bytes = 0;
        let mut elements = 0;
        for argument in arguments {
            bytes += length(argument);
            if let Value::List(list) = argument {
                elements += list.len();
                bytes += self.items(*list).iter().map(length).sum::<usize>();
            }
        }
        self.check_length(bytes)?;
        self.step(bytes / BYTES_PER_STEP + elements)
    }

    /// Checks the length of a string under construction.
    pub(super) fn check_length(&self, length: usize) -> Result<(), Failure> {
        if length > 2 * self.limits.text {
            return Err(Failure::Limit("the length of a text"));
        }
        Ok(())
    }

    /// Spends the memory of a new string.
    pub(super) fn reserve(&mut self, bytes: usize) -> Result<(), Failure> {
        if bytes > self.limits.text {
            return Err(Failure::Limit("the length of a text"));
        }
        let left = self.limits.memory.checked_sub(bytes);
        self.limits.memory = left.ok_or(Failure::Limit("memory"))?;
        Ok(())
    }

    /// Makes a string.
    pub(super) fn text(&mut self, text: impl Into<Text>) -> Result<Value, Failure> {
        let text = text.into();
        self.reserve(text.bytes().len())?;
        Ok(Value::Text(text))
    }

    /// Makes a list.
    pub(super) fn list(&mut self, items: Vec<Value>, element: Element) -> Result<Value, Failure> {
        self.step(items.len())?;
        let end = items.len();
        self.lists.push(items);
        let cells = self.lists.len() - 1;
        Ok(Value::List(List { cells, start: 0, end, element, is_nil: false }))
    }

    /// Makes a list of strings.
    pub(super) fn texts(&mut self, texts: Vec<Text>) -> Result<Value, Failure> {
        self.list(texts.into_iter().map(Value::Text).collect(), Element::Text)
    }

    /// Makes Go's nil slice.
    pub(super) fn nil_list(&mut self, element: Element) -> Value {
        self.lists.push(Vec::new());
        let cells = self.lists.len() - 1;
        Value::List(List { cells, start: 0, end: 0, element, is_nil: true })
    }

    /// Returns the elements of a list.
    pub(super) fn items(&self, list: List) -> &[Value] {
        &self.lists[list.cells][list.start..list.end]
    }

    /// Returns the elements of a list, which all its slices share.
    pub(super) fn items_mut(&mut self, list: List) -> &mut [Value] {
        &mut self.lists[list.cells][list.start..list.end]
    }

    /// Returns a slice of a list; `None` if out of range.
    pub(super) fn part(list: List, start: i64, end: i64) -> Option<Value> {
        let first = usize::try_from(start).ok()?;
        let after = usize::try_from(end).ok()?;
        if first > after || after > list.len() {
            return None;
        }
        let part = List { start: list.start + first, end: list.start + after, ..list };
        Some(Value::List(part))
    }

    /// Makes a map.
    pub(super) fn map(
        &mut self,
        entries: BTreeMap<Text, Value>,
        element: Element,
    ) -> Result<Value, Failure> {
        self.step(entries.len() + 1)?;
        self.maps.push(entries);
        let cells = self.maps.len() - 1;
        Ok(Value::Map(Map { cells, element, is_nil: false }))
    }

    /// Makes Go's nil map.
    pub(super) fn nil_map(&mut self) -> Map {
        self.maps.push(BTreeMap::new());
        Map { cells: self.maps.len() - 1, element: Element::Any, is_nil: true }
    }

    /// Returns the entries of a map.
    pub(super) fn entries(&self, map: Map) -> &BTreeMap<Text, Value> {
        &self.maps[map.cells]
    }

    /// Returns the entries of a map, which all copies of it share.
    pub(super) fn entries_mut(&mut self, map: Map) -> &mut BTreeMap<Text, Value> {
        &mut self.maps[map.cells]
    }
}

/// Bytes that a function reads in one step.
pub(super) const BYTES_PER_STEP: usize = 64;

fn length(value: &Value) -> usize {
    match value {
        Value::Text(text) => text.bytes().len(),
        _ => 0,
    }
}

/// Returns `depth + 1`, unless values are nested too deeply.
pub(super) fn deeper(depth: usize) -> Result<usize, Failure> {
    if depth < MAX_DEPTH { Ok(depth + 1) } else { Err(Failure::Limit("100 nested values")) }
}
