//! Development tasks of this repository: `cargo xtask <command>`.

use std::{
    env, fs,
    io::{self, Write as _},
    panic,
    path::Path,
    process::{Command, Stdio},
    thread,
};

use anyhow::{Context as _, bail};
use cargo::{
    BUILD, BUILD_ALL, BUILD_DEMO, BUILD_RELEASE, OF_PACKAGES, cargo, cargo_with, release,
    target_directory,
};
use parts::Parts;
use podops_test_programs::Programs;

mod cargo;
mod crd_page;
mod crds;
mod dashboards;
mod dist;
mod generated;
mod mutants;
mod parts;
mod prerequisites;
mod processor_time;
mod sources;
mod suites;
mod tidy;

const USAGE: &str = "\
Usage: cargo xtask <COMMAND>

Commands:
  bench            Measure the performance targets with release builds; writes docs/benchmarks.md
  bench --packages Measure those of instance-operator and the command line for packages; writes
                   docs/benchmarks-packages.md
  bench --comparison
                   Count failed requests while Pods of Podops, Deployments, Argo Rollouts and OpenKruise
                   are changed; writes docs/benchmarks-comparison.md
  crds [--check]   Generate crds/ and their reference pages; with --check, fail if they differ
  dashboards [--check]
                   Generate the Grafana dashboards of deploy/monitoring; with --check, fail if they
                   differ
  demo [--keep] [--context NAME] [--traffic]
                   Create, update and scale a CollaSet on a local control plane with fake nodes, or
                   on the cluster of a kubeconfig context; --keep leaves it running; --traffic runs
                   servers behind HAProxy under load, and counts failed requests
  dist --registry NAME [--version VERSION] [--output DIR]
                   Build the images, manifests, bills of materials and checksums of a release, without
                   a container engine; writes target/dist
  dist --files DIR Write the files of the images only, for a container engine
  dist --registry NAME --published FILE
                   Write the manifests only, with the digests in a file
  histories [--count N] [--first N] [--seed N]
                   Do the same random actions of a user on native workloads and on CollaSets, and
                   compare the results; writes docs/histories.md
  hostile          Run the live tests of faults, hostile objects and tenants with release builds
                   and print their figures; PODOPS_FUZZ_OBJECTS, PODOPS_SCALE_PODS and
                   PODOPS_SCALE_RULES set other numbers
  mutants          Change each condition of the planning and scheduling of plans, and run the models and unit
                   tests against each change
  packages DIR     Take the packages of KUDO below a folder through their life with the command line,
                   and again while the operator is killed; writes docs/community-packages.md
  plot             Draw the data of the dashboards while Pods are changed; writes
                   docs/how-to/dashboards
  record           Record `kubectl podops get --watch` during an update; writes docs/recording.md
  reference [--check]
                   Generate docs/reference/{events,conditions,metrics,flags,kubectl-podops,kubectl-kudo}.md
                   from the programs' tables; with --check, fail if they differ
  soak [--rounds N] [--seed N]
                   Run random rollouts with faults under shared rules; writes docs/soak.md
  programs         Build or download the programs of other projects that the tests run
  test             Run what CI runs: formatting, lints, unit and property tests, models, e2e tests
  test --each      Run each scenario of the groups alone, on a cluster of its own
  test NAME [--keep]
                   Run the tests with NAME in their names; with --keep, the cluster of a scenario remains
                   until Ctrl-C
  tidy [--report]  Check terms, shape of the code, imports, links and dependencies; with --report,
                   print the figures
  upgrade REVISION Run the test of an upgrade and a rollback during rollouts, between a revision of this
                   repository and the present one, with release builds";

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["bench"] => write_page("bench", &[], "docs/benchmarks.md"),
        ["bench", "--packages"] => bench_packages(),
        ["bench", "--comparison"] => {
            prerequisites::for_tests()?;
            write_page("bench", &["--comparison"], "docs/benchmarks-comparison.md")
        }
        ["crds"] => generated::write(crds::files()?),
        ["crds", "--check"] => generated::check(crds::files()?, "crds"),
        ["dashboards"] => generated::write(dashboards::files()?),
        ["dashboards", "--check"] => generated::check(dashboards::files()?, "dashboards"),
        ["demo", args @ ..] => demo(args),
        ["dist", args @ ..] => dist::run(args),
        ["histories", args @ ..] => histories(args),
        ["hostile"] => hostile(),
        ["mutants"] => mutants::run(),
        ["packages", folder] => write_page("packages", &[folder], "docs/community-packages.md"),
        ["plot"] => plot(),
        ["record"] => write_page("record", &[], "docs/recording.md"),
        ["reference"] => reference(&[]),
        ["reference", "--check"] => reference(&["--check"]),
        ["soak", args @ ..] => write_page("soak", args, "docs/soak.md"),
        ["programs"] => podops_test_programs::install_all(),
        ["test"] => test(),
        ["test", "--each"] => test_each(),
        ["test", name] => test_named(name, false),
        ["test", name, "--keep"] => test_named(name, true),
        ["upgrade", revision] => upgrade(revision),
        ["help" | "--help" | "-h"] => Ok(writeln!(io::stdout(), "{USAGE}")?),
        ["tidy"] => tidy::check(),
        ["tidy", "--report"] => Ok(io::stdout().write_all(tidy::report()?.as_bytes())?),
        _ => bail!("{USAGE}"),
    }
}

