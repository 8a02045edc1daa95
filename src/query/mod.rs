//! Stand-in until the real query module is merged: a fixed list of events.

use serde_json::Value;
use uuid::Uuid;

use crate::base::Timestamp;

/// Stand-in.
#[derive(Default)]
pub struct Query {
    /// What there is; `None`: the store is away.
    pub rows: Option<Vec<Value>>,
}

/// Stand-in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Equals.
    pub tool_name: Option<String>,
    /// Not before.
    pub start_time: Option<Timestamp>,
    /// At most.
    pub limit: u32,
    /// From the page before.
    pub cursor: Option<String>,
}

/// A parameter is wrong.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{parameter}: {accepted}")]
pub struct FilterError {
    /// Which.
    pub parameter: String,
    /// What is accepted.
    pub accepted: String,
}

/// One page.
#[derive(Debug, Clone, Default)]
pub struct Page {
    /// Newest first.
    pub data: Vec<Value>,
    /// For the next page.
    pub next_cursor: Option<String>,
}

/// Nothing was read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store is away.
    #[error("the store is not available")]
    Unavailable,
    /// The cursor is not one of ours.
    #[error("the cursor is not valid")]
    Cursor,
}

impl Filter {
    /// Stand-in.
    ///
    /// # Errors
    /// [`FilterError`].
    pub fn parse(pairs: &[(String, String)]) -> Result<Self, FilterError> {
        let mut filter = Self { limit: 100, ..Self::default() };
        for (name, value) in pairs {
            let bad = |accepted: &str| FilterError { parameter: name.clone(), accepted: accepted.into() };
            match name.as_str() {
                "tool_name" => filter.tool_name = Some(value.clone()),
                "limit" => filter.limit = value.parse().map_err(|_| bad("1 to 1000"))?,
                "cursor" => filter.cursor = Some(value.clone()),
                _ => return Err(bad("no such parameter")),
            }
        }
        Ok(filter)
    }
}

impl Query {
    /// Stand-in.
    ///
    /// # Errors
    /// [`Error`].
    #[expect(clippy::unused_async, reason = "the real one awaits the store")]
    pub async fn events(&self, filter: &Filter) -> Result<Page, Error> {
        if filter.cursor.is_some() {
            return Err(Error::Cursor);
        }
        let data = self.rows.clone().ok_or(Error::Unavailable)?;
        Ok(Page { data, next_cursor: None })
    }

    /// Stand-in.
    ///
    /// # Errors
    /// [`Error`].
    #[expect(clippy::unused_async, reason = "the real one awaits the store")]
    pub async fn event(&self, id: Uuid) -> Result<Option<Value>, Error> {
        let rows = self.rows.as_ref().ok_or(Error::Unavailable)?;
        Ok(rows.iter().find(|row| row["id"] == id.to_string()).cloned())
    }
}
