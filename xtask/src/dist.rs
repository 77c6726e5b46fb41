//! `cargo xtask dist`: images, manifests and the command line of a release, without a container
//! engine. The same sources and Debian packages lead to the same digests.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, ensure};
use clap::Parser;

use crate::{
    cargo::{self, BUILD_RELEASE, cargo_with},
    prerequisites, sources,
};

mod archive;
mod chart;
mod debian;
mod image;
mod manifests;
mod release;
mod root_fs;
mod sbom;

use archive::sha256;
use debian::Platform;
use manifests::DEFINITIONS;
use release::{Digest, OPERATORS, Release};

/// A command line, which is no image.
struct CommandLine {
    name: &'static str,
    /// Names of the same program: for use without kubectl, and for completion by kubectl.
    aliases: &'static [&'static str],
}

/// The command lines.
const COMMAND_LINES: [CommandLine; 2] = [
    CommandLine { name: "kubectl-podops", aliases: &["podops", "kubectl_complete-podops"] },
    CommandLine { name: "kubectl-kudo", aliases: &[] },
];

/// Operator that `kubectl kudo init` installs, and the variable with which its image is built into
/// it.
const INSTANCE_OPERATOR: &str = "instance-operator";
const IMAGE_VARIABLE: &str = "PODOPS_INSTANCE_OPERATOR_IMAGE";

/// File with the checksums of the other files; the digests of images cover their directories.
const CHECKSUMS: &str = "SHA256SUMS";

/// Maximum size of the files of an image, and of a command line, in bytes.
const IMAGE_MAX: u64 = 25_000_000;
const COMMAND_LINE_MAX: u64 = 20_000_000;

/// Builds the images, manifests, bills of materials and checksums of a release
#[derive(Parser)]
#[command(name = "cargo xtask dist", no_binary_name = true)]
struct DistArgs {
    /// Registry and path of the images in the manifests
    #[arg(long, required_unless_present = "files", default_value = "")]
    registry: String,
    /// Version of the release
    #[arg(long, default_value = env!("CARGO_PKG_VERSION"))]
    version: String,
    /// Directory of the results, target/dist by default; an earlier release in it is replaced
    #[arg(long)]
    output: Option<PathBuf>,
    /// Use the programs in this directory instead of a release build, whatever their size
    #[arg(long)]
    programs: Option<PathBuf>,
    /// Write only the files of the images, as directories in this one, for a container engine
    #[arg(long, conflicts_with = "published")]
    files: Option<PathBuf>,
    /// Write only the manifests, with the images that this file lists, one `<operator> <digest>`
    /// per line: those of several architectures, for example
    #[arg(long)]
    published: Option<PathBuf>,
}

/// Builds a release.
///
/// # Errors
///
/// If a program cannot be built, a Debian package cannot be downloaded, or an image is too large.
pub(crate) fn run(args: &[&str]) -> anyhow::Result<()> {
    let args = DistArgs::try_parse_from(args)?;
    let published = args.published.as_deref().map(parse_published).transpose()?;
    if published.is_none() {
        prerequisites::for_images()?;
    }
    if args.files.is_none() {
        prerequisites::for_manifests()?;
    }
    let programs = build(&args)?;
    if let Some(directory) = &args.files {
        return write_files(&programs, directory);
    }
    let is_checked = args.programs.is_none();
    let output = match &args.output {
        Some(output) => std::path::absolute(output)?,
        None => sources::root().join("target/dist"),
    };
    check_replaceable(&output)?;
    // Renamed when it is complete, so that a failed build leaves the earlier release.
    let parent = output.parent().context("--output has no parent directory")?;
    fs::create_dir_all(parent)?;
    let building = tempfile::tempdir_in(parent)?;
    fs::set_permissions(building.path(), fs::Permissions::from_mode(0o755))?;
    let release = release(args, building.path())?;
    let digests = if let Some(digests) = published {
        digests
    } else {
        for command_line in &COMMAND_LINES {
            write_command_line(&release, &programs, command_line, is_checked)?;
        }
        write_images(&release, &programs, is_checked)?
    };
    manifests::write(&release, &digests)?;
    write_checksums(&release.output)?;
    if output.exists() {
        fs::remove_dir_all(&output)?;
    }
    Ok(fs::rename(building.keep(), &output)?)
}

/// Builds the released programs; returns their directory.
fn build(args: &DistArgs) -> anyhow::Result<PathBuf> {
    if let Some(directory) = &args.programs {
        return Ok(directory.clone());
    }
    let image = format!("{}/{INSTANCE_OPERATOR}:{}", args.registry, args.version);
    let variables =
        [(cargo::RUST_FLAGS, cargo::flags_without_paths()?), (IMAGE_VARIABLE, image.into())];
    cargo_with(&BUILD_RELEASE, &variables)?;
    cargo::release()
}

