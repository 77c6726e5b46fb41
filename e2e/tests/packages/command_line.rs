//! `kubectl kudo` with instance-operator on a real API server: the page for newcomers,
//! dependencies, upgrades, and exit statuses.

use podops_bench::packages::COMMUNITY;
use podops_test_cluster::{
    cluster::{TIMEOUT, TestCluster, eventually, programs, root},
    suite::{Lane, Suite},
};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Stdio,
};
use tokio::process::Command;

/// A control plane with instance-operator, and a folder in which the command line runs.
struct Lab {
    cluster: TestCluster,
    work: tempfile::TempDir,
}

/// Output of a command, and its exit status.
#[derive(Debug)]
struct Ran {
    status: i32,
    output: String,
    errors: String,
}

impl Lab {
    async fn start() -> Self {
        let lab = Self::start_without_writer().await;
        let resources = "configmaps,services,deployments.apps,instances.kudo.dev";
        lab.cluster.create_writer("installer", resources).await.unwrap();
        lab
    }

    /// As [`start`](Self::start), without a ServiceAccount that writes the objects of packages.
    async fn start_without_writer() -> Self {
        let cluster = TestCluster::start_with_packages(&programs().unwrap()).await.unwrap();
        Self { cluster, work: tempfile::tempdir().unwrap() }
    }

