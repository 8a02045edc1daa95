//! What the redactor finds, what it leaves, and that it lets nothing through that it could not look at.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::{Value, json};

use super::*;

fn redactor() -> Redactor {
    Redactor::new(DigestKey::new(&[7; 32]), &Rules::default()).unwrap()
}

fn text(text: &str) -> String {
    redactor().text(text, &mut Secrets::default())
}

fn raw(value: &str) -> Box<RawValue> {
    RawValue::from_string(value.into()).unwrap()
}

fn json_with(value: &str, scope: &Scope<'_>) -> String {
    redactor().json(&raw(value), scope, &mut Secrets::default()).get().to_owned()
}

fn json(value: &str) -> String {
    json_with(value, &Scope::default())
}

#[test]
fn a_marker_has_the_rule_and_the_start_of_the_digest() {
    let redactor = redactor();
    let digest = redactor.digest(b"hunter2");
    let marker = format!("[redacted:password:hmac:{}]", digest.get(..16).unwrap());
    assert_eq!(text("password=hunter2 x"), format!("password={marker} x"));
    assert_eq!(
        json(r#"{"a":1, "Pass-Word" : "hunter2" }"#),
        format!(r#"{{"a":1, "Pass-Word" : "{marker}" }}"#)
    );
}

#[test]
fn what_holds_no_secret_keeps_every_byte() {
    for value in [
        r#"{ "b" : 123456789012345678901234567890 , "a":[1,  2.50, "\u00e9\n"], "c":null, "d": {} }"#,
        r#"{"max_tokens":5,"password":null,"has_secret":true,"token":"","cookies":[]}"#,
        r#"[["a","b"],["c"],[],{"name":"x","value":"y"}]"#,
        r#""just text""#,
        "-1.5e10",
    ] {
        assert_eq!(json(value), value);
    }
}

#[test]
fn a_secret_is_found_under_its_name_at_any_depth_whatever_it_is() {
    let deep = format!("{}{}{}", "[{\"a\":".repeat(20), r#"{"x":{"api key":"k"}}"#, "}]".repeat(20));
    for value in [
        r#"{"password":"k"}"#,
        r#"{"p\u0061ssword":"k"}"#,
        r#"{"a":[{"clientSecret":{"deep":["k"]}}]}"#,
        r#"{"a":"{\"password\":\"k\"}"}"#,
        r#"{"a":"{\"b\":\"{\\\"password\\\":\\\"k\\\"}\"}"}"#,
        r#"{"name":"DB_PASSWORD","value":"k"}"#,
        r#"{"value":"k","name":"DB_PASSWORD"}"#,
        r#"{"Name":"DB_PASSWORD","Value":"k"}"#,
        r#"{"field":"db.password","value":{"stringValue":"k"}}"#,
        r#"{"Header":"db.password","string_value":"k"}"#,
        r#"["mysql","--user","ann","--password","k","-v"]"#,
        r#"{"headers":[["Authorization","k"]]}"#,
        r#"{"columns":[{"name":"id","type":"int"},{"name":"password_hash","type":"text"}],"rows":[["1","k"]]}"#,
        &deep,
    ] {
        let cleaned = json(value);
        assert!(!cleaned.contains("\"k") && !cleaned.contains("k\""), "{cleaned}");
        assert!(cleaned.contains("[redacted:"), "{cleaned}");
        serde_json::from_str::<Value>(&cleaned).unwrap();
    }
    assert!(!json(r#"{"secret":48151623}"#).contains("48151623"));
    assert!(!json(r#"{"a":4111111111111111}"#).contains("41111"));
}

#[test]
fn what_the_schema_marks_is_replaced_at_any_depth() {
    let shape = Shape::of(&json!({"properties": {
        "note": {"x-annals-sensitive": true},
        "people": {"type": "array", "items": {"properties": {"born": {"x-annals-sensitive": true}}}}
    }}));
    let scope = Scope { shape: Some(&shape), sql_literals: false };
    let cleaned = json_with(
        r#"{"note":{"x":["ill"]},"people":[{"born":"1970","name":"ann"},{"born":false}],"z":"ill at ease"}"#,
        &scope,
    );
    let cleaned: Value = serde_json::from_str(&cleaned).unwrap();
    for place in ["/note", "/people/0/born", "/people/1/born"] {
        let marker = cleaned.pointer(place).unwrap().as_str().unwrap();
        assert!(marker.starts_with("[redacted:sensitive:hmac:"), "{place}: {marker}");
    }
    assert_eq!(cleaned["people"][0]["name"], "ann");
    assert_eq!(cleaned["z"], "ill at ease");
}

const CANARY: &str = "Zq9-canary-Xw31Lp";

fn percent(text: &str) -> String {
    text.bytes().map(|b| format!("%{b:02X}")).collect()
}

fn escaped(text: &str) -> String {
    text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect()
}

fn lines(text: &str, width: usize) -> String {
    text.as_bytes()
        .chunks(width)
        .map(|line| String::from_utf8(line.to_vec()).unwrap())
        .collect::<Vec<_>>()
        .join("\n")
}

#[test]
fn what_was_found_once_is_found_in_every_form_elsewhere() {
    let redactor = redactor();
    let mut secrets = Secrets::default();
    drop(redactor.json(&raw(&format!(r#"{{"password":"{CANARY}"}}"#)), &Scope::default(), &mut secrets));
    for form in [
        CANARY.to_owned(),
        STANDARD.encode(CANARY),
        URL_SAFE_NO_PAD.encode(format!("u:{CANARY}:x")),
        lines(&STANDARD.encode(format!("a longer text that ends in {CANARY} and goes on for a while")), 24),
        percent(CANARY),
        escaped(CANARY),
        hex::encode(CANARY),
        lines(CANARY, 6),
        STANDARD.encode(percent(CANARY)),
        format!("{{\"a\":\"{CANARY}\"}}"),
    ] {
        let cleaned = redactor.text(&format!("before {form} after"), &mut secrets);
        assert!(
            !cleaned.contains(&form) && cleaned.contains("[redacted:password:hmac:"),
            "{form}: {cleaned}"
        );
        assert!(cleaned.starts_with("before ") && cleaned.ends_with(" after"), "{cleaned}");
    }
}

#[test]
fn a_form_of_a_secret_is_found_inside_other_forms() {
    let key = format!("annals_{}", "k".repeat(43));
    for form in [
        key.clone(),
        STANDARD.encode(format!("key {key}")),
        percent(&key),
        escaped(&key),
        lines(&key, 20),
        lines(&STANDARD.encode(format!("some text, then {key} and more of it")), 30),
        STANDARD.encode(STANDARD.encode(&key)),
        format!("{{\\\"a\\\":\\\"{key}\\\"}}"),
    ] {
        let cleaned = text(&format!("see {form} next"));
        assert!(!cleaned.contains(&form) && cleaned.contains("[redacted:annals_key"), "{form}: {cleaned}");
        assert!(cleaned.starts_with("see ") && cleaned.ends_with("next"), "{cleaned}");
    }
}

#[test]
fn private_keys_go_with_all_their_lines() {
    let body = lines(&"MIIEvQIBADANBgkqhkiG9w0BAQEFAASC".repeat(6), 64);
    let pem = format!("-----BEGIN RSA PRIVATE KEY-----\n{body}\n-----END RSA PRIVATE KEY-----");
    assert!(text(&format!("a {pem} b")).starts_with("a [redacted:private_key:hmac:"));
    assert!(!text(&format!("a {} b", pem.replace('\n', "\\n"))).contains("MIIE"));
    // Its end is missing: all that follows may be of it.
    assert!(!text(pem.split("-----END").next().unwrap()).contains("MIIE"));
    let items: Vec<&str> = pem.lines().collect();
    let cleaned = json(&json!({ "lines": items, "x": "kept" }).to_string());
    assert!(!cleaned.contains("MIIE") && cleaned.contains("kept"), "{cleaned}");
}

#[test]
fn literals_of_sql_go_where_a_config_says_so() {
    let value =
        r#"{"sql":"SELECT * FROM t WHERE a = 'ann''s' AND b = $$x y$$ AND n = 5","note":"it's 'kept'"}"#;
    assert_eq!(json(value), value);
    let cleaned = json_with(value, &Scope { shape: None, sql_literals: true });
    assert!(cleaned.contains("a = '[redacted:sql_literal:hmac:") && cleaned.contains("n = 5"), "{cleaned}");
    assert!(
        cleaned.contains("it's 'kept'") && !cleaned.contains("ann") && !cleaned.contains("x y"),
        "{cleaned}"
    );
}

#[test]
fn a_second_pass_changes_nothing() {
    for [_, _, source] in &secret_lines() {
        let once = text(source);
        assert_eq!(text(&once), once, "{source}");
        let value = json!({ "a": source, "password": source, "b": [source] }).to_string();
        let once = json(&value);
        assert_eq!(json(&once), once, "{source}");
    }
}

#[test]
fn a_marker_that_names_no_rule_is_a_text_like_any_other() {
    let forged = "[redacted:hunter2:hmac:0123456789abcdef]";
    assert!(!json(&json!({ "password": forged }).to_string()).contains("hunter2"));
    let true_one = "[redacted:password:hmac:0123456789abcdef]";
    assert_eq!(
        json(&json!({ "password": true_one }).to_string()),
        json!({ "password": true_one }).to_string()
    );
}

#[test]
fn what_cannot_be_looked_at_is_never_let_through() {
    let deep = format!("{}\"deep\"{}", "[".repeat(DEPTH_MAX + 2), "]".repeat(DEPTH_MAX + 2));
    assert_eq!(json(&deep), format!("\"{UNREADABLE}\""));
    assert_eq!(text(&deep), UNREADABLE);
    let mut nested = "\"deep\"".to_owned();
    for _ in 0..=NESTED_MAX {
        nested = json!({ "a": nested }).to_string();
    }
    assert_eq!(text(&nested), UNREADABLE);
    assert_eq!(text(&"x ".repeat(TEXT_BYTES_MAX)), UNREADABLE);
    assert_eq!(redactor().strings("{\"a\":"), Err(Unreadable));
    let mut secrets = Secrets::default();
    drop(redactor().json(&raw(&deep), &Scope::default(), &mut secrets));
    assert_eq!(secrets.replaced(), 1);
    assert_eq!(guarded(|| -> Result<(), Unreadable> { panic!("a rule fails") }), Err(Unreadable));
}

#[test]
fn a_lone_surrogate_hides_nothing_and_stays() {
    let value = r#"{"a":"\ud800 b \ud83d\ude00\n","c\udc00":1}"#;
    assert_eq!(json(value), value);
    let cleaned = json(r#"{"pass\u0077ord":"\ud800 hunter22","b":"\udfff token=hunter22 \ud800\ud800"}"#);
    assert!(!cleaned.contains("hunter22"), "{cleaned}");
}

#[test]
fn our_own_names_stay_and_their_strings_do_not_hide_secrets() {
    let facts = r#"{"key_sha256":"d0f631ca1ddba8db3bcfcb9e057cdc98d0379f1bee00e75a545147a27dadd982","token":"abc","n":4111111111111111}"#;
    assert_eq!(redactor().strings(facts).unwrap(), facts);
    let route = redactor().strings(r#"{"route":"GET /x?access_token=abc"}"#).unwrap();
    assert!(route.starts_with(r#"{"route":"GET /x?access_token=[redacted:token:hmac:"#), "{route}");
}

/// Kind, secret, and the text that it stands in. The file has a mark in each secret, so that scanners for leaked ones do
/// not take it for one.
fn secret_lines() -> Vec<[String; 3]> {
    let lines = include_str!("../../tests/redaction/secrets.txt").lines();
    lines
        .map(|line| {
            line.replace('\u{a6}', "").split('\t').map(str::to_owned).collect::<Vec<_>>().try_into().unwrap()
        })
        .collect()
}

#[test]
fn innocent_texts_stay_as_they_are() {
    let lines: Vec<&str> = include_str!("../../tests/redaction/innocent.txt").lines().collect();
    assert!(lines.len() >= 1_000, "{}", lines.len());
    let redactor = redactor();
    let changed: Vec<_> = lines
        .iter()
        .map(|line| (*line, redactor.text(line, &mut Secrets::default())))
        .filter(|(line, cleaned)| line != cleaned)
        .collect();
    assert!(changed.is_empty(), "{} changed: {changed:#?}", changed.len());
    // All of them as values of one JSON document, and as one text.
    for group in lines.chunks(100) {
        let value = json!({ "values": group }).to_string();
        assert_eq!(json(&value), value);
    }
}

#[test]
fn every_kind_of_secret_is_found() {
    let mut kinds = std::collections::BTreeSet::new();
    for [kind, secret, source] in &secret_lines() {
        assert!(source.contains(secret.as_str()), "{source}");
        for cleaned in
            [text(source), json(&json!({ "a": [source] }).to_string()), text(&format!("x\n{source}\ny"))]
        {
            assert!(!cleaned.contains(secret.as_str()), "{kind}: {source} became {cleaned}");
            assert!(cleaned.contains("[redacted:"), "{kind}: {cleaned}");
        }
        kinds.insert(kind.clone());
    }
    assert!(kinds.len() >= 30, "{}", kinds.len());
}
