use std::time::{Duration, Instant};

use super::*;
use crate::package::{Files, OPERATOR_FILE, PARAMETERS_FILE};

const OPERATOR: &str = "\
name: web
operatorVersion: 0.1.0
kubernetesVersion: '1.33'
tasks:
- {name: app, kind: Apply, spec: {resources: [app.yaml]}}
plans:
  deploy: {strategy: serial, phases: [{name: main, strategy: serial, steps: [{name: app, tasks: [app]}]}]}
";
const PARAMETERS: &str = "parameters:\n- {name: SIZE, default: 1}\n";
const TEMPLATE: &str = "kind: ConfigMap\ndata: {size: {{ .Params.SIZE }}}\n";

/// A valid package.
fn files() -> Files {
    let files = [
        (OPERATOR_FILE, OPERATOR),
        (PARAMETERS_FILE, PARAMETERS),
        ("templates/app.yaml", TEMPLATE),
    ];
    files.map(|(path, text)| (path.to_owned(), text.as_bytes().to_vec())).into()
}

fn report(files: &Files) -> Report {
    verify(&Package::read(files).unwrap())
}

/// Replaces a text in a file of the valid package; compares the errors, then the warnings.
#[track_caller]
fn check(file: &str, old: &str, new: &str, expected: &[&str]) {
    let mut files = files();
    let text = String::from_utf8(files[file].clone()).unwrap();
    assert!(text.contains(old), "{old}");
    files.insert(file.to_owned(), text.replacen(old, new, 1).into_bytes());
    let Report { errors, warnings } = report(&files);
    let found: Vec<String> = errors.into_iter().chain(warnings).collect();
    assert_eq!(found, expected, "{new}");
}

/// Adds parameters to the valid package.
#[track_caller]
fn check_parameter(text: &str, expected: &[&str]) {
    check(PARAMETERS_FILE, "parameters:\n", &format!("parameters:\n- {text}\n"), expected);
}

/// Replaces the task of the valid package.
#[track_caller]
fn check_task(fields: &str, expected: &[&str]) {
    let task = "{name: app, kind: Apply, spec: {resources: [app.yaml]}}";
    let unused = r#"template "app.yaml" is not referenced from any task"#;
    let unused = (!fields.contains("app.yaml")).then_some(unused);
    let expected: Vec<&str> = expected.iter().copied().chain(unused).collect();
    check(OPERATOR_FILE, task, &format!("{{name: app, {fields}}}"), &expected);
}

#[test]
fn a_valid_package_has_no_errors() {
    assert_eq!(report(&files()), Report::default());
}

