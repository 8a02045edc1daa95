//! `${VAR}` and `${VAR:-default}` in the config's text.

/// The text cannot be expanded.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ExpandError {
    /// A variable without value and without default.
    #[error(
        "line {line}: the environment has no {name} and the config gives no default: write ${{{name}:-value}}"
    )]
    Unset {
        /// The variable.
        name: String,
        /// Where, from 1.
        line: usize,
    },
    /// `${` without `}`.
    #[error("line {line}: ${{ is not closed")]
    Unclosed {
        /// Where, from 1.
        line: usize,
    },
}

/// Replaces `${VAR}` and `${VAR:-default}` by what `get` gives; `$$` is a dollar sign. An empty value counts as
/// unset where a default is given. Lines that are comments are left alone.
///
/// # Errors
/// [`ExpandError`] names the variable and the line.
pub fn expand(text: &str, get: impl Fn(&str) -> Option<String>) -> Result<String, ExpandError> {
    let mut out = String::with_capacity(text.len());
    for (index, line) in text.split_inclusive('\n').enumerate() {
        if line.trim_start().starts_with('#') {
            out.push_str(line);
        } else {
            expand_line(line, index + 1, &get, &mut out)?;
        }
    }
    Ok(out)
}

fn expand_line(
    text: &str,
    line: usize,
    get: &impl Fn(&str) -> Option<String>,
    out: &mut String,
) -> Result<(), ExpandError> {
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        out.push_str(before);
        if let Some(after) = after.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some(after) = after.strip_prefix('{') {
            let (inside, after) = after.split_once('}').ok_or(ExpandError::Unclosed { line })?;
            out.push_str(&value(inside, line, get)?);
            rest = after;
        } else {
            out.push('$');
            rest = after;
        }
    }
    out.push_str(rest);
    Ok(())
}

fn value(inside: &str, line: usize, get: &impl Fn(&str) -> Option<String>) -> Result<String, ExpandError> {
    match inside.split_once(":-") {
        Some((name, default)) => {
            Ok(get(name).filter(|value| !value.is_empty()).unwrap_or_else(|| default.to_owned()))
        }
        None => get(inside).ok_or_else(|| ExpandError::Unset { name: inside.to_owned(), line }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(name: &str) -> Option<String> {
        match name {
            "HOST" => Some("db".into()),
            "EMPTY" => Some(String::new()),
            _ => None,
        }
    }

    #[test]
    fn values_defaults_and_dollars() {
        assert_eq!(expand("a ${HOST} ${PORT:-5432} ${EMPTY:-x} $$ $5", get).unwrap(), "a db 5432 x $ $5");
    }

    #[test]
    fn comments_are_left_alone() {
        assert_eq!(expand("# ${NOPE}\n  # ${\na: ${HOST}\n", get).unwrap(), "# ${NOPE}\n  # ${\na: db\n");
    }

    #[test]
    fn what_is_missing_is_named_with_its_line() {
        assert_eq!(expand("a\nb: ${NOPE}", get), Err(ExpandError::Unset { name: "NOPE".into(), line: 2 }));
        assert_eq!(expand("${HOST", get), Err(ExpandError::Unclosed { line: 1 }));
    }
}
