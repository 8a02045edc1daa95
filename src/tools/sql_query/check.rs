//! The first barrier: one plain query that reads, before Postgres sees it.
//!
//! Names come from our own scanner, shape from `sqlparser`. Knows no connection: what functions do is asked of the
//! catalog in `functions`. It is a courtesy with clear words, not the guard: the role and the transaction are.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use sqlparser::ast::{Query, Select, SetExpr, Statement, Visit, Visitor};
use sqlparser::dialect::PostgreSqlDialect;
use sqlparser::parser::{Parser, ParserError};

use super::denied::{is_denied_function, is_denied_relation};
use super::lexer::{self, Token, Tokens};
use super::refused;
use crate::refusal::Reason;
use crate::tools::ToolError;

/// A deeper expression is refused; Postgres' own limit is its stack.
const NESTING_MAX: usize = 80;

/// More tokens make a tree that is too deep to walk and to drop.
const TOKENS_MAX: usize = 8_000;

/// A statement that passed, with the names the catalog must be asked about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Checked {
    /// The statement without trailing semicolons and comments.
    pub(super) sql: String,
    /// Everything that could be a call: (schema, name).
    pub(super) calls: BTreeSet<(Option<String>, String)>,
    /// Names behind a dot, which Postgres also reads as calls on a row: `t.f` is `f(t)`.
    pub(super) fields: BTreeSet<String>,
    /// Those of them behind brackets, where the argument can be of any type: `(1.0).f` is `f(1.0)`.
    pub(super) applied: BTreeSet<String>,
    /// Operators, the ones behind keywords included.
    pub(super) operators: BTreeSet<String>,
    /// All names: types could be among them.
    pub(super) words: BTreeSet<String>,
}

/// Checks `sql`.
///
/// # Errors
/// [`ToolError`] of category `validation`, its code naming the rule.
pub(super) fn check(sql: &str) -> Result<Checked, ToolError> {
    let tokens = lexer::read(sql)?;
    one_query(&tokens)?;
    no_key_locks(&tokens)?;
    let checked = names(&tokens, sql);
    denied_names(&checked)?;
    shape(&checked.sql)?;
    Ok(checked)
}

fn one_query(tokens: &Tokens) -> Result<(), ToolError> {
    let list = &tokens.tokens;
    if list.len() > TOKENS_MAX {
        return Err(ToolError::new(
            Reason::SqlTooComplex,
            format!("The statement has more than {TOKENS_MAX} tokens."),
            "Join against a table or VALUES with fewer entries.",
        ));
    }
    let Some(first) = list.iter().find(|token| !matches!(token, Token::Mark(';' | '('))) else {
        return Err(ToolError::new(Reason::SqlEmpty, "There is no statement.", "Send one SELECT."));
    };
    let mut rest = list.iter().skip_while(|token| **token != Token::Mark(';'));
    if rest.any(|token| *token != Token::Mark(';')) {
        return Err(ToolError::new(
            Reason::SqlMultipleStatements,
            "There is text behind a semicolon: only one statement is accepted.",
            "Send the statements one by one.",
        ));
    }
    let opens = match first {
        Token::Word { text, quoted: false } => text.as_str(),
        Token::Word { .. } | Token::Operator(_) | Token::Mark(_) | Token::Literal => "",
    };
    if matches!(opens, "select" | "with" | "values" | "table") {
        return Ok(());
    }
    let what = if opens.is_empty() { "This".to_owned() } else { opens.to_uppercase() };
    Err(refused(
        Reason::SqlNotAQuery,
        format!("{what} is not a query: sql_query takes SELECT, WITH ... SELECT, VALUES or TABLE."),
    ))
}

/// `sqlparser` knows only two of the four row locks; these would read as a mistake otherwise.
fn no_key_locks(tokens: &Tokens) -> Result<(), ToolError> {
    let locks = |index| {
        let word = |ahead| tokens.word(index + ahead).unwrap_or_default();
        word(0) == "for" && matches!((word(1), word(2)), ("key", "share") | ("no", "key"))
    };
    if (0..tokens.tokens.len()).any(locks) { Err(locks_rows()) } else { Ok(()) }
}

