//! `schemas/` is what the code says, and real events of every type agree with it.

use std::path::{Path, PathBuf};

use annals::event::{Decoded, Kind, StoredType, Topic, released, schema};
use serde_json::Value;

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
    // An older version that was released stays.
    let list = std::fs::read_to_string(root().join("schemas/RELEASED")).unwrap();
    for line in list.lines().filter(|line| !line.starts_with('#')) {
        let stored: StoredType = line.split(' ').nth(1).unwrap().parse().unwrap();
        known.push(format!("{}.v{}.json", stored.kind.name(), stored.version));
    }
    let mut found: Vec<String> = std::fs::read_dir(root().join("schemas/event"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    known.sort();
    known.dedup();
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

#[test]
fn no_released_schema_is_broken() {
    let found = released::check(|path| std::fs::read(root().join("schemas").join(path)).ok());
    assert_eq!(found, Vec::<String>::new());
}

#[test]
fn schemas_are_frozen_by_a_release_and_checked_on_the_command_line() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("schemas");
    std::fs::create_dir(&out).unwrap();
    let annals = |args: &[&str]| {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_annals"))
            .args(["schemas", "--out"])
            .arg(&out)
            .args(args)
            .output()
            .unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
    };
    let list = root().join("schemas/RELEASED");
    std::fs::copy(list, out.join("RELEASED")).unwrap();
    assert_eq!(annals(&[]).0, 0);
    assert_eq!(annals(&["--check"]), (0, String::new()));
    assert_eq!(annals(&["--release", "1.0.0"]).0, 0);
    assert_eq!(annals(&["--check"]), (0, String::new()));
    let released = std::fs::read_to_string(out.join("RELEASED")).unwrap();
    assert!(released.lines().any(|line| line.starts_with("1.0.0 annals.system.gap.v1 ")), "{released}");
    // A field is renamed behind the code's back.
    let path = out.join("event/system.gap.v1.json");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("\"detail\"", "\"details\"")).unwrap();
    let found = "schemas/event/system.gap.v1.json is not current: run `annals schemas`\n\
                 annals.system.gap.v1, released in 1.0.0: data.facts.detail was removed or renamed; make a new version\n\
                 annals.system.gap.v1, released in 1.0.0: data.facts.details is new and required; make a new version\n";
    assert_eq!(annals(&["--check"]), (1, found.to_owned()));
}

fn document() -> Value {
    let text = std::fs::read_to_string(root().join("schemas/asyncapi.yaml")).unwrap();
    serde_saphyr::from_str(&text).unwrap()
}

/// Every `$ref` below `value`.
fn references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
    match value {
        Value::Object(members) => {
            for (name, value) in members {
                match value {
                    Value::String(target) if name == "$ref" => found.push(target),
                    value => references(value, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        _ => {}
    }
}

#[test]
fn the_asyncapi_document_is_valid_and_complete() {
    let official = std::fs::read(root().join("tests/asyncapi/3.0.0.json")).unwrap();
    let official: Value = serde_json::from_slice(&official).unwrap();
    let validator = jsonschema::validator_for(&official).unwrap();
    let document = document();
    let errors: Vec<String> =
        validator.iter_errors(&document).map(|error| format!("{}: {error}", error.instance_path())).collect();
    assert_eq!(errors, Vec::<String>::new());
    // The schema does refuse what it should.
    for (pointer, name) in
        [("/channels/kafka.admin", "adress"), ("", "version"), ("/operations/receive.nats.admin", "how")]
    {
        let mut broken = document.clone();
        broken.pointer_mut(pointer).unwrap()[name] = "x".into();
        assert!(!validator.is_valid(&broken), "{pointer} {name}");
    }

    let mut found = Vec::new();
    references(&document, &mut found);
    for target in found {
        match target.strip_prefix('#') {
            Some(pointer) => assert!(document.pointer(pointer).is_some(), "{target}"),
            None => assert!(root().join("schemas").join(target).exists(), "{target}"),
        }
    }
    for topic in Topic::ALL {
        let short = topic.name().strip_prefix("annals.").unwrap();
        for (channel, address) in [
            (format!("embedded.{short}"), topic.name().to_owned()),
            (format!("kafka.{short}"), format!("annals.{short}.g1")),
            (format!("nats.{short}"), format!("annals.{{tenant}}.{short}.g1.{{partition}}")),
        ] {
            let channel = &document["channels"][&channel];
            assert_eq!(channel["address"], address.as_str());
            let messages: Vec<&String> = channel["messages"].as_object().unwrap().keys().collect();
            let mut expected: Vec<String> = Kind::ALL
                .iter()
                .filter(|kind| kind.topic() == topic)
                .map(|kind| format!("{}.v{}", kind.name(), kind.version()))
                .collect();
            expected.sort();
            assert_eq!(messages, expected.iter().collect::<Vec<_>>());
        }
    }
    let messages = document["components"]["messages"].as_object().unwrap();
    let names: Vec<&str> = messages.values().map(|message| message["name"].as_str().unwrap()).collect();
    assert_eq!(names.len(), Kind::ALL.len());
    assert!(Kind::ALL.iter().all(|kind| names.contains(&kind.type_name())));
}