/// Checks that a directory is empty, or an earlier release.
fn check_replaceable(output: &Path) -> anyhow::Result<()> {
    let Ok(entries) = fs::read_dir(output) else { return Ok(()) };
    let mut entries = entries.map(|entry| anyhow::Ok(entry?.file_name()));
    let is_release = output.join(CHECKSUMS).exists() && output.join(DEFINITIONS).exists();
    ensure!(
        is_release || entries.next().is_none(),
        "{} is neither empty nor a release; remove it, or use another --output",
        output.display()
    );
    Ok(())
}

/// Returns the properties of the release.
fn release(args: DistArgs, output: &Path) -> anyhow::Result<Release> {
    Ok(Release {
        registry: args.registry,
        version: args.version,
        revision: git(&["describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"])?,
        created: commit_time()?,
        platform: Platform::of_this_machine()?,
        output: output.to_owned(),
    })
}

/// Writes a command line with its bill of materials.
fn write_command_line(
    release: &Release,
    directory: &Path,
    command_line: &CommandLine,
    is_checked: bool,
) -> anyhow::Result<()> {
    let CommandLine { name, aliases } = command_line;
    let size = archive::write_program(release, directory, name, aliases)?;
    sbom::write(release, name, &[])?;
    report(name, size, is_checked.then_some(COMMAND_LINE_MAX))
}

/// Writes the images with their bills of materials; returns the images' digests.
fn write_images(
    release: &Release,
    programs: &Path,
    is_checked: bool,
) -> anyhow::Result<Vec<Digest>> {
    let runtime = debian::runtime(&release.platform)?;
    let mut digests = Vec::new();
    for operator in OPERATORS {
        let files = root_fs::read(programs, operator, &runtime)?;
        let digest = image::write(release, operator, &files)?;
        sbom::write(release, operator, &runtime.packages)?;
        report(operator, files.size(), is_checked.then_some(IMAGE_MAX))?;
        digests.push(Digest { operator: operator.to_owned(), digest });
    }
    Ok(digests)
}

/// Prints the size of an image or program; fails if it exceeds the maximum.
fn report(name: &str, size: u64, max: Option<u64>) -> anyhow::Result<()> {
    eprintln!("{name:<26} {:>6.1} MB", megabytes(size));
    ensure!(max.is_none_or(|max| size <= max), "{name} has {size} bytes, which is too large");
    Ok(())
}

/// Writes the files of each image to a directory of its name.
fn write_files(programs: &Path, directory: &Path) -> anyhow::Result<()> {
    let runtime = debian::runtime(&Platform::of_this_machine()?)?;
    for operator in OPERATORS {
        root_fs::read(programs, operator, &runtime)?.write(&directory.join(operator))?;
    }
    Ok(())
}

/// Reads the digests of published images.
fn parse_published(list: &Path) -> anyhow::Result<Vec<Digest>> {
    let text = fs::read_to_string(list).with_context(|| list.display().to_string())?;
    let digests = OPERATORS.map(|operator| {
        let found = text.lines().find_map(|line| line.strip_prefix(operator)?.strip_prefix(' '));
        let digest = found.with_context(|| format!("{} has no {operator}", list.display()))?;
        let hexadecimal = digest.trim().strip_prefix("sha256:").unwrap_or_default();
        let is_digest =
            hexadecimal.len() == 64 && hexadecimal.bytes().all(|b| b.is_ascii_hexdigit());
        ensure!(is_digest, "{}: {digest} of {operator} is no digest", list.display());
        Ok(Digest { operator: operator.to_owned(), digest: digest.trim().to_owned() })
    });
    digests.into_iter().collect()
}

#[allow(clippy::cast_precision_loss, reason = "for people")]
fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

/// Writes the checksums of the files, but not those in directories.
fn write_checksums(output: &Path) -> anyhow::Result<()> {
    let mut names = Vec::new();
    for entry in fs::read_dir(output)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort_unstable();
    let mut sums = Vec::new();
    for name in names {
        let content = fs::read(output.join(&name))?;
        sums.push(format!("{}  {name}\n", sha256(&content)));
    }
    Ok(fs::write(output.join(CHECKSUMS), sums.concat())?)
}

/// Time of the last commit, RFC 3339 in UTC.
fn commit_time() -> anyhow::Result<String> {
    git(&["log", "-1", "--date=format-local:%Y-%m-%dT%H:%M:%SZ", "--format=%cd"])
}

fn git(args: &[&str]) -> anyhow::Result<String> {
    let output =
        Command::new("git").args(args).env("TZ", "UTC").current_dir(sources::root()).output();
    let output = output.context("starting git")?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "git {} failed: {}", args.join(" "), error.trim());
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}
