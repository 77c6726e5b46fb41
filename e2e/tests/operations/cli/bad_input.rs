//! Commands that cannot succeed: an error in one line, and an exit status.

use podops_test_cluster::{
    cluster::{TestCluster, programs},
    suite::{Lane, Suite},
};
use std::{path::Path, process::Command};

use super::{podops_as, stranger};

/// Each command, and a part of its error in a cluster without Podops and without its objects.
const COMMANDS: [(&str, &str); 29] = [
    ("get web", NO_DEFINITIONS),
    ("get web --watch", NO_DEFINITIONS),
    ("top", NO_DEFINITIONS),
    ("top --watch", NO_DEFINITIONS),
    ("explain collaset/web", NO_DEFINITIONS),
    ("explain pod/web-1", NO_POD),
    ("explain node/n", NO_NODE),
    ("simulate -f ../docs/examples/collaset.yaml", NO_DEFINITIONS),
    ("trace web-1", NO_POD),
    ("trace web-1 --watch", NO_POD),
    ("status web", NO_DEFINITIONS),
    ("rollout history web", NO_DEFINITIONS),
    ("rollout undo web", NO_DEFINITIONS),
    ("rollout pause web", NO_DEFINITIONS),
    ("rollout resume web", NO_DEFINITIONS),
    ("rollout restart web", NO_DEFINITIONS),
    ("rollout approve web", NO_DEFINITIONS),
    ("rollout set-image web web=web:2", NO_DEFINITIONS),
    ("rollout set-partition web 1", NO_DEFINITIONS),
    ("replace web-1", NO_POD),
    ("delete --graceful web-1", NO_POD),
    ("offline web-1", NO_POD),
    ("online web-1", NO_POD),
    ("undo web-1 --operation update", NO_POD),
    ("drain n", NO_NODE),
    ("demo", NO_DEFINITIONS),
    ("check", SUCCESS),
    ("preflight", SUCCESS),
    ("uninstall --workloads keep", SUCCESS),
];
/// The command finds nothing to report or to remove.
const SUCCESS: &str = "";
const NO_DEFINITIONS: &str = "the cluster has no CollaSets; install";
const NO_POD: &str = "pod/web-1 does not exist";
const NO_NODE: &str = "node/n does not exist";

/// Asserts that each command fails with one line that contains the expected text once, or succeeds
/// if that is [`SUCCESS`].
fn assert_outcomes<'a>(kubeconfig: &Path, commands: impl Iterator<Item = (&'a str, &'a str)>) {
    let mut wrong = Vec::new();
    for (command, expected) in commands {
        let output = podops_as(kubeconfig, &command.split(' ').collect::<Vec<_>>());
        let error = String::from_utf8(output.stderr).unwrap();
        let is_one_line = error.lines().count() == 1 && error.starts_with("Error: ");
        let has_succeeded = output.status.success();
        let is_expected = match expected {
            SUCCESS => has_succeeded && error.is_empty(),
            text => !has_succeeded && is_one_line && error.matches(text).count() == 1,
        };
        if !is_expected {
            wrong.push(format!("{command}: {}, {error:?}, not {expected:?}", output.status));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Adds the scenarios of this file.
pub(crate) fn add(suite: Suite) -> Suite {
    suite
        .scenario(Lane::Beside, each_command_names_what_is_missing)
        .scenario(Lane::Beside, bad_input_is_an_error_in_one_line)
        .scenario(Lane::Waiting, a_server_that_never_answers_is_named)
}

async fn each_command_names_what_is_missing() {
    let cluster = TestCluster::start_empty(&programs().unwrap()).await.unwrap();
    assert_outcomes(&cluster.plane.admin_kubeconfig(), COMMANDS.into_iter());
    let forbidden = COMMANDS.into_iter().map(|(command, _)| (command, "is forbidden"));
    assert_outcomes(&stranger(&cluster).await, forbidden);
}

/// Error in one line of a command that fails without a cluster.
fn local_error(arguments: &[&str], kubeconfig: &str) -> String {
    let mut command = Command::new(programs().unwrap().join("kubectl-podops"));
    command.args(arguments).env("KUBECONFIG", kubeconfig).env("HOME", "/nonexistent");
    let output = command.output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && output.stdout.is_empty(), "{arguments:?}");
    assert_eq!(error.lines().count(), 1, "{arguments:?}: {error}");
    error.trim_end().to_owned()
}

/// A kubeconfig with one cluster.
fn kubeconfig_of(server: &str) -> tempfile::NamedTempFile {
    let kubeconfig = tempfile::NamedTempFile::new().unwrap();
    let config = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
         clusters: [{{ name: c, cluster: {{ server: \"{server}\" }} }}]\n\
         users: [{{ name: c, user: {{}} }}]\n\
         contexts: [{{ name: c, context: {{ cluster: c, user: c }} }}]\n"
    );
    std::fs::write(kubeconfig.path(), config).unwrap();
    kubeconfig
}

async fn bad_input_is_an_error_in_one_line() {
    let missing = local_error(&["get", "web"], "/nonexistent");
    assert!(missing.starts_with("Error: no cluster: "), "{missing}");
    // Nothing listens there.
    let kubeconfig = kubeconfig_of("http://127.0.0.1:1");
    let kubeconfig = kubeconfig.path().to_str().unwrap();
    for (command, _) in COMMANDS {
        let refused = local_error(&command.split(' ').collect::<Vec<_>>(), kubeconfig);
        let server = "Error: no cluster: http://127.0.0.1:1/ cannot be reached: ";
        assert!(refused.starts_with(server) && refused.contains("Connection refused"), "{refused}");
    }
    let context = local_error(&["get", "web", "--context", "other"], kubeconfig);
    assert!(context.starts_with("Error: no cluster: "), "{context}");
    let cases = [
        (&["status"][..], "the following required arguments were not provided"),
        (&["got", "web"], "unrecognized subcommand 'got'"),
        (&["get", "web", "--wide"], "unexpected argument '--wide' found"),
        (&["explain", "volume/web"], "volume/web"),
        (&["status", "web", "--timeout", "soon"], "'soon'"),
        (&["status", "web", "--timeout", "18446744073709551615"], "is no number of seconds"),
    ];
    for (arguments, expected) in cases {
        let usage = local_error(arguments, kubeconfig);
        assert!(usage.contains(expected), "{usage}");
        assert!(usage.ends_with("; see --help"), "{usage}");
    }
}

async fn a_server_that_never_answers_is_named() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let server = format!("http://{}/", silent.local_addr().unwrap());
    let kubeconfig = kubeconfig_of(&server);
    let error = local_error(&["get", "web"], kubeconfig.path().to_str().unwrap());
    let expected = format!("Error: no cluster: {server} does not answer within 30s");
    assert!(error.starts_with(&expected), "{error}");
}