/// Crates that must compile without default features, that is without I/O.
const PURE: [&str; 7] = [
    "podops-client",
    "collaset-operator",
    "consist-operator",
    "instance-operator",
    "lifecycle-operator",
    "operationjob-operator",
    "transition-rule-operator",
];

/// Runs the demo. The control plane is built while the operators are: most of its time are
/// downloads.
fn demo(args: &[&str]) -> anyhow::Result<()> {
    prerequisites::for_demo(args)?;
    let control_plane = thread::spawn(Programs::find);
    let further = if args.contains(&"--package") { &OF_PACKAGES[..] } else { &[] };
    cargo(&[&BUILD_DEMO[..], further].concat())?;
    control_plane.join().unwrap_or_else(|panic| panic::resume_unwind(panic))?;
    let program = env::current_exe()?.with_file_name("podops-e2e");
    let status = Command::new(&program).arg("demo").args(args).status();
    if !status.with_context(|| format!("starting {}", program.display()))?.success() {
        bail!("the demo failed");
    }
    Ok(())
}

/// Compares CollaSets with native workloads, with debug builds: no time is measured.
fn histories(args: &[&str]) -> anyhow::Result<()> {
    prerequisites::for_tests()?;
    cargo(&BUILD_ALL)?;
    let program = target_directory()?.join("debug/podops-bench");
    write_page_of(&program, "histories", args, "docs/histories.md")
}

/// Runs a `podops-bench` command with release builds, and writes the page that it prints to `page`.
fn write_page(command: &str, args: &[&str], page: &str) -> anyhow::Result<()> {
    cargo(&BUILD_RELEASE)?;
    write_page_of(&release()?.join("podops-bench"), command, args, page)
}

/// Runs a command of a program, and writes the page that it prints to `page`.
fn write_page_of(program: &Path, command: &str, args: &[&str], page: &str) -> anyhow::Result<()> {
    let output = Command::new(program).arg(command).args(args).stderr(Stdio::inherit()).output();
    let output = output.with_context(|| format!("starting {}", program.display()))?;
    if !output.status.success() {
        bail!("{command} failed");
    }
    io::stdout().write_all(&output.stdout)?;
    fs::write(sources::root().join(page), output.stdout).with_context(|| format!("writing {page}"))
}

/// Compares with the Go programs that KUDO uses, and measures instance-operator and the command
/// line for packages.
fn bench_packages() -> anyhow::Result<()> {
    let compared = target_directory()?.join("comparisons");
    fs::create_dir_all(&compared)?;
    let tests: Vec<&str> = COMPARISONS.iter().flat_map(|test| ["--test", test]).collect();
    let arguments = [&["test", "--workspace"], &tests[..]].concat();
    cargo_with(&arguments, &[("PODOPS_COMPARISONS", compared.clone())])?;
    let compared = compared.display().to_string();
    write_page("bench", &["--packages", &compared], "docs/benchmarks-packages.md")
}

/// Tests that compare with the Go programs that KUDO uses.
const COMPARISONS: [&str; 3] = ["templates", "yaml", "hashes"];

/// Draws the dashboards with release builds.
fn plot() -> anyhow::Result<()> {
    prerequisites::for_tests()?;
    cargo(&BUILD_RELEASE)?;
    let folder = sources::root().join("docs/how-to/dashboards");
    let status = Command::new(release()?.join("podops-bench")).arg("plot").arg(folder).status();
    anyhow::ensure!(status.context("starting podops-bench")?.success(), "plot failed");
    Ok(())
}

