//! Parser of templates.

use std::collections::BTreeMap;

use super::{
    environment::MAX_DEPTH,
    error::{AtLine, Failure},
    functions,
    lexer::{self, Kind, Token},
    syntax::{Branch, Command, Node, Number, Operand, Pipeline, TemplateCall},
    text::literal,
};

/// Maximum number of variables in scope.
const MAX_VARIABLES: usize = 1_000;

/// Parses a template. Returns its nodes and those of the templates that it defines, by name.
pub(super) fn parse(name: &str, text: &str) -> Result<BTreeMap<String, Vec<Node>>, AtLine> {
    let mut parser = Parser {
        tokens: lexer::tokens(text)?,
        position: 0,
        scope: Scope::new(),
        depth: 0,
        definitions: BTreeMap::new(),
    };
    let nodes = parser.template()?;
    parser.define(name, nodes)?;
    Ok(parser.definitions)
}

struct Parser<'a> {
    tokens: Vec<Token<'a>>,
    position: usize,
    scope: Scope,
    /// Nesting depth of actions and parentheses.
    depth: usize,
    definitions: BTreeMap<String, Vec<Node>>,
}

/// Variables and loops around an action.
struct Scope {
    variables: Vec<String>,
    /// Number of enclosing `range` actions.
    ranges: usize,
}

impl Scope {
    fn new() -> Self {
        Self { variables: vec!["$".to_owned()], ranges: 0 }
    }
}

/// Keyword that ended a list of nodes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    End,
    Else,
}

/// Node, or the end of its list.
enum Item {
    Node(Node),
    Ending(Ending),
}

