//! What a client of the revision 2025-11-25 is told while the log refuses.

use serde_json::{Value, json};

use super::Alarm;
use crate::harness::Server;

const REVISION: &str = "2025-11-25";

async fn post(server: &Server, session: Option<&str>, body: &Value) -> reqwest::Response {
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let mut request = http.post(format!("{}/mcp", server.url)).bearer_auth(&server.admin_key);
    request = request.header("accept", "application/json, text/event-stream");
    if let Some(session) = session {
        request = request.header("mcp-session-id", session).header("mcp-protocol-version", REVISION);
    }
    request.json(body).send().await.unwrap()
}

/// A session can be opened, since that needs no record; a call in it is refused like every other.
pub(super) async fn is_told(server: &Server, alarm: &Alarm) {
    let opening = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": REVISION, "capabilities": {}, "clientInfo": { "name": "faults", "version": "1" } } });
    let opened = post(server, None, &opening).await;
    assert_eq!(opened.status().as_u16(), 200);
    let session = opened.headers()["mcp-session-id"].to_str().unwrap().to_owned();
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": { "name": "platform_info", "arguments": {} } });
    let refused = post(server, Some(&session), &call).await;
    assert_eq!(refused.status().as_u16(), 503);
    assert_eq!(refused.headers()["retry-after"], alarm.retry_after_s.to_string());
    let answer: Value = refused.json().await.unwrap();
    let error = &answer["error"];
    assert_eq!((&error["code"], &error["data"]["code"]), (&json!(1503), &json!(alarm.code)), "{answer}");
    assert!(error["data"]["hint"].as_str().unwrap().contains("Retry later"), "{answer}");
}