/// Runs the live tests of hostile objects, tenants and large numbers with release builds of the
/// operators.
fn hostile() -> anyhow::Result<()> {
    prerequisites::for_tests()?;
    cargo(&BUILD_RELEASE)?;
    let arguments = ["test", "--workspace", "--test", "hostile"];
    cargo_with(&arguments, &[("PODOPS_PROGRAMS", release()?)])
}

/// Runs the test of an upgrade from a revision, which is built in a worktree of its own.
fn upgrade(revision: &str) -> anyhow::Result<()> {
    prerequisites::for_tests()?;
    let previous = sources::root().join("target/previous");
    git_worktree(&commit(revision)?, &previous)?;
    let manifest = previous.join("Cargo.toml").display().to_string();
    let target = previous.join("target").display().to_string();
    let at = ["--manifest-path", &manifest, "--target-dir", &target];
    cargo(&[&BUILD_RELEASE[..], &at].concat())?;
    cargo(&BUILD_RELEASE)?;
    let environment = [("PODOPS_PROGRAMS", release()?), ("PODOPS_PREVIOUS", previous)];
    let arguments = ["test", "--workspace", "--test", "operations", "--", "upgrade::"];
    cargo_with(&arguments, &environment)
}

/// Returns the commit of a revision of this repository.
fn commit(revision: &str) -> anyhow::Result<String> {
    let revision = format!("{revision}^{{commit}}");
    let output = Command::new("git").args(["rev-parse", "--verify", &revision]).output();
    let output = output.context("starting git")?;
    anyhow::ensure!(output.status.success(), "{revision} is no commit of this repository");
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// Checks out a commit in a worktree, in place of another one there.
fn git_worktree(revision: &str, path: &Path) -> anyhow::Result<()> {
    let at = path.display().to_string();
    let arguments: &[&str] = if path.exists() {
        &["-C", &at, "checkout", "--quiet", "--detach", revision]
    } else {
        &["worktree", "add", "--quiet", "--force", "--detach", &at, revision]
    };
    let status = Command::new("git").args(arguments).status().context("starting git")?;
    anyhow::ensure!(status.success(), "git cannot check out {revision}");
    Ok(())
}

/// Runs all checks, the fastest first, and prints the time of each part.
fn test() -> anyhow::Result<()> {
    let mut parts = Parts::since_start();
    let result = test_parts(&mut parts);
    write!(io::stdout(), "\n{}", parts.table())?;
    result
}

/// Runs each scenario of the groups alone.
fn test_each() -> anyhow::Result<()> {
    prerequisites::for_tests()?;
    cargo(&BUILD_ALL)?;
    suites::run_each()
}

/// Runs the tests with a name.
fn test_named(name: &str, keep: bool) -> anyhow::Result<()> {
    prerequisites::for_tests()?;
    cargo(&BUILD_ALL)?;
    suites::run_named(name, keep)
}

fn test_parts(parts: &mut Parts) -> anyhow::Result<()> {
    parts.run("prerequisites", prerequisites::for_tests)?;
    let programs = Parts::start("other programs, beside the above", &["programs"])?;
    parts.run("formatting", || cargo(&["fmt", "--all", "--check"]))?;
    parts.run("generated files, tidy", || {
        generated::check(crds::files()?, "crds")?;
        generated::check(dashboards::files()?, "dashboards")?;
        tidy::check()
    })?;
    parts.run("packages without I/O", || {
        // Without the other packages, whose features would hide that one of these lacks a feature.
        let packages = PURE.iter().flat_map(|package| ["--package", package]);
        let check = ["check", "--no-default-features"].into_iter().chain(packages);
        cargo(&check.collect::<Vec<_>>())
    })?;
    parts.run("clippy", || {
        cargo(&["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"])
    })?;
    parts.run("build of programs and tests", || cargo(&BUILD_ALL))?;
    parts.run("reference pages", || run_reference(&["--check"]))?;
    parts.wait(programs)?;
    suites::run(parts)
}

/// Builds the programs, and generates or checks the reference pages.
fn reference(args: &[&str]) -> anyhow::Result<()> {
    cargo(&BUILD)?;
    run_reference(args)
}

fn run_reference(args: &[&str]) -> anyhow::Result<()> {
    let program = env::current_exe()?.with_file_name("podops-reference");
    let pages = sources::root().join("docs/reference");
    let status = Command::new(&program).arg(pages).args(args).status();
    if !status.with_context(|| format!("starting {}", program.display()))?.success() {
        bail!("docs/reference: generation or check failed");
    }
    Ok(())
}
