//! The shape of functions and types: length, parameters, closures, fields.

use proc_macro2::Span;
use syn::{
    Block, Expr, Fields, FnArg, ImplItemFn, Item, ItemEnum, ItemFn, Local, Pat, ReturnType,
    Signature, TraitItemFn, Type,
    spanned::Spanned as _,
    visit::{self, Visit},
};

use super::{
    finding::Finding,
    rust::{Role, RustFile, attributes, is_test, is_test_only},
};

/// Code lines that a function may have.
const FUNCTION_LINES_MAX: usize = 70;

/// Characters that the name of a test may have.
const TEST_NAME_MAX: usize = 60;

/// Named local closures that a function may have.
const CLOSURES_MAX: usize = 1;

/// A feature of the code's shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Feature {
    /// A function; the number of its code lines is the value.
    Function,
    /// A parameter whose type is a tuple, or a reference to one.
    TupleParameter,
    /// `match () { () if … }`, an if-chain in disguise.
    UnitMatch,
    /// A function with this many closures that have names.
    NamedClosures,
    /// An enum's variant with two or more fields that have no names.
    AnonymousFields,
    /// A function or type that names `Result<_, String>`.
    StringError,
    /// A test; the length of its name is the value.
    Test,
    /// A struct, enum, trait or type alias.
    TypeName,
    /// `let (a, b) = (c, d)`.
    TupleLet,
}

/// One occurrence of a [`Feature`].
pub(super) struct Occurrence {
    pub(super) feature: Feature,
    /// Counted from 1.
    pub(super) line: usize,
    pub(super) name: String,
    pub(super) value: usize,
    /// True inside `#[cfg(test)]`.
    pub(super) in_test: bool,
}

/// All occurrences in one file.
pub(super) fn occurrences(file: &RustFile) -> Vec<Occurrence> {
    let mut visitor =
        Visitor { file, in_test: file.role == Role::Test, closures: Vec::new(), found: Vec::new() };
    visitor.visit_file(&file.syntax);
    visitor.found
}

/// Checks the shape of every source file.
pub(super) fn check(rust: &[RustFile]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in rust {
        for found in occurrences(file) {
            if let Some(message) = violation(file.role, &found) {
                findings.push(Finding { place: format!("{}:{}", file.path, found.line), message });
            }
        }
    }
    findings
}

fn violation(role: Role, found: &Occurrence) -> Option<String> {
    let Occurrence { name, value, in_test, .. } = found;
    let is_product = role == Role::Product && !in_test;
    match found.feature {
        Feature::Function => (!in_test && *value > FUNCTION_LINES_MAX).then(|| {
            format!(
                "function {name} has {value} code lines, more than {FUNCTION_LINES_MAX}: split it"
            )
        }),
        Feature::TupleParameter => {
            (!in_test).then(|| format!("function {name} takes a tuple: name its parts in a struct"))
        }
        Feature::UnitMatch => (!in_test).then(|| "`match ()`: write if, else if, else".to_owned()),
        Feature::NamedClosures => (is_product && *value > CLOSURES_MAX)
            .then(|| format!("function {name} names {value} closures: make functions of them")),
        Feature::AnonymousFields => is_product
            .then(|| format!("variant {name} has {value} fields without names: name them")),
        Feature::StringError => {
            is_product.then(|| format!("{name} uses String as its error: return an error type"))
        }
        Feature::Test => (*value > TEST_NAME_MAX)
            .then(|| format!("test {name} has a name of more than {TEST_NAME_MAX} characters")),
        Feature::TypeName | Feature::TupleLet => None,
    }
}

struct Visitor<'a> {
    file: &'a RustFile,
    in_test: bool,
    /// Closures with names in each enclosing function.
    closures: Vec<usize>,
    found: Vec<Occurrence>,
}

impl Visitor<'_> {
    fn add(&mut self, feature: Feature, at: Span, name: String, value: usize) {
        let line = at.start().line;
        self.found.push(Occurrence { feature, line, name, value, in_test: self.in_test });
    }

    fn function(&mut self, signature: &Signature, block: Option<&Block>) {
        let name = signature.ident.to_string();
        let at = signature.span();
        for input in &signature.inputs {
            if let FnArg::Typed(typed) = input
                && is_tuple(&typed.ty)
            {
                self.add(Feature::TupleParameter, at, name.clone(), 1);
            }
        }
        if let ReturnType::Type(_, returned) = &signature.output
            && is_string_result(returned)
        {
            self.add(Feature::StringError, at, name.clone(), 1);
        }
        if let Some(block) = block {
            let lines = self.file.count_code(at.start().line, block.span().end().line);
            self.add(Feature::Function, at, name, lines);
        }
    }

    fn begin_function(&mut self) {
        self.closures.push(0);
    }

    fn end_function(&mut self, signature: &Signature) {
        let count = self.closures.pop().unwrap_or_default();
        if count > 0 {
            let name = signature.ident.to_string();
            self.add(Feature::NamedClosures, signature.span(), name, count);
        }
    }
}

