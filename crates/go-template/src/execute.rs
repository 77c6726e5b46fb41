//! Rendering of a parsed template.

use std::collections::BTreeMap;

use super::{
    calls::{Call, Function, Type},
    data::Data,
    environment::Environment,
    error::{AtLine, Failure},
    functions,
    random::Random,
    syntax::{Branch, Command, Node, Number, Operand, Pipeline, TemplateCall},
    value::{Heap, IntegerType, Value, compare, print},
};

/// Deepest nesting of actions, calls and templates during a rendering.
const MAX_NESTING: usize = 250;

/// State of one rendering.
pub(super) struct Execution<'a> {
    definitions: &'a BTreeMap<String, Vec<Node>>,
    name: &'a str,
    environment: &'a Environment,
    heap: Heap,
    random: Random,
    output: Vec<u8>,
    /// Variables in scope, innermost last.
    variables: Vec<Variable<'a>>,
    nesting: usize,
    /// Current line, for errors.
    line: usize,
}

/// Template variable.
struct Variable<'a> {
    name: &'a str,
    value: Value,
    /// True if `range` set the variable to an element, which is never Go's untyped nil.
    is_element: bool,
}

impl<'a> Variable<'a> {
    fn new(name: &'a str, value: Value) -> Self {
        Self { name, value, is_element: false }
    }
}

/// Control flow after a node.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flow {
    Next,
    Break,
    Continue,
}

impl<'a> Execution<'a> {
    pub(super) fn new(
        definitions: &'a BTreeMap<String, Vec<Node>>,
        name: &'a str,
        environment: &'a Environment,
    ) -> Self {
        Self {
            definitions,
            name,
            environment,
            heap: Heap::new(environment.limits),
            random: Random::new(&environment.seed),
            output: Vec::new(),
            variables: Vec::new(),
            nesting: 0,
            line: 1,
        }
    }

    /// Renders the template.
    pub(super) fn run(&mut self, data: &Data) -> Result<String, AtLine> {
        self.render(data).map_err(|failure| (self.line, failure))?;
        let output = std::mem::take(&mut self.output);
        String::from_utf8(output).map_err(|_| (self.line, Failure::NotUtf8))
    }

    /// Returns the number of steps left.
    pub(super) fn steps_left(&self) -> u64 {
        self.heap.steps_left()
    }

    fn render(&mut self, data: &Data) -> Result<(), Failure> {
        let dot = data.on(&mut self.heap)?;
        self.variables.push(Variable::new("$", dot.clone()));
        let nodes = self.definitions.get(self.name).map_or(&[][..], Vec::as_slice);
        self.nodes(&dot, nodes).map(|_| ())
    }

    /// Runs `evaluate` one nesting level deeper.
    fn nested<T>(
        &mut self,
        evaluate: impl FnOnce(&mut Self) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        if self.nesting == MAX_NESTING {
            return Err(Failure::Limit("250 nested actions and templates"));
        }
        self.nesting += 1;
        let result = evaluate(self);
        self.nesting -= 1;
        result
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.output.extend(bytes);
        if self.output.len() > self.environment.limits.text {
            return Err(Failure::Limit("the length of the output"));
        }
        Ok(())
    }

    fn nodes(&mut self, dot: &Value, nodes: &'a [Node]) -> Result<Flow, Failure> {
        for node in nodes {
            self.heap.step(1)?;
            let flow = self.nested(|execution| execution.node(dot, node))?;
            if flow != Flow::Next {
                return Ok(flow);
            }
        }
        Ok(Flow::Next)
    }

    fn node(&mut self, dot: &Value, node: &'a Node) -> Result<Flow, Failure> {
        match node {
            Node::Text(text) => self.write(text)?,
            Node::Action(pipeline) => {
                let value = self.pipeline(dot, pipeline)?;
                if pipeline.variables.is_empty() {
                    self.print(&value)?;
                }
            }
            Node::If(branch) => return self.branch(dot, branch, false),
            Node::With(branch) => return self.branch(dot, branch, true),
            Node::Range(branch) => return self.range(dot, branch),
            Node::Call(call) => self.template(dot, call)?,
            Node::Break => return Ok(Flow::Break),
            Node::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::Next)
    }

    fn print(&mut self, value: &Value) -> Result<(), Failure> {
        let text = match value {
            Value::Nil => b"<no value>".to_vec(),
            value => print::plain(&self.heap, value)?,
        };
        self.write(&text)
    }

    fn branch(&mut self, dot: &Value, branch: &'a Branch, sets_dot: bool) -> Result<Flow, Failure> {
        let variables = self.variables.len();
        let value = self.pipeline(dot, &branch.pipeline)?;
        let flow = if compare::is_true(&self.heap, &value) {
            self.nodes(if sets_dot { &value } else { dot }, &branch.body)
        } else {
            self.nodes(dot, &branch.otherwise)
        };
        self.variables.truncate(variables);
        flow
    }

