//! What a client of the revision 2025-11-25 is told while the log refuses.

use serde_json::{Value, json};

use super::Alarm;
use crate::harness::{PATIENCE, Server};

const REVISION: &str = "2025-11-25";

/// A session is not opened without its record, and the refusal says what is wrong like that of every call.
pub(super) async fn is_told(server: &Server, alarm: &Alarm) {
    let opening = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": REVISION, "capabilities": {}, "clientInfo": { "name": "faults", "version": "1" } } });
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let open = async || {
        let request = http.post(format!("{}/mcp", server.url)).bearer_auth(&server.admin_key);
        let request = request.header("accept", "application/json, text/event-stream").json(&opening);
        request.send().await.unwrap()
    };
    let until_refused = async {
        loop {
            let answer = open().await;
            // The start of a session is smaller than a call, and may still fit the last room that there is.
            if answer.status().as_u16() != 200 {
                return answer;
            }
        }
    };
    let refused = tokio::time::timeout(PATIENCE, until_refused).await.expect("a refusal");
    assert_eq!(refused.status().as_u16(), 503);
    assert_eq!(refused.headers().get("mcp-session-id"), None);
    assert_eq!(refused.headers()["retry-after"], alarm.retry_after_s.to_string());
    let answer: Value = refused.json().await.unwrap();
    let error = &answer["error"];
    assert_eq!((&error["code"], &error["data"]["code"]), (&json!(1503), &json!(alarm.code)), "{answer}");
    assert!(error["data"]["hint"].as_str().unwrap().contains("Retry later"), "{answer}");
}
