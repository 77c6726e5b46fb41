//! Functions that templates call, and the types of their arguments.

use super::{
    environment::Environment,
    error::Failure,
    random::Random,
    text::Text,
    value::{Element, Heap, List, Map, Value},
};

/// Type of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Type {
    Any,
    Bool,
    /// Go's `int`, which excludes `int64`.
    Int,
    Float,
    Text,
    /// Go's `map[string]interface {}`.
    Map,
    Time,
}

impl Type {
    fn name(self) -> &'static str {
        match self {
            Self::Any => "interface {}",
            Self::Bool => "bool",
            Self::Int => "int",
            Self::Float => "float64",
            Self::Text => "string",
            Self::Map => "map[string]interface {}",
            Self::Time => "time.Time",
        }
    }

    fn accepts(self, value: &Value) -> bool {
        match self {
            Self::Any => true,
            Self::Map => matches!(value, Value::Map(map) if map.element == Element::Any),
            _ => self.name() == value.type_name(),
        }
    }

    /// Returns the value, or [`Failure::WrongType`] if it has another type.
    pub(super) fn check(self, value: Value) -> Result<Value, Failure> {
        if self.accepts(&value) {
            return Ok(value);
        }
        Err(Failure::WrongType { expected: self.name(), found: value.type_name() })
    }
}

/// Template function.
#[derive(Clone, Copy)]
pub(super) struct Function {
    pub(super) parameters: &'static [Type],
    /// Type of the variadic arguments after the parameters; `None` if the function is not variadic.
    pub(super) rest: Option<Type>,
    pub(super) body: fn(&mut Call<'_>) -> Result<Value, Failure>,
}

impl Function {
    /// Returns the type of the argument at this index.
    pub(super) fn argument_type(&self, index: usize) -> Type {
        self.parameters.get(index).copied().or(self.rest).unwrap_or(Type::Any)
    }
}

/// Call of a function; the arguments have the types of the parameters.
pub(super) struct Call<'a> {
    pub(super) arguments: Vec<Value>,
    pub(super) heap: &'a mut Heap,
    pub(super) random: &'a mut Random,
    pub(super) environment: &'a Environment,
}

impl Call<'_> {
    /// Returns an argument; nil if it is missing.
    pub(super) fn value(&self, index: usize) -> Value {
        self.arguments.get(index).cloned().unwrap_or(Value::Nil)
    }

    /// Returns the arguments from index `start`.
    pub(super) fn values(&self, start: usize) -> Vec<Value> {
        self.arguments.get(start..).unwrap_or_default().to_vec()
    }

    /// Returns an argument of [`Type::Text`].
    pub(super) fn text(&self, index: usize) -> Text {
        match self.arguments.get(index) {
            Some(Value::Text(text)) => text.clone(),
            _ => Text::from(""),
        }
    }

    /// Returns an argument of [`Type::Int`].
    pub(super) fn int(&self, index: usize) -> i64 {
        match self.arguments.get(index) {
            Some(Value::Integer { value, .. }) => *value,
            _ => 0,
        }
    }

    /// Returns an argument of [`Type::Map`].
    pub(super) fn map(&mut self, index: usize) -> Map {
        match self.arguments.get(index) {
            Some(Value::Map(map)) => *map,
            _ => self.heap.nil_map(),
        }
    }

    /// Returns a list with elements of any type, or [`Failure::WrongType`].
    pub(super) fn list(&self, index: usize) -> Result<List, Failure> {
        match self.arguments.get(index) {
            Some(Value::List(list)) => Ok(*list),
            other => {
                let found = other.map_or("nothing", Value::type_name);
                Err(Failure::WrongType { expected: "a list", found })
            }
        }
    }

    /// Returns the elements of a list.
    pub(super) fn items(&self, index: usize) -> Result<Vec<Value>, Failure> {
        Ok(self.heap.items(self.list(index)?).to_vec())
    }

    /// Makes a string, within the limits.
    pub(super) fn make(&mut self, text: impl Into<Text>) -> Result<Value, Failure> {
        self.heap.text(text)
    }
}