impl<'ast> Visit<'ast> for Visitor<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        let before = self.in_test;
        self.in_test |= is_test_only(attributes(item));
        if let Some(name) = type_name(item) {
            self.add(Feature::TypeName, name.span(), name.to_string(), 1);
        }
        visit::visit_item(self, item);
        self.in_test = before;
    }

    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        if item.attrs.iter().any(is_test) {
            let name = item.sig.ident.to_string();
            let length = name.len();
            self.add(Feature::Test, item.sig.span(), name, length);
        }
        self.function(&item.sig, Some(&item.block));
        self.begin_function();
        visit::visit_item_fn(self, item);
        self.end_function(&item.sig);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast ImplItemFn) {
        self.function(&item.sig, Some(&item.block));
        self.begin_function();
        visit::visit_impl_item_fn(self, item);
        self.end_function(&item.sig);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast TraitItemFn) {
        self.function(&item.sig, item.default.as_ref());
        self.begin_function();
        visit::visit_trait_item_fn(self, item);
        self.end_function(&item.sig);
    }

    fn visit_item_enum(&mut self, item: &'ast ItemEnum) {
        for variant in &item.variants {
            if let Fields::Unnamed(fields) = &variant.fields
                && fields.unnamed.len() > 1
            {
                let name = format!("{}::{}", item.ident, variant.ident);
                self.add(Feature::AnonymousFields, variant.span(), name, fields.unnamed.len());
            }
        }
        visit::visit_item_enum(self, item);
    }

    fn visit_local(&mut self, local: &'ast Local) {
        let is_closure =
            local.init.as_ref().is_some_and(|init| matches!(*init.expr, Expr::Closure(_)));
        let is_named = matches!(local.pat, Pat::Ident(_) | Pat::Type(_));
        if is_closure
            && is_named
            && let Some(count) = self.closures.last_mut()
        {
            *count += 1;
        }
        let is_tuple = matches!(&local.pat, Pat::Tuple(_))
            && local.init.as_ref().is_some_and(|init| matches!(*init.expr, Expr::Tuple(_)));
        if is_tuple {
            self.add(Feature::TupleLet, local.span(), String::new(), 1);
        }
        visit::visit_local(self, local);
    }

    fn visit_expr_match(&mut self, expression: &'ast syn::ExprMatch) {
        if let Expr::Tuple(tuple) = &*expression.expr
            && tuple.elems.is_empty()
        {
            self.add(Feature::UnitMatch, expression.span(), String::new(), 1);
        }
        visit::visit_expr_match(self, expression);
    }
}

/// Name of the type that an item defines.
#[allow(clippy::wildcard_enum_match_arm, reason = "syn's kinds of items are not exhaustive")]
const fn type_name(item: &Item) -> Option<&syn::Ident> {
    match item {
        Item::Enum(item) => Some(&item.ident),
        Item::Struct(item) => Some(&item.ident),
        Item::Trait(item) => Some(&item.ident),
        Item::Type(item) => Some(&item.ident),
        _ => None,
    }
}

#[allow(clippy::wildcard_enum_match_arm, reason = "syn's kinds of types are not exhaustive")]
fn is_tuple(parameter: &Type) -> bool {
    match parameter {
        Type::Reference(reference) => is_tuple(&reference.elem),
        Type::Tuple(tuple) => tuple.elems.len() > 1,
        _ => false,
    }
}

/// True for `Result<_, String>`.
fn is_string_result(returned: &Type) -> bool {
    let Type::Path(path) = returned else { return false };
    let Some(last) = path.path.segments.last() else { return false };
    let syn::PathArguments::AngleBracketed(arguments) = &last.arguments else { return false };
    let is_string = |argument: &syn::GenericArgument| matches!(argument, syn::GenericArgument::Type(Type::Path(path)) if path.path.is_ident("String"));
    last.ident == "Result" && arguments.args.iter().nth(1).is_some_and(is_string)
}