/// Keyword of a branch.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BranchKind {
    If,
    With,
    Range,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Token<'a> {
        self.tokens[self.position]
    }

    fn next(&mut self) -> Token<'a> {
        let token = self.peek();
        if token.kind != Kind::EndOfText {
            self.position += 1;
        }
        token
    }

    fn skip_space(&mut self) {
        while self.peek().kind == Kind::Space {
            self.position += 1;
        }
    }

    fn next_word(&mut self) -> Token<'a> {
        self.skip_space();
        self.next()
    }

    fn expect_close(&mut self, context: &'static str) -> Result<(), AtLine> {
        let token = self.next_word();
        if token.kind == Kind::Close { Ok(()) } else { Err(unexpected(token, context)) }
    }

    /// Runs `parse` one nesting level deeper.
    fn nested<T>(
        &mut self,
        parse: impl FnOnce(&mut Self) -> Result<T, AtLine>,
    ) -> Result<T, AtLine> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err((self.peek().line, Failure::Limit("100 nested actions")));
        }
        let result = parse(self);
        self.depth -= 1;
        result
    }

    /// Parses up to the end of the text.
    fn template(&mut self) -> Result<Vec<Node>, AtLine> {
        let mut nodes = Vec::new();
        loop {
            let token = self.peek();
            if token.kind == Kind::EndOfText {
                return Ok(nodes);
            }
            let start = self.position;
            self.position += 1;
            if token.kind == Kind::Open && self.next_word().kind == Kind::Define {
                self.definition()?;
                continue;
            }
            self.position = start;
            match self.item()? {
                Item::Node(node) => nodes.push(node),
                Item::Ending(ending) => return Err(unexpected_ending(token.line, ending)),
            }
        }
    }

    fn definition(&mut self) -> Result<(), AtLine> {
        let name = self.template_name("define")?;
        self.expect_close("define")?;
        let body = self.separate_body()?;
        self.define(&name, body)
    }

    /// Parses nodes up to `{{ end }}`, without the variables of the enclosing text.
    fn separate_body(&mut self) -> Result<Vec<Node>, AtLine> {
        let around = std::mem::replace(&mut self.scope, Scope::new());
        let line = self.peek().line;
        let (body, ending) = self.nested(Self::list)?;
        self.scope = around;
        match ending {
            Ending::End => Ok(body),
            Ending::Else => Err(unexpected_ending(line, ending)),
        }
    }

    /// Adds a definition, which may replace an empty one; a second definition that is not empty is
    /// an error.
    fn define(&mut self, name: &str, nodes: Vec<Node>) -> Result<(), AtLine> {
        let defined = self.definitions.get(name);
        if defined.is_none_or(|nodes| is_empty(nodes)) {
            self.definitions.insert(name.to_owned(), nodes);
        } else if !is_empty(&nodes) {
            let message = format!("template {name:?} is defined twice");
            return Err((self.peek().line, Failure::Syntax(message)));
        }
        Ok(())
    }

    /// Parses nodes up to `{{ end }}` or `{{ else }}`.
    fn list(&mut self) -> Result<(Vec<Node>, Ending), AtLine> {
        let mut nodes = Vec::new();
        loop {
            self.skip_space();
            let token = self.peek();
            if token.kind == Kind::EndOfText {
                let message = "an action is not ended by {{end}}".to_owned();
                return Err((token.line, Failure::Syntax(message)));
            }
            match self.item()? {
                Item::Node(node) => nodes.push(node),
                Item::Ending(ending) => return Ok((nodes, ending)),
            }
        }
    }

    fn item(&mut self) -> Result<Item, AtLine> {
        let token = self.next_word();
        match token.kind {
            Kind::Text => Ok(Item::Node(Node::Text(token.text.as_bytes().to_vec()))),
            Kind::Open => self.action(),
            _ => Err(unexpected(token, "the text")),
        }
    }

    fn action(&mut self) -> Result<Item, AtLine> {
        let start = self.position;
        let token = self.next_word();
        let node = match token.kind {
            Kind::Block => self.block(token.line)?,
            Kind::Break | Kind::Continue => self.jump(token)?,
            Kind::Else => {
                self.skip_space();
                // `branch()` parses the rest of "else if" and "else with".
                if !matches!(self.peek().kind, Kind::If | Kind::With) {
                    self.expect_close("else")?;
                }
                return Ok(Item::Ending(Ending::Else));
            }
            Kind::End => {
                self.expect_close("end")?;
                return Ok(Item::Ending(Ending::End));
            }
            Kind::If => Node::If(self.branch(BranchKind::If)?),
            Kind::With => Node::With(self.branch(BranchKind::With)?),
            Kind::Range => Node::Range(self.branch(BranchKind::Range)?),
            Kind::Template => self.template_call(token.line)?,
            _ => {
                self.position = start;
                Node::Action(self.pipeline("an action", Kind::Close)?)
            }
        };
        Ok(Item::Node(node))
    }

    fn jump(&mut self, token: Token<'a>) -> Result<Node, AtLine> {
        self.expect_close("break or continue")?;
        if self.scope.ranges == 0 {
            let message = format!("{} is outside of a range", token.text);
            return Err((token.line, Failure::Syntax(message)));
        }
        Ok(if token.kind == Kind::Break { Node::Break } else { Node::Continue })
    }

    fn block(&mut self, line: usize) -> Result<Node, AtLine> {
        let name = self.template_name("block")?;
        let pipeline = Some(self.pipeline("block", Kind::Close)?);
        let body = self.separate_body()?;
        self.define(&name, body)?;
        Ok(Node::Call(TemplateCall { line, name, pipeline }))
    }

    fn template_call(&mut self, line: usize) -> Result<Node, AtLine> {
        let name = self.template_name("template")?;
        self.skip_space();
        let pipeline = if self.peek().kind == Kind::Close {
            self.position += 1;
            None
        } else {
            Some(self.pipeline("template", Kind::Close)?)
        };
        Ok(Node::Call(TemplateCall { line, name, pipeline }))
    }

    fn template_name(&mut self, context: &'static str) -> Result<String, AtLine> {
        let token = self.next_word();
        let name = match token.kind {
            Kind::Quoted => unquoted(token)?,
            Kind::RawQuoted => raw(token),
            _ => return Err(unexpected(token, context)),
        };
        Ok(String::from_utf8_lossy(&name).into_owned())
    }

    fn branch(&mut self, kind: BranchKind) -> Result<Branch, AtLine> {
        self.nested(|parser| {
            let variables = parser.scope.variables.len();
            let context = match kind {
                BranchKind::If => "if",
                BranchKind::With => "with",
                BranchKind::Range => "range",
            };
            let pipeline = parser.pipeline(context, Kind::Close)?;
            let is_range = usize::from(kind == BranchKind::Range);
            parser.scope.ranges += is_range;
            let (body, ending) = parser.list()?;
            parser.scope.ranges -= is_range;
            let otherwise = match ending {
                Ending::End => Vec::new(),
                Ending::Else => parser.otherwise(kind)?,
            };
            parser.scope.variables.truncate(variables);
            Ok(Branch { pipeline, body, otherwise })
        })
    }

    /// Parses the rest of `{{ else if }}` or `{{ else with }}`, or the body of `{{ else }}`.
    fn otherwise(&mut self, kind: BranchKind) -> Result<Vec<Node>, AtLine> {
        let token = self.peek();
        match (kind, token.kind) {
            (BranchKind::If, Kind::If) => {
                self.position += 1;
                Ok(vec![Node::If(self.branch(BranchKind::If)?)])
            }
            (BranchKind::With, Kind::With) => {
                self.position += 1;
                Ok(vec![Node::With(self.branch(BranchKind::With)?)])
            }
            _ => {
                let (nodes, ending) = self.list()?;
                match ending {
                    Ending::End => Ok(nodes),
                    Ending::Else => Err(unexpected_ending(token.line, ending)),
                }
            }
        }
    }

    fn pipeline(&mut self, context: &'static str, end: Kind) -> Result<Pipeline, AtLine> {
        self.skip_space();
        let line = self.peek().line;
        let (variables, assigns) = self.declaration(context)?;
        let mut commands = Vec::new();
        loop {
            self.skip_space();
            let token = self.peek();
            if token.kind == end {
                self.position += 1;
                break;
            }
            if !begins_operand(token.kind) {
                return Err(unexpected(token, context));
            }
            commands.push(self.command()?);
        }
        if commands.is_empty() {
            return Err((line, Failure::Syntax(format!("{context} has no value"))));
        }
        for command in &commands[1..] {
            if is_literal(&command.first) {
                let message = "a literal takes no argument from a pipeline".to_owned();
                return Err((command.line, Failure::Syntax(message)));
            }
        }
        Ok(Pipeline { line, variables, assigns, commands })
    }

    /// Parses `$x :=`, `$x =` or, in a range, `$i, $x :=`. Returns the variables, and true for `=`;
    /// consumes no variable without `:=` or `=`.
    fn declaration(&mut self, context: &'static str) -> Result<(Vec<String>, bool), AtLine> {
        let mut variables = Vec::new();
        loop {
            self.skip_space();
            let start = self.position;
            let variable = self.peek();
            if variable.kind != Kind::Variable {
                return Ok((variables, false));
            }
            self.position += 1;
            let next = self.next_word();
            if !matches!(next.kind, Kind::Assign | Kind::Declare | Kind::Comma) {
                self.position = start;
                return Ok((variables, false));
            }
            variables.push(variable.text.to_owned());
            if self.scope.variables.len() == MAX_VARIABLES {
                return Err((variable.line, Failure::Limit("1000 variables")));
            }
            self.scope.variables.push(variable.text.to_owned());
            if next.kind != Kind::Comma {
                return Ok((variables, next.kind == Kind::Assign));
            }
            self.skip_space();
            let follows = self.peek().kind;
            let ends = matches!(follows, Kind::Variable | Kind::Close | Kind::RightParenthesis);
            if context != "range" || variables.len() > 1 || !ends {
                return Err(unexpected(next, context));
            }
        }
    }

    fn command(&mut self) -> Result<Command, AtLine> {
        self.skip_space();
        let line = self.peek().line;
        let mut operands = Vec::new();
        loop {
            self.skip_space();
            operands.extend(self.operand()?);
            let token = self.peek();
            match token.kind {
                Kind::Space => continue,
                Kind::Close | Kind::RightParenthesis => {}
                Kind::Pipe => self.position += 1,
                _ => return Err(unexpected(token, "a command")),
            }
            break;
        }
        let mut operands = operands.into_iter();
        let Some(first) = operands.next() else {
            return Err((line, Failure::Syntax("a command is empty".to_owned())));
        };
        Ok(Command { line, first, arguments: operands.collect() })
    }

    /// Parses an operand and its chain of fields.
    fn operand(&mut self) -> Result<Option<Operand>, AtLine> {
        let token = self.peek();
        let Some(term) = self.term()? else { return Ok(None) };
        let mut fields = Vec::new();
        while self.peek().kind == Kind::Field {
            fields.push(field(self.next()));
        }
        if fields.is_empty() {
            return Ok(Some(term));
        }
        Ok(Some(match term {
            Operand::Field(mut names) => {
                names.extend(fields);
                Operand::Field(names)
            }
            Operand::Variable { name, .. } => Operand::Variable { name, fields },
            Operand::Function(_) | Operand::Parentheses(_) | Operand::Chain { .. } => {
                Operand::Chain { inner: Box::new(term), fields }
            }
            Operand::Dot
            | Operand::Nil
            | Operand::Bool(_)
            | Operand::Text(_)
            | Operand::Number(_) => {
                let message = format!("{} has no fields", token.text);
                return Err((token.line, Failure::Syntax(message)));
            }
        }))
    }

    fn term(&mut self) -> Result<Option<Operand>, AtLine> {
        let token = self.peek();
        let operand = match token.kind {
            Kind::Identifier => {
                functions::check(token.text).map_err(|failure| (token.line, failure))?;
                Operand::Function(token.text.to_owned())
            }
            Kind::Dot => Operand::Dot,
            Kind::Nil => Operand::Nil,
            Kind::Variable => {
                if !self.scope.variables.iter().any(|name| name == token.text) {
                    let failure = Failure::UndefinedVariable(token.text.to_owned());
                    return Err((token.line, failure));
                }
                Operand::Variable { name: token.text.to_owned(), fields: Vec::new() }
            }
            Kind::Field => Operand::Field(vec![field(token)]),
            Kind::Bool => Operand::Bool(token.text == "true"),
            Kind::Character => Operand::Number(character(token)?),
            Kind::Number => Operand::Number(number(token)?),
            Kind::LeftParenthesis => {
                self.position += 1;
                let context = "parentheses";
                let pipeline =
                    self.nested(|parser| parser.pipeline(context, Kind::RightParenthesis))?;
                return Ok(Some(Operand::Parentheses(pipeline)));
            }
            Kind::Quoted => Operand::Text(unquoted(token)?),
            Kind::RawQuoted => Operand::Text(raw(token)),
            _ => return Ok(None),
        };
        self.position += 1;
        Ok(Some(operand))
    }
}

