//! `kubectl kudo` without a working cluster, repository or reader of its output: one clear line,
//! and the right exit status.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use podops_test_cluster::cluster::programs;
use serde_json::json;
use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    process::{Command, Output, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
    time::{Duration, Instant},
};

fn kudo(args: &[&str]) -> Command {
    let mut command = Command::new(programs().unwrap().join("kubectl-kudo"));
    let home = std::env::temp_dir();
    command.args(args).env("HOME", &home).env_remove("KUBECONFIG").stdin(Stdio::null());
    command
}

#[track_caller]
fn assert_fails(output: &Output, expected: &str) {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains(expected), "{errors}");
    assert!(errors.starts_with("Error: ") && errors.lines().count() == 1, "{errors}");
}

/// Digest of the archive that the repository sends.
const GARBAGE_DIGEST: &str = "795b6904e54f82411df4b0e27a373a55eea3f9d66dac5a9bce1dd92f7b401da5";

/// How a repository responds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// Every request with 404.
    NotFound,
    /// The index with a page for people.
    Page,
    /// The index with a package of which the digest is wrong.
    Digest,
    /// The archive with less than it announces.
    Half,
    /// The archive with other bytes than those of an archive.
    Garbage,
    /// The index without the digest of the archive.
    NoDigest,
    /// The index without an end.
    Endless,
    /// Nothing.
    Silent,
}

/// A repository with a fault, until the test ends.
fn repository(fault: Fault) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let digest = match fault {
        Fault::Digest => "00".repeat(32),
        Fault::NoDigest => String::new(),
        Fault::NotFound
        | Fault::Page
        | Fault::Half
        | Fault::Garbage
        | Fault::Endless
        | Fault::Silent => GARBAGE_DIGEST.to_owned(),
    };
    let entry =
        json!({ "operatorVersion": "0.1.0", "urls": [format!("{url}/toy.tgz")], "digest": digest });
    let index = json!({ "apiVersion": "v1", "entries": { "toy": [entry] } }).to_string();
    thread::spawn(move || {
        for stream in listener.incoming() {
            respond(&mut stream.unwrap(), fault, &index);
        }
    });
    url
}

fn respond(stream: &mut TcpStream, fault: Fault, index: &str) {
    let mut request = [0; 4096];
    let length = stream.read(&mut request).unwrap_or_default();
    let is_index = request[..length].starts_with(b"GET /index.yaml ");
    let head = |status: &str, length: usize| {
        format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n")
    };
    let of_index = head("200 OK", index.len()) + index;
    let response = match fault {
        Fault::NotFound => head("404 Not Found", 0),
        Fault::Page => head("200 OK", 21) + "<html>Sign in</html>\n",
        Fault::Endless => head("200 OK", 1 << 40) + &"x".repeat(65 << 20),
        Fault::Silent => {
            thread::sleep(Duration::from_secs(60));
            return;
        }
        Fault::Half | Fault::Digest | Fault::Garbage | Fault::NoDigest if is_index => of_index,
        Fault::Half => head("200 OK", 10_000) + "too short",
        Fault::Digest | Fault::Garbage | Fault::NoDigest => head("200 OK", 7) + "garbage",
    };
    // The client may have ended.
    drop(stream.write_all(response.as_bytes()));
}

