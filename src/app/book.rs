//! The audit for the tools that read it: each reading is recorded and allowed like one over REST.

use std::sync::Arc;

use futures::future::BoxFuture;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::watch;
use uuid::Uuid;

use crate::audit::{Reader, refusal_of};
use crate::auth::Auth;
use crate::base::{Clock, Timestamp, planted, whole};
use crate::consumer::{StoreState, StoreStatus};
use crate::query::{EventRow, Filter, Overview, Query};
use crate::refusal::Reason;
use crate::tools::audit::{AuditBook, COUNT_MAX, Conditions, PAGE_DEFAULT, PAGE_MAX, Read};
use crate::tools::{CallContext, ToolError, ToolResult};

/// See the module.
#[derive(Clone)]
pub(super) struct Book {
    auth: Arc<Auth>,
    query: Arc<Query>,
    clock: Arc<dyn Clock>,
    status: watch::Receiver<StoreStatus>,
}

/// What `audit_search` gives.
#[derive(Serialize)]
struct Found {
    events: Vec<Line>,
    total: u64,
    total_text: String,
    total_capped: bool,
    next_cursor: Option<String>,
    start_time: Option<Timestamp>,
    end_time: Option<Timestamp>,
}

/// What `audit_overview` gives.
#[derive(Serialize)]
struct Counted {
    #[serde(flatten)]
    counts: Overview,
    start_time: Option<Timestamp>,
    end_time: Option<Timestamp>,
}

/// One event in a line.
#[derive(Serialize)]
struct Line {
    event_id: Uuid,
    recorded_at: Timestamp,
    event: String,
    call_id: Option<String>,
    user: Option<String>,
    persona: Option<String>,
    tool: Option<String>,
    connection: Option<String>,
    success: Option<bool>,
    category: Option<String>,
    reason: Option<String>,
    duration_ms: Option<i64>,
    session_id: Option<String>,
}

impl From<EventRow> for Line {
    fn from(row: EventRow) -> Self {
        let is_call = row.id != row.event_id.to_string();
        Self {
            event_id: row.event_id,
            recorded_at: Timestamp::from_offset(row.recorded_at),
            event: row.event_kind,
            call_id: is_call.then_some(row.id),
            user: row.user_id,
            persona: row.persona,
            tool: row.tool_name,
            connection: row.connection,
            success: row.success,
            category: row.error_category,
            reason: row.error_code,
            duration_ms: row.duration_ms,
            session_id: row.session_id,
        }
    }
}

impl Book {
    pub(super) fn new(
        auth: Arc<Auth>,
        query: Arc<Query>,
        clock: Arc<dyn Clock>,
        status: watch::Receiver<StoreStatus>,
    ) -> Self {
        Self { auth, query, clock, status }
    }

    async fn open(
        &self,
        context: &CallContext,
        view: &'static str,
        asked: &Value,
    ) -> Result<&Query, ToolError> {
        let follows = || !matches!(self.status.borrow().state, StoreState::Diverged | StoreState::Corrupt);
        let reader = Reader {
            auth: &self.auth,
            follows: &follows,
            principal: &context.principal,
            persona: &context.persona,
            client: &context.client,
        };
        reader.open(&self.query, view, asked).await
    }

    async fn found(
        &self,
        context: &CallContext,
        filter: &Filter,
        asked: &Value,
    ) -> Result<ToolResult, ToolError> {
        let rows = self.open(context, "events", asked).await?;
        let mut page = rows.events(filter).await.map_err(refusal_of)?;
        let count = rows.count(filter, Some(COUNT_MAX)).await.map_err(refusal_of)?;
        if planted::armed("audit_search_skips_one") && page.next_cursor.is_some() {
            page.data.pop();
        }
        let more = if count.capped { "+" } else { "" };
        ToolResult::from_serialize(&Found {
            events: page.data.into_iter().map(Line::from).collect(),
            total: count.total,
            total_text: format!("{}{more}", thousands(count.total)),
            total_capped: count.capped,
            next_cursor: page.next_cursor,
            start_time: filter.start_time,
            end_time: filter.end_time,
        })
    }

