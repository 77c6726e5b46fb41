//! Colors of the marks of states on a terminal.

use console::{Style, colors_enabled};

/// Characters that connect the lines of a tree.
const BRANCHES: [char; 5] = ['│', '├', '└', '─', ' '];

/// Colors the mark with which a line begins, behind the branches of a tree: green for ✔, red for ✖,
/// and yellow for … of work in progress. The line is unchanged if the output is no terminal or the
/// variable `NO_COLOR` is set.
#[must_use]
pub fn colored(line: &str) -> String {
    with_color(line, colors_enabled())
}

fn with_color(line: &str, is_enabled: bool) -> String {
    let rest = line.trim_start_matches(BRANCHES);
    let mark = rest.chars().next().unwrap_or_default();
    let style = match mark {
        '✔' => Style::new().green(),
        '✖' => Style::new().red(),
        '…' => Style::new().yellow(),
        _ => return line.to_owned(),
    };
    let (branches, text) = (&line[..line.len() - rest.len()], &rest[mark.len_utf8()..]);
    format!("{branches}{}{text}", style.force_styling(is_enabled).apply_to(mark))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_mark_of_a_line_has_a_color() {
        let green = "│  ├─ \u{1b}[32m✔\u{1b}[0m web-1  in service";
        assert_eq!(with_color("│  ├─ ✔ web-1  in service", true), green);
        for (line, is_enabled) in [("│  ├─ ✔ web-1", false), ("collaset/web  ✔", true), ("", true)]
        {
            assert_eq!(with_color(line, is_enabled), line);
        }
    }
}
