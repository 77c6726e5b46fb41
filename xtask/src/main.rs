//! The chores of this repository: `cargo xtask <command>`.

use std::{
    env, fs,
    io::{self, Write as _},
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, bail};

mod crds;
mod reference;
mod tidy;

const USAGE: &str = "\
Usage: cargo xtask <COMMAND>

Commands:
  bench            Measure what is promised, with release builds; writes docs/benchmarks.md
  crds [--check]   Write crds/ and docs/reference/ from the types in crates/api; with --check, fail
                   if they differ
  demo [--keep] [--context NAME] [--traffic]
                   A CollaSet's life on a real control plane with simulated nodes, or on the cluster
                   of a kubeconfig context; --keep leaves it running; --traffic has real servers
                   behind HAProxy under load, and counts what fails
  soak [--rounds N] [--seed N]
                   Random rollouts under shared rules with faults; writes docs/soak.md
  test             Everything CI runs: formatting, lints, unit and property tests, the models, e2e
  tidy [--report]  Check what no compiler does: terms, shape of the code, imports, links,
                   dependencies; with --report, print the figures";

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["bench"] => keep("bench", &[], "docs/benchmarks.md"),
        ["crds"] => crds::write(),
        ["crds", "--check"] => crds::check(),
        ["demo", args @ ..] => demo(args),
        ["soak", args @ ..] => keep("soak", args, "docs/soak.md"),
        ["test"] => test(),
        ["tidy"] => tidy::check(),
        ["tidy", "--report"] => Ok(io::stdout().write_all(tidy::report()?.as_bytes())?),
        _ => bail!("{USAGE}"),
    }
}

/// The crates whose decisions must compile with nothing that talks to the world.
const PURE: [&str; 5] = [
    "podops-runtime",
    "collaset-operator",
    "consist-operator",
    "lifecycle-operator",
    "transition-rule-operator",
];

/// The programs that the demo and the end-to-end tests run; the whole workspace, so that the tests
/// need not build its dependencies with other features once more.
const BUILD: [&str; 3] = ["build", "--workspace", "--bins"];

/// Shows what this is about.
fn demo(args: &[&str]) -> anyhow::Result<()> {
    cargo(&BUILD)?;
    let own = env::current_exe()?;
    let lab = own.with_file_name("podops-lab");
    let status = Command::new(&lab).arg("demo").args(args).status();
    if !status.with_context(|| format!("starting {}", lab.display()))?.success() {
        bail!("the demo failed");
    }
    Ok(())
}

/// Lets the lab measure release builds, and keeps the page that it prints.
fn keep(command: &str, args: &[&str], page: &str) -> anyhow::Result<()> {
    cargo(&["build", "--release", "--workspace", "--bins"])?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let target = env::current_exe()?;
    let target = target.ancestors().nth(2).context("this program is nowhere")?;
    let lab = target.join("release/podops-lab");
    let output = Command::new(&lab).arg(command).args(args).stderr(Stdio::inherit()).output();
    let output = output.with_context(|| format!("starting {}", lab.display()))?;
    if !output.status.success() {
        bail!("{command} failed");
    }
    io::stdout().write_all(&output.stdout)?;
    fs::write(root.join(page), output.stdout).context("keeping the page")
}

/// Runs every check, the cheapest first.
fn test() -> anyhow::Result<()> {
    cargo(&["fmt", "--all", "--check"])?;
    crds::check()?;
    for package in PURE {
        // Alone, since a workspace build unifies features and would hide an impurity.
        cargo(&["check", "--package", package, "--no-default-features"])?;
    }
    cargo(&["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"])?;
    cargo(&BUILD)?;
    cargo(&["test", "--workspace"])
}

fn cargo(args: &[&str]) -> anyhow::Result<()> {
    eprintln!("==> cargo {}", args.join(" "));
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo).args(args).status().context("starting cargo")?;
    if !status.success() {
        bail!("cargo {} failed", args.join(" "));
    }
    Ok(())
}
