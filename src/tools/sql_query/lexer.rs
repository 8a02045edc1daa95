//! Reads SQL into words, operators and brackets by the rules of Postgres' own scanner (`scan.l`, with
//! `standard_conforming_strings = on`, which the transaction sets).
//!
//! Only names matter here: a text that another parser takes for a comment or a string can hide no call from this one.
//! It understands no grammar and never decides what is allowed.

use crate::refusal::Reason;
use crate::tools::ToolError;

/// Postgres cuts longer names silently, so that two spellings would be one function.
const NAME_BYTES_MAX: usize = 63;

/// A piece of SQL that is no comment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Token {
    /// A name or keyword, folded as Postgres folds it.
    Word {
        /// Lower-case unless quoted.
        text: String,
        /// Written in double quotes, so never a keyword.
        quoted: bool,
    },
    /// A run of operator characters.
    Operator(String),
    /// `( ) [ ] , ; . :` and whatever else stands alone.
    Mark(char),
    /// A string or a number: data.
    Literal,
}

/// All tokens of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tokens {
    /// In order.
    pub(super) tokens: Vec<Token>,
    /// Where the statement ends, bytes: behind the last token that is no semicolon.
    pub(super) statement_end: usize,
}

impl Tokens {
    /// The word at `index`.
    pub(super) fn word(&self, index: usize) -> Option<&str> {
        match self.tokens.get(index) {
            Some(Token::Word { text, .. }) => Some(text),
            Some(Token::Operator(_) | Token::Mark(_) | Token::Literal) | None => None,
        }
    }

    /// Whether the mark at `index` is `mark`.
    pub(super) fn is_mark(&self, index: usize, mark: char) -> bool {
        self.tokens.get(index) == Some(&Token::Mark(mark))
    }
}

/// Reads `sql`.
///
/// # Errors
/// `sql_syntax` or `sql_unsupported_syntax`, with line and column.
pub(super) fn read(sql: &str) -> Result<Tokens, ToolError> {
    let scanner = Scanner { sql, bytes: sql.as_bytes(), at: 0 };
    match sql.find('\0') {
        // In strings too: the protocol ends a text with it.
        Some(at) => Err(scanner.syntax(at, "a NUL character is not text")),
        None => scanner.run(),
    }
}

struct Scanner<'a> {
    sql: &'a str,
    bytes: &'a [u8],
    at: usize,
}

fn is_word_start(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'_' || byte >= 0x80
}

fn is_word(byte: u8) -> bool {
    is_word_start(byte) || byte.is_ascii_digit() || byte == b'$'
}

fn is_operator(byte: u8) -> bool {
    b"~!@#^&|`?+-*/%<>=".contains(&byte)
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c)
}

