//! Import cycles among the modules of a crate.
//!
//! A module depends on another if its code names an item of it. The `mod` declarations and
//! `pub use` re-exports of a parent are ignored: a name that a parent re-exports is a name of the
//! child.

use std::collections::{BTreeMap, BTreeSet};

use petgraph::{algo::tarjan_scc, graphmap::DiGraphMap};
use syn::{
    Item, ItemUse, UseTree, Visibility,
    visit::{self, Visit},
};

use super::{
    finding::Finding,
    rust::{Role, RustFile, attributes, is_test_only},
};

/// A module's path in its crate: empty for the root.
type Module = Vec<String>;

/// The modules of one crate that depend on each other.
pub(super) struct Cycle {
    pub(super) krate: String,
    pub(super) modules: Vec<String>,
}

/// Fails for each group of modules that depend on each other.
pub(super) fn check(rust: &[RustFile]) -> Vec<Finding> {
    let message = |cycle: &Cycle| {
        format!("import cycle among {}: move what they share below both", cycle.modules.join(", "))
    };
    let finding =
        |cycle: Cycle| Finding { message: message(&cycle), place: format!("{}/src", cycle.krate) };
    cycles(rust).into_iter().map(finding).collect()
}

/// Groups of modules that depend on each other, largest first.
pub(super) fn cycles(rust: &[RustFile]) -> Vec<Cycle> {
    let mut crates: BTreeMap<&str, Vec<&RustFile>> = BTreeMap::new();
    for file in rust.iter().filter(|file| file.role != Role::Test) {
        crates.entry(file.krate()).or_default().push(file);
    }
    let mut cycles = Vec::new();
    for (krate, files) in crates {
        cycles.extend(cycles_of(krate, &files));
    }
    cycles.sort_by_key(|cycle: &Cycle| std::cmp::Reverse(cycle.modules.len()));
    cycles
}

fn cycles_of(krate: &str, files: &[&RustFile]) -> Vec<Cycle> {
    let modules: BTreeMap<Module, &RustFile> =
        files.iter().map(|file| (module_of(krate, &file.path), *file)).collect();
    let names: Vec<&Module> = modules.keys().collect();
    let exports: BTreeMap<&Module, Exports> = modules
        .iter()
        .map(|(module, file)| (module, Exports::read(module, &file.syntax)))
        .collect();
    let mut graph = DiGraphMap::<usize, ()>::new();
    for (index, (module, file)) in modules.iter().enumerate() {
        graph.add_node(index);
        for target in dependencies(module, file, &exports) {
            if let Ok(to) = names.binary_search(&&target)
                && to != index
            {
                graph.add_edge(index, to, ());
            }
        }
    }
    let groups = tarjan_scc(&graph).into_iter().filter(|group| group.len() > 1);
    groups.map(|group| cycle(krate, &names, &group)).collect()
}

fn cycle(krate: &str, names: &[&Module], group: &[usize]) -> Cycle {
    let mut modules: Vec<String> = group.iter().map(|&index| names[index].join("::")).collect();
    modules.sort_unstable();
    Cycle { krate: krate.to_owned(), modules }
}

/// The module that a file holds.
fn module_of(krate: &str, path: &str) -> Module {
    let inner = path.trim_start_matches(krate).trim_start_matches("/src/");
    let inner = inner.trim_end_matches(".rs").trim_end_matches("/mod");
    if inner == "lib" || inner == "main" {
        return Module::new();
    }
    inner.split('/').map(str::to_owned).collect()
}

/// Child modules and re-exports of a module.
struct Exports {
    children: BTreeSet<String>,
    /// Names that come from elsewhere, with the path that they come from.
    reexports: BTreeMap<String, Module>,
}

impl Exports {
    fn read(module: &Module, syntax: &syn::File) -> Self {
        let mut exports = Self { children: BTreeSet::new(), reexports: BTreeMap::new() };
        for item in &syntax.items {
            if let Item::Mod(child) = item
                && child.content.is_none()
            {
                exports.children.insert(child.ident.to_string());
            }
            if let Item::Use(item) = item
                && !matches!(item.vis, Visibility::Inherited)
            {
                for path in paths_of(&item.tree) {
                    if let Some(name) = path.last() {
                        exports.reexports.insert(name.clone(), absolute(module, &path));
                    }
                }
            }
        }
        exports
    }
}

/// A path from the crate's root: without `crate`, `self` and `super`.
fn absolute(module: &Module, path: &[String]) -> Module {
    let mut resolved = module.clone();
    let mut rest = path;
    match path.first().map(String::as_str) {
        Some("crate") => {
            resolved.clear();
            rest = &path[1..];
        }
        Some("self") => rest = &path[1..],
        _ => {}
    }
    while rest.first().is_some_and(|part| part == "super") {
        resolved.pop();
        rest = &rest[1..];
    }
    resolved.extend(rest.iter().cloned());
    resolved
}

/// The modules that a file's code names items of.
fn dependencies(
    module: &Module,
    file: &RustFile,
    exports: &BTreeMap<&Module, Exports>,
) -> BTreeSet<Module> {
    let mut visitor = Paths { found: Vec::new() };
    visitor.visit_file(&file.syntax);
    let mut targets = BTreeSet::new();
    for path in visitor.found {
        let first = path.first().map(String::as_str).unwrap_or_default();
        let is_local = ["crate", "self", "super"].contains(&first)
            || exports.get(module).is_some_and(|own| own.children.contains(first));
        if is_local {
            targets.extend(home(absolute(module, &path), exports));
        }
    }
    targets
}

/// The module that an absolute path leads to, following re-exports.
fn home(path: Module, exports: &BTreeMap<&Module, Exports>) -> Option<Module> {
    let mut path = path;
    // A chain of re-exports is short; the bound only guards against a circle.
    for _ in 0..8 {
        let depth =
            (0..=path.len()).rev().find(|&depth| exports.contains_key(&path[..depth].to_vec()))?;
        let module = path[..depth].to_vec();
        let Some(name) = path.get(depth) else { return Some(module) };
        let Some(origin) = exports.get(&module).and_then(|e| e.reexports.get(name)) else {
            return Some(module);
        };
        let rest = path[depth + 1..].to_vec();
        path = [origin.clone(), rest].concat();
    }
    None
}

/// Collects the paths of `use` declarations and expressions, outside tests and re-exports.
struct Paths {
    found: Vec<Vec<String>>,
}

impl<'ast> Visit<'ast> for Paths {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_test_only(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_visibility(&mut self, _: &'ast Visibility) {
        // `pub(in crate::plan)` is no dependency on `plan`.
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        if matches!(item.vis, Visibility::Inherited) {
            self.found.extend(paths_of(&item.tree));
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let parts: Vec<String> = path.segments.iter().map(|part| part.ident.to_string()).collect();
        if parts.len() > 1 {
            self.found.push(parts);
        }
        visit::visit_path(self, path);
    }
}

/// The paths that a `use` tree names.
fn paths_of(tree: &UseTree) -> Vec<Vec<String>> {
    match tree {
        UseTree::Path(path) => {
            let rest = paths_of(&path.tree);
            let prefixed =
                rest.into_iter().map(|rest| [vec![path.ident.to_string()], rest].concat());
            prefixed.collect()
        }
        UseTree::Name(name) if name.ident == "self" => vec![Vec::new()],
        UseTree::Name(name) => vec![vec![name.ident.to_string()]],
        UseTree::Rename(rename) => vec![vec![rename.ident.to_string()]],
        UseTree::Glob(_) => vec![Vec::new()],
        UseTree::Group(group) => group.items.iter().flat_map(paths_of).collect(),
    }
}
