//! Runs every command in docs/ and in the pages at the root of the repository, and compares the output with the page.
//!
//! A `console` block is a script. `sh` runs each line `$ command` in a sandbox; each page has its own sandbox. The lines
//! after a command are its output, stdout and stderr together. A line `...` matches any number of lines, `…` within a
//! line any text. `? 2` at the end is the exit code if it is not 0. A block whose language is followed by `file=NAME` is
//! written to that file first.

use std::path::Path;

use crate::sandbox::{Sandbox, bub, example, root};

/// Pages at the root of the repository.
const FRONT_PAGES: [&str; 5] = [
    "README.md",
    "README.zh-CN.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
];

struct Step {
    line: usize,
    command: String,
    expected: Vec<String>,
    code: i32,
}

#[test]
fn every_command_in_the_docs_works_as_shown() {
    let mut pages = FRONT_PAGES.map(|name| root().join(name)).to_vec();
    pages.extend(
        std::fs::read_dir(root().join("docs"))
            .unwrap()
            .map(|file| file.unwrap().path()),
    );
    let mut count = 0;
    for page in pages
        .iter()
        .filter(|page| page.extension().is_some_and(|extension| extension == "md"))
    {
        let steps = steps(&std::fs::read_to_string(page).unwrap());
        count += steps.len();
        if page.ends_with("first-plugin-python.md")
            && std::process::Command::new("python3").output().is_err()
        {
            println!("skipped: there is no python3 for {}", page.display());
            continue;
        }
        check_page(page, &steps);
    }
    assert!(
        count > 5,
        "only {count} commands found: are the blocks still marked `console`?"
    );
}

#[test]
fn the_book_has_every_page_and_no_link_leads_nowhere() {
    let docs = root().join("docs");
    let summary = std::fs::read_to_string(docs.join("SUMMARY.md")).unwrap();
    let directories = [docs.clone(), docs.join("spec")].map(std::fs::read_dir);
    let files = directories.into_iter().flat_map(Result::unwrap);
    let files = files.map(|file| file.unwrap().path());
    let pages = files.filter(|file| file.extension().is_some_and(|extension| extension == "md"));
    let front_pages = FRONT_PAGES.map(|name| root().join(name));
    let mut count = 0;
    for page in pages.chain(front_pages) {
        let name = page.file_name().unwrap().to_str().unwrap();
        if let Ok(listed) = page.strip_prefix(&docs) {
            let count = summary.matches(&format!("({})", listed.display())).count();
            let is_listed = name == "SUMMARY.md" || count == 1;
            assert!(is_listed, "{name} is not once in the book");
        }
        let text = prose(&std::fs::read_to_string(&page).unwrap());
        let links = text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next());
        for link in links.filter(|link| !link.contains("://")) {
            let (target, anchor) = link
                .split_once('#')
                .map_or((link, None), |(to, part)| (to, Some(part)));
            let to = if target.is_empty() {
                page.clone()
            } else {
                page.with_file_name(target)
            };
            assert!(to.exists(), "{name} links to {link}");
            let is_there = |part: &str| {
                anchors(&std::fs::read_to_string(&to).unwrap()).contains(&part.to_owned())
            };
            assert!(anchor.is_none_or(is_there), "{name} links to {link}");
            count += 1;
        }
    }
    assert!(count > 50, "only {count} links found");
}

/// The Chinese README is a full translation with the same headings, links, code blocks and table rows in the same order.
#[test]
fn the_chinese_readme_has_the_structure_of_the_english_one() {
    let [english, chinese] = ["README.md", "README.zh-CN.md"]
        .map(|name| std::fs::read_to_string(root().join(name)).unwrap());
    assert_eq!(skeleton(&english), skeleton(&chinese));
}

/// Returns what a translation keeps: the level of each heading, table rows, list items, the first line of each code
/// block, and link targets.
fn skeleton(page: &str) -> Vec<String> {
    let mut parts = Vec::new();
    for line in page.lines() {
        let heading = line.chars().take_while(|c| *c == '#').count();
        if heading > 0 || line.starts_with("```") || line.starts_with('|') || line.starts_with("- ")
        {
            let mark: String = line.chars().take_while(|c| !c.is_whitespace()).collect();
            parts.push(mark);
        }
        let targets = line.split("](").skip(1);
        let targets = targets.filter_map(|rest| rest.split(')').next());
        // Each page links to the other.
        parts.extend(
            targets
                .filter(|to| !to.starts_with("README"))
                .map(str::to_owned),
        );
    }
    parts
}