    async fn counted(
        &self,
        context: &CallContext,
        filter: &Filter,
        asked: &Value,
    ) -> Result<ToolResult, ToolError> {
        let rows = self.open(context, "overview", asked).await?;
        let counts = rows.overview(filter).await.map_err(refusal_of)?;
        ToolResult::from_serialize(&Counted {
            counts,
            start_time: filter.start_time,
            end_time: filter.end_time,
        })
    }

    async fn one(&self, context: &CallContext, id: Uuid) -> Result<ToolResult, ToolError> {
        let rows = self.open(context, "event", &json!({ "id": id })).await?;
        let event = rows.event(id).await.map_err(refusal_of)?;
        let event = event.ok_or_else(|| {
            let message = format!("There is no event {id} in the store.");
            ToolError::new(Reason::EventNotFound, message, "audit_search has the ids.")
        })?;
        ToolResult::from_serialize(&event)
    }

    /// The conditions as the rows take them, with times that are fixed from now on.
    fn filter(&self, tool: &str, conditions: Conditions) -> Result<(Filter, Value), ToolError> {
        let now = self.clock.now();
        let mut pairs = conditions.pairs;
        for (name, value) in &mut pairs {
            if matches!(name.as_str(), "start_time" | "end_time") {
                *value = Timestamp::read(value, now).map_err(|_| bad_time(tool, name, value))?.to_string();
            }
        }
        let limit = conditions.limit.unwrap_or(PAGE_DEFAULT).min(PAGE_MAX);
        pairs.push(("limit".to_owned(), limit.to_string()));
        let filter = Filter::parse(&pairs).map_err(|error| {
            let hint = "See the tool's input schema.";
            ToolError::new(Reason::ArgumentInvalid, format!("{tool}: {error}."), hint)
        })?;
        let asked = pairs.into_iter().map(|(name, value)| (name, Value::String(value))).collect();
        Ok((filter, Value::Object(asked)))
    }
}

impl AuditBook for Book {
    fn search(&self, conditions: Conditions) -> Result<Read, ToolError> {
        let (filter, asked) = self.filter("audit_search", conditions)?;
        let book = self.clone();
        let read = async move |context: CallContext| book.found(&context, &filter, &asked).await;
        Ok(boxed(read))
    }

    fn overview(&self, conditions: Conditions) -> Result<Read, ToolError> {
        let (filter, asked) = self.filter("audit_overview", conditions)?;
        let book = self.clone();
        let read = async move |context: CallContext| book.counted(&context, &filter, &asked).await;
        Ok(boxed(read))
    }

    fn event(&self, id: Uuid) -> Read {
        let book = self.clone();
        boxed(async move |context: CallContext| book.one(&context, id).await)
    }
}

fn boxed<F, Fut>(read: F) -> Read
where
    F: FnOnce(CallContext) -> Fut + Send + 'static,
    Fut: Future<Output = Result<ToolResult, ToolError>> + Send + 'static,
{
    Box::new(move |context| -> BoxFuture<'static, _> { Box::pin(read(context)) })
}

fn bad_time(tool: &str, name: &str, value: &str) -> ToolError {
    ToolError::new(
        Reason::ArgumentInvalid,
        format!("{tool}: {name} {:?} is no time.", whole(value, 128)),
        "Give an RFC 3339 time like 2026-01-31T09:30:00Z, `now`, or a span before now like -24h (s, m, h, d).",
    )
}

/// `12345` as `12,345`.
fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().filter_map(|group| str::from_utf8(group).ok()).collect();
    groups.join(",")
}

#[cfg(test)]
mod tests {
    use super::thousands;

    #[test]
    fn thousands_are_set_apart() {
        let texts = [0, 999, 1_000, 10_000, 1_234_567].map(thousands);
        assert_eq!(texts, ["0", "999", "1,000", "10,000", "1,234,567"]);
    }
}
