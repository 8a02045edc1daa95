//! What goes back over the wire: JSON-RPC answers, written once as bytes.
//!
//! A tool's result and its listing are spliced in as they are; nothing in here parses them again.

use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde::Serialize;
use serde_json::value::RawValue;
use uuid::Uuid;

use super::{Era, SUPPORTED_VERSIONS};
use crate::refusal::Refusal;
use crate::tools::ToolError;

/// For a reason that its row gives no JSON-RPC error, which is a mistake of ours.
const INTERNAL: i64 = -32_603;

/// One answer.
#[derive(Debug)]
pub struct Reply {
    /// The HTTP status; a transport without one ignores it.
    pub status: StatusCode,
    /// Further headers.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// One JSON-RPC message, or nothing.
    pub body: Option<Bytes>,
}

impl IntoResponse for Reply {
    fn into_response(self) -> Response {
        let has_body = self.body.is_some();
        let mut response = Response::new(self.body.map_or_else(Body::empty, Body::from));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if has_body {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        headers.extend(self.headers);
        response
    }
}

impl Reply {
    /// Taken, and nothing to say.
    pub(super) fn empty(status: StatusCode) -> Self {
        Self { status, headers: Vec::new(), body: None }
    }

    /// The same with one more header.
    #[must_use]
    pub fn with(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    /// The same with `Retry-After`.
    #[must_use]
    pub fn retry_after(self, seconds: u32) -> Self {
        self.with(RETRY_AFTER, HeaderValue::from(seconds))
    }
}

/// A refusal as a JSON-RPC error says it: `error.data` holds `{code, category, message, hint}` and what belongs to it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Said<'a> {
    pub(super) refusal: &'a Refusal,
    /// The id under which it is recorded, when it is a call.
    pub(super) call_id: Option<Uuid>,
    /// The revision that was asked for, where it is not served.
    pub(super) requested_version: Option<&'a str>,
}

/// Refuses a whole request before a message was read from it: a JSON-RPC error without an id.
#[must_use]
pub fn refusal(refusal: &Refusal) -> Reply {
    refused(None, &Said { refusal, call_id: None, requested_version: None })
}

/// As [`refusal`], of the request whose id is the JSON text `id`, for a transport without a status. `None` when that is none.
#[must_use]
pub fn refusal_of(id: &str, refusal: &Refusal) -> Option<Bytes> {
    let id: &RawValue = serde_json::from_str(id).ok()?;
    refused(Some(id), &Said { refusal, call_id: None, requested_version: None }).body
}

/// The JSON-RPC error of a refusal, with the status and the code of its row.
pub(super) fn refused(id: Option<&RawValue>, said: &Said<'_>) -> Reply {
    #[derive(Serialize)]
    struct Failed<'a> {
        jsonrpc: &'static str,
        id: Option<&'a RawValue>,
        error: Detail<'a>,
    }
    #[derive(Serialize)]
    struct Detail<'a> {
        code: i64,
        message: &'a str,
        data: Data<'a>,
    }
    #[derive(Serialize)]
    struct Data<'a> {
        #[serde(flatten)]
        refusal: &'a Refusal,
        #[serde(skip_serializing_if = "Option::is_none")]
        call_id: Option<Uuid>,
        #[serde(skip_serializing_if = "Option::is_none")]
        supported: Option<[&'static str; 2]>,
        #[serde(skip_serializing_if = "Option::is_none")]
        requested: Option<&'a str>,
    }
    let row = said.refusal.row();
    let requested = said.requested_version;
    let supported = requested.map(|_| SUPPORTED_VERSIONS);
    let data = Data { refusal: said.refusal, call_id: said.call_id, supported, requested };
    let code = row.rpc.code().unwrap_or(INTERNAL);
    let error = Detail { code, message: &said.refusal.message, data };
    let body = serde_json::to_vec(&Failed { jsonrpc: "2.0", id, error }).expect("an error is plain JSON");
    let status = StatusCode::from_u16(row.status).expect("the table holds HTTP statuses");
    let reply = Reply { status, headers: Vec::new(), body: Some(body.into()) };
    said.refusal.retry_after_s.into_iter().fold(reply, Reply::retry_after)
}

/// A result that is written once and sent under many ids.
#[derive(Debug, Clone)]
pub(super) struct Kept(Bytes);

impl Kept {
    /// The answer to the request `id`: two copies, nothing is written anew.
    pub(super) fn reply(&self, id: &RawValue) -> Reply {
        let parts = [HEAD.as_bytes(), id.get().as_bytes(), &self.0];
        Reply { status: StatusCode::OK, headers: Vec::new(), body: Some(parts.concat().into()) }
    }
}