    fn range(&mut self, dot: &Value, branch: &'a Branch) -> Result<Flow, Failure> {
        let variables = self.variables.len();
        let value = self.pipeline(dot, &branch.pipeline)?;
        let declared = self.variables.len();
        let mut turns = Turns::of(&self.heap, &value)?;
        if turns.has_no_index && branch.pipeline.variables.len() > 1 {
            return Err(Failure::WrongType { expected: "a list or map", found: "a number" });
        }
        let mut flow = Flow::Next;
        let mut is_empty = true;
        while let Some((index, item)) = turns.next(&self.heap) {
            is_empty = false;
            self.heap.step(1)?;
            self.set_range_variables(&branch.pipeline, index, &item)?;
            flow = self.nodes(&item, &branch.body)?;
            self.variables.truncate(declared);
            if flow == Flow::Break {
                break;
            }
        }
        if is_empty {
            flow = self.nodes(dot, &branch.otherwise)?;
        }
        self.variables.truncate(variables);
        // A break ends this range, even from its {{else}}.
        Ok(if is_empty && flow == Flow::Continue { flow } else { Flow::Next })
    }

    /// Sets the variables of a `range`: the element to the only variable, or the index and the
    /// element.
    fn set_range_variables(
        &mut self,
        pipeline: &'a Pipeline,
        index: Value,
        item: &Value,
    ) -> Result<(), Failure> {
        let values = match pipeline.variables.len() {
            0 => return Ok(()),
            1 => vec![item.clone()],
            _ => vec![index, item.clone()],
        };
        if pipeline.assigns {
            for (name, value) in pipeline.variables.iter().zip(values) {
                self.assign(name, value)?.is_element = true;
            }
            return Ok(());
        }
        let start = self.variables.len() - values.len();
        for (variable, value) in self.variables[start..].iter_mut().zip(values) {
            variable.value = value;
            variable.is_element = true;
        }
        Ok(())
    }

    fn template(&mut self, dot: &Value, call: &'a TemplateCall) -> Result<(), Failure> {
        self.line = call.line;
        let Some(nodes) = self.definitions.get(&call.name) else {
            return Err(Failure::UndefinedTemplate(call.name.clone()));
        };
        let dot = match &call.pipeline {
            Some(pipeline) => self.pipeline(dot, pipeline)?,
            None => Value::Nil,
        };
        let variables =
            std::mem::replace(&mut self.variables, vec![Variable::new("$", dot.clone())]);
        self.nodes(&dot, nodes)?;
        self.variables = variables;
        Ok(())
    }

