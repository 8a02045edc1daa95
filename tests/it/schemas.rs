//! `schemas/` is what the code says, and real events of every type agree with it.

use std::path::{Path, PathBuf};

use annals::event::{Decoded, Kind, schema};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

#[test]
fn the_schemas_in_the_repository_are_what_the_code_generates() {
    let files = schema::files();
    for file in &files {
        let path = root().join("schemas").join(&file.path);
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(found == file.text, "{} is not current: run `annals schemas`", path.display());
    }
    let mut known: Vec<String> =
        files.iter().filter_map(|file| file.path.strip_prefix("event/")).map(Into::into).collect();
    let mut found: Vec<String> = std::fs::read_dir(root().join("schemas/event"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    known.sort();
    found.sort();
    assert_eq!(found, known, "a schema of a type that the code does not have");
}

#[test]
fn every_golden_event_agrees_with_its_schema_and_reads_back() {
    for &kind in Kind::ALL {
        let path = root().join(format!("tests/golden/{}", schema::path_of(kind)));
        let body = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let event: serde_json::Value = serde_json::from_slice(&body).unwrap();
        let validator = jsonschema::validator_for(&schema::of(kind)).unwrap();
        let errors: Vec<String> = validator.iter_errors(&event).map(|error| error.to_string()).collect();
        assert_eq!(errors, Vec::<String>::new(), "{kind}");
        let read = Decoded::read(kind.topic(), &body).unwrap();
        assert_eq!((read.kind, read.facts.kind()), (kind, kind));
        assert!(read.personal.is_some(), "{kind}: the personal part cannot be read");
    }
}

#[test]
fn a_schema_refuses_an_event_without_its_facts() {
    for &kind in Kind::ALL {
        let path = root().join(format!("tests/golden/{}", schema::path_of(kind)));
        let mut event: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        event["data"]["facts"].as_object_mut().unwrap().remove("incarnation");
        assert!(!jsonschema::is_valid(&schema::of(kind), &event), "{kind}");
    }
}
