//! References to images: an equivalent reference to the same image restarts a container in place.
//!
//! The API server lets the image of a running Pod's container be changed, and the kubelet then
//! restarts the container, even if both references name the same image. There is no other request
//! that restarts a container of a Pod.

/// Returns a reference to the running image that differs from `image`; `None` if the kubelet
/// reports no digest, because a reference without it might name another image.
///
/// `image_id` is the `imageID` that the kubelet reports: `registry/repository@sha256:…`.
#[must_use]
pub fn other_reference(image: &str, image_id: &str) -> Option<String> {
    let (_, digest) = image_id.rsplit_once("@sha256:")?;
    let is_digest = digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !is_digest || image.is_empty() {
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
        assert_eq!(other(&with_port), expected);
    }

    #[test]
    fn an_image_of_unknown_digest_has_no_other_reference() {
        assert_eq!(other_reference("nginx:1", ""), None);
        assert_eq!(other_reference("nginx:1", "sha256:abc"), None);
        assert_eq!(other_reference("nginx:1", "nginx@sha256:abc"), None);
    }
}
