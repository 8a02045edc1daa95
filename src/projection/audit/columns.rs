//! Declares a table's columns once: the row, its columnar form for `UNNEST`, and the SQL lists made from them.
//!
//! Nothing in here runs SQL.

/// What the SQL of a table is made from.
#[derive(Debug, Clone, Copy)]
pub struct Columns {
    /// Unqualified table name.
    pub table: &'static str,
    /// Column names, in order.
    pub names: &'static [&'static str],
    /// Their Postgres types.
    pub types: &'static [&'static str],
}

impl Columns {
    /// `a, b, c`, each with `prefix` before it.
    #[must_use]
    pub fn list(&self, prefix: &str) -> String {
        let names: Vec<String> = self.names.iter().map(|name| format!("{prefix}{name}")).collect();
        names.join(", ")
    }

    /// `SELECT` of the rows that are bound as one array per column, from parameter `first` on.
    #[must_use]
    pub fn select_bound(&self, first: usize) -> String {
        let typed = |(index, ty): (usize, &&str)| {
            // jsonb goes over the wire as its text, so that Postgres itself reads it.
            let wire = if *ty == "jsonb" { "text" } else { ty };
            format!("${}::{wire}[]", index + first)
        };
        let arrays: Vec<String> = self.types.iter().enumerate().map(typed).collect();
        let columns: Vec<String> =
            self.names.iter().zip(self.types).map(|(name, ty)| format!("u.{name}::{ty}")).collect();
        format!(
            "SELECT {} FROM UNNEST({}) AS u({})",
            columns.join(", "),
            arrays.join(", "),
            self.names.join(", ")
        )
    }

    /// `INSERT` of the bound rows into `schema`'s table.
    #[must_use]
    pub fn insert(&self, schema: &str) -> String {
        format!("INSERT INTO {schema}.{} ({}) {}", self.table, self.list(""), self.select_bound(1))
    }
}

macro_rules! table {
    ($(#[$doc:meta])* $row:ident, $arrays:ident, $table:literal { $($name:ident: $pg:literal = $ty:ty,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq)]
        #[expect(missing_docs, reason = "a column is documented by its name and by the fact it comes from")]
        pub struct $row { $(pub $name: $ty,)* }

        impl $row {
            /// The table's columns.
            pub const COLUMNS: crate::projection::audit::columns::Columns =
                crate::projection::audit::columns::Columns {
                    table: $table,
                    names: &[$(stringify!($name),)*],
                    types: &[$($pg,)*],
                };
        }

        /// Rows as one array per column.
        #[derive(Debug, Default)]
        pub struct $arrays { $($name: Vec<$ty>,)* }

        impl $arrays {
            /// Adds one row.
            pub fn push(&mut self, row: $row) {
                $(self.$name.push(row.$name);)*
            }

            /// Binds the arrays in the order of the columns.
            pub fn bind(
                self,
                query: sqlx::query::Query<'_, sqlx::Postgres, sqlx::postgres::PgArguments>,
            ) -> sqlx::query::Query<'_, sqlx::Postgres, sqlx::postgres::PgArguments> {
                query$(.bind(self.$name))*
            }
        }
    };
}

pub(super) use table;
