//! How many events there are of what.

use serde::Serialize;
use sqlx::{FromRow, Postgres, QueryBuilder};

use super::{Error, Filter, Query};
use crate::base::planted;

/// Names in a group at most; the others are only counted. Callers make up the names of tools.
pub const NAMES_MAX: i64 = 100;

/// The name that an event has in the group, whichever it is: the columns of the other groups are null in a grouping set.
const NAME: &str = "COALESCE(tool_name, persona, event_kind, error_code)::text";
/// Which group: a bit is set for each column that is not of it.
const WHICH: &str = "GROUPING(tool_name, persona, event_kind, error_code)";

/// Events by what they have in common.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub struct Overview {
    /// Events in all.
    pub total: u64,
    /// By the tool that was asked for.
    pub by_tool: Group,
    /// By the persona that decided.
    pub by_persona: Group,
    /// By the event's type, which says how a call ended.
    pub by_event: Group,
    /// By the reason of refusals and failures.
    pub by_reason: Group,
}

/// The most frequent names first, equals by name. Events without such a name are in none.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub struct Group {
    /// At most [`NAMES_MAX`].
    pub shares: Vec<Share>,
    /// Names in all.
    pub total: u64,
}

/// One name.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Share {
    /// The name.
    pub name: String,
    /// Events of it.
    pub count: u64,
}

#[derive(FromRow)]
struct Row {
    name: Option<String>,
    which: i32,
    events: i64,
    names: i64,
}

impl Query {
    /// Counts the events that `filter` asks for, all pages together, by what they have in common.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the store is away or too slow, [`Error::Internal`] otherwise.
    pub async fn overview(&self, filter: &Filter) -> Result<Overview, Error> {
        let mut query = QueryBuilder::<Postgres>::new(format!(
            "SELECT name, which, events, names FROM (SELECT {NAME} AS name, {WHICH} AS which, count(*) AS events,
             count(*) OVER (PARTITION BY {WHICH}) AS names,
             row_number() OVER (PARTITION BY {WHICH} ORDER BY count(*) DESC, {NAME} COLLATE \"C\") AS place"
        ));
        self.push_conditions(&mut query, filter);
        if planted::armed("audit_overview_drops_denied") {
            query.push(" AND event_kind <> 'tool_call.denied'");
        }
        query.push(format!(
            " GROUP BY GROUPING SETS ((tool_name), (persona), (event_kind), (error_code), ())
             HAVING {NAME} IS NOT NULL OR {WHICH} = 15) AS found WHERE place <= "
        ));
        query.push_bind(NAMES_MAX).push(" ORDER BY which, place");
        let rows: Vec<Row> = query.build_query_as().fetch_all(self.pool()?).await?;
        let mut overview = Overview::default();
        for Row { name, which, events, names } in rows {
            let count = u64::try_from(events).unwrap_or_default();
            let group = match which {
                0b0111 => &mut overview.by_tool,
                0b1011 => &mut overview.by_persona,
                0b1101 => &mut overview.by_event,
                0b1110 => &mut overview.by_reason,
                _ => {
                    overview.total = count;
                    continue;
                }
            };
            group.total = u64::try_from(names).unwrap_or_default();
            group.shares.extend(name.map(|name| Share { name, count }));
        }
        Ok(overview)
    }
}