fn names(tokens: &Tokens, sql: &str) -> Checked {
    let mut checked = Checked {
        sql: sql.get(..tokens.statement_end).unwrap_or_default().to_owned(),
        calls: BTreeSet::new(),
        fields: BTreeSet::new(),
        applied: BTreeSet::new(),
        // What LIKE, ILIKE, SIMILAR TO, IN, BETWEEN and ORDER BY come down to.
        operators: ["~~", "!~~", "~~*", "!~~*", "~", "!~", "=", "<>", "<", ">", "<=", ">="]
            .map(str::to_owned)
            .into(),
        words: BTreeSet::new(),
    };
    for (index, token) in tokens.tokens.iter().enumerate() {
        match token {
            Token::Word { text, .. } => {
                let behind_dot = index >= 1 && tokens.is_mark(index - 1, '.');
                if tokens.is_mark(index + 1, '(') {
                    let schema = if behind_dot && index >= 2 { tokens.word(index - 2) } else { None };
                    checked.calls.insert((schema.map(str::to_owned), text.clone()));
                }
                if behind_dot {
                    checked.fields.insert(text.clone());
                    if is_behind_brackets(tokens, index) {
                        checked.applied.insert(text.clone());
                    }
                }
                checked.words.insert(text.clone());
            }
            Token::Operator(text) => {
                // Postgres may split a run such as `=-` in two: every part of it counts.
                for start in 0..text.len() {
                    for end in start + 1..=text.len().min(start + 8) {
                        checked.operators.extend(text.get(start..end).map(str::to_owned));
                    }
                }
            }
            Token::Mark(_) | Token::Literal => {}
        }
    }
    checked
}

/// Whether the dotted name that ends at `index` starts from `(...)` or `[...]`, so from a value and not from a table.
fn is_behind_brackets(tokens: &Tokens, index: usize) -> bool {
    let mut start = index;
    while start >= 2 && tokens.is_mark(start - 1, '.') && tokens.word(start - 2).is_some() {
        start -= 2;
    }
    start >= 2
        && tokens.is_mark(start - 1, '.')
        && (tokens.is_mark(start - 2, ')') || tokens.is_mark(start - 2, ']'))
}

fn denied_names(checked: &Checked) -> Result<(), ToolError> {
    if let Some(name) = checked.words.iter().find(|name| is_denied_relation(name)) {
        return Err(refused(
            Reason::SqlRelationRefused,
            format!(
                "{name} shows credentials, settings or other sessions, or reaches another one's temporary objects: it is not readable here."
            ),
        ));
    }
    // Not all fields: none of these functions takes a row, and columns may be called alike.
    let mut called = checked.calls.iter().map(|(_, name)| name).chain(&checked.applied);
    if let Some(name) = called.find(|name| is_denied_function(name)) {
        return Err(refused(
            Reason::SqlFunctionRefused,
            format!("The function {name} reaches beyond reading tables: it is not callable here."),
        ));
    }
    Ok(())
}

fn shape(sql: &str) -> Result<(), ToolError> {
    // In brackets the parser knows TABLE as a query, too; the line break ends a comment.
    let bracketed = format!("({sql}\n)");
    let as_table = sql.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("table"));
    let sql = if as_table { &bracketed } else { sql };
    let statements = Parser::new(&PostgreSqlDialect {})
        .with_recursion_limit(NESTING_MAX)
        .try_with_sql(sql)
        .and_then(|mut parser| parser.parse_statements())
        .map_err(|error| unparsable(&error))?;
    let [statement] = statements.as_slice() else {
        return Err(ToolError::new(
            Reason::SqlMultipleStatements,
            format!("There are {} statements: only one is accepted.", statements.len()),
            "Send the statements one by one.",
        ));
    };
    match statement.visit(&mut Shape) {
        ControlFlow::Break(error) => Err(error),
        ControlFlow::Continue(()) => Ok(()),
    }
}

fn unparsable(error: &ParserError) -> ToolError {
    match error {
        ParserError::TokenizerError(cause) | ParserError::ParserError(cause) => ToolError::new(
            Reason::SqlSyntax,
            format!("The SQL cannot be read: {}.", crate::base::clip_words(cause, 500)),
            "Correct the SQL; where Postgres would take it, write it in a more common form.",
        ),
        ParserError::RecursionLimitExceeded => ToolError::new(
            Reason::SqlTooComplex,
            format!("The statement nests deeper than {NESTING_MAX} levels."),
            "Split it with WITH, or flatten its parentheses.",
        ),
    }
}

struct Shape;