#[test]
fn faults_of_a_repository_are_one_line() {
    let cases = [
        (Fault::NotFound, "/index.yaml: the server responded with 404 Not Found"),
        (Fault::Page, "expected the index of a repository"),
        (Fault::Digest, "and the index of the repository names 00000000"),
        (Fault::Half, "/toy.tgz: io: Peer disconnected"),
        (Fault::Garbage, "/toy.tgz: no archive of a package"),
        (Fault::NoDigest, "the index of the repository has no digest of http://127.0.0.1"),
        (Fault::Endless, "/index.yaml: the response body is larger than"),
        (Fault::Silent, "timeout"),
    ];
    for (fault, expected) in cases {
        let url = repository(fault);
        let list = ["package", "list", "tasks", "toy", "--request-timeout=5", "--repo", &url];
        let started = Instant::now();
        let output = kudo(&list).output().unwrap();
        eprintln!("{fault:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
        assert_fails(&output, expected);
        assert!(started.elapsed() < Duration::from_secs(30), "{fault:?}: {:?}", started.elapsed());
    }
    let gone = ["package", "list", "tasks", "toy", "--repo=http://127.0.0.1:9"];
    assert_fails(&kudo(&gone).output().unwrap(), "cannot be reached");
    // K48: for KUDO, the index has no API version.
    let gone = ["package", "list", "tasks", "toy", "--repo=file:///no-such-folder"];
    assert_fails(&kudo(&gone).output().unwrap(), "/no-such-folder/index.yaml: No such file");
    let endless = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("/dev/zero", endless.path().join("index.yaml")).unwrap();
    let url = format!("file://{}", endless.path().display());
    let endless = ["package", "list", "tasks", "toy", "--repo", &url];
    assert_fails(&kudo(&endless).output().unwrap(), "it has more than 64 MiB");
}

/// K33, and `create .` of K31.
#[test]
fn commands_work_inside_the_folder_of_the_package() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("params.yaml", "parameters:\n- {name: SIZE, trigger: deploy}\n");
    let operator = "name: toy\noperatorVersion: 0.1.0\nkubernetesVersion: 1.33.0\n\
                    plans: {deploy: {strategy: serial, phases: []}}\n";
    write("operator.yaml", operator);
    let run = |args: &[&str]| {
        let output = kudo(args).current_dir(folder.path()).output().unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(run(&["package", "list", "parameters"]).contains("SIZE"));
    assert_eq!(run(&["package", "list", "parameters", "--names"]), "Name\nSIZE\n");
    assert!(run(&["package", "verify", "."]).contains("package is valid"));
    assert!(run(&["package", "create", "."]).contains("Package created: ./toy-0.1.0.tgz"));
    assert!(run(&["package", "list", "plans", "./toy-0.1.0.tgz"]).contains("deploy (serial)"));
    let fails = |args: &[&str], expected: &str| {
        assert_fails(&kudo(args).current_dir(folder.path()).output().unwrap(), expected);
    };
    fails(&["package", "create", "."], "target file \"./toy-0.1.0.tgz\" already exists");
    run(&["package", "create", ".", "--overwrite"]);
    fails(&["package", "create", ".", "-d", "no"], "destination \"no\" is not a proper directory");
    write("params.yaml", "parameters: []\n");
    let none = run(&["package", "list", "parameters", ".", "--required"]);
    assert_eq!(none, "no required parameters without default values found\n");
    assert_eq!(run(&["package", "list", "tasks", "."]), "no tasks  found\n");
    write("operator.yaml", "name: toy\noperatorVersion: 0.1.0\nkubernetesVersion: 1.33.0\n");
    assert_eq!(run(&["package", "list", "plans", "."]), "no plans found\n");
}

/// K31: KUDO cuts the name of the folder out of the names of files that contain it.
#[test]
fn an_archive_has_the_files_of_its_folder() {
    let work = tempfile::tempdir().unwrap();
    let folder = work.path().join("op");
    std::fs::create_dir_all(folder.join("templates")).unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).unwrap();
    write("params.yaml", "parameters: []\n");
    write("templates/op-loop.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: op-loop}\n");
    let plan =
        "{strategy: serial, phases: [{name: p, strategy: serial, steps: [{name: s, tasks: [t]}]}]}";
    let operator = format!(
        "name: op\noperatorVersion: 0.1.0\nkubernetesVersion: 1.33.0\n\
         tasks: [{{name: t, kind: Apply, spec: {{resources: [op-loop.yaml]}}}}]\nplans: {{deploy: {plan}}}\n"
    );
    write("operator.yaml", &operator);
    for argument in ["op", "./op", "op/"] {
        let run = |args: &[&str]| {
            let output = kudo(args).current_dir(work.path()).output().unwrap();
            assert!(output.status.success(), "{args:?}: {output:?}");
        };
        run(&["package", "create", argument, "--overwrite"]);
        // `verify` finds the templates by their names.
        run(&["package", "verify", "op-0.1.0.tgz"]);
        let list = ["-tzf", "op-0.1.0.tgz"];
        let list = Command::new("tar").args(list).current_dir(work.path()).output().unwrap();
        let mut names: Vec<&str> = std::str::from_utf8(&list.stdout).unwrap().lines().collect();
        names.sort_unstable();
        let files = ["operator.yaml", "params.yaml", "templates/op-loop.yaml"];
        let names: Vec<&str> = names.into_iter().filter(|name| !name.ends_with('/')).collect();
        assert_eq!(names, files, "{argument}");
    }
}

#[test]
fn tasks_and_plans_of_a_package_are_listed() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("params.yaml", "parameters: [{name: EXTRA, default: true}]\n");
    let operator = "name: toy\noperatorVersion: 0.1.0\nkubernetesVersion: 1.33.0\ntasks:\n\
                    - {name: app, kind: Apply, spec: {resources: [a.yaml, b.yaml]}}\n\
                    - {name: extra, kind: Toggle, spec: {parameter: EXTRA, resources: [c.yaml]}}\n\
                    plans: {deploy: {strategy: serial, phases: [{name: p, strategy: parallel, \
                    steps: [{name: s, tasks: [app, extra]}]}]}}\n";
    write("operator.yaml", operator);
    let list = |args: &[&str]| {
        let args = [&["package", "list"], args, &[folder.path().to_str().unwrap()]].concat();
        let output = kudo(&args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let tasks = list(&["tasks"]);
    assert!(tasks.contains("app  \tApply \t[a.yaml b.yaml]\n"), "{tasks:?}");
    let plans = list(&["plans", "-t"]);
    for line in
        ["[phase]  p (parallel)", "[step]  s", "[apply]  app", "a.yaml", "[parameter]  EXTRA"]
    {
        assert!(plans.contains(line), "{line}: {plans}");
    }
}

/// A link may name files outside the package, or a folder that contains it.
#[test]
fn a_folder_with_links_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let operator = "name: toy\noperatorVersion: 0.1.0\nkubernetesVersion: 1.33.0\n";
    std::fs::write(folder.path().join("operator.yaml"), operator).unwrap();
    for target in ["/etc/passwd", path] {
        let link = folder.path().join("params.yaml");
        std::os::unix::fs::symlink(target, &link).unwrap();
        for args in [["package", "verify", path], ["package", "create", path]] {
            let output = kudo(&args).output().unwrap();
            assert_fails(
                &output,
                "params.yaml: a package has only files and folders, and no links",
            );
        }
        std::fs::remove_file(link).unwrap();
    }
}