/// Returns a page without its code blocks.
fn prose(page: &str) -> String {
    page.split("```").step_by(2).collect()
}

/// Returns the anchors of a page as mdBook names them.
fn anchors(page: &str) -> Vec<String> {
    let text = prose(page);
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let named = headings.map(|heading| {
        let title = heading.trim_start_matches('#').trim();
        let title = title.rsplit("</a>").next().unwrap_or(title).to_lowercase();
        let kept = title
            .chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, '_' | '-') || c.is_whitespace());
        kept.map(|c| if c.is_whitespace() { '-' } else { c })
            .collect()
    });
    let marked = text.split("<a id=\"").skip(1);
    let marked = marked.filter_map(|rest| rest.split('"').next());
    named.chain(marked.map(str::to_owned)).collect()
}

fn check_page(page: &Path, steps: &[Step]) {
    let sandbox = Sandbox::new();
    let path = format!(
        "{}:{}:{}",
        bub().parent().unwrap().display(),
        example("echo_model").parent().unwrap().display(),
        std::env::var("PATH").unwrap_or_default()
    );
    for step in steps {
        let output = sandbox
            .command(Path::new("sh"))
            .args(["-c", &format!("{{ {}\n}} 2>&1", step.command)])
            .env("PATH", &path)
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let location = format!("{}:{} `{}`", page.display(), step.line, step.command);
        assert_eq!(output.status.code(), Some(step.code), "{location}\n{text}");
        let lines: Vec<_> = text.lines().collect();
        let expected: Vec<_> = step.expected.iter().map(String::as_str).collect();
        assert!(
            matches(&expected, &lines),
            "{location}\nexpected:\n{}\ngot:\n{text}",
            step.expected.join("\n")
        );
    }
}

fn steps(page: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut in_console = false;
    let mut in_file = false;
    for (index, line) in page.lines().enumerate() {
        if let Some(info) = line.strip_prefix("```") {
            if in_file {
                steps.last_mut().unwrap().command.push_str("\nEND_OF_FILE");
            }
            in_console = info == "console";
            in_file = info.contains(" file=");
            if let Some((_, file)) = info.split_once(" file=") {
                let command = format!("cat > {file} <<'END_OF_FILE'");
                steps.push(Step {
                    line: index + 1,
                    command,
                    expected: Vec::new(),
                    code: 0,
                });
            }
        } else if in_file {
            let command = &mut steps.last_mut().unwrap().command;
            command.push('\n');
            command.push_str(line);
        } else if in_console {
            if let Some(command) = line.strip_prefix("$ ") {
                steps.push(Step {
                    line: index + 1,
                    command: command.into(),
                    expected: Vec::new(),
                    code: 0,
                });
            } else if let Some(code) = line.strip_prefix("? ") {
                steps.last_mut().unwrap().code = code.parse().unwrap();
            } else {
                steps
                    .last_mut()
                    .expect("output before a command")
                    .expected
                    .push(line.to_owned());
            }
        }
    }
    steps
}

fn matches(expected: &[&str], lines: &[&str]) -> bool {
    match expected.split_first() {
        None => lines.is_empty(),
        Some((&"...", rest)) => (0..=lines.len()).any(|skip| matches(rest, &lines[skip..])),
        Some((first, rest)) => lines
            .split_first()
            .is_some_and(|(line, after)| line_matches(first, line) && matches(rest, after)),
    }
}

fn line_matches(expected: &str, line: &str) -> bool {
    let Some((head, tail)) = expected.split_once('…') else {
        return expected == line;
    };
    let Some(mut rest) = line.strip_prefix(head) else {
        return false;
    };
    let parts: Vec<_> = tail.split('…').collect();
    for part in &parts[..parts.len() - 1] {
        let Some(at) = rest.find(part) else {
            return false;
        };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(parts[parts.len() - 1])
}
