//! OCI images, as a layout (a directory) and as its archive.

use std::{collections::BTreeMap, fs, path::Path};

use serde_json::{Value, json};

use super::{
    archive::{Entry, gzip, sha256, tar},
    release::Release,
    root_fs::{RootFs, USER, program_path},
};

/// Media types of the OCI image specification.
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// Content of a layout by path.
#[derive(Default)]
struct Layout(BTreeMap<String, Vec<u8>>);

impl Layout {
    /// Adds a blob; returns its descriptor.
    fn add(&mut self, media_type: &str, content: Vec<u8>) -> Value {
        let digest = sha256(&content);
        let descriptor = json!({
            "mediaType": media_type, "digest": format!("sha256:{digest}"), "size": content.len(),
        });
        self.0.insert(format!("blobs/sha256/{digest}"), content);
        descriptor
    }

    fn write(&self, directory: &Path) -> anyhow::Result<()> {
        fs::create_dir_all(directory.join("blobs/sha256"))?;
        for (path, content) in &self.0 {
            fs::write(directory.join(path), content)?;
        }
        Ok(())
    }

    fn archive(&self) -> anyhow::Result<Vec<u8>> {
        let directories = ["blobs", "blobs/sha256"].map(|path| (path, Entry::Directory));
        let files = self.0.iter().map(|(path, content)| {
            (path.as_str(), Entry::File { content: content.clone(), mode: 0o644 })
        });
        let entries: Vec<(&str, Entry)> = directories.into_iter().chain(files).collect();
        tar(entries.iter().map(|(path, entry)| (*path, entry)))
    }
}

/// Writes the image of an operator as `<operator>/` and `<operator>-<version>-<architecture>.tar`;
/// returns the digest of its manifest.
pub(super) fn write(release: &Release, operator: &str, files: &RootFs) -> anyhow::Result<String> {
    let mut layout = Layout::default();
    let uncompressed = tar(files.entries())?;
    let diff_id = format!("sha256:{}", sha256(&uncompressed));
    let layer = layout.add(LAYER, gzip(&uncompressed)?);
    let platform = json!({ "architecture": release.platform.architecture, "os": "linux" });
    let config = json!({
        "created": release.created,
        "architecture": release.platform.architecture,
        "os": "linux",
        "config": {
            "User": format!("{USER}:{USER}"),
            "Entrypoint": [format!("/{}", program_path(operator))],
            "WorkingDir": "/",
            "Labels": labels(release, operator),
        },
        "rootfs": { "type": "layers", "diff_ids": [diff_id] },
        "history": [{ "created": release.created, "created_by": "cargo xtask dist" }],
    });
    let config = layout.add(CONFIG, serde_json::to_vec(&config)?);
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": config,
        "layers": [layer],
        "annotations": labels(release, operator),
    });
    let mut manifest = layout.add(MANIFEST, serde_json::to_vec(&manifest)?);
    let digest = manifest["digest"].as_str().unwrap_or_default().to_owned();
    manifest["platform"] = platform;
    let name = format!("{}/{operator}:{}", release.registry, release.version);
    manifest["annotations"] = json!({ "org.opencontainers.image.ref.name": name });
    let index = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": [manifest] });
    layout.0.insert("index.json".to_owned(), serde_json::to_vec(&index)?);
    let version = json!({ "imageLayoutVersion": "1.0.0" });
    layout.0.insert("oci-layout".to_owned(), serde_json::to_vec(&version)?);
    layout.write(&release.output.join("images").join(operator))?;
    let architecture = release.platform.architecture;
    let archive = format!("{operator}-{}-{architecture}.tar", release.version);
    fs::write(release.output.join(archive), layout.archive()?)?;
    Ok(digest)
}

fn labels(release: &Release, operator: &str) -> Value {
    json!({
        "org.opencontainers.image.title": operator,
        "org.opencontainers.image.description": format!("{operator} of Podops"),
        "org.opencontainers.image.version": release.version,
        "org.opencontainers.image.revision": release.revision,
        "org.opencontainers.image.licenses": "Apache-2.0",
    })
}
