//! Canaries: secrets that are sent through every input in every form, and then looked for in every byte that the system
//! wrote.

use std::path::{Path, PathBuf};
use std::process::Command;

use annals::db::Role;
use base64::Engine;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use proptest::prelude::{Strategy, any};
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Row};

use crate::backup::{attached, caught_up, stop};
use crate::harness::{Caller, Home, MODERN, Server};
use crate::stdio::Process;

const CONFIG: &str =
    "redaction: {levels: {'*': full}, sql_literals_tools: [sql_query], key_patterns: [tax number]}\n";

/// The form in which a secret is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Form {
    Plain,
    Base64,
    Percent,
    Nested,
    Escaped,
    Lines,
    WrappedBase64,
}

const FORMS: [Form; 7] =
    [Form::Plain, Form::Base64, Form::Percent, Form::Nested, Form::Escaped, Form::Lines, Form::WrappedBase64];

impl Form {
    fn of(self, secret: &str) -> String {
        let wrapped = |text: &str, width| {
            let lines: Vec<_> = text.as_bytes().chunks(width).map(String::from_utf8_lossy).collect();
            lines.join("\n")
        };
        match self {
            Self::Plain => secret.to_owned(),
            Self::Base64 => STANDARD_NO_PAD.encode(format!("it is {secret} now")),
            Self::Percent => secret.bytes().map(|byte| format!("%{byte:02X}")).collect(),
            Self::Nested => json!({ "a": json!({ "b": secret }).to_string() }).to_string(),
            Self::Escaped => secret.bytes().map(|byte| format!("\\u{byte:04x}")).collect(),
            Self::Lines => wrapped(secret, 18),
            Self::WrappedBase64 => {
                wrapped(&STANDARD_NO_PAD.encode(format!("a first line of text, then {secret} and more")), 40)
            }
        }
    }
}

/// What must not be found, of one secret in one form.
#[derive(Debug)]
struct Canary {
    place: &'static str,
    form: Form,
    secret: String,
}

impl Canary {
    /// Each of these alone would give the secret away.
    fn needles(&self) -> Vec<String> {
        let secret = &self.secret;
        let escaped: String = secret.bytes().map(|byte| format!("u{byte:04x}")).collect();
        let percent: String = secret.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let mut needles =
            vec![part(secret, 0, 18), part(secret, 18, secret.len()), escaped, percent, hex::encode(secret)];
        for skip in 0..3 {
            // What of its base64 does not depend on what stands before it.
            let whole = STANDARD_NO_PAD.encode(part(secret, skip, secret.len()));
            needles.push(part(&whole, 0, 20));
            let whole = URL_SAFE_NO_PAD.encode(part(secret, skip, secret.len()));
            needles.push(part(&whole, 0, 20));
        }
        needles
    }
}

fn part(text: &str, from: usize, to: usize) -> String {
    text.get(from..to).unwrap().to_owned()
}

/// Everything that was sent.
struct Sent {
    runner: TestRunner,
    canaries: Vec<Canary>,
}

impl Sent {
    /// A new secret for `place`; one that is known by its form begins as our keys do.
    fn secret(&mut self, place: &'static str, form: Form, by_form: bool) -> String {
        let random = any::<[u8; 32]>().new_tree(&mut self.runner).unwrap().current();
        let text = URL_SAFE_NO_PAD.encode(random).replace(['-', '_'], "x");
        let secret = if by_form { format!("annals_{text}") } else { text };
        self.canaries.push(Canary { place, form, secret: secret.clone() });
        form.of(&secret)
    }
}

struct Client<'a> {
    http: reqwest::Client,
    server: &'a Server,
}

impl Client<'_> {
    async fn post(&self, agent: &str, path: &str, body: &Value) -> u16 {
        let tool = body["params"]["name"].as_str().unwrap_or_default();
        let request = self
            .http
            .post(format!("{}{path}", self.server.url))
            .bearer_auth(&self.server.admin_key)
            .header("user-agent", agent)
            .header("accept", "application/json, text/event-stream")
            .header("mcp-protocol-version", MODERN)
            .header("mcp-method", "tools/call")
            .header("mcp-name", tool);
        request.json(body).send().await.unwrap().status().as_u16()
    }
}

