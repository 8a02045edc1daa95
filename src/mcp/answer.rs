//! How a call's end looks to its caller.
//!
//! What the tool itself or the policy said is a tool result that the model reads (`isError`); what is wrong with the
//! request, or with us, is a JSON-RPC error; the table of refusals says which. All that is decided is HTTP 200, because clients of
//! 2025-11-25 throw the body of any other status away; only "the log does not accept" is 503, so that proxies retry.

use serde_json::value::RawValue;
use uuid::Uuid;

use super::reply::{ResultWriter, Said, refused};
use super::{Era, Reply};
use crate::dispatch::Answer;
use crate::refusal::{Reason, Rpc};
use crate::tools::{ToolError, ToolResult};

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
        self.reply_refused(answer, None)
    }

    /// As [`Asked::reply`]; `requested_version` is the revision that was asked for, where it is not served.
    pub(super) fn reply_refused(&self, answer: &Answer, requested_version: Option<&str>) -> Reply {
        match answer {
            Answer::Completed(result) => self.completed(result),
            Answer::Failed(error)
            | Answer::Denied(error)
            | Answer::TimedOut(error)
            | Answer::Cancelled(error)
            | Answer::OutcomeUnrecorded(error) => self.refused(error, requested_version),
            Answer::Unavailable { error, retry_after_s } => {
                self.refused(error, None).retry_after(*retry_after_s)
            }
        }
    }

    fn refused(&self, refusal: &ToolError, requested_version: Option<&str>) -> Reply {
        match refusal.row().rpc {
            Rpc::Result => self.is_error(refusal),
            Rpc::Error(_) | Rpc::Absent => {
                refused(Some(self.id), &Said { refusal, call_id: Some(self.call_id), requested_version })
            }
        }
    }

    fn completed(&self, result: &ToolResult) -> Reply {
        let Ok(text) = std::str::from_utf8(&result.structured) else {
            return self.refused(&ToolError::internal(Reason::ResultNotJson), None);
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
        let error = |reason| ToolError::new(reason, "m", "h");
        let authz = error(Reason::ToolNotAllowed);
        let rpc = [
            (Answer::Failed(ToolError::internal(Reason::Panic)), -32603, 200),
            (Answer::Denied(error(Reason::UnknownTool)), -32602, 200),
            (Answer::Cancelled(error(Reason::CancelledByCaller)), 1499, 200),
            (Answer::OutcomeUnrecorded(ToolError::internal(Reason::OutcomeUnrecorded)), 1500, 200),
            (Answer::Unavailable { error: error(Reason::LogFull), retry_after_s: 3 }, 1503, 503),
        ];
        for (answer, code, status) in rpc {
            let reply = asked(&id, Era::Modern).reply(&answer);
            let json = json_of(&reply);
            assert_eq!((json["error"]["code"].as_i64(), reply.status.as_u16()), (Some(code), status));
            assert_eq!(json["error"]["data"]["call_id"], Uuid::from_u128(7).to_string());
            assert!(json["error"]["data"]["code"].is_string() && json.get("result").is_none());
        }
        for answer in [
            Answer::Failed(ToolError::internal(Reason::RowNotJson)),
            Answer::Denied(authz.clone()),
            Answer::TimedOut(error(Reason::CallTimedOut)),
        ] {
            let reply = asked(&id, Era::Legacy).reply(&answer);
            let json = json_of(&reply);
            assert_eq!((&json["result"]["isError"], reply.status.as_u16()), (&json!(true), 200));
            assert!(json["result"].get("structuredContent").is_none());
            let text: Value =
                serde_json::from_str(json["result"]["content"][0]["text"].as_str().unwrap()).unwrap();
            assert_eq!(json["result"]["_meta"]["io.annals/error"], text);
        }
        let denied = Answer::Denied(error(Reason::UnsupportedVersion));
        let reply = asked(&id, Era::Legacy).reply_refused(&denied, Some("1900-01-01"));
        let json = json_of(&reply);
        assert_eq!((&json["error"]["code"], reply.status.as_u16()), (&json!(-32022), 400));
        assert_eq!(json["error"]["data"]["requested"], "1900-01-01");
    }

    #[test]
    fn a_result_that_is_no_text_is_our_failure() {
        let id = RawValue::from_string("1".into()).unwrap();
        let result = ToolResult { structured: vec![b'{', 0xff, b'}'].into() };
        let reply = asked(&id, Era::Modern).reply(&Answer::Completed(result));
        assert_eq!(json_of(&reply)["error"]["code"], -32603);
    }
}