impl Scanner<'_> {
    fn run(mut self) -> Result<Tokens, ToolError> {
        let mut tokens = Vec::new();
        let mut statement_end = 0;
        loop {
            self.skip_blank()?;
            if self.at >= self.bytes.len() {
                return Ok(Tokens { tokens, statement_end });
            }
            let token = self.token()?;
            if token != Token::Mark(';') {
                statement_end = self.at;
            }
            tokens.push(token);
        }
    }

    fn peek(&self, ahead: usize) -> Option<u8> {
        self.bytes.get(self.at + ahead).copied()
    }

    fn starts(&self, text: &str) -> bool {
        self.bytes.get(self.at..).is_some_and(|rest| rest.starts_with(text.as_bytes()))
    }

    fn skip_blank(&mut self) -> Result<(), ToolError> {
        while let Some(byte) = self.peek(0) {
            if is_space(byte) {
                self.at += 1;
            } else if self.starts("--") {
                self.skip_line();
            } else if self.starts("/*") {
                self.skip_block()?;
            } else {
                break;
            }
        }
        Ok(())
    }

    fn skip_line(&mut self) {
        while self.peek(0).is_some_and(|byte| byte != b'\n' && byte != b'\r') {
            self.at += 1;
        }
    }

    fn skip_block(&mut self) -> Result<(), ToolError> {
        let start = self.at;
        let mut depth = 0_usize;
        loop {
            if self.starts("/*") {
                depth += 1;
                self.at += 2;
            } else if self.starts("*/") {
                depth -= 1;
                self.at += 2;
                if depth == 0 {
                    return Ok(());
                }
            } else if self.at < self.bytes.len() {
                self.at += 1;
            } else {
                return Err(self.syntax(start, "a comment is not closed"));
            }
        }
    }

    fn token(&mut self) -> Result<Token, ToolError> {
        let start = self.at;
        let first = self.bytes[start];
        let second = self.peek(1);
        match first {
            b'\'' => self.string(false),
            b'e' | b'E' if second == Some(b'\'') => self.prefixed_string(true),
            b'b' | b'B' | b'x' | b'X' | b'n' | b'N' if second == Some(b'\'') => self.prefixed_string(false),
            b'u' | b'U' if second == Some(b'&') && self.peek(2) == Some(b'"') => Err(self.unsupported(
                start,
                "a name with Unicode escapes (U&\"...\") is not accepted: write the name itself in double quotes",
            )),
            b'u' | b'U' if second == Some(b'&') && self.peek(2) == Some(b'\'') => {
                self.at += 2;
                self.string(false)
            }
            b'"' => self.quoted_word(),
            b'$' => self.dollar(),
            _ if is_word_start(first) => self.bare_word(),
            _ if first.is_ascii_digit() || (first == b'.' && second.is_some_and(|b| b.is_ascii_digit())) => {
                self.number()
            }
            _ if is_operator(first) => Ok(self.operator()),
            _ => {
                self.at += 1;
                Ok(Token::Mark(char::from(first)))
            }
        }
    }

    fn prefixed_string(&mut self, escapes: bool) -> Result<Token, ToolError> {
        self.at += 1;
        self.string(escapes)
    }

    fn string(&mut self, escapes: bool) -> Result<Token, ToolError> {
        let start = self.at;
        self.at += 1;
        loop {
            match self.peek(0) {
                None => return Err(self.syntax(start, "a string is not closed")),
                Some(b'\\') if escapes => self.at += 2,
                Some(b'\'') if self.peek(1) == Some(b'\'') => self.at += 2,
                Some(b'\'') => {
                    self.at += 1;
                    if !self.continues() {
                        return Ok(Token::Literal);
                    }
                }
                Some(_) => self.at += 1,
            }
        }
    }

    /// SQL joins strings that stand on lines of their own; the second part keeps the first one's escapes.
    fn continues(&mut self) -> bool {
        let before = self.at;
        let mut newline = false;
        while let Some(byte) = self.peek(0) {
            if is_space(byte) {
                newline |= byte == b'\n' || byte == b'\r';
                self.at += 1;
            } else if self.starts("--") {
                self.skip_line();
            } else {
                break;
            }
        }
        if newline && self.peek(0) == Some(b'\'') {
            self.at += 1;
            return true;
        }
        self.at = before;
        false
    }

    fn quoted_word(&mut self) -> Result<Token, ToolError> {
        let start = self.at;
        self.at += 1;
        let mut text = Vec::new();
        loop {
            match self.peek(0) {
                None => return Err(self.syntax(start, "a quoted name is not closed")),
                Some(b'"') if self.peek(1) == Some(b'"') => {
                    text.push(b'"');
                    self.at += 2;
                }
                Some(b'"') => {
                    self.at += 1;
                    break;
                }
                Some(byte) => {
                    text.push(byte);
                    self.at += 1;
                }
            }
        }
        let text = String::from_utf8(text).map_err(|_| self.syntax(start, "a name is not text"))?;
        self.word(start, text, true)
    }

    fn bare_word(&mut self) -> Result<Token, ToolError> {
        let start = self.at;
        while self.peek(0).is_some_and(is_word) {
            self.at += 1;
        }
        let text = self.sql.get(start..self.at).unwrap_or_default().to_ascii_lowercase();
        self.word(start, text, false)
    }

    fn word(&self, start: usize, text: String, quoted: bool) -> Result<Token, ToolError> {
        if text.len() > NAME_BYTES_MAX {
            return Err(self.unsupported(start, "a name has more than 63 bytes, which Postgres would cut"));
        }
        Ok(Token::Word { text, quoted })
    }

    fn dollar(&mut self) -> Result<Token, ToolError> {
        let start = self.at;
        if self.peek(1).is_some_and(|byte| byte.is_ascii_digit()) {
            return Err(
                self.unsupported(start, "there are no parameters to bind: write the value in place of $n")
            );
        }
        let mut end = start + 1;
        while self.bytes.get(end).is_some_and(|&byte| is_word(byte) && byte != b'$') {
            end += 1;
        }
        if self.bytes.get(end) != Some(&b'$') {
            return Err(self.syntax(start, "a lone $"));
        }
        let tag = self.sql.get(start..=end).unwrap_or_default();
        let body = self.sql.get(end + 1..).unwrap_or_default();
        let Some(length) = body.find(tag) else {
            return Err(self.syntax(start, "a dollar-quoted string is not closed"));
        };
        self.at = end + 1 + length + tag.len();
        Ok(Token::Literal)
    }

    fn number(&mut self) -> Result<Token, ToolError> {
        let start = self.at;
        let digits = |scanner: &mut Self| {
            while scanner.peek(0).is_some_and(|byte| byte.is_ascii_digit() || byte == b'_') {
                scanner.at += 1;
            }
        };
        let radix = self.peek(0) == Some(b'0')
            && self.peek(1).is_some_and(|byte| b"xXoObB".contains(&byte))
            && self.peek(2).is_some_and(|byte| byte.is_ascii_hexdigit() || byte == b'_');
        if radix {
            self.at += 2;
            while self.peek(0).is_some_and(|byte| byte.is_ascii_hexdigit() || byte == b'_') {
                self.at += 1;
            }
        } else {
            digits(self);
            if self.peek(0) == Some(b'.') {
                self.at += 1;
                digits(self);
            }
            let sign = usize::from(matches!(self.peek(1), Some(b'+' | b'-')));
            if matches!(self.peek(0), Some(b'e' | b'E'))
                && self.peek(1 + sign).is_some_and(|byte| byte.is_ascii_digit())
            {
                self.at += 1 + sign;
                digits(self);
            }
        }
        if self.peek(0).is_some_and(is_word_start) {
            return Err(self.syntax(start, "a number runs into a name"));
        }
        Ok(Token::Literal)
    }

    fn operator(&mut self) -> Token {
        let start = self.at;
        while self.peek(0).is_some_and(is_operator) && !self.starts("--") && !self.starts("/*") {
            self.at += 1;
        }
        Token::Operator(self.sql.get(start..self.at).unwrap_or_default().to_owned())
    }

    fn place(&self, at: usize) -> String {
        let before = self.sql.get(..at).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        format!("line {line}, column {column}")
    }

    fn syntax(&self, at: usize, cause: &str) -> ToolError {
        ToolError::new(
            Reason::SqlSyntax,
            format!("The SQL cannot be read: {cause} ({}).", self.place(at)),
            "Correct the SQL and try again.",
        )
    }

    fn unsupported(&self, at: usize, cause: &str) -> ToolError {
        ToolError::new(
            Reason::SqlUnsupportedSyntax,
            format!("The SQL is refused: {cause} ({}).", self.place(at)),
            "Write it in the plain form.",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(sql: &str) -> Vec<String> {
        let tokens = read(sql).unwrap();
        (0..tokens.tokens.len()).filter_map(|index| tokens.word(index)).map(str::to_owned).collect()
    }

    #[test]
    fn what_postgres_takes_for_code_is_code() {
        for (sql, expected) in [
            ("SELECT 'it''s; -- /*' AS a", vec!["select", "as", "a"]),
            (r"SELECT 'a\' , b, ''", vec!["select", "b"]),
            (r"SELECT E'a\' , b, '", vec!["select"]),
            ("SELECT E'a'\n'b\\' , c, '", vec!["select"]),
            ("SELECT E'a'  'b\\' , c", vec!["select", "c"]),
            ("SELECT 1 @--'\n, hidden --'", vec!["select", "hidden"]),
            ("SELECT /* a /* b */ c */ d", vec!["select", "d"]),
            ("SELECT $$ a $x$ b $$, c", vec!["select", "c"]),
            ("SELECT $x$ a $$ b $x$, c", vec!["select", "c"]),
            ("SELECT a$b$c", vec!["select", "a$b$c"]),
            ("SELECT \"Pg\"\"x\".PG_Sleep", vec!["select", "Pg\"x", "pg_sleep"]),
            ("SELECT U&'\\0041' , x", vec!["select", "x"]),
            ("SELECT 1.5e-3, 0xFF, 1_000, .5", vec!["select"]),
            ("SELECT a*/* x */b", vec!["select", "a", "b"]),
        ] {
            assert_eq!(words(sql), expected, "{sql}");
        }
    }

    #[test]
    fn unreadable_text_is_refused_with_its_place() {
        for (sql, code, place) in [
            ("SELECT 'a", "sql_syntax", "line 1, column 8"),
            ("SELECT 1,\n /* a /* b */", "sql_syntax", "line 2, column 2"),
            ("SELECT U&\"a\"", "sql_unsupported_syntax", "line 1, column 8"),
            ("SELECT $1", "sql_unsupported_syntax", "line 1, column 8"),
            ("SELECT 1.pg_sleep(1)", "sql_syntax", "line 1, column 8"),
            ("SELECT $a$ b", "sql_syntax", "line 1, column 8"),
        ] {
            let error = read(sql).unwrap_err();
            assert_eq!(error.code(), code, "{sql}");
            assert!(error.message.contains(place), "{sql}: {}", error.message);
        }
        assert_eq!(read(&format!("SELECT {}", "a".repeat(64))).unwrap_err().code(), "sql_unsupported_syntax");
    }

    #[test]
    fn the_statement_ends_before_semicolons_and_comments() {
        let sql = "SELECT 1 ; -- done";
        assert_eq!(sql.get(..read(sql).unwrap().statement_end), Some("SELECT 1"));
    }
}