fn call(id: &str, tool: &str, arguments: &Value, meta: &Value) -> Value {
    let mut with = json!({
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": { "name": "c", "version": "1" },
    });
    for (name, value) in meta.as_object().unwrap() {
        with[name] = value.clone();
    }
    json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call",
        "params": { "name": tool, "arguments": arguments, "_meta": with } })
}

/// Sends a secret of `form` through every input of a call.
async fn send_calls(client: &Client<'_>, sent: &mut Sent, form: Form) {
    let none = json!({});
    for key in ["password", "X-Api-Key", "clientSecret", "tax_number"] {
        let value = sent.secret("argument under a telling name", form, false);
        let arguments = json!({ "a": [{ "b": { key: value } }] });
        client.post("t", "/mcp", &call("1", "no_such_tool", &arguments, &none)).await;
        let value = sent.secret("argument that the tool does not have", form, false);
        client
            .post("t", "/mcp", &call("1", "sql_query", &json!({ "sql": "SELECT 1", key: value }), &none))
            .await;
    }
    let value = sent.secret("argument by its form", form, true);
    client
        .post("t", "/mcp", &call("1", "no_such_tool", &json!({ "note": format!("see {value}") }), &none))
        .await;
    let secret = sent.secret("the same again in the purpose", Form::Plain, false);
    let arguments =
        json!({ "token": secret, "note": form.of(&secret), "purpose": format!("as {}", form.of(&secret)) });
    client.post("t", "/mcp", &call("1", "no_such_tool", &arguments, &none)).await;
    let value = sent.secret("purpose", form, true);
    client
        .post(
            "t",
            "/mcp",
            &call("1", "platform_info", &json!({ "purpose": format!("use {value} here") }), &none),
        )
        .await;
    let value = sent.secret("_meta", form, false);
    client
        .post("t", "/mcp", &call("1", "platform_info", &none, &json!({ "x/y": { "access_token": value } })))
        .await;
    let value = sent.secret("client info", form, true);
    let info =
        json!({ "io.modelcontextprotocol/clientInfo": { "name": format!("agent {value}"), "version": "1" } });
    client.post("t", "/mcp", &call("1", "platform_info", &none, &info)).await;
    let value = sent.secret("request id", form, true);
    client.post("t", "/mcp", &call(&value, "platform_info", &none, &none)).await;
    let value = sent.secret("literal in an error of Postgres", form, false).replace('\'', "");
    let sql = format!("SELECT '{value}'::int");
    client.post("t", "/mcp", &call("1", "sql_query", &json!({ "sql": sql }), &none)).await;
    let value = sent.secret("cell of a result", form, true);
    let sql = format!("SELECT 'see {}' AS note", value.replace('\'', ""));
    client.post("t", "/mcp", &call("1", "sql_query", &json!({ "sql": sql }), &none)).await;
    let value = sent.secret("cell under a telling column", form, false);
    let sql = format!("SELECT 1 AS id, '{}' AS password", value.replace('\'', ""));
    client.post("t", "/mcp", &call("1", "sql_query", &json!({ "sql": sql }), &none)).await;
    // Headers and paths hold one line of visible characters.
    if matches!(form, Form::Lines | Form::WrappedBase64) {
        return;
    }
    let value = sent.secret("user agent", form, true);
    client.post(&format!("agent/1 ({value})"), "/mcp", &call("1", "platform_info", &none, &none)).await;
    let value = sent.secret("tool name", form, true);
    client.post("t", "/mcp", &call("1", &value, &none, &none)).await;
}

