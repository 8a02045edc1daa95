//! How a call's end looks to its caller.
//!
//! What the tool itself or the policy said is a tool result that the model reads (`isError`); what is wrong with the
//! request, or with us, is a JSON-RPC error. All of them are HTTP 200, because the request was handled and clients of
//! 2025-11-25 throw the body of any other status away; only "the log does not accept" is 503, so that proxies retry.

use axum::http::StatusCode;
use serde_json::value::RawValue;
use uuid::Uuid;

use super::reply::{CallErrorData, ResultWriter, error};
use super::{Era, Reply, code};
use crate::base::Category;
use crate::dispatch::Answer;
use crate::tools::{ToolError, ToolResult};

/// The code that dispatch gives for a name which the caller has no tool of.
const UNKNOWN_TOOL: &str = "unknown_tool";
/// The code that dispatch gives when the tool panicked.
const PANIC: &str = "panic";

/// Which call is answered.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) era: Era,
    pub(super) id: &'a RawValue,
    pub(super) call_id: Uuid,
}

impl Asked<'_> {
    /// The answer to a call that was run or refused by dispatch.
    pub(super) fn reply(&self, answer: &Answer) -> Reply {
        match answer {
            Answer::Completed(result) => self.completed(result),
            Answer::Failed(error) | Answer::Denied(error)
                if error.category == Category::Internal && error.code == PANIC =>
            {
                self.error(code::INTERNAL, error)
            }
            Answer::Denied(error) if error.code == UNKNOWN_TOOL => self.error(code::INVALID_PARAMS, error),
            Answer::Failed(error) | Answer::Denied(error) | Answer::TimedOut(error) => self.is_error(error),
            Answer::Cancelled(error) => self.error(code::CANCELLED, error),
            Answer::OutcomeUnrecorded(error) => self.error(code::OUTCOME_UNRECORDED, error),
            Answer::Unavailable { error, retry_after_s } => self.unavailable(error, *retry_after_s),
        }
    }

    /// The answer to a request that was refused before it could be a call; `code` says what is wrong with it.
    pub(super) fn reply_refused(&self, code: i64, answer: &Answer) -> Reply {
        match answer {
            Answer::Denied(error) => self.error(code, error),
            other => self.reply(other),
        }
    }

    fn completed(&self, result: &ToolResult) -> Reply {
        let Ok(text) = std::str::from_utf8(&result.structured) else {
            return self.error(code::INTERNAL, &ToolError::internal("result_not_json"));
        };
        // The text repeats the structured result, with escapes.
        let mut writer = ResultWriter::new(self.era, self.id, 2 * text.len() + text.len() / 4);
        writer.text_content(text);
        writer.raw("structuredContent", text.as_bytes());
        writer.member("isError", &false);
        writer.finish_call(self.call_id, None)
    }

    /// The error is the text and stands in `_meta`, not in `structuredContent`: that must follow the tool's output
    /// schema, and official clients check it even when `isError` is set.
    fn is_error(&self, error: &ToolError) -> Reply {
        let text = serde_json::to_string(error).expect("an error is plain JSON");
        let mut writer = ResultWriter::new(self.era, self.id, 3 * text.len());
        writer.text_content(&text);
        writer.member("isError", &true);
        let reply = writer.finish_call(self.call_id, Some(error));
        match error.retry_after_s {
            Some(seconds) => reply.retry_after(seconds),
            None => reply,
        }
    }

    fn error(&self, code: i64, of_call: &ToolError) -> Reply {
        let data = CallErrorData { error: of_call, call_id: self.call_id };
        error(StatusCode::OK, Some(self.id), code, &of_call.message, &data)
    }

    fn unavailable(&self, of_call: &ToolError, retry_after_s: u32) -> Reply {
        let status = StatusCode::SERVICE_UNAVAILABLE;
        let data = CallErrorData { error: of_call, call_id: self.call_id };
        error(status, Some(self.id), code::of_status(status), &of_call.message, &data)
            .retry_after(retry_after_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn asked(id: &RawValue, era: Era) -> Asked<'_> {
        Asked { era, id, call_id: Uuid::from_u128(7) }
    }

    fn json_of(reply: &Reply) -> Value {
        serde_json::from_slice(reply.body.as_ref().unwrap()).unwrap()
    }

    #[test]
    fn a_result_is_spliced_byte_for_byte() {
        let id = RawValue::from_string("123456789012345678901234567890".into()).unwrap();
        let structured = r#"{"b": 123456789012345678901234567890,"a":1e2,"q":"\u00e9\" é"}"#;
        let result = ToolResult { structured: structured.as_bytes().to_vec().into() };
        for era in [Era::Legacy, Era::Modern] {
            let reply = asked(&id, era).reply(&Answer::Completed(result.clone()));
            let body = std::str::from_utf8(reply.body.as_ref().unwrap()).unwrap().to_owned();
            assert!(body.contains(&format!(r#""structuredContent":{structured},"isError":false"#)), "{body}");
            assert!(body.contains(r#""id":123456789012345678901234567890"#));
            let json = json_of(&reply);
            assert_eq!(json["result"]["content"], json!([{ "type": "text", "text": structured }]));
            assert_eq!(json["result"]["_meta"]["io.annals/call_id"], Uuid::from_u128(7).to_string());
            assert_eq!(json["result"]["resultType"] == "complete", era == Era::Modern);
            let info = &json["result"]["_meta"]["io.modelcontextprotocol/serverInfo"]["name"];
            assert_eq!(info == "annals", era == Era::Modern);
        }
    }

    #[test]
    fn each_end_has_its_shape() {
        let id = RawValue::from_string("1".into()).unwrap();
        let error = |category, code| ToolError::new(category, code, "m", "h");
        let authz = error(Category::Authz, "tool_denied");
        let rpc = [
            (Answer::Failed(ToolError::internal("panic")), -32603, 200),
            (Answer::Denied(error(Category::Validation, "unknown_tool")), -32602, 200),
            (Answer::Cancelled(error(Category::Cancelled, "cancelled")), 1499, 200),
            (Answer::OutcomeUnrecorded(ToolError::internal("outcome_unrecorded")), 1500, 200),
            (Answer::Unavailable { error: error(Category::Internal, "log"), retry_after_s: 3 }, 1503, 503),
        ];
        for (answer, code, status) in rpc {
            let reply = asked(&id, Era::Modern).reply(&answer);
            let json = json_of(&reply);
            assert_eq!((json["error"]["code"].as_i64(), reply.status.as_u16()), (Some(code), status));
            assert_eq!(json["error"]["data"]["call_id"], Uuid::from_u128(7).to_string());
            assert!(json["error"]["data"]["code"].is_string() && json.get("result").is_none());
        }
        for answer in [
            Answer::Failed(ToolError::internal("bug")),
            Answer::Denied(authz.clone()),
            Answer::TimedOut(error(Category::Timeout, "deadline")),
        ] {
            let reply = asked(&id, Era::Legacy).reply(&answer);
            let json = json_of(&reply);
            assert_eq!((&json["result"]["isError"], reply.status.as_u16()), (&json!(true), 200));
            assert!(json["result"].get("structuredContent").is_none());
            let text: Value =
                serde_json::from_str(json["result"]["content"][0]["text"].as_str().unwrap()).unwrap();
            assert_eq!(json["result"]["_meta"]["io.annals/error"], text);
        }
        let reply = asked(&id, Era::Legacy).reply_refused(-32600, &Answer::Denied(authz));
        assert_eq!(json_of(&reply)["error"]["code"], -32600);
    }

    #[test]
    fn a_result_that_is_no_text_is_our_failure() {
        let id = RawValue::from_string("1".into()).unwrap();
        let result = ToolResult { structured: vec![b'{', 0xff, b'}'].into() };
        let reply = asked(&id, Era::Modern).reply(&Answer::Completed(result));
        assert_eq!(json_of(&reply)["error"]["code"], -32603);
    }
}
