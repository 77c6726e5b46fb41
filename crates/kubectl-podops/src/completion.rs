//! Completes the words of `kubectl podops` in a shell.
//!
//! For a plugin, kubectl runs the program `kubectl_complete-podops` with the words after
//! `kubectl podops`, the last of which is being typed. It reads a candidate per line, with a
//! description after a tab, and then a directive.

use std::{
    ffi::{OsStr, OsString},
    fmt::Debug,
    io,
    path::Path,
    thread,
    time::Duration,
};

use clap::{Command, CommandFactory as _, FromArgMatches as _};
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate, complete};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::{ListParams, PartialObjectMeta},
};
use kubectl_podops::{cli::Cli, target::Target};
use podops_api::{collaset::CollaSet, well_known};
use podops_terminal::connection::ContextArgs;
use serde::de::DeserializeOwned;

/// Name of the program, by which kubectl finds it.
const PROGRAM: &str = "kubectl_complete-podops";

/// Directive of kubectl: the shell adds no names of files.
const NO_FILE_NAMES: &str = ":4";

/// Time after which names of objects are left out.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Arguments that are names of objects.
const NAMED: [(&str, &[Kind]); 5] = [
    ("set", &[Kind::CollaSet]),
    ("pod", &[Kind::Pod]),
    ("pods", &[Kind::Pod]),
    ("node", &[Kind::Node]),
    ("target", &[Kind::CollaSet, Kind::Pod, Kind::Node]),
];

/// Kinds whose names are completed.
#[derive(Clone, Copy, Debug)]
enum Kind {
    CollaSet,
    Pod,
    Node,
}

/// Returns the words after the name of the program, if kubectl runs it for a completion.
pub(crate) fn words(mut arguments: impl Iterator<Item = OsString>) -> Option<Vec<OsString>> {
    let program = arguments.next()?;
    (Path::new(&program).file_stem() == Some(OsStr::new(PROGRAM))).then(|| arguments.collect())
}

/// Returns the candidates for the last word, and the directive, as lines.
///
/// # Errors
///
/// If the words cannot be read.
pub(crate) fn completions(words: &[OsString]) -> io::Result<String> {
    let mut line = vec![OsString::from("kubectl-podops")];
    line.extend(words.iter().cloned());
    let last = line.len() - 1;
    let mut command = with_names(Cli::command(), &line);
    let mut text = String::new();
    for candidate in complete(&mut command, line, last, None)? {
        let description = candidate.get_help().map(|help| format!("\t{help}"));
        text += &candidate.get_value().to_string_lossy();
        text += &description.unwrap_or_default();
        text.push('\n');
    }
    Ok(text + NO_FILE_NAMES + "\n")
}

/// Adds the names of objects to the arguments of a command and of its subcommands.
fn with_names(mut command: Command, line: &[OsString]) -> Command {
    let subcommands: Vec<String> =
        command.get_subcommands().map(|command| command.get_name().to_owned()).collect();
    for subcommand in subcommands {
        command = command.mut_subcommand(subcommand, |command| with_names(command, line));
    }
    command.mut_args(|argument| {
        let named = NAMED.iter().find(|(id, _)| argument.get_id() == *id);
        let Some((id, kinds)) = named.filter(|_| argument.is_positional()) else {
            return argument;
        };
        let has_kind = *id == "target";
        let line = line.to_vec();
        argument.add(ArgValueCandidates::new(move || {
            kinds.iter().flat_map(|kind| names(*kind, has_kind, &line)).collect()
        }))
    })
}

/// Names of the objects of a kind; none if they cannot be read.
fn names(kind: Kind, has_kind: bool, line: &[OsString]) -> Vec<CompletionCandidate> {
    let matches = Cli::command().ignore_errors(true).try_get_matches_from(line);
    let context = matches.and_then(|matches| ContextArgs::from_arg_matches(&matches));
    let context = context.unwrap_or_default();
    // The candidates are computed within a runtime, which may not wait for another one.
    let read = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
        let listed = async { tokio::time::timeout(TIMEOUT, list(kind, &context)).await };
        runtime.block_on(listed).ok()?.ok()
    });
    let names = read.join().ok().flatten().unwrap_or_default().into_iter();
    let words = names.map(|name| match kind {
        _ if !has_kind => name,
        Kind::CollaSet => Target::CollaSet(name).to_string(),
        Kind::Pod => Target::Pod(name).to_string(),
        Kind::Node => Target::Node(name).to_string(),
    });
    words.map(CompletionCandidate::new).collect()
}

async fn list(kind: Kind, context: &ContextArgs) -> anyhow::Result<Vec<String>> {
    let config = context.config().await?;
    let namespace = context.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
    let client = Client::try_from(config)?;
    let all = ListParams::default();
    match kind {
        Kind::CollaSet => names_of::<CollaSet>(Api::namespaced(client, &namespace), &all).await,
        Kind::Pod => {
            let controlled = all.labels(well_known::CONTROLLED);
            names_of::<Pod>(Api::namespaced(client, &namespace), &controlled).await
        }
        Kind::Node => names_of::<Node>(Api::all(client), &all).await,
    }
}

async fn names_of<K>(objects: Api<K>, selected: &ListParams) -> anyhow::Result<Vec<String>>
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    let listed = objects.list_metadata(selected).await?;
    Ok(listed.items.iter().map(PartialObjectMeta::name_any).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completed(line: &str) -> String {
        completions(&line.split(' ').map(OsString::from).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn commands_and_flags_are_completed_with_their_help() {
        assert!(
            completed("roll").starts_with("rollout\tChange a rollout"),
            "{}",
            completed("roll")
        );
        assert!(completed("rollout res").contains("restart\t"), "{}", completed("rollout res"));
        assert!(completed("get --wat").starts_with("--watch\t"), "{}", completed("get --wat"));
        assert!(completed("uninstall --workloads k").starts_with("keep\t"));
        assert_eq!(completed("unknown x"), format!("{NO_FILE_NAMES}\n"));
    }

    #[test]
    fn only_the_program_that_kubectl_runs_completes() {
        let words = |line: &str| words(line.split(' ').map(OsString::from));
        assert_eq!(words("/usr/local/bin/kubectl-podops get"), None);
        let last = vec![OsString::from("get"), OsString::new()];
        assert_eq!(words("/usr/local/bin/kubectl_complete-podops get "), Some(last));
    }
}
