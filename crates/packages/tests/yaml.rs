//! Compares the YAML parser with Go's yaml.v2 and sigs.k8s.io/yaml.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::wildcard_enum_match_arm, reason = "any other value is a scalar")]

#[path = "../../go-template/tests/oracle/mod.rs"]
mod oracle;

use std::{
    fmt::Write as _,
    time::{Duration, Instant},
};

use fastrand::Rng;
use oracle::Comparison;
use podops_packages::yaml;
use serde_json::{Value, json};

/// Number of generated scalars.
const SCALARS: u64 = 10_000;

/// Characters of generated scalars: those of numbers, booleans and null.
const CHARACTERS: &str = "00112345678999+-._eExXoObBaAfFnNyYuUlLtTrRsSiI~<";

/// Scalars of `spec/kudo.md`, and similar scalars.
const KNOWN: &str = "y Y n yes Yes YES yEs no on OFF off true TRUE tRUE 010 0o10 08 1_000 _1 1_ 0x1F 0X1f \
    0x 0b11 0B11 -0b11 0b12 1e3 1E3 1e+3 1e 1e400 .5 5. -.5 +.5 . .. 1.10 1.20 1.2.3 ~ null Null nULL \
    2001-01-01 2001-01-01T10:00:00Z 190:20:30 12345678901234567890 -12345678901234567890 \
    9223372036854775807 9223372036854775808 -9223372036854775808 +9223372036854775808 \
    18446744073709551615 18446744073709551616 1000000 1e21 100000000000000000000000 0.000001 1e-7 \
    .inf .Inf .INF .nan -.inf +.inf <<";

/// Documents with constructs of packages other than scalars.
const DOCUMENTS: [&str; 23] = [
    "",
    "# only a comment\n",
    "---\nv: a\n---\nv: b\n",
    "v: 'it''s'\n",
    "v: \"a\\tb\\u00e9\\\n  c\"\n",
    "v: |\n  a\n   b\n\nw: 1\n",
    "v: >-\n  a\n  b\n\n  c\n",
    "v: |+\n  a\n\n",
    "v: !!str 1\nw: !!int \"3\"\nx: !!float 3\ny: !!binary aGk=\n",
    "v: !local 1\n",
    "v: !!int a\n",
    "a: &a {b: 1, c: 2}\nd: {<<: *a, b: 3}\ne: {b: 3, <<: *a}\n",
    "a: &a {b: 1}\nb: &b {b: 2, c: 3}\nd:\n  <<: [*a, *b]\n",
    "d:\n  <<: 1\n",
    "v: &x [1, *x]\n",
    "1: a\n2.5: b\ntrue: c\n0.1: d\n",
    "~: a\n",
    "[a]: b\n",
    "a: 1\na: 2\n",
    "a:\n- b\n-   c: d\n    e: f\n",
    "a: {b: [c, d, {e: f}], g: }\n",
    "a: b: c\n",
    "a: [\n",
];

fn scalar(seed: u64) -> String {
    let mut random = Rng::with_seed(seed);
    let characters: Vec<char> = CHARACTERS.chars().collect();
    let length = random.usize(1..9);
    let text: String = (0..length).map(|_| characters[random.usize(0..characters.len())]).collect();
    // A lone `-` is not a scalar in a list.
    if text == "-" { "--".to_owned() } else { text }
}

/// Returns the result of this parser, in the format of the oracle.
fn answer(text: &str) -> Option<Value> {
    let value = yaml::read(text).ok()?;
    let field = match &value["v"] {
        Value::Array(_) | Value::Object(_) => None,
        value => Some(yaml::text(value)),
    };
    Some(json!([exact(value), field.clone().unwrap_or_default(), field.is_some()]))
}

/// Replaces each number by the bits of a floating-point number, as the oracle does.
fn exact(value: Value) -> Value {
    match value {
        Value::Number(number) => {
            json!(format!("bits {:x}", number.as_f64().unwrap_or_default().to_bits()))
        }
        Value::Array(items) => items.into_iter().map(exact).collect(),
        Value::Object(entries) => {
            entries.into_iter().map(|(key, value)| (key, exact(value))).collect()
        }
        value => value,
    }
}

#[test]
fn yaml_is_read_as_go_reads_it() {
    let generated = (0..SCALARS).map(scalar);
    let scalars = KNOWN.split_whitespace().map(str::to_owned).chain(generated);
    let mut texts: Vec<String> = DOCUMENTS.map(str::to_owned).into();
    for (index, scalar) in scalars.enumerate() {
        texts.push(match index % 4 {
            // The scalar is alone in every second document, so that no other error hides it.
            0 | 2 => format!("v: {scalar}\n"),
            1 => format!("{scalar}: a\nw: \"{scalar}\"\n"),
            _ => format!("v: '{scalar}'\nw: [{scalar}, {{x: {scalar}}}]\n"),
        });
    }
    let requests: Vec<Value> = texts.iter().map(|text| json!({ "Yaml": text })).collect();
    let mut different = 0;
    for (text, expected) in texts.iter().zip(oracle::answers(&requests)) {
        let expected = match expected["error"].as_str().unwrap() {
            "" => {
                let output = expected["output"].as_str().unwrap();
                Some(serde_json::from_str(output).unwrap())
            }
            _ => None,
        };
        let found = answer(text);
        if found != expected {
            different += 1;
            if different <= 40 {
                eprintln!("--- {text}\nGo: {expected:?}\nhere: {found:?} {:?}", yaml::read(text));
            }
        }
    }
    let compared = texts.len();
    oracle::record("yaml", Comparison { compared, different, ..Comparison::default() });
    assert_eq!(different, 0, "documents that differ");
}

#[test]
fn documents_that_grow_without_end_are_rejected() {
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for n in 1..12 {
        let alias = format!("*a{}", n - 1);
        let ten = [alias.as_str(); 10].join(", ");
        writeln!(bomb, "a{n}: &a{n} [{ten}]").unwrap();
    }
    let deep = format!("a: {}{}", "[".repeat(5000), "]".repeat(5000));
    // Few values with many bytes, and a chain of anchors that are deep together.
    let long = format!("a: &a {}\nb: [{}]\n", "x".repeat(500_000), ["*a"; 1000].join(", "));
    let mut chain = format!("- &a0 {}1{}\n", "[".repeat(60), "]".repeat(60));
    for n in 1..50 {
        let inner = format!("*a{}", n - 1);
        writeln!(chain, "- &a{n} {}{inner} {}", "[".repeat(60), "]".repeat(60)).unwrap();
    }
    let started = Instant::now();
    let cases = [
        (bomb, "limit of 250000 values"),
        (deep, "limit"),
        (long, "limit of 16 MiB"),
        (chain, "limit of 100 nested values"),
    ];
    for (text, reason) in cases {
        let error = yaml::read(&text).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[test]
fn errors_name_the_line() {
    assert_eq!(yaml::read("a: 1\nb: [\n").unwrap_err().line, 2);
    assert_eq!(
        yaml::read("a: 1\n~: 2\n").unwrap_err().to_string(),
        "line 2: a key is no text or number"
    );
}

#[test]
fn rendered_text_is_split_where_kudo_splits_it() {
    let text = "a: 1\n---\nb: 2\n---\n\n--- \nc: 3\n";
    assert_eq!(yaml::documents(text), ["a: 1", "\nb: 2", " \nc: 3\n"]);
    assert!(yaml::documents("\n \n").is_empty());
}
