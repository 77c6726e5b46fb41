//! The documentation on a real API server: its shell commands are run as they stand, except for the
//! names of objects, and its manifests are applied by dry runs with strict validation.

use std::{
    fs,
    path::{Path, PathBuf},
};

use kube::ResourceExt as _;
use podops_test_cluster::{
    cluster::{TestCluster, programs},
    suite::{Lane, Suite, new_cluster},
};

/// Parts of commands that this test does not run, and the test that runs them, or the reason if
/// none does.
const ELSEWHERE: &[(&str, &str)] = &[
    ("cargo xtask demo", "operations/demo"),
    ("cargo xtask test", "runs this test"),
    ("cargo xtask dist", "operations/images"),
    ("crane push", "operations/images"),
    ("target/dist/install", "operations/images"),
    ("tar --extract", "operations/images"),
    ("helm install", "operations/helm"),
    ("deploy/monitoring", "operations/monitoring"),
    ("kubectl podops uninstall", "operations/uninstall"),
    ("kubectl kudo", "packages/command_line"),
    ("kusionstack-controller-manager", "operations/migration"),
    ("kubectl-podops preflight", "operations/migration"),
    ("--force-conflicts -k crds", "operations/migration"),
    ("-k deploy/overlays/all", "operations/migration"),
    ("kubectl label pods -A", "operations/migration"),
    ("cargo build --workspace", "builds what this test runs"),
    ("cargo test -p", "a part of the tests"),
    ("cargo build --release", "builds the command line, as the prerequisite of each live test"),
    ("cargo run --bin consist-conformance", "traffic/backends"),
    ("kind-with-registry.sh", "nothing: no machine of the tests has a container engine"),
    ("kind delete cluster", "nothing: no machine of the tests has a container engine"),
    ("docker rm", "nothing: no machine of the tests has a container engine"),
    (" logs ", "the simulated kubelets serve no logs"),
    ("rollout status deployment", "the operators of the tests are processes, not Pods"),
    ("describe pod POD", "the operators of the tests are processes, not Pods"),
];

/// First words of YAML that is neither a manifest nor a part of one, and its kind.
const OTHER_YAML: &[(&str, &str)] = &[
    ("# deploy/overlays/yours", "a kustomization"),
    ("# hello/", "a file of a package"),
    ("resources:", "a kustomization"),
    ("patches:", "a kustomization"),
    ("images:", "a kustomization"),
    ("scrape_configs:", "Prometheus' configuration"),
    ("cluster_manager:", "Envoy's configuration"),
    ("status:", "written by operators"),
    ("- apiVersion: example.com", "consist-operator's configuration"),
];

/// Objects that the pages name, other than CollaSet `web`.
const SCENE: &str = r#"
kubectl create namespace shop
kubectl create namespace argocd
kubectl create configmap argocd-cm -n argocd
kubectl create configmap web --from-literal=a=b
kubectl create service clusterip web --tcp=80
kubectl create -f - <<END
apiVersion: apps.kusionstack.io/v1alpha1
kind: PodTransitionRule
metadata: { name: web }
spec:
  selector: { matchLabels: { app: web } }
  rules: [{ name: budget, availablePolicy: { maxUnavailableValue: 50% } }]
---
apiVersion: apps.kusionstack.io/v1alpha1
kind: OperationJob
metadata: { name: restart-web }
spec: { action: Restart, targets: [{ name: none }] }
---
apiVersion: v1
kind: Pod
metadata:
  name: native-5d9c7b8f6d-x2x4p
  labels: { kusionstack.io/control: "true" }
spec:
  readinessGates: [{ conditionType: pod.kusionstack.io/service-ready }]
  containers: [{ name: web, image: "nginx:1" }]
END
"#;

/// Makes CollaSet `web` as the page that is read first makes it.
const RESET: &str = "
kubectl uncordon node-1
kubectl delete collaset web --ignore-not-found
kubectl apply -f docs/examples/collaset.yaml
kubectl wait --for=condition=Ready collaset/web --timeout=60s
";

/// Start of commands that remove operators, which are run last.
const REMOVING: &str = "kubectl delete -k";
/// Verbs of commands that change objects.
const CHANGING: [&str; 10] = [
    " annotate ",
    " apply ",
    " delete ",
    " demo",
    " drain ",
    " label ",
    " patch ",
    " replace ",
    " rollout ",
    " scale ",
];

