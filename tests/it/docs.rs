//! The documents say only what can be checked: the tests that they name exist, and the variables are the code's.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every file below `dir` whose name ends in `extension`.
fn files(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![dir.to_owned()];
    while let Some(dir) = open.pop() {
        for entry in std::fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|found| found == extension) {
                found.push(path);
            }
        }
    }
    found
}

fn documents() -> Vec<PathBuf> {
    let mut documents = files(&root().join("docs"), "md");
    documents.push(root().join("README.md"));
    documents
}

/// What stands between backticks in `text`.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The tests that a document claims: the last column of tables headed `Test`, and paragraphs that begin with `Tests:`.
fn claimed_tests(document: &str) -> Vec<&str> {
    let (mut in_table, mut in_paragraph) = (false, false);
    let mut claimed = Vec::new();
    for line in document.lines() {
        let last_cell = line.strip_prefix('|').and_then(|row| row.trim_end_matches('|').rsplit('|').next());
        in_paragraph = !line.is_empty() && (in_paragraph || line.starts_with("Tests:"));
        match last_cell.map(str::trim) {
            None => in_table = false,
            Some("Test") => in_table = true,
            Some(cell) if in_table && !cell.starts_with("---") => {
                assert!(cell.contains('`'), "this claim names no test: {line}");
                claimed.extend(quoted(cell));
            }
            Some(_) => {}
        }
        if in_paragraph {
            claimed.extend(quoted(line));
        }
    }
    claimed
}

#[test]
fn every_test_that_a_document_names_exists() {
    let sources: String = ["src", "tests"]
        .iter()
        .flat_map(|dir| files(&root().join(dir), "rs"))
        .map(|path| read(&path))
        .collect();
    let mut claims = 0;
    for path in documents() {
        let document = read(&path);
        for test in claimed_tests(&document) {
            claims += 1;
            let name = test.rsplit("::").next().unwrap();
            assert!(sources.contains(&format!("fn {name}(")), "{} names the test {test}", path.display());
        }
    }
    assert!(claims > 0, "the documents name no test at all");
}

#[test]
fn no_document_has_an_unfilled_place() {
    for path in documents() {
        for (line, text) in read(&path).lines().enumerate() {
            let unfilled = text.contains("<!-- output:") || text.contains("<!-- test:");
            assert!(!unfilled, "{}:{}: {text}", path.display(), line + 1);
        }
    }
}

#[test]
fn links_between_documents_lead_somewhere() {
    for path in documents() {
        let document = read(&path);
        for target in document.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = target.split('#').next().unwrap();
            if file.is_empty() || file.contains("://") {
                continue;
            }
            let file = path.parent().unwrap().join(file);
            assert!(file.exists(), "{} links to {target}", path.display());
        }
    }
}

/// The names in `text` that look like this project's environment variables.
fn variables(text: &str) -> BTreeSet<&str> {
    let is_name = |c: char| c.is_ascii_uppercase() || c == '_';
    text.split(|c: char| !is_name(c))
        .filter(|word| {
            (word.starts_with("ANNALS_") && word.len() > "ANNALS_".len()) || *word == "DATABASE_URL"
        })
        .collect()
}

#[test]
fn the_documented_variables_are_those_of_the_code() {
    let cli: String = files(&root().join("src/cli"), "rs").iter().map(|path| read(path)).collect();
    let read_by_flags: BTreeSet<&str> =
        cli.split("env = \"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    let architecture = read(&root().join("docs/architecture.md"));
    let documented: BTreeSet<&str> =
        architecture.lines().filter(|line| line.starts_with("| `")).flat_map(variables).collect();
    assert_eq!(documented, read_by_flags);
}
