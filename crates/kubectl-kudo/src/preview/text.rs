//! Text of a preview.

use similar::{ChangeTag, TextDiff};

use super::{
    difference::FieldChange,
    outcome::{Action, ObjectChange, PreviewedRun, PreviewedStep},
};

/// Number of characters kept at the start and the end of a long message.
const PART_MAX: usize = 250;

/// Returns the runs with their steps and changes, as text.
#[must_use]
pub fn text(runs: &[PreviewedRun]) -> String {
    if runs.is_empty() {
        return "No plan would run.\n".to_owned();
    }
    runs.iter().map(run_text).collect::<Vec<_>>().join("\n")
}

fn run_text(run: &PreviewedRun) -> String {
    let PreviewedRun { child, plan, reason, .. } = run;
    if plan.is_empty() {
        return format!("Instance {child}: its plans are not known: {}\n", shortened(&run.error));
    }
    let of_child = if child.is_empty() { String::new() } else { format!(" of Instance {child}") };
    let mut lines = vec![format!("Plan {plan}{of_child} would run: {reason}")];
    for step in &run.steps {
        lines.push(format!("  {}.{}", step.phase, step.step));
        lines.extend(step_lines(step));
    }
    if !run.pruned.is_empty() || !run.not_pruned.is_empty() {
        lines.push("  at the end, because they left the templates".to_owned());
        lines.extend(run.pruned.iter().flat_map(object_lines));
        let rejected = run.not_pruned.iter().map(|text| shortened(text));
        lines.extend(rejected.map(|text| format!("    ! would stay: {text}")));
    }
    if !run.error.is_empty() {
        lines.push(format!("  ! it would fail: {}", shortened(&run.error)));
    }
    if !run.has_effect() {
        lines.push("  no object would change".to_owned());
    }
    lines.join("\n") + "\n"
}

fn step_lines(step: &PreviewedStep) -> Vec<String> {
    let mut lines: Vec<String> = step.objects.iter().flat_map(object_lines).collect();
    if !step.unchanged.is_empty() {
        lines.push(format!("    = unchanged: {}", step.unchanged.join(", ")));
    }
    lines.extend(step.waits.iter().map(|wait| format!("    … waits for {wait}")));
    if !step.error.is_empty() {
        lines.push(format!("    ! would not go on: {}", shortened(&step.error)));
    }
    lines
}

/// Returns the start and the end of a long message: the API server quotes whole templates in
/// between.
fn shortened(message: &str) -> String {
    let length = message.chars().count();
    if length <= 2 * PART_MAX {
        return message.to_owned();
    }
    let begin: String = message.chars().take(PART_MAX).collect();
    let end: String = message.chars().skip(length - PART_MAX).collect();
    format!("{begin} … {end}")
}

fn object_lines(change: &ObjectChange) -> Vec<String> {
    let object = &change.object;
    let line = match change.action {
        Action::Create => format!("    + {object}"),
        Action::Change => format!("    ~ {object}"),
        Action::ScaleToZero => {
            format!("    ~ {object}: scaled to 0, its Pods leave through PodOpsLifecycle")
        }
        Action::Delete => format!("    - {object}"),
    };
    std::iter::once(line).chain(change.fields.iter().flat_map(field_lines)).collect()
}

fn field_lines(field: &FieldChange) -> Vec<String> {
    let path = &field.path;
    let mut values = field.before.iter().chain(&field.after);
    if values.any(|value| value.contains('\n')) {
        let [before, after] =
            [&field.before, &field.after].map(|value| value.as_deref().unwrap_or_default());
        let mut lines = vec![format!("        {path}:")];
        lines.extend(line_changes(before, after));
        return lines;
    }
    vec![match (&field.before, &field.after) {
        (Some(before), Some(after)) => format!("        {path}: {before} -> {after}"),
        (None, Some(after)) => format!("        + {path}: {after}"),
        (Some(before), None) => format!("        - {path}: {before}"),
        (None, None) => format!("        {path}"),
    }]
}

/// Returns the removed and added lines of a text.
fn line_changes(before: &str, after: &str) -> Vec<String> {
    let difference = TextDiff::from_lines(before, after);
    let changed = difference.iter_all_changes().filter_map(|change| {
        let sign = match change.tag() {
            ChangeTag::Equal => return None,
            ChangeTag::Insert => '+',
            ChangeTag::Delete => '-',
        };
        Some(format!("          {sign} {}", change.value().trim_end_matches('\n')))
    });
    changed.collect()
}