/// Page of the documentation.
struct Page {
    path: PathBuf,
    text: String,
}

impl Page {
    /// Blocks of code in a language, without their indentation.
    fn blocks(&self, language: &str) -> Vec<String> {
        let mut blocks = Vec::new();
        let mut lines = self.text.lines();
        while let Some(line) = lines.next() {
            if line.trim_start() != format!("```{language}") {
                continue;
            }
            let indentation = line.len() - line.trim_start().len();
            let block = lines.by_ref().take_while(|line| line.trim_start() != "```");
            let block = block.map(|line| line.get(indentation..).unwrap_or_default());
            blocks.push(block.collect::<Vec<_>>().join("\n"));
        }
        blocks
    }
}

/// README and the pages in `docs`, by path.
fn pages() -> Vec<Page> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut pages = vec![root.join("README.md")];
    let mut directories = vec![root.join("docs")];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path);
            }
        }
    }
    pages.sort();
    let read = |path: PathBuf| Page { text: fs::read_to_string(&path).unwrap(), path };
    pages.into_iter().map(read).collect()
}

/// Commands of a block: its lines, without those that another test runs.
fn commands(block: &str) -> Vec<String> {
    let joined = block.replace("\\\n", " ");
    let is_loop = joined.ends_with("\ndone");
    let statements: Vec<&str> =
        if is_loop { vec![joined.as_str()] } else { joined.lines().collect() };
    let is_here = |statement: &&str| !ELSEWHERE.iter().any(|(part, _)| statement.contains(part));
    statements.into_iter().filter(is_here).map(str::to_owned).collect()
}

/// A command that ends, and prints something if it watches.
fn bounded(command: &str) -> String {
    if !command.contains(" --watch") {
        return command.to_owned();
    }
    let limited = format!("timeout 3 {command} || test $? -eq 124");
    // A trace is shown when the operation has ended.
    if command.contains(" trace ") {
        limited
    } else {
        format!("out=$({limited}); test -n \"$out\"")
    }
}

/// Names of the objects in the cluster, by those in the documentation.
async fn names(cluster: &TestCluster) -> Vec<(&'static str, String)> {
    let set = cluster.sets().get("web").await.unwrap();
    let pod = cluster.pods_of("web").await.unwrap()[0].name_any();
    let revision = set.status.unwrap().updated_revision.clone();
    let directory = cluster.plane.dir.path();
    let example = fs::read_to_string("../docs/examples/collaset.yaml").unwrap();
    let changed = directory.join("web.yaml");
    fs::write(&changed, example.replace("nginx:1.27", "nginx:1.28")).unwrap();
    vec![
        ("web-1.svg", directory.join("web-1.svg").display().to_string()),
        ("-f web.yaml", format!("-f {}", changed.display())),
        ("web-5966786c84", revision),
        ("pod/POD", format!("pod/{pod}")),
        ("pod POD", format!("pod {pod}")),
        ("web-1", pod),
        ("NAMESPACE", "default".to_owned()),
        ("operationjob NAME", "operationjob restart-web".to_owned()),
        ("NAME", "web".to_owned()),
        ("OPERATOR", "collaset-operator".to_owned()),
    ]
}

/// Runs the commands of a page; returns their number. `is_reset` is whether the objects are as
/// [`RESET`] makes them.
async fn run(cluster: &TestCluster, page: &Page, is_reset: &mut bool) -> usize {
    let mut blocks: Vec<Vec<String>> =
        page.blocks("sh").iter().map(|block| commands(block)).collect();
    blocks.sort_by_key(|commands| commands.iter().any(|command| command.contains(REMOVING)));
    let count = blocks.iter().map(Vec::len).sum();
    if count == 0 {
        return 0;
    }
    let programs = programs().unwrap();
    if !*is_reset {
        cluster.plane.shell(RESET, &programs).await.unwrap();
    }
    *is_reset =
        !blocks.iter().flatten().any(|line| CHANGING.iter().any(|verb| line.contains(verb)));
    let names = names(cluster).await;
    for commands in blocks {
        let mut script: Vec<String> = commands.iter().map(|command| bounded(command)).collect();
        for line in &mut script {
            for (documented, actual) in &names {
                *line = line.replace(documented, actual);
            }
        }
        eprintln!("{}:\n{}", page.path.display(), script.join("\n"));
        cluster.plane.shell(&script.join("\n"), &programs).await.unwrap();
    }
    count
}

