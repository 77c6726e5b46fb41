//! `package`, which needs no cluster.

use std::{env, fs, path::Path};

use anyhow::{Context as _, bail};
use kubectl_kudo::{
    cli::{Connection, ListCommand, PackageCommand, Search},
    resolve::Packages as _,
    source::Source,
    text::{Format, object},
};
use podops_api::kudo::{Parameter, Strategy, Task};
use podops_packages::{
    archive, convert,
    package::Package,
    verify::{Report, check_parameters, verify},
};
use podops_terminal::{
    table::{Table, wrapped},
    tree::Node,
};
use serde_json::json;

use crate::{
    find::{Finder, at_path, of_folder},
    output::{print, print_line},
};

/// Maximum width of a wrapped cell.
const WIDTH: usize = 35;

/// Runs a command about packages.
///
/// # Errors
///
/// If the package is invalid, or a file cannot be read or written.
pub(crate) fn run(connection: &Connection, command: PackageCommand) -> anyhow::Result<()> {
    match command {
        PackageCommand::Create { folder, destination, overwrite, output } => {
            let format = Format::parse(output.as_deref())?;
            create(&folder, &destination, overwrite, format)
        }
        PackageCommand::Verify { package, param_checks, output } => {
            let format = Format::parse(output.as_deref())?;
            let package = Package::read(&at_path(&package)?.files)?;
            let mut report = verify(&package);
            check_parameters(&package, &param_checks, &mut report);
            show(&report, format)?;
            check(&report)
        }
        PackageCommand::List(list) => list_parts(connection, list),
    }
}

fn create(
    folder: &Path,
    destination: &Path,
    overwrite: bool,
    format: Format,
) -> anyhow::Result<()> {
    if !folder.is_dir() {
        bail!("{} is no folder of a package", folder.display());
    }
    let home = env::home_dir().filter(|_| destination == Path::new("~"));
    let destination = home.as_deref().unwrap_or(destination);
    if !destination.is_dir() {
        bail!("destination {:?} is not a proper directory", destination.display().to_string());
    }
    let files = of_folder(folder)?;
    let package = Package::read(&files).with_context(|| folder.display().to_string())?;
    let report = verify(&package);
    show(&report, format)?;
    check(&report)?;
    let target = destination.join(package.archive_name());
    if target.exists() && !overwrite {
        bail!("target file {:?} already exists", target.display().to_string());
    }
    fs::write(&target, archive::write(&files)?)
        .with_context(|| format!("writing {}", target.display()))?;
    print_line(&format!("Package created: {}", target.display()))
}

fn show(report: &Report, format: Format) -> anyhow::Result<()> {
    if format != Format::Text {
        let value = json!({
            "errors": report.errors, "warnings": report.warnings, "valid": report.is_valid(),
        });
        return print(&object(&value, format)?);
    }
    for (title, messages) in [("Warnings", &report.warnings), ("Errors", &report.errors)] {
        let mut table = Table::new(&[title]);
        for message in messages {
            table.add(vec![message.clone()]);
        }
        if !table.is_empty() {
            print(&table.to_string())?;
        }
    }
    if report.is_valid() { print_line("package is valid") } else { Ok(()) }
}

fn check(report: &Report) -> anyhow::Result<()> {
    if !report.is_valid() {
        bail!("found {} package verification errors", report.errors.len());
    }
    Ok(())
}

fn list_parts(connection: &Connection, list: ListCommand) -> anyhow::Result<()> {
    match list {
        ListCommand::Parameters { package, search, descriptions, required, names } => {
            let version = convert::operator_version(&find(connection, &package, &search)?)?;
            let mut parameters = version.spec.parameters;
            parameters.sort_by(|left, right| left.name.cmp(&right.name));
            if required {
                // K19: KUDO's list is always empty.
                parameters.retain(|found| found.required == Some(true) && found.default.is_none());
                if parameters.is_empty() {
                    return print_line("no required parameters without default values found");
                }
            }
            let table = if names || required {
                name_table(&parameters)
            } else {
                parameter_table(&parameters, descriptions)
            };
            print(&table.to_string())
        }
        ListCommand::Tasks { package, search } => {
            let package = find(connection, &package, &search)?;
            if package.operator.tasks.is_empty() {
                return print_line("no tasks  found");
            }
            let mut table = Table::new(&["Name", "Kind", "Resources"]);
            for task in &package.operator.tasks {
                table.add(vec![task.name.clone(), task.kind.clone(), resources(task)]);
            }
            print(&table.to_string())
        }
        ListCommand::Plans { package, search, with_tasks } => {
            let package = find(connection, &package, &search)?;
            if package.operator.plans.is_empty() {
                return print_line("no plans found");
            }
            print(&format!("{}\n", plans(&package, with_tasks)))
        }
    }
}

fn find(connection: &Connection, argument: &str, search: &Search) -> anyhow::Result<Package> {
    let found =
        Finder::new(connection, search).find(&Source::parse(argument), &search.versions())?;
    Ok(Package::read(&found.files)?)
}

fn name_table(parameters: &[Parameter]) -> Table {
    let mut table = Table::new(&["Name"]);
    for parameter in parameters {
        table.add(vec![parameter.name.clone()]);
    }
    table
}

fn parameter_table(parameters: &[Parameter], descriptions: bool) -> Table {
    let mut columns = vec!["Name", "Default", "Required", "Immutable"];
    columns.extend(descriptions.then_some("Description"));
    let mut table = Table::new(&columns);
    for parameter in parameters {
        let mut row = vec![
            parameter.name.clone(),
            wrapped(parameter.default.as_deref().unwrap_or_default(), WIDTH),
            parameter.required.unwrap_or_default().to_string(),
            parameter.immutable.unwrap_or_default().to_string(),
        ];
        row.extend(descriptions.then(|| wrapped(&parameter.description, WIDTH)));
        table.add(row);
    }
    table
}

/// Returns the template files of a task.
fn resources(task: &Task) -> String {
    let spec = &task.spec;
    if spec.pod.is_empty() { format!("[{}]", spec.resources.join(" ")) } else { spec.pod.clone() }
}

fn plans(package: &Package, with_tasks: bool) -> Node {
    let plans = package.operator.plans.iter().map(|(name, plan)| {
        let phases = plan.phases.iter().map(|phase| {
            let steps = phase.steps.iter().map(|step| {
                let tasks = step.tasks.iter().map(|name| task(package, name, with_tasks));
                Node::tagged("step", &step.name).with(tasks)
            });
            Node::tagged("phase", &with_strategy(&phase.name, phase.strategy)).with(steps)
        });
        Node::new(with_strategy(name, plan.strategy)).with(phases)
    });
    Node::new("plans").with(plans)
}

fn with_strategy(name: &str, strategy: Strategy) -> String {
    let strategy = if strategy == Strategy::Serial { "serial" } else { "parallel" };
    format!("{name} ({strategy})")
}

fn task(package: &Package, name: &str, with_tasks: bool) -> Node {
    let found = package.operator.tasks.iter().find(|task| task.name == name);
    let Some(task) = found.filter(|_| with_tasks) else { return Node::new(name) };
    let toggle =
        (!task.spec.parameter.is_empty()).then(|| Node::tagged("parameter", &task.spec.parameter));
    let files = task.spec.resources.iter().chain([&task.spec.pod]).filter(|file| !file.is_empty());
    Node::tagged(&task.kind.to_lowercase(), name).with(toggle).with(files.map(Node::new))
}
