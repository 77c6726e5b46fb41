//! Go program with KUDO's template and YAML libraries; built from Go modules.

use std::{
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
};

use serde_json::{Value, json};

/// Builds and runs the program. Returns its results in the order of the requests.
pub(crate) fn answers(requests: &[Value]) -> Vec<Value> {
    let mut input_text = Vec::new();
    for request in requests {
        writeln!(input_text, "{request}").unwrap();
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../go-template/tests/oracle");
    // Suites run in parallel and must not replace each other's program.
    let program =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(concat!("oracle-", env!("CARGO_CRATE_NAME")));
    let mut build = Command::new("go");
    build.args(["build", "-trimpath", "-o"]).arg(&program).arg(".").current_dir(source);
    assert!(build.status().unwrap().success(), "the oracle is not built");
    let mut run = Command::new(program);
    run.env("TZ", "UTC").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut run = run.spawn().unwrap();
    let mut input = run.stdin.take().unwrap();
    let output = std::thread::scope(|scope| {
        scope.spawn(move || input.write_all(&input_text).unwrap());
        run.wait_with_output().unwrap()
    });
    assert!(output.status.success(), "the oracle failed");
    let lines = output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let answers: Vec<Value> = lines.map(|line| serde_json::from_slice(line).unwrap()).collect();
    assert_eq!(answers.len(), requests.len());
    answers
}

/// Result of a comparison with KUDO.
#[derive(Clone, Copy, Default)]
pub(crate) struct Comparison {
    pub(crate) compared: usize,
    pub(crate) different: usize,
    /// Number of templates that this engine refuses on purpose.
    pub(crate) not_supported: usize,
}

/// Writes a comparison to the directory in `PODOPS_COMPARISONS`, if set, for the benchmark.
pub(crate) fn record(name: &str, comparison: Comparison) {
    let Some(directory) = std::env::var_os("PODOPS_COMPARISONS") else { return };
    let Comparison { compared, different, not_supported } = comparison;
    let text =
        json!({ "compared": compared, "different": different, "notSupported": not_supported });
    std::fs::write(Path::new(&directory).join(name), text.to_string()).unwrap();
}
