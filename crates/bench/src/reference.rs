//! `podops-reference DIRECTORY [--check]`: the reference pages of events, conditions, metrics,
//! flags and commands, generated from the programs' own tables.

use std::{env, fmt::Write as _, fs, path::Path};

use anyhow::{Context as _, bail, ensure};
use clap::CommandFactory as _;
use podops_api::condition::ConditionReason;
use podops_client::{
    event::{EventReason, Severity},
    metric::{Metric, MetricKind},
};
use podops_runtime::args::OperatorArgs;

const HEAD: &str = "<!-- Written by `cargo xtask reference` from the operators; do not edit. -->\n";

/// Tables of one operator.
struct OperatorTables {
    name: &'static str,
    events: &'static [&'static EventReason],
    conditions: &'static [&'static ConditionReason],
    metrics: &'static [&'static Metric],
    flags: clap::Command,
}

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    let (directory, is_check) = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [directory] => (directory, false),
        [directory, "--check"] => (directory, true),
        _ => bail!("usage: podops-reference DIRECTORY [--check]"),
    };
    let operators = operators();
    let pages = [
        ("events.md", events(&operators)?),
        ("conditions.md", conditions(&operators)?),
        ("metrics.md", metrics(&operators)?),
        ("flags.md", flags(&operators)?),
        ("kubectl-podops.md", command_line("kubectl podops", kubectl_podops::cli::Cli::command())?),
        ("kubectl-kudo.md", command_line("kubectl kudo", kubectl_kudo::cli::Cli::command())?),
    ];
    for (name, page) in pages {
        let page = format!("{HEAD}{}", escape_tags(&page));
        let path = Path::new(directory).join(name);
        if is_check {
            let written = fs::read_to_string(&path).unwrap_or_default();
            let path = path.display();
            ensure!(written == page, "{path} is out of date: run `cargo xtask reference`");
        } else {
            fs::write(&path, page).with_context(|| format!("writing {}", path.display()))?;
        }
    }
    Ok(())
}

/// Escapes text that Markdown reads as HTML, such as `<name>`, outside of code.
fn escape_tags(page: &str) -> String {
    let mut is_code = false;
    let mut escaped = String::new();
    for c in page.chars() {
        is_code ^= c == '`';
        if c == '<' && !is_code { escaped.push_str("&lt;") } else { escaped.push(c) }
    }
    escaped
}

fn operators() -> Vec<OperatorTables> {
    vec![
        OperatorTables {
            name: collaset_operator::shell::NAME,
            events: &collaset_operator::reasons::EVENTS,
            conditions: &collaset_operator::reasons::CONDITIONS,
            metrics: &collaset_operator::metrics::METRICS,
            flags: collaset_operator::shell::PROGRAM.command(),
        },
        OperatorTables {
            name: consist_operator::shell::NAME,
            events: &consist_operator::reasons::EVENTS,
            conditions: &consist_operator::reasons::CONDITIONS,
            metrics: &consist_operator::metrics::METRICS,
            flags: consist_operator::shell::PROGRAM.command(),
        },
        OperatorTables {
            name: instance_operator::shell::NAME,
            events: &instance_operator::reasons::EVENTS,
            conditions: &instance_operator::reasons::CONDITIONS,
            metrics: &instance_operator::metrics::METRICS,
            flags: instance_operator::shell::PROGRAM.command(),
        },
        OperatorTables {
            name: lifecycle_operator::shell::NAME,
            events: &lifecycle_operator::reasons::EVENTS,
            conditions: &lifecycle_operator::reasons::CONDITIONS,
            metrics: &lifecycle_operator::metrics::METRICS,
            flags: lifecycle_operator::shell::PROGRAM.command(),
        },
        OperatorTables {
            name: operationjob_operator::shell::NAME,
            events: &operationjob_operator::reasons::EVENTS,
            conditions: &operationjob_operator::reasons::CONDITIONS,
            metrics: &operationjob_operator::metrics::METRICS,
            flags: operationjob_operator::shell::PROGRAM.command(),
        },
        OperatorTables {
            name: transition_rule_operator::shell::NAME,
            events: &transition_rule_operator::reasons::EVENTS,
            conditions: &transition_rule_operator::reasons::CONDITIONS,
            metrics: &transition_rule_operator::metrics::METRICS,
            flags: transition_rule_operator::shell::PROGRAM.command(),
        },
    ]
}

fn events(operators: &[OperatorTables]) -> anyhow::Result<String> {
    let mut page =
        "# Events\n\nThe same event on the same object is not repeated within 5 minutes.\n"
            .to_owned();
    for operator in operators {
        let header = "| reason | type | on | meaning |\n|---|---|---|---|";
        writeln!(page, "\n## {}\n\n{header}", operator.name)?;
        for event in operator.events {
            let severity = match event.severity {
                Severity::Normal => "Normal",
                Severity::Warning => "Warning",
            };
            let EventReason { name, objects, meaning, .. } = event;
            writeln!(page, "| `{name}` | {severity} | {objects} | {meaning} |")?;
        }
    }
    Ok(page)
}

fn conditions(operators: &[OperatorTables]) -> anyhow::Result<String> {
    let mut page = "# Conditions\n".to_owned();
    for operator in operators.iter().filter(|operator| !operator.conditions.is_empty()) {
        let header = "| condition | status | reason | meaning |\n|---|---|---|---|";
        writeln!(page, "\n## {}\n\n{header}", operator.name)?;
        for reason in operator.conditions {
            let ConditionReason { condition, status, name, meaning } = reason;
            let name = if name.is_empty() { "–".to_owned() } else { format!("`{name}`") };
            writeln!(page, "| `{condition}` | {} | {name} | {meaning} |", status.as_str())?;
        }
    }
    Ok(page)
}

