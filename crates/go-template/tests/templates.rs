//! Compares generated templates with Go's `text/template` and Sprig.
//!
//! The Go program in `tests/oracle` is built from Go modules. `PODOPS_TEMPLATES=1000000` compares
//! that many templates.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod generator;
mod oracle;

use std::collections::BTreeMap;

use generator::Generator;
use go_template::{Data, Environment, Error, Failure, Limits, Template};
use oracle::Comparison;
use serde_json::{Value, json};

/// Default number of templates.
const TEMPLATES: u64 = 100_000;

fn data() -> Data {
    let names = ["Name", "Namespace", "OperatorName", "PlanName"];
    let parameters = json!({
        "TEXT": "some Text",
        "EMPTY": "",
        "NUMBER": "42",
        "BIG": "1e+06",
        "BOOL": "true",
        "UNICODE": "Grüße, 世界 <&>\n\tend",
        "LIST": ["b", "a", 80, 2_097_152, true, null],
        "MAP": {"a": 1_000_000, "b": 80, "c": 1.5, "d": true, "e": "text", "f": null},
        "NESTED": {"list": [1, [2, "x"], {}], "map": {"k": {"deep": "v"}}, "none": []},
        "NIL": null,
    });
    Data {
        names: names.map(|name| (name.to_owned(), name.to_lowercase())).into(),
        parameters: parameters.as_object().unwrap().clone().into_iter().collect(),
        pipes: Some(BTreeMap::from([("Cert".to_owned(), "instance.deploy.cert".to_owned())])),
    }
}

fn environment() -> Environment {
    let now = "2023-11-14T22:13:20.123456789Z".parse().unwrap();
    Environment { now, seed: b"seed".to_vec(), limits: Limits::default() }
}

fn render(text: &str, data: &Data) -> Result<String, Error> {
    Template::parse("t", text)?.render(data, &environment())
}

/// Returns the failure if this engine does not support the template on purpose.
fn unsupported_failure(result: &Result<String, Error>) -> Option<String> {
    let failure = &result.as_ref().err()?.failure;
    let is_unsupported = matches!(failure, Failure::Unsupported(_) | Failure::Limit(_));
    is_unsupported.then(|| failure.to_string())
}

/// The functions of KUDO's templates, in the order of `spec/kudo.md`.
const FUNCTIONS: &str = "abbrev abbrevboth add add1 adler32sum ago append atoi b32dec b32enc b64dec \
    b64enc biggest buildCustomCert camelcase cat ceil coalesce compact concat contains date \
    dateInZone dateModify date_in_zone date_modify decryptAES deepCopy deepEqual default \
    derivePassword dict div empty encryptAES fail first float64 floor genCA genPrivateKey \
    genSelfSignedCert genSignedCert getHostByName has hasKey hasPrefix hasSuffix hello htmlDate \
    htmlDateInZone indent initial initials int int64 join kebabcase keys kindIs kindOf last list \
    lower max merge mergeOverwrite min mod mul nindent nospace now omit pick pluck plural prepend \
    push quote randAlpha randAlphaNum randAscii randNumeric regexFind regexFindAll regexMatch \
    regexReplaceAll regexReplaceAllLiteral regexSplit repeat replace rest reverse round semver \
    semverCompare set sha1sum sha256sum shuffle slice snakecase sortAlpha split splitList splitn \
    squote sub substr swapcase ternary title toDate toDecimal toJson toPrettyJson toString \
    toStrings toYaml trim trimAll trimPrefix trimSuffix trimall trunc tuple typeIs typeIsLike \
    typeOf uniq unixEpoch unset until untilStep untitle upper urlJoin urlParse uuidv4 values \
    without wrap wrapWith and call eq ge gt html index js le len lt ne not or print printf println \
    urlquery";

/// Functions that are not generated: those without a deterministic result, and those whose
/// arguments cannot be generated.
const NOT_GENERATED: [&str; 9] = [
    "ago",
    "call",
    "decryptAES",
    "randAlpha",
    "randAlphaNum",
    "randAscii",
    "randNumeric",
    "shuffle",
    "uuidv4",
];

#[test]
fn every_function_is_generated_or_refused() {
    for name in FUNCTIONS.split_whitespace() {
        let parsed = Template::parse("t", &format!("{{{{ {name} }}}}"));
        let is_refused =
            parsed.is_err_and(|error| matches!(error.failure, Failure::RefusedFunction(_)));
        let is_generated = generator::names().any(|generated| generated == name);
        let is_exempt = NOT_GENERATED.contains(&name);
        assert_eq!(
            u8::from(is_refused) + u8::from(is_generated) + u8::from(is_exempt),
            1,
            "{name}: refused {is_refused}, generated {is_generated}, exempt {is_exempt}"
        );
    }
}

#[test]
fn templates_are_rendered_as_go_renders_them() {
    let count = std::env::var_os("PODOPS_TEMPLATES");
    let count = count.and_then(|count| count.to_str()?.parse().ok()).unwrap_or(TEMPLATES);
    let data = data();
    let mut values: serde_json::Map<String, Value> =
        data.names.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
    values.insert("Params".to_owned(), json!(data.parameters));
    let templates: Vec<String> = (0..count).map(|seed| Generator::new(seed).template()).collect();
    let request = |template| json!({ "Template": template, "Data": values, "Pipes": data.pipes });
    let expected = oracle::answers(&templates.iter().map(request).collect::<Vec<_>>());
    let (mut different, mut rendered) = (0, 0);
    let mut unsupported: BTreeMap<String, usize> = BTreeMap::new();
    for (template, expected) in templates.iter().zip(expected) {
        let result = render(template, &data);
        if let Some(failure) = unsupported_failure(&result) {
            *unsupported.entry(failure).or_default() += 1;
            continue;
        }
        let error = expected["error"].as_str().unwrap();
        let same = match &result {
            Ok(output) => error.is_empty() && *output == expected["output"],
            Err(_) => !error.is_empty(),
        };
        rendered += usize::from(same && result.is_ok());
        if !same {
            different += 1;
            if different <= 40 {
                eprintln!("--- {template}\nGo: {expected}\nhere: {result:?}");
            }
        }
    }
    eprintln!("{count} templates, {rendered} rendered, not supported: {unsupported:#?}");
    let not_supported: usize = unsupported.values().sum();
    let compared = templates.len();
    oracle::record("templates", Comparison { compared, different, not_supported });
    assert_eq!(different, 0, "templates that differ");
    assert!(rendered * 2 > compared, "{rendered} of {count} templates have output");
    assert!(
        not_supported * 1000 < compared,
        "{not_supported} of {count} templates are not supported"
    );
}