/// Sends secrets through all that is no call.
async fn send_rest(client: &Client<'_>, sent: &mut Sent, home: &Home) {
    let base = &client.server.url;
    let audit = format!("{base}/api/v1/admin/audit/events");
    for (place, path) in [
        ("audit filter", format!("{audit}?tool_name=")),
        ("unknown audit filter", format!("{audit}?api_key=")),
        ("audit event id", format!("{audit}/")),
        ("route", format!("{base}/mcp/")),
        ("route with a query", format!("{base}/mcp?access_token=")),
    ] {
        for key in [client.server.admin_key.as_str(), "not-a-key"] {
            for form in [Form::Plain, Form::Percent, Form::Base64] {
                let url = format!("{path}{}", sent.secret(place, form, true));
                client.http.get(&url).bearer_auth(key).send().await.unwrap();
                client.http.post(&url).bearer_auth(key).send().await.unwrap();
            }
        }
    }
    let wrong = sent.secret("wrong key", Form::Plain, true);
    client.http.get(&audit).bearer_auth(&wrong).send().await.unwrap();
    client.http.get(&audit).header("x-api-key", &wrong).send().await.unwrap();
    let agent = format!("agent {}", sent.secret("user agent of a refused one", Form::Plain, true));
    client.http.get(&audit).header("user-agent", agent).send().await.unwrap();
    let name = sent.secret("name of a key", Form::Plain, true);
    home.annals(&["key", "create", "--name", &name, "--role", "admin"]);
}

/// Sends secrets through what stands beside a message, and through messages that are no calls.
async fn send_beside(client: &Client<'_>, sent: &mut Sent, form: Form) {
    let url = format!("{}/mcp", client.server.url);
    let post = || client.http.post(&url).bearer_auth(&client.server.admin_key);
    let none = json!({});
    let headers = [
        "x-note",
        "baggage",
        "tracestate",
        "traceparent",
        "forwarded",
        "x-forwarded-for",
        "mcp-session-id",
        "mcp-name",
        "mcp-method",
        "mcp-protocol-version",
        "origin",
    ];
    // A header holds one line of visible characters.
    for name in headers.iter().filter(|_| !matches!(form, Form::Lines | Form::WrappedBase64)) {
        let value = sent.secret("header", form, true);
        let others =
            [("mcp-protocol-version", MODERN), ("mcp-method", "tools/call"), ("mcp-name", "platform_info")];
        let request = others.into_iter().filter(|(other, _)| other != name);
        let request = request.fold(post(), |request, (name, value)| request.header(name, value));
        let body = call("1", "platform_info", &none, &none);
        request.header(*name, &value).json(&body).send().await.unwrap();
    }
    let message = |method: &str, params: Value| json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
    let opening = |version: &str, name: &str| {
        let info = json!({ "name": name, "version": "1" });
        message("initialize", json!({ "protocolVersion": version, "capabilities": {}, "clientInfo": info }))
    };
    for body in [
        message(&sent.secret("method", form, true), none.clone()).to_string(),
        opening("2025-11-25", &sent.secret("client info of a session", form, true)).to_string(),
        opening(&sent.secret("version", form, true), "c").to_string(),
        format!("nonsense {}", sent.secret("no message", form, true)),
        message("tools/call", json!({ "name": sent.secret("name in a lost call", form, true) })).to_string(),
    ] {
        post().header("content-type", "application/json").body(body).send().await.unwrap();
    }
}

/// Sends secrets through a process on its standard input.
async fn send_stdio(home: &Home, server: &Server, sent: &mut Sent) {
    for form in FORMS {
        let none = json!({});
        let mut process = Process::start(home, &server.admin_key);
        for body in [
            json!({ "jsonrpc": "2.0", "id": 1, "method": sent.secret("method over stdio", form, true) }),
            json!({ "jsonrpc": "2.0", "id": sent.secret("id over stdio", form, true), "method": "tools/list" }),
            call("2", &sent.secret("tool name over stdio", form, true), &none, &none),
            call(
                "3",
                "no_such_tool",
                &json!({ "password": sent.secret("argument over stdio", form, false) }),
                &none,
            ),
            call(
                "4",
                "platform_info",
                &json!({ "purpose": sent.secret("purpose over stdio", form, true) }),
                &none,
            ),
        ] {
            process.write(&body.to_string()).await;
        }
        let nonsense = sent.secret("no message over stdio", form, true).replace('\n', " ");
        process.write(&format!("nonsense {nonsense}")).await;
        process.close();
        let ended = process.end().await;
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{form:?}");
    }
}