/// Command that applies YAML of a page without effect; none if it is no part of an object.
fn dry_run(yaml: &str, pod: &str) -> Option<String> {
    let patch = |target: &str| {
        format!("kubectl patch {target} --type merge --dry-run=server --patch-file /dev/stdin")
    };
    let apply = "kubectl apply --dry-run=server --validate=strict -f -";
    let (command, yaml) = if OTHER_YAML.iter().any(|(start, _)| yaml.starts_with(start)) {
        return None;
    } else if yaml.starts_with("apiVersion:") {
        (apply.to_owned(), yaml.to_owned())
    } else if yaml.starts_with("spec:") {
        (patch("collaset web"), yaml.to_owned())
    } else if yaml.starts_with("metadata:") && yaml.contains("deletion-policy") {
        (patch(&format!("pod {pod}")), yaml.to_owned())
    } else if yaml.starts_with("metadata:") {
        (patch("service web"), yaml.to_owned())
    } else if yaml.starts_with("- name:") {
        let rule = "apiVersion: apps.kusionstack.io/v1alpha1\nkind: PodTransitionRule\n\
            metadata: { name: other }\nspec:\n  selector: { matchLabels: { app: web } }\n  rules:\n";
        let rules: Vec<String> = yaml.lines().map(|line| format!("  {line}")).collect();
        (apply.to_owned(), format!("{rule}{}", rules.join("\n")))
    } else {
        panic!("unknown YAML: {yaml}");
    };
    Some(format!("{command} <<'END'\n{yaml}\nEND"))
}

/// Adds the scenarios of this file.
pub(crate) fn add(suite: Suite) -> Suite {
    suite
        .scenario(Lane::Long, commands_and_manifests_of_the_docs_work)
        .scenario(Lane::Beside, exceptions_are_still_in_the_docs)
}

async fn commands_and_manifests_of_the_docs_work() {
    let cluster = new_cluster().await;
    let programs = programs().unwrap();
    cluster.plane.shell(SCENE, &programs).await.unwrap();
    let (destructive, pages): (Vec<Page>, Vec<Page>) =
        pages().into_iter().partition(|page| page.text.contains(REMOVING));
    let (mut commands, mut is_reset) = (0, false);
    for page in &pages {
        commands += run(&cluster, page, &mut is_reset).await;
    }
    cluster.plane.shell(RESET, &programs).await.unwrap();
    // The targets of a job cannot be changed.
    cluster.plane.shell("kubectl delete operationjob restart-web", &programs).await.unwrap();
    let pod = cluster.pods_of("web").await.unwrap()[0].name_any();
    let mut manifests = 0;
    for page in pages.iter().chain(&destructive) {
        for yaml in page.blocks("yaml") {
            let Some(dry_run) = dry_run(&yaml, &pod) else { continue };
            eprintln!("{}:\n{dry_run}", page.path.display());
            cluster.plane.shell(&dry_run, &programs).await.unwrap();
            manifests += 1;
        }
    }
    for page in &destructive {
        commands += run(&cluster, page, &mut is_reset).await;
    }
    eprintln!("{commands} commands, {manifests} manifests");
    assert!(commands > 50, "{commands} commands");
    assert!(manifests > 15, "{manifests} manifests");
}

async fn exceptions_are_still_in_the_docs() {
    let pages = pages();
    let commands: Vec<String> = pages.iter().flat_map(|page| page.blocks("sh")).collect();
    for (part, test) in ELSEWHERE {
        assert!(commands.iter().any(|block| block.contains(part)), "no command contains {part:?}");
        let is_test = test.contains('/');
        assert!(!is_test || Path::new(&format!("tests/{test}.rs")).exists(), "{test} is missing");
    }
    let yaml: Vec<String> = pages.iter().flat_map(|page| page.blocks("yaml")).collect();
    for (start, _) in OTHER_YAML {
        assert!(yaml.iter().any(|block| block.starts_with(start)), "no YAML starts with {start:?}");
    }
}