#[test]
fn variables_in_the_home_folder_are_expanded() {
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("work/repository");
    std::fs::create_dir_all(&list).unwrap();
    let own =
        "repoVersion: v1\ncontext: own\nrepositories: [{name: own, url: http://127.0.0.1:9/own}]\n";
    std::fs::write(list.join("repositories.yaml"), own).unwrap();
    for home in ["$TOP/work$NO_SUCH_VARIABLE", "${TOP}/work"] {
        let mut command = kudo(&["package", "list", "tasks", "toy", "--home", home]);
        let output = command.env("TOP", folder.path()).output().unwrap();
        assert_fails(&output, "http://127.0.0.1:9/own");
    }
}

#[test]
fn an_invalid_package_is_described_and_fails() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("params.yaml", "parameters:\n- {name: UNUSED, default: 1}\n");
    write("operator.yaml", "name: toy\noperatorVersion: 0.1.0\nkubernetesVersion: 1.33.0\n");
    let path = folder.path().to_str().unwrap();
    let output = kudo(&["package", "verify", path]).output().unwrap();
    assert_fails(&output, "Error: found 1 package verification errors\n");
    let tables = String::from_utf8(output.stdout).unwrap();
    for line in ["Warnings", "Errors", "an operator is required to have 'deploy' plan"] {
        assert!(tables.contains(line), "{tables}");
    }
    let output = kudo(&["package", "verify", path, "-o", "json"]).output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((report["valid"].as_bool(), output.status.code()), (Some(false), Some(1)));
    assert_eq!(report["warnings"], json!([r#"parameter "UNUSED" defined but not used."#]));
    let created = kudo(&["package", "create", path, "-d", path]).output().unwrap();
    assert_fails(&created, "found 1 package verification errors");
    assert!(!folder.path().join("toy-0.1.0.tgz").exists());
}

#[test]
fn wrong_usage_is_one_line_with_status_2() {
    for (args, expected) in [
        (&["plan", "state"][..], "subcommand 'state'; a similar subcommand exists: 'status'\n"),
        (&["get", "all", "--colour"], "Error: unexpected argument '--colour' found"),
        (&["init", "--crd-only", "--upgrade"], "Error: the argument '--crd-only' cannot be used"),
        (&["init", "--uninstall", "--crd-only"], "cannot be used with"),
        (&["init", "--wait-timeout=5"], "Error: --wait-timeout needs --wait\n"),
        (&["package", "list", "parameters", "-r", "-d"], "cannot be used with"),
    ] {
        let output = kudo(args).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {errors}");
        assert!(errors.contains(expected) && errors.lines().count() == 1, "{args:?}: {errors}");
    }
    let help = kudo(&["plan", "--help"]).output().unwrap();
    assert!(help.status.success() && help.stderr.is_empty());
}

#[test]
fn a_reader_that_ends_is_no_panic() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let parameters = (0..20_000).map(|n| format!("- {{name: P{n}, trigger: deploy}}\n"));
    write("params.yaml", &format!("parameters:\n{}", parameters.collect::<String>()));
    write("operator.yaml", "name: toy\noperatorVersion: 0.1.0\nkubernetesVersion: 1.33.0\n");
    let path = folder.path().to_str().unwrap();
    let mut list = kudo(&["package", "list", "parameters", path]);
    let mut child = list.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = [0; 16];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.len()), (Some(1), 0), "{output:?}");
}

/// A server that accepts connections and never responds, as an API server that hangs.
fn hanging_server() -> (String, Receiver<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let (sender, connections) = channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            drop(sender.send(stream.unwrap()));
        }
    });
    (url, connections)
}

#[test]
fn a_cluster_that_does_not_respond_is_one_line() {
    let (hanging, _connections) = hanging_server();
    let servers = [("https://127.0.0.1:9".to_owned(), 10), (hanging, 45)];
    let folder = tempfile::tempdir().unwrap();
    for (server, seconds) in servers {
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{ "name": "c", "cluster": { "server": server } }],
            "users": [{ "name": "c", "user": {} }],
            "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "c" } }],
        });
        let path = folder.path().join("config");
        std::fs::write(&path, config.to_string()).unwrap();
        let started = Instant::now();
        let output = kudo(&["get", "all", "--kubeconfig"]).arg(&path).output().unwrap();
        assert_fails(&output, &format!("cannot read the CRDs of KUDO from the cluster {server}"));
        let elapsed = started.elapsed();
        assert!(elapsed < Duration::from_secs(seconds), "{server}: {elapsed:?}");
    }
}