    fn variable(&self, name: &str) -> Result<&Variable<'a>, Failure> {
        let found = self.variables.iter().rev().find(|variable| variable.name == name);
        found.ok_or_else(|| Failure::UndefinedVariable(name.to_owned()))
    }

    fn assign(&mut self, name: &str, value: Value) -> Result<&mut Variable<'a>, Failure> {
        let found = self.variables.iter_mut().rev().find(|variable| variable.name == name);
        let variable = found.ok_or_else(|| Failure::UndefinedVariable(name.to_owned()))?;
        variable.value = value;
        variable.is_element = false;
        Ok(variable)
    }

    fn pipeline(&mut self, dot: &Value, pipeline: &'a Pipeline) -> Result<Value, Failure> {
        self.line = pipeline.line;
        let mut value = None;
        for command in &pipeline.commands {
            value = Some(self.nested(|execution| execution.command(dot, command, value))?);
        }
        let value = value.unwrap_or(Value::Nil);
        for name in &pipeline.variables {
            if pipeline.assigns {
                self.assign(name, value.clone())?;
            } else {
                self.variables.push(Variable::new(name, value.clone()));
            }
        }
        Ok(value)
    }

    /// Evaluates a command; `last` is the result of the previous command.
    fn command(
        &mut self,
        dot: &Value,
        command: &'a Command,
        last: Option<Value>,
    ) -> Result<Value, Failure> {
        self.line = command.line;
        let arguments = Arguments { dot, operands: &command.arguments, last };
        match &command.first {
            Operand::Function(name) => self.function(name, arguments),
            Operand::Field(names) => self.fields(dot.clone(), names, arguments),
            Operand::Variable { name, fields: names } if !names.is_empty() => {
                let receiver = self.variable(name)?.value.clone();
                self.fields(receiver, names, arguments)
            }
            Operand::Chain { inner, fields: names } => {
                let receiver = self.operand(dot, inner)?;
                self.fields(receiver, names, arguments)
            }
            first if !arguments.is_empty() => Err(Failure::NotAFunction(described(first))),
            Operand::Nil => Err(Failure::NotAFunction("nil".to_owned())),
            first => self.operand(dot, first),
        }
    }

    /// Evaluates an operand without arguments.
    fn operand(&mut self, dot: &Value, operand: &'a Operand) -> Result<Value, Failure> {
        let arguments = Arguments { dot, operands: &[], last: None };
        match operand {
            Operand::Dot => Ok(dot.clone()),
            Operand::Nil => Ok(Value::Nil),
            Operand::Bool(value) => Ok(Value::Bool(*value)),
            Operand::Text(text) => Ok(Value::text(text.as_slice())),
            Operand::Number(number) => Ok(ideal(*number)),
            Operand::Field(names) => self.fields(dot.clone(), names, arguments),
            Operand::Variable { name, fields: names } => {
                let receiver = self.variable(name)?.value.clone();
                if names.is_empty() {
                    return Ok(receiver);
                }
                self.fields(receiver, names, arguments)
            }
            Operand::Function(name) => self.function(name, arguments),
            Operand::Parentheses(pipeline) => self.pipeline(dot, pipeline),
            Operand::Chain { inner, fields: names } => {
                let receiver = self.nested(|execution| execution.operand(dot, inner))?;
                self.fields(receiver, names, arguments)
            }
        }
    }

    /// Reads a chain of fields; the last may be a method with arguments.
    fn fields(
        &mut self,
        mut receiver: Value,
        names: &'a [String],
        arguments: Arguments<'_, 'a>,
    ) -> Result<Value, Failure> {
        let Some((last, others)) = names.split_last() else { return Ok(receiver) };
        for name in others {
            receiver = self.field(&receiver, name, None)?;
        }
        self.field(&receiver, last, Some(arguments))
    }

    fn field(
        &mut self,
        receiver: &Value,
        name: &str,
        arguments: Option<Arguments<'_, 'a>>,
    ) -> Result<Value, Failure> {
        match receiver {
            Value::Nil => Err(Failure::NoEntry(name.to_owned())),
            Value::Map(map) => {
                if arguments.is_some_and(|arguments| !arguments.is_empty()) {
                    return Err(Failure::NotAFunction(name.to_owned()));
                }
                let entry = self.heap.entries(*map).get(&name.into());
                entry.cloned().ok_or_else(|| Failure::NoEntry(name.to_owned()))
            }
            receiver => {
                let values = match arguments {
                    Some(arguments) => self.values(arguments)?,
                    None => Vec::new(),
                };
                functions::method(receiver, name, &values)
            }
        }
    }

    /// Evaluates arguments without checking their types.
    fn values(&mut self, arguments: Arguments<'_, 'a>) -> Result<Vec<Value>, Failure> {
        let mut values = Vec::new();
        for operand in arguments.operands {
            values.push(self.operand(arguments.dot, operand)?);
        }
        values.extend(arguments.last);
        Ok(values)
    }

    fn function(&mut self, name: &str, arguments: Arguments<'_, 'a>) -> Result<Value, Failure> {
        let Some(function) = functions::find(name) else {
            return Err(Failure::UnknownFunction(name.to_owned()));
        };
        let found = arguments.operands.len() + usize::from(arguments.last.is_some());
        let expected = function.parameters.len();
        if found < expected || found > expected && function.rest.is_none() {
            return Err(Failure::ArgumentCount { function: name.to_owned(), expected, found });
        }
        self.heap.step(1)?;
        match name {
            "and" => self.first_with(false, arguments),
            "or" => self.first_with(true, arguments),
            _ => self.call(&function, arguments),
        }
    }

    /// Returns the first argument with this truth value, otherwise the last argument.
    fn first_with(&mut self, truth: bool, arguments: Arguments<'_, 'a>) -> Result<Value, Failure> {
        let mut value = Value::Nil;
        for operand in arguments.operands {
            value = self.nested(|execution| execution.operand(arguments.dot, operand))?;
            if compare::is_true(&self.heap, &value) == truth {
                return Ok(value);
            }
        }
        Ok(arguments.last.unwrap_or(value))
    }

    fn call(
        &mut self,
        function: &Function,
        arguments: Arguments<'_, 'a>,
    ) -> Result<Value, Failure> {
        let mut values = Vec::new();
        for (index, operand) in arguments.operands.iter().enumerate() {
            let kind = function.argument_type(index);
            values.push(self.argument(arguments.dot, operand, kind)?);
        }
        if let Some(last) = arguments.last {
            let kind = function.argument_type(values.len());
            let last = if kind == Type::Map { self.or_nil_map(last) } else { last };
            values.push(kind.check(last)?);
        }
        self.heap.charge(&values)?;
        let mut call = Call {
            arguments: values,
            heap: &mut self.heap,
            random: &mut self.random,
            environment: self.environment,
        };
        (function.body)(&mut call)
    }

    /// Evaluates an argument for a parameter of type `kind`.
    fn argument(
        &mut self,
        dot: &Value,
        operand: &'a Operand,
        kind: Type,
    ) -> Result<Value, Failure> {
        if let (Operand::Number(number), Type::Int | Type::Float) = (operand, kind) {
            let value = match kind {
                Type::Int => number.integer.map(Value::int),
                _ => Some(Value::Float(number.float)),
            };
            return value.map_or_else(|| kind.check(ideal(*number)), Ok);
        }
        let value = self.nested(|execution| execution.operand(dot, operand))?;
        // Nil from a literal, pipeline or variable is Go's untyped nil, which is also a nil map.
        let is_untyped = match operand {
            Operand::Nil | Operand::Parentheses(_) => true,
            Operand::Variable { name, fields: names } => {
                names.is_empty() && !self.variable(name)?.is_element
            }
            Operand::Dot
            | Operand::Bool(_)
            | Operand::Text(_)
            | Operand::Number(_)
            | Operand::Field(_)
            | Operand::Function(_)
            | Operand::Chain { .. } => false,
        };
        let value = if is_untyped && kind == Type::Map { self.or_nil_map(value) } else { value };
        kind.check(value)
    }

    fn or_nil_map(&mut self, value: Value) -> Value {
        match value {
            Value::Nil => Value::Map(self.heap.nil_map()),
            value => value,
        }
    }
}

