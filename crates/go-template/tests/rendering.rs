//! Rules of templates beyond compatibility with Go: lines of errors, repeatable results, and
//! limits.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::{Duration, Instant};

use go_template::{Data, Environment, Error, Failure, Limits, Template};
use serde_json::json;

fn data() -> Data {
    let parameters = json!({
        "BIG": "1e+06",
        "ARR": [80, 2_097_152],
        "MAPP": {"a": 1_000_000, "b": 80, "c": 1.5, "d": true},
        "OPT": "",
        "BOOL": "true",
    });
    let parameters = parameters.as_object().unwrap().clone().into_iter().collect();
    Data { parameters, pipes: Some([].into()), ..Data::default() }
}

fn environment(seed: &str) -> Environment {
    let now = "2024-02-29T12:00:00Z".parse().unwrap();
    Environment { now, seed: seed.as_bytes().to_vec(), limits: Limits::default() }
}

fn render(text: &str) -> Result<String, Error> {
    Template::parse("t.yaml", text)?.render(&data(), &environment("seed"))
}

#[track_caller]
fn check(text: &str, expected: &str) {
    assert_eq!(render(text).as_deref(), Ok(expected), "{text}");
}

#[track_caller]
fn check_failure(text: &str, expected: &str) {
    let error = render(text).unwrap_err().to_string();
    assert!(error.contains(expected), "{text}: {error}");
}