fn files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else if path.is_file() {
            found.push(path);
        }
    }
}

/// Every row of every table of ours, as text.
async fn rows(home: &Home) -> String {
    let pool = attached(home).await.pool(Role::Owner);
    let tables = "SELECT format('%I.%I', schemaname, tablename) AS name FROM pg_tables
         WHERE schemaname NOT IN ('pg_catalog', 'information_schema')";
    let mut text = String::new();
    for table in sqlx::query(tables).fetch_all(&pool).await.unwrap() {
        let name: String = table.get("name");
        let all = format!("SELECT coalesce(string_agg(t::text, chr(10)), '') AS rows FROM {name} t");
        text += &sqlx::query(AssertSqlSafe(all)).fetch_one(&pool).await.unwrap().get::<String, _>("rows");
        // Bytes are shown as hexadecimal; an event in the outbox or among the parked ones is text.
        if name == "annals.outbox" || name == "annals.parked" {
            let bodies = format!(
                "SELECT coalesce(string_agg(convert_from(body, 'UTF8'), chr(10)), '') AS rows FROM {name}"
            );
            text +=
                &sqlx::query(AssertSqlSafe(bodies)).fetch_one(&pool).await.unwrap().get::<String, _>("rows");
        }
    }
    text
}

/// Every page of the audit over REST.
async fn pages(server: &Server) -> String {
    let caller = Caller::new(server);
    let (mut text, mut path) = (String::new(), "/api/v1/admin/audit/events?limit=200".to_owned());
    loop {
        let (status, page) = caller.get(&path).await.unwrap();
        assert_eq!(status, 200, "{page}");
        text += &page.to_string();
        match page["next_cursor"].as_str() {
            Some(cursor) => path = format!("/api/v1/admin/audit/events?limit=200&cursor={cursor}"),
            None => return text,
        }
    }
}