/// What stands before the id.
const HEAD: &str = r#"{"jsonrpc":"2.0","id":"#;

/// Writes a JSON-RPC result, member by member.
pub(super) struct ResultWriter {
    bytes: Vec<u8>,
    era: Era,
    is_first: bool,
}

impl ResultWriter {
    /// Opens the result of the request `id`; about `size` bytes will follow.
    pub(super) fn new(era: Era, id: &RawValue, size: usize) -> Self {
        let mut bytes = Vec::with_capacity(size + id.get().len() + 256);
        bytes.extend_from_slice(HEAD.as_bytes());
        bytes.extend_from_slice(id.get().as_bytes());
        Self::open(era, bytes)
    }

    /// Opens a result that is kept; about `size` bytes will follow.
    pub(super) fn kept(era: Era, size: usize) -> Self {
        Self::open(era, Vec::with_capacity(size + 256))
    }

    fn open(era: Era, mut bytes: Vec<u8>) -> Self {
        bytes.extend_from_slice(br#","result":{"#);
        let mut writer = Self { bytes, era, is_first: true };
        if era == Era::Modern {
            writer.member("resultType", "complete");
        }
        writer
    }

    /// Adds a member.
    pub(super) fn member<T: Serialize + ?Sized>(&mut self, name: &str, value: &T) {
        self.name(name);
        write_json(&mut self.bytes, value);
    }

    /// Adds a member whose value is JSON already.
    pub(super) fn raw(&mut self, name: &str, json: &[u8]) {
        self.name(name);
        self.bytes.extend_from_slice(json);
    }

    /// Adds a member whose value is an array of JSON values.
    pub(super) fn raw_array<'j>(&mut self, name: &str, items: impl Iterator<Item = &'j [u8]>) {
        self.name(name);
        self.bytes.push(b'[');
        for (index, item) in items.enumerate() {
            if index > 0 {
                self.bytes.push(b',');
            }
            self.bytes.extend_from_slice(item);
        }
        self.bytes.push(b']');
    }

    /// Adds the content of a tool result: one text block.
    pub(super) fn text_content(&mut self, text: &str) {
        self.name("content");
        self.bytes.extend_from_slice(br#"[{"type":"text","text":"#);
        write_json(&mut self.bytes, text);
        self.bytes.extend_from_slice(b"}]");
    }

    /// Closes a result that belongs to no call.
    pub(super) fn finish(self) -> Reply {
        self.close(None, None)
    }

    /// Closes a result that is kept.
    pub(super) fn keep(self) -> Kept {
        Kept(self.close(None, None).body.unwrap_or_default())
    }

    /// Closes the result of a call.
    pub(super) fn finish_call(self, call_id: Uuid, error: Option<&ToolError>) -> Reply {
        self.close(Some(call_id), error)
    }

    fn close(mut self, call_id: Option<Uuid>, error: Option<&ToolError>) -> Reply {
        #[derive(Serialize)]
        struct Meta<'a> {
            #[serde(rename = "io.annals/call_id", skip_serializing_if = "Option::is_none")]
            call_id: Option<Uuid>,
            #[serde(rename = "io.annals/error", skip_serializing_if = "Option::is_none")]
            error: Option<&'a ToolError>,
            #[serde(rename = "io.modelcontextprotocol/serverInfo", skip_serializing_if = "Option::is_none")]
            server_info: Option<&'a ServerInfo>,
        }
        let server_info = (self.era == Era::Modern).then_some(&SERVER_INFO);
        if call_id.is_some() || server_info.is_some() {
            self.member("_meta", &Meta { call_id, error, server_info });
        }
        self.bytes.extend_from_slice(b"}}");
        Reply { status: StatusCode::OK, headers: Vec::new(), body: Some(self.bytes.into()) }
    }

    fn name(&mut self, name: &str) {
        if !std::mem::take(&mut self.is_first) {
            self.bytes.push(b',');
        }
        write_json(&mut self.bytes, name);
        self.bytes.push(b':');
    }
}

/// Who answers.
#[derive(Debug, Serialize)]
pub(super) struct ServerInfo {
    name: &'static str,
    title: &'static str,
    version: &'static str,
}

/// This server.
pub(super) const SERVER_INFO: ServerInfo =
    ServerInfo { name: "annals", title: "Annals", version: env!("CARGO_PKG_VERSION") };

fn write_json<T: Serialize + ?Sized>(bytes: &mut Vec<u8>, value: &T) {
    serde_json::to_writer(bytes, value).expect("plain values have a JSON form and memory takes every byte");
}