#[test]
fn parameters_are_verified() {
    check_parameter("{name: size, trigger: deploy}", &[r#"parameter "SIZE" has a duplicate"#]);
    check_parameter(
        "{name: 'a,b', trigger: deploy}",
        &[r#"parameter "a,b" contains invalid character ','"#],
    );
    check_parameter(
        "{name: 'a;b', trigger: deploy}",
        &[r#"parameter "a;b" contains invalid character ';'"#],
    );
    check_parameter("{name: A, default: 1}", &[r#"parameter "A" defined but not used."#]);
    check_parameter(
        "{name: A, trigger: gone}",
        &[r#"plan "gone" used in parameter "A" is not defined"#],
    );
    check_parameter(
        "{name: A, trigger: deploy, immutable: true, required: false}",
        &[r#"parameter "A" is immutable but is not marked as required or has a default value"#],
    );
    check_parameter(
        "{name: A, trigger: deploy, enum: []}",
        &[r#"parameter "A" is an enum but has no allowed values"#],
    );
    check_parameter(
        "{name: A, trigger: deploy, enum: [a, b], default: c}",
        &[
            r#"parameter "A" has an invalid default value: value is "c", but only allowed values are [a b]"#,
        ],
    );
    check_parameter(
        "{name: A, trigger: deploy, type: integer, enum: [a]}",
        &[
            r#"parameter "A" has an invalid enum value: type is "integer", but the value has another type"#,
        ],
    );
    check_parameter(
        "{name: A, trigger: deploy, type: boolean, default: maybe}",
        &[
            r#"parameter "A" has an invalid default value: type is "boolean", but the value has another type"#,
        ],
    );
    check_parameter(
        "{name: A, trigger: deploy, sensitive: true, default: x}",
        &[r#"parameter "A" is sensitive and has a default value, which is stored in clear"#],
    );
    check_parameter(
        "{name: A, trigger: deploy, group: x}",
        &[r#"group "x" of parameter "A" is not defined"#],
    );
    check_parameter(
        "{name: A, trigger: deploy, advanced: true}",
        &[r#"parameter "A" is advanced and required, but has no default value"#],
    );
}

/// Adds groups to the valid package.
#[track_caller]
fn check_groups(names: &[&str], expected: &str) {
    let groups: Vec<String> = names.iter().map(|name| format!("{{name: {name}}}")).collect();
    let groups = format!("groups: [{}]\nparameters:\n", groups.join(", "));
    check(PARAMETERS_FILE, "parameters:\n", &groups, &[expected]);
}

#[test]
fn groups_are_verified() {
    check_groups(&["a/b"], r#"group "a/b" contains invalid character '/'"#);
    check_groups(&["a", "a"], r#"group "a" has a duplicate"#);
}

#[test]
fn an_unquoted_number_is_a_valid_default() {
    check_parameter("{name: A, trigger: deploy, type: integer, default: 3}", &[]);
    check_parameter("{name: A, trigger: deploy, type: number, default: 1000000}", &[]);
}

#[test]
fn versions_are_verified() {
    let required = r#""operatorVersion" is required and must be semver"#;
    check(OPERATOR_FILE, "operatorVersion: 0.1.0", "operatorVersion: new", &[required]);
    check(OPERATOR_FILE, "operatorVersion: 0.1.0", "appVersion: '1.0'", &[required]);
    check(
        OPERATOR_FILE,
        "name: web",
        "name: web\nappVersion: x",
        &[r#"unable to parse "appVersion": "x" is no semantic version"#],
    );
    check(
        OPERATOR_FILE,
        "name: web",
        "name: web\nkudoVersion: latest",
        &[r#"unable to parse "kudoVersion": "latest" is no semantic version"#],
    );
    check(
        OPERATOR_FILE,
        "kubernetesVersion: '1.33'\n",
        "",
        &[r#""kubernetesVersion" is required and must be semver"#],
    );
    // K45: 1.10 becomes 1.1.
    check(
        OPERATOR_FILE,
        "operatorVersion: 0.1.0\n",
        "operatorVersion: 1.10\n",
        &[r#""operatorVersion" is read as the number 1.1: quote it"#],
    );
}

#[test]
fn tasks_are_verified() {
    check_task(
        "kind: Apply",
        &[
            "task validation error: apply task 'app' has an empty resource list. if that's what you \
           need, use a Dummy task instead",
        ],
    );
    check_task(
        "kind: Toggle, spec: {resources: [app.yaml]}",
        &["task validation error: toggle task 'app' does not have parameter specified"],
    );
    check_task("kind: Paint", &["task validation error: task 'app': unknown task kind Paint"]);
    check_task(
        "kind: KudoOperator",
        &["task validation error: kudo operator task 'app' has an empty package name"],
    );
    check_task(
        "kind: Pipe, spec: {pod: app.yaml}",
        &["task validation error: task 'app' does not have pipe files specified"],
    );
    for kind in ["delete", "toggle"] {
        let (first, rest) = kind.split_at(1);
        let expected = format!(
            "task validation error: {kind} task 'app' has an empty resource list. if that's what you \
             need, use a Dummy task instead"
        );
        let kind = format!("kind: {}{rest}, spec: {{parameter: SIZE}}", first.to_uppercase());
        check_task(&kind, &[&expected]);
    }
    check_task(
        "kind: Toggle, spec: {parameter: TYPO, resources: [app.yaml]}",
        &[r#"parameter "TYPO" in ToggleTask app is not defined"#],
    );
    check_task(
        "kind: Wait, spec: {resources: [app.yaml]}",
        &["task validation error: wait task 'app' has no condition 'until'"],
    );
    check_task("kind: Dummy", &[]);
    check(
        OPERATOR_FILE,
        "tasks: [app]",
        "tasks: [other]",
        &[r#"task "other" in plan "deploy" is not defined"#, r#"task "app" defined but not used"#],
    );
}

#[test]
fn files_of_pipes_are_verified() {
    let check_pipe = |spec: &str, expected: &str| {
        let expected = format!("task validation error: {expected}");
        check_task(&format!("kind: Pipe, spec: {{{spec}}}"), &[&expected]);
    };
    let file = |fields: &str| format!("pod: app.yaml, pipe: [{{{fields}}}]");
    check_pipe("pipe: [{file: /a, kind: Secret, key: a}]", "pipe task 'app' has no pod");
    check_pipe(
        &file("kind: Secret, key: a"),
        "pipe task 'app' needs exactly one of file and envFile for key 'a'",
    );
    check_pipe(
        &file("file: /a, envFile: /b, kind: Secret, key: a"),
        "pipe task 'app' needs exactly one of file and envFile for key 'a'",
    );
    check_pipe(
        &file("file: /a, kind: Pod, key: a"),
        "pipe task 'app': kind 'Pod' is neither Secret nor ConfigMap",
    );
    check_pipe(
        &file("file: /a, kind: Secret, key: a.b"),
        "pipe task 'app' has the invalid key 'a.b'",
    );
    check_pipe(
        "pod: app.yaml, pipe: [{file: /a, kind: Secret, key: a-b}, {file: /b, kind: Secret, key: ab}]",
        "pipe task 'app': keys 'a-b' and 'ab' have the same object, because its name has only letters and \
         digits of them",
    );
}

#[test]
fn conditions_of_wait_tasks_are_verified() {
    let wait = OPERATOR.replace("kind: Apply", "kind: Wait").replace(
        "resources: [app.yaml]",
        "resources: [app.yaml], until: self.status.ready, failed: self.status.(",
    );
    let mut files = files();
    files.insert(OPERATOR_FILE.to_owned(), wait.into_bytes());
    let errors = report(&files).errors;
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(
        errors[0].starts_with("task validation error: wait task 'app': failed: "),
        "{errors:?}"
    );
}

#[test]
fn the_manifest_of_the_namespace_is_verified() {
    let check_manifest = |text: &str, expected: &[&str]| {
        let mut files = files();
        let operator = format!("{OPERATOR}namespaceManifest: ns.yaml\n");
        files.insert(OPERATOR_FILE.to_owned(), operator.into_bytes());
        files.insert("templates/ns.yaml".to_owned(), text.as_bytes().to_vec());
        assert_eq!(report(&files).errors, expected, "{text}");
    };
    check_manifest("kind: Namespace\n", &[]);
    check_manifest("", &[r#"NamespaceManifest "ns.yaml" is empty"#]);
    check_manifest("kind: Pod\n", &[r#"NamespaceManifest "ns.yaml" is no Namespace"#]);
    let two = "kind: Namespace\n---\nkind: Namespace\n";
    check_manifest(two, &[r#"NamespaceManifest "ns.yaml" has more than one object"#]);
    check(
        OPERATOR_FILE,
        "name: web",
        "name: web\nnamespaceManifest: gone.yaml",
        &[r#"template "gone.yaml" of the namespace is not defined"#],
    );
}

#[test]
fn plans_are_verified() {
    check(OPERATOR_FILE, "deploy:", "install:", &["an operator is required to have 'deploy' plan"]);
    let step = "{name: app, tasks: [app]}";
    check(
        OPERATOR_FILE,
        step,
        &format!("{step}, {step}"),
        &[r#"step "app" of phase "main" of plan "deploy" has a duplicate"#],
    );
    let limits = |fields: &str| format!("{{name: app, tasks: [app], {fields}}}");
    let named = r#"step "app" of phase "main" of plan "deploy""#;
    check(
        OPERATOR_FILE,
        step,
        &limits("timeout: soon, retries: 101"),
        &[
            &format!(r#"timeout "soon" of {named} is no duration"#),
            &format!("101 retries of {named} exceed 100"),
        ],
    );
    check(OPERATOR_FILE, step, &limits("timeout: 1h30m, retries: 100"), &[]);
    let phase = format!("{{name: main, strategy: serial, steps: [{step}]}}");
    check(
        OPERATOR_FILE,
        &phase,
        &format!("{phase}, {phase}"),
        &[r#"phase "main" of plan "deploy" has a duplicate"#],
    );
    let task = "- {name: app, kind: Apply, spec: {resources: [app.yaml]}}\n";
    check(OPERATOR_FILE, task, &format!("{task}{task}"), &[r#"task "app" has a duplicate"#]);
}

/// K25.
#[test]
fn missing_and_unknown_strategies_are_noticed() {
    check(
        OPERATOR_FILE,
        "deploy: {strategy: serial, ",
        "deploy: {",
        &[r#"plan "deploy" has no strategy, so its phases run in parallel"#],
    );
    check(
        OPERATOR_FILE,
        "{name: main, strategy: serial, ",
        "{name: main, ",
        &[r#"phase "main" of plan "deploy" has no strategy, so its steps run in parallel"#],
    );
    let mut files = files();
    let unknown = OPERATOR.replace("name: main, strategy: serial", "name: main, strategy: srial");
    files.insert(OPERATOR_FILE.to_owned(), unknown.into_bytes());
    let expected =
        r#"operator.yaml: plan "deploy": strategy "srial" is neither serial nor parallel"#;
    assert_eq!(Package::read(&files).unwrap_err().to_string(), expected);
}

/// Packages that KUDO installs are accepted, except those that can never run.
#[test]
fn a_package_is_not_installed_with_what_can_never_run() {
    let faults = |old: &str, new: &str| {
        let mut files = files();
        files.insert(OPERATOR_FILE.to_owned(), OPERATOR.replacen(old, new, 1).into_bytes());
        super::faults(&Package::read(&files).unwrap())
    };
    assert_eq!(faults("web", "web"), [""; 0]);
    assert_eq!(faults("[app.yaml]", "[no.yaml]"), ["task app missing template: no.yaml"]);
    let task = "- {name: app, kind: Apply, spec: {resources: [app.yaml]}}\n";
    assert_eq!(faults(task, &format!("{task}{task}")), [r#"task "app" has a duplicate"#]);
    assert_eq!(faults("deploy:", "install:"), [""; 0], "verify names it");
    let unknown = faults("kind: Apply", "kind: Paint");
    assert_eq!(unknown, ["task 'app': unknown task kind Paint"]);
}

/// A step that applies an object with an invalid annotation fails.
#[test]
fn annotations_of_templates_are_verified() {
    let check = |annotations: &str, expected: &[&str]| {
        let kind = "kind: ConfigMap\n";
        let annotated = format!("{kind}metadata: {{name: a, annotations: {{{annotations}}}}}\n");
        check("templates/app.yaml", kind, &annotated, expected);
    };
    check("kudo.dev/healthy-when: self.data.size == '1', kudo.dev/leave: data.size", &[]);
    check(
        "kudo.dev/healthy-when: pod.status.ready",
        &[
            "template app.yaml: ConfigMap a: annotation kudo.dev/healthy-when: unknown variable pod; available: self",
        ],
    );
    check(
        "kudo.dev/failed-when: self.metadata.lables.a == ''",
        &[
            "template app.yaml: ConfigMap a: annotation kudo.dev/failed-when: unknown field self.metadata.lables",
        ],
    );
    check(
        "kudo.dev/leave: metadata.labels",
        &[
            r#"template app.yaml: ConfigMap a: annotation kudo.dev/leave: "metadata.labels" is no path of a field, such as spec.replicas"#,
        ],
    );
}

#[test]
fn templates_are_verified() {
    let file = "templates/app.yaml";
    let size = "{{ .Params.SIZE }}";
    check(
        file,
        size,
        r#"{{ printf "%s" .Name .Params.SIZE .Params.TYPO }}"#,
        &[
            r#"parameter "TYPO" in template app.yaml is not defined"#,
            r#"template app.yaml, line 2: map has no entry for key "TYPO""#,
        ],
    );
    check(
        file,
        size,
        "{{ .Params.SIZE }}{{ if .TaskName }}{{ end }}",
        &[
            r#"template app.yaml defines an invalid implicit parameter "TaskName""#,
            r#"template app.yaml, line 2: map has no entry for key "TaskName""#,
        ],
    );
    check(
        file,
        size,
        "{{ .Params.SIZE }}{{ range .Params }}{{ end }}",
        &[r#"template app.yaml defines an invalid implicit parameter "Params""#],
    );
    check(
        file,
        size,
        "{{ .Params.SIZE }}}",
        &[
            "parsing rendered YAML from app.yaml failed: line 2: misplaced bracket at char 31 line 2 \
           column 16",
        ],
    );
    check(
        file,
        "ConfigMap",
        "Namespace",
        &[
            r#"template "app.yaml" contains 'kind: Namespace' not allowed unless specified as 'NamespaceManifest'"#,
        ],
    );
    check(
        file,
        size,
        "{{ nope }}",
        &[
            r#"template file "app.yaml" reports the following error: template app.yaml, line 2: function nope is not defined"#,
            r#"parameter "SIZE" defined but not used."#,
        ],
    );
    check(
        OPERATOR_FILE,
        "[app.yaml]",
        "[app.yaml, gone.yaml]",
        &[r#"template "gone.yaml" required by app but is not defined"#],
    );
}

#[test]
fn a_parameter_file_sees_no_step() {
    let mut files = files();
    let operator = OPERATOR
        .replace("tasks:\n", "tasks:\n- {name: child, kind: KudoOperator, spec: {package: x, parameterFile: p.yaml}}\n")
        .replace("tasks: [app]", "tasks: [app, child]");
    files.insert(OPERATOR_FILE.to_owned(), operator.into_bytes());
    let text = "A: {{ .Name }}\nB: {{ .PlanName }}\n";
    files.insert("templates/p.yaml".to_owned(), text.as_bytes().to_vec());
    let errors = report(&files).errors;
    assert_eq!(errors.len(), 2, "{errors:?}");
    assert_eq!(errors[0], r#"template p.yaml defines an invalid implicit parameter "PlanName""#);
}

#[test]
fn pipes_of_different_plans_may_have_the_same_key() {
    let pipe = |name: &str| {
        format!(
            "- {{name: {name}, kind: Pipe, spec: {{pod: app.yaml, pipe: [{{file: /a, kind: Secret, key: cert}}]}}}}\n"
        )
    };
    let tasks = format!("tasks:\n{}{}", pipe("one"), pipe("two"));
    let other = "  rotate: {strategy: serial, phases: [{name: main, strategy: serial, steps: [{name: s, tasks: [two]}]}]}\n";
    let separate = OPERATOR.replace("tasks:\n", &tasks).replace("[app]}]", "[app, one]}]") + other;
    let together = separate.replace("[app, one]", "[app, one, two]");
    for (operator, expected) in [(separate, 0), (together, 1)] {
        let mut files = files();
        files.insert(OPERATOR_FILE.to_owned(), operator.into_bytes());
        let errors = report(&files).errors;
        assert_eq!(errors.len(), expected, "{errors:?}");
    }
}

/// A package of 10,000 templates is verified, even if each template reaches its limit.
#[test]
fn many_templates_share_their_limits() {
    let mut files = files();
    for n in 0..10_000 {
        let text = "{{ range until 500 }}{{ range until 500 }}{{ end }}{{ end }}".to_owned();
        files.insert(format!("templates/{n:04}.yaml"), text.into_bytes());
    }
    let started = Instant::now();
    let errors = report(&files).errors;
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    let shared = errors
        .iter()
        .filter(|error| error.ends_with("exceeds the limit of steps of all templates together"));
    assert!(shared.count() > 9_900, "{:?}", &errors[..10]);
    let first = "template 0000.yaml";
    assert!(
        !errors.iter().any(|error| error.starts_with(first)),
        "the first templates are rendered"
    );
}

/// Compares the warnings of these checks for a parameter with these fields.
#[track_caller]
fn check_texts(checks: &[&str], fields: &str, expected: &[&str]) {
    let mut files = files();
    let parameters =
        format!("groups:\n- {{name: g}}\nparameters:\n- {{name: A, trigger: deploy, {fields}}}\n");
    files.insert(PARAMETERS_FILE.to_owned(), parameters.into_bytes());
    let checks: Vec<ParameterCheck> = checks.iter().map(|check| check.parse().unwrap()).collect();
    let mut report = Report::default();
    check_parameters(&Package::read(&files).unwrap(), &checks, &mut report);
    assert_eq!(report.warnings, expected, "{fields}");
    assert!(report.is_valid());
}

#[test]
fn texts_for_people_are_checked_on_request() {
    let missing = |name: &str| format!(r#"parameter "A": the {name} is missing"#);
    check_texts(&[], "", &[]);
    check_texts(&["display"], "", &[&missing("display name")]);
    let colon = r#"parameter "A": the display name ends with ':'"#;
    check_texts(&["display"], "displayName: 'Size:'", &[colon]);
    let capital = r#"parameter "A": the display name does not start with a capital letter"#;
    check_texts(&["display"], "displayName: size", &[capital]);
    check_texts(&["display", "desc"], "displayName: Size, description: The size.", &[]);
    let hint = r#"parameter "A": the hint does not end with one of ."#;
    check_texts(&["hint"], "hint: choose well", &[hint]);
    let end = r#"parameter "A": the description does not end with one of .!?)"#;
    check_texts(&["desc"], "description: The size", &[end]);
    check_texts(&["type", "hasgroup"], "", &[&missing("type"), &missing("group")]);
    check_texts(&["type", "hasgroup"], "type: string, group: g", &[]);
    let of_group = ["display name", "description"];
    let of_group = of_group.map(|name| format!(r#"group "g": the {name} is missing"#));
    check_texts(&["groups"], "", &of_group.each_ref().map(String::as_str));
    let all = ["display name", "hint", "description", "type", "group"].map(missing);
    let all: Vec<&str> = all.iter().chain(&of_group).map(String::as_str).collect();
    check_texts(&["all"], "", &all);
    let unknown = "x".parse::<ParameterCheck>().unwrap_err().to_string();
    let names = "[display hint desc type hasgroup groups all]";
    assert_eq!(unknown, format!("unknown parameter check: x, must be one of {names}"));
}
