//! Generates templates from a seed: all functions, with arguments mostly of the right types.

mod table;
mod values;

use fastrand::Rng;
use table::{FUNCTIONS, Kind, Signature};
use values::{ANY, TEXT_FIELDS, texts, values};

/// Deepest nesting of expressions and actions.
const DEPTH: usize = 3;

/// Returns the names of the generated functions.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    FUNCTIONS.iter().map(|signature| signature.name)
}

/// Generates one template.
pub(crate) struct Generator {
    rng: Rng,
    /// Variables in scope.
    variables: Vec<String>,
}

impl Generator {
    pub(crate) fn new(seed: u64) -> Self {
        Self { rng: Rng::with_seed(seed), variables: Vec::new() }
    }

    pub(crate) fn template(&mut self) -> String {
        let mut text = self.nodes(0);
        if self.rng.u8(0..20) == 0 {
            text = self.damaged(&text);
        }
        text
    }

    fn chance(&mut self, percent: u8) -> bool {
        self.rng.u8(0..100) < percent
    }

    fn pick<'a>(&mut self, texts: &[&'a str]) -> &'a str {
        texts[self.rng.usize(0..texts.len())]
    }

    /// Removes, duplicates or replaces one character.
    fn damaged(&mut self, text: &str) -> String {
        let mut characters: Vec<char> = text.chars().collect();
        if characters.is_empty() {
            return String::new();
        }
        let position = self.rng.usize(0..characters.len());
        match self.rng.u8(0..3) {
            0 => {
                characters.remove(position);
            }
            1 => characters.insert(position, characters[position]),
            _ => {
                let replacements: Vec<char> = "{}()|.$\"`' \n-=:,0ax".chars().collect();
                characters[position] = replacements[self.rng.usize(0..replacements.len())];
            }
        }
        characters.into_iter().collect()
    }

    fn nodes(&mut self, depth: usize) -> String {
        let count = self.rng.usize(1..=3);
        (0..count).map(|_| self.node(depth)).collect()
    }

    /// Returns an action, sometimes with trim markers.
    fn action(&mut self, content: &str) -> String {
        let open = if self.chance(10) { "{{- " } else { "{{ " };
        let close = if self.chance(10) { " -}}" } else { " }}" };
        format!("{open}{content}{close}")
    }

    fn node(&mut self, depth: usize) -> String {
        let variables = self.variables.len();
        let choice = if depth >= DEPTH { self.rng.u8(0..50) } else { self.rng.u8(0..100) };
        match choice {
            0..=9 => self.pick(&["text", " x \n", "\n", "a: ", "}} ", "-"]).to_owned(),
            10..=44 => {
                let content = self.pipeline(depth);
                self.action(&content)
            }
            45..=46 => "{{/* comment */}}".to_owned(),
            47..=57 => {
                let value = self.pipeline(depth);
                let name = format!("$v{}", self.variables.len());
                let declaration = self.action(&format!("{name} := {value}"));
                self.variables.push(name.clone());
                declaration + &self.action(&name)
            }
            58..=61 if !self.variables.is_empty() => {
                let name = self.variable();
                let value = self.pipeline(depth);
                self.action(&format!("{name} = {value}"))
            }
            58..=72 => {
                let keyword = self.pick(&["if", "with"]);
                let condition = self.pipeline(depth);
                let mut text = self.action(&format!("{keyword} {condition}"));
                text += &self.nodes(depth + 1);
                self.variables.truncate(variables);
                if self.chance(25) {
                    let condition = self.pipeline(depth);
                    text += &self.action(&format!("else {keyword} {condition}"));
                    text += &self.nodes(depth + 1);
                    self.variables.truncate(variables);
                }
                if self.chance(50) {
                    text += &self.action("else");
                    text += &self.nodes(depth + 1);
                    self.variables.truncate(variables);
                }
                text + &self.action("end")
            }
            73..=90 => self.range(depth),
            91..=94 => {
                let name = format!("d{}", self.rng.u16(..));
                let outer = std::mem::take(&mut self.variables);
                let body = self.nodes(depth + 1);
                self.variables = outer;
                let argument = self.expression(Kind::Any, depth);
                let call = self.action(&format!("template \"{name}\" {argument}"));
                if depth == 0 {
                    format!("{{{{ define \"{name}\" }}}}{body}{{{{ end }}}}{call}")
                } else {
                    format!("{{{{ block \"{name}\" {argument} }}}}{body}{{{{ end }}}}")
                }
            }
            _ => {
                let value = self.expression(Kind::Any, depth);
                self.action(&format!("{value} | printf \"%v|\""))
            }
        }
    }

    fn range(&mut self, depth: usize) -> String {
        let variables = self.variables.len();
        let kind =
            [Kind::List, Kind::Texts, Kind::Ints, Kind::Map, Kind::Int][self.rng.usize(0..5)];
        let over = self.expression(kind, depth + 1);
        let declared = match self.rng.u8(0..3) {
            0 => String::new(),
            1 => {
                self.variables.push(format!("$r{variables}"));
                format!("$r{variables} := ")
            }
            _ => {
                self.variables.extend([format!("$k{variables}"), format!("$r{variables}")]);
                format!("$k{variables}, $r{variables} := ")
            }
        };
        let mut text = self.action(&format!("range {declared}{over}"));
        text += &self.nodes(depth + 1);
        if self.chance(10) {
            let condition = self.expression(Kind::Bool, depth + 1);
            let jump = self.pick(&["break", "continue"]);
            text += &["{{ if ", &condition, " }}{{ ", jump, " }}{{ end }}"].concat();
        }
        self.variables.truncate(variables);
        if self.chance(30) {
            text += &self.action("else");
            text += &self.nodes(depth + 1);
            self.variables.truncate(variables);
        }
        text + &self.action("end")
    }

    fn variable(&mut self) -> String {
        let index = self.rng.usize(0..self.variables.len());
        self.variables[index].clone()
    }

    fn pipeline(&mut self, depth: usize) -> String {
        let function = self.function(None);
        if self.chance(25) {
            return self.expression(Kind::Any, depth);
        }
        self.call(&function, depth)
    }

    /// Chooses a function that returns this kind.
    fn function(&mut self, returned: Option<Kind>) -> Signature {
        loop {
            let signature = FUNCTIONS[self.rng.usize(0..FUNCTIONS.len())];
            if returned.is_none_or(|kind| signature.returned == kind) {
                return signature;
            }
        }
    }

    /// Writes a call; the last argument is sometimes piped.
    fn call(&mut self, function: &Signature, depth: usize) -> String {
        let mut arguments: Vec<String> = Vec::new();
        for kind in function.parameters {
            arguments.push(self.argument(*kind, depth));
        }
        if let Some(kind) = function.rest {
            for _ in 0..self.rng.usize(0..=3) {
                arguments.push(self.argument(kind, depth));
            }
        }
        if self.rng.u8(..) == 0 {
            arguments.pop();
        }
        let name = function.name;
        if name.starts_with("merge") {
            // Go overflows the stack if a map contains itself.
            arguments = arguments.iter().map(|map| format!("(deepCopy {map})")).collect();
        }
        if !arguments.is_empty() && self.chance(25) {
            let last = arguments.pop().unwrap_or_default();
            let space = if arguments.is_empty() { "" } else { " " };
            return format!("{last} | {name}{space}{}", arguments.join(" "));
        }
        let space = if arguments.is_empty() { "" } else { " " };
        format!("{name}{space}{}", arguments.join(" "))
    }

    /// Writes an argument, rarely of a wrong kind.
    fn argument(&mut self, kind: Kind, depth: usize) -> String {
        let wrong = !matches!(kind, Kind::Moment | Kind::Bound) && self.chance(1);
        let kind = if wrong { Kind::Any } else { kind };
        self.expression(kind, depth + 1)
    }

    fn expression(&mut self, kind: Kind, depth: usize) -> String {
        // Any value other than a time means the time of the call.
        if matches!(kind, Kind::Moment | Kind::Bound) {
            return self.literal(kind);
        }
        let calls = kind.is_returned() && depth < DEPTH && self.chance(40);
        if calls {
            let function = self.function(Some(kind));
            return format!("({})", self.call(&function, depth + 1));
        }
        if kind != Kind::Key && !self.variables.is_empty() && self.chance(8) {
            return self.variable();
        }
        self.literal(kind)
    }

    fn quoted(&mut self, text: &str) -> String {
        if !text.contains('`') && self.chance(10) {
            return format!("`{text}`");
        }
        serde_json::Value::from(text).to_string()
    }

    fn literal(&mut self, kind: Kind) -> String {
        if kind == Kind::Text && self.chance(25) {
            return self.pick(&TEXT_FIELDS).to_owned();
        }
        if let Some(texts) = texts(kind) {
            let text = self.pick(texts);
            return self.quoted(text);
        }
        let kind = if kind == Kind::Any { ANY[self.rng.usize(0..ANY.len())] } else { kind };
        self.pick(values(kind)).to_owned()
    }
}
