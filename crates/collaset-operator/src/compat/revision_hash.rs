//! Names of ControllerRevisions: Kuperator's hash of the revision data, as a suffix of the
//! CollaSet's name.

use serde_json::Value;

/// Maximum length of a revision's name: it is also a label value.
const NAME_MAX: usize = 63;

/// Returns the hash of revision data with this collision count.
#[must_use]
pub fn hash(data: &Value, collisions: i32) -> String {
    safe_encode(fnv1_32(format!("{data}{collisions}").as_bytes()))
}

/// FNV-1 (not 1a), 32 bits.
fn fnv1_32(bytes: &[u8]) -> u32 {
    bytes
        .iter()
        .fold(0x811c_9dc5, |hash: u32, byte| hash.wrapping_mul(0x0100_0193) ^ u32::from(*byte))
}

/// Kubernetes' "safe encoding" of a number's decimal digits: no vowels, so no words.
fn safe_encode(number: u32) -> String {
    const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
    number
        .to_string()
        .bytes()
        .map(|byte| char::from(ALPHABET[usize::from(byte) % ALPHABET.len()]))
        .collect()
}

/// Returns a short, deterministic name suffix: the hash of `of`.
#[must_use]
pub fn suffix(of: &str) -> String {
    safe_encode(fnv1_32(of.as_bytes()))
}

/// Maximum length of a hash: one character per decimal digit of a 32-bit number.
const HASH_MAX: usize = 10;

/// Converts a CollaSet's name to a DNS-1035 label of at most `longest` characters.
fn label(set: &str, longest: usize) -> String {
    let lower = set.to_ascii_lowercase();
    let from_letter = lower.trim_start_matches(|c: char| !c.is_ascii_lowercase());
    let dashed = from_letter.chars().map(|c| if is_label_character(c) { c } else { '-' });
    let label: String = dashed.take(longest).collect();
    label.trim_end_matches('-').to_owned()
}

fn is_label_character(c: char) -> bool {
    c.is_ascii_lowercase() || c.is_ascii_digit()
}

/// Returns the common name prefix of all revisions of a CollaSet.
#[must_use]
pub fn prefix(set: &str) -> String {
    label(set, NAME_MAX - HASH_MAX - 1)
}

/// Returns `<set>-<hash>` as a DNS-1035 label.
#[must_use]
pub fn name(set: &str, hash: &str) -> String {
    format!("{}-{hash}", label(set, NAME_MAX - hash.len() - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn revision_hash_equals_kuperators() {
        let data = r#"{"spec":{"template":{"$patch":"replace","metadata":{"creationTimestamp":null,"labels":{"app":"foo"}},"spec":{"containers":[{"image":"nginx:v1","name":"foo","resources":{}}]}}}}"#;
        assert_eq!(suffix(&format!("{data}0")), "5875f669f4");
        assert_eq!(suffix(&format!("{data}1")), "5875f669f5");
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!(hash(&data, 0), "5875f669f4");
    }

    #[test]
    fn revision_names_are_dns_labels() {
        assert_eq!(name("web", "abc"), "web-abc");
        assert_eq!(name("1.Web.x.", "abc"), "web-x-abc");
        assert_eq!(name(&"w".repeat(80), "abc").len(), 63);
    }
}
