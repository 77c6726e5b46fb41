//! Hashes of ConfigMaps and Secrets are identical to KUDO's.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../go-template/tests/oracle/mod.rs"]
mod oracle;

use fastrand::Rng;
use instance_operator::object::hash;
use oracle::Comparison;
use serde_json::{Map, Value, json};

/// Number of generated objects.
const OBJECTS: u64 = 10_000;

/// Texts, and parts of texts, that YAML writes in different ways.
const PARTS: [&str; 36] = [
    "a",
    "B",
    " ",
    "  ",
    "\n",
    "\n\n",
    "\t",
    "\r",
    ":",
    ": ",
    "#",
    " #",
    "-",
    "- ",
    "'",
    "\"",
    "\\",
    "|",
    ">",
    "&",
    "*",
    "!",
    "%",
    "@",
    "`",
    "{",
    "}",
    "[",
    ",",
    "yes",
    "null",
    "1e3",
    "0x1f",
    "~",
    "üñ",
    "\u{1f600}",
];
/// Characters that YAML escapes.
const ESCAPED: [char; 8] =
    ['\u{0}', '\u{7}', '\u{1b}', '\u{7f}', '\u{85}', '\u{2028}', '\u{feff}', '\u{fffd}'];

fn text(random: &mut Rng) -> String {
    let mut text = String::new();
    for _ in 0..random.usize(0..8) {
        text.push_str(random.choice(PARTS).unwrap());
        if random.u8(0..12) == 0 {
            text.push(random.choice(ESCAPED).unwrap());
        }
    }
    if random.u8(0..20) == 0 {
        // Longer than a line of yaml.v2.
        text = format!("{text} {}", "word ".repeat(random.usize(10..60)));
    }
    text
}

fn entries(random: &mut Rng) -> Value {
    let entries = (0..random.usize(0..5)).map(|_| {
        let (key, value) = (text(random), text(random));
        (key, json!(value))
    });
    Value::Object(entries.collect::<Map<_, _>>())
}

fn object(seed: u64) -> Value {
    let mut random = Rng::with_seed(seed);
    let kind = if random.bool() { "ConfigMap" } else { "Secret" };
    let mut object = json!({
        "apiVersion": "v1", "kind": kind,
        "metadata": {
            "name": text(&mut random), "namespace": "default", "labels": entries(&mut random), "uid": "u",
            "annotations": { "kudo.dev/plan": "deploy" }, "generation": 3, "finalizers": ["a"],
        },
    });
    for field in ["data", "binaryData", "stringData"] {
        if random.bool() {
            object[field] = entries(&mut random);
        }
    }
    if random.u8(0..4) == 0 {
        object["immutable"] = json!(random.bool());
        object["type"] = json!(text(&mut random));
    }
    object
}

#[test]
fn content_has_the_hash_that_go_computes() {
    let objects: Vec<Value> = (0..OBJECTS).map(object).collect();
    let requests: Vec<Value> = objects.iter().map(|object| json!({ "Hash": object })).collect();
    let mut different = 0;
    for (object, expected) in objects.iter().zip(oracle::answers(&requests)) {
        let found = hex::encode(hash::content(object).unwrap());
        if expected["output"] != found.as_str() {
            different += 1;
            if different <= 10 {
                eprintln!("--- {object}\nGo: {expected}\nhere: {found}");
            }
        }
    }
    let compared = objects.len();
    oracle::record("hashes", Comparison { compared, different, ..Comparison::default() });
    assert_eq!(different, 0, "objects that differ");
}