fn metrics(operators: &[OperatorTables]) -> anyhow::Result<String> {
    let mut page =
        "# Metrics\n\nServed at `/metrics` of `--metrics-bind-address`, port 8080 by default.\n"
            .to_owned();
    let shared =
        [&podops_runtime::metrics::METRICS[..], &podops_client::shell::metrics::METRICS].concat();
    metric_table(&mut page, "All operators", &shared)?;
    let admission = "Operators with an admission webhook";
    metric_table(&mut page, admission, &podops_admission::METRICS)?;
    for operator in operators.iter().filter(|operator| !operator.metrics.is_empty()) {
        metric_table(&mut page, operator.name, operator.metrics)?;
    }
    Ok(page)
}

fn metric_table(page: &mut String, title: &str, metrics: &[&Metric]) -> anyhow::Result<()> {
    writeln!(page, "\n## {title}\n\n| metric | type | labels | description |\n|---|---|---|---|")?;
    for metric in metrics {
        let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
        let labels = labels.join(", ");
        let help = match metric.kind {
            MetricKind::Histogram { buckets } => {
                format!("{} Buckets: {}.", metric.help, bounds(buckets))
            }
            MetricKind::Counter | MetricKind::Gauge => metric.help.to_owned(),
        };
        writeln!(page, "| `{}` | {} | {labels} | {help} |", metric.name, metric.kind.as_str())?;
    }
    Ok(())
}

fn bounds(buckets: &[f64]) -> String {
    buckets.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn flags(operators: &[OperatorTables]) -> anyhow::Result<String> {
    let mut page =
        "# Flags\n\nEach flag can be set by an environment variable; the flag wins.\n".to_owned();
    let shared = <OperatorArgs as clap::Args>::augment_args(clap::Command::new("shared"));
    let shared_ids: Vec<String> =
        shared.get_arguments().map(|flag| flag.get_id().to_string()).collect();
    flag_table(&mut page, "All operators", shared.get_arguments())?;
    for operator in operators {
        let own = operator.flags.get_arguments().filter(|flag| {
            let id = flag.get_id().as_str();
            !flag.is_hide_set() && id != "version" && !shared_ids.iter().any(|shared| shared == id)
        });
        let own: Vec<&clap::Arg> = own.collect();
        if !own.is_empty() {
            flag_table(&mut page, operator.name, own.into_iter())?;
        }
    }
    Ok(page)
}

fn flag_table<'a>(
    page: &mut String,
    title: &str,
    flags: impl Iterator<Item = &'a clap::Arg>,
) -> anyhow::Result<()> {
    writeln!(
        page,
        "\n## {title}\n\n| flag | environment | default | description |\n|---|---|---|---|"
    )?;
    for flag in flags {
        let long = flag.get_long().unwrap_or_default();
        let env = flag.get_env().map(|env| format!("`{}`", env.to_string_lossy()));
        let defaults: Vec<String> = flag
            .get_default_values()
            .iter()
            .map(|v| format!("`{}`", v.to_string_lossy()))
            .collect();
        let help = flag.get_help().map(ToString::to_string).unwrap_or_default();
        let help = help.replace('\n', " ").replace('|', "\\|");
        let env = env.unwrap_or_default();
        let default = defaults.join(", ");
        writeln!(page, "| `--{long}` | {env} | {default} | {help} |")?;
    }
    Ok(())
}

fn command_line(title: &str, mut program: clap::Command) -> anyhow::Result<String> {
    let mut page = format!("# {title}\n");
    program.build();
    writeln!(page, "\n{}.", program.get_about().map(ToString::to_string).unwrap_or_default())?;
    let shared = program.get_arguments().filter(|argument| argument.is_global_set());
    argument_table(&mut page, "All commands", shared)?;
    for command in program.get_subcommands() {
        write_command(&mut page, command, command.get_name())?;
    }
    Ok(page)
}

/// Writes a command, or those that it has.
fn write_command(page: &mut String, command: &clap::Command, name: &str) -> anyhow::Result<()> {
    if name.split(' ').any(|part| part == "help") {
        return Ok(());
    }
    if command.has_subcommands() {
        return command.get_subcommands().try_for_each(|nested| {
            write_command(page, nested, &format!("{name} {}", nested.get_name()))
        });
    }
    let own = command.get_arguments().filter(|a| !a.is_global_set() && a.get_id() != "help");
    argument_table(page, name, own)?;
    let about = command.get_long_about().or(command.get_about());
    Ok(writeln!(page, "\n{}", about.map(ToString::to_string).unwrap_or_default())?)
}

fn argument_table<'a>(
    page: &mut String,
    title: &str,
    arguments: impl Iterator<Item = &'a clap::Arg>,
) -> anyhow::Result<()> {
    writeln!(page, "\n## {title}\n\n| argument | default | description |\n|---|---|---|")?;
    for argument in arguments {
        let name = argument.get_long().map_or_else(
            || format!("<{}>", argument.get_id().as_str().to_uppercase()),
            |long| format!("--{long}"),
        );
        let defaults: Vec<String> = argument
            .get_default_values()
            .iter()
            .map(|value| format!("`{}`", value.to_string_lossy()))
            .collect();
        let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
        writeln!(page, "| `{name}` | {} | {help} |", defaults.join(", "))?;
    }
    Ok(())
}
