//! Fields of the data that a template reads.

use std::collections::BTreeSet;

use super::{
    syntax::{Branch, Node, Operand, Pipeline},
    template::Template,
};

/// Fields of the data that a template reads, except through variables or the elements of a `range`
/// or `with`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct References {
    /// Names of parameters.
    pub parameters: BTreeSet<String>,
    /// Keys of Pipe tasks.
    pub pipes: BTreeSet<String>,
    /// Other fields, such as `Name`, and `Params` or `Pipes` as a whole.
    pub fields: BTreeSet<String>,
}

impl Template {
    /// Returns the fields that the template reads.
    #[must_use]
    pub fn references(&self) -> References {
        let mut found = References::default();
        for (name, nodes) in &self.definitions {
            // In other templates, `.` and `$` are the arguments of the call.
            let scope = Scope { dot_is_data: *name == self.name, root_is_data: *name == self.name };
            found.nodes(nodes, scope);
        }
        found
    }
}

/// Meaning of `.` and `$`.
#[derive(Clone, Copy)]
struct Scope {
    dot_is_data: bool,
    root_is_data: bool,
}

impl References {
    fn nodes(&mut self, nodes: &[Node], scope: Scope) {
        for node in nodes {
            match node {
                Node::Action(pipeline) => self.pipeline(pipeline, scope),
                Node::If(branch) => self.branch(branch, scope, scope),
                Node::With(branch) | Node::Range(branch) => {
                    self.branch(branch, scope, Scope { dot_is_data: false, ..scope });
                }
                Node::Call(call) => {
                    if let Some(pipeline) = &call.pipeline {
                        self.pipeline(pipeline, scope);
                    }
                }
                Node::Text(_) | Node::Break | Node::Continue => {}
            }
        }
    }

    fn branch(&mut self, branch: &Branch, scope: Scope, body: Scope) {
        self.pipeline(&branch.pipeline, scope);
        self.nodes(&branch.body, body);
        self.nodes(&branch.otherwise, scope);
    }

    fn pipeline(&mut self, pipeline: &Pipeline, scope: Scope) {
        for command in &pipeline.commands {
            self.operand(&command.first, scope);
            for argument in &command.arguments {
                self.operand(argument, scope);
            }
        }
    }

    fn operand(&mut self, operand: &Operand, scope: Scope) {
        match operand {
            Operand::Field(names) if scope.dot_is_data => self.field(names),
            Operand::Variable { name, fields } if name == "$" && scope.root_is_data => {
                self.field(fields);
            }
            Operand::Parentheses(pipeline) => self.pipeline(pipeline, scope),
            Operand::Chain { inner, .. } => self.operand(inner, scope),
            Operand::Field(_)
            | Operand::Variable { .. }
            | Operand::Dot
            | Operand::Nil
            | Operand::Bool(_)
            | Operand::Text(_)
            | Operand::Number(_)
            | Operand::Function(_) => {}
        }
    }

    fn field(&mut self, names: &[String]) {
        let (set, name) = match names {
            [] => return,
            [first, second, ..] if first == "Params" => (&mut self.parameters, second),
            [first, second, ..] if first == "Pipes" => (&mut self.pipes, second),
            [first, ..] => (&mut self.fields, first),
        };
        set.insert(name.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn references(text: &str) -> (Vec<String>, Vec<String>, Vec<String>) {
        let found = Template::parse("t", text).unwrap().references();
        let list = |names: BTreeSet<String>| names.into_iter().collect();
        (list(found.parameters), list(found.pipes), list(found.fields))
    }

    #[track_caller]
    fn check(text: &str, parameters: &[&str], fields: &[&str]) {
        let (found, _, others) = references(text);
        assert_eq!(
            (found, others),
            (
                parameters.iter().map(|s| (*s).to_owned()).collect(),
                fields.iter().map(|s| (*s).to_owned()).collect()
            ),
            "{text}"
        );
    }

    #[test]
    fn parameters_are_found_wherever_they_are_read() {
        check(r#"{{ printf "%s" .Name .Params.A }}"#, &["A"], &["Name"]);
        check(
            "{{ if and .Params.A (eq (.Params.B | int) 1) }}{{ else }}{{ .Params.C }}{{ end }}",
            &["A", "B", "C"],
            &[],
        );
        check(
            "{{ range .Params.L }}{{ .Params.X }}{{ $.Params.A }}{{ else }}{{ .Params.B }}{{ end }}",
            &["A", "B", "L"],
            &[],
        );
        check(
            "{{ with .Params.M }}{{ .x }}{{ end }}{{ (.Params.A).b }}{{ .Params.M.deep }}",
            &["A", "M"],
            &[],
        );
        check(
            "{{ $x := .Params.A }}{{ $x.y }}{{ toJson .Params }}{{ $.Name }}",
            &["A"],
            &["Name", "Params"],
        );
        check(
            r#"{{ define "d" }}{{ .Params.X }}{{ end }}{{ template "d" .Params.A }}"#,
            &["A"],
            &[],
        );
    }

    #[test]
    fn pipes_are_found() {
        assert_eq!(references("{{ .Pipes.Key }}").1, ["Key"]);
    }
}