fn begins_operand(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::Bool
            | Kind::Character
            | Kind::Dot
            | Kind::Field
            | Kind::Identifier
            | Kind::Number
            | Kind::Nil
            | Kind::RawQuoted
            | Kind::Quoted
            | Kind::Variable
            | Kind::LeftParenthesis
    )
}

fn is_literal(operand: &Operand) -> bool {
    matches!(
        operand,
        Operand::Bool(_) | Operand::Dot | Operand::Nil | Operand::Number(_) | Operand::Text(_)
    )
}

/// Returns true if the nodes are only white space.
fn is_empty(nodes: &[Node]) -> bool {
    nodes.iter().all(|node| match node {
        Node::Text(text) => text.trim_ascii().is_empty(),
        Node::Action(_)
        | Node::If(_)
        | Node::With(_)
        | Node::Range(_)
        | Node::Call(_)
        | Node::Break
        | Node::Continue => false,
    })
}

/// Returns a field's name without its dot.
fn field(token: Token<'_>) -> String {
    token.text[1..].to_owned()
}

fn raw(token: Token<'_>) -> Vec<u8> {
    // Go drops carriage returns from raw texts.
    token.text[1..token.text.len() - 1].replace('\r', "").into_bytes()
}

fn unquoted(token: Token<'_>) -> Result<Vec<u8>, AtLine> {
    let inner = &token.text[1..token.text.len() - 1];
    literal::unescape(inner, '"').ok_or_else(|| bad_literal(token))
}

fn character(token: Token<'_>) -> Result<Number, AtLine> {
    let inner = &token.text[1..token.text.len() - 1];
    let code = literal::character(inner).ok_or_else(|| bad_literal(token))?;
    let integer = Some(i64::from(code));
    Ok(Number { integer, float: f64::from(code), is_float: false })
}

fn number(token: Token<'_>) -> Result<Number, AtLine> {
    literal::number(token.text).ok_or_else(|| bad_literal(token))
}

fn bad_literal(token: Token<'_>) -> AtLine {
    (token.line, Failure::Syntax(format!("bad literal {}", token.text)))
}

fn unexpected(token: Token<'_>, context: &'static str) -> AtLine {
    let found = if token.kind == Kind::EndOfText { "the end of the text" } else { token.text };
    (token.line, Failure::Syntax(format!("unexpected {found} in {context}")))
}

fn unexpected_ending(line: usize, ending: Ending) -> AtLine {
    let word = match ending {
        Ending::End => "end",
        Ending::Else => "else",
    };
    (line, Failure::Syntax(format!("unexpected {{{{{word}}}}}")))
}