    async fn run(&self, args: &[&str]) -> Ran {
        let mut command = Command::new(programs().unwrap().join("kubectl-kudo"));
        command.env("KUBECONFIG", self.cluster.plane.admin_kubeconfig());
        command.env("HOME", self.work.path()).current_dir(self.work.path()).stdin(Stdio::null());
        let output = command.args(args).output().await.unwrap();
        Ran {
            status: output.status.code().unwrap(),
            output: String::from_utf8(output.stdout).unwrap(),
            errors: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Runs a command that succeeds; returns its output.
    async fn kudo(&self, args: &[&str]) -> String {
        let ran = self.run(args).await;
        assert_eq!(ran.status, 0, "{args:?}: {ran:?}");
        ran.output
    }

    /// Runs a command that fails with a status and one line that contains a text.
    async fn fails(&self, args: &[&str], status: i32, expected: &str) {
        let ran = self.run(args).await;
        assert_eq!(ran.status, status, "{args:?}: {ran:?}");
        assert!(ran.errors.contains(expected), "{args:?}: {ran:?}");
        assert!(ran.errors.starts_with("Error: ") && ran.errors.lines().count() == 1, "{ran:?}");
    }

    /// Runs `plan diff`, which finds differences and writes nothing; returns its output.
    async fn differs(&self, args: &[&str]) -> String {
        let before = self.versions().await;
        let ran = self.run(args).await;
        assert_eq!((ran.status, ran.errors.as_str()), (5, ""), "{args:?}: {ran:?}");
        assert_eq!(self.versions().await, before, "{args:?} must not write");
        ran.output
    }

    /// resourceVersions of the objects of packages, by kind and name; those of Instances, whose
    /// status is written, and of Deployments, whose status is reported, are generations.
    async fn versions(&self) -> BTreeMap<String, String> {
        let kinds = "operators.kudo.dev,operatorversions.kudo.dev,instances.kudo.dev,configmaps,\
                     services,deployments";
        let list = self.cluster.plane.kubectl(&["get", kinds, "-o", "json"]).await.unwrap();
        let list: Value = serde_json::from_str(&list).unwrap();
        let version = |object: &Value| {
            let kind = object["kind"].as_str().unwrap_or_default();
            let metadata = &object["metadata"];
            let field = match kind {
                "Deployment" | "Instance" => "generation",
                _ => "resourceVersion",
            };
            let name = metadata["name"].as_str().unwrap_or_default();
            (format!("{kind} default/{name}"), metadata[field].to_string())
        };
        list["items"].as_array().unwrap().iter().map(version).collect()
    }

    async fn get(&self, kind: &str, name: &str) -> Value {
        let object = self.cluster.plane.kubectl(&["get", kind, name, "-o", "json"]).await.unwrap();
        serde_json::from_str(&object).unwrap()
    }

    /// Writes the kubeconfig of a ServiceAccount without rights, unless the test has granted some.
    async fn kubeconfig_without_rights(&self) -> PathBuf {
        let config = fs::read_to_string(self.cluster.plane.admin_kubeconfig()).unwrap();
        let token = self.cluster.plane.kubectl(&["create", "token", "default"]).await.unwrap();
        let path = self.write("unprivileged", &config);
        let config = path.to_str().unwrap();
        let user = ["config", "set-credentials", "unprivileged", "--token", token.trim()];
        let context = ["config", "set-context", "--current", "--user=unprivileged"];
        for args in [&user[..], &context] {
            let args = [args, &["--kubeconfig", config]].concat();
            self.cluster.plane.kubectl(&args).await.unwrap();
        }
        path
    }

    fn write(&self, path: &str, text: &str) -> PathBuf {
        let path = self.work.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }
}

/// Files of the package that a page of the documentation describes, by path.
fn files_of_page(page: &str) -> Vec<(String, String)> {
    let text = fs::read_to_string(root().join(page)).unwrap();
    let blocks = text.split("```yaml\n# ").skip(1).map(|rest| rest.split("```").next().unwrap());
    blocks
        .map(|block| {
            let (path, content) = block.split_once('\n').unwrap();
            (path.to_owned(), content.to_owned())
        })
        .collect()
}

/// Commands `kubectl` of a page of the documentation, as their arguments.
fn commands_of_page(page: &str) -> Vec<Vec<String>> {
    let text = fs::read_to_string(root().join(page)).unwrap();
    let lines = text.lines().filter_map(|line| line.strip_prefix("kubectl "));
    lines
        .map(|line| {
            let mut parts = line.split('"');
            let mut args: Vec<String> = Vec::new();
            // Text between quotes belongs to the argument before it.
            while let Some(plain) = parts.next() {
                args.extend(plain.split_whitespace().map(ToOwned::to_owned));
                if let Some(quoted) = parts.next() {
                    args.last_mut().unwrap().push_str(quoted);
                }
            }
            args
        })
        .collect()
}

/// Shows a difference, makes the change, and compares the changed objects with the shown ones.
async fn a_preview_names_what_an_update_changes(lab: &Lab, args: &[&str]) {
    let shown = lab.differs(args).await;
    assert!(shown.starts_with("Plan deploy would run: parameters changed: GREETING\n"), "{shown}");
    assert!(shown.contains("-> \"good morning\"\n"), "{shown}");
    assert!(shown.contains("    … waits for Deployment default/first-web\n"), "{shown}");
    let before = lab.versions().await;
    let update: Vec<&str> =
        ["update"].iter().chain(&args[2..]).chain(&["--wait"]).copied().collect();
    lab.kudo(&update).await;
    let after = lab.versions().await;
    let changed = after.iter().filter(|(name, version)| before.get(*name) != Some(*version));
    let mut changed: Vec<String> = changed.map(|(name, _)| name.clone()).collect();
    changed.retain(|name| !name.starts_with("Instance"));
    let named = shown.lines().filter_map(|line| line.strip_prefix("    ~ "));
    let mut named: Vec<String> = named.map(ToOwned::to_owned).collect();
    named.sort();
    assert_eq!(named, changed, "{shown}");
    assert!(!changed.is_empty());
}

/// Asserts the output of a command of the page.
fn assert_output(args: &[&str], output: &str) {
    match args[..2] {
        ["package", "verify"] => assert_eq!(output, "package is valid\n"),
        ["install", _] => {
            for line in ["operator default/hello created", "instance default/first ready"] {
                assert!(output.contains(line), "{output}");
            }
        }
        ["update", _] => assert!(output.contains("Instance first was updated.\n"), "{output}"),
        ["upgrade", _] => {
            assert!(output.contains("instance default/first updated\n"), "{output}");
        }
        ["plan", "status"] => {
            assert!(output.contains("Plan deploy (serial strategy) [COMPLETE]"), "{output}");
        }
        ["plan", "history"] => {
            assert!(output.contains("parameters changed: GREETING"), "{output}");
            assert!(output.contains("scale (last finished run at"), "{output}");
        }
        _ => {}
    }
}

/// Adds the scenarios of this file.
pub(crate) fn add(suite: Suite) -> Suite {
    suite
        .scenario(Lane::Long, the_package_of_the_documentation_works)
        .scenario(Lane::Long, dependencies_are_installed_with_a_package)
        .scenario(Lane::Long, failures_have_a_line_and_a_status)
        .scenario(Lane::Long, packages_differ_in_version_namespace_and_size)
        .scenario(Lane::Waiting, commands_wait_for_what_they_name)
        .scenario(Lane::Long, community_packages_run)
        .scenario(Lane::Long, community_packages_follow_manifests_of_instances)
        .scenario(Lane::Long, a_namespace_is_created_from_the_manifest)
        .scenario(Lane::Long, init_installs_the_overlay_removes_kudo_and_is_undone)
}

/// A newcomer writes the package of the documentation, installs, changes and upgrades it, with its
/// commands.
#[allow(clippy::too_many_lines, reason = "each command needs the state that the one before left")]
async fn the_package_of_the_documentation_works() {
    let lab = Lab::start_without_writer().await;
    let files = files_of_page("docs/PACKAGES.md");
    assert_eq!(files.len(), 4, "{files:?}");
    for (path, text) in &files {
        lab.write(path, text);
    }
    let commands = commands_of_page("docs/PACKAGES.md");
    assert!(commands.len() >= 9, "{commands:?}");
    for command in &commands {
        let args: Vec<&str> = command.iter().map(String::as_str).collect();
        let Some(args) = args.strip_prefix(&["kudo"]) else {
            lab.cluster.plane.kubectl(&args).await.unwrap();
            continue;
        };
        if args[0] == "upgrade" {
            lab.fails(args, 1, "upgraded version 0.1.0 is the same or smaller").await;
            // K38: the Operator is created again.
            let operator = ["delete", "operators.kudo.dev", "hello"];
            lab.cluster.plane.kubectl(&operator).await.unwrap();
            let operator = files[0].1.replace("0.1.0", "0.2.0");
            lab.write("hello/operator.yaml", &operator);
        }
        if args[..2] == ["package", "create"] {
            lab.write("hello/operator.yaml", &files[0].1);
        }
        if args[..2] == ["plan", "diff"] {
            a_preview_names_what_an_update_changes(&lab, args).await;
            continue;
        }
        let output = lab.kudo(args).await;
        assert_output(args, &output);
    }
    // K32: an archive is verified, too.
    let archive = ["package", "verify", "./hello-1.27.0_0.1.0.tgz"];
    assert_eq!(lab.kudo(&archive).await, "package is valid\n");
    // K19: required parameters are listed, and no others.
    let needed = format!("{}- name: SECRET\n  required: true\n", files[1].1);
    lab.write("hello/params.yaml", &needed);
    let another = files[0].1.replace("0.1.0", "0.3.0");
    lab.write("hello/operator.yaml", &another);
    let missing = "missing required parameters during installation: SECRET";
    lab.fails(&["install", "./hello", "--instance", "second"], 1, missing).await;
    lab.write("hello/operator.yaml", &files[0].1);
    let required = lab.kudo(&["package", "list", "parameters", "./hello", "--required"]).await;
    assert!(required.contains("SECRET") && !required.contains("GREETING"), "{required}");
    lab.write("hello/params.yaml", &files[1].1);
    let new = lab.differs(&["plan", "diff", "./hello", "--instance", "second"]).await;
    assert!(new.contains("    + ConfigMap default/second-config\n"), "{new}");
    let none = lab.kudo(&["plan", "diff", "--instance", "first"]).await;
    assert_eq!(none, "No plan would run.\n");
    let again = lab.kudo(&["plan", "diff", "--instance", "first", "--name", "deploy"]).await;
    assert!(again.ends_with("  no object would change\n"), "{again}");
    let unknown = ["plan", "diff", "--instance", "first", "--name", "party"];
    lab.fails(&unknown, 1, "plan party does not exist").await;
    let config = lab.get("configmap", "first-config").await;
    assert_eq!(config["data"]["index.html"], "good morning");
    let web = lab.get("deployment", "first-web").await;
    assert_eq!(web["spec"]["replicas"], 3);
    let instance = lab.get("instances.kudo.dev", "first").await;
    assert_eq!(instance["spec"]["operatorVersion"]["name"], "hello-1.27.0-0.2.0");
    let tree = lab.kudo(&["get", "all"]).await;
    let title = "List of current installed operators including versions and instances in namespace \
                 \"default\":\n";
    assert!(tree.starts_with(title), "{tree}");
    assert!(
        tree.contains("├── hello-1.27.0-0.1.0\n    └── hello-1.27.0-0.2.0\n        └── first\n"),
        "{tree}"
    );
    lab.kudo(&["uninstall", "--instance", "first", "--wait"]).await;
    let is_gone =
        async || Ok(lab.cluster.plane.kubectl(&["get", "deployment", "first-web"]).await.is_err());
    eventually(TIMEOUT, is_gone).await.unwrap();
    lab.cluster.assert_no_forbidden_requests().unwrap();
}

const CONFIG: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: '{{ .Name }}-{{ .OperatorName }}'}\n\
                      data: {p: '{{ .Params.P }}'}\n";

/// Writes a package with a ConfigMap, and with tasks that install others.
fn package(lab: &Lab, folder: &str, version: &str, children: &[&str]) {
    let name = Path::new(folder).file_name().unwrap().to_str().unwrap();
    let task = |child: &&str| {
        let name = child.rsplit('/').next().unwrap();
        format!("- {{name: {name}, kind: KudoOperator, spec: {{package: {child}}}}}\n")
    };
    let tasks: String = children.iter().map(task).collect();
    let names: Vec<&str> = children.iter().map(|child| child.rsplit('/').next().unwrap()).collect();
    let tasks_of_deploy = [&["config"], names.as_slice()].concat().join(", ");
    let operator = format!(
        "name: {name}\noperatorVersion: {version}\nkubernetesVersion: \"1.33\"\ntasks:\n\
         - {{name: config, kind: Apply, spec: {{resources: [c.yaml]}}}}\n\
         - {{name: stuck, kind: Dummy, spec: {{}}}}\n\
         - {{name: broken, kind: Dummy, spec: {{wantErr: true, fatal: true}}}}\n{tasks}plans:\n\
         {}{}{}",
        plan("deploy", &tasks_of_deploy),
        plan("stuck", "stuck"),
        plan("broken", "broken"),
    );
    lab.write(&format!("{folder}/operator.yaml"), &operator);
    let parameters = "parameters:\n- {name: P, default: a}\n- {name: FIXED, default: x, immutable: true}\n\
                      - {name: NUMBER, type: integer, default: \"1\"}\n";
    lab.write(&format!("{folder}/params.yaml"), parameters);
    lab.write(&format!("{folder}/templates/c.yaml"), CONFIG);
}

fn plan(name: &str, tasks: &str) -> String {
    format!(
        "  {name}: {{strategy: serial, phases: [{{name: p, strategy: serial, steps: [{{name: s, tasks: [{tasks}]}}]}}]}}\n"
    )
}

/// Packages that a package depends on are installed with it, and again by an upgrade that needs
/// more.
async fn dependencies_are_installed_with_a_package() {
    let lab = Lab::start().await;
    package(&lab, "parent", "0.1.0", &[]);
    let account = ["--service-account", "installer"];
    lab.kudo(&[&["install", "./parent", "--instance", "p", "--wait"][..], &account].concat()).await;
    assert!(!lab.kudo(&["get", "operators"]).await.contains("child"));
    package(&lab, "child", "0.3.0", &["../grandchild"]);
    package(&lab, "grandchild", "0.4.0", &[]);
    package(&lab, "parent", "0.2.0", &["../child"]);
    let shown = lab.differs(&["plan", "diff", "./parent", "--instance", "p"]).await;
    for expected in [
        "    + Instance default/p-child\n",
        "Plan deploy of Instance default/p-child would run: ",
        "    + ConfigMap default/p-child-child\n",
        "Plan deploy of Instance default/p-child-grandchild would run: ",
        "    + ConfigMap default/p-child-grandchild-grandchild\n",
    ] {
        assert!(shown.contains(expected), "{shown}");
    }
    lab.kudo(&["upgrade", "./parent", "--instance", "p", "--wait"]).await;
    for instance in ["p", "p-child", "p-child-grandchild"] {
        let found = lab.get("instances.kudo.dev", instance).await;
        assert_eq!(found["status"]["planStatus"]["deploy"]["status"], "COMPLETE", "{found:#}");
        let own = instance.rsplit('-').next().unwrap().replace('p', "parent");
        lab.get("configmap", &format!("{instance}-{own}")).await;
    }
    let versions = lab.kudo(&["get", "operatorversions"]).await;
    for version in ["parent-0.1.0", "parent-0.2.0", "child-0.3.0", "grandchild-0.4.0"] {
        assert!(versions.contains(version), "{versions}");
    }

    forbidden_deletions_are_in_the_difference(&lab).await;

    package(&lab, "a", "0.1.0", &["../b"]);
    package(&lab, "b", "0.1.0", &["../a"]);
    let cycle = "cyclic package dependency found when adding package b-0.1.0 -> a-0.1.0";
    lab.fails(&["install", "./a"], 1, cycle).await;
    package(&lab, "own", "0.1.0", &["../own"]);
    let own = "cyclic package dependency found when adding package own-0.1.0 -> own-0.1.0";
    lab.fails(&["install", "./own"], 1, own).await;
    lab.cluster.assert_no_forbidden_requests().unwrap();
}

/// A user or a ServiceAccount that may not delete the objects that an upgrade would delete.
async fn forbidden_deletions_are_in_the_difference(lab: &Lab) {
    let kubectl = async |args: &[&str]| lab.cluster.plane.kubectl(args).await.unwrap();
    let kinds = "configmaps,instances.kudo.dev,operators.kudo.dev,operatorversions.kudo.dev,\
                 customresourcedefinitions.apiextensions.k8s.io";
    let resources = format!("--resource={kinds}");
    kubectl(&["create", "clusterrole", "careful", "--verb=get,create,patch", &resources]).await;
    let subject = ["--clusterrole=careful", "--serviceaccount=default:default"];
    kubectl(&[&["create", "clusterrolebinding", "careful"][..], &subject].concat()).await;
    package(lab, "parent", "0.3.0", &["../child"]);
    let conditional = format!("{{{{ if eq .Params.P \"b\" }}}}\n{CONFIG}{{{{ end }}}}\n");
    lab.write("parent/templates/c.yaml", &conditional);
    let config = lab.kubeconfig_without_rights().await;
    let config = config.to_str().unwrap();
    let diff = ["plan", "diff", "./parent", "--instance", "p"];
    let ran = lab.run(&[&diff[..], &["--kubeconfig", config]].concat()).await;
    let expected =
        "    ! would stay: ConfigMap default/p-parent: configmaps \"p-parent\" is forbidden";
    assert!(ran.status == 5 && ran.output.contains(expected), "{ran:?}");
    let warning = "warning: you may not impersonate ServiceAccount default/installer";
    assert!(ran.errors.starts_with(warning) && ran.errors.lines().count() == 1, "{ran:?}");
    let shown = lab.differs(&diff).await;
    assert!(shown.contains("    - ConfigMap default/p-parent\n"), "{shown}");
    // The Instance's ServiceAccount may not, although the user of the command may.
    let account = |name: &str| json!({ "spec": { "serviceAccountName": name } }).to_string();
    let patch = ["patch", "instances.kudo.dev", "p", "--type=merge", "--patch"];
    kubectl(&[&patch[..], &[&account("default")]].concat()).await;
    let shown = lab.differs(&diff).await;
    assert!(shown.contains(expected), "{shown}");
    kubectl(&[&patch[..], &[&account("installer")]].concat()).await;
}

/// Each failure is one line and has its exit status, and leaves nothing behind.
#[allow(clippy::too_many_lines, reason = "each command needs the state that the one before left")]
async fn failures_have_a_line_and_a_status() {
    let lab = Lab::start().await;
    package(&lab, "toy", "0.1.0", &[]);
    let install = ["install", "./toy", "--instance", "toy", "--service-account", "installer"];
    lab.fails(&[&install[..], &["-p", "NUMBER=x"]].concat(), 1, "but the value has another type")
        .await;
    lab.fails(&[&install[..], &["-p", "TYPO=x"]].concat(), 1, "failed to find parameter \"TYPO\"")
        .await;
    let operator = fs::read_to_string(lab.work.path().join("toy/operator.yaml")).unwrap();
    lab.write("toy/operator.yaml", &operator.replace("name: s, ", "name: s, timeout: soon, "));
    lab.fails(&install, 1, "operatorversion toy-0.1.0 is invalid: OperatorVersion.kudo.dev").await;
    lab.write("toy/operator.yaml", &operator);
    let none = lab.kudo(&["get", "all"]).await;
    assert!(!none.contains("toy"), "nothing was created: {none}");
    lab.kudo(&[&install[..], &["--wait"]].concat()).await;
    lab.fails(&install, 1, "an instance of that name already exists in namespace default").await;

    // K46: KUDO takes no notice of another content.
    lab.write("toy/templates/c.yaml", &format!("{CONFIG}# changed\n"));
    let other = ["install", "./toy", "--instance", "other", "--skip-instance"];
    lab.fails(&other, 1, "has another content than the package").await;
    let replaced = lab.kudo(&[&other[..], &["--replace-operatorversion"]].concat()).await;
    assert!(replaced.contains("operatorversion default/toy-0.1.0 replaced"), "{replaced}");
    let again = lab.kudo(&other).await;
    assert!(again.contains("operatorversion default/toy-0.1.0 already installed"), "{again}");
    let newer = operator.replace("0.1.0", "0.9.0").replace("\"1.33\"", "\"1.99\"");
    lab.write("toy/operator.yaml", &newer);
    lab.fails(&other, 1, "expected kubernetes version of 1.99").await;
    lab.write("toy/operator.yaml", &operator);

    let toy = ["--instance", "toy"];
    lab.fails(&[&["update", "-p", "FIXED=y"][..], &toy].concat(), 1, "is immutable").await;
    assert_eq!(lab.get("instances.kudo.dev", "toy").await["spec"]["parameters"]["FIXED"], "x");
    lab.fails(&[&["update"][..], &toy].concat(), 2, "need to specify at least one parameter").await;
    lab.fails(&[&["update", "-p", "P"][..], &toy].concat(), 2, "parameter not set: P").await;
    // K49: values that are set already need no run.
    lab.kudo(&[&["update", "-p", "P=a", "--wait"][..], &toy].concat()).await;

    let trigger =
        |plan: &'static str| [&["plan", "trigger", "--wait", "--name", plan][..], &toy].concat();
    lab.fails(&trigger("gone"), 1, "plan gone does not exist").await;
    // K15: KUDO waits for a plan that has failed.
    lab.fails(&trigger("broken"), 4, "plan broken failed").await;
    lab.fails(&[&trigger("stuck")[..], &["--wait-time", "2"]].concat(), 3, "timeout waiting").await;
    let status = lab.kudo(&[&["plan", "status"][..], &toy].concat()).await;
    assert!(status.contains("Step s [IN_PROGRESS] (the Dummy task is never done"), "{status}");
    lab.kudo(&[&["plan", "cancel"][..], &toy].concat()).await;
    lab.fails(&[&["plan", "wait"][..], &toy].concat(), 4, "cancelled by").await;
    lab.fails(&[&["plan", "cancel"][..], &toy].concat(), 1, "no plan runs").await;
    let json = lab.kudo(&[&["plan", "status", "-o", "json"][..], &toy].concat()).await;
    let status: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(status["planStatus"]["stuck"]["status"], "FATAL_ERROR");

    lab.fails(&["plan", "status", "--instance", "gone"], 1, "instance default/gone does not exist")
        .await;
    lab.fails(&["plan", "status"], 2, "Error: required flag(s) \"instance\" not set").await;
    lab.fails(&["upgrade", "./toy"], 2, "please use --instance and specify instance name").await;
    lab.fails(&["plan", "trigger", "--instance", "toy"], 2, "please choose the plan name").await;
    lab.fails(&["get", "pods"], 2, "expecting one of").await;
    lab.fails(&["get", "all", "-o", "xml"], 2, "invalid output format").await;
    lab.fails(&["install", "unknown", "--repo", "http://127.0.0.1:9"], 1, "cannot be reached")
        .await;
    lab.fails(&["package", "verify", "./gone"], 1, "./gone").await;
    let nowhere = ["get", "all", "--kubeconfig", "./gone"];
    lab.fails(&nowhere, 1, "the kubeconfig cannot be read").await;
    lab.kudo(&[&["uninstall", "--wait"][..], &toy].concat()).await;
    lab.fails(&[&["uninstall"][..], &toy].concat(), 1, "does not exist in the cluster").await;
    lab.cluster.assert_no_forbidden_requests().unwrap();

    let config = lab.kubeconfig_without_rights().await;
    let unprivileged = ["get", "all", "--kubeconfig", config.to_str().unwrap()];
    let who = "system:serviceaccount:default:default\" cannot";
    lab.fails(&unprivileged, 1, who).await;
    let install = [&install[..], &["--validate-install=false"], &unprivileged[2..]].concat();
    lab.fails(&install, 1, who).await;
    lab.cluster.plane.kubectl(&["delete", "crd", "operators.kudo.dev"]).await.unwrap();
    let half = "CRDs invalid: operators.kudo.dev is missing; install instance-operator first";
    lab.fails(&["get", "all"], 1, half).await;
}

/// K8, K12 and K36: another version of the application, an Instance whose OperatorVersion is in
/// another namespace, and an object that would not fit twice into its annotations.
async fn packages_differ_in_version_namespace_and_size() {
    let lab = Lab::start().await;
    package(&lab, "toy", "0.1.0", &[]);
    let operator = fs::read_to_string(lab.work.path().join("toy/operator.yaml")).unwrap();
    let account = ["--service-account", "installer", "--wait"];
    let install = async |instance: &str| {
        let install = ["install", "./toy", "--instance", instance];
        lab.kudo(&[&install[..], &account].concat()).await
    };
    for (version, instance) in [("1.0", "first"), ("2.0", "second")] {
        let operator = format!("appVersion: \"{version}\"\n{operator}");
        lab.write("toy/operator.yaml", &operator);
        install(instance).await;
        let found = lab.get("instances.kudo.dev", instance).await;
        let expected = format!("toy-{version}-0.1.0");
        assert_eq!(found["spec"]["operatorVersion"]["name"], expected);
    }
    lab.kudo(&["upgrade", "./toy", "--instance", "first", "--wait"]).await;
    let upgraded = lab.get("instances.kudo.dev", "first").await;
    assert_eq!(upgraded["spec"]["operatorVersion"]["name"], "toy-2.0-0.1.0");

    lab.cluster.create_namespace("shared").await.unwrap();
    lab.kudo(&["install", "./toy", "--skip-instance", "--namespace", "shared"]).await;
    let instance = json!({
        "apiVersion": "kudo.dev/v1beta1", "kind": "Instance", "metadata": { "name": "third" },
        "spec": {
            "serviceAccountName": "installer",
            "operatorVersion": { "name": "toy-2.0-0.1.0", "namespace": "shared" },
        },
    });
    let role = ["--verb=get", "--resource=operatorversions.kudo.dev", "-n", "shared"];
    let reader = ["--role=reader", "--serviceaccount=default:installer", "-n", "shared"];
    let kubectl = async |args: &[&str]| lab.cluster.plane.kubectl(args).await.unwrap();
    kubectl(&[&["create", "role", "reader"][..], &role].concat()).await;
    kubectl(&[&["create", "rolebinding", "reader"][..], &reader].concat()).await;
    lab.cluster.plane.create(&instance).await.unwrap();
    let tree = async || lab.kudo(&["plan", "status", "--instance", "third"]).await;
    let is_complete =
        async || Ok(tree().await.contains("Plan deploy (serial strategy) [COMPLETE]"));
    eventually(TIMEOUT, is_complete).await.unwrap();

    let large = format!("{CONFIG}  large: {}\n", "x".repeat(400 << 10));
    lab.write("toy/templates/c.yaml", &large.replace("data: {p: '{{ .Params.P }}'}", "data:"));
    lab.write("toy/operator.yaml", &operator);
    install("large").await;
    let map = lab.get("configmap", "large-toy").await;
    assert_eq!(map["data"]["large"].as_str().unwrap().len(), 400 << 10);
    lab.cluster.assert_no_forbidden_requests().unwrap();
}

/// Waiting, by all commands that can, and the formats of outputs.
async fn commands_wait_for_what_they_name() {
    let lab = Lab::start().await;
    package(&lab, "toy", "0.1.0", &[]);
    lab.write("values.yaml", "P: from a file\n");
    let install = ["install", "./toy", "-P", "values.yaml", "--wait=true", "--instance", "toy"];
    lab.kudo(&[&install[..], &["--service-account", "installer"]].concat()).await;
    assert_eq!(lab.get("configmap", "toy-toy").await["data"]["p"], "from a file");
    let plan = |args: &[&'static str]| [&["plan"][..], args, &["--instance", "toy"]].concat();

    let triggered = lab.kudo(&plan(&["trigger", "--name", "stuck"])).await;
    assert_eq!(triggered, "Triggered stuck plan for default/toy instance\n");
    // The watch may be without an event for longer than one request may take.
    let waiting = plan(&["wait", "--timeout=4", "--request-timeout=1"]);
    lab.fails(&waiting, 3, "timeout waiting for instance default/toy").await;
    for (verb, is_paused) in [("pause", true), ("resume", false)] {
        lab.kudo(&plan(&[verb])).await;
        let spec = &lab.get("instances.kudo.dev", "toy").await["spec"];
        assert_eq!(spec["paused"].as_bool().unwrap_or_default(), is_paused, "{verb}");
    }
    lab.kudo(&plan(&["cancel"])).await;
    lab.fails(&plan(&["wait"]), 4, "plan stuck failed: cancelled by").await;
    // K15: KUDO waits for a plan that has failed.
    lab.fails(&plan(&["status", "--wait"]), 4, "plan stuck failed: cancelled by").await;
    let history = lab.kudo(&plan(&["history"])).await;
    assert!(history.contains("FATAL_ERROR") && history.contains("requested"), "{history}");
    lab.kudo(&plan(&["trigger", "--name", "deploy", "--wait"])).await;
    lab.kudo(&plan(&["wait", "--for", "ready"])).await;
    let status = lab.kudo(&plan(&["status", "--wait"])).await;
    assert!(status.contains("Plan deploy (serial strategy) [COMPLETE]"), "{status}");

    let json = lab.kudo(&["get", "instances", "-o", "json"]).await;
    let instances: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(instances[0]["metadata"]["name"], "toy", "{json}");
    let yaml = lab.kudo(&["get", "operatorversions", "-o", "yaml"]).await;
    assert!(yaml.starts_with("---\n") && yaml.contains("name: toy-0.1.0"), "{yaml}");
    assert!(lab.kudo(&["version"]).await.starts_with("KUDO Version: version.Info{GitVersion:"));
    let dry = lab.kudo(&["init", "--crd-only", "--dry-run"]).await;
    assert_eq!(dry.lines().count(), 3, "{dry}");
    let dry = lab.kudo(&["init", "--dry-run", "-o", "yaml", "--image", "a/b:1"]).await;
    assert!(dry.contains("image: a/b:1") && !dry.contains("✅"), "{dry}");

    // The OperatorVersion may be created after the Instance.
    let early = "apiVersion: kudo.dev/v1beta1\nkind: Instance\nmetadata: { name: early }\n\
                 spec: { operatorVersion: { name: toy-0.2.0 }, serviceAccountName: installer }\n";
    let invalid = early.replace("name: early", "name: invalid");
    let invalid =
        invalid.replace("serviceAccountName", "parameters: { NUMBER: x }, serviceAccountName");
    let early = lab.write("early.yaml", &format!("{early}---\n{invalid}"));
    lab.cluster.plane.kubectl(&["create", "-f", early.to_str().unwrap()]).await.unwrap();
    let missing = "OperatorVersion default/toy-0.2.0 does not exist";
    lab.fails(&["plan", "wait", "--timeout=2", "--instance", "early"], 3, missing).await;
    let missing = "OperatorVersion toy-0.2.0 from instance default/early does not exist";
    lab.fails(&["plan", "status", "--instance", "early"], 1, missing).await;
    package(&lab, "toy", "0.2.0", &[]);
    lab.kudo(&["install", "./toy", "--skip-instance"]).await;
    lab.kudo(&["plan", "wait", "--instance", "early"]).await;
    let none = lab.kudo(&["plan", "status", "--instance", "invalid"]).await;
    assert_eq!(none, "No plan ever run for instance - nothing to show for instance invalid\n");

    lab.kudo(&["uninstall", "--instance", "toy"]).await;
    lab.kudo(&plan(&["wait", "--for", "deleted"])).await;
    lab.cluster.assert_no_forbidden_requests().unwrap();
}

/// The community packages of KUDO, which are not committed: without them, nothing is tested.
async fn community_packages_run() {
    let folder = root().join(COMMUNITY);
    if !folder.is_dir() {
        eprintln!("there are no community packages");
        return;
    }
    let page = podops_bench::packages::run(&programs().unwrap(), &folder).await.unwrap();
    let deployed = page.lines().filter(|line| line.contains(" ms | ") && !line.contains("failed"));
    assert_eq!(deployed.count(), 14, "{page}");
}

/// A package whose own tests create and change Instances by manifests.
struct WithManifests {
    operator: &'static str,
    /// Parameters of the requested processors and memory.
    requests: [&'static str; 2],
    /// Parameters of an Instance with one Pod.
    one_pod: [(&'static str, &'static str); 2],
    /// Container of the StatefulSet that requests them.
    container: &'static str,
    /// Headless Service of the Instance `app`.
    service: &'static str,
}

const WITH_MANIFESTS: [WithManifests; 2] = [
    WithManifests {
        operator: "zookeeper",
        requests: ["CPUS", "MEMORY"],
        one_pod: [("NODE_COUNT", "1"), ("DISK_SIZE", "1Gi")],
        container: "kubernetes-zookeeper",
        service: "app-hs",
    },
    WithManifests {
        operator: "kafka",
        requests: ["BROKER_CPUS", "BROKER_MEM"],
        one_pod: [("BROKER_COUNT", "1"), ("METRICS_ENABLED", "false")],
        container: "k8skafka",
        service: "app-svc",
    },
];

impl WithManifests {
    /// Applies the Instance `app` in a namespace of its own, and waits until its StatefulSet has
    /// the requests of the Instance, and its last plan is complete.
    async fn apply(&self, lab: &Lab, version: &str, requests: [&str; 2]) {
        let namespace = format!("--namespace={}", self.operator);
        let values = self.requests.into_iter().zip(requests).chain(self.one_pod);
        let instance = json!({
            "apiVersion": "kudo.dev/v1beta1", "kind": "Instance",
            "metadata": { "name": "app", "namespace": self.operator },
            "spec": {
                "operatorVersion": { "name": version, "namespace": "default" },
                "parameters": values.collect::<BTreeMap<_, _>>(),
            },
        });
        let file = lab.write("instance.json", &instance.to_string());
        let kubectl = async |args: &[&str]| {
            lab.cluster.plane.kubectl(&[args, &[namespace.as_str()]].concat()).await
        };
        kubectl(&["apply", "-f", file.to_str().unwrap()]).await.unwrap();
        let set = format!("app-{}", self.operator);
        let is_changed = async || {
            let instance = kubectl(&["get", "instances.kudo.dev", "app", "-o", "json"]).await?;
            let instance: Value = serde_json::from_str(&instance)?;
            let status = &instance["status"];
            let is_observed = status["observedGeneration"] == instance["metadata"]["generation"];
            let is_complete = status["history"][0]["status"] == "COMPLETE";
            let Ok(set) = kubectl(&["get", "statefulset", &set, "-o", "json"]).await else {
                return Ok(false);
            };
            let set: Value = serde_json::from_str(&set)?;
            let containers = set["spec"]["template"]["spec"]["containers"].as_array().unwrap();
            let container = containers.iter().find(|c| c["name"] == self.container).unwrap();
            let found = &container["resources"]["requests"];
            let is_requested = [&found["cpu"], &found["memory"]] == requests;
            Ok(is_observed && is_complete && is_requested && set["status"]["readyReplicas"] == 1)
        };
        let changed = eventually(TIMEOUT, is_changed).await;
        let shown = kubectl(&["get", "instances.kudo.dev", "app", "-o", "yaml"]).await.unwrap();
        assert!(changed.is_ok(), "{}: {shown}", self.operator);
        let service = kubectl(&["get", "service", self.service, "-o", "json"]).await.unwrap();
        let service: Value = serde_json::from_str(&service).unwrap();
        let (labels, owner) =
            (&service["metadata"]["labels"], &service["metadata"]["ownerReferences"][0]);
        assert_eq!(service["spec"]["clusterIP"], "None");
        assert_eq!(labels["heritage"], "kudo");
        assert_eq!(labels["kudo.dev/instance"], "app");
        assert_eq!(labels["kudo.dev/operator"], self.operator);
        assert_eq!([&owner["kind"], &owner["name"]], ["Instance", "app"]);
        assert_eq!([&owner["controller"], &owner["blockOwnerDeletion"]], [true, true]);
    }
}

/// The cases that come with the packages of zookeeper and kafka: an Instance beside its
/// OperatorVersion's namespace, created and changed by its manifest.
async fn community_packages_follow_manifests_of_instances() {
    let folder = root().join(COMMUNITY);
    if !folder.is_dir() {
        eprintln!("there are no community packages");
        return;
    }
    let lab = Lab::start().await;
    lab.cluster.add_package_admin().await.unwrap();
    for package in &WITH_MANIFESTS {
        let path = folder.join(package.operator).join("operator");
        lab.kudo(&["install", path.to_str().unwrap(), "--skip-instance"]).await;
        let versions = lab.kudo(&["get", "operatorversions"]).await;
        let mut names = versions.lines().filter_map(|line| line.split_whitespace().last());
        let version = names.find(|name| name.starts_with(package.operator)).unwrap();
        lab.cluster.create_namespace(package.operator).await.unwrap();
        package.apply(&lab, version, ["100m", "256Mi"]).await;
        package.apply(&lab, version, ["200m", "512Mi"]).await;
    }
    lab.cluster.assert_no_forbidden_requests().unwrap();
}

/// K22: KUDO renders the manifest of the namespace without the defaults of parameters.
async fn a_namespace_is_created_from_the_manifest() {
    let lab = Lab::start().await;
    package(&lab, "toy", "0.1.0", &[]);
    let operator = fs::read_to_string(lab.work.path().join("toy/operator.yaml")).unwrap();
    lab.write("toy/operator.yaml", &format!("{operator}namespaceManifest: ns.yaml\n"));
    let manifest = "apiVersion: v1\nkind: Namespace\nmetadata: {name: x, labels: {p: '{{ .Params.P }}', i: '{{ .Name }}'}}\n";
    lab.write("toy/templates/ns.yaml", manifest);
    let install = ["install", "./toy", "--namespace", "fresh", "--create-namespace"];
    // Nothing is created, not even the namespace.
    lab.fails(&[&install[..], &["-p", "NUMBER=x"]].concat(), 1, "another type").await;
    let exists = lab.cluster.plane.kubectl(&["get", "namespace", "fresh"]).await;
    assert!(exists.is_err());
    lab.kudo(&[&install[..], &["--skip-instance"]].concat()).await;
    let namespace = lab.get("namespace", "fresh").await;
    assert_eq!(namespace["metadata"]["labels"]["p"], "a");
    assert_eq!(namespace["metadata"]["labels"]["i"], "toy-instance");
    assert_eq!(namespace["metadata"]["annotations"]["created-by"], "kudo-cli");
    lab.fails(&[&install[..], &["--skip-instance"]].concat(), 1, "already exists").await;

    let in_cluster = ["install", "toy", "--in-cluster", "--namespace", "fresh", "--instance", "i"];
    lab.kudo(&in_cluster).await;
    let get = ["get", "instances.kudo.dev", "i", "--namespace", "fresh", "-o", "json"];
    let instance = lab.cluster.plane.kubectl(&get).await.unwrap();
    let instance: Value = serde_json::from_str(&instance).unwrap();
    assert_eq!(instance["spec"]["operatorVersion"]["name"], "toy-0.1.0", "K7");
}

/// Objects of KUDO in a cluster besides its CRDs, in a namespace of the user's choice, with a
/// webhook whose manager does not run.
const OF_KUDO: &str = r#"
apiVersion: v1
kind: Namespace
metadata: { name: kudo-operators, labels: { app: kudo-manager } }
---
apiVersion: apps/v1
kind: StatefulSet
metadata: { name: kudo-controller-manager, namespace: kudo-operators, labels: { app: kudo-manager } }
spec:
  replicas: 0
  serviceName: kudo-controller-manager-service
  selector: { matchLabels: { app: kudo-manager } }
  template:
    metadata: { labels: { app: kudo-manager } }
    spec: { containers: [{ name: manager, image: "kudobuilder/controller:v0.19.0" }] }
---
apiVersion: v1
kind: Service
metadata: { name: kudo-controller-manager-service, namespace: kudo-operators, labels: { app: kudo-manager } }
spec: { selector: { app: kudo-manager }, ports: [{ port: 443 }] }
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: { name: kudo-manager-rolebinding }
roleRef: { apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin }
subjects: [{ kind: ServiceAccount, name: kudo-manager, namespace: kudo-operators }]
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: { name: kudo-manager-instance-admission-webhook-config }
webhooks:
- name: instance-admission.kudo.dev
  failurePolicy: Fail
  sideEffects: None
  admissionReviewVersions: [v1]
  clientConfig:
    service:
      name: kudo-controller-manager-service
      namespace: kudo-operators
      path: /admit-kudo-dev-v1beta1-instance
  rules:
  - { apiGroups: [kudo.dev], apiVersions: [v1beta1], operations: [CREATE, UPDATE], resources: [instances] }
"#;

const OPERATOR_ACCOUNT: &str = "system:serviceaccount:podops-system:instance-operator";

/// Output of `init` for KUDO's StatefulSet.
const MANAGER_REMOVED: &str = "removed StatefulSet kudo-operators/kudo-controller-manager of KUDO";

/// Names of objects of these kinds, with their versions.
async fn names_of(lab: &Lab, kinds: &str, selector: &str) -> Vec<String> {
    let columns =
        "-o=custom-columns=:kind,:metadata.name,:metadata.resourceVersion,:metadata.generation";
    let args = ["get", kinds, "--all-namespaces", "--no-headers", "-l", selector, columns];
    let list = lab.cluster.plane.kubectl(&args).await.unwrap();
    // The version of a Deployment changes with its status.
    let stable = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let version = if fields[0] == "Deployment" { fields[3] } else { fields[2] };
        format!("{} {} {version}", fields[0], fields[1])
    };
    list.lines().filter(|line| !line.trim().is_empty()).map(stable).collect()
}

async fn init_installs_the_overlay_removes_kudo_and_is_undone() {
    let cluster = TestCluster::start_empty(&programs().unwrap()).await.unwrap();
    let lab = Lab { cluster, work: tempfile::tempdir().unwrap() };
    let kudo = lab.write("kudo.yaml", OF_KUDO);
    let kubectl = async |args: &[&str]| lab.cluster.plane.kubectl(args).await;
    kubectl(&["create", "-f", kudo.to_str().unwrap()]).await.unwrap();
    lab.fails(&["init"], 2, "needs the image of instance-operator").await;
    lab.fails(&["get", "instances"], 1, "install instance-operator first").await;
    let init = ["init", "--image", "instance-operator:latest", "--wait", "--wait-time", "60"];
    let output = lab.kudo(&init).await;
    for line in [MANAGER_REMOVED, "installed crds", "installed kudo controller", "is ready"] {
        assert!(output.contains(line), "{output}");
    }
    let left = ["statefulsets,services", "clusterrolebindings,mutatingwebhookconfigurations"];
    for kinds in left {
        let list = kubectl(&["get", kinds, "-A", "-o", "name"]).await.unwrap();
        assert!(!list.contains("kudo-"), "{list}");
    }
    // The overlay would change nothing.
    let overlay = root().join("deploy/overlays/packages").display().to_string();
    kubectl(&["diff", "-k", &overlay]).await.unwrap();
    let kinds = "deployments,services,serviceaccounts,clusterroles,clusterrolebindings,roles,\
                 rolebindings,networkpolicies,poddisruptionbudgets,namespaces";
    let of_podops = "app.kubernetes.io/part-of=podops";
    let installed = names_of(&lab, kinds, of_podops).await;
    assert_eq!(installed.len(), 12, "{installed:?}");
    lab.kudo(&init).await;
    assert_eq!(names_of(&lab, kinds, of_podops).await, installed, "nothing changes");
    lab.kudo(&[&init[..], &["--package-admin"]].concat()).await;
    let everything = ["auth", "can-i", "*", "*", "-A", "--as", OPERATOR_ACCOUNT];
    assert_eq!(kubectl(&everything).await.unwrap().trim(), "yes");

    let instance = "apiVersion: kudo.dev/v1beta1\nkind: Instance\nmetadata: { name: old }\n";
    let instance = lab.write("instance.yaml", instance);
    kubectl(&["create", "-f", instance.to_str().unwrap()]).await.unwrap();
    let output = lab.kudo(&["init", "--uninstall"]).await;
    assert!(output.contains("stay, because there are 1 Instances"), "{output}");
    kubectl(&["get", "instances.kudo.dev", "old"]).await.unwrap();
    kubectl(&["delete", "instances.kudo.dev", "old"]).await.unwrap();
    lab.kudo(&["init", "--uninstall"]).await;
    let is_gone = async || {
        let definitions = kubectl(&["get", "crds", "-o", "name"]).await?;
        Ok(!definitions.contains("kudo.dev") && names_of(&lab, kinds, of_podops).await.is_empty())
    };
    eventually(TIMEOUT, is_gone).await.unwrap();
    assert_eq!(lab.kudo(&["init", "--uninstall"]).await, "", "nothing is left");
}