/// All that the system wrote, by where.
async fn written(home: &Home, server: &Server) -> Vec<(String, Vec<u8>)> {
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let mut all = vec![
        ("rows".to_owned(), rows(home).await.into_bytes()),
        ("rest".to_owned(), pages(server).await.into_bytes()),
        ("stderr".to_owned(), server.log_text().into_bytes()),
        ("stdout".to_owned(), server.banner.clone().into_bytes()),
    ];
    for url in [server.metrics_url.clone(), format!("{}/readyz", server.url)] {
        all.push((url.clone(), http.get(&url).send().await.unwrap().bytes().await.unwrap().to_vec()));
    }
    let backup = home.path().join("backup");
    let taken = home.annals(&["backup", "--to", backup.to_str().unwrap()]);
    assert_eq!(taken.code, Some(0), "{taken:?}");
    let mut paths = Vec::new();
    files(&home.data_dir().join("log"), &mut paths);
    files(&backup, &mut paths);
    for path in paths {
        all.push((path.display().to_string(), std::fs::read(&path).unwrap()));
        if path.extension().is_some_and(|extension| extension == "dump") {
            let restored = Command::new("pg_restore").arg("--file=-").arg(&path).output().unwrap();
            assert!(restored.status.success(), "{}", String::from_utf8_lossy(&restored.stderr));
            all.push((format!("{} as SQL", path.display()), restored.stdout));
        }
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn no_canary_is_in_any_byte_that_was_written() {
    let home = Home::new();
    let config = home.path().join("annals.yaml");
    std::fs::write(&config, CONFIG).unwrap();
    let args = ["--sample", "--config", config.to_str().unwrap(), "--log", "debug,sqlx=debug,hyper=debug"];
    let server = home.serve(&args);
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let client = Client { http, server: &server };
    let mut sent = Sent { runner: TestRunner::deterministic(), canaries: Vec::new() };
    for form in FORMS {
        send_calls(&client, &mut sent, form).await;
        send_beside(&client, &mut sent, form).await;
    }
    send_stdio(&home, &server, &mut sent).await;
    send_rest(&client, &mut sent, &home).await;
    caught_up(&home).await;
    let all = written(&home, &server).await;
    // Without this the search could pass over nothing.
    for (place, least) in [("rows", 100_000), ("rest", 20_000), ("stderr", 1_000)] {
        let bytes = all.iter().find(|(name, _)| name == place).unwrap().1.len();
        assert!(bytes >= least, "{place} has only {bytes} bytes");
    }
    assert!(all.iter().any(|(name, _)| name.ends_with("as SQL")), "no dump was found");
    let mut leaks = std::collections::BTreeMap::new();
    let needles: Vec<(String, &Canary)> = sent
        .canaries
        .iter()
        .flat_map(|canary| canary.needles().into_iter().map(move |needle| (needle, canary)))
        .collect();
    let any_needle = needles.iter().map(|(needle, _)| regex::escape(needle)).collect::<Vec<_>>().join("|");
    let any_needle = regex::RegexBuilder::new(&any_needle).size_limit(1 << 28).build().unwrap();
    for (name, bytes) in &all {
        // Not the room that the log has allocated ahead.
        let written: Vec<u8> =
            bytes.iter().copied().filter(|byte| !matches!(byte, 0 | b'\\' | b'\n' | b'\r')).collect();
        let text = String::from_utf8_lossy(&written);
        for found in any_needle.find_iter(&text) {
            let (_, canary) = needles.iter().find(|(needle, _)| needle == found.as_str()).unwrap();
            let (from, to) = (found.start().saturating_sub(200), (found.end() + 80).min(text.len()));
            let around = String::from_utf8_lossy(&text.as_bytes()[from..to]).into_owned();
            leaks.entry((canary.place, canary.form)).or_insert(format!("{name}: {around}"));
        }
    }
    assert!(leaks.is_empty(), "{} leaks: {leaks:#?}", leaks.len());
    assert!(sent.canaries.len() >= 280, "{}", sent.canaries.len());
    stop(&home, server);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_not_given_a_name_that_is_a_secret() {
    let home = Home::new();
    let server = home.serve(&["--sample"]);
    let refused = home.annals(&["key", "create", "--name", "password=hunter22", "--role", "admin"]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(
        refused.stderr.contains("looks like a secret") && !refused.stderr.contains("hunter22"),
        "{refused:?}"
    );
    stop(&home, server);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_digest_of_a_candidate_is_the_one_of_the_record() {
    let home = Home::new();
    let server = home.serve(&["--sample"]);
    let caller = Caller::new(&server);
    let (_, answer) = caller.call("no_such_tool", json!({ "password": "hunter22" })).await.unwrap();
    let id = crate::harness::call_id(&answer).unwrap().to_owned();
    let marker = caller
        .get_until("/api/v1/admin/audit/events?limit=20", |page| {
            let text = page.to_string();
            let call =
                text.contains(&id).then(|| text.split("[redacted:password:hmac:").nth(1).map(str::to_owned));
            call.flatten().map(|rest| part(&rest, 0, 16))
        })
        .await;
    let file = home.path().join("candidate");
    std::fs::write(&file, "hunter22").unwrap();
    let digest = home.annals(&["digest", file.to_str().unwrap()]);
    assert_eq!(digest.code, Some(0), "{digest:?}");
    assert!(digest.stdout.starts_with(&marker), "{marker}: {}", digest.stdout);
    std::fs::write(&file, "hunter23").unwrap();
    assert!(!home.annals(&["digest", file.to_str().unwrap()]).stdout.starts_with(&marker));
    stop(&home, server);
}