impl Visitor for Shape {
    type Break = ToolError;

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<ToolError> {
        if !query.locks.is_empty() {
            return ControlFlow::Break(locks_rows());
        }
        let foreign = query.for_clause.is_some()
            || query.settings.is_some()
            || query.format_clause.is_some()
            || !query.pipe_operators.is_empty();
        if foreign {
            return ControlFlow::Break(ToolError::new(
                Reason::SqlSyntax,
                "The SQL has a clause that Postgres does not know.",
                "Write it in Postgres' dialect.",
            ));
        }
        match query.body.as_ref() {
            SetExpr::Insert(_) | SetExpr::Update(_) | SetExpr::Delete(_) | SetExpr::Merge(_) => {
                ControlFlow::Break(writes())
            }
            SetExpr::Select(_)
            | SetExpr::Query(_)
            | SetExpr::SetOperation { .. }
            | SetExpr::Values(_)
            | SetExpr::Table(_) => ControlFlow::Continue(()),
        }
    }

    fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<ToolError> {
        if select.into.is_some() {
            return ControlFlow::Break(refused(
                Reason::SqlSelectInto,
                "SELECT ... INTO makes a table: only reads are accepted.".to_owned(),
            ));
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_statement(&mut self, statement: &Statement) -> ControlFlow<ToolError> {
        if matches!(statement, Statement::Query(_)) {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(writes())
        }
    }
}

fn locks_rows() -> ToolError {
    refused(
        Reason::SqlLocksRows,
        "FOR UPDATE, FOR SHARE and their kin lock rows: only plain reads are accepted.".to_owned(),
    )
}

fn writes() -> ToolError {
    refused(
        Reason::SqlWrites,
        "The statement changes data (INSERT, UPDATE, DELETE or MERGE): only reads are accepted.".to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(sql: &str) -> &'static str {
        check(sql).map_or_else(|error| error.code(), |_| "passed")
    }

    #[test]
    fn each_rule_has_its_code() {
        for (sql, expected) in [
            ("", "sql_empty"),
            (" ; -- x", "sql_empty"),
            ("SELECT 1; SELECT 2", "sql_multiple_statements"),
            ("COMMIT; DROP TABLE a", "sql_multiple_statements"),
            ("DROP TABLE a", "sql_not_a_query"),
            ("EXPLAIN SELECT 1", "sql_not_a_query"),
            ("\"select\" 1", "sql_not_a_query"),
            ("WITH x AS (DELETE FROM a RETURNING *) SELECT * FROM x", "sql_writes"),
            ("WITH x AS (SELECT 1) DELETE FROM a", "sql_writes"),
            ("SELECT * INTO b FROM a", "sql_select_into"),
            ("SELECT * FROM (SELECT * FROM a FOR UPDATE) b", "sql_locks_rows"),
            ("SELECT * FROM pg_catalog.\"pg_authid\"", "sql_relation_refused"),
            ("SELECT \"query_to_xml\"('x', true, true, '')", "sql_function_refused"),
            ("SELECT lo.lo_revenue FROM lineorder lo", "passed"),
            ("SELECT ('SELECT 1'::text) . ts_stat", "sql_function_refused"),
            ("SELECT (a.b[1]).c.\"current_setting\" FROM a", "sql_function_refused"),
            ("SELECT (ARRAY[1.0])[1].pg_sleep", "sql_function_refused"),
            ("SELECT 1) AS t, (SELECT 2", "sql_syntax"),
            ("SELECT FROM WHERE", "sql_syntax"),
            ("SELECT 1;", "passed"),
            ("(SELECT 1) UNION ALL (VALUES (2))", "passed"),
            ("TABLE orders", "passed"),
        ] {
            assert_eq!(code(sql), expected, "{sql}");
        }
    }

    #[test]
    fn names_are_taken_from_every_corner() {
        let checked =
            check("SELECT pg_catalog.\"Lower\"(a), t.g, h (1) OVER w FROM F(1) t WHERE a @@ b").unwrap();
        let calls: Vec<_> =
            checked.calls.iter().map(|(schema, name)| (schema.as_deref(), name.as_str())).collect();
        assert_eq!(calls, [(None, "f"), (None, "h"), (Some("pg_catalog"), "Lower")]);
        assert!(checked.fields.contains("g"));
        assert!(checked.operators.contains("@@"));
    }

    #[test]
    fn long_and_deep_statements_are_refused_without_harm() {
        let deep = format!("SELECT {}1{}", "(".repeat(3_000), ")".repeat(3_000));
        assert_eq!(code(&deep), "sql_too_complex");
        let long = format!("SELECT 1{}", "+1".repeat(TOKENS_MAX));
        assert_eq!(code(&long), "sql_too_complex");
        let wide = format!("SELECT 1{}", "+1".repeat(TOKENS_MAX / 2 - 10));
        assert_eq!(code(&wide), "passed");
    }
}