/// Arguments of a command.
struct Arguments<'d, 'a> {
    dot: &'d Value,
    operands: &'a [Operand],
    /// Result of the previous command, passed as the last argument.
    last: Option<Value>,
}

impl Arguments<'_, '_> {
    fn is_empty(&self) -> bool {
        self.operands.is_empty() && self.last.is_none()
    }
}

/// Returns the value of an untyped constant.
fn ideal(number: Number) -> Value {
    match number.integer {
        Some(integer) if !number.is_float => Value::int(integer),
        _ => Value::Float(number.float),
    }
}

fn described(operand: &Operand) -> String {
    match operand {
        Operand::Dot => ".".to_owned(),
        Operand::Nil => "nil".to_owned(),
        Operand::Bool(value) => value.to_string(),
        Operand::Text(text) => format!("{:?}", String::from_utf8_lossy(text)),
        Operand::Number(number) => number.float.to_string(),
        Operand::Field(names) => format!(".{}", names.join(".")),
        Operand::Variable { name, .. } | Operand::Function(name) => name.clone(),
        Operand::Parentheses(_) | Operand::Chain { .. } => "a value in parentheses".to_owned(),
    }
}

/// Iteration of a `range`.
struct Turns {
    over: Over,
    turn: usize,
    /// True if the elements have no index.
    has_no_index: bool,
}

enum Over {
    List(super::value::List),
    Entries(Vec<(Value, Value)>),
    Count { count: i64, kind: IntegerType },
}

impl Turns {
    fn of(heap: &Heap, value: &Value) -> Result<Self, Failure> {
        let over = match value {
            Value::List(list) => Over::List(*list),
            Value::Map(map) => {
                let mut entries = Vec::new();
                for (key, value) in heap.entries(*map) {
                    entries.push((Value::Text(key.clone()), value.clone()));
                }
                Over::Entries(entries)
            }
            Value::Nil => Over::Entries(Vec::new()),
            Value::Integer { value: count, kind } => Over::Count { count: *count, kind: *kind },
            Value::Bool(_)
            | Value::Float(_)
            | Value::Text(_)
            | Value::Time(_)
            | Value::Version(_) => {
                return Err(Failure::WrongType {
                    expected: "a list, map or count",
                    found: value.type_name(),
                });
            }
        };
        Ok(Self { has_no_index: matches!(over, Over::Count { .. }), over, turn: 0 })
    }

    /// Returns the next index or key, and its element.
    fn next(&mut self, heap: &Heap) -> Option<(Value, Value)> {
        let turn = self.turn;
        self.turn += 1;
        let index = i64::try_from(turn).ok()?;
        match &self.over {
            // The list may be sorted during the iteration.
            Over::List(list) => Some((Value::int(index), heap.items(*list).get(turn)?.clone())),
            Over::Entries(entries) => entries.get(turn).cloned(),
            Over::Count { count, kind } => {
                (index < *count).then(|| (Value::Nil, Value::Integer { value: index, kind: *kind }))
            }
        }
    }
}
