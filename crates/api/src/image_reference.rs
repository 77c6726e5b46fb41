//! References to images: an equivalent reference to the same image restarts a container in place.
//!
//! The API server lets the image of a running Pod's container be changed, and the kubelet then
//! restarts the container, even if both references name the same image. There is no other request
//! that restarts a container of a Pod.

/// Returns a reference to the running image that differs from `image`; `None` if the kubelet
/// reports no digest, because a reference without it might name another image, or one of another
/// repository, as for an image that was loaded into the node: that digest cannot be pulled.
///
/// `image_id` is the `imageID` that the kubelet reports: `registry/repository@sha256:…`.
#[must_use]
pub fn other_reference(image: &str, image_id: &str) -> Option<String> {
    let (running, digest) = image_id.rsplit_once("@sha256:")?;
    let is_digest = digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !is_digest || image.is_empty() || repository(running) != repository(image) {
        return None;
    }
    let Some((name, pinned)) = image.split_once('@') else {
        return Some(format!("{image}@sha256:{digest}"));
    };
    // A tag beside a digest is ignored, so that it can be added and removed.
    let last_slash = name.rfind('/').map_or(0, |index| index + 1);
    match name[last_slash..].find(':') {
        Some(colon) => Some(format!("{}@{pinned}", &name[..last_slash + colon])),
        None => Some(format!("{name}:restarted@{pinned}")),
    }
}

/// Returns the repository of a reference with its registry: `nginx:1` is
/// `docker.io/library/nginx`.
#[must_use]
pub fn repository(reference: &str) -> String {
    let reference = reference.strip_prefix("docker-pullable://").unwrap_or(reference);
    let name = reference.split('@').next().unwrap_or_default();
    let last_slash = name.rfind('/').map_or(0, |index| index + 1);
    let untagged = name[last_slash..].find(':').map_or(name, |colon| &name[..last_slash + colon]);
    match untagged.split_once('/') {
        Some(("docker.io" | "index.docker.io", path)) if !path.contains('/') => {
            format!("docker.io/library/{path}")
        }
        Some(("index.docker.io", path)) => format!("docker.io/{path}"),
        Some((registry, _)) if registry.contains(['.', ':']) || registry == "localhost" => {
            untagged.to_owned()
        }
        Some(_) => format!("docker.io/{untagged}"),
        None => format!("docker.io/library/{untagged}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "1111111111111111111111111111111111111111111111111111111111111111";

    #[test]
    fn a_reference_alternates_between_equivalent_forms() {
        let id = format!("docker.io/library/nginx@sha256:{DIGEST}");
        let other = |image: &str| other_reference(image, &id).unwrap();
        let pinned = format!("nginx:1@sha256:{DIGEST}");
        assert_eq!(other("nginx:1"), pinned);
        let untagged = format!("nginx@sha256:{DIGEST}");
        assert_eq!(other(&pinned), untagged);
        let tagged = format!("nginx:restarted@sha256:{DIGEST}");
        assert_eq!(other(&untagged), tagged);
        assert_eq!(other(&tagged), untagged);
        let with_port = format!("registry:5000/a/nginx@sha256:{DIGEST}");
        let expected = format!("registry:5000/a/nginx:restarted@sha256:{DIGEST}");
        assert_eq!(other_reference(&with_port, &with_port).unwrap(), expected);
    }

    #[test]
    fn an_image_of_another_repository_has_no_other_reference() {
        let is_known = |image: &str, repository: &str| {
            other_reference(image, &format!("{repository}@sha256:{DIGEST}")).is_some()
        };
        assert!(!is_known("local/app:dev", "docker.io/library/import-2026-01-01"));
        assert!(!is_known("registry.example/app:1", "docker.io/library/app"));
        for (image, repository) in [
            ("nginx:1", "docker.io/library/nginx"),
            ("nginx:1", "docker-pullable://nginx"),
            ("docker.io/nginx", "index.docker.io/library/nginx"),
            ("team/app:1", "docker.io/team/app"),
            ("localhost/app", "localhost/app"),
            ("registry.example:5000/app:1", "registry.example:5000/app"),
        ] {
            assert!(is_known(image, repository), "{image} {repository}");
        }
    }

    #[test]
    fn an_image_of_unknown_digest_has_no_other_reference() {
        assert_eq!(other_reference("nginx:1", ""), None);
        assert_eq!(other_reference("nginx:1", "sha256:abc"), None);
        assert_eq!(other_reference("nginx:1", "nginx@sha256:abc"), None);
    }
}
