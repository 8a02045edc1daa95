//! String literals of a SQL statement. Not a parser: whatever stands between quotes is one.

use std::ops::Range;

/// Where the contents of the literals of `sql` stand. One that does not end goes to the end of the text.
pub(super) fn literals(sql: &str) -> Vec<Range<usize>> {
    let bytes = sql.as_bytes();
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        at = match byte {
            b'\'' => {
                let escapes = at.checked_sub(1).is_some_and(|i| matches!(bytes[i], b'e' | b'E'));
                let end = quoted(bytes, at + 1, b'\'', escapes);
                found.push(at + 1..end);
                end + 1
            }
            b'"' => quoted(bytes, at + 1, b'"', false) + 1,
            b'$' => match dollar(sql, at) {
                Some((contents, next)) => {
                    found.push(contents);
                    next
                }
                None => at + 1,
            },
            _ => at + 1,
        };
    }
    found.retain(|range| !range.is_empty());
    found
}

/// The place of the closing quote, or the end.
fn quoted(bytes: &[u8], mut at: usize, quote: u8, escapes: bool) -> usize {
    while let Some(&byte) = bytes.get(at) {
        if escapes && byte == b'\\' {
            at += 2;
        } else if byte != quote {
            at += 1;
        } else if bytes.get(at + 1) == Some(&quote) {
            at += 2;
        } else {
            return at;
        }
    }
    bytes.len()
}

fn dollar(sql: &str, at: usize) -> Option<(Range<usize>, usize)> {
    let rest = sql.get(at + 1..)?;
    let tag = rest.find('$')?;
    let name = rest.get(..tag)?;
    if !name.chars().all(|c| c.is_alphanumeric() || c == '_')
        || name.starts_with(|c: char| c.is_ascii_digit())
    {
        return None;
    }
    let from = at + tag + 2;
    let closing = format!("${name}$");
    let end = sql.get(from..)?.find(&closing).map_or(sql.len(), |end| from + end);
    Some((from..end, (end + closing.len()).min(sql.len())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_literal_is_found() {
        for (sql, expected) in [
            ("SELECT 'a', 'b''c'", vec!["a", "b''c"]),
            (r"SELECT E'a\'b' , 1", vec![r"a\'b"]),
            ("SELECT $$x$$, $t$y'z$t$, $1", vec!["x", "y'z"]),
            ("SELECT \"it's\" FROM t WHERE a = 'v'", vec!["v"]),
            ("SELECT 'open", vec!["open"]),
            ("SELECT '' , a", vec![]),
        ] {
            let found: Vec<_> = literals(sql).into_iter().map(|range| sql.get(range).unwrap()).collect();
            assert_eq!(found, expected, "{sql}");
        }
    }
}
