//! Programs that tests and demo need: checked before anything is built, installed where possible,
//! and named otherwise.

use std::process::{Command, Stdio};

use anyhow::bail;

/// A program that must be installed.
struct Prerequisite {
    name: &'static str,
    /// Command that succeeds if it is installed.
    check: &'static [&'static str],
    source: Source,
}

/// Where a program comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// Component of the Rust toolchain.
    Rustup(&'static str),
    /// Debian package.
    Apt(&'static str),
    /// Has to be installed by the user.
    User,
    /// Right that root has.
    Right,
}

const GO: Prerequisite =
    Prerequisite { name: "go", check: &["go", "version"], source: Source::User };
const HAPROXY: Prerequisite =
    Prerequisite { name: "haproxy", check: &["haproxy", "-v"], source: Source::Apt("haproxy") };
const PYTHON: Prerequisite = Prerequisite {
    name: "python3",
    check: &["python3", "--version"],
    source: Source::Apt("python3"),
};
const PYTHON_VENV: Prerequisite = Prerequisite {
    name: "python3-venv",
    check: &["python3", "-c", "import ensurepip, venv"],
    source: Source::Apt("python3-venv"),
};
const DPKG: Prerequisite = Prerequisite {
    name: "dpkg-deb and apt-get (Debian or Ubuntu)",
    check: &["sh", "-c", "dpkg-deb --version && apt-get --version"],
    source: Source::User,
};
/// Tests of images and webhooks mount files over those of the system, each in a mount namespace of
/// its own.
const MOUNT_NAMESPACE: Prerequisite = Prerequisite {
    name: "the right to create mount namespaces",
    check: &["unshare", "--mount", "true"],
    source: Source::Right,
};
const RUSTFMT: Prerequisite = Prerequisite {
    name: "rustfmt",
    check: &["cargo", "fmt", "--version"],
    source: Source::Rustup("rustfmt"),
};
const CLIPPY: Prerequisite = Prerequisite {
    name: "clippy",
    check: &["cargo", "clippy", "--version"],
    source: Source::Rustup("clippy"),
};

/// Installs the programs that the tests need.
///
/// # Errors
///
/// If a program is missing and cannot be installed.
pub(crate) fn for_tests() -> anyhow::Result<()> {
    ensure(&[RUSTFMT, CLIPPY, GO, PYTHON, PYTHON_VENV, HAPROXY, DPKG, MOUNT_NAMESPACE])
}

/// Installs the programs that the demo needs.
///
/// # Errors
///
/// If a program is missing and cannot be installed.
pub(crate) fn for_demo(args: &[&str]) -> anyhow::Result<()> {
    if args.contains(&"--traffic") { ensure(&[GO, HAPROXY]) } else { ensure(&[GO]) }
}

/// Installs the programs that the files of images need.
///
/// # Errors
///
/// If a program is missing and cannot be installed.
pub(crate) fn for_images() -> anyhow::Result<()> {
    ensure(&[DPKG])
}

/// Installs the programs that manifests need: kubectl is built if it is not installed.
///
/// # Errors
///
/// If a program is missing and cannot be installed.
pub(crate) fn for_manifests() -> anyhow::Result<()> {
    ensure(&[GO])
}

fn ensure(all: &[Prerequisite]) -> anyhow::Result<()> {
    let missing = missing(all);
    for command in install_commands(&missing, !is_root()) {
        eprintln!("==> {}", command.join(" "));
        // The result is checked below.
        drop(run(&command));
    }
    let missing = self::missing(all);
    if missing.is_empty() {
        return Ok(());
    }
    bail!("{}", instructions(&missing))
}

fn missing(all: &[Prerequisite]) -> Vec<&Prerequisite> {
    all.iter().filter(|prerequisite| !is_installed(prerequisite)).collect()
}

fn is_installed(prerequisite: &Prerequisite) -> bool {
    let Some((program, args)) = prerequisite.check.split_first() else { return true };
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn run(command: &[String]) -> std::io::Result<()> {
    let Some((program, args)) = command.split_first() else { return Ok(()) };
    Command::new(program).args(args).stdin(Stdio::null()).status().map(drop)
}

/// Returns whether the user is root, who needs no `sudo`.
fn is_root() -> bool {
    let output = Command::new("id").arg("-u").output();
    output.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

/// Updates the lists of Debian packages. Whether it succeeded shows when a package is downloaded.
pub(crate) fn update_package_lists() {
    let sudo = if is_root() { "" } else { "sudo -n " };
    drop(run(&words(&format!("{sudo}apt-get update -qq"))));
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(ToOwned::to_owned).collect()
}

/// Commands that install the missing programs, as root with `sudo` if necessary, but without
/// a password prompt.
fn install_commands(missing: &[&Prerequisite], needs_sudo: bool) -> Vec<Vec<String>> {
    let mut commands = Vec::new();
    let components = names(missing, |source| match source {
        Source::Rustup(component) => Some(component),
        Source::Apt(_) | Source::User | Source::Right => None,
    });
    if !components.is_empty() {
        commands.push(words(&format!("rustup component add {components}")));
    }
    let packages = packages(missing);
    if !packages.is_empty() {
        let sudo = if needs_sudo { "sudo -n " } else { "" };
        commands.push(words(&format!("{sudo}apt-get update -qq")));
        commands.push(words(&format!("{sudo}apt-get install -qq -y {packages}")));
    }
    commands
}

fn packages(missing: &[&Prerequisite]) -> String {
    names(missing, |source| match source {
        Source::Apt(package) => Some(package),
        Source::Rustup(_) | Source::User | Source::Right => None,
    })
}

fn names(missing: &[&Prerequisite], name: impl Fn(Source) -> Option<&'static str>) -> String {
    let names: Vec<&str> =
        missing.iter().filter_map(|prerequisite| name(prerequisite.source)).collect();
    names.join(" ")
}

/// One line that names the missing programs, and how to install them.
fn instructions(missing: &[&Prerequisite]) -> String {
    let all: Vec<&str> = missing.iter().map(|prerequisite| prerequisite.name).collect();
    let mut steps = Vec::new();
    let packages = packages(missing);
    if !packages.is_empty() {
        steps.push(format!("run `apt-get install {packages}` as root"));
    }
    for prerequisite in missing {
        match prerequisite.source {
            Source::Rustup(component) => {
                steps.push(format!("run `rustup component add {component}`"));
            }
            Source::User => steps.push(format!("install {}", prerequisite.name)),
            Source::Right => steps.push("run it as root".to_owned()),
            Source::Apt(_) => {}
        }
    }
    format!("missing: {}; {}", all.join(", "), steps.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debian_packages_are_installed_in_one_step() {
        let missing = [&HAPROXY, &PYTHON_VENV, &CLIPPY, &GO];
        let commands: Vec<String> =
            install_commands(&missing, true).iter().map(|command| command.join(" ")).collect();
        assert_eq!(
            commands,
            [
                "rustup component add clippy",
                "sudo -n apt-get update -qq",
                "sudo -n apt-get install -qq -y haproxy python3-venv",
            ]
        );
        assert!(install_commands(&[&GO], false).is_empty());
    }

    #[test]
    fn what_cannot_be_installed_is_named_in_one_line() {
        let text = instructions(&[&HAPROXY, &GO]);
        assert_eq!(text, "missing: haproxy, go; run `apt-get install haproxy` as root; install go");
    }

    #[test]
    fn a_missing_right_is_named_with_who_has_it() {
        let text = instructions(&[&MOUNT_NAMESPACE]);
        assert_eq!(text, "missing: the right to create mount namespaces; run it as root");
    }

    #[test]
    fn a_program_that_is_not_installed_is_missing() {
        let absent = Prerequisite {
            name: "absent",
            check: &["podops-absent-program"],
            source: Source::User,
        };
        let present = Prerequisite { name: "cargo", check: &["cargo", "--version"], ..absent };
        let all = [absent, present];
        assert_eq!(missing(&all).iter().map(|p| p.name).collect::<Vec<_>>(), ["absent"]);
    }
}