#[test]
fn values_are_rendered_as_kudo_renders_them() {
    check(r#"{{ index .Params.MAPP "zz" }}"#, "<no value>");
    check("{{ .Params.ARR }}", "[80 2.097152e+06]");
    check("{{ .Params.MAPP }}", "map[a:1e+06 b:80 c:1.5 d:true]");
    let range = "{{ range $k, $v := .Params.MAPP }}{{ $k }}={{ $v }};{{ end }}";
    check(range, "a=1e+06;b=80;c=1.5;d=true;");
    check("{{ toJson .Params.MAPP }}", r#"{"a":1000000,"b":80,"c":1.5,"d":true}"#);
    check("{{ toYaml .Params.MAPP }}", "a: 1e+06\nb: 80\nc: 1.5\nd: true\n");
    check(r#"{{ eq .Params.BOOL "true" }}"#, "true");
    check(r#"{{ int .Params.BIG }} {{ div "7" 2 }} {{ "x" | mul 2 }}"#, "0 3 0");
    check(r#"{{ add 1 2.7 }} {{ max 1 "3" }}"#, "3 3");
    check(r#"{{ and "" "b" }}|{{ or "" "b" }}"#, "|b");
    check(r#"{{ quote 1 "a" nil }}"#, r#""1" "a""#);
    let options = r#"{{ default "q" .Params.OPT }} {{ with .Params.OPT }}a{{ else }}b{{ end }}"#;
    check(options, "q b");
}

#[test]
fn keys_that_do_not_exist_are_errors() {
    for text in ["{{ .Params.NOPE }}", "{{ if .Params.NOPE }}{{ end }}", "{{ .Nope }}"] {
        check_failure(text, "map has no entry for key");
    }
    check_failure("{{ .Pipes.nope }}", "map has no entry for key \"nope\"");
    check_failure("{{ index .Params.ARR 5 }}", "index 5 is out of range");
    check_failure("{{ eq .Params.BIG 1 }}", "cannot compare string with int");
    check_failure("{{ lt 1 2.0 }}", "cannot compare int with float64");
}

#[test]
fn errors_name_the_template_and_the_line() {
    check_failure("a\n{{ .Params.X }}", "template t.yaml, line 2: ");
    check_failure("a\nb\n{{ if 1 }}\n{{ nope }}", "line 4: function nope is not defined");
    check_failure("{{ if 1 }}\n", "line 2: an action is not ended by {{end}}");
    check_failure("x{{ end }}y", "line 1: unexpected {{end}}");
    check_failure("{{ range .Params.ARR }}\n{{ div 1 0 }}{{ end }}", "line 2: division by zero");
    check_failure(r#"{{ fail "choose a size" }}"#, "line 1: choose a size");
}

#[test]
fn functions_that_kudo_removed_are_not_defined() {
    for name in ["env", "expandenv", "base", "dir", "clean", "ext", "isAbs", "include", "tpl"] {
        check_failure(&format!("{{{{ {name} \"x\" }}}}"), "is not defined");
    }
}

#[test]
fn functions_without_a_repeatable_result_are_refused() {
    for name in ["genCA", "genPrivateKey", "getHostByName", "derivePassword", "encryptAES"] {
        let error = Template::parse("t", &format!("{{{{ {name} }}}}")).unwrap_err();
        assert_eq!(error.failure, Failure::RefusedFunction(name.to_owned()));
    }
}

#[test]
fn random_texts_are_the_same_for_the_same_seed() {
    let text = "{{ randAlphaNum 20 }} {{ randAscii 5 }} {{ uuidv4 }} {{ shuffle \"abcdefgh\" }}";
    let template = Template::parse("t", text).unwrap();
    let with = |seed| template.render(&data(), &environment(seed)).unwrap();
    assert_eq!(with("one"), with("one"));
    assert_ne!(with("one"), with("two"));
    check("{{ randNumeric 50 | regexMatch \"^[0-9]{50}$\" }}", "true");
    check("{{ randAlpha 50 | regexMatch \"^[A-Za-z]{50}$\" }}", "true");
    let uuid = "^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$";
    check(&format!("{{{{ uuidv4 | regexMatch \"{uuid}\" }}}}"), "true");
    check("{{ $a := randAlpha 9 }}{{ eq $a (randAlpha 9) }}", "false");
    check(r#"{{ "cba" | shuffle | splitList "" | sortAlpha | join "" }}"#, "abc");
}

#[test]
fn now_is_the_time_of_the_rendering() {
    check("{{ now | htmlDate }} {{ now.Unix }}", "2024-02-29 1709208000");
    check(r#"{{ ago (toDate "2006-01-02" "2024-02-28") }}"#, "36h0m0s");
}

#[test]
fn what_sprig_encrypts_is_decrypted() {
    // Encrypted with Sprig's encryptAES.
    let text = "30tEfhuJSVRhpG97XCuWgz2okj7L8vQ1s6V9zVUPeDQ=";
    check(&format!("{{{{ decryptAES \"secretkey\" \"{text}\" }}}}"), "plaintext");
    check_failure("{{ decryptAES \"key\" \"AAAA\" }}", "invalid encrypted text");
}

#[test]
fn endless_templates_exceed_a_limit() {
    let started = Instant::now();
    let bombs = [
        "{{ range until 1000000000 }}{{ end }}",
        "{{ range until 100000 }}{{ range until 100000 }}{{ end }}{{ end }}",
        "{{ define \"a\" }}{{ template \"a\" }}{{ end }}{{ template \"a\" }}",
        "{{ repeat 1000000000 \"x\" }}",
        "{{ $x := repeat 1000000 \"x\" }}{{ range until 1000 }}{{ $x }}{{ end }}",
        "{{ $x := \"x\" }}{{ range until 1000 }}{{ $x = print $x $x }}{{ end }}",
        "{{ $x := list 1 }}{{ range until 1000 }}{{ $x = concat $x $x }}{{ end }}",
        "{{ $d := dict }}{{ range until 1000 }}{{ $d = dict \"a\" $d }}{{ end }}{{ $d }}",
        "{{ $d := dict }}{{ $_ := set $d \"a\" $d }}{{ $d }}",
        "{{ $d := dict }}{{ $_ := set $d \"a\" $d }}{{ toYaml $d }}",
        "{{ $d := dict }}{{ $_ := set $d \"a\" $d }}{{ merge $d $d }}",
        "{{ $d := dict }}{{ $_ := set $d \"a\" $d }}{{ deepCopy $d }}",
        "{{ printf \"%999999999d\" 1 }}{{ repeat 9000000 \"x\" }}",
        "{{ $x := repeat 3000 \"a\" }}{{ range until 1000000 }}{{ regexFind \"(a*)*b\" $x }}{{ end }}",
        "{{ $s := repeat 100000 \"a,\" }}{{ replace \"a\" $s $s }}",
        "{{ $a := list }}{{ $b := list }}{{ range until 60 }}{{ $a = list $a $a }}{{ $b = list $b $b }}{{ end }}{{ deepEqual $a $b }}",
        "{{ $a := list 1 1 }}{{ range until 40 }}{{ $a = list $a $a }}{{ end }}{{ toYaml $a }}",
        "{{ $x := repeat 1000000 \"a\" }}{{ $y := list $x $x $x $x $x }}{{ join \"\" (list $y $y $y $y) }}",
        "{{ $x := repeat 1000000 \"a\" }}{{ range until 1000 }}{{ $y := sha256sum $x }}{{ end }}",
        "{{ $x := repeat 2000000 \"a\" }}{{ print $x $x $x $x $x $x $x $x }}",
        "{{ $x := repeat 2000000 \"a\" }}{{ quote $x $x $x $x $x $x $x $x }}",
        "{{ regexMatch (repeat 900000 \"{\") \"a\" }}",
    ];
    for bomb in bombs {
        check_failure(bomb, "exceeds the limit of");
    }
    let variables: Vec<String> = (0..2000).map(|n| format!("{{{{ $v{n} := 1 }}}}")).collect();
    check_failure(&variables.concat(), "exceeds the limit of 1000 variables");
    let nested = "{{ if 1 }}".repeat(1000) + &"{{ end }}".repeat(1000);
    check_failure(&nested, "exceeds the limit of 100 nested actions");
    check_failure(&format!("{{{{ {}1{} }}}}", "(".repeat(1000), ")".repeat(1000)), "limit");
    assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
}

#[test]
fn output_that_is_not_utf8_is_an_error() {
    check_failure(r#"{{ "\xff" }}"#, "not UTF-8");
    check(r#"{{ "\xff" | b64enc }}"#, "/w==");
}

#[test]
fn extreme_numbers_neither_overflow_nor_panic() {
    check(r#"{{ printf "%*d" -9223372036854775808 1 }}"#, "%!(BADWIDTH)1");
    check(r#"{{ float64 "0x1.8p-2147483648" }}"#, "0");
}

/// Each of the searches reads the text to its end, and finds one letter.
#[test]
fn an_expression_that_reads_the_text_for_each_match_is_ended() {
    for call in [
        "regexFindAll \".*[^A-Z]|[A-Z]\" $x -1 | len",
        "regexReplaceAll \".*[^A-Z]|[A-Z]\" $x \"b\" | len",
        "regexReplaceAllLiteral \".*[^A-Z]|[A-Z]\" $x \"b\" | len",
        "regexSplit \".*[^A-Z]|[A-Z]\" $x -1 | len",
    ] {
        let started = Instant::now();
        check_failure(
            &format!("{{{{ $x := repeat 400000 \"A\" }}}}{{{{ {call} }}}}"),
            "exceeds the limit",
        );
        assert!(started.elapsed() < Duration::from_secs(10), "{call}: {:?}", started.elapsed());
    }
    // A large expression reads each byte in many states.
    let large = "{{ regexMatch \"([a-z]{100}){10}!\" (repeat 2000000 \"a\") }}";
    check_failure(large, "exceeds the limit");
}

#[test]
fn matches_of_usual_texts_are_within_the_limits() {
    let lines = "{{ $x := repeat 5000 \"key = value # note\\n\" }}";
    check(&format!("{lines}{{{{ regexFindAll \"[a-z]+ =\" $x -1 | len }}}}"), "5000");
    check(
        &format!("{lines}{{{{ regexReplaceAll \"([a-z]+) =\" $x \"${{1}}:\" | len }}}}"),
        "90000",
    );
    check(&format!("{lines}{{{{ regexSplit \"\\n\" $x -1 | len }}}}"), "5001");
}
