//! Images of a release: packed twice with equal digests, pushed to a registry and pulled, and run
//! as the operators of a cluster that its manifests are applied to.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use k8s_openapi::api::apps::v1::Deployment;
use kube::{Api, ResourceExt as _, api::ListParams};
use podops_test_cluster::{
    cluster::{INSTANCE_OPERATOR, OPERATORS, TestCluster, eventually, image, programs},
    control_plane::free_ports,
    suite::{Lane, Suite},
};
use podops_test_programs::crane;
use serde_json::{Value, json};

const TIMEOUT: Duration = Duration::from_secs(60);
/// User and group of the programs.
const USER: u32 = 65_532;

/// Registry on a loopback address, until this is dropped.
struct Registry {
    process: Child,
    address: String,
    _disk: tempfile::TempDir,
}

impl Registry {
    fn start() -> Self {
        let [port] = free_ports().unwrap();
        let (address, disk) = (format!("127.0.0.1:{port}"), tempfile::tempdir().unwrap());
        let serve = ["registry", "serve", "--address", &address, "--disk"];
        let process = Command::new(crane().unwrap())
            .args(serve)
            .arg(disk.path())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { process, address, _disk: disk }
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// Runs a program; returns its output without line end.
#[track_caller]
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Builds a release of the programs of this build.
fn build(registry: &str, output: &Path) {
    let directory = programs().unwrap();
    run(Command::new(directory.join("xtask"))
        .args(["dist", "--version", "1.2.3", "--registry", registry, "--programs"])
        .arg(&directory)
        .arg("--output")
        .arg(output));
}

/// Unpacks a pulled image.
fn unpack(reference: &str, root: &Path) {
    let archive = root.with_extension("tar");
    run(Command::new(crane().unwrap()).arg("export").arg(reference).arg(&archive));
    fs::create_dir_all(root).unwrap();
    fs::set_permissions(root, fs::Permissions::from_mode(0o755)).unwrap();
    run(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(root));
    fs::remove_file(archive).unwrap();
}

/// Writes a script that runs a program in its image: as the user of the image, with a root that is
/// read-only.
fn write_script(script: &Path, operator: &str, root: &Path) {
    let root = root.display();
    let text = format!(
        r#"#!/bin/sh
install -D -m 0644 "$KUBECONFIG" "{root}/run/kubeconfig"
# The kubeconfig names this file.
ca="$(dirname "$KUBECONFIG")/ca.crt"
install -D -m 0644 "$ca" "{root}$ca"
export KUBECONFIG=/run/kubeconfig
exec unshare --mount sh -c '
  mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" || exit 1
  exec chroot --userspec={USER}:{USER} "$0" /usr/bin/{operator} "$@"
' {root} "$@"
"#
    );
    fs::write(script, text).unwrap();
    fs::set_permissions(script, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Operators that have an image: instance-operator is installed by an overlay of its own.
fn images() -> impl Iterator<Item = &'static str> {
    OPERATORS.into_iter().chain([INSTANCE_OPERATOR])
}

/// Asserts the configuration of an image.
fn assert_config(config: &str, operator: &str) {
    let config: Value = serde_json::from_str(config).unwrap();
    assert_eq!(config["os"], "linux");
    let config = &config["config"];
    assert_eq!(config["User"], format!("{USER}:{USER}"));
    assert_eq!(config["Entrypoint"], json!([format!("/usr/bin/{operator}")]));
    let labels = &config["Labels"];
    assert_eq!(labels["org.opencontainers.image.version"], "1.2.3");
    assert_eq!(labels["org.opencontainers.image.licenses"], "Apache-2.0");
    let revision = labels["org.opencontainers.image.revision"].as_str().unwrap();
    assert!(revision.len() >= 40, "{revision}");
}

/// Modes, types and paths in a directory.
fn list(directory: &Path) -> Vec<String> {
    let found = run(Command::new("find").arg(directory).args(["-printf", "%m %y %P\n"]));
    let mut lines: Vec<String> = found.lines().map(str::to_owned).collect();
    lines.sort_unstable();
    lines
}

/// Asserts that an image has a program, its libraries and certificates, and nothing else.
fn assert_files(root: &Path, operator: &str) {
    let mut programs = list(&root.join("usr/bin"));
    programs.retain(|line| line.starts_with("755 f "));
    assert_eq!(programs, [format!("755 f {operator}")]);
    let files = list(root);
    let executable = files.iter().filter(|line| line.starts_with("755 f "));
    let executable: Vec<&String> = executable.collect();
    let is_library = |line: &&&String| line.contains(".so");
    assert_eq!(executable.iter().filter(is_library).count(), 4, "{executable:?}");
    assert_eq!(executable.len(), 5, "{executable:?}");
    let certificates = fs::read_to_string(root.join("etc/ssl/certs/ca-certificates.crt")).unwrap();
    let count = certificates.matches("-----BEGIN CERTIFICATE-----\n").count();
    assert!(count > 50, "{count} certificates");
    assert_eq!(count, certificates.matches("-----END CERTIFICATE-----\n").count());
}

/// Asserts that the archive of an image has the files of its layout.
fn assert_archive(release: &Path, operator: &str) {
    let suffix = format!("{operator}-1.2.3-");
    let mut archives = fs::read_dir(release).unwrap().map(|entry| entry.unwrap().path());
    let is_archive = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.starts_with(&suffix) && name.ends_with(".tar")
    };
    let archive = archives.find(is_archive).unwrap();
    let unpacked = tempfile::tempdir().unwrap();
    run(Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(unpacked.path()));
    let layout = release.join("images").join(operator);
    run(Command::new("diff").arg("-r").arg(unpacked.path()).arg(layout));
}

/// Asserts that the archives of the command lines have programs that run, and checks the manifests
/// that install packages.
fn assert_command_line(release: &Path) {
    let unpacked = tempfile::tempdir().unwrap();
    let archive = "tar -xzf kubectl-podops-1.2.3-linux-*.tar.gz -C \"$0\" \
                   kubectl-podops podops kubectl_complete-podops";
    run(Command::new("sh").args(["-c", archive]).arg(unpacked.path()).current_dir(release));
    for name in ["kubectl-podops", "podops"] {
        let version = run(Command::new(unpacked.path().join(name)).arg("--version"));
        assert!(version.starts_with("kubectl"), "{version}");
    }
    let completed = run(Command::new(unpacked.path().join("kubectl_complete-podops")).arg("roll"));
    assert!(completed.starts_with("rollout\t"), "{completed}");
    let archive = "tar -xzf kubectl-kudo-1.2.3-linux-*.tar.gz -C \"$0\" kubectl-kudo";
    run(Command::new("sh").args(["-c", archive]).arg(unpacked.path()).current_dir(release));
    run(Command::new(unpacked.path().join("kubectl-kudo")).arg("--version"));
    let packages = fs::read_to_string(release.join("install-packages.yaml")).unwrap();
    assert!(packages.contains("/podops/instance-operator@sha256:"), "{packages}");
    let definitions = fs::read_to_string(release.join("install-kudo-crds.yaml")).unwrap();
    assert!(definitions.contains("name: instances.kudo.dev"), "{definitions}");
    assert_bill(release, "kubectl-podops", &["kube-client"]);
}

/// Asserts that the bill of materials of a program has these components, each with a version.
fn assert_bill(release: &Path, program: &str, expected: &[&str]) {
    let bill = fs::read_to_string(release.join(format!("{program}.cdx.json"))).unwrap();
    let bill: Value = serde_json::from_str(&bill).unwrap();
    assert_eq!(bill["bomFormat"], "CycloneDX");
    assert_eq!(bill["metadata"]["component"]["name"], program);
    let components = bill["components"].as_array().unwrap();
    for name in expected {
        assert!(components.iter().any(|c| c["name"] == *name), "{program}: no {name} in {bill}");
    }
    let has_version = |c: &&Value| c["version"].as_str().is_some_and(|version| !version.is_empty());
    assert_eq!(components.iter().filter(has_version).count(), components.len(), "{bill}");
}

/// Adds the scenarios of this file.
pub(crate) fn add(suite: Suite) -> Suite {
    suite.scenario(Lane::Beside, a_release_is_reproducible_and_runs_from_its_images)
}

async fn a_release_is_reproducible_and_runs_from_its_images() {
    let (work, registry) = (tempfile::tempdir().unwrap(), Registry::start());
    let name = format!("{}/podops", registry.address);
    let [release, again] = ["release", "again"].map(|name| work.path().join(name));
    for output in [&release, &again] {
        build(&name, output);
    }
    let sums = |directory: &PathBuf| fs::read_to_string(directory.join("SHA256SUMS")).unwrap();
    assert_eq!(sums(&release), sums(&again), "the same bytes");
    run(Command::new("sha256sum").args(["--check", "--quiet", "SHA256SUMS"]).current_dir(&release));

    // A directory that tests start the operators from.
    let scripts = work.path().join("programs");
    fs::create_dir(&scripts).unwrap();
    symlink(programs().unwrap().join("podops-e2e"), scripts.join("podops-e2e")).unwrap();
    let crane = crane().unwrap();
    for operator in images() {
        let reference = format!("{name}/{operator}:1.2.3");
        let layout = release.join("images").join(operator);
        let push = || Command::new(&crane).arg("push").arg(&layout).arg(&reference).output();
        let is_pushed = async || Ok(push()?.status.success());
        eventually(TIMEOUT, is_pushed).await.unwrap();
        run(Command::new(&crane).args(["validate", "--remote", &reference]));
        assert_config(&run(Command::new(&crane).args(["config", &reference])), operator);
        let root = work.path().join(operator);
        unpack(&reference, &root);
        assert_files(&root, operator);
        assert_archive(&release, operator);
        assert_bill(&release, operator, &["kube-client", "libc6", "ca-certificates"]);
        write_script(&scripts.join(operator), operator, &root);
    }

    assert_command_line(&release);

    let files = work.path().join("files");
    run(Command::new(programs().unwrap().join("xtask"))
        .args(["dist", "--programs"])
        .arg(programs().unwrap())
        .arg("--files")
        .arg(&files));
    for operator in images() {
        // The files that a container engine would copy.
        let [copied, pulled] = [files.join(operator), work.path().join(operator)];
        run(Command::new("diff").arg("-r").arg(&copied).arg(&pulled));
        assert_eq!(list(&copied), list(&pulled));
    }

    operators_run_from(&scripts, &release, &name).await;
}

/// Applies the manifests of a release, and runs the operators by scripts that use its images.
async fn operators_run_from(scripts: &Path, release: &Path, name: &str) {
    let crane = crane().unwrap();
    let mut cluster = TestCluster::start_empty(scripts).await.unwrap();
    for file in ["install-crds.yaml", "install.yaml"] {
        let file = release.join(file).display().to_string();
        cluster.plane.kubectl(&["apply", "--server-side", "-f", &file]).await.unwrap();
    }
    let deployments: Api<Deployment> =
        Api::namespaced(cluster.plane.admin.clone(), "podops-system");
    let installed = deployments.list(&ListParams::default()).await.unwrap().items;
    assert_eq!(installed.len(), OPERATORS.len());
    for deployment in installed {
        let pod = deployment.spec.as_ref().and_then(|spec| spec.template.spec.as_ref()).unwrap();
        let image = pod.containers[0].image.clone().unwrap();
        let tag = format!("{name}/{}:1.2.3", deployment.name_any());
        let digest = run(Command::new(&crane).args(["digest", &tag]));
        assert_eq!(image, format!("{name}/{}@{digest}", deployment.name_any()));
    }
    cluster.start_operators().await.unwrap();
    cluster.create("web", 3, "nginx:1").await.unwrap();
    cluster.wait_until_rolled_out("web", 3, TIMEOUT).await.unwrap();
    cluster.set_image("web", "nginx:2").await.unwrap();
    cluster.wait_until_rolled_out("web", 3, TIMEOUT).await.unwrap();
    let pods = cluster.pods_of("web").await.unwrap();
    assert!(pods.iter().all(|pod| image(pod) == "nginx:2"));
    cluster.add_instance_operator().await.unwrap();
    for operator in images() {
        let pid = cluster.operator(operator).unwrap().pid().unwrap();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let users = format!("{USER}\t{USER}\t{USER}\t{USER}");
        assert!(status.contains(&format!("Uid:\t{users}")), "{operator}: {status}");
    }
    cluster.assert_no_forbidden_requests().unwrap();
}
