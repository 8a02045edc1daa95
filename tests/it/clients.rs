//! The acceptance run: clients on the official SDKs of both eras against the real binary with sample data.
//!
//! What they check stands in `tests/clients/`; this file only starts both ends. A missing Node, Python or SDK fails
//! the test and names the script that brings it; nothing is skipped.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

use crate::harness::{Home, Server};

/// A client makes about 60 requests; the audit may take a second for each of its ten calls.
const CLIENT_MAX: Duration = Duration::from_secs(60);

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn tool(path: &str) -> PathBuf {
    let tool = repository().join("target/tools").join(path);
    assert!(tool.exists(), "{} is missing: run scripts/test-tools.sh (make test does)", tool.display());
    tool
}

/// Runs one client, over HTTP or with `command` over stdio, to its end and returns its summary; fails with all that it printed when a check did not hold.
async fn run(interpreter: PathBuf, script: &str, server: &Server, command: &[&OsStr]) -> serde_json::Value {
    let client = Command::new(interpreter)
        .arg(repository().join("tests/clients").join(script))
        .arg(&server.url)
        .arg(&server.admin_key)
        .args(command)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(CLIENT_MAX, client)
        .await
        .unwrap_or_else(|_| panic!("{script} did not end within {CLIENT_MAX:?}"))
        .unwrap_or_else(|error| panic!("{script} did not start: {error}"));
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}: {}\n{stdout}\n{stderr}", output.status);
    serde_json::from_str(stdout.trim())
        .unwrap_or_else(|error| panic!("{script} printed no summary ({error}):\n{stdout}\n{stderr}"))
}

#[tokio::test]
async fn official_clients_of_both_eras_find_their_calls_within_a_second() {
    let home = Home::new();
    let server = home.serve(&["--sample"]);
    find_their_calls(&server, &[]).await;
}

#[tokio::test]
async fn official_clients_of_both_eras_find_their_calls_over_stdio_too() {
    let home = Home::new();
    let server = home.serve(&["--sample"]);
    let data_dir = home.data_dir();
    let command = [env!("CARGO_BIN_EXE_annals"), "stdio", "--data-dir"].map(OsStr::new);
    find_their_calls(&server, &[&command[..], &[data_dir.as_os_str()]].concat()).await;
}

async fn find_their_calls(server: &Server, command: &[&OsStr]) {
    // One after the other: each also looks for its own refused key among the latest events.
    let typescript = run(tool("bin/node"), "client.mjs", server, command).await;
    let python = run(tool("venv/bin/python"), "client.py", server, command).await;

    assert_eq!(typescript["protocol_version"], "2025-11-25");
    assert_eq!(python["protocol_version"], "2026-07-28");
    assert_eq!(typescript["orders"], python["orders"], "both eras see the same data");
    for summary in [&typescript, &python] {
        let latencies = summary["audit_ms"].as_object().expect("a latency per call");
        assert_eq!(latencies.len(), 10, "{summary}");
        assert!(latencies.values().all(|ms| ms.as_u64().is_some_and(|ms| ms <= 1_000)), "{summary}");
    }
}
