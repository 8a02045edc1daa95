//! The ids under which `search` names what there is and `fetch` gives it: `tool:sql_query`, `connection:sales`,
//! `table:sales/public.orders`, `column:sales/public.orders.amount`. The same for as long as the names are.

use super::catalog::{Column, Table};

/// What an id says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Id {
    Tool(String),
    Connection(String),
    Table { connection: String, id: String },
    Column { connection: String, id: String },
}

impl Id {
    /// `None` for what has no form of an id.
    pub(super) fn parse(id: &str) -> Option<Self> {
        let (kind, rest) = id.split_once(':')?;
        let connection = || rest.split_once('/').map(|(connection, _)| connection.to_owned());
        Some(match kind {
            "tool" => Self::Tool(rest.to_owned()),
            "connection" => Self::Connection(rest.to_owned()),
            "table" => Self::Table { connection: connection()?, id: id.to_owned() },
            "column" => Self::Column { connection: connection()?, id: id.to_owned() },
            _ => return None,
        })
    }

    /// The connection that it is of.
    pub(super) fn connection(&self) -> Option<&str> {
        match self {
            Self::Tool(_) => None,
            Self::Connection(connection)
            | Self::Table { connection, .. }
            | Self::Column { connection, .. } => Some(connection),
        }
    }
}

pub(super) fn tool(name: &str) -> String {
    format!("tool:{name}")
}

pub(super) fn connection(name: &str) -> String {
    format!("connection:{name}")
}

pub(super) fn table(connection: &str, table: &Table) -> String {
    format!("table:{connection}/{}.{}", table.schema, table.name)
}

pub(super) fn column(connection: &str, table: &Table, column: &Column) -> String {
    format!("column:{connection}/{}.{}.{}", table.schema, table.name, column.name)
}

/// A URI for `id`, for clients that cite by one. It leads nowhere.
pub(super) fn url(id: &str) -> String {
    let mut url = String::from("annals:");
    for byte in id.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~:/".contains(&byte) {
            url.push(char::from(byte));
        } else {
            url.push_str(&format!("%{byte:02X}"));
        }
    }
    url
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_names_its_connection_and_its_uri_is_one() {
        assert_eq!(Id::parse("tool:x"), Some(Id::Tool("x".into())));
        let id = "table:sales/public.or ders/ä";
        assert_eq!(Id::parse(id), Some(Id::Table { connection: "sales".into(), id: id.into() }));
        assert_eq!(Id::parse(id).unwrap().connection(), Some("sales"));
        assert_eq!(url(id), "annals:table:sales/public.or%20ders/%C3%A4");
        for none in ["", "orders", "table:orders", "row:sales/x"] {
            assert_eq!(Id::parse(none), None, "{none}");
        }
    }
}
