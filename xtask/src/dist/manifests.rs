//! Manifests of a release: the kustomize overlays, rendered with the digests of its images.

use std::{fs, path::Path, process::Command};

use anyhow::{Context as _, ensure};
use podops_test_programs::Programs;

use super::{
    chart,
    release::{Digest, Release},
};
use crate::sources;

/// File with the CRDs.
pub(super) const DEFINITIONS: &str = "install-crds.yaml";

/// File with the CRDs of KUDO.
const DEFINITIONS_OF_KUDO: &str = "install-kudo-crds.yaml";

/// Kustomizations that are rendered, and the files with the results.
const KUSTOMIZATIONS: [(&str, &str); 5] = [
    ("deploy/overlays/all", "install.yaml"),
    ("deploy/overlays/kubernetes-1.33", "install-kubernetes-1.33.yaml"),
    ("deploy/overlays/lifecycle-only", "install-lifecycle-only.yaml"),
    ("deploy/overlays/packages", "install-packages.yaml"),
    ("deploy/monitoring", "monitoring.yaml"),
];

/// Kustomizations that the Helm chart is made of: for API servers with MutatingAdmissionPolicy, for
/// older ones, and for all.
const CHART: [&str; 3] =
    ["deploy/overlays/all", "deploy/overlays/kubernetes-1.33", "deploy/overlays/packages"];

/// Writes the manifests and the Helm chart of a release, with the digests of its images.
///
/// # Errors
///
/// If kubectl cannot be found or built, or rejects a kustomization.
pub(super) fn write(release: &Release, images: &[Digest]) -> anyhow::Result<()> {
    let kubectl = Programs::find_kubectl()?;
    let crds = kustomize(&kubectl, &sources::root().join("crds"))?;
    fs::write(release.output.join(DEFINITIONS), &crds)?;
    let of_kudo = kustomize(&kubectl, &sources::root().join("crds/kudo"))?;
    fs::write(release.output.join(DEFINITIONS_OF_KUDO), &of_kudo)?;
    for (directory, file) in KUSTOMIZATIONS {
        let kustomization = kustomization(release, &release.registry, directory, images);
        let manifests = render(&kubectl, &kustomization).with_context(|| directory.to_owned())?;
        fs::write(release.output.join(file), manifests)?;
    }
    let of_overlays = CHART.map(|directory| {
        let kustomization = kustomization(release, chart::REGISTRY, directory, images);
        anyhow::Ok(String::from_utf8(render(&kubectl, &kustomization)?)?)
    });
    let [current, older, packages] = of_overlays;
    let packages = packages?;
    let with_packages = |overlay: String| format!("{overlay}---\n{packages}");
    let manifests =
        chart::Manifests { current: with_packages(current?), older: with_packages(older?) };
    let crds = [&crds[..], b"---\n", &of_kudo].concat();
    chart::write(release, &manifests, crds).context("writing the Helm chart")
}

/// Kustomization of another one with the images of a release; it is beside `deploy`.
fn kustomization(release: &Release, registry: &str, directory: &str, images: &[Digest]) -> String {
    let version = &release.version;
    let images = images.iter().map(|Digest { operator, digest }| {
        format!("- {{ name: {operator}, newName: {registry}/{operator}, digest: '{digest}' }}\n")
    });
    let images: String = images.collect();
    let labels = format!("- {{ pairs: {{ app.kubernetes.io/version: '{version}' }} }}\n");
    format!("resources: [../../{directory}]\nimages:\n{images}labels:\n{labels}")
}

/// Renders a kustomization, which refers to the repository by relative paths only.
fn render(kubectl: &Path, kustomization: &str) -> anyhow::Result<Vec<u8>> {
    let parent = sources::root().join("target");
    fs::create_dir_all(&parent)?;
    let directory = tempfile::tempdir_in(parent)?;
    fs::write(directory.path().join("kustomization.yaml"), kustomization)?;
    kustomize(kubectl, directory.path())
}

fn kustomize(kubectl: &Path, directory: &Path) -> anyhow::Result<Vec<u8>> {
    let output = Command::new(kubectl).arg("kustomize").arg(directory).output();
    let output = output.context("starting kubectl")?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "kubectl kustomize failed: {}", error.trim());
    Ok(output.stdout)
}
