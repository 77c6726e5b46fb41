//! Images of a release: built twice with equal digests, pushed to a registry and pulled, and run as
//! the operators of a cluster that its manifests are applied to.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use k8s_openapi::api::apps::v1::Deployment;
use kube::{Api, ResourceExt as _, api::ListParams};
use podops_e2e::{
    cluster::{OPERATORS, TestCluster, eventually, image, programs},
    control_plane::free_ports,
    programs::crane,
};

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

#[tokio::test(flavor = "multi_thread")]
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
    for operator in OPERATORS {
        let reference = format!("{name}/{operator}:1.2.3");
        let layout = release.join("images").join(operator);
        let push = || Command::new(&crane).arg("push").arg(&layout).arg(&reference).output();
        let is_pushed = async || Ok(push()?.status.success());
        eventually(TIMEOUT, is_pushed).await.unwrap();
        run(Command::new(&crane).args(["validate", "--remote", &reference]));
        let root = work.path().join(operator);
        unpack(&reference, &root);
        assert!(!root.join("bin").exists(), "an image has no shell");
        write_script(&scripts.join(operator), operator, &root);
    }

    let files = work.path().join("files");
    run(Command::new(programs().unwrap().join("xtask"))
        .args(["dist", "--programs"])
        .arg(programs().unwrap())
        .arg("--files")
        .arg(&files));
    for operator in OPERATORS {
        // What a container engine would copy.
        run(Command::new("diff")
            .arg("-r")
            .arg(files.join(operator))
            .arg(work.path().join(operator)));
    }

    let mut cluster = TestCluster::start_empty(&scripts).await.unwrap();
    for file in ["install-crds.yaml", "install.yaml"] {
        let file = release.join(file).display().to_string();
        cluster.plane.kubectl(&["apply", "--server-side", "-f", &file]).await.unwrap();
    }
    let deployments: Api<Deployment> =
        Api::namespaced(cluster.plane.admin.clone(), "podops-system");
    for deployment in deployments.list(&ListParams::default()).await.unwrap() {
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
    for operator in OPERATORS {
        let pid = cluster.operator(operator).unwrap().pid().unwrap();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let users = format!("{USER}\t{USER}\t{USER}\t{USER}");
        assert!(status.contains(&format!("Uid:\t{users}")), "{operator}: {status}");
    }
    cluster.assert_no_forbidden_requests().unwrap();
}
